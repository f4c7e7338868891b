"""What the lab reads in a run's folder beside its results: whether it is the run that a study
plans, and what it was trained and measured on. No torch here."""

import functools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..recipe import records, schema, words
from ..recipe.identity import counted, differences, facts
from ..recipe.images import TRAIN_SPLIT_KEYS
from ..recipe.init_source import SCRATCH, InitSource
from ..recipe.keys import Values
from ..recipe.parsing import flatten, load_yaml
from ..recipe.records.run import Environment, Result
from ..recipe.schema import all_keys
from ..runs import identity

HINT = "remove its folder and give the study's command again"


def not_planned(
    run: Path, values: Values, options: Sequence[str], undecided: Collection[str] = ()
) -> str:
    """Why a run's folder does not hold the run that a study plans, finished or not: its recipe was
    another, it was copied there or edited, or it started from other weights. Empty where it holds
    that run, or none that has begun, whose folder any run may take.

    Args:
        run: the folder.
        values: {dotted key: value} of what the task computes, and its result is of.
        options: words KEY=VALUE of the task; what was chosen among tries is in them alone.
        undecided: keys whose values are not chosen yet.

    Raises:
        UserError: its result.json or environment.json is damaged.
    """
    there = {name for name in ("recipe.yaml", *identity.RECORDS) if (run / name).exists()}
    if not there or not identity.is_begun(run):
        return ""
    try:
        written = flatten(load_yaml(run / "recipe.yaml"))
    except UserError:
        return "its recipe.yaml is missing or damaged"
    if written.get("name") != run.name:
        return f"its recipe.yaml is of a run called {written.get('name')}"
    environment, finished = None, "result.json" in there
    if finished or "environment.json" in there:
        environment = records.require(run / "environment.json", Environment, HINT)
    free = environment.free if environment else []
    if finished:
        made = records.require(run / "result.json", Result, HINT).recipe
        if made != identity.written_hash(written, free):
            return "its result.json is of another recipe than its recipe.yaml"
    given = words.parse(options)
    known = all_keys()
    chosen = counted({key: text for key, text in given.items() if key in known})
    sources = schema.sources({"init": SCRATCH, **given})
    planned = words.typed({key: text for key, text in chosen.items() if key not in sources})
    # what is measured may change until it is
    planned |= values if finished else counted(values, free)
    if planned.get("compute.precision") == "auto":
        undecided = [*undecided, "compute.precision"]
    measured = (environment and environment.options) or {}
    if differ := identity.planned_differences({**written, **measured}, planned, undecided):
        return f"its recipe is not the planned one: {', '.join(differ)}"
    for key, source in sources.items():
        recorded = environment[source.kind] if environment else None
        other = "" if key in undecided else _other_weights(source, written, recorded or {})
        if other:
            return other
    return ""


def _other_weights(
    source: InitSource, written: Mapping[str, Any], recorded: Mapping[str, Any]
) -> str:
    """Why weights that a run began with are not those of a plan. Weights that are not here, or that
    no environment.json describes, are compared by their names."""
    there = InitSource(str(written.get(source.key, SCRATCH)), source.key)
    called = "initial weights" if source.key == "init" else f"{source.kind}'s weights"
    here: dict[str, Any] = {}
    if source.is_local:
        path = Path(source.place)
        weights = path if path.is_file() else path / "export" / "model.safetensors"
        try:
            here = _identity(source, weights.stat().st_mtime_ns if weights.exists() else 0)
        except UserError as error:
            return f"its {called} cannot be compared: {error}"
    if here and recorded:
        same = not differences(facts(source.kind, recorded), facts(source.kind, here))
        return "" if same else f"its {called} are not those of {source.public_name}"
    # the recipe of weights on the Hub has their commit
    names = {one.public_name.partition("@")[0] for one in (there, source)}
    return "" if len(names) == 1 else f"its {called} are those of {there.key}={there.public_name}"


@functools.lru_cache(maxsize=64)  # several tasks start from one run
def _identity(source: InitSource, changed: int) -> dict[str, Any]:
    return source.identity()


def training_images(run: Path) -> tuple[str, ...]:
    """The options that choose a run's training images, their labels and groups; none of a stream,
    of which only the first images are known."""
    written = flatten(load_yaml(run / "recipe.yaml"))
    # embedded images are drawn at data.size
    keys = [*TRAIN_SPLIT_KEYS, "data.group", *([] if written.get("data.path") else ["data.size"])]
    return () if written.get("data.stream") else tuple(f"{key}={written.get(key)}" for key in keys)
