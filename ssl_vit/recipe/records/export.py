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
    """Content of config.json of an export in the format of timm or transformers, which have many
    more keys.
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
    """Content of `pretrained_cfg` in an export that this package made."""

    mean: list[Mean]
    std: list[Std]
    input_size: list[Whole]
    interpolation: str


class OwnExportConfig(ExportConfig):
    """Content of config.json of an export that this package made."""

    num_classes: Whole
    global_pool: str
    pretrained_cfg: OwnPretrainedConfig
