"""Keys for measuring a frozen encoder. This module does not import torch."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from ..metrics import MEASURES, Reads
from .keys import Count, Keys, NamedChoice, Steps, key


class Probe(Keys):
    """Measuring a frozen encoder.

    Attributes:
        every: Steps between probes of the encoder during pre-training. null: no probes.
        images: Number of labelled training images that probes during pre-training learn from.
        measures: What to measure. segmentation needs masks. rankme, lidar, alpha_req, uniformity
            and alignment need no labels.
        feature: Feature to measure: encoder, or hidden (the tanh layer that a supervised run has on
            top of the encoder).
        pool: How tokens are pooled into one feature: token (the class token) or avg (the mean of
            the patch tokens). null: as the encoder's export says.
        layer: Block whose output is used, counted from 1. null: the last block, after the final
            norm.
        shots: Labelled images per class for few-shot measures.
        trials: Random draws of few-shot images to average over. null: 10 if linear or knn already
            need the features of all training images, otherwise 3.
        rates: Learning rates to choose from, for the linear, attentive and segmentation probes.
        steps: Training steps of the linear, attentive and segmentation probes.
        batch: Batch size of the linear, attentive and segmentation probes.
        neighbors: Number of neighbours (k) of the k-NN probe.
        views: Random views of each image for lidar. Its paper uses 50.
        token_images: Training images that the attentive probe learns from, drawn at random but
            always the same. Their tokens are held in memory, so lower this if memory runs out.
            null: all.
        find_copies: In an evaluation, find test images that are resized, recompressed, cropped or
            mirrored copies of training images, and measure the accuracies also without these
            images.
        mask_images: Training images that segmentation learns from, drawn at random but always the
            same. null: all.
    """

    every: Steps | None = key(None, effect="result")
    images: Count = key(2000, effect="result")
    measures: list[Annotated[str, NamedChoice(lambda: MEASURES)]] = key(
        ["few_shot", "linear", "knn"]
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
    views: int = key(50, ge=2, le=1000)
    token_images: Count | None = key(50_000)
    mask_images: Count | None = key(5000)
    find_copies: bool = key(False, requires=("objective", "probe"))

    def metrics_of(self, measures: Iterable[str]) -> list[str]:
        """Return the names of the metrics that some measures produce, such as few_shot_5.

        With shots=[1,5], the measure few_shot gives few_shot_1 and few_shot_5, for example.
        """
        names = []
        for measure in measures:
            for name in MEASURES[measure].metrics:
                # [0] yields the name once: it has no "*" to replace
                numbers = self.shots if "*" in name else [0]
                names += [name.replace("*", str(number)) for number in numbers]
        return names

    def measures_that_read(self, *what: Reads) -> list[str]:
        """Return the measures of this run that read any of `what`, in the order of MEASURES.

        Args:
            what: Inputs of measures, such as "feature" or "mask".
        """
        return [name for name in MEASURES if name in self.measures and MEASURES[name].reads in what]

    def needs(self, measure: str) -> tuple[int, int]:
        """Return how many views of an image (0: the image itself) and images a measure reads.

        Args:
            measure: A measure without labels. 0 images are all images.
        """
        views, images = MEASURES[measure].views, MEASURES[measure].images
        return self.views if views is None else views, images

    def count_without_labels(self, images: int) -> int:
        """Return how many images and views the measures without labels send through the encoder.

        Args:
            images: Number of images of the split.
        """
        # Measures that need the same images and views share features
        needed = {self.needs(name) for name in self.measures_that_read("views")}
        return sum(max(1, views) * min(images, most or images) for views, most in needed)
