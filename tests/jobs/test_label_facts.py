"""Which names of folders may be no classes."""

from pathlib import Path

from helpers.images import images
from ssl_vit.data import sources
from ssl_vit.jobs.online import label_doubt
from ssl_vit.recipe.images import Data


def doubt(root: Path) -> str:
    return label_doubt(sources.load(Data(path=str(root))).train.whole())


def test_folders_of_a_few_images_may_be_no_classes(tmp_path: Path) -> None:
    """Of half of them: the median of 9, 4 and 2 is 4, that of 9, 5 and 2 is 5."""
    images(tmp_path / "few", ant=9, bee=4, cat=2)
    assert doubt(tmp_path / "few") == "half of them have at most 4 images"
    images(tmp_path / "enough", ant=9, bee=5, cat=2)
    assert doubt(tmp_path / "enough") == ""
