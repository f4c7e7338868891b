"""The objective of a run that made an encoder, with the heads that it trained beside it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from safetensors.torch import load_file
from torch import Tensor

from ..errors import UserError
from ..models.encoder import Backbone
from ..objectives import building
from ..objectives.base import Objective
from ..recipe import declaration, export_files, recipe_files
from ..recipe.declaration import ObjectiveDeclaration
from ..recipe.init_source import InitSource
from ..recipe.records import read
from ..recipe.records.run import Environment
from ..recipe.schema import build

PARTS = "parts."  # of a sum of objectives: parts.NAME.
# Whose head an export's classifier is
LABELS = "supervised"


def load_classifier(
    source: InitSource, network: Backbone, option: str, trained: bool = True
) -> Objective:
    """The objective of the run that made the weights that learned labels, as `load_trained`.

    Raises:
        UserError: there is none, which `option` needs.
    """
    objective, unknown = load_trained(source, network, lambda part: part.labels, trained)
    if objective is None:
        reason = unknown or "is no run that learned labels"
        raise UserError(f"{option}: init={source.place} {reason}")
    return objective


def load_trained(
    source: InitSource,
    network: Backbone,
    wanted: Callable[[ObjectiveDeclaration], bool],
    trained: bool = True,
) -> tuple[Objective | None, str]:
    """The objective of the run that made the weights, around the network; of a sum of objectives
    its first trained part that is wanted. Of an export without its run, the linear head on labels
    that it holds. With trained=False a run's heads are as they were first drawn.

    Returns:
        It, or None for an encoder that was made otherwise and for a run without such a part; and
        why it cannot be told, as without the plugin that declares it.

    Raises:
        UserError: the heads are damaged.
    """
    export, run = source.locate()
    if run is None:
        return _of_export(source, network, wanted), ""
    path = export / "heads.safetensors" if export else None
    if path is None or not path.exists():
        return None, ""
    export_files.check_digest(path.parent, path.name, f"init={source.place}")
    made = recipe_files.read(run / "recipe.yaml")
    if made.objective not in declaration.objectives():
        return None, f"objective={made.objective} is a plugin's; add plugin=FILE"
    part = next((one for one in made.declared.trained(made) if wanted(one)), None)
    if part is None:
        return None, ""
    if part.predicts_patches and made.target not in declaration.targets():
        return None, f"target={made.target} is a plugin's; add plugin=FILE"
    with _damaged(f"init={source.place}: {path}"):
        heads = _of_part(load_file(path), part.name)
        classes = made.data.classes
        if not classes:
            named = read(run / "environment.json", Environment).classes
            # a plugin's classifier may have a head of another name
            classes = len(named) if named else len(heads.get("head.bias", ()))
        built = building.build(building.Settings.of(made), network, classes, part.name)
        if trained:
            built.load_heads(heads)
    return built, ""


def _of_export(
    source: InitSource, network: Backbone, wanted: Callable[[ObjectiveDeclaration], bool]
) -> Objective | None:
    """The linear head on labels of an export that this project made, around the network; None
    without one.

    Raises:
        UserError: the export is damaged.
    """
    folder = source.fetch_export("config.json", "model.safetensors")
    if folder is None:
        return None
    try:
        config = export_files.read(folder, own=True)
    except (OSError, ValueError):  # another program's
        return None
    if not config["num_classes"] or not wanted(declaration.objective(LABELS)):
        return None
    pool = config["global_pool"]
    made = build({"objective": LABELS, f"{LABELS}.hidden": False, f"{LABELS}.pool": pool})
    state = load_file(folder / "model.safetensors")
    with _damaged(f"init={source.place}: {folder}: no head of its classes"):
        built = building.build(building.Settings.of(made), network, config["num_classes"])
        built.load_heads({name: state[name] for name in ("head.weight", "head.bias")})
    return built


@contextmanager
def _damaged(prefix: str) -> Iterator[None]:
    """Whatever a damaged file causes, as one line."""
    try:
        yield
    except Exception as error:
        text = " ".join(str(error.args[0] if error.args else error).split())[:200]
        raise UserError(f"{prefix}: {text}") from None


def _of_part(heads: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """Those of one objective: of a sum of objectives that part's."""
    own = f"{PARTS}{name}."
    return {
        key.removeprefix(own): value
        for key, value in heads.items()
        if key.startswith(own) or not key.startswith(PARTS)
    }
