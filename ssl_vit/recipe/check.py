"""Check relations between keys: combinations that a recipe must not have, and keys that the recipe
would ignore.

Each subject has one function. `check` calls the functions in a fixed order, and the first relation
that fails is the error. `r.refuse(key, text, wrong)` raises the error about a key of the recipe `r`
if `wrong` is true. Relations of a single objective are checked in the declaration of that
objective. This module does not import torch.
"""

from collections.abc import Iterable

from ..errors import UserError
from ..formatting import option_text
from . import declaration
from .given import Given
from .images import EMBEDDED, MIXING, TRAINING, Data
from .model import GIVEN
from .parsing import exists
from .schema import (
    Recipe,
    all_groups,
    all_keys,
    compared_views,
    learns_labels,
    measures_masks,
    uses_labels,
)
from .shared_groups import CorruptionOptions
from .split_counts import fewer_than, selected_count
from .words import NAMED

# Keys that have no meaning for a convolutional network
TRANSFORMER_KEYS = (
    *("optim.dropout", "optim.layer_decay", "probe.pool", "probe.layer", "model.registers"),
    *("model.layer_scale", "model.qk_norm", "model.activation", "model.positions", "model.train"),
)
USE_VIT = "Use a Vision Transformer, such as model=vit_s16."
LABEL_KEYS = ("data.classes", "data.label_column")
COLUMN_KEYS = ("data.label_column", "data.image_column", "data.group", "data.mask_column")
MASK_KEYS = ("data.mask_column", "data.mask_ignore", "data.mask_classes", "probe.mask_images")
ONLINE_PROBE_KEYS = ("probe.every", "probe.images")
TRAINING_KEYS = (  # single keys and whole groups
    *("optim", "checkpoint", "log", "hub", "model.train", *TRAINING),
    *("eval.every", "eval.images", "eval.collapse", "eval.test"),
)


def check(recipe: Recipe) -> None:
    """Check the relations between the values of a recipe.

    For example, `data.size` must be a multiple of `model.patch`.

    Raises:
        UserError: A relation does not hold. If several do not, the error is about the first.
    """
    # If several relations fail, the first in this order is the error. The inner tuples only keep
    # the lines short.
    for relation in (
        *(_model, _channels, _args, _encoder, _trained_part, _class_token),
        *(_mixing, _stream, _held_out, _labels, _sizes),
        *(_corruption, _views, _probe, _lengths, _trunk),
    ):
        relation(recipe)
    declared = recipe.declared
    for objective in (declared, *map(declaration.objective, declared.parts)):
        objective.check(recipe)


def check_used(recipe: Recipe, given: Given) -> None:
    """Check that the recipe uses every key that the user gave.

    Raises:
        UserError: The recipe would ignore a key. The error is about the first such key.
    """
    for key in given.values:
        # every recipe uses the keys in NAMED, which name a recipe file, a data set and a model
        if key not in NAMED and (reason := why_unused(recipe, key)):
            raise UserError(f"{key}={given.text(key)}: {reason}. Leave out {key}.")


def check_place(data: Data) -> None:
    """Check that the images can be found.

    Raises:
        UserError: Neither data.path nor data.hub is given and the images are not generated
            (EMBEDDED), data.path does not exist, or generated images have a data.path or data.hub.
    """
    if data.name == EMBEDDED and (data.path or data.hub):
        raise UserError(
            f"data={EMBEDDED}: these images are generated, not read. Leave out data={EMBEDDED} to"
            " use the images of data.path= or data.hub=."
        )
    if data.path and not exists(data.path):
        raise UserError(f"data.path={data.path}: no such file or folder. Check the path.")
    if not data.path and not data.hub and data.name != EMBEDDED:
        raise UserError(
            f"data={data.name}: ssl_vit does not download these images. Add data.path= with the"
            " path of a local copy (image folder, parquet files or tars)."
        )


def _first_changed_key(recipe: Recipe, keys: Iterable[str]) -> str:
    """Return the first of some keys whose value is not the default.

    Return an empty string if all values are defaults.
    """
    changed = (key for key in keys if recipe.value(key) != all_keys()[key].default)
    return next(changed, "")


