"""The recipe: typed values that say everything about a run, and how the words of a command line become one. No torch here.

Order, each over the one before: this schema <- the recipe's presets (a row of models.yaml, of datasets.yaml) <- the recipe's
own values <- presets named on the command line, which replace all that preset's fields <- every other word.
"""

import dataclasses
import difflib
import os
import sys
import typing
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
OBJECTIVES = ("mpp",)
TARGETS = ("mean_color",)
EMBEDDED = "shapes"
# What says where, how fast and how often is looked, but not what is computed. compute.precision is computed.
NOT_COMPUTED = ("name", "out", "resume", "data.path", "compute.", "checkpoint.", "eval.", "log.")


class UserError(ValueError):
    """Something a user can mend. Its text is one line: the key, the value, the choices."""


@dataclass
class Data:
    name: str = EMBEDDED
    path: str | None = None  # a local copy, or any image folder or parquet
    hub: str | None = None  # a data set of the Hugging Face Hub
    size: int = 224  # side of the training picture, pixels
    train: str = "train"  # split
    validation: str | float | None = None  # a split, or the share cut off train; default: a split if there is one, or 1%
    image_column: str | None = None  # default: found
    label_column: str | None = None
    crop_area: float = 0.05  # smallest share of the picture that a training crop covers
    flip: bool = True
    eval_crop: float = 0.875  # side of the evaluation's centre crop over the picture's shorter side
    mean: list[float] = field(default_factory=lambda: [0.5, 0.5, 0.5])
    std: list[float] = field(default_factory=lambda: [0.5, 0.5, 0.5])


@dataclass
class Model:
    name: str = ""
    timm: str = "vit_base_patch16_224"  # the architecture that the values below override
    patch: int = 16
    width: int = 768
    depth: int = 12
    heads: int = 12
    mlp: int = 3072


@dataclass
class Corruption:
    rate: float = 0.5  # share of the patches that are hit
    mask: float = 0.8  # shares of those
    random: float = 0.1
    keep: float = 0.1
    source: str = "image"  # where a random patch comes from: image, or batch (the whole device batch)


@dataclass
class Optim:
    steps: int = 1000
    batch: int = 4096  # global
    lr: float = 2e-4  # absolute
    warmup: int = 0  # steps
    schedule: str = "cosine"  # cosine to 0, or linear to 1e-5
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    weight_decay: float = 0.1
    clip: float | None = 1.0  # global gradient norm; null: none


@dataclass
class Compute:
    batch: int | None = None  # pictures per device and pass; default: the largest divisor that fits
    precision: str = "auto"  # auto, float32, bfloat16
    compile: bool | None = None  # default: where there is a GPU
    workers: int | None = None  # data processes per process; default: from the cores
    threads: int | None = None  # default: allowed cores / processes on this machine


@dataclass
class Checkpoint:
    every: int = 1000  # steps
    keep: int = 2


@dataclass
class Eval:
    every: int = 1000  # steps
    pictures: int = 2000  # held-out pictures looked at, at most


@dataclass
class Log:
    every: int = 20  # steps
    tensorboard: bool = True


@dataclass
class Recipe:
    name: str = ""  # the run's folder; default: the recipe's name and the words that change what is computed
    out: str = "runs"
    seed: int = 0
    resume: bool = True
    objective: str = "mpp"
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    corruption: Corruption = field(default_factory=Corruption)
    target: str = "mean_color"
    optim: Optim = field(default_factory=Optim)
    compute: Compute = field(default_factory=Compute)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    eval: Eval = field(default_factory=Eval)
    log: Log = field(default_factory=Log)


def _leaves(kind: type, prefix: str = "") -> dict[str, Any]:
    """Every dotted key of the schema and its type."""
    found: dict[str, Any] = {}
    for f in dataclasses.fields(kind):
        if dataclasses.is_dataclass(f.type):
            found |= _leaves(typing.cast(type, f.type), f"{prefix}{f.name}.")
        else:
            found[prefix + f.name] = f.type
    return found


KEYS = _leaves(Recipe)


