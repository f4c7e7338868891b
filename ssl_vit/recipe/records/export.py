"""An export's config.json and preprocessor_config.json as records."""

from typing import Annotated, Any

from pydantic import Field

from ..images import Channels, Mean, PixelRange, Std
from . import Record, Whole


class Normalisation(Record):
    """Mean and std of the pixels, as shares of white."""

    mean: list[Mean] = []
    std: list[Std] = []


class PretrainedConfig(Normalisation):
    """pretrained_cfg of an export's config.json."""

    input_size: list[Whole] = []
    interpolation: str = ""


class Pixels(Normalisation):
    """`pixels` of an export's config.json, of images that are not RGB of 8 bits."""

    channels: Channels
    range: PixelRange


class ImageProcessor(Record):
    """preprocessor_config.json of transformers."""

    rescale_factor: Annotated[float, Field(gt=0, le=1e6)] | None = None


class ExportConfig(Record):
    """config.json of an export, timm's or transformers': formats with many more keys."""

    architecture: str = ""
    model_type: str = ""
    num_classes: Whole | None = None
    global_pool: str | None = None
    model_args: dict[str, Any] | None = None
    pretrained_cfg: PretrainedConfig = PretrainedConfig()
    label_names: list[str] | None = None
    pixels: Pixels | None = None
    layer_norm_eps: Annotated[float, Field(ge=0, le=1)] | None = None
    sha256: dict[str, str] | None = None  # of the files of weights, by their names


class OwnPretrainedConfig(PretrainedConfig):
    """That of an export that this package made."""

    mean: list[Mean]
    std: list[Std]
    input_size: list[Whole]
    interpolation: str


class OwnExportConfig(ExportConfig):
    """config.json of an export that this package made."""

    num_classes: Whole
    global_pool: str
    pretrained_cfg: OwnPretrainedConfig
