"""The runs tool: lists the runs of a folder, ranks them by a metric, removes checkpoints that are
not needed any more. No torch."""

import json
import math
from collections.abc import Sequence
from typing import Any

from ..config.tool_options import parse
from ..errors import UserError
from ..formatting import few_images, format_bytes, plain_table, text_line, tool_command, typed
from . import reports
from .lab_tools import RunsOptions
from .run_table import clean_checkpoints, ranking, run_columns
from .run_table.listed_run import ListedRun, counted, differing, read_runs
from .run_table.run_columns import Column

SHOWN = 6  # values of a key that differs


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
    runs = read_runs(options.folder)
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
    columns = run_columns.of_terminal()
    key = options.sort.removeprefix("-")
    order = _sorted_by(key, columns, runs)
    ordered = run_columns.ordered(runs, order, backwards=key != options.sort)
    by_metric = order not in columns
    if by_metric:
        columns.insert(1, order)
    differ = differing(ordered)
    if options.differs:
        columns.append(Column("differs", _settings(ordered, differ).__getitem__))
    rows = [[column.text(run) for column in columns] for run in ordered]
    print("\n".join(plain_table([column.head for column in columns], rows)))
    total = format_bytes(sum(run.disk for run in runs))
    kinds = [run.state.partition(":")[0].partition(" at ")[0] for run in runs]
    print(f"\n{len(runs):,} run{'s' * (len(runs) > 1)}, {total}: {counted(kinds)}")
    if not options.differs:
        for name, texts in differ.items():
            print(f"differs     {name}: {_few(texts)}")
    if by_metric:
        _print_caution(ranking.rank(runs, key))
    return {"runs": [run.content() for run in ordered], "differs": differ}


def _sorted_by(key: str, columns: Sequence[Column], runs: Sequence[ListedRun]) -> Column:
    """The column that sort=key names: one of the table, or one of a metric.

    Raises:
        UserError: neither a column nor a metric of a run.
    """
    known = {column.key: column for column in columns if column.key}
    if key not in known:
        ranking.check_metric("sort", key, runs, list(known))
    return known.get(key) or run_columns.of_metric(key)


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


def _settings(runs: Sequence[ListedRun], differ: dict[str, list[str]]) -> dict[ListedRun, str]:
    """Each run's values of the keys that differ, as options."""
    return {
        run: " ".join(f"{key}={text_line(texts[place])}" for key, texts in differ.items()) or "-"
        for place, run in enumerate(runs)
    }


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
    differ = differing(group.runs)
    settings = _settings(group.runs, differ)
    rows = [
        [str(place), run.metric_text(found.metric), text_line(run.name), settings[run]]
        for place, run in enumerate(group.runs, 1)
    ]
    print("\n".join(plain_table(("", found.metric, "run", "differs"), rows)))
    split = str(facts["split"])
    counts = [
        run.record.measured_on[split] for run in group.runs if split in run.record.measured_on
    ]
    for text in few_images({split: min(counts)}) if counts else ():
        print(f"warning: {text}")
    ranked = [{"name": run.name, "value": run.value(found.metric)} for run in group.runs]
    return {"facts": facts, "runs": ranked, "differs": differ}


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
        "clean": [one.content() for one in found],
    }
