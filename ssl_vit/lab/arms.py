"""The arms of a study as users name them: by name, or by a value that one arm alone has."""

import re
from collections.abc import Collection, Iterable
from typing import Any

from ..errors import UserError, suggest
from ..formatting import option_text

Settings = dict[str, dict[str, Any]]  # arm -> {key: value}, of a study that varies keys


def find_arm(value: Any, settings: Settings) -> str | None:
    """The arm that is called `value`, or the only one that has it; None where there is no such
    arm."""
    if str(value) in settings:
        return str(value)
    having = [
        arm
        for arm, setting in settings.items()
        if any(_same(value, own) for own in setting.values())
    ]
    return having[0] if len(having) == 1 else None


def arm_pairs(
    pairs: Iterable[str], arms: Collection[str], settings: Settings
) -> list[tuple[str, str]]:
    """The arms of pairs `A:B`, each named, or by the value that it alone has; a text may hold
    several with commas between them.

    Raises:
        UserError: no pair, no such arm, one arm twice, or a pair the other way round too.
    """
    found: list[tuple[str, str]] = []
    for pair in (pair for text in pairs for pair in _split(text, arms)):
        first, colon, second = pair.partition(":")
        both = [name if name in arms else find_arm(name, settings) for name in (first, second)]
        missing = [name for name, arm in zip((first, second), both, strict=True) if arm is None]
        if not colon or not second:
            raise UserError(f"pairs={pair}: expected two arms, A:B; choices: {', '.join(arms)}")
        if missing:
            raise UserError(f"pairs={pair}: no arm {missing[0]}; {suggest(missing[0], arms)}")
        if both[0] == both[1]:
            raise UserError(f"pairs={pair}: expected two different arms")
        if (both[1], both[0]) in found:
            raise UserError(f"pairs={pair}: is there the other way round; expected one of them")
        found.append((str(both[0]), str(both[1])))
    return list(dict.fromkeys(found))


def _split(text: str, arms: Iterable[str]) -> list[str]:
    """The pairs of a text. Names of arms may have commas: of two varied keys, `lr=0.1,rate=0.5`."""
    names = "|".join(re.escape(arm) for arm in sorted(arms, key=len, reverse=True))
    pair = f"(?:{names}):(?:{names})"
    if names and re.fullmatch(f"{pair}(?:,{pair})*", text):
        return re.findall(rf"{pair}(?=,|$)", text)
    return text.split(",")


def _same(one: Any, other: Any) -> bool:
    return option_text(one) == option_text(other) or (
        type(one) is not bool and type(other) is not bool and one == other
    )
