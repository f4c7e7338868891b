"""An export's config.json as a record."""

from typing import Annotated, Any

from pydantic import Field

from . import Number, Record, Whole


class PretrainedConfig(Record):
    """pretrained_cfg of an export's config.json."""

    mean: list[Number] = []
    std: list[Number] = []
    input_size: list[Whole] = []
    interpolation: str = ""


class Pixels(Record):
    """`pixels` of an export's config.json, of images that are not RGB of 8 bits."""

    channels: Whole
    range: Annotated[list[Whole], Field(min_length=2, max_length=2)]
    mean: list[Number] = []
    std: list[Number] = []


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
    sha256: dict[str, str] | None = None  # of the files of weights, by their names


class OwnPretrainedConfig(PretrainedConfig):
    """That of an export that this package made."""

    mean: list[Number]
    std: list[Number]
    input_size: list[Whole]
    interpolation: str


class OwnExportConfig(ExportConfig):
    """config.json of an export that this package made."""

    num_classes: Whole
    global_pool: str
    pretrained_cfg: OwnPretrainedConfig
