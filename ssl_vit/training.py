"""From a tool's words to a finished run: what pretrain.py, finetune.py and evaluate.py share. Torch comes in late."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from . import identity
from .bounds import check_place
from .inits import CHOICES, SCRATCH
from .processes.stopping import Asked
from .recipe import Recipe, UserError, plain_errors
from .runs import Run
from .summary import duration, measured, to_beat, tool, typed
from .words import resolve

Result = dict[str, Any]


def pretrain(words: list[str]) -> None:
    """Train what the words say, or go on with it; print the result."""
    _main(words, _trains, _train, _conclude)


def finetune(words: list[str]) -> None:
    """The same on labels, from the weights that init= names."""
    _main(words, _finetunes, _train, _conclude)


def evaluate(words: list[str]) -> None:
    """Measure a frozen encoder; print the result."""
    _main(words, _probes, _probe, _tell)


def _main(
    words: list[str],
    check: Callable[[Recipe, list[str]], None],
    do: Callable[[Run], Result],
    tell: Callable[[Run, Result], None],
) -> None:
    as_json, words = "--json" in words, [word for word in words if word != "--json"]
    with plain_errors():
        run, result = _found(words, check)
    if result is None:
        with plain_errors(everywhere=True):
            result = do(run)
    if os.environ.get("RANK", "0") == "0":
        tell(run, result)
        if as_json:
            print(json.dumps({"folder": str(run.folder), **result}))


def _found(words: list[str], check: Callable[[Recipe, list[str]], None]) -> tuple[Run, Result | None]:
    """The run that the words mean, and its result where it has finished.

    Raises:
        UserError: a mistake in the words, or the folder holds another run.
    """
    recipe = resolve(words, here=False)
    check(recipe, words)
    run = Run(recipe)
    run.adopt()
    result = run.result()
    if result is None:
        identity.check_begun(run)
        check_place(recipe.data)
    elif os.environ.get("RANK", "0") == "0":  # the others only leave
        for doubt in identity.check(run):
            print(f"warning: {doubt}", flush=True)
    return run, result


def _trains(recipe: Recipe, words: list[str]) -> None:
    if recipe.objective == "probe":
        raise UserError(f"objective=probe trains nothing; type {typed(tool('evaluate'), *words)}")


def _finetunes(recipe: Recipe, words: list[str]) -> None:
    _starts(recipe, words)
    if recipe.objective != "supervised":
        raise UserError(
            f"objective={recipe.objective}: fine-tuning learns labels; say objective=supervised, or recipe=finetune"
        )


def _probes(recipe: Recipe, words: list[str]) -> None:
    _starts(recipe, words)
    if recipe.objective != "probe":
        raise UserError(
            f"objective={recipe.objective}: a frozen encoder is not trained; say objective=probe, or recipe=evaluate"
        )


def _starts(recipe: Recipe, words: list[str]) -> None:
    """That where the weights come from is said: scratch is too easily a slip here."""
    said = any(word == f"init={SCRATCH}" or word.endswith((".yaml", ".yml")) for word in words)
    if recipe.init == SCRATCH and not said:
        raise UserError(f"init= is missing; {CHOICES}")


def _train(run: Run) -> Result:
    """A signal that comes while torch does stops the run at its first step."""
    with Asked() as asked:
        from .job import train

        return train(run, asked)


def _probe(run: Run) -> Result:
    from .probing import probe

    return probe(run)


def _conclude(run: Run, result: Result) -> None:
    """What came out and what to type next."""
    print(f"finished    {result['steps']:,} steps in {duration(result['seconds'])}, {result['finished']}: {run.folder}")
    _tell_metrics(result)
    for picture in sorted(run.figures.glob("*.png")):
        print(f"picture     {picture}")
    print(f"curves      {typed(sys.executable, '-m', 'tensorboard.main', f'--logdir={run.folder.parent}')}")
    if run.recipe.hub.repo:
        _tell_hub(run)
    place = json.dumps(f"local-dir:{run.export}", ensure_ascii=False)  # quoted as Python's own text, too
    load = f"import timm; encoder = timm.create_model({place}, pretrained=True); print(encoder.num_features)"
    print(f"next        {typed(sys.executable, '-c', load)}")


def _tell_hub(run: Run) -> None:
    from .hub.ledger import told  # a second of imports

    try:
        for name, text in told(run):
            print(f"{name:<11} {text}")
    except Exception as error:  # the run is finished all the same
        print(f"warning: what the Hub has is not known: {error!r}")


def _tell(run: Run, result: Result) -> None:
    print(f"finished    in {duration(result['seconds'])}, {result['finished']}: {run.folder}")
    for name, entry in result["metrics"].items():
        print(f"{name:<11} {entry['value']:.1%} of {entry['n']:,} {entry['split']} pictures")


def _tell_metrics(result: Result) -> None:
    """The metrics of each split, and what they must beat."""
    splits: dict[str, dict[str, float]] = {}
    for name, entry in result["metrics"].items():
        splits.setdefault(entry["split"], {})[name] = entry["value"]
    for split, values in splits.items():
        print(f"{'held out' if split == 'validation' else split:<11} {measured(values)}")
        if beat := to_beat(values):
            print(f"to beat     {beat}")