def _model(r: Recipe) -> None:
    """Refuse models that do not suit the objective, the target or TRANSFORMER_KEYS."""
    model, predicts_patches = r.model, r.declared.predicts_patches
    text = (
        f"objective={r.objective} needs patches, and model.timm={model.timm} has no patches."
        f" {USE_VIT}"
    )
    r.refuse("model", text, predicts_patches and model.convolutional, model.name)
    if model.convolutional and (key := _first_changed_key(r, TRANSFORMER_KEYS)):
        default = f"{key}={option_text(all_keys()[key].default)}"
        text = f"model={model.name} is no Vision Transformer and does not use this key"
        raise r.error(key, f"{text}. Use {default}.")
    # Each cell of a ResNet's feature map depends on neighbouring pixels, so masked pixels would
    # leak into visible patches
    text = (
        f"objective={r.objective} needs patches of pixels, and this model cuts the feature map of a"
        f" ResNet into patches. {USE_VIT}"
    )
    r.refuse("model", text, predicts_patches and model.hybrid, model.name)
    multiple = declaration.target(r.target).patch_multiple if predicts_patches else 1
    text = f"model.patch={model.patch} must be a multiple of {multiple} pixels for this target"
    r.refuse("target", f"{text}. Use another model.patch= or target=.", model.patch % multiple)


def _channels(r: Recipe) -> None:
    """Refuse numbers of channels and ranges of pixels that do not fit the rest of the recipe."""
    data, predicts_patches = r.data, r.declared.predicts_patches
    for key in ("data.mean", "data.std"):
        has_wrong_length = len(r.value(key)) != data.channels
        # The default has 3 numbers. If an image has another number of channels, measured values
        # replace the default. Therefore the default is never an error.
        text = (
            f"with data.channels={data.channels}, {key} must have one number for each channel."
            f" Give {data.channels} numbers, or leave out {key}=."
        )
        r.refuse(key, text, has_wrong_length and _first_changed_key(r, [key]))
    begins_with_resnet = r.model.convolutional or r.model.hybrid
    text = f"model={r.model.name} begins with a ResNet, which takes 3 channels. {USE_VIT}"
    r.refuse("data.channels", text, data.channels != 3 and begins_with_resnet)
    if predicts_patches and not data.is_rgb and not declaration.target(r.target).any_channels:
        choices = [name for name, target in declaration.targets().items() if target.any_channels]
        key = "data.range" if data.channels == 3 else "data.channels"
        images = f"{key}={option_text(r.value(key))}"
        text = f"this target needs 8-bit RGB images and cannot be used with {images}"
        raise r.error("target", f"{text}. Choose from: {', '.join(choices)}.")
    views = compared_views(r)
    changes_colours = views and (views.jitter or views.grayscale or any(views.solarize))
    text = (
        "this objective changes the colours of 8-bit RGB images, and these images are not RGB."
        " Add views.jitter=0 views.grayscale=0 views.solarize=[0,0]."
    )
    r.refuse("objective", text, changes_colours and not data.is_rgb)


def _args(r: Recipe) -> None:
    """Refuse arguments in `model.args` that another key or this package sets."""
    for name in r.model.args:
        if name in GIVEN:
            remedy = f"Use {GIVEN[name]}= instead" if GIVEN[name] else f"Leave out {name}"
            raise r.error("model.args", f"{name} cannot be set here. {remedy}.")


def _encoder(r: Recipe) -> None:
    """Check the positions, the activation and the width of the encoder."""
    model = r.model
    text = (
        f"model={model.name} is a hybrid of ResNet and Transformer without rotary positions."
        " Use model.positions=learned, learned_2d, sincos_2d or none."
    )
    r.refuse("model.positions", text, model.positions == "rotary" and model.hybrid)
    text = "a hybrid of ResNet and Transformer has only gelu. Use model.activation=gelu."
    r.refuse("model.activation", text, model.activation != "gelu" and model.hybrid)
    divisors = {"learned_2d": 2, "sincos_2d": 4, "rotary": 4 * model.heads}
    divisor = divisors.get(model.positions, 1)
    text = f"must be a multiple of {divisor} for model.positions={model.positions}"
    r.refuse("model.width", f"{text}.", model.width % divisor)


