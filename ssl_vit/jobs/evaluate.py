"""Evaluate a frozen encoder, from a checked recipe to a finished run folder."""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import torch

from ..data import class_numbers, fingerprints, loaders, masks, run_splits
from ..data.batch_layout import BatchLayout
from ..data.batching import Batch
from ..data.source import Source, labelled_images
from ..errors import UserError
from ..evaluation import dense, features, label_free, split_images
from ..evaluation.baselines import (
    initial_network,
    metrics_with_baselines,
    pixel_reader,
    to_numpy,
    to_torch,
)
from ..evaluation.features import ENCODER
from ..evaluation.images import EvaluationImages
from ..formatting import crop_text, feature_text, few_images, pixel_text
from ..measurements import COMMONEST, PIXELS, UNTRAINED
from ..metrics import MEASURES
from ..models import encoder, weights
from ..models.encoder import Backbone
from ..objectives.supervised.network import Supervised
from ..recipe import recipe_files, records
from ..recipe.init_source import InitSource
from ..recipe.probe import Probe
from ..recipe.records.run import Copies, Environment, Result, SeenImages, TrainingCopies
from ..recipe.schema import (
    Recipe,
    describe_held_out_choices,
    measures_masks,
    option_for_more_held_out,
)
from ..runs import console, seen_text, shared
from ..runs.environment import environment
from ..runs.files import write_atomically
from ..runs.folder import Run
from ..runs.identity import file_hashes, runs_before
from ..runs.shared import SharedFile
from ..training.distributed import (
    WatchedAccelerator,
    broadcast_from_main,
    check_same,
    on_main,
)
from . import finish, heads, resources, seen_images, training_copies
from .session import session


def evaluate(run: Run) -> Result | None:
    """Measure the frozen encoder of `init=` and the same network with untrained weights.

    All processes must call this function. At the end, the folder of the run holds result.json.

    Returns:
        The content of result.json, or None on processes other than rank 0. If another process has
        finished the run meanwhile, all processes return the result of that process.

    Raises:
        UserError: The images, the weights or the folder do not suit the recipe.
    """
    with session(run) as current:
        splits = current.load_splits(test=True)
        result = current.hold_run()  # None, unless another process has finished the run
        return _measure(run, current.accelerator, splits) if result is None else result


