"""What a finished run gives its caller: its numbers as text and JSON and, in a notebook, its page.
No torch here."""

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
    """A finished run: its folder, and what result.json says of it. In a notebook it shows the run's
    page.

    Attributes:
        folder: the run's folder, for which the result stands where a path is expected, as in init=.
        metrics: {name: Measured}, of which `value` is the number, `split` which images it is of
            (test, validation: held out, train) and `n` how many images, patches or labels.
        steps: of the optimiser; 0 of an evaluation.
        images: images that were forwarded, each as often as it was.
        seconds: how long it took.
        exaflop: the work, None where it was not counted; `total_exaflop` with that of the runs that
            its initial weights come from.
        device_hours: seconds times processes, in hours; `total_device_hours` likewise.
        measured_on: {split: images}.
        best: the evaluation whose weights were chosen (checkpoint.best), else None.
        pool: of an evaluation: what an image's feature was.
        classes: of an evaluation's probes: among how many classes they choose.
        trunk: of resume=RUN@STEP: that run and the step; what it took up to there is in the totals.
        not_compared: of a training run: why its features were not compared with fresh weights.
        seen: which of the images that it was measured on it, and its initial weights, had seen.
        finished: when, as ISO 8601 in UTC.
        recipe: the recipe's hash.
    """

    folder: Path

    def content(self) -> dict[str, Any]:
        """A dictionary, as --json prints it: result.json and the folder."""
        return super().content() | {"folder": str(self.folder)}

    def lines(self) -> Iterator[str]:
        """What the command line prints of it: where, how long, what was measured, beside what it is
        compared with, what that says, and what it does not."""
        with own_rows(read_run(self.folder).environment.own_rows):
            yield from list(self._lines())

    def _lines(self) -> Iterator[str]:
        recipe = recipe_files.read(self.folder / "recipe.yaml")
        page = self.folder / "report.html"
        began = f"from step {self.trunk.step:,} of {self.trunk.run} on, " if self.trunk else ""
        took = f"{began}in {duration(self.seconds)}, {self.finished}: "
        took += str(page if page.exists() else self.folder)
        yield f"finished    {f'{self.steps:,} steps ' if self.steps else ''}{took}{self._chosen()}"
        if self.steps:
            yield from self._of_training()
        readings = metric_tables.readings(self.metrics, self.measured_on)
        for reading in readings:  # of a training run those of probes
            if not self.steps or reading.name.startswith(PROBED):
                yield f"{reading.row.words:<11} {metric_tables.beside_text(reading)}"
        if recipe.fine_tunes:
            said, command = scratch.beside(self.folder, recipe, self), self._worth(recipe)
            yield f"scratch     {said}{'; ' if command else ''}{command}"
        if self.not_compared:
            command = next_steps.evaluation(self.folder, self.folder.parent, recipe, self._labelled)
            yield f"features    not compared with fresh weights; on images with labels: {command}"
        yield from self._seen()
        if recipe.fine_tunes and (said := metric_tables.classifier_verdict(readings)):
            yield f"verdict     {said}"
        if not recipe.fine_tunes:
            yield from self._verdict(recipe, metric_tables.verdict(readings))

    @property
    def _labelled(self) -> bool:
        return next_steps.has_labels(self.not_compared)

    def _chosen(self) -> str:
        """Of which step the weights are, where checkpoint.best has chosen it."""
        best = self.best
        if best is None or best.step is None:
            return ""
        value = f"{best.metric} {best.value:.4g} on {format_held_out(self.measured_on)}"
        return f" (weights of step {best.step:,}, the best by {value})"

    def _of_training(self) -> Iterator[str]:
        """A line for each split, of the run's own metrics beside the best of their baselines."""
        splits: dict[str, dict[str, float]] = {}
        for name, entry in self.metrics.items():
            splits.setdefault(entry.split, {})[name] = entry.value
        counts: dict[str, tuple[int, str]] = {}  # without images that could not be read
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
        """Of the first metric of test images that has one, as that of a classifier's top-1."""
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
        """What the figures above say of the features; what they do not, and the command that does,
        in the same line."""
        if said:
            unknown = f"features not compared: {self.not_compared}. " if self.not_compared else ""
            said = f"verdict     {unknown}{said} "
        learned = recipe.trains and all(part.labels for part in recipe.declared.trained(recipe))
        if not learned and (recipe.trains or not recipe.init_source.is_scratch):
            init = self.folder if recipe.trains else recipe.init
            worth = self._worth(recipe)
            how = f"compares: {worth}"
            if not worth:
                how = f"only fine-tunes: {next_steps.fine_tuning(init, recipe)}"
            said = f"{said}fine-tuning not compared with training from scratch; this {how}"
        if said:
            yield said.rstrip()

    def _worth(self, recipe: Recipe) -> str:
        """The command that says whether this pre-training helps fine-tuning; empty where none
        does, as of an encoder that was made elsewhere."""
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
    """A run's result with its folder."""
    return RunResult(folder=run.folder, **result.content())
