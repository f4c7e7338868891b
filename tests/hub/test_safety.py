"""What a stranger puts on the Hub: nothing of it is obeyed, run, unpickled or believed, and it is
told in one line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from helpers.disk import full_disk
from helpers.exports import forget_digests
from helpers.hub_runs import REPO, exported
from helpers.hub_server import WRITER, Hub
from helpers.options import TINY
from ssl_vit import hub_files
from ssl_vit.errors import UserError
from ssl_vit.hub import payload, pull, push, state_io
from ssl_vit.jobs import cli
from ssl_vit.jobs import train as train_job
from ssl_vit.models import encoder, weights
from ssl_vit.recipe.init_source import InitSource
from ssl_vit.recipe.load import resolve
from ssl_vit.recipe.operation import Hub as Pushing
from ssl_vit.recipe.parsing import load_yaml
from ssl_vit.recipe.schema import Data, Model
from ssl_vit.runs.folder import Run

pytestmark = pytest.mark.filterwarnings(
    "ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning"
)


def refused(do: Any, *words: Any) -> str:
    """The one line that it is answered with, which holds no token."""
    with pytest.raises(UserError) as caught:
        do(*words)
    text = str(caught.value)
    assert "\n" not in text and WRITER not in text
    return text


def foreign(server: Hub, made: Run, *changes: tuple[str, str]) -> None:
    """A pushed state whose recipe somebody edited, without tensors."""
    text = (made.folder / "recipe.yaml").read_text()
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    structure, tensors = state_io.pack({"step": 4})
    files = {"recipe.yaml": text.encode(), "state.json": structure, "state.safetensors": tensors}
    server.put(REPO, {**dict.fromkeys(payload.STATE, b""), **files}, "state")


def trained(folder: Path, *words: str) -> Run:
    """A run of these words alone, trained or gone on with, in folder/runs/mpp."""
    made = Run(resolve([*words, "name=mpp", f"out={folder}/runs"]))
    made.reconcile()
    train_job.train(made)
    return made


TOKEN = "${oc.env:OWN_SECRET}"
SAID = {
    "a text": ("  timm: vit_base_patch16_224\n", f"  timm: {TOKEN}\n"),
    "in a list of texts": ("  trackers: null\n", f"  trackers:\n  - {TOKEN}\n"),
    "in a list of numbers": ("  betas:\n  - 0.9\n", f"  betas:\n  - {TOKEN}\n"),
}


@pytest.mark.parametrize("change", SAID.values(), ids=SAID)
def test_a_foreign_recipe_reads_no_variable(
    server: Hub, run: Run, tmp_path: Path, change: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place that an interpolation would fill in is a text like any other."""
    monkeypatch.setenv("OWN_SECRET", "never said")
    foreign(server, run, change)
    text = (run.folder / "recipe.yaml").read_text().replace(*change)
    (run.folder / "recipe.yaml").write_text(text)
    for said in (
        refused(pull.pull, f"hf-hub:{REPO}", f"{tmp_path}/pulled"),
        refused(resolve, [f"recipe={run.folder}/recipe.yaml"]),
    ):
        assert TOKEN in said and "never said" not in said


def test_a_foreign_recipe_is_not_obeyed_about_this_machine(
    server: Hub, run: Run, tmp_path: Path
) -> None:
    own = tmp_path / "own.py"
    own.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    changes = [
        ("plugin: null", f"plugin: {own}"),
        ("repo: null", "repo: someone/precious"),
        ("private: true", "private: false"),
        ("  path: null", "  path: /etc"),
        ("real: null", "real: /etc/passwd"),
        ("resume: true", "resume: false"),
        ("init: scratch", "init: /home/them/first"),
        ("\nout: ", "\nout: /etc #"),
    ]
    foreign(server, run, *changes)
    pull.pull(f"hf-hub:{REPO}", f"{tmp_path}/pulled")
    folder = tmp_path / "pulled" / "mpp"
    again = load_yaml(folder / "recipe.yaml")
    assert (
        not (tmp_path / "ran").exists()
        and again["init"] == "first"
        and again["out"] == f"{tmp_path}/pulled"
    )
    assert (again["plugin"], again["data"]["path"], again["eval"]["real"], again["resume"]) == (
        None,
        None,
        None,
        True,
    )
    assert (
        again["hub"] == Pushing().model_dump()
        and [word for _, word in changes if word in (folder / "recipe.yaml").read_text()] == []
    )