def _measure(run: Run, accelerator: WatchedAccelerator, splits: run_splits.Splits) -> Result | None:
    """Measure the encoder and its baselines, and write result.json.

    All processes must call this function.
    """
    started_at = time.perf_counter()
    recipe, source = run.recipe, run.recipe.init_source
    images, facts = _open_images(run, accelerator, splits)
    probe, left_out = features.drop_large_shots(recipe.probe, splits.train, images.classes)
    torch.manual_seed(recipe.seed)
    network = encoder.build_backbone(recipe.model, recipe.data).to(accelerator.device).eval()
    facts |= weights.load_init(network, source, exported=False)
    head = None
    if probe.measures_that_read("head"):
        head = heads.load_head(network, source, images.test, recipe.data)
    measured = seen_images.MeasuredImages(recipe, splits)
    seen = seen_images.load_or_count_seen(run, measured, facts, accelerator)
    on_main(accelerator, lambda: run.open(environment(facts)))
    networks = {ENCODER: network} | _build_fresh_baseline(recipe, accelerator.device)
    readers, pool = _feature_readers(networks, recipe)
    token_probes = {
        measure: import_module(MEASURES[measure].code)
        for measure in probe.measures_that_read("tokens")
    }
    if accelerator.is_main_process:
        _print_banner(run, splits, pool, seen)
        if left_out:
            run.warn(left_out)
        for measure in token_probes:
            console.table([(measure, token_probes[measure].describe(network, images))])

    # Differences between encoder and baseline are measured only if the images are independent, and
    # if the weights were not chosen on these images. Images of a group are not independent
    are_independent = not recipe.data.group
    paired = are_independent and not _is_chosen_on_test_split(recipe, facts["data"])
    warn = run.warn if accelerator.is_main_process else None
    files: dict[str, SharedFile] = {}
    if accelerator.is_main_process:  # other processes may lack the fingerprints
        measured_networks = {name: networks.get(name) for name in readers}
        files = _shared_files(run, measured_networks, images, probe, facts)
    # {ENCODER or baseline: {measure: whether each test image is classified right}}
    right, copies = _run_feature_probes(readers, images, probe, files)
    # Forward passes of untrained weights do not count as work of the run
    images_of = {name: images if name == ENCODER else images.not_counted() for name in networks}
    for measure, token_probe in token_probes.items():
        for name, measured_network in networks.items():
            with features.warn_if_baseline_fails(name, UserError, warn):
                right_M, right_of_commonest_M, copies = token_probe.measure(
                    measured_network, images_of[name], name
                )
                right[name] = {**right.get(name, {}), measure: right_M}
                right[COMMONEST] = {**right.get(COMMONEST, {}), measure: right_of_commonest_M}
    measurements = metrics_with_baselines(right, "test", copies, paired=paired)
    if head:
        measurements += heads.measure_head(head, images, paired)
    if measures_masks(recipe):
        counts = {}  # {ENCODER or UNTRAINED: counts of pixels by class}
        for name, measured_network in networks.items():
            with features.warn_if_baseline_fails(name, UserError, warn):
                counts[name] = dense.measure(measured_network, images_of[name], name)
        measurements += dense.segmentation_metrics(counts, paired)
    copies_of_training = None
    if recipe.probe.find_copies:
        copies_of_training = on_main(
            accelerator, lambda: _measure_training_copies(run, images, right, paired)
        )
    result = None
    if accelerator.is_main_process:
        seconds = time.perf_counter() - started_at
        result = finish.write_result(
            run,
            splits,
            measurements,
            seen=seen,
            training_copies=copies_of_training,
            images=images.forwarded,
            seconds=seconds,
            device_seconds=seconds * accelerator.num_processes,
            before=source.upstream_cost(),
            pool=pool,
            classes=images.classes if probe.measures_that_read("feature", "tokens") else 0,
        )
    accelerator.wait_for_everyone()
    return result


def _open_images(
    run: Run, accelerator: WatchedAccelerator, splits: run_splits.Splits
) -> tuple[EvaluationImages, dict[str, Any]]:
    """Check the images of an evaluation, and prepare to read the images on all processes.

    All processes must call this function.

    Args:
        run: Evaluation.
        accelerator: Processes of the evaluation.
        splits: Images of the evaluation.

    Returns:
        The images, and the entries of environment.json about the machine and the splits.

    Raises:
        UserError: The labels or masks are unsuitable, or the processes see different images.
    """
    recipe = run.recipe
    resources.check_memory(recipe)
    size = resources.device_batch(recipe, accelerator)
    rank, processes = accelerator.process_index, accelerator.num_processes
    batch_layout = BatchLayout(
        global_batch=size * processes, device_batch=size, rank=rank, processes=processes
    )
    resources.check_label_lists(recipe, splits)
    facts = resources.environment_facts(recipe, accelerator, batch_layout, splits)
    if measures_masks(recipe):
        on_main(accelerator, lambda: masks.check_masks_exist(splits, recipe.data))
    classes = 0
    # Only probes of features or tokens, and the run's classifier, learn or predict labels
    if recipe.probe.measures_that_read("feature", "tokens", "head"):
        classes = class_numbers.num_classes(splits, recipe.data, recipe.objective)
    hashes = {f"images of {name}": text for name, text in facts["data"].items()}
    check_same(accelerator, hashes)
    workers = resources.workers(recipe, accelerator)
    images = EvaluationImages(recipe, splits, classes, accelerator, batch_layout, workers, run.warn)
    return images, facts


def _read_recipe_of_run(source: InitSource) -> Recipe | None:
    """Return the recipe of the run that trained the weights, or None if the run is unknown."""
    run = source.locate().run
    return recipe_files.read(run / "recipe.yaml") if run else None


