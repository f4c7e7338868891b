"""Rules of the encoder: its parts, and the side of an image that it cuts into patches."""

from ...formatting import option_text
from .. import declaration
from ..model import CLASSIC, STAGE_CHANNELS
from ..schema import Recipe, options
from .rule import Rule, value_of

# Options that a convolutional network has not
OF_TRANSFORMERS = (
    *("optim.dropout", "optim.layer_decay", "probe.pool", "probe.layer", "model.registers"),
    *("model.layer_scale", "model.qk_norm", "model.activation", "model.positions"),
)


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


def _nearest_sides(r: Recipe) -> str:
    patch = r.model.patch
    below = r.data.size // patch * patch
    near = [side for side in (below, below + patch) if side >= 2 * patch] or [2 * patch]
    verb = "are" if len(near) > 1 else "is"
    return (
        f"no multiple of the patch of {r.model.name or 'the model'}, model.patch={patch};"
        f" the nearest {verb} {' and '.join(map(str, near))}"
    )


def _of_transformer(key: str) -> Rule:
    """That a convolutional network is given no option of a Vision Transformer."""
    return Rule(
        key,
        lambda r: r.model.convolutional and value_of(r, key) != options()[key].default,
        "model={r.model.name} has no use for it",
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
)
ENCODER = (
    Rule(
        "model.positions",
        lambda r: r.model.positions == "rotary" and r.model.hybrid,
        "expected learned, learned_2d, sincos_2d or none beside model={r.model.name}",
    ),
    Rule(
        "model.timm",
        lambda r: r.model.positions == "rotary" and r.model.timm != CLASSIC,
        f"expected {CLASSIC} beside model.positions=rotary",
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
SIZES = (
    Rule(
        "data.size",
        lambda r: (
            not r.model.convolutional
            and (r.data.size % r.model.patch or r.data.size < 2 * r.model.patch)
        ),
        _nearest_sides,
    ),
    Rule(
        "model.width",
        lambda r: not r.model.convolutional and r.model.width % r.model.heads,
        "no multiple of model.heads={r.model.heads}",
    ),
)
