"""A study's file, read: axes and runs.

An axis maps names to the options that a run has there; a run has a tool and the axes that it is
over. The first mistake ends the reading, with the place, the key and what is expected.
"""

import graphlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...config.parsing import flatten, load_yaml
from ...errors import UserError, suggest
from ...formatting import option_text
from ...metrics import find_metric

TOOLS = ("pretrain", "finetune", "evaluate")
# columns of the results beside the axes
COLUMNS = (
    *("run", "seed", "tried", "split", "metric", "value", "n"),
    *("exaflop", "device_hours", "fingerprint", "folder", "origin"),
)
ALL = "all"  # under a name of an axis: the options of every run over it
SEED = "seed"  # {seed} in an option: the task's seed
UNTRAINED = "untrained"  # the run of fresh weights that a study adds
REFERENCE = re.compile(r"\{([^{}]*)\}")
MOST_SEEDS = 1000
LARGEST_SEED = 2**63
# keys of a recipe that a study sets itself, or leaves to the command line: files are passed on
OURS = {
    "name": "the task's",
    "out": "the study's folder",
    "seed": "the study's seeds",
    "plugin": "the command line's",
}
STUDY_KEYS = ("title", "places", "seeds", "match", "axes", "options", "runs", "report")
RUN_KEYS = ("tool", "over", "only", "options", "seeds", "try", "best")
REPORT_KEYS = (
    *("test", "baseline", "measures", "pairs", "beside", "paper", "notes", "mean_over"),
    "condition",
)
# of places, axes and runs; a name of an axis may have a percent sign too
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.%=,+-]*")

Options = dict[str, str]  # {dotted key: text, as on a command line}
Tries = dict[str, list[Any]]  # {dotted key: the values that are tried}


@dataclass(frozen=True)
class Setting:
    """What a run has at a name of an axis: its options, and values that it tries there."""

    options: Options = field(default_factory=dict)
    tries: Tries = field(default_factory=dict)


@dataclass(frozen=True)
class Axis:
    """A named list of settings.

    Attributes:
        name: of the axis.
        settings: {name: {run, RUN@NAME or `all`: its setting}}.
    """

    name: str
    settings: dict[str, dict[str, Setting]]


@dataclass(frozen=True)
class Run:
    """A run of the study, repeated over names of axes, tries and seeds.

    Attributes:
        name, tool: what it is called, and what runs it.
        over: its axes, in the order of the file.
        only: {axis: names}, where it is not at all of an axis's names.
        options: the study's and its own.
        seeds: its own; None where it has the study's, and those of the runs that need it.
        tries: the values of keys that are tried.
        best: the run whose best values it takes, and the measure by which they are.
    """

    name: str
    tool: str
    over: tuple[str, ...] = ()
    only: dict[str, tuple[str, ...]] = field(default_factory=dict)
    options: Options = field(default_factory=dict)
    seeds: tuple[int, ...] | None = None
    tries: Tries = field(default_factory=dict)
    best: tuple[str, str] | None = None


@dataclass(frozen=True)
class Report:
    """What a study's report compares.

    Attributes:
        test: the run that is compared.
        baseline: a name of the test's first axis.
        measures: the first decides.
        pairs: (A, B), names of the test's first axis, A minus B.
        beside: runs that are shown.
        paper: {name: the paper's figure}.
        notes: lines.
        mean_over: {axis: {group: its names}} that a mean is over.
        condition: words that the first sentence begins with.
    """

    test: str | None = None
    baseline: str | None = None
    measures: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    beside: tuple[str, ...] = ()
    paper: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    mean_over: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    condition: str = ""


@dataclass(frozen=True)
class Study:
    """A study as its file has it; its runs each after those that it needs."""

    title: str
    runs: dict[str, Run]
    axes: dict[str, Axis] = field(default_factory=dict)
    places: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    match: str | None = None  # the axis whose names cost the same exaFLOP
    report: Report = field(default_factory=Report)

    def names(self, run: Run, axis: str) -> tuple[str, ...]:
        """The names of an axis that a run is at."""
        return run.only.get(axis, tuple(self.axes[axis].settings))


