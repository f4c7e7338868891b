"""The same features and logits under timm's names, transformers' and ONNX's, of the pixels that
were evaluated."""

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_sample_images
from torchvision.transforms.v2 import functional as F

import ssl_vit
from helpers.disk import full_disk
from helpers.encoders import MODEL, load, net, pixels
from helpers.exports import forget_digests
from helpers.hub_runs import refused
from helpers.images import encode
from helpers.resolving import resolve, resolve_encoder
from ssl_vit.data import decoding, transforms
from ssl_vit.errors import UserError
from ssl_vit.models import encoder, weights
from ssl_vit.recipe import export_files
from ssl_vit.recipe.init_source import InitSource
from ssl_vit.recipe.schema import Data, Model

DATA = Data(size=16, mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.25])
BANDS = Data(size=16, channels=4, range=[0, 4095], mean=[0.1, 0.2, 0.3, 0.4], std=[0.2] * 4)
CLASSES = ["cat", "dog", "newt"]


def exported(
    folder: Path,
    made: encoder.Encoder | None = None,
    classes: list[str] | None = None,
    pool: str = "token",
    model: Model = MODEL,
) -> Path:
    """An export, with the head of a classifier where there are classes."""
    made, classes = made or net(data=DATA), classes or []
    torch.manual_seed(3)
    size = len(classes)
    heads = {"head.weight": torch.randn(size, model.width), "head.bias": torch.randn(size)}
    weights.export(folder, made, heads if classes else {}, model, made.data, pool, classes)
    return folder


def convert(folder: Path, form: str, out: Path) -> None:
    ssl_vit.export([str(folder), f"format={form}", f"out={out}"])