def _trained_part(r: Recipe) -> None:
    """Refuse to train a part of an encoder that is too small or begins with a ResNet.

    `jobs/setup.py` refuses random weights, because a study checks the recipes of tasks before it
    knows the initial weights.
    """
    model, key = r.model, "model.train"
    if model.train == "all":
        return
    text = f"model={model.name} begins with a ResNet and can only be trained whole. Use {key}=all."
    r.refuse(key, text, model.hybrid)
    text = f"the encoder has {model.depth} blocks. Use at most {key}=blocks:{model.depth}."
    r.refuse(key, text, model.number_of("blocks") > model.depth)
    text = f"the encoder is {model.width} wide. Use at most {key}=lora:{model.width}."
    r.refuse(key, text, model.number_of("lora") > model.width)
    text = f"{key}={model.train} trains factors, whose average is not the average of the weights."
    averages_factors = model.number_of("lora") and r.optim.average is not None
    r.refuse("optim.average", f"{text} Use optim.average=null.", averages_factors)


def _class_token(r: Recipe) -> None:
    """Refuse pooling by class token if the encoder has no class token.

    - In an evaluation, `probe.pool` says how the encoder pools. If `probe.pool` is null, trained
      weights say how to pool (`InitSource.pooling`). Random weights use the class token.
    - In training, each trained objective says how the encoder pools. An option such as
      `supervised.pool` decides. If there is no such option, or if the option is null, `pool` in
      the declaration of the objective decides.

    Raises:
        UserError: An evaluation or an objective reads the class token.
    """
    if r.model.class_token:
        return
    model = f"model={r.model.name or r.model.timm}"
    pools_by_default = r.objective == "probe" and r.probe.pool is None and r.init_source.is_scratch
    reads_token = r.probe.pool == "token" or pools_by_default
    r.refuse("probe.pool", f"{model} has no class token. Use probe.pool=avg.", reads_token)
    if not r.trains:
        return
    for trained in r.declared.trained(r):
        group = trained.options.name if trained.options else ""
        pool = getattr(r.groups.get(group), "pool", None)  # value of the option GROUP.pool, if any
        text = f"{model} has no class token. Use {group}.pool=avg."
        r.refuse(f"{group}.pool", text, pool == "token")
        if not pool and trained.pool == "token":
            objectives = declaration.objectives().items()
            choices = [name for name, declared in objectives if declared.pool == "avg"]
            raise r.error(
                "objective",
                f"this objective reads the class token, and {model} has no class token."
                f" Choose another objective: {', '.join(choices)}.",
            )


def _mixing(r: Recipe) -> None:
    """Refuse mixup and CutMix for objectives and streams that cannot use them."""
    for key in MIXING:
        strength, remedy = r.value(key), f"Use {key}=0."
        text = f"objective={r.objective} cannot be trained on mixed images. {remedy}"
        r.refuse(key, text, strength and "data.mixup" not in r.declared.shared)
        r.refuse(key, f"data.stream=true cannot mix images. {remedy}", strength and r.data.stream)


def _cuts_held_out(r: Recipe) -> bool:
    """Return whether the held-out images may be a share of the training images.

    - `data.validation=0.1`: true.
    - `data.validation=null`: true. The run may hold out 1% of the training images.
    - `data.validation=val` (the name of a split) and `data.validation=0`: false.
    """
    validation = r.data.validation
    return validation is None or (isinstance(validation, float) and validation > 0)


def _stream(r: Recipe) -> None:
    """Refuse options that do not work with `data.stream=true`.

    A stream is read from the first image to the last, and training uses every image. Neither the
    number of images nor their labels are known before the images are read.

    Raises:
        UserError: An option does not work with a stream. The error is about the first such option.
    """
    data, stream = r.data, "a stream (data.stream=true)"
    if not data.stream:
        return
    is_generated = data.hub is None and data.path is None
    text = "there are no images to stream. Give data.hub= or data.path=."
    r.refuse("data.stream", text, is_generated)
    text = f"{stream} can only be trained on, not evaluated. Use data.stream=false."
    r.refuse("objective", text, not r.trains)
    text = f"{stream} can only be trained on, not tested. Use eval.test=false."
    r.refuse("eval.test", text, r.eval.test)
    # A share needs the total number of images, which is known only after reading all images.
    text = (
        f"{stream} cannot train on a share of its images, because their number is not known"
        " beforehand. Use data.share=1."
    )
    r.refuse("data.share", text, data.share != 1)
    holds_out_share = data.validation is not None and _cuts_held_out(r)
    no_share = f"{stream} cannot hold out a share of its images. Give the name of a split"
    r.refuse("data.validation", f"{no_share}, or 0 for no held-out images.", holds_out_share)
    r.refuse("data.test", f"{no_share}.", not isinstance(data.test, str))
    text = (
        f"the labels of {stream} are not known beforehand, so no share of each class can be drawn."
        " Use data.share_seed=null."
    )
    r.refuse("data.share_seed", text, data.share_seed is not None)
    text = f"{stream} cannot keep the images of a group together. Use data.group=null."
    r.refuse("data.group", text, data.group is not None)


