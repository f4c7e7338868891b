"""What an evaluation counts."""

from pathlib import Path

import ssl_vit
from helpers.options import PROBE, SHORT, TINY, altered


def test_images_of_the_head_are_counted_beside_those_of_probes(tmp_path: Path) -> None:
    """Beside k-NN the head's pass over the test images was left out of images and exaFLOP."""
    words = altered(TINY, *SHORT, "recipe=supervised", "eval.test=false", f"out={tmp_path}")
    ssl_vit.pretrain([*words, "name=run"])
    images = {}
    for measures in ("[knn]", "[knn,top1]"):
        options = altered(PROBE, f"init={tmp_path}/run", f"probe.measures={measures}")
        found = ssl_vit.evaluate([*options, f"out={tmp_path}", f"name={len(measures)}"])
        images[measures] = found.images
        tested = found.metrics["knn"].n
    assert images["[knn,top1]"] - images["[knn]"] == tested
