"""Represent the result of a finished run, as text, as JSON and as a page in a notebook.

No torch.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..formatting import (
    copies_text,
    format_count,
    format_duration,
    format_held_out,
    format_image_count,
)
from ..metrics import PROBED, format_metrics, use_plugin_rows
from ..pages import metric_tables, run_page
from ..pages.run_record import read_run
from ..recipe import recipe_files
from ..recipe.records.run import Result
from ..recipe.schema import Recipe
from ..runs import next_steps, notebook, seen_text
from ..runs.folder import Run
from . import scratch


class RunResult(Result):
    """Result of a finished run: the folder and the content of result.json.

    A notebook displays the page of the run. Where a path is expected, as in init=, the result
    stands for the folder.

    Attributes:
        folder: The run's folder.
        metrics: {name: Measured}, with the number in `value`, the split of the images in `split`
            (test, train, or validation for held-out images) and the number of images, patches or
            labels in `n`.
        steps: Steps of the optimiser, 0 for an evaluation.
        images: The number of forward passes of images. An image counts each time.
        seconds: Duration of the run.
        exaflop: The work, None if the work was not counted. `total_exaflop` includes the runs that
            made the initial weights.
        device_hours: Seconds times processes, in hours. `total_device_hours` includes the runs that
            made the initial weights.
        measured_on: {split: images}.
        best: The evaluation that chose the weights (checkpoint.best), else None.
        pool: For an evaluation, how features were pooled.
        classes: For the probes of an evaluation, the number of classes to choose from.
        trunk: For resume=RUN@STEP, the run and the step. The totals include the steps up to there.
        not_compared: For a training run, why features were not compared with fresh weights.
        seen: Which of the measured images the run, and the runs that made the initial weights, have
            trained on.
        finished: Time of the end, as ISO 8601 in UTC.
        recipe: The recipe's hash.
    """

    folder: Path

    def content(self) -> dict[str, Any]:
        """Return result.json and the folder as a dictionary, as --json prints them."""
        return super().content() | {"folder": str(self.folder)}

    def lines(self) -> Iterator[str]:
        """Yield the lines that the command line prints.

        The lines give the folder, the duration, the measurements next to the baselines, and what
        these measurements say and do not say.
        """
        with use_plugin_rows(read_run(self.folder).environment.plugin_rows):
            yield from list(self._lines())

    def _lines(self) -> Iterator[str]:
        recipe = recipe_files.read(self.folder / "recipe.yaml")
        page = self.folder / "report.html"
        place = page if page.exists() else self.folder
        parts = []
        if self.steps:
            parts.append(format_count(self.steps, "steps"))
        if self.trunk:
            parts.append(f"(step {self.trunk.step:,} by run {self.trunk.run})")
        parts.append(f"in {format_duration(self.seconds)}, {self.finished}: {place}")
        yield f"finished    {' '.join(parts)}{self._describe_best_step()}"
        if self.steps:
            yield from self._training_lines()
        readings = metric_tables.read_metrics(self.metrics, self.measured_on)
        for reading in readings:
            # `_training_lines` has printed the other metrics of a training run
            if not self.steps or reading.name.startswith(PROBED):
                yield f"{reading.row.words:<11} {metric_tables.comparison_text(reading)}"
        if recipe.fine_tunes:
            comparison = scratch.compare_with_scratch(self.folder, recipe, self)
            command = self._comparison_command(recipe)
            if command:
                comparison = f"{comparison}. To measure this, type {command}"
            yield f"scratch     {comparison}"
        if self.not_compared:
            command = next_steps.evaluation(self.folder, self.folder.parent, recipe, self._labelled)
            yield (
                "features    not compared with fresh weights. "
                f"To compare on images with labels, type {command}"
            )
        yield from self._seen_lines()
        if recipe.fine_tunes:
            verdict = metric_tables.classifier_verdict(readings)
            if verdict:
                yield f"verdict     {verdict}"
        else:
            yield from self._verdict_lines(recipe, metric_tables.verdict(readings))

    @property
    def _labelled(self) -> bool:
        return next_steps.has_labels(self.not_compared)

    def _describe_best_step(self) -> str:
        """Return a note in parentheses about the step that checkpoint.best has chosen, or ""."""
        best = self.best
        if best is None or best.step is None:
            return ""
        return (
            f" (weights of step {best.step:,}, the best by {best.metric} {best.value:.4g} on "
            f"{format_held_out(self.measured_on)})"
        )

    def _training_lines(self) -> Iterator[str]:
        """Yield a line for each split, with the objective's metrics next to the best baselines.

        Metrics of probes are left out.
        """
        values_by_split: dict[str, dict[str, float]] = {}
        for name, entry in self.metrics.items():
            values = values_by_split.setdefault(entry.split, {})
            if not name.startswith(PROBED) and not metric_tables.probe_prefix(name):
                values[name] = entry.value
        # {split: (readable images, text about copies)}, from the metric with the most images
        images_by_split: dict[str, tuple[int, str]] = {}
        for reading in metric_tables.read_metrics(self.metrics, self.measured_on):
            images = reading.images, copies_text(self.metrics[reading.name].copies)
            most = images_by_split.get(reading.split, (0, ""))
            images_by_split[reading.split] = max(images, most)
        for split, values in values_by_split.items():
            title = "held out" if split == "validation" else split
            number, copies = images_by_split.get(split, (0, ""))
            n = f" (n = {format_image_count(number)}{copies})" if number else ""
            interval = self._test_interval() if split == "test" else ""
            yield f"{title:<11} {format_metrics(values, values)}{n}{interval}"

    def _test_interval(self) -> str:
        """Return ", 95% interval of top1 70.1% to 75.3%" for the first test metric that has one."""
        for reading in metric_tables.read_metrics(self.metrics, self.measured_on):
            if reading.split == "test" and reading.interval:
                low, high = reading.interval
                return f", 95% interval of {reading.name} {low:.1%} to {high:.1%}"
        return ""

    def _seen_lines(self) -> Iterator[str]:
        """Yield a line for each run that has trained on measured images, or may have."""
        for seen_images in self.seen or ():
            cautions = seen_text.cautions([seen_images])
            if cautions:
                yield f"caution     {cautions[0]}"
            elif any(seen_images.images.values()) or seen_images.unknown:
                yield f"seen        {seen_text.sentence(seen_images)}"

    def _verdict_lines(self, recipe: Recipe, verdict: str) -> Iterator[str]:
        """Yield a line with what was measured about the features, and what was not.

        Args:
            recipe: Recipe of the run or evaluation.
            verdict: What the measurements say. Empty: nothing.
        """
        sentences = []
        if verdict and self.not_compared:
            sentences.append(f"The features were not compared: {self.not_compared}.")
        if verdict:
            sentences.append(verdict)
        parts = recipe.declared.trained(recipe)
        has_learned_labels = recipe.trains and all(part.labels for part in parts)
        has_pre_training = recipe.trains or not recipe.init_source.is_scratch
        if has_pre_training and not has_learned_labels:
            sentences.append("Fine-tuning was not compared with training from scratch.")
            command = self._comparison_command(recipe)
            if command:
                sentences.append(f"To compare, type {command}")
            else:
                init = self.folder if recipe.trains else recipe.init
                command = next_steps.fine_tuning(init, recipe)
                sentences.append(f"To only fine-tune, type {command}")
        if verdict:
            yield f"verdict     {' '.join(sentences)}"
        elif sentences:
            yield " ".join(sentences)

    def _comparison_command(self, recipe: Recipe) -> str:
        """Return the command that measures whether this pre-training helps fine-tuning.

        Empty if no such command exists, for example if the encoder was made elsewhere.
        """
        pre_training = scratch.find_pretraining(recipe)
        if not pre_training:
            return ""
        return next_steps.worth_command(pre_training, recipe if self._labelled else None)

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
