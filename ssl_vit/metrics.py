"""Describe each metric and baseline in a row that the terminal, pages, the index, model cards and
reports read, and list the measures of a frozen encoder.

A metric without a row is shown by its name. This module does not import torch.
"""

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, NamedTuple

SHARE = "share"  # share of independent cases, in percent; has an interval
# in percent; pixels of an image are not independent, so there is no interval
PIXEL_SHARE = "share of pixels"
LOSS = "loss"
NUMBER = "number"  # describes the course of training; runs are not compared by it
COUNT = "count"  # a count in a row of metrics.jsonl, not a metric
HELD_OUT = "validation/"  # prefix of metrics of held-out images in metrics.jsonl
# Prefixes of a probe during training, in metrics.jsonl and in result.json
PROBE, PROBED = "probe/", "probe_"

# Kinds of corrupted patches, used as suffixes of metrics; arms are compared by the first kind
KINDS = ("masked", "random", "kept")
MASKED = KINDS[0]
# What a measure reads of each image: a feature vector, the tokens, the patches with a mask, or the
# logits of the run's own head
Reads = Literal["feature", "tokens", "mask", "head"]


class Measure(NamedTuple):
    """Measure of a frozen encoder that `probe.measures` can choose.

    Attributes:
        metrics: Names of the metrics. A `*` stands for each number in probe.shots.
        reads: What the measure reads of each image. A measure that reads "feature" also runs
            during pre-training, with probe.every.
        code: For "feature", MODULE:FUNCTION of a function like `probes.classify_by_knn`. For
            "tokens", a module with the functions `describe` and `measure` of attentive.py.
        label: Name of the metric for readers. Default: the name in words.
        chooses: What the measure chooses on held-out images, in words.
    """

    metrics: tuple[str, ...]
    reads: Reads
    code: str = ""
    label: str = ""
    chooses: str = ""


# In the order in which measures run and are shown: the first measured one heads reports and gives
# the verdict. Few-shot accuracy depends on a random draw of images, so it comes after the others.
MEASURES = {
    "linear": Measure(
        ("linear",),
        "feature",
        "ssl_vit.evaluation.probes:classify_by_linear_probe",
        label="linear probe",
        chooses="the learning rate of the linear probe",
    ),
    "attentive": Measure(
        ("attentive",),
        "tokens",
        "ssl_vit.evaluation.attentive",
        label="attentive probe",
        chooses="the learning rate of the attentive probe",
    ),
    "knn": Measure(("knn",), "feature", "ssl_vit.evaluation.probes:classify_by_knn", label="k-NN"),
    "few_shot": Measure(
        ("few_shot_*",),
        "feature",
        "ssl_vit.evaluation.probes:classify_by_few_shot",
        label="*-shot",
    ),
    "segmentation": Measure(
        ("miou", "pixel_accuracy"),
        "mask",
        chooses="the learning rate of the segmentation probe",
    ),
    "top1": Measure(("top1", "top5", "real"), "head"),
}
# Metrics of a classifier on test images; nothing may be chosen by these
TESTED = MEASURES["top1"].metrics
# The first metric of each measure of a frozen encoder. The first measured metric heads reports and
# gives the verdict
PROBES = tuple(
    measure.metrics[0].replace("*", "5") for measure in MEASURES.values() if measure.reads != "head"
)
# Metrics in lists of runs; the shares that an objective declares follow. The first metric that a
# run has appears in its line of the runs tool and in the first sentences of its page.
MAIN = ("top1", *PROBES, "accuracy_masked", "accuracy")