def nearest(word: str, choices: Iterable[str]) -> str:
    """The tail of a one-line error: the nearest known name, if one is near, and the choices."""
    choices = list(choices)
    near = difflib.get_close_matches(word, choices, n=1)
    listed = ", ".join(choices) if len(choices) <= 30 else "see ssl_vit/recipe.py"
    return (f"did you mean {near[0]}? " if near else "") + f"choices: {listed}"


def _check_key(key: str, where: str) -> None:
    if key in KEYS:
        return
    group = key.split(".")[0] + "."
    siblings = [k for k in KEYS if k.startswith(group)]
    if key + "." == group and siblings:
        raise UserError(f"{where}{key} is a group of keys: {', '.join(siblings)}")
    near = difflib.get_close_matches(key, KEYS, n=1)
    choices = siblings or sorted({k.split(".")[0] + ("." if "." in k else "") for k in KEYS} | {"recipe"})
    raise UserError(f"{where}unknown key {key}; " + (f"did you mean {near[0]}? " if near else "") + f"choices: {', '.join(choices)}")


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """A nested mapping as {dotted key: value}."""
    flat: dict[str, Any] = {}
    for key, value in node.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _parse(words: Iterable[str]) -> dict[str, str]:
    """{key: text} of key=value words. The order never matters, so a key may be said once only."""
    given: dict[str, str] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UserError(f"{word}: words are key=value, as in recipe=mpp")
        if given.setdefault(key, text) != text:
            raise UserError(f"{key} is said twice: {given[key]} and {text}")
    return given


def _load(path: Path) -> dict[str, Any]:
    try:
        loaded = OmegaConf.to_container(OmegaConf.load(path))
    except Exception as error:  # whatever YAML finds wrong
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: a mapping is asked for")
    return typing.cast(dict[str, Any], loaded)


def _row(table: str, key: str, name: str) -> dict[str, Any]:
    """One row of models.yaml or datasets.yaml as {dotted key: value}, its name included."""
    rows = _load(RECIPES / table)
    if name not in rows:
        raise UserError(f"{key}={name}: unknown; {nearest(name, rows)}")
    row = {f"{key}.{k}": v for k, v in rows[name].items()} | {f"{key}.name": name}
    for k in row:
        _check_key(k, f"{table}, {name}: ")
    return row


def _find(word: str | None) -> Path:
    """A recipe's file, from its name under recipes/ or its path."""
    names = sorted(str(p.relative_to(RECIPES).with_suffix("")) for p in RECIPES.rglob("*.yaml"))
    names = [n for n in names if n not in ("models", "datasets")]
    if word is None:
        raise UserError(f"recipe= is missing; choices: {', '.join(names)}, or a file's path")
    if word in names:
        return RECIPES / f"{word}.yaml"
    if word.endswith((".yaml", ".yml")):
        if Path(word).is_file():
            return Path(word)
        raise UserError(f"recipe={word}: no such file")
    raise UserError(f"recipe={word}: unknown; {nearest(word, names)}, or a file's path")


def _typed(key: str, value: Any) -> Any:
    """A word's text as its key's type; 1e6 and 1e6's float are whole numbers where one is asked for."""
    kind = KEYS[key]
    allowed = typing.get_args(kind) if not typing.get_origin(kind) is list else (kind,)
    allowed = allowed or (kind,)
    if isinstance(value, str) and value.lower() in ("null", "none") and type(None) in allowed:
        return None
    if isinstance(value, str) and (str not in allowed or float in allowed):
        try:
            value = OmegaConf.from_dotlist([f"value={value}"]).value
        except OmegaConfBaseException:
            raise UserError(f"{key}={value}: cannot be read") from None
    if int in allowed and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _asked(key: str) -> str:
    """What a key's type is called in an error."""
    text = getattr(KEYS[key], "__name__", None) or str(KEYS[key])
    names = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text", "list[a number]": "a list of numbers"}
    for short, long in names.items():
        text = text.replace(short, long)
    return text.replace(" | None", " or null").replace(" | ", " or ")


