"""The same features and logits under timm's names, transformers', Google's and ONNX's."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file

from helpers.disk import full_disk
from helpers.encoders import google_shapes
from ssl_vit.data import transforms
from ssl_vit.errors import UserError
from ssl_vit.models import encoder, interop, weights
from ssl_vit.recipe.init_source import InitSource
from ssl_vit.recipe.load import resolve
from ssl_vit.recipe.schema import Data, Model

MODEL = Model(name="tiny", patch=4, width=32, depth=2, heads=2, mlp=80)
DATA = Data(size=16, mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.25])
CLASSES = ["cat", "dog", "newt"]


def net(seed: int = 0, data: Data = DATA) -> encoder.Encoder:
    torch.manual_seed(seed)
    made = encoder.build_encoder(MODEL, data).eval()
    for parameter in made.parameters():  # so that nothing is zero or one by accident
        torch.nn.init.normal_(parameter, std=0.2)
    return made


def exported(folder: Path, made: encoder.Encoder, classes: list[str], pool: str = "token") -> Path:
    torch.manual_seed(3)
    heads = (
        {"head.weight": torch.randn(len(classes), 32), "head.bias": torch.randn(len(classes))}
        if classes
        else {}
    )
    weights.export(folder, made, heads, MODEL, DATA, pool, classes)
    return folder


def pixels(size: int = 16) -> torch.Tensor:
    return torch.randint(
        0, 256, (3, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )


def vit(folder: Path, classes: int, std: float | None = 0.2, **more: Any) -> torch.nn.Module:
    """A ViT of transformers with random weights, saved there; `std` None: those that transformers
    gives it."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor, ViTModel

    torch.manual_seed(5)
    words = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 80,
    }
    config = ViTConfig(
        **words | {"image_size": 16, "patch_size": 4} | more, num_labels=classes or 2
    )
    made = (ViTForImageClassification if classes else ViTModel)(config).eval()
    for parameter in made.parameters() if std else ():
        torch.nn.init.normal_(parameter, std=std)
    made.save_pretrained(folder)
    ViTImageProcessor(image_mean=DATA.mean, image_std=DATA.std).save_pretrained(folder)
    return made


@pytest.mark.parametrize("classes", [0, 7])
@pytest.mark.parametrize(("std", "eps"), [(0.2, 1e-6), (None, 1e-12), (None, 1e-5)])
def test_a_vit_of_transformers_gives_its_own_features(
    tmp_path: Path, classes: int, std: float | None, eps: float
) -> None:
    """Its own initial weights are so small that another eps shows."""
    theirs, ours = (
        vit(
            tmp_path / "vit",
            classes,
            std,
            layer_norm_eps=eps,
            patch_size=[4, 4],
            image_size=[16, 16],
        ),
        net(),
    )
    weights.load_weights(ours, InitSource(str(tmp_path / "vit")))
    with torch.no_grad():
        normal, h_BTD = ours.normalize(pixels()), ours(ours.patch(pixels()))
        wanted = (theirs.vit if classes else theirs)(normal).last_hidden_state
        torch.testing.assert_close(h_BTD, wanted, atol=1e-5, rtol=0)
        if classes:
            torch.testing.assert_close(
                theirs.classifier(h_BTD[:, 0]), theirs(normal).logits, atol=1e-5, rtol=0
            )


def test_an_eps_that_no_export_can_say_is_evaluated_but_trained_with_timms(
    tmp_path: Path, capsys
) -> None:
    vit(tmp_path / "vit", 0)
    capsys.readouterr()  # of what transformers imports
    looked_at, trained = net(), net()
    weights.load_init(looked_at, InitSource(f"{tmp_path}/vit"), exported=False)
    assert looked_at.backbone.norm.eps == 1e-12 and not capsys.readouterr().out
    weights.load_init(trained, InitSource(f"{tmp_path}/vit"))
    assert {m.eps for m in trained.modules() if isinstance(m, torch.nn.LayerNorm)} == {1e-6}
    (line,) = capsys.readouterr().out.splitlines()
    assert "vit: layer_norm_eps=1e-12 there; training uses 1e-06" in line
    with torch.no_grad():  # the run's own features are its export's
        theirs = timm.create_model(
            f"local-dir:{exported(tmp_path / 'out', trained, [])}", pretrained=True
        ).eval()
        features = theirs.forward_features(trained.normalize(pixels()))
        torch.testing.assert_close(features, trained(trained.patch(pixels())), atol=1e-5, rtol=0)


