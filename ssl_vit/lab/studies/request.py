"""A study as the command line gives it: its plan, its places and the tool's own options."""

import dataclasses
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ...config import tool_options
from ...config.fields import FLAG
from ...config.init_source import SCRATCH
from ...config.parsing import exists
from ...config.plugins import run_plugin
from ...config.schema import options
from ...config.validate import check_value
from ...config.values import NULLS, check_renamed, parse
from ...errors import UserError, suggest
from ..lab_tools import StudyOptions
from . import command_line_sweep
from .axes import OURS, PLACEHOLDER
from .expand import Plan, tasks
from .missing_places import without_missing
from .mistakes import MOST_SEEDS
from .read_study import read
from .study import Study
from .study_file import find

# flags are typed with dashes: check=true is no option
OWN = tuple(key for key, one in StudyOptions.options().items() if one.form != FLAG)
OF_PLACES = ("init",)  # keys that only a study's file sets, and so may be places
SEED = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True)
class StudyRequest:
    """A study as the command line gives it."""

    study: Study
    plan: Plan
    name: str
    folder: Path
    own: StudyOptions
    places: dict[str, str]
    overrides: dict[str, str]  # options of a recipe
    left_out: list[str]  # arms whose places are not given


def parse_request(arguments: list[str]) -> StudyRequest:
    """The study, its plan and the tool's own options, of the command line.

    Raises:
        UserError: an option or the study's file is wrong.
    """
    given, axes = command_line_sweep.split(arguments)
    run_plugin(given.get("plugin"))  # whose keys are known from here on
    left_out: list[str] = []
    if axes is None:
        path = find(given.get("recipe"))
        found = read(path)
        given = {
            key: value for key, value in given.items() if not _not_given(key, value, found.places)
        }
        _check_names(found.places)
        study, left_out = without_missing(found, given)
        stem = path.stem
        places, own, overrides = _sorted(given, study.places)
    else:
        places, own, overrides = _sorted(given, ())
        axes = [key for key in axes if key not in own]
        study, stem = command_line_sweep.study(own.get("recipe"), overrides, axes)
        # the study's parts have them; a plugin runs because the command line names it
        overrides = {key: value for key, value in overrides.items() if key == "plugin"}
    settings = tool_options.build(StudyOptions, own)
    if settings.match is not None:
        study = _matched(study, settings.match)
    if settings.seeds is not None:
        study = dataclasses.replace(study, seeds=_seeds(settings.seeds))
    if (settings.only is None) != (settings.index is None):
        raise UserError("only= and index= belong together: a part, and the number of one task")
    name = settings.name or stem
    check_value("name", name)
    plan = tasks(study, places, overrides)
    folder = Path(settings.out) / name
    return StudyRequest(study, plan, name, folder, settings, places, overrides, left_out)


def _not_given(key: str, value: str, places: Collection[str]) -> bool:
    """Whether an option says that a place is not there: null, as None of Python is typed."""
    return key in places and value.lower() in NULLS


def _check_names(places: Collection[str]) -> None:
    """Check that no place has the name of an option."""
    for place in places:
        if place in (*StudyOptions.options(), *options()) and place not in OF_PLACES:
            raise UserError(f"places: {place}= means something else already; take another name")


def _matched(study: Study, match: str) -> Study:
    """The study with its arms matched by steps or exaFLOP."""
    if len(study.arms) < 2:
        raise UserError(f"match={match}: the study has one arm, and nothing to match it with")
    return dataclasses.replace(study, match=match)


def _sorted(
    given: dict[str, str], needed: tuple[str, ...]
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """The options as the places that the study needs, the tool's own, and those of a recipe.

    Raises:
        UserError: an option is unknown.
    """
    places = {place: _absolute(given[place]) for place in needed}
    own = {key: value for key, value in given.items() if key in OWN}
    overrides = {key: value for key, value in given.items() if key not in places | own}
    if "plugin" in overrides:
        overrides["plugin"] = _absolute(overrides["plugin"])
    for key, value in overrides.items():
        _check_override(key, value, needed)
    return places, own, overrides


def _check_override(key: str, value: str, places: tuple[str, ...]) -> None:
    """Check that an option is a recipe's key that a command line may set for a whole study."""
    if key == "seed":
        seeds = value if "," in value else f"{value},"
        text = f"say seeds={seeds} for just that, or seeds=N for the first N"
        raise UserError(f"seed={value}: {text}")
    fixed = (*OURS, "init", "data.name", "model.name")
    known = [name for name in (*options(), "model", "data") if name not in fixed]
    if key not in known:
        check_renamed(key)
        own = [*map(tool_options.option_name, StudyOptions.options().values()), *places]
        nearest = suggest(key, [*own, *known]).partition("choices:")[0]
        choices = f"choices: {', '.join(own)}, or a recipe's key"
        raise UserError(f"unknown option {key}; {nearest}{choices}")
    if PLACEHOLDER.search(value):
        raise UserError(f"{key}={value}: braces are for the study's file")


def _absolute(place: str) -> str:
    """A path that does not depend on the working directory; anything else as it is."""
    return str(Path(place).resolve()) if exists(place) else place


def _seeds(text: str) -> tuple[int, ...]:
    """`3` is 0, 1, 2; `0,1`, `5,` and `[5]` are lists."""
    listed = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    parts = listed.removesuffix(",").split(",")
    numbers = [int(part) for part in parts if SEED.fullmatch(part)]
    seeds = tuple(numbers)
    if "," not in text and listed == text and numbers:
        seeds = tuple(range(min(numbers[0], MOST_SEEDS + 1)))
    whole = len(numbers) == len(parts) and len(set(seeds)) == len(seeds)
    if not whole or not 0 < len(seeds) <= MOST_SEEDS:
        raise UserError(f"seeds={text}: expected how many (seeds=3) or which ones (seeds=0,2)")
    return seeds


def study_places(options: list[str]) -> tuple[str, ...]:
    """The places of the study that the options are of."""
    if "sweep" in options:
        return ()
    return read(find(parse(options).get("recipe"))).places


def with_places(options: list[str]) -> list[str]:
    """The options, and for each of the study's places that they leave out a stand-in: no images are
    read."""
    places = study_places(options)
    words = [word for word in options if not _not_given(*word.partition("=")[::2], places)]
    given = () if "sweep" in options else parse(words)
    stand_ins = {place: place for place in places} | {"init": SCRATCH}
    left_out = [place for place in places if place not in given]
    return [*words, *(f"{place}={stand_ins[place]}" for place in left_out)]
