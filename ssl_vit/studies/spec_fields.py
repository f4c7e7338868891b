"""What a study's file is read with: checks that answer in one line, and values as the text of a
word."""

from typing import Any

from ..errors import UserError, suggest


def hold(holds: Any, where: str, message: str) -> None:
    """Raises UserError `where: said` unless it holds."""
    if not holds:
        raise UserError(f"{where}: {message}")


def known(node: dict[str, Any], keys: tuple[str, ...], where: str) -> None:
    for key in node:
        hold(key in keys, where, f"unknown key {key}; {suggest(str(key), keys)}")


def mapping(node: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    value = node.get(key)
    hold(isinstance(value, dict | None), where, f"{key}: a mapping is asked for")
    return value or {}


def listed(node: dict[str, Any], key: str, where: str) -> list[Any]:
    value = node.get(key)
    hold(isinstance(value, list | None), where, f"{key}: a list is asked for")
    return value or []


def text(value: Any) -> str:
    """A value of a study's file as a word's text."""
    if isinstance(value, list):
        return f"[{','.join(text(v) for v in value)}]"
    return (
        {True: "true", False: "false", None: "null"}[value]
        if isinstance(value, bool | None)
        else str(value)
    )
