"""Predictions of a classifier: accuracies worked by hand, ImageNet-ReaL, the file of them."""

import json
from pathlib import Path

import numpy as np
import pytest

from helpers.disk import full_disk
from helpers.sources import noisy
from ssl_vit.errors import UserError
from ssl_vit.evaluation import classify
from ssl_vit.measurements import flat_name
from ssl_vit.recipe.records.run import Measurement


def predictions(label: list[int], top: list[list[int]]) -> classify.Predictions:
    index = np.arange(len(label))
    return classify.Predictions(index, np.array(label), np.array(top), index)


def counted(measured: list[Measurement]) -> dict[str, tuple[float, int | None]]:
    return {flat_name(one.key): (one.value, one.n) for one in measured}


def test_few_classes_have_no_top5_and_the_commonest_is_counted() -> None:
    predicted = predictions([0, 1, 1, -1], [[0, 1, 2], [2, 1, 0], [1, 0, 2], [0, 1, 2]])
    found = classify.accuracies(predicted, 3)
    assert counted(found) == {"top1": (2 / 3, 3), "majority_top1": (2 / 3, 3)}
    lists = predicted._replace(label=np.array([[2, 0, 2], [0, -2, -2], [-2, -2, -2], [2, 0, 1]]))
    assert classify.accuracies(lists._replace(label=lists.label * 0 - 1), 3) == []
    assert counted(classify.accuracies(lists, 3))["majority_top1"] == (
        1.0,
        3,
    )  # class 0, of each once


def test_predictions_on_a_full_disk_leave_no_half_of_them(tmp_path: Path) -> None:
    many_M = np.random.default_rng(0).integers(0, 1000, 5000)
    predicted = classify.Predictions(many_M, many_M, many_M[:, None], many_M)
    with full_disk(), pytest.raises(OSError, match="too large"):
        predicted.save(tmp_path / "predictions.npz", noisy(1000))
    assert not list(tmp_path.iterdir())


class Named:
    def name(self, row: int) -> str:
        return f"row {row} (val/ILSVRC2012_val_{50_000 - row:08d}.JPEG)"


def test_imagenet_real_by_hand(tmp_path: Path) -> None:
    seen: list[list[int]] = [[] for _ in range(50_000)]
    # of rows 0, 1, 2; nobody saw anything in row 3
    seen[49_999], seen[49_998], seen[49_997] = [3, 7], [1], [2]
    path = tmp_path / "real.json"
    path.write_text(json.dumps(seen))
    predicted = predictions([0, 0, 0, 0], [[7, 0], [0, 1], [2, 0], [5, 0]])
    found = classify.real_accuracy(predicted, Named(), str(path))  # type: ignore[arg-type]
    assert counted(found) == {"real": (2 / 3, 3)}
    path.write_text("[[1]]")
    for place, says in (
        (str(path), r"eval\.real=.*50,000 lists"),
        ("nowhere", "eval.real=nowhere"),
    ):
        with pytest.raises(UserError, match=says):
            classify.real_accuracy(predicted, Named(), place)  # type: ignore[arg-type]


def test_imagenet_real_refuses_classes_in_another_order(tmp_path: Path) -> None:
    """ReaL's numbers count ImageNet's synsets in their order. Folders with readable names, or a
    part of the classes, are numbered otherwise: the accuracy was then near 0."""
    path = tmp_path / "real.json"
    path.write_text(json.dumps([[number % 10] for number in range(50_000)]))
    rows = np.arange(20)
    label_N = (49_999 - rows) % 10
    same = predictions(label_N.tolist(), [[label] for label in label_N])
    found = classify.real_accuracy(same, Named(), str(path))  # type: ignore[arg-type]
    assert counted(found) == {"real": (1.0, 20)}
    turned = predictions((9 - label_N).tolist(), [[9 - label] for label in label_N])
    with pytest.raises(UserError, match=r"eval\.real=.*0 of 20 images"):
        classify.real_accuracy(turned, Named(), str(path))  # type: ignore[arg-type]
