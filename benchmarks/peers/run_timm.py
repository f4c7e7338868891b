"""Supervised training with timm, as its train.py: its data set, loader with prefetcher, optimiser,
schedule and loop."""

import itertools
from contextlib import nullcontext
from typing import Any

import torch
from common import Losses, build_vit, finish, run, trained
from timm.data import create_dataset, create_loader
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, dispatch_clip_grad
from torch import nn


def images(given: dict[str, Any], device: torch.device) -> Any:
    """Batches of normalised images on the device, and their labels."""
    path = given["data.path"]
    table = given["images"] == "table"
    dataset = create_dataset(
        f"hfds/{path}" if table else "",
        root=None if table else path,
        split="train",
        is_training=True,
    )
    return create_loader(
        dataset,
        (3, given["data.size"], given["data.size"]),
        given["optim.batch"],
        is_training=True,
        scale=(given["data.crop_area"], 1.0),
        color_jitter=0.0,
        interpolation="bilinear",
        mean=tuple(given["data.mean"]),
        std=tuple(given["data.std"]),
        num_workers=given["workers"],
        persistent_workers=given["workers"] > 0,
        pin_memory=device.type == "cuda",
        device=device,
    )


def supervised(given: dict[str, Any]) -> None:
    device = torch.device(given["device"])
    loader = images(given, device)
    model = build_vit(given, given["data.classes"]).to(device)
    decay, betas = given["optim.weight_decay"], tuple(given["optim.betas"])
    optimizer = create_optimizer_v2(model, "adamw", given["optim.lr"], decay, betas=betas)
    steps, warmup = given["optim.steps"], given["optim.warmup"]
    schedule, _ = create_scheduler_v2(
        optimizer,
        num_epochs=steps,
        warmup_epochs=warmup,
        warmup_prefix=True,
        step_on_epochs=False,
        updates_per_epoch=1,
    )
    half = given["compute.precision"] == "bfloat16"
    autocast = torch.autocast(device.type, torch.bfloat16) if half else nullcontext()
    criterion = nn.CrossEntropyLoss().to(device)
    losses, average = Losses(given["log.every"]), AverageMeter()
    model.train()
    epochs = itertools.chain.from_iterable(itertools.repeat(loader))
    for step, (image, label) in enumerate(epochs, 1):
        with autocast:
            loss = criterion(model(image), label)
        loss.backward()
        if given["optim.clip"]:
            dispatch_clip_grad(model.parameters(), given["optim.clip"])
        optimizer.step()
        optimizer.zero_grad()
        losses.note(loss)
        average.update(loss.item(), len(image))
        schedule.step_update(num_updates=step, metric=average.avg)
        if step % given["log.every"] == 0:
            print(f"Train: [{step}/{steps}] Loss: {average.val:.3g} ({average.avg:.3g})")
        if step == steps:
            break
    finish("timm", losses, trained(model), step)


if __name__ == "__main__":
    run({"supervised": supervised})