def _build_fresh_baseline(recipe: Recipe, device: torch.device) -> dict[str, Backbone]:
    """Build the baseline with untrained weights, {UNTRAINED: network}.

    If a run trained the encoder, the baseline has the initial weights of that run. They are resized
    to the image size of the evaluation, like the trained weights. If no run is known, for example
    for timm's weights, the baseline is drawn with the seed of the evaluation. The result is empty
    if the encoder itself is untrained.

    Args:
        recipe: Recipe of the evaluation.
        device: Device of the network.
    """
    source = recipe.init_source
    if source.is_scratch:
        return {}
    network = initial_network(_read_recipe_of_run(source), recipe.model, recipe.data, recipe.seed)
    return {UNTRAINED: network.to(device)}


def _feature_readers(networks: dict[str, Backbone], recipe: Recipe) -> tuple[features.Readers, str]:
    """Return the functions that compute the features to probe, and the name of the feature.

    Args:
        networks: {ENCODER or UNTRAINED: network}.
        recipe: Recipe of the evaluation.

    Returns:
        A function from images to features for each network, {ENCODER or UNTRAINED: function}. If
        k-NN is measured, also a function for the pixels (PIXELS).

        The name of the encoder's feature, for the banner and result.json: "token" (class token) or
        "avg" (mean of the patch tokens). If no probe reads a pooled feature, the name is "tokens"
        (all tokens) or "patches" (patch tokens).
    """
    readers: dict[str, features.Reader] = {}
    pool = ""
    for name, network in networks.items():
        if recipe.probe.feature == "hidden":
            readers[name], pool = _hidden_layer_reader(network, recipe, is_trained=name == ENCODER)
        else:
            pool = recipe.probe.pool or recipe.init_source.pooling()
            readers[name] = features.feature_reader(network, pool, recipe.probe.layer)
    if "knn" in recipe.probe.measures:
        readers[PIXELS] = pixel_reader(recipe.data)
    if not recipe.probe.measures_that_read("feature", "head", "views"):
        pool = "tokens" if recipe.probe.measures_that_read("tokens") else "patches"
    return readers, pool


def _hidden_layer_reader(
    net: Backbone, recipe: Recipe, is_trained: bool
) -> tuple[features.Reader, str]:
    """Return a function that computes the output of the hidden tanh layer in a run's classifier.

    For the untrained baseline, the layer gets the initial weights of the run, which are drawn again
    from the run's seed.

    Args:
        net: Encoder, whose pooled feature is the input of the layer.
        recipe: Recipe of the evaluation.
        is_trained: Whether to use the trained weights of the layer.

    Returns:
        A function from images to features, and how the encoder's tokens are pooled ("token" or
        "avg").

    Raises:
        UserError: The classifier has no hidden layer.
    """
    init = recipe.init_source
    with torch.random.fork_rng(devices=[]):
        run_recipe = _read_recipe_of_run(init)
        if not is_trained and run_recipe is not None:
            torch.default_generator.manual_seed(run_recipe.seed)
            # Draw the encoder's weights first, as the run did, so that the layer gets the same ones
            encoder.build_backbone(run_recipe.model, run_recipe.data)
        objective = heads.load_classifier(init, net, "probe.feature=hidden", is_trained)
    if not isinstance(objective, Supervised) or isinstance(objective.hidden, torch.nn.Identity):
        raise UserError(
            f"probe.feature=hidden: the classifier of init={init.place} has no hidden layer, "
            "because it was trained with supervised.hidden=false. Use probe.feature=encoder."
        )
    hidden = objective.hidden.to(next(net.parameters()).device).eval()
    pool = objective.pool
    return lambda image_B3HW: hidden(net.feature(image_B3HW, pool)), pool


def _is_chosen_on_test_split(recipe: Recipe, fingerprints_here: dict[str, str]) -> bool:
    """Return whether a run chose its best checkpoint on the test images of this evaluation.

    The result is True if one of the runs that made the weights has set checkpoint.best, and if the
    validation split of this run has the same fingerprint as the test images here. Runs that are not
    on this machine are ignored. Runs that cut the held-out images from the training split are also
    ignored, because they record only the fingerprint of the whole training split.

    Args:
        recipe: Recipe of the evaluation.
        fingerprints_here: {split: fingerprint} of the evaluation, complete on rank 0.
    """
    with suppress(UserError, OSError, ValueError):
        for run, run_recipe in runs_before(recipe):
            if run_recipe is None:
                continue
            hashes = records.read(run / "environment.json", Environment).data
            held_out = hashes.get("validation")
            # Held-out images that were cut from train are recorded with the fingerprint of train
            is_separate = held_out is not None and held_out != hashes.get("train")
            is_test_split = held_out == fingerprints_here.get("test")
            if run_recipe.checkpoint.best and is_separate and is_test_split:
                return True
    return False


