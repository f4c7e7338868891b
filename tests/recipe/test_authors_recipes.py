"""The recipes of other papers, resolved, against a table of what their authors released; what
differs is said in the recipe. Sources, all at their last commit: facebookresearch/mae,
microsoft/SimMIM, facebookresearch/moco-v3, facebookresearch/dino, bytedance/ibot,
facebookresearch/dinov2, facebookresearch/ijepa, google-research/task_adaptation.
"""

import math
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from helpers.runs import run
from ssl_vit.recipe.load import resolve
from ssl_vit.recipe.split_counts import selected_count

IMAGES = 1_281_167  # ImageNet's training images
IMAGENET = {  # the mean and standard deviation of all
    "data.size": 224,
    "data.mean": [0.485, 0.456, 0.406],
    "data.std": [0.229, 0.224, 0.225],
}
VIT_B16 = {
    "model.patch": 16,
    "model.width": 768,
    "model.depth": 12,
    "model.heads": 12,
    "model.mlp": 3072,
    "model.activation": "gelu",
    "model.registers": 0,
    "model.qk_norm": False,
}
VIT_S16 = {"model.patch": 16, "model.width": 384, "model.depth": 12, "model.heads": 6}
ADAMW = {  # with PyTorch's default betas, where the authors give none
    "optim.name": "adamw",
    "optim.betas": [0.9, 0.999],
    "optim.schedule": "cosine",
    "optim.drop_path": 0.0,
    "optim.dropout": 0.0,
    "optim.clip": None,
}
VIEWS = {  # main_moco.py: augmentation1, augmentation2; main_dino.py: DataAugmentationDINO
    "views.jitter": 0.8,
    "views.brightness": 0.4,
    "views.contrast": 0.4,
    "views.saturation": 0.2,
    "views.hue": 0.1,
    "views.grayscale": 0.2,
    "views.blur": [1.0, 0.1],
    "views.blur_sigma": [0.1, 2.0],
    "views.solarize": [0.0, 0.2],
}
SELF_DISTILLATION = {  # of DINO and of iBOT
    "optim.batch": 1024,
    "optim.lr": 5e-4 * 1024 / 256,
    "optim.weight_decay": 0.04,
    "optim.weight_decay_end": 0.4,
    "optim.drop_path": 0.1,
    "optim.clip": 3.0,  # --clip_grad
}


def epoch(batch: int, processes: int) -> int:
    """Steps of an epoch: DistributedSampler fills the last images up, DataLoader drops the last
    batch."""
    return math.ceil(IMAGES / processes) // (batch // processes)


