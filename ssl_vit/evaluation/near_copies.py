"""Find test images that are copies of training images: resized, recompressed, cropped or mirrored.

Each image is squashed to a thumbnail. A test image, and the same image mirrored, is compared with
the training images in two steps:

1. The training images that look most alike are the candidates. For this, the grey 8 x 8 pixels of
   one image are correlated with the grey 8 x 8 pixels of crops of the other image.
2. For each candidate, the best crop is moved to where it fits best. The two images are copies if
   their pixels are correlated and their details, without the coarse shapes, are correlated, too.

Images with equal thumbnails are copies in any case. An image of a single colour has no details.

Legend: M test images, N training images, P pairs, K candidates of a test image, V crops, G pixels,
S side of a thumbnail, F side of a fitted crop, C channels.
"""

import hashlib
import itertools
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..data.contents import READ_AT_ONCE
from ..data.pixel_values import decoder, shown_image
from ..data.source import Source
from ..recipe.schema import Data

SIDE, FINE, COARSE = 32, 16, 8  # sides in pixels: of thumbnails, of fitted crops, of candidates
CANDIDATES = 5  # training images that are fitted to each test image
# Test images, and training images, that are compared at a time. This limits the memory, and the
# correlations fit into the cache of a CPU.
IMAGES_AT_ONCE = 512
# Least correlation of a candidate, and least similarity of a copy (chosen by benchmarks/copies.py)
ALIKE, COPY = 0.85, 0.9
STEPS = 2 * (0.04,) + 2 * (0.02,) + 2 * (0.01,)  # shares of an image by which edges are moved
BLUR = 5  # side of the square around a pixel whose mean is subtracted, in pixels
# Crops to try: top, bottom, left and right edge as shares of the image. The first is the whole
# image. The smallest show 70% of an image.
_EDGES = [(start / 10, end / 10) for start in range(4) for end in range(10, start + 6, -1)]
CROPS = [
    (*vertical, *horizontal)
    for vertical, horizontal in itertools.product(_EDGES, _EDGES)
    if (vertical[1] - vertical[0]) * (horizontal[1] - horizontal[0]) > 0.67
]


class Thumbnails(NamedTuple):
    """Thumbnails of the images that can be read, uint8 (N, 3, S, S), and their rows (N,)."""

    image_N3SS: Tensor
    row_N: np.ndarray


class CopyPair(NamedTuple):
    """Row of a test image, row of the training image that is a copy, and how alike they are."""

    test: int
    train: int
    similarity: float


def read_thumbnails(source: Source, data: Data) -> Thumbnails:
    """Read the images of a split, without the images that cannot be read.

    Args:
        source: Images.
        data: Options that say how pixels are read.
    """
    decode = decoder(data)
    images, rows = [torch.empty(0, 3, SIDE, SIDE, dtype=torch.uint8)], []
    for batch in np.split(np.arange(len(source)), range(READ_AT_ONCE, len(source), READ_AT_ONCE)):
        for row, raw in zip(batch.tolist(), source.fetch(batch)[0], strict=True):
            with suppress(ValueError):
                image_13HW = shown_image(decode(raw)[None], data.pixel_range).float()
                size = (SIDE, SIDE)
                small = F.interpolate(image_13HW, size, mode="bilinear", antialias=True)
                images.append(small.round().byte())
                rows.append(row)
    return Thumbnails(torch.cat(images), np.array(rows, np.int64))


def find_copies(test: Thumbnails, train: Thumbnails, device: torch.device) -> list[CopyPair]:
    """Return each test image that is a copy of a training image, with the most similar one.

    Args:
        test: Test images.
        train: Training images.
        device: Device that compares the images.
    """
    pairs = [CopyPair(*rows, 1.0) for rows in _find_equal(test, train)]
    equal = {pair.test for pair in pairs}
    for start in range(0, len(test.row_N), IMAGES_AT_ONCE):
        test_M3SS = test.image_N3SS[start : start + IMAGES_AT_ONCE].to(device)
        test_P, train_P = _find_candidates(test_M3SS, train.image_N3SS)
        pictures_P = train.image_N3SS[train_P.cpu()].to(device)
        similarity_P = _compare_details(test_M3SS[test_P], pictures_P)
        # The pairs of a test image in ascending order: the last is the most similar
        best = {
            int(test_P[pair]): pair
            for pair in similarity_P.argsort(stable=True).tolist()
            if similarity_P[pair] >= COPY
        }
        for row, pair in sorted(best.items()):
            rows = test.row_N[start + row], train.row_N[int(train_P[pair])]
            if int(rows[0]) not in equal:
                pairs.append(CopyPair(int(rows[0]), int(rows[1]), float(similarity_P[pair])))
    return sorted(pairs)


