"""The keys on the encoder. No torch here."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from .keys import LONGEST_LIST, Depth, Keys, Only, Width, key
from .names import TimmName

CLASSIC = "vit_base_patch16_224"  # timm's architecture of the paper's encoder
# ResNets with group norm and weight standardisation (BiT), alone and as a hybrid's stem, of any
# sizes: those that models/resnet.py adds to timm's architectures
RESNET = "resnetv2_bit"
HYBRID = "vit_resnetv2_bit"
# How the names of timm's Vision Transformers begin, and those on a feature map of convolutions
TRANSFORMERS = ("vit", "deit", "flexivit", "beit3", "aimv2", "eva", "test_vit")
HYBRIDS = re.compile(r"vit_(\w+_)?(r\d*_s\d|resnet|mci)|vitamin_")
POSITIONS = ("learned", "learned_2d", "sincos_2d", "rotary", "none")
# Arguments of timm's builders -> the key that gives them; None: this package does
GIVEN = {
    "img_size": "data.size",
    "in_chans": "data.channels",
    "patch_size": "model.patch",
    "embed_dim": "model.width",
    "depth": "model.depth",
    "num_heads": "model.heads",
    "mlp_ratio": "model.mlp",
    "qk_norm": "model.qk_norm",
    "init_values": "model.layer_scale",
    "swiglu_mlp": "model.activation",
    "drop_path_rate": "optim.drop_path",
    **dict.fromkeys(("reg_tokens", "num_reg_tokens"), "model.registers"),
    "pos_embed": "model.positions",
    **dict.fromkeys(("drop_rate", "pos_drop_rate", "proj_drop_rate"), "optim.dropout"),
    **dict.fromkeys(("pretrained", "pretrained_cfg", "num_classes", "global_pool")),
    **dict.fromkeys(("dynamic_img_size", "patch_drop_rate", "weight_init", "features_only")),
}


def _whole(number: float) -> float:
    """2.0 as 2: which of them timm's builder expects is not known, and both are one experiment."""
    return int(number) if number == int(number) else number


# Texts among the arguments, and no others: some of timm's name what it downloads, and recipes come
# from strangers
WORDS = (
    *("cat", "dinov3", "ij", "xy", "eva", "rope", "layernorm", "rmsnorm"),
    *("gelu", "gelu_tanh", "quick_gelu", "silu"),
)
Number = Annotated[int | float, Field(ge=-(2**16), le=2**16), AfterValidator(_whole)]
Numbers = Annotated[list[Number], Field(max_length=LONGEST_LIST)]
Arguments = Annotated[
    dict[str, bool | Number | Numbers | Annotated[str, Only(WORDS.__contains__, "")]],
    Only(
        lambda args: all(map(str.isidentifier, args)),
        f"names in braces with numbers, true, false, lists of numbers or one of {', '.join(WORDS)}",
    ),
]


class Model(Keys):
    """The encoder; model=NAME: recipes/tables/models.yaml.

    Attributes:
        name: Name of the model; model=NAME sets it.
        timm: timm architecture that the values below override.
        args: More arguments of the function that builds it, timm's or one of models/resnet.py:
            {layers: [3,4,6,3], width_factor: 2}.
        patch: Side of a patch in pixels.
        width: Embedding width; of another network the length of its feature.
        depth: Number of transformer blocks.
        heads: Attention heads.
        mlp: Width of the MLP's hidden layer.
        registers: Register tokens after the class token (Darcet et al., 2024).
        layer_scale: First value of LayerScale, a factor for each channel of every residual branch
            (Touvron et al., 2021); null: none.
        qk_norm: Layer norm of queries and keys in every head (Dehghani et al., 2023).
        activation: Of the MLP: gelu (or what model.timm has in its place), or swiglu (Shazeer,
            2020), which has a third matrix: with two thirds of model.mlp it costs the same.
        positions: Positions of the patches: learned (one embedding each), learned_2d (one for each
            row and each column), sincos_2d (fixed), rotary (axial; of an Eva of timm its own) or
            none.
        adapt_channels: Initial weights of RGB for data.channels=N: timm's rule repeats the first
            layer's filters over the channels and scales them by 3 / N; false: such weights are
            refused.
    """

    from_init = True

    name: str = key("")
    timm: TimmName = key(CLASSIC)
    args: Arguments = key({})
    patch: Width = key(16)
    width: Width = key(768)
    depth: Depth = key(12)
    heads: Width = key(12)
    mlp: int = key(3072, gt=0, le=2**16)
    registers: int = key(0, ge=0, le=1024)
    layer_scale: float | None = key(None, gt=0, le=100)
    qk_norm: bool = key(False)
    activation: Literal["gelu", "swiglu"] = key("gelu")
    positions: Literal["learned", "learned_2d", "sincos_2d", "rotary", "none"] = key("learned")
    adapt_channels: bool = key(False)

    @property
    def convolutional(self) -> bool:
        """Whether it is no Vision Transformer: a network without patches, as a ResNet."""
        return not self.timm.startswith(TRANSFORMERS)

    @property
    def class_token(self) -> bool:
        """Whether it has a class token; what it is without one states that among the arguments."""
        return self.args.get("class_token") is not False

    @property
    def hybrid(self) -> bool:
        """Whether the patches are cells of a feature map of convolutions."""
        return HYBRIDS.match(self.timm) is not None

    @property
    def opened_by(self) -> str:
        """The import after which timm.create_model opens an export."""
        own = self.timm in (RESNET, HYBRID)
        return "import timm, ssl_vit.models.resnet" if own else "import timm"
