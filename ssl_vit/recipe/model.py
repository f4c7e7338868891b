"""The keys on the encoder. No torch here."""

from typing import Literal

from .keys import Depth, Keys, Width, key
from .names import TimmName

CLASSIC = "vit_base_patch16_224"  # timm's architecture of the paper's encoder
# timm's ResNets with group norm and weight standardisation (BiT): blocks a stage, width factor
BIT = {
    "resnetv2_50x1_bit": ((3, 4, 6, 3), 1.0),
    "resnetv2_50x3_bit": ((3, 4, 6, 3), 3.0),
    "resnetv2_101x1_bit": ((3, 4, 23, 3), 1.0),
    "resnetv2_101x3_bit": ((3, 4, 23, 3), 3.0),
    "resnetv2_152x2_bit": ((3, 8, 36, 3), 2.0),
    "resnetv2_152x4_bit": ((3, 8, 36, 3), 4.0),
}
HYBRIDS = {  # timm's Vision Transformers on such a ResNet's feature map
    "vit_base_r50_s16_224": ((3, 4, 9), 1.0),
    "vit_large_r50_s32_224": ((3, 4, 6, 3), 1.0),
}
STEM_CHANNELS = 64  # of the ResNets' first convolution at width factor 1
STAGE_CHANNELS = (256, 512, 1024, 2048)  # of their stages
POSITIONS = ("learned", "learned_2d", "sincos_2d", "rotary", "none")


def in_timm(timm: str, stages: list[int], width_factor: float) -> bool:
    """Whether this architecture of timm, with its own arguments, has a ResNet of these sizes."""
    if timm in BIT:  # which takes the channels of its stages
        return BIT[timm][0] == tuple(stages)
    return HYBRIDS.get(timm) == (tuple(stages), width_factor)


class Model(Keys):
    from_init = True

    name: str = key("", "Name of the model; model=NAME sets it.")
    timm: TimmName = key(CLASSIC, "timm architecture that the values below override.")
    patch: Width = key(16, "Side of a patch in pixels.")
    width: Width = key(768, "Embedding width.")
    depth: Depth = key(12, "Number of transformer blocks.")
    heads: Width = key(12, "Attention heads.")
    mlp: Width = key(3072, "Width of the MLP's hidden layer.")
    registers: int = key(
        0, "Register tokens after the class token (Darcet et al., 2024).", ge=0, le=1024
    )
    layer_scale: float | None = key(
        None,
        "First value of LayerScale, a factor for each channel of every residual branch (Touvron et"
        " al., 2021); null: none.",
        gt=0,
        le=100,
    )
    qk_norm: bool = key(
        False, "Layer norm of queries and keys in every head (Dehghani et al., 2023)."
    )
    activation: Literal["gelu", "swiglu"] = key(
        "gelu",
        "Of the MLP: gelu, or swiglu (Shazeer, 2020), which has a third matrix: with two thirds of"
        " model.mlp it costs the same.",
    )
    positions: Literal["learned", "learned_2d", "sincos_2d", "rotary", "none"] = key(
        "learned",
        "Positions of the patches: learned (one embedding each), learned_2d (one for each row and"
        " each column), sincos_2d (fixed), rotary (axial) or none.",
    )
    stem_width: int = key(
        0,
        "Channels of the ResNet whose feature map supplies the patches (hybrid); 0: patches of"
        " pixels.",
        ge=0,
        le=2**16,
    )
    convolutional: bool = key(
        False, "A convolutional network without patches; objectives that need patches refuse it."
    )
    stages: list[Depth] | None = key(
        None,
        "Blocks in each stage of a ResNet with group norm and weight standardisation (BiT), or of"
        " a hybrid's: [3,4,6,3] is a ResNet-50; null: model.timm's own.",
    )
    width_factor: float = key(1.0, "Width of that ResNet over a ResNet-50's (BiT's x1, x2, x3).")
    adapt_channels: bool = key(
        False,
        "First weights of RGB for data.channels=N: timm's rule repeats the first layer's filters"
        " over the channels and scales them by 3 / N; false: such weights are refused.",
    )

    @property
    def hybrid(self) -> bool:
        return self.stem_width > 0

    @property
    def opened_by(self) -> str:
        """The import after which timm.create_model opens an export: timm lacks ResNets of other
        sizes than BiT's, which this package registers."""
        if self.stages and not in_timm(self.timm, self.stages, self.width_factor):
            return "import timm, ssl_vit.models.resnet"
        return "import timm"
