"""Fine-tuning and evaluation from end to end: what is measured, that it resumes exactly, what the
tools refuse."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

from helpers.disk import full_disk
from helpers.encoders import net, pixels
from helpers.launching import launch_ranks, outcome
from helpers.options import altered
from helpers.runs import Killed, Killer, assert_same_end, run
from helpers.sources import noisy
from helpers.tables import TRAIN, broken, image, table
from ssl_vit.data import loaders, sources, synthetic
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.errors import UserError
from ssl_vit.evaluation import classify
from ssl_vit.jobs import cli
from ssl_vit.jobs import train as train_job
from ssl_vit.pages import metric_tables
from ssl_vit.recipe.load import resolve
from ssl_vit.recipe.schema import Data
from ssl_vit.runs.folder import Run

TUNE = ["recipe=finetune", "data.share=0.01", "optim.lr=0.1", "supervised.pool=avg"]


@pytest.fixture
def words(tiny: list[str]) -> list[str]:
    return altered(tiny, *TUNE)


def tuned(words: list[str]) -> Run:
    run = Run(resolve(words))
    run.reconcile()
    train_job.train(run)
    return run


def test_the_feature_is_the_exports(tiny: list[str]) -> None:
    """MPP has no loss on the class token: its export gives the mean of the patches. What is given
    wins, and is in the default name; weights that say nothing give the class token."""
    made = run(altered(tiny, "optim.steps=2", "optim.warmup=1", "name=mpp"))
    words = ["recipe=finetune", f"init={made.folder}"]
    brought = resolve(words)
    assert (brought.supervised.pool, brought.name) == ("avg", "finetune-init=mpp")
    given = resolve([*words, "supervised.pool=token"])
    assert (given.supervised.pool, given.name) == (
        "token",
        "finetune-init=mpp-supervised.pool=token",
    )
    assert resolve(["recipe=finetune", "init=scratch"]).supervised.pool == "token"


def test_every_test_image_is_told_once_and_the_numbers_are_theirs(words: list[str]) -> None:
    run = tuned(words)
    predicted, result = (
        np.load(run.predictions),
        json.loads((run.folder / "result.json").read_text()),
    )
    assert predicted["index"].tolist() == list(range(5000)) and predicted["top5"].shape == (5000, 5)
    test = sources.load(run.recipe.data, test=True).test
    assert (
        test is not None and predicted["label"].tolist() == test.fetch(np.arange(5000))[1].tolist()
    )
    assert result["metrics"]["top1"] == {
        "value": (predicted["top5"][:, 0] == predicted["label"]).mean(),
        "n": 5000,
        "split": "test",
    }
    assert (
        result["metrics"]["top5"]["value"]
        == (predicted["top5"] == predicted["label"][:, None]).any(1).mean()
    )
    assert set(json.loads((run.folder / "environment.json").read_text())["data"]) == {
        "train",
        "validation",
        "test",
    }


def test_the_export_is_a_classifier_that_timm_and_transformers_read(words: list[str]) -> None:
    from transformers import AutoModelForImageClassification

    run = tuned(words)
    drawn = next(
        iter(
            loaders.evaluation_loader(
                sources.load(run.recipe.data, test=True).test,
                run.recipe.data,
                BatchLayout(8, 8, 0, 1),
                0,
            )
        )
    )
    model = timm.create_model(f"local-dir:{run.export}", pretrained=True).eval()
    theirs = AutoModelForImageClassification.from_pretrained(run.export).eval()
    predicted = np.load(run.predictions)["top5"][:8, 0]
    with torch.no_grad():
        logits = model(drawn.image / 127.5 - 1)
        torch.testing.assert_close(
            theirs(drawn.image / 127.5 - 1).logits, logits, atol=1e-5, rtol=0
        )
    assert logits.argmax(-1).tolist() == predicted.tolist()
    assert theirs.config.id2label[0] == "disc" or theirs.config.id2label[0] == synthetic.CLASSES[0]


@pytest.mark.parametrize(
    "more",
    [["optim.average=0.9", "optim.layer_decay=0.7", "optim.drop_path=0.2"], ["data.mixup=0.8"]],
)
def test_a_killed_run_goes_on_as_if_it_had_not_been(
    words: list[str], more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = altered(words, *more, "eval.test=false")
    unbroken = tuned([*words, "name=unbroken"])
    for step in (5, 8):
        real = train_job._callbacks
        monkeypatch.setattr(
            train_job, "_callbacks", lambda j, real=real, step=step: [*real(j), Killer(step)]
        )
        with pytest.raises(Killed):
            tuned([*words, "name=killed"])
        monkeypatch.setattr(train_job, "_callbacks", real)
    assert_same_end(unbroken.folder, tuned([*words, "name=killed"]).folder)


def test_what_is_looked_at_and_exported_are_the_averaged_weights(words: list[str]) -> None:
    plain, average = (
        tuned([*words, f"name={name}", *more])
        for name, more in (("a", []), ("b", ["optim.average=0.5"]))
    )
    states = [
        timm.create_model(f"local-dir:{run.export}", pretrained=True).state_dict()
        for run in (plain, average)
    ]
    assert not torch.equal(states[0]["head.weight"], states[1]["head.weight"])
    losses = [[row["loss"] for row in run.rows() if "loss" in row] for run in (plain, average)]
    assert losses[0] == losses[1]  # training itself is not touched
    looked = [
        [row["validation/loss"] for row in run.rows() if "validation/loss" in row]
        for run in (plain, average)
    ]
    assert looked[0] != looked[1]


def test_totals_count_what_the_weights_came_from(tiny: list[str], words: list[str]) -> None:
    cli.pretrain([*tiny, "name=mpp"])
    out = next(w for w in tiny if w.startswith("out="))[4:]
    gone = ("model.",)
    chosen = [w for w in altered(words, f"init={out}/mpp", "name=tuned") if not w.startswith(gone)]
    cli.finetune(chosen)
    first, second = (
        json.loads(Path(out, name, "result.json").read_text()) for name in ("mpp", "tuned")
    )
    assert second["total_exaflop"] == pytest.approx(first["exaflop"] + second["exaflop"])
    assert first["total_exaflop"] == first["exaflop"]


def test_a_share_is_the_same_subset_for_every_seed_and_inside_a_larger_one() -> None:
    def labels(share: float) -> list[str]:
        train = sources.load(Data(size=16, share=share)).train
        return [train.name(row) for row in range(len(train))]

    tenth, half = labels(0.1), labels(0.5)
    assert (
        len(tenth) == 5000
        and len(half) == 25_000
        and tenth == half[:5000]
        and len(set(half)) == 25_000
    )


def test_nothing_held_out_trains_on_everything() -> None:
    splits = sources.load(Data(size=16, share=0.01, validation=0.0))
    assert len(splits.train) == 500
    whole = {splits.train.name(row) for row in range(500)}
    assert {splits.validation.name(row) for row in range(len(splits.validation))} <= whole


def test_predictions_on_a_full_disk_leave_no_half_of_them(tmp_path: Path) -> None:
    many_M = np.random.default_rng(0).integers(0, 1000, 5000)
    predicted = classify.Predictions(many_M, many_M, many_M[:, None])
    with full_disk(), pytest.raises(OSError, match="too large"):
        predicted.save(tmp_path / "predictions.npz", noisy(1000))
    assert not list(tmp_path.iterdir())


def test_few_classes_have_no_top5() -> None:
    predicted = classify.Predictions(
        np.arange(4),
        np.array([0, 1, 2, -1]),
        np.array([[0, 1, 2], [2, 1, 0], [2, 0, 1], [0, 1, 2]]),
    )
    assert classify.accuracies(predicted, 3) == {"top1": (2 / 3, 3)}


class Named:
    def name(self, row: int) -> str:
        return f"row {row} (val/ILSVRC2012_val_{50_000 - row:08d}.JPEG)"


def test_imagenet_real_by_hand(tmp_path: Path) -> None:
    seen: list[list[int]] = [[] for _ in range(50_000)]
    # of rows 0, 1, 2; nobody saw anything in row 3
    seen[49_999], seen[49_998], seen[49_997] = [3, 7], [1], [2]
    path = tmp_path / "real.json"
    path.write_text(json.dumps(seen))
    predicted = classify.Predictions(
        np.arange(4), np.zeros(4, int), np.array([[7, 0], [0, 1], [2, 0], [5, 0]])
    )
    assert classify.real_accuracy(predicted, Named(), str(path)) == {"real": (2 / 3, 3)}  # type: ignore[arg-type]
    path.write_text("[[1]]")
    with pytest.raises(UserError, match=r"eval\.real=.*50,000 lists"):
        classify.real_accuracy(predicted, Named(), str(path))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"eval\.real=nowhere"):
        classify.real_accuracy(predicted, Named(), "nowhere")  # type: ignore[arg-type]


def test_a_frozen_encoder_is_measured_and_the_result_kept(
    tiny: list[str], capsys: pytest.CaptureFixture
) -> None:
    cli.pretrain([*tiny, "name=mpp"])
    out = next(w for w in tiny if w.startswith("out="))
    words = [
        "recipe=evaluate",
        f"init={out[4:]}/mpp",
        "data.size=16",
        "name=probed",
        "probe.steps=20",
        "probe.shots=[1,5]",
    ]
    words += [out, "data.share=0.02", "compute.threads=1", "compute.precision=float32", "--json"]
    capsys.readouterr()
    cli.evaluate(words)
    text = capsys.readouterr().out
    printed = json.loads(text.splitlines()[-1])
    assert "frozen: mean of the patches" in text  # MPP's class token got no loss
    own = {name for name in printed["metrics"] if not metric_tables.is_in_its_place(name)}
    assert own == {"few_shot_1", "few_shot_5", "linear", "knn"}
    assert all(
        entry["n"] == 5000 and entry["split"] == "test" for entry in printed["metrics"].values()
    )
    cli.evaluate(words)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["metrics"] == printed["metrics"]


def test_features_of_a_layer_are_that_blocks(tiny: list[str]) -> None:
    made = net()
    inside = made.backbone.forward_intermediates(
        pixels() / 127.5 - 1, output_fmt="NLC", return_prefix_tokens=True, intermediates_only=True
    )
    for layer, (patches, prefix) in enumerate(inside, 1):
        with torch.no_grad():
            torch.testing.assert_close(
                made.feature(pixels(), "avg", layer), patches.mean(1), atol=1e-5, rtol=0
            )
            torch.testing.assert_close(
                made.feature(pixels(), "token", layer), prefix[:, 0], atol=1e-5, rtol=0
            )


REFUSED = {
    "no init": (
        cli.finetune,
        ["recipe=finetune"],
        "init= is missing; choices: scratch, a run's folder",
    ),
    "no init for evaluation": (cli.evaluate, ["recipe=evaluate"], "init= is missing"),
    "an objective without labels": (
        cli.finetune,
        ["recipe=mpp", "init=scratch"],
        "objective=mpp: expected objective=supervised",
    ),
    "an evaluation that trains": (
        cli.evaluate,
        ["recipe=mpp", "init=scratch"],
        "objective=mpp: expected objective=probe",
    ),
    "training an evaluation": (cli.pretrain, ["recipe=evaluate"], "objective=probe trains nothing"),
    "no such test split": (
        cli.finetune,
        ["recipe=finetune", "init=scratch", "data.test=tst"],
        "data.test=tst: no such split",
    ),
    "a test without labels": (
        cli.pretrain,
        ["recipe=mpp", "eval.test=true"],
        "eval.test=true: objective=mpp learns no labels",
    ),
    "a test of labels without weight": (
        cli.pretrain,
        ["recipe=joint", "joint.supervised=0", "eval.test=true"],
        "eval.test=true: objective=joint with joint.supervised=0 learns no labels",
    ),
    "ReaL without a test": (
        cli.pretrain,
        ["recipe=supervised", "eval.real=x"],
        "eval.real=x: no use without eval.test=true",
    ),
    "training's words for an evaluation": (
        cli.evaluate,
        ["recipe=evaluate", "init=scratch", "optim.lr=1"],
        "optim.lr=1: ",
    ),
    "no such layer": (
        cli.evaluate,
        ["recipe=evaluate", "init=scratch", "probe.layer=9"],
        "probe.layer=9: expected at most model.depth=4",
    ),
    "no such measure": (
        cli.evaluate,
        ["recipe=evaluate", "init=scratch", "probe.measures=[knnn]"],
        "few_shot, linear, knn",
    ),
}


@pytest.mark.parametrize(("tool", "words", "says"), REFUSED.values(), ids=REFUSED)
def test_the_line_that_a_user_reads(
    tool, words, says, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit) as left:
        tool([*words, f"out={tmp_path}/runs"])
    (line,) = capsys.readouterr().err.splitlines()
    assert left.value.code == 2 and line.startswith("error: ") and says in line


def test_two_processes_tell_every_test_image_once(words: list[str], tmp_path: Path) -> None:
    """And the same of each as one process: the batch and its augmentation are the same wherever
    they lie."""
    count = 501  # not as many for each
    words = altered(words, "data.test=0.01002", "data.share=0.05", "compute.batch=8")
    ours = tuned([*words, "name=one"]).folder / "predictions.npz"
    for tool, more in (("finetune", []), ("evaluate", ["probe.measures=[knn]"])):
        given = altered(words, "name=two", "init=scratch")
        if tool == "evaluate":
            place = [
                w for w in given if w.startswith(("out=", "data.", "compute.")) and "batch" not in w
            ]
            given = ["recipe=evaluate", f"init={tmp_path}/runs/two", "name=probed", *place, *more]
        statuses, outputs = outcome(launch_ranks(2, f"tools/{tool}.py", *given))
        assert statuses == [0, 0], outputs
    ours, theirs = np.load(ours), np.load(tmp_path / "runs" / "two" / "predictions.npz")
    assert len(set(theirs["index"].tolist())) == len(theirs["index"]) == count
    assert (theirs["index"] == ours["index"]).all() and (theirs["label"] == ours["label"]).all()
    # sums in another order move a close call
    assert (theirs["top5"][:, 0] == ours["top5"][:, 0]).mean() > 0.98
    predicted = [
        json.loads((tmp_path / "runs" / name / "result.json").read_text())["metrics"]
        for name in ("two", "probed")
    ]
    assert predicted[0]["top1"]["n"] == predicted[1]["knn"]["n"] == count


def test_a_runs_own_head_is_measured_as_when_it_was_trained(
    tiny: list[str], words: list[str]
) -> None:
    out = next(w for w in tiny if w.startswith("out="))
    hidden = altered(tiny, "recipe=supervised", "eval.test=true", "name=hidden")
    joint = altered(tiny, "recipe=joint", "eval.test=true", "name=joint")
    common = [
        "recipe=evaluate",
        "data.size=16",
        "probe.measures=[top1]",
        out,
        "compute.threads=1",
        "compute.precision=float32",
    ]
    for given in (altered(words, "name=linear", "init=scratch"), hidden, joint):
        run = tuned(given)
        cli.evaluate([*common, f"init={run.folder}", f"name=again-{run.recipe.name}"])
        was, now = (json.loads((place / "result.json").read_text())["metrics"] for place in
                    (run.folder, run.folder.parent / f"again-{run.recipe.name}"))  # fmt: skip
        assert {name: entry["value"] for name, entry in now.items()} == {
            name: was[name]["value"] for name in ("top1", "top5")
        }


@pytest.mark.parametrize("own", [(), ("recipe=joint", "joint.supervised=0")])
def test_a_run_without_labels_has_no_head(
    own, tiny: list[str], capsys: pytest.CaptureFixture
) -> None:
    """Nor has one whose labels had no weight: its head stands where it began."""
    cli.pretrain([*altered(tiny, *own), "name=mpp"])
    out = next(w for w in tiny if w.startswith("out="))
    with pytest.raises(SystemExit):
        cli.evaluate(
            [
                "recipe=evaluate",
                f"init={out[4:]}/mpp",
                "data.size=16",
                "probe.measures=[top1]",
                out,
                "data.share=0.01",
            ]
        )
    assert (
        "probe.measures=top1: init=" in (line := capsys.readouterr().err)
        and "no run that learned labels" in line
    )


def test_a_test_image_that_cannot_be_read_is_left_out_and_named(
    tiny: list[str], tmp_path: Path, capsys
) -> None:
    (tmp_path / "own").mkdir()
    table(tmp_path / "own" / "train.parquet", [0, 1] * (TRAIN // 2))
    images = [broken(n) if n in (3, 7) else image(n) for n in range(TRAIN)]
    table(tmp_path / "own" / "test.parquet", [0, 1] * (TRAIN // 2), images)
    words = altered(
        tiny,
        "recipe=finetune",
        "init=scratch",
        f"data.path={tmp_path}/own",
        "data.validation=0.2",
        "name=run",
    )
    cli.finetune(words)
    folder = tmp_path / "runs" / "run"
    assert json.loads((folder / "result.json").read_text())["metrics"]["top1"]["n"] == TRAIN - 2
    predicted = np.load(folder / "predictions.npz")
    assert predicted["index"].tolist() == list(range(TRAIN)) and np.flatnonzero(
        predicted["label"] < 0
    ).tolist() == [3, 7]
    assert predicted["image"][:2].tolist() == ["row 0", "row 1"]
    printed = capsys.readouterr().out
    assert re.search(r"^test .*, 95% interval of top1 \d+\.\d% to \d+\.\d%$", printed, re.M)
    assert (
        printed.count("a test image is left out: row ") == 2
        and "left out: row 7" in (folder / "log.txt").read_text()
    )


def test_weights_that_changed_under_a_finished_run_are_noticed(
    tiny: list[str], words: list[str], capsys
) -> None:
    out = next(w for w in tiny if w.startswith("out="))[4:]
    cli.pretrain([*tiny, "name=mpp"])
    given = [
        w
        for w in altered(words, f"init={out}/mpp", "eval.test=false", "name=tuned")
        if not w.startswith("model.")
    ]
    cli.finetune(given)
    cli.finetune(given)  # told again
    path = Path(out, "mpp", "export", "model.safetensors")
    path.write_bytes(path.read_bytes()[:-4] + b"abcd")
    with pytest.raises(SystemExit):
        cli.finetune(given)
    assert f"init={out}/mpp: the weights differ" in capsys.readouterr().err
    Path(out, "mpp", "result.json").write_text("{")
    with pytest.raises(SystemExit):
        cli.finetune(altered(given, "name=new"))
    assert "result.json is damaged" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.finetune(altered(given, f"init={out}/probed"))
    assert "no such folder" in capsys.readouterr().err


def test_a_finished_run_is_measured_again_and_never_trained_again(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It was refused, and its weights had to be trained once more under another name."""
    own = ["init=scratch", "eval.test=false"]
    both = [altered(words, *own, f"name={name}") for name in ("later", "at-once")]
    cli.finetune(both[0])
    later = Run(resolve(both[0]))
    without = later.result()
    weights = (later.export / "model.safetensors").read_bytes()
    assert without is not None and "top1" not in without.metrics
    tested = [altered(options, "eval.test=true") for options in both]
    cli.finetune(tested[1])
    at_once = Run(resolve(tested[1])).result()
    capsys.readouterr()
    cli.finetune(tested[0])
    shown = capsys.readouterr().out
    assert "is measured again: eval.test (False there, True here)" in shown
    now = later.result()
    assert now is not None and at_once is not None and now.metrics == at_once.metrics
    assert (later.export / "model.safetensors").read_bytes() == weights
    cli.finetune(tested[0])
    assert "measured again" not in capsys.readouterr().out
    with pytest.raises(SystemExit):  # which would lose what was measured
        cli.finetune(both[0])
    assert "has finished with other values: eval.test (True there" in capsys.readouterr().err
    assert later.result() == now
    cli.finetune(altered(both[0], "name=bare"))
    bare = Run(resolve(altered(both[0], "name=bare")))
    shutil.rmtree(bare.checkpoints)
    with pytest.raises(SystemExit):
        cli.finetune(altered(tested[0], "name=bare"))
    assert "has finished with other values: eval.test (False there" in capsys.readouterr().err
