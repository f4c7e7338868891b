"""What each metric and baseline of the package is: one row. No torch here."""

from typing import Any

from .registry import COUNT, LOSS, NUMBER, SHARE, Baseline, Metric, register


def _probe(name: str, **more: Any) -> Metric:
    chart = "Probes of the frozen features"
    return Metric(name, SHARE, independent=True, listed=False, chart=chart, **more)


def _fact(name: str, chart: str = "", unit: str = NUMBER) -> Metric:
    """What a row of metrics.jsonl has of the training itself."""
    return Metric(name, unit, listed=False, compared=False, chart=chart)


# Earlier ones come first in the index, the runs tool and the sentences of a page
register(
    Metric(
        "top1",
        SHARE,
        "the share of images whose class it names first",
        independent=True,
        column="test top-1",
        title="Top-1",
        main=6,
        tested="top-1",
    ),
    Metric(
        "top5",
        SHARE,
        "the share whose class is among its first five",
        independent=True,
        tested="top-5",
    ),
    Metric(
        "real",
        SHARE,
        "the share right by ImageNet-ReaL's labels",
        independent=True,
        tested="ReaL top-1",
    ),
    _probe("linear", column="linear probe", title="Top-1 of a linear probe", main=4),
    _probe("few_shot_5", column="5-shot", title="5-shot top-1", main=1),
    _probe("few_shot_10", main=2),
    _probe("few_shot_1", main=3),
    _probe("few_shot_*"),
    _probe("knn", column="k-NN", title="Top-1 of nearest neighbours", main=5),
    _probe("probe_*", sentence="top-1 of a probe on frozen features", label="*"),
    # pixels of an image are no independent cases
    Metric(
        "miou",
        SHARE,
        "mean intersection over union of a linear segmentation probe",
        column="segmentation mIoU",
        title="mIoU of a linear segmentation probe",
        main=7,
    ),
    Metric(
        "pixel_accuracy",
        SHARE,
        "the share of pixels that the segmentation probe classifies correctly",
    ),
    Metric(
        "accuracy",
        SHARE,
        "the share predicted correctly",
        independent=True,
        by_kind=True,
        short="accuracy",
        column="held-out accuracy",
        chart="Accuracy",
    ),
    Metric(
        "loss",
        LOSS,
        "the loss that it was trained with",
        higher=False,
        column="held-out loss",
        chart="Loss",
    ),
    Metric(
        "effective_rank",
        sentence="in how many directions features differ from their mean (RankMe)",
        label="effective rank of features",
        listed=False,
        compared=False,
    ),
    Metric(
        "rank",
        sentence="in how many directions the features lie that the probes are tested on, their"
        " mean being one of them, so that it falls to 1 where that outweighs all; effective_rank is"
        " without it (RankMe)",
        label="rank of the probes' features, with their mean",
        listed=False,
        compared=False,
    ),
    Metric(
        "mean_cosine",
        sentence="how alike the features of two images are: 1 the same direction",
        higher=False,
        label="mean cosine of two images' features",
        listed=False,
        compared=False,
    ),
    Metric(
        "information",
        SHARE,
        "what an image tells of its prototype: H(mean p) - mean H(p), of log K",
        label="information of prototypes",
        listed=False,
        compared=False,
    ),
    Metric(
        "patch_information",
        SHARE,
        "the same of the patch in the middle of an image and its prototype",
        label="information of patches' prototypes",
        listed=False,
        compared=False,
    ),
    _fact("lr", "Learning rate"),
    _fact("grad_norm", "Norm of the gradient"),
    _fact("images_per_s", "Images per second"),
    _fact("data_wait", "Share of time waiting for data"),
    _fact("memory_gib", "Memory, GiB"),
    *(_fact(name, unit=COUNT) for name in ("step", "images", "seconds", "corrupted")),
)

_PATCH_LOSS = ("loss_masked", "loss")
_NEIGHBORS = ("the neighbours' mean", "the mean colour of the nearest intact patches")
_MAJORITY = ("the commonest class", "the commonest training class, everywhere")
register(
    Baseline(
        "entropy",
        "the training colours' entropy",
        "how often each colour occurs in training",
        "loss {:.3f} (entropy of the training colours)",
        _PATCH_LOSS,
    ),
    Baseline(
        "commonest",
        "the commonest colour",
        "the commonest training colour, always",
        "accuracy on masked patches {:.1%} (commonest colour)",
        ("accuracy_masked",),
    ),
    Baseline("neighbors", *_NEIGHBORS, "{:.1%} (neighbours' mean)", ("accuracy_masked",)),
    Baseline(
        "variance",
        "the training mean",
        "the mean training colour, always",
        "loss {:.3f} (the training mean)",
        _PATCH_LOSS,
    ),
    Baseline("neighbors_error", *_NEIGHBORS, "{:.3f} (neighbours' mean)", _PATCH_LOSS),
    Baseline(
        "zero",
        "each patch's own mean",
        "zero for every normalised pixel",
        "loss {:.3f} (each patch's own mean)",
        _PATCH_LOSS,
    ),
    Baseline(
        "chance_loss",
        "the loss of guessing",
        "the same probability for every answer",
        "loss {:.3f} (guessing)",
        ("loss",),
    ),
    Baseline(
        "chance",
        "guessing",
        "any answer at random",
        "accuracy {:.1%} (guessing)",
        ("top1", "accuracy"),
    ),
    Baseline("majority_miou", *_MAJORITY, "mIoU {:.1%} (commonest class everywhere)", ("miou",)),
    Baseline(
        "majority_pixel_accuracy",
        *_MAJORITY,
        "pixel accuracy {:.1%} (commonest class)",
        ("pixel_accuracy",),
    ),
)
