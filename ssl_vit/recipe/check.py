"""Check relations between keys: combinations that a recipe must not have, and keys that the recipe
would ignore.

Each subject has one function. `check` calls the functions in the order in which a reader would ask,
and the first relation that fails is the error. Relations that concern a single objective are
checked in the declaration of that objective. This module does not import torch.
"""

from collections.abc import Iterable, Mapping

from ..errors import UserError
from ..formatting import option_text
from . import declaration
from .images import EMBEDDED, MIXING, Data
from .model import GIVEN
from .parsing import exists
from .probe import ATTENTIVE, TOKENS
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

# Keys that have no meaning for a convolutional network
TRANSFORMER_KEYS = (
    *("optim.dropout", "optim.layer_decay", "probe.pool", "probe.layer", "model.registers"),
    *("model.layer_scale", "model.qk_norm", "model.activation", "model.positions"),
)
LABEL_KEYS = ("data.classes", "data.label_column")
COLUMN_KEYS = ("data.label_column", "data.image_column", "data.group", "data.mask_column")
MASK_KEYS = ("data.mask_column", "data.mask_ignore", "data.mask_classes", "probe.mask_images")
ONLINE_PROBE_KEYS = ("probe.every", "probe.images")
TRAINING_KEYS = (  # single keys and whole groups
    *("optim", "checkpoint", "log", "hub", *MIXING),
    *("eval.every", "eval.images", "eval.collapse", "eval.test"),
)


def check(recipe: Recipe) -> None:
    """Check the relations between the values of a recipe.

    Raises:
        UserError: The first relation that does not hold.
    """
    for relation in (
        *(_model, _channels, _args, _encoder, _class_token),
        *(_mixing, _stream, _held_out, _labels, _sizes),
        *(_corruption, _views, _probe, _lengths, _trunk),
    ):
        relation(recipe)
    declared = recipe.declared
    for one in (declared, *map(declaration.objective, declared.parts)):
        one.check(recipe)


def check_used(recipe: Recipe, given: Mapping[str, str]) -> None:
    """Check that the recipe uses every key that the user gave.

    Args:
        given: {dotted key: text as typed}.

    Raises:
        UserError: The first key that the recipe would ignore.
    """
    for key, text in given.items():
        if reason := why_unused(recipe, key):
            raise UserError(f"{key}={text}: {reason}")


def check_place(data: Data) -> None:
    """Check that the data set has a single location and that the location exists.

    Raises:
        UserError: The data set has no location, or its path does not exist.
    """
    if data.name == EMBEDDED and (data.path or data.hub):
        raise UserError(
            f"data={EMBEDDED} is generated, not read; leave it out beside data.path= or data.hub="
        )
    if data.path and not exists(data.path):
        raise UserError(f"data.path={data.path}: no such file or folder")
    if not data.path and not data.hub and data.name != EMBEDDED:
        raise UserError(
            f"data={data.name} lies nowhere yet; add data.path= with a local copy (parquet, tars or"
            " image folder)"
        )


def _given(recipe: Recipe, keys: Iterable[str]) -> str:
    """Return the first of `keys` with a value other than the default, or an empty string."""
    changed = (key for key in keys if recipe.value(key) != all_keys()[key].default)
    return next(changed, "")


def _model(r: Recipe) -> None:
    model, predicts = r.model, r.declared.predicts_patches
    text = f"objective={r.objective} needs patches"
    none = f"{text}; model.timm={model.timm} has none"
    r.refuse("model", none, predicts and model.convolutional, model.name)
    if model.convolutional and (key := _given(r, TRANSFORMER_KEYS)):
        raise r.error(key, f"model={model.name} has no use for it")
    # Each cell of the ResNet's feature map has already seen neighbouring pixels, so masked pixels
    # would leak.
    text = f"{text} of pixels, not of a ResNet's feature map"
    r.refuse("model", text, predicts and model.hybrid, model.name)
    multiple = declaration.target(r.target).patch_multiple if predicts else 1
    text = f"expected patches of a multiple of {multiple} pixels, not model.patch={model.patch}"
    r.refuse("target", text, model.patch % multiple)


