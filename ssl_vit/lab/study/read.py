"""Read and check a study's file.

A study file lists runs and axes. Each name on an axis, such as `mae` on axis `arm`, sets options of
runs. A run names a tool and its axes, and is repeated for every combination of names on these axes.
Reading stops at the first mistake, and the error gives the place, the key and the expected value.
"""

import graphlib
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)

from ...errors import UserError, suggest
from ...formatting import option_text
from ...measurements import UNTRAINED
from ...metrics import TESTED
from ...recipe.keys import Values, convert
from ...recipe.parsing import flatten, load_yaml
from ...recipe.schema import all_keys
from ...recipe.words import read as read_text

# {column: type} of the results table, which also has one column per axis
COLUMNS = {
    "run": "str",
    "seed": "int64",
    "tried": "str",
    "split": "str",
    "metric": "str",
    "value": "float64",
    "n": "Int64",
    "exaflop": "float64",
    "device_hours": "float64",
    "fingerprint": "str",
    "feature_pool": "str",
    "folder": "str",
    "origin": "str",
}
ALL = "all"  # key under a name of an axis: options of every run over the axis
SEED = "seed"  # {seed} in an option stands for the task's seed
REFERENCE = re.compile(r"\{([^{}:]+)\}")  # does not match a mapping such as {layers: [1,1]}
MOST_SEEDS = 1000
LARGEST_SEED = 2**63
# {key of a recipe that a study's file must not set: what to do instead}
REMEDIES = {
    "name": "Remove the key, because the study names each task.",
    "out": "Remove the key, because the study chooses the folder of each task.",
    "seed": "Use `seeds` of the study or of the run.",
    "plugin": "Type plugin=FILE on the command line.",
}
# WORD matches names of places, axes and runs. NAME matches names on an axis, such as 10%.
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.%=,+-]*")


def _shown(node: Any) -> str:
    """Return the beginning of a YAML node on one line, for error messages."""
    return " ".join(str(node).split())[:60]


def _keyed(node: Any) -> dict[str, Any]:
    """Convert the keys of a YAML mapping to strings, because YAML reads a key 0.1 as a number.

    Raises:
        ValueError: The node is not a mapping.
    """
    if not isinstance(node, dict | None):
        raise ValueError(f"expected a mapping of keys to values, not {_shown(node)}")
    return {option_text(key): value for key, value in (node or {}).items()}


def _names(node: Any) -> tuple[str, ...]:
    """Return the items of a YAML list as strings. A single string counts as a list of one item.

    Raises:
        ValueError: The node is not a list, or an item appears twice.
    """
    if isinstance(node, str):
        return (node,)
    if not isinstance(node, list | None):
        raise ValueError(f"expected a list, not {_shown(node)}")
    names = tuple(option_text(item) for item in node or ())
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} appears twice. Write it only once.")
    return names


def _options(node: Any) -> Values:
    """Return the options in a mapping of the study file as `{dotted key: value}`.

    Each value is converted to the type of its key. For example, `{"optim": {"steps": 1e3}}` becomes
    `{"optim.steps": 1000}`. A text stays a text if the key takes numbers.

    Raises:
        ValueError: A key, such as `name`, is not allowed because the study itself sets it.
    """
    options = flatten(_keyed(node))
    for key, value in options.items():
        if key in REMEDIES:
            raise ValueError(
                f"{key}: {option_text(value)}: not allowed in a study. {REMEDIES[key]}"
            )
    return {key: _typed(key, value) for key, value in options.items()}


def _typed(key: str, value: Any) -> Any:
    """Convert a value to the type of its recipe key. Leave values of unknown keys unchanged."""
    known = all_keys()
    return convert(known[key], value) if key in known else value


def _tries(node: Any) -> dict[str, list[Any]]:
    """Return the values to try, such as `{"optim.lr": [0.1, 0.3]}`.

    Raises:
        ValueError: A key has no list of values or an empty list, or a value appears twice.
    """
    tries = flatten(_keyed(node))
    for key, values in tries.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"{key}: expected a list of values, not {_shown(values)}")
        # compared as text, because a value may be a list, and 1 and true are equal in Python
        if len({*map(option_text, values)}) < len(values):
            raise ValueError(
                f"{key}: {_shown(values)}: a value appears twice. Write each value only once."
            )
    return {key: [_typed(key, value) for value in values] for key, values in tries.items()}


