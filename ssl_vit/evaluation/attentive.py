"""Measure an encoder by an attentive probe.

Learned queries, one for each of the encoder's heads, weigh the tokens of an image, and a linear
layer reads the weighted means. The probe is that of CAPI (Darcet et al., 2025) without projections,
as in efficient probing (Psomas et al., 2026): the query of a head absorbs the projection of the
keys, and the linear layer absorbs the projection of the values, here of full rank. SGD,
standardised tokens and zero initial weights are the same as for the linear probe.

Legend: N training images, M test images, K held-out images, B images of a batch, T tokens, prefix
first, D width, A width and constant, H heads, C classes, G learning rates.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from ..data import masks
from ..data.batching import Batch
from ..data.source import Source, labelled_images
from ..errors import UserError
from ..formatting import format_bytes, format_image_count
from ..models.encoder import Backbone, Encoder
from ..recipe.probe import Probe
from ..recipe.records.run import Copies
from ..runs import console, environment
from ..training.distributed import WatchedAccelerator, broadcast_from_main, on_main
from . import features, probes
from .features import ENCODER, Reader
from .images import EvaluationImages
from .probes import SEED, Scale

UNREAD = -1  # label of a training image that could not be read
STORAGE_TYPE = torch.float16  # type of tokens in memory; bfloat16 would round off small deviations


def describe(network: Backbone, images: EvaluationImages) -> str:
    """Describe the training images and the memory of their tokens, for the terminal."""
    assert isinstance(network, Encoder)  # recipe/check.py refuses convolutional networks
    train_images = len(_train(images))
    tokens = network.patches + network.prefix
    size = format_bytes(token_bytes(train_images, tokens, network.width))
    return (
        f"learns from {format_image_count(train_images)} with {tokens} tokens each ({size} in"
        " memory)"
    )


def measure(
    network: Backbone, images: EvaluationImages, name: str = ENCODER
) -> tuple[Tensor, Tensor, Copies | None]:
    """Train the probe on an encoder, and classify the test images. Collective.

    Rank 0 trains the probe at each learning rate. The rate with the highest accuracy on held-out
    images is used.

    Args:
        network: Encoder or baseline, a Vision Transformer.
        images: Images of the evaluation.
        name: ENCODER, or the name of the baseline.

    Returns:
        Three values. The first says for each test image whether the probe classifies the image
        correctly: bool (1, M), in the order of the split, on the CPU. The second says the same for
        always naming the commonest class. The third has counts of repeated test images. None: all
        test images are distinct.

    Raises:
        UserError: The tokens of the training images do not fit into memory, tokens are not finite,
            or training diverges at every rate.
    """
    assert isinstance(network, Encoder)
    probe, accelerator = images.recipe.probe, images.accelerator

    @torch.no_grad()
    def tokens_of(image_BCHW: Tensor) -> Tensor:
        """Return tokens (B, T, D), with autocast for the encoder only."""
        with images.autocast():
            return network.tokens(image_BCHW.to(accelerator.device), probe.layer).float()

    checked = features.CheckedReader(name, tokens_of, accelerator)

    def read(image_BCHW: Tensor) -> Tensor:
        """Return tokens (B, T, D), rounded to STORAGE_TYPE in every split.

        Rounding can make nearly equal training tokens equal, so that their standard deviation is
        0. Tokens of other splits that were not rounded would then be very large after
        standardisation.
        """
        return to_storage_type(checked(image_BCHW))

    def classify(source: Source, fitted: AttentiveProbe) -> tuple[features.Features, Copies | None]:
        """Classify the labelled images of a split by the probe of each learning rate.

        Args:
            source: Split with M labelled images.
            fitted: Probes of G learning rates.

        Returns:
            The predicted classes (M, G) with the true labels (M,), and counts of repeated images.
        """

        def predict_classes(image_BCHW: Tensor) -> Tensor:
            """Return the class (B, G) that each learning rate's probe predicts for each image."""
            return fitted.logits(read(image_BCHW).float()).argmax(2)

        # This function gathers what a reader returns. Here, the "features" are predicted classes
        predicted, copies = features.extract_labelled_features(
            {name: predict_classes}, images.read_batches(source), accelerator
        )
        checked.check()
        return predicted[name], copies

    train_source = _train(images)
    tokens_per_image, width = network.patches + network.prefix, network.width
    on_main(accelerator, lambda: _check_memory(len(train_source), tokens_per_image, width))
    tokens = extract(read, images.read_batches(train_source), len(train_source), accelerator)
    checked.check()

    def fit() -> AttentiveProbe:
        assert tokens is not None  # on rank 0, the only rank that calls `fit`
        heads, device = images.recipe.model.heads, accelerator.device
        return train(tokens, heads, images.classes, probe, device).to(torch.device("cpu"))

    fitted = broadcast_from_main(accelerator, fit).to(accelerator.device)
    (predicted_KG, label_K), _ = classify(images.splits.validation, fitted)
    accuracy_G = (predicted_KG == label_K[:, None]).double().mean(0).tolist()
    best = probes.best_rate("attentive", probe.rates, accuracy_G, fitted.weight_GHAC.flatten(1, 2))
    (predicted_M1, label_M), copies = classify(images.test, fitted.only(best))
    right_1M = (predicted_M1[:, 0] == label_M)[None].cpu()
    return right_1M, features.is_commonest(label_M), copies