@dataclass(frozen=True)
class Metric:
    """Description of a metric.

    Attributes:
        name: Name of the metric; a `*` at the end stands for any text.
        label: Name for readers; a `*` in it is replaced by the text that the `*` in `name` stands
            for. Default: the name in words.
        higher: Whether higher values are better.
        unit: SHARE, PIXEL_SHARE, LOSS, NUMBER or COUNT.
    """

    name: str
    label: str = ""
    higher: bool = True
    unit: str = NUMBER

    def __post_init__(self) -> None:
        if self.unit == LOSS and self.higher:
            raise ValueError(f"{self.name}: lower losses are better. Set higher=False.")

    @property
    def words(self) -> str:
        return self.label or self.name.replace("_", " ")

    @property
    def in_per_cent(self) -> bool:
        return self.unit in (SHARE, PIXEL_SHARE)

    @property
    def kind(self) -> str:
        """Kind of corrupted patches that the metric covers, or an empty string for all patches."""
        last = self.name.rpartition("_")[2]
        return last if last in KINDS else ""

    @property
    def is_compared(self) -> bool:
        """Return whether a report compares arms (settings such as `mae` and `scratch`) by this
        metric.

        Reports compare arms by losses and by shares such as accuracies. Some metrics are also
        measured for one kind of corrupted patches, such as `accuracy_masked`, `accuracy_random` and
        `loss_masked`. Among these, reports compare only the shares of masked patches, such as
        `accuracy_masked`. They compare no loss of one kind of patches, because models are trained
        on the loss over all patches.
        """
        if self.kind:
            return self.kind == MASKED and self.in_per_cent
        return self.in_per_cent or self.unit == LOSS

    def text(self, value: float, page: bool = False) -> str:
        """Return a value as text, with the digits that suit the terminal or a page."""
        if self.in_per_cent:
            return f"{value:.2%}" if page else f"{value:.1%}"
        return f"{value:.4g}" if page else f"{value:#.4g}".rstrip(".")


@dataclass(frozen=True)
class Baseline:
    """Prediction without learning, measured under a separate name.

    Attributes:
        name: Name under which the baseline is measured.
        called: Name for readers, which says what the baseline predicts.
        compared_with: Names of metrics. The baseline is compared with the first of them that was
            measured.
    """

    name: str
    called: str
    compared_with: tuple[str, ...]


# Prefixes of the baselines of a probe, with names for readers. Each baseline replaces the encoder
# and is measured on the same images. Without an encoder, the prediction is always the commonest
# class of these images.
FRESH, START, PIXELS, COMMONEST = "fresh_", "start_", "pixels_", "commonest_"
COMMONEST_CLASS = "the commonest class"
PROBE_BASELINES = {
    FRESH: "untrained weights",
    START: "the initial weights",
    PIXELS: "the pixels at 8 x 8",
    COMMONEST: COMMONEST_CLASS,
}

Row = Metric | Baseline
# Rows of the package, by name
_metrics: dict[str, Metric] = {}
_baselines: dict[str, Baseline] = {}
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
        registered = {**_baselines, **_metrics}.get(row.name, row)
        if registered != row:
            raise ValueError(
                f"{row.name}: another metric or baseline has this name. Choose another name."
            )
        if isinstance(row, Metric):
            _metrics[row.name] = row
        else:
            _baselines[row.name] = row


@contextmanager
def use_plugin_rows(*runs: Iterable[Row]) -> Iterator[None]:
    """Use the metric descriptions of some runs' plugins inside the `with` block.

    A row (`Metric` or `Baseline`) describes the metric or baseline with its name: the label, the
    unit and the better direction. The rows of plugins take precedence over the rows of this
    package. If two runs declare different rows of the same name, the name has no row, because the
    row of the first run would be wrong for the second.

    Args:
        runs: For each run, the rows of its metrics and baselines (`rows_of_run`).
    """
    rows_by_name: dict[str, Row | None] = {}
    for rows in runs:
        for row in rows:
            # None, once two runs have declared different rows of this name
            is_agreed = rows_by_name.get(row.name, row) == row
            rows_by_name[row.name] = row if is_agreed else None
    token = _plugin_rows.set(rows_by_name)
    try:
        yield
    finally:
        _plugin_rows.reset(token)


def rows_of_run(declared: Sequence[Row], measured: Iterable[str]) -> list[Row]:
    """Return the rows of a run's metrics and baselines, from its plugin and from the package.

    A row (`Metric` or `Baseline`) describes the metric or baseline with its name. The rows of the
    package are included so that `use_plugin_rows` notices a name that means one thing in a run with
    a plugin and another in a run without.

    Args:
        declared: Rows that the run's plugin declares.
        measured: Names of the run's metrics and baselines.
    """
    names = sorted({_last(name) for name in measured} - {row.name for row in declared})
    metrics = [_metrics[name] for name in names if name in _metrics]
    baselines = [_baselines[name] for name in names if name in _baselines]
    return [*declared, *metrics, *baselines]


def all_metrics() -> list[Metric]:
    return [row for row in {**_metrics, **_plugin_rows.get()}.values() if isinstance(row, Metric)]


def all_baselines() -> list[Baseline]:
    return [
        row for row in {**_baselines, **_plugin_rows.get()}.values() if isinstance(row, Baseline)
    ]