def _shared_files(
    run: Run,
    networks: Mapping[str, Backbone | None],
    images: EvaluationImages,
    probe: Probe,
    facts: Mapping[str, Any],
) -> dict[str, SharedFile]:
    """Return the files in which the tasks of a study share the results of baselines.

    The results say which test images each probe classifies right. Two tasks share a file only if
    everything that decides the results is equal.

    Args:
        run: Evaluation.
        networks: {ENCODER or baseline: network}, with None for the pixels.
        images: Images that are measured.
        probe: Options of the probes.
        facts: Content of environment.json, with the fingerprints of the splits.

    Returns:
        {baseline: file}. Empty outside of a study, and with probe.feature=hidden.
    """
    # The fingerprint of the encoder's weights does not cover the hidden layer
    if probe.feature == "hidden" or not shared.is_task(run.folder):
        return {}
    recipe, splits = run.recipe, images.splits
    # `facts` has fingerprints of complete splits. Add which rows of these two splits are used
    hashes = dict(facts["data"])
    for name, source in {"train": splits.train, "validation": splits.validation}.items():
        hashes[name] = fingerprints.fingerprint_of_share(source, hashes[name])
    depends_on = {
        "images": hashes,
        "data": recipe.data.model_dump(),
        "model": recipe.model.model_dump(),
        "probe": probe.model_dump(),
        "pool": recipe.probe.pool or recipe.init_source.pooling(),
        "classes": images.classes,
        "views": str(_views(recipe)) if probe.measures_that_read("views") else None,
        "files": file_hashes(recipe),
        **{name: facts[name] for name in ("device", "device_batch", "precision", "threads")},
        "processes": facts["processes"],
    }
    files = {}
    for name, network in networks.items():
        if name != ENCODER:
            weights_hash = None if network is None else weights.fingerprint(network.state_dict())
            depends_on |= {"reader": name, "weights": weights_hash}
            files[name] = shared.shared_file(run.folder, depends_on)
    return files


def _run_feature_probes(
    readers: features.Readers,
    images: EvaluationImages,
    probe: Probe,
    files: Mapping[str, SharedFile],
) -> tuple[dict[str, features.Right], Copies | None]:
    """Run the probes on features of the encoder and of the baselines, and measure without labels.

    All processes must call this function. If the file of a baseline has results, they are read from
    the file. Otherwise, the baseline is measured, and the results are written to the file.

    Args:
        readers: {ENCODER or baseline: reader}.
        images: Images that are measured.
        probe: Options of the probes.
        files: {baseline: file of its results}, on rank 0.

    Returns:
        A mapping {ENCODER or baseline: {measure: right}}, and the copies among the test images.
        `right` says whether each of M test images is classified correctly in each of T draws, bool
        (T, M). On processes other than rank 0, or if the recipe has no such probe, the result is an
        empty mapping and None.
    """
    splits = images.splits
    probed = probe.measures_that_read("feature")
    if not probed and not probe.measures_that_read("views"):
        return {}, None
    sources = {"train": splits.train, "validation": splits.validation, "test": images.test}
    # Validation images serve only to choose something, such as a learning rate
    if not any(MEASURES[measure].chooses for measure in probed):
        del sources["validation"]
    stored_arrays = broadcast_from_main(
        images.accelerator, lambda: {name: file.read() for name, file in files.items()}
    )
    stored = {
        name: to_torch(arrays) for name, arrays in stored_arrays.items() if arrays is not None
    }
    readers = {name: read for name, read in readers.items() if name not in stored}
    values = _measure_without_labels(readers, images, probe)
    picks = None
    features_of_split: dict[str, dict[str, features.Features]] = {}
    copies: dict[str, Copies | None] = {}
    with images.autocast():
        if probed == ["few_shot"]:
            # Read only the training images that few-shot probes learn from
            del sources["train"]
            features_of_split["train"], picks = features.sample_few_shot(readers, images, probe)
        for split, source in sources.items() if probed else ():
            batches = images.read_batches(source)
            extracted = features.extract_labelled_features(readers, batches, images.accelerator)
            features_of_split[split], copies[split] = extracted
    if not images.accelerator.is_main_process:
        return {}, None
    class_names = splits.train.classes
    right: dict[str, features.Right] = dict(values)
    if probed:
        right = features.probe_all(
            features_of_split, probe, images.classes, images.warn, picks, class_names
        )
        right = {name: {**right[name], **values.get(name, {})} for name in right}
    for name in files.keys() & right.keys():
        files[name].write(to_numpy(right[name]))
    return right | stored, copies.get("test")


