"""One evaluation of a frozen encoder: from a checked recipe to a finished run folder."""

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
from accelerate import Accelerator

from .. import costs
from ..data import batching, class_numbers, loaders, masks, sources
from ..data.batch_layout import BatchLayout
from ..data.workers import InterruptibleLoader
from ..errors import UserError
from ..evaluation import classify, features
from ..evaluation.beside import ENCODER, compared, fresh_network, pixel_reader
from ..formatting import crop_text, few_images, pixel_text
from ..metrics import FRESH, IN_ITS_PLACE, PIXELS
from ..models import encoder, weights
from ..models.encoder import Backbone
from ..objectives.base import Objective
from ..objectives.supervised.network import Supervised
from ..recipe import recipe_files, records
from ..recipe.init_source import InitSource
from ..recipe.probe import CHOSEN, SEGMENTATION, Probe
from ..recipe.records.run import Environment, Measured, Result, SeenImages
from ..recipe.schema import Recipe, chosen_on_held_out, measures_masks, more_held_out
from ..runs import console, seen_text
from ..runs.environment import environment
from ..runs.folder import Run
from ..runs.identity import runs_before
from ..training import loop
from ..training.distributed import WatchedAccelerator, check_same, macos_warning, on_main
from . import evaluate_masks, finish, head_classes, resources, reuse, seen_images, split_images
from .heads import load_trained
from .session import session


