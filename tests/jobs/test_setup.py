"""Pre-training goes on from a run, and from released weights at another image size: every
objective's encoder, and its teacher where it has one, begins with them, and a step trains."""

import math
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file
from timm.layers import resample_abs_pos_embed

from helpers.commands import commands
from helpers.options import ROOT, TINY, altered
from helpers.runs import run
from ssl_vit import hub_files
from ssl_vit.jobs import train as train_job
from ssl_vit.jobs.setup import TrainingJob
from ssl_vit.models.encoder import Encoder
from ssl_vit.models.position_weights import exported_state
from ssl_vit.objectives.base import Objective
from ssl_vit.objectives.dino import DinoOptions
from ssl_vit.recipe import declaration
from ssl_vit.runs.folder import Run

OBJECTIVES = sorted(declaration.objectives().keys() - {"probe"})
TRAINED = altered(
    TINY, "optim.steps=2", "optim.warmup=1", "eval.every=2", "checkpoint.every=2", "log.every=1"
)
OF_MODEL = ("model.patch", "model.width", "model.depth", "model.heads", "model.mlp")
RELEASED = "vit_small_patch14_reg4_dinov2"  # registers, LayerScale, no positions of prefix tokens
POSITIONS = "pos_embed"


def going_on(objective: str, *words: str) -> list[str]:
    declared = declaration.objectives()[objective]
    of_views = ["views.local_size=8"] if "views.local" in declared.shared else []
    if declared.options and issubclass(declared.options.kind, DinoOptions):
        of_views.append(f"{objective}.prototypes=32")
    options = [word for word in TRAINED if not word.startswith(OF_MODEL)]
    return altered(options, f"recipe={objective}", *of_views, f"name={objective}", *words)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the same sizes as `released`."""
    own = ["model.positions=learned_2d", f"out={tmp_path_factory.mktemp('start')}", "name=start"]
    return run(altered(TRAINED, *own)).folder


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What timm's repository on the Hub has of one of its architectures, in small; no weight is 0
    or 1."""
    folder = tmp_path_factory.mktemp("released")
    torch.manual_seed(5)
    small = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}
    theirs = timm.create_model(RELEASED, num_classes=0, **small)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    timm.models.save_for_hf(theirs, folder, safe_serialization=True)
    return folder


class Started:
    """The objective of a run before its first step: its encoders, and the weights of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.objective: Objective
        self.first: dict[str, dict[str, torch.Tensor]] = {}
        self._set_up = train_job.set_up
        monkeypatch.setattr(train_job, "set_up", self.set_up)

    def set_up(self, *given: object) -> TrainingJob:
        job = self._set_up(*given)
        self.objective = job.objective
        for name, encoder in self.encoders().items():
            self.first[name] = {k: v.clone() for k, v in exported_state(encoder).items()}
        return job

    def encoders(self) -> dict[str, Encoder]:
        """By name, each once: the parts of `joint` share one."""
        named = self.objective.named_modules()
        return {name: module for name, module in named if isinstance(module, Encoder)}

    def assert_trained(self, run: Run) -> None:
        """A step moved the encoder, and its loss is a number; there is a teacher if something is
        averaged, or a key names it."""
        own = exported_state(self.encoders()["encoder"])
        assert any(not torch.equal(own[k], v) for k, v in self.first["encoder"].items())
        has_teacher = [*self.objective.averages(0)[1]] or self.objective.teachers()
        assert len(self.first) == (2 if has_teacher else 1)
        assert all(math.isfinite(row["loss"]) for row in run.rows() if "loss" in row)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_goes_on_from_released_weights_at_another_size(
    objective: str, released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patches' positions are interpolated as timm does it, prefix tokens have none of their own."""
    fetched = []
    monkeypatch.setattr(
        hub_files, "fetch", lambda place, prefix, names: fetched.append(place) or released
    )
    started = Started(monkeypatch)
    model = ["model=vit_s14_reg4", "model.patch=4", "model.width=32", "model.depth=2"]
    model += ["model.heads=2", "model.mlp=128"]
    pixels = ["data.size=24", "data.mean=[0.485,0.456,0.406]", "data.std=[0.229,0.224,0.225]"]
    if "views.local" in declaration.objectives()[objective].shared:
        pixels.append("views.local_size=12")
    if objective == "distill":
        pixels.append(f"distill.teacher={released}")
    words = going_on(objective, f"init=timm:{RELEASED}", *model, *pixels, f"out={tmp_path}")
    made = run(words)
    assert set(fetched) == {f"timm/{RELEASED}.lvd142m"}
    given = load_file(released / "model.safetensors")
    table = resample_abs_pos_embed(given.pop(POSITIONS), [6, 6], num_prefix_tokens=0)
    for first in started.first.values():
        positions = first.pop(POSITIONS)
        assert first.keys() == given.keys()
        assert all(torch.equal(first[name], given[name]) for name in given)
        assert torch.equal(positions[:, -36:], table) and not positions[:, :-36].any()
    started.assert_trained(made)


def test_the_pages_first_command_goes_on_from_a_run(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the page's learning rate. The run brings its model, positions of another kind among it,
    and its images; the teacher begins with its weights too."""
    page = (ROOT / "docs" / "further.md").read_text()
    first = next(command.partition("pretrain ")[2].split() for command in commands(page))
    assert {"recipe=dino", "init=runs/mpp", "optim.lr=1e-4"} <= {*first}
    started = Started(monkeypatch)
    words = altered(first, *going_on("dino", f"init={start}", f"out={tmp_path}"))
    made = run(words)
    given = load_file(start / "export" / "model.safetensors")
    for encoder, first_state in zip(
        started.encoders().values(), started.first.values(), strict=True
    ):
        assert encoder.positions.kind == "learned_2d"
        assert first_state.keys() == given.keys()
        assert all(torch.equal(first_state[name], given[name]) for name in given)
    started.assert_trained(made)
    assert (made.recipe.optim.lr, made.recipe.model.positions) == (1e-4, "learned_2d")
