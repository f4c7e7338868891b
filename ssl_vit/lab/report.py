"""Write the report of a study: the claims, a table and a figure, then everything exploratory.

Markdown, HTML, LaTeX, CSV, the terminal and JSON show the same tables. The module does not import
torch.
"""

import io
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from .. import stats
from ..extras import describe_missing, is_installed
from ..formatting import (
    FEW_IMAGES,
    copies_text,
    few_images,
    figure_label,
    format_count,
    format_image_count,
    list_names,
    plain_table,
    text_line,
)
from ..measurements import (
    COMMONEST,
    flat_name,
    read_flat_name,
    rows_of_run,
    use_plugin_rows,
)
from ..metrics import held_out_choices
from ..pages import blocks
from ..pages.blocks import Block, Listing, Section, Text
from ..pages.figure_style import COLOURS, INK, STYLE
from ..pages.run_page import PAGE
from ..pages.run_wording import describe_machine
from ..recipe.init_source import SCRATCH
from ..recipe.schema import sources
from ..runs import notebook, seen_text
from ..runs.files import write_atomically
from .answer import Answer, answer
from .compare import list_limits, parse_numbers
from .next_step import next_step
from .results import Results, load
from .study.read import REFERENCE
from .study.tasks import Task, warn_about_other_tries
from .tables import ReportTable, as_text, cells, means_with_intervals, tables, untrained
from .verdict import Measure, Verdict, decide_claims

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# headings of columns that small screens show last
BEHIND = frozenset({"n", "pairs", "sd", "images", "exaFLOP", "paper", "level", "over", "metric"})
# characters with a meaning in LaTeX captions
ESCAPED = {character: rf"\{character}" for character in "&%$#_{}"}
ESCAPED |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
ESCAPED |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
LATEX = str.maketrans(ESCAPED)
LABEL = dict.fromkeys([*LATEX, ord(" ")], "-")  # a label of LaTeX must not have these characters
WIDE = 10  # an axis is logarithmic if its largest number is at least this many times its smallest
SPREAD = 0.6  # share of the space between two names over which the lines at one name are spread


@dataclass(frozen=True)
class Report:
    """Report of a study. A notebook shows the page.

    Attributes:
        folder: Folder of the study, which also holds report.html, report.md, tables.tex,
            results.csv and differences.csv.
        title: Title of the study.
        results: Results of the finished runs.
        verdict: Claims of the report.
        tables: `{name: table}` in the order of the report.
    """

    folder: Path
    title: str
    results: Results
    verdict: Verdict
    tables: dict[str, ReportTable]

    @cached_property
    def answer(self) -> Answer | None:
        """Answer in plain words if the study asks whether pre-training helps, else None."""
        return answer(self.results, self.verdict)

    @property
    def sentences(self) -> tuple[str, ...]:
        """First lines of the report. An answer replaces the first sentence of the verdict."""
        if self.answer is None:
            return self.verdict.sentences
        return (*self.answer.lines, *self.verdict.sentences[1:])

    @cached_property
    def next_step(self) -> str:
        """What to do next, with a command. Empty if nothing is recommended."""
        return self.answer.next_step if self.answer else next_step(self.results, self.verdict)

    def content(self) -> dict[str, Any]:
        """Return the content for `--json`: sentences, the next step, and the rows of all tables."""
        tables = {name: _records(shown.frame) for name, shown in self.tables.items()}
        rows = _records(self.results.table)
        content: dict[str, Any] = {"sentences": [*self.sentences], "next": self.next_step}
        content |= {"tables": tables, "results": rows}
        return dict(stats.as_json(content))

    def lines(self) -> Iterator[str]:
        """Yield the lines that the command line prints."""
        yield from map(text_line, self.sentences)
        first = next(iter(self.tables.values()))
        yield from plain_table(*cells(as_text(first)))
        yield first.caption
        yield f"report      {self.folder / PAGE}, {self.folder / 'report.md'}"
        if self.next_step:
            yield f"next        {self.next_step}"

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return notebook.inline_page((self.folder / PAGE).read_text())


