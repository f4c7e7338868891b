"""I-JEPA: an objective that is one folder and a recipe. Its loss by hand, and what the workbench does
for it without naming it: options, plan, one-line errors, resuming, two processes, page and card."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from helpers.launching import launch, launch_ranks, outcome
from helpers.options import ROOT, TINY, altered
from helpers.runs import Killed, Killer, assert_alike, assert_same_end, rows, run
from ssl_vit import costs, rng
from ssl_vit.config.resolve import resolve
from ssl_vit.config.schema import Data, Model
from ssl_vit.data.batching import Batch
from ssl_vit.errors import UserError
from ssl_vit.hub import card
from ssl_vit.jobs import train as train_job
from ssl_vit.jobs.setup import objective_settings
from ssl_vit.lab import plan_tool, reports
from ssl_vit.models import encoder
from ssl_vit.objectives import building, corruption
from ssl_vit.objectives.ijepa.network import FeaturePrediction
from ssl_vit.runs.folder import Run

MODEL = Model(patch=4, width=32, depth=2, heads=4, mlp=64)
GRID = 4
IJEPA = altered(TINY, "recipe=ijepa")


def made(rate: float = 0.5) -> FeaturePrediction:
    torch.manual_seed(0)
    net = encoder.build_encoder(MODEL, Data(size=4 * GRID))
    return FeaturePrediction(net, rate=rate, momentum=0.9)


def batch(count: int = 3) -> Batch:
    generator = np.random.default_rng(0)
    image = generator.integers(0, 256, (count, 3, 4 * GRID, 4 * GRID), dtype=np.uint8)
    index = np.arange(count)
    parts = (image, np.full(count, -1), index, rng.key(0, 0, index))
    return Batch(*map(torch.from_numpy, parts))


def test_the_loss_of_predicting_nothing_is_that_of_the_teachers_features() -> None:
    """With a head of zeros: the mean smooth L1 norm of the normalised features of the hidden
    patches, computed from the encoder that the teacher is a copy of."""
    objective, given = made(), batch()
    torch.nn.init.zeros_(objective.head.weight)
    drawn = corruption.sample(given.key, GRID**2, 0.5, mask=1.0, random=0.0)
    with torch.no_grad():
        feature_BND = objective.encoder.tokens(given.image)[:, 1:]
        centred = feature_BND - feature_BND.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        hidden = torch.stack([one[at] for one, at in zip(scaled, drawn.corrupted_BK, strict=True)])
        small = hidden.abs() < 1
        by_hand = torch.where(small, hidden.square() / 2, hidden.abs() - 0.5).mean()
        output = objective(given)
    torch.testing.assert_close(output.loss, by_hand)
    total, count = output.metrics["loss"]
    assert count == 3 and total / count == pytest.approx(by_hand.item(), rel=1e-5)
    spread, images = output.metrics["feature_spread"]
    channels = hidden.double().std(1, correction=0).mean(-1)
    assert images == 3 and spread.item() == pytest.approx(channels.sum().item(), rel=1e-5)


def test_hidden_patches_reach_the_prediction_by_the_teacher_alone() -> None:
    objective, given = made(), batch(1)
    drawn = corruption.sample(given.key, GRID**2, 0.5, mask=1.0, random=0.0)
    seen = []
    objective.head.register_forward_hook(lambda module, inputs, output: seen.append(output))
    patch = int(drawn.corrupted_BK[0, 0])
    row, column = divmod(patch, GRID)
    changed = given.image.clone()
    changed[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] ^= 255
    losses = [objective(given).loss, objective(given._replace(image=changed)).loss]
    assert torch.equal(seen[0], seen[1]) and losses[0] != losses[1]


def test_the_teacher_is_an_average_of_the_encoder_and_gets_no_gradient() -> None:
    objective = made()
    objective(batch()).loss.backward()
    assert all(p.grad is None for p in objective.teacher.parameters())
    assert all(p.grad is not None for p in objective.encoder.parameters())
    pairs = list(objective.momentum_pairs())
    assert {id(mean) for mean, _ in pairs} == {id(p) for p in objective.teacher.parameters()}
    assert [objective.momentum_at(p) for p in (0, 0.5, 1)] == pytest.approx([0.9, 0.95, 1])
    assert not [name for name in objective.heads() if "teacher" in name]


def test_what_is_counted_is_what_is_built() -> None:
    recipe = resolve(altered(IJEPA, "name=x"))
    net = encoder.build_backbone(recipe.model, recipe.data, 0, 0)
    objective = building.build(objective_settings(recipe), net, 0)
    trained = sum(p.numel() for p in objective.parameters() if p.requires_grad)
    copied = sum(p.numel() for p in objective.teacher.parameters())
    assert (trained, copied) == (costs.parameters(recipe), costs.momentum_parameters(recipe))
    with FlopCounterMode(display=False) as counter:
        index = np.arange(2)
        image = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
        key = torch.from_numpy(rng.key(0, 0, index))
        objective.eval()(Batch(image, torch.zeros(2), torch.from_numpy(index), key))
    assert counter.get_total_flops() / 2 / 2 == pytest.approx(costs.multiply_adds(recipe), rel=0.01)


def test_its_options_and_mistakes_need_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from ssl_vit.jobs.help import tool_help;"
        "text = tool_help('pretrain', ['recipe=ijepa']);"
        "assert 'ijepa.momentum=0.996' in text and 'moco.' not in text and 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for option, says in {
        "ijepa.rate=1.5": "above 0 and below 1",
        "ijepa.rate=0.99": "leaves none of an image's 16 patches visible",
        "ijepa.width=3": "unknown key ijepa.width; .*ijepa.rate, ijepa.momentum",
        "mae.rate=0.5": "objective=ijepa has no use for it",
    }.items():
        with pytest.raises(UserError, match=says):
            resolve(altered(IJEPA, option, "name=x"))
    with pytest.raises(UserError, match="objective=ijepa needs patches of pixels"):
        resolve(["recipe=ijepa", "model=bit_r50x1", "data.size=64"])


def test_plan_counts_its_work(capsys: pytest.CaptureFixture) -> None:
    plan_tool.main([*IJEPA, "--json"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    recipe = resolve(altered(IJEPA, "name=x"))
    assert found["exaflop"] == pytest.approx(costs.exaflop(recipe, 12 * 16))


def test_a_killed_run_goes_on_to_the_same_end(tmp_path: Path, monkeypatch) -> None:
    words = [*IJEPA, f"out={tmp_path}"]
    whole = run([*words, "name=whole"])
    callbacks = train_job._callbacks
    monkeypatch.setattr(train_job, "_callbacks", lambda job: [*callbacks(job), Killer(7)])
    with pytest.raises(Killed):
        run([*words, "name=killed"])
    monkeypatch.setattr(train_job, "_callbacks", callbacks)
    again = run([*words, "name=killed"])
    assert_same_end(whole.folder, again.folder)


def test_two_processes_learn_as_one(tmp_path: Path) -> None:
    words = altered(IJEPA, "log.every=1", f"out={tmp_path}", "name=two", "compute.batch=8")
    codes, outputs = outcome(launch_ranks(2, "tools/pretrain.py", *words))
    assert codes == [0, 0], outputs
    one = run(altered(words, "name=one", "compute.batch=16"))
    assert_alike(rows(one.folder), rows(tmp_path / "two"), rel=1e-6)


def test_page_card_and_sweep_say_what_it_is(tmp_path: Path) -> None:
    words = ["recipe=ijepa", *IJEPA, f"out={tmp_path}", "name=study"]
    sweep = [word for word in words if not word.startswith(("recipe=ijepa", "recipe=mpp"))]
    process = launch(
        "tools/study.py", "recipe=ijepa", *sweep, "sweep", "ijepa.rate=0.4,0.6", "seeds=1"
    )
    codes, outputs = outcome([process])
    assert codes == [0], outputs
    folder = next((tmp_path / "study").glob("pretrain-*0.4*"))
    page = (folder / "report.html").read_text()
    assert "Prediction of a teacher&#39;s features" in page and "the teacher has collapsed" in page
    text = card.write(Run(resolve([f"recipe={folder}/recipe.yaml"])), folder / "export")
    assert "the encoder sees 60% of an image's patches" in text and "- i-jepa" in text
    reports.write(tmp_path / "study")
    assert "ijepa.rate" in (tmp_path / "study" / "report.md").read_text()
