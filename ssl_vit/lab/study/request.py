"""A study as the words of a command line, or a mapping of Python, ask for it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UserError, suggest
from ...recipe.parsing import parse_path
from ...recipe.schema import build as build_recipe
from ...recipe.tool import build, option_name, split
from ...recipe.words import check_keys
from .. import engine
from . import check, read, sweep, worth
from .hours import Plan
from .options import StudyOptions
from .tasks import Tasks, plan, tried_otherwise, without_missing

PRESETS = ("data", "model")  # presets, whose place a file may have
NULLS = ("null", "none")


@dataclass(frozen=True)
class Request:
    """A study as it was asked for.

    Attributes:
        study, tasks: with the places.
        recipes: {task: its recipe}.
        name, folder: of the study.
        own: the tool's options.
        plugin: that the command line names.
        cautions: warnings, to say before it starts.
        opening: lines to say before these.
        hours: The hours that it keeps to; None where it runs all of its tasks.
    """

    study: read.Study
    tasks: Tasks
    recipes: check.Recipes
    name: str
    folder: Path
    own: StudyOptions
    plugin: str | None
    cautions: list[str]
    opening: list[str]
    hours: Plan | None = None


def requested(
    words: Sequence[str],
    content: Mapping[str, Any] | None = None,
    stand_ins: bool = False,
    look: bool = True,
) -> Request:
    """A study with its tasks, all checked.

    Args:
        words, content: as of `study`.
        stand_ins: places that are not given are made up.
        look: at the images that are here.

    With `stand_ins` or --check images need not be here.

    Raises:
        UserError: an option or the study's file is wrong.
    """
    swept = None
    if sweep.SWEEP in words:
        words, swept = sweep.split(words)
    texts, rest = split(StudyOptions, words)
    own = build(StudyOptions, texts)
    given = engine.parse(rest)
    if given.get("plugin") is not None:
        given["plugin"] = _absolute(given["plugin"])
        engine.run_plugin(given["plugin"])  # whose keys are known from here on
    planned = None
    if own.recipe == worth.NAME:
        own, planned = _worth(own, given, may_time=not (stand_ins or own.dry))
        content = planned.study
        given = {key: text for key, text in given.items() if key == "plugin"}
    elif own.hours is not None:
        raise UserError(f"hours={own.hours:g}: has no effect without recipe={worth.NAME}")
    study, stem = _study(own, given, content, swept)
    if swept is not None:  # the study's runs have the others
        given = {key: text for key, text in given.items() if key == "plugin"}
    name = own.name or stem
    build_recipe({"name": name})  # which checks it
    places, options = _sorted(study, given)
    lines: list[str] = []
    if stand_ins:
        places = {place: _stand_in(study, place) for place in study.places} | places
    else:
        study, lines = without_missing(study, places)
    tasks = plan(study, places, options)
    recipes = check.recipes(study, tasks, here=not (stand_ins or own.check))
    tasks = check.with_values(tasks, recipes)
    if look:
        lines += check.images(study, tasks, recipes)
        lines += check.not_here(recipes)
    lines += check.architectures(study, tasks, recipes)
    lines += tried_otherwise(tasks)
    folder = Path(own.out) / name
    return Request(
        study=study,
        tasks=tasks,
        recipes=recipes,
        name=name,
        folder=folder,
        own=own,
        plugin=given.get("plugin"),
        cautions=lines,
        opening=planned.lines if planned else [],
        hours=planned.plan if planned and own.launcher == "local" else None,
    )


def _study(
    own: StudyOptions,
    given: Mapping[str, str],
    content: Mapping[str, Any] | None,
    swept: Sequence[str] | None,
) -> tuple[read.Study, str]:
    """The study of a mapping, a sweep or a file, and the name of its folder where none is given."""
    if content is not None:
        if own.name is None or own.recipe is not None:
            raise UserError("expected name=, the study's folder, beside a mapping, and no recipe=")
        study, stem = read.build(content, "the study"), own.name
    elif swept is not None:
        _check_options(given, ())
        keys = [key for key in swept if key in given and ("," in given[key] or engine.counts(key))]
        content, stem = sweep.content(own.recipe, given, keys, own.match)
        study = read.build(content, sweep.SWEEP)
    else:
        path = _find(own.recipe)
        study, stem = read.read(path), path.stem
    if own.match is not None and swept is None:
        text = "is for sweep; a study has match: {exaflop: AXIS} in its file"
        raise UserError(f"match={own.match}: {text}")
    if own.measures is not None:
        report = study.report.model_copy(update={"measures": tuple(own.measures)})
        study = study.model_copy(update={"report": report})
    if own.seeds is not None:
        study = study.model_copy(update={"seeds": _seeds(own.seeds)})
    return study, stem


def _sorted(study: read.Study, given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The words of a command line that are the study's places, and those that are keys of its
    recipes."""
    for place in study.places:
        taken = place in StudyOptions.options() or place in engine.own_keys()
        if taken and place not in PRESETS:
            raise UserError(f"places: {place}= means something else already; take another name")
    options = {key: text for key, text in given.items() if key not in study.places}
    _check_options(options, study.places)
    named = {key: text for key, text in given.items() if key in study.places}
    places = {key: _absolute(text) for key, text in named.items() if text.lower() not in NULLS}
    return places, options


