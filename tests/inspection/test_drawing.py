"""Panels of images."""

import numpy as np
import pytest

from ssl_vit.inspection import drawing


@pytest.mark.parametrize(("images", "sets"), [(1, 1), (3, 3), (5, 4), (9, 4)])
def test_there_is_a_title_for_each_column_that_has_images(images: int, sets: int) -> None:
    """Titles over empty columns, where there are fewer images than a row has room for."""
    image = np.zeros((images, 8, 8, 3), np.uint8)
    figure = drawing.panels([drawing.PanelGroup("run", {"image": image, "target": image})])
    titles = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert titles == ["image", "target"] * sets


def test_tiles_are_rows_and_columns_with_a_gap_between_them() -> None:
    tile_RCHW = np.arange(1, 5).reshape(2, 2, 1, 1).repeat(2, axis=3)
    assert drawing.join_tiles(tile_RCHW, 0).tolist() == [[1, 1, 0, 2, 2], [0] * 5, [3, 3, 0, 4, 4]]
