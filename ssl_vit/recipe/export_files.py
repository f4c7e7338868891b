"""Read an export's config.json and preprocessor_config.json, in the format of timm or transformers:
the model and the preprocessing.

This module does not import torch.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import NOT_FINITE, UserError
from . import records
from .keys import Values
from .model import Model
from .records import export

WRITTEN = ("config.json", "model.safetensors", "heads.safetensors")  # files of an export
# {key of Model: name in the config.json of a transformers ViT}
VIT_KEYS = {
    "patch": "patch_size",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "mlp": "intermediate_size",
}
# Values that make a transformers ViT equal to timm's ViT. Files without these keys have these
# values by default.
VIT_VALUES = {"hidden_act": "gelu", "qkv_bias": True}
# Keys of Model in which a model may differ from the classic Vision Transformer
VARIANT_KEYS = ("args", "registers", "layer_scale", "qk_norm", "activation", "positions")
# Keys of Model that cannot be read from the arguments of timm. An export has these keys under
# `encoder` if the model is not the classic Vision Transformer.
ENCODER_KEYS = ("timm", "mlp", *VARIANT_KEYS)
TIMM_ARGS = {"patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio"}
POOL_ARGS = ("global_pool", "fc_norm")  # timm arguments that `InitSource.pooling` covers
CROP_MODE = "center"  # timm's default
DIGESTS = "sha256"  # in config.json: {name: SHA-256} of the weight files in the same folder
EPS = 1e-12  # default of transformers' layer norms if config.json has none
SMALLEST_CROP = 0.1  # the lower bound of data.eval_crop


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of the config.json of an export that this package made.

    Raises:
        UserError: The file is damaged, or another program wrote it.
    """
    try:
        return read(folder, only_ours=True)
    except (OSError, ValueError) as error:
        text = f"config.json is damaged, or another program wrote the file ({error})"
        raise UserError(f"{folder}: {text}. Use the export of a run.") from None


def read(folder: Path, only_ours: bool = False) -> dict[str, Any]:
    """Return the content of an export's config.json, and check the types of the keys in use.

    Args:
        folder: Folder of the export.
        only_ours: Whether the file must have the keys that every file of this package has.

    Raises:
        OSError, ValueError: The file is missing or damaged.
    """
    kind = export.OwnExportConfig if only_ours else export.ExportConfig
    return records.read(folder / "config.json", kind).content()


