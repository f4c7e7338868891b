"""tools/plan.py: the paper's exaFLOP, lengths, time and price by hand, warnings, a study's sums,
measured steps, mistakes."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

import ssl_vit
from helpers.images import put
from helpers.made_studies import TUNED, changed
from helpers.options import ROOT, SHORT, TINY, altered
from helpers.refusals import refusal
from helpers.resolving import parse_request, resolve
from helpers.runs import run
from ssl_vit import costs
from ssl_vit.__main__ import main
from ssl_vit.formatting import format_bytes
from ssl_vit.jobs import step_time
from ssl_vit.lab import estimate
from ssl_vit.lab.options import PlanOptions


def planned(*words: str) -> Any:
    return ssl_vit.plan([*words])


def row(found: Any, name: str) -> str:
    return next(line for line in str(found).splitlines() if line.startswith(f"{name} "))


# Work, length, time


# Table 6: exaFLOP, and counted over that minus 1. The table rounds; its ResNets are all 3 to 4% below
# what they count here, for which the paper gives no reason
STATED = {
    # paper.md: the last block computes 98 of its 197 tokens alone
    "mpp_b16_imagenet": (43, -0.032),
    "supervised_b32_jft": (55, 0.015),
    "supervised_b16_jft": (224, 0),
    "supervised_l16_jft": (783, 0),
    "supervised_bit_r50x1_jft": (50, 0.04),
    "supervised_r50_l16_jft": (859, -0.029),  # half of that of twice the length would be 834
}


@pytest.mark.parametrize(("name", "stated"), STATED.items(), ids=STATED)
def test_the_papers_table_6(name: str, stated: tuple[float, float]) -> None:
    """No image of JFT need be here."""
    found = planned(f"recipe=paper/{name}")
    exaflop, difference = stated
    assert found.exaflop / exaflop - 1 == pytest.approx(difference, abs=0.005)
    assert "device=" in row(found, "time")


def test_the_papers_core_days_are_a_plausible_share_of_the_peak() -> None:
    """Table 2: 2.5k and 0.68k TPUv3-core-days for the 4262 and 1567 exaFLOP of H/14's and L/16's
    14 epochs (Table 6): L/16's ImageNet figure of Table 2 is that of Table 5's 14-epoch row."""
    core = estimate.devices()["tpuv3_core"]
    for exaflop, efficiency, days in ((4262, 0.32, 2500), (1567, 0.434, 680)):
        assert core.hours(exaflop, "bfloat16", efficiency) / 24 == pytest.approx(days, rel=0.02)


def test_every_device_can_be_planned_for() -> None:
    for name in estimate.devices():
        found = planned("recipe=mpp", f"device={name}")
        assert found.device_hours > 0 and found.device.memory > 0


def test_what_has_to_be_read_to_keep_up_is_said() -> None:
    """Some 50 cores, which no line of a plan told."""
    found = planned("recipe=paper/mpp_b16_imagenet", "device=h100", "processes=8")
    rate = float(row(found, "loading").split()[3].replace(",", ""))
    assert rate == pytest.approx(409_600_000 / (3600 * found.device_hours / 8), rel=1e-3)


def test_epochs_are_steps() -> None:
    """Table 3's 300 epochs of ImageNet, all of which are trained on."""
    words = ["recipe=paper/supervised_b16_imagenet", "data.validation=0"]
    asked, own = planned(*words, "epochs=300"), planned(*words)
    assert asked.steps == own.steps == round(300 * 1_281_167 / 4096)
    assert own.epochs == pytest.approx(300, rel=1e-4)
    assert own.training_images == 1_281_167


def test_a_set_of_unknown_size_is_asked_for() -> None:
    words = ["recipe=mpp", "data.path=/not/here"]
    found = planned(*words)
    assert found.epochs is None and "images=" in row(found, "length")
    assert planned(*words, "images=1280", "epochs=50").steps == 500


