"""A study's file: which one a name means, and its keys over those of the one that it extends."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from ...config.parsing import flatten, load_yaml
from ...config.parsing import parse_path as place_of
from ...config.recipe_files import RECIPES, recipe_names, study_names
from ...errors import UserError, suggest
from . import study_keys
from .mistakes import Node, mapping, require


def find(name: str | None) -> Path:
    """A study's file.

    Args:
        name: as `recipe=`: study/NAME, or a path.

    Raises:
        UserError: there is no such study.
    """
    names = study_names()
    if name is None:
        raise UserError(f"recipe= is missing; choices: {', '.join(names)}, or a file's path")
    if name in names:
        return RECIPES / f"{name}.yaml"
    path = place_of(name, "recipe")
    if name in recipe_names():
        text = "is no study; to sweep it, say sweep and keys with several values"
        raise UserError(f"recipe={name}: {text}")
    if path.suffix not in (".yaml", ".yml"):
        raise UserError(f"recipe={name}: no such study; {suggest(name, names)}, or a file's path")
    if not path.is_file():
        raise UserError(f"recipe={name}: no such file")
    return path


def load(path: Path, derived: tuple[Path, ...] = ()) -> Node:
    """A study's file over the one that it `extends`: its keys replace the other's, but `options`
    (which go over the options of the other's parts, too) and the options of parts are added to
    it, and of the other's keys and parts those are left out that are null here. A title is not
    inherited.

    Raises:
        UserError: files extend one another in a circle; the other has no part that is null here.
    """
    raw, where = load_yaml(path), str(path)
    name = raw.pop("extends", None)
    if name is None:
        return raw
    require(isinstance(name, str), where, f"extends={name}: expected a study or a file's path")
    if name.endswith((".yaml", ".yml")):
        below = path.parent / place_of(name, f"{where}: extends")
        require(below.is_file(), where, f"extends={name}: no such file")
    else:
        below = find(name)
    circle = below.resolve() in (path.resolve(), *derived)
    require(not circle, where, f"extends={name}: files extend one another in a circle")
    base = load(below, (path.resolve(), *derived))
    gone = {key for key, value in raw.items() if value is None and key in study_keys.STUDY}
    base = {key: value for key, value in base.items() if key not in (*gone, "title")}
    raw = {key: value for key, value in raw.items() if key not in gone}
    own = flatten(mapping(raw, "options", where))
    parts = {key: without_options(body, own) for key, body in mapping(base, "parts", where).items()}
    for key, body in mapping(raw, "parts", where).items():
        text = f"part {key}: null leaves out a part of {name}; {suggest(key, parts)}"
        require(body is not None or key in parts, where, text)
        parts[key] = extended(parts.get(key), body)
    parts = {key: body for key, body in parts.items() if body is not None}
    options = flatten(mapping(base, "options", where)) | own
    return base | raw | {"options": options, "parts": parts}


def without_options(body: Any, keys: Collection[str]) -> Any:
    """A part without its own values of these keys; what is no mapping is left to `read_study`."""
    if not isinstance(body, dict) or not isinstance(body.get("options"), dict):
        return body
    options = {key: value for key, value in flatten(body["options"]).items() if key not in keys}
    return body | {"options": options}


def arms_without(by_arm: Any, options: Any) -> Node:
    """A by_arm that a part has of another, without the keys that its own options set; what is not a
    mapping is left to `read_study`."""
    if not isinstance(by_arm, dict) or not isinstance(options, dict):
        return {}
    keys = flatten(options)
    arms = {arm: without_options({"options": own}, keys) for arm, own in by_arm.items()}
    return {"by_arm": {arm: body["options"] for arm, body in arms.items()}}


def extended(base: Any, body: Any) -> Any:
    """A part over another one; what is not a mapping is left to `read_study` to reject."""
    if not isinstance(base, dict) or not isinstance(body, dict):
        return body
    below = base.get("options") or {}
    own = body.get("options") or {}
    if not isinstance(below, dict) or not isinstance(own, dict):
        return body
    return base | body | {"options": flatten(below) | flatten(own)}