def vit(folder: Path, classes: int, std: float | None = 0.2, **more: Any) -> torch.nn.Module:
    """A ViT of transformers with random weights, saved there; `std` None: those that transformers
    gives it."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor, ViTModel

    torch.manual_seed(5)
    words: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    words |= {"intermediate_size": 80, "image_size": 16, "patch_size": 4} | more
    config = ViTConfig(**words, num_labels=classes or 2)
    made = (ViTForImageClassification if classes else ViTModel)(config).eval()
    for parameter in made.parameters() if std else ():
        torch.nn.init.normal_(parameter, std=std)
    made.save_pretrained(folder)
    ViTImageProcessor(image_mean=DATA.mean, image_std=DATA.std).save_pretrained(folder)
    return made


@pytest.mark.parametrize(
    ("classes", "std", "eps"), [(0, 0.2, 1e-6), (7, 0.2, 1e-6), (0, None, 1e-12), (7, None, 1e-5)]
)
@torch.no_grad()
def test_a_vit_of_transformers_gives_its_own_features(
    tmp_path: Path, classes: int, std: float | None, eps: float
) -> None:
    """Its own initial weights are so small that another eps shows."""
    size = {"patch_size": [4, 4], "image_size": [16, 16]}
    theirs = vit(tmp_path / "vit", classes, std, layer_norm_eps=eps, **size)
    ours = net(data=DATA)
    load(ours, tmp_path / "vit")
    normal, h_BTD = ours.normalize(pixels()), ours(ours.patch(pixels()))
    wanted = (theirs.vit if classes else theirs)(normal).last_hidden_state
    torch.testing.assert_close(h_BTD, wanted, atol=1e-5, rtol=0)
    found = resolve_encoder(str(tmp_path / "vit"), {"data.size": 16})
    m = found.model
    assert (m.name, m.patch, m.width, m.depth, m.heads, m.mlp) == ("vit_32x2_p4", 4, 32, 2, 2, 80)
    assert (found.data.mean, found.data.std) == (DATA.mean, DATA.std)


def test_an_eps_that_no_export_can_say_is_evaluated_but_trained_with_timms(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    vit(tmp_path / "vit", 0)
    capsys.readouterr()  # of what transformers imports
    looked_at, trained = net(data=DATA), net(data=DATA)
    weights.load_init(looked_at, InitSource(f"{tmp_path}/vit"), exported=False)
    assert looked_at.backbone.norm.eps == 1e-12 and not capsys.readouterr().out
    weights.load_init(trained, InitSource(f"{tmp_path}/vit"))
    assert {m.eps for m in trained.modules() if isinstance(m, torch.nn.LayerNorm)} == {1e-6}
    (line,) = capsys.readouterr().out.splitlines()
    assert "layer_norm_eps=1e-12" in line
    with torch.no_grad():  # the run's own features are its export's
        folder = exported(tmp_path / "out", trained)
        theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        features = theirs.forward_features(trained.normalize(pixels()))
        torch.testing.assert_close(features, trained(trained.patch(pixels())), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("kind", "data", "pool"),
    [
        *(("learned", DATA, "token"), ("learned", BANDS, "avg")),
        *(("learned_2d", DATA, "avg"), ("sincos_2d", DATA, "token")),
    ],
)
@torch.no_grad()
def test_transformers_own_vit_gives_the_features_and_comes_back(
    tmp_path: Path, kind: str, data: Data, pool: str
) -> None:
    """And its pooling: the mean of the patches came back as the class token, which MPP does not
    train."""
    from transformers import AutoModel

    model = Model(**vars(MODEL) | {"positions": kind})
    made = net(model, data)
    folder = exported(tmp_path / "export", made, pool=pool, model=model)
    convert(folder, "transformers", tmp_path / "vit")
    image = pixels() if data is DATA else torch.randint(0, 4095, (3, 4, 16, 16)).int()
    theirs = AutoModel.from_pretrained(tmp_path / "vit").eval()
    found = theirs(made.normalize(image)).last_hidden_state
    torch.testing.assert_close(found, made(made.patch(image)), atol=1e-5, rtol=0)
    assert (tmp_path / "vit" / "preprocessor_config.json").exists() == (data is DATA)
    back = resolve_encoder(str(tmp_path / "vit"), {"data.size": 16}).data
    for key in ("channels", "range", "mean", "std"):
        assert getattr(back, key) == getattr(data, key)
    other = net(data=data, seed=1)
    assert InitSource(str(tmp_path / "vit")).pooling() == pool
    load(other, tmp_path / "vit")
    assert torch.equal(other(other.patch(image)), made(made.patch(image)))


@torch.no_grad()
def test_a_classifier_has_its_logits_and_classes(tmp_path: Path) -> None:
    from transformers import AutoModelForImageClassification, ViTForImageClassification

    made = net(data=DATA)
    folder = exported(tmp_path / "export", made, CLASSES)
    convert(folder, "transformers", tmp_path / "vit")
    theirs = AutoModelForImageClassification.from_pretrained(tmp_path / "vit").eval()
    head = load_file(folder / "heads.safetensors")
    wanted = made.feature(pixels(), "token") @ head["head.weight"].T + head["head.bias"]
    found = theirs(made.normalize(pixels())).logits
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    assert isinstance(theirs, ViTForImageClassification)
    names = load_file(tmp_path / "vit" / "model.safetensors").keys()
    assert {"classifier.weight", "vit.layernorm.weight"} <= names  # as all its versions read it
    assert [theirs.config.id2label[n] for n in range(3)] == CLASSES
    assert theirs.config.label2id["newt"] == 2


@pytest.mark.parametrize(("classes", "pool", "name"), [([], "avg", "features"), (CLASSES, "token", "logits")])  # fmt: skip
@torch.no_grad()
def test_onnxruntime_gives_the_same(
    tmp_path: Path, classes: list[str], pool: str, name: str
) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")
    pytest.importorskip("onnxscript", reason="needs the extra [onnx]")
    made = net(data=DATA)
    folder = exported(tmp_path / "export", made, classes, pool)
    convert(folder, "onnx", tmp_path / "vit.onnx")
    # the exporter leaves stack traces, with paths of this machine
    content = (tmp_path / "vit.onnx").read_bytes()
    assert b".py" not in content and str(tmp_path).encode() not in content
    session = runtime.InferenceSession(
        str(tmp_path / "vit.onnx"), providers=["CPUExecutionProvider"]
    )
    about = json.loads(session.get_modelmeta().custom_metadata_map["preprocessing"])
    assert (about["input_size"], about["mean"]) == ([3, 16, 16], DATA.mean)
    cropping = about["crop_pct"], about["crop_mode"], about["interpolation"]
    assert cropping == (0.875, "center", "bilinear")
    inputs = made.normalize(pixels())
    wanted = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()(inputs)
    for count in (3, 1):  # any batch
        (output,) = session.run([name], {"pixels": inputs[:count].numpy()})
        np.testing.assert_allclose(output, wanted[:count].numpy(), atol=1e-5, rtol=0)


def test_without_onnx_the_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    line = refused(convert, exported(tmp_path / "export"), "onnx", tmp_path / "vit.onnx")
    assert "pip install 'ssl_vit[onnx]'" in line


OWN = {"name": "t", "patch": 14, "width": 48, "depth": 2, "heads": 3, "mlp": 100}
BEYOND = {
    "layer scale": (
        {"timm": "vit_small_patch14_dinov2", "layer_scale": 0.1},
        "has no blocks.0.ls1.gamma",
    ),
    "a norm before": ({"timm": "vit_base_patch16_clip_224"}, "has no norm_pre"),
    "parallel blocks": ({"timm": "vit_small_patch16_18x2_224"}, "has no blocks.0.attns.0"),
    "a hybrid": (
        {"timm": "vit_base_r50_s16_224", "patch": 16},
        "VisionTransformer, whose patch embedding is HybridEmbed",
    ),
    "rotary positions": ({"width": 48, "heads": 2, "positions": "rotary"}, "not timm's VisionT"),
}


@pytest.mark.parametrize(("words", "says"), BEYOND.values(), ids=BEYOND)
@torch.no_grad()
def test_other_vits_are_refused_by_name_and_read_back(
    tmp_path: Path, words: dict[str, Any], says: str
) -> None:
    model = Model(**OWN | words)
    data = Data(size=2 * model.patch)
    made, other = (encoder.build_encoder(model, data).eval() for _ in range(2))
    weights.export(tmp_path / "export", made, {}, model, data, "avg")
    assert says in refused(convert, tmp_path / "export", "transformers", tmp_path / "vit")
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
    load(other, tmp_path / "export")
    seen = pixels(size=data.size)
    assert torch.equal(other.feature(seen, "avg"), made.feature(seen, "avg"))


def border(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["pretrained_cfg"] |= {"crop_mode": "border"}
    (folder / "config.json").write_text(json.dumps(config))


def spoil(name: str, folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    state[name].flatten()[2] = torch.nan
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    forget_digests(folder)


def empty(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


WRONG: dict[str, tuple[str, Callable[[Path], None], list[str], str]] = {
    "mean of patches": ("avg", bool, ["format=transformers", "out=x"], "by the mean of the patch"),
    "no export": ("token", empty, ["format=transformers", "out=x"], "config.json is damaged"),
    "cropping": ("token", border, ["format=transformers", "out=x"], "for crop_mode=border"),
    "no such format": ("token", bool, ["format=onx", "out=x"], "did you mean onnx?"),
    "no place": ("token", bool, ["format=onnx"], "out= is missing"),
    "a place that is there": ("token", bool, ["format=onnx", "out=."], "out=.: "),
    **{
        f"{name} is not finite, {form}": (
            *("token", functools.partial(spoil, name)),
            *([f"format={form}", "out=x"], f"{name} "),
        )
        for name in ("blocks.1.mlp.fc1.bias", "head.weight")
        for form in ("transformers", "onnx")
    },
    "two folders": ("token", bool, ["format=onnx", "out=x", "timm:vit"], "timm:vit: expected "),
}


@pytest.mark.parametrize(("pool", "change", "words", "says"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_converted_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pool: str,
    change: Callable[[Path], None],
    words: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = exported(tmp_path / "export", classes=CLASSES, pool=pool)
    change(folder)
    assert says in refused(ssl_vit.export, [str(folder), *words])
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


@pytest.mark.parametrize("form", ["transformers", "onnx"])
def test_a_conversion_to_a_full_disk_is_one_line_and_leaves_nothing(
    tmp_path: Path, form: str
) -> None:
    if form == "onnx":
        pytest.importorskip("onnxscript", reason="needs the extra [onnx]")
    folder = exported(tmp_path / "export")
    with full_disk(), pytest.raises(UserError, match=rf"^out={tmp_path}/vit: File too large$"):
        convert(folder, form, tmp_path / "vit")
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


# height, width: none square, smaller and larger than what is asked for, spare pixels of every
# remainder by 4
SHAPES = [
    *((427, 640), (640, 427), (300, 301), (97, 150), (150, 97), (50, 83), (200, 613), (613, 200)),
    *((400, 401), (400, 402), (400, 403), (350, 500), (500, 375), (257, 391), (120, 121)),
]
WAYS = {
    "crop": ("crop", 0.875),
    "narrow": ("crop", 0.9),
    "whole": ("crop", 1.0),
    "squash": ("squash", 0.875),
}


@functools.cache
def photographs() -> list[Image.Image]:
    """Parts of scikit-learn's two, each resized to a shape of its own."""
    rng, found = np.random.default_rng(0), []
    samples = load_sample_images().images
    for n, (height, width) in enumerate(SHAPES):
        left, top = int(rng.integers(0, 120)), int(rng.integers(0, 80))
        box = (left, top, left + 480, top + 320)
        whole = Image.fromarray(samples[n % 2])
        found.append(whole.resize((width, height), Image.Resampling.BICUBIC, box))
    return found