def _train(images: EvaluationImages) -> Source:
    """Return the labelled training images, at most probe.token_images of them."""
    return masks.choose_images(
        labelled_images(images.splits.train), images.recipe.probe.token_images
    )


def _check_memory(images: int, tokens: int, width: int) -> None:
    """Check that the tokens of the training images fit into half of this process's memory.

    Args:
        images: Number of training images.
        tokens: Tokens of an image.
        width: Width of a token.

    Raises:
        UserError: The tokens do not fit. The message says how many images fit.
    """
    fitting = int(environment.host_memory() / 2 / token_bytes(1, tokens, width))
    if images > fitting:
        size = format_bytes(token_bytes(images, tokens, width))
        raise UserError(
            f"probe.measures=attentive: {format_image_count(images)} with {tokens} tokens each take"
            f" {size} of memory. Use probe.token_images={fitting}."
        )


class TrainingTokens(NamedTuple):
    """Tokens (N, T, D) in STORAGE_TYPE and labels int64 (N,) of training images, on the CPU."""

    x_NTD: Tensor
    label_N: Tensor


class AttentiveProbe(NamedTuple):
    """Attentive probes of G learning rates: queries and linear layers.

    Attributes:
        scale: Mean and standard deviation of the training tokens.
        query_GHD: Queries, one for each head.
        weight_GHAC: Weights of the linear layers, with a bias for each head.
    """

    scale: Scale
    query_GHD: Tensor
    weight_GHAC: Tensor

    def to(self, device: torch.device) -> "AttentiveProbe":
        query_GHD, weight_GHAC = self.query_GHD.to(device), self.weight_GHAC.to(device)
        return AttentiveProbe(self.scale.to(device), query_GHD, weight_GHAC)

    def only(self, rate: int) -> "AttentiveProbe":
        """Return the probe of the learning rate with index `rate`, so that G is 1."""
        rows = slice(rate, rate + 1)
        return AttentiveProbe(self.scale, self.query_GHD[rows], self.weight_GHAC[rows])

    def logits(self, x_BTD: Tensor) -> Tensor:
        """Return the class scores (B, G, C) of B images at each of G learning rates.

        A head weighs the tokens x_t of an image by softmax_t(query . (x_t / std) / sqrt(D)), where
        std is the standard deviation of the training tokens. The weighted mean of the tokens is
        standardised and multiplied by the head's weights (A, C). The class scores are summed over
        the heads.

        Args:
            x_BTD: Tokens of the images, float32 (B images, T tokens, D channels).
        """
        # The mean of the training tokens is not subtracted before the softmax, because it would add
        # the same number to the scores of all tokens of an image
        scaled_GHD = self.query_GHD / (math.sqrt(x_BTD.shape[2]) * self.scale.std.to(x_BTD))
        attention_BTF = (x_BTD @ scaled_GHD.flatten(0, 1).T).softmax(1)  # F = G H
        mean_BGHD = (attention_BTF.mT @ x_BTD).unflatten(1, self.query_GHD.shape[:2])
        # The constant 1 that is appended to the means multiplies the bias, the last row of weights
        mean_BGHA = self.scale(mean_BGHD, constant=1.0)
        return torch.einsum("bgha,ghac->bgc", mean_BGHA, self.weight_GHAC)


def to_storage_type(x_BTD: Tensor) -> Tensor:
    """Convert tokens to STORAGE_TYPE (float16).

    Values beyond the range of float16 are clamped. Only tokens from before the final norm have such
    values.
    """
    largest = torch.finfo(STORAGE_TYPE).max
    return x_BTD.float().clamp(-largest, largest).to(STORAGE_TYPE)


def token_bytes(images: int, tokens: int, width: int) -> int:
    """Return the number of bytes in memory for the tokens of some images."""
    return images * tokens * width * STORAGE_TYPE.itemsize


