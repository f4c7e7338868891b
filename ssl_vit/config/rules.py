"""Relations between keys, one row each: what a recipe must not be, and which keys it would ignore.
Rules of one objective stand in its declaration. No torch here."""

from collections.abc import Callable
from typing import NamedTuple, cast

from ..errors import UserError
from ..formatting import format_value, option_text
from . import declaration
from .fields import Option
from .model import CLASSIC, STAGE_CHANNELS
from .probe import DENSE
from .schema import EMBEDDED, Recipe, all_groups, learns_labels, measures_masks, options
from .shared_groups import CorruptionOptions, ViewOptions
from .split_counts import selected_count

Text = str | Callable[[Recipe], str]
OptionText = str | Callable[[Recipe, Option], str]
# Options that a convolutional network has not
OF_TRANSFORMERS = (
    *("optim.dropout", "optim.layer_decay", "probe.pool", "probe.layer", "model.registers"),
    *("model.layer_scale", "model.qk_norm", "model.activation", "model.positions"),
)
OWN_CLASS = ("rotary", "relative", "relative_bias")  # positions of another class than the plain one
OF_LABELS = ("data.classes", "data.label_column")
OF_FILES = {  # keys without a use for generated images, and what those lack
    "data.label_column": "columns",
    "data.image_column": "columns",
    "data.mask_column": "columns",
    "data.window": "shards",
}
OF_MASKS = (
    *("data.mask_column", "data.mask_ignore", "data.mask_classes"),
    *("probe.mask_images", "probe.bank"),
)
OF_ONLINE_PROBES = ("probe.every", "probe.images")


class Rule(NamedTuple):
    """What a recipe must not be.

    Attributes:
        key: that the error names, with its value.
        broken: whether a recipe is it.
        reason: the end of the error; `{r.model.name}` is that value of the recipe.
        value: in place of the key's.
    """

    key: str
    broken: Callable[[Recipe], object]
    reason: Text
    value: Text | None = None

    def check(self, recipe: Recipe) -> None:
        """
        Raises:
            UserError: the recipe is what it must not be.
        """
        if self.broken(recipe):
            if self.value is None:
                value = format_value(value_of(recipe, self.key))
            else:
                value = _filled(self.value, recipe)
            raise UserError(f"{self.key}={value}: {_filled(self.reason, recipe)}")


class Unused(NamedTuple):
    """Options that a recipe would ignore.

    Attributes:
        of: whether a recipe ignores an option.
        reason: the end of the error.
    """

    of: Callable[[Recipe, Option], object]
    reason: OptionText


def _filled(text: Text, recipe: Recipe) -> str:
    """A text of a rule with the recipe's values."""
    return text.format(r=recipe) if isinstance(text, str) else text(recipe)


def value_of(recipe: Recipe, key: str) -> object:
    """The value of a dotted key, of a group that the objective does not use too."""
    top, _, rest = key.partition(".")
    owner = recipe.groups[top] if top in recipe.groups else getattr(recipe, top)
    return getattr(owner, rest) if rest else owner


def fewer_than(patches: int) -> str:
    """The masking rates that leave one of an image's patches (`selected_count` below all)."""
    return f"expected less than {1 - 0.5 / patches:g}"


def _cells(r: Recipe) -> int:
    return declaration.target(r.target).cells if r.declared.predicts_patches else 1


def _stage_width(r: Recipe) -> int:
    """The channels of a ResNet's last stage."""
    return round(STAGE_CHANNELS[len(r.model.stages or ()) - 1] * r.model.width_factor)


def _other_width(r: Recipe) -> str:
    beside = f"beside model.stages={option_text(r.model.stages)}"
    return f"expected {_stage_width(r)} {beside} model.width_factor={r.model.width_factor:g}"


def _stage_side(r: Recipe) -> int:
    """Pixels that a cell of the feature map covers: a stem 4 times smaller, each further stage
    twice."""
    return 2 ** (len(r.model.stages or ()) + 1)


def _divisor(r: Recipe) -> int:
    """What the width is a multiple of, for the positions."""
    of_positions = {"learned_2d": 2, "sincos_2d": 4, "rotary": 4 * r.model.heads}
    return of_positions.get(r.model.positions, 1)


def _mixed(r: Recipe) -> float:
    return max(r.data.mixup, r.data.cutmix)


def _held_out_share(r: Recipe) -> bool:
    """Whether the held-out images are a share of the training images, as they may be by default."""
    validation = r.data.validation
    return validation is None or (isinstance(validation, float) and validation > 0)


