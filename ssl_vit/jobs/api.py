"""Run the engine's tools from Python: the functions of `import ssl_vit`.

The functions of the lab, such as studies and reports, are in lab/api.py. Torch is imported only
when a function needs it.

Every function takes the options of the command line (recipe/given.py), as keyword arguments such as
recipe="mpp" or optim={"steps": 100}. The first argument may hold further options: a mapping, whose
keys may be dotted, or command-line arguments as a list or as one string.
"""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..recipe import augmentations, check, given, load, schema, words
from ..recipe.given import Options
from ..recipe.init_source import SCRATCH
from ..recipe.schema import Recipe
from ..recipe.tool import from_python
from ..recipe.tools import EmbedOptions, ExportOptions, FigureOptions
from ..runs.folder import Run, open_run
from ..runs.lock import hold_process
from . import cli
from .run_result import RunResult, run_result

if TYPE_CHECKING:
    from ..models.encoder import Backbone
    from .draw_figures import DrawnFigures
    from .embed import EmbeddedImages

_LOADING = threading.RLock()  # only one thread at a time loads an encoder


def resolve(options: Options = (), /, **keywords: Any) -> Recipe:
    """Return the complete, checked recipe of these options.

    The images need not be on this machine.

    Raises:
        UserError: A key, preset or recipe is unknown, or a value has the wrong type or is out of
            bounds.
    """
    return load.resolve(given.from_python(options, keywords), here=False).recipe


def pretrain(
    options: Options | Recipe = (),
    /,
    *,
    images: Any = None,
    augment: Callable[..., Any] | None = None,
    augment_name: str | None = None,
    **keywords: Any,
) -> RunResult | None:
    """Pre-train with these options or this recipe, or resume the run.

    A process can do a single training, evaluation, `embed` or `figures` at a time. A second call,
    even in another thread, raises a UserError. Runs, reports and plans can be read meanwhile.

    Args:
        options: Options, or a Recipe from `resolve`.
        images: Images in place of `data.path=`: a map-style torch Dataset, a `datasets.Dataset`, a
            list of paths or of (path, label), or a mapping from split names to these. They are
            written once into the folder `out=`, and files are only linked.
        augment: Function or object that changes each training image before the random crop and
            flip: a transform of torchvision or albumentations, or a function of a uint8 tensor (C,
            H, W). Before each call, the random generators are seeded from the sample, so the run
            resumes exactly.
        augment_name: Name of the augmentation in the recipe. The default is made from the code and
            the parameters of `augment`.
        keywords: More options.

    Returns:
        The measurements of the run. A run that has finished already is not trained again. If
        several processes train together, the result is None on all processes except rank 0.

    Raises:
        UserError: The options, the images, the weights or the run folder do not fit together, or
            another call in this process has not ended.
        SystemExit: A signal stopped the run, and the same call resumes the run. docs/runs.md
            explains the exit statuses.
        KeyboardInterrupt: A signal stopped the run in an interactive shell or a notebook, or Ctrl-C
            came after the last step.
    """
    own = _own_augment(augment, augment_name)
    return _run(options, keywords | own, images, cli.PRETRAIN)


def finetune(
    options: Options | Recipe = (),
    /,
    *,
    images: Any = None,
    augment: Callable[..., Any] | None = None,
    augment_name: str | None = None,
    **keywords: Any,
) -> RunResult | None:
    """Fine-tune the encoder of `init=` on labels.

    Arguments, result and exceptions are as for `pretrain`.
    """
    own = _own_augment(augment, augment_name)
    return _run(options, keywords | own, images, cli.FINETUNE)


def evaluate(
    options: Options | Recipe = (), /, *, images: Any = None, **keywords: Any
) -> RunResult | None:
    """Evaluate the frozen encoder of `init=`.

    Arguments, result and exceptions are as for `pretrain`.
    """
    return _run(options, keywords, images, cli.EVALUATE)


