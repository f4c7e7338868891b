"""Write the page of a run from the content of its folder. This module does not import torch."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..formatting import (
    NOT_COUNTED,
    few_images,
    format_count,
    format_held_out,
    format_value,
    shell_command,
    text_line,
    tool_command,
    typed_command,
)
from ..measurements import UNRANKED, use_plugin_rows
from ..recipe import export_files
from ..recipe.names import is_name
from ..recipe.schema import (
    defaults,
    describe_held_out_choices,
    experiment_values,
    option_for_more_held_out,
)
from ..runs import seen_text
from ..runs.files import write_atomically
from ..runs.next_steps import NextCommand, has_labels, main_step, next_steps
from ..runs.shared import is_task
from . import blocks, curves, figure_blocks, metric_tables
from .blocks import Block, Commands, Fold, Listing, Section, Table, Text
from .run_record import RunRecord, read_run
from .run_verdict import WITHOUT_LABELS
from .run_wording import describe_machine, describe_progress, describe_result, describe_run
from .scratch import scratch_table

PAGE = "report.html"
MAX_WARNINGS = 50  # number of last warnings in log.txt that the page shows
MAX_STEPS = 20  # number of skipped updates that the page names
EMBEDDED = 3 * 2**20  # largest size in bytes of figures inside a page; 4 MiB as base64
INTERVALS = (
    "Values in parentheses are 95% intervals. Intervals of accuracies are Wilson's intervals for as"
    " many cases as there are images. If images are copies of each other, there are fewer cases."
    " Patches of an image are alike, so accuracies of patches have no more cases than images. For"
    " few-shot accuracy, a draw is a random choice of the labelled images. If there are several"
    " draws, the interval also covers the spread over the draws. Intervals of differences compare"
    " pairs of results on the same images (Agresti and Min, 2005). All intervals describe this"
    " network and not the spread over seeds."
)
REFRESH = 60  # seconds after which the page of a running run is loaded again
TRANSFORM = """\
config = timm.data.resolve_model_data_config({})
transform = timm.data.create_transform(**config, is_training=False)"""


def write(folder: Path, record: RunRecord | None = None, running: bool = False) -> RunRecord:
    """Write report.html into a run's folder.

    Args:
        folder: Folder of the run.
        record: Content of the folder, or None to read the folder.
        running: Whether the calling process is doing the run. `read_run` notices only a run of
            another process, by the other process's lock of the folder.

    Raises:
        OSError: The page cannot be written.
    """
    if record is None:
        record = read_run(folder)
    if running:
        record = replace(record, running=True)
    write_atomically(folder / PAGE, render(record))
    return record


def render(record: RunRecord) -> str:
    """Return the page of a run as HTML."""
    refresh = REFRESH if record.state == "running" else 0
    return blocks.html(record.name, build(record), refresh)


def build(record: RunRecord) -> list[Section]:
    """Return the sections of the page. Empty sections are left out."""
    with use_plugin_rows(record.environment.plugin_rows):
        sections = [
            Section(title, list(of_record(record)), is_folded)
            for title, of_record, is_folded in SECTIONS
        ]
    return [section for section in sections if section.blocks]


def summary_blocks(record: RunRecord) -> Iterator[Block]:
    """Yield a description of the run, the progress, and cautions."""
    parts = (describe_run(record), describe_progress(record))
    yield Text(" ".join(part for part in parts if part))
    if record.state == "running" and record.updated:
        yield Text(
            f"Updated {record.updated:%Y-%m-%d %H:%M:%S} UTC. The page reloads every {REFRESH}"
            " seconds while you are not using a chart or a table."
        )
    for caution in seen_text.cautions(record.seen):
        yield Text(f"{caution}.", warning=True)
    if record.warning_count:
        count = format_count(record.warning_count, "warnings")
        yield Text(f"{count}: see the section Warnings.", warning=True)


def warning_blocks(record: RunRecord) -> Iterator[Block]:
    """Yield problems: damaged files, losses that are not finite, skipped updates and warnings.

    At most the first MAX_STEPS skipped updates and the last MAX_WARNINGS warnings are shown.
    """
    if record.problems:
        yield Listing([f"{problem}." for problem in record.problems])
    if record.steps_of_bad_loss:
        rows = format_count(len(record.steps_of_bad_loss), "rows")
        yield Text(
            f"The loss is not finite in {rows} of metrics.jsonl, first at step"
            f" {record.steps_of_bad_loss[0]:,}. The curves have gaps at these steps.",
            warning=True,
        )
    if record.not_finite:
        steps = ", ".join(f"{step:,}" for step in record.not_finite[:MAX_STEPS])
        more = " and more" if len(record.not_finite) > MAX_STEPS else ""
        yield Text(
            "Updates skipped because the loss or the gradient was not finite:"
            f" {format_count(len(record.not_finite), 'steps')} ({steps}{more}). not_finite.json"
            " lists the images of these steps.",
            warning=True,
        )
    if len(record.warnings) > MAX_WARNINGS:
        yield Text(f"The last {MAX_WARNINGS} of {len(record.warnings):,} warnings in log.txt:")
    if record.warnings:
        last = list(record.warnings.items())[-MAX_WARNINGS:]
        yield Listing([text if n == 1 else f"{text} ({n:,} times)" for text, n in last])


def result_blocks(record: RunRecord) -> Iterator[Block]:
    """Yield the tables of metrics and baselines, a verdict, the next step, and cautions.

    There are two cautions: few images were measured, or some of the measured images were used to
    train the run or a run that its initial weights came from.
    """
    recipe = record.recipe
    readings = metric_tables.read_metrics(record.measurements(), record.measured_on)
    # the number of distinct images, which an interval needs, is recorded when the run finishes
    if record.result is None:
        readings = [metric_tables.without_intervals(reading) for reading in readings]
    tables = [table for _, table in metric_tables.tables(readings, page=True)]
    if record.result is None and tables:
        images = format_held_out(record.measured_on)
        yield Text(
            "The run has not finished. These values were measured at step"
            f" {record.latest()[0]:,}, on {images}."
        )
    yield from tables
    compared = None
    if record.result is not None and recipe is not None and recipe.fine_tunes:
        compared = scratch_table(record.folder, recipe, record.result)
    if compared:
        yield compared
    for seen_images in record.seen:  # measured images that a run was trained on
        sentence = f"{seen_text.describe_seen(seen_images)}."
        if seen_images.run != record.name:
            sentence = f"About the initial weights: {sentence}"
        yield Text(sentence)
    copies = record.result and record.result.training_copies
    if copies:
        page = f" The page {seen_text.COPIES_PAGE} shows them." if copies.images else ""
        sentence = seen_text.describe_copies(copies)
        yield Text(f"{sentence[0].upper()}{sentence[1:]}.{page}")
        yield from metric_tables.tables_without_copies(copies, page=True)
    # the table of an unfinished run already has the values that `describe_result` would repeat
    if any(reading.row.unit == UNRANKED for reading in readings):
        yield Text(WITHOUT_LABELS)
    verdict = "" if record.result is None and tables else describe_result(record)
    if verdict:
        yield Text(verdict)
    elif record.result is None and not tables:
        yield Text("No images have been measured yet.")
    step = _next_step(record, has_scratch=compared is not None)
    if step:
        yield Text(f"Next, {step.what}:")
        yield Commands([step.command])
    choices = describe_held_out_choices(recipe) if recipe else []
    remedy = option_for_more_held_out(recipe) if recipe else ""
    group = recipe.data.group if recipe else None
    for caution in few_images(record.measured_on, choices, remedy, group):
        yield Text(f"{caution[0].upper()}{caution[1:]}.", warning=True)
    differences = metric_tables.differences_table(readings)
    if differences.rows:
        yield Fold("Differences from the other baselines", [differences])
    if any(reading.interval for reading in readings):
        yield Fold("About the intervals", [Text(INTERVALS)])


def curve_blocks(record: RunRecord) -> Iterator[Block]:
    """Yield a chart for each group of metrics, and a table of metrics whose value never changed."""
    yield from curves.charts(record.rows.curves)
    constant_rows = curves.constant_rows(record.rows.curves)
    if constant_rows:
        table = Table(["measure", "value", "steps"], constant_rows)
        yield Fold("Metrics that were measured once or never changed", [table])
    num_rows = len(record.rows.steps)
    if num_rows > curves.DRAWN:
        yield Text(
            f"metrics.jsonl has {num_rows:,} rows. A curve shows at most {curves.DRAWN} values: the"
            " lowest and the highest value of each stretch."
        )


def figures(record: RunRecord) -> Iterator[Block]:
    """Yield the figures of the run, predictions first.

    The figures may have at most EMBEDDED bytes together. Further figures are listed by name.
    """
    caption = figure_blocks.describe_predictions(record.values)
    default_caption = f"a figure of the run {record.name}"
    yield from figure_blocks.build(record.folder / "figures", caption, default_caption, EMBEDDED)


def recipe_blocks(record: RunRecord) -> Iterator[Block]:
    """Yield a table of the keys that differ from the recipe file, and a table of all keys.

    If the run was made in Python without a recipe file, the first table has the keys that differ
    from the defaults.
    """
    values, recipe_file = record.values, record.environment.recipe_file
    if not values:
        return
    if recipe_file:
        # {key: the file's value} of the keys that differ in the run
        source_values = recipe_file.differs
        source = f"recipe={recipe_file.name}"
    else:  # the run was made in Python without a recipe file
        source_values = experiment_values(defaults())
        source = "the defaults"
    rows = [
        [key, format_value(values[key]), format_value(source_values[key])]
        for key in values
        if key in source_values and values[key] != source_values[key]
    ]
    # `labels` counts the columns of text at the start of a table
    if rows:
        yield Text(f"Changes from {source}:")
        yield Table(["key", "this run", source], rows, labels=3)
    else:
        yield Text(f"No changes from {source}.")
    every = [[key, format_value(value)] for key, value in values.items()]
    yield Fold(f"All {len(every)} keys of recipe.yaml", [Table(["key", "value"], every, labels=2)])


def provenance_blocks(record: RunRecord) -> Iterator[Block]:
    """Yield how the run was made: cost, speed, machine, versions and images."""
    recorded, result = record.environment, record.result
    if not recorded.model_fields_set and result is None:
        return
    rows: list[tuple[str, object]] = []
    if result is not None:
        forwarded = "trained on" if result.steps else "whose features were computed"
        rows = [(f"images {forwarded}", _number(result.images, ",.0f"))]
        costs = {"exaflop": "compute, exaFLOP", "device_hours": "device-hours"}
        totals = {
            f"total_{field}": f"{name}, including the runs before this run"
            for field, name in costs.items()
        }
        for field, name in (costs | totals).items():
            if field in result:
                rows.append((name, _number(result[field]) or NOT_COUNTED))
        if result.trunk:
            rows.append(("began at", f"step {result.trunk.step:,} of {result.trunk.run}"))
    for name, key, form in (
        ("images per second, median", "images_per_s", ",.4g"),
        ("time waiting for data, median", "data_wait", ".1%"),
    ):
        values = record.finite(key)
        if len(values):
            rows.append((name, _number(np.sort(values)[len(values) // 2], form)))
    memory = record.finite("memory_gib")
    if len(memory):
        rows.append(("peak memory of a device, GiB", _number(float(memory.max()))))
    host = recorded.host or {}
    rows += [
        (
            "machine and versions",
            describe_machine(recorded) if recorded.model_fields_set else "",
        ),
        ("system", host.get("system", "")),
        ("cores", host.get("cores", "")),
        ("images per process and pass", recorded.device_batch or ""),
        ("steps of gradient accumulation", recorded.accumulation or ""),
        *((f"images of {name}", n) for name, n in recorded.images.items() if name in recorded.data),
    ]
    # Two splits may be parts of one set. Both then have the fingerprint of the whole set
    splits_by_fingerprint: dict[str, list[str]] = {}
    for split, fingerprint in recorded.data.items():
        splits_by_fingerprint.setdefault(str(fingerprint), []).append(split)
    for fingerprint, splits in splits_by_fingerprint.items():
        whole = "the whole split of " if len(splits) > 1 else ""
        rows.append((f"fingerprint of {whole}{' and '.join(splits)}", fingerprint))
    rows += [(f"initial weights, {kind}", text) for kind, text in (recorded.init or {}).items()]
    table_rows = [[name, text_line(value)] for name, value in rows if value != ""]
    yield Table(["fact", "value"], table_rows, labels=2)
    if recorded.classes:
        names = [f"{label}: {text_line(name)}" for label, name in enumerate(recorded.classes)]
        yield Fold(f"{len(names):,} classes", [Listing(names)])


def _number(value: float | None, form: str = ",.4g") -> str:
    return "" if value is None else f"{value:{form}}"


def loading_blocks(record: RunRecord) -> Iterator[Block]:
    """Yield the Python code that loads the exported encoder.

    timm and transformers can load an export without ssl_vit. There is one exception: for an
    architecture that ssl_vit adds to timm, the import line also imports ssl_vit.
    """
    folder, recipe = record.folder.absolute(), record.recipe
    if not (folder / "export" / "config.json").exists():
        return
    import_line = recipe.model.opened_by if recipe else "import timm"
    suffix = " alone" if import_line == "import timm" else ""
    yield Text(f"In Python, load the encoder with ssl_vit, or with timm or transformers{suffix}:")
    variable, model_class = "encoder", "AutoModel"
    classes: list[str] = []
    with suppress(OSError, ValueError):  # the file may be damaged
        classes = export_files.read(folder / "export").get("label_names") or []
    if classes:
        variable, model_class = "classifier", "AutoModelForImageClassification"
        yield Text(
            f"The export is a classifier of {len(classes):,} classes. `label_names` in config.json"
            " names the classes in the order of the outputs. `ssl_vit.load_encoder` loads the"
            " encoder without the classifier."
        )
    export = f"{folder}/export"
    lines = [
        "import ssl_vit",
        f"encoder = ssl_vit.load_encoder({str(folder)!r})",
        "",
        import_line,
        f"{variable} = timm.create_model({f'local-dir:{export}'!r}, pretrained=True).eval()",
    ]
    if recipe is None or recipe.data.is_rgb:
        lines += TRANSFORM.format(variable).splitlines()
    lines += ["", f"from transformers import {model_class}"]
    yield Commands([*lines, f"{variable} = {model_class}.from_pretrained({export!r})"])


def _next_step(record: RunRecord, has_scratch: bool) -> NextCommand | None:
    """Return the command that continues an unfinished run, or the next step of a finished run.

    For a run of a study, the result is the command that writes the study's report. For other runs,
    the result is None if the recipe cannot be read, or if `name=` refuses the name of the folder.

    Args:
        record: Content of the run's folder.
        has_scratch: Whether there is a comparable run from scratch.
    """
    folder, recipe = record.folder.absolute(), record.recipe
    if is_task(folder):
        command = typed_command("report", str(folder.parent))
        return NextCommand("read the report of the study", command)
    if recipe is None or not is_name(folder.name):
        return None
    if record.result is not None:
        return main_step(folder, recipe, record.result.not_compared, has_scratch)
    tool = "evaluate" if recipe.objective == "probe" else recipe.training_tool
    options = [f"recipe={folder / 'recipe.yaml'}", f"name={folder.name}", f"out={folder.parent}"]
    if recipe.plugin:
        options.append(f"plugin={recipe.plugin}")
    command = shell_command("accelerate", "launch", *tool_command(tool), *options)
    return NextCommand("continue from the newest checkpoint", command)


def further_command_blocks(record: RunRecord) -> Iterator[Block]:
    """Yield commands that use a finished run, except the command that `result_blocks` shows."""
    folder, recipe, result = record.folder.absolute(), record.recipe, record.result
    if result is None or recipe is None or not is_name(folder.name):
        return
    if not (folder / "export").exists():
        return
    shown = _next_step(record, has_scratch=False)
    # `not_compared` says why the features were not compared with untrained weights. If missing
    # labels are the reason, the images have no labels. Otherwise they have labels
    for step in next_steps(folder, folder.parent, recipe, has_labels(result.not_compared)):
        if shown and step.command == shown.command:
            continue
        yield Text(f"{step.what[0].upper()}{step.what[1:]}:")
        yield Commands([step.command])


# Sections of the page in order, and whether they are folded. The first section has no title. What a
# reader needs in the first minute is open
SECTIONS = (
    ("", summary_blocks, False),
    ("Results", result_blocks, False),
    ("Curves", curve_blocks, False),
    ("Figures", figures, False),
    ("Warnings", warning_blocks, False),
    ("Recipe", recipe_blocks, True),
    ("How the run was made", provenance_blocks, True),
    ("Load the encoder", loading_blocks, True),
    ("Further commands", further_command_blocks, True),
)