def _build(values: dict[str, Any]) -> Recipe:
    """The typed recipe from {dotted key: value}."""
    config = OmegaConf.structured(Recipe)
    for key, value in values.items():
        try:
            OmegaConf.update(config, key, _typed(key, value))
        except OmegaConfBaseException:
            raise UserError(f"{key}={value}: {_asked(key)} is asked for") from None
    return typing.cast(Recipe, OmegaConf.to_object(config))


def _preset(values: dict[str, Any], key: str, row: dict[str, Any]) -> dict[str, Any]:
    """`values` with every field of the preset `key` replaced by the row's."""
    return {k: v for k, v in values.items() if not k.startswith(key + ".")} | row


def _from_file(path: Path) -> dict[str, Any]:
    """A recipe file's values, with its presets filled in below them."""
    raw = _load(path)
    rows: dict[str, Any] = {}
    for key, table in (("data", "datasets.yaml"), ("model", "models.yaml")):
        if isinstance(raw.get(key), str):
            rows |= _row(table, key, raw.pop(key))
    own = _flat(raw)
    for key in own:
        _check_key(key, f"{path}: ")
    return rows | own


def resolve(words: Iterable[str]) -> Recipe:
    """The recipe that the words of a command line mean, checked.

    Raises:
        UserError: an unknown word, preset or recipe, a value of the wrong type or out of bounds.
    """
    given = _parse(words)
    chosen = {key: given.pop(key, None) for key in ("recipe", "data", "model")}
    for key in given:
        _check_key(key, "")
    path = _find(chosen["recipe"])
    values = _from_file(path)
    if chosen["model"] is not None:
        values = _preset(values, "model", _row("models.yaml", "model", chosen["model"]))
    if chosen["data"] is not None:
        values = _preset(values, "data", _row("datasets.yaml", "data", chosen["data"]))
    elif local := _own_pictures(given, path):
        values = _preset(values, "data", {"data.size": values["data.size"], "data.name": local})
    before, recipe = _build(values), _build(values | given)
    if "name" not in given and not (recipe.name and path.name == "recipe.yaml"):
        recipe.name = _default_name(path, chosen, before, recipe)
    check(recipe)
    if recipe.data.path:
        recipe.data.path = str(Path(recipe.data.path).resolve())
    return recipe


def _own_pictures(given: dict[str, str], path: Path) -> str | None:
    """The name of the user's own pictures, where data.path= or data.hub= stands without data= (not on a run's own recipe)."""
    place = given.get("data.path") or given.get("data.hub")
    if place is None or path.name == "recipe.yaml":
        return None
    return Path(place).resolve().stem if given.get("data.path") else place.replace("/", "--")


def _default_name(path: Path, chosen: dict[str, str | None], before: Recipe, recipe: Recipe) -> str:
    parts = [path.stem, *(chosen[k] or "" for k in ("data", "model"))]
    if chosen["data"] is None and recipe.data.name != EMBEDDED:
        parts[1] = recipe.data.name
    was, now = computed(before), computed(recipe)
    parts += [f"{k}={_word(now[k])}" for k in sorted(now) if now[k] != was[k]]
    return "-".join(p for p in parts if p).replace("/", "_")


def _word(value: Any) -> str:
    return str(value).replace(" ", "").lower() if isinstance(value, bool | list) or value is None else str(value)


def computed(recipe: Recipe) -> dict[str, Any]:
    """{dotted key: value} of what is computed: all but NOT_COMPUTED. Two runs with equal ones are the same run."""
    flat = _flat(dataclasses.asdict(recipe))
    return {k: v for k, v in flat.items() if k == "compute.precision" or not k.startswith(NOT_COMPUTED)}


def dump(recipe: Recipe) -> str:
    """The recipe as YAML; that text alone repeats the run (`recipe=runs/NAME/recipe.yaml`)."""
    return OmegaConf.to_yaml(OmegaConf.structured(recipe))


