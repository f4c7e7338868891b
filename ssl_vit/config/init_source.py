"""Where first weights come from, and what their folder or repository says of the model they fit. No
torch here; weights.py reads them."""

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import hub_files
from ..errors import UserError
from . import parsing
from .fields import PLAIN_NAME
from .parsing import load_yaml
from .schema import Recipe

SCRATCH = "scratch"
REMOTE = ("timm:", hub_files.SCHEME)
TRANSFORMERS = {
    "patch": "patch_size",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
}
# what a ViT of transformers says, or leaves unsaid
PLAIN = {"hidden_act": "gelu", "qkv_bias": True, "num_channels": 3}
LEAST_CROP = 0.1
TIMM_MODE = "center"  # of its crop_mode, where a config.json says none
CHOICES = "choices: scratch, a run's folder, an export's folder, timm:NAME, hf-hub:USER/NAME, a Google .npz file"


@dataclass(frozen=True)
class InitSource:
    """`run` is the folder of the run that made `export`, where a run did."""

    place: str
    run: Path | None = None
    export: Path | None = None


def parse_init(place: str) -> InitSource:
    """What `init=place` names.

    Raises:
        UserError: nothing, a run that is not finished, or a folder that holds no encoder.
    """
    if place.startswith("timm:") and not PLAIN_NAME.fullmatch(place.removeprefix("timm:")):
        raise UserError(
            f"init={place}: after timm: a model's plain name is asked for; say hf-hub:USER/NAME for a repository"
        )
    if place == SCRATCH or place.startswith(REMOTE):
        return InitSource(place)
    path = parsing.parse_path(place, "init")
    if path.suffix == ".npz" and path.is_file():
        return InitSource(place)
    if not path.is_dir():
        raise UserError(f"init={place}: no such folder or file; {CHOICES}")
    if (path / "recipe.yaml").exists():
        if not (path / "export" / "config.json").exists() and (path / "result.json").exists():
            raise UserError(
                f"init={place}: that run made no encoder of its own; say the one that it measured"
            )
        if not (path / "export" / "config.json").exists():
            raise UserError(f"init={place}: that run has no export yet; it is not finished")
        return InitSource(place, path, path / "export")
    if (path / "config.json").exists() and (path / "model.safetensors").exists():
        return InitSource(
            place, path.parent if (path.parent / "recipe.yaml").exists() else None, path
        )
    raise UserError(
        f"init={place}: no run (recipe.yaml) and no export (config.json, model.safetensors); {CHOICES}"
    )


def is_local(place: str) -> bool:
    """Whether it is a file or folder of this machine."""
    return place != SCRATCH and not place.startswith(REMOTE)


def public_name(place: str) -> str:
    """The place as others may know it: of this machine's folders the name alone."""
    return Path(place).name if is_local(place) else place


def training_tool(recipe: Recipe) -> str:
    """Which of tools/ trains it."""
    return "finetune" if recipe.objective == "supervised" and recipe.init != SCRATCH else "pretrain"


def described_values(init: InitSource) -> dict[str, Any]:
    """{dotted key: value} of the model that these weights were made with, the normalisation and
    the evaluation's resizing and cropping, as far as their folder says.

    Raises:
        UserError: its files cannot be read.
    """
    folder = export(init, "config.json", "preprocessor_config.json")
    if folder is None:
        return {}
    try:
        config = json.loads((folder / "config.json").read_text())
        told = normalisation(folder) | evaluation(folder)
        norm = {f"data.{key}": value for key, value in told.items()}
        if init.run is not None:
            return {
                f"model.{key}": value
                for key, value in load_yaml(init.run / "recipe.yaml")["model"].items()
            } | norm
        if config.get("model_type") == "vit":
            return _of_transformers(config) | norm
        return _told(config["architecture"], config.get("model_args") or {}) | norm
    except Exception as error:  # whatever a foreign file makes of this
        raise UserError(
            f"init={init.place}: its config.json or recipe.yaml cannot be read: {error!r}"
        ) from None


def config(folder: Path) -> dict[str, Any]:
    """config.json of an export that this project made.

    Raises:
        UserError: it is damaged.
    """
    told = {
        "mean": [parsing.NUMBER],
        "std": [parsing.NUMBER],
        "input_size": [int],
        "interpolation": str,
    }
    try:
        found: dict[str, Any] = parsing.read_json(
            folder / "config.json",
            parsing.CONFIG | {"num_classes": int, "global_pool": str, "pretrained_cfg": told},
        )
        return found
    except (OSError, ValueError):
        raise UserError(
            f"{folder} is no export: its config.json is damaged, or another program's"
        ) from None


def export(init: InitSource, *names: str) -> Path | None:
    """The folder of the export, with those files of it if it comes from the Hub; None of other
    places.

    Raises:
        UserError: the Hub has no such repository or revision, or what lies there is no encoder that
        can be read.
    """
    if init.export is None and not init.place.startswith(hub_files.SCHEME):
        return None
    folder = init.export or hub_files.fetch(init.place, f"init={init.place}", names)
    if not (folder / "config.json").exists():
        raise UserError(f"init={init.place}: the repository is no encoder: it has no config.json")
    try:
        why = _unread(parsing.read_json(folder / "config.json", parsing.CONFIG))
    except Exception as error:  # whatever a foreign file makes of this
        raise UserError(f"init={init.place}: its config.json cannot be read: {error!r}") from None
    if why:
        raise UserError(f"init={init.place}: its config.json says {why}")
    return folder