def write(folder: Path, with_all_tables: bool = False) -> Report:
    """Write the report of a study's finished runs into the study's folder.

    The same results give the same files, byte for byte.

    Args:
        folder: Folder of the study.
        with_all_tables: Whether tables.tex has all tables, and not only the means.

    Raises:
        UserError: The folder is not a study, the study does not say what to compare, a file is
            damaged, no run has the measure, or compared runs were tested on different images.
    """
    results = load(folder)
    runs = results.finished.values()
    # a plugin may declare metrics: how they are displayed, and whether higher values are better
    plugin_rows = [
        rows_of_run(run.environment.plugin_rows, [entry.key for entry in run.result.measurements])
        for run in runs
    ]
    with use_plugin_rows(*plugin_rows):
        verdict = decide_claims(results)
        report = Report(folder, results.plan.title, results, verdict, tables(results, verdict))
        sections = page(report)
        for section in sections:
            for block in section.blocks:
                if isinstance(block, blocks.Figure):
                    (folder / block.path).parent.mkdir(exist_ok=True)
                    write_atomically(folder / block.path, block.svg)
        files = {
            "report.md": blocks.markdown(report.title, sections),
            PAGE: blocks.html(report.title, sections),
            "results.csv": results.table.to_csv(index=False),
            "tables.tex": latex(report, with_all_tables),
        }
        frames = [table.frame for name, table in report.tables.items() if "differences" in name]
        if frames:
            files["differences.csv"] = pd.concat(frames).to_csv(index=False)
        else:  # written by an earlier report
            (folder / "differences.csv").unlink(missing_ok=True)
        for name, content in files.items():
            write_atomically(folder / name, content)
        return report


def page(report: Report) -> list[Section]:
    """Return the sections of the report's page.

    The page opens with the report's conclusions (`report.sentences`), the table of compared values
    and a figure of these values. Descriptions of the names, the differences and the limits follow.
    The exploratory tables, the cost and the notes come last. They are folded, so a reader sees only
    their titles at first. Empty sections are left out.
    """
    results, verdict, further_tables = report.results, report.verdict, dict(report.tables)
    training_on_test = list(_describe_training_on_test(results, verdict))
    opening: list[Block] = [
        Text(sentence, warning=True) for sentence, is_unsound in training_on_test if is_unsound
    ]
    opening += (Text(_without_paths(report, sentence)) for sentence in report.sentences)
    if report.next_step:
        opening.append(Text(f"Next: {_without_paths(report, report.next_step)}"))
    if "compared" in further_tables:
        opening += _table(further_tables.pop("compared"))
        if is_installed("matplotlib"):
            opening.append(_figure(results, verdict))
        else:
            opening.append(Text(f"There is no figure, because {describe_missing('matplotlib')}"))
    differences: list[Block] = []
    if "differences" in further_tables:
        differences = _table(further_tables.pop("differences"))
    cost = _table(further_tables.pop("cost"))
    limits = [*_limits(results, verdict)]
    limits += [sentence for sentence, is_unsound in training_on_test if not is_unsound]
    notes = results.plan.report.get("notes", ())
    exploratory: list[Block] = []
    for name, shown in further_tables.items():
        exploratory += [Text(f"{name[0].upper()}{name[1:]}:"), *_table(shown)]
    # the first 16 characters are the date, the hour and the minute
    finished = sorted(run.result.finished[:16] for run in results.finished.values())
    span = (
        f"Number of finished runs: {len(finished)}. They finished between {finished[0]} and"
        f" {finished[-1]} UTC, on these machines:"
    )
    machines = sorted({describe_machine(run.environment) for run in results.finished.values()})
    explained = [
        f"{name}: {meaning}" for name, meaning in results.plan.report.get("explain", {}).items()
    ]
    sections = [
        Section("", opening),
        Section("What the names mean", [Listing(explained)] if explained else []),
        Section("Differences", differences),
        Section("Limits", [Listing(limits)] if limits else []),
        Section("Exploratory", exploratory, is_folded=True),
        Section("Cost and machines", [*cost, Text(span), Listing(machines)], is_folded=True),
        Section("Notes", [Listing([*notes])] if notes else [], is_folded=True),
    ]
    return [section for section in sections if section.blocks]


