"""What environment.json records of a run's objective: what its page, its card and reports say of it
stands there, so that they need neither its plugin's file nor today's declaration. No torch."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..config import declaration
from ..config.declaration import ObjectiveDeclaration, Question
from ..config.schema import Recipe, options
from ..config.values import build
from ..errors import UserError
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
        "figure": next((one.figure for one in parts.values() if one.figure), ""),
        "class_token_is_trained": declared.class_token_is_trained,
        "questions": {name: _questions(one) for name, one in parts.items()},
        "metrics": [asdict(row) for row in rows if isinstance(row, Metric)],
        "baselines": [asdict(row) for row in rows if isinstance(row, Baseline)],
    }


def _questions(declared: ObjectiveDeclaration) -> dict[str, Any]:
    questions = {LOSS: declared.question(LOSS), OTHER: declared.question(OTHER)}
    return {name: found._asdict() if found else None for name, found in questions.items()}


def facts_of(environment: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a run recorded; of one that recorded none, what its objective declares today, as
    far as it is known here.

    Args:
        environment: of environment.json.
        values: {dotted key: value} of recipe.yaml.
    """
    if found := environment.get("objective"):
        return dict(found)
    try:
        return objective_facts(build({key: values[key] for key in values if key in options()}))
    except UserError:  # a plugin's, which is not here
        name = str(values.get("objective"))
        return {"title": name, "tag": name, "sentence": "", "fine_tunes": False}


def learn_metrics(environment: Mapping[str, Any]) -> None:
    """Know the rows of metrics that a run recorded of its objective."""
    if found := environment.get("objective"):
        learn(found["metrics"], found["baselines"])


def question(facts: Mapping[str, Any], part: str, metric: str) -> Question | None:
    """What makes a metric of a part of the objective ("" for the whole) comparable."""
    known = facts.get("questions", {}).get(part, {})
    found = known.get(LOSS if metric == LOSS else OTHER)
    return Question(tuple(found["keys"]), tuple(found["difficulty"])) if found else None
