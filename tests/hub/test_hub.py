"""Pushed to and pulled from a Hub on this machine, by the real client, with everything that a
network does to it."""

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from helpers.hub_runs import REPO, exported, milestone, pushed, trained
from helpers.hub_server import READER, STRANGER, WRITER, Fault, Hub, oid
from helpers.launching import launch_ranks, outcome
from helpers.options import ROOT, TINY, altered
from helpers.reports import table
from ssl_vit import hub_files
from ssl_vit.errors import UserError
from ssl_vit.hub import background, card, manifest, payload, pull, push, state_io
from ssl_vit.jobs import cli
from ssl_vit.jobs import train as train_job
from ssl_vit.models import encoder, weights
from ssl_vit.objectives.mpp import MppDeclaration
from ssl_vit.objectives.supervised import SupervisedOptions
from ssl_vit.recipe.init_source import InitSource
from ssl_vit.recipe.load import resolve
from ssl_vit.recipe.records.run import Measured
from ssl_vit.recipe.schema import Data, Model
from ssl_vit.runs.folder import Run
from ssl_vit.stats import proportion

pytestmark = pytest.mark.filterwarnings(
    "ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning"
)  # the client's own LFS
NOBODY = "hf_nobodyNOBODY0123456789"
PARTS = {
    "README.md",
    "recipe.yaml",
    "run.json",
    "config.json",
    "model.safetensors",
    "heads.safetensors",
}


def test_a_first_push_makes_a_private_repository_with_all_that_belongs_there(
    server: Hub, run: Run
) -> None:
    push.push(run)
    files = pushed(server)
    assert files.keys() == PARTS | {
        ".gitattributes",
        "result.json",
        "figures/predictions.png",
    }
    assert server.repositories[REPO].private and manifest.pending(run) == []
    assert files["model.safetensors"] == (run.export / "model.safetensors").read_bytes()
    lines = manifest.status_lines(run)
    assert lines == [("hub", f"{REPO}: pushed main")]


def test_an_unchanged_folder_makes_no_commit(server: Hub, run: Run) -> None:
    """The Hub knows what it has, also where the run folder does not."""
    run.recipe.hub.state = True
    push.push(run)
    branches = dict(server.repositories[REPO].branches)
    run.ledger.unlink()
    push.push(run)
    assert server.repositories[REPO].branches == branches and manifest.pending(run) == []
    (run.figures / "predictions.png").write_bytes(b"another")
    push.push(run)
    assert server.repositories[REPO].history("main") == 3


def test_milestones_go_to_branches_of_their_own_once(server: Hub, run: Run) -> None:
    for step in (4, 8):
        milestone(run, step)
    push.push(run)
    branches = server.repositories[REPO].branches
    assert set(branches) == {"main", "step-000000004", "step-000000008"}
    assert pushed(server, "step-000000004").keys() == PARTS | {".gitattributes"}
    assert "step 4 of 12" in pushed(server, "step-000000004")["README.md"].decode()
    assert not list(run.outbox.glob("step-*"))
    milestone(run, 8)  # as a run that resumed would
    push.push(run)
    assert server.repositories[REPO].branches == branches


REFUSED = {
    "a wrong token": (NOBODY, REPO, "the Hub does not know this token; type hf auth login"),
    "a token that is none": (WRITER + "\u20ac", REPO, "the token is none"),
    "nobody": (None, REPO, "nobody is logged in; type hf auth login"),
    "a token to read": (READER, REPO, "this token may not write there"),
    "somebody else's": (STRANGER, REPO, "this token may not write there"),
}


@pytest.mark.parametrize(("token", "repository", "says"), REFUSED.values(), ids=REFUSED)
def test_who_may_not_push_is_told_at_once(
    server: Hub,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    token: str | None,
    repository: str,
    says: str,
) -> None:
    monkeypatch.setenv("HF_TOKEN", token) if token else monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UserError, match=f"^hub.repo={REPO}: ") as caught:
        push.push(run)
    assert says in str(caught.value) and "\n" not in str(caught.value) and len(server.requests) < 5
    assert manifest.pending(run) == ["main"]


