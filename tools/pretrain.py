"""Pre-train an encoder.

accelerate launch tools/pretrain.py recipe=mpp
accelerate launch tools/pretrain.py recipe=mpp data=cifar10 data.path=PATH corruption.rate=0.15
"""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: with another process about, spinning threads cost 5 times the time

from ssl_vit.recipe import plain_errors, resolve
from ssl_vit.runs import Run


def conclude(run: Run, result: dict[str, Any]) -> None:
    """Say what came out and what to type next."""
    metrics = {name: entry["value"] for name, entry in result["metrics"].items()}
    print(
        f"finished    {result['steps']:,} steps in {result['seconds'] / 60:.1f} min: {run.folder}\n"
        f"held out    loss {metrics['loss']:.3f} (to beat: {metrics['entropy']:.3f}), accuracy on masked patches "
        f"{metrics['accuracy_masked']:.1%} (to beat: {metrics['commonest']:.1%} and {metrics['neighbors']:.1%})\n"
        f"picture     {run.figures / 'predictions.png'}\n"
        f"curves      tensorboard --logdir {run.folder.parent}\n"
        f"next        python -c \"import timm; print(timm.create_model('local-dir:{run.export}', pretrained=True))\""
    )


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
