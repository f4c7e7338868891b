"""The sections of a run's page. No torch here."""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..config import export_files, records
from ..config.computed import counts
from ..config.fields import is_name
from ..config.schema import chosen_on_held_out, defaults, more_held_out
from ..formatting import (
    NOT_COUNTED,
    few_images,
    format_held_out,
    format_value,
    shell_command,
    text_line,
    tool_command,
)
from ..runs import seen_text
from ..runs.next_steps import NextCommand, next_steps
from . import curve_points, figure_blocks, metric_charts, metric_tables
from .blocks import Block, Commands, Fold, Listing, Section, Table, Text
from .metric_tables import BaselineComparison
from .run_progress import still_helping
from .run_record import RunRecord
from .run_wording import machine, sentences, typed_recipe

WARNINGS = 50  # lines of log.txt that are shown, the last ones
STEPS = 20  # skipped updates that are named
EMBEDDED = 3 * 2**20  # bytes of figures inside a page; 4 MiB as base64
UNKNOWN = "not recorded"
OF_IMAGES = (
    "of a share of n independent images; of a share of patches, which in one image are alike, as"
    " wide as for so many images"
)
OF_PATCHES = (
    "of a share of n cases; of patches, which in one image are alike, they are too narrow, as this"
    " run did not record its images"
)
TRANSFORM = """\
config = timm.data.resolve_model_data_config({})
transform = timm.data.create_transform(**config, is_training=False)"""


def build(record: RunRecord) -> list[Section]:
    """All that the page says; sections without content are left out."""
    found = [Section(title, list(build_blocks(record))) for title, build_blocks in SECTIONS]
    return [section for section in found if section.blocks]


def first(record: RunRecord) -> Iterator[Block]:
    """Three sentences: what the run is, how it went, what came of it."""
    yield Text(" ".join(sentences(record)))
    for text in seen_text.cautions(record.environment.seen or ()):
        yield Text(f"{text}.", warning=True)
    if number := record.warning_count:
        count = "1 warning" if number == 1 else f"{number} warnings"
        yield Text(f"{count}: see the section Warnings.", warning=True)


def warnings(record: RunRecord) -> Iterator[Block]:
    """Damaged files, skipped updates and what log.txt warns of."""
    if record.problems:
        yield Listing([f"{problem}." for problem in record.problems])
    if steps := record.steps_of_bad_loss:
        rows = "1 row" if len(steps) == 1 else f"{len(steps):,} rows"
        yield Text(
            f"The loss is not finite in {rows} of metrics.jsonl, first at step {steps[0]:,}; curves"
            " have a gap there.",
            warning=True,
        )
    if record.not_finite:
        shown = ", ".join(f"{step:,}" for step in record.not_finite[:STEPS])
        more = " and more" if len(record.not_finite) > STEPS else ""
        yield Text(
            f"Not learned from, as the loss or the gradient was not finite: "
            f"{len(record.not_finite):,} steps ({shown}{more}). not_finite.json names their "
            "samples.",
            warning=True,
        )
    if len(record.warnings) > WARNINGS:
        yield Text(f"The last {WARNINGS} of {len(record.warnings):,} warnings in log.txt:")
    if record.warnings:
        counted = list(record.warnings.items())[-WARNINGS:]
        yield Listing([text if n == 1 else f"{text} ({n:,} times)" for text, n in counted])


def results(record: RunRecord) -> Iterator[Block]:
    """Every metric with its interval, and the baselines."""
    metrics = record.metrics()
    rows = metric_tables.result_rows(metrics, record.measured_on)
    if not rows:
        return
    if record.result is None:
        images = format_held_out(record.measured_on)
        step = record.latest()[0]
        yield Text(f"The run has not finished; these are of step {step:,}, on {images}.")
        yield Table(["measure", "value"], [[row.name, row.value] for row in rows])
    else:
        head = ["measure", "value", "95% interval", "split", "n"]
        yield Table(head, [[r.name, r.value, r.interval, r.split, r.n] for r in rows])
    recipe = typed_recipe(record)
    chosen = chosen_on_held_out(recipe) if recipe else []
    remedy = more_held_out(recipe) if recipe else ""
    for text in few_images(record.measured_on, chosen, remedy):
        yield Text(f"{text[0].upper()}{text[1:]}.", warning=True)
    if record.result and (classes := record.result.classes):
        text = f"Guessing among {classes:,} classes is right in {1 / classes:.2%} of the cases."
        yield Text(text)
    for one in record.environment.seen or ():
        yield Text(f"Of its first weights: {seen_text.sentence(one)}.")
    meanings = [f"{row.name}: {row.meaning}" for row in rows if row.meaning != "-"]
    if meanings:  # no column, which would push the values off a phone
        yield Fold("What the measures are", [Listing(meanings)])
    fought = list(metric_tables.comparisons(metrics, record.measured_on))
    if fought:
        head = ["baseline", "difference", "the model's", "its value", "measure"]
        yield Table(head, [_baseline(one) for one in fought])
        guesses = dict.fromkeys(f"{one.called}: {one.guess}" for one in fought)
        yield Fold("What the baselines guess", [Listing(list(guesses))])
    if any(row.interval != "-" for row in rows):
        cases = OF_IMAGES if record.measured_on else OF_PATCHES
        yield Text(
            f"Intervals are Wilson's, {cases}. They are about this one network: what another seed"
            " would give is not in them."
        )


