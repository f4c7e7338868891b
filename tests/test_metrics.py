"""The registry of metrics: what the engine measures has a row, and a row is all that a metric needs
to be shown everywhere."""

import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from helpers import made_studies
from helpers.options import TINY, altered
from helpers.reports import Page, table
from helpers.resolving import resolve
from helpers.run_pages import make_run
from ssl_vit import measurements, metrics, rng
from ssl_vit.data.batching import Batch
from ssl_vit.evaluation.online import OnlineProbes
from ssl_vit.lab import report
from ssl_vit.lab.runs import tool as runs_tool
from ssl_vit.lab.study.tasks import Task
from ssl_vit.measurements import (
    LOSS,
    SHARE,
    Baseline,
    Metric,
    MetricKey,
    all_baselines,
    find_baseline,
    find_metric,
    has_row,
    read_flat_name,
    register,
    use_plugin_rows,
)
from ssl_vit.metrics import MEASURES
from ssl_vit.models import weights
from ssl_vit.models.encoder import build_encoder
from ssl_vit.objectives import building
from ssl_vit.pages import metric_tables, run_page
from ssl_vit.recipe import declaration
from ssl_vit.recipe.records.run import Declared, Measurement
from ssl_vit.runs.folder import Run
from ssl_vit.training.distributed import WatchedAccelerator

