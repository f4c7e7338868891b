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
    """Return the terms of use and the paper of a published data set, from terms.yaml.

    The result is empty for a data set that is not in terms.yaml. The result is also empty if
    data.path is set and data.hub is not, because data.name may then be the name of any folder.
    """
    terms: dict[str, dict[str, Any]] = load_yaml(TERMS)
    is_only_folder = data.path and not data.hub
    return {} if is_only_folder else terms.get(data.name, {})


def may_show_images(recipe: Recipe) -> bool:
    """Return whether images of the data may be uploaded.

    All images may be uploaded with hub.figures=true. Otherwise, images of a published data set may
    be uploaded if its terms allow this. Images from a local folder may not, because the folder may
    hold any images.

    Args:
        recipe: The recipe, with the images and hub.figures.
    """
    if recipe.hub.figures:
        return True
    return not recipe.data.path and bool(find_terms(recipe.data).get("figures"))


def with_public_names(recipe: Recipe) -> Recipe:
    """Return a copy of the recipe in which public names replace private names.

    Names of local weights are private. The name of a folder of images is private unless the images
    are a published data set. In data.name, "private images" replaces a private folder's name. The
    default name of a run may contain a private name. If the name of the run contains a private
    name, the name of the objective replaces the name of the run.

    Args:
        recipe: The recipe of the run.
    """
    public = recipe.model_copy(deep=True)
    private_names = [source.short_name for source in recipe.sources().values() if source.is_local]
    is_private_folder = recipe.data.path and not find_terms(recipe.data)
    if is_private_folder:
        private_names.append(recipe.data.name)
        public.data.name = PRIVATE_IMAGES
    if any(_contains_private_name(recipe.name, private_name) for private_name in private_names):
        public.name = recipe.objective
    return public


def _contains_private_name(run_name: str, private_name: str) -> bool:
    """Return whether the name of a run contains a private name, completely or cut off.

    A default name ends with a hash, and a long name is cut off before the hash. For example, the
    name `mae-vit_s16-holiday-ph-1a2b3c` contains the beginning of the folder `holiday-photos`. So a
    beginning of the private name, of 3 characters or more, also counts if the beginning stands
    directly before the hash.

    Args:
        run_name: Name of a run.
        private_name: Name of a folder of images, or of local weights.
    """
    if not private_name:
        return False
    without_hash, _, _ = run_name.rpartition("-")
    # For "photos", these are "pho", "phot" and "photo"
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
    """Return the content of result.json for upload, without the names of other runs.

    The hash of the recipe becomes the hash of the public recipe.
    """
    changes: dict[str, Any] = {"recipe": public_hash(run)}
    if result.seen:
        changes["seen"] = with_public_run_names(result.seen, run)
    if result.trunk:  # the run at whose checkpoint this run began (resume=RUN@STEP)
        changes["trunk"] = result.trunk.model_copy(update={"run": ANOTHER_RUN})
    return result.model_copy(update=changes)


def public_environment(run: Run) -> dict[str, Any]:
    """Return the content of environment.json for upload, without private values.

    Of the recorded keys, those in PUBLISHED_FACTS are kept unchanged. The keys "recipe", "options"
    and "seen" get public values: "recipe" is the hash of the public recipe, and "seen" has no names
    of other runs. All other keys are left out.
    """
    environment = run.environment()
    content = environment.content()
    published = {key: value for key, value in content.items() if key in PUBLISHED_FACTS}
    options = environment.options or {}
    return published | {
        "recipe": public_hash(run),
        # eval.real is a path of labels (ImageNet-ReaL). Publish only whether it was used
        "options": options | {"eval.real": bool(options.get("eval.real"))},
        "seen": [images.content() for images in with_public_run_names(environment.seen or [], run)],
    }


def public_state(run: Run, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a training state for upload, without the names of other runs.

    The hash of the recipe becomes the hash of the public recipe.
    """
    public = {**state, "recipe": public_hash(run)}
    trunk = state.get("trunk")
    if trunk:
        public["trunk"] = trunk | {"run": ANOTHER_RUN}
    return public


def public_hash(run: Run) -> str:
    """Return the hash of the public recipe, which the uploaded records refer to."""
    return written_hash(public_recipe(run.recipe).values())


def with_public_run_names(seen: Iterable[SeenImages], run: Run) -> list[SeenImages]:
    """Replace the names of runs in records of seen images by public names.

    Each record says how many of the images on which `run` is measured were training images of
    another run or of `run` itself. The name of `run` becomes the public name, and the name of any
    other run becomes "another run".
    """
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
        withheld: Names of figures that may show private images or names, and are not uploaded.
    """

    uploaded: dict[str, Path]
    withheld: list[str]


def find_figures(run: Run) -> Figures:
    """Decide which figures of a run are uploaded and which are withheld.

    With hub.figures=true, all figures are uploaded. Otherwise these are uploaded:
    - figures without images, if the name of the run is public. The title of a figure has this name.
    - the figure of predictions, if the terms of the data set allow showing images.

    Other figures with images are withheld, because the user may have passed images that are not of
    the data set to the figures tool.

    Args:
        run: A finished run.
    """
    figures = Figures({}, [])
    recipe = run.recipe
    is_name_public = with_public_names(recipe).name == recipe.name
    for stem in figure_blocks.ORDER:
        path = run.figures / f"{stem}.png"
        if not path.exists():
            continue
        description = figure_blocks.DESCRIPTIONS.get(stem)
        is_without_images = description is not None and not description.shows_images
        is_covered_by_terms = stem == figure_blocks.PREDICTIONS and may_show_images(recipe)
        shows_nothing_private = is_without_images and is_name_public
        if recipe.hub.figures or shows_nothing_private or is_covered_by_terms:
            figures.uploaded[f"figures/{stem}.png"] = path
        else:
            figures.withheld.append(f"figures/{stem}.png")
    return figures