def _metric(name: str) -> Metric | None:
    """Return the metric with exactly this name, or None."""
    row = _plugin_rows.get().get(name, _metrics.get(name))
    return row if isinstance(row, Metric) else None


def held_out_choices(measures: Iterable[str]) -> list[str]:
    """Return what measures choose on held-out images, in words."""
    chosen = (MEASURES[name].chooses for name in measures if name in MEASURES)
    return [text for text in chosen if text]


def main_metrics() -> list[str]:
    """Return the names of metrics that lists of runs show, in order.

    The shares that objectives declare follow `MAIN`. The loss, which every run has, comes last.
    """
    shares = [row.name for row in all_metrics() if row.unit == SHARE and row not in _TASK_METRICS]
    return [*MAIN, *shares, "loss"]


def _name_for_rank(name: str) -> str:
    """Return the name under which `MAIN` and `PROBES` list a measure, if they list the measure.

    Examples:
        few_shot_10 -> few_shot_5: a few-shot accuracy has this name for any number of shots.
        probe_knn -> knn: a probe in a training run has the name of the probe.
        mpp/accuracy -> accuracy: the prefix says which part of a sum of objectives was measured.
        grad_norm -> grad_norm: any other name, which the lists do not have.
    """
    if is_few_shot(name):
        return "few_shot_5"
    measure = _last(name).removeprefix(PROBED)
    return measure if measure in MAIN else _last(name)


def measure_rank(name: str) -> float:
    """Return the rank of a measure in the order of `MAIN`, the most important measure at 0.

    All measures outside of `MAIN` share the last rank. `MAIN` has a single entry for few-shot
    accuracies. Among these, more shots come before fewer shots, because one shot is the noisiest
    measure.
    """
    measure = _name_for_rank(name)
    if measure not in MAIN:
        return len(MAIN)
    rank = MAIN.index(measure)
    shots = name.rpartition("_")[2]
    if is_few_shot(name) and shots.isdecimal():
        # less for more shots, and below rank + 1, which is the rank of the next measure
        return rank + 1 / (1 + int(shots))
    return rank


def is_few_shot(name: str) -> bool:
    """Return whether a measure is a few-shot accuracy, with any number of shots."""
    return _last(name).removeprefix(PROBED).startswith("few_shot_")


def is_frozen_metric(name: str) -> bool:
    """Return whether a measure is a probe of a frozen encoder, including probes in a training run.

    Such measures can be compared between objectives.
    """
    return _name_for_rank(name) in PROBES


def in_order(names: Iterable[str]) -> list[str]:
    """Return the measures that lists of runs show, in the order of MAIN. The loss comes last."""
    order = main_metrics()
    shown = [name for name in names if _name_for_rank(name) in order]
    return sorted(
        shown, key=lambda name: (order.index(_name_for_rank(name)), measure_rank(name), name)
    )


def _find(name: str) -> Metric | None:
    """Return the description of a metric, or None if nothing describes the metric.

    The description is registered under this name or under a shorter name: `accuracy_masked` is
    described by `accuracy`, `probe_knn` by `knn`, and `few_shot_7` by `few_shot_*`. The returned
    description has the given name.

    Args:
        name: Name of the metric without a slash: `loss` for `mpp/loss`, the loss of the part `mpp`
            of a sum of objectives.
    """
    # the name itself, such as accuracy
    row = _metric(name)
    if row:
        return row
    # a kind of corrupted patches: accuracy_masked is described by accuracy
    stem, _, kind = name.rpartition("_")
    row = _metric(stem) if kind in KINDS else None
    if row:
        label = f"{row.label} {kind}" if row.label else ""
        return replace(row, name=name, label=label)
    # a probe in a training run: probe_knn is described by knn
    row = _find(name.removeprefix(PROBED)) if name.startswith(PROBED) else None
    if row:
        return replace(row, name=name, label=row.words)
    # a name with a number: few_shot_7 is described by few_shot_*, and "*-shot" becomes "7-shot"
    for row in all_metrics():
        prefix = row.name.removesuffix("*")
        if row.name.endswith("*") and name.startswith(prefix):
            number = name.removeprefix(prefix).replace("_", " ")
            return replace(row, name=name, label=row.label.replace("*", number))
    return None


def find_metric(name: str) -> Metric:
    """Return the description of the metric with a full name, such as `mpp/loss`.

    The package and plugins register descriptions (`Metric`). A metric without a registered
    description counts as a loss if the name starts with "loss", and as a plain number otherwise.
    The part before the slash, which names a part of a sum of objectives, does not matter.
    """
    last = _last(name)
    is_loss = last.startswith("loss")
    return _find(last) or Metric(last, higher=not is_loss, unit=LOSS if is_loss else NUMBER)


