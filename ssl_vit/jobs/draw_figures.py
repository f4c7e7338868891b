"""The figures tool: what an encoder has learned, beside fresh weights. Torch is imported late.

FOLDER/  FIGURE.svg  FIGURE.png  FIGURE.npz (its data)
         figures.json (of which encoder and images)  figures.html (the page)
"""

import io
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from ..errors import UserError
from ..pages import figure_blocks
from ..pages.run_record import read_run
from ..recipe.identity import differences, facts
from ..recipe.records.run import Figure, Figures
from ..recipe.tool import parse
from ..recipe.tools import FIGURES, MOST_IMAGES, FigureOptions
from ..runs import notebook
from ..runs.environment import default_threads
from ..runs.files import write_atomically
from ..runs.lock import hold_process
from ..runs.output_folder import OutputFolder

if TYPE_CHECKING:
    from ..inspection.base import Arrays
    from .encoders import ImageSet, NamedEncoder

RECORD = "figures.json"
OWN = re.compile(rf"{re.escape(RECORD)}|figures\.html|({'|'.join(FIGURES)})\.(npz|svg|png)")
# of each figure the label and data of fresh weights, and of the encoder
Drawn = dict[str, list[tuple[str, "Arrays"]]]


class FigureRecord(Figures):
    """figures.json."""

    encoder: str
    init: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class DrawnFigures:
    """The figures that a call has drawn. In a notebook it shows them.

    Attributes:
        folder: which holds NAME.svg, NAME.png and NAME.npz, the figure's data.
        names: of the figures.
    """

    folder: Path
    names: list[str]

    @property
    def images(self) -> list[Path]:
        """The figures as PNG files."""
        return [self.folder / f"{name}.png" for name in self.names]

    def _repr_html_(self) -> str:
        return notebook.inline_images(self.images)


def main(arguments: list[str]) -> None:
    """Compute and draw the figures. Raises as `draw`."""
    draw(parse(FigureOptions, arguments))


@hold_process("figures")
def draw(options: FigureOptions) -> DrawnFigures:
    """Compute and draw the figures.

    Raises:
        UserError: an option, an encoder or the images do not suit, no figure can be made, or the
            folder holds something else.
    """
    start = time.perf_counter()
    import torch

    from . import encoders

    named = encoders.with_fresh_weights(options.init, options.overrides)
    encoder = named[-1]
    torch.set_num_threads(encoder.recipe.compute.threads or default_threads())
    folder = _folder(options, encoder)
    _known(folder, encoder)  # before the work, not after it
    images = encoders.find_images(encoder, options.overrides, options.split)
    count = min(options.images or MOST_IMAGES, len(images.source))
    of = f"{images.name}, {images.split}"
    looked_at = f"{of}: {count:,} of {len(images.source):,}"
    print(f"images      {looked_at}", flush=True)
    described = [f"{each.label}: {each.describe()}" for each in named]
    for text in described:
        print(f"encoder     {text}", flush=True)
    drawn = _compute(options, named, images, count)
    try:
        page = _write_all(
            folder, encoder, drawn, of, count, [f"Images of {looked_at}.", *described]
        )
    except OSError as error:
        path = folder.path
        raise UserError(f"out={path.parent}: {path}: {error.strerror or error}") from None
    seconds = time.perf_counter() - start
    number = "1 figure" if len(drawn) == 1 else f"{len(drawn)} figures"
    print(f"page        {page}")
    print(f"finished    {number} (.svg, .png, .npz) in {seconds:.0f} s: {folder.path}")
    return DrawnFigures(folder.path, [*drawn])


def draw_predictions(run: Path) -> None:
    """Draw what a finished run predicts of held-out images, as a run outside of a study does when
    it ends. Nothing is drawn if the figure is there, or if the objective has none.

    Raises:
        UserError: the weights or the images cannot be read.
    """
    folder = run / "figures"
    values = read_run(run).values
    drawn = (folder / f"{figure_blocks.PREDICTIONS}.svg").exists()
    if drawn or not (run / "result.json").exists() or not figure_blocks.predictions(values):
        return
    from .. import inspection
    from ..evaluation import split_images
    from . import encoders

    named = encoders.resolve_one(str(run), {})
    source = split_images.load(named.recipe, test=False).validation
    images = encoders.ImageSet(source, named.recipe.data.name, "held out")
    subject = encoders.load_subject(named, images, inspection.SHOWN, inspection.SHOWN)
    if subject.objective is not None:
        inspection.save_figures(subject.objective, subject.shown, folder)