PASSING = {
    "429 while creating": Fault("repos/create", 429, 2, {"Retry-After": "0"}),
    "503 while creating": Fault("repos/create", 503, 2, {"Retry-After": "0"}),
    "503 while committing": Fault("/commit/main", 503, 2),
    "429 while asking how": Fault("preupload", 429, 1, {"Retry-After": "0"}),
    "cut in the middle of the weights": Fault("PUT /lfs", "cut", 1),
    "cut while committing": Fault("/commit/main", "cut", 1),
}


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
def test_what_passes_is_waited_for(server: Hub, run: Run, fault: Fault) -> None:
    server.faults = [fault]
    push.push(run)
    assert fault.times == 0 and manifest.pending(run) == []
    assert pushed(server)["model.safetensors"] == (run.export / "model.safetensors").read_bytes()


def test_a_server_that_hangs_is_given_up(
    server: Hub, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_files, "SILENCE", 0.3)
    server.faults = [Fault("repos/create", "hang")]
    with pytest.raises(UserError, match=f"the Hub cannot be reached at {server.url}; try later"):
        push.push(run)


def test_the_run_of_another_recipe_is_not_written_over(server: Hub, run: Run) -> None:
    push.push(run)
    before = dict(server.repositories[REPO].branches)
    run.ledger.unlink()
    run.recipe.optim.lr = 0.5
    with pytest.raises(
        UserError, match=r"holds the run of another recipe \(optim\.lr\); say another hub\.repo="
    ):
        push.push(run)
    assert server.repositories[REPO].branches == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["hub.repo=vit"], "hub.repo=vit: expected USER/NAME"),
        (["hub.repo=a/../b"], "hub.repo=a/../b: expected USER/NAME"),
        (["hub.every=5"], "hub.every=5: has no use without hub.repo=USER/NAME"),
        (["hub.repo=a/b", "hub.every=0"], "hub.every=0: expected a whole number above 0"),
    ],
)
def test_words_of_the_recipe(tiny: list[str], words: list[str], says: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(altered(tiny, *words))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "expected one FOLDER, as in python tools/push.py runs/mpp"),
        (["nowhere"], "nowhere is no run"),
        (["RUN"], "hub.repo= is missing; expected USER/NAME"),
        (["RUN", "hub.rep=a/b"], "did you mean hub.repo?"),
        (["RUN", "hub.repo=a/b", "hub.private=no"], "true or false"),
    ],
)
def test_words_of_the_tool(run: Run, words: list[str], says: str) -> None:
    with pytest.raises(UserError) as caught:
        push.main([word.replace("RUN", str(run.folder)) for word in words])
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_the_tool_pushes_a_run_that_never_heard_of_the_hub(
    server: Hub, run: Run, capsys: pytest.CaptureFixture
) -> None:
    push.main([str(run.folder), f"hub.repo={REPO}", "hub.private=false"])
    assert not server.repositories[REPO].private
    assert (
        f"pushed      {REPO}: main is at commit {server.repositories[REPO].branches['main'][:12]}"
        in capsys.readouterr().out
    )


# what the Hub does -> environment, words beside hub.repo, what is told at the end (nothing: all is
# pushed)
WHILE_TRAINING: dict[str, tuple[list[Fault], dict[str, str], list[str], str]] = {
    "nothing": ([], {}, [], ""),
    "a wrong token": (
        [],
        {"HF_TOKEN": NOBODY},
        [],
        "the Hub does not know this token; type hf auth login",
    ),
    "missing rights": ([], {"HF_TOKEN": READER}, [], "this token may not write there"),
    "somebody else's repository": (
        [],
        {},
        ["hub.repo=another/vit"],
        "this token may not write there",
    ),
    "429": ([Fault("preupload", 429, 1, {"Retry-After": "0"})], {}, [], ""),
    "503": (
        [Fault("repos/create", 503)],
        {},
        ["hub.wait=1"],
        "the Hub is busy (HTTP 503); try later",
    ),
    "cut": ([Fault("PUT /lfs", "cut", 1)], {}, [], ""),
    "hang": ([Fault("/", "hang")], {}, ["hub.wait=1"], "an upload began and has not ended"),
    "down": (
        [],
        {"HF_ENDPOINT": "http://127.0.0.1:9"},
        ["hub.wait=1"],
        "the Hub cannot be reached at http://127.0.0.1:9",
    ),
}


