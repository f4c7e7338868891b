"""One evaluation of a frozen encoder: from a checked recipe to a finished run folder. tools/evaluate.py calls it."""

import time
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from . import compute, console, encoder, engine, identity, inits, weights
from .data import batches, loaders, sources
from .encoder import Backbone
from .evaluate import classify, frozen
from .objectives import Supervised
from .processes.liveness import Life
from .processes.machine import Together, check_same, device_batch, facts, from_main, load, on_a_mac, on_main, started
from .recipe import OBJECTIVES, Data, Recipe, UserError, learns_labels
from .runs import Run, environment, recipe_hash
from .words import read


def probe(run: Run) -> dict[str, Any]:
    """Measure the encoder that the run's recipe starts from, and finish its folder; the result.

    Raises:
        UserError: the pictures, the weights or the folder do not suit the recipe.
    """
    with started(run) as accelerator, ExitStack() as held:
        life = Life(accelerator.process_index, accelerator.num_processes, run.recipe.compute.patience)
        accelerator.reading = held.enter_context(life).reading
        held.enter_context(loaders.workers_named())
        splits = load(run.recipe, accelerator, test=True)
        on_main(accelerator, lambda: held.enter_context(run.lock()))
        if done := from_main(accelerator, lambda: identity.finished(run)):  # while this one waited
            return done
        return _measured(run, accelerator, splits)


def _measured(run: Run, accelerator: Together, splits: sources.Splits) -> dict[str, Any]:
    recipe, began = run.recipe, time.perf_counter()
    size, processes = device_batch(recipe, accelerator), accelerator.num_processes
    spread = batches.Spread(size * processes, size, accelerator.process_index, processes)
    said, classes = facts(recipe, accelerator, spread, splits), sources.classes(splits, recipe)
    check_same(accelerator, {f"pictures of {name}": text for name, text in said["data"].items()})
    torch.manual_seed(recipe.seed)
    net = encoder.build_any(recipe.model, recipe.data).to(accelerator.device).eval()
    start_from = inits.find(recipe.init)
    said |= weights.first(net, recipe.init, exported=False)
    on_main(accelerator, lambda: run.open(environment(said)))
    read, pool = _reader(net, start_from, recipe, accelerator.device)
    _introduce(run, accelerator, splits, pool)
    seen, picks, images = _features(read, splits, spread, recipe, accelerator, classes)
    head = _with_its_head(net, start_from, splits, spread, recipe, accelerator) if "top1" in recipe.probe.measures else {}
    if not accelerator.is_main_process:
        accelerator.wait_for_everyone()
        return {}
    tested = len(seen["test"][1]) if seen else 0
    metrics = {name: (value, tested) for name, value in frozen.measure(seen, recipe.probe, classes, picks)} | head
    result = _result(recipe, metrics, images, began, processes) | {"pool": pool}
    run.finish(result)
    accelerator.wait_for_everyone()
    return result


def _features(
    read: frozen.Reader,
    splits: sources.Splits,
    spread: batches.Spread,
    recipe: Recipe,
    accelerator: Together,
    classes: int,
) -> tuple[dict[str, frozen.Features], frozen.Picks | None, int]:
    """Features of the splits that the measures need, the rows that few-shot draws where it is
    alone, and how many images were forwarded. `top1` needs no features, but all test images."""
    assert splits.test is not None
    probed = set(recipe.probe.measures) - {"top1"}
    if not probed:
        return {}, None, len(splits.test)
    named = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    if "linear" not in probed:
        del named["validation"]  # which only chooses its learning rate
    picks, images = None, 0
    seen: dict[str, frozen.Features] = {}
    if probed == {"few_shot"}:
        drawn = frozen.drawn(read, named.pop("train"), recipe, spread, accelerator, classes)
        seen["train"], picks, images = drawn
    for name, source in named.items():
        with _all(source, recipe, spread) as brought:
            seen[name] = frozen.features(read, accelerator.reading(brought), recipe, accelerator)
        images += len(source)
    return seen, picks, images


def _reader(net: Backbone, init: inits.Init, recipe: Recipe, device: torch.device) -> tuple[frozen.Reader, str]:
    """What features are read from, and its pooling: the encoder or, with probe.feature=hidden, the
    tanh layer that the run learned in its head.

    Raises:
        UserError: the run has no such layer.
    """
    if recipe.probe.feature == "encoder":
        pool = recipe.probe.pool or inits.pool(init)
        return frozen.reader(net, pool, recipe.probe.layer), pool
    objective = _classifier(net, init, "probe.feature=hidden").to(device).eval()
    if isinstance(objective.hidden, torch.nn.Identity):
        text = f"init={init.place} learned labels with supervised.hidden=false, by one linear layer"
        raise UserError(f"probe.feature=hidden: {text}")
    return lambda image_B3HW: objective.hidden(net.feature(image_B3HW, objective.pool)), objective.pool