def test_a_vit_of_transformers_brings_its_model_and_its_normalisation(tmp_path: Path) -> None:
    vit(tmp_path / "vit", 0, patch_size=[4, 4])
    recipe = resolve(["recipe=finetune", f"init={tmp_path}/vit", "data.size=16", f"out={tmp_path}"])
    m = recipe.model
    assert (m.name, m.patch, m.width, m.depth, m.heads, m.mlp) == ("vit_32x2_p4", 4, 32, 2, 2, 80)
    assert (recipe.data.mean, recipe.data.std) == (DATA.mean, DATA.std)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_act": "relu"}, "hidden_act=relu; expected hidden_act=gelu"),
        ({"num_attention_heads": 4}, "model.heads=2 here, 4 there"),
        ({"qkv_bias": False}, "qkv_bias=False; expected qkv_bias=True"),
        ({"patch_size": [4, 8]}, "patch_size=[4, 8]; expected a square"),
        ({"image_size": [8, 32]}, "image_size=[8, 32]; expected a square"),
        (
            {"model_type": "deit"},
            "model_type=deit; expected vit (transformers' ViT)",
        ),
    ],
)
def test_a_vit_of_transformers_that_computes_something_else_is_refused(
    tmp_path: Path, change: dict, says: str
) -> None:
    vit(tmp_path / "vit", 0)
    path = tmp_path / "vit" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=r"^init=.*vit: ") as caught:
        weights.load_weights(net(), InitSource(str(tmp_path / "vit")))
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_config_that_is_not_read_is_said_before_the_work(tmp_path: Path) -> None:
    vit(tmp_path / "vit", 0)
    path = tmp_path / "vit" / "config.json"
    for text, says in (
        (json.dumps({"model_type": "bert"}), "model_type=bert; expected vit"),
        ("[1]", "cannot be read"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=f"^init=.*vit: its config.json .*{says}"):
            resolve(["recipe=finetune", f"init={tmp_path}/vit", f"out={tmp_path}"])


def test_transformers_reads_an_encoder_as_its_own_vit(tmp_path: Path) -> None:
    from transformers import AutoImageProcessor, AutoModel, ViTModel

    made = net()
    interop.to_transformers(exported(tmp_path / "export", made, []), tmp_path / "vit")
    loaded, about = AutoModel.from_pretrained(tmp_path / "vit", output_loading_info=True)
    assert isinstance(loaded, ViTModel) and not any(
        about[key] for key in ("missing_keys", "unexpected_keys")
    )
    processor = AutoImageProcessor.from_pretrained(tmp_path / "vit")
    normal = processor(list(pixels()), return_tensors="pt")["pixel_values"]
    cut = transforms.eval_transform(list(pixels()), 16, DATA.eval_mode, DATA.eval_crop)
    with torch.no_grad():
        torch.testing.assert_close(normal, made.normalize(cut), atol=1e-5, rtol=0)
        outputs, h_BTD = loaded.eval()(normal), made(made.patch(cut))
        torch.testing.assert_close(outputs.last_hidden_state, h_BTD, atol=1e-5, rtol=0)
        torch.testing.assert_close(outputs.pooler_output, h_BTD[:, 0], atol=1e-5, rtol=0)


def test_transformers_reads_a_linear_head_as_its_own(tmp_path: Path) -> None:
    from transformers import AutoModelForImageClassification, ViTForImageClassification

    made = net()
    folder = exported(tmp_path / "export", made, CLASSES)
    interop.to_transformers(folder, tmp_path / "vit")
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path / "vit").eval()
    head = load_file(folder / "heads.safetensors")
    with torch.no_grad():
        wanted = made.feature(pixels(), "token") @ head["head.weight"].T + head["head.bias"]
        torch.testing.assert_close(
            loaded(made.normalize(pixels())).logits, wanted, atol=1e-5, rtol=0
        )
    assert isinstance(loaded, ViTForImageClassification)
    assert [
        loaded.config.id2label[number] for number in range(3)
    ] == CLASSES and loaded.config.label2id["newt"] == 2


def test_there_and_back_is_the_same(tmp_path: Path) -> None:
    made = net()
    interop.to_transformers(exported(tmp_path / "export", made, []), tmp_path / "vit")
    other = net(seed=1)
    weights.load_weights(other, InitSource(str(tmp_path / "vit")))
    for name, value in made.backbone.state_dict().items():
        assert torch.equal(other.backbone.state_dict()[name], value), name