def _without_paths(report: Report, text: str) -> str:
    """Replace each absolute path in a text by its last part: `out=/home/user/runs` by `out=runs`.

    Pages are shared, so they should not show the folders of a user.

    Args:
        report: Report. The path of its folder is replaced, too.
        text: Text with a command.
    """
    paths = {word.partition("=")[2] for word in text.split() if "=/" in word}
    # the longest path first, because a path may be the beginning of a longer path
    for path in sorted({*paths, str(report.folder.resolve())}, key=len, reverse=True):
        text = text.replace(path, Path(path).name)
    return text


def _table(shown: ReportTable) -> list[Block]:
    """Return the blocks of a table: the rows and the caption."""
    frame = as_text(shown)
    table = blocks.Table(*cells(frame), labels=_count_label_columns(shown, frame), behind=BEHIND)
    return [table, Text(shown.caption)]


def _count_label_columns(report_table: ReportTable, text_frame: pd.DataFrame) -> int:
    """Count the columns of texts at the left of a table, before the first column of numbers.

    For example, the columns "arm", "n" and "mean" have one column of texts at the left.

    Args:
        report_table: Table with numbers.
        text_frame: The same table as text, from `as_text`.
    """
    numbers = report_table.frame
    # A column of intervals, such as "1.2 to 3.4", is only in `text_frame`. It counts as numbers
    are_labels = [
        name in numbers and pd.api.types.is_string_dtype(numbers[name]) for name in text_frame
    ]
    return [*are_labels, False].index(False)


def _figure(results: Results, verdict: Verdict) -> blocks.Figure:
    """Draw the compared values, with a horizontal line at the value of untrained weights.

    The line is left out if untrained weights have several values for a seed, for example one for 1%
    and another for 10% of the labels.

    The axis of values starts at the accuracy of always naming the commonest class, if this accuracy
    was measured and is lower than all drawn values.
    """
    measure, axis = verdict.measure, verdict.rule.axis or "run"
    assert measure is not None
    rows = verdict.rows.assign(value=measure.scale * verdict.rows["value"])
    title = measure.heading
    untrained_rows = untrained(results, verdict, measure)
    levels = {}
    if (untrained_rows.groupby([axis, "seed"])["value"].nunique() == 1).all():
        levels = (measure.scale * untrained_rows.groupby(axis)["value"].mean()).to_dict()
    caption = f"{title}: each point is a seed, each diamond a mean."
    # The accuracies of the commonest class. They differ if runs were tested on different images
    constant_accuracies = measure.scale * _accuracies_of_commonest_class(results, verdict, measure)
    lowest_constant = constant_accuracies.min()
    start = None
    if lowest_constant < min([*rows["value"], *levels.values()]):
        start = lowest_constant
        lowest = "lowest " if constant_accuracies.nunique() > 1 else ""
        caption += f" The axis starts at {start:.1f}%, the {lowest}accuracy of the commonest class."
    svg = draw(rows, axis, verdict.rule.other_axes, title, levels, start)
    return blocks.Figure("figures/study.svg", caption, svg)


