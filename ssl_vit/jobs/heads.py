"""The objective of a run that made an encoder, with the heads that it trained beside it; and its
classifier on the test images, whose classes are found in the images by their names."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from safetensors.torch import load_file
from torch import Tensor

from ..data.class_numbers import pair_classes, renumber
from ..data.source import Source
from ..errors import NOT_FINITE, UserError
from ..evaluation import classify
from ..evaluation.images import Images
from ..models.encoder import Backbone
from ..objectives import building
from ..objectives.base import Objective
from ..recipe import declaration, export_files, recipe_files
from ..recipe.declaration import ObjectiveDeclaration
from ..recipe.images import Data
from ..recipe.init_source import InitSource
from ..recipe.plugins import content_of
from ..recipe.records import read
from ..recipe.records.run import Environment, Measured
from ..recipe.schema import build
from ..runs.identity import read_record

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
        text = "a figure of its predictions, if it has one, needs plugin=FILE"
        return None, f"objective={made.objective} is a plugin's; {text}"
    part = next((candidate for candidate in made.declared.trained(made) if wanted(candidate)), None)
    if part is None:
        return None, ""
    if part.predicts_patches and made.target not in declaration.targets():
        text = "figures=reconstruction with plugin=FILE shows its predictions"
        return None, f"target={made.target} is a plugin's; {text}"
    now = {
        content_of(type(candidate))
        for candidate in (made.declared, declaration.targets().get(made.target))
    }
    was = (read(run / "environment.json", Environment).plugin or {}).get("file")
    if was and now - {"", was}:
        return None, "the plugin's file differs from what the run was made with"
    with _damaged(f"init={source.place}: {path}"):
        heads = _of_part(_finite(load_file(path)), part.name)
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
        config = export_files.read(folder, only_ours=True)
    except (OSError, ValueError):  # another program's
        return None
    if not config["num_classes"] or not wanted(declaration.objective(LABELS)):
        return None
    pool = config["global_pool"]
    made = build({"objective": LABELS, f"{LABELS}.hidden": False, f"{LABELS}.pool": pool})
    state = load_file(folder / "model.safetensors")
    with _damaged(f"init={source.place}: {folder}: no head of its classes"):
        built = building.build(building.Settings.of(made), network, config["num_classes"])
        built.load_heads(_finite({name: state[name] for name in ("head.weight", "head.bias")}))
    return built


@contextmanager
def _damaged(prefix: str) -> Iterator[None]:
    """Whatever a damaged file causes, as one line."""
    try:
        yield
    except Exception as error:
        text = " ".join(str(error.args[0] if error.args else error).split())[:200]
        raise UserError(f"{prefix}: {text}") from None


def _finite(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights.

    Raises:
        ValueError: some are not finite.
    """
    if name := export_files.first_nonfinite(state.items()):
        raise ValueError(f"{name} {NOT_FINITE}")
    return state


def _of_part(heads: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """Those of one objective: of a sum of objectives that part's."""
    prefix = f"{PARTS}{name}."
    return {
        key.removeprefix(prefix): value
        for key, value in heads.items()
        if key.startswith(prefix) or not key.startswith(PARTS)
    }


class Head(NamedTuple):
    """A trained classifier; and for each class of the images its number there, None where labels go
    by their number."""

    objective: Objective
    number_C: np.ndarray | None


def load_head(net: Backbone, init: InitSource, test: Source, data: Data) -> Head:
    """Return the classifier of the run or export that made the weights.

    Args:
        net: the encoder with these weights.
        init: the place of the weights.
        test: the images that the classifier is to classify.
        data: the recipe's keys of these images.

    Raises:
        UserError: they have no classifier; or as `pair_classes`.
    """
    objective = load_classifier(init, net, "probe.measures=top1")
    outputs = getattr(objective, "classes", 0)
    number_C = pair_classes(names_of_head(init), test, init.place, data.location, outputs)
    return Head(objective, number_C)


def measure_head(head: Head, images: Images, paired: bool) -> dict[str, Measured]:
    """Measure top-1, top-5 and, with eval.real, ReaL; `paired` as in `beside.compared`.

    Raises:
        UserError: labels go by their number, and there are more than the head knows.
    """
    recipe, test, accelerator = images.recipe, images.test, images.accelerator
    objective = head.objective.to(accelerator.device).eval()
    with images.autocast():
        predictions = classify.predict(objective, images.batches(test), accelerator)
    predictions = predictions._replace(label=renumber(predictions.label, head.number_C))
    if predictions.label.max() >= predictions.classes:
        known = f"the head of init={recipe.init} knows {predictions.classes} classes"
        labels = f"data={recipe.data.name} has labels up to {predictions.label.max()}"
        raise UserError(f"probe.measures=top1: {known}, {labels}")
    metrics = classify.accuracies(predictions, predictions.classes, paired)
    if recipe.eval.real:
        metrics |= classify.real_accuracy(predictions, test, recipe.eval.real)
    return metrics


def names_of_head(init: InitSource) -> list[str]:
    """The classes that the head of a run or an export knows, in the order of its outputs; empty
    where its labels had no names.

    Raises:
        UserError: the run's environment.json is missing or damaged.
    """
    located = init.locate()
    if located.run is not None:
        return read_record(located.run / "environment.json", Environment).classes or []
    folder = located.export if init.is_local else init.fetch_export("config.json")
    names = (folder and export_files.read(folder).get("label_names")) or []
    # an export numbers classes without names
    return [] if names == [str(number) for number in range(len(names))] else names
