"""The runs tool: lists the runs of a folder, ranks them by a metric, removes checkpoints that are
not needed any more. No torch."""

import json
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from ..config.tool_options import parse
from ..errors import UserError
from ..formatting import few_images, text_line, tool_command, typed
from ..metrics import find_metric
from ..pages import metric_tables
from . import reports
from .lab_tools import RunsOptions
from .run_table import clean_checkpoints, ranking, run_list
from .run_table.clean_checkpoints import Cleaning
from .run_table.run_list import ListedRun, format_bytes

SHOWN = 6  # values of a key that differs
NEVER = datetime.min.replace(tzinfo=UTC)


def _or_least(value: float | None) -> float:
    return -1.0 if value is None else value


# What runs are sorted by, besides metrics: the first is the largest, newest or furthest one
KEYS: dict[str, Callable[[ListedRun], Any]] = {
    "step": lambda run: run.step,
    "exaflop": lambda run: _or_least(run.exaflop),
    "time": lambda run: run.record.result.seconds if run.record.result else -1.0,
    "disk": lambda run: run.disk,
    "age": lambda run: run.ended or NEVER,
}
# and those that start with the lowest
NAMES: dict[str, Callable[[ListedRun], Any]] = {
    "name": lambda run: run.name,
    "objective": lambda run: (str(run.record.values.get("objective")), run.name),
    "state": lambda run: (run.state, run.name),
}


def main(arguments: list[str]) -> None:
    """Print the runs in and below a folder; remove checkpoints with clean=checkpoints yes=true.

    Raises:
        UserError: an option is wrong, or there are no runs.
    """
    options = parse(RunsOptions, arguments)
    if options.yes and options.clean is None:
        raise UserError("yes=true: has no use without clean=checkpoints")
    if not options.folder.is_dir():
        raise UserError(f"{options.folder}: no such folder; expected one with runs in it")
    runs = run_list.read_runs(options.folder)
    record: dict[str, Any]
    if options.clean is not None:
        record = _clean(options, runs)
    elif options.best is not None:
        record = _best(options.best, runs)
    else:
        record = _list(options, runs)
    if options.json:
        print(json.dumps(reports.plain({"folder": str(options.folder), **record})))


def _list(options: RunsOptions, runs: list[ListedRun]) -> dict[str, Any]:
    """Print the table; what --json has."""
    ordered, metric = _sorted(options.sort, runs)
    differing = run_list.differing(ordered)
    now = datetime.now(UTC)
    rows = [run_list.row(run, now) for run in ordered]
    head = list(run_list.HEAD)
    if metric is not None:
        head.insert(1, metric)
        rows = [
            [row[0], _value(run, metric), *row[1:]] for row, run in zip(rows, ordered, strict=True)
        ]
    if options.differs:
        head.append("differs")
        settings = _settings(differing, len(rows))
        rows = [[*row, text] for row, text in zip(rows, settings, strict=True)]
    print("\n".join(run_list.plain_table(head, rows)))
    total = format_bytes(sum(run.disk for run in runs))
    print(f"\n{len(runs):,} run{'s' * (len(runs) > 1)}, {total}: {_states(runs)}")
    if not options.differs:
        for key, texts in differing.items():
            print(f"differs     {key}: {_few(texts)}")
    if metric is not None:
        _print_caution(ranking.rank(runs, metric))
    return {"runs": [_plain(run) for run in ordered], "differs": differing}


def _sorted(text: str, runs: Sequence[ListedRun]) -> tuple[list[ListedRun], str | None]:
    """The runs in the order of sort=, and the metric that it names; with a minus before it the
    other way round. Runs without the metric come last.

    Raises:
        UserError: neither a column nor a metric of a run.
    """
    key = text.removeprefix("-")
    backwards = text != key
    if key in NAMES:
        return sorted(runs, key=NAMES[key], reverse=backwards), None
    if key in KEYS:
        return sorted(runs, key=KEYS[key], reverse=not backwards), None
    ranking.check_metric("sort", key, runs, [*NAMES, *KEYS])
    having = [run for run in runs if key in run.measured]
    having.sort(
        key=lambda run: run.measured[key].value,
        reverse=find_metric(key).higher != backwards,
    )
    return having + [run for run in runs if key not in run.measured], key


def _value(run: ListedRun, metric: str) -> str:
    entry = run.measured.get(metric)
    if entry is None:
        return "-"
    return f"{metric_tables.number(metric, entry.value)} ({entry.split})"


def _states(runs: Sequence[ListedRun]) -> str:
    kinds = [run.state.partition(":")[0].partition(" at ")[0] for run in runs]
    return ", ".join(f"{kinds.count(kind):,} {kind}" for kind in sorted(set(kinds)))


def _few(texts: Sequence[str]) -> str:
    """The values of a key, each once."""
    known = sorted(set(texts), key=_number_first)
    text = ", ".join(text_line(one) for one in known[:SHOWN])
    return text if len(known) <= SHOWN else f"{text} and {len(known) - SHOWN:,} more"


def _number_first(text: str) -> tuple[bool, float, str]:
    try:
        number = float(text)
    except ValueError:
        return True, 0.0, text
    return (False, number, text) if math.isfinite(number) else (True, 0.0, text)


