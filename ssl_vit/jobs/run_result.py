"""Represent the result of a finished run, as text, as JSON and as a page in a notebook.

No torch.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..formatting import format_count, format_duration, format_held_out
from ..measurements import use_plugin_rows
from ..pages import metric_tables, run_page, run_verdict, scratch
from ..pages.blocks import Table
from ..pages.run_record import read_run
from ..recipe import recipe_files
from ..recipe.records.run import Result
from ..recipe.schema import Recipe
from ..runs import next_steps, notebook, seen_text
from ..runs.folder import Run
from ..runs.shared import is_task


class RunResult(Result):
    """Result of a finished run: the folder and the content of result.json.

    A notebook displays the page of the run. Where a path is expected, as in init=, the result
    stands for the folder.

    Attributes:
        folder: The run's folder.
        measurements: List of `Measurement` records, as in result.json.
        metrics: {name: Measurement}, with the number in `value`, the split of the images in `split`
            (test, train, or validation for held-out images) and the number of images, patches or
            labels in `n`. An evaluation has names such as `knn` and, for untrained weights,
            `fresh_knn`. A training run has `loss` and, for probes, names such as `probe_knn` and
            `fresh_probe_knn`.
        steps: Steps of the optimiser, 0 for an evaluation.
        images: The number of forward passes of images. An image counts each time.
        seconds: Duration of the run.
        exaflop: The work, None if the work was not counted. `total_exaflop` includes the runs that
            made the initial weights.
        device_hours: Seconds times processes, in hours. `total_device_hours` includes the runs that
            made the initial weights.
        measured_on: {split: number of measured images}.
        best: The evaluation that chose the weights (checkpoint.best), else None.
        pool: For an evaluation, how features were pooled.
        classes: For the probes of an evaluation, the number of classes to choose from.
        trunk: For resume=RUN@STEP, the run and the step. The totals include the steps of RUN up to
            STEP.
        not_compared: For a training run, why features were not compared with untrained weights.
        seen: Which of the measured images the run, and the runs that made the initial weights, have
            trained on.
        finished: Time of the end, as ISO 8601 in UTC.
        recipe: The recipe's hash.
    """

    folder: Path

    def content(self) -> dict[str, Any]:
        """Return result.json and the folder as a dictionary, for --json."""
        return super().content() | {"folder": str(self.folder)}

    def lines(self) -> Iterator[str]:
        """Yield the lines that the command line prints.

        The lines give the folder, the duration, tables of the measurements and the baselines, at
        most one sentence about the result, and the next step.
        """
        # Use the labels, units and better directions that the run's plugin declares for its metrics
        with use_plugin_rows(read_run(self.folder).environment.plugin_rows):
            # Make all lines before the first is yielded. Between two lines, the caller may already
            # use the rows of another plugin
            yield from list(self._lines())

    def _lines(self) -> Iterator[str]:
        """Yield the lines of `lines`. The rows of the run's plugin must be in use."""
        recipe = recipe_files.read(self.folder / "recipe.yaml")
        in_study = is_task(self.folder)
        readings = metric_tables.read_metrics(self.measurements, self.measured_on)
        yield self._finished_line()
        for title, table in metric_tables.tables(readings):
            yield from metric_tables.text_lines(title, table)
        scratch_table = None  # comparison with a run from scratch
        if recipe.fine_tunes:
            scratch_table = scratch.scratch_table(self.folder, recipe, self)
            yield from self._scratch_lines(scratch_table, recipe)
        yield from self._seen_lines()
        yield from self._copies_lines()
        verdict = run_verdict.verdict(readings, recipe.fine_tunes, self.not_compared, in_study)
        if verdict:
            yield f"verdict     {verdict}"
        if not in_study:  # a run of a study needs no next step, because the study goes on by itself
            next_step = next_steps.main_step(
                self.folder, recipe, self.not_compared, has_scratch=scratch_table is not None
            )
            if next_step:
                yield f"next        To {next_step.what}: {next_step.command}"

    def _finished_line(self) -> str:
        """Return a line with the number of steps, the duration, and the path of the page.

        If the run continues another run (resume=RUN@STEP), the line says how many of the steps that
        run has made. Without a page, the line ends with the folder.
        """
        page = self.folder / "report.html"
        place = page if page.exists() else self.folder
        parts = []
        if self.steps:
            parts.append(format_count(self.steps, "steps"))
        if self.trunk:
            parts.append(f"(the first {self.trunk.step:,} by run {self.trunk.run})")
        parts.append(f"in {format_duration(self.seconds)}, {self.finished}: {place}")
        return f"finished    {' '.join(parts)}{self._describe_best_step()}"

    def _scratch_lines(self, scratch_table: Table | None, recipe: Recipe) -> Iterator[str]:
        """Yield the comparison of a fine-tuned run with training from scratch.

        Args:
            scratch_table: Table of the comparison. None if there is no run from scratch that is
                comparable. A line then names a run from scratch that only pools its tokens in
                another way, if there is such a run.
            recipe: Recipe of this run.
        """
        if scratch_table:
            yield from metric_tables.text_lines("scratch", scratch_table)
            return
        hint = scratch.describe_other_pooling(self.folder, recipe)
        if hint:
            yield f"scratch     {hint}"

    def _describe_best_step(self) -> str:
        """Describe the step whose weights checkpoint.best has chosen, in parentheses.

        The text is empty if the run did not choose among steps.
        """
        best = self.best
        if best is None or best.step is None:
            return ""
        return (
            f" (weights of step {best.step:,}, the best by {best.metric} {best.value:.4g} on "
            f"{format_held_out(self.measured_on)})"
        )

    def _seen_lines(self) -> Iterator[str]:
        """Yield a line for each run that was trained on measured images, or may have been.

        These are this run and the runs that made the initial weights. The line is a caution if the
        run has learned the labels of test images, because the accuracy on these images does not
        hold for unseen images.
        """
        for seen_images in self.seen or ():
            cautions = seen_text.cautions([seen_images])  # for one run, one caution or none
            if cautions:
                yield f"caution     {cautions[0]}"
            elif any(seen_images.images.values()) or seen_images.unknown:
                yield f"seen        {seen_text.describe_seen(seen_images)}"

    def _copies_lines(self) -> Iterator[str]:
        """Yield how many test images are copies of training images, and results without these."""
        copies = self.training_copies
        if copies:
            yield f"copies      {seen_text.describe_copies(copies)}"
            if copies.images:
                yield f"            {self.folder / seen_text.COPIES_PAGE}"
            for table in metric_tables.tables_without_copies(copies):
                yield from metric_tables.text_lines("", table)

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    __str__ = __repr__

    def __fspath__(self) -> str:
        return str(self.folder)

    def _repr_html_(self) -> str:
        return notebook.inline_page(run_page.render(read_run(self.folder)))


def run_result(run: Run, result: Result) -> RunResult:
    """Return a run's result together with the folder."""
    return RunResult(folder=run.folder, **result.content())
