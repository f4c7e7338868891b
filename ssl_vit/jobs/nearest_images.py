"""Show the images nearest to a query, as lines and as a page with the images."""

import io
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
from ..formatting import format_count, format_image_count, text_line, typed_command
from ..pages import blocks
from ..pages.blocks import Block, Commands, Gallery, Section, Text
from ..recipe import parsing
from ..recipe.schema import Data
from ..recipe.tools import EmbedOptions
from ..recipe.words import write_all
from ..runs.files import write_atomically
from .encoders import SCRATCH_PREFIX

PAGE = "nearest.html"
SIDE = 256  # largest length of a thumbnail's longer side, in pixels


class Query(NamedTuple):
    """Query image.

    Attributes:
        text: The name as the user wrote it.
        path: The image file.
        pixels_CHW: Pixels, integers (C, H, W).
    """

    text: str
    path: Path
    pixels_CHW: Tensor


class ComparedImages(NamedTuple):
    """Images that the queries are compared with.

    Attributes:
        splits: {name: split}.
        images: Number of images that could be read.
        data: Data options that say how pixels are read.
        pairs: Similarities of all pairs of images. None if there is a single image.
        about: Text about the encoder and the features.
        command: Command that makes the same page with untrained weights. Empty if the weights are
            untrained already.
    """

    splits: Mapping[str, Source]
    images: int
    data: Data
    pairs: PairSimilarity | None
    about: str
    command: str


def read_query(text: str, data: Data) -> Query:
    """Read a query image.

    Args:
        text: Path of an image file, or its path below data.path.
        data: Data set, whose pixel options the image must suit.

    Raises:
        UserError: The image cannot be read.
    """
    path = Path(text)
    if data.path and not parsing.exists(path) and parsing.exists(Path(data.path) / text):
        path = Path(data.path) / text
    try:
        return Query(text, path, decoder(data)(read_file(path)))
    except ValueError as error:
        if data.path:
            raise UserError(
                f"query={text}: expected an image file (or a path below data.path=): {error}"
            ) from None
        raise UserError(f"query={text}: expected an image file: {error}") from None


def without_query(
    query: Query, neighbours: Sequence[Neighbor], splits: Mapping[str, Source]
) -> list[Neighbor]:
    """Drop the query's own file from the neighbours, and set the name of the query in each.

    Args:
        query: Query image.
        neighbours: Nearest images, best first.
        splits: {name: split}.
    """
    query_path = query.path.resolve()
    remaining = []
    for neighbour in neighbours:
        path = splits[neighbour.split].path_of(neighbour.index)  # None for images without a file
        if path is None or path.resolve() != query_path:
            remaining.append(neighbour._replace(query=query.text))
    return remaining


def fresh_weights_command(options: EmbedOptions) -> str:
    """Return the command that repeats `embed` with untrained weights, in another folder."""
    settings = options.model_dump(exclude_unset=True, exclude={"name"})
    settings["init"] = f"{SCRATCH_PREFIX}{options.init}"
    return typed_command("embed", *write_all(settings), *options.given.words)


def show(
    answers: Sequence[tuple[Query, list[Neighbor]]], compared: ComparedImages, folder: Path
) -> str:
    """Print the nearest images of each query, best first, and write nearest.html into the folder.

    For comparison with the similarities to the query, the first line gives the average similarity
    of any two images.

    Args:
        answers: Each query with the nearest images, without the query's own file.
        compared: The images that the queries were compared with.
        folder: The folder of the page.

    Returns:
        The page.

    Raises:
        OSError: The page cannot be written.
    """
    if compared.pairs:
        print(f"any two     {_describe_pairs(compared.pairs, compared.images)}")
    for query, neighbours in answers:
        print(
            f"nearest     {text_line(query.text)}: cosine similarity and image. The file of the "
            "query itself is left out, but copies of the file are shown"
        )
        for neighbour in neighbours:
            print(f"{neighbour.similarity:11.4f} {_name(neighbour, compared)}")
        warning = similarity_warning(neighbours, compared.pairs)
        if warning:
            print(f"note        {warning}")
    if compared.command:
        print(f"compare     {compared.command}")
    page = _page(answers, compared)
    write_atomically(folder / PAGE, page)
    print(f"page        {folder / PAGE}", flush=True)
    return page


def similarity_warning(neighbours: Sequence[Neighbor], pairs: PairSimilarity | None) -> str:
    """Return a warning if some neighbours are hardly similar to the query, otherwise "".

    A neighbour is similar if its similarity to the query exceeds the similarity of 99% of all pairs
    of images. If there are few images, a neighbour that looks like the query may also fall short.

    Args:
        neighbours: Nearest images of a query.
        pairs: Similarities of all pairs of images. None: no warning.
    """
    if pairs is None:
        return ""
    above = sum(neighbour.similarity > pairs.high for neighbour in neighbours)
    if above == len(neighbours):
        return ""
    return (
        f"the similarity of only {above:,} of {format_image_count(len(neighbours))} is higher than "
        f"in 99% of all pairs of images ({pairs.high:.4f}). "
        "The rest may look different from the query"
    )