@pytest.mark.parametrize(
    ("faults", "environment", "words", "says"), WHILE_TRAINING.values(), ids=WHILE_TRAINING
)
def test_training_ends_with_the_same_weights_whatever_the_hub_does(
    server: Hub,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    faults: list[Fault],
    environment: dict[str, str],
    words: list[str],
    says: str,
) -> None:
    server.faults = faults
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    options = altered(
        [*TINY, "name=mpp", f"out={tmp_path}/runs"], f"hub.repo={REPO}", "hub.every=8", *words
    )
    if says:
        monkeypatch.setattr(background.Pusher, "finish", after_trouble(says))
    cli.pretrain(options)
    folder, out = tmp_path / "runs" / "mpp", capsys.readouterr().out
    for name in ("model.safetensors", "heads.safetensors"):
        assert (folder / "export" / name).read_bytes() == (finished / "export" / name).read_bytes()
    owes = [line for line in out.splitlines() if line.startswith(("not pushed", "then type"))]
    if says:
        assert "step-000000008, main" in owes[0] and says in owes[0]
        assert f"tools/push.py {folder} hub.repo=" in owes[1]
    else:
        assert not owes and f"{REPO}: pushed main, step-000000008" in out
    assert_no_token(tmp_path / "runs", out)


def after_trouble(says: str) -> Callable[[background.Pusher, Callable[[], bool]], None]:
    """Pusher.finish that begins to wait hub.wait seconds once a push has met this trouble, however
    long that takes to start."""
    finish = background.Pusher.finish

    def patient(pusher: background.Pusher, should_stop: Callable[[], bool]) -> None:
        pusher.start()
        for _ in range(2400):
            if says in manifest.problem(pusher.run):
                break
            time.sleep(0.05)
        finish(pusher, should_stop)

    return patient


def assert_no_token(folder: Path, *texts: str) -> None:
    """That none of the tokens is in a file there, or in the texts."""
    contents = [path.read_bytes() for path in folder.rglob("*") if path.is_file()] + [
        text.encode() for text in texts
    ]
    assert len(contents) > 5
    assert not [
        token
        for token in (WRITER, READER, STRANGER, NOBODY)
        if any(token.encode() in one for one in contents)
    ]


def test_a_push_that_failed_is_told_once_while_training_goes_on(
    run: Run, capsys: pytest.CaptureFixture
) -> None:
    pusher = background.Pusher(run)
    run.outbox.mkdir()
    (run.outbox / "log.txt").write_text("waiting: a moment\nerror: the Hub is busy\nbye\n")
    pusher.process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"])
    pusher.process.wait()
    capsys.readouterr()
    pusher.on_step(1)
    pusher.on_step(2)
    assert (
        capsys.readouterr().out
        == "warning: the Hub has not got main: the Hub is busy; training goes on\n"
    )