def by_timm(folder: Path) -> tuple[Any, Any]:
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    config = timm.data.resolve_model_data_config(model)
    transform = timm.data.create_transform(**config, is_training=False)
    return lambda photo: transform(photo)[None], model


def by_transformers(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    processor = AutoImageProcessor.from_pretrained(folder)
    model = AutoModelForImageClassification.from_pretrained(folder).eval()
    return (
        lambda photo: processor(photo, return_tensors="pt")["pixel_values"],
        lambda given: model(given).logits,
    )


def one_off(image: torch.Tensor, data: Data) -> tuple[int, int]:
    """Rows and columns by which the crop of transformers' own processors lies further up and left:
    half of the spare pixels is rounded down there, and to the even number by torchvision and so by
    timm."""
    if data.eval_mode == "squash":
        return 0, 0
    resized = F.resize(image, [int(data.size / data.eval_crop)])
    spare = [side - data.size for side in resized.shape[1:]]
    return round(spare[0] / 2) - spare[0] // 2, round(spare[1] / 2) - spare[1] // 2


def moved(image: torch.Tensor, data: Data) -> torch.Tensor:
    """An evaluation image that was cropped as transformers does."""
    resized = F.resize(image, [int(data.size / data.eval_crop)])
    top, left = ((side - data.size) // 2 for side in resized.shape[1:])
    return resized[None, :, top : top + data.size, left : left + data.size]


@torch.no_grad()
@pytest.mark.parametrize(
    ("size", "way"), [*((64, way) for way in WAYS), (96, "narrow"), (224, "crop")]
)
def test_timm_and_transformers_see_the_pixels_that_were_evaluated(
    tmp_path: Path, size: int, way: str
) -> None:
    """Pixels within 2 of 255 on average; the same class wherever the top two logits are more than
    1e-2 apart. The exports say how they are evaluated, when they come back too."""
    mode, crop = WAYS[way]
    cropping = {"size": size, "eval_mode": mode, "eval_crop": crop}
    data = Data(**cropping, mean=[0.4, 0.5, 0.6], std=[0.2, 0.25, 0.3])
    model = Model(**vars(MODEL) | {"patch": 16})
    made = net(model, data)
    folder = exported(tmp_path / "export", made, [f"class {n}" for n in range(10)], model=model)
    head = load_file(folder / "heads.safetensors")
    convert(folder, "transformers", tmp_path / "vit")
    clients = {
        "timm": by_timm(folder),
        "transformers, through timm": by_transformers(folder),
        "transformers": by_transformers(tmp_path / "vit"),
    }
    mean, std = (255 * torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    clear = apart = 0
    for photo in photographs():
        image = decoding.decode(encode(photo, "PNG"))
        seen = transforms.eval_transform([image], size, mode, crop)
        for name, (transform, client) in clients.items():
            wanted = seen
            if name == "transformers" and any(one_off(image, data)):
                wanted = moved(image, data)
                apart += 1
            logits = made.feature(wanted, "token") @ head["head.weight"].T + head["head.bias"]
            normal = transform(photo)
            assert normal.shape == wanted.shape
            assert (wanted.float() - (normal * std + mean)).abs().mean() <= 2
            first, second = logits[0].topk(2).values
            if first - second > 1e-2:
                assert client(normal).argmax() == logits.argmax()
                clear += 1
    assert clear > 30  # of 45: the comparison of classes is not empty
    # floor(64 / 0.9) leaves 7 spare pixels on every image's shorter side
    if (size, way) != (64, "narrow"):
        assert apart < len(SHAPES) / 2
    for place in (folder, tmp_path / "vit"):
        found = export_files.read_eval_crop(place)
        assert found["eval_mode"] == mode
        if mode == "crop":
            assert int(size / found["eval_crop"]) == int(size / crop)


@pytest.mark.parametrize("side", [64, 96, 224, 384])
def test_a_shorter_side_said_in_pixels_is_the_same_number_again(side: int) -> None:
    crop = {"do_center_crop": True, "crop_size": {"height": side, "width": side}}
    for short in range(side, 4 * side):
        found = export_files.eval_crop_of_transformers({"size": {"shortest_edge": short}, **crop})
        assert int(side / found["eval_crop"]) == short


FOREIGN = {
    "timm's own": (
        {"crop_pct": 0.9, "crop_mode": "center"},
        {"eval_mode": "crop", "eval_crop": 0.9},
    ),
    "no mode": ({"crop_pct": 0.95}, {"eval_mode": "crop", "eval_crop": 0.95}),
    "a squash": ({"crop_pct": 1.0, "crop_mode": "squash"}, {"eval_mode": "squash"}),
    "a squash that is cropped": ({"crop_pct": 0.9, "crop_mode": "squash"}, {}),
    "a border": ({"crop_pct": 1.0, "crop_mode": "border"}, {}),
    "a crop that fills the memory": ({"crop_pct": 1e-9}, {}),
    "nothing": ({}, {}),
}


@pytest.mark.parametrize(("cropping", "wanted"), FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_export_says_how_its_encoder_is_evaluated(
    tmp_path: Path, cropping: dict, wanted: dict
) -> None:
    """As it says it into the evaluation of the frozen encoder; not into training, where arms are
    evaluated alike. What the command or a recipe says is repeated."""
    folder = exported(tmp_path / "export", net(data=Data(size=64)))
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key in ("crop_pct", "crop_mode"):
        del config["pretrained_cfg"][key]
    config["pretrained_cfg"] |= cropping
    path.write_text(json.dumps(config))
    assert export_files.read_eval_crop(folder) == wanted
    own = tmp_path / "own.yaml"
    own.write_text(
        "objective: probe\ndata: {name: mine, path: .., size: 64, eval_crop: 0.7}\nmodel: vit_n8\n"
    )
    words = [f"init={folder}", f"data.path={tmp_path}", f"out={tmp_path}"]
    right = wanted.get("eval_mode", "crop"), wanted.get("eval_crop", 1.0)
    for recipe, more, evaluated in (
        ("evaluate", ["data=tinyimagenet"], right),
        ("finetune", ["data=tinyimagenet"], ("crop", 1.0)),  # the row of tinyimagenet
        ("evaluate", ["data=tinyimagenet", "data.eval_crop=0.8"], ("crop", 0.8)),
        (own, [], ("crop", 0.7)),
    ):
        data = resolve([f"recipe={recipe}", *words, *more]).data
        assert (data.eval_mode, data.eval_crop) == evaluated
