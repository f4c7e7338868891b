"""tools/study.py --check: the first mistake of a study's file, or its tasks and their cost."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from helpers.images import put
from helpers.options import ROOT
from helpers.studies import TWO_ARMS as STUDY
from ssl_vit.data import sources
from ssl_vit.errors import UserError
from ssl_vit.lab import study_tool
from ssl_vit.lab.studies.read_study import build


def checked(
    tmp_path: Path, capsys: pytest.CaptureFixture, *options: str, **changed: object
) -> tuple[int, str, list[str]]:
    """The exit status, what is printed, and the lines of the error."""
    path = tmp_path / "made.yaml"
    path.write_text(yaml.safe_dump(STUDY | changed))
    try:
        status, wrong = main(tmp_path, *options, "--check"), []
    except UserError as error:
        status, wrong = UserError.status, str(error).splitlines()
    assert not (tmp_path / "runs").exists()
    out, err = capsys.readouterr()
    assert err == "" and len(wrong) < 2
    return status, out, wrong


def main(tmp_path: Path, *options: str) -> int:
    return study_tool.main(
        [f"recipe={tmp_path / 'made.yaml'}", f"out={tmp_path / 'runs'}", *options]
    )


PRE, FIN = STUDY["parts"]["pre"], STUDY["parts"]["fin"]
CURVE = {
    "labels": [{"share": 0.1, "n": 5}, {"share": 1, "n": 9}],
    "parts": {
        "pre": PRE,
        "fin": {
            "tool": "finetune",
            "options": {**FIN["options"], "data.share": "{share}", "optim.steps": "{n}"},
        },
    },
}
LONG_NAME = "p" * 260


@pytest.mark.parametrize(
    ("part", "change", "says"),
    [
        ("pre", {"by_arm": {"a": {"optim.lrr": 0.1}, "b": {}}}, "arm a: unknown key optim.lrr"),
        ("pre", {"by_arm": {"a": {}, "b": {"optim.lr": -1}}}, "arm b: optim.lr=-1.0: expected"),
        ("pre", {"options": {"recipe": "mppp"}}, "arm a: recipe=mppp: "),
        ("pre", {"options": PRE["options"] | {"optim.batch": "x"}}, "arm a: optim.batch=x: "),
        ("pre", {"options": PRE["options"] | {"optim.warmup": 50}}, "arm a: optim.warmup=50: "),
        ("fin", {"options": FIN["options"] | {"data.size": 0}}, "arm a: data.size=0: expected"),
        (LONG_NAME, PRE, "arm a: the name of its run is too long"),
    ],
)
def test_what_a_run_would_refuse_is_said_before_with_its_part_and_arm(
    part: str,
    change: dict[str, object],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    """By --check, and by the study's own start."""
    parts = STUDY["parts"] | {part: STUDY["parts"].get(part, {}) | change}
    status, out, lines = checked(tmp_path, capsys, parts=parts, seeds=[0, 1])
    assert status == UserError.status and out == ""
    assert lines[0].startswith(f"part {part[:80]}, {says}")
    with pytest.raises(UserError) as caught:
        main(tmp_path)
    assert str(caught.value) == lines[0]


def test_a_wrong_file_is_said_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """test_wrong_files.py has what is wrong, and how it is said."""
    status, out, lines = checked(tmp_path, capsys, seedz=[1])
    assert status == UserError.status and out == ""
    text = f"{tmp_path / 'made.yaml'}: unknown key seedz; did you mean seeds?"
    assert lines[0].startswith(text)