@dataclass(frozen=True)
class Place:
    """Where in a file a value stands, to say it in errors."""

    where: str

    def at(self, key: object) -> "Place":
        opening = self.where if self.where.endswith(": ") else f"{self.where}."
        return Place(f"{opening}{key}")

    def require(self, fits: object, text: str) -> None:
        """
        Raises:
            UserError: it does not fit; the text says what is expected.
        """
        if not fits:
            colon = "" if self.where.endswith(": ") else ": "
            raise UserError(f"{self.where}{colon}{text}")

    def known(self, name: object, choices: Collection[str], what: str) -> None:
        """
        Raises:
            UserError: the name is none of the choices.
        """
        self.require(name in choices, f"{name}: no such {what}; {suggest(str(name), choices)}")

    def mapping(self, node: Any, keys: Collection[str] | None = None) -> dict[str, Any]:
        """A mapping with its keys, which may be those alone, as texts: YAML reads 0.1 and 1 as
        numbers."""
        self.require(isinstance(node, dict | None), f"expected a mapping, not {_shown(node)}")
        found = {option_text(key): value for key, value in (node or {}).items()}
        for key in found if keys is not None else ():
            self.known(key, keys or (), "key")
        return found

    def texts(self, node: Any) -> tuple[str, ...]:
        """A list of texts; one may stand without brackets."""
        if isinstance(node, str):
            return (node,)
        self.require(isinstance(node, list | None), f"expected a list, not {_shown(node)}")
        found = tuple(option_text(one) for one in node or ())
        twice = next((name for name in found if found.count(name) > 1), None)
        self.require(twice is None, f"{twice} is there twice")
        return found

    def names(self, node: Any, choices: Collection[str], what: str) -> tuple[str, ...]:
        """`texts` that are all among the choices."""
        found = self.texts(node)
        for name in found:
            self.known(name, choices, what)
        return found


def read(path: Path) -> Study:
    """The study in a file.

    Raises:
        UserError: the first mistake, in one line.
    """
    return build(load_yaml(path), str(path))


def build(content: Mapping[str, Any], where: str) -> Study:
    """The study of a mapping as a file has it; errors begin with `where`.

    Raises:
        UserError: the first mistake, in one line.
    """
    top = Place(f"{where}: ")
    raw = top.mapping(dict(content), STUDY_KEYS)
    for key in ("title", "runs"):
        top.require(raw.get(key), f"{key}: is missing")
    places = top.at("places").texts(raw.get("places"))
    shared = _options(raw.get("options"), top.at("options"))
    bodies = top.at("runs").mapping(raw["runs"])
    axes = _axes(raw.get("axes"), bodies, top.at("axes"))
    runs = {
        name: _run(name, body, shared, axes, top.at(f"runs.{name}"))
        for name, body in bodies.items()
    }
    study = Study(
        title=str(raw["title"]),
        runs=runs,
        axes=axes,
        places=places,
        seeds=read_seeds(raw.get("seeds"), top.at("seeds")) or (0,),
        match=_match(raw["match"], axes, top.at("match")) if raw.get("match") else None,
    )
    _check_names(study, top)
    _check_references(study, top)
    ordered = Study(**(vars(study) | {"runs": _ordered(study, top)}))
    report = _report(raw.get("report"), ordered, top.at("report"))
    return Study(**(vars(ordered) | {"report": report}))


def references(options: Mapping[str, str]) -> set[str]:
    """The names in braces in the values of options."""
    return {name for value in options.values() for name in REFERENCE.findall(value)}


