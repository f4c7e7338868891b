"""The engine's functions of `import ssl_vit`; those of the lab are in lab/api.py. Torch is imported
when a function needs it.

Options are those of the command line (recipe/words.py): keyword arguments as recipe="mpp"
or optim={"steps": 100}; and before them a mapping, with dotted keys too, or words in a list or one
string.
"""

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..recipe import check, load, schema, words
from ..recipe.init_source import SCRATCH
from ..recipe.schema import Recipe
from ..recipe.tool import from_python, parse, split
from ..recipe.tools import EmbedOptions, ExportOptions, FigureOptions
from ..recipe.words import Options
from ..runs.folder import Run, open_run
from ..runs.lock import hold_process
from . import cli
from .run_result import RunResult, run_result

if TYPE_CHECKING:
    from ..models.encoder import Backbone
    from .draw_figures import DrawnFigures
    from .embed import EmbeddedImages

_LOADING = threading.RLock()  # threads that load encoders wait for each other


def resolve(options: Options = (), /, **keywords: Any) -> Recipe:
    """The complete recipe, checked; its images need not be on this machine.

    Raises:
        UserError: an unknown key, preset or recipe, or a value of the wrong type or out of bounds.
    """
    return load.resolve(words.from_python(options, keywords, {}), here=False)


def pretrain(options: Options | Recipe = (), /, **keywords: Any) -> RunResult | None:
    """Pre-train with these options or this recipe, or resume the run.

    Returns:
        What the run measured; of a run that has finished already, without training again. None on
        the other processes of several.

    A process runs one training, evaluation, `embed` or `figures` at a time. A second call, even in
    another thread, raises a UserError. Runs, reports and plans can be read meanwhile.

    Raises:
        UserError: the options, the images, the weights or the run folder do not fit together, or
            another call in this process has not ended.
        SystemExit: a signal stopped the run (statuses: docs/runs.md); the same call resumes it. In
            an interactive shell or a notebook KeyboardInterrupt.
    """
    return _run(options, keywords, cli.PRETRAIN)


def finetune(options: Options | Recipe = (), /, **keywords: Any) -> RunResult | None:
    """Fine-tune on labels from the weights of `init=`; as `pretrain`."""
    return _run(options, keywords, cli.FINETUNE)


def evaluate(options: Options | Recipe = (), /, **keywords: Any) -> RunResult | None:
    """Measure the frozen encoder of `init=`; as `pretrain`."""
    return _run(options, keywords, cli.EVALUATE)


def embed(options: Options = (), /, **keywords: Any) -> "EmbeddedImages":
    """Write the features of every image of a data set, or those that are missing; with `query=`
    find the images nearest to one.

    Raises:
        UserError: the options, the encoder, the images or the folder do not fit together.
    """
    with hold_process("embed"):  # before the imports, which harm a job that imports the same
        from . import embed as tool

        tool_options = parse(EmbedOptions, from_python(EmbedOptions, options, keywords))
        return tool.embed(*tool.prepare(tool_options))


def figures(options: Options = (), /, **keywords: Any) -> "DrawnFigures":
    """Draw what an encoder has learned, beside fresh weights of its model.

    Raises:
        UserError: an option, an encoder or the images do not suit, or no figure can be made.
    """
    from . import draw_figures

    return draw_figures.draw(parse(FigureOptions, from_python(FigureOptions, options, keywords)))


def export(options: Options = (), /, **keywords: Any) -> Path:
    """Convert a run's encoder to transformers or ONNX (`format=`); the folder or file `out=`.

    Raises:
        UserError: there is no export, the model does not fit the format, or `out` exists.
    """
    tool_options = parse(ExportOptions, from_python(ExportOptions, options, keywords))
    with hold_process(f"init={tool_options.init}", nested=True):
        from ..models import interop

        return interop.convert(tool_options)


def load_run(folder: str | os.PathLike[str]) -> Run:
    """A run folder: `recipe`, the records `result()` and `environment()`, `rows()` of
    metrics.jsonl, and the paths `folder`, `export`, `figures`. As init= it stands for its folder.

    Raises:
        UserError: the folder has no recipe.yaml, or one that cannot be read.
    """
    return open_run(Path(folder))


def load_encoder(
    init: str | os.PathLike[str], options: Options = (), **keywords: Any
) -> "Backbone":
    """An encoder with the weights that `init` names, in evaluation mode.

    `encoder.feature(images)` gives features (B, D), and normalises the images itself. A uint8
    tensor (B, 3, H, W) of the encoder's size is used as it is. uint8 arrays, (H, W, 3),
    (B, H, W, 3) or (B, 3, H, W), PIL images and lists of both are resized, bilinearly, and cropped
    as in the evaluation of the run that made the weights. With data.channels or data.range these
    are arrays of such channels, of 16 bits uint16. Anything else, pixels of floating point among
    them, is a TypeError or a ValueError. `pool` is "avg", the mean of the patches, or
    "token", the class token; without it the one of the run, or of the export or repository: what it
    gives as an image's feature.

    Args:
        init: as `init=`: a run folder, an export's folder, timm:NAME, hf-hub:USER/NAME or a .npz
            file; "scratch" for fresh weights.
        options: `model=` where the weights do not describe theirs (.npz, scratch), `data.size=` for
            another image size than theirs (224 where that is unknown), `data.eval_mode=` and
            `data.eval_crop=` for another evaluation, `probe.pool=` for another `encoder.pool`.
        keywords: more options.

    Raises:
        UserError: there are no such weights, or they belong to another model.
    """
    texts, place = words.parse(words.from_python(options, keywords, {})), os.fspath(init)
    with _LOADING, hold_process(f"init={place}", nested=True):
        from ..models import encoder, weights
        from . import encoders

        if place == SCRATCH:
            texts.setdefault("data.size", str(encoders.DEFAULT_SIZE))
        named = encoders.resolve_one(place, texts)
        network = encoder.build_backbone(named.recipe.model, named.recipe.data)
        if not named.source.is_scratch:
            weights.load_weights(network, named.source)
    network.pool = named.recipe.probe.pool or named.pool
    return network.eval()


def _run(options: Options | Recipe, keywords: dict[str, Any], job: cli.JobKind) -> RunResult | None:
    if isinstance(options, Recipe):
        if keywords:
            text = "a Recipe is complete; expected its options in place of it"
            raise UserError(f"{', '.join(keywords)}: {text}")
        # another one, because a run replaces values such as compute.precision=auto in its recipe
        values = options.values()
        if type(options) is not schema.recipe_class(options.objective, values):
            text = "the Recipe was made for another; resolve it with this one"
            raise UserError(f"objective={options.objective}: {text}")
        recipe = schema.build(values)
        check.check(recipe)
        job.check(recipe, [f"init={recipe.init}"])
        run, result = cli.open_run(recipe)
    else:
        _, recipe_words = split(job.options, from_python(job.options, options, keywords))
        run, result = cli.open_job(recipe_words, job)
    try:
        if result is None:
            result = job.run(run)
    except SystemExit as stopped:
        if hasattr(sys, "ps1"):  # an interactive shell, which it would end
            raise KeyboardInterrupt(f"stopped with status {stopped.code}") from None
        raise
    if run.signal == "SIGINT":  # it would be lost, and what follows in a script would start
        raise KeyboardInterrupt(f"{run.folder} has finished: Ctrl-C came after its last step")
    return run_result(run, result) if result else None
