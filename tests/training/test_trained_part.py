"""model.train: the last blocks or low-rank updates, against plain networks in float64, and runs that
train them: what moves, what checkpoints and exports hold, how they resume, what they are planned as.
Sharding is in test_sharding.py, the number of processes in test_spread.py."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import timm
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from helpers.encoders import load, net, pixels
from helpers.exactness import last_state
from helpers.exports import of_timm
from helpers.options import TINY, altered
from helpers.resolving import parse_request, resolve
from helpers.runs import assert_goes_on_exactly, rows, run
from ssl_vit import costs
from ssl_vit.errors import UserError
from ssl_vit.models.encoder import Encoder, build_encoder
from ssl_vit.models.trained_part import freeze_untrained, low_rank_layers, merged_state
from ssl_vit.objectives import teacher
from ssl_vit.recipe.schema import Data, Model
from ssl_vit.runs import checkpoint_files
from ssl_vit.training import checkpoint

SIZES = {"patch": 4, "width": 32, "depth": 2, "heads": 2, "mlp": 64}
EVA = {"timm": "eva02_tiny_patch14_224", "positions": "rotary", "activation": "swiglu"}
NETWORKS = {
    "classic": {},
    "rotary": {"positions": "rotary", "qk_norm": True},
    "parallel": {"timm": "vit_small_patch16_18x2_224"},
    "eva": EVA,
}
# {name: options of a run, besides those of TINY}
WAYS = {
    "blocks": ["recipe=mae", "model.train=blocks:1", "optim.drop_path=0.5"],
    "blocks, average": ["recipe=finetune", "model.train=blocks:1", "optim.average=0.5"],
    "lora": ["recipe=mae", "model.train=lora:2"],
    "lora, wanted": ["recipe=mpp", "model.train=lora:2", "optim.dropout=0.1"],
    "lora, layers": ["recipe=finetune", "model.train=lora:2", "optim.layer_decay=0.7"],
    "lora, teacher": [
        *("recipe=dino", "model.train=lora:2", "views.local_size=8", "dino.prototypes=32"),
        *("dino.momentum=0.5", "eval.collapse=null"),
    ],
}
ATTENTION = {f"blocks.{block}.attn.{name}.weight" for block in (0, 1) for name in ("qkv", "proj")}


def low_rank(seed: int = 0, rank: int = 3, **own: object) -> Encoder:
    """An encoder of low-rank updates that are not zero."""
    torch.manual_seed(seed)
    encoder = build_encoder(Model(**SIZES | own, train=f"lora:{rank}"), Data(size=16)).eval()
    freeze_untrained(encoder)
    for layer in low_rank_layers(encoder).values():
        torch.nn.init.normal_(layer.up.weight, std=0.1)
    return encoder


def plain(encoder: Encoder) -> Encoder:
    """The same network of plain layers in float64, whose weights are W + B A."""
    copy = build_encoder(encoder.model, encoder.data).eval().double()
    state = {name: value.double() for name, value in encoder.backbone.state_dict().items()}
    for name in [name for name in state if name.endswith(".down.weight")]:
        whole = name.replace(".down", "")
        state[whole] += state.pop(name.replace(".down", ".up")) @ state.pop(name)
    copy.backbone.load_state_dict(state)
    return copy


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_and_gradients_are_those_of_the_merged_weights(name: str) -> None:
    """Of all tokens and of wanted ones. With W' = W + B A the chain rule gives dB = dW' A^T and
    dA = B^T dW'."""
    encoder = low_rank(**NETWORKS[name])
    right = plain(encoder)
    x_BND, wanted_BK = torch.randn(2, 16, 32), torch.tensor([[3, 0], [5, 15]])
    outputs: list[list[Tensor]] = []
    for network, x in ((encoder, x_BND), (right, x_BND.double())):
        tokens = [network(x), network(x, wanted_BK=wanted_BK)]
        sum((token**2 * torch.arange(32)).sum() for token in tokens).backward()
        outputs.append(tokens)
    for one, other in zip(*outputs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)
    weights = dict(right.named_parameters())
    layers = low_rank_layers(encoder)
    assert len(layers) >= 4
    for whole, layer in layers.items():
        gradient = weights[whole].grad
        for found, wanted in (
            (layer.up.weight.grad, gradient @ layer.down.weight.double().T),
            (layer.down.weight.grad, layer.up.weight.double().T @ gradient),
        ):
            assert wanted.norm() > 0
            assert (found.double() - wanted).norm() < 1e-4 * wanted.norm(), whole
    trained = {p for layer in layers.values() for p in (layer.up.weight, layer.down.weight)}
    for p in encoder.parameters():
        assert p.requires_grad == (p.grad is not None) == (p in trained)


