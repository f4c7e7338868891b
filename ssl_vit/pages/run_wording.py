"""Describe a run in sentences: what it is, how far it is, its result.

This module does not import torch.
"""

import math
from datetime import UTC, datetime

from ..formatting import (
    UNSHARDED,
    format_count,
    format_duration,
    format_held_out,
    rounded_count,
    sharding_text,
)
from ..measurements import use_plugin_rows
from ..metrics import format_baselines, format_metrics
from ..recipe import declaration
from ..recipe.init_source import InitSource
from ..recipe.records.run import Environment, Result
from ..runs.shared import is_task
from . import metric_tables, run_verdict
from .run_record import RunRecord


def describe_run(record: RunRecord) -> str:
    """Return a sentence about the training, the network, the images and the initial weights."""
    values, recipe = record.values, record.recipe
    if not values:
        return "The recipe of this run cannot be read."
    objective = declaration.find_objective_or_stub(str(values.get("objective")))
    training = objective.title or objective.name
    network = ""
    if recipe is not None:
        if recipe.training_tool == "finetune":
            training = "Fine-tuning on labels"
        model = recipe.model
        sizes = []
        if not model.convolutional:
            sizes.append(f"{model.depth} blocks, {model.width} wide, patches of {model.patch} px")
        if record.environment.parameters is not None:
            sizes.append(f"{rounded_count(record.environment.parameters)} parameters")
        network = f" of {model.name or model.timm}"
        if sizes:
            network = f"{network} ({', '.join(sizes)})"
    start = str(values.get("init"))
    if InitSource(start).is_scratch:
        start = "random weights"
    return (
        f"{training}{network} on {values.get('data.name')} at {values.get('data.size')} px, from"
        f" {start}."
    )


def describe_progress(record: RunRecord) -> str:
    """Return a sentence about how far the run is, and how long the run took."""
    resumed = len(record.started) - 1
    resumed_note = ""
    if resumed == 1:
        resumed_note = ", resumed once"
    elif resumed > 1:
        resumed_note = f", resumed {resumed} times"
    if record.result is not None:
        return _describe_end(record.result, resumed_note)
    total = f" of {record.steps:,}" if record.steps else ""
    if record.running:
        seconds = _remaining_seconds(record)
        left = "" if seconds is None else f", about {format_duration(seconds)} left"
        return f"The run is in progress, at step {record.step:,}{total}{left}{resumed_note}."
    if not record.step:
        return f"The run has not finished and has no metrics{resumed_note}."
    checkpoint = "There is no checkpoint."
    if record.saved_step:
        checkpoint = f"The newest checkpoint is from step {record.saved_step:,}."
    return f"The run stopped after step {record.step:,}{total}{resumed_note}. {checkpoint}"


def _describe_end(result: Result, resumed_note: str) -> str:
    """Describe when a run finished, how long the run took, and which step the weights are from.

    A run may begin at a checkpoint of another run, called the trunk (`resume=RUN@STEP`). The text
    then also has the step of this checkpoint.

    Args:
        result: Result of the run.
        resumed_note: How often the run was resumed, such as ", resumed once".
    """
    date = _format_date(result.finished)
    duration = format_duration(result.seconds)
    work = duration
    if result.steps:
        images = f" on {result.images:,.0f} images" if result.images else ""
        start = f", starting at step {result.trunk.step:,}," if result.trunk else ""
        steps = format_count(result.steps, "steps")
        work = f"{steps}{images}{start} in {duration}"
    sentence = f"The run finished on {date}, after {work}{resumed_note}."
    best = result.best
    if best is None or best.step is None:
        return sentence
    return (
        f"{sentence} The weights are from step {best.step:,}, with the best {best.metric} on"
        f" {format_held_out(result.measured_on)} ({best.value:.4g})."
    )


def _format_date(text: str) -> str:
    """Return a time of result.json to the minute: "2026-01-31 09:05 UTC".

    A text that is not a time is returned as it is.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _remaining_seconds(record: RunRecord) -> float | None:
    """Estimate the seconds that a running run still takes at the current speed.

    The result is None if the number of steps, the speed or the batch is unknown.
    """
    rates, batch = record.finite("images_per_s"), record.values.get("optim.batch")
    if not record.steps or not len(rates) or not rates[-1] or not isinstance(batch, int):
        return None
    return float((record.steps - record.step) * batch / rates[-1])


def describe_result(record: RunRecord) -> str:
    """Say what the result of a finished run means, or give the last values of an unfinished run.

    The text is empty if a finished run has no verdict (`run_verdict.verdict`), or if an unfinished
    run has no values yet.
    """
    with use_plugin_rows(record.environment.plugin_rows):
        return _describe_result(record)


def _describe_result(record: RunRecord) -> str:
    if record.result is None:
        step, values = record.latest()
        if not values:
            loss = record.rows.curves.get("loss")
            if loss is None or not math.isfinite(loss.values[-1]):
                return ""
            return f"The training loss is {loss.values[-1]:.3f}."
        images = format_held_out(record.measured_on)
        sentence = f"On {images} at step {step:,}: {format_metrics(values)}."
        baselines = format_baselines(values)
        return f"{sentence} To beat: {baselines}." if baselines else sentence
    measurements = record.result.measurements
    readings = metric_tables.read_metrics(measurements, record.measured_on)
    fine_tunes = record.recipe is not None and record.recipe.fine_tunes
    return run_verdict.verdict(
        readings, fine_tunes, record.result.not_compared, is_task(record.folder)
    )


def table_lines(record: RunRecord) -> list[str]:
    """Return the tables of a finished run's metrics as lines for the terminal.

    The names and units of a plugin's metrics are those that the plugin declared during the run.
    """
    if record.result is None:
        return []
    with use_plugin_rows(record.environment.plugin_rows):
        readings = metric_tables.read_metrics(record.measurements(), record.measured_on)
        return [
            line
            for title, table in metric_tables.tables(readings)
            for line in metric_tables.text_lines(title, table)
        ]


def describe_machine(environment: Environment) -> str:
    """Describe the machine and the software versions of a run.

    For example: "1 x cpu (Intel Xeon), 2 threads, precision float32, Python 3.12.3, torch 2.11.0,
    revision 1a2b3c4d5e+". The revision is a commit of this package, shortened to 10 characters. A
    plus sign says that files had been changed since the commit.

    Args:
        environment: Content of environment.json.
    """
    cpu = (environment.host or {}).get("cpu", "unknown processor")
    sharding = ""
    if environment.sharding and environment.sharding.strategy != UNSHARDED:
        sharding = f", {sharding_text(environment.sharding.content())}"
    packages = environment.packages or {}
    versions = ", ".join(f"{package} {version}" for package, version in packages.items())
    revision = environment.revision or "unknown"
    changed = "+" if revision.endswith("+") else ""
    return (
        f"{environment.processes or 1} x {environment.device or 'unknown device'}"
        f" ({cpu}){sharding}, {environment.threads or 'unknown'} threads, precision"
        f" {environment.precision or 'unknown'}, Python {environment.python or 'unknown'},"
        f" {versions}, revision {revision[:10]}{changed}"
    )
