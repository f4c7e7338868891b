"""The model card of a run, finished or on its way: what its folder says, for somebody who has never seen it. No torch here."""

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from .. import compute, inits
from ..recipe import EMBEDDED, NOT_COMPUTED, OBJECTIVES, Recipe, flatten
from ..runs import Run
from ..statistics import proportion
from ..summary import SHARES, duration, to_beat
from ..words import public

TARGETS = {
    "mean_color": "its mean colour, 3 bits a channel (one of 512)",
    "grid_color": "the 3-bit mean colours of 4 x 4 cells (512 each)",
    "pixels": "its pixels, by squared error",
}
LICENCES = {  # as far as the sets' own pages say so
    EMBEDDED: "The pictures are drawn by ssl_vit (Apache-2.0); nobody's photograph is among them.",
    "imagenet": "ImageNet's terms: for non-commercial research and education (image-net.org).",
    "imagenet21k": "ImageNet's terms: for non-commercial research and education (image-net.org).",
    "tinyimagenet": "A part of ImageNet, whose terms are: for non-commercial research and education (image-net.org).",
    "pets": "CC BY-SA 4.0 for the data set; the photographs' own rights stay with their owners.",
    "jft": "Private; nothing about its licence is public.",
}
UNKNOWN = "ssl_vit knows no licence of these pictures. Whoever publishes this must look it up and say it here."
WATTS = {"H100": 700, "H200": 700, "A100": 400, "V100": 300, "4090": 450, "L4": 72, "T4": 70}  # data sheets' most
CORE_WATTS = 10  # of a CPU, roughly
GROUPS = ("data", "model", "optim", "seed", "init", "objective")  # keys that every recipe uses


def write(run: Run, export: Path, step: int | None = None) -> str:
    """The card's Markdown beside the export in that folder; `step`: of the encoder after that step, not of the end."""
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    result = None if step else run.result()
    known = json.loads((run.folder / "environment.json").read_text())
    said = (
        _told(run.recipe, json.loads((export / "config.json").read_text()), step)
        | _measured(run, result)
        | _spent(run.recipe, result, known)
    )
    code = f" at {known['revision']}" if known.get("revision") else ""
    return environment.get_template("card.md.j2").render(**said, code=code) + "\n"


def curves(run: Run) -> bytes | None:
    """A PNG of the loss by step, training and held out, and of what else was held out; None where there are no rows."""
    rows = run.rows()
    names = [
        name for name in ("loss", "validation/loss", "validation/accuracy_masked", "validation/accuracy") if _seen(rows, name)
    ]
    if not names:
        return None
    panels = [[n for n in names if n.endswith("loss")], [n for n in names if not n.endswith("loss")]]
    drawn = [panel for panel in panels if panel]
    figure = Figure(figsize=(4.2 * len(drawn), 3.0), layout="constrained")
    for axis, panel in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
        for name in panel:
            axis.plot(*zip(*_seen(rows, name), strict=True), label=name)
        axis.set_xlabel("step")
        axis.legend(frameon=False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120, metadata={"Software": None})  # so that equal curves are equal bytes
    return file.getvalue()


def _seen(rows: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(row["step"], row[name]) for row in rows if name in row]


def _told(recipe: Recipe, config: Mapping[str, Any], step: int | None) -> dict[str, Any]:
    """What it is, and how it is loaded; `config` is the export's config.json."""
    classifies, repository = config["num_classes"] > 0, recipe.hub.repo
    branch = f"step-{step:09d}" if step else None
    feature = {
        "avg": "The feature is the mean of the patches: the class token got no loss.",
        "token": "The feature is the class token.",
    }
    return {
        "name": recipe.name,
        "what": _what(recipe),
        "classifies": classifies,
        "objective_tag": {"mpp": "masked-patch-prediction"}.get(recipe.objective, recipe.objective),
        "data_set": recipe.data.hub if recipe.data.hub and recipe.data.verified else None,
        "unfinished": step is not None,
        "step": f"{step or recipe.optim.steps:,}",
        "steps": f"{recipe.optim.steps:,}",
        "repository": repository,
        "place": f"{repository}@{branch}" if branch else repository,
        "revision": f', revision="{branch}"' if branch else "",
        "auto": "AutoModelForImageClassification" if classifies else "AutoModel",
        "feature": feature[config["global_pool"]],
        "objective": _objective(recipe),
        "data": _data(recipe),
        "licence": LICENCES.get(recipe.data.name, UNKNOWN),
        "recipe": _table(("key", "value"), [(f"`{key}`", str(value)) for key, value in _values(public(recipe))]),
        "tool": inits.tool(recipe),
        "limits": list(_limits(recipe, classifies)),
    }


def _what(recipe: Recipe) -> str:
    m = recipe.model
    size = "" if m.convolutional else f", {m.depth} blocks, {m.width} wide, patches of {m.patch} px"
    started = "random weights" if recipe.init == inits.SCRATCH else f"`{public(recipe).init}`"
    kind = "A network" if m.convolutional else "A Vision Transformer"
    net = f"{kind} ({m.name or m.timm}{size})"
    return f"{net} for pictures of {recipe.data.size} px, trained from {started} on {recipe.data.name}."


