"""Remove from a run's records what must not be published. No torch.

What identifies the machine, the user or the files of images is private: paths, the name of a folder
of images, the names of local runs, the description of the machine and the values of another recipe
file are left out or replaced. Hashes of images, metrics and the values of the recipe stay. A
classifier's config.json also names the classes.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..pages import figure_blocks
from ..recipe.images import Data
from ..recipe.parsing import load_yaml
from ..recipe.records.run import Result, SeenImages
from ..recipe.schema import Recipe, without_private
from ..runs.folder import Run
from ..runs.identity import written_hash

TERMS = Path(__file__).with_name("terms.yaml")
PRIVATE_IMAGES = "private images"  # in place of the name of a folder of images
LOCAL = "local-weights"  # in place of the path of local weights
ANOTHER_RUN = "another run"  # in place of the name of a local run
# Keys of environment.json that are published. All other keys describe the machine, or are written
# anew when the run is resumed
PUBLISHED_FACTS = (
    *("data", "images", "measured_on", "held_out", "init", "teacher", "before", "packages"),
    *("revision", "plugin", "real", "sharding", "device", "processes", "threads", "precision"),
    *("python", "device_batch", "accumulation", "parameters", "multiply_adds", "free", "declared"),
)


def find_terms(data: Data) -> dict[str, Any]:
    """Return the entry of a data set in terms.yaml, or an empty mapping if there is no entry.

    Images with only data.path= have no entry, because data.name may be the name of any folder.
    """
    terms: dict[str, dict[str, Any]] = load_yaml(TERMS)
    is_published_set = data.hub or not data.path
    return terms.get(data.name, {}) if is_published_set else {}


def may_show_images(recipe: Recipe) -> bool:
    """Return whether images of the data may be uploaded.

    Any images may be uploaded with hub.figures=true. Images of a published data set may also be
    uploaded if the terms of the data set allow it, but not if they were read from a local copy,
    which may hold any images.

    Args:
        recipe: The recipe, with the images and hub.figures.
    """
    if recipe.hub.figures:
        return True
    return not recipe.data.path and bool(find_terms(recipe.data).get("figures"))


def with_public_names(recipe: Recipe) -> Recipe:
    """Return the recipe without the name of a folder of images, in data.name and in the run's name.

    The default name of a run contains the names of its images and of local initial weights. If one
    of these names is private, the name of the objective replaces the name of the run.

    Args:
        recipe: The recipe of the run.
    """
    public = recipe.model_copy(deep=True)
    private_names = [source.short_name for source in recipe.sources().values() if source.is_local]
    if recipe.data.path and not find_terms(recipe.data):
        private_names.append(recipe.data.name)
        public.data.name = PRIVATE_IMAGES
    if any(_names(recipe.name, private_name) for private_name in private_names):
        public.name = recipe.objective
    return public


def _names(run_name: str, private_name: str) -> bool:
    """Return whether the name of a run contains a private name, completely or cut off.

    Long default names of runs are cut off before their hash, so the part before the hash may end
    with only the beginning of the private name (of at least 3 characters).

    Args:
        run_name: Name of a run.
        private_name: Name of a folder of images, or of local weights.
    """
    if not private_name:
        return False
    without_hash, _, _ = run_name.rpartition("-")
    beginnings = tuple(private_name[:length] for length in range(3, len(private_name)))
    return private_name in run_name or without_hash.endswith(beginnings)


def public_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe for upload, without private names and paths."""
    public = without_private(with_public_names(recipe))
    for key, source in recipe.sources().items():
        if source.is_local:
            public.set(key, LOCAL)
    return public


def public_result(run: Run, result: Result) -> Result:
    """Return the content of result.json for upload, without the names of other runs."""
    changes: dict[str, Any] = {"recipe": public_hash(run)}
    if result.seen:
        changes["seen"] = without_names(result.seen, run)
    if result.trunk:
        changes["trunk"] = result.trunk.model_copy(update={"run": ANOTHER_RUN})
    return result.model_copy(update=changes)


def public_environment(run: Run) -> dict[str, Any]:
    """Return the content of environment.json for upload, without private values."""
    environment = run.environment()
    content = environment.content()
    published = {key: value for key, value in content.items() if key in PUBLISHED_FACTS}
    options = environment.options or {}
    return published | {
        "recipe": public_hash(run),
        # The value of eval.real is a path of this machine
        "options": options | {"eval.real": bool(options.get("eval.real"))},
        "seen": [images.content() for images in without_names(environment.seen or [], run)],
    }


def public_state(run: Run, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a training state for upload, without the names of other runs."""
    public = {**state, "recipe": public_hash(run)}
    trunk = state.get("trunk")
    if trunk:
        public["trunk"] = trunk | {"run": ANOTHER_RUN}
    return public


def public_hash(run: Run) -> str:
    """Return the hash of the uploaded recipe, which connects the uploaded records to the recipe."""
    return written_hash(public_recipe(run.recipe).values())


def without_names(seen: Iterable[SeenImages], run: Run) -> list[SeenImages]:
    """Return the records of seen images, without the names of other runs of this machine."""
    public_name = with_public_names(run.recipe).name
    public_seen = []
    for images in seen:
        name = public_name if images.run == run.folder.name else ANOTHER_RUN
        public_seen.append(images.model_copy(update={"run": name}))
    return public_seen


class Figures(NamedTuple):
    """Figures of a finished run.

    Attributes:
        uploaded: {name in the repository: file}.
        withheld: Names of figures that are not uploaded because they may show images of the data or
            names.
    """

    uploaded: dict[str, Path]
    withheld: list[str]


def find_figures(run: Run) -> Figures:
    """Sort the figures of a run into those that are uploaded and those that are withheld.

    Figures are uploaded with hub.figures=true. Otherwise only two kinds of figures are uploaded:
    figures without images, if the name of the run, which is in their titles, is public, and the
    figure of predictions, if the terms of the run's images allow it. The terms do not cover the
    other figures, because the figures tool may have drawn other images.

    Args:
        run: A finished run.
    """
    result = Figures({}, [])
    recipe = run.recipe
    is_name_public = with_public_names(recipe).name == recipe.name
    for stem in figure_blocks.ORDER:
        path = run.figures / f"{stem}.png"
        if not path.exists():
            continue
        description = figure_blocks.DESCRIPTIONS.get(stem)
        is_without_images = description is not None and not description.shows_images
        is_allowed = stem == figure_blocks.PREDICTIONS and may_show_images(recipe)
        if recipe.hub.figures or (is_without_images and is_name_public) or is_allowed:
            result.uploaded[f"figures/{stem}.png"] = path
        else:
            result.withheld.append(f"figures/{stem}.png")
    return result
