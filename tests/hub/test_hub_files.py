"""Weights from the Hub: what is fetched, from where, and what is not; what other libraries make of
what was pushed; errors in one line without secrets."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import close_session, constants, get_session
from safetensors.torch import load_file, save_file

from helpers.exports import forget_digests
from helpers.hub_runs import REPO, exported, pushed, refused, trained
from helpers.hub_server import WRITER, Fault, Hub, oid
from helpers.options import ROOT, TINY, altered
from helpers.resolving import resolve
from ssl_vit import hub_files
from ssl_vit.hub import push
from ssl_vit.models import encoder, weights
from ssl_vit.recipe.init_source import InitSource
from ssl_vit.recipe.schema import Data, Model, Recipe
from ssl_vit.runs.folder import Run

PLACE = f"hf-hub:{REPO}"
NAMES = ["config.json", "model.safetensors"]


def finetune(*words: str) -> list[str]:
    own = [word for word in TINY if not word.startswith(("recipe=", "model."))]
    return altered(["recipe=finetune", *own, f"init={PLACE}", "eval.test=false"], *words)


def small(depth: int = 2) -> encoder.Encoder:
    model = Model(patch=4, width=32, depth=depth, heads=2, mlp=64)
    return encoder.build_encoder(model, Data(size=16, mean=[0.4] * 3))


def test_initial_weights_from_the_hub_bring_their_model_and_are_pinned(
    server: Hub, tmp_path: Path
) -> None:
    made, commit = exported(server, tmp_path)
    words = finetune("name=tuned", f"out={tmp_path}/runs")

    def begun() -> Recipe:
        return Run(resolve(words)).reconcile()

    recipe = begun()
    assert (recipe.model.width, recipe.model.depth, recipe.data.mean) == (32, 2, [0.4] * 3)
    assert recipe.init == f"{PLACE}@{commit}"
    net = encoder.build_encoder(recipe.model, recipe.data)
    weights.load_weights(net, InitSource(recipe.init))
    assert torch.equal(net.backbone.pos_embed, made.backbone.pos_embed)
    Run(recipe).open({})
    (Run(recipe).folder / "metrics.jsonl").write_text('{"step": 1}\n')
    server.put(REPO, {**pushed(server), "README.md": b"new"})  # main moves, the run does not
    assert begun().init == recipe.init
    assert server.repositories[REPO].branches["main"] != commit


PLACES: dict[str, str] = {
    "someone/nothing": "the repository does not exist, or is private",
    "another/vit": "the repository does not exist, or is private",
    f"{REPO}@nowhere": "no such revision",
    "someone/words": "no config.json",
    "someone/pickled": "no model.safetensors",
    "a/b/c": "USER/NAME",
    REPO: "model.depth=2",
}


@pytest.mark.parametrize(("place", "says"), PLACES.items(), ids=PLACES)
def test_a_wrong_place_is_one_line(server: Hub, tmp_path: Path, place: str, says: str) -> None:
    exported(server, tmp_path)
    exported(server, tmp_path, "another/vit")
    server.put("someone/words", {"README.md": b"words", "preprocessor_config.json": b"{}"})
    config = pushed(server)["config.json"]
    server.put("someone/pickled", {"config.json": config, "pytorch_model.bin": b"\x80\x04N."})

    def load() -> None:
        init = InitSource(f"hf-hub:{place}")
        init.read_description()
        weights.load_weights(small(depth=3), init)

    line = refused(load)
    assert line.startswith(f"init=hf-hub:{place}: ") and says in line


def test_a_damaged_download_is_named(server: Hub, tmp_path: Path) -> None:
    exported(server, tmp_path)
    server.faults = [Fault("GET .*/resolve/.*/model.safetensors", "garbage", 1)]
    line = refused(InitSource(PLACE).fetch_export, *NAMES)
    assert line.startswith(f"init={PLACE}: model.safetensors is damaged. Remove ")
    Path(line.split("Remove ")[1].split(", then ")[0]).unlink()  # as it says
    assert InitSource(PLACE).fetch_export(*NAMES)


def test_names_of_a_repository_lead_nowhere(server: Hub, tmp_path: Path) -> None:
    exported(server, tmp_path, **{"../../../away": b"x"})
    server.listed = [
        {"type": "file", "path": path, "size": 1, "oid": "0" * 40}
        for path in ("../../../away", "/away", "code.py")
    ]
    folder = hub_files.fetch(PLACE, "here", NAMES)
    assert {path.name for path in folder.iterdir()} == set(NAMES)
    assert not list(tmp_path.parent.rglob("away"))


def test_what_is_in_the_cache_needs_no_network(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, commit = exported(server, tmp_path)
    before = hub_files.fetch(f"{PLACE}@{commit}", "here", NAMES)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub_files.fetch(f"{PLACE}@{commit}", "here", NAMES) == before
    assert "HF_HUB_OFFLINE is set" in refused(hub_files.fetch, "hf-hub:someone/else", "here", NAMES)


def test_terms_to_be_accepted_are_named(server: Hub) -> None:
    gated = {"X-Error-Code": "GatedRepo", "X-Error-Message": "restricted"}
    server.faults = [Fault("meta/dino", 403, headers=gated)]
    line = refused(hub_files.fetch, "hf-hub:meta/dino", "init=hf-hub:meta/dino", ["config.json"])
    assert line.startswith("init=hf-hub:meta/dino: ") and f"{server.url}/meta/dino" in line


@pytest.mark.parametrize("match", ["GET .*/revision/main", "GET .*/tree/"])
def test_a_hang_is_given_up_while_weights_are_fetched(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, match: str
) -> None:
    """Also by a client that huggingface_hub makes anew, as it does after it could not connect."""
    monkeypatch.setattr(hub_files, "SILENCE", 0.2)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    exported(server, tmp_path)
    server.faults = [Fault(match, "hang")]
    assert "cannot be reached" in refused(InitSource(PLACE).fetch_export, "config.json")
    close_session()
    assert hub_files._lower_timeouts in get_session().event_hooks["request"]


@pytest.mark.parametrize("secret", [WRITER, "odd secret", "  odd secret \n"])
def test_a_token_never_gets_into_a_line(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    monkeypatch.setenv("HF_TOKEN", secret)
    text = hub_files.clean(f"Illegal header value b'Bearer {secret.strip()}'\nand {WRITER}")
    assert text == "Illegal header value b'Bearer ***' and ***"


def test_an_address_is_told_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://me:s3c@ret@hub.invalid:80")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert "reached at http://hub.invalid:80. " in hub_files.describe_error(ConnectionError())
    text = hub_files.describe_error(ValueError("for url 'http://me:s3c@hub.invalid/a' and //x@y"))
    assert text == "for url 'http://hub.invalid/a' and //y"


def test_a_repository_beside_another_has_a_name_that_the_hub_allows() -> None:
    """As each run of a study has one; long names stay different."""
    assert hub_files.repository_for_run(REPO, "pre train@0.25-0") == "someone/vit-pre-train-0.25-0"
    assert hub_files.repository_for_run("no repository", "x") == "no repository"
    long = [
        hub_files.repository_for_run(f"someone/{'x' * 90}", f"run--{number}") for number in range(3)
    ]
    assert len(set(long)) == 3 and all(hub_files.NAME.fullmatch(name) for name in long)


ARGS = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}
ARGS["mlp_ratio"] = 2
CONFIG = {
    "architecture": "vit_base_patch16_224",
    "model_args": ARGS,
    "pretrained_cfg": {"mean": [0.4] * 3, "std": [0.5] * 3},
}
CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "a place as architecture": ({"architecture": "hf-hub:evil/vit"}, "timm has no architecture"),
    "a text in the mean": (
        {"pretrained_cfg": {"mean": ["x"] * 3, "std": [0.5] * 3}},
        "config.json cannot be read",
    ),
    "ten million blocks": (
        {"model_args": {**ARGS, "depth": 10**7}},
        "model.depth=10000000: expected",
    ),
    "very wide": (
        {"model_args": {**ARGS, "embed_dim": 10**9}},
        "model.width=1000000000: expected",
    ),
    "very wide inside": (
        {"model_args": {**ARGS, "mlp_ratio": 1e9}},
        "model.mlp=32000000000: expected",
    ),
}


@pytest.mark.parametrize(("change", "says"), CONFIGS.values(), ids=CONFIGS)
def test_a_foreign_config_is_not_believed(
    server: Hub, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    exported(server, tmp_path, **{"config.json": json.dumps(CONFIG | change).encode()})
    assert says in refused(resolve, finetune(f"out={tmp_path}/runs"))


def test_a_foreign_config_that_says_nothing_odd_is_taken(server: Hub, tmp_path: Path) -> None:
    exported(server, tmp_path, **{"config.json": json.dumps(CONFIG).encode()})
    recipe = resolve(finetune(f"out={tmp_path}/runs"))
    assert (recipe.model.timm, recipe.model.mlp) == ("vit_base_patch16_224", 64)
    assert recipe.data.mean == [0.4] * 3


@pytest.mark.parametrize("name", ["hf-hub:evil/vit", "hf_hub:evil/vit", "local-dir:/tmp", "a/vit"])
def test_timm_is_asked_for_nothing_but_its_own_models(name: str) -> None:
    assert "hf-hub:USER/NAME" in refused(resolve, [f"init=timm:{name}", "recipe=finetune"])


FETCHES: dict[str, tuple[Any, str]] = {
    "an architecture of timm's": ("vit_tiny_patch16_224", "model.heads=3"),
    "a place": ("hf-hub:evil/vit", ""),
    "no text": (["x"], "config.json cannot be read"),
}


@pytest.mark.parametrize(("architecture", "says"), FETCHES.values(), ids=FETCHES)
def test_what_a_foreign_config_would_have_timm_fetch_is_not_fetched(
    server: Hub, tmp_path: Path, architecture: Any, says: str
) -> None:
    url = {"url": f"{server.url}/evil/x.pth"}
    asks = {"img_size": 16, "pretrained": True, "pretrained_cfg": url}
    config = CONFIG | {"architecture": architecture, "model_args": asks}
    exported(server, tmp_path, **{"config.json": json.dumps(config).encode()})
    if says:
        assert says in refused(weights.load_weights, small(), InitSource(PLACE))
    else:
        weights.load_weights(small(), InitSource(PLACE))
    assert server.requests and not [request for request in server.requests if "evil" in request]


def test_timms_own_weights_come_as_safetensors(server: Hub, tmp_path: Path) -> None:
    """From its repository on the Hub, which is here a small network's; the classifier stays
    there."""
    theirs, _ = exported(server, tmp_path)
    forget_digests(tmp_path / "made")
    classifier = {"head.weight": torch.zeros(9, 32), "head.bias": torch.zeros(9)}
    path = tmp_path / "made" / "model.safetensors"
    save_file(load_file(path) | classifier, path)
    files = {name: (tmp_path / "made" / name).read_bytes() for name in NAMES}
    files["pytorch_model.bin"] = b"a pickle"
    server.put("timm/vit_base_patch16_224.augreg2_in21k_ft_in1k", files)
    made = small()
    weights.load_weights(made, InitSource("timm:vit_base_patch16_224"))
    ours, right = (net.backbone.blocks[1].mlp.fc2.weight for net in (made, theirs))
    assert torch.equal(ours, right)
    assert not any("pytorch_model" in request for request in server.requests)
    line = refused(weights.load_weights, made, InitSource("timm:no_such_vit"))
    assert line.startswith("init=timm:no_such_vit: ")


FRESH = """
import sys
sys.modules["ssl_vit"] = None  # not there
import numpy, timm, torch
from huggingface_hub import snapshot_download
from transformers import AutoImageProcessor, AutoModel, AutoModelForImageClassification
images = list(numpy.load("images.npy"))
for name, place in (("features", "someone/vit"), ("logits", "someone/classifier")):
    folder = snapshot_download(place)
    processor = AutoImageProcessor.from_pretrained(place)
    normal = processor(images, return_tensors="pt")["pixel_values"]
    nets = [timm.create_model(at, pretrained=True).eval() for at in (f"local-dir:{folder}", f"hf-hub:{place}")]
    auto = AutoModelForImageClassification if name == "logits" else AutoModel
    model = auto.from_pretrained(place).eval()
    with torch.no_grad():
        found = [net(normal) for net in nets]
        seen = model(normal)
    found.append(seen.logits if name == "logits" else seen.pooler_output)
    numpy.savez(f"{name}.npz", normal=normal.numpy(), **{str(i): one.numpy() for i, one in enumerate(found)})
