"""Rules of images that are not RGB of 8 bits."""

from typing import cast

from ...formatting import option_text
from .. import declaration
from ..schema import Recipe, options
from ..shared_groups import ViewOptions
from .rule import Rule, value_of


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


def _color_change(r: Recipe) -> float:
    """The highest chance that a view's colours are changed."""
    if "views" not in r.groups:
        return 0.0
    found = r.group(ViewOptions)
    return max(found.jitter, found.grayscale, *found.solarize)


CHANNELS = (
    *map(_numbers_of_channels, ("data.mean", "data.std")),
    Rule(
        "data.channels",
        lambda r: r.data.channels != 3 and (r.model.convolutional or r.model.hybrid),
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
        lambda r: not r.data.is_rgb and _color_change(r),
        "the colours of its views are those of RGB of 8 bits; crop, flip and blur are left with"
        " views.jitter=0 views.grayscale=0 views.solarize=[0,0]",
    ),
)
