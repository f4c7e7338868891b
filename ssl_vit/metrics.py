"""List the measures of a frozen encoder, declare the metrics and baselines of this package, and
choose which metrics are shown, in which order and next to which baseline.

A metric without a row is shown by its name. This module does not import torch.
"""

import math
from collections.abc import Container, Iterable, Mapping
from typing import Literal, NamedTuple

from .measurements import (
    COMMONEST_CLASS,
    COUNT,
    LOSS,
    MASKED,
    PIXEL_SHARE,
    SHARE,
    UNRANKED,
    Baseline,
    Metric,
    MetricKey,
    all_metrics,
    find_baseline,
    find_metric,
    flat_name,
    has_row,
    read_flat_name,
    register,
)

# Input of a measure for each image: a feature vector with a label, the tokens, the patches with a
# mask, the logits of the run's own head, or feature vectors of the image and of random views of it
# ("views"), without labels
Reads = Literal["feature", "tokens", "mask", "head", "views"]


class Measure(NamedTuple):
    """Measure of a frozen encoder that `probe.measures` can choose.

    Attributes:
        metrics: Names of the metrics. A `*` stands for each number in probe.shots.
        reads: Input of the measure for each image. Measures that read "feature" or "views" also run
            during pre-training, with probe.every.
        code: For "feature", MODULE:FUNCTION of a function like `probes.classify_by_knn`. For
            "tokens", a module that defines `describe` and `measure`, as attentive.py. For "views",
            MODULE:FUNCTION of a function like `label_free.lidar`.
        label: Name of the metric for readers. Default: the name with spaces for underscores.
        chooses: What the measure chooses on held-out images, in words.
        views: Random views of each image that the measure reads. 0: the image itself. None:
            probe.views.
        images: Number of images in the paper of the measure. More images are not read. 0: the paper
            requires no number.
    """

    metrics: tuple[str, ...]
    reads: Reads
    code: str = ""
    label: str = ""
    chooses: str = ""
    views: int | None = 0
    images: int = 0


# Measures run and are shown in this order. The first measured metric heads reports and gives the
# verdict. Few-shot accuracy comes late, because it depends on a random draw of images.
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
    # Numbers of images: Garrido et al. (2023) and Thilak et al. (2024)
    "rankme": Measure(
        ("rankme",), "views", "ssl_vit.evaluation.label_free:rankme", label="RankMe", images=25_600
    ),
    "lidar": Measure(
        ("lidar",),
        "views",
        "ssl_vit.evaluation.label_free:lidar",
        label="LiDAR",
        views=None,
        images=1000,
    ),
    "alpha_req": Measure(
        ("alpha_req",), "views", "ssl_vit.evaluation.label_free:alpha_req", label="alpha-ReQ"
    ),
    "uniformity": Measure(
        ("uniformity",), "views", "ssl_vit.evaluation.label_free:uniformity", views=2
    ),
    "alignment": Measure(
        ("alignment",), "views", "ssl_vit.evaluation.label_free:alignment", views=2
    ),
}
# Metrics of a classifier on test images. Do not choose anything by these metrics.
TESTED = MEASURES["top1"].metrics
# The first metric of each measure of a frozen encoder with labels, in the order of MEASURES
PROBES = tuple(
    measure.metrics[0].replace("*", "5")
    for measure in MEASURES.values()
    if measure.reads not in ("head", "views")
)
# Metrics in lists of runs, followed by the shares that an objective declares. The first of these
# metrics that a run has appears in the runs tool and in the first sentences of the run's page.
MAIN = ("top1", *PROBES, "accuracy_masked", "accuracy")


def held_out_choices(measures: Iterable[str]) -> list[str]:
    """Return what the measures choose on held-out images, such as "the learning rate of ..."."""
    choices = (MEASURES[name].chooses for name in measures if name in MEASURES)
    return [choice for choice in choices if choice]


def main_metrics() -> list[str]:
    """Return the names of the metrics in lists of runs, in order.

    `MAIN` comes first, then the shares that objectives declare, then the loss.
    """
    shares = [row.name for row in all_metrics() if row.unit == SHARE and row not in _TASK_METRICS]
    return [*MAIN, *shares, "loss"]


def _name_for_rank(key: MetricKey) -> str:
    """Return the name of a metric in the lists `MAIN` and `PROBES`.

    Examples:
        few_shot_10 -> few_shot_5: the lists have one entry for all few-shot accuracies.
        probe_knn -> knn: a probe during training is listed like the same probe afterwards.
        mpp/accuracy -> accuracy: the part of a sum of objectives does not matter.
        grad_norm -> grad_norm: the lists do not have this metric.
    """
    if key.shots:
        return "few_shot_5"
    name = key._replace(is_probe=False).name
    return name if name in MAIN else key.name


def measure_rank(key: MetricKey) -> float:
    """Return the rank of a metric in `MAIN`. The most important metric has rank 0.

    All metrics outside of `MAIN` share the last rank. Among few-shot accuracies, more shots come
    first, because few shots give a noisy accuracy.
    """
    name = _name_for_rank(key)
    if name not in MAIN:
        return len(MAIN)
    rank = MAIN.index(name)
    if key.shots.isdecimal():
        # 5 shots add 1/6 and 10 shots add 1/11, so 10 shots come first. The fraction is below 1, so
        # the next metric (rank + 1) comes later.
        return rank + 1 / (1 + int(key.shots))
    return rank


def is_frozen_metric(key: MetricKey) -> bool:
    """Return whether a metric is measured by a probe of a frozen encoder, such as `knn`.

    Probes during training (`probe_knn`) count, too. Such metrics can be compared between
    objectives.
    """
    return _name_for_rank(key) in PROBES


