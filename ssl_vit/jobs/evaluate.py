"""One evaluation of a frozen encoder: from a checked recipe to a finished run folder."""

import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import torch
from accelerate import Accelerator

from .. import costs
from ..data import batching, class_numbers, loaders, masks, sources
from ..data.batch_layout import BatchLayout
from ..data.workers import InterruptibleLoader, report_lost_workers
from ..errors import UserError
from ..evaluation import classify, features
from ..formatting import crop_text, few_images, pixel_text
from ..models import encoder, weights
from ..models.encoder import Backbone
from ..objectives.base import Objective
from ..objectives.supervised.network import Supervised
from ..recipe.init_source import InitSource
from ..recipe.probe import CHOSEN, SEGMENTATION
from ..recipe.records.run import Result, SeenImages
from ..recipe.schema import Recipe, chosen_on_held_out, measures_masks, more_held_out
from ..runs import console
from ..runs.environment import environment
from ..runs.folder import Run
from ..training import loop
from ..training.distributed import (
    WatchedAccelerator,
    broadcast_from_main,
    check_same,
    macos_warning,
    on_main,
)
from ..training.heartbeat import Watchdog
from . import (
    evaluate_masks,
    finish,
    head_classes,
    resources,
    reuse,
    seen_images,
    split_images,
)
from .heads import load_trained
from .init_notes import init_notes


def evaluate(run: Run) -> Result | None:
    """Measure the frozen encoder of the run's `init=`, and finish its folder.

    Returns:
        The content of result.json; on other processes than rank 0 an empty dict.

    Raises:
        UserError: the images, the weights or the folder do not suit the recipe.
    """
    with resources.run_session(run) as accelerator, ExitStack() as stack:
        rank = accelerator.process_index
        watchdog = Watchdog(rank, accelerator.num_processes, run.recipe.compute.patience)
        accelerator.watch_loader = stack.enter_context(watchdog).watch_loader
        stack.enter_context(report_lost_workers())
        splits = resources.load_splits(run.recipe, accelerator, test=True)
        on_main(accelerator, lambda: stack.enter_context(run.lock()))
        # another process may have finished it while this one waited for the lock
        done = broadcast_from_main(accelerator, lambda: reuse.finished(run))
        return done or _measure(run, accelerator, splits)


def _measure(run: Run, accelerator: WatchedAccelerator, splits: sources.Splits) -> Result | None:
    recipe = run.recipe
    started_at = time.perf_counter()
    size = resources.device_batch(recipe, accelerator)
    processes = accelerator.num_processes
    batch_layout = BatchLayout(size * processes, size, accelerator.process_index, processes)
    resources.check_label_lists(recipe, splits)
    facts = resources.environment_facts(recipe, accelerator, batch_layout, splits)
    if measures_masks(recipe):
        on_main(accelerator, lambda: masks.check(splits, recipe.data))
    classes = 0
    if not set(recipe.probe.measures) <= {SEGMENTATION}:
        classes = class_numbers.num_classes(splits, recipe.data, recipe.objective)
    check_same(accelerator, {f"images of {name}": text for name, text in facts["data"].items()})
    torch.manual_seed(recipe.seed)
    network = encoder.build_backbone(recipe.model, recipe.data).to(accelerator.device).eval()
    source = recipe.init_source
    facts |= weights.load_init(network, source, exported=False)
    head = _head(network, source, splits) if "top1" in recipe.probe.measures else None
    measured = seen_images.MeasuredImages(recipe, splits)
    seen = seen_images.recorded_or_found(run, measured, facts["data"], accelerator)
    facts["seen"] = [one.content() for one in seen_images.recorded(seen)]
    on_main(accelerator, lambda: run.open(environment(facts)))
    read, pool = _reader(network, source, recipe, accelerator.device)
    if set(recipe.probe.measures) <= {SEGMENTATION}:
        pool = "patches"
    _print_banner(run, accelerator, splits, pool, seen, head)
    extracted, picks, images = _features(read, splits, batch_layout, recipe, accelerator, classes)
    of_head = _classify(head, splits, batch_layout, recipe, accelerator) if head else {}
    of_masks: dict[str, tuple[float, int]] = {}
    if measures_masks(recipe):
        assert isinstance(network, encoder.Encoder)  # validate refuses others
        of_masks, forwarded = evaluate_masks.measure(
            network, splits, batch_layout, recipe, accelerator
        )
        images += forwarded
    if not accelerator.is_main_process:
        accelerator.wait_for_everyone()
        return None
    tested = len(extracted["test"][1]) if extracted else 0
    probed = features.run_probes(extracted, recipe.probe, classes, picks)
    metrics = {name: (value, tested) for name, value in probed} | of_head | of_masks
    seconds = time.perf_counter() - started_at
    result = finish.result_record(
        recipe,
        {"test": metrics},
        images=images,
        exaflop=costs.exaflop(recipe, images),  # forward only
        seconds=seconds,
        device_seconds=seconds * processes,
        before=source.upstream_cost(),
    )
    result.pool = pool
    result.measured_on = split_images.measured_on(recipe, splits)
    if extracted:
        result.classes = classes
    if seen:
        result.seen = seen_images.recorded(seen)
    run.finish(result)
    finish.write_page(run)
    accelerator.wait_for_everyone()
    return result


