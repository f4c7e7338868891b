"""Keys for the encoder. This module does not import torch."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from .keys import LONGEST_LIST, Allowed, Depth, Keys, Width, key
from .names import TimmName

CLASSIC = "vit_base_patch16_224"  # timm's name for the encoder of the paper
# Names of architectures that models/resnet.py adds to timm. RESNET is a ResNet of any size with
# group norm and weight standardisation (BiT). HYBRID is a Vision Transformer on such a ResNet.
RESNET = "resnetv2_bit"
HYBRID = "vit_resnetv2_bit"
# How the names of timm's Vision Transformers begin
TRANSFORMERS = ("vit", "deit", "flexivit", "beit3", "aimv2", "eva", "test_vit")
# Names of Vision Transformers that cut a convolutional feature map into patches
HYBRIDS = re.compile(r"vit_(\w+_)?(r\d*_s\d|resnet|mci)|vitamin_")
POSITIONS = ("learned", "learned_2d", "sincos_2d", "rotary", "none")
# {argument of timm's builders: recipe key that sets the argument, or None if this package sets it}
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
    """Convert a float without decimals to an int: 2.0 gives 2, and 2.5 stays 2.5.

    Some arguments of timm must be ints. Also, runs with 2 and with 2.0 are the same experiment.
    """
    return int(number) if number == int(number) else number


# The only texts that are allowed among the arguments. Some of timm's arguments name files to
# download, and recipes come from strangers.
WORDS = (
    *("cat", "dinov3", "ij", "xy", "eva", "rope", "layernorm", "rmsnorm"),
    *("gelu", "gelu_tanh", "quick_gelu", "silu"),
)
Number = Annotated[int | float, Field(ge=-(2**16), le=2**16), AfterValidator(_whole)]
Numbers = Annotated[list[Number], Field(max_length=LONGEST_LIST)]
Arguments = Annotated[
    dict[str, bool | Number | Numbers | Annotated[str, Allowed(WORDS.__contains__, "")]],
    Allowed(
        lambda args: all(map(str.isidentifier, args)),
        f"{{name: value}} with numbers, lists of numbers, true, false or {', '.join(WORDS)}",
    ),
]
TrainedPart = Annotated[
    str,
    Allowed(
        re.compile(r"all|(blocks|lora):[1-9][0-9]{0,4}").fullmatch,
        "all, blocks:K or lora:RANK, with a whole number from 1 for K and RANK",
    ),
]


class Model(Keys):
    """Encoder. `model=NAME` takes a row of recipes/tables/models.yaml.

    Attributes:
        name: Name of the model. Set it with model=NAME.
        timm: timm architecture to start from; the keys below override its values.
        args: More arguments for the function that builds the network, in timm or in
            models/resnet.py, such as {layers: [3,4,6,3], width_factor: 2}.
        patch: Side of a patch in pixels.
        width: Width of the embeddings. For a network other than a Vision Transformer, the length of
            its feature.
        depth: Number of transformer blocks.
        heads: Number of attention heads.
        mlp: Width of the hidden layer of each MLP.
        registers: Number of register tokens after the class token (Darcet et al., 2024).
        layer_scale: Initial value of LayerScale, a learned factor for each channel of every
            residual branch (Touvron et al., 2021). null: no LayerScale.
        qk_norm: Normalise queries and keys in every head with a layer norm (Dehghani et al., 2023).
        activation: Activation of each MLP: gelu (or what the architecture in model.timm uses) or
            swiglu (Shazeer, 2020). swiglu has a third weight matrix, so use two thirds of model.mlp
            for the same cost.
        positions: Position embeddings of the patches: learned (one per patch), learned_2d (one per
            row and one per column), sincos_2d (fixed), rotary (axial; an Eva of timm uses its own
            kind) or none.
        adapt_channels: Adapt initial weights made for RGB to data.channels=N by timm's rule: repeat
            the filters of the first layer over the channels and scale them by 3 / N. false: refuse
            such weights.
        train: Part of the encoder that is trained after init=: all, blocks:K (the last K blocks and
            the final norm) or lora:RANK (low-rank updates of the attention's linear layers; Hu et
            al., 2022). The parts of the objective outside the encoder are always trained.
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
    train: TrainedPart = key("all", from_init=False)

    @property
    def convolutional(self) -> bool:
        """Return whether the network is convolutional and has no patches, such as a ResNet."""
        return not self.timm.startswith(TRANSFORMERS)

    @property
    def class_token(self) -> bool:
        """Return whether the encoder has a class token.

        A model without a class token has `class_token: false` in `args`. A missing `class_token`
        means that the encoder has a class token.
        """
        return self.args.get("class_token") is not False

    @property
    def network(self) -> dict[str, Any]:
        """Keys that describe the network, without the name and the part that is trained."""
        return self.model_dump(exclude={"name", "train"})

    def number_of(self, kind: str) -> int:
        """Return K of `train=blocks:K` or RANK of `train=lora:RANK`, and 0 for another kind.

        Args:
            kind: "blocks" or "lora".
        """
        name, _, number = self.train.partition(":")
        return int(number) if name == kind else 0

    @property
    def hybrid(self) -> bool:
        """Return whether the patches are cut from a convolutional feature map, not from pixels."""
        return HYBRIDS.match(self.timm) is not None

    @property
    def opened_by(self) -> str:
        """Import statement that must run before timm.create_model can build this network.

        The networks of models/resnet.py are known to timm only after an import of that module.
        """
        is_ours = self.timm in (RESNET, HYBRID)
        return "import timm, ssl_vit.models.resnet" if is_ours else "import timm"
