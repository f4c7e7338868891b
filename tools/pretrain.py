"""Pre-train an encoder.

accelerate launch tools/pretrain.py recipe=mpp
accelerate launch tools/pretrain.py recipe=mpp data=cifar10 data.path=PATH corruption.rate=0.15
"""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: beside another process, spinning threads lose much time

from ssl_vit.compute import duration
from ssl_vit.recipe import plain_errors
from ssl_vit.runs import Run
from ssl_vit.words import resolve

TOLD = ("loss", "accuracy_masked", "accuracy_random", "accuracy_kept")
TO_BEAT = {
    "entropy": "loss {:.3f} (entropy)",
    "commonest": "{:.1%} (commonest colour)",
    "neighbors": "{:.1%} (neighbours' mean)",
}


def conclude(run: Run, result: dict[str, Any]) -> None:
    """Say what came out and what to type next."""
    values = {name: entry["value"] for name, entry in result["metrics"].items()}
    told = [f"{n} {values[n]:.3f}" if n == "loss" else f"{n} {values[n]:.1%}" for n in TOLD if n in values]
    beat = [text.format(values[name]) for name, text in TO_BEAT.items() if name in values]
    load = f"timm.create_model('local-dir:{run.export}', pretrained=True)"
    print(f"finished    {result['steps']:,} steps in {duration(result['seconds'])}: {run.folder}")
    print(f"held out    {', '.join(told).replace('_', ' ')}")
    if beat:
        print(f"to beat     {', '.join(beat)}")
    print(f"picture     {run.figures / 'predictions.png'}")
    print(f"curves      tensorboard --logdir {run.folder.parent}")
    print(f'next        python -c "import timm; print({load})"')


def main(words: list[str]) -> None:
    with plain_errors():
        run = Run(resolve(words))
        run.adopt()
        result = run.result()
        if result is None:
            from ssl_vit.job import pretrain  # torch comes in only now

            result = pretrain(run)
    if os.environ.get("RANK", "0") == "0":
        conclude(run, result)


if __name__ == "__main__":
    main(sys.argv[1:])