def test_what_a_vit_of_transformers_cannot_be_is_said(tmp_path: Path) -> None:
    folder = exported(tmp_path / "export", net(), CLASSES, pool="avg")
    with pytest.raises(UserError, match="by the mean of the patches"):
        interop.to_transformers(folder, tmp_path / "vit")
    (folder / "config.json").write_text("{}")
    with pytest.raises(UserError, match="is no export"):
        interop.main([str(folder), "format=transformers", f"out={tmp_path}/vit"])
    assert not (tmp_path / "vit").exists()


OWN = {"patch": 14, "width": 48, "depth": 2, "heads": 3, "mlp": 100}
BEYOND = {
    "layer scale": (
        Model(name="t", timm="vit_small_patch14_dinov2", layer_scale=0.1, **OWN),
        "has no blocks.0.ls1.gamma",
    ),
    "a norm before": (Model(name="t", timm="vit_base_patch16_clip_224", **OWN), "has no norm_pre"),
    "registers": (
        Model(
            name="t",
            timm="vit_small_patch14_reg4_dinov2",
            registers=4,
            layer_scale=0.1,
            **OWN,
        ),
        "has no blocks.0.ls1.gamma",
    ),
    "parallel blocks": (
        Model(name="t", timm="vit_small_patch16_18x2_224", **OWN),
        "has no blocks.0.attns.0",
    ),
    "a hybrid": (
        Model(name="t", timm="vit_base_r50_s16_224", **OWN | {"patch": 16}),
        "has patches of pixels; this is a VisionTransformer on a HybridEmbed",
    ),
}


@pytest.mark.parametrize(("model", "says"), BEYOND.values(), ids=BEYOND)
def test_other_vits_are_refused_by_name_and_read_back(
    tmp_path: Path, model: Model, says: str
) -> None:
    data = Data(size=2 * model.patch)
    made, other = (encoder.build_encoder(model, data).eval() for _ in range(2))
    weights.export(tmp_path / "export", made, {}, model, data, "avg")
    with pytest.raises(UserError, match=f"transformers' ViT {says}") as caught:
        interop.main([str(tmp_path / "export"), "format=transformers", f"out={tmp_path}/vit"])
    assert "\n" not in str(caught.value) and [path.name for path in tmp_path.iterdir()] == [
        "export"
    ]
    weights.load_weights(other, InitSource(str(tmp_path / "export")))
    large = encoder.build_encoder(model, Data(size=3 * model.patch))
    # positions are interpolated
    weights.load_weights(large, InitSource(str(tmp_path / "export")))
    with torch.no_grad():
        seen = pixels(data.size)
        torch.testing.assert_close(
            other.feature(seen, "avg"), made.feature(seen, "avg"), atol=0, rtol=0
        )


def test_an_export_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, words = (
        exported(tmp_path / "export", net(), []),
        ["format=transformers", f"out={tmp_path}/vit"],
    )
    monkeypatch.setattr(interop, "_processor", lambda config: config["missing"])
    with pytest.raises(KeyError):
        interop.main([str(folder), *words])
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
    monkeypatch.undo()
    interop.main([str(folder), *words])
    assert {path.name for path in (tmp_path / "vit").iterdir()} >= {
        "config.json",
        "model.safetensors",
    }


def test_an_export_writes_over_nothing_and_follows_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = exported(tmp_path / "export", net(), []), tmp_path / "vit"
    words = [str(folder), "format=transformers", f"out={out}"]
    out.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match=f"out={out}: exists already"):
        interop.main(words)
    out.unlink()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("theirs")
    (tmp_path / f".vit.{os.getpid()}").symlink_to(theirs)
    convert = interop.to_transformers

    def slow(export: Path, beside: Path) -> None:
        """Another process writes the same folder meanwhile."""
        convert(export, beside)
        out.mkdir()
        (out / "config.json").write_text("{}")

    monkeypatch.setitem(interop.FORMATS, "transformers", slow)
    with pytest.raises(UserError, match=f"out={out}: Directory not empty"):
        interop.main(words)
    assert (out / "config.json").read_text() == "{}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "theirs", "vit"]
    assert [path.name for path in theirs.iterdir()] == ["thesis.txt"]


def test_an_export_leaves_folders_of_others_beside_it(tmp_path: Path) -> None:
    for name in (".export.backup", ".export.4711"):
        (tmp_path / name).mkdir()
    exported(tmp_path / "export", net(), [])
    assert sorted(path.name for path in tmp_path.iterdir()) == [".export.backup", "export"]


