"""The figures tool: what an encoder has learned, beside fresh weights. Torch is imported late.

FOLDER/  FIGURE.png  FIGURE.svg  FIGURE.npz (its data)
         figures.json (of which encoder and images)  figures.html (the page)
"""

import hashlib
import io
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from ..errors import UserError
from ..formatting import FEW_IMAGES, count_of_images
from ..pages import figures_page
from ..recipe import recipe_files, records
from ..recipe.identity import differences, facts
from ..recipe.records.run import Figure, Figures
from ..recipe.tool import parse
from ..recipe.tools import FIGURES, MOST_IMAGES, FigureOptions
from ..runs import lock, notebook
from ..runs.files import sweep, write_atomically
from ..runs.output_folder import OutputFolder

if TYPE_CHECKING:
    from ..inspection.base import Arrays, Subject, UnavailableError
    from .encoders import NamedEncoder

RECORD = "figures.json"
SHOWING = {"images", "panels", "components"}  # arrays of figures that show images or filters
OWN = re.compile(rf"{re.escape(RECORD)}|figures\.html|({'|'.join(FIGURES)})\.(npz|svg|png)")
LONGEST_DEFAULT_NAME = 120  # bytes
Found = dict[str, tuple[str, "Arrays"]]  # of each figure an encoder's label and data
Drawn = dict[str, list[tuple[str, "Arrays"]]]  # of each figure fresh weights, and the encoder


class FigureRecord(Figures):
    """figures.json."""

    encoder: str
    init: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class DrawnFigures:
    """The figures that a call has drawn. In a notebook it shows them.

    Attributes:
        folder: which holds NAME.png, NAME.svg and NAME.npz, the figure's data.
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
    *fresh, one = named
    torch.set_num_threads(one.recipe.compute.threads or torch.get_num_threads())
    folder = _folder(options, one)
    of_run = one.run if one.run and folder == one.run / "figures" else None
    _read_record(folder, one, of_run)  # before the work, not after it
    images = encoders.find_images(one, options.overrides, options.split)
    there = len(images.source)
    count = min(options.images or MOST_IMAGES, there)
    looked_at = f"{images.name}, {images.split}: {count:,} of {there:,}"
    print(f"images      {looked_at}", flush=True)
    if options.images and count < options.images:
        print(f"warning: images={options.images}: there are {there:,}; all are used", flush=True)
    elif there < FEW_IMAGES and options.split is None and images.split != encoders.TRAINING:
        text = f"{images.split}: {count_of_images(there)}, few to look at"
        print(f"warning: {text}; split=train takes the training images", flush=True)
    for each in named:
        print(f"encoder     {each.label}: {each.describe()}", flush=True)
    names = options.figures or [*FIGURES]
    shown_images = min(options.shown, count)
    subject = encoders.load_subject(one, images, count, shown_images)
    found, lacking = _compute(one.label, subject, names)
    unknown = _unknown(one.label, lacking, chosen=options.figures is not None)
    if not found:
        raise UserError(f"init={options.init}: none of these figures can be made")
    drawn: Drawn = {name: [data] for name, data in found.items()}
    for each in fresh:
        subject = encoders.load_subject(each, images, count, shown_images)
        for name, data in _compute(each.label, subject, found)[0].items():
            drawn[name].insert(0, data)
    made = DrawnFigures(folder, [*drawn])
    shown = _records(drawn, f"{images.name}, {images.split}", count)
    with _held(folder, of_run):
        record = _read_record(folder, one, of_run)
        kept = {
            name: entry for name, entry in record.items() if name not in names or name in unknown
        }
        try:
            _write_record(folder, one, kept)  # by which a folder that is cut off is known
            _write(folder, drawn, {*names} - drawn.keys() - unknown)
            _write_record(folder, one, kept | shown)
            described = [f"{each.label}: {each.describe()}" for each in named]
            page = figures_page.write(folder, described, f"Images of {looked_at}.", of_run)
        except OSError as error:
            raise UserError(f"out={folder.parent}: {folder}: {error.strerror or error}") from None
        if of_run:
            _show(of_run, made.images)
    seconds = time.perf_counter() - start
    number = "1 figure" if len(drawn) == 1 else f"{len(drawn)} figures"
    print(f"page        {page}")
    print(f"finished    {number} (.png, .svg, .npz) in {seconds:.0f} s: {folder}")
    return made


def _records(drawn: Drawn, images: str, count: int) -> dict[str, Figure]:
    """What figures.json says of each figure."""
    from ..inspection import collection

    return {
        name: Figure(images=images, count=count, drawn=collection.caption_end(name, data))
        for name, data in drawn.items()
    }


def _show(run: Path, images: list[Path]) -> None:
    """Bring new figures into the run's page and its TensorBoard, where it has them; a failure is a
    warning."""
    from ..pages import run_page
    from ..runs.trackers import add_figures

    try:
        if (run / "tensorboard").is_dir():
            steps = recipe_files.read(run / "recipe.yaml").optim.steps
            add_figures(run / "tensorboard", steps, images)
        if (run / run_page.PAGE).exists():
            run_page.write(run)
    except Exception as error:  # the figures are there
        print(f"warning: {run}: the figures are not in its page: {error!r}", flush=True)


def _folder(options: FigureOptions, one: "NamedEncoder") -> Path:
    """Where the figures are written: into the folder of the run, unless out= or name= is given.

    Raises:
        UserError: the folder holds something else.
    """
    if one.run and options.out is None and options.name is None:
        return one.run / "figures"
    out = Path("runs" if options.out is None else options.out)
    name = options.name
    if name is None:
        name = "figures-" + re.sub(r"\W", "_", one.label)
        if len(name.encode()) > LONGEST_DEFAULT_NAME:
            name = f"figures-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    _output(out / name).check()
    return out / name


def _output(folder: Path) -> OutputFolder[FigureRecord]:
    return OutputFolder("name", folder, OWN, RECORD, FigureRecord)


@contextmanager
def _held(folder: Path, run: Path | None) -> Iterator[None]:
    """Keep other writers out of the folder, of a run's own figures out of the run."""
    with ExitStack() as stack:
        if run is None:
            stack.enter_context(_output(folder).hold())
        else:
            lock.check_own(f"init={run}", run, ("lock", folder.name))
            stack.enter_context(lock.hold(run, str(run.parent)))
            folder.mkdir(exist_ok=True)
        sweep(folder, OWN)
        yield


