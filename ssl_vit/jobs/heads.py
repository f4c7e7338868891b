"""Load the heads that a run trained together with the encoder, and measure a trained classifier.

The heads belong to the objective of the run that made the weights. The classifier is measured on
test images whose classes are matched to the outputs by name.
"""

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
from ..evaluation.images import EvaluationImages
from ..models.encoder import Backbone
from ..objectives import building
from ..objectives.base import Objective
from ..recipe import declaration, export_files, recipe_files
from ..recipe.declaration import ObjectiveDeclaration
from ..recipe.images import Data
from ..recipe.init_source import InitSource
from ..recipe.plugins import plugin_hash
from ..recipe.records import read
from ..recipe.records.run import Environment, Measurement
from ..recipe.schema import build
from ..runs.identity import read_record

PARTS = "parts."  # in a sum of objectives, names of weights begin with parts.OBJECTIVE.
LABELS = "supervised"  # objective of the classifier in an export


def load_classifier(
    source: InitSource, network: Backbone, option: str, trained: bool = True
) -> Objective:
    """Load the classifier of an encoder: an objective whose head was trained on labels.

    Args:
        source: Place of the weights (`init=`).
        network: Encoder with these weights.
        option: Option that needs a classifier, for the error.
        trained: Whether to load the trained heads. If False, the heads keep freshly drawn weights.

    Raises:
        UserError: The run or export has no classifier, or the heads are damaged.
    """
    objective, why_not_loaded = load_trained(
        source, network, lambda declared: declared.labels, trained
    )
    if objective is not None:
        return objective
    if why_not_loaded:
        raise UserError(f"{option}: init={source.place}: {why_not_loaded}")
    raise UserError(
        f"{option}: init={source.place}: these weights have no classifier trained on labels. "
        "Use a run that was trained on labels."
    )


def load_trained(
    source: InitSource,
    network: Backbone,
    wanted: Callable[[ObjectiveDeclaration], bool],
    trained: bool = True,
) -> tuple[Objective | None, str]:
    """Build the objective that trained an encoder, with the trained heads.

    For an export without a known run, the objective is the linear classifier of the export.

    Args:
        source: Place of the weights (`init=`).
        network: Encoder with these weights, which becomes part of the objective.
        wanted: Takes the declaration of an objective and returns whether to build this objective.
            In a sum of objectives, the first wanted part that was trained is built.
        trained: Whether to load the trained heads. If False, the heads keep freshly drawn weights.

    Returns:
        The objective and an empty text. If the objective cannot be built, None and the reason, such
        as a missing plugin. If no wanted objective was trained, None and an empty text.

    Raises:
        UserError: The heads are damaged.
    """
    export, run = source.locate()
    if run is None:
        return _load_export_head(source, network, wanted), ""
    path = export / "heads.safetensors" if export else None
    if path is None or not path.exists():
        return None, ""
    export_files.check_digest(path.parent, path.name, f"init={source.place}")
    recipe = recipe_files.read(run / "recipe.yaml")
    if recipe.objective not in declaration.objectives():
        return None, f"objective={recipe.objective} comes from a plugin. Add plugin=FILE.py."
    part = next(filter(wanted, recipe.declared.trained(recipe)), None)
    if part is None:
        return None, ""
    if part.predicts_patches and recipe.target not in declaration.targets():
        return None, f"target={recipe.target} comes from a plugin. Add plugin=FILE.py."
    # Compare the hash of the plugin's file with the hash that the run has recorded. The hash is ""
    # for an objective or a target that is not from a plugin
    declarations = (recipe.declared, declaration.targets().get(recipe.target))
    hashes_now = {plugin_hash(type(declared)) for declared in declarations}
    recorded_plugin = read(run / "environment.json", Environment).plugin or {}
    recorded_hash = recorded_plugin.get("file")
    # A hash that is neither "" nor the recorded hash belongs to a file that has changed
    if recorded_hash and hashes_now - {"", recorded_hash}:
        return None, "the plugin's file has changed since the run began. Restore the file."
    with _damaged(f"init={source.place}: {path}"):
        heads = _select_part(_check_finite(load_file(path)), part.name)
        classes = recipe.data.classes
        if not classes:
            class_names = read(run / "environment.json", Environment).classes
            # A plugin's classifier may have a head of another name than `head`
            classes = len(class_names) if class_names else len(heads.get("head.bias", ()))
        objective = building.build_objective(
            building.Settings.from_recipe(recipe), network, classes, part.name
        )
        if trained:
            objective.load_heads(heads)
    return objective, ""


def _load_export_head(
    source: InitSource, network: Backbone, wanted: Callable[[ObjectiveDeclaration], bool]
) -> Objective | None:
    """Build the linear classifier of an export of this project, with its weights.

    Args:
        source: Place of the export.
        network: Encoder of the export, which becomes part of the objective.
        wanted: Takes the declaration of the objective `supervised` (LABELS) and returns whether to
            build the classifier.

    Returns:
        The objective, or None if another program wrote the export, the export has no classifier, or
        the classifier is not wanted.

    Raises:
        UserError: The export is damaged.
    """
    folder = source.fetch_export("config.json", "model.safetensors")
    if folder is None:
        return None
    try:
        config = export_files.read(folder, only_ours=True)
    except (OSError, ValueError):  # the export of another program
        return None
    if not config["num_classes"] or not wanted(declaration.objective(LABELS)):
        return None
    pool = config["global_pool"]
    recipe = build({"objective": LABELS, f"{LABELS}.hidden": False, f"{LABELS}.pool": pool})
    state = load_file(folder / "model.safetensors")
    with _damaged(f"init={source.place}: the classifier in {folder}"):
        objective = building.build_objective(
            building.Settings.from_recipe(recipe), network, config["num_classes"]
        )
        head = {name: state[name] for name in ("head.weight", "head.bias")}
        objective.load_heads(_check_finite(head))
    return objective


