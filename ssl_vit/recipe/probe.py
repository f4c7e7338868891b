"""The keys on what is measured of a frozen encoder. No torch here."""

from typing import Annotated, Literal

from pydantic import Field

from .keys import Count, Keys, Steps, key

MEASURES = ["few_shot", "linear", "knn", "attentive", "top1"]  # top1: with a run's own head
SEGMENTATION = "segmentation"  # the measure of patches, which needs masks and no labels
ATTENTIVE = "attentive"
TOKENS = {ATTENTIVE, SEGMENTATION}  # what is measured of an encoder's tokens, not of one feature
# What some of them choose on held-out images
CHOSEN = {
    "linear": "the learning rate of the linear probe",
    ATTENTIVE: "the learning rate of the attentive probe",
    SEGMENTATION: "the learning rate of the segmentation probe",
}


class Probe(Keys):
    every: Steps | None = key(
        None,
        "While pre-training: steps between probes of the encoder; null: never.",
        effect="result",
    )
    images: Count = key(
        2000,
        "While pre-training: labelled training images that the probes learn from.",
        effect="result",
    )
    measures: list[Literal["few_shot", "linear", "knn", "attentive", "top1", "segmentation"]] = key(
        MEASURES[:3], "What is measured; segmentation needs masks."
    )
    feature: Literal["encoder", "hidden"] = key(
        "encoder",
        "encoder, or hidden: a supervised run's tanh layer, which reads the encoder's feature.",
    )
    pool: Literal["token", "avg"] | None = key(
        None,
        "Feature of an image: token (the class token) or avg (the mean of the patches); null: as"
        " the encoder's export says.",
    )
    layer: int | None = key(
        None,
        "Block whose output is the feature, from 1; null: the last one, after the final norm.",
        gt=0,
    )
    shots: list[Count] = key([1, 5, 10, 25], "Few-shot: labelled images per class.")
    trials: Count = key(3, "Few-shot: choices of those images to average over.")
    rates: list[Annotated[float, Field(gt=0, le=1e9)]] = key(
        [0.01, 0.03, 0.1, 0.3, 1.0, 3.0],
        "Linear and attentive probe, segmentation: learning rates to choose from.",
    )
    steps: Count = key(2000, "Linear and attentive probe, segmentation: steps.")
    batch: int = key(1024, "Linear and attentive probe, segmentation: batch size.", gt=0, le=2**22)
    neighbors: Count = key(20, "k of the k-nearest-neighbour probe.")
    token_images: Count | None = key(
        50_000,
        "Attentive probe: training images that it learns from, a fixed random choice, whose tokens"
        " are held in memory; null: all.",
    )
    mask_images: Count | None = key(
        5000, "Segmentation: training images that it learns from, a fixed random choice; null: all."
    )