def _worth(
    own: StudyOptions, given: Mapping[str, str], may_time: bool
) -> tuple[StudyOptions, worth.Worth]:
    """Return the options of study/worth as those of a mapping, and its plan.

    Raises:
        UserError: as `worth.build`, or another device is named.
    """
    if own.device:
        text = f"{worth.NAME} takes its hours from steps that it times here, on this machine"
        raise UserError(f"device={own.device}: {text}; leave it out")
    name = own.name or worth.NAME.rpartition("/")[2]
    planned = worth.build(given, own, Path(own.out) / name, may_time)
    parallel = own.parallel
    if own.launcher != "local":
        text = f"by the time of this machine, {planned.parallel} at once; on those of"
        text += f" launcher={own.launcher} it may be another, and waiting comes on top"
        planned.lines.append(f"planned     {text}")
    elif parallel is None:
        parallel = planned.parallel
    elif parallel != planned.parallel:
        text = f"for parallel={planned.parallel}; it is not planned anew for parallel={parallel}"
        planned.lines.insert(0, f"planned     {text}")
    changed = {"recipe": None, "name": name, "parallel": parallel}
    return own.model_copy(update=changed), planned


def _find(name: str | None) -> Path:
    """A study's file, from its name under recipes/ or its path.

    Raises:
        UserError: there is none.
    """
    known = engine.studies()
    names = [*known, worth.NAME]
    if name is None:
        raise UserError(f"recipe= is missing; choices: {', '.join(names)}, or a file's path")
    if name in known:
        return known[name]
    path = parse_path(name, "recipe")
    if path.suffix in (".yaml", ".yml"):
        if path.is_file():
            return path
        raise UserError(f"recipe={name}: no such file")
    if name in engine.recipe_names():
        text = "is no study; to sweep it, say sweep and keys with several values"
        raise UserError(f"recipe={name}: {text}")
    raise UserError(f"recipe={name}: no such study and no .yaml file; {suggest(name, names)}")


def _check_options(options: Mapping[str, str], places: Collection[str]) -> None:
    """Check the recipe's keys that a command line sets for a whole study.

    Raises:
        UserError: some are no such keys, or a text is for a file.
    """
    if seed := options.get("seed"):
        seeds = seed if "," in seed else f"{seed},"
        raise UserError(f"seed={seed}: say seeds={seeds} for just that, or seeds=N for the first N")
    own = [*map(option_name, StudyOptions.options().values()), *places]
    check_keys(options, known=engine.own_keys(), others=own)
    for key, text in options.items():
        if read.REFERENCE.search(text):
            raise UserError(f"{key}={text}: braces are for the study's file")


def _absolute(place: str) -> str:
    """A path that does not depend on the working directory; anything else as it is."""
    return str(Path(place).resolve()) if engine.exists(place) else place


def _stand_in(study: read.Study, place: str) -> str:
    """What stands for a place that is not given: its name, or where initial weights come from
    itself, in braces."""
    settings = (one for run in study.runs for one in read.settings_of(study, run))
    is_init = any(one.options.get("init") == f"{{{place}}}" for one in settings)
    return f"{{{place}}}" if is_init else place


def _seeds(text: str) -> tuple[int, ...]:
    """`3` is 0, 1, 2; `0,1`, `5,` and `[5]` are lists."""
    try:
        numbers = [int(part) for part in text.strip("[]").removesuffix(",").split(",")]
        return read.seeds_of(numbers if {*text} & {*"[,"} else numbers[0])
    except ValueError:
        expected = "expected how many (seeds=3) or which different ones (seeds=0,2)"
        raise UserError(f"seeds={text}: {expected}") from None
