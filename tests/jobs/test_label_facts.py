"""Which names of folders may be no classes."""

from pathlib import Path

import pytest

from helpers.images import images
from ssl_vit.data import sources
from ssl_vit.jobs.label_facts import label_doubt
from ssl_vit.recipe.images import Data


def doubt(root: Path) -> str:
    return label_doubt(sources.load(Data(path=str(root))).train.whole())


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
