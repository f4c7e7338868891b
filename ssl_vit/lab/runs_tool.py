"""The runs tool: lists the runs of a folder, ranks them by a metric, removes checkpoints that are
not needed any more. No torch."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.tool_options import parse
from ..errors import UserError
from ..formatting import (
    few_images,
    format_bytes,
    plain_table,
    shell_command,
    some,
    text_line,
    tool_command,
)
from ..runs import notebook
from ..stats import as_json
from .options import RunsOptions
from .run_table import clean_checkpoints, ranking, run_columns
from .run_table.listed_run import ListedRun, counted, differing, read_runs
from .run_table.ranking import RankedGroup, Ranking
from .run_table.run_columns import Column

SHOWN = 6  # values of a key that differs


@dataclass(frozen=True)
class RunTable:
    """The runs in and below a folder. In a notebook it shows what the command line prints.

    Attributes:
        folder: that was looked through.
        runs: as sort= says: `name`, `state`, `value(METRIC)`, `setting(KEY)`, `disk` in bytes,
            `record`, which holds the recipe's `values`, the `result` and the `rows`.
        differs: {key of the recipes that differs: each run's value}.
        ranking: with best=, `groups` of `runs` that compare, the best first; else None.
        cleaned: with clean=, `name`, `bytes` and `kept`, the reason why nothing is removed.
    """

    folder: Path
    runs: list[ListedRun]
    differs: dict[str, list[str]]
    lines: list[str]
    ranking: Ranking | None = None
    cleaned: list[clean_checkpoints.Cleaning] | None = None

    def __repr__(self) -> str:
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        return notebook.lines_html(self.lines)


def main(arguments: list[str]) -> None:
    """Print the runs in and below a folder; remove checkpoints with clean=checkpoints yes=true.

    Raises:
        UserError: as `table`.
    """
    options = parse(RunsOptions, arguments)
    found = table(options)
    print(found)
    if options.json:
        print(json.dumps(as_json({"folder": str(options.folder), **_content(options, found)})))


def table(options: RunsOptions) -> RunTable:
    """List, rank or clean the runs in and below a folder.

    Raises:
        UserError: an option is wrong, or there are no runs.
    """
    if options.yes and options.clean is None:
        raise UserError("yes=true: has no use without clean=checkpoints")
    if not options.folder.is_dir():
        raise UserError(f"{options.folder}: no such folder; expected one with runs in it")
    runs = read_runs(options.folder)
    if options.clean is not None:
        return _clean(options, runs)
    if options.best is not None:
        return _best(options, options.best, runs)
    return _list(options, runs)


def _content(options: RunsOptions, found: RunTable) -> dict[str, Any]:
    """What --json has besides the folder."""
    if found.cleaned is not None:
        gone = sum(one.bytes for one in found.cleaned if not one.kept)
        cleaned = [one.content() for one in found.cleaned]
        return {"removed": options.yes, "bytes": gone, "clean": cleaned}
    if (ranked := found.ranking) is not None:
        return {
            "best": ranked.metric,
            "better": "higher" if ranked.higher else "lower",
            "groups": [_group_content(ranked, group) for group in ranked.groups],
            "left_out": {run.name: run.state for run in ranked.left_out},
        }
    return {"runs": [run.content() for run in found.runs], "differs": found.differs}


def _group_content(ranked: Ranking, group: RankedGroup) -> dict[str, Any]:
    values = [{"name": run.name, "value": run.value(ranked.metric)} for run in group.runs]
    return {"facts": group.facts, "runs": values, "differs": differing(group.runs)}


def _list(options: RunsOptions, runs: list[ListedRun]) -> RunTable:
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
    lines = plain_table([column.head for column in columns], rows)
    total = format_bytes(sum(run.disk for run in runs))
    kinds = [run.state.partition(":")[0].partition(" at ")[0] for run in runs]
    lines += ["", f"{len(runs):,} run{'s' * (len(runs) > 1)}, {total}: {counted(kinds)}"]
    if not options.differs:
        lines += [f"differs     {name}: {_few(texts)}" for name, texts in differ.items()]
    if by_metric:
        lines += _caution(ranking.rank(runs, key))
    return RunTable(options.folder, ordered, differ, lines)


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


def _caution(found: Ranking) -> Iterator[str]:
    if len(found.groups) > 1:
        yield (
            f"note        {found.metric} does not compare between all of these runs: they differ in"
            f" {', '.join(found.differing)}; best={found.metric} ranks those that compare"
        )


def _best(options: RunsOptions, metric: str, runs: list[ListedRun]) -> RunTable:
    """Rank the runs.

    Raises:
        UserError: no run has the metric.
    """
    ranking.check_metric("best", metric, runs, [])
    found = ranking.rank(runs, metric)
    lines = [f"{metric}: {'higher' if found.higher else 'lower'} is better"]
    if len(found.groups) > 1:
        lines.append(
            f"{len(found.groups)} groups, which do not compare with one another: they differ in "
            f"{', '.join(found.differing)}"
        )
    for group in found.groups:
        lines += _group_lines(found, group)
    for run in found.left_out:
        lines.append(f"left out    {text_line(run.name)}: {text_line(run.state)}")
    if any(len(group.runs) > 1 for group in found.groups):
        caution = "A difference of two runs is no result: studies compare over seeds, with"
        lines += ["", f"{caution} intervals."]
    ranked = [run for group in found.groups for run in group.runs]
    return RunTable(options.folder, ranked, differing(ranked), lines, found)


def _group_lines(found: Ranking, group: RankedGroup) -> Iterator[str]:
    facts = group.facts
    shown = [f"{name}={facts[name]}" for name in found.differing if name in facts]
    shown = [text for text in shown if not text.startswith(("split=", "data=", "objective="))]
    title = ", ".join([f"objective={facts['objective']}", *shown])
    yield ""
    yield f"{facts['split']} images of {text_line(facts['data'])}, {text_line(title)}:"
    settings = _settings(group.runs, differing(group.runs))
    rows = [
        [str(place), run.metric_text(found.metric), text_line(run.name), settings[run]]
        for place, run in enumerate(group.runs, 1)
    ]
    yield from plain_table(("", found.metric, "run", "differs"), rows)
    split = str(facts["split"])
    counts = [
        run.record.measured_on[split] for run in group.runs if split in run.record.measured_on
    ]
    for text in few_images({split: min(counts)}) if counts else ():
        yield f"warning: {text}"
    if learned := max(run.learned(split) for run in group.runs):
        many = "1 of these images" if learned == 1 else f"{learned:,} of these images"
        yield f"warning: the first weights had learned the labels of {many}: no sound comparison"
    if unsure := [text_line(run.name) for run in group.runs if run.is_unsure]:
        text = f"which images the first weights saw is not known of some runs: {some(unsure)}"
        yield f"warning: {text}"


def _clean(options: RunsOptions, runs: list[ListedRun]) -> RunTable:
    """What clean=checkpoints would remove, which is removed with yes=true."""
    found = clean_checkpoints.plan(runs)
    if options.yes:
        found = [one if one.kept else clean_checkpoints.clean(one) for one in found]
    lines = list(_cleaned(options, found))
    return RunTable(options.folder, runs, differing(runs), lines, cleaned=found)


def _cleaned(options: RunsOptions, found: Sequence[clean_checkpoints.Cleaning]) -> Iterator[str]:
    verb = "removed" if options.yes else "would go"
    for one in found:
        what = f"{one.checkpoints} checkpoint{'s' * (one.checkpoints > 1)}"
        text = f"{text_line(one.name)}: {what}, {format_bytes(one.bytes)}"
        yield f"kept        {text}: {text_line(one.kept)}" if one.kept else f"{verb:<11} {text}"
    gone = [one for one in found if not one.kept]
    freed = sum(one.bytes for one in gone)
    where = f"of {len(gone):,} run{'s' * (len(gone) != 1)}"
    if options.yes:
        yield f"freed       {format_bytes(freed)} {where}"
    else:
        yield f"would free  {format_bytes(freed)} {where}; nothing was removed"
    if gone and not options.yes:
        command = shell_command(
            "python", *tool_command("runs"), options.folder, "clean=checkpoints", "yes=true"
        )
        yield f"then type   {command}"
