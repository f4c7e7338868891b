"""Draw figures of what an encoder has learned, next to the same model with untrained weights.

Torch is imported late. The output folder contains:

FOLDER/  FIGURE.svg  FIGURE.png  FIGURE.npz (the data of the figure)
         figures.json (the encoder and the images)  figures.html (the page)
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

from ..errors import UserError, one_line
from ..extras import is_installed, require
from ..pages import figure_blocks
from ..pages.run_record import read_run
from ..recipe.given import Arguments, Given
from ..recipe.records.run import Figure, Figures
from ..recipe.tool import parse
from ..recipe.tools import FIGURES, MOST_IMAGES, FigureOptions
from ..runs import notebook
from ..runs.environment import default_threads
from ..runs.files import write_atomically
from ..runs.identity import differences, facts
from ..runs.lock import hold_process
from ..runs.output_folder import OutputFolder

if TYPE_CHECKING:
    from ..inspection.base import Arrays
    from .encoders import ImageSet, NamedEncoder

RECORD = "figures.json"
OWN_NAMES = re.compile(rf"{re.escape(RECORD)}|figures\.html|({'|'.join(FIGURES)})\.(npz|svg|png)")
# {figure: (label, data) of each encoder}, untrained weights first
Drawn = dict[str, list[tuple[str, "Arrays"]]]


class FigureRecord(Figures):
    """Content of figures.json.

    Attributes:
        encoder: The `identity` of the NamedEncoder that the figures show.
        init: Hashes and facts of local weights (`InitSource.identity`), else empty.
    """

    encoder: str
    init: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class DrawnFigures:
    """Figures that a call has drawn. A notebook displays them.

    Attributes:
        folder: Contains NAME.svg, NAME.png and NAME.npz (the data) of each figure.
        names: Names of the figures.
    """

    folder: Path
    names: list[str]

    @property
    def images(self) -> list[Path]:
        """Return the paths of the figures as PNG files."""
        return [self.folder / f"{name}.png" for name in self.names]

    def _repr_html_(self) -> str:
        return notebook.inline_images(self.images)


def main(arguments: list[str]) -> None:
    """Run the figures tool with command-line arguments. Exceptions are as for `draw`."""
    draw(parse(FigureOptions, Arguments(arguments)))


@hold_process("figures")
def draw(options: FigureOptions) -> DrawnFigures:
    """Compute and write the figures and their page, and print progress.

    Raises:
        UserError: An option, an encoder or the images are unsuitable, no figure can be made, or the
            folder holds something else or cannot be written.
    """
    start = time.perf_counter()
    require("matplotlib", "ssl-vit figures")
    import torch

    from . import encoders

    # The last encoder is that of `init=`, often preceded by the same model with untrained weights
    drawn_encoders = encoders.with_fresh_weights(options.init, options.given)
    encoder = drawn_encoders[-1]
    torch.set_num_threads(encoder.recipe.compute.threads or default_threads())
    folder = _folder(options, encoder)
    # Raise an error about an unusable folder before the work. The result is not needed here
    _read_entries(folder, encoder)
    images = encoders.find_images(encoder, options.given, options.split)
    count = min(options.images or MOST_IMAGES, len(images.source))
    images_text = f"{images.name}, {images.split}"
    used_text = f"{images_text}: {count:,} of {len(images.source):,}"
    print(f"images      {used_text}", flush=True)
    encoder_texts = [f"{each.label}: {each.describe()}" for each in drawn_encoders]
    for text in encoder_texts:
        print(f"encoder     {text}", flush=True)
    drawn = _compute(options, drawn_encoders, images, count)
    about = [f"Images: {used_text}.", *encoder_texts]
    try:
        page = _write_all(folder, encoder, drawn, images_text, count, about)
    except OSError as error:
        path = folder.path
        raise UserError(
            f"out={path.parent}: {path} cannot be written: {error.strerror or error}"
        ) from None
    seconds = time.perf_counter() - start
    number = "1 figure" if len(drawn) == 1 else f"{len(drawn)} figures"
    print(f"page        {page}")
    print(f"finished    {number} (.svg, .png, .npz) in {seconds:.0f} s: {folder.path}")
    return DrawnFigures(folder.path, [*drawn])


def draw_predictions(run: Path) -> None:
    """Draw what the objective of a finished run predicts for held-out images.

    Only tasks of a study need this function. Any other run draws the figure when the run ends.
    Nothing is drawn if the figure exists, if the run has no result, if the objective has no such
    figure, or if matplotlib is not installed.

    Args:
        run: Folder of the run.

    Raises:
        UserError: The weights or the images cannot be read.
    """
    folder = run / "figures"
    is_drawn = (folder / f"{figure_blocks.PREDICTIONS}.svg").exists()
    has_figure = figure_blocks.describe_predictions(read_run(run).values)
    has_result = (run / "result.json").exists()
    if is_drawn or not has_figure or not has_result or not is_installed("matplotlib"):
        return
    from .. import inspection
    from ..evaluation import split_images
    from . import encoders

    encoder = encoders.find_encoder(str(run), Given())
    source = split_images.load(encoder.recipe, test=False).validation
    images = encoders.ImageSet(source, encoder.recipe.data.name, "held out")
    count = inspection.SHOWN
    figure_input = encoders.load_figure_input(encoder, images, count, shown=count)
    if figure_input.objective is not None:
        inspection.save_figures(figure_input.objective, figure_input.shown, folder)


def _compute(
    options: FigureOptions,
    compared: Sequence["NamedEncoder"],
    images: "ImageSet",
    count: int,
) -> Drawn:
    """Compute the data of the figures, and print which figures cannot be drawn.

    Args:
        options: The options of the tool. By default, the figures that suit the objective are drawn.
        compared: The encoders. The last is the encoder of `init=`. If there is another, it is the
            same model with untrained weights, and gets the same figures.
        images: The images.
        count: Number of images to use.

    Returns:
        {figure: [(label, data) of each encoder]}, untrained weights first. If images are not RGB,
        the labels say which channels are shown.

    Raises:
        UserError: None of the figures can be made, or as for `encoders.load_figure_input`.
    """
    from ..data.pixel_values import shown_note
    from ..inspection import collection
    from ..inspection.base import UnavailableError
    from . import encoders

    drawn: Drawn = {}
    # Begin with the encoder of init=, because untrained weights get only the figures drawn for it
    for encoder in reversed(compared):
        is_last = encoder is compared[-1]
        shown = min(options.shown, count)
        figure_input = encoders.load_figure_input(encoder, images, count, shown)
        note = shown_note(figure_input.encoder.channels)
        label = f"{encoder.label} ({note})" if note else encoder.label
        if is_last:
            names = options.figures or collection.suitable_figures(figure_input.objective)
        else:
            names = [*drawn]
        for name in names:
            try:
                arrays = collection.FIGURES[name].compute(figure_input)
                # Insert at the front, so that untrained weights come first
                drawn.setdefault(name, []).insert(0, (label, arrays))
            except UnavailableError as error:
                if is_last:  # untrained weights always lack heads, so their figures need no message
                    print(f"left out    {name}: {encoder.label}: {error}", flush=True)
        if not drawn:
            raise UserError(
                f"init={options.init}: none of the figures can be drawn. "
                "The lines that begin with 'left out' say why."
            )
    return drawn


def _folder(options: FigureOptions, encoder: "NamedEncoder") -> OutputFolder[FigureRecord]:
    """Return the folder of the figures.

    By default, this is figures/ in the folder of the encoder's run. If the encoder has no run, or
    if the options give `out=` or `name=`, it is a separate folder, in runs/ by default.

    Args:
        options: The options of the tool.
        encoder: The encoder that the figures show.
    """
    if encoder.run and options.out is None and options.name is None:
        path = encoder.run / "figures"
    else:
        label = re.sub(r"\W", "_", encoder.label)[-60:]
        out = "runs" if options.out is None else options.out
        path = Path(out) / (options.name or f"figures-{label}")
    is_in_run = encoder.run is not None and path == encoder.run / "figures"
    run = encoder.run if is_in_run else None
    return OutputFolder(path, OWN_NAMES, RECORD, FigureRecord, run)


def _read_entries(
    folder: OutputFolder[FigureRecord], named_encoder: "NamedEncoder"
) -> dict[str, Figure]:
    """Check the folder, and return the entries of figures.json, {figure: entry}.

    The figures/ folder of a run is always accepted, because its figures show the run's own encoder.
    Any other folder may only hold figures of the same encoder with the same weights.

    Args:
        folder: The folder of the figures.
        named_encoder: The encoder that the figures show.

    Raises:
        UserError: The folder holds figures of another encoder or of other weights, or holds
            something else.
    """
    folder.check()
    record = folder.read()
    if record is None:
        return {}
    if folder.run is None and record.encoder != named_encoder.identity:
        raise UserError(
            f"name={folder.path.name}: {folder.path} holds figures of the encoder "
            f"{record.encoder}. Use another name=."
        )
    weights_now = named_encoder.source.identity()
    differing = differences(facts("init", record.init), facts("init", weights_now))
    if folder.run is None and differing:
        names = ", ".join(sorted(difference.name for difference in differing))
        raise UserError(
            f"init={named_encoder.source.place}: {folder.path} holds figures of other weights "
            f"(differences: {names}). Use another name=."
        )
    return record.figures


def _write_all(
    folder: OutputFolder[FigureRecord],
    named_encoder: "NamedEncoder",
    drawn: Drawn,
    images_text: str,
    count: int,
    about: list[str],
) -> Path:
    """Write the figures and the page, and keep earlier figures of other names.

    Args:
        folder: The folder of the figures.
        named_encoder: The encoder that the figures show.
        drawn: The data of each figure.
        images_text: Name and split of the images.
        count: Number of images that the figures were computed from.
        about: Lines for the page, about the images and the encoders.

    Returns:
        The path of the page.

    Raises:
        OSError: A file cannot be written.
    """
    with folder.hold():
        entries = _read_entries(folder, named_encoder)
        earlier = {name: figure for name, figure in entries.items() if name not in drawn}
        record = FigureRecord(
            encoder=named_encoder.identity, init=named_encoder.source.identity(), figures=earlier
        )
        folder.write(record)  # write first, so that an interrupted folder is still recognised
        for name, data in drawn.items():
            _write(folder.path, name, data)
            _, arrays = data[-1]  # the last entry belongs to the encoder of `init=`
            note = str(arrays.get("drawn", ""))  # some figures have a note for their caption
            record.figures[name] = Figure(images=images_text, count=count, drawn=note)
        folder.write(record)
        page = figure_blocks.write(folder.path, about, folder.run)
        if folder.run is not None:
            _update_run_page(folder.run)
    return page


def _write(folder: Path, name: str, data: list[tuple[str, "Arrays"]]) -> None:
    """Write a figure as .svg and .png, and its data as .npz.

    Args:
        folder: Folder to write to.
        name: Name of the figure.
        data: (label, data) of each encoder.
    """
    from ..inspection import collection, drawing

    drawing.write(folder, name, partial(collection.FIGURES[name].draw, data))
    arrays: dict[str, Any] = {"encoders": np.array([label for label, _ in data])}
    for number, (_, values) in enumerate(data):
        arrays |= {f"{key}_{number}": value for key, value in values.items()}
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    write_atomically(folder / f"{name}.npz", packed.getvalue())


def _update_run_page(run: Path) -> None:
    """Show new figures in a run's report.html, if there is one. A failure is only a warning."""
    from ..pages import run_page

    try:
        if (run / run_page.PAGE).exists():
            run_page.write(run)
    except Exception as error:  # the figures have been written, so this is no error
        text = f"the page was not updated with the figures: {one_line(error)}"
        print(f"warning: {run}: {text}", flush=True)