def test_a_right_file_shows_its_tasks_and_their_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Also without its places, with what tools/plan.py takes."""
    parts = STUDY["parts"] | {
        "pre": STUDY["parts"]["pre"]
        | {"options": STUDY["parts"]["pre"]["options"] | {"data.path": "{here}"}}
    }
    own = ("seeds=2", "device=h100", "price=2")
    status, out, lines = checked(tmp_path, capsys, *own, parts=parts, places=["here"])
    assert (status, lines) == (0, [])
    rows = {line.split()[0]: line.split()[1] for line in out.splitlines() if line}
    assert (rows["pre"], rows["fin"]) == ("4", "4")
    assert "device-hours" in out and "on h100" in out


def test_a_place_that_is_given_is_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    parts = {"pre": {**STUDY["parts"]["pre"], "options": {"recipe": "mpp", "data.path": "{here}"}}}
    status, _, lines = checked(
        tmp_path,
        capsys,
        f"here={tmp_path / 'nothing'}",
        places=["here"],
        parts=STUDY["parts"] | parts,
    )
    assert status == UserError.status
    assert lines[0].startswith("part pre, arm a: data.path=")
    assert "no such file or folder" in lines[0]


def test_a_sweep_is_checked_too() -> None:
    options = ["recipe=mpp", "sweep", "optim.lr=0.1,-1", "--check"]
    with pytest.raises(UserError, match=r"arm lr=-1\.0: optim\.lr=-1\.0"):
        study_tool.main(options)


def trained_then_tested(was: dict[str, object], now: dict[str, object]) -> dict[str, object]:
    """A study that pre-trains with some options and tests with others, on one folder of images."""
    pre = {**PRE, "options": {**PRE["options"], "recipe": "supervised", **was}}
    probe = {"tool": "evaluate", "options": {"recipe": "evaluate", "init": "{pre}", **now}}
    fin = {**FIN, "options": {**FIN["options"], **now}}
    images = {"data.path": "{images}"}
    parts = {"pre": pre, "fin": fin, "probe": probe}
    return {"parts": parts, "options": images, "places": ["images"]}


SHARE = {"data.test": 0.2}


@pytest.mark.parametrize(
    ("was", "now", "learned"),
    [
        ({}, {}, False),
        ({}, SHARE, True),
        (SHARE, SHARE, False),
        ({"data.test": 0.3}, SHARE, False),  # of one order, so all of the 0.2 are among the 0.3
        ({"data.test": 0.1}, SHARE, True),
        (SHARE, SHARE | {"data.group": "patient"}, True),
        ({"data.test": 0.3, "data.group": "patient"}, SHARE | {"data.group": "patient"}, True),
        (SHARE | {"data.group": "patient"}, SHARE | {"data.group": "patient"}, False),
        (SHARE, SHARE | {"data.label_column": "kind"}, True),
        ({"data.train": "test", "data.validation": 0.1}, {"data.train": "train"}, True),
        ({"data.train": "test", "data.validation": 0.1}, {"data.test": "other"}, False),
        ({"recipe": "mpp"}, SHARE, False),
        ({"recipe": "joint"}, SHARE, True),
        ({}, SHARE | {"data.path": "elsewhere"}, False),
    ],
)
def test_a_study_whose_weights_have_learned_labels_of_its_test_images_is_refused(
    was: dict[str, object],
    now: dict[str, object],
    learned: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    study = trained_then_tested(was, now)
    status, _, lines = checked(tmp_path, capsys, **study)
    found = [line for line in lines if "has learned labels of these images" in line]
    assert (status == 0) == (not learned) and len(found) == learned
    for line in found:
        assert line.startswith("part fin, arm a: ")
        assert f"data.test={now.get('data.test', 'test')}: part pre (data.train=" in line
    status, _, lines = checked(tmp_path, capsys, "labels_seen=true", **study)
    assert (status, lines) == (0, [])


WITH_SCRATCH = {"a": {"init": "scratch"}, "b": {"init": "{pre}"}}
ONE_PRE = {"tool": "pretrain", "options": {"recipe": "mpp", "model": "vit_p8"}, "by_arm": {"b": {}}}


@pytest.mark.parametrize(
    ("pre", "own", "says"),
    [
        ({}, {}, " against b (model."),  # a has the recipe's own
        ({}, {"model": "vit_p8"}, ""),
        ({}, {"model": "vit_p8", "model.depth": 2}, "a (model.depth=2) against b (model.depth=4)"),
        ({"by_arm": {"a": {"model.depth": 2}, "b": {}}}, {"init": "{pre}"}, "a (model.depth=2)"),
        ({"by_arm": {"a": {"model": "vit_n8"}, "b": {"model": "vit_p8"}}}, {"init": "{pre}"}, ""),
    ],
)
def test_arms_that_end_in_other_encoders_are_named(
    pre: dict[str, object],
    own: dict[str, object],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    """Nothing said so: what was reported as the gain of pre-training was one of another model."""
    arms = WITH_SCRATCH | {"a": WITH_SCRATCH["a"] | own}
    parts = {"pre": ONE_PRE | pre, "fin": FIN | {"by_arm": arms}}
    status, out, lines = checked(tmp_path, capsys, parts=parts)
    found = [line for line in out.splitlines() if "encoders of different architectures" in line]
    assert (status, lines, len(found)) == (0, [], bool(says))
    assert all(line.startswith("warning: fin: ") and says in line for line in found)


def test_a_study_that_varies_the_model_compares_encoders_without_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    vary = [{"name": "a"}, {"name": "deep", "model.depth": 8}]
    study = {"arms": {}, "parts": {"pre": ONE_PRE | {"by_arm": {}}, "fin": FIN}, "vary": vary}
    status, out, _ = checked(tmp_path, capsys, **study, report={"final": "fin", "baseline": "a"})
    assert status == 0 and "architecture" not in out


@pytest.mark.parametrize("curve", [False, True])
def test_a_final_part_without_test_images_is_a_mistake(
    curve: bool, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """It ran to its end, and then there was no report."""
    study = CURVE if curve else {"parts": STUDY["parts"]}
    fin = study["parts"]["fin"]
    own = {**fin, "options": {**fin["options"], "eval.test": False, "optim.warmup": 0}}
    parts = study["parts"] | {"fin": own}
    status, _, lines = checked(tmp_path, capsys, **study | {"parts": parts})
    assert status == UserError.status
    assert "arm a: eval.test=false: the report compares" in lines[0]


def test_a_split_that_a_part_needs_is_looked_for_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """It was missed after all pre-training; data.test as a share needs no split."""
    for split in ("train", "validation"):
        for kind in ("cat", "dog"):
            put(tmp_path / "images" / split / kind, 10)
    study = {"options": {"data.path": "{here}"}, "places": ["here"]}
    here = f"here={tmp_path / 'images'}"
    status, _, lines = checked(tmp_path, capsys, here, **study)
    assert status == UserError.status
    assert lines[0].startswith("part fin, arm a: data.test=test: no such")
    assert "choices: train, validation, or a share of train" in lines[0]
    with pytest.raises(UserError, match=r"part fin, arm a: data\.test=test: no such"):
        study_tool.main([f"recipe={tmp_path / 'made.yaml'}", f"out={tmp_path / 'runs'}", here])
    assert not (tmp_path / "runs").exists()
    assert "eval.test" not in lines[0]  # the report needs what fin measures
    _, _, lines = checked(tmp_path, capsys, here, **study, report={})
    assert lines[0].endswith("; fine-tuning goes without by eval.test=false")
    share = study | {"options": study["options"] | {"data.test": 0.2}}
    assert checked(tmp_path, capsys, here, **share)[0] == 0


def test_few_images_are_told_of_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "images" / "cat", 60)
    put(tmp_path / "images" / "dog", 60)
    parts = {
        "pre": STUDY["parts"]["pre"],
        "tries": FIN | {"grid": {"optim.lr": [0.1, 0.2]}},
        "fin": FIN | {"best": {"of": "tries", "by": "accuracy"}},
    }
    options = {"data.path": "{here}", "data.test": 0.1, "data.validation": 0.1}
    study = {"options": options, "places": ["here"], "parts": parts}
    here = f"here={tmp_path / 'images'}"
    status, out, _ = checked(tmp_path, capsys, here, **study)
    found = [line.split("; on fewer")[0] for line in out.splitlines() if "uncertain" in line]
    assert status == 0 and found == [
        "warning: part pre, arm a: held out: 11 images",
        "warning: part tries, arm a: held out: 11 images",
        "warning: part tries, arm a: test: 12 images",
    ]
    chosen = "and the best of a grid is chosen on them; data.validation=0.2 holds out more"
    assert chosen in out
    study["parts"] = parts | {"fin": FIN}  # of whose grid nothing takes the best
    assert chosen not in checked(tmp_path, capsys, here, **study)[1]
    monkeypatch.chdir(tmp_path)  # with a folder of the place's name
    (tmp_path / "images").rename(tmp_path / "here")
    status, out, _ = checked(tmp_path, capsys, **study)
    assert status == 0 and "uncertain" not in out


def test_what_one_task_is_measured_on_does_not_answer_for_another(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of k-NN is chosen on held-out images; and the images are looked for once."""
    for name in ("cat", "dog"):
        put(tmp_path / "images" / name, 60)
    options = {"recipe": "evaluate", "init": "{pre}"}
    parts = {"pre": STUDY["parts"]["pre"]}
    for name in ("knn", "linear", "knn_again"):
        measures = {"probe.measures": [name.removesuffix("_again")], "data.validation": 0.1}
        parts[name] = {"tool": "evaluate", "options": options | measures}
    own = {"data.path": "{here}", "data.test": 0.1}
    study = {"options": own, "places": ["here"], "parts": parts, "report": {}}
    calls: list[str] = []
    load = sources.load

    def counted(*given: object, **named: object) -> sources.Splits:
        calls.append(f"{given} {named}")
        return load(*given, **named)

    monkeypatch.setattr(sources, "load", counted)
    here = f"here={tmp_path / 'images'}"
    status, out, lines = checked(tmp_path, capsys, here, **study)
    assert status == 0, lines
    found = [line.split("; on fewer")[0] for line in out.splitlines() if "uncertain" in line]
    assert "warning: part linear, arm a: held out: 11 images" in found
    assert not any("part knn" in line and "held out" in line for line in found)
    assert "learning rate of the linear probe is chosen on them" in out
    assert len(set(calls)) == len(calls)


