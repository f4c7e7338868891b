"""Describe a run in three sentences. This module does not import torch."""

import math
from datetime import UTC, datetime

from ..formatting import (
    format_count,
    format_duration,
    format_held_out,
    rounded_count,
    sharding_text,
)
from ..metrics import format_baselines, format_metrics, in_order, metric_label, use_plugin_rows
from ..recipe import declaration
from ..recipe.init_source import InitSource
from ..recipe.records.run import Environment, Result
from . import metric_tables
from .run_record import RunRecord


def sentences(record: RunRecord) -> list[str]:
    """Return what the run is, the course of the run and the result, leaving out unknown parts."""
    parts = (describe_run(record), describe_progress(record), describe_result(record))
    return [sentence for sentence in parts if sentence]


def describe_run(record: RunRecord) -> str:
    """Return a sentence about what the run is."""
    values, recipe = record.values, record.recipe
    if not values:
        return "The recipe of this run cannot be read."
    declared = declaration.find_objective_or_stub(str(values.get("objective")))
    text = declared.title or declared.name
    if recipe is not None:
        text = "Fine-tuning on labels" if recipe.training_tool == "finetune" else text
        model, size, sizes = recipe.model, record.environment.parameters, []
        if not model.convolutional:
            sizes = [f"{model.depth} blocks, {model.width} wide, patches of {model.patch} px"]
        sizes += [] if size is None else [f"{rounded_count(size)} parameters"]
        text += f" of {model.name or model.timm}" + (f" ({', '.join(sizes)})" if sizes else "")
    start = str(values.get("init"))
    start = "random weights" if InitSource(start).is_scratch else start
    return f"{text} on {values.get('data.name')} at {values.get('data.size')} px, from {start}."


def describe_progress(record: RunRecord) -> str:
    """Return a sentence about how far the run is, and how long the run took."""
    resumed = len(record.started) - 1
    times = "" if resumed < 1 else f", resumed {'once' if resumed == 1 else f'{resumed} times'}"
    if (result := record.result) is not None:
        trained = "after"
        if result.steps:
            seen = f" on {result.images:,.0f} images" if result.images else ""
            began = f", starting at step {result.trunk.step:,}," if result.trunk else ""
            trained = f"after {format_count(result.steps, 'steps')}{seen}{began} in"
        took = f"{trained} {format_duration(result.seconds)}{times}{_chosen(result)}"
        return f"The run finished on {_when(result.finished)}, {took}."
    of = f" of {record.steps:,}" if record.steps else ""
    if record.running:
        return f"The run is in progress, at step {record.step:,}{of}{_time_left(record)}{times}."
    if not record.step:
        return f"The run has not finished and has no metrics{times}."
    kept = record.saved_step
    saved = f"The newest checkpoint is from step {kept:,}" if kept else "There is no checkpoint"
    return f"The run stopped after step {record.step:,}{of}{times}. {saved}."


def _chosen(result: Result) -> str:
    """Return which step the weights are from, if checkpoint.best has chosen the weights."""
    best = result.best
    if best is None or best.step is None:
        return ""
    images = format_held_out(result.measured_on)
    value = f"with the best {best.metric} on {images} ({best.value:.4g})"
    return f". The weights are from step {best.step:,}, {value}"


def _when(text: str) -> str:
    """Return a time of result.json to the minute."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _time_left(record: RunRecord) -> str:
    rates, batch = record.finite("images_per_s"), record.values.get("optim.batch")
    if not record.steps or not len(rates) or not rates[-1] or not isinstance(batch, int):
        return ""
    return f", about {format_duration((record.steps - record.step) * batch / rates[-1])} left"


def describe_result(record: RunRecord) -> str:
    """Return the result compared with the baselines, or the last measured values of an unfinished
    run.
    """
    with use_plugin_rows(record.environment.plugin_rows):
        return _describe_result(record)


def _describe_result(record: RunRecord) -> str:
    metrics = record.metrics()
    if record.result is None:
        step, values = record.latest()
        if not values:
            loss = record.rows.curves.get("loss")
            known = loss is not None and math.isfinite(loss.values[-1])
            return f"The training loss is {loss.values[-1]:.3f}." if loss and known else ""
        text = f"On {format_held_out(record.measured_on)} at step {step:,}: "
        baselines = format_baselines(values)
        return f"{text}{format_metrics(values)}{f'. To beat: {baselines}' if baselines else ''}."
    readings = metric_tables.read_metrics(metrics, record.measured_on)
    # For a training run, only test metrics come first; held-out metrics are compared with baselines
    # below.
    probed = record.values.get("objective") == "probe"
    first = {reading.name: reading for reading in readings if probed or reading.split == "test"}
    main = [first[name] for name in in_order([*first])]
    texts = [
        f"{metric_label(reading.name)}: {metric_tables.comparison_text(reading)}."
        for reading in main[:1]
    ]
    if record.recipe is not None and record.recipe.fine_tunes:
        text = f"{metric_tables.NOT_KNOWN}, because the run was not compared with tuned training"
        text += " from scratch."
        texts += filter(None, [metric_tables.classifier_verdict(readings)])
        texts.append(text[0].upper() + text[1:])
    else:
        texts += filter(None, [metric_tables.verdict(readings)])
        if any(baseline.place for reading in readings for baseline in reading.comparisons):
            texts.append("The comparison uses frozen features, without fine-tuning.")
    if record.result.not_compared:
        texts.append(f"The features were not compared: {record.result.not_compared}.")
    if not texts and metrics:
        texts = [f"Measured: {format_metrics({name: metrics[name].value for name in metrics})}."]
    return " ".join(texts)


def machine(environment: Environment) -> str:
    """Return where a run was made and with which software, from environment.json."""
    cpu = (environment.host or {}).get("cpu", "unknown processor")
    device = f"{environment.processes or 1} x {environment.device or 'unknown device'} ({cpu})"
    if environment.sharding:
        device += f", {sharding_text(environment.sharding.content())}"
    packages = environment.packages or {}
    versions = ", ".join(f"{package} {version}" for package, version in packages.items())
    whole = environment.revision or "unknown"
    changed = "+" if whole.endswith("+") else ""
    return (
        f"{device}, {environment.threads or 'unknown'} threads, "
        f"precision {environment.precision or 'unknown'}, "
        f"Python {environment.python or 'unknown'}, {versions}, revision {whole[:10]}{changed}"
    )
