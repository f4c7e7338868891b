"""Model card of a finished or running run, written from its folder alone. No torch here."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import yaml

from .. import hub_files
from ..formatting import (
    duration,
    escape_markdown,
    escape_opening,
    few_images,
    format_exaflop,
    format_held_out,
    inline_code,
    markdown_table,
    pixel_text,
    rounded_count,
)
from ..pages import figure_blocks, metric_tables
from ..pages.blocks import block_markdown
from ..recipe import declaration, export_files
from ..recipe.declaration import ObjectiveDeclaration
from ..recipe.identity import counts
from ..recipe.images import EMBEDDED, Data
from ..recipe.parsing import load_yaml
from ..recipe.records.run import Environment, Result
from ..recipe.schema import Recipe, chosen_on_held_out, without_private
from ..runs import seen_text
from ..runs.folder import Run

TERMS = Path(__file__).with_name("terms.yaml")
# highest board power in the data sheets, by a word of the device's name
WATTS = {"H100": 700, "H200": 700, "A100": 400, "V100": 300, "4090": 450, "L4": 72, "T4": 70}
CORE_WATTS = 10  # of a CPU, roughly


def write(run: Run, export: Path, step: int | None = None) -> str:
    """The card's Markdown for the export in that folder; with `step`, of the milestone after that
    step, which has no results yet."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    result = None if step else run.result()
    facts = run.environment()
    config = export_files.read_config(export)
    declared = declaration.known_or_bare(run.recipe.objective)
    values = _description(run.recipe, config, facts.free, step)
    values |= _results(run, result, facts)
    values |= _cost(result, facts)
    values |= _objective(run.recipe, declared, facts.free)
    metadata = _metadata(run.recipe, config["num_classes"] > 0, result)
    front = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)
    revision = f" at {escape_markdown(facts.revision)}" if facts.revision else ""
    template = environment.get_template("card.md.j2")
    return template.render(**values, front=front, revision=revision) + "\n"


def _metadata(recipe: Recipe, classifies: bool, result: Result | None) -> dict[str, Any]:
    """The YAML block that the Hub reads (huggingface.co/docs/hub/model-cards, metadata)."""
    data = recipe.data
    task = "image-classification" if classifies else "image-feature-extraction"
    metadata: dict[str, Any] = {
        "library_name": "timm",
        "pipeline_tag": task,
        "tags": [task, "timm", "transformers", "ssl_vit", recipe.objective],
    }
    if recipe.init_source.is_on_hub:
        metadata["base_model"] = hub_files.split(recipe.init)[0]
    # with data.path= the images may be any: the Hub's data set is not claimed
    hub = None if data.path else data.hub
    if hub:
        metadata["datasets"] = [hub]
    dataset = {"type": hub or data.name, "name": data.name}
    results = metric_tables.index(result.metrics if result else {}, task, dataset)
    if results:
        metadata["model-index"] = [{"name": recipe.name, "results": results}]
    return metadata


def _description(
    recipe: Recipe,
    config: Mapping[str, Any],
    free: Sequence[str],
    step: int | None,
) -> dict[str, Any]:
    """The template's values on the model, its data and its recipe; `config` is the export's
    config.json, `free` as in `counts`."""
    classes = config["num_classes"]
    repository = recipe.hub.repo
    branch = f"step-{step:09d}" if step else None
    side = recipe.data.size
    return {
        "name": escape_opening(recipe.name),
        "what": _what(recipe),
        "unfinished": step is not None,
        "step": f"{step or recipe.optim.steps:,}",
        "steps": f"{recipe.optim.steps:,}",
        "repository": repository,
        "place": f"{repository}@{branch}" if branch else repository,
        "at": f', revision="{branch}"' if branch else "",
        "timm_import": recipe.model.opened_by,
        "auto": "AutoModelForImageClassification" if classes else "AutoModel",
        "net": "classifier" if classes else "encoder",
        "given": "logits" if classes else "feature",
        "seen": f"(1, {recipe.data.channels}, {side}, {side})",
        **_pixels(recipe.data),
        "shape": f"(1, {classes or config['num_features']})",
        "output": "logits" if classes else "pooler_output",
        "feature": _feature(config, recipe),
        "data": _data(recipe),
        **_terms(recipe.data),
        "recipe": _table(recipe, free, of_objective=False),
        **_command(recipe),
        "limits": list(_limits(recipe, classes > 0)),
    }