def _held_out(r: Recipe) -> None:
    """Check the options for held-out images and `checkpoint.best`.

    `checkpoint.best` chooses a checkpoint by a metric of the held-out images.
    """
    data, best, holds_out_share = r.data, r.checkpoint.best, _cuts_held_out(r)
    text = (
        "has no effect, because no share of the images is held out or tested. Use data.group=null,"
        " data.validation=0.1 or data.test=0.2."
    )
    no_share = not holds_out_share and isinstance(data.test, str)
    r.refuse("data.group", text, data.group is not None and no_share)
    text = (
        f"has no effect with data.validation={data.validation}. Use data.validation=null or a share"
        " such as data.validation=0.1."
    )
    r.refuse("data.validation_from", text, data.validation_from != "share" and not holds_out_share)
    if best is None:
        return
    text = (
        "data.validation=0 leaves no held-out images to choose a checkpoint on."
        " Use checkpoint.best=null, or a share such as data.validation=0.1."
    )
    r.refuse("checkpoint.best", text, data.validation == 0)
    text = (
        f"with objective={r.objective}, an encoder with collapsed features (the same feature for"
        f" all images) can reach the best {best}."
        " Use the accuracy of a probe: checkpoint.best=probe/knn probe.every=1000."
    )
    rewards_collapse = declaration.may_reward_collapse(best, r.objective, r.target)
    r.refuse("checkpoint.best", text, rewards_collapse)


def _labels(r: Recipe) -> None:
    """Refuse options that need labels or a classifier if the run does not have them.

    With `data.labels=false`, a run has no labels. `eval.test` and `eval.real` need a classifier.
    """
    text = (
        "this run learns labels or measures accuracy. Use data.labels=true and labelled images."
        " For images without labels, use `ssl-vit embed` or `ssl-vit figures`."
    )
    r.refuse("data.labels", text, not r.data.labels and uses_labels(r))
    labelled_parts = [part for part in r.declared.parts if declaration.objective(part).labels]
    untrained = "".join(f" with {r.objective}.{part}=0" for part in labelled_parts)
    text = f"objective={r.objective}{untrained} learns no labels. Use eval.test=false."
    r.refuse("eval.test", text, r.eval.test and not learns_labels(r))
    classifies = r.eval.test or (
        r.objective == "probe" and bool(r.probe.measures_that_read("head"))
    )
    text = (
        "eval.real has no effect without eval.test=true or probe.measures=[top1]. Add one of these"
        " two options, or use eval.real=null."
    )
    r.refuse("eval.real", text, r.eval.real and not classifies)