def _learns_none(r: Recipe) -> str:
    """That an objective learns no labels; of a sum of objectives with the part that would."""
    learning = [part for part in r.declared.parts if declaration.objective(part).labels]
    untrained = "".join(f" with {r.objective}.{part}=0" for part in learning)
    return f"objective={r.objective}{untrained} learns no labels"


def _none_to_hide(r: Recipe) -> str:
    if r.declared.only_labelled:
        return f"objective={r.objective} has no use for unlabelled images; say data.share="
    return f"{_learns_none(r)}, and has none to hide"


def _shows_some(r: Recipe) -> bool:
    return r.data.labelled != 1


def _hides_labels(r: Recipe) -> bool:
    return learns_labels(r) and not r.declared.only_labelled


def _classifies(r: Recipe) -> bool:
    return r.eval.test or (r.objective == "probe" and "top1" in r.probe.measures)


def _nearest_sides(r: Recipe) -> str:
    patch = r.model.patch
    below = r.data.size // patch * patch
    near = [side for side in (below, below + patch) if side >= 2 * patch] or [2 * patch]
    verb = "are" if len(near) > 1 else "is"
    return (
        f"no multiple of the patch of {r.model.name or 'the model'}, model.patch={patch};"
        f" the nearest {verb} {' and '.join(map(str, near))}"
    )


def _corruption(r: Recipe) -> CorruptionOptions | None:
    return r.group(CorruptionOptions) if "corruption" in r.groups else None


def _kinds(r: Recipe) -> float:
    """The sum of the shares of corrupted patches by kind."""
    found = _corruption(r)
    return found.mask + found.random + found.keep if found else 1.0


def _grid(r: Recipe) -> int:
    """Patches along a side of an image."""
    return r.data.size // r.model.patch


def _masks_all(r: Recipe) -> bool:
    """Whether masking, the only corruption, takes all patches."""
    found = _corruption(r)
    if found is None or r.model.convolutional or found.mask < 1:
        return False
    return selected_count(found.rate, _grid(r) ** 2) >= _grid(r) ** 2


def _all_masked(r: Recipe) -> str:
    patches = _grid(r) ** 2
    less = f"{fewer_than(patches)}, or corruption.mask below 1"
    return f"masks all of an image's {patches} patches; {less}"


def _views(r: Recipe) -> ViewOptions | None:
    return r.group(ViewOptions) if "views" in r.groups else None


def _blurs_backwards(r: Recipe) -> bool:
    found = _views(r)
    return found is not None and found.blur_sigma[0] > found.blur_sigma[1]


def _dense(r: Recipe) -> list[str]:
    """What is measured of patches."""
    return [name for name in r.probe.measures if name in DENSE]


def _of_transformer(key: str) -> Rule:
    """That a convolutional network is given no option of a Vision Transformer."""
    return Rule(
        key,
        lambda r: r.model.convolutional and value_of(r, key) != options()[key].default,
        "model={r.model.name} has no use for it",
    )


def _no_stem(key: str, forbids: Callable[[Recipe], object], beside: str) -> Rule:
    return Rule(key, lambda r: forbids(r) and value_of(r, key), f"expected 0 beside {beside}")


def _is_plain(r: Recipe) -> bool:
    """Whether the model is a Vision Transformer without a ResNet."""
    return not (r.model.convolutional or r.model.hybrid)


def _numbers_of_channels(key: str) -> Rule:
    """That there is a number for each channel; the default of three is measured for others."""
    return Rule(
        key,
        lambda r: (
            len(cast(list[float], value_of(r, key))) != r.data.channels
            and value_of(r, key) != options()[key].default
        ),
        "expected {r.data.channels} numbers beside data.channels={r.data.channels}",
    )


def _any_channels(r: Recipe) -> str:
    known = [name for name, one in declaration.targets().items() if one.any_channels]
    beside = f"data.channels={r.data.channels}"
    if r.data.channels == 3:
        beside = f"data.range={option_text(r.data.range)}"
    return f"takes RGB of 8 bits; expected one of {', '.join(known)} beside {beside}"


def _colored(r: Recipe) -> float:
    """The highest chance that a view's colours are changed."""
    found = _views(r)
    return max(found.jitter, found.grayscale, *found.solarize) if found else 0.0


def _several(key: str) -> Rule:
    """That there are images to compare with one another."""
    return Rule(
        key,
        lambda r: _views(r) and value_of(r, key) == 1,
        "objective={r.objective} compares the images of a batch; expected at least 2",
    )