def _pixels(data: Data) -> dict[str, Any]:
    """How the values of images that are not RGB of 8 bits become the input; `pixels` is empty of
    those that are."""
    lowest, highest = data.pixel_range
    known = {"lowest": lowest, "highest": highest, "mean": data.mean, "std": data.std}
    return {"pixels": "" if data.is_rgb else pixel_text(data.channels, data.pixel_range), **known}


def _feature(config: Mapping[str, Any], recipe: Recipe) -> str:
    if recipe.model.convolutional:
        return "The feature is what the network's own pooling gives."
    if config["num_classes"]:
        on = "class token" if config["global_pool"] == "token" else "mean of the patches"
        return f"The {config['num_classes']:,} logits are a linear layer's on the {on}."
    if config["global_pool"] == "token":
        return "The feature is the class token."
    return "The feature is the mean of the patches."


def _what(recipe: Recipe) -> str:
    m = recipe.model
    size = "" if m.convolutional else f", {m.depth} blocks, {m.width} wide, patches of {m.patch} px"
    started = (
        "random weights"
        if recipe.init_source.is_scratch
        else inline_code(without_private(recipe).init)
    )
    kind = "A network" if m.convolutional else "A Vision Transformer"
    net = f"{kind} ({escape_markdown(m.name or m.timm)}{size})"
    return (
        f"{net} for images of {recipe.data.size} px, trained from {started} on "
        f"{escape_markdown(recipe.data.name)}."
    )


def _command(recipe: Recipe) -> dict[str, str]:
    """The command that repeats the run, and a sentence on what it needs besides the repository."""
    needs = {
        "data.path=IMAGES": ("a copy of the same images", recipe.data.path),
        "init=WEIGHTS": (
            f"the run or export {inline_code(without_private(recipe).init)} that it started from",
            recipe.init_source.is_local,
        ),
        "eval.real=LABELS": ("ImageNet-ReaL's labels", recipe.eval.real),
        "plugin=FILE": ("the plugin's Python file", recipe.plugin),
    }
    stand_ins = {
        word: f"{word.partition('=')[2]} for {text}"
        for word, (text, needed) in needs.items()
        if needed
    }
    sentence = ", and ".join(stand_ins.values()).replace(" for ", " stands for ", 1)
    lacks = (
        f" {sentence}; this repository does not hold {'them' if len(stand_ins) > 1 else 'it'}."
        if stand_ins
        else ""
    )
    return {
        "command": " ".join(
            [
                f"accelerate launch tools/{recipe.training_tool}.py recipe=recipe.yaml name=again",
                *stand_ins,
            ]
        ),
        "lacks": lacks,
    }


def _terms(data: Data) -> dict[str, str]:
    """Terms of use of the images and the citation, from terms.yaml."""
    # with data.path= alone, data.name may be the name of anybody's folder
    named = data.hub or not data.path
    known = dict(load_yaml(TERMS).get(data.name, {})) if named else {}
    page = (
        f"at https://huggingface.co/datasets/{data.hub}" if data.hub else "for their owner to say"
    )
    unknown = f"The terms of these images are not known to ssl_vit; they are {page}."
    return {"terms": known.get("terms", unknown), "cite": known.get("cite", "")}


def _objective(
    recipe: Recipe, declared: ObjectiveDeclaration, free: Sequence[str]
) -> dict[str, Any]:
    """What was trained, where it is from, and its own keys."""
    plugin = (
        f"{inline_code(recipe.objective)}, an objective of a plugin that is not part of ssl_vit"
    )
    text = escape_opening(declared.title) if declared.title else plugin
    paper = f" ({escape_markdown(declared.paper)})" if declared.paper else ""
    return {"objective": f"{text}{paper}.", "options": _table(recipe, free, of_objective=True)}


def _data(recipe: Recipe) -> str:
    d = recipe.data
    source = (
        f"from {escape_markdown(d.hub)} of the Hub" if d.hub else "drawn by ssl_vit from a seed"
    )
    if d.path:
        source = "read from a copy on the trainer's own machine" + (
            f", not from {escape_markdown(d.hub)} of the Hub" if d.hub else ""
        )
    share = f"; {d.share:.1%} of it was trained on" if d.share < 1 else ""
    if not isinstance(d.test, str):
        share += f"; {d.test:.1%} of it was kept for testing"
    held_out = "Nothing was held out" if d.validation == 0 else "A part was held out"
    return (
        f"{escape_opening(d.name)}, split {inline_code(d.train)}, {source}{share}. {held_out} "
        f"for evaluation during training."
    )