def has_row(name: str) -> bool:
    """Return whether a full name belongs to a registered metric."""
    return _find(_last(name)) is not None


def has_direction(name: str) -> bool:
    """Return whether the better direction is known: true for any loss or metric with a row."""
    return has_row(name) or find_metric(name).unit == LOSS


def score(name: str, value: float) -> float:
    """Return a metric's value, negated if smaller values are better, so that larger is better.

    A value that is not finite gives -inf.

    Args:
        name: Full name of the metric.
        value: Value of the metric.
    """
    if not math.isfinite(value):
        return -math.inf
    return value if find_metric(name).higher else -value


def find_baseline(name: str) -> Baseline | None:
    """Return the description of the baseline with a full name, or None for any other name.

    The first of these descriptions counts:
    1. the baseline that a plugin registers under this name
    2. a baseline of a probe, such as `pixels_knn` (k-NN on pixels, compared with `knn`)
    3. the baseline that the package registers, such as `chance`; not if two plugins disagree about
       the name

    Args:
        name: Name of a baseline or metric. The part before a slash, as in `mpp/entropy`, does not
            matter.
    """
    last = _last(name)
    plugin_rows = _plugin_rows.get()  # None instead of a row: plugins disagree about the name
    if plugin_rows.get(last) is None:
        for prefix, called in PROBE_BASELINES.items():  # such as "pixels_": "the pixels at 8 x 8"
            if last.startswith(prefix):
                return Baseline(last, called, (last.removeprefix(prefix),))
    # if plugins disagree, the row is None, even if the package has such a baseline
    row = plugin_rows.get(last, _baselines.get(last))
    return row if isinstance(row, Baseline) else None


def is_model_metric(name: str) -> bool:
    """Return whether a name belongs to a metric, and not to a baseline or a count."""
    return find_baseline(name) is None and find_metric(name).unit != COUNT


def metric_label(name: str) -> str:
    """Return a full name, such as `mpp/loss`, for readers."""
    part = name.removesuffix(_last(name))  # part of a joint objective, with the slash
    return part.replace("_", " ") + find_metric(name).words


def is_shown_otherwise(name: str, names: Container[str]) -> bool:
    """Return whether a metric is left out because related metrics are shown instead.

    Some metrics are also measured separately for each kind of corrupted patch: masked, replaced by
    a random patch, or kept. An accuracy over all patches (`accuracy`) is left out if
    `accuracy_masked` was measured. A loss of one kind of patch (`loss_masked`) is always left out,
    because the model learns from the loss over all patches.

    Args:
        name: Full name of the metric.
        names: Full names of all measured metrics.
    """
    row = find_metric(name)
    if row.unit == LOSS:
        return row.kind != ""
    return f"{name}_{MASKED}" in names


def compared_with(baseline: str, names: Container[str]) -> str | None:
    """Return the full name of the measured metric that a baseline is compared with, or None.

    The description of a baseline lists metrics, and the first measured metric counts. In joint
    training, the baseline `mpp/entropy` is compared with `mpp/loss` (of the same objective) rather
    than with `loss` (of the sum of objectives). If the metric was also measured on masked patches
    alone, as `mpp/loss_masked`, that name is returned, because baselines are measured on masked
    patches.

    Args:
        baseline: Full name of the baseline.
        names: Full names of the measured metrics.
    """
    row = find_baseline(baseline)
    if row is None:
        return None
    part = baseline.removesuffix(_last(baseline))  # part of a joint objective, with the slash
    for metric in row.compared_with:
        for name in (part + metric, metric):
            if name in names:
                masked_name = f"{name}_{MASKED}"
                return masked_name if masked_name in names else name
    return None


def format_metrics(
    values: Mapping[str, float], baselines: Mapping[str, float] | None = None
) -> str:
    """Return a text of metrics with their values: "accuracy 81.2% (to beat 50.0%), loss 0.5000".

    Left out are metrics that no `Metric` describes, baselines and counts, and metrics for which
    related metrics are shown instead (`is_shown_otherwise`). A metric with a measured baseline is
    always shown, because the baseline needs the metric next to it.

    Args:
        values: `{full name: value}`. In joint training, names are like mpp/loss.
        baselines: `{full name: value}`. The best baseline of a metric follows the metric.
    """
    baselines_of: dict[str, list[float]] = {}
    for name, value in (baselines or {}).items():
        metric = compared_with(name, values)
        if metric is not None:
            baselines_of.setdefault(metric, []).append(value)
    texts = []
    for name, value in values.items():
        is_shown = is_model_metric(name) and has_row(name) and not is_shown_otherwise(name, values)
        if name in baselines_of or is_shown:
            texts.append(_format_metric(name, value, baselines_of.get(name, [])))
    return ", ".join(texts)


