"""From a tool's words to a finished training run: what pretrain.py and finetune.py share. Torch comes in only with the job."""

import os
import sys
from collections.abc import Callable
from typing import Any

from .recipe import Recipe, plain_errors
from .runs import Run
from .summary import duration, measured, to_beat
from .words import resolve


def main(words: list[str], check: Callable[[Recipe], None] = lambda recipe: None) -> None:
    """Train what the words say, or go on with it; print the result. `check` refuses recipes that are not the tool's."""
    with plain_errors():
        recipe = resolve(words)
        check(recipe)
        run = Run(recipe)
        run.adopt()
        result = run.result()
    if result is None:
        with plain_errors(everywhere=True):
            from .job import train

            result = train(run)
    if os.environ.get("RANK", "0") == "0":
        conclude(run, result)


def conclude(run: Run, result: dict[str, Any]) -> None:
    """Say what came out and what to type next."""
    splits: dict[str, dict[str, float]] = {}
    for name, entry in result["metrics"].items():
        splits.setdefault(entry["split"], {})[name] = entry["value"]
    print(f"finished    {result['steps']:,} steps in {duration(result['seconds'])}, {result['finished']}: {run.folder}")
    for split, values in splits.items():
        print(f"{'held out' if split == 'validation' else split:<11} {measured(values)}")
        if beat := to_beat(values):
            print(f"to beat     {beat}")
    for picture in sorted(run.figures.glob("*.png")):
        print(f"picture     {picture}")
    print(f"curves      {sys.executable} -m tensorboard.main --logdir {run.folder.parent}")
    load = f"timm.create_model('local-dir:{run.export}', pretrained=True)"
    print(f'next        {sys.executable} -c "import timm; encoder = {load}; print(encoder.num_features)"')