def test_own_images_that_are_here_are_counted(tmp_path: Path) -> None:
    """100 images without a held-out split, of which 1% is held out; a test split of 20."""
    for split, count in (("train", 100), ("test", 20)):
        put(tmp_path / "own" / split / "a", count)
    own = f"data.path={tmp_path}/own"
    found = planned("recipe=mpp", own, "epochs=256")
    assert (found.training_images, found.steps) == (99, 198)
    assert planned("recipe=mpp", own, "images=1280", "epochs=50").steps == 500
    assert planned("recipe=evaluate", own).images == 120
    # under the name of a published set, of which a folder may have a part
    found = planned("recipe=mpp", "data=imagenet", own, "data.size=64", "model.patch=8")
    assert found.training_images == 99
    assert "99 training images (on this machine)" in row(found, "length")


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["images=1000"], "990 training images (of 1,000 given by images=)"),
        (["images=1000", "data.validation=0"], "of 1,000 training images (given by images=)"),
        ([], "1,268,355 training images (of 1,281,167 as published)"),
    ],
)
def test_images_that_are_not_trained_on_are_not_said_to_be_given(
    words: list[str], left: str
) -> None:
    """1,268,355 images as given, where 1,281,167 were, of which 1% is held out."""
    assert left in row(planned("recipe=mpp", "data=imagenet", *words), "length")


def test_an_evaluation_is_one_pass_forward(capsys: pytest.CaptureFixture[str]) -> None:
    """And `--json` prints the same."""
    found = planned("recipe=evaluate", "device=h100")
    assert found.images == 60_000  # shapes: 50,000 + 5,000 + 5,000
    assert found.exaflop * 1e18 == 2 * found.multiply_adds * 60_000
    assert found.steps == 0 and found.tensor_bytes["DDP"]["gradients"] == 0
    with pytest.raises(SystemExit):
        main(["plan", "recipe=evaluate", "device=h100", "--json"])
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (printed["exaflop"], printed["device"]["name"]) == (found.exaflop, "h100")


def test_time_and_price_by_hand_and_that_they_are_assumed() -> None:
    words = ["device=h100", "processes=8", "price=2.5", "efficiency=0.5"]
    found = planned("recipe=paper/mpp_b16_imagenet", *words)
    hours = found.exaflop * 1e18 / (0.5 * 989e12) / 3600
    assert found.device_hours == pytest.approx(hours)
    assert found.seconds == pytest.approx(hours * 3600 / 8)
    assert found.price == pytest.approx(2.5 * hours)
    assert "assumed" in row(found, "price") and "assuming" in row(found, "time")


def test_memory_by_the_stages_of_zero() -> None:
    words = ["recipe=paper/mpp_b16_imagenet", "device=h100", "processes=8"]
    found = planned(*words)
    size = 85_798_656 + 768 + 769 * 512  # timm's ViT-B/16 without a head, the mask token, the head
    assert found.tensor_bytes["ZeRO-3"]["weights"] == size * 4 // 8
    totals = {stage: sum(kinds.values()) for stage, kinds in found.tensor_bytes.items()}
    assert [*totals.values()] == sorted(totals.values(), reverse=True)
    for stage, total in totals.items():
        assert f"{stage} {format_bytes(total)}" in row(found, "memory")
    # of one process every stage is the same
    assert "ZeRO" not in row(planned("recipe=mpp", "device=h100"), "memory")


@pytest.mark.parametrize(
    ("batch", "wanted", "processes"),
    [(4096, None, 8), (4096, 32, 4), (96, None, 1), (4092, None, 3)],
)
def test_the_device_batch_is_that_of_a_run(batch: int, wanted: int | None, processes: int) -> None:
    words = ["recipe=paper/mpp_b16_imagenet", "compute.precision=bfloat16", f"optim.batch={batch}"]
    words += [f"compute.batch={wanted}"] if wanted else []
    found = planned(*words, "device=h100", f"processes={processes}")
    # the rule of jobs/resources.py, on this device
    limit = int(78 * 2**30 / 2 / costs.activation_bytes(resolve(words), fused=True))
    each = batch // processes
    fitting = max(n for n in range(1, min(each, limit) + 1) if each % n == 0)
    assert found.device_batch == (wanted or fitting)


# Warnings


LARGE = ["model.width=4096", "model.depth=48", "model.heads=32", "model.mlp=16384", "device=t4"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["recipe=paper/mpp_b16_imagenet", "device=h100"], None),
        (["recipe=evaluate", "device=h100"], None),
        (["recipe=mpp", *LARGE], "compute.batch= or more processes="),
        (["recipe=mpp", *LARGE, "processes=64"], "ZeRO-3 fits"),
        # a ZeroDivisionError of an evaluation, which keeps no activations of an image
        (["recipe=evaluate", *LARGE], "compute.batch= or more processes="),
    ],
)
def test_what_a_device_cannot_hold_has_a_warning(words: list[str], says: str | None) -> None:
    found = planned(*words)
    assert len(found.warnings) == bool(says)
    assert all(says in warning for warning in found.warnings)
    assert str(found).splitlines()[-1].startswith("warning: ") == bool(says)


# Studies


