"""Reads what users and other programs wrote: paths, YAML, and the JSON of run and study folders. No
torch here.

Whatever a file holds, the result is a value of the expected shape, or an error: size and depth are
checked before parsing, since deep nesting makes the parsers of YAML and JSON exhaust the stack.
"""

import copy
import functools
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
# of checkpoint.best: step and value are null where no evaluation gave a finite value
BEST = {"metric": str, "step": (int, type(None)), "value": (*NUMBER, type(None))}
RESULT = {
    "steps": int,
    "seconds": NUMBER,
    "metrics": METRICS,
    "finished": str,
    "images?": NUMBER,
    "exaflop?": (*NUMBER, type(None)),  # null: not counted
    "device_hours?": NUMBER,
    "total_exaflop?": (*NUMBER, type(None)),
    "total_device_hours?": NUMBER,
    "recipe?": str,
    "best?": BEST,
    "measured_on?": {str: int},
}
QUESTION = {"keys": [str], "difficulty": [str]}
OBJECTIVE = {  # runs.objective_facts
    **dict.fromkeys(("title", "tag", "sentence"), str),
    **dict.fromkeys(("fine_tunes", "class_token_is_trained"), bool),
    "questions": {str: {str: (QUESTION, type(None))}},
    "metrics": [{"name": str}],
    "baselines": [{"name": str}],
}
ENVIRONMENT = {
    "objective?": (OBJECTIVE, type(None)),
    "data?": {str: object},
    "images?": {str: int},  # of a split that is no stream
    "measured_on?": {str: int},
    "init?": ({str: object}, type(None)),
    "before?": (
        {"exaflop": (*NUMBER, type(None)), "device_hours": NUMBER},
        type(None),
    ),
    "host?": ({str: object}, type(None)),
    "packages?": ({str: object}, type(None)),
    "revision?": TEXT,
    "plugin?": ({str: object}, type(None)),
    "recipe?": str,
    "earlier_recipes?": [str],
    "recipe_file?": ({"name": str, "differs": {str: object}}, type(None)),
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
    "options": NAMES,  # as on a command line; none: a study of other means
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
    "benchmark?": TEXT,
    "labels?": [{"share": NUMBER, "final": str, "extra": [str]}],
    "curve?": str,  # what lies along it, where that is no share of labels
}
SPLIT = {"data": str, "images": int, "print": str}
OVERLAP = [{"train": SPLIT, "test": SPLIT, "exact": int, "near": int, "bits": int}]  # overlap.json
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


def parse_path(text: str, key: str) -> Path:
    """The path that an option gives; its key opens the error.

    Raises:
        UserError: no file or folder can have that name.
    """
    whole = text.encode(errors="surrogatepass")
    if not text.strip() or "\0" in text:
        raise UserError(f"{key}={text!r}: expected a path")
    if len(whole) > LONGEST_PATH or any(len(part) > LONGEST_NAME for part in whole.split(b"/")):
        raise UserError(
            f"{key}={text[:60]}...: expected a path of names of at most {LONGEST_NAME} bytes"
        )
    return Path(text)


def load_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. OmegaConf's interpolations are refused: they can read environment
    variables, and files are shared.

    Raises:
        UserError: it cannot be read, is no mapping, or has interpolations.
    """
    try:
        loaded = copy.deepcopy(_parsed(_text(path)))
    except Exception as error:  # whatever YAML finds wrong
        raise UserError(f"{path}: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: expected a mapping")
    for key, value in flatten(loaded).items():
        if "${" in str(value):
            raise UserError(
                f"{path}: {key}: {' '.join(str(value).split())} cannot be taken as a value"
            )
    return cast(dict[str, Any], loaded)


@functools.lru_cache(maxsize=64)  # resolving one recipe reads the presets several times
def _parsed(text: str) -> Any:
    _check_depth(text)
    return OmegaConf.to_container(OmegaConf.load(io.StringIO(text)))


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
    """A text as YAML reads it.

    Raises:
        ValueError: it is no YAML value, or a nested one of more than DEEPEST levels.
    """
    try:
        _check_depth(text)
        value = OmegaConf.from_dotlist([f"value={text}"]).value
    except (OmegaConfBaseException, yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def yaml_texts(text: str) -> list[str]:
    """A list's text, as YAML writes lists, as the texts of its elements: 010 stays 010.

    Raises:
        ValueError: it is no list of texts.
    """
    try:
        _check_depth(text)
        found = yaml.load(text, Loader=yaml.BaseLoader)  # texts, lists and mappings only
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if not fits(found, [str]):
        raise ValueError("not a list of texts")
    return cast(list[str], found)


def _text(path: Path) -> str:
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("not a regular file")  # reading a pipe would block
    if path.stat().st_size > LARGEST:
        raise ValueError(f"larger than {LARGEST} bytes")
    return path.read_text(encoding="utf-8")


def _check_depth(text: str) -> None:
    """Raises ValueError where YAML nests deeper than DEEPEST. The parser's events are produced
    without recursion, so counting them is safe."""
    depth = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise ValueError(f"nested deeper than {DEEPEST} levels")


def read_json(path: Path, shape: Any = None) -> Any:
    """The value in a JSON file, of the given shape (see `fits`).

    Raises:
        ValueError: it has another shape, or is no JSON.
        OSError: it cannot be read.
    """
    try:
        value = json.loads(_text(path))
    except RecursionError:
        raise ValueError("nested too deep") from None
    if shape is not None and not fits(value, shape):
        raise ValueError("not of the expected shape")
    return value


def read_study(path: Path) -> dict[str, Any]:
    """A study.json. Raises as `read_json`."""
    return cast(dict[str, Any], read_json(path, STUDY))


def fits(value: Any, shape: Any) -> bool:
    """Whether a value has a shape: a type, one of several shapes in a tuple, `[shape]` for a list,
    `{str: shape}` for any keys, or `{"key": shape}`, where `"key?"` may be absent and more keys may
    be there. A bool is not a number, nor is an int too large for a float."""
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
