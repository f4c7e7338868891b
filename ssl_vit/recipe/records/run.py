"""Records for the JSON files of a run's folder."""

from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, Field, TypeAdapter, model_validator

from ...measurements import Baseline, Metric, Row
from .. import declaration
from . import MayLack, Number, Record, Whole

if TYPE_CHECKING:
    from ...stats import Interval


class WithRecipe(Record):
    """File of a run with the hash of the recipe."""

    recipe: MayLack[str] = None


class Difference(Record):
    """Mean of paired differences over the same images, with a 95% interval."""

    mean: Number
    low: Number
    high: Number


class Copies(Record):
    """Number of repeated images in a split, compared by content and not by file name.

    Attributes:
        distinct: Number of different contents.
        effective: Number of independent images that all images count as (`stats.effective_number`).
        relabelled: Number of contents that have several labels.
    """

    distinct: Whole
    effective: Number
    relabelled: Whole = 0


class Draws(Record):
    """Number of draws of few-shot images that an accuracy averages, with a 95% interval over the
    draws and the test images.
    """

    count: Whole
    low: Number
    high: Number


class Measured(Record):
    """Metric of result.json with the number of images or patches measured.

    A baseline on the same images also has the paired difference: the model's metric minus the
    baseline's. `copies` is None if all of these images are distinct.
    """

    value: float  # NaN or infinite in a bad run
    split: str
    n: Whole | None = None
    difference: MayLack[Difference] = None
    copies: MayLack[Copies] = None
    draws: MayLack[Draws] = None  # only for few-shot

    def with_copies(self, copies: Copies | None) -> "Measured":
        """Return the metric with the known copies, or the metric itself if there are none."""
        return self.model_copy(update={"copies": copies}) if copies else self

    def interval(self, images: int) -> "Interval":
        """Return the 95% interval of this metric, which must be a share such as an accuracy.

        The interval says how far the accuracy may change with other test images. For a few-shot
        accuracy, it also covers other random draws of the few training images. This interval was
        computed when the accuracy was measured, and is read from the record (`draws`).

        Args:
            images: Number of independent test images.
        """
        from ...stats import (  # imports numpy, which would slow down `--help`
            Interval,
            wilson_interval,
        )

        if self.draws:
            return Interval(self.draws.low, self.draws.high)
        # if some images are copies of others, they count as fewer independent images
        effective = self.copies.effective if self.copies else images
        return wilson_interval(self.value, min(images, effective))


class Best(Record):
    """Evaluation that checkpoint.best chose, with nulls if no evaluation was finite."""

    metric: str
    step: Whole | None
    value: Number | None


def _is_whole(best: Best) -> Best:
    if (best.step is None) != (best.value is None):
        raise ValueError("expected a step and a value, or null for both")
    return best


class SeenImages(Record):
    """Measured images that this run, or a run that the initial weights come from, was trained on.

    Attributes:
        run: Name of the folder of the run that was trained on the images.
        of: {split: number of measured images} for test and validation.
        images: {split: number of these images that the run was trained on}.
        labels: {split: number of these images whose label the run has learned}.
        unknown: Why the numbers are unknown or incomplete, in which case there may be more such
            images; empty if they are complete.
    """

    run: str
    of: dict[str, Whole] = {}
    images: dict[str, Whole] = {}
    labels: dict[str, Whole] = {}
    unknown: str = ""


class Trunk(Record):
    """Run that this run continues, and the step at which this run begins (resume=RUN@STEP)."""

    run: str
    step: Whole


class Result(WithRecipe):
    """Content of result.json.

    Exaflop are null if operations were not counted. Values that earlier versions did not write are
    None.
    """

    steps: Whole
    seconds: Number
    metrics: dict[str, Measured]
    finished: str
    images: MayLack[Number] = None
    exaflop: Number | None = None
    device_hours: MayLack[Number] = None
    total_exaflop: Number | None = None
    total_device_hours: MayLack[Number] = None
    best: MayLack[Annotated[Best, AfterValidator(_is_whole)]] = None
    measured_on: MayLack[dict[str, Whole]] = None
    pool: MayLack[str] = None  # only for an evaluation
    trunk: MayLack[Trunk] = None
    # number of classes that probes choose from, with one label per image
    classes: MayLack[Whole] = None
    not_compared: MayLack[str] = None  # only for a training run: why the features were not probed
    learned_from: MayLack[Whole] = None  # labelled training images of the probes of a training run
    # measured images that this run and the runs before it were trained on
    seen: MayLack[list[SeenImages]] = None


