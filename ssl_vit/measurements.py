"""Name measurements: the metric, the measured encoder or baseline, and the kind of patches.

A `MetricKey` has a field for each. Trackers and files with columns need flat names instead, such as
`fresh_probe_knn`. Only `flat_name` and `read_flat_name` know how flat names are built. This module
does not import torch.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple, TypeVar

T = TypeVar("T")

SHARE = "share"  # share of independent cases, in percent; has an interval
# in percent; pixels of an image are not independent, so there is no interval
PIXEL_SHARE = "share of pixels"
LOSS = "loss"
NUMBER = "number"  # describes the course of training; runs are not compared by it
UNRANKED = "unranked"  # a number of which neither higher nor lower values are known to be better
COUNT = "count"  # a count in a row of metrics.jsonl, not a metric

# Kinds of corrupted patches; arms are compared by the first kind
PATCHES = ("masked", "random", "kept")
MASKED = PATCHES[0]
# Subjects that a probe measures in place of the encoder, on the same images. COMMONEST needs no
# features: it always predicts the commonest class of the images.
UNTRAINED, INITIAL, PIXELS, COMMONEST = "untrained", "initial", "pixels", "commonest_class"
COMMONEST_CLASS = "the commonest class"
SUBSTITUTES = {  # with names for readers
    UNTRAINED: "untrained weights",
    INITIAL: "the initial weights",
    PIXELS: "the pixels at 8 x 8",
    COMMONEST: COMMONEST_CLASS,
}
_HELD_OUT, _PROBE, _PROBED, _FEW_SHOT = "validation/", "probe/", "probe_", "few_shot_"
_PREFIXES = {UNTRAINED: "fresh_", INITIAL: "start_", PIXELS: "pixels_", COMMONEST: "commonest_"}


class MetricKey(NamedTuple):
    """Identify what was measured.

    Attributes:
        metric: Registered name of the metric, such as `knn` or `few_shot_5`. For a baseline, the
            metric that the baseline is compared with.
        subject: Empty for the model itself. Otherwise what was measured in place of the model: a
            key of SUBSTITUTES, or the name of a baseline of the task, such as `entropy`.
        part: Part of a joint objective, such as `mpp`.
        patches: Kind of corrupted patches (one of PATCHES), or empty for all patches.
        is_probe: Whether a probe measured the metric during training.
        is_held_out: Whether the key names a column of metrics.jsonl about held-out images.
    """

    metric: str
    subject: str = ""
    part: str = ""
    patches: str = ""
    is_probe: bool = False
    is_held_out: bool = False

    @property
    def of_model(self) -> "MetricKey":
        """Key of the same metric, measured on the model itself."""
        return self._replace(subject="")

    @property
    def name(self) -> str:
        """Flat name without `validation/`, `probe/` and part: `loss` for `validation/mpp/loss`."""
        # Probes in a column about held-out images are called probe/knn, and without probe/ knn. All
        # other probes keep their name, such as probe_knn
        is_probe = self.is_probe and not self.is_held_out
        return flat_name(self._replace(part="", is_probe=is_probe, is_held_out=False))

    @property
    def part_prefix(self) -> str:
        return f"{self.part}/" if self.part else ""

    @property
    def shots(self) -> str:
        """Number of shots, such as "5" for `few_shot_5` of the model; empty for other keys."""
        is_few_shot = self.metric.startswith(_FEW_SHOT) and not self.subject
        return self.metric.removeprefix(_FEW_SHOT) if is_few_shot else ""


def flat_name(key: MetricKey) -> str:
    """Return the flat name of a key, as in metrics.jsonl, result.json and trackers.

    Examples:
        MetricKey("knn", "untrained", is_probe=True) -> fresh_probe_knn
        MetricKey("knn", is_probe=True, is_held_out=True) -> probe/knn
        MetricKey("loss", part="mpp", is_held_out=True) -> validation/mpp/loss
        MetricKey("loss", "entropy", part="mpp", patches="masked") -> mpp/entropy
    """
    # torch.compile traces this function. Do not use properties of the key here.
    name = f"{key.metric}_{key.patches}" if key.patches else key.metric
    if key.is_probe and not key.is_held_out:
        name = f"{_PROBED}{name}"
    if key.subject:
        prefix = _PREFIXES.get(key.subject)
        name = f"{prefix}{name}" if prefix else key.subject
    if key.part:
        name = f"{key.part}/{name}"
    if key.is_held_out:
        return f"{_PROBE if key.is_probe else _HELD_OUT}{name}"
    return name


def read_flat_name(name: str) -> MetricKey:
    """Parse a flat name into a key. `flat_name` turns the key back into the name.

    Examples:
        fresh_probe_knn -> MetricKey("knn", "untrained", is_probe=True)
        validation/mpp/loss_masked -> MetricKey("loss", part="mpp", patches="masked",
            is_held_out=True)
        mpp/entropy -> MetricKey("loss", "entropy", part="mpp", patches="masked"), because entropy
            is the registered name of a baseline of loss_masked
    """
    is_probe = name.startswith(_PROBE)
    is_held_out = is_probe or name.startswith(_HELD_OUT)
    part, _, metric = name.removeprefix(_PROBE if is_probe else _HELD_OUT).rpartition("/")
    subject, row = "", _declared_row(metric)
    if isinstance(row, Baseline):
        subject, metric = metric, row.first_metric
    elif row is None:
        for substitute, prefix in _PREFIXES.items():
            if metric.startswith(prefix):
                subject, metric = substitute, metric.removeprefix(prefix)
                break
    # a registered name may begin with "probe_", too
    if not is_held_out and row is None and metric.startswith(_PROBED):
        is_probe, metric = True, metric.removeprefix(_PROBED)
    stem, _, patches = metric.rpartition("_")
    if not stem or patches not in PATCHES:
        stem, patches = metric, ""
    return MetricKey(stem, subject, part, patches, is_probe, is_held_out)


def read_flat_names(values: Mapping[str, T]) -> dict[MetricKey, T]:
    """Convert `{flat name: value}`, such as a row of metrics.jsonl, to `{key: value}`."""
    return {read_flat_name(name): value for name, value in values.items()}


@dataclass(frozen=True)
class Metric:
    """Description of a metric.

    Attributes:
        name: Name of the metric. A `*` at the end matches any text.
        label: Name for readers. A `*` is replaced by the text that matches the `*` in `name`.
            Default: the name with spaces for underscores.
        higher: Whether higher values are better. Without meaning for UNRANKED.
        unit: SHARE, PIXEL_SHARE, LOSS, NUMBER, UNRANKED or COUNT.
    """

    name: str
    label: str = ""
    higher: bool = True
    unit: str = NUMBER

    def __post_init__(self) -> None:
        if self.unit == LOSS and self.higher:
            raise ValueError(
                f"{self.name}: with unit=LOSS, lower values are better. Set higher=False."
            )

    @property
    def words(self) -> str:
        return self.label or self.name.replace("_", " ")

    @property
    def in_per_cent(self) -> bool:
        return self.unit in (SHARE, PIXEL_SHARE)

    @property
    def is_compared(self) -> bool:
        """Return whether reports compare arms, such as `mae` and `scratch`, by this metric.

        Reports compare arms by losses and by shares, such as accuracies. Some metrics are also
        measured separately for each kind of corrupted patches. Among these, only shares of masked
        patches are compared, such as `accuracy_masked`. `loss_masked` is not compared, because
        models are trained on the loss over all patches.
        """
        patches = read_flat_name(self.name).patches
        if patches:
            return patches == MASKED and self.in_per_cent
        return self.in_per_cent or self.unit == LOSS

    def text(self, value: float, page: bool = False) -> str:
        """Format a value for the terminal or for a page: 81.2% or 81.23%, 0.5000 or 0.5."""
        if self.in_per_cent:
            return f"{value:.2%}" if page else f"{value:.1%}"
        return f"{value:.4g}" if page else f"{value:#.4g}".rstrip(".")


@dataclass(frozen=True)
class Baseline:
    """Description of a baseline, which is a prediction without learning.

    Attributes:
        name: Name of the measured value.
        called: Name for readers, which says what the baseline predicts.
        compared_with: Names of metrics. The baseline is compared with the first of them that was
            measured.
    """

    name: str
    called: str
    compared_with: tuple[str, ...]

    @property
    def first_metric(self) -> str:
        return self.compared_with[0] if self.compared_with else self.name


Row = Metric | Baseline
_rows: dict[str, Row] = {}  # rows of the package, by name
# Rows of plugins, by name, which are looked up before rows of the package; None if plugins disagree
# on a name
NO_ROWS: Mapping[str, Row | None] = MappingProxyType({})
_plugin_rows: ContextVar[Mapping[str, Row | None]] = ContextVar("rows of plugins", default=NO_ROWS)


def register(*rows: Row) -> None:
    """Register metrics and baselines of the package. The same row may be registered twice.

    Args:
        *rows: Descriptions of the metrics and baselines.

    Raises:
        ValueError: Another row has the same name.
    """
    for row in rows:
        if _rows.setdefault(row.name, row) != row:
            raise ValueError(
                f"{row.name}: another metric or baseline has this name. Choose another name."
            )


@contextmanager
def use_plugin_rows(*runs: Iterable[Row]) -> Iterator[None]:
    """Use the metric descriptions of some runs' plugins inside the `with` block.

    A row (`Metric` or `Baseline`) describes a metric or baseline, for example the label and the
    unit. The rows of plugins take precedence over the rows of this package. If two runs declare
    different rows for a name, the name has no description, because the row of one run would be
    wrong for the other run.

    Args:
        runs: For each run, the rows of its metrics and baselines (`rows_of_run`).
    """
    rows_by_name: dict[str, Row | None] = {}
    for rows in runs:
        for row in rows:
            # A name is agreed on if it is new or has the same row as before. A name that is mapped
            # to None stays None, because None differs from every row
            is_agreed = rows_by_name.get(row.name, row) == row
            rows_by_name[row.name] = row if is_agreed else None
    token = _plugin_rows.set(rows_by_name)
    try:
        yield
    finally:
        _plugin_rows.reset(token)


def rows_of_run(declared: Sequence[Row], measured: Iterable[MetricKey]) -> list[Row]:
    """Return the descriptions (rows) of a run's metrics and baselines.

    The result has the rows that the run's plugin declares, and the rows of the package for the
    other keys. The rows of the package are included so that `use_plugin_rows` notices if the plugin
    of another run declares a different row for the same name.

    Args:
        declared: Rows that the run's plugin declares.
        measured: Keys of the run's metrics and baselines.
    """
    names = sorted({key.name for key in measured} - {row.name for row in declared})
    return [*declared, *(_rows[name] for name in names if name in _rows)]


def all_metrics() -> list[Metric]:
    return [row for row in _all_rows() if isinstance(row, Metric)]


def all_baselines() -> list[Baseline]:
    return [row for row in _all_rows() if isinstance(row, Baseline)]


def _all_rows() -> Iterable[Row | None]:
    return {**_rows, **_plugin_rows.get()}.values()


def _declared_row(name: str) -> Row | None:
    """Return the metric or baseline that is registered under this name, or None."""
    return _plugin_rows.get().get(name, _rows.get(name))


def _find(key: MetricKey) -> Metric | None:
    """Return the description of a metric, or None if no registered name fits.

    The registered name may be shorter than the metric's name: `accuracy_masked` is described by
    `accuracy`, `probe_knn` by `knn`, and `few_shot_7` by `few_shot_*`. The `name` of the returned
    description is the metric's name, without the part of a joint objective.
    """
    name = key.name
    row = _declared_row(name)
    if isinstance(row, Metric):
        return row
    row = _declared_row(key._replace(patches="").name)
    if key.patches and isinstance(row, Metric):
        label = f"{row.label} {key.patches}" if row.label else ""
        return replace(row, name=name, label=label)
    if key.is_probe:
        row = _find(key._replace(is_probe=False))
        if row:
            return replace(row, name=name, label=row.words)
    # few_shot_7 is described by few_shot_*, whose label "*-shot" becomes "7-shot"
    for row in all_metrics():
        prefix = row.name.removesuffix("*")
        if row.name.endswith("*") and name.startswith(prefix):
            number = name.removeprefix(prefix).replace("_", " ")
            return replace(row, name=name, label=row.label.replace("*", number))
    return None


def find_metric(key: MetricKey) -> Metric:
    """Return the description of a metric.

    For a baseline, describe the metric that the baseline is compared with. A metric without a
    registered description counts as a loss if the name starts with "loss", and otherwise as a plain
    number. The part of a sum of objectives does not matter.
    """
    key = key.of_model
    is_loss = key.metric.startswith("loss")
    unit = LOSS if is_loss else NUMBER
    return _find(key) or Metric(key.name, higher=not is_loss, unit=unit)


def has_row(key: MetricKey) -> bool:
    """Return whether a key is a metric with a registered description.

    For the key of a baseline, the result is False.
    """
    return not key.subject and _find(key) is not None


def find_baseline(key: MetricKey) -> Baseline | None:
    """Return the description of a baseline, or None for a metric of the model.

    The package and plugins register the baselines of tasks. A baseline that replaces the encoder,
    such as k-NN on pixels, is not registered. It is compared with the same metric of the encoder.
    """
    if not key.subject:
        return None
    row = _declared_row(key.name)
    if isinstance(row, Baseline):
        return row
    metric = key.of_model.name
    return Baseline(key.name, SUBSTITUTES.get(key.subject, key.subject), (metric,))
