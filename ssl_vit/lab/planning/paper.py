"""The paper's own figures for the cost of a pre-training, beside what is counted. No torch here."""

from pathlib import Path
from typing import Any

from ...config.parsing import load_yaml
from ...config.schema import Recipe
from ...costs import images_seen, total_exaflop, training_images
from .budget import devices, hours

SIZE = 224  # pixels; all of the paper's pre-training
CORE = "tpuv3_core"  # row of hardware.yaml whose days the paper counts


def compare(recipe: Recipe) -> dict[str, Any] | None:
    """The paper's figures for this pre-training, and what is counted relative to them.

    Returns:
        `exaflop` (Table 6) and `core_days` (Table 2), None where the paper has none; `difference`,
        counted over stated exaFLOP minus 1; `efficiency`, the share of a TPUv3 core's bfloat16 peak
        at which the counted exaFLOP take the stated core-days. None for a run that is not the
        paper's.
    """
    row = _row(recipe)
    counted = total_exaflop(recipe, images_seen(recipe))
    if row is None or counted is None:
        return None
    stated = row.get("exaflop")
    days = row.get("core_days")
    core = devices()[CORE]
    return {
        "exaflop": stated,
        "difference": None if stated is None else counted / stated - 1,
        "core_days": days,
        "efficiency": None if days is None else hours(counted, core, "bfloat16", 1) / 24 / days,
    }


def _row(recipe: Recipe) -> dict[str, Any] | None:
    images = training_images(recipe.data)
    if recipe.objective != "supervised" or recipe.data.size != SIZE or not images:
        return None
    epochs = recipe.optim.steps * recipe.optim.batch / images
    rows: dict[str, dict[str, Any]] = load_yaml(Path(__file__).with_name("paper.yaml"))
    for row in rows.values():
        same = (row["model"], row["data"]) == (recipe.model.name, recipe.data.name)
        if same and abs(epochs / row["epochs"] - 1) < 0.001:
            return row
    return None
