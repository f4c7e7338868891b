"""Architectures of timm by name and arguments, networks without patches among them, through the same
stages as any encoder; what they are not is one line. recipe/test_check.py has what needs patches."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml
from safetensors.torch import load_file

from helpers.hub_runs import refused
from helpers.images import two_classes
from helpers.options import LOADED, ROOT
from helpers.resolving import resolve
from helpers.runs import run
from ssl_vit.errors import UserError
from ssl_vit.jobs import cli
from ssl_vit.models import encoder, weights
from ssl_vit.models.architectures import ROTARY_ARGS, build_timm_args
from ssl_vit.recipe.init_source import InitSource
from ssl_vit.recipe.model import GIVEN, HYBRID, RESNET
from ssl_vit.recipe.schema import Data, Model
from ssl_vit.training import checkpoint

MODELS = yaml.safe_load((ROOT / "recipes/tables/models.yaml").read_text())
PAPER = (ROOT / "recipes/tables/paper.yaml").read_text()  # whose models test_paper.py builds
NAMES = [name for name in MODELS if not name.startswith("vit_") and name not in PAPER]


@pytest.mark.parametrize("name", NAMES)
def test_a_row_says_what_timm_builds(name: str) -> None:
    recipe = resolve(["recipe=finetune", "init=scratch", f"model={name}", "data.size=224"])
    with torch.device("meta"):
        net = encoder.build_backbone(recipe.model, recipe.data).eval()
        feature = net.feature(torch.empty(1, 3, 224, 224, dtype=torch.uint8), "token")
    assert feature.shape == (1, recipe.model.width)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("resnetv2_50x1_bit", {}),
        ("resnetv2_152x2_bit", {"layers": [3, 8, 36, 3], "width_factor": 2}),
        ("vit_base_r50_s16_224", {}),
        (
            "vit_large_r50_s32_224",
            {"layers": [3, 4, 6, 3], "embed_dim": 1024, "depth": 24, "num_heads": 16},
        ),
    ],
)
def test_one_registered_here_is_timms(name: str, args: dict[str, Any]) -> None:
    """Names, shapes and layers: of the architectures that R200x3 and the small ones are made of."""
    with torch.device("meta"):
        here = HYBRID if name.startswith("vit") else RESNET
        own = timm.create_model(here, num_classes=0, **args)
        theirs = timm.create_model(name, num_classes=0)
    assert str(own) == str(theirs)


def test_what_a_name_says_is_what_timm_builds() -> None:
    """Without torch a recipe tells hybrids and networks without patches by their names."""
    of_module = ("vision_transformer_hybrid", "vitamin")
    hybrids = {HYBRID, *(name for module in of_module for name in timm.list_models(module=module))}
    plain = {*timm.list_models(module="vision_transformer"), *timm.list_models(module="deit")}
    assert len(hybrids) > 20 and len(plain) > 100
    for name in hybrids | plain:
        model = Model(timm=name)
        assert not model.convolutional and model.hybrid == (name in hybrids), name
    for name in (*timm.list_models("*resne*t*"), *timm.list_models("*efficientnet*"), RESNET):
        if name not in hybrids:
            assert Model(timm=name).convolutional and not Model(timm=name).hybrid, name


OPTIONS: list[dict[str, Any]] = [
    {},
    {"timm": "resnet50"},
    {"timm": "vit_base_r50_s16_224"},
    {"positions": "rotary", "registers": 2, "activation": "swiglu", "layer_scale": 0.1},
    {"positions": "none", "registers": 2, "activation": "swiglu", "qk_norm": True},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_no_argument_that_is_given_may_be_given_again(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def build(name: str, **args: Any) -> Any:
        given.update(args)
        raise RuntimeError(name)

    model = Model(**options)
    for exported in (True, False):
        given |= build_timm_args(model, 32, 5, exported)
    monkeypatch.setattr(timm, "create_model", build)
    with pytest.raises(UserError):
        encoder.build_backbone(model, Data(size=32, channels=5))
    assert given.keys() - ROTARY_ARGS.keys() <= GIVEN.keys()  # whose defaults those are


PRE = ["recipe=supervised", "optim.dropout=0"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "model=bit_r50x1 model.width=64",
            "model.width=64: in the network of model.timm=resnetv2_50x1_bit, ",
        ),
        (
            "model=bit_r14x05 model.args={'layers':[1,1]}",
            "model.args={layers: [1,1]}, width is 512",
        ),
        ("model=bit_r14x05 model.args={'layers':[1,0]}", "layers: expected 1 to 4 whole"),
        ("model=bit_r14x05 model.args={'layers':[1,1,1,1,1]}", "layers: expected 1 to 4 whole"),
        ("model=bit_r50x1 model.args={'a':3}", "timm=resnetv2_50x1_bit, model.args={a: 3}: "),
        ("model=vit_p8 model.args={'a':3}", "model.args={a: 3}: "),
        (
            "model.timm=vit_base_patch16_siglip_gap_224",
            "has no class token. Write class_token: false",
        ),
        (
            "model=r8_vit_n8 model.patch=16",
            "model.patch=16: in the network of model.timm=vit_resnetv2_bit, ",
        ),
        (
            "model.timm=eva02_tiny_patch14_224",
            "model.positions=learned: in the network of model.timm=eva02_tiny_",
        ),
        (
            "model.positions=rotary model.timm=vit_small_patch16_224",
            "_patch16_224, positions is learned",
        ),
        ("model.timm=deit_tiny_distilled_patch16_224", "not a VisionTransformerDistilled"),
        ("model.timm=no_such_network", "model.timm=no_such_network: "),
        # their cost would be counted wrongly
        (
            "model.timm=vit_base_patch14_reg4_dinov2",
            "model.registers=0: in the network of model.timm=",
        ),
        (
            "model.timm=vit_base_patch14_dinov2",
            "model.layer_scale=null: in the network of model.timm=",
        ),
        ("model.timm=vit_small_patch16_224 model.activation=swiglu", "activation is gelu"),
    ],
)
def test_what_timm_builds_otherwise_is_refused_in_one_line(words: str, says: str) -> None:
    recipe = resolve([*PRE, "data.size=32", *words.split()], here=False)
    with torch.device("meta"):
        assert says in refused(encoder.build_backbone, recipe.model, recipe.data)


def test_an_argument_of_timms_is_in_the_network_and_in_its_export(tmp_path: Path) -> None:
    """The export alone says it, too."""
    recipe = resolve([*PRE, "model=vit_p8", "data.size=16", "model.args={qkv_bias: false}"])
    net = encoder.build_encoder(recipe.model, recipe.data).eval()
    assert net.backbone.blocks[0].attn.qkv.bias is None
    weights.export(tmp_path / "export", net, {}, recipe.model, recipe.data, "token")
    theirs = timm.create_model(f"local-dir:{tmp_path}/export", pretrained=True).eval()
    assert theirs.blocks[0].attn.qkv.bias is None
    again = resolve(["recipe=finetune", f"init={tmp_path}/export", "data.size=16"])
    assert again.model.args == {"qkv_bias": False}
    loaded = encoder.build_encoder(again.model, again.data).eval()
    weights.load_init(loaded, InitSource(str(tmp_path / "export")))
    pixels = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    assert torch.equal(loaded.feature(pixels), net.feature(pixels))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_classes(tmp_path_factory.mktemp("images") / "own")


@pytest.fixture
def words(images: Path, tmp_path: Path) -> list[str]:
    """Of a run of two steps on a few images."""
    steps = ["optim.steps=2", "optim.warmup=1", "optim.batch=4", "eval.images=4"]
    return [*steps, f"data.path={images}", "data.size=32", f"out={tmp_path}", *LOADED]


# any of timm's: what it costs is then not counted
BIT = ["model=bit_r14x05", "model.args={layers: [1], width_factor: 0.5}", "model.width=128"]
SMALL = ["model=bit_r50x1", "model.timm=resnet10t.c3_in1k", "model.width=512", "model.args={}"]


def test_a_resnet_is_fine_tuned_and_evaluated_like_any_encoder(
    words: list[str], tmp_path: Path
) -> None:
    tuned = run(["recipe=finetune", "init=scratch", *SMALL, *words, "name=tuned"])
    assert tuned.result() is not None
    theirs = timm.create_model(f"local-dir:{tuned.export}", pretrained=True).eval()
    # the head, whose form differs between these networks, is in heads.safetensors
    assert theirs(torch.rand(2, 3, 32, 32)).shape == (2, 512)
    kept = [word for word in words if not word.startswith(("eval.", "optim."))]
    probe = ["recipe=evaluate", f"init={tuned.folder}", "name=probed", "probe.neighbors=2"]
    cli.evaluate([*probe, *kept, "probe.measures=[knn]"])
    assert (tmp_path / "probed" / "result.json").exists()


@pytest.mark.parametrize("small", [SMALL, BIT], ids=["ResNet", "BiT"])
def test_a_resnet_is_pre_trained_like_any_encoder(
    small: list[str], words: list[str], tmp_path: Path
) -> None:
    """Resumed it is bit for bit the run that was not stopped, with its running means, which what is
    measured at each start leaves alone; timm opens its export; another run starts from it."""
    sgd = ["optim.name=sgd", "optim.schedule=steps", "optim.drops=[0.5]", "checkpoint.every=1"]
    own = ["supervised.hidden=false", "data.validation=0.25"]
    whole = run([*PRE, *small, *sgd, *words, *own, "name=whole"])
    first, last = checkpoint.list_checkpoints(whole.checkpoints)
    left_out = shutil.ignore_patterns(last.name, "result.json")
    shutil.copytree(whole.folder, tmp_path / "again", ignore=left_out)
    again = run([f"recipe={tmp_path}/again/recipe.yaml", f"out={tmp_path}", "name=again"])
    there, here = (load_file(one.export / "model.safetensors") for one in (whole, again))
    start = checkpoint.load(first)["objective"]
    assert there.keys() == here.keys()
    assert all(torch.equal(here[name], value) for name, value in there.items())
    name = next(name for name in there if name.endswith("conv1.weight"))
    assert not torch.equal(start[f"encoder.backbone.{name}"], there[name])
    net = timm.create_model(f"local-dir:{whole.export}", pretrained=True).eval()
    loaded = encoder.build_backbone(whole.recipe.model, whole.recipe.data).eval()
    weights.load_init(loaded, InitSource(str(whole.folder)))
    pixels = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(loaded.feature(pixels, "token"), net(loaded.normalize(pixels)))
