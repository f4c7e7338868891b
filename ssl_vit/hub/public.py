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
    """Return the entry of a data set in terms.yaml, or an empty mapping.

    Images with only data.path= have no entry, because data.name may be the name of any folder.
    """
    known: dict[str, dict[str, Any]] = load_yaml(TERMS)
    return known.get(data.name, {}) if data.hub or not data.path else {}


def may_show_images(recipe: Recipe) -> bool:
    """Return whether images of the data may be uploaded.

    They may if `hub.figures=true`, or if the terms of a published set allow it and the images were
    read from the set's published place. A local copy may hold any images.
    """
    return recipe.hub.figures or bool(
        not recipe.data.path and find_terms(recipe.data).get("figures")
    )


def with_public_names(recipe: Recipe) -> Recipe:
    """Return the recipe without the name of a folder of images.

    The default name of a run contains this name and the names of local initial weights. The name of
    the objective then replaces the name of the run.
    """
    public = recipe.model_copy(deep=True)
    private = [source.short_name for source in recipe.sources().values() if source.is_local]
    if recipe.data.path and not find_terms(recipe.data):
        private.append(recipe.data.name)
        public.data.name = PRIVATE_IMAGES
    if any(_names(recipe.name, name) for name in private):
        public.name = recipe.objective
    return public


def _names(text: str, private: str) -> bool:
    """Return whether the name of a run contains a private name.

    Long default names are cut off, so a name that ends before its hash with the beginning of a
    private name counts too.
    """
    kept, _, _ = text.rpartition("-")
    cut = (private[:length] for length in range(3, len(private)))
    return bool(private) and (private in text or kept.endswith(tuple(cut)))


def public_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe without private values, for upload."""
    public = without_private(with_public_names(recipe))
    for key, source in recipe.sources().items():
        if source.is_local:
            public.set(key, LOCAL)
    return public


def public_result(run: Run, result: Result) -> Result:
    """Return the content of result.json without private values, for upload."""
    changes: dict[str, Any] = {"recipe": public_hash(run)}
    if result.seen:
        changes["seen"] = without_names(result.seen, run)
    if result.trunk:
        changes["trunk"] = result.trunk.model_copy(update={"run": ANOTHER_RUN})
    return result.model_copy(update=changes)


def public_environment(run: Run) -> dict[str, Any]:
    """Return the content of environment.json without private values, for upload."""
    known = run.environment()
    content = {key: value for key, value in known.content().items() if key in PUBLISHED_FACTS}
    options = known.options or {}
    return content | {
        "recipe": public_hash(run),
        "options": options | {"eval.real": bool(options.get("eval.real"))},
        "seen": [images.content() for images in without_names(known.seen or [], run)],
    }


def public_state(run: Run, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a training state without private values, for upload."""
    trunk = state.get("trunk")
    named = {"trunk": trunk | {"run": ANOTHER_RUN}} if trunk else {}
    return {**state, "recipe": public_hash(run), **named}


def public_hash(run: Run) -> str:
    """Return the hash of the uploaded recipe, which the uploaded records name."""
    return written_hash(public_recipe(run.recipe).values())


def without_names(seen: Iterable[SeenImages], run: Run) -> list[SeenImages]:
    """Return which images were seen, without the names of other runs of this machine."""
    name = with_public_names(run.recipe).name
    return [
        images.model_copy(update={"run": name if images.run == run.folder.name else ANOTHER_RUN})
        for images in seen
    ]


class Figures(NamedTuple):
    """Figures of a finished run.

    Attributes:
        uploaded: {name in the repository: file}.
        withheld: names of figures that are not uploaded because they may show images of the data or
            names.
    """

    uploaded: dict[str, Path]
    withheld: list[str]


def find_figures(run: Run) -> Figures:
    """Return which figures of a run are uploaded.

    The figures tool may have drawn other images than the run's, so the terms of the run's images do
    not allow the upload of its figures. Titles of figures hold the name of the run's folder.
    """
    result = Figures({}, [])
    recipe = run.recipe
    is_named = with_public_names(recipe).name == recipe.name
    for stem in figure_blocks.ORDER:
        path, name = run.figures / f"{stem}.png", f"figures/{stem}.png"
        if not path.exists():
            continue
        shown = figure_blocks.SHOWN.get(stem)
        harmless = shown is not None and not shown.shows_images and is_named
        allowed = stem == figure_blocks.PREDICTIONS and may_show_images(recipe)
        if recipe.hub.figures or harmless or allowed:
            result.uploaded[name] = path
        else:
            result.withheld.append(name)
    return result
