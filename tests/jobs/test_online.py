"""Which names of folders may be no classes, and what a run says of them."""

import json
from pathlib import Path

import pytest

from helpers.images import images
from helpers.options import SHORT, TINY, altered
from helpers.runs import run
from ssl_vit.data import run_splits
from ssl_vit.jobs.online import label_doubt
from ssl_vit.recipe.images import Data


def doubt(root: Path) -> str:
    return label_doubt(run_splits.load(Data(path=str(root))).train.whole())


def test_folders_of_a_few_images_may_be_no_classes(tmp_path: Path) -> None:
    """Of half of them: the median of 9, 4 and 2 is 4, that of 9, 5 and 2 is 5."""
    images(tmp_path / "few", ant=9, bee=4, cat=2)
    assert doubt(tmp_path / "few") == "half of them have at most 4 images"
    images(tmp_path / "enough", ant=9, bee=5, cat=2)
    assert doubt(tmp_path / "enough") == ""


def test_years_and_dates_are_no_classes(tmp_path: Path) -> None:
    """k-NN was measured by the years of photographs, with a verdict."""
    images(tmp_path / "photos", **{"2024": 9, "2025-01-07": 9})
    assert "years or dates" in doubt(tmp_path / "photos")
    images(tmp_path / "numbers", **{"2024": 9, "12": 9})
    assert doubt(tmp_path / "numbers") == ""


def test_an_image_that_probes_leave_out_is_named(tmp_path: Path) -> None:
    """The next one stood in its place, with its label, and nothing was said."""
    images(tmp_path / "IMAGES", a=60, b=60)
    for name in ("a", "b"):
        (tmp_path / "IMAGES" / name / "broken.png").write_bytes(b"no image")
    more = ("eval.knn=true", "data.validation=0.3", "data.unreadable=0.5")
    words = [f"data.path={tmp_path}/IMAGES", f"out={tmp_path}", "name=run", "eval.every=2", *more]
    done = run(altered(TINY, *SHORT, *words, "eval.images=100"))
    text = done.log.read_text()
    assert text.count("an image is left out of the probes: ") == 2


@pytest.mark.parametrize(
    ("count", "more", "says"),
    [
        (15, [], "labels: names of folders, 2 classes: a, b; data.labels=false"),
        (15, ["data.labels=false", "data.test=0.2"], "labels: none, data.labels=false"),
        (4, [], "half of them have at most 4 images"),
    ],
)
def test_a_run_says_what_it_takes_for_labels_and_records_none_that_it_does_not_learn(
    count: int, more: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    images(tmp_path / "IMAGES", a=count, b=count)
    own = [f"data.path={tmp_path}/IMAGES", f"out={tmp_path}", "name=run", "eval.every=2", *more]
    folder = run(altered(TINY, *SHORT, *own)).folder
    assert says in capsys.readouterr().out
    assert json.loads((folder / "environment.json").read_text())["classes"] == []
