"""Whether a run's folder holds the run that a study plans."""

import json
import shutil
from pathlib import Path

import pytest

from helpers import made_studies
from ssl_vit.lab.study import launch, record
from ssl_vit.recipe.parsing import flatten, load_yaml
from ssl_vit.runs import identity
from ssl_vit.runs.identity import written_hash


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return made_studies.study(tmp_path / "s", made_studies.TUNED, made_studies.counted())


def why(folder: Path, name: str, **options: float) -> str:
    tasks = record.read(folder).by_name
    planned, undecided = launch.planned_options(tasks[name], tasks, folder)
    values = tasks[name].values | {key.replace("__", "."): one for key, one in options.items()}
    return identity.why_not_planned(folder / name, values, planned, undecided)


def trained_with(run: Path, old: str, new: str) -> None:
    """The run with another value in its recipe, as if it was made so."""
    path = run / "recipe.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    made_studies.alter(run / "result.json", recipe=written_hash(flatten(load_yaml(path))))


def test_a_run_is_the_planned_one_finished_or_not(made: Path) -> None:
    assert why(made, "final-mpp-1") == ""
    assert "optim.lr (" in why(made, "final-mpp-1", optim__lr=0.5)
    (made / "final-mpp-1" / "result.json").unlink()
    assert why(made, "final-mpp-1") == ""
    assert "optim.lr (" in why(made, "final-mpp-1", optim__lr=0.5)
    (made / "final-mpp-1" / "metrics.jsonl").unlink()
    assert why(made, "final-mpp-1", optim__lr=0.5) == ""  # as for a single run: none has begun
    shutil.rmtree(made / "final-mpp-1")
    assert why(made, "final-mpp-1", optim__lr=0.5) == ""  # nothing is there


def test_a_value_that_the_study_names_no_more_differs_also_where_the_weights_are_gone(
    made: Path,
) -> None:
    trained_with(made / "final-mpp-1", "clip: 1.0", "clip: 2.0")
    says = "recipe.yaml differs from the plan: optim.clip (2.0 there, 1.0 here)"
    assert why(made, "final-mpp-1") == says
    for seed in range(3):
        shutil.rmtree(made / f"pretrain-mpp-{seed}")
    assert why(made, "final-mpp-1") == says
    assert why(made, "final-mpp-0") == ""


def test_weights_that_are_gone_are_compared_by_their_names(made: Path) -> None:
    for arm in ("mpp", "mae"):
        shutil.rmtree(made / f"pretrain-{arm}-1")
    plan = json.loads((made / "study.json").read_text())
    (task,) = [one for one in plan["tasks"] if one["name"] == "final-mpp-1"]
    task["options"]["init"] = task["options"]["init"].replace("-mpp", "-mae")
    (made / "study.json").write_text(json.dumps(plan))
    assert why(made, "final-mae-1") == ""
    assert why(made, "final-mpp-1").startswith(
        "the initial weights come from init=pretrain-mpp-1 and"
    )