class CountedResult(Result):
    """Content of result.json of a run with known numbers of images and operations."""

    images: Number
    exaflop: Number | None
    device_hours: Number


class Cost(Record):
    """Cost of the runs that initial weights come from."""

    exaflop: Number | None
    device_hours: Number


class RecipeFile(Record):
    """Recipe file that a run came from, and the keys in which the run differs from the file."""

    name: str
    differs: dict[str, Any]


class Sharding(Record):
    """Distribution of a run's weights and gradients over processes."""

    strategy: str
    machines: Whole
    deepspeed: str | None = None


class Declared(Record):
    """Declarations of a plugin's objective and target, as written by declaration.to_record."""

    objective: str
    title: str
    paper: str = ""
    cite: str = ""
    figure: str
    labels: bool
    no_measure: list[str]
    target: str | None
    target_no_measure: list[str]
    metrics: list[dict[str, Any]]
    baselines: list[dict[str, Any]]


class Environment(WithRecipe):
    """Content of environment.json. Reading the file also makes the declarations of a plugin's run
    known.
    """

    data: dict[str, Any] = {}
    images: dict[str, Whole] = {}  # number of images of each split that is not a stream
    measured_on: MayLack[dict[str, Whole]] = None
    held_out: MayLack[str] = None  # fingerprint of the held-out images; for a share, of that share
    seen: MayLack[list[SeenImages]] = None  # images seen by the runs that initial weights come from
    init: MayLack[dict[str, Any]] = None
    teacher: MayLack[dict[str, Any]] = None
    before: MayLack[Cost] = None
    host: MayLack[dict[str, Any]] = None
    packages: MayLack[dict[str, Any]] = None
    revision: str | None = None  # null: outside of git
    plugin: MayLack[dict[str, Any]] = None
    real: MayLack[dict[str, Any]] = None
    options: MayLack[dict[str, Any]] = None
    recipe_file: MayLack[RecipeFile] = None
    sharding: MayLack[Sharding] = None
    device: MayLack[str] = None
    processes: MayLack[Whole] = None
    threads: MayLack[Whole] = None
    precision: MayLack[str] = None
    python: MayLack[str] = None
    device_batch: MayLack[Whole] = None
    accumulation: MayLack[Whole] = None
    parameters: MayLack[Whole] = None  # parameters of the encoder
    multiply_adds: MayLack[Whole] = None  # multiply-adds of the encoder's forward pass on an image
    classes: MayLack[list[str]] = None
    free: list[str] = []  # keys of a plugin's objective that do not change what is computed
    declared: MayLack[Declared] = None  # only for a run with a plugin

    @model_validator(mode="after")
    def _remember_recorded(self) -> Self:
        if self.declared:
            declaration.remember_recorded(self.declared)
            _ = self.plugin_rows  # refuses damaged rows
        return self

    @property
    def plugin_rows(self) -> list[Row]:
        """Return the metrics and baselines that the run's plugin declares."""
        if not self.declared:
            return []
        metrics = TypeAdapter(list[Metric]).validate_python(self.declared.metrics)
        return [*metrics, *TypeAdapter(list[Baseline]).validate_python(self.declared.baselines)]


class RunEnvironment(Environment):
    """Content of environment.json of a run, which always has the fingerprints of the images."""

    data: Annotated[dict[str, str], Field(min_length=1)]


class NotFinite(Record):
    """Content of not_finite.json: steps with skipped updates, and the samples of each step."""

    steps: dict[str, Any]


class Figure(Record):
    """Entry of figures.json: the images that a figure was computed from, and how the content is
    drawn, if this depends on the encoder.
    """

    images: str
    count: Whole = 0
    drawn: str = ""


class Figures(Record):
    """Content of figures.json, as far as the page of a run needs it."""

    figures: dict[str, Figure]