def _write_record(folder: Path, one: "NamedEncoder", figures: dict[str, Figure]) -> None:
    init = one.source.identity()
    _output(folder).write(FigureRecord(encoder=one.identity, init=init, figures=figures))


def _read_record(folder: Path, one: "NamedEncoder", run: Path | None) -> dict[str, Figure]:
    """{figure: its images} of the folder's figures, which are a run's own or of this encoder.

    Raises:
        UserError: they are of another encoder, or of other weights of it.
    """
    if run is not None:
        try:
            return records.read(folder / RECORD, FigureRecord).figures
        except (OSError, ValueError):  # none, or damaged: the figures can be drawn again
            return {}
    found = _output(folder).read()
    if found is None:
        return {}
    if found.encoder != one.identity:
        raise UserError(f"name={folder.name}: {folder} is of {found.encoder}; give another name=")
    if differ := differences(facts("init", found.init), facts("init", one.source.identity())):
        names = ", ".join(sorted(each.name for each in differ))
        text = f"{folder} is of another encoder there ({names}); give another name="
        raise UserError(f"init={one.source.place}: {text}")
    return found.figures


def _compute(
    label: str, subject: "Subject", names: Iterable[str]
) -> tuple[Found, dict[str, "UnavailableError"]]:
    """An encoder's data for each of these figures, those that show images with a label that says
    which channels of them; and of each figure that it lacks, why."""
    from ..data.pixel_values import shown_note
    from ..inspection import collection
    from ..inspection.base import UnavailableError

    found: Found = {}
    lacking = {}
    note = shown_note(subject.encoder.channels)
    for name in names:
        try:
            arrays = collection.FIGURES[name].compute(subject)
        except UnavailableError as error:
            lacking[name] = error
            continue
        named = f"{label} ({note})" if note and not SHOWING.isdisjoint(arrays) else label
        found[name] = named, arrays
    return found, lacking


def _unknown(label: str, lacking: dict[str, "UnavailableError"], chosen: bool) -> set[str]:
    """Print which figures an encoder lacks, and why; of figures that were `chosen` also those whose
    content another figure shows.

    Returns:
        Those of which it is not known here whether it has them; an earlier call may have drawn
        them.
    """
    from ..inspection.base import OtherFigureError, UnknownError

    for name, error in lacking.items():
        if chosen or not isinstance(error, OtherFigureError):
            print(f"left out    {name}: {label}: {error}", flush=True)
    return {name for name, error in lacking.items() if isinstance(error, UnknownError)}


def _write(folder: Path, drawn: Drawn, absent: Iterable[str]) -> None:
    """Write each figure and its data; remove those of an earlier call that cannot be made now."""
    from ..inspection import collection, drawing

    for name, data in drawn.items():
        drawing.write(folder, name, partial(collection.FIGURES[name].draw, data), ("svg", "png"))
        arrays: dict[str, Any] = {"encoders": np.array([label for label, _ in data])}
        for number, (_, values_of_one) in enumerate(data):
            arrays |= {f"{key}_{number}": value for key, value in values_of_one.items()}
        packed = io.BytesIO()
        np.savez_compressed(packed, **arrays)
        write_atomically(folder / f"{name}.npz", packed.getvalue())
    for name in absent:
        for suffix in ("npz", "svg", "png"):
            (folder / f"{name}.{suffix}").unlink(missing_ok=True)