def _channels(r: Recipe) -> None:
    data, predicts = r.data, r.declared.predicts_patches
    beside = f"beside data.channels={data.channels}"
    for key in ("data.mean", "data.std"):
        others = len(r.value(key)) != data.channels
        # For other channel counts, the default of three numbers is replaced by measured values.
        r.refuse(key, f"expected {data.channels} numbers {beside}", others and _given(r, [key]))
    resnet = r.model.convolutional or r.model.hybrid
    text = f"model={r.model.name} begins with a ResNet, which takes 3"
    r.refuse("data.channels", text, data.channels != 3 and resnet)
    if predicts and not data.is_rgb and not declaration.target(r.target).any_channels:
        known = [name for name, one in declaration.targets().items() if one.any_channels]
        if data.channels == 3:
            beside = f"beside data.range={option_text(data.range)}"
        text = f"takes RGB of 8 bits; expected one of {', '.join(known)} {beside}"
        raise r.error("target", text)
    views = compared_views(r)
    coloured = views and (views.jitter or views.grayscale or any(views.solarize))
    text = "the colours of its views are those of RGB of 8 bits; crop, flip and blur are left with"
    text += " views.jitter=0 views.grayscale=0 views.solarize=[0,0]"
    r.refuse("objective", text, coloured and not data.is_rgb)


def _args(r: Recipe) -> None:
    for name in r.model.args:
        giver = GIVEN.get(name) or "this package"
        r.refuse("model.args", f"{name} is given by {giver}", name in GIVEN)


def _encoder(r: Recipe) -> None:
    model = r.model
    text = f"expected learned, learned_2d, sincos_2d or none beside model={model.name}"
    r.refuse("model.positions", text, model.positions == "rotary" and model.hybrid)
    text = "expected gelu for a hybrid"
    r.refuse("model.activation", text, model.activation != "gelu" and model.hybrid)
    divisors = {"learned_2d": 2, "sincos_2d": 4, "rotary": 4 * model.heads}
    divisor = divisors.get(model.positions, 1)
    text = f"no multiple of {divisor}, which model.positions={model.positions} needs"
    r.refuse("model.width", text, model.width % divisor)


def _class_token(r: Recipe) -> None:
    """Refuse pooling by class token for an encoder that has no class token."""
    if r.model.class_token:
        return
    named = f"model={r.model.name or r.model.timm}"
    text = f"{named} has no class token; expected avg"
    unknown = r.objective == "probe" and r.probe.pool is None and r.init_source.is_scratch
    r.refuse("probe.pool", text, r.probe.pool == "token" or unknown)
    for one in r.declared.trained(r) if r.trains else ():
        name = one.options.name if one.options else ""
        own = getattr(r.groups.get(name), "pool", None)
        r.refuse(f"{name}.pool", text, own == "token")
        if not own and one.pool == "token":
            others = [name for name, it in declaration.objectives().items() if it.pool == "avg"]
            reads = f"reads the class token, and {named} has none"
            raise r.error("objective", f"{reads}; expected one of {', '.join(others)}")


def _mixing(r: Recipe) -> None:
    mixed, keys = max(r.data.mixup, r.data.cutmix), "data.mixup, .cutmix"
    text = f"objective={r.objective} has no use for mixed images"
    r.refuse(keys, text, mixed and "data.mixup" not in r.declared.shared, mixed)
    r.refuse(keys, "expected 0 beside data.stream=true", mixed and r.data.stream, mixed)


def _cuts_held_out(r: Recipe) -> bool:
    """Return whether the held-out images are a share of the training images.

    `data.validation=null` counts as a share, because the default may cut one off.
    """
    validation = r.data.validation
    return validation is None or (isinstance(validation, float) and validation > 0)


def _stream(r: Recipe) -> None:
    """Refuse what a stream cannot do: a stream shows only the next image, and training uses every
    image of it.
    """
    data, beside, only = r.data, "beside data.stream=true", "data.stream=true is for training only"
    if not data.stream:
        return
    drawn = data.hub is None and data.path is None
    r.refuse("data.stream", f"data={data.name} is generated, not read", drawn)
    r.refuse("objective", only, not r.trains)
    r.refuse("eval.test", f"{only}; expected eval.test=false", r.eval.test)
    # The images of a share depend on the total number, which is known only after reading all
    # images.
    r.refuse("data.share", f"expected 1 {beside}", data.share != 1)
    cuts = data.validation is not None and _cuts_held_out(r)
    r.refuse("data.validation", f"expected a split, or 0 for none, {beside}", cuts)
    r.refuse("data.test", f"expected a split's name {beside}", not isinstance(data.test, str))
    text = "takes shares of classes, and data.stream does not know labels beforehand"
    r.refuse("data.share_seed", text, data.share_seed is not None)
    text = "keeps groups on one side of a share, and data.stream takes no whole groups"
    r.refuse("data.group", text, data.group is not None)


