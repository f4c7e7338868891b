"""The JSON files of a run's folder as records."""

from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, Field, TypeAdapter, model_validator

from ...metrics import Baseline, Metric, Row
from .. import declaration
from . import MayLack, Number, Record, Whole

if TYPE_CHECKING:
    from ...stats import Interval


class WithRecipe(Record):
    """A file of a run that has the recipe's hash."""

    recipe: MayLack[str] = None


class Difference(Record):
    """The mean of paired differences over the same images, and its 95% interval."""

    mean: Number
    low: Number
    high: Number


class Copies(Record):
    """How often the same images are in a split, whatever their files are called.

    Attributes:
        distinct: number of different contents.
        effective: as how many independent images all of them count (`stats.effective_number`).
        relabelled: number of contents that have several labels.
    """

    distinct: Whole
    effective: Number
    relabelled: Whole = 0


class Draws(Record):
    """How many draws of few-shot images an accuracy is the mean of, and its 95% interval over the
    draws and the test images."""

    count: Whole
    low: Number
    high: Number


class Measured(Record):
    """A metric of result.json, and on how many images or patches it was measured. A baseline on the
    same images also has the paired difference: the model's metric minus the baseline's. `copies` is
    None if all of these images are distinct."""

    value: float  # NaN or infinite in a bad run
    split: str
    n: Whole | None = None
    difference: MayLack[Difference] = None
    copies: MayLack[Copies] = None
    draws: MayLack[Draws] = None  # of few-shot

    def with_copies(self, copies: Copies | None) -> "Measured":
        """Return the metric with what is known of copies; the metric itself where there are
        none."""
        return self.model_copy(update={"copies": copies}) if copies else self

    def interval(self, images: int) -> "Interval":
        """Return the 95% interval of a share: over test images, of which there are `images`, and
        of few-shot over the draws too."""
        from ...stats import Interval, proportion  # numpy, which `--help` does not wait for

        if self.draws:
            return Interval(self.draws.low, self.draws.high)
        effective = self.copies.effective if self.copies else images
        return proportion(self.value, min(images, effective))


class Best(Record):
    """The evaluation whose weights checkpoint.best chose; nulls where none was finite."""

    metric: str
    step: Whole | None
    value: Number | None


def _is_whole(best: Best) -> Best:
    if (best.step is None) != (best.value is None):
        raise ValueError("expected step and value, or nulls for both")
    return best


class SeenImages(Record):
    """Which images that a run is measured on it has seen itself, or one of the runs that its
    initial weights come from.

    Attributes:
        run: the name of that run's folder.
        of: {split: how many images it has} of test and validation.
        images: {split: how many of them that run was trained on}.
        labels: {split: of how many of them it has learned the label}.
        unknown: why it is not known, or not of all images: there may be more then than are
            counted. Empty where it is.
    """

    run: str
    of: dict[str, Whole] = {}
    images: dict[str, Whole] = {}
    labels: dict[str, Whole] = {}
    unknown: str = ""


class Trunk(Record):
    """The run that another one went on from, and at which step (resume=RUN@STEP)."""

    run: str
    step: Whole


class Result(WithRecipe):
    """result.json. Exaflop are null where they were not counted; what earlier versions did not
    write is None."""

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
    pool: MayLack[str] = None  # of an evaluation
    trunk: MayLack[Trunk] = None
    classes: MayLack[Whole] = None  # of one label an image, that probes choose from
    not_compared: MayLack[str] = None  # of a training run: why its features were not probed
    learned_from: MayLack[Whole] = None  # labelled training images of the probes of a training run
    seen: MayLack[list[SeenImages]] = None  # of what it is measured on, by it and by those runs


class CountedResult(Result):
    """That of a run whose images and work are known."""

    images: Number
    exaflop: Number | None
    device_hours: Number


class Cost(Record):
    """What the runs took that initial weights come from."""

    exaflop: Number | None
    device_hours: Number


class RecipeFile(Record):
    """The recipe file that a run came from, and the keys at which the run differs from it."""

    name: str
    differs: dict[str, Any]


class Sharding(Record):
    """How a run's weights and gradients were spread over processes."""

    strategy: str
    machines: Whole
    deepspeed: str | None = None


class Declared(Record):
    """What a plugin's objective and target declare, as declaration.to_record writes it."""

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
    """environment.json. What a plugin's run recorded of its objective is known once it is read."""

    data: dict[str, Any] = {}
    images: dict[str, Whole] = {}  # of a split that is no stream
    measured_on: MayLack[dict[str, Whole]] = None
    held_out: MayLack[str] = None  # fingerprint of the held-out images, of a share of the share
    seen: MayLack[list[SeenImages]] = None  # by the runs that initial weights come from
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
    parameters: MayLack[Whole] = None  # of the encoder
    multiply_adds: MayLack[Whole] = None  # of its forward pass on an image
    classes: MayLack[list[str]] = None
    free: list[str] = []  # keys of a plugin's objective that do not change what is computed
    declared: MayLack[Declared] = None  # of a plugin's run

    @model_validator(mode="after")
    def _adopt(self) -> Self:
        if self.declared:
            declaration.adopt(self.declared)
            _ = self.own_rows  # refuses damaged ones
        return self

    @property
    def own_rows(self) -> list[Row]:
        """Return the metrics and baselines that the run's plugin declares."""
        if not self.declared:
            return []
        metrics = TypeAdapter(list[Metric]).validate_python(self.declared.metrics)
        return [*metrics, *TypeAdapter(list[Baseline]).validate_python(self.declared.baselines)]


class RunEnvironment(Environment):
    """That of a run, which has the fingerprints of its images."""

    data: Annotated[dict[str, str], Field(min_length=1)]


class NotFinite(Record):
    """not_finite.json: steps whose update was skipped, and the samples of each."""

    steps: dict[str, Any]


class Figure(Record):
    """What figures.json says of a figure: the images that it was computed over, and how what is in
    it is drawn, where that is not the same of every encoder."""

    images: str
    count: Whole = 0
    drawn: str = ""


class Figures(Record):
    """figures.json, as the page of a run reads it."""

    figures: dict[str, Figure]
