"""Relations between keys: what a recipe must not be, and which keys it would ignore. Those of one
objective stand in its declaration. No torch here.

A function for each subject, called in the order in which a reader would ask; the first relation
that does not hold is the error.
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

# Keys that a convolutional network has not
TRANSFORMER_KEYS = (
    *("optim.dropout", "optim.layer_decay", "probe.pool", "probe.layer", "model.registers"),
    *("model.layer_scale", "model.qk_norm", "model.activation", "model.positions"),
)
LABEL_KEYS = ("data.classes", "data.label_column")
COLUMN_KEYS = ("data.label_column", "data.image_column", "data.group", "data.mask_column")
MASK_KEYS = ("data.mask_column", "data.mask_ignore", "data.mask_classes", "probe.mask_images")
ONLINE_PROBE_KEYS = ("probe.every", "probe.images")
TRAINING_KEYS = (  # keys and groups of keys
    *("optim", "checkpoint", "log", "hub", *MIXING),
    *("eval.every", "eval.images", "eval.collapse", "eval.test"),
)


def check(recipe: Recipe) -> None:
    """Check the relations between values.

    Raises:
        UserError: the first that does not hold.
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
    """Check that the recipe uses every given key, {key: text}.

    Raises:
        UserError: the first that it would ignore.
    """
    for key, text in given.items():
        if reason := why_unused(recipe, key):
            raise UserError(f"{key}={text}: {reason}")


