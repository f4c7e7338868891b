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


def _name_for_rank(key: MetricKey) -> str:
    """Return the name under which `MAIN` and `PROBES` list a measure, if they list the measure.

    Examples:
        few_shot_10 -> few_shot_5: a few-shot accuracy has this name for any number of shots.
        probe_knn -> knn: a probe in a training run has the name of the probe.
        mpp/accuracy -> accuracy: the part of a sum of objectives does not matter.
        grad_norm -> grad_norm: any other name, which the lists do not have.
    """
    if key.shots:
        return "few_shot_5"
    measure = key._replace(is_probe=False).name
    return measure if measure in MAIN else key.name


def measure_rank(key: MetricKey) -> float:
    """Return the rank of a measure in the order of `MAIN`, the most important measure at 0.

    All measures outside of `MAIN` share the last rank. `MAIN` has a single entry for few-shot
    accuracies. Among these, more shots come before fewer shots, because one shot is the noisiest
    measure.
    """
    measure = _name_for_rank(key)
    if measure not in MAIN:
        return len(MAIN)
    rank = MAIN.index(measure)
    if key.shots.isdecimal():
        # less for more shots, and below rank + 1, which is the rank of the next measure
        return rank + 1 / (1 + int(key.shots))
    return rank


def is_frozen_metric(key: MetricKey) -> bool:
    """Return whether a measure is a probe of a frozen encoder, including probes in a training run.

    Such measures can be compared between objectives.
    """
    return _name_for_rank(key) in PROBES


def in_order(keys: Iterable[MetricKey]) -> list[MetricKey]:
    """Return the measures that lists of runs show, in the order of MAIN. The loss comes last."""
    order = main_metrics()
    shown = [key for key in keys if _name_for_rank(key) in order]
    return sorted(
        shown,
        key=lambda key: (order.index(_name_for_rank(key)), measure_rank(key), flat_name(key)),
    )


def has_direction(key: MetricKey) -> bool:
    """Return whether the better direction is known: true for any loss or metric with a row."""
    return has_row(key) or (not key.subject and find_metric(key).unit == LOSS)


def score(key: MetricKey, value: float) -> float:
    """Return a metric's value, negated if smaller values are better, so that larger is better.

    A value that is not finite gives -inf.
    """
    if not math.isfinite(value):
        return -math.inf
    return value if find_metric(key).higher else -value


def is_model_metric(key: MetricKey) -> bool:
    """Return whether a key belongs to a metric, and not to a baseline or a count."""
    return not key.subject and find_metric(key).unit != COUNT


def metric_label(key: MetricKey) -> str:
    """Return the name of a metric for readers, with the part of a joint objective: `mpp/loss`."""
    return key.part_prefix.replace("_", " ") + find_metric(key).words


def is_shown_otherwise(key: MetricKey, keys: Container[MetricKey]) -> bool:
    """Return whether a metric is left out because related metrics are shown instead.

    Some metrics are also measured separately for each kind of corrupted patch: masked, replaced by
    a random patch, or kept. An accuracy over all patches (`accuracy`) is left out if
    `accuracy_masked` was measured. A loss of one kind of patch (`loss_masked`) is always left out,
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

    The description of a baseline lists metrics, and the first measured metric counts. In joint
    training, the baseline `mpp/entropy` is compared with `mpp/loss` (of the same objective) rather
    than with `loss` (of the sum of objectives). If a metric of all patches was also measured on
    masked patches alone, as `mpp/loss_masked`, that metric is returned, because baselines are
    measured on masked patches.

    Args:
        baseline: The baseline.
        keys: The measured metrics.
    """
    for metric in metrics_to_compare(baseline):
        for key in (metric, metric._replace(part="")):
            if key in keys:
                masked = key._replace(patches=key.patches or MASKED)
                return masked if masked in keys else key
    return None


def metrics_to_compare(baseline: MetricKey) -> list[MetricKey]:
    """Return the metrics that a baseline is compared with, measured or not, of the same part."""
    row = find_baseline(baseline)
    names = row.compared_with if row else ()
    compared = map(read_flat_name, names)
    return [baseline.of_model._replace(metric=key.metric, patches=key.patches) for key in compared]


def format_metrics(
    values: Mapping[MetricKey, float], baselines: Mapping[MetricKey, float] | None = None
) -> str:
    """Return a text of metrics with their values: "accuracy 81.2% (to beat 50.0%), loss 0.5000".

    Left out are metrics that no `Metric` describes, baselines and counts, and metrics for which
    related metrics are shown instead (`is_shown_otherwise`). A metric with a measured baseline is
    always shown, because the baseline needs the metric next to it.

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
    """Return a metric with its label and the best of its baselines, as text."""
    row = find_metric(key)
    if not baselines:
        return f"{metric_label(key)} {row.text(value)}"
    best = max(baselines) if row.higher else min(baselines)
    return f"{metric_label(key)} {row.text(value)} (to beat {row.text(best)})"


def format_baselines(values: Mapping[MetricKey, float]) -> str:
    """Return a text of baselines with their values: "accuracy 50.0% (the commonest class)".

    Args:
        values: `{baseline: value}`. Keys that belong to no baseline are left out.
    """
    texts = []
    for key, value in values.items():
        baseline = find_baseline(key)
        if baseline:
            # the value is written like the metric that the baseline is compared with
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
