"""Training with stable-pretraining: its methods, transforms, data sets, Module and Manager, put
together as its benchmarks/imagenet10 do, without their probes."""

import types
from typing import Any

import lightning as pl
import stable_pretraining as spt
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
from stable_pretraining.data import transforms
from stable_pretraining.methods.dino import DINO
from stable_pretraining.methods.mae import MAE
from stable_pretraining.methods.mocov3 import MoCov3
from stable_pretraining.methods.simmim import SimMIM
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder


def crop(given: dict[str, Any], size: int, area: list[float], *colours: Any) -> Any:
    """One random view of an image."""
    return transforms.Compose(
        transforms.RGB(),
        transforms.RandomResizedCrop((size, size), scale=tuple(area)),
        *colours,
        transforms.RandomHorizontalFlip(p=0.5),
        transforms.ToImage(mean=given["data.mean"], std=given["data.std"]),
    )


def colours(given: dict[str, Any], solarize: float) -> list[Any]:
    """Changes of a view's colours; what has a chance of 0 is left out."""
    strength = {name: given[f"views.{name}"] for name in ("brightness", "contrast")}
    strength |= {name: given[f"views.{name}"] for name in ("saturation", "hue")}
    found = [
        transforms.ColorJitter(**strength, p=given["views.jitter"]),
        transforms.RandomGrayscale(p=given["views.grayscale"]),
    ]
    return found + [transforms.RandomSolarize(threshold=128, p=solarize)] * (solarize > 0)


def views(given: dict[str, Any]) -> Any:
    """Two views, and the local ones."""
    area = [given["data.crop_area"], 1.0]
    made = {
        f"global_{i}": crop(given, given["data.size"], area, *colours(given, chance))
        for i, chance in enumerate(given["views.solarize"])
    }
    for i in range(given["views.local"]):
        local = given["views.local_area"]
        made[f"local_{i}"] = crop(given, given["views.local_size"], local, *colours(given, 0.0))
    return transforms.MultiViewTransform(made)


def dataset(given: dict[str, Any], transform: Any) -> Any:
    if given["images"] == "table":
        files = f"{given['data.path']}/train*.parquet"
        return spt.data.HFDataset("parquet", data_files=files, split="train", transform=transform)
    folder = ImageFolder(f"{given['data.path']}/train")
    return spt.data.FromTorchDataset(folder, names=["image", "label"], transform=transform)


def train(
    given: dict[str, Any], module: Any, transform: Any, loss_of: Any, *callbacks: Any
) -> None:
    """With `loss_of(module, batch)`, a ModelOutput with the loss."""
    losses = Losses(given["log.every"])

    def forward(self: Any, batch: Any, stage: str) -> dict[str, Any]:
        loss = losses.note(loss_of(self, batch).loss)
        self.log(f"{stage}/loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return {"loss": loss}

    module.forward = types.MethodType(forward, module)
    steps = given["optim.steps"]
    schedule = {"type": "LinearWarmupCosineAnnealing", "total_steps": steps}
    module.optim = {
        "optimizer": {"type": "AdamW", **adamw(given)},
        "scheduler": schedule | {"peak_step": given["optim.warmup"]},
        "interval": "step",
    }
    loader = DataLoader(dataset(given, transform), **loader_arguments(given))
    trainer = pl.Trainer(
        **lightning_arguments(given),
        num_sanity_val_steps=0,
        callbacks=list(callbacks),
        logger=pl.pytorch.loggers.CSVLogger(save_dir=given["out"]),
    )
    spt.Manager(trainer=trainer, module=module, data=spt.data.DataModule(train=loader))()
    finish("stable-pretraining", losses, trained(module), trainer.global_step)


def plain(given: dict[str, Any]) -> Any:
    return crop(given, given["data.size"], [given["data.crop_area"], 1.0])


def mae(given: dict[str, Any]) -> None:
    decoder = {f"decoder_{key}": given[f"mae.{key}"] for key in ("depth",)}
    decoder |= {"decoder_embed_dim": given["mae.width"], "decoder_num_heads": given["mae.heads"]}
    module = MAE(build_vit(given), mask_ratio=given["mae.rate"], **decoder)
    train(given, module, plain(given), lambda self, batch: MAE.forward(self, batch["image"]))


def simmim(given: dict[str, Any]) -> None:
    module = SimMIM(
        build_vit(given),
        patch_size=given["model.patch"],
        mask_ratio=given["corruption.rate"],
        image_size=given["data.size"],
    )
    train(given, module, plain(given), lambda self, batch: SimMIM.forward(self, batch["image"]))


def teacher() -> Any:
    return spt.callbacks.TeacherStudentCallback(update_frequency=1, update_after_backward=True)


def moco_v3(given: dict[str, Any]) -> None:
    hidden, width = given["moco.hidden"], given["moco.width"]
    module = MoCov3(
        build_vit(given, dynamic_img_size=True),
        projector_dims=(hidden, hidden, width),
        predictor_hidden_dim=hidden,
        temperature=given["moco.temperature"],
        ema_decay_start=given["moco.momentum"],
    )

    def loss_of(self: Any, batch: Any) -> Any:
        return MoCov3.forward(self, batch["global_0"]["image"], batch["global_1"]["image"])

    train(given, module, views(given), loss_of, teacher())


def dino(given: dict[str, Any]) -> None:
    warm, temperature = given["dino.teacher_temperature"]
    module = DINO(
        build_vit(given, dynamic_img_size=True),
        projector_hidden_dim=given["dino.hidden"],
        projector_bottleneck_dim=given["dino.width"],
        n_prototypes=given["dino.prototypes"],
        temperature_student=given["dino.temperature"],
        temperature_teacher_warmup=warm,
        temperature_teacher=temperature,
        ema_decay_start=given["dino.momentum"],
    )

    def loss_of(self: Any, batch: Any) -> Any:
        images = {
            kind: [batch[name]["image"] for name in batch if name.startswith(kind)]
            for kind in ("global", "local")
        }
        return DINO.forward(self, global_views=images["global"], local_views=images["local"])

    train(given, module, views(given), loss_of, teacher())


if __name__ == "__main__":
    run({"mae": mae, "mpp": simmim, "moco_v3": moco_v3, "dino": dino})