def check_place(data: Data) -> None:
    """Check that the data set has one place, and that it is there.

    Raises:
        UserError: it has none, or nothing is there.
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
    """The first of some keys that has not its default; empty where all have."""
    changed = (key for key in keys if recipe.value(key) != all_keys()[key].default)
    return next(changed, "")


def _model(r: Recipe) -> None:
    predicts = r.declared.predicts_patches
    if predicts and r.model.convolutional:
        text = f"objective={r.objective} needs patches; model.timm={r.model.timm} has none"
        raise r.error("model", text, r.model.name)
    if r.model.convolutional and (key := _given(r, TRANSFORMER_KEYS)):
        raise r.error(key, f"model={r.model.name} has no use for it")
    # a cell of the ResNet's feature map has seen its neighbours, so the masked pixels leak
    if predicts and r.model.hybrid:
        text = f"objective={r.objective} needs patches of pixels, not of a ResNet's feature map"
        raise r.error("model", text, r.model.name)
    multiple = declaration.target(r.target).patch_multiple if predicts else 1
    if r.model.patch % multiple:
        text = f"expected patches of a multiple of {multiple} pixels, not model.patch="
        raise r.error("target", f"{text}{r.model.patch}")


def _channels(r: Recipe) -> None:
    data, predicts = r.data, r.declared.predicts_patches
    for key in ("data.mean", "data.std"):
        # the default of three is measured for others
        if len(r.value(key)) != data.channels and _given(r, [key]):
            text = f"expected {data.channels} numbers beside data.channels={data.channels}"
            raise r.error(key, text)
    if data.channels != 3 and (r.model.convolutional or r.model.hybrid):
        text = f"model={r.model.name} begins with a ResNet, which takes 3"
        raise r.error("data.channels", text)
    if predicts and not data.is_rgb and not declaration.target(r.target).any_channels:
        known = [name for name, one in declaration.targets().items() if one.any_channels]
        beside = f"data.channels={data.channels}"
        if data.channels == 3:
            beside = f"data.range={option_text(data.range)}"
        text = f"takes RGB of 8 bits; expected one of {', '.join(known)} beside {beside}"
        raise r.error("target", text)
    views = compared_views(r)
    if views and not data.is_rgb and (views.jitter or views.grayscale or any(views.solarize)):
        text = "the colours of its views are those of RGB of 8 bits; crop, flip and blur are left"
        with_ = "with views.jitter=0 views.grayscale=0 views.solarize=[0,0]"
        raise r.error("objective", f"{text} {with_}")


def _args(r: Recipe) -> None:
    for name in r.model.args:
        if name in GIVEN:
            raise r.error("model.args", f"{name} is given by {GIVEN[name] or 'this package'}")


def _encoder(r: Recipe) -> None:
    model = r.model
    if model.positions == "rotary" and model.hybrid:
        text = f"expected learned, learned_2d, sincos_2d or none beside model={model.name}"
        raise r.error("model.positions", text)
    if model.activation != "gelu" and model.hybrid:
        raise r.error("model.activation", "expected gelu for a hybrid")
    divisors = {"learned_2d": 2, "sincos_2d": 4, "rotary": 4 * model.heads}
    divisor = divisors.get(model.positions, 1)
    if model.width % divisor:
        text = f"no multiple of {divisor}, which model.positions={model.positions} needs"
        raise r.error("model.width", text)


def _class_token(r: Recipe) -> None:
    """What reads the class token of an encoder that has none."""
    if r.model.class_token:
        return
    named = f"model={r.model.name or r.model.timm}"
    text = f"{named} has no class token; expected avg"
    unknown = r.objective == "probe" and r.probe.pool is None and r.init_source.is_scratch
    if r.probe.pool == "token" or unknown:
        raise r.error("probe.pool", text)
    for one in r.declared.trained(r) if r.trains else ():
        name = one.options.name if one.options else ""
        own = getattr(r.groups.get(name), "pool", None)
        if own == "token":
            raise r.error(f"{name}.pool", text)
        if not own and one.pool == "token":
            others = [name for name, it in declaration.objectives().items() if it.pool == "avg"]
            reads = f"reads the class token, and {named} has none"
            raise r.error("objective", f"{reads}; expected one of {', '.join(others)}")


def _mixing(r: Recipe) -> None:
    mixed = max(r.data.mixup, r.data.cutmix)
    if mixed and "data.mixup" not in r.declared.shared:
        text = f"objective={r.objective} has no use for mixed images"
        raise r.error("data.mixup, .cutmix", text, mixed)
    if mixed and r.data.stream:
        raise r.error("data.mixup, .cutmix", "expected 0 beside data.stream=true", mixed)


def _cuts_held_out(r: Recipe) -> bool:
    """Whether the held-out images are a share of the training images, as they may be by default."""
    validation = r.data.validation
    return validation is None or (isinstance(validation, float) and validation > 0)


def _stream(r: Recipe) -> None:
    """A stream shows the next image alone, and is trained on whole."""
    data = r.data
    if not data.stream:
        return
    only = "data.stream=true is for training only"
    if data.hub is None and data.path is None:
        raise r.error("data.stream", f"data={data.name} is generated, not read")
    if not r.trains:
        raise r.error("objective", only)
    if r.eval.test:
        raise r.error("eval.test", f"{only}; expected eval.test=false")
    # which images a share has depends on their number, known only after reading all
    if data.share != 1:
        raise r.error("data.share", "expected 1 beside data.stream=true")
    if data.validation is not None and _cuts_held_out(r):
        text = "expected a split, or 0 for none, beside data.stream=true"
        raise r.error("data.validation", text)
    if not isinstance(data.test, str):
        raise r.error("data.test", "expected a split's name beside data.stream=true")
    if data.share_seed is not None:
        text = "takes shares of classes, and data.stream does not know labels beforehand"
        raise r.error("data.share_seed", text)
    if data.group is not None:
        text = "keeps groups on one side of a share, and data.stream takes no whole groups"
        raise r.error("data.group", text)


def _held_out(r: Recipe) -> None:
    data, best = r.data, r.checkpoint.best
    if data.group is not None and not _cuts_held_out(r) and isinstance(data.test, str):
        text = "has no use without a share: expected null, or data.validation= or data.test="
        raise r.error("data.group", f"{text} with one")
    if data.validation_from == "train" and not _cuts_held_out(r):
        text = "expected data.validation=null or a share above 0 beside it, not"
        raise r.error("data.validation_from", f"{text} {data.validation}")
    if best is not None and data.validation == 0:
        text = "data.validation=0 holds out no images to choose on; expected null, or a share above"
        raise r.error("checkpoint.best", f"{text} 0")
    if best is not None and declaration.tells_nothing(best, r.objective, r.target):
        text = f"of objective={r.objective}, collapsed features may have the best; expected a"
        raise r.error(
            "checkpoint.best", f"{text} probe's accuracy, such as probe/knn with probe.every="
        )


def _labels(r: Recipe) -> None:
    if not r.data.labels and uses_labels(r):
        text = "the run learns labels or is measured on them; expected true, of images"
        text += " that have some; others are looked at with tools/embed.py and tools/figures.py"
        raise r.error("data.labels", text)
    if r.eval.test and not learns_labels(r):
        learning = [part for part in r.declared.parts if declaration.objective(part).labels]
        untrained = "".join(f" with {r.objective}.{part}=0" for part in learning)
        raise r.error("eval.test", f"objective={r.objective}{untrained} learns no labels")
    classifies = r.eval.test or (r.objective == "probe" and "top1" in r.probe.measures)
    if r.eval.real and not classifies:
        raise r.error("eval.real", "no use without eval.test=true or probe.measures=[top1]")


def _sizes(r: Recipe) -> None:
    size, patch = r.data.size, r.model.patch
    if r.model.convolutional:
        return
    if size % patch or size < 2 * patch:
        below = size // patch * patch
        near = [side for side in (below, below + patch) if side >= 2 * patch] or [2 * patch]
        verb = "are" if len(near) > 1 else "is"
        text = f"no multiple of the patch of {r.model.name or 'the model'}, model.patch={patch}"
        nearest = f"the nearest {verb} {' and '.join(map(str, near))}"
        raise r.error("data.size", f"{text}; {nearest}")
    if r.model.width % r.model.heads:
        raise r.error("model.width", f"no multiple of model.heads={r.model.heads}")


def _corruption(r: Recipe) -> None:
    if "corruption" not in r.groups:
        return
    own, patches = r.group(CorruptionOptions), r.patches
    shares = own.mask + own.random + own.keep
    if abs(shares - 1) >= 1e-6:
        text = "the three shares must sum to 1"
        raise r.error("corruption.mask + .random + .keep", text, f"{shares:g}")
    side = r.data.size // r.model.patch
    if own.side != 1 and own.side >= side:
        text = f"expected less than {side}: an image has {side} x {side} patches"
        raise r.error("corruption.side", text)
    masks_all = own.mask >= 1 and selected_count(own.rate, patches) >= patches
    if masks_all and not r.model.convolutional:
        less = f"{fewer_than(patches)}, or corruption.mask below 1"
        raise r.error("corruption.rate", f"masks all of an image's {patches} patches; {less}")


def _views(r: Recipe) -> None:
    views = compared_views(r)
    if views is None:
        return
    for key in ("optim.batch", "eval.images"):
        if r.value(key) == 1:
            text = f"objective={r.objective} compares the images of a batch; expected at least 2"
            raise r.error(key, text)
    if views.blur_sigma[0] > views.blur_sigma[1]:
        raise r.error("views.blur_sigma", "expected the smaller standard deviation first")
    if not views.local:
        return
    if "views.local" not in r.declared.shared:
        text = f"objective={r.objective} has no use for local views; expected 0"
        raise r.error("views.local", text)
    if views.local_size > r.data.size:
        text = f"larger than the other views, data.size={r.data.size}"
        raise r.error("views.local_size", text)
    if views.local_size % r.model.patch:
        raise r.error("views.local_size", f"no multiple of model.patch={r.model.patch}")
    if views.local_area[0] > views.local_area[1]:
        raise r.error("views.local_area", "expected the smaller share first")
    if views.local_area[0] > r.data.crop_area:
        text = "the smallest is larger than that of the other views,"
        raise r.error("views.local_area", f"{text} data.crop_area={r.data.crop_area:g}")


def check_patches(r: Recipe) -> None:
    """Check that the model's patches are of pixels.

    Raises:
        UserError: it has none, or those of a feature map.
    """
    if r.model.convolutional or r.model.hybrid:
        text = f"objective={r.objective} needs patches of pixels; model={r.model.name} has none"
        raise r.error("model", text, r.model.name)


def check_decoder(r: Recipe, group: str) -> None:
    """Check the sizes of a small transformer beside the encoder, `GROUP.width` and `GROUP.heads`.

    Raises:
        UserError: they do not fit.
    """
    width, heads = r.value(f"{group}.width"), r.value(f"{group}.heads")
    if width % heads:
        raise r.error(f"{group}.width", f"no multiple of {group}.heads={heads}")
    if width % 4:
        text = "expected a multiple of 4: sines and cosines of row and column"
        raise r.error(f"{group}.width", text)


def _probe(r: Recipe) -> None:
    own, objective = r.probe, f"objective={r.objective} has no use for it"
    if own.feature == "hidden":
        if r.objective != "probe":
            raise r.error("probe.feature", f"is read by tools/evaluate.py; {objective}")
        for key in ("probe.pool", "probe.layer"):
            if (value := r.value(key)) is not None:
                text = f"reads what its run trained it on; leave {key}={value} out"
                raise r.error("probe.feature", text)
    for measure in (one for one in own.measures if one in TOKENS):
        reason = ""
        if r.objective != "probe":
            reason = f"is measured by tools/evaluate.py; {objective}"
        elif r.model.convolutional:
            reason = f"needs patches; model={r.model.name or r.model.timm} has none"
        elif own.feature != "encoder":
            reason = f"reads the encoder's patches; probe.feature={own.feature} is of images"
        if reason:
            raise r.error("probe.measures", reason, measure)
        if own.pool is not None and set(own.measures) <= TOKENS:
            text = f"probe.measures={measure} reads patches and has no use for it"
            raise r.error("probe.pool", text)


def _lengths(r: Recipe) -> None:
    steps = r.optim.steps
    if r.optim.warmup >= steps:
        text = f"not below optim.steps={steps}; add optim.warmup={steps // 10}"
        raise r.error("optim.warmup", text)
    if r.optim.schedule == "wsd" and r.optim.warmup > r.optim.decay_from:
        text = f"begins at step {r.optim.decay_from}, before the end of optim.warmup="
        raise r.error("optim.decay", f"{text}{r.optim.warmup}; expected less of one of them")
    if r.compute.batch and r.optim.batch % r.compute.batch:
        raise r.error("compute.batch", f"does not divide optim.batch={r.optim.batch}")
    if (r.probe.layer or 1) > r.model.depth:
        raise r.error("probe.layer", f"expected at most model.depth={r.model.depth}")


def _trunk(r: Recipe) -> None:
    """That the steps before the one that it begins at are those of its own length, to the bit."""
    if r.trunk is None:
        return
    if r.optim.schedule != "wsd":
        text = f"expected optim.schedule=wsd, not {r.optim.schedule}, beside a step of another run"
        raise r.error("resume", text)
    check_stable(r, r)
    for key in ("optim.weight_decay_end", "checkpoint.best"):
        if (value := r.value(key)) is not None:
            text = f"expected null beside resume={r.resume}, as it depends on the whole run"
            raise r.error(key, text, value)
    trained = r.declared.trained(r)
    follows = [f"objective={one.name}" for one in trained if not one.any_length]
    if any(one.predicts_patches for one in trained) and not declaration.target(r.target).any_length:
        follows.append(f"target={r.target}")
    if follows:
        text = f"{follows[0]} follows the share of the run that is done, so that runs of other"
        raise r.error("resume", f"{text} lengths do not begin alike; leave it out")


def check_stable(recipe: Recipe, other: Recipe) -> None:
    """Check that a recipe's trunk is left before the decay of one of the two runs.

    Raises:
        UserError: it is not.
    """
    assert recipe.trunk is not None
    if recipe.trunk.step > other.optim.decay_from:
        own = f"optim.steps={other.optim.steps} optim.decay={other.optim.decay:g}"
        text = f"expected a step up to {other.optim.decay_from}, where the decay of {own} begins"
        raise recipe.error("resume", text)


def has_use(recipe: Recipe, key: str) -> bool:
    """Whether the recipe uses a dotted key."""
    return not why_unused(recipe, key)


def why_unused(r: Recipe, key: str) -> str:
    """Why the recipe has no use for a dotted key; empty where it has one."""
    top, objective = key.split(".")[0], f"objective={r.objective}"
    probes = r.objective == "probe"
    targets = declaration.targets().items()
    owners = [name for name, one in targets if one.options and one.options.name == top]
    if owners and not _has_group(r, top):
        return f"is for target={owners[0]}"
    if not _has_group(r, top) or (key in LABEL_KEYS and not _reads_labels(r)):
        trained = {part.name for part in r.declared.trained(r)}
        left = [part for part in r.declared.parts if part not in trained]
        untrained = f" with {r.objective}.{left[0]}=0" if left else ""  # of a sum of objectives
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
    other, value = all_keys()[key].requires or ("", None)
    if other and r.value(other) != value:
        return f"{other}={option_text(r.value(other))} has no use for it"
    return ""


def _has_group(r: Recipe, top: str) -> bool:
    """Whether the objective uses a group of keys."""
    if top == "probe":
        return r.objective == "probe" or r.probe.every is not None
    if top not in {one.name for one in all_groups()} | {"target"}:
        return True
    used = {group for one in r.declared.trained(r) for group in one.groups_with(r.target)}
    own = r.declared.options
    return top in used or (own is not None and top == own.name)


def _reads_labels(r: Recipe) -> bool:
    if not isinstance(r.data.test, str):  # a share of each class
        return True
    if r.data.share_seed is not None or (r.trains and r.eval.knn):
        return True
    return any(one.labels for one in r.declared.trained(r)) or r.probe.every is not None