def settings_at(study: Study, run: Run, at: Mapping[str, str]) -> Setting:
    """A run's own setting and those of the names of its axes, the later axis over the earlier one,
    RUN@NAME over both.

    Args:
        study, run: the run of the study.
        at: {axis: name} of all of its axes; an axis that is not there sets nothing.
    """
    found = [Setting(run.options, run.tries)]
    special = []
    for axis in run.over:
        if axis in at:
            own = study.axes[axis].settings[at[axis]]
            found += [own[key] for key in (ALL, run.name) if key in own]
            others = (name for other, name in at.items() if other != axis)
            special += [own[key] for name in others if (key := f"{run.name}@{name}") in own]
    options: Options = {}
    tries: Tries = {}
    for one in (*found, *special):
        options |= one.options
        tries |= one.tries
    return Setting({key: text for key, text in options.items() if key not in tries}, tries)


def settings_of(study: Study, run: Run) -> Iterator[Setting]:
    """A run's own setting, and those of each of its names."""
    yield Setting(run.options, run.tries)
    for axis in run.over:
        for name in study.names(run, axis):
            for key, one in study.axes[axis].settings[name].items():
                if key == ALL or key.partition("@")[0] == run.name:
                    yield one


def named_in(study: Study, run: Run) -> set[str]:
    """What a run's options and the values that it tries name in braces, at any of its names."""
    found: set[str] = set()
    for one in settings_of(study, run):
        found |= references(one.options)
        for values in one.tries.values():
            found |= references({option_text(value): option_text(value) for value in values})
    return found


def needs(study: Study, run: Run) -> set[str]:
    """The runs that a run names, or takes the best values of, and those that these name."""
    named = named_in(study, run)
    if run.best:
        named |= {run.best[0], *named_in(study, study.runs[run.best[0]])}
    return named & study.runs.keys()


def has_tries(study: Study, run: Run) -> bool:
    """Whether a run tries values, at any of its names."""
    return any(one.tries for one in settings_of(study, run))


def _shown(node: Any) -> str:
    return " ".join(str(node).split())[:60]


def _options(node: Any, place: Place) -> Options:
    flat = flatten(place.mapping(node))
    options = {key: option_text(value) for key, value in flat.items()}
    for key, value in options.items():
        ours = OURS.get(key)
        place.at(key).require(not ours, f"{value}: that is {ours}; leave it out")
    return options


def _tries(node: Any, place: Place) -> Tries:
    tries = flatten(place.mapping(node))
    for key, values in tries.items():
        several = isinstance(values, list) and values
        place.at(key).require(several, f"expected a list of values, not {_shown(values)}")
        texts = [option_text(value) for value in values]
        place.at(key).require(len({*texts}) == len(texts), f"{texts}: a value is there twice")
    return tries


def _axes(node: Any, runs: Collection[str], place: Place) -> dict[str, Axis]:
    axes: dict[str, Axis] = {}
    bodies = {name: place.at(name).mapping(body) for name, body in place.mapping(node).items()}
    for name, settings in bodies.items():
        here = place.at(name)
        here.require(settings, "expected names, each with the options of its runs")
        others = {one for axis, own in bodies.items() if axis != name for one in own}
        found: dict[str, dict[str, Setting]] = {}
        for label, body in settings.items():
            found[label] = {}
            for key, own in here.at(label).mapping(body).items():
                run, at, other = key.partition("@")
                here.at(label).known(run, (*runs, ALL), "run")
                if at:
                    here.at(f"{label}.{key}").known(other, others, "name of another axis")
                own_place = here.at(f"{label}.{key}")
                options = own_place.mapping(own)
                tries = _tries(options.pop("try", None), own_place.at("try"))
                found[label][key] = Setting(_options(options, own_place), tries)
        axes[name] = Axis(name, found)
    return axes


