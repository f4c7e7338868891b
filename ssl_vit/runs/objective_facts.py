"""What environment.json records of a run's objective: what its page, its card and reports say of it
stands there, so that they need neither its plugin's file nor today's declaration. No torch."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..config import declaration
from ..config.computed import counts
from ..config.declaration import ObjectiveDeclaration
from ..config.records.run import Environment, ObjectiveFacts, QuestionKeys, Row
from ..config.schema import Recipe, options
from ..config.values import build
from ..errors import UserError
from ..metrics import Baseline, Metric, learn, names_of

# Metrics whose questions are recorded beside the objective's own: the loss, and all others
LOSS, OTHER = "loss", "other"


def objective_facts(recipe: Recipe) -> ObjectiveFacts:
    """Title, sentences, what makes losses comparable, by part, and rows of metrics of its own."""
    declared = recipe.declared
    parts = {"": declared, **{name: declaration.objective(name) for name in declared.parts}}
    sources: list[Any] = list(parts.values())
    figure = next((one.figure for one in parts.values() if one.figure), "")
    if declared.predicts_patches:
        target = declaration.target(recipe.target)
        sources.append(target)
        figure += f"; {target.drawn}" if figure and target.drawn else ""
    rows = [row for one in sources for row in one.metrics]
    own = {one.options.name for one in parts.values() if one.options}
    return ObjectiveFacts(
        title=declared.title or recipe.objective,
        tag=declared.tag or recipe.objective,
        sentence=declared.sentence(recipe),
        fine_tunes=declared.fine_tunes(recipe),
        figure=figure,
        class_token_is_trained=declared.class_token_is_trained,
        questions={name: _questions(one) for name, one in parts.items()},
        metrics=[Row(**asdict(row)) for row in rows if isinstance(row, Metric)],
        free=[key for key in recipe.values() if key.split(".")[0] in own and not counts(key)],
        baselines=[Row(**asdict(row)) for row in rows if isinstance(row, Baseline)],
    )


def _questions(declared: ObjectiveDeclaration) -> dict[str, QuestionKeys | None]:
    own = [name for row in declared.metrics if isinstance(row, Metric) for name in names_of(row)]
    questions = {name: declared.question(name) for name in (LOSS, OTHER, *own)}
    return {
        name: QuestionKeys(keys=list(found.keys), difficulty=list(found.difficulty))
        if found
        else None
        for name, found in questions.items()
    }


def facts_of(environment: Environment, values: Mapping[str, Any]) -> ObjectiveFacts:
    """Those that a run recorded; of one that recorded none, what its objective declares today, as
    far as it is known here.

    Args:
        environment: of environment.json.
        values: {dotted key: value} of recipe.yaml.
    """
    if environment.objective:
        return environment.objective
    try:
        return objective_facts(build({key: values[key] for key in values if key in options()}))
    except UserError:  # a plugin's, which is not here
        name = str(values.get("objective"))
        return ObjectiveFacts(title=name, tag=name, sentence="", fine_tunes=False)


def learn_objective(environment: Environment) -> None:
    """Know the rows of metrics that a run recorded of its objective."""
    if found := environment.objective:
        learn(*([row.content() for row in rows] for rows in (found.metrics, found.baselines)))


def question(facts: ObjectiveFacts, part: str, metric: str) -> QuestionKeys | None:
    """What makes a metric of a part of the objective ("" for the whole) comparable."""
    recorded = facts.questions.get(part, {})
    return recorded.get(metric if metric in recorded else OTHER)