@contextmanager
def _damaged(prefix: str) -> Iterator[None]:
    """Turn any error in the body, which reads a file, into a UserError of one line.

    Args:
        prefix: Option and file, at the beginning of the message.
    """
    try:
        yield
    except Exception as error:
        # str() of a KeyError would put the message into quotes
        message = str(error.args[0] if error.args else error)
        reason = " ".join(message.split())[:200]
        raise UserError(f"{prefix} cannot be read: {reason}") from None


def _check_finite(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Check that all weights are finite, and return the weights unchanged.

    Args:
        state: {name: weight}.

    Raises:
        ValueError: A weight is not finite.
    """
    name = export_files.first_nonfinite(state.items())
    if name:
        raise ValueError(f"{name} {NOT_FINITE}")
    return state


def _select_part(heads: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the weights of a single objective from the heads of a run.

    If the run trained a sum of objectives, the names of weights begin with `parts.NAME.`. Only the
    weights of the named objective are returned, without this prefix: `parts.mpp.head.weight`
    becomes `head.weight`. If the run trained a single objective, all weights are returned.

    Args:
        heads: {name: weight} of the run's objective or objectives.
        name: Name of the objective whose weights are returned.
    """
    prefix = f"{PARTS}{name}."
    return {
        key.removeprefix(prefix): value
        for key, value in heads.items()
        if key.startswith(prefix) or not key.startswith(PARTS)
    }


class TrainedClassifier(NamedTuple):
    """Trained classifier, with the mapping from the images' classes to its outputs.

    Attributes:
        objective: Objective with the trained head.
        output_C: For each class of the images, the number of the head's output. None if the labels
            are the numbers of the outputs.
    """

    objective: Objective
    output_C: np.ndarray | None


def load_head(net: Backbone, init: InitSource, test: Source, data: Data) -> TrainedClassifier:
    """Load the classifier of the run or export that made the weights.

    The classes of the test images are matched with the classifier's outputs by their names.

    Args:
        net: The encoder with these weights.
        init: The place of the weights.
        test: The test images.
        data: The data options of the recipe, for errors about the test images.

    Raises:
        UserError: The run or export has no classifier, or the classes of the test images cannot be
            matched with the outputs.
    """
    objective = load_classifier(init, net, "probe.measures=top1")
    # A plugin's classifier may lack the attribute `classes`, the number of classes
    num_outputs = getattr(objective, "classes", 0)
    output_C = pair_classes(names_of_head(init), test, init.place, data.location, num_outputs)
    return TrainedClassifier(objective, output_C)


def measure_head(
    head: TrainedClassifier, images: EvaluationImages, paired: bool
) -> list[Measurement]:
    """Measure top-1, top-5 and, with eval.real, ReaL accuracy of a classifier.

    Labels of the images are replaced by the numbers of the classifier's outputs, because the order
    of the classes may differ.

    Args:
        head: The classifier.
        images: The test images, with the recipe and the processes that read them.
        paired: Whether to measure by how much the top-1 accuracy exceeds that of always naming the
            commonest class, on the same images.

    Raises:
        UserError: The classes have no names to match, and a label exceeds the number of the last
            output.
    """
    recipe, test = images.recipe, images.test
    accelerator = images.accelerator
    objective = head.objective.to(accelerator.device).eval()
    with images.autocast():
        predictions = classify.predict(objective, images.read_batches(test), accelerator)
    predictions = predictions._replace(label=renumber(predictions.label, head.output_C))
    if predictions.label.max() >= predictions.classes:
        raise UserError(
            f"probe.measures=top1: the classifier of init={recipe.init} has {predictions.classes} "
            f"classes, and data={recipe.data.name} has labels up to {predictions.label.max()}. "
            f"Use images with labels from 0 to {predictions.classes - 1}."
        )
    accuracies = classify.accuracies(predictions, predictions.classes, paired)
    if recipe.eval.real:
        accuracies += classify.real_accuracy(predictions, test, recipe.eval.real)
    return accuracies


def names_of_head(init: InitSource) -> list[str]:
    """Return the class names of the head of a run or an export, in the order of the outputs.

    The list is empty if the labels had no names.

    Raises:
        UserError: The run's environment.json is missing or damaged.
    """
    located = init.locate()
    if located.run is not None:
        return read_record(located.run / "environment.json", Environment).classes or []
    folder = located.export if init.is_local else init.fetch_export("config.json")
    if not folder:
        return []
    names = export_files.read(folder).get("label_names") or []
    # For classes without names, an export writes the numbers 0, 1, ... as names
    numbers = [str(number) for number in range(len(names))]
    return [] if names == numbers else names