def add_digests(config: dict[str, Any], files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the content of a config.json with the SHA-256 digests of files in the same folder.

    The added key is "sha256": {"model.safetensors": digest}. timm and transformers ignore this key.

    Args:
        config: Content of the config.json.
        files: {file name: content}.
    """
    return config | {DIGESTS: {name: hashlib.sha256(files[name]).hexdigest() for name in files}}


def check_digest(folder: Path, name: str, prefix: str) -> None:
    """Check that a file of an export has the digest in config.json.

    If config.json has no digest for the file, nothing is checked. For example, exports of other
    programs have no digests.

    Args:
        folder: Folder of the export.
        name: Name of a file in that folder.
        prefix: Start of the error, such as `init=runs/mpp`.

    Raises:
        UserError: The file was damaged or replaced.
        OSError, ValueError: The file or config.json is missing or damaged.
    """
    expected = (read(folder).get(DIGESTS) or {}).get(name)
    if expected is None:
        return
    with (folder / name).open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != expected:
            raise UserError(
                f"{prefix}: {folder / name} was damaged or replaced: its SHA-256 is not the one in"
                " config.json. Restore the file, or export again."
            )


def check_weights(folder: Path, name: str, prefix: str, framework: str = "numpy") -> None:
    """Check that a file of weights has the digest in config.json, and that all weights are finite.

    Args:
        folder, name, prefix: As in `check_digest`.
        framework: Library that reads the weights: "numpy", which needs no torch, or "pt", which
            also reads 16-bit weights.

    Raises:
        UserError: The file was damaged or replaced, or a weight is NaN or infinite.
        OSError, ValueError: The file or config.json is missing or damaged.
    """
    check_digest(folder, name, prefix)
    tensor_name = nonfinite_weight(folder / name, framework)
    if tensor_name:
        raise UserError(f"{prefix}: {tensor_name} of {folder / name} {NOT_FINITE}")


def nonfinite_weight(path: Path, framework: str = "numpy") -> str:
    """Return the name of the first tensor with NaN or infinite values in a file of weights.

    Return an empty string if all tensors are finite.
    """
    from safetensors import safe_open

    with safe_open(path, framework) as file:
        tensors = ((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
        return first_nonfinite(tensors)


def first_nonfinite(tensors: Iterable[tuple[str, Any]]) -> str:
    """Return the name of the first tensor with NaN or infinite values, or an empty string."""
    for name, value in tensors:
        if not ((value > -math.inf) & (value < math.inf)).all():
            return name
    return ""


def unsupported(config: dict[str, Any]) -> str | None:
    """Return why an encoder with this config.json cannot be loaded.

    For example, "hidden_act=relu. Only hidden_act=gelu can be loaded". Return None if the encoder
    can be loaded.
    """
    if config.get("model_type") != "vit":
        if "architecture" in config:
            return None
        return (
            f"model_type={config.get('model_type')}. Expected model_type=vit (transformers) or a"
            " key `architecture` (timm or ssl_vit)"
        )
    for key, value in VIT_VALUES.items():
        if config.get(key, value) != value:
            return f"{key}={config[key]}. Only {key}={value} can be loaded"
    for key in ("image_size", "patch_size"):
        if isinstance(config.get(key), list) and len(set(config[key])) != 1:
            return f"{key}={config[key]}. Only squares can be loaded"
    return None


def read_normalisation(folder: Path) -> dict[str, list[float]]:
    """Return the mean and std of the pixels from the files of an export.

    Returns:
        {"mean": [...], "std": [...]} with a number for each channel. A key that no file has is left
        out.

    Raises:
        OSError, ValueError: A file is damaged, or a number is out of bounds, such as a std of 0.
    """
    config = _read(folder, "config.json")
    if config.get("model_type") == "vit":
        # Image processors of transformers cannot read some images, such as images with 5 channels.
        # For such images, an export of this package has the key `pixels` in config.json instead of
        # a preprocessor_config.json.
        processor = _read(folder, "preprocessor_config.json") or config.get("pixels", {})
        statistics = _of_image_processor(processor, config.get("num_channels", 3))
    else:
        pretrained = config.get("pretrained_cfg", config)
        statistics = {key: list(pretrained[key]) for key in ("mean", "std") if key in pretrained}
    return records.check(statistics, export.Normalisation).content()


def _of_image_processor(processor: Mapping[str, Any], channels: int) -> dict[str, list[float]]:
    """Convert the normalisation of a transformers image processor to mean and std.

    The processor turns a byte x into (factor x - image_mean) / image_std. This package computes
    (x / 255 - mean) / std. Both are equal for mean = image_mean / (255 factor) and
    std = image_std / (255 factor).

    Args:
        processor: Content of preprocessor_config.json (keys `image_mean` and `image_std`), or a
            mapping with the keys `mean` and `std`.
        channels: Number of channels, used if the processor does not normalise.

    Returns:
        {"mean": [...], "std": [...]}. A key that the processor lacks is left out.
    """
    factor = processor.get("rescale_factor", 1 / 255) if processor.get("do_rescale", True) else 1
    statistics: dict[str, Any] = {"mean": [0.0] * channels, "std": [1.0] * channels}
    if processor.get("do_normalize", True):
        # image_mean and image_std or, in a mapping without these keys, mean and std
        statistics = {key: processor.get(f"image_{key}", processor.get(key)) for key in statistics}
    statistics = {key: value for key, value in statistics.items() if value is not None}
    white = 255 * factor  # value of a white pixel after rescaling
    if math.isclose(white, 1):
        return statistics
    return {key: [number / white for number in value] for key, value in statistics.items()}


def read_pixel_format(folder: Path) -> dict[str, Any]:
    """Return the options `channels` and `range` of the images.

    For example {"channels": 5, "range": [0, 65535]}. Return {} for 8-bit RGB, and only `channels`
    if the export does not say the range, as in exports of other programs.
    """
    config = _read(folder, "config.json")
    if pixels := config.get("pixels"):
        return {"channels": pixels["channels"], "range": pixels["range"]}
    args = config.get("model_args") or {}
    channels = config.get("num_channels", args.get("in_chans", 3))
    return {} if channels == 3 else {"channels": channels}


def read_eval_crop(folder: Path) -> dict[str, Any]:
    """Return how evaluations of the encoder crop images, as `eval_mode` and `eval_crop`.

    For example {"eval_mode": "crop", "eval_crop": 0.875}. Return an empty dictionary if the two
    options cannot describe the cropping, for example if images are padded with a border.
    """
    config = _read(folder, "config.json")
    if config.get("model_type") == "vit":
        return eval_crop_of_transformers(_read(folder, "preprocessor_config.json"))
    return eval_crop_of_timm(config.get("pretrained_cfg", config))


def eval_crop_of_timm(pretrained: Mapping[str, Any]) -> dict[str, Any]:
    """Convert `crop_pct` and `crop_mode` of timm to the options `eval_mode` and `eval_crop`.

    For example, {"crop_pct": 0.9} gives {"eval_mode": "crop", "eval_crop": 0.9}. Return an empty
    dictionary if the two options cannot describe the cropping.

    Args:
        pretrained: timm's pretrained_cfg.
    """
    crop = pretrained.get("crop_pct")
    mode = pretrained.get("crop_mode") or CROP_MODE
    if mode == "squash" and crop == 1:
        return {"eval_mode": "squash"}
    return _centre_crop(float(crop)) if mode == CROP_MODE and crop else {}


def eval_crop_of_transformers(processor: dict[str, Any]) -> dict[str, Any]:
    """Convert a transformers image processor to the options `eval_mode` and `eval_crop`.

    A square `size` gives `eval_mode=squash`. A `shortest_edge` with a centre crop gives
    `eval_mode=crop`, where `eval_crop` is the side of the crop divided by the shortest edge
    (224 / 256 = 0.875). Any other processor gives an empty dictionary.

    Args:
        processor: Content of preprocessor_config.json.
    """
    size = processor.get("size")
    is_cropped = processor.get("do_center_crop")
    if not processor.get("do_resize", True):
        return {}
    if isinstance(size, int):  # files written before 2023
        size = {"height": size, "width": size}
    if not isinstance(size, dict):
        return {}
    if "height" in size and size["height"] == size.get("width") and not is_cropped:
        return {"eval_mode": "squash"}
    crop = processor.get("crop_size")
    side = crop.get("height") if isinstance(crop, dict) else crop
    shortest_edge = size.get("shortest_edge")
    if not (is_cropped and side and shortest_edge and side <= shortest_edge):
        return {}
    share = side / shortest_edge
    # The evaluation resizes to floor(side / share), which must give shortest_edge again. Rounding
    # can give one pixel less. A slightly smaller share prevents this.
    if math.floor(side / share) < shortest_edge:
        share = math.nextafter(share, 0)
    return _centre_crop(share)


def _centre_crop(share: float) -> dict[str, Any]:
    """Return the options of a centre crop, or an empty dictionary if the share is out of bounds.

    Images are resized to the side of the crop divided by the share. With a tiny share, a resized
    image would take gigabytes.
    """
    return {"eval_mode": "crop", "eval_crop": share} if SMALLEST_CROP <= share <= 1 else {}


def is_timm_format(config: Values) -> bool:
    """Return whether another program wrote this config.json in timm's format.

    Files of this package in timm's format also have the key `sha256` or `encoder`.
    """
    return "architecture" in config and not {DIGESTS, "encoder"} & config.keys()


def model_values(config: Values) -> Values:
    """Return the {key of Model: value} that a config.json describes.

    For example {"name": "vit_192x12_p16", "timm": "vit_base_patch16_224", "width": 192, ...}.
    Return an empty dictionary for a file of timm, or if a size is missing. A file of timm need not
    have sizes, because the name of the architecture implies the sizes.
    """
    if config.get("model_type") == "vit":
        sizes = {key: config[name] for key, name in VIT_KEYS.items()}
        if isinstance(sizes["patch"], list):
            sizes["patch"] = sizes["patch"][0]
        # the choice of the architecture does not matter, because all sizes are given
        architecture = "vit_base_patch16_224"
    else:
        architecture = config["architecture"]
        args = config.get("model_args") or {}
        has_all_sizes = args.keys() >= TIMM_ARGS
        if is_timm_format(config) or not has_all_sizes:
            return {}
        sizes = {
            "patch": args["patch_size"],
            "width": args["embed_dim"],
            "depth": args["depth"],
            "heads": args["num_heads"],
            "mlp": round(args["mlp_ratio"] * args["embed_dim"]),
        }
    # The name is made from the sizes, because the usual sizes of `architecture` may be others
    name = f"vit_{sizes['width']}x{sizes['depth']}_p{sizes['patch']}"
    encoder = config.get("encoder") or {}  # written by this package, see `encoder_options`
    options = {key: encoder[key] for key in ENCODER_KEYS if key in encoder}
    return {"name": name, "timm": architecture, **sizes, **options}


def encoder_options(model: Model) -> dict[str, Any]:
    """Return the value of the key `encoder` in an export's config.json.

    For example {"timm": "vit_base_patch16_224", "registers": 4, "positions": "rotary", ...}. If
    all VARIANT_KEYS have their defaults (a classic Vision Transformer), return an empty dictionary,
    because the arguments of timm in config.json then describe the model completely.
    """
    default = Model()
    if all(getattr(model, key) == getattr(default, key) for key in VARIANT_KEYS):
        return {}
    return {key: getattr(model, key) for key in ENCODER_KEYS}


def preprocessing_values(folder: Path) -> Values:
    """Return the preprocessing that an export describes, as {dotted key: value}.

    For example {"data.mean": [...], "data.std": [...], "data.eval_mode": "crop", ...}. The values
    describe the pixel format, the normalisation and the cropping.
    """
    values = read_pixel_format(folder) | read_normalisation(folder) | read_eval_crop(folder)
    return {f"data.{key}": value for key, value in values.items()}


def feature_values(folder: Path) -> dict[str, Any]:
    """Return the name and the arguments of the architecture from config.json.

    The arguments for pooling are left out, because `InitSource.pooling` returns the pooling.

    Returns:
        {"architecture": name, "model_args": {argument: value}}.
    """
    config = _read(folder, "config.json")
    if config.get("model_type") == "vit":
        args = {name: config.get(name) for name in (*VIT_KEYS.values(), "layer_norm_eps")}
    else:
        model_args = config.get("model_args") or {}
        args = {name: value for name, value in model_args.items() if name not in POOL_ARGS}
    name = config.get("architecture", config.get("model_type"))
    return {"architecture": name, "model_args": args}


def norm_eps(config: Values) -> float | None:
    """Return eps of the layer norms of a transformers ViT.

    Return None for timm, where the architecture implies eps.
    """
    return config.get("layer_norm_eps", EPS) if config.get("model_type") == "vit" else None


def read_pooling(folder: Path) -> str:
    """Return how the encoder pools tokens into a feature.

    Return "avg" (the mean of the patch tokens) if config.json says "avg", otherwise "token" (the
    class token).
    """
    config = _read(folder, "config.json")
    args = config if config.get("model_type") == "vit" else config.get("model_args") or {}
    return "avg" if args.get("global_pool") == "avg" else "token"


def read_image_size(folder: Path) -> int | None:
    """Return the side of the encoder's images in pixels.

    If config.json has a height and a width, return the width. If config.json has no size, return
    None.
    """
    side = next(reversed(image_sides(read(folder))), None)
    return side if isinstance(side, int) else None


def image_sides(config: Values) -> list[int]:
    """Return the size in pixels of the images that the position embeddings were made for.

    Returns:
        [side] for a square, or [height, width]. Empty if config.json has no size.
    """
    size = (config.get("model_args") or {}).get("img_size", config.get("image_size"))
    if size is None:
        # input_size is [channels, height, width]
        size = config.get("pretrained_cfg", config).get("input_size", [])[1:]
    return size if isinstance(size, list) else [size]


def _read(folder: Path, name: str) -> dict[str, Any]:
    """Return the content of config.json or preprocessor_config.json.

    Return an empty dictionary if preprocessor_config.json is missing.
    """
    if name == "config.json":
        return read(folder)
    path = folder / name
    return records.read(path, export.ImageProcessor).content() if path.exists() else {}
