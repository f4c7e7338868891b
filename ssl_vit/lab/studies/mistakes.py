"""Reading of a study's file: its first mistake is raised as one line."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from ...config.schema import options
from ...errors import UserError, suggest
from ...formatting import option_text

Node = dict[str, Any]  # a mapping of a study's file
MOST_SEEDS = 1000


def require(holds: Any, where: str, message: str) -> None:
    """Raise UserError `where: message` unless `holds`."""
    if not holds:
        raise UserError(f"{where}: {message}")


def reject_unknown(node: Node, keys: Collection[str], where: str) -> None:
    """Raise UserError for a key that is none of `keys`."""
    for key in node:
        require(key in keys, where, f"unknown key {key}; {suggest(str(key), keys)}")


@contextmanager
def within(where: str) -> Iterator[None]:
    """Let a mistake in the block begin with `where`."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def mapping(node: Node, key: str, where: str) -> Node:
    value = node.get(key)
    require(isinstance(value, dict | None), where, f"{key}: expected a mapping")
    return value or {}


def listed(node: Node, key: str, where: str) -> list[Any]:
    value = node.get(key)
    require(isinstance(value, list | None), where, f"{key}: expected a list")
    return value or []


TOOLS = ("pretrain", "finetune", "evaluate")


def have_tools(parts: Node) -> bool:
    """Whether every part says what it is, so that those that pre-train are known."""
    return all(isinstance(body, dict) and body.get("tool") in TOOLS for body in parts.values())


def pretraining(parts: Node) -> dict[str, Node]:
    """Those of a study's parts that pre-train."""
    return {
        name: body
        for name, body in parts.items()
        if isinstance(body, dict) and body.get("tool") == "pretrain"
    }


def seeds(node: Node, where: str) -> tuple[int, ...] | None:
    """The seeds of a study or a part, different whole numbers; None without any. A number N stands
    for the first N, as on the command line."""
    given = node.get("seeds")
    if isinstance(given, int) and not isinstance(given, bool):
        text = f"expected 1 to {MOST_SEEDS}, or a list"
        require(0 < given <= MOST_SEEDS, where, f"seeds: {given}: {text}")
        return tuple(range(given))
    found = tuple(listed(node, "seeds", where))
    whole = all(isinstance(seed, int) and not isinstance(seed, bool) for seed in found)
    distinct = whole and len(set(found)) == len(found)
    fits = distinct and all(map(options()["seed"].allows, found))
    text = "expected different whole numbers, each of 64 bits"
    require(fits, where, f"seeds: {option_text(list(found))[:200]}: {text}")
    return found or None
