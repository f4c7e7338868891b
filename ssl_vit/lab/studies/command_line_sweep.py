"""A sweep from the command line: an ordinary recipe, and keys with several values each, as a study.

`recipe=mpp sweep corruption.rate=0.15,0.5 optim.lr=1e-3,3e-3` pre-trains every combination and
probes its frozen encoder on the recipe's images.
"""

import re
from collections.abc import Iterable

from ...config.computed import keys
from ...config.parsing import load_yaml
from ...config.recipe_files import TABLES
from ...config.recipe_images import names_images, of_images
from ...config.resolve import resolve
from ...config.schema import Recipe
from ...config.validate import has_use
from ...config.values import parse
from ...errors import UserError
from ...formatting import option_text
from .read_study import build
from .study import Study

SWEEP = "sweep"
COMMA = re.compile(r",(?![^\[]*\])")  # none inside a list's brackets


def split(options: Iterable[str]) -> tuple[dict[str, str], list[str] | None]:
    """{key: text} of the options, and the keys given after the word `sweep`, which are swept; None
    without it."""
    options = list(options)
    given = parse(option for option in options if option != SWEEP)
    if SWEEP not in options:
        return given, None
    behind = options[options.index(SWEEP) + 1 :]
    after = [option.partition("=")[0] for option in behind if option != SWEEP]
    # kept as options unless they have several values
    single = (*keys(lambda option: not option.identity), "compute.precision")
    return given, [key for key in after if "," in given[key] or key not in single]


def study(recipe: str | None, given: dict[str, str], axes: list[str]) -> tuple[Study, str]:
    """The study and its name: pre-training with each combination, then probes.

    Args:
        recipe: that every arm starts from.
        given: {key: text} of the recipe's options, `axes` among them.
        axes: keys that are swept.

    Raises:
        UserError: nothing is swept, or an option is wrong.
    """
    if not axes:
        raise UserError(
            f"{SWEEP}: no key follows; say what is swept, as in {SWEEP} corruption.rate=0.15,0.5"
        )
    if (recipe or "").startswith("study/"):
        raise UserError(
            f"recipe={recipe}: {SWEEP} starts from an ordinary recipe; a study has vary: in "
            f"its file"
        )
    vary = {key: COMMA.split(given[key]) for key in axes}
    if empty := [key for key in axes if "" in vary[key]]:
        raise UserError(f"{empty[0]}={given[empty[0]]}: a value is empty")
    if alone := [key for key in axes if len(vary[key]) == 1]:
        wanted = f"expected two values at least after {SWEEP}; options of every arm stand before it"
        raise UserError(f"{alone[0]}={given[alone[0]]}: {wanted}")
    start = {key: value for key, value in given.items() if key not in axes}
    if recipe:
        start["recipe"] = recipe
    trained = {key: value for key, value in start.items() if not key.startswith("probe.")}
    probed = {key: value for key, value in start.items() if key.startswith(("probe.", "compute."))}
    base = _base(trained, {key: values[0] for key, values in vary.items()})
    if base.objective == "probe":
        raise UserError(
            f"recipe={recipe}: trains nothing that could be swept; a part's grid in a study's "
            f"file sweeps probes"
        )
    if base.data.path and names_images(f"{key}={value}" for key, value in trained.items()):
        trained["data.path"] = base.data.path  # whole, found again from any folder
    # all of the images that a run is trained on, whichever part of them it takes
    subset = keys(lambda option: option.subset)
    evaluation = keys(lambda option: option.brought == "evaluation")
    evaluated = [key for key in of_images() if key not in subset]
    evaluated += [key for key in evaluation if has_use(base, key)]  # a squash has none for a crop
    images = image_options(base, evaluated)
    probe = {"recipe": "evaluate", "init": "{pretrain}", **images, **probed}
    parts = {
        "pretrain": {"tool": "pretrain", "options": trained},
        "probe": {"tool": "evaluate", "options": probe},
    }
    title = f"{recipe}: {' and '.join(axes)}"
    raw = {"title": title, "vary": dict(vary), "parts": parts, "report": {"probes": ["probe"]}}
    return build(raw, SWEEP), f"{base.name}-{SWEEP}-{'-'.join(axes)}"


def _base(start: dict[str, str], first: dict[str, str]) -> Recipe:
    """The recipe before any setting or, where it cannot be without one, with the first."""
    try:
        return resolve([f"{key}={value}" for key, value in start.items()])
    except UserError:
        return resolve([f"{key}={value}" for key, value in (start | first).items()])


def image_options(base: Recipe, wanted: Iterable[str]) -> dict[str, str]:
    """Options with which another recipe reads the recipe's images: their place, and those of the
    wanted keys of `data` whose values the place does not say."""
    options = {}
    if base.data.name in load_yaml(TABLES / "datasets.yaml"):
        options["data"] = base.data.name
    if place := [key for key in ("path", "hub") if getattr(base.data, key)]:
        options[f"data.{place[0]}"] = str(getattr(base.data, place[0]))
    given = [f"{key}={value}" for key, value in options.items()]
    there = resolve(["recipe=evaluate", *given], here=False)
    places = keys(lambda option: option.place)
    now, was = base.values(), there.values()
    changed = [key for key in wanted if key not in places and now[key] != was[key]]
    return options | {key: option_text(now[key]) for key in changed}