def _pairs(node: Any) -> tuple[tuple[str, str], ...]:
    """Parse pairs of names: `[mae:scratch]` becomes `(("mae", "scratch"),)`.

    Raises:
        ValueError: An item is not a pair of different names, or a pair appears twice.
    """
    pairs: list[tuple[str, str]] = []
    for pair in _names(node):  # raises an error if an item appears twice
        first, colon, second = pair.partition(":")
        if not colon or first == second:
            raise ValueError(f"{pair}: expected two different names, as in A:B")
        if (second, first) in pairs:
            raise ValueError(f"{pair}: this pair repeats {second}:{first}. Keep only one of them.")
        pairs.append((first, second))
    return tuple(pairs)


def seeds_of(node: Any) -> tuple[int, ...]:
    """Return the seeds from a list, or the seeds 0 to N - 1 from a number N.

    Raises:
        ValueError: A seed appears twice or is not a whole number of 64 bits. Or there are no seeds.
            Or there are more seeds than `MOST_SEEDS`.
    """
    seeds = node
    if type(node) is int:
        # The list of a huge number would fill the memory. One seed too many suffices for the error.
        seeds = [*range(min(node, MOST_SEEDS + 1))]
    are_integers = isinstance(seeds, list) and all(type(seed) is int for seed in seeds)
    # whole numbers, at least one and at most MOST_SEEDS, without repeats
    is_valid = are_integers and 0 < len(seeds) <= MOST_SEEDS and len({*seeds}) == len(seeds)
    if not is_valid or any(abs(seed) >= LARGEST_SEED for seed in seeds):
        raise ValueError(
            f"{_shown(node)}: expected a number of seeds from 1 to {MOST_SEEDS:,}, or a list of"
            " different 64-bit whole numbers such as [0, 2]"
        )
    return tuple(seeds)


class Setting(NamedTuple):
    """Options and tried values that one section of the study file sets for a run.

    Attributes:
        options: `{dotted key: value}`.
        tries: `{dotted key: values to try}`.
    """

    options: Values
    tries: dict[str, list[Any]]


def _setting(node: Any) -> Setting:
    options = _keyed(node)
    tries = _tries(options.pop("try", None))
    return Setting(_options(options), tries)


Keyed = BeforeValidator(_keyed)
Names = Annotated[tuple[str, ...], PlainValidator(_names)]
Options = Annotated[Values, PlainValidator(_options)]
Tries = Annotated[dict[str, list[Any]], PlainValidator(_tries)]
Seeds = Annotated[tuple[int, ...], PlainValidator(seeds_of)]
Settings = Annotated[dict[str, Annotated[Setting, PlainValidator(_setting)]], Keyed]