def _features(
    read: features.Reader,
    splits: sources.Splits,
    batch_layout: BatchLayout,
    recipe: Recipe,
    accelerator: WatchedAccelerator,
    classes: int,
) -> tuple[dict[str, features.Features], features.Picks | None, int]:
    """Features of the splits that the probes need.

    Returns:
        {split: features}; the rows that few-shot draws, if it is the only probe; and the number of
        images that were forwarded. `top1` needs no features, but all test images.
    """
    assert splits.test is not None
    probed = set(recipe.probe.measures) - {"top1", SEGMENTATION}
    if not probed:
        return {}, None, len(splits.test) if "top1" in recipe.probe.measures else 0
    named = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    if probed.isdisjoint(CHOSEN):
        del named["validation"]
    picks = None
    images = 0
    extracted: dict[str, features.Features] = {}
    with loop.autocast(recipe.compute.precision, accelerator):
        if probed == {"few_shot"}:
            train = named.pop("train")

            def load_rows(rows: np.ndarray) -> Iterable[batching.Batch]:
                workers = recipe.compute.workers or 0
                return loaders.evaluation_loader(train, recipe.data, batch_layout, workers, rows)

            drawn = features.sample_few_shot(
                read, train, load_rows, recipe.probe, classes, accelerator
            )
            extracted["train"], picks, images = drawn
        for name, source in named.items():
            with _all(source, recipe, batch_layout) as batches:
                extracted[name] = features.extract(
                    read, accelerator.watch_loader(batches), accelerator
                )
            images += len(source)
    return extracted, picks, images


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
    if not isinstance(objective, Supervised) or isinstance(objective.hidden, torch.nn.Identity):
        text = f"init={init.place} learned labels with supervised.hidden=false, by one linear layer"
        raise UserError(f"probe.feature=hidden: {text}")
    hidden, pool = objective.hidden, objective.pool
    return lambda image_B3HW: hidden(net.feature(image_B3HW, pool)), pool


def _all(source: sources.Source, recipe: Recipe, batch_layout: BatchLayout) -> InterruptibleLoader:
    return InterruptibleLoader(
        loaders.evaluation_loader(source, recipe.data, batch_layout, recipe.compute.workers or 0)
    )


def _print_banner(
    run: Run,
    accelerator: Accelerator,
    splits: sources.Splits,
    pool: str,
    seen: list[SeenImages],
    head: "Head | None",
) -> None:
    if not accelerator.is_main_process:
        return
    recipe = run.recipe
    pooled = {"token": "class token", "avg": "mean of the patches"}.get(pool, pool)
    layer = f"after block {recipe.probe.layer}" if recipe.probe.layer else "after the final norm"
    if recipe.probe.feature == "hidden":
        layer = "after the final norm and the head's hidden tanh layer"
    assert splits.test is not None
    images = (
        f"{len(splits.train):,} training, {len(splits.validation):,} held-out, "
        f"{len(splits.test):,} test images"
    )
    counts = split_images.measured_on(recipe, splits)
    few = few_images(counts, chosen_on_held_out(recipe), more_held_out(recipe))
    for text in (*reuse.changed_images(run), *few, *splits.guesses):
        print(f"warning: {text}", flush=True)
    if note := macos_warning():
        print(f"warning: {note}", flush=True)
    size = f"{recipe.data.size} px, {crop_text(recipe.data.eval_mode, recipe.data.eval_crop)}"
    pixels = []
    if not recipe.data.is_rgb:
        pixels = [("pixels", pixel_text(recipe.data.channels, recipe.data.pixel_range))]
    console.table(
        [
            ("run", str(run.folder)),
            ("encoder", f"{recipe.init}, frozen: {pooled}, {layer}"),
            *console.rows_under("", init_notes(run, seen)),
            ("data", f"{recipe.data.name}: {images} at {size}"),
            *console.rows_under("images", splits.notes),
            *console.rows_under("head", head.notes if head else ()),
            *pixels,
        ]
    )


class Head(NamedTuple):
    """A classifier that a run has trained; for each class of the images its number there, None
    where labels go by their number; and what to say of these."""

    objective: Objective
    number_C: np.ndarray | None
    notes: list[str]


def _head(net: Backbone, init: InitSource, splits: sources.Splits) -> Head:
    """That of the run or export that made the weights.

    Raises:
        UserError: it made none, or test images are of a class that it does not know.
    """
    assert splits.test is not None
    objective = _classifier(net, init, "probe.measures=top1")
    names = head_classes.names_of_head(init)
    number_C = head_classes.numbers_in_head(names, splits.test, init.place)
    return Head(objective, number_C, head_classes.describe(names, splits.test, number_C))


def _classify(
    head: Head,
    splits: sources.Splits,
    batch_layout: BatchLayout,
    recipe: Recipe,
    accelerator: WatchedAccelerator,
) -> dict[str, tuple[float, int]]:
    """{name: (value, n)} of the run's own classifier: top-1, top-5 and, with eval.real, ReaL."""
    assert splits.test is not None
    objective = head.objective.to(accelerator.device).eval()
    with (
        loop.autocast(recipe.compute.precision, accelerator),
        _all(splits.test, recipe, batch_layout) as images,
    ):
        predictions = classify.predict(objective, accelerator.watch_loader(images), accelerator)
    label = head_classes.renumber(predictions.label, head.number_C)
    predictions = predictions._replace(label=label)
    if predictions.label.max() >= predictions.classes:
        text = (
            f"{predictions.classes} classes, data={recipe.data.name} has labels up to "
            f"{predictions.label.max()}"
        )
        raise UserError(f"probe.measures=top1: the head of init={recipe.init} knows {text}")
    metrics = classify.accuracies(predictions, predictions.classes)
    if recipe.eval.real:
        metrics |= classify.real_accuracy(predictions, splits.test, recipe.eval.real)
    return metrics


def _classifier(net: Backbone, init: InitSource, option: str) -> Objective:
    """The objective of the run that made the weights that learned labels, with its heads; of a
    joint run, that part."""
    objective, unknown = load_trained(init, net, lambda part: part.labels)
    if objective is None:
        reason = unknown or "is no run that learned labels"
        raise UserError(f"{option}: init={init.place} {reason}")
    return objective
