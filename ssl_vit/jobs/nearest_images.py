"""The images nearest to a query: as lines, and as a page with the images themselves."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from ..config.schema import Data
from ..data.base import Source
from ..data.channels import decoder
from ..data.pixel_values import shown_image
from ..evaluation.embedding import Neighbor
from ..formatting import text_line
from ..pages import blocks
from ..pages.blocks import Block, Gallery, Section, Text
from ..runs.files import write_atomically

PAGE = "nearest.html"
SIDE = 192  # pixels of a thumbnail's longer side, at most; twice what the page shows
SHOWN = 100  # images of a page


class Query(NamedTuple):
    """An image: its file and pixels, integers (C, H, W), which are those of `data`."""

    path: Path
    pixels_CHW: Tensor
    data: Data


def show(
    query: Query, found: Sequence[Neighbor], splits: Mapping[str, Source], folder: Path, about: str
) -> None:
    """Print the nearest images, best first, and write nearest.html into the folder; `about` says of
    which features they are.

    Raises:
        OSError: it cannot be written.
    """
    print(f"nearest     {query.path}: cosine similarity, split, image, label")
    for one in found:
        print(f"{one.similarity:11.4f} {_name(one, splits[one.split])}")
    write_atomically(folder / PAGE, _page(query, found, splits, about))
    print(f"page        {folder / PAGE}", flush=True)


def _name(one: Neighbor, source: Source) -> str:
    """Split, file and label."""
    label = ""
    if one.label >= 0:
        label = f", {source.classes[one.label] if source.classes else one.label}"
    return text_line(f"{one.split}: {one.file}{label}")


def _page(query: Query, found: Sequence[Neighbor], splits: Mapping[str, Source], about: str) -> str:
    name = text_line(query.path.name)
    images = sum(map(len, splits.values()))
    text = f"Of {images:,} images those with the highest cosine similarity of their features."
    nearest = [_image(one, splits[one.split], query.data) for one in found[:SHOWN]]
    gallery: list[Block] = [Gallery(nearest)]
    if len(found) > SHOWN:
        gallery.append(Text(f"The first {SHOWN} of {len(found):,}; the terminal names all."))
    own = blocks.Image(
        thumbnail(query.pixels_CHW, query.data), f"The query: {name}", f"The query: {name}"
    )
    sections = [
        Section("", [Text(text), Text(about), Gallery([own])]),
        Section("Nearest", gallery),
    ]
    return blocks.html(f"Images nearest to {name}", sections)


def _image(one: Neighbor, source: Source, data: Data) -> blocks.Image:
    (raw,), _ = source.fetch(np.array([one.index]))
    name = _name(one, source)
    shown = thumbnail(decoder(data)(raw), data)
    return blocks.Image(shown, f"{one.similarity:.4f} {name}", f"Image of {name}")


def thumbnail(image_CHW: Tensor, data: Data) -> bytes:
    """An image as `shown_image`, a PNG whose longer side has at most SIDE pixels; a small one is
    enlarged by a whole number, pixel by pixel."""
    image_3HW = shown_image(image_CHW[None], data.pixel_range)[0]
    pixels_HW3 = image_3HW.permute(1, 2, 0).contiguous().numpy()
    larger = SIDE // max(pixels_HW3.shape[:2])
    if larger > 1:
        pixels_HW3 = pixels_HW3.repeat(larger, 0).repeat(larger, 1)
    image = Image.fromarray(pixels_HW3)
    image.thumbnail((SIDE, SIDE), Image.Resampling.BOX)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()