def extract(
    read: Reader, batches: Iterable[Batch], images: int, accelerator: WatchedAccelerator
) -> TrainingTokens | None:
    """Gather the tokens of all processes' batches on rank 0, in the order of the split.

    Args:
        read: Takes images (B, 3, H, W) and returns tokens (B, T, D) in STORAGE_TYPE.
        batches: Batches of this process.
        images: Number of images of all processes, including unreadable images.
        accelerator: Processes that read images.

    Returns:
        The tokens of all readable images on rank 0, None on other ranks.
    """
    batch_tokens = [(batch.index, batch.label, read(batch.image).cpu()) for batch in batches]
    tokens: TrainingTokens | None = None
    # Gathering is collective. A process with fewer batches than others gathers empty lists
    most_batches = max(accelerator.gather_parts([len(batch_tokens)]))
    # Gather batch by batch and drop gathered batches, so that memory never holds all tokens twice
    for _ in range(most_batches):
        next_batch, batch_tokens = batch_tokens[:1], batch_tokens[1:]
        for index_B, label_B, x_BTD in accelerator.gather_parts(next_batch):
            if not accelerator.is_main_process:
                continue
            if tokens is None:
                x_NTD = torch.empty(images, *x_BTD.shape[1:], dtype=STORAGE_TYPE)
                tokens = TrainingTokens(x_NTD, torch.full((images,), UNREAD))
            tokens.x_NTD[index_B] = x_BTD
            tokens.label_N[index_B] = label_B
    if tokens is None:
        return None
    is_read_N = tokens.label_N != UNREAD
    if is_read_N.all():  # skip the indexing below, which would copy all tokens
        return tokens
    return TrainingTokens(tokens.x_NTD[is_read_N], tokens.label_N[is_read_N])


def train(
    tokens: TrainingTokens, heads: int, classes: int, probe: Probe, device: torch.device
) -> AttentiveProbe:
    """Train a probe by SGD with momentum and cosine decay, once for each learning rate.

    The loss is the mean cross-entropy. Queries start from a normal distribution and linear layers
    from zero. All rates start from the same queries and see the same batches
    (`probes.rows_of_batch`).

    Args:
        tokens: Training images.
        heads: Number of queries H.
        classes: Number of classes C.
        probe: Learning rates, steps and batch size.
        device: Device to train on.

    Returns:
        The probe with the weights of all rates, on `device`.
    """
    x_NTD, label_N = tokens
    width, rates, batch = x_NTD.shape[2], len(probe.rates), probe.batch
    scale = probes.mean_and_std(x_NTD.flatten(0, 1)).to(device)
    query_HD = torch.randn(heads, width, generator=torch.Generator().manual_seed(SEED))
    weight_HAC = torch.zeros(heads, width + 1, classes)
    # Each rate trains its own copy of the queries and weights
    queries = [query_HD.to(device, copy=True).requires_grad_() for _ in probe.rates]
    weights = [weight_HAC.to(device, copy=True).requires_grad_() for _ in probe.rates]
    parameter_groups = [
        {"params": [query, weight], "lr": rate}
        for query, weight, rate in zip(queries, weights, probe.rates, strict=True)
    ]
    optimiser = torch.optim.SGD(parameter_groups, momentum=probes.MOMENTUM)
    schedule = LambdaLR(optimiser, lambda step: 0.5 * (1 + math.cos(math.pi * step / probe.steps)))
    elements_per_image = max(x_NTD[0].numel(), rates * query_HD.numel())
    # Split a batch, so that a temporary tensor has at most ELEMENTS values. The gradients of the
    # parts add up
    images_at_once = max(1, probes.ELEMENTS // elements_per_image)
    for step in console.with_progress(
        range(probe.steps), probe.steps, "steps of the attentive probe"
    ):
        row_B = probes.rows_of_batch(step, batch, len(label_N))
        for rows in row_B.split(images_at_once):
            stacked = AttentiveProbe(scale, torch.stack(queries), torch.stack(weights))
            logits_BGC = stacked.logits(x_NTD[rows].to(device, torch.float32))
            label_BG = label_N[rows, None].to(device).expand(-1, rates)
            # The loss of a rate depends only on the rate's own queries and weights, so the gradient
            # of the sum over all rates gives each rate the gradient of the rate's own loss
            loss = F.cross_entropy(logits_BGC.mT, label_BG, reduction="sum") / batch
            loss.backward()
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
    return AttentiveProbe(scale, torch.stack(queries).detach(), torch.stack(weights).detach())
