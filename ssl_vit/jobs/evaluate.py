"""One evaluation of a frozen encoder: from a checked recipe to a finished run folder.
tools/evaluate.py calls it."""

import time
from collections.abc import Iterable
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from .. import costs
from ..config.init_source import InitSource
from ..config.recipe_files import read
from ..config.schema import OBJECTIVES, Data, Recipe, learns_labels
from ..data import batching, loaders, sources
from ..data.workers import InterruptibleLoader, report_lost_workers
from ..errors import UserError
from ..evaluation import classify, features
from ..models import encoder, weights
from ..models.encoder import Backbone
from ..objectives import Supervised
from ..runs import console
from ..runs.environment import environment
from ..runs.folder import Run
from ..runs.identity import recipe_hash
from ..training import loop
from ..training.distributed import (
    WatchedAccelerator,
    broadcast_from_main,
    check_same,
    macos_warning,
    on_main,
)
from ..training.heartbeat import Watchdog
from . import resources, reuse


def evaluate(run: Run) -> dict[str, Any]:
    """Measure the encoder that the run's recipe starts from, and finish its folder; the result.

    Raises:
        UserError: the images, the weights or the folder do not suit the recipe.
    """
    with resources.run_session(run) as accelerator, ExitStack() as held:
        watchdog = Watchdog(
            accelerator.process_index, accelerator.num_processes, run.recipe.compute.patience
        )
        accelerator.watch_loader = held.enter_context(watchdog).watch_loader
        held.enter_context(report_lost_workers())
        splits = resources.load_splits(run.recipe, accelerator, test=True)
        on_main(accelerator, lambda: held.enter_context(run.lock()))
        if done := broadcast_from_main(
            accelerator, lambda: reuse.finished(run)
        ):  # while this one waited
            return done
        return _measured(run, accelerator, splits)


def _measured(run: Run, accelerator: WatchedAccelerator, splits: sources.Splits) -> dict[str, Any]:
    recipe, began = run.recipe, time.perf_counter()
    size, processes = resources.device_batch(recipe, accelerator), accelerator.num_processes
    batch_layout = batching.BatchLayout(
        size * processes, size, accelerator.process_index, processes
    )
    facts = resources.environment_facts(recipe, accelerator, batch_layout, splits)
    classes = sources.num_classes(splits, recipe.data, recipe.objective)
    check_same(accelerator, {f"images of {name}": text for name, text in facts["data"].items()})
    torch.manual_seed(recipe.seed)
    net = encoder.build_backbone(recipe.model, recipe.data).to(accelerator.device).eval()
    source = recipe.init_source
    facts |= weights.load_init(net, source, exported=False)
    on_main(accelerator, lambda: run.open(environment(facts)))
    read, pool = _reader(net, source, recipe, accelerator.device)
    _introduce(run, accelerator, splits, pool)
    seen, picks, images = _features(read, splits, batch_layout, recipe, accelerator, classes)
    head = (
        _with_its_head(net, source, splits, batch_layout, recipe, accelerator)
        if "top1" in recipe.probe.measures
        else {}
    )
    if not accelerator.is_main_process:
        accelerator.wait_for_everyone()
        return {}
    tested = len(seen["test"][1]) if seen else 0
    metrics = {
        name: (value, tested)
        for name, value in features.run_probes(seen, recipe.probe, classes, picks)
    } | head
    result = _result(recipe, metrics, images, began, processes) | {"pool": pool}
    run.finish(result)
    accelerator.wait_for_everyone()
    return result


def _features(
    read: features.Reader,
    splits: sources.Splits,
    batch_layout: batching.BatchLayout,
    recipe: Recipe,
    accelerator: WatchedAccelerator,
    classes: int,
) -> tuple[dict[str, features.Features], features.Picks | None, int]:
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
    seen: dict[str, features.Features] = {}
    with loop.autocast(recipe.compute.precision, accelerator):
        if probed == {"few_shot"}:
            train = named.pop("train")

            def load_rows(rows: np.ndarray) -> Iterable[batching.Batch]:
                workers = recipe.compute.workers or 0
                return loaders.rows_loader(train, rows, recipe.data, batch_layout, workers)

            drawn = features.sample_few_shot(
                read, train, load_rows, recipe.probe, classes, accelerator
            )
            seen["train"], picks, images = drawn
        for name, source in named.items():
            with _all(source, recipe, batch_layout) as batches:
                seen[name] = features.extract(read, accelerator.watch_loader(batches), accelerator)
            images += len(source)
    return seen, picks, images


def _reader(
    net: Backbone, init: InitSource, recipe: Recipe, device: torch.device
) -> tuple[features.Reader, str]:
    """What features are read from, and its pooling: the encoder or, with probe.feature=hidden, the
    tanh layer that the run learned in its head.

    Raises:
        UserError: the run has no such layer.
    """
    if recipe.probe.feature == "encoder":
        pool = recipe.probe.pool or init.pooling()
        return features.feature_reader(net, pool, recipe.probe.layer), pool
    objective = _classifier(net, init, "probe.feature=hidden").to(device).eval()
    if isinstance(objective.hidden, torch.nn.Identity):
        text = f"init={init.place} learned labels with supervised.hidden=false, by one linear layer"
        raise UserError(f"probe.feature=hidden: {text}")
    return lambda image_B3HW: objective.hidden(
        net.feature(image_B3HW, objective.pool)
    ), objective.pool


