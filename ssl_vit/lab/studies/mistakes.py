"""Mistakes of a study's file: the first raised as one line, or all collected."""

import difflib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from ...config.rules.rule import BrokenRule, Rule
from ...config.schema import options
from ...errors import UserError, suggest
from ...formatting import option_text

Node = dict[str, Any]  # a mapping of a study's file
Kind = TypeVar("Kind")
MOST_SEEDS = 1000
MOST_PLACES = 3  # that a line names beside those of its own values


class Mistake(NamedTuple):
    """Where it is, what it is, and the rule between keys that it breaks, if it does."""

    where: str
    text: str
    rule: Rule | None


class Mistakes:
    """Mistakes of a study: the first is raised, or all are collected.

    Args:
        collect: whether they are collected.

    Attributes:
        parts: parts of which something is not known, for their mistakes.
        names: names in braces that may be right: what they stand for is not known.
        arms: whether the arms are known.
        unmade: parts whose tasks cannot be made, as they need what is not there.
        options: (part, arm) whose options are wrong one by one.
    """

    def __init__(self, collect: bool = False) -> None:
        self.collect = collect
        self.parts: set[str] = set()
        self.names: set[str] = set()
        self.arms = True
        self.unmade: set[str] = set()
        self.options: set[tuple[str, str]] = set()
        self._found: list[Mistake] = []

    @contextmanager
    def of(self, where: str = "") -> Iterator[None]:
        """Collect the mistake that ends the block; `where` begins it."""
        try:
            yield
        except UserError as error:
            if self.collect:
                rule = error.rule if isinstance(error, BrokenRule) else None
                self._found.append(Mistake(where, str(error), rule))
            elif where:
                raise UserError(f"{where}: {error}") from None
            else:
                raise

    def read_or(self, read: Callable[..., Kind], default: Any, *given: Any) -> Kind:
        """What `read` makes of what is given; the default where it finds a mistake."""
        made = [default]
        with self.of():
            made.append(read(*given))
        return made[-1]

    def require(self, holds: Any, where: str, message: str) -> None:
        """A mistake after which others can be found, unless `holds`."""
        with self.of():
            require(holds, where, message)

    def reject_unknown(self, node: Node, keys: Collection[str], where: str) -> None:
        """A mistake for each key that is none of `keys`."""
        for key in node:
            choices = suggest(str(key), keys)
            self.require(key in keys, where, f"unknown key {key}; {choices}")

    @property
    def count(self) -> int:
        return len(self._found)

    def lines(self) -> list[str]:
        """The collected ones, each once, with all places where it is: those that break one rule,
        whatever their values, in one line."""
        alike: dict[str | Rule, list[Mistake]] = {}
        for one in self._found:
            alike.setdefault(one.rule or one.text, []).append(one)
        return [_line(found) for found in alike.values()]


def _line(found: Sequence[Mistake]) -> str:
    """The first of the mistakes that are alike, and where the others are."""
    text = found[0].text
    places = dict.fromkeys(one.where for one in found if one.text == text)
    line = ": ".join(filter(None, ("; ".join(places), text)))
    if found[0].rule is None or len(found) == 1:
        return line
    line += f" ({len(found)} tasks break this rule"
    others = [place for place in dict.fromkeys(one.where for one in found) if place not in places]
    if others:
        more = len(others) - MOST_PLACES
        line += f", also {'; '.join(others[:MOST_PLACES])}"
        line += f" and {more} more" if more > 0 else ""
    return f"{line})"


def require(holds: Any, where: str, message: str) -> None:
    """Raise UserError `where: message` unless `holds`."""
    if not holds:
        raise UserError(f"{where}: {message}")


def likely_meant(node: Node, keys: Collection[str]) -> set[str]:
    """The keys that unknown ones of a mapping are near to, and which are not missing then."""
    unknown = (str(key) for key in node if key not in keys)
    return {near for key in unknown for near in difflib.get_close_matches(key, keys, n=1)}


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