@pytest.mark.parametrize("step", [-1, 13, 2**70])
def test_a_state_of_no_step_of_its_run_is_not_pulled(
    server: Hub, run: Run, tmp_path: Path, step: int
) -> None:
    foreign(server, run)
    structure, tensors = state_io.pack({"step": step})
    files = {"state.json": structure, "state.safetensors": tensors}
    recipe = (run.folder / "recipe.yaml").read_bytes()
    whole = {**dict.fromkeys(payload.STATE, b""), "recipe.yaml": recipe, **files}
    server.put(REPO, whole, "state")
    says = f"step {step} of optim.steps=12"
    assert says in refused(pull.pull, f"hf-hub:{REPO}", f"{tmp_path}/pulled")
    assert not list((tmp_path / "pulled").iterdir())


@pytest.mark.parametrize("room", [100, 1000])
def test_a_pull_to_a_full_disk_is_one_line_and_leaves_nothing(
    server: Hub, run: Run, tmp_path: Path, room: int
) -> None:
    """In the state, and in a file after it."""
    foreign(server, run)
    write = pull._write

    def write_on_a_full_disk(*words: Any) -> None:
        with full_disk(room):
            write(*words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pull, "_write", write_on_a_full_disk)
        line = refused(pull.pull, f"hf-hub:{REPO}", f"{tmp_path}/pulled")
    assert line.startswith(f"out={tmp_path}/pulled: {tmp_path}/pulled/mpp cannot be written: ")
    assert not list((tmp_path / "pulled").iterdir())
    assert pull.pull(f"hf-hub:{REPO}", f"{tmp_path}/pulled").folder.exists()