def check(recipe: Recipe) -> None:
    """Bounds, after merging.

    Raises:
        UserError: the first key whose value cannot be.
    """
    data, model, corruption, optim, compute = recipe.data, recipe.model, recipe.corruption, recipe.optim, recipe.compute
    _choice("objective", recipe.objective, OBJECTIVES)
    _choice("target", recipe.target, TARGETS)
    _choice("corruption.source", corruption.source, ("image", "batch"))
    _choice("optim.schedule", optim.schedule, ("cosine", "linear"))
    _choice("compute.precision", compute.precision, ("auto", "float32", "bfloat16"))
    for key in POSITIVE:
        value: Any = recipe
        for part in key.split("."):
            value = getattr(value, part)
        _bound(value is None or value > 0, key, value, "a number above 0 is asked for")
    _bound(0 < corruption.rate <= 1, "corruption.rate", corruption.rate, "a share above 0 and at most 1 is asked for")
    for name in ("mask", "random", "keep"):
        share = getattr(corruption, name)
        _bound(0 <= share <= 1, f"corruption.{name}", share, "a share from 0 to 1 is asked for")
    total = corruption.mask + corruption.random + corruption.keep
    _bound(abs(total - 1) < 1e-6, "corruption.mask + .random + .keep", f"{total:g}", "the three shares must sum to 1")
    _bound(0 < data.crop_area <= 1, "data.crop_area", data.crop_area, "a share above 0 and at most 1 is asked for")
    _bound(0 < data.eval_crop <= 1, "data.eval_crop", data.eval_crop, "a share above 0 and at most 1 is asked for")
    if isinstance(data.validation, float):
        _bound(0 < data.validation < 1, "data.validation", data.validation, "a split's name or a share between 0 and 1 is asked for")
    for name in ("mean", "std"):
        _bound(len(getattr(data, name)) == 3, f"data.{name}", getattr(data, name), "three numbers are asked for")
    _bound(min(data.std) > 0, "data.std", data.std, "numbers above 0 are asked for")
    sides = [s for s in range(model.patch, 4 * data.size, model.patch) if s >= 2 * model.patch]
    near = min(sides, key=lambda s: abs(s - data.size)) if sides else model.patch * 2
    text = f"no multiple of the patch of {model.name or 'the model'}, model.patch={model.patch}; the nearest is {near}"
    _bound(data.size % model.patch == 0 and data.size >= 2 * model.patch, "data.size", data.size, text)
    _bound(model.width % model.heads == 0, "model.width", model.width, f"no multiple of model.heads={model.heads}")
    text = f"not below optim.steps={optim.steps}; add optim.warmup={optim.steps // 10}"
    _bound(0 <= optim.warmup < optim.steps, "optim.warmup", optim.warmup, text)
    _bound(len(optim.betas) == 2 and all(0 <= b < 1 for b in optim.betas), "optim.betas", optim.betas, "two numbers in [0, 1)")
    _bound(optim.weight_decay >= 0, "optim.weight_decay", optim.weight_decay, "a number of at least 0 is asked for")
    if compute.batch:
        _bound(optim.batch % compute.batch == 0, "compute.batch", compute.batch, f"does not divide optim.batch={optim.batch}")
    _check_place(data)


POSITIVE = tuple(
    "data.size model.patch model.width model.depth model.heads model.mlp optim.steps optim.batch optim.lr optim.clip "
    "compute.batch compute.threads checkpoint.every checkpoint.keep eval.every eval.pictures log.every".split()
)


def _check_place(data: Data) -> None:
    """That the data set's place is said, once, and is there."""
    if data.path and data.hub and data.name == EMBEDDED:
        raise UserError("data.path and data.hub: say one of them")
    if data.path and not Path(data.path).exists():
        raise UserError(f"data.path={data.path}: no such file or folder")
    if not data.path and not data.hub and data.name != EMBEDDED:
        raise UserError(f"data={data.name} lies nowhere yet; add data.path=FOLDER with a local copy (parquet or image folder)")


def _choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    _bound(value in choices, key, value, nearest(value, choices))


def _bound(holds: bool, key: str, value: Any, text: str) -> None:
    if not holds:
        raise UserError(f"{key}={value}: {text}")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Answer a UserError in one line, on the first process only, and exit with status 2."""
    try:
        yield
    except UserError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