def _measure_training_copies(
    run: Run, images: EvaluationImages, right: dict[str, features.Right], paired: bool
) -> TrainingCopies:
    """Count the test images that are copies of training images, and write the page of the pairs.

    Args:
        run: Run of the evaluation.
        images: Images of the evaluation.
        right: {encoder or baseline: {measure: whether each test image is classified correctly}}.
        paired: Whether differences from baselines are measured.
    """
    data = run.recipe.data
    test = training_copies.Images(labelled_images(images.test), data)
    train, not_compared = training_copies.training_images(run.recipe, images.splits.train)
    copies, page = training_copies.measure(
        test, train, not_compared, right, paired, images.accelerator.device
    )
    file = run.folder / seen_text.COPIES_PAGE
    file.unlink(missing_ok=True)
    if page:
        write_atomically(file, page)
    return copies


def _views(recipe: Recipe) -> label_free.Views:
    """Return the random views of the run that trained the encoder, or of the evaluation."""
    init = recipe.init_source
    trained_by = None if init.is_scratch else _read_recipe_of_run(init)
    return label_free.Views.of_training(trained_by or recipe)


def _measure_without_labels(
    readers: features.Readers, images: EvaluationImages, probe: Probe
) -> dict[str, dict[str, torch.Tensor]]:
    """Measure the test images without labels, see `label_free.measure`.

    All processes must call this function. If a measure needs fewer images than the split has, the
    images are drawn at random, the same in every evaluation.
    """
    source, before = images.test, images.forwarded

    def read(most: int) -> Iterator[Batch]:
        return images.read_batches(source, loaders.held_out_rows(source, most or len(source)))

    values = label_free.measure(
        {name: reader for name, reader in readers.items() if name != PIXELS},
        probe,
        read,
        _views(images.recipe),
        images.accelerator,
        images.warn,
    )
    images.forwarded = before + probe.count_without_labels(len(source))  # with each view
    return values


def _print_banner(run: Run, splits: run_splits.Splits, pool: str, seen: list[SeenImages]) -> None:
    recipe, data = run.recipe, run.recipe.data
    probed = f"{recipe.init}, frozen: {feature_text(pool, recipe.probe.layer)}"
    if recipe.probe.feature == "hidden":
        probed += ". The probes read the hidden tanh layer that was trained on top of this feature"
    assert splits.test is not None
    sources = {"training": splits.train, "held-out": splits.validation, "test": splits.test}
    images = ", ".join(f"{_count_images(source)} {name}" for name, source in sources.items())
    counts = split_images.count_measured_images(recipe, splits)
    few = few_images(
        counts, describe_held_out_choices(recipe), option_for_more_held_out(recipe), data.group
    )
    for text in (*few, *splits.guesses):
        run.warn(text)
    pixels = [] if data.is_rgb else [("pixels", pixel_text(data.channels, data.pixel_range))]
    size = f"{data.size} px, {crop_text(data.eval_mode, data.eval_crop)}"
    console.table(
        [
            ("encoder", probed),
            *console.rows_under("", seen_text.lines(seen)),
            ("data", f"{data.name}: {images} images at {size}"),
            *console.rows_under("images", splits.notes),
            *pixels,
        ]
    )


def _count_images(source: Source) -> str:
    """Describe the number of images, for example "500 (80 labelled)" if some have no label."""
    images, labelled = len(source), len(labelled_images(source))
    return f"{images:,} ({labelled:,} labelled)" if labelled < images else f"{images:,}"
