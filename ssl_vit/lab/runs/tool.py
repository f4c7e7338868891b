"""Run the runs tool, which lists or ranks the runs of a folder.

The module does not import torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...errors import UserError, suggest
from ...formatting import format_bytes, format_count, list_names, plain_table, text_line
from ...measurements import read_flat_name
from ...metrics import is_model_metric
from ...pages.run_record import read_run
from ...recipe.given import Arguments
from ...recipe.tool import parse
from ...runs import notebook
from ...stats import as_json
from ..options import RunsOptions, show
from . import listed, search
from .listed import ListedRun, RankedGroup

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class RunTable:
    """Runs in and below a folder. A notebook shows a table with the command line's text below.

    Attributes:
        runs: Runs in the order of `sort=`. A run has `name`, `state`, `value(METRIC)`, `disk` in
            bytes, and a `record` with the recipe's `values`, the `result` and the `rows`.
        lines: Lines that the command line prints. Without `best=`, they are below the table of
            runs.
        rows: Rows of the table of runs as texts, the headings first. Empty with `best=`.
        groups: With `best=`, groups of comparable runs. A group has `runs`, the best first, and the
            `facts` that all its runs share. Empty without `best=`.
        record: Content that `--json` prints with `best=`. Empty without `best=`.
    """

    runs: list[ListedRun]
    lines: list[str]
    rows: list[list[str]] = field(default_factory=list)
    groups: list[RankedGroup] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def frame(self) -> "DataFrame":
        """Runs as a pandas table with a row per run.

        The first columns are the fields that `--json` prints, such as the name, the state and the
        cost. A column for each recipe key follows that differs between the runs and can change a
        result. The last columns are the metrics of the model, without their baselines.
        """
        from pandas import DataFrame

        keys = listed.differing_keys(self.runs)
        rows = []
        for run in self.runs:
            settings = {key: run.settings.get(key) for key in keys}
            metrics = {metric: run.value(metric) for metric in run.measured}
            rows.append(run.content() | settings | metrics)
        return DataFrame(rows).drop(columns="measurements")

    def content(self) -> dict[str, Any]:
        """Return the dictionary that `--json` prints."""
        return dict(as_json(self.record or {"runs": [run.content() for run in self.runs]}))

    def __repr__(self) -> str:
        table = plain_table(self.rows[0], self.rows[1:]) if self.rows else []
        return "\n".join([*table, *self.lines])

    def _repr_html_(self) -> str:
        from pandas import DataFrame

        lines = notebook.lines_html(self.lines)
        if len(self.rows) < 2:
            return lines
        return DataFrame(self.rows[1:], columns=self.rows[0]).to_html(index=False) + lines


def main(arguments: list[str]) -> None:
    """Print the runs in and below a folder.

    Raises:
        UserError: An option is wrong, or there are no runs.
    """
    options = parse(RunsOptions, Arguments(arguments))
    show(table(options), options.as_json)


def table(options: RunsOptions) -> RunTable:
    """List or rank the runs in and below a folder.

    Raises:
        UserError: An option is wrong, or there are no runs.
    """
    folder = options.folder
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder. Name a folder that contains runs.")
    runs = [listed.list_run(folder, read_run(path)) for path in search.find_runs(folder)]
    if options.best is not None:
        return _rank(options.best, runs)
    return _list(options.sort, runs)


def _list(sort: str, runs: Sequence[ListedRun]) -> RunTable:
    """List the runs, sorted by a column.

    Args:
        sort: Name of the column, after a minus to reverse the order.
        runs: Runs to list.

    Raises:
        UserError: `sort` is not a column.
    """
    key = sort.removeprefix("-")
    if key not in listed.SORTED_BY:
        raise UserError(
            f"sort={key}: unknown column ({suggest(key, listed.SORTED_BY)}). To rank runs by a"
            " metric, use best=METRIC."
        )
    runs = listed.COLUMNS[key].ordered(runs, backwards=sort.startswith("-"))
    columns = [listed.COLUMNS[name] for name in listed.IN_TERMINAL]
    rows = [[column.text(run) for column in columns] for run in runs]
    total = format_bytes(sum(run.disk for run in runs))
    lines = ["", f"{format_count(len(runs), 'runs')}, {total}: {listed.count_states(runs)}"]
    # an evaluation (the objective `probe`) measures only metrics that objectives can share
    objectives = {run.record.values.get("objective") for run in runs} - {"probe"}
    if len(objectives) > 1:
        lines.append(listed.WHAT_IS_COMPARABLE)
    for key, values in listed.differing_keys(runs).items():
        different_values = [text_line(value) for value in dict.fromkeys(values)]
        lines.append(f"differs     {key}: {list_names(different_values)}")
    return RunTable(runs, lines, [[column.head for column in columns], *rows])


def _rank(metric: str, runs: Sequence[ListedRun]) -> RunTable:
    """Rank the runs by a metric, in groups of comparable runs.

    The runs of a group have the same data set, measured images and so on (`RankedGroup.facts`).

    Raises:
        UserError: One of these cases:
            - No run has the metric.
            - The metric is a baseline, such as `fresh_knn` (k-NN with untrained weights).
            - It is unknown whether lower or higher values are better.
    """
    metrics = dict.fromkeys(name for run in runs for name in run.measured)
    if metric not in metrics:
        if not is_model_metric(read_flat_name(metric)):
            raise UserError(
                f"best={metric}: this value is a count, or belongs to a baseline such as untrained"
                " weights. Name a metric of the trained model, such as knn."
            )
        raise UserError(
            f"best={metric}: no listed run has this metric ({suggest(metric, metrics)})"
        )
    if not all(run.has_direction(metric) for run in runs if metric in run.measured):
        raise UserError(
            f"best={metric}: ssl_vit cannot rank runs by this metric, because it does not know"
            " whether higher or lower values are better. Name another metric, or compare the"
            " report.html of the runs."
        )
    groups = listed.rank(runs, metric)
    lines = list(_ranking_lines(metric, groups, runs))
    ranked_runs, contents = [], []
    for group in groups:
        ranked_runs += group.runs
        values = [{"name": run.name, "value": run.value(metric)} for run in group.runs]
        differs = listed.differing_keys(group.runs)
        contents.append({"facts": group.facts, "runs": values, "differs": differs})
    return RunTable(ranked_runs, lines, groups=groups, record={"best": metric, "groups": contents})


def _ranking_lines(
    metric: str, groups: Sequence[RankedGroup], runs: Sequence[ListedRun]
) -> Iterator[str]:
    """Yield a table of each group of ranked runs, then a line for each run that is left out.

    Args:
        metric: Metric that ranks the runs.
        groups: Groups of comparable runs, the best run of a group first.
        runs: All runs.
    """
    # whether higher values are better: one value, or two if plugins of different runs disagree
    directions = {run.measured[metric].row.higher for run in runs if metric in run.measured}
    if len(directions) > 1:
        yield f"{metric}: lower or higher is better, as each plugin declares"
    elif True in directions:
        yield f"{metric}: higher is better"
    else:
        yield f"{metric}: lower is better"
    if len(groups) > 1:
        yield f"{len(groups)} groups. Compare only runs of the same group."
    for group in groups:
        shared = ", ".join(f"{name}={text_line(value)}" for name, value in group.facts.items())
        yield from ("", f"{shared}:")
        differing_keys = listed.differing_keys(group.runs)
        rows = []
        for index, run in enumerate(group.runs):
            settings = [
                f"{key}={text_line(value_of_each_run[index])}"
                for key, value_of_each_run in differing_keys.items()
            ]
            differs = " ".join(settings) or listed.NONE
            value = listed.metric_text(run, metric)
            rows.append([str(index + 1), value, text_line(run.name), differs])
        yield from plain_table(("", metric, "run", "differs"), rows)
    ranked = {run for group in groups for run in group.runs}
    for run in runs:
        if metric in run.measured and run not in ranked:
            reason = run.state
            if listed.may_be_collapsed(run, metric):
                reason = f"even useless features can have the best {metric}"
            yield f"left out    {text_line(run.name)}: {text_line(reason)}"
    if any(len(group.runs) > 1 for group in groups):
        yield from ("", listed.CAUTION)