def test_by_how_much_names_differ_in_compute(tmp_path: Path) -> None:
    """With what their weights come through: of one name a pre-training before the fine-tuning."""
    arms = {name: TUNED["axes"]["arm"][name] for name in ("scratch", "mpp")}
    content = changed(TUNED, axes__arm=arms, runs__pretrain__only={"arm": ["mpp"]})
    (tmp_path / "made.yaml").write_text(json.dumps(content))
    found = planned(f"recipe={tmp_path}/made.yaml")
    each = {run: one["exaflop"] / one["tasks"] for run, one in found.runs.items()}
    times = 1 + each["pretrain"] / each["final"]
    assert f"arm: the compute differs by a factor of up to {times:.2g}," in found.compared[1]


def test_what_weights_from_outside_of_the_study_have_cost_counts(tmp_path: Path) -> None:
    """Of two encoders that were trained before, for 2 steps and for 40."""
    words = altered(TINY, *SHORT, "eval.every=40", f"out={tmp_path}")
    before = {n: run(altered(words, f"name=run{n}", f"optim.steps={n}")) for n in (2, 40)}
    arms = {f"of_{n}": {"final": {"init": str(one.folder)}} for n, one in before.items()}
    report = {"test": "final", "baseline": "of_2"}
    fine = {"recipe": "finetune", "optim.steps": 10, "optim.warmup": 1}
    runs = {"final": {"tool": "finetune", "over": ["arm"], "options": fine}}
    options = {"data": "shapes", "data.size": 16}
    content = changed(TUNED, axes__arm=arms, runs=runs, report=report, options=options)
    (tmp_path / "made.yaml").write_text(json.dumps(content))
    found = planned(f"recipe={tmp_path}/made.yaml")
    final = found.runs["final"]["exaflop"] / found.runs["final"]["tasks"]
    first, second = (final + one.result().exaflop for one in before.values())
    assert f"by a factor of up to {second / first:.2g}," in found.compared[1]
    assert (
        f"from {first:.3g} exaFLOP for of_2 to {second:.3g} exaFLOP for of_40" in found.compared[1]
    )


def test_a_study_is_the_sum_of_its_tasks(tmp_path: Path) -> None:
    text = (ROOT / "recipes" / "study" / "gap.yaml").read_text()
    (tmp_path / "gap.yaml").write_text(text.replace(", despite: init", ""))
    found = planned(f"recipe={tmp_path}/gap.yaml", "device=h100", "price=2")
    request = parse_request([f"recipe={tmp_path}/gap.yaml"])
    own = PlanOptions(device="h100", price=2.0)
    tasks = [estimate.estimate(recipe, own) for recipe in request.recipes.values()]
    whole, runs = found.in_all, found.runs
    assert whole["tasks"] == len(tasks) and whole["untimed"] == 0
    (other_tries,) = found.warnings
    assert other_tries.startswith("run direct, arm scratch: ")
    assert "init (pretrain there, scratch here)" in other_tries
    for key in ("exaflop", "device_hours", "price", "disk_bytes"):
        assert whole[key] == pytest.approx(sum(getattr(task, key) for task in tasks))
        assert whole[key] == pytest.approx(sum(run[key] for run in runs.values()))
    count = sum(task.run == "pretrain" for task in request.tasks.values())
    # the last column has a unit beside its number
    shown = dict(zip(row(found, "run").split(), row(found, "pretrain").split(), strict=False))
    assert shown["tasks"] == str(count)
    assert float(shown["device-hours"]) == pytest.approx(runs["pretrain"]["device_hours"], rel=0.01)
    assert shown["exaFLOP"] == f"{runs['pretrain']['exaflop']:.3g}"


def test_what_a_run_leaves_on_the_disk_by_hand() -> None:
    """Checkpoints of weights and AdamW's two moments, two of them kept; and an export."""
    found = planned("recipe=mpp", "checkpoint.keep=2")
    size = found.parameters * 4
    assert found.disk_bytes == 2 * 3 * size + size


@pytest.mark.parametrize("words", [[], ["images=/no/such/place"]])
def test_a_studys_places_need_not_be_here(words: list[str], tmp_path: Path) -> None:
    """Said or not; one may be called as an option of the tool is."""
    short = "{recipe: mpp, data: cifar10, data.path: '{images}', optim.steps: 30}"
    path = tmp_path / "mine.yaml"
    runs = f"runs: {{one: {{tool: pretrain, options: {short}}}}}"
    path.write_text(f"title: mine\nplaces: [images]\n{runs}\n")
    whole = planned(f"recipe={path}", *words).in_all
    assert whole["exaflop"] > 0 and whole["device_hours"] is None