def _compute(
    options: FigureOptions, named: Sequence["NamedEncoder"], images: "ImageSet", count: int
) -> Drawn:
    """The data of the figures that the encoder has, fresh weights' before its own; prints what it
    lacks. `named` are the encoders, the one of init= last. Labels say which channels are seen of
    others than RGB.

    Raises:
        UserError: it has none of them; as `encoders.load_subject`.
    """
    from ..data.pixel_values import shown_note
    from ..inspection import collection
    from ..inspection.base import UnavailableError
    from . import encoders

    drawn: Drawn = {}
    for named_encoder in reversed(named):
        subject = encoders.load_subject(named_encoder, images, count, min(options.shown, count))
        note = shown_note(subject.encoder.channels)
        label = f"{named_encoder.label} ({note})" if note else named_encoder.label
        wanted = options.figures or collection.usual(subject.objective)
        for name in wanted if named_encoder is named[-1] else [*drawn]:
            try:
                arrays = collection.FIGURES[name].compute(subject)
                drawn.setdefault(name, []).insert(0, (label, arrays))
            except UnavailableError as error:
                if named_encoder is named[-1]:  # that fresh weights have no heads is no news
                    print(f"left out    {name}: {named_encoder.label}: {error}", flush=True)
        if not drawn:
            raise UserError(f"init={options.init}: none of these figures can be made")
    return drawn


def _folder(options: FigureOptions, encoder: "NamedEncoder") -> OutputFolder[FigureRecord]:
    """figures/ of the encoder's run, unless out= or name= is given."""
    if encoder.run and options.out is None and options.name is None:
        path = encoder.run / "figures"
    else:
        name = options.name or "figures-" + re.sub(r"\W", "_", encoder.label)[-60:]
        path = Path("runs" if options.out is None else options.out) / name
    run = encoder.run if encoder.run and path == encoder.run / "figures" else None
    return OutputFolder(path, OWN, RECORD, FigureRecord, run)


def _known(folder: OutputFolder[FigureRecord], named_encoder: "NamedEncoder") -> dict[str, Figure]:
    """{figure: its images} of the figures that are there, a run's own or of this encoder.

    Raises:
        UserError: they are of another encoder, or of other weights of it; or the folder holds
            something else.
    """
    folder.check()
    record = folder.read()
    if record is None:
        return {}
    if folder.run is None and record.encoder != named_encoder.identity:
        text = f"{folder.path} is of {record.encoder}; give another name="
        raise UserError(f"name={folder.path.name}: {text}")
    differ = differences(facts("init", record.init), facts("init", named_encoder.source.identity()))
    if folder.run is None and differ:
        names = ", ".join(sorted(each.name for each in differ))
        text = f"{folder.path} is of another encoder there ({names}); give another name="
        raise UserError(f"init={named_encoder.source.place}: {text}")
    return record.figures


def _write_all(
    folder: OutputFolder[FigureRecord],
    named_encoder: "NamedEncoder",
    drawn: Drawn,
    of: str,
    count: int,
    about: list[str],
) -> Path:
    """Write the figures beside those that are there, and the page; the page's path.

    Args:
        folder: of the figures.
        named_encoder: the encoder that they are of.
        drawn: figure -> data.
        of: which images they were computed over, `count` of them.
        about: lines of the page.

    Raises:
        OSError: they cannot be written.
    """
    with folder.hold():
        known = {
            name: figure
            for name, figure in _known(folder, named_encoder).items()
            if name not in drawn
        }
        record = FigureRecord(
            encoder=named_encoder.identity, init=named_encoder.source.identity(), figures=known
        )
        folder.write(record)  # by which a folder that is cut off is known
        for name, data in drawn.items():
            _write(folder.path, name, data)
            texts = str(data[-1][1].get("drawn", ""))
            record.figures[name] = Figure(images=of, count=count, drawn=texts)
        folder.write(record)
        page = figure_blocks.write(folder.path, about, folder.run)
        if folder.run is not None:
            _show(folder.run)
    return page


def _write(folder: Path, name: str, data: list[tuple[str, "Arrays"]]) -> None:
    """Write a figure and its data."""
    from ..inspection import collection, drawing

    drawing.write(folder, name, partial(collection.FIGURES[name].draw, data))
    arrays: dict[str, Any] = {"encoders": np.array([label for label, _ in data])}
    for number, (_, values) in enumerate(data):
        arrays |= {f"{key}_{number}": value for key, value in values.items()}
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    write_atomically(folder / f"{name}.npz", packed.getvalue())


def _show(run: Path) -> None:
    """Bring new figures into the run's page, where it has one; a failure is a warning."""
    from ..pages import run_page

    try:
        if (run / run_page.PAGE).exists():
            run_page.write(run)
    except Exception as error:  # the figures are there
        print(f"warning: {run}: the figures are not in its page: {error!r}", flush=True)
