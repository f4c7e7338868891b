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

from ssl_vit.recipe import plain_errors
from ssl_vit.runs import Run
from ssl_vit.summary import duration, measured, to_beat
from ssl_vit.words import resolve


def conclude(run: Run, result: dict[str, Any]) -> None:
    """Say what came out and what to type next."""
    values = {name: entry["value"] for name, entry in result["metrics"].items()}
    print(f"finished    {result['steps']:,} steps in {duration(result['seconds'])}, {result['finished']}: {run.folder}")
    print(f"held out    {measured(values)}")
    if beat := to_beat(values):
        print(f"to beat     {beat}")
    for picture in sorted(run.figures.glob("*.png")):
        print(f"picture     {picture}")
    print(f"curves      {sys.executable} -m tensorboard.main --logdir {run.folder.parent}")
    load = f"timm.create_model('local-dir:{run.export}', pretrained=True)"
    print(f'next        {sys.executable} -c "import timm; encoder = {load}; print(encoder.num_features)"')


def main(words: list[str]) -> None:
    with plain_errors():
        run = Run(resolve(words))
        run.adopt()
        result = run.result()
    if result is None:
        with plain_errors(everywhere=True):
            from ssl_vit.job import pretrain  # torch comes in only now

            result = pretrain(run)
    if os.environ.get("RANK", "0") == "0":
        conclude(run, result)


if __name__ == "__main__":
    main(sys.argv[1:])
