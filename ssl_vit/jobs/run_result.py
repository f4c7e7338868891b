"""Represent the result of a finished run, as text, as JSON and as a page in a notebook.

No torch.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..formatting import copies_text, count_of_images, duration, format_held_out
from ..metrics import PROBED, format_metrics, own_rows
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
        with own_rows(read_run(self.folder).environment.own_rows):
            yield from list(self._lines())

    def _lines(self) -> Iterator[str]:
        recipe = recipe_files.read(self.folder / "recipe.yaml")
        page = self.folder / "report.html"
        began = f"(step {self.trunk.step:,} by run {self.trunk.run}) " if self.trunk else ""
        took = f"{began}in {duration(self.seconds)}, {self.finished}: "
        took += str(page if page.exists() else self.folder)
        yield f"finished    {f'{self.steps:,} steps ' if self.steps else ''}{took}{self._chosen()}"
        if self.steps:
            yield from self._of_training()
        readings = metric_tables.readings(self.metrics, self.measured_on)
        for reading in readings:  # `_of_training` has printed the other metrics of a training run
            if not self.steps or reading.name.startswith(PROBED):
                yield f"{reading.row.words:<11} {metric_tables.beside_text(reading)}"
        if recipe.fine_tunes:
            said, command = scratch.beside(self.folder, recipe, self), self._worth(recipe)
            yield f"scratch     {said}{'. To measure this, type ' if command else ''}{command}"
        if self.not_compared:
            command = next_steps.evaluation(self.folder, self.folder.parent, recipe, self._labelled)
            text = "not compared with fresh weights. To compare on images with labels, type"
            yield f"features    {text} {command}"
        yield from self._seen()
        if recipe.fine_tunes and (said := metric_tables.classifier_verdict(readings)):
            yield f"verdict     {said}"
        if not recipe.fine_tunes:
            yield from self._verdict(recipe, metric_tables.verdict(readings))

    @property
    def _labelled(self) -> bool:
        return next_steps.has_labels(self.not_compared)

    def _chosen(self) -> str:
        """Describe which step checkpoint.best has chosen. Empty without a choice."""
        best = self.best
        if best is None or best.step is None:
            return ""
        value = f"{best.metric} {best.value:.4g} on {format_held_out(self.measured_on)}"
        return f" (weights of step {best.step:,}, the best by {value})"

    def _of_training(self) -> Iterator[str]:
        """Yield a line for each split, with the run's metrics next to the best baselines.

        Metrics of probes are left out.
        """
        splits: dict[str, dict[str, float]] = {}
        for name, entry in self.metrics.items():
            splits.setdefault(entry.split, {})[name] = entry.value
        counts: dict[str, tuple[int, str]] = {}  # readable images of each split
        for reading in metric_tables.readings(self.metrics, self.measured_on):
            count = reading.images, copies_text(self.metrics[reading.name].copies)
            counts[reading.split] = max(count, counts.get(reading.split, (0, "")))
        for split, values in splits.items():
            name = "held out" if split == "validation" else split
            images, distinct = counts.get(split, (0, ""))
            of = f" (n = {count_of_images(images)}{distinct})" if images else ""
            if split == "test":
                of += self._test_interval()
            task_metrics = {
                each: value
                for each, value in values.items()
                if not each.startswith(PROBED) and not metric_tables.probe_place(each)
            }
            yield f"{name:<11} {format_metrics(task_metrics, task_metrics)}{of}"

    def _test_interval(self) -> str:
        """Describe the interval of the first test metric with an interval, such as top-1."""
        for reading in metric_tables.readings(self.metrics, self.measured_on):
            if reading.split == "test" and (reach := reading.interval):
                return f", 95% interval of {reading.name} {reach.low:.1%} to {reach.high:.1%}"
        return ""

    def _seen(self) -> Iterator[str]:
        for seen_images in self.seen or ():
            if caution := seen_text.cautions([seen_images]):
                yield f"caution     {caution[0]}"
            elif any(seen_images.images.values()) or seen_images.unknown:
                yield f"seen        {seen_text.sentence(seen_images)}"

    def _verdict(self, recipe: Recipe, said: str) -> Iterator[str]:
        """Yield the line that says what the measurements say about the features.

        The line ends with what was not measured, and the command to measure it.
        """
        if said:
            why = self.not_compared
            unknown = f"The features were not compared: {why}. " if why else ""
            said = f"verdict     {unknown}{said} "
        learned = recipe.trains and all(part.labels for part in recipe.declared.trained(recipe))
        if not learned and (recipe.trains or not recipe.init_source.is_scratch):
            init = self.folder if recipe.trains else recipe.init
            worth = self._worth(recipe)
            how = f"To compare, type {worth}"
            if not worth:
                how = f"To only fine-tune, type {next_steps.fine_tuning(init, recipe)}"
            said = f"{said}Fine-tuning was not compared with training from scratch. {how}"
        if said:
            yield said.rstrip()

    def _worth(self, recipe: Recipe) -> str:
        """Return the command that measures whether this pre-training helps fine-tuning.

        Empty if no such command exists, for example if the encoder was made elsewhere.
        """
        made = scratch.made_by(recipe)
        return next_steps.worth(made, recipe if self._labelled else None) if made else ""

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
