"""Reads what users and other programs wrote: paths, YAML, and the JSON of run and study folders. No
torch here.

Whatever a file holds, the answer is a value of the shape that is asked for, or an error: depth and
size are bounded before anything parses, as YAML's and JSON's parsers end the process or raise what
nobody expects on deep nesting.
"""

import io
import json
import stat
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..errors import UserError
from .fields import LONGEST_NAME, LONGEST_PATH

DEEPEST = 32  # levels of a YAML value; a recipe has three
LARGEST = 2**26  # bytes of a YAML or JSON file
NUMBER = (int, float)
TEXT = (str, type(None))
METRICS = {str: {"value": NUMBER, "split": str, "n?": (int, type(None))}}
RESULT = {
    "steps": int,
    "seconds": NUMBER,
    "metrics": METRICS,
    "finished": str,
    "images?": NUMBER,
    "exaflop?": NUMBER,
    "device_hours?": NUMBER,
    "total_exaflop?": NUMBER,
    "total_device_hours?": NUMBER,
    "recipe?": str,
}
ENVIRONMENT = {
    "data?": {str: object},
    "init?": ({str: object}, type(None)),
    "before?": ({"exaflop": NUMBER, "device_hours": NUMBER}, type(None)),
    "host?": ({str: object}, type(None)),
    "packages?": ({str: object}, type(None)),
    "revision?": TEXT,
    "plugin?": ({str: object}, type(None)),
}
SCALAR = (str, int, float, bool, type(None))
NAMES = ([str], type(None))
CLAIM = {"better": str, "worse": str, "measure?": TEXT}
REPORT = {
    **dict.fromkeys(("final?", "baseline?", "candidate?", "reference?", "measure?", "axis?"), TEXT),
    **dict.fromkeys(("extra?", "probes?", "differs?"), NAMES),
    "paper?": ({str: NUMBER}, type(None)),
    "claim?": (CLAIM, type(None)),
}
TASK = {
    **dict.fromkeys(("name", "part", "tool", "arm"), str),
    "seed": int,
    "values": {str: SCALAR},
    "needs": [str],
    "words?": NAMES,
    "best?": TEXT,
    "by?": TEXT,
}
STUDY = {
    "name": str,
    "title": str,
    "arms": {str: object},
    "report": REPORT,
    "tasks": [TASK],
    "vary?": ({str: {str: object}}, type(None)),
    "match?": TEXT,
}
CONFIG = {  # of an export, timm's or transformers'
    "architecture?": str,
    "model_type?": str,
    "num_classes?": int,
    "global_pool?": str,
    "model_args?": ({str: object}, type(None)),
    "pretrained_cfg?": {
        "mean?": [NUMBER],
        "std?": [NUMBER],
        "input_size?": [int],
        "interpolation?": str,
    },
    "label_names?": NAMES,
}


def parse_path(text: str, said: str) -> Path:
    """A path that a user named; `said` opens the error.

    Raises:
        UserError: no file or folder can have that name.
    """
    whole = text.encode(errors="surrogatepass")
    if not text.strip() or "\0" in text:
        raise UserError(f"{said}={text!r}: a path is asked for")
    if len(whole) > LONGEST_PATH or any(len(part) > LONGEST_NAME for part in whole.split(b"/")):
        raise UserError(
            f"{said}={text[:60]}...: too long for a path; names have {LONGEST_NAME} bytes at most"
        )
    return Path(text)


def load_yaml(path: Path) -> dict[str, Any]:
    """A YAML file's mapping. What OmegaConf would replace, by a variable of the environment say, is
    refused: files travel.

    Raises:
        UserError: it cannot be read, or is no such mapping.
    """
    try:
        text = _text(path)
        _check_depth(text)
        loaded = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)))
    except Exception as error:  # whatever YAML finds wrong
        raise UserError(f"{path}: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: a mapping is asked for")
    for key, value in flatten(loaded).items():
        if "${" in str(value):
            raise UserError(
                f"{path}: {key}: {' '.join(str(value).split())} cannot be taken as a value"
            )
    return cast(dict[str, Any], loaded)


def flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    """A nested mapping as {dotted key: value}."""
    flat: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def has_interpolation(value: Any) -> bool:
    """Whether OmegaConf or YAML would read a value, or one inside it, as something else than its
    text: `${...}` is replaced, `???` means missing, and a line break ends a scalar."""
    if "${" in str(value):
        return True
    if not isinstance(value, str):
        return False
    return value.strip() == "???" or len(value.splitlines()) > 1


def yaml_value(text: str) -> Any:
    """What a word's text means as YAML.

    Raises:
        ValueError: it is no YAML value, or a nested one of more than DEEPEST levels.
    """
    try:
        _check_depth(text)
        value = OmegaConf.from_dotlist([f"value={text}"]).value
    except (OmegaConfBaseException, yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _text(path: Path) -> str:
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("no file")  # a pipe would be waited for
    if path.stat().st_size > LARGEST:
        raise ValueError(f"larger than {LARGEST} bytes")
    return path.read_text(encoding="utf-8")


def _check_depth(text: str) -> None:
    """Raises ValueError where YAML nests deeper than DEEPEST; told from its events, which come
    without recursion."""
    depth = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise ValueError(f"nested deeper than {DEEPEST} levels")


def read_json(path: Path, shape: Any = None) -> Any:
    """A JSON file's value, which has that shape (`fits`).

    Raises:
        ValueError: it has not, or is no JSON.
        OSError: it cannot be read.
    """
    try:
        value = json.loads(_text(path))
    except RecursionError:
        raise ValueError("nested too deep") from None
    if shape is not None and not fits(value, shape):
        raise ValueError("not of the shape that is asked for")
    return value


def fits(value: Any, shape: Any) -> bool:
    """Whether a value has a shape: a type, one of several shapes in a tuple, `[shape]` for a list,
    `{str: shape}` for any keys, or `{"key": shape}`, where `"key?"` may be absent and more keys may
    be there. No bool is a number, nor is an int that no float can hold."""
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(one, shape[0]) for one in value)
    if isinstance(shape, dict):
        return isinstance(value, dict) and _has(value, shape)
    if isinstance(shape, tuple):
        return any(fits(value, one) for one in shape)
    if isinstance(value, bool):
        return shape in (bool, object)
    if isinstance(value, int) and abs(value) >= 2**1000:
        return False
    return isinstance(value, shape)


def _has(value: dict[str, Any], shape: dict[Any, Any]) -> bool:
    if str in shape:
        return all(isinstance(key, str) and fits(one, shape[str]) for key, one in value.items())
    for key, kind in shape.items():
        name = key.removesuffix("?")
        if name not in value and name == key:
            return False
        if name in value and not fits(value[name], kind):
            return False
    return True