def _table(recipe: Recipe, free: Sequence[str], of_objective: bool) -> str:
    """Keys and values that affect the computation and are not off (0, false or null): those of the
    objective, or the others; `free` as in `counts`. Empty without any."""
    own = {"objective", "target", *recipe.groups}
    rows = [
        (inline_code(key), escape_markdown(value))
        for key, value in without_private(recipe).values().items()
        if (value or key == "seed") and counts(key, free)
        if (key.split(".")[0] in own) == of_objective
    ]
    return markdown_table(("key", "value"), rows) if rows else ""


def _results(run: Run, result: Result | None, facts: Environment) -> dict[str, Any]:
    figure = figure_blocks.predictions(run.recipe.values())
    figure = figure or "what the objective predicts of held-out images"
    caption = escape_markdown(figure[:1].upper() + figure[1:])
    metrics = result.metrics if result else {}
    measured_on = result.measured_on if result else None
    cautions = few_images(measured_on or {}, chosen_on_held_out(run.recipe))
    cautions += [
        escape_markdown(text) for text in seen_text.cautions(seen_text.recorded(result, facts))
    ]
    comparisons = list(metric_tables.comparisons(metrics, measured_on))
    return {
        "results": block_markdown(metric_tables.results(metrics, measured_on)) if metrics else "",
        "cautions": cautions,
        "of_images": bool(measured_on),
        "baselines": block_markdown(metric_tables.baselines(comparisons)) if comparisons else "",
        "verdict": metric_tables.verdict(comparisons) if comparisons else "",
        "curves": bool(result and run.rows()),
        "image": caption if result and (run.figures / "predictions.png").exists() else "",
    }


def _cost(result: Result | None, facts: Environment) -> dict[str, str]:
    """Size of the encoder and, as far as result.json has them, compute and energy of its run;
    `facts` is environment.json."""
    work = ""
    if facts.parameters is not None and facts.multiply_adds is not None:
        size, adds = rounded_count(facts.parameters), rounded_count(facts.multiply_adds)
        work = f"It has {size} parameters and needs {adds} multiply-adds an image."
    if result is None or result.images is None or result.device_hours is None:
        return {"compute": work}
    hours = result.device_hours
    device = escape_markdown(facts.device or "cpu")
    total = hours if result.total_device_hours is None else result.total_device_hours
    before = total - hours
    trained = (
        f"Training was {result.steps:,} steps on {result.images:,} images, "
        f"{format_exaflop(result.exaflop)},"
        f" and took {_took(result.seconds)} on {facts.processes or 1} x {device}: "
        f"{hours:.2g} device-hours"
        + (f", after {before:.2g} for the weights that it started from." if before > 0 else ".")
    )
    trained += _chosen(result)
    return {"compute": f"{work} {trained} {_energy(hours, device, facts.threads or 1)}"}


def _chosen(result: Result) -> str:
    """Of which step the weights are, where checkpoint.best has chosen it."""
    best = result.best
    if best is None or best.step is None:
        return ""
    return (
        f" The weights are those of step {best.step:,}, whose {escape_markdown(best.metric)} on"
        f" {format_held_out(result.measured_on)} was the best ({best.value:.4g})."
    )


def _took(seconds: float) -> str:
    return duration(seconds) if seconds >= 1 else "less than a second"


def _energy(hours: float, device: str, threads: int) -> str:
    """An upper estimate in kWh: the devices at their highest rated power all the time; without
    cooling and the rest of the machine, as the text states."""
    watts: int | None
    if device == "cpu":
        cores = "its one core" if threads == 1 else f"each of {threads} cores"
        watts = CORE_WATTS * threads
        how = f"{CORE_WATTS} W for {cores}"
    else:
        watts = next((WATTS[word] for word in re.findall(r"\w+", device) if word in WATTS), None)
        how = f"{watts} W a device, its rated most"
    if watts is None:
        return f"Its energy is not estimated, as the power of {device} is not known here."
    return (
        f"That is about {hours * watts / 1000:.2g} kWh, an estimate: {how}, all the time; "
        f"cooling and the rest of the machine"
        " are not in it."
    )


def _limits(recipe: Recipe, classifies: bool) -> Iterator[str]:
    if recipe.data.name == EMBEDDED:
        yield "The images are drawn shapes: nothing about photographs is to be expected of it."
    else:
        seen = escape_markdown(recipe.data.name)
        yield f"It was trained on {seen} alone, at {recipe.data.size} px, with that set's biases."
    if not classifies:
        yield "It names no classes: it gives features, to be fine-tuned or probed."
    yield "No study of bias, of robustness or of safety was made. It is meant for research."
    yield "Weights are float32 safetensors; nothing here needs `trust_remote_code`."
