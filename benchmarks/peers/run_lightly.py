"""MAE, SimMIM and DINO with lightly, as its examples/pytorch_lightning, on timm's encoder: its
modules, losses, transforms and data set, and Lightning's loop."""

import copy
from typing import Any

import pytorch_lightning as pl
import torch
from common import (
    Losses,
    adamw,
    build_vit,
    finish,
    lightning_arguments,
    loader_arguments,
    run,
    trained,
)
from lightly.data import LightlyDataset
from lightly.loss import DINOLoss
from lightly.models import utils
from lightly.models.modules import (
    DINOProjectionHead,
    MaskedVisionTransformerDecoderTIMM,
    MaskedVisionTransformerTIMM,
)
from lightly.models.modules.masked_vision_transformer_timm import init_weights
from lightly.transforms import DINOTransform, MAETransform
from lightly.utils.scheduler import cosine_schedule
from torch import Tensor, nn
from torch.utils.data import DataLoader


class Method(pl.LightningModule):
    """What all of them have."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__()
        self.given, self.losses = given, Losses(given["log.every"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        trained = [p for p in self.parameters() if p.requires_grad]
        return torch.optim.AdamW(trained, **adamw(self.given))


class Masked(Method):
    """An encoder, and the patches that it does not see."""

    def __init__(self, given: dict[str, Any], rate: float) -> None:
        super().__init__(given)
        self.rate, self.patch = rate, given["model.patch"]
        self.backbone = MaskedVisionTransformerTIMM(vit=build_vit(given))

    def draw(self, images: Tensor) -> tuple[Tensor, Tensor]:
        size = (len(images), self.backbone.sequence_length)
        return utils.random_token_mask(size=size, mask_ratio=self.rate, device=images.device)

    def target(self, images: Tensor, masked: Tensor) -> Tensor:
        # the class token has index 0
        return utils.get_at_index(utils.patchify(images, self.patch), masked - 1)


class MAE(Masked):
    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__(given, given["mae.rate"])
        vit, width = self.backbone.vit, given["mae.width"]
        self.decoder_embed = nn.Linear(vit.embed_dim, width)
        self.decoder = MaskedVisionTransformerDecoderTIMM(
            num_patches=vit.patch_embed.num_patches,
            embed_dim=width,
            depth=given["mae.depth"],
            num_heads=given["mae.heads"],
            num_prefix_tokens=vit.num_prefix_tokens,
            mlp_ratio=4.0,
            proj_drop_rate=0.0,
            attn_drop_rate=0.0,
        )
        self.prediction_head = nn.Linear(width, self.patch**2 * 3)
        self.decoder_embed.apply(init_weights)
        self.prediction_head.apply(init_weights)
        self.criterion = nn.MSELoss()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images = batch[0][0]  # its one view
        keep, masked = self.draw(images)
        seen = self.decoder_embed(self.backbone.encode(images=images, idx_keep=keep))
        all_tokens = seen.new_zeros(len(images), self.backbone.sequence_length, seen.shape[-1])
        all_tokens = utils.set_at_index(all_tokens, keep, seen)
        decoded = self.decoder(all_tokens, idx_mask=masked)
        predicted = self.prediction_head(utils.get_at_index(decoded, masked))
        target = utils.normalize_mean_var(self.target(images, masked))
        return self.losses.note(self.criterion(predicted, target))


class SimMIM(Masked):
    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__(given, given["corruption.rate"])
        self.decoder = nn.Linear(self.backbone.vit.embed_dim, self.patch**2 * 3)
        self.criterion = nn.L1Loss()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images = batch[0][0]
        _, masked = self.draw(images)
        encoded = self.backbone.encode(images=images, idx_mask=masked)
        predicted = self.decoder(utils.get_at_index(encoded, masked))
        return self.losses.note(self.criterion(predicted, self.target(images, masked)))


class DINO(Method):
    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__(given)
        sizes = [given[f"dino.{key}"] for key in ("hidden", "width", "prototypes")]
        backbone = build_vit(given, dynamic_img_size=True)
        self.student_backbone = backbone
        self.student_head = DINOProjectionHead(backbone.embed_dim, *sizes)
        self.teacher_backbone = copy.deepcopy(backbone)
        self.teacher_head = DINOProjectionHead(backbone.embed_dim, *sizes)
        utils.deactivate_requires_grad(self.teacher_backbone)
        utils.deactivate_requires_grad(self.teacher_head)
        warm, temperature = given["dino.teacher_temperature"]
        self.criterion = DINOLoss(
            output_dim=given["dino.prototypes"],
            warmup_teacher_temp=warm,
            teacher_temp=temperature,
            student_temp=given["dino.temperature"],
            center_momentum=given["dino.centre_momentum"],
        )

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        steps = self.given["optim.steps"]
        momentum = cosine_schedule(self.global_step, steps, self.given["dino.momentum"], 1)
        utils.update_momentum(self.student_backbone, self.teacher_backbone, m=momentum)
        utils.update_momentum(self.student_head, self.teacher_head, m=momentum)
        views = batch[0]
        teacher = [self.teacher_head(self.teacher_backbone(view)) for view in views[:2]]
        student = [self.student_head(self.student_backbone(view)) for view in views]
        return self.losses.note(self.criterion(teacher, student, epoch=self.current_epoch))


def normalize(given: dict[str, Any]) -> dict[str, Any]:
    return {"mean": given["data.mean"], "std": given["data.std"]}


def train(given: dict[str, Any], module: Method, transform: Any) -> None:
    dataset = LightlyDataset(f"{given['data.path']}/train", transform=transform)
    loader = DataLoader(dataset, **loader_arguments(given))
    trainer = pl.Trainer(**lightning_arguments(given), default_root_dir=given["out"])
    trainer.fit(model=module, train_dataloaders=loader)
    finish("lightly", module.losses, trained(module), trainer.global_step)


def masked(given: dict[str, Any]) -> None:
    transform = MAETransform(given["data.size"], given["data.crop_area"], normalize(given))
    module = MAE(given) if given["objective"] == "mae" else SimMIM(given)
    train(given, module, transform)


def dino(given: dict[str, Any]) -> None:
    transform = DINOTransform(
        global_crop_size=given["data.size"],
        global_crop_scale=(given["data.crop_area"], 1.0),
        local_crop_size=given["views.local_size"],
        local_crop_scale=tuple(given["views.local_area"]),
        n_local_views=given["views.local"],
        cj_prob=given["views.jitter"],
        cj_strength=1.0,
        cj_bright=given["views.brightness"],
        cj_contrast=given["views.contrast"],
        cj_sat=given["views.saturation"],
        cj_hue=given["views.hue"],
        random_gray_scale=given["views.grayscale"],
        gaussian_blur=(*given["views.blur"], given["views.local_blur"]),
        solarization_prob=given["views.solarize"][1],
        normalize=normalize(given),
    )
    train(given, DINO(given), transform)


if __name__ == "__main__":
    run({"mae": masked, "mpp": masked, "dino": dino})
