"""The images nearest to queries: as lines, and as a page with the images themselves."""

import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from ..data.pixel_values import decoder, shown_image
from ..data.source import Source, read_file
from ..errors import UserError
from ..evaluation.embedding import Neighbor, PairSimilarity
from ..formatting import shell_command, text_line, tool_command
from ..pages import blocks
from ..pages.blocks import Block, Commands, Gallery, Section, Text
from ..recipe import parsing
from ..recipe.schema import Data
from ..recipe.tool import from_python
from ..recipe.tools import EmbedOptions
from ..runs.files import write_atomically
from .encoders import BESIDE

PAGE = "nearest.html"
SIDE = 256  # pixels of a thumbnail's longer side, at most


class Query(NamedTuple):
    """An image: its name as it was given, its file, and its pixels, integers (C, H, W)."""

    text: str
    path: Path
    pixels_CHW: Tensor


class Gathered(NamedTuple):
    """The images that queries were compared with.

    Attributes:
        splits: their splits.
        images: how many of them have a feature.
        data: how their pixels are read.
        pairs: how similar two of them are; None of a single image.
        about: which features these are, in words.
        command: makes the same page with random weights; empty where these are.
    """

    splits: Mapping[str, Source]
    images: int
    data: Data
    pairs: PairSimilarity | None
    about: str
    command: str


def read_query(text: str, data: Data) -> Query:
    """An image file, or one below data.path as embed names it.

    Raises:
        UserError: it cannot be read.
    """
    path = Path(text)
    if data.path and not parsing.exists(path) and parsing.exists(Path(data.path) / text):
        path = Path(data.path) / text
    try:
        return Query(text, path, decoder(data)(read_file(path)))
    except ValueError as error:
        below = ", also below data.path=" if data.path else ""
        raise UserError(f"query={text}: expected an image file{below}: {error}") from None


def without_query(
    query: Query, neighbours: Sequence[Neighbor], splits: Mapping[str, Source]
) -> list[Neighbor]:
    """The neighbours that are not the query's own file, each with its name."""
    query_path = query.path.resolve()
    paths = [splits[neighbour.split].path_of(neighbour.index) for neighbour in neighbours]
    return [
        neighbour._replace(query=query.text)
        for neighbour, path in zip(neighbours, paths, strict=True)
        if path is None or path.resolve() != query_path
    ]


def comparison(options: EmbedOptions) -> str:
    """The same command with fresh weights of the encoder's model, into a folder of its own."""
    settings = options.model_dump(exclude_unset=True, exclude={"name"})
    typed = from_python(EmbedOptions, settings | {"init": f"{BESIDE}{options.init}"}, {})
    typed += [f"{key}={text}" for key, text in options.overrides.items()]
    return shell_command(sys.executable, *tool_command("embed"), *typed)


def show(answers: Sequence[tuple[Query, list[Neighbor]]], among: Gathered, folder: Path) -> None:
    """Print the nearest images of each query, best first, and write nearest.html into the folder.

    Raises:
        OSError: it cannot be written.
    """
    if among.pairs:
        print(f"any two     {_typical(among.pairs, among.images)}")
    for query, neighbours in answers:
        left_out = "its own file left out, copies are not"
        print(f"nearest     {text_line(query.text)}: cosine similarity, image; {left_out}")
        for neighbour in neighbours:
            print(f"{neighbour.similarity:11.4f} {_name(neighbour, among)}")
        if text := no_nearer(neighbours, among.pairs):
            print(f"note        {text}")
    if among.command:
        print(f"compare     {among.command}")
    write_atomically(folder / PAGE, _page(answers, among))
    print(f"page        {folder / PAGE}", flush=True)


def no_nearer(neighbours: Sequence[Neighbor], pairs: PairSimilarity | None) -> str:
    """How many of a query's best neighbours are no nearer to it than 1% of all pairs of images are
    to one another; empty where all are nearer, or that is not known. Of few images, and of a query
    in a sparse place, also neighbours that are alike may be such."""
    above = (
        sum(neighbour.similarity > pairs.high for neighbour in neighbours)
        if pairs
        else len(neighbours)
    )
    if pairs is None or above == len(neighbours):
        return ""
    level = f"{pairs.high:.4f}, which 1% of all pairs of images exceed"
    exceed = "exceed" if above > 1 else "exceeds"
    others = "the others" if above else "them"
    text = f"of these {len(neighbours):,} images {above or 'none'} {exceed} {level}"
    return f"{text}; being the nearest does not make {others} alike"


def _typical(pairs: PairSimilarity, images: int) -> str:
    drawn = f"{pairs.images:,} of " if pairs.images < images else ""
    measured = f"all pairs of {drawn}{images:,} images"
    return f"similarity {pairs.mean:.4f} on average, 1% above {pairs.high:.4f} ({measured})"


def _name(neighbour: Neighbor, among: Gathered) -> str:
    """File, and what its path does not say of split and label."""
    source = among.splits[neighbour.split]
    name = source.file_of(neighbour.index)
    folders = PurePosixPath(name).parts[:-1]
    split = (
        f"{neighbour.split}: " if len(among.splits) > 1 and neighbour.split not in folders else ""
    )
    label = ""
    if neighbour.label >= 0:
        label = source.classes[neighbour.label] if source.classes else str(neighbour.label)
    return text_line(f"{split}{name}" + (f", {label}" if label and label not in folders else ""))


def _page(answers: Sequence[tuple[Query, list[Neighbor]]], among: Gathered) -> str:
    left = sum(map(len, among.splits.values())) - among.images
    gone = f" ({left:,} more could not be read)" if left else ""
    text = f"Of {among.images:,} images{gone} those with the highest cosine similarity of their"
    text += " features; the query's own file is left out, copies of it are not."
    intro: list[Block] = [Text(text), Text(among.about)]
    if among.pairs:
        text = f"For comparison, any two of these images: {_typical(among.pairs, among.images)}."
        intro.append(Text(text))
    if among.command:
        intro += [Text("The same with random weights of this model:"), Commands([among.command])]
    sections = [Section("", intro)]
    for query, neighbours in answers:
        sections.append(Section(text_line(query.text), list(_nearest(query, neighbours, among))))
    names = [text_line(query.path.name) for query, _ in answers]
    title = names[0] if len(names) == 1 else f"{len(names)} queries"
    return blocks.html(f"Images nearest to {title}", sections)


def _nearest(query: Query, neighbours: Sequence[Neighbor], among: Gathered) -> Iterable[Block]:
    text = f"The query: {text_line(query.path.name)}"
    picture = thumbnail(query.pixels_CHW, among.data)
    if warning := no_nearer(neighbours, among.pairs):
        yield Text(f"{warning[0].upper()}{warning[1:]}.", warning=True)
    shown = [blocks.Image(picture, text, text, href=query.path.resolve().as_uri())]
    for neighbour in neighbours:
        source = among.splits[neighbour.split]
        (raw,), _ = source.fetch(np.array([neighbour.index]))
        image, name = thumbnail(decoder(among.data)(raw), among.data), _name(neighbour, among)
        path = source.path_of(neighbour.index)
        href = path.resolve().as_uri() if path else ""
        caption = f"{neighbour.similarity:.4f} {name}"
        shown.append(blocks.Image(image, caption, f"Image of {name}", href=href))
    yield Gallery(shown)


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