def _sizes(r: Recipe) -> None:
    """Check the sizes of a Vision Transformer.

    `data.size` must be a multiple of `model.patch`, with at least two patches per side, and
    `model.width` must be a multiple of `model.heads`.
    """
    size, patch, heads = r.data.size, r.model.patch, r.model.heads
    if r.model.convolutional:
        return
    below = size // patch * patch
    nearest_sizes = [side for side in (below, below + patch) if side >= 2 * patch] or [2 * patch]
    remedies = [f"data.size={' or '.join(map(str, nearest_sizes))}"]
    if divisors := [side for side in range(2, size // 2 + 1) if size % side == 0]:
        nearest_patch = min(divisors, key=lambda side: abs(side - patch))
        remedies.append(f"model.patch={nearest_patch}")
    text = (
        f"must be a multiple of model.patch={patch} and at least {2 * patch}."
        f" Use {', or '.join(remedies)}."
    )
    r.refuse("data.size", text, size % patch or size < 2 * patch)
    r.refuse("model.width", f"must be a multiple of model.heads={heads}.", r.model.width % heads)


def _corruption(r: Recipe) -> None:
    """Check the group `corruption`, if the objective uses this group.

    The three shares must sum to 1, a square of several patches must be smaller than the image, and
    the rate must not mask all patches.
    """
    if "corruption" not in r.groups:
        return
    corruption, patches, side = r.group(CorruptionOptions), r.patches, r.data.size // r.model.patch
    total = corruption.mask + corruption.random + corruption.keep
    keys = "corruption.mask + .random + .keep"
    r.refuse(keys, "the three shares must sum to 1.", abs(total - 1) >= 1e-6, f"{total:g}")
    text = f"must be less than {side}, because an image has {side} x {side} patches."
    r.refuse("corruption.side", text, corruption.side != 1 and corruption.side >= side)
    masks_all = corruption.mask >= 1 and selected_count(corruption.rate, patches) >= patches
    if masks_all and not r.model.convolutional:
        raise r.error(
            "corruption.rate",
            f"this rate masks all {patches} patches of an image. {fewer_than(patches)}, or use a"
            " corruption.mask below 1.",
        )


def _views(r: Recipe) -> None:
    """Check the group `views`, if the objective compares views of an image."""
    views, patch = compared_views(r), r.model.patch
    if views is None:
        return
    for key in ("optim.batch", "eval.images"):
        text = (
            f"objective={r.objective} compares the images of a batch with each other, and a batch"
            f" of 1 has nothing to compare. Use {key}=2 or more."
        )
        r.refuse(key, text, r.value(key) == 1)
    text = "the first number is larger than the second. Give the smaller standard deviation first."
    r.refuse("views.blur_sigma", text, views.blur_sigma[0] > views.blur_sigma[1])
    if not views.local:
        return
    text = f"objective={r.objective} does not use local views. Use views.local=0."
    r.refuse("views.local", text, "views.local" not in r.declared.shared)
    text = f"local views must not be larger than the other views. Use at most {r.data.size}."
    r.refuse("views.local_size", text, views.local_size > r.data.size)
    text = f"must be a multiple of model.patch={patch}."
    r.refuse("views.local_size", text, views.local_size % patch)
    smallest, largest = views.local_area
    text = "the first number is larger than the second. Give the smaller share first."
    r.refuse("views.local_area", text, smallest > largest)
    text = (
        "the first number is the smallest share of an image that a local view covers. It must not"
        f" exceed data.crop_area={r.data.crop_area:g}, the smallest share for global views."
    )
    r.refuse("views.local_area", text, smallest > r.data.crop_area)


def check_patches(r: Recipe) -> None:
    """Check that the model cuts the pixels of the image into patches.

    Objectives call this function in their own checks.

    Raises:
        UserError: The model has no patches, or cuts a feature map into patches.
    """
    text = (
        f"objective={r.objective} needs patches of pixels, and this model has no such patches."
        f" {USE_VIT}"
    )
    # a hybrid of ResNet and Transformer cuts the feature map of the ResNet into patches
    has_no_pixel_patches = r.model.convolutional or r.model.hybrid
    r.refuse("model", text, wrong=has_no_pixel_patches, value=r.model.name)


def check_decoder(r: Recipe, group: str) -> None:
    """Check the sizes of a small transformer that an objective adds to the encoder.

    Args:
        group: Name of the group with the sizes. For example, `mae` for `mae.width` and `mae.heads`.

    Raises:
        UserError: The width is no multiple of the number of heads, or no multiple of 4.
    """
    key = f"{group}.width"
    width, heads = r.value(key), r.value(f"{group}.heads")
    r.refuse(key, f"must be a multiple of {group}.heads={heads}.", width % heads != 0)
    text = "must be a multiple of 4, because the position embeddings are sines and cosines."
    r.refuse(key, text, width % 4 != 0)


def _probe(r: Recipe) -> None:
    """Refuse values of `probe` that the objective, the model or other values do not allow.

    For example, measures of patches need an evaluation and a model with patches.
    """
    probe, evaluates = r.probe, r.objective == "probe"
    only = f"objective={r.objective} does not use this value. Only `ssl-vit evaluate` uses it."
    if probe.feature == "hidden":
        text = f"{only} Use probe.feature=encoder."
        r.refuse("probe.feature", text, not evaluates)
        for key in ("probe.pool", "probe.layer"):
            text = (
                f"{key} has no effect on the feature after the classifier's hidden layer. Leave out"
                f" {key}."
            )
            r.refuse("probe.feature", text, r.value(key) is not None)
    patch_measures = probe.measures_that_read("tokens", "mask")
    for measure in patch_measures:
        remedy = f"Leave out {measure}."
        r.refuse("probe.measures", f"{only} {remedy}", not evaluates, measure)
        model = f"model={r.model.name or r.model.timm}"
        text = f"the measure {measure} needs patches, and {model} has no patches. {remedy}"
        r.refuse("probe.measures", text, r.model.convolutional, measure)
        text = (
            f"the measure {measure} reads patches, and probe.feature={probe.feature} is one vector"
            " without patches. Use probe.feature=encoder."
        )
        r.refuse("probe.measures", text, probe.feature != "encoder", measure)
        text = f"probe.measures={measure} reads patches without pooling. Leave out probe.pool."
        nothing_pools = set(probe.measures) <= set(patch_measures)
        r.refuse("probe.pool", text, probe.pool is not None and nothing_pools)


def _lengths(r: Recipe) -> None:
    """Check that `optim.warmup`, `optim.decay`, `compute.batch` and `probe.layer` are in range."""
    optim, batch, depth = r.optim, r.compute.batch, r.model.depth
    text = f"must be less than optim.steps={optim.steps}. Use optim.warmup={optim.steps // 10}."
    r.refuse("optim.warmup", text, optim.warmup >= optim.steps)
    text = (
        f"the decay begins at step {optim.decay_from}, before optim.warmup={optim.warmup} ends."
        " Use a smaller optim.decay or optim.warmup."
    )
    r.refuse("optim.decay", text, optim.schedule == "wsd" and optim.warmup > optim.decay_from)
    text = f"must divide optim.batch={optim.batch}."
    r.refuse("compute.batch", text, batch and optim.batch % batch)
    text = f"must be at most model.depth={depth}."
    r.refuse("probe.layer", text, (r.probe.layer or 1) > depth)


def _trunk(r: Recipe) -> None:
    """Refuse `resume=RUN@STEP` if the steps before STEP depend on the length of the run.

    The new run takes over the steps of RUN before STEP. The two runs may have different lengths
    (`optim.steps`), so these steps must be the same for every length. An objective or target with
    this property declares `any_length = True`.

    Raises:
        UserError: An option, the objective or the target depends on the length of the run.
    """
    if r.trunk is None:
        return
    schedule = r.optim.schedule
    text = f"optim.schedule={schedule} cannot continue another run. Use optim.schedule=wsd."
    r.refuse("resume", text, schedule != "wsd")
    check_trunk_before_decay(r, r)
    for key in ("optim.weight_decay_end", "checkpoint.best"):
        text = (
            f"{key} depends on all steps of a run, but with resume={r.resume} another run trains"
            f" the first steps. Use {key}=null."
        )
        r.refuse(key, text, r.value(key) is not None)
    if parts := parts_with_schedules(r):
        text = (
            f"with {parts[0]}, every step depends on the length of the run, so runs of"
            " different lengths cannot share their first steps. Leave out resume."
        )
        raise r.error("resume", text)


def parts_with_schedules(r: Recipe) -> list[str]:
    """Return the objectives and the target of which each step depends on the length of the run.

    For example ["objective=dino"], because the momentum of DINO's teacher follows a schedule.
    """
    trained = r.declared.trained(r)
    parts = [f"objective={part.name}" for part in trained if not part.any_length]
    uses_target = any(part.predicts_patches for part in trained)
    if uses_target and not declaration.target(r.target).any_length:
        parts.append(f"target={r.target}")
    return parts


def check_trunk_before_decay(recipe: Recipe, changed: Recipe) -> None:
    """Check that the learning rate does not decay before STEP of `resume=RUN@STEP`.

    The new run takes over the steps of RUN before STEP. Call this function for the new recipe and
    for the recipe of RUN.

    Args:
        recipe: Recipe with `resume=RUN@STEP`.
        changed: Recipe whose schedule is checked: the new recipe itself, or the recipe of RUN.

    Raises:
        UserError: In `changed`, the decay begins before STEP.
    """
    assert recipe.trunk is not None
    length = f"optim.steps={changed.optim.steps} optim.decay={changed.optim.decay:g}"
    start = changed.optim.decay_from
    text = (
        f"with {length}, the learning rate decays from step {start}. Use resume=RUN@STEP with a"
        f" STEP of at most {start}."
    )
    recipe.refuse("resume", text, wrong=recipe.trunk.step > start)


def has_use(recipe: Recipe, key: str) -> bool:
    """Return whether the recipe uses a dotted key."""
    return not why_unused(recipe, key)


def why_unused(r: Recipe, key: str) -> str:
    """Return why the recipe ignores a dotted key, or an empty string if the recipe uses the key.

    For example, `distill.teacher` gives "has no effect with objective=mae", because this objective
    does not use the group `distill`. `hub.private` gives "has no effect without
    hub.repo=USER/NAME", because `hub.private` needs `hub.repo`.
    """
    group, objective = key.split(".")[0], f"objective={r.objective}"
    evaluates = r.objective == "probe"
    views = compared_views(r)
    targets = declaration.targets().items()
    # targets whose own group of keys is `group`
    owners = [name for name, target in targets if target.options and target.options.name == group]
    has_group = _has_group(r, group)
    if owners and not has_group:
        return f"has no effect without target={owners[0]}"
    if not has_group or (key in LABEL_KEYS and not _reads_labels(r)):
        # in a sum of objectives, a part with the weight 0 is not trained, as in `joint.mpp=0`
        trained = {part.name for part in r.declared.trained(r)}
        untrained = [part for part in r.declared.parts if part not in trained]
        weight = f" and {r.objective}.{untrained[0]}=0" if untrained else ""
        return f"has no effect with {objective}{weight}"
    if key in COLUMN_KEYS and r.data.name == EMBEDDED:
        return f"data={EMBEDDED} is generated and has no columns"
    if key in MASK_KEYS and not measures_masks(r):
        return "has no effect without recipe=segment, which measures masks"
    if key == "probe.token_images" and not (evaluates and r.probe.measures_that_read("tokens")):
        return "has no effect without recipe=evaluate probe.measures=[attentive]"
    if key in ONLINE_PROBE_KEYS and evaluates:
        return f"has no effect with {objective}, because this key is for probes during pre-training"
    if evaluates and (key in TRAINING_KEYS or group in TRAINING_KEYS):
        return f"has no effect with {objective}, which trains nothing"
    if group == "hub" and key != "hub.repo" and not r.hub.repo:
        return "has no effect without hub.repo=USER/NAME"
    if key.startswith("views.local_") and not (views and views.local):
        return "has no effect without local views, such as views.local=6"
    # dino.koleo_group has no effect if dino.koleo, the weight of this loss, is 0
    koleo_weight = key.removesuffix("_group")
    if key.endswith(".koleo_group") and not r.value(koleo_weight):
        return f"has no effect with {koleo_weight}=0"
    requires = all_keys()[key].requires
    if requires:
        required_key, *values = requires
        if r.value(required_key) not in values:
            return f"has no effect with {required_key}={option_text(r.value(required_key))}"
    return ""


def _has_group(r: Recipe, group: str) -> bool:
    """Return whether the recipe uses a group of keys, such as `corruption`.

    - `probe`: Evaluations, and training with `probe.every`, use this group.
    - A group of certain objectives or targets, such as `corruption` or `dino`: The recipe uses the
      group if a trained objective does.
    - Other groups, such as `optim`, and keys without a group, such as `seed`: Every recipe uses
      them.

    Args:
        r: Recipe.
        group: Name of a group, or a key without a group.
    """
    if group == "probe":
        return r.objective == "probe" or r.probe.every is not None
    if group not in {optional.name for optional in all_groups()} | {"target"}:
        return True
    used_groups = {name for part in r.declared.trained(r) for name in part.groups_with(r.target)}
    # a sum of objectives has its own group, such as `joint`, which is not a group of its parts
    own_group = r.declared.options
    return group in used_groups or (own_group is not None and group == own_group.name)


def _reads_labels(r: Recipe) -> bool:
    """Return whether the run needs labels to choose images, to learn or to measure.

    For an evaluation, the result is always True, because its declaration has `labels = True`.
    """
    if not isinstance(r.data.test, str):  # a share of each class is cut off for testing
        return True
    # with a seed, the same share of each class is drawn
    if r.data.share_seed is not None or (r.trains and r.eval.knn):
        return True
    return any(part.labels for part in r.declared.trained(r)) or r.probe.every is not None