def _run(name: str, body: Any, shared: Options, axes: Mapping[str, Axis], place: Place) -> Run:
    raw = place.mapping(body, RUN_KEYS)
    place.require("tool" in raw, f"tool: is missing; choices: {', '.join(TOOLS)}")
    place.at("tool").known(raw["tool"], TOOLS, "tool")
    over = place.at("over").names(raw.get("over"), axes, "axis")
    only = {}
    for axis, names in place.at("only").mapping(raw.get("only")).items():
        place.at("only").known(axis, over, "axis of the run")
        here = place.at(f"only.{axis}")
        only[axis] = here.names(names, axes[axis].settings, f"name of {axis}")
        here.require(only[axis], "expected names of the axis")
    return Run(
        name=name,
        tool=raw["tool"],
        over=tuple(axis for axis in axes if axis in over),
        only=only,
        options=shared | _options(raw.get("options"), place.at("options")),
        seeds=read_seeds(raw.get("seeds"), place.at("seeds")),
        tries=_tries(raw.get("try"), place.at("try")),
        best=_best(raw.get("best"), place.at("best")),
    )


def read_seeds(node: Any, place: Place) -> tuple[int, ...] | None:
    """A list of seeds; a number N stands for the first N; None where there is none.

    Raises:
        UserError: a seed is there twice, or is none.
    """
    if node is None:
        return None
    seeds = [*range(min(node, MOST_SEEDS + 1))] if type(node) is int else node
    whole = isinstance(seeds, list) and all(type(one) is int for one in seeds)
    fits = whole and 0 < len(seeds) <= MOST_SEEDS and len({*seeds}) == len(seeds)
    small = fits and all(abs(one) < LARGEST_SEED for one in seeds)
    text = "expected how many, or a list of different whole numbers of 64 bits"
    place.require(small, f"{_shown(node)}: {text}")
    return tuple(seeds)


def _best(node: Any, place: Place) -> tuple[str, str] | None:
    """The run and the measure of `best: RUN` or `best: {of: RUN, by: MEASURE}`."""
    if node is None:
        return None
    if isinstance(node, str):
        return node, "accuracy"
    raw = place.mapping(node, ("of", "by"))
    texts = all(isinstance(raw.get(key), str) for key in ("of", "by"))
    place.require(texts, "expected a run, or {of: RUN, by: MEASURE}")
    text = f"{raw['by']}: is of the test images; nothing is chosen on them"
    place.at("by").require(not find_metric(raw["by"]).tested, text)
    return raw["of"], raw["by"]


def _match(node: Any, axes: Collection[str], place: Place) -> str:
    """The axis of {exaflop: AXIS}."""
    raw = place.mapping(node)
    place.require(raw.keys() == {"exaflop"}, f"{_shown(node)}: expected {{exaflop: AXIS}}")
    place.at("exaflop").known(raw["exaflop"], axes, "axis")
    return str(raw["exaflop"])


def _check_names(study: Study, top: Place) -> None:
    """Check that names can stand in names of folders and in braces, and do not clash."""
    for kind, names in (("places", study.places), ("axes", study.axes), ("runs", study.runs)):
        for name in names:
            text = f"{name}: expected another name, of letters, digits, _ and ."
            free = name not in (ALL, SEED, UNTRAINED, *(COLUMNS if kind == "axes" else ()))
            top.at(kind).require(WORD.fullmatch(name) and free, text)
    for axis in study.axes.values():
        for name in axis.settings:
            text = f"{name}: expected a name of letters, digits and _ . % = , + -"
            top.at(f"axes.{axis.name}").require(NAME.fullmatch(name), text)
    both = next((place for place in study.places if place in study.runs), None)
    top.at("places").require(both is None, f"{both} is a run too; take another name for one")


def _check_references(study: Study, top: Place) -> None:
    """Check that what runs name exists, at each of their names."""
    known = (*study.runs, *study.places, SEED)
    for run in study.runs.values():
        place = top.at(f"runs.{run.name}")
        if run.best:
            place.at("best").known(run.best[0], study.runs, "run")
            other = study.runs[run.best[0]]
            text = f"{other.name}: expected a run that has `try`"
            place.at("best").require(has_tries(study, other), text)
            _check_axes(run, other, place.at("best"))
        for name in sorted(named_in(study, run)):
            place.known(name, known, "run or place")
            if name in study.runs:
                text = f"{{{name}}}: has several runs, one for each value it tries"
                place.require(not has_tries(study, study.runs[name]), f"{text}; see `best`")
                _check_axes(run, study.runs[name], place)