class StudySection(BaseModel):
    """Base class of the sections of a study file that have a fixed set of keys."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, node: Any) -> dict[str, Any]:
        mapping = _keyed(node)
        keys = [str(field.validation_alias or name) for name, field in cls.model_fields.items()]
        unknown = [
            f"{key}: unknown key, {suggest(key, keys)}" for key in mapping if key not in keys
        ]
        if unknown:
            raise ValueError(" ".join(unknown))
        return mapping


class BestChoice(StudySection):
    """Choice of the best tried values.

    Attributes:
        of: Run that tries the values.
        by: Metric that decides which values are best. Empty for the accuracy of a run that learns
            labels.
        despite: Keys that differ on purpose between run `of` and the run that takes the best
            values. They cause no warning.
    """

    of: str
    by: str = ""
    # excluded from the values that decide results, because this key only silences a warning
    despite: Annotated[Names, Field(exclude=True)] = ()


class Match(StudySection):
    """Section `match`, which names the axis whose names all get the same compute in exaFLOP."""

    exaflop: str


class StudyRun(StudySection):
    """Run of the study, repeated over names of axes, tried values and seeds.

    Attributes:
        tool: Tool that executes the run.
        over: Axes of the run, in the order of the file.
        only: `{axis: names}` if the run does not use all names of an axis.
        options: Options of the run.
        seeds: Seeds of the run. If None, the run has the seeds of the study, and also the seeds of
            all runs that need this run.
        tries: `{key: values to try}`.
        best: Another run, which tries values, and the metric of the choice. This run takes the best
            of these values. None if this run takes no best values.
    """

    tool: Literal["pretrain", "finetune", "evaluate"]
    over: Names = ()
    only: Annotated[dict[str, Names], Keyed] = {}
    options: Options = {}
    seeds: Seeds | None = None
    tries: Tries = Field({}, validation_alias="try")
    best: (
        Annotated[
            BestChoice, BeforeValidator(lambda node: {"of": node} if type(node) is str else node)
        ]
        | None
    ) = None


class NextStep(StudySection):
    """Next step after a study, which the report names once the study is decided.

    Attributes:
        what: What the study cannot show, and what the command does.
        command: Tool and its arguments, such as "study recipe=study/worth objective=mpp".
    """

    what: str
    command: str


class ReportSection(StudySection):
    """Comparisons in a study's report.

    Attributes:
        test: Run whose results are compared.
        baseline: Name on the first axis of `test` that all other names are compared with.
        measures: Measures to report. The first one decides.
        pairs: Pairs (A, B) of names on the first axis of `test`. The report gives A minus B.
        beside: Further runs to show, without comparing them.
        paper: `{name: value published in the paper}`.
        notes: Lines to add.
        explain: `{name: description}` of axes, names on axes and runs, and of `paper`.
        next: What to do after the study.
        mean_over: `{axis: {group: names}}` to average over.
        condition: Words that open the first sentence of the report.
        question: Facts from which lab/answer.py writes the answer of `study/worth`.
    """

    test: str | None = None
    baseline: Annotated[str, BeforeValidator(option_text)] | None = None
    measures: Names = ()
    pairs: Annotated[tuple[tuple[str, str], ...], PlainValidator(_pairs)] = ()
    beside: Names = ()
    paper: Annotated[dict[str, float], Keyed] = {}
    notes: Names = ()
    explain: Annotated[dict[str, str], Keyed] = {}
    next: NextStep | None = None
    mean_over: Annotated[
        dict[str, Annotated[dict[str, Names], Keyed]],
        BeforeValidator(lambda node: {node: {}} if type(node) is str else _keyed(node)),
    ] = {}
    condition: str = ""
    question: Annotated[dict[str, str], Keyed] = {}


class Study(StudySection):
    """Content of a study file. Each run comes after the runs that it needs.

    Attributes:
        title: Title of the study.
        places: Names of paths that the user sets on the command line, such as `photos` for
            photos=PATH.
        seeds: Seeds of every run without seeds of its own.
        match: Axis whose names get the same compute.
        axes: `{axis: {name: {key: setting}}}`, for example `{"arm": {"mae": {"final": ...}}}`. The
            key is a run, RUN@NAME or `all`.
        options: Options of every run.
        runs: `{name: run}`.
        report: Comparisons in the report.
    """

    title: str
    places: Names = ()
    seeds: Seeds = (0,)
    match: Match | None = None
    axes: Annotated[dict[str, Annotated[dict[str, Settings], Keyed]], Keyed] = {}
    options: Options = {}
    runs: Annotated[dict[str, StudyRun], Keyed]
    report: ReportSection = ReportSection()

    def names(self, run: str, axis: str) -> tuple[str, ...]:
        """Return the names of an axis that a run uses."""
        only = self.runs[run].only.get(axis, self.axes[axis])
        return tuple(name for name in only if name in self.axes[axis])

    @property
    def compared(self) -> tuple[str, ...]:
        """Names that the report compares: the names on the first axis of run `report.test`."""
        test = self.report.test
        if not test or not self.runs[test].over:
            return ()
        return self.names(test, self.runs[test].over[0])


def read(path: Path) -> Study:
    """Read and check a study's file.

    Raises:
        UserError: The file has a mistake. The message is one line about the first mistake.
    """
    return build(load_yaml(path), str(path))


def build(content: Mapping[str, Any], where: str) -> Study:
    """Build a study from a mapping that has the structure of a study file.

    Args:
        content: The mapping.
        where: Prefix of error messages.

    Raises:
        UserError: The mapping has a mistake. The message is one line about the first mistake.
    """
    try:
        study = Study.model_validate(dict(content))
        _check_names(study)
        for run in study.runs.values():  # sort the axes of each run as in the study
            run.over = tuple(axis for axis in study.axes if axis in run.over)
        _check_references(study)
        graph = {name: sorted(needed_runs(study, name)) for name in study.runs}
        order = graphlib.TopologicalSorter(graph).static_order()
        study.runs = {name: study.runs[name] for name in order}
        if study.report.model_fields_set:  # the file has the key `report`
            _check_report(study, study.report)
    except graphlib.CycleError as error:
        circle = " -> ".join(error.args[1])
        raise UserError(
            f"{where}: runs: each of these runs needs the next run: {circle}. Let one of these runs"
            " start from a run outside the circle."
        ) from None
    except ValidationError as error:
        raise UserError(f"{where}: {_line(error)}") from None
    except (ValueError, UserError) as error:
        raise UserError(f"{where}: {error}") from None
    return study


def find_references(values: Iterable[Any]) -> set[str]:
    """Return all names in braces in string values, for example `mae` in `{mae}/last`."""
    texts = (value for value in values if isinstance(value, str))
    return {name for text in texts for name in REFERENCE.findall(text)}


def fill_references(options: Values, names: Mapping[str, str]) -> Values:
    """Replace `{NAME}` by `names[NAME]` in the string values of options.

    For example, `{"init": "{mae}"}` becomes `{"init": "runs/mae"}` if `names` is
    `{"mae": "runs/mae"}`. Names in braces that are not in `names` stay.

    Args:
        options: `{dotted key: value}`.
        names: `{NAME: replacement}`.
    """
    return {key: _fill(key, value, names) for key, value in options.items()}


def _fill(key: str, value: Any, names: Mapping[str, str]) -> Any:
    if not isinstance(value, str):
        return value
    text = REFERENCE.sub(lambda match: names.get(match[1], match[0]), value)
    known = all_keys()
    # a replaced {seed} is a number, so the text is converted to the type of the key
    return read_text(known[key], text) if text != value and key in known else text


def settings_at(study: Study, run: str, at: Mapping[str, str]) -> Setting:
    """Return the options and the tried values of a run for one name on each axis.

    The study file sets options in several places. A later place overrides an earlier place, in this
    order: the study, the run, the name on each axis, and last the settings under RUN@NAME. The
    tried values of a place replace an option of the same key at an earlier place.

    Args:
        study: Study of the run.
        run: Name of the run.
        at: `{axis: name}`. An axis that is missing sets nothing.

    Raises:
        UserError: An option at the same or a later place has a key whose values the run tries.
    """
    definition = study.runs[run]
    # (place in the file for error messages, setting)
    general = [
        ("options", Setting(study.options, {})),
        (f"runs.{run}", Setting(definition.options, definition.tries)),
    ]
    special: list[tuple[str, Setting]] = []
    for axis in definition.over:
        if axis not in at:
            continue
        settings = study.axes[axis][at[axis]]
        place = f"axes.{axis}.{at[axis]}"
        special_keys = [f"{run}@{name}" for other_axis, name in at.items() if other_axis != axis]
        general += [(f"{place}.{key}", settings[key]) for key in (ALL, run) if key in settings]
        special += [(f"{place}.{key}", settings[key]) for key in special_keys if key in settings]
    options: Values = {}
    tries: dict[str, list[Any]] = {}
    for place, setting in (*general, *special):
        tries |= setting.tries
        for key in setting.options.keys() & tries.keys():
            raise UserError(
                f"{place}: {key}: run {run} tries several values of this key. Remove the option or"
                " the tries."
            )
        options |= setting.options
    return Setting({key: value for key, value in options.items() if key not in tries}, tries)


def settings_of(study: Study, run: str) -> Iterator[Setting]:
    """Yield the settings of each section of a study file that applies to a run.

    The first `Setting` has the options of the study and of the run itself. Each further `Setting`
    is for a single name on an axis of the run. For example, under the name `mae` of axis `arm`, the
    file may have a section for all runs, a section for run `final`, and a section for the tasks of
    run `final` that have the name `10%` on another axis:

        axes: {arm: {mae: {all: {...}, final: {...}, final@10%: {...}}}}

    Args:
        study: Study of the run.
        run: Name of the run.
    """
    definition = study.runs[run]
    yield Setting(study.options | definition.options, definition.tries)
    for axis in definition.over:
        for name in study.names(run, axis):
            for key, setting in study.axes[axis][name].items():
                run_of_key = key.partition("@")[0]
                if run_of_key in (ALL, run):
                    yield setting


def _tries_values(study: Study, run: str) -> bool:
    return any(setting.tries for setting in settings_of(study, run))


def needed_runs(study: Study, run: str) -> set[str]:
    """Return the runs that must finish before a run can start.

    A run needs each run that its options name in braces. A run with `best: tune` also needs run
    `tune`, and each run that run `tune` names in braces. For example, if run `tune` tries
    `init: ["{mae}", "{mpp}"]`, then a run with `best: tune` needs the runs `tune`, `mae` and `mpp`.
    """
    best = study.runs[run].best
    names = _named_in(study, run)
    if best:
        names |= {best.of, *_named_in(study, best.of)}
    return names & study.runs.keys()


def _named_in(study: Study, run: str) -> set[str]:
    """Return all names in braces in the options and tried values of a run."""
    names: set[str] = set()
    for setting in settings_of(study, run):
        names |= find_references([*setting.options.values(), *chain(*setting.tries.values())])
    return names


def _line(error: ValidationError) -> str:
    """Describe the first mistake in one line, such as `runs.final.over: expected a list, not 3`."""
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    # reword pydantic's messages, which speak of Python fields and inputs instead of a YAML file
    message = message.replace("Field required", "this key is missing")
    message = message.replace("Input should be", f"{_shown(first['input'])}: expected")
    return f"{place}: {message}" if place else message


def _require(condition: object, text: str) -> None:
    if not condition:
        raise ValueError(text)


def _check_known(place: str, names: Collection[str], choices: Collection[str], what: str) -> None:
    """Check that names are among the choices.

    Args:
        place: Place in the file, for error messages.
        names: Names to check.
        choices: Possible names.
        what: Description of a possible name, such as "a run".

    Raises:
        ValueError: A name is not among the choices.
    """
    for name in names:
        if name not in choices:
            raise ValueError(f"{place}: {name}: not {what} of this study, {suggest(name, choices)}")


def _check_names(study: Study) -> None:
    """Check the names that the file defines, and the axes and runs that the file mentions.

    A name must be possible in folder names and in braces, and must not clash with another name.
    Every axis and run that the file mentions must exist.

    Raises:
        ValueError: A name is wrong.
    """
    _require(study.runs, "runs: this study has no run. Add a run.")
    names_by_kind: dict[str, Collection[str]] = {
        "places": study.places,
        "axes": study.axes,
        "runs": study.runs,
    }
    for kind, names in names_by_kind.items():
        reserved = {ALL, SEED, UNTRAINED, *(COLUMNS if kind == "axes" else ())}
        for name in names:
            _require(
                name not in reserved,
                f"{kind}: {name}: ssl_vit reserves this name. Use another name.",
            )
            _require(
                WORD.fullmatch(name),
                f"{kind}: {name}: expected a name of letters, digits, _ and .",
            )
    for name in study.places:
        _require(
            name not in study.runs,
            f"places: {name}: a run has the same name. Rename the place or the run.",
        )
    if study.match:
        _check_known("match.exaflop", [study.match.exaflop], study.axes, "an axis")
    for name, definition in study.runs.items():
        _check_known(f"runs.{name}.over", definition.over, study.axes, "an axis")
        _check_known(
            f"runs.{name}.only", definition.only, definition.over, f"an axis of run {name}"
        )
        for axis, only in definition.only.items():
            place = f"runs.{name}.only.{axis}"
            _require(only, f"{place}: the list is empty. Write names of axis {axis}.")
            _check_known(place, only, study.axes[axis], f"a name of axis {axis}")
    for axis, settings_by_name in study.axes.items():
        tools = {run.tool for run in study.runs.values() if axis in run.over}
        _require(tools, f"axes.{axis}: no run uses this axis. Add {axis} to `over` of a run.")
        if study.match and study.match.exaflop == axis:
            _require(
                "pretrain" in tools,
                f"match.exaflop: {axis}: no pretrain run uses this axis. Choose another axis.",
            )
        _require(
            settings_by_name,
            f"axes.{axis}: this axis has no names. Write {{NAME: {{RUN: {{KEY: VALUE}}}}}}.",
        )
        for name, settings in settings_by_name.items():
            _require(
                NAME.fullmatch(name),
                f"axes.{axis}: {name}: expected a name of letters, digits and _ . % = , + -",
            )
            for key in settings:
                _check_axis_key(study, axis, name, key)


def _check_axis_key(study: Study, axis: str, name: str, key: str) -> None:
    """Check a key under a name of an axis: a run, RUN@NAME with a name of another axis, or `all`.

    For example, `axes: {arm: {mae: {final@10%: {optim.lr: 1e-3}}}}` sets the learning rate of the
    tasks of run `final` that have the name `mae` on axis `arm` and `10%` on another axis.

    Args:
        study: Study with the axis.
        axis: Axis, such as `arm`.
        name: Name on the axis, such as `mae`.
        key: Key under the name, such as `final@10%`.

    Raises:
        ValueError: There is no such run or name. Or the axis is missing in `over` of the run, which
            lists the axes of the run.
    """
    run_name, at, other_name = key.partition("@")
    place = f"axes.{axis}.{name}"
    _check_known(place, [run_name], study.runs if at else (*study.runs, ALL), "a run")
    if run_name == ALL:
        return
    over = study.runs[run_name].over
    _require(
        axis in over,
        f"{place}.{key}: {axis} is missing in `over` of run {run_name}. Add {axis} there.",
    )
    if at:
        other_axes = [other_axis for other_axis in over if other_axis != axis]
        names = {name for other_axis in other_axes for name in study.axes[other_axis]}
        if other_name not in names:
            raise ValueError(
                f"{place}.{key}: {other_name}: no other axis of run {run_name} has this name,"
                f" {suggest(other_name, names)}"
            )


def _check_references(study: Study) -> None:
    """Check the runs and paths that each run refers to, in braces or under `best`.

    - A name in braces must be a run, a place (a path that the command line sets) or `seed`.
    - A run under `best` must try values.
    - A run in braces must not try values.
    - If run A needs run B, every axis of B must also be an axis of A. Otherwise it would be unclear
      which task of B is meant.

    Raises:
        ValueError: One of these conditions does not hold, or a metric of test images would choose
            the best values.
    """
    runs_with_tries = {name for name in study.runs if _tries_values(study, name)}
    for name, run in study.runs.items():
        place, needed = f"runs.{name}", _named_in(study, name)
        _check_known(place, sorted(needed), (*study.runs, *study.places, SEED), "a run or a place")
        for needed_run in sorted(needed & study.runs.keys()):
            _require(
                needed_run not in runs_with_tries,
                f"{place}: {{{needed_run}}}: run {needed_run} tries several values. Name a run with"
                f" `best: {needed_run}` instead.",
            )
        if run.best:
            _check_known(f"{place}.best", [run.best.of], study.runs, "a run")
            _require(
                run.best.of in runs_with_tries,
                f"{place}.best: {run.best.of}: this run tries no values. Name a run with `try`.",
            )
            _require(
                run.best.by not in TESTED,
                f"{place}.best.by: {run.best.by}: test images must not choose values. Use a measure"
                " of held-out images.",
            )
            needed.add(run.best.of)
        for needed_run in sorted(needed & study.runs.keys()):
            needed_axes = study.runs[needed_run].over
            missing_axes = [axis for axis in needed_axes if axis not in run.over]
            _require(
                not missing_axes,
                f"{place}: run {needed_run}, which this run needs, is repeated over"
                f" {', '.join(missing_axes)}. Write over:"
                f" [{', '.join((*run.over, *missing_axes))}] for this run.",
            )


def _check_report(study: Study, report: ReportSection) -> None:
    """Check that the runs and names under the key `report` of the study file exist.

    The compared names, such as `mae` and `scratch`, are the names on the first axis of the run
    under `report.test`. The further runs under `report.beside` are shown without a comparison.
    `report.paper` has published values of the compared names. `report.explain` describes names of
    the study. `report.mean_over` has groups of names on an axis, such as
    `{data: {photos: [flowers, birds]}}`, to average over.

    Raises:
        ValueError: A run or name does not exist, or the run under `report.test` tries values.
    """
    if report.test is None:
        raise ValueError("report.test: this key is missing. Name the run to compare.")
    if report.next:
        try:
            words = shlex.split(report.next.command)
        except ValueError as error:
            raise ValueError(f"report.next.command: {error}") from None
        _require(bool(words), "report.next.command: this command is empty.")
    _check_known("report.test", [report.test], study.runs, "a run")
    _require(
        not _tries_values(study, report.test),
        f"report.test: {report.test}: this run tries several values. Name a run with `best`.",
    )
    _check_known("report.beside", report.beside, study.runs, "a run")
    if report.baseline:
        _check_known("report.baseline", [report.baseline], study.compared, "a compared name")
    for pair in report.pairs:
        _check_known("report.pairs", pair, study.compared, "a compared name")
    _check_known("report.paper", report.paper, study.compared, "a compared name")
    names_on_axes = [name for names in study.axes.values() for name in names]
    explained = (*study.axes, *names_on_axes, *study.runs, "paper")
    _check_known("report.explain", report.explain, explained, "an axis, a name or a run")
    over = study.runs[report.test].over
    _check_known("report.mean_over", report.mean_over, over, f"an axis of run {report.test}")
    for axis, groups in report.mean_over.items():
        for group, members in groups.items():
            place = f"report.mean_over.{axis}.{group}"
            _check_known(place, members, study.axes[axis], f"a name of axis {axis}")