def _unread(config: dict[str, Any]) -> str | None:
    """What of a config.json cannot be read here, and what is asked for; None where nothing stands
    against it."""
    if config.get("model_type") != "vit":
        known = "choices: vit (transformers' ViT), or an export of timm or of this project, which names an architecture"
        return (
            None
            if "architecture" in config
            else f"model_type={config.get('model_type')}, which is not read; {known}"
        )
    for key, value in PLAIN.items():
        if config.get(key, value) != value:
            return f"{key}={config[key]}; a ViT with {key}={value} is asked for"
    for key in ("image_size", "patch_size"):
        if isinstance(config.get(key), list) and len(set(config[key])) != 1:
            return f"{key}={config[key]}; a square is asked for"
    return None


def normalisation(folder: Path) -> dict[str, list[float]]:
    """mean and std of the pixels, where an export's config.json, timm's or transformers', says
    them."""
    config, beside = (
        json.loads((folder / "config.json").read_text()),
        folder / "preprocessor_config.json",
    )
    if config.get("model_type") == "vit":
        told = json.loads(beside.read_text()) if beside.exists() else {}
        return {key: told[f"image_{key}"] for key in ("mean", "std") if f"image_{key}" in told}
    told = config.get("pretrained_cfg", config)
    return {key: list(told[key]) for key in ("mean", "std") if key in told}


def evaluation(folder: Path) -> dict[str, Any]:
    """eval_mode and eval_crop, as an export's files, timm's or transformers', give them; nothing
    where they give something else, as a border or a crop after a squash."""
    config, beside = (
        json.loads((folder / "config.json").read_text()),
        folder / "preprocessor_config.json",
    )
    if config.get("model_type") == "vit":
        return _of_processor(json.loads(beside.read_text())) if beside.exists() else {}
    told = config.get("pretrained_cfg", config)
    crop, mode = told.get("crop_pct"), told.get("crop_mode") or TIMM_MODE
    if mode == "squash" and crop == 1:
        return {"eval_mode": "squash"}
    return _cropped(float(crop)) if mode == TIMM_MODE and crop else {}


def _of_processor(told: dict[str, Any]) -> dict[str, Any]:
    """The same from a preprocessor_config.json: a square `size` squashes, `shortest_edge` with a
    centre crop crops."""
    size, cropped = told.get("size"), told.get("do_center_crop")
    if not told.get("do_resize", True):
        return {}
    if isinstance(size, int):  # files of before 2023
        size = {"height": size, "width": size}
    if not isinstance(size, dict):
        return {}
    if "height" in size and size["height"] == size.get("width") and not cropped:
        return {"eval_mode": "squash"}
    crop = told.get("crop_size")
    side = crop.get("height") if isinstance(crop, dict) else crop
    short = size.get("shortest_edge")
    if not (cropped and side and short and side <= short):
        return {}
    share = side / short
    if math.floor(side / share) < short:  # by the rounding of a float
        share = math.nextafter(share, 0)
    return _cropped(share)


def _cropped(share: float) -> dict[str, Any]:
    """Within bounds: a foreign number decides how large an image is before the crop."""
    return {"eval_mode": "crop", "eval_crop": share} if LEAST_CROP <= share <= 1 else {}


def _of_transformers(config: dict[str, Any]) -> dict[str, Any]:
    """The model of a ViT of transformers."""
    told = {key: config[name] for key, name in TRANSFORMERS.items()} | {
        "mlp": config["intermediate_size"]
    }
    told["patch"] = told["patch"][0] if isinstance(told["patch"], list) else told["patch"]
    described_values = {f"model.{key}": value for key, value in told.items()}
    return {
        "model.name": _called(described_values),
        "model.timm": "vit_base_patch16_224",
        **described_values,
    }


def _told(architecture: str, args: dict[str, Any]) -> dict[str, Any]:
    """The model that a foreign export's model_args name; nothing where they do not say it whole, as
    for timm's own models."""
    if not {"patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio"} <= args.keys():
        return {}
    described_values = {
        "model.timm": architecture,
        "model.patch": args["patch_size"],
        "model.width": args["embed_dim"],
        "model.depth": args["depth"],
        "model.heads": args["num_heads"],
        "model.mlp": round(args["mlp_ratio"] * args["embed_dim"]),
    }
    return {"model.name": _called(described_values), **described_values}


def _called(described_values: dict[str, Any]) -> str:
    """A model's name from its size: the architecture's own would promise another."""
    return f"vit_{described_values['model.width']}x{described_values['model.depth']}_p{described_values['model.patch']}"


def export_pool(init: InitSource) -> str:
    """What the export gives as an image's feature: "avg" (the mean of the patches) where it says so,
    else "token"."""
    folder = export(init, "config.json")
    if folder is None:
        return "token"
    config = json.loads((folder / "config.json").read_text())
    return "avg" if config.get("model_args", {}).get("global_pool") == "avg" else "token"


def weights_hash(place: str) -> str | None:
    """A hash of the file of weights, in an export or by itself; None of other places, and where it
    lies no more."""
    try:
        folder = parse_init(place).export
    except UserError:
        return None
    if folder is None and not is_local(place):
        return None
    return file_stamp(folder / "model.safetensors" if folder else Path(place))


def file_stamp(path: Path) -> str | None:
    """A hash of a file; None where there is none that can be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError:
        return None


def upstream_cost(init: InitSource) -> dict[str, float]:
    """What the run that made these weights took, with what it started from itself: exaflop and
    device_hours, 0 if unknown.

    Raises:
        UserError: its result.json cannot be read.
    """
    path = init.run / "result.json" if init.run else None
    if path is None or not path.exists():
        return {"exaflop": 0.0, "device_hours": 0.0}
    try:
        result = parsing.read_json(path, parsing.RESULT)
        return {
            key: float(result.get(f"total_{key}", result[key]))
            for key in ("exaflop", "device_hours")
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"init={init.place}: {path} is damaged") from None
