"""Records for the JSON files of a run's folder."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, TypeAdapter, model_validator

from ...measurements import SHARE, Baseline, Metric, MetricKey, Row, find_metric, flat_name
from .. import declaration
from . import MayLack, Number, Record, Whole


class WithRecipe(Record):
    """File of a run with the hash of the recipe."""

    recipe: MayLack[str] = None


class Difference(Record):
    """Mean of paired differences on the same images, with a 95% interval."""

    mean: Number
    low: Number
    high: Number


class Copies(Record):
    """Counts of repeated images in a split. Images are compared by content, not by file name.

    Attributes:
        distinct: Number of distinct images.
        effective: Effective number of images (`stats.effective_number`). With copies, an accuracy
            is less precise. This number of distinct images would give the same precision.
        relabelled: Number of distinct images whose copies have several labels.
    """

    distinct: Whole
    effective: Number
    relabelled: Whole = 0


class ConfidenceInterval(Record):
    """95% interval."""

    low: Number
    high: Number


class Measurement(Record):
    """Value of a metric, of the model or of a baseline, on the images of a split.

    Attributes:
        metric, subject, part, patches, is_probe: Fields of `key`. Empty fields are not written.
        split: Split of the images: train, test, or validation for held-out images.
        step: Step of the weights, or None if nothing was trained.
        value: Value, which is NaN or infinite in a bad run.
        n: Number of measured images, patches or labels.
        copies: Number of repeated images, or None if all images are distinct.
        draws: Number of random draws of few-shot images that an accuracy averages, or 0 for one.
        interval: 95% interval of a share, such as an accuracy, of a known number of images. It says
            how far the share may change with other images and, with `draws`, with other draws.
        differences: `{subject: difference}`: a metric of the model minus the same metric of each
            other subject on the same images, such as untrained weights.
    """

    metric: str
    subject: str = ""
    part: str = ""
    patches: str = ""
    is_probe: bool = False
    split: str
    step: MayLack[Whole] = None
    value: float
    n: Whole | None = None
    copies: MayLack[Copies] = None
    draws: Whole = 0
    interval: MayLack[ConfidenceInterval] = None
    differences: dict[str, Difference] = {}

    @property
    def key(self) -> MetricKey:
        return MetricKey(self.metric, self.subject, self.part, self.patches, self.is_probe)

    def with_interval(self, measured_on: Mapping[str, int] | None = None) -> "Measurement":
        """Return the measurement with a 95% Wilson interval, if the metric is a share.

        The measurement is returned unchanged if the metric is no share, if `n` is missing, or if
        the value averages several few-shot draws. In the last case, the measurement already has an
        interval, which also covers the draws.

        Args:
            measured_on: `{split: number of images}`, which limits the number of cases, because
                patches of the same image are not independent.
        """
        from ...stats import wilson_interval  # imports numpy, which would slow down `--help`

        cases = independent_cases(self.n, self.split, measured_on)
        is_share = find_metric(self.key).unit == SHARE and 0 <= self.value <= 1
        if self.draws or not cases or not is_share:
            return self
        # copies of images add no information, so they reduce the number of independent images
        effective = self.copies.effective if self.copies else cases
        low, high = wilson_interval(self.value, min(cases, effective))
        return self.model_copy(update={"interval": ConfidenceInterval(low=low, high=high)})


def known(**fields: Any) -> dict[str, Any]:
    """Return the fields that a file should have: all except None, 0, False and empty values.

    For example, known(metric="loss", part="", draws=0) gives {"metric": "loss"}.
    """
    return {name: value for name, value in fields.items() if value}


def independent_cases(n: int | None, split: str, measured_on: Mapping[str, int] | None) -> int:
    """Return the number of independent cases that a metric was measured on.

    The patches of an image are alike, so an image counts as one case. For example, 980 patches of
    20 images are 20 cases.

    Args:
        n: Number of measured cases, such as patches or images, or None if unknown.
        split: Split of the cases.
        measured_on: `{split: number of images}`. If the split is missing, all `n` cases count as
            independent.
    """
    cases = n or 0
    return min(cases, (measured_on or {}).get(split, cases))


class Best(Record):
    """Evaluation with the best value of the metric in checkpoint.best.

    Step and value are null if no evaluation had a finite value.
    """

    metric: str
    step: Whole | None
    value: Number | None


def _is_whole(best: Best) -> Best:
    """Check that the step and the value are both given or both null."""
    # wrong if exactly one of the two is null
    if (best.step is None) != (best.value is None):
        raise ValueError("expected a step and a value, or null for both")
    return best


class SeenImages(Record):
    """Number of measured images that a run was trained on.

    "A run" is the measured run itself, or an earlier run that the initial weights come from.

    Attributes:
        run: Name of the folder of the run.
        of: {split: number of measured images} for test and validation.
        images: {split: number of measured images that the run was trained on}.
        labels: {split: number of measured images whose label the run has learned}.
        unknown: Why `images` and `labels` may be too low; empty if they are complete.
    """

    run: str
    of: dict[str, Whole] = {}
    images: dict[str, Whole] = {}
    labels: dict[str, Whole] = {}
    unknown: str = ""


class TrainingCopies(Record):
    """Test images that are copies of training images, and the results without these images.

    Attributes:
        images: Number of test images that are copies.
        of: Number of test images that were compared with the training images.
        among: Number of training images that the test images were compared with.
        measurements: Accuracies on the other test images. Empty if no test image is a copy.
        not_compared: Earlier runs whose training images were not compared.
    """

    images: Whole
    of: Whole
    among: Whole
    measurements: list[Measurement] = []
    not_compared: list[str] = []


class Trunk(Record):
    """Run and step from which this run continues (resume=RUN@STEP)."""

    run: str
    step: Whole


class Result(WithRecipe):
    """Content of result.json.

    `exaflop` and `total_exaflop` are null in the file if operations were not counted. A field that
    is missing in the file is None here, for example in files of earlier versions.
    """

    steps: Whole
    seconds: Number
    measurements: list[Measurement]
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
    training_copies: MayLack[TrainingCopies] = None  # only for an evaluation

    @model_validator(mode="before")
    @classmethod
    def _check_version(cls, content: Any) -> Any:
        """Raise a ValueError for a file of an earlier version.

        Such a file has the key `metrics` instead of `measurements`.
        """
        if isinstance(content, dict) and "metrics" in content and "measurements" not in content:
            raise ValueError("an earlier version of ssl_vit wrote this file; use that version")
        return content

    @property
    def metrics(self) -> dict[str, Measurement]:
        """Return the measurements by flat name, such as `knn` or `fresh_knn`."""
        return {flat_name(measurement.key): measurement for measurement in self.measurements}


class CountedResult(Result):
    """Content of result.json that has the number of images and the cost."""

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
    """Content of environment.json.

    If the run used a plugin, reading the file also calls `declaration.remember_recorded`. After
    that, the title of the plugin's objective, for example, is known without running the plugin.
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
            _ = self.plugin_rows  # raises an error if a metric or baseline is damaged
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
    """Entry of figures.json.

    Attributes:
        images: Images that the figure was computed from.
        count: Number of these images.
        drawn: How the content is drawn; empty if this does not depend on the encoder.
    """

    images: str
    count: Whole = 0
    drawn: str = ""


class Figures(Record):
    """Content of figures.json that the page of a run needs."""

    figures: dict[str, Figure]
