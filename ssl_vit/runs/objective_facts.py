"""What environment.json records of a run's objective: what its page, its card and reports say of it
stands there, so that they need neither its plugin's file nor today's declaration. No torch."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..config import declaration
from ..config.declaration import ObjectiveDeclaration, Question
from ..config.schema import Recipe
from ..metrics import Baseline, Metric, learn

LOSS, OTHER = "loss", "other"  # metrics whose questions are recorded: the loss, and all others


def objective_facts(recipe: Recipe) -> dict[str, Any]:
    """Title, sentences, what makes losses comparable, by part, and rows of metrics of its own."""
    declared = recipe.declared
    parts = {"": declared, **{name: declaration.objective(name) for name in declared.parts}}
    sources: list[Any] = list(parts.values())
    if declared.predicts_patches:
        sources.append(declaration.target(recipe.target))
    rows = [row for one in sources for row in one.metrics]
    return {
        "title": declared.title or recipe.objective,
        "tag": declared.tag or recipe.objective,
        "sentence": declared.sentence(recipe),
        "fine_tunes": declared.fine_tunes(recipe),
        "class_token_is_trained": declared.class_token_is_trained,
        "questions": {name: _questions(one) for name, one in parts.items()},
        "metrics": [asdict(row) for row in rows if isinstance(row, Metric)],
        "baselines": [asdict(row) for row in rows if isinstance(row, Baseline)],
    }


def _questions(declared: ObjectiveDeclaration) -> dict[str, Any]:
    questions = {LOSS: declared.question(LOSS), OTHER: declared.question(OTHER)}
    return {name: found._asdict() if found else None for name, found in questions.items()}


def recorded_facts(environment: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a run's environment.json, whose metrics' rows are known from then on; of a run that
    recorded none, as far as its recipe's values and today's declarations say."""
    if found := environment.get("objective"):
        learn(found["metrics"], found["baselines"])
        return dict(found)
    name = str(values.get("objective"))
    declared = declaration.objectives().get(name)
    if declared is None:
        return {"title": name, "tag": name, "sentence": "", "fine_tunes": False}
    starts = values.get("init", "scratch") == "scratch"
    parts = {"": declared, **{part: declaration.objective(part) for part in declared.parts}}
    return {
        "title": declared.title,
        "tag": declared.tag or name,
        "fine_tunes": declared.labels and declared.trains and not declared.parts and not starts,
        "class_token_is_trained": declared.class_token_is_trained,
        "questions": {part: _questions(one) for part, one in parts.items()},
    }


def facts_of(environment: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """`recorded_facts` of a run whose recipe is typed: with its sentence, if it is known here."""
    if not environment.get("objective") and recipe.objective in declaration.objectives():
        return objective_facts(recipe)
    return recorded_facts(environment, recipe.values())


def question(facts: Mapping[str, Any], part: str, metric: str) -> Question | None:
    """What makes a metric of a part of the objective ("" for the whole) comparable."""
    known = facts.get("questions", {}).get(part, {})
    found = known.get(LOSS if metric == LOSS else OTHER)
    return Question(tuple(found["keys"]), tuple(found["difficulty"])) if found else None
