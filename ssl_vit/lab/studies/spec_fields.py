"""Checks of a study's file that raise one-line errors."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from ...config.schema import options
from ...errors import UserError, suggest
from ...formatting import option_text

Node = dict[str, Any]  # a mapping of a study's file


class Mistakes:
    """Mistakes of a study: the first is raised, or all are collected.

    Args:
        collect: whether they are collected, in `found`.
    """

    def __init__(self, collect: bool = False) -> None:
        self.collect = collect
        self.found: list[str] = []

    @contextmanager
    def of(self) -> Iterator[None]:
        """Collect the mistake that ends the block."""
        try:
            yield
        except UserError as error:
            if not self.collect:
                raise
            self.found.append(str(error))


def hold(holds: Any, where: str, message: str) -> None:
    """Raise UserError `where: message` unless `holds`."""
    if not holds:
        raise UserError(f"{where}: {message}")


def known(node: Node, keys: Collection[str], where: str) -> None:
    for key in node:
        hold(key in keys, where, f"unknown key {key}; {suggest(str(key), keys)}")


def mapping(node: Node, key: str, where: str) -> Node:
    value = node.get(key)
    hold(isinstance(value, dict | None), where, f"{key}: expected a mapping")
    return value or {}


def listed(node: Node, key: str, where: str) -> list[Any]:
    value = node.get(key)
    hold(isinstance(value, list | None), where, f"{key}: expected a list")
    return value or []


def pretraining(parts: Node) -> dict[str, Node]:
    """Those of a study's parts that pre-train."""
    return {
        name: body
        for name, body in parts.items()
        if isinstance(body, dict) and body.get("tool") == "pretrain"
    }


def seeds(node: Node, where: str) -> tuple[int, ...] | None:
    """The seeds of a study or a part, different whole numbers; None without any."""
    found = tuple(listed(node, "seeds", where))
    whole = all(isinstance(seed, int) and not isinstance(seed, bool) for seed in found)
    distinct = whole and len(set(found)) == len(found)
    fits = distinct and all(map(options()["seed"].allows, found))
    text = "expected different whole numbers, each of 64 bits"
    hold(fits, where, f"seeds: {option_text(list(found))[:200]}: {text}")
    return found or None
