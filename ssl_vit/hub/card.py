"""Write the model card of a finished or running run from the run's folder alone. No torch."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2

from .. import formatting, hub_files
from ..measurements import LOSS, SHARE, find_metric, flat_name, use_plugin_rows
from ..metrics import is_model_metric
from ..pages import figure_blocks, metric_tables, run_verdict
from ..pages.blocks import block_markdown
from ..recipe import declaration, export_files
from ..recipe.images import Data
from ..recipe.records.run import Measurement
from ..recipe.schema import Recipe, changes_experiment, describe_held_out_choices
from ..runs import seen_text
from ..runs.folder import Run
from . import public

PREDICTIONS = f"figures/{figure_blocks.PREDICTIONS}.png"
METRIC_TYPES = {LOSS: "loss", SHARE: "accuracy"}  # the Hub's metric type for the unit of a metric


def render(run: Run, export: Path, step: int | None = None) -> str:
    """Return the model card of an export, in Markdown.

    Args:
        run: The run.
        export: Folder of the export.
        step: Step of a milestone (an export during training), whose card has no results. None: the
            finished run.
    """
    # Use the labels, units and better directions that the run's plugin declared for its metrics
    with use_plugin_rows(run.environment().plugin_rows):
        return _render(run, export, step)


def _render(run: Run, export: Path, step: int | None) -> str:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "text": formatting.escape_markdown,
        "opening": formatting.escape_opening,
        "code": formatting.inline_code,
        "block": block_markdown,
    }
    recipe = public.with_public_names(run.recipe)
    run_environment = run.environment()
    result = None if step else run.result()
    figures = public.Figures({}, [])
    measured_on: Mapping[str, int] = {}
    if result:
        result = public.public_result(run, result)
        figures = public.find_figures(run)
        measured_on = result.measured_on or {}
    config = export_files.read_config(export)
    seen = public.with_public_run_names(seen_text.recorded(result, run_environment), run)
    image = ""  # description of the figure of predictions, if the figure is uploaded
    if PREDICTIONS in figures.uploaded:
        image = figure_blocks.describe_predictions(recipe.values())
    return environment.get_template("card.md.j2").render(
        front=_metadata(recipe, config["num_classes"] > 0, result.measurements if result else []),
        recipe=recipe,
        init=public.public_recipe(recipe).init,
        config=config,
        step=step,
        branch=f"step-{step:09d}" if step else None,
        objective=declaration.find_objective_or_stub(recipe.objective),
        cites=_citations(recipe),
        terms=_terms(recipe.data),
        result=result,
        facts=run_environment,
        tables=metric_tables,
        run_verdict=run_verdict,
        few_images=formatting.few_images(
            measured_on, describe_held_out_choices(recipe), group=recipe.data.group
        ),
        seen=seen_text.cautions(seen),
        image=image,
        withheld=figures.withheld,
        values=_table_of_values(recipe, run_environment.free),
        formatting=formatting,
    )


def _metadata(recipe: Recipe, classifies: bool, measurements: Sequence[Measurement]) -> str:
    """Return the metadata of a model card as YAML (huggingface.co/docs/hub/model-cards).

    Args:
        recipe: The recipe, with public names.
        classifies: Whether the exported network is a classifier.
        measurements: Final measurements of the run.
    """
    # Not imported at the top of the module, because this import takes a quarter of a second
    from huggingface_hub import EvalResult, ModelCardData

    # With data.path=, the images may be anything, so the card does not name the Hub's data set
    hub = None if recipe.data.path else recipe.data.hub
    task = "image-classification" if classifies else "image-feature-extraction"
    base_model = None
    if recipe.init_source.is_on_hub:
        base_model, _ = hub_files.split_place(recipe.init)
    results = []
    for measurement in measurements:
        key = measurement.key
        if is_model_metric(key) and math.isfinite(measurement.value):
            result = EvalResult(
                task_type=task,
                dataset_type=hub or recipe.data.name,
                dataset_name=recipe.data.name,
                dataset_split=measurement.split,
                # Units without a metric type of the Hub get the name of the metric
                metric_type=METRIC_TYPES.get(find_metric(key).unit, flat_name(key)),
                metric_name=flat_name(key),
                metric_value=measurement.value,
            )
            results.append(result)
    return ModelCardData(
        library_name="timm",
        pipeline_tag=task,
        tags=[task, "timm", "transformers", "ssl_vit", recipe.objective],
        base_model=base_model,
        datasets=[hub] if hub else None,
        model_name=recipe.name if results else None,
        eval_results=results or None,
    ).to_yaml()


def _citations(recipe: Recipe) -> list[str]:
    """Return the BibTeX entries of the objective, its parts and the target, each entry once.

    A joint objective has parts, which are other objectives. An objective that predicts patches has
    a target.

    If a plugin is not loaded, only the entries that the run recorded are returned.
    """
    objective = declaration.find_objective_or_stub(recipe.objective)
    parts = map(declaration.find_objective_or_stub, objective.parts)
    cites = [objective.cite, *(part.cite for part in parts)]
    if objective.predicts_patches:
        target = declaration.targets().get(recipe.target)
        if target:
            cites.append(target.cite)
    return [cite for cite in dict.fromkeys(cites) if cite]


def _terms(data: Data) -> dict[str, str]:
    """Return the terms of use of the images ("terms") and the paper to cite ("cite").

    If the terms are unknown, "terms" says where to ask or look, and "cite" is empty.
    """
    terms = "ssl_vit does not know the terms of use of these images. Ask the owner."
    if data.hub:
        terms = (
            "ssl_vit does not know the terms of use of these images. See"
            f" https://huggingface.co/datasets/{data.hub}."
        )
    return {"terms": terms, "cite": "", **public.find_terms(data)}


def _table_of_values(recipe: Recipe, keys_without_effect: Sequence[str]) -> str:
    """Return a Markdown table of the options that affect the computation.

    Options that are switched off (0, false or null) are left out, except for the seed.

    Args:
        recipe: The recipe.
        keys_without_effect: Keys without effect in this run, as recorded in environment.json. Keys
            that never have an effect are left out anyway.
    """
    rows = [
        (formatting.inline_code(key), formatting.escape_markdown(value))
        for key, value in public.public_recipe(recipe).values().items()
        # a seed of 0 is not switched off
        if (value or key == "seed") and changes_experiment(key, keys_without_effect)
    ]
    return formatting.markdown_table(("key", "value"), rows)
