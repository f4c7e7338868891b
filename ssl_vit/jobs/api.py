"""The Python interface that `import ssl_vit` offers. Torch is imported when a function needs it.

Options are those of the command line: a mapping {"recipe": "mpp", "optim.steps": 100}, a list
["recipe=mpp", "optim.steps=100"], or one string "recipe=mpp optim.steps=100".
"""

import copy
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import recipe_files, validate, values
from ..config import resolve as resolving
from ..config.init_source import SCRATCH
from ..config.schema import Recipe
from ..config.tool_options import parse
from ..config.tools import EmbedOptions
from ..errors import UserError
from ..formatting import option_text
from ..runs.folder import Run
from . import cli

if TYPE_CHECKING:
    from ..models.encoder import Backbone

Options = str | Iterable[str] | Mapping[str, Any]


def resolve(options: Options) -> Recipe:
    """The complete recipe, checked; its images need not be on this machine.

    Raises:
        UserError: an unknown key, preset or recipe, or a value of the wrong type or out of bounds.
    """
    return resolving.resolve(_listed(options), here=False)


def pretrain(options: Options | Recipe) -> dict[str, Any]:
    """Pre-train with these options or this recipe, or resume the run.

    Returns:
        The content of result.json; of a run that has finished already, without training again.

    Raises:
        UserError: the options, the images, the weights or the run folder do not fit together.
        SystemExit: a signal stopped the run (statuses: docs/guide.md); the same call resumes it.
    """
    return _run(options, cli.PRETRAIN)


def finetune(options: Options | Recipe) -> dict[str, Any]:
    """Fine-tune on labels from the weights of `init=`; as `pretrain`."""
    return _run(options, cli.FINETUNE)


def evaluate(options: Options | Recipe) -> dict[str, Any]:
    """Measure the frozen encoder of `init=`; as `pretrain`."""
    return _run(options, cli.EVALUATE)


def embed(options: Options) -> Path:
    """Write the features of every image of a data set, or those that are missing; options as of
    the embed tool.

    Returns:
        The folder: embed.json and a file (parquet or npz) a shard, with `index`, `file`, `label`,
        `embedding` and, with patches=true, `patches`.

    Raises:
        UserError: the options, the encoder, the images or the folder do not fit together.
    """
    from . import embed as tool

    return tool.embed(*tool.prepare(parse(EmbedOptions, _listed(options))))


def load_run(folder: str | Path) -> Run:
    """A run folder: `recipe`, `result()`, `rows()` of metrics.jsonl, `environment()`, `export`.

    Raises:
        UserError: the folder has no recipe.yaml, or one that cannot be read.
    """
    path = Path(folder)
    if not (path / "recipe.yaml").is_file():
        raise UserError(f"{folder}: expected a run folder; it has no recipe.yaml")
    recipe = recipe_files.read(path / "recipe.yaml")
    recipe.out = str(path.resolve().parent)
    recipe.name = path.resolve().name
    return Run(recipe)


def load_encoder(init: str | Path, options: Options = ()) -> "Backbone":
    """An encoder with the weights that `init` names, in evaluation mode.

    `encoder.feature(images)` gives features (B, D), and normalises the images itself. A uint8
    tensor (B, 3, H, W) of the encoder's size is used as it is. uint8 arrays, (H, W, 3),
    (B, H, W, 3) or (B, 3, H, W), PIL images and lists of both are resized and cropped as in the
    evaluation of the run that made the weights. Anything else, pixels of floating point among
    them, is a TypeError or a ValueError. `pool` is "avg", the mean of the patches, or "token", the
    class token; without it the one of the run, or of the export or repository: what it gives as an
    image's feature.

    Args:
        init: as `init=`: a run folder, an export's folder, timm:NAME, hf-hub:USER/NAME or a .npz
            file; "scratch" for fresh weights.
        options: `model=` where the weights do not describe theirs (.npz, scratch), `data.size=` for
            another image size than theirs (224 where that is unknown), `data.eval_mode=` and
            `data.eval_crop=` for another evaluation, `probe.pool=` for another `encoder.pool`.

    Raises:
        UserError: there are no such weights, or they belong to another model.
    """
    from ..models import encoder, weights
    from . import encoders

    given = values.parse(_listed(options))
    if str(init) == SCRATCH:
        given.setdefault("data.size", str(encoders.DEFAULT_SIZE))
    one = encoders.resolve_one(str(init), given)
    network = encoder.build_backbone(one.recipe.model, one.recipe.data)
    if not one.source.is_scratch:
        weights.load_weights(network, one.source)
    network.pool = one.recipe.probe.pool or one.pool
    return network.eval()


def _run(options: Options | Recipe, job: cli.JobKind) -> dict[str, Any]:
    if isinstance(options, Recipe):
        # copied, because a run replaces values such as compute.precision=auto in its recipe
        recipe = copy.deepcopy(options)
        validate.check(recipe)
        given = [f"init={recipe.init}"]
    else:
        given = _listed(options)
        recipe = resolving.resolve(given, here=False)
    job.check(recipe, given)
    made_of = None if isinstance(options, Recipe) else given
    run, result = cli.open_run(recipe, made_of)
    if result is None:
        result = job.run(run)
    return result.content() if result else {}


def _listed(options: Options) -> list[str]:
    """The options as a list of key=value."""
    if isinstance(options, str):
        return shlex.split(options)
    if isinstance(options, Mapping):
        return [f"{key}={option_text(value)}" for key, value in options.items()]
    return list(options)