def _check_axes(run: Run, other: Run, place: Place) -> None:
    """Check that a run says at which names the other is that it needs."""
    beyond = [axis for axis in other.over if axis not in run.over]
    text = f"{other.name} is over {', '.join(beyond)}, which {run.name} is not"
    place.require(not beyond, f"{text}; expected over: [{', '.join((*run.over, *beyond))}]")


def _ordered(study: Study, top: Place) -> dict[str, Run]:
    """The runs, each after those that it needs."""
    graph = {name: sorted(needs(study, run)) for name, run in study.runs.items()}
    try:
        order = [*graphlib.TopologicalSorter(graph).static_order()]
    except graphlib.CycleError as error:
        text = f"they need one another in a circle: {' -> '.join(error.args[1])}"
        top.at("runs").require(False, text)
    return {name: study.runs[name] for name in order}


def _report(node: Any, study: Study, place: Place) -> Report:
    raw = place.mapping(node, REPORT_KEYS)
    if not raw:
        return Report()
    place.require(isinstance(raw.get("test"), str), "test: is missing; expected a run")
    place.at("test").known(raw["test"], study.runs, "run")
    text = f"{raw['test']}: tries values, which the report leaves out"
    place.at("test").require(not has_tries(study, study.runs[raw["test"]]), text)
    arms = compared(study, raw["test"])
    if raw.get("baseline") is not None:
        place.at("baseline").known(option_text(raw["baseline"]), arms, "name that is compared")
    paper = place.at("paper").mapping(raw.get("paper"))
    for name, value in paper.items():
        place.at("paper").known(name, arms, "name that is compared")
        fits = type(value) in (int, float)
        place.at(f"paper.{name}").require(fits, f"{_shown(value)}: expected a number")
    return Report(
        test=raw["test"],
        baseline=None if raw.get("baseline") is None else option_text(raw["baseline"]),
        measures=place.at("measures").texts(raw.get("measures")),
        pairs=tuple(read_pairs(place.at("pairs").texts(raw.get("pairs")), arms, place.at("pairs"))),
        beside=place.at("beside").names(raw.get("beside"), study.runs, "run"),
        paper={name: float(value) for name, value in paper.items()},
        notes=place.at("notes").texts(raw.get("notes")),
        mean_over=_mean_over(raw["mean_over"], study, raw["test"], place.at("mean_over"))
        if raw.get("mean_over")
        else {},
        condition=str(raw.get("condition") or ""),
    )


def compared(study: Study, test: str) -> tuple[str, ...]:
    """The names that a report compares: of the first axis that its test is over."""
    run = study.runs[test]
    return study.names(run, run.over[0]) if run.over else ()


def read_pairs(texts: Iterable[str], arms: Collection[str], place: Place) -> list[tuple[str, str]]:
    """The pairs of texts A:B.

    Raises:
        UserError: a text is no pair of different names.
    """
    pairs = []
    for text in texts:
        first, colon, second = text.partition(":")
        place.require(colon and first != second, f"{text}: expected two different names, A:B")
        for name in (first, second):
            place.known(name, arms, "name that is compared")
        place.require((second, first) not in pairs, f"{text}: is there the other way round too")
        pairs.append((first, second))
    return pairs


def _mean_over(
    node: Any, study: Study, test: str, place: Place
) -> dict[str, dict[str, tuple[str, ...]]]:
    """The groups of names whose mean is shown: of an axis all, or {axis: {group: names}}."""
    over = study.runs[test].over
    if isinstance(node, str):
        place.known(node, over, "axis of the test")
        return {node: {}}
    found = {}
    for axis, groups in place.mapping(node).items():
        place.known(axis, over, "axis of the test")
        known, what = study.axes[axis].settings, f"name of {axis}"
        found[axis] = {
            group: place.at(f"{axis}.{group}").names(names, known, what)
            for group, names in place.at(axis).mapping(groups).items()
        }
    return found