def evaluate(run: Run) -> Result | None:
    """Measure the frozen encoder of the run's `init=`, beside its network with fresh weights, and
    finish its folder.

    Returns:
        The content of result.json; on other processes than rank 0 None.

    Raises:
        UserError: the images, the weights or the folder do not suit the recipe.
    """
    with session(run) as current:
        splits = current.load_splits(test=True)
        return current.hold_run() or _measure(run, current.accelerator, splits)


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
    networks = {ENCODER: network} | _fresh(recipe, accelerator.device)
    readers, pool = _readers(networks, recipe)
    _print_banner(run, accelerator, splits, pool, seen, head)
    extracted, picks, images = _features(
        readers, splits, batch_layout, recipe, accelerator, classes
    )
    of_head = _classify(head, splits, batch_layout, recipe, accelerator) if head else {}
    of_masks: dict[str, Measured] = {}
    paired = not (recipe.data.group or _chose_here(recipe, facts["data"]))
    if measures_masks(recipe):
        of_masks, forwarded = evaluate_masks.measure(
            networks, splits, batch_layout, recipe, accelerator, paired
        )
        images += forwarded
    if not accelerator.is_main_process:
        accelerator.wait_for_everyone()
        return None
    metrics = _probed(extracted, picks, recipe.probe, classes, paired)
    metrics |= finish.measured(of_head, "test") | of_masks
    seconds = time.perf_counter() - started_at
    result = finish.result_record(
        recipe,
        metrics,
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


def _fresh(recipe: Recipe, device: torch.device) -> dict[str, Backbone]:
    """The network with fresh weights: of a run the initial ones of its seed, brought to the
    evaluation's image size as the trained ones are; nothing where the encoder has fresh weights
    itself."""
    source = recipe.init_source
    if source.is_scratch:
        return {}
    made = _made(source)
    if made is None or made.data.channels != recipe.data.channels:
        return {FRESH: fresh_network(recipe.model, recipe.data, recipe.seed).to(device)}
    network = fresh_network(recipe.model, recipe.data, made.seed)
    weights.copy_weights(fresh_network(made.model, made.data, made.seed), network)
    return {FRESH: network.to(device)}


def _made(source: InitSource) -> Recipe | None:
    """The recipe of the run that made the weights; None where none did."""
    run = source.locate().run
    return recipe_files.read(run / "recipe.yaml") if run else None


def _chose_here(recipe: Recipe, prints: dict[str, str]) -> bool:
    """Whether a run that the weights come from chose them (checkpoint.best) on the split that they
    are tested on, as far as the runs are here. Shares of one split have its fingerprint and are
    apart; they do not count.

    Args:
        recipe: of the evaluation.
        prints: the fingerprints of its splits, on rank 0.
    """
    with suppress(UserError, OSError, ValueError):
        for run, before in runs_before(recipe.init):
            known = records.read(run / "environment.json", Environment).data
            chosen = known.get("validation")
            split = chosen is not None and chosen != known.get("train")
            if before.checkpoint.best and split and chosen == prints.get("test"):
                return True
    return False


def _probed(
    extracted: dict[str, dict[str, features.Features]],
    picks: features.Picks | None,
    probe: Probe,
    classes: int,
    paired: bool,
) -> dict[str, Measured]:
    """The probes of the encoder, and of what it is compared with."""
    if not extracted:
        return {}
    right = {}
    for name in extracted["test"]:
        # without a network there is nothing to fit but neighbours
        of = probe.model_copy(update={"measures": ["knn"]}) if name == PIXELS else probe
        own = {split: found[name] for split, found in extracted.items()}
        try:
            right[name] = dict(features.run_probes(own, of, classes, picks))
        except UserError as error:
            if name == ENCODER:
                raise
            print(f"warning: {IN_ITS_PLACE[name]}: not measured: {error}", flush=True)
    return compared(right, classes, "test", paired=paired)


def _features(
    readers: features.Readers,
    splits: sources.Splits,
    batch_layout: BatchLayout,
    recipe: Recipe,
    accelerator: WatchedAccelerator,
    classes: int,
) -> tuple[dict[str, dict[str, features.Features]], features.Picks | None, int]:
    """Features of the splits that the probes need.

    Returns:
        {split: {reader: features}}; the rows that few-shot draws, if it is the only probe; and the
        number of images that the encoder forwarded. `top1` needs no features, but all test images.
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
    extracted: dict[str, dict[str, features.Features]] = {}
    with loop.autocast(recipe.compute.precision, accelerator):
        if probed == {"few_shot"}:
            train = named.pop("train")

            def load_rows(rows: np.ndarray) -> Iterable[batching.Batch]:
                workers = recipe.compute.workers or 0
                return loaders.evaluation_loader(train, recipe.data, batch_layout, workers, rows)

            drawn = features.sample_few_shot(
                readers, train, load_rows, recipe.probe, classes, accelerator
            )
            extracted["train"], picks, images = drawn
        for name, source in named.items():
            with _all(source, recipe, batch_layout) as batches:
                extracted[name] = features.extract(
                    readers, accelerator.watch_loader(batches), accelerator
                )
            images += len(source)
    return extracted, picks, images


def _readers(networks: dict[str, Backbone], recipe: Recipe) -> tuple[features.Readers, str]:
    """What features are read from, of each network and of the pixels; and the encoder's pooling."""
    found = {name: _reader(one, name, recipe) for name, one in networks.items()}
    readers = {name: read for name, (read, _) in found.items()}
    if "knn" in recipe.probe.measures:
        readers[PIXELS] = pixel_reader(recipe.data)
    masks_alone = set(recipe.probe.measures) <= {SEGMENTATION}
    return readers, "patches" if masks_alone else found[ENCODER][1]


def _reader(net: Backbone, name: str, recipe: Recipe) -> tuple[features.Reader, str]:
    """What features are read from, and its pooling: the encoder or, with probe.feature=hidden, the
    tanh layer that the run learned in its head; of fresh weights as it was first drawn.

    Raises:
        UserError: the run has no such layer.
    """
    init = recipe.init_source
    if recipe.probe.feature == "encoder":
        pool = recipe.probe.pool or init.pooling()
        return features.feature_reader(net, pool, recipe.probe.layer), pool
    objective = _with_head(net, init, trained=name == ENCODER)
    if not isinstance(objective, Supervised) or isinstance(objective.hidden, torch.nn.Identity):
        text = f"init={init.place} learned labels with supervised.hidden=false, by one linear layer"
        raise UserError(f"probe.feature=hidden: {text}")
    hidden = objective.hidden.to(next(net.parameters()).device).eval()
    pool = objective.pool
    return lambda image_B3HW: hidden(net.feature(image_B3HW, pool)), pool


def _with_head(net: Backbone, init: InitSource, trained: bool) -> Objective:
    """The classifier around the network, with its trained head or the one that the run began with,
    which was drawn after the encoder."""
    if trained:
        return _classifier(net, init, "probe.feature=hidden")
    made = _made(init)
    with torch.random.fork_rng(devices=[]):
        if made is not None:
            torch.default_generator.manual_seed(made.seed)
            encoder.build_backbone(made.model, made.data)
        return _classifier(net, init, "probe.feature=hidden", trained=False)


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
            *console.rows_under("", seen_text.lines(seen)),
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


def _classifier(net: Backbone, init: InitSource, option: str, trained: bool = True) -> Objective:
    """The objective of the run that made the weights that learned labels, with its heads, trained
    or as they were first drawn; of a joint run, that part."""
    objective, unknown = load_trained(init, net, lambda part: part.labels, trained)
    if objective is None:
        reason = unknown or "is no run that learned labels"
        raise UserError(f"{option}: init={init.place} {reason}")
    return objective