# The evaluate tool's and those of a test split, which need images and a classifier to be made
TESTED = ("top1", "top5", "real", "miou", "pixel_accuracy")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a test adds do not stay."""
    monkeypatch.setattr(measurements, "_rows", measurements._rows.copy())


def batch() -> Batch:
    draw = torch.Generator().manual_seed(0)
    views = torch.randint(0, 256, (4, 2, 3, 16, 16), dtype=torch.uint8, generator=draw)
    index = torch.arange(4)
    key = torch.from_numpy(rng.key(0, 0, index.numpy()))
    return Batch(views[:, 0], index, index, key, views=views)


@pytest.mark.parametrize(
    ("objective", "target"),
    [
        (objective, target)
        for objective, target in product(declaration.objectives(), declaration.targets())
        if declaration.objective(objective).predicts_patches or target == "mean_color"
    ],
)
def test_what_an_objective_measures_has_a_row(objective: str, target: str) -> None:
    if objective == "probe":  # no training
        return
    smaller = (
        ["views.local_size=8"] if "views.local" in declaration.objective(objective).shared else []
    )
    if objective == "distill":
        smaller += ["distill.teacher=timm:vit_tiny_patch16_224", "distill.size=32"]
    if declaration.objective(objective).predicts_patches:
        smaller += [f"target={target}", "model.patch=8"]
    recipe = resolve(altered(TINY, f"recipe={objective}", *smaller))
    made = building.build_objective(
        building.Settings.from_recipe(recipe), build_encoder(recipe.model, recipe.data), 10
    )
    made.fit_baselines([batch()])
    measured = made.eval()(batch()).metrics
    assert {"loss"} <= measured.keys()
    keys = {*map(read_flat_name, measured)}
    assert [key for key in keys if not has_row(key)] == []
    for key in map(read_flat_name, made.baselines(batch())):
        assert find_baseline(key) and metrics.compared_with(key, keys), key


def test_what_an_evaluation_measures_has_a_row() -> None:
    recipe = resolve(["recipe=evaluate", "init=scratch", "probe.shots=[1,5,7]"])
    recipe.probe.measures = [*MEASURES]
    accelerator = WatchedAccelerator(cpu=True)
    names = OnlineProbes(Run(recipe), [], [], recipe.probe, "avg", 2, accelerator).names()
    other = {"few_shot", "attentive", "segmentation", "top1"}  # another name, or not in training
    other |= {"rankme", "lidar", "alpha_req", "uniformity", "alignment"}  # no accuracies
    assert set(MEASURES) - set(names) == other
    finished = [f"probe_{one}" for one in names]
    for name in (*names, *(f"probe/{one}" for one in names), *finished, *TESTED, "attentive"):
        key = read_flat_name(name)
        assert has_row(key) and find_metric(key).in_per_cent, name
    assert find_metric(read_flat_name("probe_few_shot_7")).words == "7-shot"


def test_baselines_are_compared_with_rows() -> None:
    for baseline in all_baselines():
        compared = [*map(read_flat_name, baseline.compared_with)]
        assert compared and all(map(has_row, compared)), baseline.name
        key = read_flat_name(baseline.name)
        assert not has_row(key) and not metrics.is_model_metric(key)


def test_a_baseline_of_masked_patches_stands_beside_the_metric_of_those(registry: None) -> None:
    """It was compared with the metric over all corrupted patches, those kept visible included."""
    register(Metric("near", unit=SHARE), Baseline("closest", "the closest", ("near",)))
    closest = MetricKey("near", "closest")
    near = [MetricKey("near", patches=kind) for kind in ("", "masked", "kept")]
    keys = {*near, *(key._replace(part="mpp") for key in near)}
    assert metrics.compared_with(closest, keys) == near[1]
    assert metrics.compared_with(closest._replace(part="mpp"), keys) == near[1]._replace(part="mpp")
    assert metrics.compared_with(closest, {near[0], near[2]}) == near[0]


def test_a_name_without_a_row_is_a_plain_number() -> None:
    agreement = Measurement(metric="agreement", value=0.25, split="validation", n=100)
    ((_, table),) = metric_tables.tables(metric_tables.read_metrics([agreement]), True)
    assert table.head[0] == "100 held-out images"
    assert table.rows == [["agreement", "0.25", "", ""]]
    assert metrics.format_metrics({MetricKey("agreement"): 0.25}) == ""
    assert not find_metric(MetricKey("loss_of_own")).higher
    assert find_metric(MetricKey("agreement")).higher


def test_a_name_has_one_row(registry: None) -> None:
    row = Metric("agreement", label="how alike two views are")
    register(row, row)
    for other in (replace(row, higher=False), Baseline("agreement", "", ())):
        with pytest.raises(ValueError, match="agreement"):
            register(other)
    with pytest.raises(ValueError, match="higher=False"):
        Metric("alignment", unit=LOSS)


def test_the_direction_of_a_plugins_metric_is_known_where_its_plugins_agree() -> None:
    """In lists the worst run was the best."""
    mistaken = MetricKey("mistaken")
    with use_plugin_rows([Metric("mistaken", higher=False, unit=SHARE)]):
        assert metrics.has_direction(mistaken) and metrics.score(mistaken, 0.25) == -0.25
    assert not metrics.has_direction(mistaken), "of another run it is not known"
    turned = [Metric("turned")], [Metric("turned", higher=False)], [Metric("turned")]
    with use_plugin_rows(*turned):
        assert not metrics.has_direction(MetricKey("turned"))


def test_a_plugins_target_is_not_ranked_by_its_loss_where_it_is_not_given() -> None:
    """The objective is the package's, and so its record was not read; two targets of one plugin's
    objective had one record."""
    try:
        for name, refused in (("moving", ("loss",)), ("still", ())):
            kind = type("Own", (declaration.TargetDeclaration,), {"build": print})
            one = kind()
            one.name, one.no_measure = name, refused
            declaration.declare(one)
        records = [declaration.to_record("mpp", name) for name in ("moving", "still")]
    finally:
        for name in ("moving", "still"):
            declaration.withdraw(name)
    for record in json.loads(json.dumps(records)):
        declaration.remember_recorded(Declared(**record))
    told = {
        (metric, name): declaration.may_reward_collapse(metric, "joint", name)
        for metric in ("mpp/loss", "supervised/loss")
        for name in ("moving", "still")
    }
    assert [key for key, nothing in told.items() if nothing] == [("mpp/loss", "moving")]


def test_one_row_shows_a_metric_everywhere(
    registry: None, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Label, unit and direction of a share of which less is better. Wilson's interval of 25 of 100
    is 17.55% to 34.30%."""
    register(
        Metric("confusion", "confused views", higher=False, unit=SHARE),
        Baseline("blind", "guessing blindly", ("confusion",)),
    )
    recipe = resolve(TINY)
    encoder = build_encoder(recipe.model, recipe.data)
    for name, confusion in (("made", 0.25), ("worse", 0.5)):
        values = {"confusion": confusion, "blind": 0.75}
        rows = [
            {"step": step, "validation/confusion": 5 / step, "validation/blind": 0.75}
            for step in (10, 20)
        ]
        found = {key: {"value": x, "n": 100, "split": "validation"} for key, x in values.items()}
        folder = make_run(tmp_path / "runs" / name, metrics=rows, found=found)
        weights.export(folder / "export", encoder, {}, recipe.model, recipe.data, "avg")

    run_page.write(tmp_path / "runs" / "made")
    page = Page((tmp_path / "runs" / "made" / "report.html").read_text())
    shown = ["confused views", "25.00% (17.55 to 34.30)", "75.00% (guessing blindly)", "yes"]
    assert shown in page.table(["100 held-out images"])
    lines = [line["name"] for text in page.data for line in json.loads(text)["lines"]]
    assert lines == ["confused views, held-out", "baseline: guessing blindly"]

    runs_tool.main([str(tmp_path / "runs"), "best=confusion"])
    printed = capsys.readouterr().out
    assert printed.startswith("confusion: lower is better\n")
    assert printed.index("25.00% (n = 100)") < printed.index("50.00% (n = 100)")

    # report: what decides, and what is shown beside it
    share = {"mpp": 0.5, "mae": 0.25}
    content = made_studies.changed(made_studies.FROZEN, report={"test": "pretrain"})

    def measured(task: Task) -> made_studies.Measured:
        if task.tool == "evaluate":
            return {"knn": (0.5, "test")}
        confusion = share[task.at["arm"]] + task.seed / 1000
        return {"confusion": (confusion, "validation"), "blind": (0.75, "validation")}

    study = made_studies.study(tmp_path / "first", content, measured)
    measure = report.write(study).verdict.measure
    assert measure is not None and measure.label == "confused views"
    assert (measure.scale, measure.sign) == (100, -1)
    text = (study / "report.md").read_text()
    assert [row[0] for row in table(text, "arm")[1:]] == ["mpp", "mae"]
    assert re.search(r"confused views on [\d,]* ?validation images", text), text
    text = text.partition("Measured by pretrain:")[2]
    assert table(text, "arm")[0][2:] == ["guessing blindly, % (validation)"]
