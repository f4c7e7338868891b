"""A run in three sentences. No torch here."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from ..config import declaration, recipe_files
from ..config.init_source import InitSource
from ..config.records.run import Environment, Measured, Result
from ..config.schema import Recipe
from ..errors import UserError
from ..formatting import (
    duration,
    format_held_out,
    rounded_count,
    sharded,
)
from ..metrics import SHARE, all_metrics, find_metric, format_baselines, format_metrics
from . import metric_tables
from .run_record import RunRecord


def typed_recipe(record: RunRecord) -> Recipe | None:
    """The recipe of recipe.yaml; None where this version cannot read it."""
    try:
        return recipe_files.read(record.folder / "recipe.yaml") if record.values else None
    except UserError:
        return None


def sentences(record: RunRecord) -> list[str]:
    """What the run is, how it went, what came of it; fewer where that is not known."""
    found = (what(record), course(record), outcome(record))
    return [sentence for sentence in found if sentence]


def what(record: RunRecord) -> str:
    """What the run is."""
    values = record.values
    if not values:
        return "A run whose recipe cannot be read."
    recipe = typed_recipe(record)
    declared = declaration.known_or_bare(str(values.get("objective")))
    text = declared.title or declared.name
    if recipe is not None and recipe.training_tool == "finetune":
        text = "Fine-tuning on labels"
    starts = InitSource(str(values.get("init")))
    if recipe is not None:
        text += f" of {_encoder(recipe, record.environment.parameters)}"
    text += f" on {values.get('data.name')} at {values.get('data.size')} px"
    return f"{text}, from {'random weights' if starts.is_scratch else values.get('init')}."


def _encoder(recipe: Recipe, parameters: int | None) -> str:
    model, sizes = recipe.model, []
    if not model.convolutional:
        sizes = [f"{model.depth} blocks, {model.width} wide, patches of {model.patch} px"]
    sizes += [] if parameters is None else [f"{rounded_count(parameters)} parameters"]
    name = model.name or model.timm
    return f"{name} ({', '.join(sizes)})" if sizes else name


def course(record: RunRecord) -> str:
    """How far the run is, and how long it took."""
    resumed = len(record.started) - 1
    times = "" if resumed < 1 else f", resumed {'once' if resumed == 1 else f'{resumed} times'}"
    if record.result is not None:
        trained = "after"
        if record.result.steps:
            images = record.result.images
            seen = f" on {images:,.0f} images" if images else ""
            trained = f"after {record.result.steps:,} steps{seen} in"
        took = duration(record.result.seconds)
        times += _chosen(record.result)
        return f"It finished on {_when(record.result.finished)}, {trained} {took}{times}."
    of = f" of {record.steps:,}" if record.steps else ""
    if record.running:
        return f"It is running, at step {record.step:,}{of}{_time_left(record)}{times}."
    if not record.rows:
        return f"It has not finished, and has no metrics{times}."
    kept = max((int(path.name[5:]) for path in _checkpoints(record)), default=0)
    saved = f"its newest checkpoint is of step {kept:,}" if kept else "it has no checkpoint"
    return f"It stopped after step {record.step:,}{of}{times}; {saved}."


def _chosen(result: Result) -> str:
    """Of which step the weights are, where checkpoint.best has chosen it."""
    best = result.best
    if best is None or best.step is None:
        return ""
    images = format_held_out(result.measured_on)
    value = f"{best.metric} on {images} was the best ({best.value:.4g})"
    return f"; its weights are those of step {best.step:,}, whose {value}"


def _when(text: str) -> str:
    """A time of result.json to the minute."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{found.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _checkpoints(record: RunRecord) -> list[Path]:
    folder = record.folder / "checkpoints"
    return [path for path in folder.glob("step-*") if path.name[5:].isdigit()]


def _time_left(record: RunRecord) -> str:
    rate = record.rows[-1].get("images_per_s") if record.rows else None
    batch = record.values.get("optim.batch")
    if not record.steps or not rate or not isinstance(batch, int) or not math.isfinite(rate):
        return ""
    return f", about {duration((record.steps - record.step) * batch / rate)} left"


def outcome(record: RunRecord) -> str:
    """The result beside its baselines; of a run that goes on, its last measured values."""
    metrics = record.metrics()
    if record.result is None:
        step, values = record.latest()
        if not values:
            known = record.rows and math.isfinite(record.rows[-1].get("loss", math.nan))
            return f"Its training loss is {record.rows[-1]['loss']:.3f}." if known else ""
        images = format_held_out(record.measured_on)
        text = f"On {images} at step {step:,}: {format_metrics(values)}"
        baselines = format_baselines(values)
        return f"{text}; to beat: {baselines}." if baselines else f"{text}."
    titled = [row.name for row in all_metrics() if row.title and row.name in metrics]
    found = [_headline(name, metrics[name], record.measured_on) for name in titled[:1]]
    if fought := metric_tables.finite_comparisons(metrics, record.measured_on):
        verdict = metric_tables.verdict(fought, record.measured_on)
        return f"{found[0]}. {verdict}" if found else verdict
    if found:
        return f"{found[0]}."
    values = {name: entry.value for name, entry in metrics.items()}
    return f"Measured: {format_metrics(values)}." if format_metrics(values) else ""


def _headline(name: str, entry: Measured, measured_on: Mapping[str, int]) -> str:
    value, n = entry.value, metric_tables.independent_cases(entry, measured_on)
    row = find_metric(name)
    shown = f"{value:.2%}" if row.unit == SHARE else f"{value:.4g}"
    text = f"{row.title} on the {entry.split} split is {shown}"
    found = metric_tables.interval(name, value, n)
    if found is None:
        return text
    return f"{text} (95% interval {found.low:.2%} to {found.high:.2%}, n = {n:,})"


def machine(environment: Environment) -> str:
    """Where a run was made and with what, from its environment.json."""
    host = environment.host or {}
    cpu = host.get("cpu", "unknown processor")
    device = f"{environment.processes or 1} x {environment.device or 'unknown device'} ({cpu})"
    if environment.sharding:  # not recorded by older runs
        device += f", {sharded(environment.sharding.content())}"
    packages = environment.packages or {}
    versions = ", ".join(f"{package} {version}" for package, version in packages.items())
    whole = environment.revision or "unknown"
    changed = "+" if whole.endswith("+") else ""
    return (
        f"{device}, {environment.threads or 'unknown'} threads, "
        f"precision {environment.precision or 'unknown'}; "
        f"Python {environment.python or 'unknown'}, {versions}; revision {whole[:10]}{changed}"
    )
