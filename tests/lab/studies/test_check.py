"""tools/study.py --check: every mistake of a study's file at once, or its tasks and their cost."""

from pathlib import Path

import pytest
import yaml

from ssl_vit.errors import UserError
from ssl_vit.lab import study_tool

STUDY = {
    "title": "made up",
    "arms": {"a": "one", "b": "other"},
    "parts": {
        "pre": {
            "tool": "pretrain",
            "options": {"recipe": "mpp", "optim.steps": 20, "optim.warmup": 2},
            "by_arm": {"a": {"optim.lr": 0.1}, "b": {"optim.lr": 0.2}},
        },
        "fin": {"tool": "finetune", "options": {"recipe": "finetune", "init": "{pre}"}},
    },
    "report": {"final": "fin", "baseline": "a", "candidate": "b"},
}


def checked(
    tmp_path: Path, capsys: pytest.CaptureFixture, *options: str, **changed: object
) -> tuple[int, str, list[str]]:
    path = tmp_path / "made.yaml"
    path.write_text(yaml.safe_dump(STUDY | changed))
    status = study_tool.main([f"recipe={path}", f"out={tmp_path / 'runs'}", *options, "--check"])
    assert not (tmp_path / "runs").exists()
    out, err = capsys.readouterr()
    return status, out, err.splitlines()


def test_mistakes_of_keys_parts_and_report_are_said_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    parts = STUDY["parts"] | {
        "fin": {"tool": "finetune", "options": {"recipe": "finetune", "init": "{pree}"}},
        "odd": {"tool": "finetun"},
    }
    status, out, lines = checked(
        tmp_path,
        capsys,
        seedz=[1],
        parts=parts,
        report={"final": "fin", "baseline": "a", "candidate": "c"},
    )
    assert status == UserError.status and out == ""
    wanted = (
        "unknown key seedz; did you mean seeds?",
        "part odd: tool=finetun: unknown; did you mean finetune?",
        "part fin: {pree}: no such part or place; did you mean pre?",
        "report: candidate: unknown c; choices: a, b",
    )
    assert len(lines) == len(wanted) + 1 and lines[-1] == "4 mistakes; nothing was started"
    for line, text in zip(lines, wanted, strict=False):
        assert line.startswith("error: ") and text in line


def test_mistakes_of_options_are_said_of_every_arm_and_once_for_all_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    arms = {"a": {"optim.lrr": 0.1}, "b": {"optim.lr": -1}}
    parts = STUDY["parts"] | {"pre": STUDY["parts"]["pre"] | {"by_arm": arms}}
    status, _, lines = checked(tmp_path, capsys, parts=parts, seeds=[0, 1, 2])
    assert status == UserError.status
    assert lines[0].startswith("error: part pre, arm a: unknown key optim.lrr")
    assert lines[1].startswith("error: part pre, arm b: optim.lr=-1")
    assert lines[2:] == ["2 mistakes; nothing was started"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"seeds": [10**22]}, "expected different whole numbers, each of 64 bits"),
        ({"report": STUDY["report"] | {"paper": {"a": True}}}, "paper: a: True: expected a number"),
        ({"report": STUDY["report"] | {"differs": [1]}}, "differs: expected texts"),
        ({"report": STUDY["report"] | {"pairs": "a:b"}}, "report: pairs: expected a list"),
        (
            {"parts": STUDY["parts"] | {"p" * 260: STUDY["parts"]["pre"]}},
            "the name of its run is too long",
        ),
    ],
)
def test_what_a_run_would_refuse_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture, changed: dict[str, object], says: str
) -> None:
    try:
        status, _, lines = checked(tmp_path, capsys, **changed)
    except UserError as error:
        status, lines = UserError.status, [str(error)]
    assert status == UserError.status and says in lines[0]
    assert lines[0].count("report:") < 2


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
    assert "no such file or folder" in lines[0] and len(lines) == 3


def test_a_sweep_is_checked_too(capsys: pytest.CaptureFixture) -> None:
    options = ["recipe=mpp", "sweep", "optim.lr=0.1,-1", "--check"]
    assert study_tool.main(options) == UserError.status
    assert "arm lr=-1.0: optim.lr=-1.0" in capsys.readouterr().err