def _format_metric(name: str, value: float, baselines: list[float]) -> str:
    """Return a metric with its label and the best of its baselines, as text."""
    row = find_metric(name)
    if not baselines:
        return f"{metric_label(name)} {row.text(value)}"
    best = max(baselines) if row.higher else min(baselines)
    return f"{metric_label(name)} {row.text(value)} (to beat {row.text(best)})"


def format_baselines(values: Mapping[str, float]) -> str:
    """Return a text of baselines with their values: "accuracy 50.0% (the commonest class)".

    Args:
        values: `{full name: value}`. In joint training, names are like mpp/entropy. Names that
            belong to no baseline are left out.
    """
    texts = []
    for name, value in values.items():
        baseline = find_baseline(name)
        if baseline:
            part = name.removesuffix(_last(name))  # part of a joint objective, with the slash
            # the value is written like the metric that the baseline is compared with
            metric = find_metric(baseline.compared_with[0])
            prediction = baseline.called  # such as "the commonest class"
            texts.append(f"{part}{metric.words} {metric.text(value)} ({prediction})")
    return ", ".join(texts)


def _last(name: str) -> str:
    return name.rpartition("/")[2]


_TASK_METRICS = (
    Metric("top1", "top-1", unit=SHARE),
    Metric("top5", "top-5", unit=SHARE),
    Metric("real", "ReaL top-1", unit=SHARE),  # measured with the labels of ImageNet-ReaL
    *(
        Metric(name, measure.label, unit=SHARE)
        for measure in MEASURES.values()
        if measure.reads in ("feature", "tokens")
        for name in measure.metrics
    ),
    Metric("miou", "mIoU", unit=PIXEL_SHARE),  # measured by a linear segmentation probe
    Metric("pixel_accuracy", unit=PIXEL_SHARE),
    Metric("accuracy", unit=SHARE),
    Metric("loss", higher=False, unit=LOSS),
    # RankMe: effective_rank counts the directions in which features differ from their mean. rank
    # counts the directions of the features themselves, and falls to 1 if the mean outweighs all
    # differences.
    Metric("effective_rank", "effective rank of features"),
    Metric("rank", "rank of the probes' features, including the mean"),
    Metric("mean_cosine", "mean cosine of two images' features", higher=False),
    # how much an image tells about its prototype: H(mean p) - mean H(p), at most log K
    Metric("information", "information of prototypes"),
    Metric("patch_information", "information of patches' prototypes"),
    Metric("lr", "learning rate"),
    Metric("grad_norm", "norm of the gradient"),
    Metric("images_per_s", "images per second"),
    Metric("data_wait", "share of time waiting for data"),
    Metric("memory_gib", "memory, GiB"),
    # a single damaged file is read once per epoch
    Metric("unreadable", "reads of images that failed", higher=False),
    *(Metric(name, unit=COUNT) for name in ("step", "images", "seconds", "corrupted")),
)
_PATCH_LOSS = ("loss_masked", "loss")
register(
    *_TASK_METRICS,
    Baseline("entropy", "the training colours' entropy", _PATCH_LOSS),
    Baseline("commonest", "the commonest colour", ("accuracy_masked",)),
    Baseline("neighbors", "the neighbours' mean", ("accuracy_masked",)),
    Baseline("variance", "the training mean", _PATCH_LOSS),
    Baseline("neighbors_error", "the neighbours' mean", _PATCH_LOSS),
    Baseline("zero", "a prediction of zero", _PATCH_LOSS),
    Baseline("chance_loss", "the loss of guessing", ("loss",)),
    Baseline("chance", "guessing", ("accuracy",)),
    Baseline("majority", COMMONEST_CLASS, ("accuracy",)),
    Baseline("majority_top1", COMMONEST_CLASS, ("top1",)),
    Baseline("majority_miou", COMMONEST_CLASS, ("miou",)),
    Baseline("majority_pixel_accuracy", COMMONEST_CLASS, ("pixel_accuracy",)),
)
