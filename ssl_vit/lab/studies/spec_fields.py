"""Checks of a study's file that raise one-line errors."""

import itertools
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from ...config.parsing import flatten
from ...config.schema import options
from ...errors import UserError, suggest
from ...formatting import option_text


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


def known(node: dict[str, Any], keys: Collection[str], where: str) -> None:
    for key in node:
        hold(key in keys, where, f"unknown key {key}; {suggest(str(key), keys)}")


def mapping(node: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    value = node.get(key)
    hold(isinstance(value, dict | None), where, f"{key}: expected a mapping")
    return value or {}


def listed(node: dict[str, Any], key: str, where: str) -> list[Any]:
    value = node.get(key)
    hold(isinstance(value, list | None), where, f"{key}: expected a list")
    return value or []


def pretraining(parts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Those of a study's parts that pre-train."""
    return {
        name: body
        for name, body in parts.items()
        if isinstance(body, dict) and body.get("tool") == "pretrain"
    }


def seeds(node: dict[str, Any], where: str) -> tuple[int, ...] | None:
    """The seeds of a study or a part, different whole numbers; None without any."""
    found = tuple(listed(node, "seeds", where))
    whole = all(isinstance(seed, int) and not isinstance(seed, bool) for seed in found)
    distinct = whole and len(set(found)) == len(found)
    fits = distinct and all(map(options()["seed"].allows, found))
    text = "expected different whole numbers, each of 64 bits"
    hold(fits, where, f"seeds: {option_text(list(found))[:200]}: {text}")
    return found or None


def grid_of(body: dict[str, Any], where: str) -> dict[str, list[Any]]:
    """The values that a part sweeps: {key: values}, or {any name: mappings of the same keys} for
    keys that are swept together.

    Raises:
        UserError: no list, a value twice, or mappings of other keys or of keys that are swept
            already.
    """
    grid = flatten(mapping(body, "grid", where))
    for key, values in grid.items():
        hold(
            isinstance(values, list) and values,
            where,
            f"grid: {key}: expected a list of values",
        )
        hold(
            len({option_text(v) for v in values}) == len(values),
            where,
            f"grid: {key}: a value is there twice",
        )
        kinds = {tuple(sorted(flatten(one))) if isinstance(one, dict) else None for one in values}
        fits = len(kinds) == 1 and () not in kinds
        hold(fits, where, f"grid: {key}: expected values, or mappings of the same keys")
    keys = [key for name, values in grid.items() for key in swept_together(name, values)]
    for key in keys:
        hold(keys.count(key) == 1, where, f"grid: {key}: is swept twice")
    return grid


def swept_together(name: str, values: list[Any]) -> list[str]:
    """The keys that one entry of a grid sets."""
    return list(flatten(values[0])) if isinstance(values[0], dict) else [name]


def combinations(grid: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Every combination of a grid's entries, as {key: value}."""
    entries = [
        [flatten(value) if isinstance(value, dict) else {name: value} for value in values]
        for name, values in grid.items()
    ]
    return [
        {key: value for one in chosen for key, value in one.items()}
        for chosen in itertools.product(*entries)
    ]


def arm_grids(
    body: dict[str, Any], grid: dict[str, list[Any]], arms: list[str], where: str
) -> dict[str, dict[str, list[Any]]]:
    """Of some arms other values of the grid's keys."""
    found = {}
    for arm, own in mapping(body, "grid_by_arm", where).items():
        hold(arm in arms, where, f"grid_by_arm: unknown arm {arm}; {suggest(str(arm), arms)}")
        found[arm] = grid_of({"grid": own}, f"{where}: grid_by_arm: {arm}")
        known(found[arm], tuple(grid), f"{where}: grid_by_arm: {arm}")
    return found


def replace(node: Any, values: dict[str, str]) -> Any:
    """A node with `{NAME}` replaced by values[NAME] in its texts."""
    if isinstance(node, dict):
        return {key: replace(value, values) for key, value in node.items()}
    if isinstance(node, list):
        return [replace(value, values) for value in node]
    if not isinstance(node, str):
        return node
    for name, value in values.items():
        node = node.replace(f"{{{name}}}", value)
    return node
