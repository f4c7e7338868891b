"""Tables of a report in its files."""

from pathlib import Path

import pandas as pd
import pytest

import ssl_vit
from helpers.made_studies import FROZEN, Measured, alter, changed, counted, study, with_metric
from ssl_vit.lab import report, tables
from ssl_vit.lab.study.tasks import Task


@pytest.mark.parametrize("kind", ["object", "str"])
def test_names_are_no_numbers_whatever_type_texts_have(kind: str) -> None:
    """Names set as numbers: the type of texts is called str from pandas 3 on, object before."""
    frame = pd.DataFrame({"arm": pd.Series(["mpp"], dtype=kind), "n": [3], "mean": [0.5]})
    shown = tables.ReportTable(frame, "")
    assert report._count_label_columns(shown, tables.as_text(shown)) == 1


def test_differences_of_an_earlier_report_do_not_stay(tmp_path: Path) -> None:
    """A file of differences beside a report that compares nothing."""
    folder = study(tmp_path / "s", FROZEN, counted(metric="knn"))
    ssl_vit.report(folder)
    assert (folder / "differences.csv").exists()
    for path in folder.glob("probe-mae-*/environment.json"):
        alter(path, data={"train": "t", "validation": "v", "test": "others"})
    ssl_vit.report(folder)
    assert not (folder / "differences.csv").exists() and (folder / "results.csv").exists()


def measured(task):  # type: ignore[no-untyped-def]
    found = counted(metric="linear")(task)
    knn = float("nan") if (task.at["arm"], task.seed) == ("mae", 1) else 0.5
    few = {"few_shot_5": (0.5, "validation"), "knn": (knn, "test")}
    return found | few if task.run == "probe" else found


def test_n_is_of_the_metric_that_the_fewest_seeds_have(tmp_path: Path) -> None:
    """A mean of fewer seeds that stands under the n of another metric. And differences by other
    measures have tables of their own, but for what no run has measured."""
    content = changed(FROZEN, report__measures=["knn", "linear", "few_shot_1", "few_shot_5"])
    plain, every = (
        ssl_vit.report(study(tmp_path / name, one, measured)).tables
        for name, one in (("s", FROZEN), ("t", content))
    )
    found = plain["measured by probe"].frame
    assert found.set_index("arm")["n"].to_dict() == {"mpp": 3, "mae": 2}
    others = [f"differences by {one}" for one in ("linear probe", "5-shot (validation)")]
    assert [name for name in every if "differences" in name] == ["differences", *others]


def test_columns_whose_rows_are_of_different_images_are_named(tmp_path: Path) -> None:
    """One arm's k-NN was of 609 images and the other's of 500, as their recipes said, and nothing
    told why their pixels differed. Other places have images of their own."""

    def of_sizes(task: Task) -> Measured:
        name, split = ("probe_knn", "validation") if task.tool == "pretrain" else ("knn", "test")
        return {name: (0.5, split)}

    sizes = {size: {"pretrain": {"data.share": share}} for size, share in (("s", 0.5), ("l", 1))}
    runs = {name: one | {"over": ["arm", "size"]} for name, one in FROZEN["runs"].items()}
    folder = study(tmp_path / "s", changed(FROZEN, axes__size=sizes, runs=runs), of_sizes)

    def caption() -> str:
        return ssl_vit.report(folder).tables["measured by pretrain"].caption

    for path in folder.glob("pretrain-*-l-*"):  # another place
        alter(path / "environment.json", data={"train": "t", "validation": "others"})
        with_metric(path, "probe_knn", n=50)
    assert "different images" not in caption()
    for path in folder.glob("pretrain-mae-s-*"):
        with_metric(path, "probe_knn", n=300)
    assert "mpp 400, mae 300" in caption()