print(*[model.config.id2label[number] for number in range(len(model.config.id2label))], sep=",")
"""


def test_a_fresh_process_gets_the_runs_own_outputs(
    server: Hub, run: Run, finished: Path, tmp_path: Path
) -> None:
    """A pre-trained encoder's features and a fine-tuned run's logits, by timm and transformers,
    without ssl_vit."""
    push.push(run)
    words = finetune(f"init={finished}", "eval.test=true", "hub.repo=someone/classifier")
    tuned = trained(tmp_path, *words)
    draw = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8, generator=draw)
    np.save(tmp_path / "images.npy", images.permute(0, 2, 3, 1).numpy())
    command = [sys.executable, "-c", FRESH]
    done = subprocess.run(command, cwd=tmp_path, env=dict(os.environ), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert len(done.stdout.split(b",")) == 10

    def feature(of: Run, pool: str) -> torch.Tensor:
        net = encoder.build_encoder(of.recipe.model, of.recipe.data).eval()
        weights.load_weights(net, InitSource(str(of.folder)))
        with torch.no_grad():
            return net.feature(images, pool)

    head = load_file(tuned.export / "heads.safetensors")
    logits = feature(tuned, tuned.recipe.pool) @ head["head.weight"].T + head["head.bias"]
    assert logits.abs().max() > 0.01
    for name, wanted in (("features", feature(run, "avg")), ("logits", logits)):
        with np.load(tmp_path / f"{name}.npz") as found:
            for loaded in ("0", "1", "2"):
                right = torch.tensor(found[loaded])
                torch.testing.assert_close(right, wanted, atol=1e-5, rtol=0)
            normal = torch.tensor(found["normal"])
    net = encoder.build_encoder(run.recipe.model, run.recipe.data)
    torch.testing.assert_close(normal, net.normalize(images), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_the_script_for_the_real_hub_runs(server: Hub) -> None:
    script = [sys.executable, ROOT / "docs" / "examples" / "real_hub.py", "someone/real"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok ") == 16


def test_the_server_keeps_what_it_is_given(server: Hub) -> None:
    """The referee itself: sums as git and LFS count them, an empty file as git knows it."""
    assert oid("a.json", b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert oid("a.safetensors", b"x") == hashlib.sha256(b"x").hexdigest()