def test_a_state_trained_on_own_images_can_be_pulled(
    server: Hub, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    foreign(server, run, ("  name: shapes\n", "  name: own\n"))
    pull.main([f"hf-hub:{REPO}", f"out={tmp_path}/pulled"])
    assert capsys.readouterr().out.endswith(f"name=mpp out={tmp_path}/pulled data.path=IMAGES\n")


def test_a_pulled_fine_tuning_goes_on_as_the_run_would_have(
    server: Hub,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """By the line that is printed, where the weights that it began with are not; and with them,
    wherever they are."""
    shutil.copytree(finished, tmp_path / "first")
    words = [
        *(word for word in TINY if not word.startswith(("model.", "recipe="))),
        f"init={tmp_path}/first",
    ]
    made = trained(tmp_path, "recipe=finetune", *words, "eval.test=false")
    made.recipe.hub.repo, made.recipe.hub.state = REPO, True
    (made.folder / "result.json").rename(tmp_path / "result.json")
    shutil.rmtree(made.checkpoints / "step-000000012")
    push.push(made)
    (tmp_path / "first").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    for name, more in (("one", []), ("two", [f"init={tmp_path}/moved"])):
        pull.main([f"hf-hub:{REPO}", f"out={tmp_path}/pulled", f"name={name}"])
        line = capsys.readouterr().out.splitlines()[-1]
        assert "tools/finetune.py recipe=" in line
        cli.finetune([*line.partition("finetune.py ")[2].split(), *more])
        folder = tmp_path / "pulled" / name
        assert "started at step 8" in (folder / "log.txt").read_text()
        for part in ("model", "heads"):
            assert (folder / f"export/{part}.safetensors").read_bytes() == (
                made.export / f"{part}.safetensors"
            ).read_bytes()
        features, wanted = (
            json.loads(path.read_text())
            for path in (folder / "result.json", tmp_path / "result.json")
        )
        assert (
            features["metrics"] == wanted["metrics"]
            and features["total_exaflop"] == wanted["total_exaflop"] > features["exaflop"]
        )


def test_a_run_does_not_go_on_from_other_first_weights(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "first")
    words = [
        *(word for word in TINY if not word.startswith(("model.", "recipe="))),
        "recipe=finetune",
        "eval.test=false",
    ]
    trained(tmp_path, *words, f"init={tmp_path}/first")
    (tmp_path / "runs" / "mpp" / "result.json").unlink()
    shutil.copytree(tmp_path / "first", tmp_path / "other")
    weights_of = tmp_path / "other" / "export" / "model.safetensors"
    save_file({name: value + 1 for name, value in load_file(weights_of).items()}, weights_of)
    forget_digests(weights_of.parent)
    assert "holds another recipe: init" in refused(
        trained, tmp_path, *words, f"init={tmp_path}/other"
    )


ARGS = {
    "img_size": 16,
    "patch_size": 4,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 2,
    "mlp_ratio": 2,
}
CONFIG = {
    "architecture": "vit_base_patch16_224",
    "model_args": ARGS,
    "pretrained_cfg": {"mean": [0.4] * 3, "std": [0.5] * 3},
}
CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "a variable as architecture": ({"architecture": TOKEN}, f"model.timm={TOKEN}: expected"),
    "a variable in the mean": (
        {"pretrained_cfg": {"mean": [TOKEN] * 3, "std": [0.5] * 3}},
        "config.json cannot be read",
    ),
    "a place as architecture": (
        {"architecture": "hf-hub:evil/vit"},
        "one of timm's architectures",
    ),
    "ten million blocks": (
        {"model_args": {**ARGS, "depth": 10**7}},
        "model.depth=10000000: expected a whole number above 0 and at most 1,000",
    ),
    "very wide": (
        {"model_args": {**ARGS, "embed_dim": 10**9}},
        "model.width=1000000000: expected a whole number above 0 and at most 65,536",
    ),
    "very wide inside": (
        {"model_args": {**ARGS, "mlp_ratio": 1e9}},
        "model.mlp=32000000000: expected a whole number above 0 and at most 65,536",
    ),
    "a missing value in the mean": (
        {"pretrained_cfg": {"mean": ["???"] * 3, "std": [0.5] * 3}},
        "config.json cannot be read",
    ),
}


@pytest.mark.parametrize(("change", "says"), CONFIGS.values(), ids=CONFIGS)
def test_a_foreign_config_is_refused(
    server: Hub, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    exported(server, tmp_path, **{"config.json": json.dumps(CONFIG | change).encode()})
    assert says in refused(
        resolve, ["recipe=finetune", f"init=hf-hub:{REPO}", "data.size=16", f"out={tmp_path}/runs"]
    )


def test_a_foreign_config_that_says_nothing_odd_is_taken(server: Hub, tmp_path: Path) -> None:
    exported(server, tmp_path, **{"config.json": json.dumps(CONFIG).encode()})
    recipe = resolve(
        ["recipe=finetune", f"init=hf-hub:{REPO}", "data.size=16", f"out={tmp_path}/runs"]
    )
    assert (recipe.model.timm, recipe.model.mlp, recipe.data.mean) == (
        "vit_base_patch16_224",
        64,
        [0.4] * 3,
    )


@pytest.mark.parametrize(
    "place",
    ["timm:hf-hub:evil/vit", "timm:hf_hub:evil/vit", "timm:local-dir:/tmp", "timm:evil/vit"],
)
def test_timm_is_asked_for_nothing_but_its_own_models(place: str) -> None:
    assert "hf-hub:USER/NAME" in refused(InitSource(place).locate)
    assert "hf-hub:USER/NAME" in refused(resolve, [f"init={place}", "recipe=finetune"])


def test_what_a_foreign_config_would_have_timm_fetch_is_not_fetched(
    server: Hub, tmp_path: Path
) -> None:
    asks = {
        "img_size": 16,
        "pretrained": True,
        "pretrained_cfg": {"url": f"{server.url}/evil/x.pth"},
    }
    net = encoder.build_encoder(
        Model(patch=4, width=32, depth=2, heads=2, mlp=64), Data(size=16, mean=[0.4] * 3)
    )
    for change in (
        {"architecture": "vit_tiny_patch16_224"},
        {"architecture": "hf-hub:evil/vit"},
        {"architecture": ["x"]},
    ):
        exported(
            server,
            tmp_path,
            **{"config.json": json.dumps(CONFIG | change | {"model_args": asks}).encode()},
        )
        if change["architecture"] == "vit_tiny_patch16_224":
            assert "model.heads=2 here, 3 there" in refused(
                weights.load_weights, net, InitSource(f"hf-hub:{REPO}")
            )
        elif isinstance(change["architecture"], str):
            weights.load_weights(net, InitSource(f"hf-hub:{REPO}"))
        else:
            assert "config.json cannot be read" in refused(
                weights.load_weights, net, InitSource(f"hf-hub:{REPO}")
            )
    assert server.requests and not [request for request in server.requests if "evil" in request]


def test_an_address_is_told_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://me:s3c@ret@hub.invalid:80")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert (
        hub_files.why(ConnectionError())
        == "the Hub cannot be reached at http://hub.invalid:80; try later"
    )
    assert (
        hub_files.why(ValueError("for url 'http://me:s3c@hub.invalid/a' and //x@y"))
        == "for url 'http://hub.invalid/a' and //y"
    )


def test_timms_own_weights_come_as_safetensors(server: Hub, tmp_path: Path) -> None:
    """From its repository on the Hub, which is here a small network's; the classifier stays
    there."""
    model = Model(name="small", patch=4, width=32, depth=2, heads=2, mlp=64)
    theirs, made = (encoder.build_encoder(model, Data(size=16)) for _ in range(2))
    weights.export(tmp_path / "out", theirs, {}, model, Data(size=16), "token", [])
    forget_digests(tmp_path / "out")
    state = load_file(tmp_path / "out" / "model.safetensors") | {
        "head.weight": torch.zeros(9, 32),
        "head.bias": torch.zeros(9),
    }
    save_file(state, tmp_path / "model.safetensors")
    files = {
        "config.json": (tmp_path / "out" / "config.json").read_bytes(),
        "pytorch_model.bin": b"a pickle",
    }
    files["model.safetensors"] = (tmp_path / "model.safetensors").read_bytes()
    server.put("timm/vit_base_patch16_224.augreg2_in21k_ft_in1k", files)
    weights.load_weights(made, InitSource("timm:vit_base_patch16_224"))
    assert torch.equal(
        made.backbone.blocks[1].mlp.fc2.weight, theirs.backbone.blocks[1].mlp.fc2.weight
    )
    assert not any("pytorch_model" in request for request in server.requests)
    with pytest.raises(
        UserError, match="init=timm:no_such_vit: timm has no weights of that name on the Hub"
    ):
        weights.load_weights(made, InitSource("timm:no_such_vit"))


def test_the_clients_private_names_are_what_they_were() -> None:
    """Another version of huggingface_hub may rename them: mend `remote._default_client` and
    `hub_files._limit_timeouts` then."""
    made, other = hub_files._default_client(), hub_files._default_client()
    assert made is not other and "httpx" in type(made).__module__
    assert hub_files._limit not in made.event_hooks["request"]
    hub_files._limit_timeouts()
    from huggingface_hub import close_session, get_session

    close_session()
    client = get_session()
    assert client.event_hooks["request"][-1] is hub_files._limit
    request = client.build_request("GET", "http://localhost", timeout=None)
    hub_files._limit(request)
    assert set(request.extensions["timeout"].values()) == {hub_files.SILENCE}