def embed(
    options: Options = (), /, *, images: Any = None, query: Any = None, **keywords: Any
) -> "EmbeddedImages":
    """Write the features of every image of a data set.

    `embed` computes only the features that the folder does not have yet. With `query="cat.jpg"`, it
    also finds the images whose features are most similar to the features of cat.jpg. A notebook
    displays these images.

    Args:
        options: Options.
        images: Images as for `pretrain`.
        query: Paths, PIL images, arrays or tensors, a single one or a list. Images in memory are
            written as files into the folder `out=`, with the pixels unchanged.
        keywords: More options.

    Raises:
        UserError: The options, the encoder, the images or the folder do not fit together.
    """
    # Hold the process before importing, because imports would disturb a job that is importing the
    # same modules
    with hold_process("embed"):
        from . import embed as tool

        keywords |= place_images(options, keywords, images)
        keywords |= _place_queries(options, keywords, query)
        tool_options = from_python(EmbedOptions, options, keywords)
        return tool.embed(*tool.prepare(tool_options))


def figures(options: Options = (), /, **keywords: Any) -> "DrawnFigures":
    """Draw figures of what an encoder has learned, next to the same model with untrained weights.

    Raises:
        UserError: An option, an encoder or the images are unsuitable, no figure can be made, or the
            folder holds something else.
    """
    from . import draw_figures

    return draw_figures.draw(from_python(FigureOptions, options, keywords))


def export(options: Options = (), /, **keywords: Any) -> Path:
    """Convert the encoder of a finished run, or an exported encoder, to transformers or ONNX.

    With `quantize="int8"`, the function prints how much accuracy the int8 model loses.

    Returns:
        The folder or file `out=` with the converted encoder.

    Raises:
        UserError: The run has not finished, there is no such encoder, the model does not fit the
            format, the int8 model loses more than `max_drop`, or `out` exists.
    """
    tool_options = from_python(ExportOptions, options, keywords)
    with hold_process(f"init={tool_options.init}", nested=True):
        from . import quantize

        return quantize.convert(tool_options)


def load_run(folder: str | os.PathLike[str]) -> Run:
    """Open the folder of a run.

    The returned run has the `recipe`, the records `result()` and `environment()`, the `rows()` of
    metrics.jsonl, and the paths `folder`, `export` and `figures`. Pass the run as `init=` to use
    the encoder of the run.

    Raises:
        UserError: The folder has no recipe.yaml, or the file cannot be read.
    """
    return open_run(Path(folder))


def load_encoder(
    init: str | os.PathLike[str], options: Options = (), **keywords: Any
) -> "Backbone":
    """Return an encoder with the weights that `init` names, in evaluation mode.

    `encoder.feature(images)` returns features (B, D) and normalises the images itself. It accepts:

    - a uint8 tensor (B, 3, H, W) of the encoder's image size, which is used without resizing;
    - uint8 arrays (H, W, 3), (B, H, W, 3) or (B, 3, H, W), PIL images, and lists of arrays or PIL
      images, which are resized bilinearly and cropped as in the evaluation of the run that made the
      weights.

    If the run set data.channels or data.range, arrays must have those channels, and 16-bit pixels
    must be uint16. Any other input, such as floating-point pixels, raises a TypeError or a
    ValueError.

    `encoder.feature(images, pool)` pools the patch tokens into their mean (`"avg"`) or returns the
    class token (`"token"`). The default is `encoder.pool`, the pooling of the run, the export or
    the repository that the weights come from. The features have a gradient, unless they are
    computed inside `torch.inference_mode()`.

    Args:
        init: The same values as for `init=`: a run folder, the folder of an export, timm:NAME,
            hf-hub:USER/NAME or a .npz file, or "scratch" for untrained weights.
        options: `model=` if the weights do not describe their model (.npz, scratch). `data.size=`
            for another image size than the weights were trained at (default 224 if that size is
            unknown). `data.eval_mode=` and `data.eval_crop=` for another preprocessing, and
            `probe.pool=` for another `encoder.pool`.
        keywords: More options.

    Raises:
        UserError: The weights do not exist, or belong to another model.
    """
    user_options = given.from_python(options, keywords)
    place = os.fspath(init)
    with _LOADING, hold_process(f"init={place}", nested=True):
        from ..models import encoder, weights
        from . import encoders

        if place == SCRATCH and "data.size" not in user_options.values:
            user_options = user_options.with_values({"data.size": encoders.DEFAULT_SIZE})
        named_encoder = encoders.find_encoder(place, user_options)
        recipe = named_encoder.recipe
        network = encoder.build_backbone(recipe.model, recipe.data)
        if not named_encoder.source.is_scratch:
            weights.load_weights(network, named_encoder.source)
    network.pool = recipe.probe.pool or named_encoder.pool
    return network.eval()


