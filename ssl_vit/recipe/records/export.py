"""Records for an export's config.json and preprocessor_config.json."""

from typing import Annotated, Any

from pydantic import Field

from ..images import Channels, Mean, PixelRange, Std
from . import Record, Whole


class Normalisation(Record):
    """Mean and std of the pixels, as shares of white."""

    mean: list[Mean] = []
    std: list[Std] = []


class PretrainedConfig(Normalisation):
    """Content of `pretrained_cfg` in an export's config.json."""

    input_size: list[Whole] = []
    interpolation: str = ""


class Pixels(Normalisation):
    """Content of `pixels` in an export's config.json, for images that are not 8-bit RGB."""

    channels: Channels
    range: PixelRange


class ImageProcessor(Record):
    """Content of a preprocessor_config.json of transformers."""

    rescale_factor: Annotated[float, Field(gt=0, le=1e6)] | None = None


class ExportConfig(Record):
    """Content of an export's config.json, in the format of timm or transformers.

    Only the keys that this package reads are fields.
    """

    architecture: str = ""
    model_type: str = ""
    num_classes: Whole | None = None
    global_pool: str | None = None
    model_args: dict[str, Any] | None = None
    pretrained_cfg: PretrainedConfig = PretrainedConfig()
    label_names: list[str] | None = None
    pixels: Pixels | None = None
    layer_norm_eps: Annotated[float, Field(ge=0, le=1)] | None = None
    sha256: dict[str, str] | None = None  # {name of a file of weights: SHA-256}


class OwnPretrainedConfig(PretrainedConfig):
    """Content of `pretrained_cfg` in a config.json that this package wrote."""

    mean: list[Mean]
    std: list[Std]
    input_size: list[Whole]
    interpolation: str


class OwnExportConfig(ExportConfig):
    """Content of an export's config.json that this package wrote."""

    num_classes: Whole
    global_pool: str
    pretrained_cfg: OwnPretrainedConfig
