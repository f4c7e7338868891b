"""Names of runs whose options give none."""

from pathlib import Path

import ssl_vit
from helpers.options import PROBE, altered


def test_exports_of_two_runs_make_two_names(tmp_path: Path) -> None:
    """Both were called `init=export`, so that the second evaluation was refused."""
    names = set()
    for run in ("a", "b"):
        ssl_vit.pretrain(
            ["recipe=mpp", "model.width=32", "model.depth=1", "model.heads=2", "data.size=16"],
            optim={"steps": 1, "batch": 4, "warmup": 0},
            model={"patch": 4, "mlp": 32},
            eval={"knn": False, "images": 4},
            compute={"compile": False},
            out=tmp_path,
            name=run,
        )
        names.add(ssl_vit.resolve(altered(PROBE, f"init={tmp_path}/{run}/export")).name)
    assert len(names) == 2