def in_order(keys: Iterable[MetricKey]) -> list[MetricKey]:
    """Return the metrics to show in lists of runs, sorted in the order of `main_metrics`."""
    order = main_metrics()

    def position(key: MetricKey) -> tuple[int, float, str]:
        return order.index(_name_for_rank(key)), measure_rank(key), flat_name(key)

    return sorted((key for key in keys if _name_for_rank(key) in order), key=position)


def has_direction(key: MetricKey) -> bool:
    """Return whether it is known which values of a metric are better, higher or lower.

    The direction is known for losses and for metrics with a registered description, except for
    measures without labels.
    """
    unit = find_metric(key).unit
    return unit != UNRANKED and (has_row(key) or (not key.subject and unit == LOSS))


def score(key: MetricKey, value: float) -> float:
    """Return a score of a metric's value, for which higher is always better.

    If lower values of the metric are better, the value is negated. A value that is not finite gives
    -inf.
    """
    if not math.isfinite(value):
        return -math.inf
    return value if find_metric(key).higher else -value


def is_model_metric(key: MetricKey) -> bool:
    """Return whether a key is a metric, and not a baseline or a count."""
    return not key.subject and find_metric(key).unit != COUNT


def metric_label(key: MetricKey) -> str:
    """Return the name of a metric for readers, with the part of a joint objective: `mpp/loss`."""
    return key.part_prefix.replace("_", " ") + find_metric(key).words


def is_shown_otherwise(key: MetricKey, keys: Container[MetricKey]) -> bool:
    """Return whether a metric is hidden because a related metric is shown instead.

    Some metrics are also measured separately for each kind of corrupted patch: masked, replaced by
    a random patch, or kept. An accuracy over all patches (`accuracy`) is hidden if
    `accuracy_masked` was measured. A loss of one kind of patch (`loss_masked`) is always hidden,
    because the model learns from the loss over all patches.

    Args:
        key: The metric.
        keys: All measured metrics.
    """
    if find_metric(key).unit == LOSS:
        return key.patches != ""
    return not key.patches and key._replace(patches=MASKED) in keys


def compared_with(baseline: MetricKey, keys: Container[MetricKey]) -> MetricKey | None:
    """Return the measured metric that a baseline is compared with, or None.

    This is the first measured metric in the description of the baseline. In joint training, the
    baseline `mpp/entropy` is compared with `mpp/loss` (of the same objective) rather than with
    `loss` (of the sum of objectives). `mpp/loss_masked` is preferred to `mpp/loss`, because
    baselines are measured on masked patches.

    Args:
        baseline: The baseline.
        keys: The measured metrics.
    """
    for metric in metrics_to_compare(baseline):
        # First the metric of the same objective, then the metric of the sum of objectives
        for key in (metric, metric._replace(part="")):
            if key in keys:
                masked = key._replace(patches=key.patches or MASKED)
                return masked if masked in keys else key
    return None


def metrics_to_compare(baseline: MetricKey) -> list[MetricKey]:
    """Return the metrics that a baseline can be compared with, whether measured or not.

    For example, `mpp/entropy` gives `mpp/loss_masked` and `mpp/loss`: in joint training, the
    metrics are those of the same objective.
    """
    row = find_baseline(baseline)
    names = row.compared_with if row else ()
    keys = map(read_flat_name, names)
    return [baseline.of_model._replace(metric=key.metric, patches=key.patches) for key in keys]


def format_metrics(
    values: Mapping[MetricKey, float], baselines: Mapping[MetricKey, float] | None = None
) -> str:
    """Format metrics with their values: "accuracy 81.2% (to beat 50.0%), loss 0.5000".

    A metric with a measured baseline is always shown. Of the other metrics, those without a
    registered description are left out, and those that `is_shown_otherwise` hides. Baselines and
    counts are left out, too.

    Args:
        values: `{metric: value}`.
        baselines: `{baseline: value}`. The best baseline of a metric follows the metric.
    """
    baselines_of: dict[MetricKey, list[float]] = {}
    for key, value in (baselines or {}).items():
        metric = compared_with(key, values)
        if metric is not None:
            baselines_of.setdefault(metric, []).append(value)
    texts = []
    for key, value in values.items():
        is_shown = is_model_metric(key) and has_row(key) and not is_shown_otherwise(key, values)
        if key in baselines_of or is_shown:
            texts.append(_format_metric(key, value, baselines_of.get(key, [])))
    return ", ".join(texts)


def _format_metric(key: MetricKey, value: float, baselines: list[float]) -> str:
    """Format a metric: label, value and best baseline."""
    row = find_metric(key)
    if not baselines or row.unit == UNRANKED:
        return f"{metric_label(key)} {row.text(value)}"
    best = max(baselines) if row.higher else min(baselines)
    return f"{metric_label(key)} {row.text(value)} (to beat {row.text(best)})"


def format_baselines(values: Mapping[MetricKey, float]) -> str:
    """Format baselines with their values: "accuracy 50.0% (the commonest class)".

    Args:
        values: `{baseline: value}`. Keys that belong to no baseline are left out, and baselines of
            metrics that are not ranked.
    """
    texts = []
    for key, value in values.items():
        baseline = find_baseline(key)
        if baseline and find_metric(key).unit != UNRANKED:
            # format the value like the metric that the baseline is compared with
            metric = find_metric(key)
            prediction = baseline.called  # such as "the commonest class"
            texts.append(f"{key.part_prefix}{metric.words} {metric.text(value)} ({prediction})")
    return ", ".join(texts)


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
    *(
        Metric(name, measure.label, unit=UNRANKED)
        for measure in MEASURES.values()
        if measure.reads == "views"
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