def draw(
    rows: pd.DataFrame,
    axis: str,
    places: Sequence[str],
    label: str,
    levels: Mapping[str, float],
    start: float | None,
) -> str:
    """Draw each seed as a point and each mean as a diamond, and return SVG.

    The x-axis is the first axis of `places` whose names are numbers, or else `axis`. Each
    combination of names on the remaining axes has its own colour. The same rows give the same text.

    Args:
        rows: One row for each seed, with a column for each axis and `value` in display units.
        axis: Axis whose names are compared.
        places: Other axes.
        label: Label of the values.
        levels: `{name: value}` of horizontal lines.
        start: Lower end of the axis of values, or None for a little below the lowest value.
    """
    import matplotlib
    from matplotlib.figure import Figure

    numeric_axes = (name for name in (*places, axis) if parse_numbers([*rows[name].unique()]))
    x_axis = next(numeric_axes, axis)
    other_axes = [name for name in (axis, *places) if name != x_axis]
    line_of_row = pd.Series("", rows.index)  # name of the line that shows the row
    if other_axes:
        line_of_row = rows[other_axes].agg(", ".join, axis=1)
    line_names = [*line_of_row.unique()]
    ticks = [*rows[x_axis].unique()]
    number_at = parse_numbers(ticks)
    x_at = number_at or {name: number for number, name in enumerate(ticks)}
    x_of_row = rows[x_axis].map(x_at)
    colours: Sequence[Any] = COLOURS
    if len(line_names) > len(COLOURS):
        colours = [*matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(line_names)))]
    svg = io.StringIO()
    # without a date, so that the text is always the same
    no_metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # names may have characters that the font lacks: the figure then shows boxes
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        panel = figure.subplots()
        for number, name in enumerate(line_names):
            # without numbers on the x-axis, the lines stand side by side at each name
            shift = 0 if number_at else SPREAD * ((number + 0.5) / len(line_names) - 0.5)
            x, y = x_of_row[line_of_row == name] + shift, rows["value"][line_of_row == name]
            mean = y.groupby(x).mean()
            # two points make no curve: a line would suggest values that nobody measured
            marker = "D-" if number_at and len(mean) > 2 else "D"
            style = {"markersize": 5, "color": colours[number], "label": figure_label(name)}
            panel.plot(x, y, "o", markersize=3, alpha=0.6, color=colours[number])
            panel.plot(mean.index, mean, marker, **style)
        for value in levels.values():
            panel.axhline(value, color=INK, linestyle="--", linewidth=1)
        if levels:
            # one text at the right names all lines, the highest first, because lines may be close
            names = sorted(levels, key=lambda name: -levels[name])
            text = "\n".join(map(figure_label, names))
            transform = panel.get_yaxis_transform()
            panel.text(1.01, fmean(levels.values()), text, va="center", transform=transform)
        panel.set_ylim(bottom=start)
        _format_axis(panel, ticks, number_at)
        panel.set(xlabel=figure_label(x_axis), ylabel=figure_label(label))
        if len(line_names) > 1:
            figure.legend(loc="outside lower center", ncols=3)
        figure.savefig(svg, format="svg", metadata=no_metadata)
    return svg.getvalue()


def _format_axis(
    panel: "Axes", ticks: Sequence[str], number_at: Mapping[str, float] | None
) -> None:
    """Set the ticks, the limits and the grid of the x-axis.

    Names, such as `mae`, are evenly spaced. Numbers get a logarithmic axis if the largest number is
    at least `WIDE` times the smallest. Other numbers keep matplotlib's linear axis and ticks.

    Args:
        panel: Axes of the figure.
        ticks: Names on the x-axis, such as `mae` or "1%".
        number_at: `{name: number}`, or None if the names are not numbers.
    """
    if number_at is None:
        panel.set_xlim(-0.5, len(ticks) - 0.5)
        rotation, alignment = 0, "center"
        if sum(map(len, ticks)) > 40:  # names of this length would overlap
            rotation, alignment = 30, "right"
        labels = map(figure_label, ticks)
        panel.set_xticks(range(len(ticks)), labels, rotation=rotation, ha=alignment)
    elif max(number_at.values()) / min(number_at.values()) >= WIDE:
        panel.set_xscale("log")
        panel.set_xticks([*number_at.values()], map(figure_label, number_at))
        panel.minorticks_off()
    panel.grid()
    panel.spines[["top", "right"]].set_visible(False)