def _baseline(one: BaselineComparison) -> list[str]:
    """A baseline beside the model's metric, by its name for readers; of a joint run with its part
    before it."""
    part = one.baseline.rpartition("/")[0]
    here, there = (metric_tables.number(one.measure, value) for value in (one.here, one.there))
    apart = metric_tables.difference(one.measure, one.here - one.there)
    return [f"{part} {one.called}".lstrip(), apart, here, there, one.measure]


def learning_curves(record: RunRecord) -> Iterator[Block]:
    """A chart for each group of metrics; those that have one value as numbers."""
    yield from metric_charts.charts(record.rows)
    if numbers := metric_charts.numbers(record.rows):
        yield Text("Measured once, or the same each time:")
        yield Table(["measure", "value", "steps"], numbers)
    if len(record.rows) > curve_points.DRAWN:
        yield Text(
            f"Of the {len(record.rows):,} rows of metrics.jsonl at most {curve_points.DRAWN} of a "
            "metric are drawn: of each stretch the lowest and the highest."
        )


def figures(record: RunRecord) -> Iterator[Block]:
    """The PNG files of figures/, predictions first; those beyond EMBEDDED bytes are named."""
    objective = figure_blocks.predictions(record.values)
    folder = record.folder / "figures"
    otherwise = f"a figure of the run {record.name}"
    yield from figure_blocks.build(folder, objective, otherwise, EMBEDDED)


def recipe(record: RunRecord) -> Iterator[Block]:
    """What the run changed of its recipe file, and every key."""
    values = record.values
    if not values:
        return
    origin = record.environment.recipe_file
    if origin:
        before = origin.differs
        source = f"recipe={origin.name}"
    else:  # of an older version, or made in Python without a recipe file
        before = {key: value for key, value in defaults().items() if counts(key)}
        source = "the defaults"
    rows = [
        [key, format_value(values[key]), format_value(before[key])]
        for key in values
        if key in before and values[key] != before[key]
    ]
    if rows:
        yield Text(f"What differs from {source}:")
        yield Table(["key", "this run", source], rows, labels=3)
    else:
        yield Text(f"Nothing differs from {source}.")
    every = [[key, format_value(value)] for key, value in values.items()]
    table = Table(["key", "value"], every, labels=2, search="Search the keys")
    yield Fold(f"All {len(every)} keys of recipe.yaml", [table])


def compute(record: RunRecord) -> Iterator[Block]:
    """What the run cost, and how fast it was."""
    found = record.result.content() if record.result else {}
    forwarded = "images trained on" if found.get("steps") else "images whose features it computed"
    rows = [
        [forwarded, _number(found.get("images"), ",.0f")],
        ["compute, exaFLOP", _exaflop(found, "exaflop")],
        ["compute with that of the first weights, exaFLOP", _exaflop(found, "total_exaflop")],
        ["device-hours", _number(found.get("device_hours"))],
        ["device-hours with those of the first weights", _number(found.get("total_device_hours"))],
        ["images per second, median", _number(_median(record, "images_per_s"))],
        ["time waiting for data, median", _number(_median(record, "data_wait"), ".1%")],
        ["peak memory of a device, GiB", _number(max(_finite(record, "memory_gib"), default=None))],
    ]
    known = [row for row in rows if row[1]]
    if known:
        yield Table(["cost", "value"], known)


def _finite(record: RunRecord, name: str) -> list[float]:
    return sorted(row[name] for row in record.rows if math.isfinite(row.get(name, math.nan)))