def test_a_sweep_is_planned_like_the_study_that_it_is() -> None:
    """Its word was refused as in a single run."""
    typed = ["recipe=mpp", "price=2", "sweep", "optim.lr=0.001,0.003", "seeds=2"]
    found = planned(*typed)
    assert found.runs["pretrain"]["tasks"] == 4
    sweep = {"optim.lr": [1e-3, 3e-3]}
    given = ssl_vit.plan({"recipe": "mpp", "price": 2}, sweep=sweep, seeds=2)
    assert given.runs == found.runs


def test_alike_steps_of_a_study_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def stand_in(recipe: Any) -> step_time.StepTime:
        measured.append(recipe)
        return step_time.StepTime(0.5, 0.4, 0.6, 15, "cpu", 1, "float32", 64, 1.0)

    monkeypatch.setattr(step_time, "measure", stand_in)
    found = planned("recipe=study/gap", "--probe", "price=3")
    assert len(measured) == 3  # mpp, supervised and scratch alike, fine-tuning
    tasks = parse_request(["recipe=study/gap"]).tasks.values()
    steps = sum(int(one.options["optim.steps"]) for one in tasks if one.run == "pretrain")
    assert found.runs["pretrain"]["device_hours"] == pytest.approx(steps * 0.5 / 3600)
    assert found.runs["probe"]["device_hours"] is None
    assert found.in_all["untimed"] == found.runs["probe"]["tasks"]
    assert found.in_all["price"] == pytest.approx(3 * found.in_all["device_hours"])


# Measured steps


@pytest.mark.parametrize("recipe", ["recipe=mpp", "recipe=moco_v3"])
def test_steps_are_measured_with_the_runs_own_engine(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "own", 400)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path.parent / "inductor"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(step_time, "LEAST_SECONDS", 0.0)
    words = altered(TINY, recipe, "optim.steps=1000", "optim.warmup=10")
    own = [f"data.path={tmp_path}/own", f"out={tmp_path}/runs"]
    found = planned(*altered(words, *own), "--probe", "price=10")
    steps = found.probe
    assert steps.steps == step_time.LEAST_STEPS
    assert 0 < steps.least <= steps.seconds <= steps.most
    assert found.seconds == pytest.approx(1000 * steps.seconds)
    assert found.price == pytest.approx(10 * found.device_hours)
    where = steps.device, steps.precision, steps.device_batch
    assert where == ("cpu", "float32", found.device_batch) and "measured" in row(found, "here")
    assert not list((tmp_path / "temporary").iterdir()) and not (tmp_path / "runs").exists()


def test_steps_are_measured_until_they_have_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """15 after 5 that warm up are too few where they take less than the seconds that are wanted;
    the most, and the run's own end, end it."""
    monkeypatch.setattr(step_time, "LEAST_SECONDS", 1e9)
    monkeypatch.setattr(step_time, "MOST_STEPS", 40)
    words = altered(TINY, "recipe=mpp", "optim.steps=1000", "optim.warmup=10")
    assert step_time.measure(resolve(words)).steps == 40 - step_time.WARM
    assert step_time.measure(resolve(altered(words, "optim.steps=30"))).steps == 30 - step_time.WARM


# Mistakes


WRONG = {
    "device=h10": "did you mean h100?",
    "devise=h100": "unknown key devise; did you mean device?",
    "corruption.rat=0.5": "did you mean corruption.rate?",
    "processes=3": "optim.batch=128: 3 processes ",
    "epochs=3 optim.steps=500": "optim.steps=",
    "epochs=3 data.path=/not/here": "Add images=",
    "device=v100_32 compute.precision=bfloat16": "Use compute.precision=float32.",
    "data=jft --probe": "data=jft: ssl_vit does not download",
    "recipe=study/gap epochs=3": "unknown key epochs",
    "recipe=study/gap processes=16": "processes=16: ",
    "recipe=study/gap optim.clip=x": "arm scratch: optim.clip=x: expected a number",
    "recipe=study/worth": "with --check",
    "recipe=study/ga": "did you mean study/gap?",
    "recipe=evaluate epochs=3": "an evaluation has no epochs",
    "recipe=evaluate --probe": "an evaluation has no training steps",
}


@pytest.mark.parametrize(("words", "says"), WRONG.items(), ids=WRONG)
def test_a_mistake_is_answered_in_one_line(words: str, says: str) -> None:
    more = [] if "recipe=" in words else ["recipe=mpp"]
    assert says in refusal(planned, *more, *words.split())