def _describe_training_on_test(results: Results, verdict: Verdict) -> Iterator[tuple[str, bool]]:
    """Yield a sentence for each compared arm whose weights were trained on test images.

    The sentence says on how many test images the weights were trained. The runs of the arm, and the
    runs that their weights came from, may have different numbers. The largest number counts.
    Further sentences name the runs whose training images are unknown, because test images may be
    among these images.

    Yields:
        A sentence, and whether the comparison is unsound because the weights have learned labels of
            test images.
    """
    for name, rows_of_name in verdict.rows.groupby(verdict.rule.axis or "run", sort=False):
        runs = [results.finished[task] for task in rows_of_name["folder"]]
        # Each entry is about one run: `of` counts the measured images, and `images` those of them
        # that the run was trained on.
        seen = [entry for run in runs for entry in seen_text.recorded(run.result, run.environment)]
        num_test_images = max((entry.of.get("test", 0) for entry in seen), default=0)
        images = max((entry.images.get("test", 0) for entry in seen), default=0)
        labels = max((entry.labels.get("test", 0) for entry in seen), default=0)
        with_labels = "without labels"
        if labels:
            with_labels = f"with the labels of {format_image_count(labels)}"
        sentence = (
            f"{name}: the weights were trained on {images:,} of {num_test_images:,} test images,"
            f" {with_labels}."
        )
        if seen_text.learned_labels(seen):
            yield f"{sentence} Do not trust the results of {name}.", True
        elif images:
            yield sentence, False
        for run_name in sorted({entry.run for entry in seen if entry.unknown}):
            yield f"{name}: the training images of {run_name} are unknown.", False


def _accuracies_of_commonest_class(
    results: Results, verdict: Verdict, measure: Measure
) -> "pd.Series[float]":
    """Return each test run's measured accuracy of always naming the commonest class."""
    # The metric is, for example, `majority_top1` for a fine-tuning and `commonest_knn` for a probe
    # of a frozen encoder. A study has measured only one of the two
    rows = results.rows(verdict.rule.test, split=measure.split)
    commonest = flat_name(read_flat_name(measure.name)._replace(subject=COMMONEST))
    return rows[rows["metric"].isin([f"majority_{measure.name}", commonest])]["value"]


def _find_useless_arms(results: Results, verdict: Verdict) -> Iterator[str]:
    """Yield a sentence about compared arms that are no better than a constant prediction.

    The constant prediction always names the commonest class of the test images. A difference
    between two such arms says little. If every arm is better than the constant prediction, there is
    no sentence.
    """
    measure, axis = verdict.measure, verdict.rule.axis or "run"
    if measure is None:
        return
    # The accuracy is the same for all runs, because their test images are the same. The mean is
    # this accuracy. If the accuracy was not measured, the mean is NaN and no arm is named
    constant_accuracy = _accuracies_of_commonest_class(results, verdict, measure).mean()
    means = verdict.rows.groupby(axis, sort=False)["value"].mean()
    names = [str(name) for name, mean in means.items() if mean <= constant_accuracy]
    if names:
        yield (
            f"On average, {measure.label} of {list_names(names)} is not higher than the"
            f" {constant_accuracy:.1%} of always naming the commonest class."
        )


def _limits(results: Results, verdict: Verdict) -> Iterator[str]:
    """Yield sentences about results that the report leaves out, and about limits of its claims."""
    rows = verdict.rows
    yield from list_limits(rows, verdict.rule)
    yield from _list_left_out(results)
    yield from _describe_copies(results, verdict)
    yield from _list_revisions(results)
    if (rows["n"] < FEW_IMAGES).any():
        count = format_image_count(int(rows["n"].min()))
        yield (
            f"An accuracy on {count} is uncertain by 10 points or more, even if all seeds agree."
        )
    yield from _find_useless_arms(results, verdict)
    yield from _list_limits_of_options(results, verdict)


