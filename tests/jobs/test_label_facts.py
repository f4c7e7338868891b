"""Which names of folders may be no classes, and how many images an evaluation has of each class."""

from pathlib import Path

import pytest

from helpers.images import images
from ssl_vit.config.images import Data
from ssl_vit.data import sources
from ssl_vit.data.base import origin
from ssl_vit.jobs.label_facts import label_doubt, label_facts


def doubt(root: Path) -> str:
    return label_doubt(origin(sources.load(Data(path=str(root))).train))


@pytest.mark.parametrize(
    ("names", "doubted"),
    [
        (["2025-01-02", "2025-01-03"], True),
        (["2024", "2025"], True),
        (["20250102", "2025_01_03"], True),
        (["3 January 2025", "4th Feb 2025"], True),
        (["May", "June"], True),
        (["0", "1"], True),
        (["2025-01-02", "cat"], False),  # one class says that they are classes
        (["n01440764", "n01443537"], False),
        (["mayfly", "marten"], False),
        (["3d print", "2d print"], False),
    ],
)
def test_dates_and_numbers_may_be_no_classes(
    names: list[str], doubted: bool, tmp_path: Path
) -> None:
    images(tmp_path, **dict.fromkeys(names, 6))
    assert doubt(tmp_path) == ("their names are dates or numbers" if doubted else "")


def test_folders_of_a_few_images_may_be_no_classes(tmp_path: Path) -> None:
    """Of half of them: the median of 9, 4 and 2 is 4, that of 9, 5 and 2 is 5."""
    images(tmp_path / "few", ant=9, bee=4, cat=2)
    assert doubt(tmp_path / "few") == "half of them have at most 4 images"
    images(tmp_path / "enough", ant=9, bee=5, cat=2)
    assert doubt(tmp_path / "enough") == ""


def facts(root: Path, **changes: object) -> dict[str, object]:
    data = Data(path=str(root), **changes)
    return label_facts(sources.load(data, test=data.test != "test"), data)


def test_the_smallest_class_is_counted_as_an_evaluation_finds_it(tmp_path: Path) -> None:
    """Of 30 images 6 are held out to test on, two of each class, as Webster's method divides 20%
    of 10, 10 and 10; one of the other 24 is held out to choose on."""
    images(tmp_path, ant=10, bee=10, cow=10)
    found = facts(tmp_path)["label_counts"]
    assert found == {"images": 23, "smallest": 7}
    assert facts(tmp_path, test=0.2)["label_counts"] == found
    assert facts(tmp_path, test=0.2, labelled=0.5)["label_counts"] == found


def test_a_class_without_training_images_counts(tmp_path: Path) -> None:
    images(tmp_path, train__ant=5, train__bee=6, test__ant=1, test__bee=1)
    assert facts(tmp_path, validation=0)["label_counts"] == {"images": 11, "smallest": 5}
    found = facts(tmp_path, validation=0, classes=3)["label_counts"]
    assert found == {"images": 11, "smallest": 0}


def test_where_no_share_can_be_held_out_nothing_is_counted(tmp_path: Path) -> None:
    """Two groups, of which each is more than twice a fifth of the images."""
    images(tmp_path, _=20)
    rows = [f"{number}.png,{'ab'[number % 2]},{number // 10}" for number in range(20)]
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,label,site", *rows]))
    assert facts(tmp_path, group="site")["label_counts"] == {"images": 0, "smallest": 0}


def test_images_without_labels_have_no_facts_of_them(tmp_path: Path) -> None:
    images(tmp_path, ant=10, bee=10)
    assert facts(tmp_path, labels=False) == {}