AUTHORS: dict[str, dict[str, Any]] = {
    "mae_b16": IMAGENET
    | VIT_B16
    | ADAMW
    | {
        "objective": "mae",
        "data.crop_area": 0.2,  # main_pretrain.py: scale=(0.2, 1.0)
        "model.positions": "sincos_2d",  # models_mae.py: "fixed sin-cos embedding"
        "model.layer_scale": None,
        "mae.rate": 0.75,  # PRETRAIN.md: --mask_ratio
        "mae.width": 512,  # models_mae.py: mae_vit_base_patch16_dec512d8b
        "mae.depth": 8,
        "mae.heads": 16,
        "target": "normalized_pixels",  # PRETRAIN.md: --norm_pix_loss
        "optim.steps": 800 * epoch(4096, 64),  # PRETRAIN.md: 8 nodes of 8 GPUs, 800 epochs
        "optim.warmup": 40 * epoch(4096, 64),
        "optim.batch": 4096,
        "optim.lr": 1.5e-4 * 4096 / 256,  # PRETRAIN.md: --blr
        "optim.betas": [0.9, 0.95],  # main_pretrain.py
        "optim.weight_decay": 0.05,
    },
    "simmim_b16": IMAGENET
    | VIT_B16
    | ADAMW
    | {
        "objective": "mpp",
        "data.crop_area": 0.67,  # data/data_simmim.py: scale=(0.67, 1.)
        "model.layer_scale": 0.1,  # config.py: VIT.INIT_VALUES
        "corruption.rate": 0.6,  # MASK_RATIO
        "corruption.mask": 1.0,
        "corruption.random": 0.0,
        "corruption.keep": 0.0,
        "corruption.side": 32 // 16,  # MASK_PATCH_SIZE over PATCH_SIZE
        "target": "pixels_l1",  # models/simmim.py: l1_loss
        "optim.steps": 800 * epoch(2048, 16),  # EPOCHS; README: 16 processes of 128
        "optim.warmup": 10 * epoch(2048, 16),  # WARMUP_EPOCHS
        "optim.batch": 2048,
        "optim.lr": 1e-4 * 2048 / 512,  # BASE_LR; main_simmim.py
        "optim.schedule": "steps",  # LR_SCHEDULER.NAME: multistep, GAMMA: 0.1
        "optim.drops": [700 / 800],  # MULTISTEPS: [700,]
        "optim.weight_decay": 0.05,
        "optim.drop_path": 0.1,  # DROP_PATH_RATE
        "optim.clip": 5.0,  # config.py: CLIP_GRAD
    },
    "moco_v3_b16": IMAGENET
    | VIT_B16
    | ADAMW
    | VIEWS
    | {
        "objective": "moco_v3",
        "data.crop_area": 0.08,  # main_moco.py: --crop-min
        "model.positions": "sincos_2d",  # vits.py
        "model.layer_scale": None,
        "moco.temperature": 0.2,  # CONFIG.md: --moco-t
        "moco.momentum": 0.99,  # main_moco.py: --moco-m
        "moco.hidden": 4096,  # --moco-mlp-dim
        "moco.width": 256,  # --moco-dim
        "moco.freeze_patches": True,  # CONFIG.md: --stop-grad-conv1
        "optim.steps": 300 * epoch(4096, 64),  # CONFIG.md: 8 nodes of 8 GPUs
        "optim.warmup": 40 * epoch(4096, 64),
        "optim.batch": 4096,
        "optim.lr": 1.5e-4 * 4096 / 256,
        "optim.weight_decay": 0.1,
    },
    "dino_s16": IMAGENET
    | VIT_S16
    | ADAMW
    | VIEWS
    | SELF_DISTILLATION
    | {
        "objective": "dino",
        "data.crop_area": 0.4,  # main_dino.py: --global_crops_scale
        "dino.prototypes": 65536,  # --out_dim
        "dino.hidden": 2048,  # vision_transformer.py: DINOHead
        "dino.width": 256,
        "dino.lengths": True,  # README: --norm_last_layer false
        "dino.freeze": pytest.approx(1 / 300, rel=1e-5),  # --freeze_last_layer 1
        "dino.temperature": 0.1,  # DINOLoss
        "dino.teacher_temperature": [0.04, 0.07],  # README: --teacher_temp 0.07
        "dino.warmup": 30 / 300,  # README: --warmup_teacher_temp_epochs 30
        "dino.momentum": 0.996,  # --momentum_teacher
        "dino.balance": "centre",
        "dino.centre_momentum": 0.9,
        "views.local": 8,  # --local_crops_number
        "views.local_size": 96,
        "views.local_area": [0.05, 0.4],  # --local_crops_scale
        "views.local_blur": 0.5,
        "optim.steps": 300 * epoch(1024, 16),  # README: --epochs 300; 2 nodes of 8 GPUs
        "optim.warmup": 10 * epoch(1024, 16),
    },
    "ibot_s16": IMAGENET
    | VIT_S16
    | ADAMW
    | VIEWS
    | SELF_DISTILLATION
    | {
        "objective": "ibot",
        "data.crop_area": 0.25,  # README: --global_crops_scale
        "ibot.prototypes": 8192,  # --out_dim
        "ibot.hidden": 2048,  # models/head.py
        "ibot.width": 256,
        "ibot.lengths": True,  # --norm_last_layer false
        "ibot.freeze": 1 / 800,  # --freeze_last_layer 1
        "ibot.temperature": 0.1,
        "ibot.teacher_temperature": [0.04, 0.07],
        "ibot.patch_temperature": [0.04, 0.07],
        "ibot.warmup": 30 / 800,
        "ibot.momentum": 0.996,
        "ibot.rate": [0.1, 0.5],  # --pred_ratio 0.3, --pred_ratio_var 0.2
        "ibot.whole": 0.5,  # --pred_ratio 0
        "ibot.shared": True,
        "ibot.weight": 1.0,  # --lambda2
        "views.local": 10,
        "views.local_size": 96,
        "views.local_area": [0.05, 0.25],
        "optim.steps": 800 * epoch(1024, 16),
        "optim.warmup": 10 * epoch(1024, 16),
    },
    "dinov2_l14": IMAGENET
    | ADAMW
    | VIEWS
    | {
        "objective": "ibot",
        "model.width": 1024,  # configs/train/vitl14.yaml, over ssl_default_config.yaml, as the rest
        "model.depth": 24,
        "model.heads": 16,
        "model.patch": 14,
        "model.activation": "swiglu",
        "model.mlp": (int(4096 * 2 / 3) + 7) // 8 * 8,  # layers/swiglu_ffn.py
        "model.layer_scale": 1e-5,
        "data.crop_area": 0.32,
        "ibot.prototypes": 131072,
        "ibot.hidden": 2048,
        "ibot.width": 384,
        "ibot.lengths": True,  # layers/dino_head.py: nothing freezes weight_g
        "ibot.freeze": 1 / 500,
        "ibot.temperature": 0.1,
        "ibot.teacher_temperature": [0.04, 0.07],
        "ibot.patch_temperature": [0.04, 0.07],
        "ibot.warmup": 30 / 500,
        "ibot.momentum": 0.994,
        "ibot.balance": "sinkhorn",
        "ibot.shared": False,
        "ibot.own_head": True,
        "ibot.koleo": 0.1,
        "ibot.koleo_group": 32,
        "ibot.rate": [0.1, 0.5],
        "ibot.whole": 0.5,
        "ibot.weight": 1.0,
        "views.local": 8,
        "views.local_size": 98,
        "views.local_area": [0.05, 0.32],
        "views.local_blur": 0.5,
        "optim.steps": 500 * 1250,
        "optim.warmup": 80 * 1250,
        "optim.batch": 12 * 8 * 32,  # README
        "optim.lr": pytest.approx(2e-4 * 3**0.5, rel=1e-4),
        "optim.weight_decay": 0.04,
        "optim.weight_decay_end": 0.2,
        "optim.drop_path": 0.4,
        "optim.clip": 3.0,
    },
    "ijepa_h14": IMAGENET
    | ADAMW
    | {
        "objective": "ijepa",
        "model.width": 1280,  # models/vision_transformer.py: vit_huge
        "model.depth": 32,
        "model.heads": 16,
        "model.patch": 14,  # configs/in1k_vith14_ep300.yaml, as what follows
        "model.positions": "sincos_2d",
        "data.crop_area": 0.3,
        "data.flip": False,
        "ijepa.blocks": 4,
        "ijepa.area": [0.15, 0.2],
        "ijepa.aspect": [0.75, 1.5],
        "ijepa.context": [0.85, 1.0],
        "ijepa.visible": 0.25,  # paper, ablation of masks
        "ijepa.width": 384,
        "ijepa.depth": 12,
        "ijepa.heads": 16,  # helper.py: init_model
        "ijepa.momentum": 0.996,
        "optim.steps": 300 * epoch(2048, 16),  # 16 GPUs of 128 images
        "optim.warmup": 40 * epoch(2048, 16),
        "optim.batch": 2048,
        "optim.lr": 1e-3,
        "optim.weight_decay": 0.04,
        "optim.weight_decay_end": 0.4,
    },
    "finetune_modern": VIT_B16
    | ADAMW
    | {
        "objective": "supervised",
        "data.size": 224,
        "data.crop_area": 0.08,  # util/datasets.py: timm's create_transform, scale=(0.08, 1.0)
        "data.eval_mode": "crop",
        "data.eval_crop": 224 / 256,  # util/datasets.py: crop_pct
        "data.mixup": 0.8,  # FINETUNE.md
        "data.cutmix": 1.0,  # FINETUNE.md
        "supervised.smoothing": 0.1,  # main_finetune.py
        "supervised.hidden": False,
        "supervised.pool": "avg",  # main_finetune.py: --global_pool
        "optim.steps": 100 * epoch(1024, 32),  # FINETUNE.md: 4 nodes of 8 GPUs
        "optim.warmup": 5 * epoch(1024, 32),  # main_finetune.py
        "optim.batch": 1024,
        "optim.lr": 5e-4 * 1024 / 256,  # FINETUNE.md: --blr
        "optim.weight_decay": 0.05,  # FINETUNE.md
        "optim.drop_path": 0.1,  # FINETUNE.md
        "optim.layer_decay": 0.65,  # FINETUNE.md
    },
}