def _list_left_out(results: Results) -> Iterator[str]:
    """Yield sentences about runs and values in the study's folder that the report leaves out."""
    # a run is foreign if its options differ from the options in the study's plan
    for name, reason in results.foreign.items():
        yield f"{name} is left out: {reason}."
    finished = {path.parent.name for path in results.folder.glob("*/result.json")}
    left_out = list_names(sorted(finished - {task.name for task in results.plan.tasks}))
    if left_out:
        yield f"Finished runs that no longer belong to the study are left out: {left_out}."
    is_finite = np.isfinite(results.table["value"])
    diverged = list_names([*results.table[~is_finite]["folder"].unique()])
    if diverged:
        yield f"Values of {diverged} that are not finite are left out."


def _list_revisions(results: Results) -> Iterator[str]:
    """Yield a sentence if the finished tasks ran with different revisions of the code.

    A revision is a git commit, with a final + if files were changed and not committed.
    """
    revisions = [run.environment.revision or "unknown" for run in results.finished.values()]
    # A commit has 40 characters. Show the first 8, and the "+" that may follow the 40
    counts = Counter(revision[:8] + revision[40:] for revision in revisions)
    if len(counts) > 1:
        listed = list_names(
            [f"{revision} ({format_count(count, 'tasks')})" for revision, count in counts.items()]
        )
        changed = " A final + marks uncommitted changes." if "+" in listed else ""
        yield f"The tasks ran with different revisions of the code: {listed}.{changed}"


def _list_limits_of_options(results: Results, verdict: Verdict) -> Iterator[str]:
    """Yield sentences about limits that follow from how the study sets options.

    The limits are about:
    - hyperparameters that were chosen among tries (a try is a run that tests one setting),
    - encoders that all seeds share,
    - a draw of images that all seeds share (`data.share` is the share of the images that is used).
    """
    tasks = results.plan.tasks
    # The column "origin" names the runs that the weights come from, separated by spaces
    names_of_used = {*verdict.rows["folder"], *" ".join(verdict.rows["origin"]).split()}
    used_tasks = [task for task in tasks if task.name in names_of_used]
    choices = [task.best for task in used_tasks if task.best]  # (names of tries, deciding measure)
    names_of_tries = {name for tries, _ in choices for name in tries}
    yield from (f"{warning}." for warning in warn_about_other_tries(results.plan.by_name))
    yield from _warn_about_few_choosing_images(results, names_of_tries)
    yield from _describe_shared_encoders(used_tasks)
    compared_tasks = [task for task in tasks if task.run == verdict.rule.test]
    choosing_seeds = {task.seed for task in tasks if task.name in names_of_tries}
    shared_seeds = choosing_seeds & {task.seed for task in compared_tasks}
    if shared_seeds:
        seeds = list_names([*map(str, sorted(shared_seeds))])
        yield f"Values were chosen with seeds that are also compared: {seeds}."
    options = [task.options for task in compared_tasks]
    # without `data.share_seed`, every seed uses the same draw of images
    if any("data.share" in values and "data.share_seed" not in values for values in options):
        yield "All seeds use one draw of labelled images. The intervals do not cover other draws."


def _describe_copies(results: Results, verdict: Verdict) -> Iterator[str]:
    """Yield a sentence for each set of test images with copies of an image."""
    sentences = set()
    for task in verdict.rows["folder"]:
        metrics = results.finished[task].result.metrics
        measured = metrics.get(verdict.measure.name) if verdict.measure else None
        if measured and measured.copies:
            sentences.add(
                f"Measured on {measured.n:,} images{copies_text(measured.copies)}. Intervals over"
                " images resample the distinct images."
            )
    yield from sorted(sentences)