def _median(record: RunRecord, name: str) -> float | None:
    found = _finite(record, name)
    return found[len(found) // 2] if found else None


def _number(value: float | None, form: str = ",.4g") -> str:
    return "" if value is None else f"{value:{form}}"


def _exaflop(result: dict[str, Any], key: str) -> str:
    return NOT_COUNTED if result.get(key, 0) is None else _number(result.get(key))


def environment(record: RunRecord) -> Iterator[Block]:
    """Machine, versions, and how work and weights were divided among processes."""
    found = record.environment
    if not found.model_fields_set:
        return
    yield Text(machine(found))
    host = found.host or {}
    batch, passes = (UNKNOWN if n is None else n for n in (found.device_batch, found.accumulation))
    rows = [
        ["system", host.get("system", UNKNOWN)],
        ["cores", host.get("cores", UNKNOWN)],
        ["images of a process at once", batch],
        ["steps of gradient accumulation", passes],
        *([f"images of {name}", size] for name, size in found.images.items()),
        *([f"fingerprint of {names}", text] for text, names in _by_fingerprint(found.data).items()),
        *([f"first weights, {kind}", text] for kind, text in (found.init or {}).items()),
    ]
    yield Table(["fact", "value"], [[name, text_line(text)] for name, text in rows], labels=2)
    if found.classes:
        names = [f"{label}: {text_line(name)}" for label, name in enumerate(found.classes)]
        yield Fold(f"{len(names):,} classes", [Listing(names)])


def _by_fingerprint(data: Mapping[str, Any]) -> dict[str, str]:
    """{fingerprint: what it is of}: shares of a split have that of the whole."""
    found: dict[str, list[str]] = {}
    for name, text in data.items():
        found.setdefault(str(text), []).append(name)
    whole = "the whole split of "
    return {text: whole * (len(names) > 1) + " and ".join(names) for text, names in found.items()}


def load(record: RunRecord) -> Iterator[Block]:
    """How to use the encoder, where it has been exported."""
    if not (record.folder / "export" / "config.json").exists():
        return
    folder = record.folder.absolute()
    recipe = typed_recipe(record)
    needed = recipe.model.opened_by if recipe else "import timm"
    without = "without it in" if needed == "import timm" else "in"
    yield Text(f"In Python, with this package, and {without} timm and transformers:")
    name, kind = "encoder", "AutoModel"
    if classes := _classes(folder / "export"):
        name, kind = "classifier", "AutoModelForImageClassification"
        yield Text(
            f"The export is a classifier of {classes:,} classes; `label_names` in its config.json"
            " names them in the order of its outputs. `ssl_vit.load_encoder` gives the encoder"
            " alone."
        )
    yield Commands(
        [
            "import ssl_vit",
            f"encoder = ssl_vit.load_encoder({str(folder)!r})",
            "",
            needed,
            f"{name} = timm.create_model({f'local-dir:{folder}/export'!r}, pretrained=True)",
            *(TRANSFORM.format(name).splitlines() if recipe is None or recipe.data.is_rgb else ()),
            "",
            f"from transformers import {kind}",
            f"{name} = {kind}.from_pretrained({f'{folder}/export'!r})",
        ]
    )


def _classes(export: Path) -> int:
    """Of how many classes an export is a classifier; 0 of an encoder, and of a damaged one."""
    with suppress(OSError, ValueError):
        return len(export_files.read(export).get("label_names") or ())
    return 0


def go_on(record: RunRecord) -> Iterator[Block]:
    """The commands that continue, repeat or use the run."""
    values = record.values
    folder = record.folder.absolute()
    if not values or not is_name(folder.name):
        return
    recipe = typed_recipe(record)
    tool = recipe.training_tool if recipe else "pretrain"
    if values.get("objective") == "probe":
        tool = "evaluate"
    place = [f"name={folder.name}", f"out={folder.parent}"]
    plugin = [f"plugin={values['plugin']}"] if values.get("plugin") else []
    options = [f"recipe={folder / 'recipe.yaml'}", *plugin]
    if record.result is None:
        yield Text("Continue from the newest checkpoint:")
        yield Commands([_launch(tool, *options, *place)])
        return
    seed = values["seed"] if records.fits(values.get("seed"), int) else 0
    again = [f"name={folder.name}-again", f"out={folder.parent}"]
    repeat = NextCommand(
        "repeat it with another seed", _launch(tool, *options, *again, f"seed={seed + 1}")
    )
    steps = [repeat]
    if recipe and (folder / "export").exists():
        steps += next_steps(folder, folder.parent, recipe)
    for step in steps:
        yield Text(f"{step.what[0].upper()}{step.what[1:]}:")
        yield Commands([step.command])


def _launch(tool: str, *options: str) -> str:
    return shell_command("accelerate", "launch", *tool_command(tool), *options)


# The page, in this order; the first one has no title
SECTIONS = (
    ("", first),
    ("Figures", figures),
    ("Results", results),
    ("Is it still helping?", still_helping),
    ("Curves", learning_curves),
    ("Recipe", recipe),
    ("Compute", compute),
    ("Environment", environment),
    ("Warnings", warnings),
    ("Load the encoder", load),
    ("Continue", go_on),
)
