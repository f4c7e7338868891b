"""The study study/gap, finished: three arms with their pre-training, sweep, fine-tuning and probe,
made up."""

from helpers import made_studies
from helpers.made_studies import IMAGES
from ssl_vit.recipe.parsing import load_yaml
from ssl_vit.recipe.recipe_files import RECIPES

TITLE = "A gap made up"
# of 400, by seed
RIGHT = {"scratch": (200, 208, 204), "mpp": (220, 226, 226), "supervised": (300, 312, 306)}


def study(folder):
    """Its folder, with 39 finished tasks."""
    content = load_yaml(RECIPES / "study" / "gap.yaml") | {"title": TITLE}
    return made_studies.study(folder, content, measured)


def measured(task):
    share = RIGHT[task.at["arm"]][task.seed] / IMAGES
    if task.run == "pretrain":
        return {"loss": (2.0, "validation"), "accuracy": (0.4, "validation")}
    if task.run == "sweep":
        return {"accuracy": (0.5 - abs(task.tried["optim.lr"] - 0.03), "validation")}
    if task.run == "probe":
        names = {"few_shot_10": 0.5, "few_shot_5": 0.4, "linear": 0.8}
        return {name: (part * share, "test") for name, part in names.items()}
    return {"accuracy": (0.9, "train"), "top1": (share, "test"), "top5": (0.99, "test")}
