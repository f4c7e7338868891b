"""The runs tool: lists the runs of a folder, ranks them by a metric, removes checkpoints that are
not needed any more. No torch."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config.tool_options import parse
from ...errors import UserError, suggest
from ...formatting import few_images, format_bytes, plain_table, some, text_line
from ...metrics import find_metric, is_of_model
from ...pages.run_record import read_run
from ...runs import notebook
from ...stats import as_json
from ..options import RunsOptions
from . import checkpoints, search
from .checkpoints import Cleaned
from .listed import COLUMNS, SORTED_BY, ListedRun, counted, differing, listed, of_metric, ordered
from .ranking import HEAD, LEARNED, RankedGroup, differing_facts, rank

if TYPE_CHECKING:
    from pandas import DataFrame

CAUTION = "A difference of two runs is no result: studies compare over seeds, with intervals."


@dataclass(frozen=True)
class RunTable:
    """The runs in and below a folder. In a notebook it shows them as a table, and what the command
    line prints below it.

    Attributes:
        folder: that was looked through.
        runs: as sort= says: `name`, `state`, `value(METRIC)`, `setting(KEY)`, `disk` in bytes,
            `record`, which holds the recipe's `values`, the `result` and the `rows`.
        head, rows: the texts that the command line prints as a table, none with best= or clean=.
        lines: what it prints below.
        best: the metric that they are ranked by.
        groups: with best=, `runs` that compare, the best first, and the `facts` that they share.
        cleaned: with clean=, `name`, `checkpoints`, `bytes` and `kept`, the reason why they were
            not removed.
    """

    folder: Path
    runs: list[ListedRun]
    lines: list[str]
    head: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    best: str | None = None
    groups: list[RankedGroup] = field(default_factory=list)
    cleaned: list[Cleaned] | None = None

    @property
    def frame(self) -> "DataFrame":
        """A row a run: what --json has of it, and a column for each metric."""
        from pandas import DataFrame

        rows = []
        for run in self.runs:
            content = run.content()
            metrics = content.pop("metrics")
            rows.append(content | {name: entry["value"] for name, entry in metrics.items()})
        return DataFrame(rows)

    def content(self) -> dict[str, Any]:
        """A dictionary, as --json prints it."""
        found: dict[str, Any] = {"folder": str(self.folder)}
        if self.cleaned is not None:
            freed = sum(one.bytes for one in self.cleaned if not one.kept)
            found |= {"bytes": freed, "clean": [one.content() for one in self.cleaned]}
        elif self.best is not None:
            found |= {"best": self.best, "groups": [_content(self.best, g) for g in self.groups]}
        else:
            runs = [run.content() for run in self.runs]
            found |= {"runs": runs, "differs": differing(self.runs)}
        return dict(as_json(found))

    def __repr__(self) -> str:
        table = plain_table(self.head, self.rows) if self.rows else []
        return "\n".join([*table, *self.lines])

    def _repr_html_(self) -> str:
        from pandas import DataFrame

        table = DataFrame(self.rows, columns=self.head).to_html(index=False) if self.rows else ""
        return table + notebook.lines_html(self.lines)


def _content(metric: str, group: RankedGroup) -> dict[str, Any]:
    values = [{"name": run.name, "value": run.value(metric)} for run in group.runs]
    return {"facts": group.facts, "runs": values, "differs": differing(group.runs)}


def main(arguments: list[str]) -> None:
    """Print the runs in and below a folder; with clean=checkpoints remove theirs.

    Raises:
        UserError: as `table`.
    """
    options = parse(RunsOptions, arguments)
    found = table(options)
    print(found)
    if options.json:
        print(json.dumps(found.content()))


def table(options: RunsOptions) -> RunTable:
    """List, rank or clean the runs in and below a folder.

    Raises:
        UserError: an option is wrong, or there are no runs.
    """
    folder = options.folder
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected one with runs in it")
    runs = [listed(folder, read_run(path)) for path in search.find(folder).runs]
    if options.clean is not None:
        cleaned = [one for one in map(checkpoints.clean, runs) if one]
        return RunTable(folder, runs, list(_cleaned_lines(cleaned)), cleaned=cleaned)
    if options.best is not None:
        _check_metric("best", options.best, runs, [])
        groups = rank(runs, options.best)
        ranked = [run for group in groups for run in group.runs]
        lines = list(_ranking_lines(options.best, groups, runs))
        return RunTable(folder, ranked, lines, best=options.best, groups=groups)
    return _list(folder, options.sort, runs)


def _list(folder: Path, sort: str, runs: list[ListedRun]) -> RunTable:
    """List the runs.

    Raises:
        UserError: `sort` is neither a column nor a metric of a run.
    """
    key, columns = sort.removeprefix("-"), [*COLUMNS.values()]
    by_metric = key not in SORTED_BY
    if by_metric:
        _check_metric("sort", key, runs, SORTED_BY)
        columns.insert(1, of_metric(key))
    order = columns[1] if by_metric else COLUMNS[key]
    runs = ordered(runs, order, backwards=key != sort)
    rows = [[column.text(run) for column in columns] for run in runs]
    total = format_bytes(sum(run.disk for run in runs))
    lines = ["", f"{len(runs):,} run{'s' * (len(runs) > 1)}, {total}: {counted(runs)}"]
    for name, texts in differing(runs).items():
        lines.append(f"differs     {name}: {some([*map(text_line, dict.fromkeys(texts))])}")
    if by_metric and len(groups := rank(runs, key)) > 1:
        lines.append(
            f"note        {key} does not compare between all of these runs: they differ in"
            f" {', '.join(differing_facts(groups))}; best={key} ranks those that compare"
        )
    return RunTable(folder, runs, lines, [column.head for column in columns], rows)


def _check_metric(key: str, metric: str, runs: Sequence[ListedRun], others: Sequence[str]) -> None:
    """Check that a run has the metric that `key=metric` names; `others` are further choices.

    Raises:
        UserError: none has; or it is a baseline.
    """
    known = dict.fromkeys(name for run in runs for name in run.measured)
    if metric in known:
        return
    if not is_of_model(metric):
        raise UserError(f"{key}={metric}: expected a metric of the model, not a baseline")
    text = "neither a column nor a metric" if others else "no run here has this metric"
    raise UserError(f"{key}={metric}: {text}; {suggest(metric, [*others, *known])}")


def _ranking_lines(
    metric: str, groups: Sequence[RankedGroup], runs: Sequence[ListedRun]
) -> Iterator[str]:
    """What is ranked, each group under what its runs share, and what is left out."""
    yield f"{metric}: {'higher' if find_metric(metric).higher else 'lower'} is better"
    differ = differing_facts(groups)
    if differ:
        text = f"{len(groups)} groups, which do not compare with one another"
        yield f"{text}: they differ in {', '.join(differ)}"
    for group in groups:
        facts, split = group.facts, group.facts["split"]
        rest = [f"{name}={facts[name]}" for name in differ if name in facts and name not in HEAD]
        title = ", ".join([f"objective={facts['objective']}", *rest])
        yield ""
        images = f"{split} images of {text_line(facts['data'])} (n = {facts['n']})"
        yield f"{images}, {text_line(title)}:"
        settings = differing(group.runs)
        rows = []
        for place, run in enumerate(group.runs):
            own = " ".join(f"{key}={text_line(at[place])}" for key, at in settings.items())
            value = of_metric(metric).text(run)
            rows.append([str(place + 1), value, text_line(run.name), own or "-"])
        yield from plain_table(("", metric, "run", "differs"), rows)
        counts = group.runs[0].record.measured_on
        for text in few_images({split: counts[split]} if split in counts else {}):
            yield f"warning: {text}"
        if facts[LEARNED] != "-":
            many = f"the first weights had learned the labels of {facts[LEARNED]} of these images"
            yield f"warning: {many}: no sound comparison"
        seen = {run.name: run.record.environment.seen or () for run in group.runs}
        if unsure := [name for name, before in seen.items() if any(one.unknown for one in before)]:
            text = "which images the first weights saw is not known of some runs"
            yield f"warning: {text}: {some([*map(text_line, unsure)])}"
    ranked = {run for group in groups for run in group.runs}
    for run in runs:
        if metric in run.measured and run not in ranked:
            yield f"left out    {text_line(run.name)}: {text_line(run.state)}"
    if any(len(group.runs) > 1 for group in groups):
        yield from ("", CAUTION)


def _cleaned_lines(cleaned: Sequence[Cleaned]) -> Iterator[str]:
    for one in cleaned:
        what = f"{one.checkpoints} checkpoint{'s' * (one.checkpoints > 1)}"
        text = f"{text_line(one.name)}: {what}, {format_bytes(one.bytes)}"
        yield f"kept        {text}: {text_line(one.kept)}" if one.kept else f"removed     {text}"
    gone = [one for one in cleaned if not one.kept]
    freed = format_bytes(sum(one.bytes for one in gone))
    yield f"freed       {freed} of {len(gone):,} run{'s' * (len(gone) != 1)}"