def test_what_stayed_owed_is_pushed_by_the_line_that_was_told(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("HF_TOKEN", NOBODY)
    cli.pretrain(
        altered([*TINY, "name=mpp", f"out={tmp_path}/runs"], f"hub.repo={REPO}", "hub.every=5")
    )
    (line,) = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("then type")
    ]
    monkeypatch.setenv("HF_TOKEN", WRITER)
    done = subprocess.run(
        line.removeprefix("then type").split(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0 and done.stdout.count("pushed      ") == 3
    assert set(server.repositories[REPO].branches) == {"main", "step-000000005", "step-000000010"}


def test_a_run_that_goes_on_pushes_nothing_twice(server: Hub, tmp_path: Path) -> None:
    words = [f"hub.repo={REPO}", "hub.every=4", "hub.state=true"]
    run = trained(tmp_path / "runs", *words)
    before = dict(server.repositories[REPO].branches)
    assert set(before) == {"main", "state", "step-000000004", "step-000000008"}
    (run.folder / "result.json").unlink()
    shutil.rmtree(run.checkpoints / "step-000000012")  # as if killed before it was written
    again = trained(tmp_path / "runs", *words)
    after = server.repositories[REPO].branches
    # whose result.json and metrics.jsonl tell other times
    assert {name for name in before if after[name] != before[name]} <= {"main", "state"}
    assert manifest.pending(again) == []


def test_a_pushed_state_goes_on_as_the_run_would_have(
    server: Hub, run: Run, finished: Path, tmp_path: Path
) -> None:
    run.recipe.hub.state = True
    (run.folder / "result.json").unlink()
    shutil.rmtree(run.checkpoints / "step-000000012")
    push.push(run)
    commit = server.repositories[REPO].branches["state"]
    assert not [name for name in pushed(server, "state") if name.endswith((".pt", ".pkl", ".bin"))]
    pull.main([f"hf-hub:{REPO}", f"out={tmp_path}/pulled", "name=again"])
    folder = tmp_path / "pulled" / "again"
    with pytest.raises(UserError, match=f"{folder} is there already; say name= or remove it"):
        pull.main([f"hf-hub:{REPO}", f"out={tmp_path}/pulled", "name=again"])
    assert json.loads((folder / "hub.json").read_text())["pulled"] == f"hf-hub:{REPO}@{commit}"
    again = Run(resolve([f"recipe={folder}/recipe.yaml", "name=again", f"out={tmp_path}/pulled"]))
    again.reconcile()
    train_job.train(again)
    assert "started at step 8" in again.log.read_text()
    assert (again.export / "model.safetensors").read_bytes() == (
        finished / "export" / "model.safetensors"
    ).read_bytes()


def test_a_state_is_packed_and_unpacked_as_it_was() -> None:
    state = {
        "a": torch.arange(3),
        "plain": [1, 2.5, math.inf, None, True, "x"],
        "deep": [{"b": torch.tensor(1.5, dtype=torch.bfloat16)}, []],
    }
    unpacked = state_io.unpack(*state_io.pack(state))
    assert torch.equal(unpacked["a"], state["a"]) and unpacked["plain"] == state["plain"]
    assert unpacked["deep"][0]["b"].dtype == torch.bfloat16 and unpacked["deep"][1] == []


STATES = {
    "no state": ({"recipe.yaml": b"objective: mpp"}, "it holds no training state: it has no"),
    "a pickle": (dict.fromkeys(payload.STATE, b"\x80\x04N."), "its recipe.yaml: "),
    "nonsense": (
        {**dict.fromkeys(payload.STATE, b""), "recipe.yaml": "MPP", "state.json": b"[1, 2]"},
        "state.json or state.safetensors holds no training state",
    ),
    "a name that leads away": (
        {**dict.fromkeys(payload.STATE, b""), "recipe.yaml": "MPP", "away": b""},
        "name=../../mpp: expected a folder's name",
    ),
}


@pytest.mark.parametrize(("files", "says"), STATES.values(), ids=STATES)
def test_a_state_that_is_none_is_one_line_and_leaves_nothing(
    server: Hub, run: Run, tmp_path: Path, files: dict[str, Any], says: str
) -> None:
    recipe = (run.folder / "recipe.yaml").read_bytes()
    mine = recipe.replace(b"name: mpp\n", b"name: ../../mpp\n", 1) if "away" in files else recipe
    server.put(
        REPO,
        {name: mine if content == "MPP" else content for name, content in files.items()},
        "state",
    )
    with pytest.raises(UserError) as caught:
        pull.pull(f"hf-hub:{REPO}", f"{tmp_path}/pulled/deep")
    assert (
        says in str(caught.value)
        and str(caught.value).startswith(f"hf-hub:{REPO}: ")
        and "\n" not in str(caught.value)
    )
    assert (
        not [path for path in (tmp_path / "pulled").rglob("*") if path.is_file()]
        and not (tmp_path / "mpp").exists()
    )


def test_first_weights_from_the_hub_bring_their_model_and_are_pinned(
    server: Hub, tmp_path: Path
) -> None:
    made, commit = exported(server, tmp_path)
    words = altered(
        [
            "recipe=finetune",
            *TINY[1:],
            "name=tuned",
            f"init=hf-hub:{REPO}",
            f"out={tmp_path}/runs",
            "eval.test=false",
        ]
    )
    words = [word for word in words if not word.startswith("model.")]
    run = Run(resolve(words))
    run.reconcile()
    assert (run.recipe.model.width, run.recipe.model.depth, run.recipe.data.mean) == (
        32,
        2,
        [0.4] * 3,
    )
    assert run.recipe.init == f"hf-hub:{REPO}@{commit}"
    net = encoder.build_encoder(run.recipe.model, run.recipe.data)
    weights.load_weights(net, InitSource(run.recipe.init))
    assert torch.equal(net.backbone.pos_embed, made.backbone.pos_embed)
    train_job.train(run)
    assert f"init: hf-hub:{REPO}@{commit}" in (run.folder / "recipe.yaml").read_text()
    # main moves; the run stays where it began
    server.put(REPO, {**pushed(server), "README.md": b"new"})
    again = Run(resolve(words))
    again.reconcile()
    assert (
        again.recipe.init == run.recipe.init
        and server.repositories[REPO].branches["main"] != commit
    )


PLACES: dict[str, tuple[str, str]] = {
    "no such repository": ("someone/nothing", "there is no such repository, or it is private"),
    "somebody else's": ("another/vit", "there is no such repository, or it is private"),
    "a wrong revision": (f"{REPO}@nowhere", "the repository has no such revision"),
    "no encoder": ("someone/words", "the repository is no encoder: it has no config.json"),
    "no safetensors": (
        "someone/pickled",
        "no encoder that can be read: it has no model.safetensors",
    ),
    "no repository's name": ("a/b/c", "a/b/c is no repository; expected USER/NAME"),
    "weights that do not fit": (REPO, "model.depth=3 here, 2 there"),
}


@pytest.mark.parametrize(("place", "says"), PLACES.values(), ids=PLACES)
def test_bad_places_are_one_line(server: Hub, tmp_path: Path, place: str, says: str) -> None:
    exported(server, tmp_path)
    exported(server, tmp_path, "another/vit")
    server.put("someone/words", {"README.md": b"words", "preprocessor_config.json": b"{}"})
    server.put(
        "someone/pickled",
        {"config.json": pushed(server)["config.json"], "pytorch_model.bin": b"\x80\x04N."},
    )
    data = Data(size=16, mean=[0.4] * 3)
    with pytest.raises(UserError) as caught:
        init = InitSource(f"hf-hub:{place}")
        init.described_values()
        weights.load_weights(
            encoder.build_encoder(Model(patch=4, width=32, depth=3, heads=2, mlp=64), data), init
        )
    text = str(caught.value)
    assert (
        text.startswith(f"init=hf-hub:{place}: ")
        and says in text
        and "\n" not in text
        and WRITER not in text
    )


def test_a_damaged_download_is_named(server: Hub, tmp_path: Path) -> None:
    exported(server, tmp_path)
    server.faults = [Fault("GET .*/resolve/.*/model.safetensors", "garbage", 1)]
    with pytest.raises(
        UserError, match=rf"init=hf-hub:{REPO}: model\.safetensors is damaged; remove "
    ) as caught:
        InitSource(f"hf-hub:{REPO}").fetch_export("config.json", "model.safetensors")
    Path(str(caught.value).split("remove ")[1].split(" and ")[0]).unlink()  # as the line says
    assert InitSource(f"hf-hub:{REPO}").fetch_export("config.json", "model.safetensors")


def test_names_of_a_repository_lead_nowhere(server: Hub, tmp_path: Path) -> None:
    exported(server, tmp_path, **{"../../../away": b"x"})
    server.listed = [
        {"type": "file", "path": path, "size": 1, "oid": "0" * 40}
        for path in ("../../../away", "/away", "code.py")
    ]
    before = {path for path in tmp_path.parent.rglob("*") if path.name == "away"}
    folder = hub_files.fetch(f"hf-hub:{REPO}", "here", ["config.json", "model.safetensors"])
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
    assert {path for path in tmp_path.parent.rglob("*") if path.name == "away"} == before == set()


def test_what_is_in_the_cache_needs_no_network(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    _, commit = exported(server, tmp_path)
    names = ["config.json", "model.safetensors"]
    before = hub_files.fetch(f"hf-hub:{REPO}@{commit}", "here", names)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub_files.fetch(f"hf-hub:{REPO}@{commit}", "here", names) == before
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set, and it is not in the cache"):
        hub_files.fetch("hf-hub:someone/else", "here", names)


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


def fresh(folder: Path, pixels: torch.Tensor) -> tuple[dict, dict, str]:
    """What a process without ssl_vit makes of the repositories' encoder and classifier and these
    images (B, 3, H, W): arrays of each, and the names of the classes."""
    import numpy as np

    np.save(folder / "images.npy", pixels.permute(0, 2, 3, 1).numpy())
    done = subprocess.run(
        [sys.executable, "-c", FRESH],
        cwd=folder,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    found = []
    for name in ("features", "logits"):
        with np.load(folder / f"{name}.npz") as arrays:
            found.append({key: torch.tensor(arrays[key]) for key in arrays.files})
    return *found, done.stdout


def images() -> torch.Tensor:
    return torch.randint(
        0, 256, (3, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )


def test_a_fresh_process_gets_the_runs_own_outputs(
    server: Hub, run: Run, finished: Path, tmp_path: Path
) -> None:
    """A pre-trained encoder's features and a fine-tuned run's logits, by timm and transformers."""
    push.push(run)
    options = [
        *(option for option in TINY[1:] if not option.startswith("model.")),
        f"init={finished}",
        "hub.repo=someone/classifier",
        "name=tuned",
        f"out={tmp_path}/runs",
    ]
    tuned = Run(resolve(altered(["recipe=finetune", *options], "eval.test=true")))
    train_job.train(tuned)
    features, logits, classes = fresh(tmp_path, images())

    def loaded(of: Run) -> encoder.Encoder:
        net = encoder.build_encoder(of.recipe.model, of.recipe.data).eval()
        weights.load_weights(net, InitSource(str(of.folder)))
        return net

    net, classifier = loaded(run), loaded(tuned)
    head = load_file(tuned.export / "heads.safetensors")
    with torch.no_grad():
        torch.testing.assert_close(features["normal"], net.normalize(images()), atol=1e-5, rtol=0)
        wanted = net.feature(images(), "avg")
        named = (
            classifier.feature(images(), tuned.recipe.pool) @ head["head.weight"].T
            + head["head.bias"]
        )
    for name in ("0", "1", "2"):
        torch.testing.assert_close(features[name], wanted, atol=1e-5, rtol=0)
        torch.testing.assert_close(logits[name], named, atol=1e-5, rtol=0)
    assert named.abs().max() > 0.01 and len(classes.strip().split(",")) == 10
    text = pushed(server, repository="someone/classifier")["README.md"].decode()
    assert "AutoModelForImageClassification" in text and "trained from `mpp`" in text
    assert "top1" in [row[0] for row in table(text, "measure")]


def test_the_card_says_what_a_reader_needs(server: Hub, run: Run, tmp_path: Path) -> None:
    push.push(run)
    files = pushed(server)
    text = files["README.md"].decode()
    about = yaml.safe_load(text.split("---")[1])
    assert about["library_name"] == "timm" and about["pipeline_tag"] == "image-feature-extraction"
    for part in (
        "Load it",
        "Objective",
        "Data",
        "Results",
        "Recipe",
        "Compute",
        "Limits",
        "Citation",
    ):
        assert f"\n## {part}\n" in text
    assert (
        f'timm.create_model("hf-hub:{REPO}", pretrained=True)' in text
        and f"init=hf-hub:{REPO}" in text
    )
    assert "Masked patch prediction (Dosovitskiy et al., 2021, section 4.6 and B.1.2" in text
    assert "| `target` | mean_color |" in text and text.count("`corruption.rate`") == 1
    assert "Apache-2.0" in text and "| `corruption.rate` | 0.5 |" in text
    result = run.result()
    assert result
    found, images = result.metrics["accuracy_masked"], (result.measured_on or {})["validation"]
    # patches of one image are alike: as of so many images
    assert images < (found.n or 0)
    (row,) = (row for row in table(text, "measure") if row[0] == "accuracy_masked")
    assert row[1] == f"{found.value:.2%}" and row[4] == f"{images:,}"
    assert row[2].startswith(f"{proportion(found.value, images).low:.2%} to ")
    assert not [
        name
        for name in files
        if str(tmp_path).encode() in files[name] or str(ROOT).encode() in files[name]
    ]


def written(run: Run, **metrics: float) -> str:
    """The card of a run, with these values in its result."""
    result = run.result()
    assert result
    result.metrics |= {
        name: Measured(value=value, n=10_000, split="validation") for name, value in metrics.items()
    }
    result.measured_on = {"validation": 10_000}
    run.finish(result)
    return card.write(run, run.export)


def test_the_front_matter_is_what_the_hub_reads(run: Run) -> None:
    from huggingface_hub import ModelCard

    run.recipe.init = f"hf-hub:another/vit@{'0' * 40}"
    about = ModelCard(written(run, accuracy_masked=0.25)).data
    assert about.base_model == "another/vit" and about.datasets is None
    results = {one.metric_name: one for one in about.eval_results or []}
    assert (
        results["accuracy_masked"].metric_value == 0.25
        and results["accuracy_masked"].metric_type == "accuracy"
    )
    assert {one.dataset_split for one in results.values()} == {"validation"} and results[
        "loss"
    ].dataset_name == "shapes"
    assert not {"entropy", "commonest", "neighbors", "corrupted"} & results.keys()


TASK = "At its own task the model"
LOSS = "the training colours' entropy (2.5 against 3.1)"
COLOUR = "the commonest colour (30.00% against 10.00%)"


@pytest.mark.parametrize(
    ("neighbors", "says"),
    [
        (
            0.2,
            f"{TASK} beats {LOSS}, {COLOUR} and the neighbours' mean (30.00% against 20.00%).",
        ),
        (
            0.4,
            f"{TASK} beats {LOSS} and {COLOUR}, and does not beat the neighbours' mean "
            f"(30.00% against 40.00%).",
        ),
        (
            0.301,
            f"{TASK} beats {LOSS} and {COLOUR}, and cannot be told from the neighbours' "
            f"mean (30.00% against 30.10%).",
        ),
    ],
)
def test_the_card_says_whether_the_baselines_are_beaten(
    run: Run, neighbors: float, says: str
) -> None:
    values = {
        "loss": 2.6,
        "loss_masked": 2.5,
        "accuracy_masked": 0.3,
        "entropy": 3.1,
        "commonest": 0.1,
        "neighbors": neighbors,
    }
    text = written(run, **values)
    assert says in text
    fought = {row[0]: row[3:] for row in table(text, "baseline")}
    assert fought["the neighbours' mean"] == ["accuracy_masked", "30.00%", f"{neighbors:.2%}"]
    measured = {row[0]: row[1] for row in table(text, "measure")[1:]}
    assert measured["accuracy_masked"] == "30.00%"
    assert not {"entropy", "commonest", "neighbors", "corrupted", "chance"} & measured.keys()


def test_what_guesses_has_no_interval(run: Run) -> None:
    text = written(run, top1=0.4, chance=0.1)
    assert text.count("10.00% to ") == text.count("to 10.00%") == 0
    assert ["guessing", "+30.00 points", "-", "top1", "40.00%", "10.00%"] in table(text, "baseline")


def test_a_card_repeats_what_its_run_needs(run: Run) -> None:
    assert (
        "```bash\naccelerate launch tools/pretrain.py recipe=recipe.yaml name=again\n```"
        in card.write(run, run.export)
    )
    run.recipe.data.path, run.recipe.init, run.recipe.objective = (
        "/home/me/images",
        "/home/me/runs/first",
        "supervised",
    )
    run.recipe.groups["supervised"] = SupervisedOptions()
    text = card.write(run, run.export)
    assert "tools/finetune.py recipe=recipe.yaml name=again data.path=IMAGES init=WEIGHTS\n" in text
    assert (
        "WEIGHTS stands for the run or export `first` that it started from, which this "
        "repository does not hold." in text
    )
    assert "/home" not in text


TERMS = {
    "drawn": ({}, "shapes, split `train`, drawn by ssl_vit from a seed.", "Apache-2.0"),
    "the Hub's": (
        {"name": "cifar10", "hub": "uoft-cs/cifar10"},
        "from uoft-cs/cifar10 of the Hub",
        "Krizhevsky, Alex",
    ),
    "a copy": (
        {"name": "cifar10", "hub": "uoft-cs/cifar10", "path": "/home/me/cifar10"},
        "read from a copy on the trainer's own machine, not from uoft-cs/cifar10 of the Hub.",
        "The authors state no licence; they ask to be cited",
    ),
    "one's own": (
        {"name": "cifar10", "path": "/home/me/cifar10"},
        "read from a copy on the trainer's own machine. A part",
        "not known to ssl_vit; they are for their owner to say.",
    ),
    "shares": (
        {"share": 0.1, "test": 0.2},
        "from a seed; 10.0% of it was trained on; 20.0% of it was kept for testing.",
        "Apache-2.0",
    ),
    "another's": (
        {"name": "me--pics", "hub": "me/pics"},
        "me/pics of the Hub",
        "are at https://huggingface.co/datasets/me/pics.",
    ),
}


@pytest.mark.parametrize(("data", "source", "terms"), TERMS.values(), ids=TERMS)
def test_the_card_says_where_images_are_from_and_their_terms(
    run: Run, data: dict, source: str, terms: str
) -> None:
    for key, value in data.items():
        setattr(run.recipe.data, key, value)
    text = card.write(run, run.export)
    assert source in text and terms in text
    assert ("datasets:" in text.split("---")[1]) is (bool(data.get("hub")) and "path" not in data)


def test_a_users_text_means_nothing_in_markdown(run: Run) -> None:
    run.recipe.data.name = run.recipe.name = "pics|<b>x`y` # [z](javascript:1)"
    text = card.write(run, run.export)
    shown = text.split("---", 2)[2]
    assert "<b>" not in shown and "\n# [z]" not in shown and "z](" not in shown
    escaped = "pics&#124;&lt;b>x\\`y\\` # \\[z\\](javascript:1)"
    assert f"# {escaped}\n" in shown and f"| `data.name` | {escaped} |" in shown
    assert yaml.safe_load(text.split("---")[1])["model-index"][0]["name"] == run.recipe.name


@pytest.mark.parametrize("classes", [0, 3])
def test_the_cards_snippets_run_and_give_the_shapes_that_they_say(
    run: Run, tmp_path: Path, classes: int
) -> None:
    import re

    from PIL import Image

    Image.new("RGB", (50, 40)).save(tmp_path / "image.jpg")
    if classes:
        net = encoder.build_encoder(run.recipe.model, run.recipe.data)
        heads = {"head.weight": torch.ones(3, 32), "head.bias": torch.ones(3)}
        weights.export(
            run.export,
            net,
            heads,
            run.recipe.model,
            run.recipe.data,
            "token",
            ["cat", "dog", "newt"],
        )
    name, shape = ("logits", "(1, 3)") if classes else ("feature", "(1, 32)")
    snippets = re.findall(r"```python\n(.*?)```", card.write(run, run.export), re.DOTALL)
    assert len(snippets) == 2
    for snippet in snippets:
        place = snippet.replace(f"hf-hub:{REPO}", f"local-dir:{run.export}").replace(
            REPO, str(run.export)
        )
        seen: dict[str, Any] = {}
        exec(place.replace("image.jpg", f"{tmp_path}/image.jpg"), seen)
        assert str(tuple(seen[name].shape)) == shape and snippet.count(f"# {shape}\n") == 1
        assert ("classifier" in seen) is bool(classes)
        if "image" in seen:
            assert f"# {tuple(seen['image'].shape)}\n" in snippet


def test_the_cards_figures_are_told_as_people_tell_them(run: Run) -> None:
    result = run.result()
    assert result
    run.finish(result.model_copy(update={"seconds": 0.2}))
    text = card.write(run, run.export)
    assert "less than a second on 1 x cpu" in text and "thousand parameters" in text
    assert max(len(line) for line in "".join(text.split("```")[1:4:2]).splitlines()) <= 128


def test_a_plugins_objective_without_a_title_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("title", "paper"):
        monkeypatch.setattr(MppDeclaration, name, "")
    wanted = f"`{run.recipe.objective}`, an objective of a plugin that is not part of ssl_vit."
    assert wanted in card.write(run, run.export)


def test_places_of_this_machine_are_not_told(run: Run) -> None:
    run.recipe.data.path, run.recipe.plugin, run.recipe.init = (
        "/home/me/images",
        "/home/me/own.py",
        "/home/me/runs/first",
    )
    shown = card.without_private(run.recipe)
    assert (shown.out, shown.data.path, shown.plugin, shown.init, shown.hub.repo) == (
        "runs",
        None,
        None,
        "first",
        None,
    )
    assert run.recipe.data.path == "/home/me/images"


@pytest.mark.parametrize("secret", [WRITER, "odd secret", "  odd secret \n"])
def test_a_token_never_gets_into_a_line(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    monkeypatch.setenv("HF_TOKEN", secret)
    text = hub_files.clean(f"Illegal header value b'Bearer {secret.strip()}'\nand {WRITER}")
    assert text == "Illegal header value b'Bearer ***' and ***"


PRETRAIN = """
import json, sys
from ssl_vit.jobs import cli
cli.pretrain(json.loads(sys.argv[1]))
"""


def test_only_the_first_process_talks(server: Hub, tmp_path: Path) -> None:
    options = altered(
        [*TINY, "name=two", f"out={tmp_path}/runs"], f"hub.repo={REPO}", "hub.every=5"
    )
    statuses, outputs = outcome(launch_ranks(2, "-c", PRETRAIN, json.dumps(options)))
    assert statuses == [0, 0], outputs
    assert sum("/commit/" in request for request in server.requests) == 3
    assert {
        b: server.repositories[REPO].history(b) for b in server.repositories[REPO].branches
    } == {
        "main": 2,
        "step-000000005": 2,
        "step-000000010": 2,
    }


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