def _describe_pairs(pairs: PairSimilarity, images: int) -> str:
    """Describe how similar any two images are.

    Args:
        pairs: Similarities of all pairs, or of all pairs in a sample of the images.
        images: Number of all images.
    """
    sample = f"{images:,}"
    if pairs.images < images:
        sample = f"{pairs.images:,} of {images:,}"
    return (
        f"similarity {pairs.mean:.4f} on average, above {pairs.high:.4f} for 1% "
        f"(all pairs of {sample} images)"
    )


def _name(neighbour: Neighbor, compared: ComparedImages) -> str:
    """Return "SPLIT: FILE, LABEL" for a neighbour.

    An example is "test: 7.png, cat". The split is left out if there is only one split. The split or
    the label is also left out if a folder in the path of the file has the same name: "cat/7.png"
    needs no label.

    Args:
        neighbour: Image near a query.
        compared: All images, with the names of the classes.
    """
    source = compared.splits[neighbour.split]
    name = source.file_of(neighbour.index)
    folders = PurePosixPath(name).parts[:-1]
    if len(compared.splits) > 1 and neighbour.split not in folders:
        name = f"{neighbour.split}: {name}"
    if neighbour.label >= 0:
        label = source.classes[neighbour.label] if source.classes else str(neighbour.label)
        if label and label not in folders:
            name = f"{name}, {label}"
    return text_line(name)


def _page(answers: Sequence[tuple[Query, list[Neighbor]]], compared: ComparedImages) -> str:
    unreadable = sum(map(len, compared.splits.values())) - compared.images
    images = f"{compared.images:,} images"
    if unreadable:
        images = f"{images} ({format_count(unreadable, 'more images')} could not be read)"
    intro: list[Block] = [
        Text(
            "This page shows the images whose features have the highest cosine similarity to the "
            f"features of the query, among {images}. The query's file is left out, but copies of "
            "the file are not."
        ),
        Text(compared.about),
    ]
    if compared.pairs:
        pairs = _describe_pairs(compared.pairs, compared.images)
        intro.append(Text(f"For comparison, any two images have {pairs}."))
    if compared.command:
        intro += [
            Text("To compare with random weights of the same model, type:"),
            Commands([compared.command]),
        ]
    sections = [Section("", intro)]
    for query, neighbours in answers:
        sections.append(Section(text_line(query.text), list(_nearest(query, neighbours, compared))))
    names = [text_line(query.path.name) for query, _ in answers]
    title = names[0] if len(names) == 1 else f"{len(names)} queries"
    return blocks.html(f"Images nearest to {title}", sections)


def _nearest(
    query: Query, neighbours: Sequence[Neighbor], compared: ComparedImages
) -> Iterable[Block]:
    """Yield a warning, if any, and a gallery with the query and the nearest images.

    Args:
        query: Query image.
        neighbours: Nearest images, best first.
        compared: All images.
    """
    caption = f"The query: {text_line(query.path.name)}"
    png = thumbnail(query.pixels_CHW, compared.data)
    warning = similarity_warning(neighbours, compared.pairs)
    if warning:
        yield Text(f"{warning[0].upper()}{warning[1:]}.", warning=True)
    pictures = [blocks.Image(png, caption, caption, href=query.path.resolve().as_uri())]
    for neighbour in neighbours:
        source = compared.splits[neighbour.split]
        encoded_images, _ = source.fetch(np.array([neighbour.index]))
        pixels_CHW = decoder(compared.data)(encoded_images[0])
        png = thumbnail(pixels_CHW, compared.data)
        name = _name(neighbour, compared)
        path = source.path_of(neighbour.index)
        href = path.resolve().as_uri() if path else ""
        caption = f"{neighbour.similarity:.4f} {name}"
        pictures.append(blocks.Image(png, caption, f"Image of {name}", href=href))
    yield Gallery(pictures)


def thumbnail(image_CHW: Tensor, data: Data) -> bytes:
    """Return an image as the bytes of a PNG whose longer side has at most SIDE pixels.

    A small image is enlarged by a whole factor, so that pixels stay sharp.

    Args:
        image_CHW: Pixels, integers.
        data: Range of the pixels.
    """
    image_3HW = shown_image(image_CHW[None], data.pixel_range)[0]
    pixels_HW3 = image_3HW.permute(1, 2, 0).contiguous().numpy()
    factor = SIDE // max(pixels_HW3.shape[:2])
    if factor > 1:
        pixels_HW3 = pixels_HW3.repeat(factor, 0).repeat(factor, 1)
    image = Image.fromarray(pixels_HW3)
    image.thumbnail((SIDE, SIDE), Image.Resampling.BOX)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()
