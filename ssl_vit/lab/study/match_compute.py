"""Names of an axis at equal compute: the optimiser steps with which each costs as many exaFLOP as
the run costs without that axis."""

from collections.abc import Mapping

from ...errors import UserError
from .. import engine
from .read import REFERENCE

TOLERANCE = 0.25  # share of the cost that whole steps may differ by
SCALED = ("optim.steps", "optim.warmup")


def steps(base: Mapping[str, str], options: Mapping[str, str], where: str) -> dict[str, str]:
    """The options of the steps and the warm-up that cost what `base` would.

    Args:
        base: options without the axis.
        options: with it.
        where: opens errors.

    Raises:
        UserError: options are wrong, they set what is matched, their work is not counted, or so
            few steps cannot match.
    """
    for key in SCALED:
        if options.get(key) != base.get(key):
            raise UserError(f"{where}: {key}={options.get(key)}: is what is matched; leave it out")
    whole = engine.cost(_known(base), f"{where}, without it")
    own = engine.cost(_known(options), where)
    count = max(1, round(whole.steps * whole.exaflop_a_step / own.exaflop_a_step))
    share = count * own.exaflop_a_step / (whole.steps * whole.exaflop_a_step)
    if abs(share - 1) > TOLERANCE:
        text = f"{count} steps cost {share:.0%} of the others' and no other number is nearer"
        raise UserError(f"{where}: {text}; expected more optim.steps=")
    warmup = min(count - 1, round(own.warmup * count / own.steps))
    return {"optim.steps": str(count), "optim.warmup": str(warmup)}


def _known(options: Mapping[str, str]) -> list[str]:
    """The options that do not depend on another task's run."""
    return [f"{key}={text}" for key, text in options.items() if not REFERENCE.search(text)]