def test_a_grid_whose_best_is_taken_holds_images_out(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """All of its runs were trained before that was said."""
    parts = {
        "pre": STUDY["parts"]["pre"],
        "tries": FIN | {"grid": {"optim.lr": [0.1, 0.2]}},
        "fin": FIN | {"best": {"of": "tries", "by": "accuracy"}},
    }
    _, _, lines = checked(tmp_path, capsys, options={"data.validation": 0}, parts=parts)
    assert "part tries, arm a" in lines[0] and "its best run is chosen on held-out" in lines[0]


def test_seeds_are_a_list_or_how_many(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """As `seeds=3` of the command line; 2 arms x 3 seeds."""
    status, out, _ = checked(tmp_path, capsys, seeds=3)
    rows = {line.split()[0]: line.split()[1] for line in out.splitlines() if line}
    assert (status, rows["pre"], rows["fin"]) == (0, "6", "6")


def test_an_error_of_yaml_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "made.yaml"
    path.write_text("title: x\nparts: [\n")
    with pytest.raises(UserError) as caught:
        study_tool.main([f"recipe={path}", "--check"])
    assert str(caught.value).startswith(f"{path}: ") and "at line 3" in str(caught.value)
    assert "unicode string" not in str(caught.value)


def test_an_arm_that_the_report_does_not_show_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    pre, fin = STUDY["parts"].values()
    pre = pre | {"by_arm": pre["by_arm"] | {"c": {"optim.lr": 0.3}}}
    fin = fin | {"by_arm": {"a": {}, "b": {}}}
    arms = {"a": "one", "b": "other", "c": "third"}
    changed = {"parts": {"pre": pre, "fin": fin}, "arms": arms}
    warning = "warning: arms c: in no part that the report shows (final, probes, extra)"
    status, out, _ = checked(tmp_path, capsys, **changed)
    assert status == 0 and warning in out


def test_arms_of_a_fine_tuning_that_compute_the_same_are_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    options = {"recipe": "finetune", "init": "scratch", "model": "vit_p8"}
    parts = {"fin": {"tool": "finetune", "options": options}}
    status, _, lines = checked(tmp_path, capsys, parts=parts)
    assert status == UserError.status
    assert lines[0].endswith("part fin, arm b: computes the very same as arm a; leave one out")


def test_arms_of_a_second_pre_training_differ_by_the_runs_that_they_start_from(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    more = {"tool": "pretrain", "options": {"recipe": "mpp", "init": "{pre}"}}
    parts = STUDY["parts"] | {"more": more}
    status, out, lines = checked(tmp_path, capsys, parts=parts)
    assert (status, lines) == (0, []) and "more            2" in out


def test_the_example_of_the_docs_has_no_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Of 30 images in folders by class."""
    for name in ("cat", "dog", "owl"):
        put(tmp_path / "images" / name, 10)
    given = [f"recipe={ROOT / 'docs/examples/three_arms.yaml'}", f"images={tmp_path / 'images'}"]
    assert study_tool.main([*given, "--check"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    warnings = [line for line in out.splitlines() if "warning" in line]
    assert warnings and all("; on fewer than 100 an accuracy" in line for line in warnings)


def test_times_are_measured_beside_the_check(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """--probe, which the check names, was no option of it."""
    options = {"data.size": 32, "model": "vit_p8", "optim.batch": 8}
    status, out, lines = checked(tmp_path, capsys, "--probe", options=options)
    assert (status, lines) == (0, []) and "measured here" in out


def test_arms_of_different_images_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Two folders without labels, of the same recipe, were one to it."""
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        for number in range(10):
            pixels = np.full((64, 64, 3), 8 * number, np.uint8)
            Image.fromarray(pixels).save(tmp_path / folder / f"{number}.png")
    given = {"a": {"data.path": str(tmp_path / "one")}, "b": {"data.path": str(tmp_path / "other")}}
    parts = {"pre": STUDY["parts"]["pre"] | {"by_arm": given}}
    options = {"eval.test": False, "data.validation": 0.2}
    status, _, lines = checked(tmp_path, capsys, parts=parts, options=options, report={})
    assert (status, lines) == (0, [])


def test_of_a_stand_in_for_first_weights_no_architecture_is_compared(
    capsys: pytest.CaptureFixture,
) -> None:
    """init= is a place that is not given yet, and scratch stands in its place."""
    assert study_tool.main(["recipe=study/further", "--check"]) == 0
    assert "warning" not in capsys.readouterr().out


def test_arms_that_test_other_weights_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """The last ones, or the best by held-out images."""
    options = {"recipe": "finetune", "init": "scratch", "model": "vit_p8"}
    arms = {"a": {}, "b": {"checkpoint.best": "accuracy"}}
    parts = {"fin": {"tool": "finetune", "options": options, "by_arm": arms}}
    status, _, lines = checked(tmp_path, capsys, parts=parts)
    assert (status, lines) == (0, [])


def test_arms_that_a_sweep_tells_apart_are_not_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """What `best` takes is not known yet; of two grids the one may be a part of the other."""
    options = {"recipe": "finetune", "init": "scratch", "model": "vit_p8"}
    sweep = {"tool": "finetune", "options": options, "seeds": [0]}
    sweep |= {"grid": {"optim.lr": [0.01, 0.03]}, "grid_by_arm": {"a": {"optim.lr": [0.03]}}}
    final = {"tool": "finetune", "options": options, "best": {"of": "sweep", "by": "accuracy"}}
    status, _, lines = checked(tmp_path, capsys, parts={"sweep": sweep, "fin": final})
    assert (status, lines) == (0, [])


def test_first_weights_that_are_not_given_yet_are_no_fresh_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    options = {"recipe": "finetune", "model": "vit_p8"}
    arms = {"a": {"init": "scratch"}, "b": {"init": "{init}"}}
    parts = {"fin": {"tool": "finetune", "options": options, "by_arm": arms}}
    status, _, lines = checked(tmp_path, capsys, parts=parts, places=["init"])
    assert (status, lines) == (0, [])


def test_a_part_has_the_arms_of_the_one_it_extends_below_its_own_options(tmp_path: Path) -> None:
    first = {"recipe": "finetune", "init": "scratch", "model": "vit_p8"}
    arms = {"a": {"optim.lr": 0.03}, "b": {"optim.lr": 0.3, "optim": {"momentum": 0.5}}}
    raw = STUDY | {
        "parts": {
            "fin": {"tool": "finetune", "options": first, "by_arm": arms},
            "short": {"extends": "fin", "options": {"optim.lr": 0.1}},
            "one": {"extends": "fin", "by_arm": {"b": {}}},
        }
    }
    parts = build(raw, "x").parts
    assert {arm: own["optim.lr"] for arm, own in parts["fin"].options.items()} == {
        "a": "0.03",
        "b": "0.3",
    }
    assert {arm: own["optim.lr"] for arm, own in parts["short"].options.items()} == {
        "a": "0.1",
        "b": "0.1",
    }
    assert parts["short"].options["b"]["optim.momentum"] == "0.5"
    assert list(parts["one"].options) == ["b"] and "optim.lr" not in parts["one"].options["b"]


def test_arms_that_sweep_the_same_are_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    sweep = {"tool": "pretrain", "options": {"recipe": "mpp"}, "grid": {"optim.lr": [0.1, 0.2]}}
    status, _, lines = checked(tmp_path, capsys, parts={"sweep": sweep}, report={})
    assert status == UserError.status
    assert "part sweep, arm b: computes the very same as arm a; leave one out" in lines[0]