def _own_feature(key: str) -> Rule:
    """That a hidden layer is read on the feature that it was trained on."""
    return Rule(
        "probe.feature",
        lambda r: r.probe.feature == "hidden" and value_of(r, key) is not None,
        lambda r: f"reads what its run trained it on; leave {key}={value_of(r, key)} out",
    )


MODEL = (
    Rule(
        "model",
        lambda r: r.declared.predicts_patches and r.model.convolutional,
        "objective={r.objective} needs patches; model={r.model.name} has none",
        "{r.model.name}",
    ),
    *map(_of_transformer, OF_TRANSFORMERS),
    Rule(  # a cell of the ResNet's feature map has seen its neighbours, so the masked pixels leak
        "model",
        lambda r: r.declared.predicts_patches and r.model.hybrid,
        "objective={r.objective} needs patches of pixels, not of a ResNet's feature map",
        "{r.model.name}",
    ),
    Rule(
        "target",
        lambda r: r.model.patch % _cells(r),
        lambda r: (
            f"patches of model.patch={r.model.patch} cannot be cut into {_cells(r)} x"
            f" {_cells(r)} cells"
        ),
    ),
)
CHANNELS = (
    *map(_numbers_of_channels, ("data.mean", "data.std")),
    Rule(
        "data.channels",
        lambda r: r.data.channels != 3 and not _is_plain(r),
        "model={r.model.name} begins with a ResNet, which takes 3",
    ),
    Rule(
        "target",
        lambda r: (
            r.declared.predicts_patches
            and not r.data.is_rgb
            and not declaration.target(r.target).any_channels
        ),
        _any_channels,
    ),
    Rule(
        "objective",
        lambda r: not r.data.is_rgb and _colored(r),
        "the colours of its views are those of RGB of 8 bits; crop, flip and blur are left with"
        " views.jitter=0 views.grayscale=0 views.solarize=[0,0]",
    ),
)
STAGES = (
    Rule(
        "model.width_factor",
        lambda r: not r.model.stages and r.model.width_factor != 1,
        "model={r.model.name} has no model.stages, whose width it would be",
    ),
    Rule(
        "model.stages",
        lambda r: r.model.stages and not (r.model.convolutional or r.model.hybrid),
        "model={r.model.name} has no ResNet; expected null",
    ),
    Rule(
        "model.stem_width",
        lambda r: r.model.stages and r.model.hybrid and r.model.stem_width != _stage_width(r),
        _other_width,
    ),
    Rule(
        "model.width",
        lambda r: r.model.stages and not r.model.hybrid and r.model.width != _stage_width(r),
        _other_width,
    ),
    Rule(
        "model.patch",
        lambda r: r.model.stages and r.model.hybrid and r.model.patch != _stage_side(r),
        lambda r: f"expected {_stage_side(r)} beside model.stages={option_text(r.model.stages)}",
    ),
    _no_stem("model.stem_work", lambda r: r.model.stages, "model.stages="),
    _no_stem("model.stem_size", lambda r: r.model.stages, "model.stages="),
)
ENCODER = (
    Rule(
        "model.registers",
        lambda r: r.model.positions == "relative_bias" and r.model.registers,
        "expected 0 beside model.positions=relative_bias: timm has no such network",
    ),
    Rule(
        "model.activation",
        lambda r: r.model.positions == "relative_bias" and r.model.activation == "swiglu",
        "expected gelu beside model.positions=relative_bias: timm has no such network",
    ),
    Rule(
        "model.positions",
        lambda r: r.model.positions in OWN_CLASS and r.model.hybrid,
        "expected learned, learned_2d, sincos_2d or none beside model={r.model.name}",
    ),
    Rule(
        "model.timm",
        lambda r: r.model.positions in OWN_CLASS and r.model.timm != CLASSIC,
        f"expected {CLASSIC} beside model.positions={{r.model.positions}}",
    ),
    Rule(
        "model.activation",
        lambda r: r.model.activation != "gelu" and r.model.hybrid,
        "expected gelu for a hybrid",
    ),
    Rule(
        "model.width",
        lambda r: r.model.width % _divisor(r),
        lambda r: f"no multiple of {_divisor(r)}, which model.positions={r.model.positions} needs",
    ),
)
MIXING = (
    Rule(
        "data.mixup, .cutmix",
        lambda r: _mixed(r) and not r.declared.mixes,
        "objective={r.objective} has no use for mixed images",
        lambda r: str(_mixed(r)),
    ),
    Rule(  # a partner is any image of the set, which may lie outside of the window
        "data.window",
        lambda r: _mixed(r) and r.data.window is not None,
        "expected null beside data.mixup= or data.cutmix=",
    ),
    Rule(
        "data.mixup, .cutmix",
        lambda r: _mixed(r) and r.data.stream,
        "expected 0 beside data.stream=true",
        lambda r: str(_mixed(r)),
    ),
)
STREAM = (  # is only trained on, and whole
    Rule(
        "data.stream",
        lambda r: r.data.stream and r.data.hub is None and r.data.path is None,
        "data={r.data.name} is generated, not read",
    ),
    Rule(
        "objective",
        lambda r: r.data.stream and not r.declared.trains,
        "data.stream=true is for training only",
    ),
    Rule(
        "eval.test",
        lambda r: r.data.stream and r.eval.test,
        "data.stream=true is for training only; expected eval.test=false",
    ),
    # which images a share has depends on their number, known only after reading all
    Rule(
        "data.share",
        lambda r: r.data.stream and r.data.share != 1,
        "expected 1 beside data.stream=true",
    ),
    Rule(
        "data.labelled",
        lambda r: r.data.stream and r.data.labelled != 1,
        "expected 1 beside data.stream=true",
    ),
    Rule(
        "data.validation",
        lambda r: r.data.stream and r.data.validation is not None and _held_out_share(r),
        "expected a split, or 0 for none, beside data.stream=true",
    ),
)
HELD_OUT = (
    Rule(
        "data.share_seed",
        lambda r: (r.data.window or r.data.stream) and r.data.share_seed is not None,
        "takes shares of classes, and data.window and data.stream do not know labels beforehand",
    ),
    Rule(
        "data.validation_from",
        lambda r: r.data.validation_from == "train" and not _held_out_share(r),
        "expected data.validation=null or a share above 0 beside it, not {r.data.validation}",
    ),
    Rule(
        "checkpoint.best",
        lambda r: r.checkpoint.best is not None and r.data.validation == 0,
        "data.validation=0 holds out no images to choose on; expected null, or a share above 0",
    ),
)
LABELS = (
    Rule("eval.test", lambda r: r.eval.test and not learns_labels(r), _learns_none),
    Rule("data.labelled", lambda r: _shows_some(r) and not _hides_labels(r), _none_to_hide),
    Rule(
        "data.share",
        lambda r: _shows_some(r) and r.data.share != 1,
        "expected 1 beside data.labelled=",
    ),
    Rule(  # the images whose labels are shown are those that data.share would take
        "data.validation_from",
        lambda r: _shows_some(r) and _held_out_share(r) and r.data.validation_from != "train",
        "expected train beside data.labelled= and a held-out share of the training images",
    ),
    Rule(
        "eval.real",
        lambda r: r.eval.real and not _classifies(r),
        "no use without eval.test=true or probe.measures=[top1]",
    ),
)
SIZES = (
    Rule(
        "data.size",
        lambda r: (
            not r.model.convolutional
            and (r.data.size % r.model.patch or r.data.size < 2 * r.model.patch)
        ),
        _nearest_sides,
    ),
    _no_stem("model.stem_work", _is_plain, "model.stem_width=0, which is no stem"),
    _no_stem("model.stem_size", _is_plain, "model.stem_width=0, which is no stem"),
    Rule(
        "model.width",
        lambda r: not r.model.convolutional and r.model.width % r.model.heads,
        "no multiple of model.heads={r.model.heads}",
    ),
)
CORRUPTION = (
    Rule(
        "corruption.mask + .random + .keep",
        lambda r: abs(_kinds(r) - 1) >= 1e-6,
        "the three shares must sum to 1",
        lambda r: f"{_kinds(r):g}",
    ),
    Rule(
        "corruption.side",
        lambda r: (found := _corruption(r)) and found.side != 1 and found.side >= _grid(r),
        lambda r: f"expected less than {_grid(r)}: an image has {_grid(r)} x {_grid(r)} patches",
    ),
    Rule("corruption.rate", _masks_all, _all_masked),
)
VIEWS = (
    _several("optim.batch"),
    _several("eval.images"),
    Rule(
        "views.blur_sigma",
        _blurs_backwards,
        "expected the smaller standard deviation first",
    ),
)
MEASURES = (
    Rule(
        "probe.feature",
        lambda r: r.probe.feature == "hidden" and r.objective != "probe",
        "is read by tools/evaluate.py; objective={r.objective} has no use for it",
    ),
    _own_feature("probe.pool"),
    _own_feature("probe.layer"),
    Rule(
        "probe.measures",
        lambda r: _dense(r) and r.objective != "probe",
        "is measured by tools/evaluate.py; objective={r.objective} has no use for it",
        lambda r: _dense(r)[0],
    ),
    Rule(
        "probe.measures",
        lambda r: _dense(r) and r.model.convolutional,
        lambda r: f"needs patches; model={r.model.name or r.model.timm} has none",
        lambda r: _dense(r)[0],
    ),
    Rule(
        "probe.measures",
        lambda r: _dense(r) and r.probe.feature != "encoder",
        "reads the encoder's patches; probe.feature={r.probe.feature} is of images",
        lambda r: _dense(r)[0],
    ),
    Rule(
        "probe.pool",
        lambda r: len(_dense(r)) == len(r.probe.measures) and r.probe.pool is not None,
        lambda r: f"probe.measures={','.join(_dense(r))} reads patches and has no use for it",
    ),
)
LENGTHS = (
    Rule(
        "optim.warmup",
        lambda r: not 0 <= r.optim.warmup < r.optim.steps,
        lambda r: f"not below optim.steps={r.optim.steps}; add optim.warmup={r.optim.steps // 10}",
    ),
    Rule(
        "compute.batch",
        lambda r: r.compute.batch and r.optim.batch % r.compute.batch,
        "does not divide optim.batch={r.optim.batch}",
    ),
    Rule(
        "probe.layer",
        lambda r: (r.probe.layer or 1) > r.model.depth,
        "expected at most model.depth={r.model.depth}",
    ),
)
# The first that is broken is the error
RULES = (
    *(*MODEL, *CHANNELS, *STAGES, *ENCODER, *MIXING, *STREAM, *HELD_OUT, *LABELS, *SIZES),
    *(*CORRUPTION, *VIEWS, *MEASURES, *LENGTHS),
)