def _held_out(r: Recipe) -> None:
    data, best, cuts = r.data, r.checkpoint.best, _cuts_held_out(r)
    text = "has no use without a share: expected null, or data.validation= or data.test= with one"
    no_share = not cuts and isinstance(data.test, str)
    r.refuse("data.group", text, data.group is not None and no_share)
    text = f"expected data.validation=null or a share above 0 beside it, not {data.validation}"
    r.refuse("data.validation_from", text, data.validation_from != "share" and not cuts)
    if best is None:
        return
    text = "holds out no images to choose on; expected null, or a share above 0"
    r.refuse("checkpoint.best", f"data.validation=0 {text}", data.validation == 0)
    text = f"of objective={r.objective}, collapsed features may have the best; expected a probe's"
    text += " accuracy, such as probe/knn with probe.every="
    told = declaration.tells_nothing(best, r.objective, r.target)
    r.refuse("checkpoint.best", text, told)


def _labels(r: Recipe) -> None:
    text = "the run learns labels or is measured on them; expected true, of images that have some;"
    text += " others are looked at with tools/embed.py and tools/figures.py"
    r.refuse("data.labels", text, not r.data.labels and uses_labels(r))
    learning = [part for part in r.declared.parts if declaration.objective(part).labels]
    untrained = "".join(f" with {r.objective}.{part}=0" for part in learning)
    text = f"objective={r.objective}{untrained} learns no labels"
    r.refuse("eval.test", text, r.eval.test and not learns_labels(r))
    classifies = r.eval.test or (r.objective == "probe" and "top1" in r.probe.measures)
    text = "no use without eval.test=true or probe.measures=[top1]"
    r.refuse("eval.real", text, r.eval.real and not classifies)


