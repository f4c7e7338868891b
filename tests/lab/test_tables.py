"""Tables of a report in its files."""

from pathlib import Path

import pandas as pd
import pytest

from helpers.made_studies import FROZEN, Measured, alter, changed, counted, study, with_metric
from ssl_vit.lab import report, results, tables, verdict
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
    report.write(folder)
    assert (folder / "differences.csv").exists()
    for path in folder.glob("probe-mae-*/environment.json"):
        alter(path, data={"train": "t", "validation": "v", "test": "others"})
    report.write(folder)
    assert not (folder / "differences.csv").exists() and (folder / "results.csv").exists()


def measured(task):  # type: ignore[no-untyped-def]
    found = counted(metric="linear")(task)
    knn = float("nan") if (task.at["arm"], task.seed) == ("mae", 1) else 0.5
    few = {"few_shot_5": (0.5, "validation"), "knn": (knn, "test")}
    return found | few if task.run == "probe" else found


def test_n_is_of_the_metric_that_the_fewest_seeds_have(tmp_path: Path) -> None:
    """A mean of fewer seeds that stands under the n of another metric."""
    found = results.load(study(tmp_path / "s", FROZEN, measured))
    frame = tables.tables(found, verdict.decide_claims(found))["measured by probe"].frame
    assert frame.set_index("arm")["n"].to_dict() == {"mpp": 3, "mae": 2}


def test_columns_whose_rows_are_of_different_images_are_named(tmp_path: Path) -> None:
    """One arm's k-NN was of 609 images and the other's of 500, as their recipes said, and nothing
    told why their pixels differed. Other places have images of their own."""

    def of_sizes(task: Task) -> Measured:
        return (
            {"probe_knn": (0.5, "validation")}
            if task.tool == "pretrain"
            else {"knn": (0.5, "test")}
        )

    sizes = {size: {"pretrain": {"data.share": share}} for size, share in (("s", 0.5), ("l", 1))}
    runs = {name: one | {"over": ["arm", "size"]} for name, one in FROZEN["runs"].items()}
    folder = study(tmp_path / "s", changed(FROZEN, axes__size=sizes, runs=runs), of_sizes)

    def caption() -> str:
        found = results.load(folder)
        return tables.tables(found, verdict.decide_claims(found))["measured by pretrain"].caption

    for path in folder.glob("pretrain-*-l-*"):  # another place
        alter(path / "environment.json", data={"train": "t", "validation": "others"})
        with_metric(path, "probe_knn", n=50)
    assert "different images" not in caption()
    for path in folder.glob("pretrain-mae-s-*"):
        with_metric(path, "probe_knn", n=300)
    assert "mpp 400, mae 300" in caption()


def test_differences_by_other_measures_have_tables_of_their_own(tmp_path: Path) -> None:
    """What no run has measured is left out."""
    content = changed(FROZEN, report__measures=["knn", "linear", "few_shot_1", "few_shot_5"])
    found = results.load(study(tmp_path / "s", content, measured))
    every = tables.tables(found, verdict.decide_claims(found)).items()
    names = [name for name, _ in every if "differences" in name]
    others = [f"differences by {one}" for one in ("linear probe", "5-shot (validation)")]
    assert names == ["differences", *others]


def test_losses_have_the_digits_that_tell_them_apart() -> None:
    """0.87 beside its baseline's 0.87, where one was below the other."""
    frame = pd.DataFrame({"loss": [0.8702], "loss sd": [0.0035], "k-NN, %": [19.666]})
    shown = tables.ReportTable(frame, "", losses=frozenset({"loss", "loss sd"}))
    assert tables.as_text(shown).to_dict("records") == [
        {"loss": "0.8702 ± 0.0035", "k-NN, %": "19.67"}
    ]
