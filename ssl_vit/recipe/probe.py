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
    """Measuring a frozen encoder.

    Attributes:
        every: While pre-training: steps between probes of the encoder; null: never.
        images: While pre-training: labelled training images that the probes learn from.
        measures: What is measured; segmentation needs masks.
        feature: encoder, or hidden: a supervised run's tanh layer, which reads the encoder's
            feature.
        pool: Feature of an image: token (the class token) or avg (the mean of the patches); null:
            as the encoder's export says.
        layer: Block whose output is the feature, from 1; null: the last one, after the final norm.
        shots: Few-shot: labelled images per class.
        trials: Few-shot: draws of those images to average over; null: 10 where linear or knn use
            the features of all training images, else 3.
        rates: Linear and attentive probe, segmentation: learning rates to choose from.
        steps: Linear and attentive probe, segmentation: steps.
        batch: Linear and attentive probe, segmentation: batch size.
        neighbors: k of the k-nearest-neighbour probe.
        token_images: Attentive probe: training images that it learns from, a fixed random choice,
            whose tokens are held in memory; null: all.
        mask_images: Segmentation: training images that it learns from, a fixed random choice; null:
            all.
    """

    every: Steps | None = key(None, effect="result")
    images: Count = key(2000, effect="result")
    measures: list[Literal["few_shot", "linear", "knn", "attentive", "top1", "segmentation"]] = key(
        MEASURES[:3]
    )
    feature: Literal["encoder", "hidden"] = key("encoder")
    pool: Literal["token", "avg"] | None = key(None)
    layer: int | None = key(None, gt=0)
    shots: list[Count] = key([1, 5, 10, 25])
    trials: Count | None = key(None)
    rates: list[Annotated[float, Field(gt=0, le=1e9)]] = key([0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
    steps: Count = key(2000)
    batch: int = key(1024, gt=0, le=2**22)
    neighbors: Count = key(20)
    token_images: Count | None = key(50_000)
    mask_images: Count | None = key(5000)
