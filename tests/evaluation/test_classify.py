"""What is counted of a classifier's test images."""

import json
from pathlib import Path

import numpy as np

from ssl_vit.evaluation import classify


class Named:
    def name(self, row: int) -> str:
        return f"val/ILSVRC2012_val_{row + 1:08d}.JPEG"


def test_imagenet_real_leaves_out_an_image_that_cannot_be_read(tmp_path: Path) -> None:
    """It counted the prediction for the image that stood in its place: a wrong accuracy."""
    path = tmp_path / "real.json"
    path.write_text(json.dumps([[3], [4], *([] for _ in range(49_998))]))
    predicted = classify.Predictions(
        np.arange(2),
        np.array([3, -1]),
        np.array([[3, 0], [0, 1]]),  # the second one is unreadable
    )
    assert classify.real_accuracy(predicted, Named(), str(path)) == {"real": (1.0, 1)}  # type: ignore[arg-type]
