"""What a finished run gives its caller: its numbers as text and JSON and, in a notebook, its page.
No torch here."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..formatting import count_of, count_of_images, duration, format_held_out
from ..metrics import find_metric, format_baselines, format_metrics
from ..pages import metric_tables, run_page
from ..pages.run_record import read_run
from ..recipe.records.run import Result
from ..runs import notebook, seen_text
from ..runs.folder import Run


class RunResult(Result):
    """A finished run: its folder, and what result.json says of it. In a notebook it shows the run's
    page.

    Attributes:
        folder: the run's folder.
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
        seen: which of the images that it was measured on it, and its initial weights, had seen.
        finished: when, as ISO 8601 in UTC.
        recipe: the recipe's hash.
    """

    folder: Path

    def content(self) -> dict[str, Any]:
        """A dictionary, as --json prints it: result.json and the folder."""
        return super().content() | {"folder": str(self.folder)}

    def lines(self) -> Iterator[str]:
        """What the command line prints of it."""
        if self.steps:
            yield from self._of_training()
        else:
            yield f"finished    in {duration(self.seconds)}, {self.finished}: {self.folder}"
            yield from self._of_evaluation()
        for one in self.seen or ():
            if caution := seen_text.cautions([one]):
                yield f"caution     {caution[0]}"
            elif "test" in (self.measured_on or {}) or any(one.images.values()):
                yield f"seen        {seen_text.sentence(one)}"

    def _of_evaluation(self) -> Iterator[str]:
        for name, entry in self.metrics.items():
            of = "of" if find_metric(name).independent else "on"
            text = f"{entry.value:.1%} {of} {count_of(entry.n or 0, f'{entry.split} images')}"
            if found := metric_tables.interval(name, entry, self.measured_on):
                text += f" (95% interval {found.low:.1%} to {found.high:.1%})"
            yield f"{name:<11} {text}"
        if self.classes:
            yield f"to beat     {1 / self.classes:.1%} (guessing, {self.classes:,} classes)"

    def _of_training(self) -> Iterator[str]:
        yield (
            f"finished    {self.steps:,} steps in {duration(self.seconds)}, "
            f"{self.finished}: {self.folder}"
        )
        if (best := self.best) and best.step is not None:
            value = f"{best.metric} {best.value:.4g} on {format_held_out(self.measured_on)}"
            yield f"best        step {best.step:,}, tested and exported: {value}"
        splits: dict[str, dict[str, float]] = {}
        for name, entry in self.metrics.items():
            splits.setdefault(entry.split, {})[name] = entry.value
        measured_on = self.measured_on or {}
        for split, values in splits.items():
            name = "held out" if split == "validation" else split
            of = f" (n = {count_of_images(measured_on[split])})" if split in measured_on else ""
            if split == "test":
                of += self._test_interval()
            yield f"{name:<11} {format_metrics(values)}{of}"
            if beat := format_baselines(values):
                yield f"to beat     {beat}"
        if fought := [*metric_tables.comparisons(self.metrics, self.measured_on)]:
            yield f"verdict     {metric_tables.verdict(fought)}"

    def _test_interval(self) -> str:
        """Of the first metric of test images that has one, as that of a classifier's top-1."""
        for name, entry in self.metrics.items():
            found = metric_tables.interval(name, entry, self.measured_on)
            if entry.split == "test" and found:
                return f", 95% interval of {name} {found.low:.1%} to {found.high:.1%}"
        return ""

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return notebook.inline_page(run_page.render(read_run(self.folder)))


def run_result(run: Run, result: Result) -> RunResult:
    """A run's result with its folder."""
    return RunResult(folder=run.folder, **result.content())