def _settings(differing: dict[str, list[str]], count: int) -> list[str]:
    """Each run's values of the keys that differ, as options."""
    return [
        " ".join(f"{key}={text_line(texts[place])}" for key, texts in differing.items()) or "-"
        for place in range(count)
    ]


def _print_caution(found: ranking.Ranking) -> None:
    if len(found.groups) > 1:
        print(
            f"note        {found.metric} does not compare between all of these runs: they differ in"
            f" {', '.join(found.differing)}; best={found.metric} ranks those that compare"
        )


def _best(metric: str, runs: Sequence[ListedRun]) -> dict[str, Any]:
    """Print the ranking; what --json has.

    Raises:
        UserError: no run has the metric.
    """
    ranking.check_metric("best", metric, runs, [])
    found = ranking.rank(runs, metric)
    better = "higher" if found.higher else "lower"
    print(f"{metric}: {better} is better")
    if len(found.groups) > 1:
        print(
            f"{len(found.groups)} groups, which do not compare with one another: they differ in "
            f"{', '.join(found.differing)}"
        )
    groups = [_print_group(found, group) for group in found.groups]
    for run in found.left_out:
        print(f"left out    {text_line(run.name)}: {text_line(run.state)}")
    if any(len(group.runs) > 1 for group in found.groups):
        print(
            "\nA difference of two runs is no result: studies compare over seeds, with intervals."
        )
    left_out = {run.name: run.state for run in found.left_out}
    return {"best": metric, "better": better, "groups": groups, "left_out": left_out}


def _print_group(found: ranking.Ranking, group: ranking.RankedGroup) -> dict[str, Any]:
    facts = group.facts
    shown = [f"{name}={facts[name]}" for name in found.differing if name in facts]
    shown = [text for text in shown if not text.startswith(("split=", "data=", "objective="))]
    title = ", ".join([f"objective={facts['objective']}", *shown])
    print(f"\n{facts['split']} images of {text_line(facts['data'])}, {text_line(title)}:")
    differing = run_list.differing(group.runs)
    settings = _settings(differing, len(group.runs))
    rows = [
        [
            str(place),
            metric_tables.with_count(
                found.metric, run.measured[found.metric], run.record.measured_on
            ),
            text_line(run.name),
            text,
        ]
        for place, (run, text) in enumerate(zip(group.runs, settings, strict=True), 1)
    ]
    print("\n".join(run_list.plain_table(("", found.metric, "run", "differs"), rows)))
    split = str(facts["split"])
    counts = [
        run.record.measured_on[split] for run in group.runs if split in run.record.measured_on
    ]
    for text in few_images({split: min(counts)}) if counts else ():
        print(f"warning: {text}")
    ranked = [
        {"name": run.name, "value": value}
        for run, value in zip(group.runs, _values(found.metric, group.runs), strict=True)
    ]
    return {"facts": facts, "runs": ranked, "differs": differing}


def _values(metric: str, runs: Sequence[ListedRun]) -> list[float]:
    return [run.measured[metric].value for run in runs]


def _clean(options: RunsOptions, runs: Sequence[ListedRun]) -> dict[str, Any]:
    """Print what clean=checkpoints removes or would remove, and remove it with yes=true; what
    --json has."""
    found = clean_checkpoints.plan(runs)
    if options.yes:
        found = [one if one.kept else clean_checkpoints.clean(one) for one in found]
    verb = "removed" if options.yes else "would go"
    for one in found:
        what = f"{one.checkpoints} checkpoint{'s' * (one.checkpoints > 1)}"
        text = f"{text_line(one.name)}: {what}, {format_bytes(one.bytes)}"
        print(f"kept        {text}: {text_line(one.kept)}" if one.kept else f"{verb:<11} {text}")
    gone = [one for one in found if not one.kept]
    freed = sum(one.bytes for one in gone)
    where = f"of {len(gone):,} run{'s' * (len(gone) != 1)}"
    if options.yes:
        print(f"freed       {format_bytes(freed)} {where}")
    else:
        print(f"would free  {format_bytes(freed)} {where}; nothing was removed")
    if gone and not options.yes:
        command = typed(
            "python", *tool_command("runs"), options.folder, "clean=checkpoints", "yes=true"
        )
        print(f"then type   {command}")
    return {
        "removed": options.yes,
        "bytes": freed,
        "clean": [_plain_cleaning(one) for one in found],
    }


def _plain_cleaning(one: Cleaning) -> dict[str, Any]:
    """What is removed of a run, for --json."""
    return {
        "name": one.name,
        "checkpoints": one.checkpoints,
        "bytes": one.bytes,
        "kept": one.kept or None,
    }


def _plain(run: ListedRun) -> dict[str, Any]:
    """A run for --json."""
    result = run.record.result
    return {
        "name": run.name,
        "folder": str(run.record.folder),
        "state": run.state,
        "objective": run.record.values.get("objective"),
        "step": run.step,
        "steps": run.record.steps,
        "metrics": {name: one.content() for name, one in run.record.metrics().items()},
        "held_out": run.main_metric(test=False),
        "test": run.main_metric(test=True),
        "exaflop": run.exaflop,
        "seconds": result.seconds if result else None,
        "bytes": run.disk,
        "ended": None if run.ended is None else run.ended.isoformat(timespec="seconds"),
    }