def _find_equal(test: Thumbnails, train: Thumbnails) -> Iterator[tuple[int, int]]:
    """Yield the rows of a test image and of the first training image with an equal thumbnail.

    The thumbnail of the test image may also be mirrored.
    """
    rows_of_train: dict[bytes, int] = {}
    for image_3SS, row in zip(train.image_N3SS, train.row_N.tolist(), strict=True):
        rows_of_train.setdefault(_hash(image_3SS), row)
    for image_3SS, row in zip(test.image_N3SS, test.row_N.tolist(), strict=True):
        for pixels_3SS in (image_3SS, image_3SS.flip(-1)):
            equal = rows_of_train.get(_hash(pixels_3SS))
            if equal is not None:
                yield row, equal
                break


def _hash(image_3SS: Tensor) -> bytes:
    return hashlib.sha256(image_3SS.numpy().tobytes()).digest()


def _find_candidates(test_M3SS: Tensor, train_N3SS: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of test and training images that look alike, two tensors (P,)."""
    views_of_test = [_describe_crops(image_M3SS) for image_M3SS in (test_M3SS, test_M3SS.flip(-1))]
    best_MK = torch.empty(len(test_M3SS), 0, device=test_M3SS.device)
    row_MK = best_MK.long()
    for start in range(0, len(train_N3SS), IMAGES_AT_ONCE):
        part_N3SS = train_N3SS[start : start + IMAGES_AT_ONCE].to(test_M3SS.device)
        train_VNG = _describe_crops(part_N3SS)
        similarity_MN = torch.full((len(test_M3SS), len(part_N3SS)), -1.0).to(test_M3SS.device)
        for test_VMG in views_of_test:
            for view in range(len(CROPS)):
                for one_MG, other_NG in (
                    (test_VMG[0], train_VNG[view]),
                    (test_VMG[view], train_VNG[0]),
                ):
                    similarity_MN = torch.maximum(similarity_MN, one_MG @ other_NG.T)
        row_MN = torch.arange(start, start + len(part_N3SS)).to(row_MK).expand_as(similarity_MN)
        best_MK = torch.cat([best_MK, similarity_MN], 1)
        row_MK = torch.cat([row_MK, row_MN], 1)
        best_MK, kept_MK = best_MK.topk(min(CANDIDATES, best_MK.shape[1]), dim=1)
        row_MK = row_MK.gather(1, kept_MK)
    test_P, candidate_P = torch.where(best_MK >= ALIKE)
    return test_P, row_MK[test_P, candidate_P]


def _describe_crops(image_P3SS: Tensor) -> Tensor:
    """Return the grey pixels of each crop of each image, normalised for correlations (V, P, G)."""
    grey_P1SS = image_P3SS.float().mean(1, keepdim=True)
    boxes_V4 = torch.tensor(CROPS, device=grey_P1SS.device)
    return torch.stack([_normalise(_crop(grey_P1SS, box_4[None], COARSE)) for box_4 in boxes_V4])


def _normalise(image_PCSS: Tensor) -> Tensor:
    """Return pixels (P, G) with mean 0 and length 1. Images of a single colour become 0."""
    pixel_PG = image_PCSS.flatten(1)
    centred_PG = pixel_PG - pixel_PG.mean(1, keepdim=True)
    return centred_PG / centred_PG.norm(dim=1, keepdim=True).clamp(min=1)


def _crop(image_PCSS: Tensor, box_P4: Tensor, side: int) -> Tensor:
    """Cut a box out of each image, and shrink or enlarge it to `side` pixels by means of areas."""
    pixels = image_PCSS.shape[-1]
    pixel_S = torch.arange(pixels, device=box_P4.device)
    cell = torch.linspace(0, 1, side + 1, device=box_P4.device)

    def weights(start_P: Tensor, end_P: Tensor) -> Tensor:
        """Return which share of each cell of the result is from each pixel, (P, 1, side, S)."""
        edge_P1 = pixels * torch.lerp(start_P[:, None], end_P[:, None], cell)[:, :, None]
        low, high = edge_P1[:, :-1], edge_P1[:, 1:]
        overlap = torch.minimum(high, pixel_S + 1) - torch.maximum(low, pixel_S)
        return (overlap.clamp(min=0) / (high - low))[:, None]

    top_P, bottom_P, left_P, right_P = box_P4.T
    return weights(top_P, bottom_P) @ image_PCSS @ weights(left_P, right_P).mT


def _compare_details(test_P3SS: Tensor, train_P3SS: Tensor) -> Tensor:
    """Return how similar the images of each pair are, (P,), at most 1."""
    similarity_P = torch.full((len(test_P3SS),), -1.0, device=test_P3SS.device)
    for flipped_P3SS in (test_P3SS, test_P3SS.flip(-1)):
        for whole, cropped in ((flipped_P3SS, train_P3SS), (train_P3SS, flipped_P3SS)):
            whole_PG, views_VPG = _describe_crops(whole)[0], _describe_crops(cropped)
            alike_P, view_P = (views_VPG * whole_PG).sum(2).max(0)
            chosen = torch.where(alike_P >= ALIKE)[0]
            box_P4 = torch.tensor(CROPS, device=view_P.device)[view_P[chosen]]
            fitted_P = _fit_crops(whole[chosen].float(), cropped[chosen].float(), box_P4)
            similarity_P[chosen] = torch.maximum(similarity_P[chosen], fitted_P)
    return similarity_P


def _fit_crops(whole_P3SS: Tensor, cropped_P3SS: Tensor, box_P4: Tensor) -> Tensor:
    """Move the edges of each crop until it fits the whole other image, and return the similarity.

    One edge at a time is moved, if the pixels of the two images then are more correlated.

    Args:
        whole_P3SS: Images, float32.
        cropped_P3SS: Images to cut the crops out of, float32.
        box_P4: First crop of each pair, as in CROPS.

    Returns:
        Mean of the correlation of the pixels and the correlation of the details, (P,). The details
        are the differences from a blurred image.
    """
    whole_box = box_P4.new_tensor([CROPS[0]])
    grey_P1SS = cropped_P3SS.mean(1, keepdim=True)
    target_PG = _normalise(_crop(whole_P3SS.mean(1, keepdim=True), whole_box, FINE))

    def fit(box_P4: Tensor) -> Tensor:
        """Return the correlation of the grey pixels, (P,)."""
        return (_normalise(_crop(grey_P1SS, box_P4, FINE)) * target_PG).sum(1)

    best_P = fit(box_P4)
    for step, edge, sign in itertools.product(STEPS, range(4), (-1, 1)):
        moved_P4 = box_P4.clone()
        moved_P4[:, edge] = (moved_P4[:, edge] + sign * step).clamp(0, 1)
        fit_P = fit(moved_P4)
        box_P4 = torch.where((fit_P > best_P)[:, None], moved_P4, box_P4)
        best_P = torch.maximum(best_P, fit_P)
    whole_P3FF = _crop(whole_P3SS, whole_box, FINE)
    fitted_P3FF = _crop(cropped_P3SS, box_P4, FINE)
    correlation_P = (_normalise(whole_P3FF) * _normalise(fitted_P3FF)).sum(1)
    details_P = (_details(whole_P3FF) * _details(fitted_P3FF)).sum(1)
    return (correlation_P + details_P) / 2


def _details(image_P3FF: Tensor) -> Tensor:
    """Return what is left of the grey pixels without coarse shapes, normalised (P, G).

    The mean of the pixels around each pixel is subtracted. Then the means of the rows and of the
    columns are subtracted, because many photographs have a frame or a horizon in the same place.
    """
    grey_P1FF = image_P3FF.mean(1, keepdim=True)
    margin = BLUR // 2
    detail_P1FF = grey_P1FF - F.avg_pool2d(grey_P1FF, BLUR, 1, margin, count_include_pad=False)
    means = detail_P1FF.mean(2, keepdim=True) + detail_P1FF.mean(3, keepdim=True)
    return _normalise(detail_P1FF - means)