def _all(source: sources.Source, recipe: Recipe, spread: batches.Spread) -> loaders.Patient:
    return loaders.Patient(loaders.every(source, recipe.data, spread, recipe.compute.workers or 0))


def _introduce(run: Run, accelerator: Accelerator, splits: sources.Splits, pool: str) -> None:
    recipe, on = run.recipe, "class token" if pool == "token" else "mean of the patches"
    layer = f"after block {recipe.probe.layer}" if recipe.probe.layer else "after the final norm"
    if recipe.probe.feature == "hidden":
        layer = "after the final norm and the head's hidden tanh layer"
    assert splits.test is not None
    if accelerator.is_main_process:
        pictures = f"{len(splits.train):,} training, {len(splits.validation):,} held-out, {len(splits.test):,} test pictures"
        for text in splits.guesses:
            print(f"warning: {text}", flush=True)
        if note := on_a_mac():
            print(f"warning: {note}", flush=True)
        console.table(
            [
                ("run", str(run.folder)),
                ("encoder", f"{recipe.init}, frozen: {on}, {layer}"),
                ("data", f"{recipe.data.name}: {pictures} at {recipe.data.size} px, {_cut(recipe.data)}"),
                *console.listed("images", splits.told),
            ]
        )


def _cut(data: Data) -> str:
    """How a picture is brought to the encoder's size."""
    return "squashed to a square" if data.eval_mode == "squash" else f"centre crop {data.eval_crop:g}"


def _with_its_head(
    net: Backbone,
    init: inits.Init,
    splits: sources.Splits,
    spread: batches.Spread,
    recipe: Recipe,
    accelerator: Together,
) -> dict[str, tuple[float, int]]:
    """{name: (value, n)} of top-1, top-5 and, if asked for, ReaL, by the classifier that the run learned."""
    assert splits.test is not None
    objective = _classifier(net, init, "probe.measures=top1").to(accelerator.device).eval()
    with engine.autocast(recipe, accelerator), _all(splits.test, recipe, spread) as pictures:
        told = classify.predict(objective, accelerator.reading(pictures), accelerator)
    if told.label.max() >= objective.classes:
        text = f"{objective.classes} classes, data={recipe.data.name} has labels up to {told.label.max()}"
        raise UserError(f"probe.measures=top1: the head of init={init.place} knows {text}")
    seen = classify.real(told, splits.test, recipe.eval.real) if recipe.eval.real else {}
    return classify.measure(told, objective.classes) | seen


def _classifier(net: Backbone, init: inits.Init, asked_by: str) -> Supervised:
    """The supervised objective of the run that made the weights, with its heads; of a joint run, that part."""
    path = init.export / "heads.safetensors" if init.run and init.export else None
    heads = load_file(path) if path is not None and path.exists() else {}
    heads = {
        name.removeprefix("parts.supervised."): value for name, value in heads.items() if not name.startswith("parts.mpp.")
    }
    made = read(init.run / "recipe.yaml") if init.run else None  # whose plugin, if it names one, does not run
    known = made is not None and made.objective in OBJECTIVES
    if made is None or not known or not learns_labels(made) or "head.bias" not in heads:
        raise UserError(f"{asked_by}: init={init.place} is no run that learned labels")
    asked = made.supervised
    words = {"loss": asked.loss, "smoothing": asked.smoothing, "hidden": asked.hidden, "pool": asked.pool}
    objective = Supervised(net, len(heads["head.bias"]), **words)  # type: ignore[arg-type]
    objective.load_state_dict(heads, strict=False)
    return objective


def _result(
    recipe: Recipe, metrics: dict[str, tuple[float, int]], pictures: int, began: float, processes: int
) -> dict[str, Any]:
    """What result.json says. The work is one forward pass over every picture; the totals count what made the weights."""
    seconds, before = time.perf_counter() - began, inits.spent(inits.find(recipe.init))
    took = {"exaflop": compute.exaflop(recipe, pictures) / 3, "device_hours": seconds * processes / 3600}
    return {
        "steps": 0,
        "images": pictures,
        **took,
        **{f"total_{name}": value + before[name] for name, value in took.items()},
        "seconds": seconds,
        "metrics": {name: {"value": value, "n": n, "split": "test"} for name, (value, n) in metrics.items()},
        "recipe": recipe_hash(recipe),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
