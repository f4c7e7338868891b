"""The attentive probe of an evaluation: on which images it learns, chooses and is measured."""

import torch
from torch import Tensor

from ..data import masks
from ..data.source import Source, labelled_images
from ..errors import UserError
from ..evaluation import attentive, features
from ..evaluation.beside import ENCODER
from ..evaluation.probes import best_rate
from ..formatting import count_of_images, format_bytes
from ..models.encoder import Backbone, Encoder
from ..training.distributed import broadcast_from_main, on_main
from . import resources
from .evaluation_images import EvaluationImages


def images_read(images: EvaluationImages) -> int:
    """The number of images whose tokens `measure` computes."""
    assert images.splits.test is not None
    return len(_train(images)) + len(images.splits.validation) + len(images.splits.test)


def describe(network: Backbone, images: EvaluationImages) -> str:
    """What it learns from and holds in memory, for the terminal."""
    assert isinstance(network, Encoder)  # recipe/check.py refuses others
    count, tokens = len(_train(images)), network.patches + network.prefix
    held = format_bytes(attentive.stored_bytes(count, tokens, network.width))
    return f"learns from {count_of_images(count)}: {tokens} tokens each, {held} in memory"


def measure(network: Backbone, images: EvaluationImages) -> Tensor:
    """Whether the probe is right of each test image: bool (1, M), in the order of the split, on the
    CPU. All processes call it.

    Raises:
        UserError: the tokens of the training images do not fit into memory, or every rate diverges.
    """
    assert isinstance(network, Encoder)
    probe, accelerator = images.recipe.probe, images.accelerator

    @torch.no_grad()
    def read(image_BCHW: Tensor) -> Tensor:
        """Tokens (B, T, D), rounded alike for all splits: where training tokens are rounded to
        one value, others would be far from it. Autocast is for the encoder alone."""
        with images.autocast():
            return attentive.stored(network.tokens(image_BCHW.to(accelerator.device), probe.layer))

    def classify(source: Source, fitted: attentive.AttentiveProbe) -> features.Features:
        """Each rate's class (M, G) of the labelled images, and their label (M,)."""
        readers = {ENCODER: lambda image: fitted.logits(read(image).float()).argmax(2)}
        return features.extract(readers, images.batches(source), accelerator)[ENCODER]

    train = _train(images)
    shape = network.patches + network.prefix, network.width
    on_main(accelerator, lambda: _check_memory(len(train), *shape))
    tokens = attentive.extract(read, images.batches(train), len(train), accelerator)

    def fit() -> attentive.AttentiveProbe:
        assert tokens is not None
        found = attentive.train(
            tokens,
            heads=images.recipe.model.heads,
            classes=images.classes,
            rates=probe.rates,
            steps=probe.steps,
            batch=probe.batch,
            device=accelerator.device,
        )
        return found.to(torch.device("cpu"))

    fitted = broadcast_from_main(accelerator, fit).to(accelerator.device)
    dev_KG, dev_label_K = classify(images.splits.validation, fitted)
    right_G = (dev_KG == dev_label_K[:, None]).double().mean(0).tolist()
    best = best_rate("attentive", probe.rates, right_G, fitted.weight_GHAC.flatten(1, 2))
    assert images.splits.test is not None
    predicted_M1, label_M = classify(images.splits.test, fitted.only(best))
    return (predicted_M1[:, 0] == label_M)[None].cpu()


def _train(images: EvaluationImages) -> Source:
    return masks.chosen(labelled_images(images.splits.train), images.recipe.probe.token_images)


def _check_memory(count: int, tokens: int, width: int) -> None:
    """
    Raises:
        UserError: the tokens of so many images take more than half of this process's memory.
    """
    most = int(resources.host_memory() / 2 / attentive.stored_bytes(1, tokens, width))
    if count > most:
        held = format_bytes(attentive.stored_bytes(count, tokens, width))
        text = f"{tokens} tokens of each of {count_of_images(count)} take {held} of memory"
        raise UserError(f"probe.measures=attentive: {text}; expected probe.token_images={most}")