def save_encoder(encoder: "Backbone", folder: str | os.PathLike[str]) -> Path:
    """Write an encoder of `load_encoder` as a folder that `load_encoder` and timm open.

    The folder has the same format as the folder `export/` of a run, so it can be the value of
    `init=` and of `ssl_vit.export`. An encoder that was saved there before is replaced.

    Returns:
        The folder.

    Raises:
        UserError: The folder cannot be written, or is the folder of a run.
    """
    from ..models import weights

    path = Path(folder)
    if (path / "recipe.yaml").exists():
        raise UserError(f"{path}: this is the folder of a run. Use another folder.")
    try:
        weights.export(path, encoder, {}, encoder.model, encoder.data, encoder.pool)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    return path


def place_images(options: Options, keywords: dict[str, Any], images: Any) -> dict[str, Any]:
    """Store the images that a user passed as an object, and return {"data.path": folder}.

    A path is returned as it is. Without images, the result is empty.

    Args:
        options: First argument of the function that the user called.
        keywords: Keyword arguments of this function, of which `out` names the folder.
        images: Argument `images` of this function.

    Raises:
        UserError: The images cannot be used, or the options are wrong.
    """
    if images is None:
        return {}
    if isinstance(images, str | os.PathLike):
        return {"data.path": images}
    from ..data import python_images

    return {"data.path": python_images.store(images, _out(options, keywords))}


def _place_queries(options: Options, keywords: dict[str, Any], query: Any) -> dict[str, Any]:
    """Store the queries that are images in memory, and return {"query": paths}, or {} for None."""
    if query is None:
        return {}
    from ..data import python_images

    return {"query": python_images.store_queries(query, _out(options, keywords))}


def _out(options: Options, keywords: dict[str, Any]) -> Path:
    """Return the folder `out=` that the options of a function name."""
    # a path as the first argument means init=, and does not matter here
    arguments = given.python_arguments(options, keywords, "init")
    values = words.parse(arguments.words) | dict(arguments.pairs or ())
    return Path(values.get("out") or "runs")


def _own_augment(augment: Callable[..., Any] | None, name: str | None) -> dict[str, Any]:
    """Register an augmentation, and return {"data.augment": name}, or {} for None.

    Raises:
        UserError: The augmentation cannot be used, or there is only a name.
    """
    if augment is not None:
        return {"data.augment": augmentations.register(augment, name)}
    if name is not None:
        raise UserError(f"augment_name={name}: there is no augmentation to name. Add augment=.")
    return {}


def _run(
    options: Options | Recipe, keywords: dict[str, Any], images: Any, job: cli.JobKind
) -> RunResult | None:
    """Run a training or an evaluation. A finished run is only read."""
    if isinstance(options, Recipe):
        if keywords or images is not None:
            raise UserError(
                f"{', '.join(keywords) or 'images'}: a Recipe takes no further options. Give all"
                " options to this function, or to ssl_vit.resolve."
            )
        # Build a new Recipe, because a run overwrites values such as compute.precision=auto
        values = options.values()
        if type(options) is not schema.recipe_class(options.objective, values):
            raise UserError(
                f"objective={options.objective}: the Recipe was made for another objective or "
                "target. Make a new Recipe with ssl_vit.resolve."
            )
        recipe = schema.build(values)
        check.check(recipe)
        resolved = load.Resolved(recipe)
        job.check(resolved)
        run, result = cli.open_run(resolved)
    else:
        keywords |= place_images(options, keywords, images)
        run, result = cli.open_job(from_python(job.options, options, keywords).given, job)
    try:
        if result is None:
            result = job.run(run)
    except SystemExit as stopped:
        if hasattr(sys, "ps1"):  # SystemExit would end an interactive shell
            raise KeyboardInterrupt(f"stopped with status {stopped.code}") from None
        raise
    if run.signal == "SIGINT":  # without this error, the script would go on in spite of Ctrl-C
        raise KeyboardInterrupt(f"{run.folder} has finished: Ctrl-C came after the last step")
    return run_result(run, result) if result else None