def _has_group(r: Recipe, key: str) -> bool:
    """Whether the objective uses the group of a key."""
    top = key.split(".")[0]
    if top == "probe":
        return r.objective == "probe" or r.probe.every is not None
    if top not in {one.name for one in all_groups()} | {"target"}:
        return True
    used = {group for one in r.declared.trained(r) for group in one.groups}
    own = r.declared.options
    return top in used or (own is not None and top == own.name)


def _reads_labels(r: Recipe) -> bool:
    return any(one.labels for one in r.declared.trained(r)) or r.probe.every is not None


def _of_other_objective(r: Recipe, one: Option) -> str:
    trained = {part.name for part in r.declared.trained(r)}
    parts = [part for part in r.declared.parts if part not in trained]
    untrained = f" with {r.objective}.{parts[0]}=0" if parts else ""  # of a sum of objectives
    return f"objective={r.objective} has no use for it{untrained}"


def _lacks_required(r: Recipe, one: Option) -> bool:
    return one.requires is not None and r.values().get(one.requires[0]) != one.requires[1]


def _required(r: Recipe, one: Option) -> str:
    assert one.requires is not None
    key = one.requires[0]
    return f"{key}={option_text(r.values().get(key))} has no use for it"


UNUSED = (
    Unused(
        lambda r, one: (
            not _has_group(r, one.key) or (one.key in OF_LABELS and not _reads_labels(r))
        ),
        _of_other_objective,
    ),
    Unused(
        lambda r, one: one.key in OF_FILES and r.data.name == EMBEDDED,
        lambda r, one: f"data={EMBEDDED} is generated and has no {OF_FILES[one.key]}",
    ),
    Unused(
        lambda r, one: one.key in OF_MASKS and not measures_masks(r),
        "is for masks, which probe.measures=[segmentation,patch_knn] of recipe=segment reads",
    ),
    Unused(
        lambda r, one: one.key in OF_ONLINE_PROBES and r.objective == "probe",
        "is for probes while pre-training; objective=probe has no use for it",
    ),
    Unused(
        lambda r, one: one.training and r.objective == "probe",
        "objective=probe trains nothing and has no use for it",
    ),
    Unused(
        lambda r, one: one.key.startswith("hub.") and one.key != "hub.repo" and not r.hub.repo,
        "has no use without hub.repo=USER/NAME",
    ),
    Unused(_lacks_required, _required),
)