@pytest.mark.parametrize("name", NETWORKS)
def test_low_rank_updates_begin_at_the_start_and_merge_exactly(name: str) -> None:
    """Before any step the features are the same numbers, but for the sum of Eva's bias."""
    encoder = build_encoder(Model(**SIZES | NETWORKS[name], train="lora:3"), Data(size=16)).eval()
    features = encoder.feature(pixels())
    state = {key: value.clone() for key, value in encoder.backbone.state_dict().items()}
    freeze_untrained(encoder)
    torch.testing.assert_close(
        encoder.feature(pixels()), features, rtol=0, atol=2e-6 if name == "eva" else 0
    )
    merged = merged_state(encoder.backbone)
    assert merged.keys() == state.keys()
    assert all(torch.equal(merged[key], state[key]) for key in state)


@pytest.mark.parametrize("count", [1, 2])
def test_the_last_blocks_and_the_final_norm_are_trained(count: int) -> None:
    encoder = build_encoder(Model(**SIZES, train=f"blocks:{count}"), Data(size=16))
    freeze_untrained(encoder)
    trained = {name for name, p in encoder.backbone.named_parameters() if p.requires_grad}
    prefixes = ("norm.", *(f"blocks.{2 - k}." for k in range(1, count + 1)))
    names = {name for name, _ in encoder.backbone.named_parameters()}
    assert trained == {name for name in names if name.startswith(prefixes)}


def test_a_teacher_follows_the_product_of_the_factors() -> None:
    """The average of the factors would be another matrix."""
    encoder = build_encoder(Model(**SIZES, train="lora:3"), Data(size=16))
    follower = teacher.Teacher(encoder)
    start = {name: p.clone() for name, p in follower.encoder.backbone.named_parameters()}
    freeze_untrained(encoder)
    expected = {name: value.double() for name, value in start.items()}
    for _ in range(3):
        for layer in low_rank_layers(encoder).values():
            torch.nn.init.normal_(layer.up.weight, std=0.1)
            torch.nn.init.normal_(layer.down.weight, std=0.1)
        right = dict(plain(encoder).backbone.named_parameters())
        for name in ATTENTION:
            expected[name] = 0.9 * expected[name] + 0.1 * right[name].detach()
        with torch.no_grad():
            for average, weight in teacher.pair_parameters((follower.encoder, encoder)):
                average.lerp_(weight, 0.1)
    for name, p in follower.encoder.backbone.named_parameters():
        if name in ATTENTION:
            torch.testing.assert_close(p.double(), expected[name], rtol=0, atol=1e-6)
        else:
            assert torch.equal(p, start[name]), name


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("parts")
    of_timm(out / "start")
    return out


def words_of(name: str, out: Path) -> list[str]:
    own = [f"init={out}/start", f"out={out}/{name.replace(', ', '-')}", "log.every=1"]
    return altered(TINY, "optim.lr=0.01", *WAYS[name], *own)


@pytest.fixture(scope="module", params=WAYS)
def trained(request: pytest.FixtureRequest, out: Path) -> Iterator[tuple[str, Path]]:
    """The name of a way and the folder of its run, which was killed twice and is as if not."""
    words = words_of(request.param, out)
    yield request.param, assert_goes_on_exactly(words, 5, 9).folder


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    assert before.keys() <= after.keys()
    return {name for name, value in before.items() if not torch.equal(value, after[name])}


def test_what_is_frozen_stays_to_the_bit(trained: tuple[str, Path], out: Path) -> None:
    name, folder = trained
    start = load_file(out / "start" / "model.safetensors")
    moved = changed(start, load_file(folder / "export" / "model.safetensors"))
    if "lora" in name:
        assert moved == ATTENTION
    else:
        assert moved == {key for key in start if key.startswith(("blocks.1.", "norm."))}


def test_the_optimiser_s_state_is_that_of_what_is_trained(trained: tuple[str, Path]) -> None:
    """As many numbers as the plan counts; the checkpoint still has the whole encoder."""
    name, folder = trained
    last = checkpoint_files.list_checkpoints(folder / "checkpoints")[-1]
    saved = checkpoint.load(last)
    parts = r"down|up" if "lora" in name else r"blocks\.1\.|backbone\.norm\."
    of_encoder = {key for key in saved["moments"] if key.startswith("encoder.")}
    assert of_encoder == {
        key for key in saved["objective"] if key.startswith("encoder.") and re.search(parts, key)
    }
    size = sum(
        value.numel()
        for moments in saved["moments"].values()
        for value in moments.values()
        if value.ndim
    )
    recipe = resolve(words_of(name, folder.parents[1]))
    counted = costs.compute_network_cost(recipe)
    held = costs.memory_bytes(recipe, processes=2, zero=0, batch=0, fused=False)
    moments = len(recipe.optim.optimiser.moments(recipe.optim))
    assert size == moments * counted.trained
    assert (
        held["moments"] == 4 * size and held["gradients"] == held["buckets"] == 4 * size / moments
    )
    assert held["weights"] >= 4 * counted.encoder