def _describe_shared_encoders(tasks: Sequence[Task]) -> Iterator[str]:
    """Yield a sentence for each encoder that was not trained in the study.

    For example, all seeds share the encoder of `init=timm:NAME`. An encoder that a task of the
    study has trained, as in `init={pretrain}`, gets no sentence.
    """
    keys_and_paths: set[tuple[str, str]] = set()  # (key, path of the weights)
    for task in tasks:
        # {key: source of weights}, such as `init` and its encoder
        by_key = sources({"init": SCRATCH} | task.options)
        keys_and_paths |= {(key, source.place) for key, source in by_key.items()}
    for key, path in sorted(keys_and_paths):
        if path != SCRATCH and not REFERENCE.search(path):
            yield (
                f"{key}={Path(path).name} is the same encoder for all seeds. The results describe"
                " this encoder and not a method of pre-training."
            )


def _warn_about_few_choosing_images(
    results: Results, names_of_tries: Collection[str]
) -> Iterator[str]:
    """Yield a sentence for each run that used few held-out images to choose something.

    Two kinds of runs are used to choose something on held-out images. An evaluation may choose the
    hyperparameters of its probes, such as their regularisation. A try tests one setting of
    hyperparameters on held-out images, and a later run uses the best setting.

    Args:
        results: Results of the study.
        names_of_tries: Names of the runs that are tries.
    """
    sentences: dict[str, None] = {}  # each sentence once and in order
    for name, run in results.finished.items():
        task = results.plan.by_name[name]
        probes = task.values.get("probe.measures", ()) if task.tool == "evaluate" else ()
        choices = held_out_choices(probes)
        if name in names_of_tries:
            choices.append("the best tried values")
        if not choices:
            continue
        counts = run.result.measured_on or run.environment.measured_on or {}
        held_out = {split: count for split, count in counts.items() if split != "test"}
        cautions = few_images(held_out, choices)
        sentences |= {f"{task.run}: {caution}.": None for caution in cautions}
    yield from sentences


def latex(report: Report, with_all_tables: bool) -> str:
    """Return the means, or all tables of the report, as LaTeX (booktabs).

    Comments above each table give the report's conclusions and limits, so that people who copy a
    table also copy the comments.
    """
    begin = "\\begin{table}\n"
    tables = []
    shown_tables = report.tables if with_all_tables else {}
    if report.verdict.measure is not None and len(report.verdict.rows):
        means = means_with_intervals(report.results, report.verdict, report.verdict.measure)
        shown_tables = {"means": means, **shown_tables}
    notes = ["This table needs \\usepackage{booktabs}"]
    notes += [_without_paths(report, sentence) for sentence in report.sentences]
    training_on_test = _describe_training_on_test(report.results, report.verdict)
    notes += [sentence for sentence, _ in training_on_test]
    notes += _limits(report.results, report.verdict)
    notes += report.results.plan.report.get("notes", ())
    comments = "".join(f"% {text_line(note)}\n" for note in notes)
    for name, report_table in shown_tables.items():
        frame = as_text(report_table)
        title = report.title if name == "means" else f"{report.title} ({name})"
        caption = text_line(f"{title}. {report_table.caption}").translate(LATEX)
        label = f"tab:{report.folder.resolve().name}-{name}".translate(LABEL)
        num_labels = _count_label_columns(report_table, frame)  # aligned left, numbers right
        columns = "l" * num_labels + "r" * (len(frame.columns) - num_labels)
        settings = {"caption": caption, "label": label, "column_format": columns}
        table = frame.to_latex(index=False, escape=True, **settings)
        tables.append(comments + table.replace(begin, f"{begin}\\centering\n", 1))
    return "\n".join(tables).replace("±", r"$\pm$")


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table, each as `{column: value}`, with None for missing values."""
    return list(frame.astype(object).where(frame.notna(), None).to_dict("records"))
