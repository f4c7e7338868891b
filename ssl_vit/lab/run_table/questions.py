"""Whether a held-out metric of pre-training answers one question in several runs. No torch here."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...config import declaration
from ...config.computed import counts, differences


def differing_keys(recipes: Sequence[Mapping[str, Any]]) -> set[str]:
    """Keys of which two of these recipes, as {dotted key: value}, have different values."""
    return {one.key for recipe in recipes[1:] for one in differences(recipes[0], recipe)}


def question_keys(
    name: str, recipes: Sequence[Mapping[str, Any]], free: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Why a held-out metric of pre-training does not compare between recipes.

    Args:
        name: of the metric: `loss`, `accuracy_masked`, in joint training `mpp/loss`.
        recipes: of the arms, as {dotted key: value}.
        free: as in `counts`.

    Returns:
        The keys that differ and make it another question; and the keys of the corruption that
        differ, so that each arm is measured at its own difficulty. Of an objective that does not
        say what its question is, all keys that differ.
    """
    part, _, last = name.rpartition("/")
    differ = differing_keys(recipes)
    its_question = declaration.known_or_bare(part or str(recipes[0].get("objective"))).question(
        last
    )
    if its_question is None:
        return sorted(key for key in differ if counts(key, free)), []
    keys = (*([] if part else ["objective"]), *its_question.keys)
    return _among(keys, differ), sorted(_among(its_question.difficulty, differ))


def _among(keys: Sequence[str], differ: set[str]) -> list[str]:
    """Those keys, and members of the groups among them (`views.`), that differ."""
    members = (sorted(one for one in differ if one.startswith(key)) for key in keys)
    found = zip(keys, members, strict=True)
    return [one for key, some in found for one in some if key.endswith(".") or one == key]
