"""Every task of the studies in recipes/study/ is a recipe that can be run."""

from pathlib import Path

import pytest

from helpers.options import ROOT
from ssl_vit.evaluation.vtab import tasks
from ssl_vit.lab.studies.read_study import read
from ssl_vit.lab.studies.request import parse_request
from ssl_vit.lab.studies.task_recipes import check


@pytest.mark.parametrize(
    "study", sorted((ROOT / "recipes" / "study").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_task_of_a_study_resolves(study: Path, tmp_path: Path) -> None:
    folders = {place: tmp_path / place for place in read(study).places}
    for folder in folders.values():
        folder.mkdir()
    if "init" in folders:
        folders["init"] = Path("scratch")
    if read(study).benchmark:
        for task in tasks():
            (folders["data"] / task / "final").mkdir(parents=True)
            (folders["data"] / task / "tune").mkdir()
    places = [f"{place}={folder}" for place, folder in folders.items()]
    request = parse_request([f"recipe=study/{study.stem}", *places])
    check(request.study, request.plan)
