"""The arms of a study as users name them: by name, or by a value that one arm alone has."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ..config.schema import defaults
from ..errors import UserError, suggest
from ..formatting import option_text

Settings = dict[str, dict[str, Any]]  # arm -> {key: value}, of a study that varies keys
ArmTask = tuple[str, str, Iterable[str]]  # part, arm and options (key=value) of a task
MODEL = "model"  # the group of the recipe that describes the encoder
MOST_VALUES = 4  # of an encoder that a line lists


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


def different_encoders(
    recipes: Mapping[str, Mapping[str, Any]], settings: Settings, arm_tasks: Iterable[ArmTask]
) -> str:
    """The arms by the architecture of their encoders, with values that differ; empty where all have
    one, and of a study whose axis is the model: it is varied, or each arm says its own.

    Args:
        recipes: {arm: {dotted key: value}}.
        settings: what the study varies.
        arm_tasks: part, arm and options of every task.
    """
    varied = any(_of_model(key) for setting in settings.values() for key in setting)
    if varied or recipes.keys() <= _with_own_model(arm_tasks):
        return ""
    keys = [key for key in defaults() if _of_model(key) and key != f"{MODEL}.name"]
    values = {
        arm: {key: option_text(recipe.get(key, defaults()[key])) for key in keys}
        for arm, recipe in recipes.items()
    }
    differ = [key for key in keys if len({own[key] for own in values.values()}) > 1]
    alike: dict[tuple[str, ...], list[str]] = {}
    for arm, own in values.items():
        alike.setdefault(tuple(f"{key}={own[key]}" for key in differ), []).append(arm)
    found = [f"{', '.join(arms)} ({_first_few(texts)})" for texts, arms in alike.items()]
    return " against ".join(found) if len(found) > 1 else ""


def _of_model(key: str) -> bool:
    return key.split(".")[0] == MODEL


def _with_own_model(arm_tasks: Iterable[ArmTask]) -> set[str]:
    """The arms that say something of the model which other arms of the same part do not say."""
    model_keys: dict[str, dict[str, set[str]]] = {}
    for part, arm, options in arm_tasks:
        own = {option for option in options if _of_model(option.partition("=")[0])}
        model_keys.setdefault(part, {}).setdefault(arm, set()).update(own)
    found: set[str] = set()
    for of_arm in model_keys.values():
        common = frozenset.intersection(*map(frozenset, of_arm.values()))
        found |= {arm for arm, own in of_arm.items() if own - common}
    return found


def _first_few(texts: Sequence[str]) -> str:
    more = len(texts) - MOST_VALUES
    return " ".join(texts[:MOST_VALUES]) + (f" and {more} more" if more > 0 else "")


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
