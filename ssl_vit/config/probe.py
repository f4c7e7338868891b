"""The keys on what is measured of a frozen encoder. No torch here."""

from dataclasses import dataclass

from .fields import option

MEASURES = ["few_shot", "linear", "knn", "top1"]  # top1: with the head that a run trained
SEGMENTATION = "segmentation"  # the measure of patches, which needs masks and no labels
# What some of them choose on held-out images
CHOSEN = {
    "linear": "the learning rate of the linear probe",
    SEGMENTATION: "the learning rate of the segmentation probe",
}


@dataclass
class Probe:
    every: int | None = option(
        None,
        "While pre-training: steps between probes of the encoder; null: never.",
        above=0,
        maximum=2**40,
        identity=False,
        in_result=True,
    )
    images: int = option(
        2000,
        "While pre-training: labelled training images that the probes learn from.",
        above=0,
        maximum=2**31,
        identity=False,
        in_result=True,
    )
    measures: list[str] = option(
        MEASURES[:3],
        "What is measured; segmentation needs masks.",
        choices=[*MEASURES, SEGMENTATION],
    )
    feature: str = option(
        "encoder",
        "encoder, or hidden: a supervised run's tanh layer, which reads the encoder's feature.",
        choices=("encoder", "hidden"),
    )
    pool: str | None = option(
        None,
        "Feature of an image: token (the class token) or avg (the mean of the patches); null: as"
        " the encoder's export says.",
        choices=("token", "avg"),
    )
    layer: int | None = option(
        None,
        "Block whose output is the feature, from 1; null: the last one, after the final norm.",
        above=0,
    )
    shots: list[int] = option(
        [1, 5, 10, 25], "Few-shot: labelled images per class.", above=0, maximum=2**31
    )
    trials: int = option(
        3, "Few-shot: choices of those images to average over.", above=0, maximum=2**31
    )
    rates: list[float] = option(
        [0.01, 0.03, 0.1, 0.3, 1.0, 3.0],
        "Linear probe, segmentation: learning rates to choose from.",
        above=0,
        maximum=1e9,
    )
    steps: int = option(2000, "Linear probe, segmentation: steps.", above=0, maximum=2**31)
    batch: int = option(1024, "Linear probe, segmentation: batch size.", above=0, maximum=2**22)
    neighbors: int = option(20, "k of the k-nearest-neighbour probe.", above=0, maximum=2**31)
    mask_images: int | None = option(
        5000,
        "Segmentation: training images that it learns from, a fixed random choice; null: all.",
        above=0,
        maximum=2**31,
    )
