"""What a run says of the images, and of their preprocessing, that nobody named."""

import json
from pathlib import Path

import pytest

import ssl_vit
from ssl_vit.recipe.which_images import crop_notice


def export(folder: Path, **pretrained: object) -> Path:
    """The config.json of an export of timm's."""
    folder.mkdir()
    config = {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 0,
        "pretrained_cfg": {"input_size": [3, 224, 224], **pretrained},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    ("pretrained", "words", "is_said"),
    [
        ({"crop_pct": 0.9, "crop_mode": "center"}, [], False),
        ({"crop_pct": 0.9, "crop_mode": "border"}, [], True),
        ({"crop_pct": 0.9, "crop_mode": "squash"}, [], True),
        ({}, [], True),
        ({"crop_pct": 0.9, "crop_mode": "border"}, ["data.eval_crop=0.9"], False),
    ],
)
def test_a_crop_that_cannot_be_had_is_said(
    pretrained: dict, words: list[str], is_said: bool, tmp_path: Path
) -> None:
    """A frozen encoder was measured with another crop than its own, without a word."""
    place = export(tmp_path / "timm", **pretrained)
    options = ["recipe=evaluate", f"init={place}", "model=vit_ti16", *words]
    notice = crop_notice(options, ssl_vit.resolve(options))
    assert (notice is not None) == is_said
    assert notice is None or "data.eval_crop=" in notice


def test_labels_that_only_k_nn_reads_can_be_named(tmp_path: Path) -> None:
    """With two columns of labels the one that k-NN is measured by could not be chosen."""
    words = ["recipe=mpp", f"data.path={tmp_path}", "data.label_column=kind"]
    assert ssl_vit.resolve(words).data.label_column == "kind"
    with pytest.raises(ssl_vit.UserError, match="data.label_column"):
        ssl_vit.resolve([*words, "eval.knn=false", "data.test=test"])