@pytest.mark.parametrize("form", ["transformers", "onnx"])
def test_an_export_to_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, form: str) -> None:
    if form == "onnx":
        pytest.importorskip("onnxscript")
    folder = exported(tmp_path / "export", net(), [])
    with full_disk(), pytest.raises(UserError, match=rf"^out={tmp_path}/vit: File too large$"):
        interop.main([str(folder), f"format={form}", f"out={tmp_path}/vit"])
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_an_export_replaces_what_was_there_and_leaves_files_of_others(tmp_path: Path) -> None:
    """A full disk keeps the one that was there."""
    folder = exported(tmp_path / "export", net(), [])
    before = (folder / "model.safetensors").read_bytes()
    (tmp_path / ".export.4711").mkdir()
    (tmp_path / ".export.notes").write_text("mine")
    with full_disk(), pytest.raises(OSError, match="too large"):
        exported(folder, net(1), [])
    assert (folder / "model.safetensors").read_bytes() == before
    exported(folder, net(1), [])
    assert (folder / "model.safetensors").read_bytes() != before
    assert {path.name for path in tmp_path.iterdir()} == {"export", ".export.notes"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["format=onx", "out=x"], "did you mean onnx?"),
        (["format=onnx"], "out= is missing; expected a path, as in python tools/export.py"),
        (["format=onnx", "out=."], "out=.: exists already"),
        (["format=onnx", "out=x", "timm:vit"], "timm:vit: expected one FOLDER, as in"),
    ],
)
def test_words_that_are_not_understood(tmp_path: Path, words: list[str], says: str) -> None:
    folder = exported(tmp_path / "export", net(), [])
    with pytest.raises(UserError) as caught:
        interop.main([str(folder), *words])
    assert says in str(caught.value)


def test_a_google_vit_b16_gives_timms_features(tmp_path: Path) -> None:
    """Of the published widths, two blocks deep, from random arrays."""
    model, path = Model(depth=2), tmp_path / "B_16.npz"
    noise = np.random.default_rng(0).normal(0, 0.03, 2**20).astype(np.float32)
    np.savez(
        path, **{name: np.resize(noise, shape) for name, shape in google_shapes(model, 224).items()}
    )  # type: ignore[arg-type]
    ours = encoder.build_encoder(model, Data()).eval()
    weights.load_weights(ours, InitSource(str(path)))
    options = {"num_classes": 0, "depth": model.depth, "weight_init": "skip"}
    theirs = timm.create_model("vit_base_patch16_224", **options).eval()
    theirs.load_pretrained(str(path))
    with torch.no_grad():
        features, wanted = (
            ours.feature(pixels(224)[:1], "token"),
            theirs(pixels(224)[:1] / 127.5 - 1),
        )
    assert wanted.std() > 0.01
    torch.testing.assert_close(features, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("classes", "pool", "name"), [([], "avg", "features"), (CLASSES, "token", "logits")]
)
def test_onnxruntime_gives_the_same(
    tmp_path: Path, classes: list[str], pool: str, name: str
) -> None:
    runtime = pytest.importorskip(
        "onnxruntime", reason="onnxruntime is not installed: pip install -e '.[onnx]'"
    )
    pytest.importorskip(
        "onnxscript", reason="onnxscript is not installed: pip install -e '.[onnx]'"
    )
    made = net()
    folder = exported(tmp_path / "export", made, classes, pool)
    interop.main([str(folder), "format=onnx", f"out={tmp_path}/vit.onnx"])
    session = runtime.InferenceSession(
        str(tmp_path / "vit.onnx"), providers=["CPUExecutionProvider"]
    )
    preprocessing = json.loads(session.get_modelmeta().custom_metadata_map["preprocessing"])
    assert (preprocessing["input_size"], preprocessing["mean"]) == ([3, 16, 16], DATA.mean)
    assert (
        preprocessing["crop_pct"],
        preprocessing["crop_mode"],
        preprocessing["interpolation"],
    ) == (
        0.875,
        "center",
        "bilinear",
    )
    with torch.no_grad():
        wanted = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()(
            made.normalize(pixels())
        )
        for count in (3, 1):  # any batch
            (output,) = session.run([name], {"pixels": made.normalize(pixels())[:count].numpy()})
            np.testing.assert_allclose(output, wanted[:count].numpy(), atol=1e-5, rtol=0)


def test_without_onnx_the_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[onnx\]'"):
        interop.to_onnx(exported(tmp_path / "export", net(), []), tmp_path / "vit.onnx")
