"""Add ResNets with group norm and weight standardisation to timm's architectures.

The networks are BiT (Kolesnikov et al., 2020), alone and as the stem of a hybrid, with stages and
widths that timm's names do not offer. Importing this module registers the architectures.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from timm.layers import HybridEmbed, StdConv2d, StdConv2dSame
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.resnetv2 import ResNetV2
from timm.models.vision_transformer import VisionTransformer

from ..recipe.model import HYBRID, RESNET

EPS = 1e-8  # for weight standardisation, as in timm's BiT


def resnetv2_bit(
    pretrained: bool = False, layers: Sequence[int] = (3, 4, 6, 3), **args: Any
) -> Any:
    """Build a BiT ResNet, for timm.create_model. The default is timm's resnetv2_50x1_bit.

    Args:
        pretrained: Passed on to timm.
        layers: Number of blocks in each stage.
        **args: Arguments of timm's ResNetV2.
    """
    _check_blocks(layers)
    return build_model_with_cfg(
        ResNetV2,
        RESNET,
        pretrained,
        layers=list(layers),
        stem_type="fixed",
        conv_layer=partial(StdConv2d, eps=EPS),
        feature_cfg={"flatten_sequential": True},
        **args,
    )


def vit_resnetv2_bit(
    pretrained: bool = False,
    layers: Sequence[int] = (3, 4, 9),
    width_factor: float = 1,
    **args: Any,
) -> Any:
    """Build a Vision Transformer on the features of a ResNet, for timm.create_model.

    The default is timm's vit_base_r50_s16_224.

    Args:
        pretrained: Passed on to timm.
        layers: Number of blocks in each stage of the ResNet.
        width_factor: Multiplies the ResNet's numbers of channels.
        **args: Arguments of timm's VisionTransformer.
    """
    _check_blocks(layers)
    backbone = ResNetV2(
        layers=list(layers),
        width_factor=width_factor,  # type: ignore[arg-type]
        num_classes=0,
        global_pool="",
        preact=False,
        stem_type="same",
        conv_layer=partial(StdConv2dSame, eps=EPS),
    )
    return build_model_with_cfg(
        VisionTransformer,
        HYBRID,
        pretrained,
        embed_layer=partial(HybridEmbed, backbone=backbone),
        patch_size=1,
        **args,
    )


def _check_blocks(layers: Sequence[int]) -> None:
    """Check that there are 1 to 4 stages, each with at least one block.

    timm's ResNetV2 has numbers of channels for 4 stages. It would silently ignore a fifth stage.

    Raises:
        ValueError: There are more than 4 stages, or a stage has no block.
    """
    if not 1 <= len(layers) <= 4 or min(layers) < 1:
        raise ValueError("layers: expected 1 to 4 whole numbers above 0")


default_cfgs = generate_default_cfgs(
    {
        RESNET: {"url": "", "first_conv": "stem.conv", "classifier": "head.fc"},
        HYBRID: {
            "url": "",
            "first_conv": "patch_embed.backbone.stem.conv",
            "classifier": "head",
            "fixed_input_size": True,
        },
    }
)
register_model(resnetv2_bit)
register_model(vit_resnetv2_bit)
