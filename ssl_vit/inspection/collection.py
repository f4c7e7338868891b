"""The figures of an encoder: how each is computed and drawn. To add one: two functions and a line
in FIGURES."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from einops import rearrange
from matplotlib.figure import Figure
from torch import Tensor

from ..data.pixel_values import shown_image
from ..objectives import corruption, reconstruction
from ..objectives.patches import PatchPrediction
from . import attention, embeddings, plots, projections
from .base import (
    Arrays,
    OtherFigureError,
    Subject,
    UnavailableError,
    UnknownError,
    predictions,
)

DISTANCE_IMAGES = 128  # that attention distances are averaged over, at most (paper, D.7)


class FigureKind(NamedTuple):
    """`compute` gives the data of one encoder, or raises UnavailableError; `draw` takes those of
    fresh weights and of the encoder, each with its label."""

    compute: Callable[[Subject], Arrays]
    draw: Callable[[Sequence[tuple[str, Arrays]]], Figure]


def _images(subject: Subject) -> np.ndarray:
    """The images that are shown: uint8 (B, H, W, 3)."""
    image_B3HW = shown_image(subject.shown.image, subject.encoder.pixel_range)
    return rearrange(image_B3HW, "b c h w -> b h w c").cpu().numpy()


def _first(subject: Subject, most: int) -> Iterator[Tensor]:
    """The first `most` images that statistics are computed over, in batches (B, 3, H, W)."""
    for batch in subject.batches:
        if most > 0:
            yield batch.image[:most]
        most -= len(batch.image)


def _filters(subject: Subject) -> Arrays:
    found = embeddings.filter_components(subject.encoder)
    return {
        "components": found.component_KPPC.cpu().numpy(),
        "variance": found.variance_K.cpu().numpy(),
    }


def _positions(subject: Subject) -> Arrays:
    found = embeddings.position_similarity(subject.encoder)
    rows, columns = subject.encoder.grid
    similarity_NN = found.patch_NN.cpu().numpy()
    arrays: dict[str, np.ndarray] = {}
    arrays["patches"] = similarity_NN.reshape(rows, columns, rows, columns)
    if found.class_N is not None:
        arrays["class"] = found.class_N.cpu().numpy().reshape(rows, columns)
    return arrays


def _attention_distance(subject: Subject) -> Arrays:
    encoder = subject.encoder
    distance_NN = attention.patch_distances(encoder.grid, encoder.patch_size)
    distance_NN = distance_NN.to(subject.shown.image.device)
    parts = []
    for image_B3HW in _first(subject, DISTANCE_IMAGES):
        maps = attention.attention_maps(encoder, image_B3HW)
        distances_BH = [attention.attention_distance(one, distance_NN) for one in maps]
        parts.append(torch.stack(distances_BH, 1))
    distance_BLH = torch.cat(parts)
    return {
        "distance": distance_BLH.nanmean(0).cpu().numpy(),
        "uniform": distance_NN.mean().cpu().numpy(),
        "images": np.array(len(distance_BLH)),
    }


def _attention_rollout(subject: Subject) -> Arrays:
    encoder = subject.encoder
    rolled_BTT = attention.rollout(attention.attention_maps(encoder, subject.shown.image))
    pool = subject.pool if encoder.has_class_token else "avg"
    share_BN = attention.feature_rollout(rolled_BTT, encoder.prefix, pool)
    return {
        "images": _images(subject),
        "rollout": share_BN.unflatten(1, encoder.grid).cpu().numpy(),
        "pool": np.array(pool),
    }


def _class_attention(subject: Subject) -> Arrays:
    encoder = subject.encoder
    if not encoder.has_class_token:
        raise UnavailableError("it has no class token")
    *_, last_BHTT = attention.attention_maps(encoder, subject.shown.image)
    read_BHN = last_BHTT[:, :, 0, encoder.prefix :]
    return {
        "images": _images(subject),
        "attention": read_BHN.unflatten(2, encoder.grid).cpu().numpy(),
        "pool": np.array(subject.pool),
    }


@torch.no_grad()
def _feature_map(subject: Subject) -> Arrays:
    encoder = subject.encoder

    def patches(image_B3HW: Tensor) -> Tensor:
        return encoder(encoder.patch(image_B3HW))[:, encoder.prefix :]

    most = max(len(subject.shown.image), projections.FITTED // encoder.patches)
    sample_ND = torch.cat([patches(image).flatten(0, 1) for image in _first(subject, most)])
    found = projections.patch_colors(sample_ND, patches(subject.shown.image))
    return {
        "images": _images(subject),
        "colors": found.color_BP3.unflatten(1, encoder.grid).cpu().numpy(),
        "variance": found.variance_3.cpu().numpy(),
    }


@torch.no_grad()
def _image_map(subject: Subject) -> Arrays:
    pool = subject.pool if subject.encoder.has_class_token else "avg"
    parts = [subject.encoder.feature(batch.image, pool) for batch in subject.batches]
    found = projections.image_map(torch.cat(parts))
    return {
        "tsne": found.tsne_B2.numpy(),
        "components": found.components_B2.numpy(),
        "variance": found.variance_2.numpy(),
        "label": torch.cat([batch.label for batch in subject.batches]).cpu().numpy(),
        "classes": np.array(subject.classes, dtype=np.str_),
        "pool": np.array(pool),
    }


def _predicted(subject: Subject) -> Arrays:
    """Of objectives whose figure is no reconstruction."""
    if subject.unknown:
        raise UnknownError(subject.unknown)
    if isinstance(subject.objective, PatchPrediction):
        raise OtherFigureError("figure reconstruction shows its predictions")
    if subject.objective is None:
        raise UnavailableError("its objective has no figure of its own")
    return predictions(subject.objective, subject.shown)


def _reconstruction(subject: Subject) -> Arrays:
    if subject.unknown:
        raise UnknownError(subject.unknown)
    if subject.objective is None:
        raise UnavailableError("it has no heads that predict patches")
    if not isinstance(subject.objective, PatchPrediction):
        raise OtherFigureError("figure predicted shows what it predicts")
    found = reconstruction.reconstruct(subject.objective, subject.shown)
    kind_BRC = found.kind_BN.unflatten(1, subject.encoder.grid).cpu().numpy()
    arrays = {
        "panels": rearrange(found.panels_B43HW, "b v c h w -> b v h w c").cpu().numpy(),
        "masked": kind_BRC == corruption.MASK,
        "random": kind_BRC == corruption.RANDOM,
        "kept": kind_BRC == corruption.KEEP,
        "error": found.error_BHW.cpu().numpy(),
        "drawn": np.array(subject.objective.target.drawn),
    }
    if found.certainty_BHW is not None:
        arrays["certainty"] = found.certainty_BHW.cpu().numpy()
    return arrays


def caption_end(name: str, data: plots.Labelled) -> str:
    """What a figure's caption says of this encoder beside what it says of all."""
    if name != "reconstruction":
        return ""
    ((_, arrays),) = data
    certain = "certainty" in arrays
    texts = ["certainty: the probability that the model gives its prediction"] if certain else []
    return "; ".join([*texts, *filter(None, [plots.how_drawn(arrays)])])


# name of the files -> the figure
FIGURES = {
    "filters": FigureKind(_filters, plots.filters),
    "positions": FigureKind(_positions, plots.positions),
    "attention_distance": FigureKind(_attention_distance, plots.attention_distance),
    "attention_rollout": FigureKind(_attention_rollout, plots.attention_rollout),
    "class_attention": FigureKind(_class_attention, plots.class_attention),
    "feature_map": FigureKind(_feature_map, plots.feature_map),
    "image_map": FigureKind(_image_map, plots.image_map),
    "reconstruction": FigureKind(_reconstruction, plots.reconstruction),
    "predicted": FigureKind(_predicted, plots.predicted),
}