def test_an_export_has_merged_weights(trained: tuple[str, Path]) -> None:
    """In float64 from the checkpoint; timm and this package compute with them what the network of
    factors does."""
    name, folder = trained
    if "lora" not in name or "teacher" in name:  # whose teacher is exported
        pytest.skip("no factors are exported")
    state = {
        key.removeprefix("encoder."): value
        for key, value in last_state(folder).items()
        if key.startswith("encoder.")
    }
    unmerged = net(Model(**SIZES, train="lora:2"), Data(size=16, mean=[0.4] * 3, std=[0.2] * 3))
    freeze_untrained(unmerged)
    unmerged.load_state_dict(state)
    export = load_file(folder / "export" / "model.safetensors")
    for key in ATTENTION:
        layer = f"backbone.{key.removesuffix('.weight')}"
        update = state[f"{layer}.up.weight"].double() @ state[f"{layer}.down.weight"].double()
        assert update.norm() > 0
        merged = state[f"{layer}.weight"].double() + update
        assert (export[key].double() - merged).abs().max() < 1e-6
    images = pixels()
    merged_net = net(Model(**SIZES), unmerged.data)
    load(merged_net, folder)
    of_ssl_vit = merged_net.tokens(images)
    of_timm_net = timm.create_model(f"local-dir:{folder / 'export'}", pretrained=True).eval()
    tokens = unmerged.eval().tokens(images)
    for other in (of_ssl_vit, of_timm_net.forward_features(unmerged.normalize(images))):
        assert (tokens - other).abs().max() < 1e-6 * tokens.abs().max()


def test_a_run_from_such_a_run_trains_the_whole_encoder(trained: tuple[str, Path]) -> None:
    recipe = resolve(["recipe=finetune", f"init={trained[1]}"])
    assert recipe.model.train == "all" and recipe.model.width == 32


def test_the_first_loss_is_that_of_the_whole_encoder(out: Path) -> None:
    """The heads have the same initial weights, and the update is zero."""
    losses = set()
    for part in ("all", "blocks:1", "lora:2"):
        words = altered(words_of("lora", out), f"model.train={part}", "optim.steps=3")
        losses.add(rows(run([*words, f"name=first-{part}"]).folder)[1]["loss"])
    assert len(losses) == 1


def test_another_part_is_another_run(trained: tuple[str, Path], out: Path) -> None:
    name, folder = trained
    words = altered(words_of(name, out), "model.train=all", f"name={folder.name}")
    there = re.search(r"model.train=(\S+)", " ".join(WAYS[name]))
    assert there is not None
    with pytest.raises(UserError, match=rf"model.train \({there[1]} there, all here\)"):
        run(words)


@pytest.mark.parametrize("value", ["lora", "lora:0", "lora:-1", "blocks:0", "blocks:1.5", "some"])
def test_another_word_is_refused(value: str) -> None:
    with pytest.raises(UserError, match=rf"^model.train={value}: expected all, blocks:K or lora:R"):
        resolve(["recipe=mae", f"model.train={value}"])


@pytest.mark.parametrize("part", ["lora:2", "blocks:1"])
def test_random_weights_are_not_frozen(part: str, tmp_path: Path) -> None:
    """A study knows the weights of a task only when the task starts."""
    words = [*TINY, f"out={tmp_path}", "name=run", f"model.train={part}"]
    with pytest.raises(UserError, match=rf"^model.train={part}: freezes random weights"):
        run(words)
    assert not (tmp_path / "run" / "recipe.yaml").exists()
    content = {
        "title": "A part is fine-tuned",
        "seeds": [0, 1, 2],
        "options": {"data": "shapes", "data.size": 32, "model": "vit_n8"},
        "axes": {"arm": {"all": {}, "part": {"tune": {"model.train": part}}}},
        "runs": {
            "pretrain": {"tool": "pretrain", "options": {"recipe": "mae", "optim.steps": 500}},
            "tune": {
                "tool": "finetune",
                "over": ["arm"],
                "options": {"recipe": "finetune", "init": "{pretrain}", "optim.steps": 100},
            },
        },
        "report": {"test": "tune", "baseline": "all"},
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(content))
    assert len(parse_request([f"recipe={tmp_path}/study.yaml"]).tasks) == 9


def test_the_blocks_of_a_deep_network_that_are_frozen_cost_less() -> None:
    """A network of more than 48 blocks is counted from two shallow ones, unless some are frozen."""
    recipe = resolve(["recipe=supervised", "model=vit_n8", "data.size=32", "optim.batch=2"])
    recipe.model.depth = 50
    found = []
    for part in ("all", "blocks:1", "blocks:10"):
        recipe.model.train = part
        found.append(costs.compute_network_cost(recipe))
    whole, one, ten = (cost.trained for cost in found)
    block = 12 * 128 * 128 + 13 * 128  # weights, biases and norms
    assert ten - one == 9 * block and one < whole - 49 * block
    assert found[0].training > found[2].training > found[1].training