def _sizes(r: Recipe) -> None:
    size, patch, heads = r.data.size, r.model.patch, r.model.heads
    if r.model.convolutional:
        return
    below = size // patch * patch
    near = [side for side in (below, below + patch) if side >= 2 * patch] or [2 * patch]
    verb = "are" if len(near) > 1 else "is"
    text = f"no multiple of the patch of {r.model.name or 'the model'}, model.patch={patch}"
    nearest = f"the nearest {verb} {' and '.join(map(str, near))}"
    if divisors := [side for side in range(2, size // 2 + 1) if size % side == 0]:
        nearest += f", or model.patch={min(divisors, key=lambda side: abs(side - patch))}"
    r.refuse("data.size", f"{text}; {nearest}", size % patch or size < 2 * patch)
    r.refuse("model.width", f"no multiple of model.heads={heads}", r.model.width % heads)


def _corruption(r: Recipe) -> None:
    if "corruption" not in r.groups:
        return
    own, patches, side = r.group(CorruptionOptions), r.patches, r.data.size // r.model.patch
    shares, keys = own.mask + own.random + own.keep, "corruption.mask + .random + .keep"
    r.refuse(keys, "the three shares must sum to 1", abs(shares - 1) >= 1e-6, f"{shares:g}")
    text = f"expected less than {side}: an image has {side} x {side} patches"
    r.refuse("corruption.side", text, own.side != 1 and own.side >= side)
    masks_all = own.mask >= 1 and selected_count(own.rate, patches) >= patches
    if masks_all and not r.model.convolutional:
        less = f"{fewer_than(patches)}, or corruption.mask below 1"
        raise r.error("corruption.rate", f"masks all of an image's {patches} patches; {less}")


def _views(r: Recipe) -> None:
    views, patch = compared_views(r), r.model.patch
    if views is None:
        return
    for key in ("optim.batch", "eval.images"):
        text = f"objective={r.objective} compares the images of a batch; expected at least 2"
        r.refuse(key, text, r.value(key) == 1)
    text = "expected the smaller standard deviation first"
    r.refuse("views.blur_sigma", text, views.blur_sigma[0] > views.blur_sigma[1])
    if not views.local:
        return
    text = f"objective={r.objective} has no use for local views; expected 0"
    r.refuse("views.local", text, "views.local" not in r.declared.shared)
    text = f"larger than the other views, data.size={r.data.size}"
    r.refuse("views.local_size", text, views.local_size > r.data.size)
    text = f"no multiple of model.patch={patch}"
    r.refuse("views.local_size", text, views.local_size % patch)
    smallest, largest = views.local_area
    r.refuse("views.local_area", "expected the smaller share first", smallest > largest)
    most = f"data.crop_area={r.data.crop_area:g}"
    text = f"the smallest is larger than that of the other views, {most}"
    r.refuse("views.local_area", text, smallest > r.data.crop_area)


def check_patches(r: Recipe) -> None:
    """Check that the patches of the model are patches of pixels.

    Raises:
        UserError: The model has no patches, or its patches are cells of a feature map.
    """
    text = f"objective={r.objective} needs patches of pixels; model={r.model.name} has none"
    r.refuse("model", text, r.model.convolutional or r.model.hybrid, r.model.name)


def check_decoder(r: Recipe, group: str) -> None:
    """Check the sizes of a small transformer that an objective adds to the encoder.

    Args:
        group: Group of keys with the sizes, `GROUP.width` and `GROUP.heads`.

    Raises:
        UserError: The width is no multiple of the number of heads or of 4.
    """
    key, width, heads = f"{group}.width", r.value(f"{group}.width"), r.value(f"{group}.heads")
    r.refuse(key, f"no multiple of {group}.heads={heads}", width % heads)
    r.refuse(key, "expected a multiple of 4: sines and cosines of row and column", width % 4)


def _probe(r: Recipe) -> None:
    own, evaluates = r.probe, r.objective == "probe"
    only = f"tools/evaluate.py; objective={r.objective} has no use for it"
    if own.feature == "hidden":
        r.refuse("probe.feature", f"is read by {only}", not evaluates)
        for key in ("probe.pool", "probe.layer"):
            text = f"reads what its run trained it on; leave {key}={r.value(key)} out"
            r.refuse("probe.feature", text, r.value(key) is not None)
    for measure in (one for one in own.measures if one in TOKENS):
        r.refuse("probe.measures", f"is measured by {only}", not evaluates, measure)
        text = f"needs patches; model={r.model.name or r.model.timm} has none"
        r.refuse("probe.measures", text, r.model.convolutional, measure)
        text = f"reads the encoder's patches; probe.feature={own.feature} is of images"
        r.refuse("probe.measures", text, own.feature != "encoder", measure)
        text = f"probe.measures={measure} reads patches and has no use for it"
        r.refuse("probe.pool", text, own.pool is not None and set(own.measures) <= TOKENS)


def _lengths(r: Recipe) -> None:
    own, batch, depth = r.optim, r.compute.batch, r.model.depth
    text = f"not below optim.steps={own.steps}; add optim.warmup={own.steps // 10}"
    r.refuse("optim.warmup", text, own.warmup >= own.steps)
    text = f"begins at step {own.decay_from}, before the end of optim.warmup={own.warmup}"
    text += "; expected less of one of them"
    r.refuse("optim.decay", text, own.schedule == "wsd" and own.warmup > own.decay_from)
    text = f"does not divide optim.batch={own.batch}"
    r.refuse("compute.batch", text, batch and own.batch % batch)
    text = f"expected at most model.depth={depth}"
    r.refuse("probe.layer", text, (r.probe.layer or 1) > depth)


def _trunk(r: Recipe) -> None:
    """Refuse `resume=RUN@STEP` if the steps before STEP would differ from a run of this length.

    The shared steps must be equal to the bit, so nothing in them may depend on the run's length.
    """
    if r.trunk is None:
        return
    schedule = r.optim.schedule
    text = f"expected optim.schedule=wsd, not {schedule}, beside a step of another run"
    r.refuse("resume", text, schedule != "wsd")
    check_stable(r, r)
    for key in ("optim.weight_decay_end", "checkpoint.best"):
        text = f"expected null beside resume={r.resume}, as it depends on the whole run"
        r.refuse(key, text, r.value(key) is not None)
    trained = r.declared.trained(r)
    follows = [f"objective={one.name}" for one in trained if not one.any_length]
    if any(one.predicts_patches for one in trained) and not declaration.target(r.target).any_length:
        follows.append(f"target={r.target}")
    if follows:
        text = f"{follows[0]} follows the share of the run that is done, so that runs of other"
        raise r.error("resume", f"{text} lengths do not begin alike; leave it out")


def check_stable(recipe: Recipe, other: Recipe) -> None:
    """Check that a recipe leaves the trunk before the learning rate of a run begins to decay.

    Args:
        recipe: Recipe with a trunk (`resume=RUN@STEP`).
        other: Recipe whose decay counts: `recipe` itself, or the run that provides the trunk.

    Raises:
        UserError: The step of the trunk lies within the decay.
    """
    assert recipe.trunk is not None
    own = f"optim.steps={other.optim.steps} optim.decay={other.optim.decay:g}"
    text = f"expected a step up to {other.optim.decay_from}, where the decay of {own} begins"
    recipe.refuse("resume", text, recipe.trunk.step > other.optim.decay_from)


def has_use(recipe: Recipe, key: str) -> bool:
    """Return whether the recipe uses a dotted key."""
    return not why_unused(recipe, key)


def why_unused(r: Recipe, key: str) -> str:
    """Return why the recipe has no use for a dotted key, or an empty string for a key in use."""
    top, objective = key.split(".")[0], f"objective={r.objective}"
    probes = r.objective == "probe"
    targets = declaration.targets().items()
    owners = [name for name, one in targets if one.options and one.options.name == top]
    if owners and not _has_group(r, top):
        return f"is for target={owners[0]}"
    if not _has_group(r, top) or (key in LABEL_KEYS and not _reads_labels(r)):
        trained = {part.name for part in r.declared.trained(r)}
        left = [part for part in r.declared.parts if part not in trained]
        untrained = f" with {r.objective}.{left[0]}=0" if left else ""  # for a sum of objectives
        return f"{objective} has no use for it{untrained}"
    if key in COLUMN_KEYS and r.data.name == EMBEDDED:
        return f"data={EMBEDDED} is generated and has no columns"
    if key in MASK_KEYS and not measures_masks(r):
        return "is for masks, which probe.measures=[segmentation] of recipe=segment reads"
    if key == "probe.token_images" and not (probes and ATTENTIVE in r.probe.measures):
        return "is for probe.measures=[attentive] of recipe=evaluate"
    if key in ONLINE_PROBE_KEYS and probes:
        return f"is for probes while pre-training; {objective} has no use for it"
    if probes and (key in TRAINING_KEYS or top in TRAINING_KEYS):
        return f"{objective} trains nothing and has no use for it"
    if top == "hub" and key != "hub.repo" and not r.hub.repo:
        return "has no use without hub.repo=USER/NAME"
    if key.startswith("views.local_") and not ((views := compared_views(r)) and views.local):
        return "there are no local views; add views.local="
    if key.endswith(".koleo_group") and not r.value(weight := key.removesuffix("_group")):
        return f"{weight}=0 has no use for it"
    other, value = all_keys()[key].requires or ("", None)
    if other and r.value(other) != value:
        return f"{other}={option_text(r.value(other))} has no use for it"
    return ""


def _has_group(r: Recipe, top: str) -> bool:
    """Return whether the recipe uses the group of keys `top`.

    Keys outside optional groups count as used.
    """
    if top == "probe":
        return r.objective == "probe" or r.probe.every is not None
    if top not in {one.name for one in all_groups()} | {"target"}:
        return True
    used = {group for one in r.declared.trained(r) for group in one.groups_with(r.target)}
    own = r.declared.options
    return top in used or (own is not None and top == own.name)


def _reads_labels(r: Recipe) -> bool:
    if not isinstance(r.data.test, str):  # each class contributes a share
        return True
    if r.data.share_seed is not None or (r.trains and r.eval.knn):
        return True
    return any(one.labels for one in r.declared.trained(r)) or r.probe.every is not None
