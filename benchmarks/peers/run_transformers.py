"""MAE with transformers, as its examples/pytorch/image-pretraining/run_mae.py: ViTMAEForPreTraining,
Trainer, and `datasets` with set_transform."""

from typing import Any

import torch
from common import finish, run, trained
from datasets import load_dataset
from torchvision.transforms import (
    Compose,
    Lambda,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ToTensor,
)
from transformers import Trainer, TrainingArguments, ViTMAEConfig, ViTMAEForPreTraining


def images(given: dict[str, Any]) -> Any:
    """The training images, cropped as they are read."""
    if given["images"] == "table":
        files = f"{given['data.path']}/train*.parquet"
        rows = load_dataset("parquet", data_files=files, split="train")
    else:
        rows = load_dataset("imagefolder", data_dir=f"{given['data.path']}/train", split="train")
    change = Compose(
        [
            Lambda(lambda image: image.convert("RGB") if image.mode != "RGB" else image),
            RandomResizedCrop(given["data.size"], scale=(given["data.crop_area"], 1.0)),
            RandomHorizontalFlip(),
            ToTensor(),
            Normalize(mean=given["data.mean"], std=given["data.std"]),
        ]
    )

    def transform(cells: dict[str, Any]) -> dict[str, Any]:
        cells["pixel_values"] = [change(image) for image in cells["image"]]
        return cells

    rows.set_transform(transform)
    return rows


def collate(examples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"pixel_values": torch.stack([example["pixel_values"] for example in examples])}


def mae(given: dict[str, Any]) -> None:
    config = ViTMAEConfig(
        hidden_size=given["model.width"],
        num_hidden_layers=given["model.depth"],
        num_attention_heads=given["model.heads"],
        intermediate_size=given["model.mlp"],
        image_size=given["data.size"],
        patch_size=given["model.patch"],
        decoder_hidden_size=given["mae.width"],
        decoder_num_hidden_layers=given["mae.depth"],
        decoder_num_attention_heads=given["mae.heads"],
        decoder_intermediate_size=4 * given["mae.width"],
        mask_ratio=given["mae.rate"],
        norm_pix_loss=True,
    )
    model = ViTMAEForPreTraining(config)
    arguments = TrainingArguments(
        output_dir=given["out"],
        remove_unused_columns=False,  # as the example's README has it
        max_steps=given["optim.steps"],
        per_device_train_batch_size=given["optim.batch"],
        learning_rate=given["optim.lr"],
        adam_beta1=given["optim.betas"][0],
        adam_beta2=given["optim.betas"][1],
        weight_decay=given["optim.weight_decay"],
        max_grad_norm=given["optim.clip"] or 0.0,
        lr_scheduler_type="cosine",
        warmup_steps=given["optim.warmup"],
        logging_steps=given["log.every"],
        logging_first_step=True,
        save_strategy="no",
        report_to="none",
        use_cpu=given["device"] == "cpu",
        bf16=given["compute.precision"] == "bfloat16",
        dataloader_num_workers=given["workers"],
        dataloader_persistent_workers=given["workers"] > 0,
        dataloader_drop_last=True,
    )
    trainer = Trainer(
        model=model, args=arguments, train_dataset=images(given), data_collator=collate
    )
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    finish("transformers", losses, trained(model), trainer.state.global_step)


if __name__ == "__main__":
    run({"mae": mae})
