"""Panels of images."""

import numpy as np
import pytest

from ssl_vit.inspection import drawing


@pytest.mark.parametrize(("images", "sets"), [(1, 1), (3, 3), (9, 4)])
def test_there_is_a_title_for_each_column_that_has_images(images: int, sets: int) -> None:
    """Titles over empty columns, where there are fewer images than a row has room for."""
    image = np.zeros((images, 8, 8, 3), np.uint8)
    figure = drawing.panels([drawing.PanelGroup("run", {"image": image, "target": image})])
    titles = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert titles == ["image", "target"] * sets