@pytest.mark.parametrize("name", AUTHORS)
def test_a_recipe_has_its_authors_values(name: str) -> None:
    recipe = resolve([f"recipe={name}"], here=False)
    found = {key: attrgetter(key)(recipe) for key in AUTHORS[name]}
    assert found == {
        key: pytest.approx(value) if isinstance(value, float) else value
        for key, value in AUTHORS[name].items()
    }


def test_as_many_patches_are_masked_as_in_maes_code_on_every_square_grid_at_75_percent() -> None:
    """Theirs keeps int(N * (1 - rate)) of N patches."""
    for side in range(2, 65):
        patches = side * side
        assert selected_count(0.75, patches) == patches - int(patches * (1 - 0.75))
    assert selected_count(0.9, 196) == 176 and 196 - int(196 * (1 - 0.9)) == 177


def test_simmims_code_masks_two_patches_more_at_224_px() -> None:
    """Theirs masks ceil(0.6 * 49) whole squares of four patches."""
    assert (4 * math.ceil(0.6 * 49), selected_count(0.6, 196)) == (120, 118)


SMALL = [
    *("data=shapes", "data.size=32", "model.width=32", "model.depth=2", "model.heads=2"),
    *("model.mlp=64", "model.patch=8", "optim.batch=8", "optim.steps=2", "optim.warmup=0"),
    *("eval.every=2", "eval.images=8", "checkpoint.every=2", "log.every=1"),
    *("compute.precision=float32", "compute.compile=false"),
]
HEADS = {
    "mae_b16": ["mae.width=16", "mae.depth=1", "mae.heads=2"],
    "moco_v3_b16": ["moco.hidden=16", "moco.width=8"],
    "ibot_s16": ["ibot.prototypes=16", "ibot.hidden=16", "ibot.width=8", "views.local_size=16"],
    "dinov2_l14": [
        *("ibot.prototypes=16", "ibot.hidden=16", "ibot.width=8", "ibot.koleo_group=4"),
        "views.local_size=16",
    ],
    "dino_s16": ["dino.prototypes=16", "dino.hidden=16", "dino.width=8", "views.local_size=16"],
    "ijepa_h14": ["ijepa.width=16", "ijepa.depth=1", "ijepa.heads=2"],
    "finetune_modern": ["init=scratch", "eval.test=false"],
}


@pytest.mark.parametrize("name", AUTHORS)
def test_a_recipe_trains_in_small(name: str, tmp_path: Path) -> None:
    words = [f"recipe={name}", *SMALL, *HEADS.get(name, []), f"out={tmp_path}"]
    losses = [row["loss"] for row in run(words).rows() if "loss" in row]
    assert losses and all(math.isfinite(loss) for loss in losses)