def _objective(recipe: Recipe) -> str:
    c, s = recipe.corruption, recipe.supervised
    mpp = (
        f"Masked patch prediction (Dosovitskiy et al., 2021, section 4.6 and B.1.2): {c.rate:.0%} of a picture's patches are"
        f" corrupted, {c.mask:.0%} of them by a learned mask token, {c.random:.0%} by another patch, {c.keep:.0%} left as they"
        f" are; of each the encoder tells {TARGETS.get(recipe.target, recipe.target)}."
    )
    labels = (
        f"Classification with {'a hidden tanh layer and a linear one' if s.hidden else 'one linear layer'} on the"
        f" {'class token' if s.pool == 'token' else 'mean of the patches'}, {s.loss} cross-entropy."
    )
    known = {"mpp": mpp, "supervised": labels, "joint": f"The weighted sum of two losses. {mpp} {labels}"}
    return known.get(recipe.objective, f"`{recipe.objective}`, an objective of a plugin that is not part of ssl_vit.")


def _data(recipe: Recipe) -> str:
    d = recipe.data
    source = "drawn by ssl_vit from a seed" if d.name == EMBEDDED else d.hub or "pictures of the trainer's own machine"
    share = f", {d.share:.1%} of it" if d.share < 1 else ""
    looked = "nothing was held out" if d.validation == 0 else "a part was held out"
    return f"{d.name} ({source}{share}), split `{d.train}`; {looked} to watch training."


def _values(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """Key and value of what is computed, as far as the objective has a use for it and it is not off (0, false or null)."""
    used = {*GROUPS, *OBJECTIVES.get(recipe.objective, ())}
    for key, value in flatten(asdict(recipe)).items():
        if key.split(".")[0] in used and (value or key == "seed") and not key.startswith(NOT_COMPUTED):
            yield key, value


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _measured(run: Run, result: Mapping[str, Any] | None) -> dict[str, Any]:
    metrics = (result or {"metrics": {}})["metrics"]
    rows = [_row(name, entry) for name, entry in metrics.items()]
    return {
        "results": _table(("measure", "split", "value", "95% interval", "n"), rows) if rows else "",
        "beat": to_beat({name: entry["value"] for name, entry in metrics.items()}),
        "certainty": "Intervals are Wilson's, over the n cases alone, each taken by itself (patches of one picture are not, so"
        " theirs are too narrow). This is one run: how much another seed would differ is not in them.",
        "curves": bool(result and run.rows()),
        "picture": bool(result) and (run.figures / "predictions.png").exists(),
    }


def _row(name: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
    value, n = entry["value"], entry.get("n") or 0
    share = name.rpartition("/")[2] in (*SHARES, "commonest", "neighbors", "chance")
    interval = proportion(value, n) if share and n else None
    told = f"[{interval.low:.2%}, {interval.high:.2%}]" if interval else "-"
    return f"`{name}`", entry["split"], f"{value:.2%}" if share else f"{value:.4g}", told, f"{n:,}"


def _spent(recipe: Recipe, result: Mapping[str, Any] | None, known: Mapping[str, Any]) -> dict[str, str]:
    size = f"{compute.parameters(recipe) / 1e6:.3g}M parameters"
    work = f"{size}, {compute.multiply_adds(recipe) / 1e9:.3g}G multiply-adds a picture."
    if result is None:
        return {"compute": work}
    hours, device = result["device_hours"], known.get("device", "cpu")
    before = result.get("total_device_hours", hours) - hours
    parts = [
        work,
        f"{result['steps']:,} steps, {result['images']:,} pictures, {result['exaflop']:.3g} exaFLOP"
        f" in {duration(result['seconds'])}"
        f" on {known.get('processes', 1)} x {device}, {hours:.3g} device-hours"
        + (f", after {before:.3g} for the weights that it started from." if before > 0 else "."),
        _energy(hours, device, known.get("threads") or 1),
    ]
    return {"compute": " ".join(parts)}


def _energy(hours: float, device: str, threads: int) -> str:
    """kWh at the devices' highest rated power; cooling and the rest of the machine are left out, and said to be."""
    watts: int | None
    if device == "cpu":
        watts, how = CORE_WATTS * threads, f"{CORE_WATTS} W for each of {threads} cores"
    else:
        watts = next((most for name, most in WATTS.items() if name in device), None)
        how = f"{watts} W a device, its rated most"
    if watts is None:
        return f"Energy: not estimated, as the power of {device} is not known here."
    return (
        f"Energy: about {hours * watts / 1000:.2g} kWh, an estimate: {how}, all the time; cooling and the rest of the machine"
        " are not in it."
    )


def _limits(recipe: Recipe, classifies: bool) -> Iterator[str]:
    if recipe.data.name == EMBEDDED:
        yield "The pictures are drawn shapes: nothing about photographs is to be expected of it."
    else:
        yield f"It has seen {recipe.data.name} alone, at {recipe.data.size} px, with whatever is uneven in that set."
    if not classifies:
        yield "It names no classes: it gives features, to be fine-tuned or probed."
    yield "No study of bias, of robustness or of safety was made. It is meant for research."
    yield "Weights are float32 safetensors; nothing here needs `trust_remote_code`."