def _all(
    source: sources.Source, recipe: Recipe, batch_layout: batching.BatchLayout
) -> InterruptibleLoader:
    return InterruptibleLoader(
        loaders.evaluation_loader(source, recipe.data, batch_layout, recipe.compute.workers or 0)
    )


def _introduce(run: Run, accelerator: Accelerator, splits: sources.Splits, pool: str) -> None:
    recipe, on = run.recipe, "class token" if pool == "token" else "mean of the patches"
    layer = f"after block {recipe.probe.layer}" if recipe.probe.layer else "after the final norm"
    if recipe.probe.feature == "hidden":
        layer = "after the final norm and the head's hidden tanh layer"
    assert splits.test is not None
    if accelerator.is_main_process:
        images = f"{len(splits.train):,} training, {len(splits.validation):,} held-out, {len(splits.test):,} test images"
        for text in splits.guesses:
            print(f"warning: {text}", flush=True)
        if note := macos_warning():
            print(f"warning: {note}", flush=True)
        console.table(
            [
                ("run", str(run.folder)),
                ("encoder", f"{recipe.init}, frozen: {on}, {layer}"),
                (
                    "data",
                    f"{recipe.data.name}: {images} at {recipe.data.size} px, {_cut(recipe.data)}",
                ),
                *console.rows_under("images", splits.notes),
            ]
        )


def _cut(data: Data) -> str:
    """How an image is brought to the encoder's size."""
    return (
        "squashed to a square" if data.eval_mode == "squash" else f"centre crop {data.eval_crop:g}"
    )


def _with_its_head(
    net: Backbone,
    init: InitSource,
    splits: sources.Splits,
    batch_layout: batching.BatchLayout,
    recipe: Recipe,
    accelerator: WatchedAccelerator,
) -> dict[str, tuple[float, int]]:
    """{name: (value, n)} of top-1, top-5 and, if asked for, ReaL, by the classifier that the run
    learned."""
    assert splits.test is not None
    objective = _classifier(net, init, "probe.measures=top1").to(accelerator.device).eval()
    with (
        loop.autocast(recipe.compute.precision, accelerator),
        _all(splits.test, recipe, batch_layout) as images,
    ):
        predictions = classify.predict(objective, accelerator.watch_loader(images), accelerator)
    if predictions.label.max() >= objective.classes:
        text = f"{objective.classes} classes, data={recipe.data.name} has labels up to {predictions.label.max()}"
        raise UserError(f"probe.measures=top1: the head of init={init.place} knows {text}")
    seen = (
        classify.real_accuracy(predictions, splits.test, recipe.eval.real)
        if recipe.eval.real
        else {}
    )
    return classify.accuracies(predictions, objective.classes) | seen


def _classifier(net: Backbone, init: InitSource, option: str) -> Supervised:
    """The supervised objective of the run that made the weights, with its heads; of a joint run,
    that part."""
    export, run = init.locate()
    path = export / "heads.safetensors" if run and export else None
    heads = load_file(path) if path is not None and path.exists() else {}
    heads = {
        name.removeprefix("parts.supervised."): value
        for name, value in heads.items()
        if not name.startswith("parts.mpp.")
    }
    # whose plugin, if it names one, does not run
    made = read(run / "recipe.yaml") if run else None
    known = made is not None and made.objective in OBJECTIVES
    if made is None or not known or not learns_labels(made) or "head.bias" not in heads:
        raise UserError(f"{option}: init={init.place} is no run that learned labels")
    supervised = made.supervised
    words = {
        "loss": supervised.loss,
        "smoothing": supervised.smoothing,
        "hidden": supervised.hidden,
        "pool": supervised.pool,
    }
    objective = Supervised(net, len(heads["head.bias"]), **words)  # type: ignore[arg-type]
    objective.load_state_dict(heads, strict=False)
    return objective


def _result(
    recipe: Recipe, metrics: dict[str, tuple[float, int]], images: int, began: float, processes: int
) -> dict[str, Any]:
    """What result.json says. The work is one forward pass over every image; the totals count what
    made the weights."""
    seconds, before = (
        time.perf_counter() - began,
        recipe.init_source.upstream_cost(),
    )
    took = {
        "exaflop": costs.exaflop(recipe, images) / 3,
        "device_hours": seconds * processes / 3600,
    }
    return {
        "steps": 0,
        "images": images,
        **took,
        **{f"total_{name}": value + before[name] for name, value in took.items()},
        "seconds": seconds,
        "metrics": {
            name: {"value": value, "n": n, "split": "test"} for name, (value, n) in metrics.items()
        },
        "recipe": recipe_hash(recipe),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
