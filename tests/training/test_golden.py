"""Golden loss curves: a refactor leaves them as they are.
`PYTHONPATH=tests python tests/training/test_golden.py` writes them anew.

In the environment recorded in the file the losses are identical; elsewhere the first 20 steps agree
to 1e-4, of MoCo v3 the first 5: one more unit in the last place of its patch embeddings gives
losses that differ by 2e-5 after 6 to 17 steps and by 1e-3 soon after.
"""

import json
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.exports import of_timm
from helpers.options import ROOT, TINY, altered
from helpers.runs import rows, run
from ssl_vit.runs.environment import cpu_model

GOLDEN = ROOT / "tests" / "golden"
SHORT = altered(TINY, "optim.steps=40", "log.every=1")
PLAIN = [*SHORT, "eval.collapse=null"]
CURVES = {
    "mpp": SHORT,
    "mpp_grid_color": [*SHORT, "target=grid_color"],
    "mpp_pixels": [*SHORT, "target=pixels"],
    "mpp_wsd": [*SHORT, "optim.schedule=wsd"],
    "mpp_hog": altered(SHORT, "target=hog", "model.patch=8"),
    "mpp_teacher": [*SHORT, "target=teacher"],
    "simmim": altered(SHORT, "recipe=simmim"),
    "mae": altered(SHORT, "recipe=mae"),
    "moco_v3": altered(SHORT, "recipe=moco_v3"),
    "dino": altered(PLAIN, "recipe=dino", "views.local_size=8", "dino.prototypes=32"),
    "ibot": altered(PLAIN, "recipe=ibot", "views.local_size=8", "ibot.prototypes=32"),
    "ijepa": altered(PLAIN, "recipe=ijepa"),
    "lejepa": altered(PLAIN, "recipe=lejepa", "views.local_size=8", "lejepa.slices=32"),
    "distill": altered(PLAIN, "recipe=distill"),
    "supervised": altered(SHORT, "recipe=supervised"),
    "joint": altered(SHORT, "recipe=joint"),
}
AGREE = {"moco_v3": 5}  # steps; of others 20


def environment() -> dict[str, str]:
    return {
        "torch": torch.__version__.split("+")[0],
        "cpu": f"{cpu_model()} {torch.backends.cpu.get_cpu_capability()}",
        "machine": platform.machine(),
    }


def losses(name: str, folder: Path) -> list[float]:
    words = [*CURVES[name], f"out={folder}", f"name={name}"]
    if name == "distill":
        teacher = of_timm(folder / "teacher", embed_dim=48, num_heads=3)
        words.append(f"distill.teacher={teacher}")
    return [row["loss"] for row in rows(run(words).folder)]


@pytest.mark.parametrize("name", CURVES)
def test_the_loss_curve_is_the_golden_one(name: str, tmp_path: Path) -> None:
    golden: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    measured = losses(name, tmp_path)
    steps = AGREE.get(name, 20)
    assert measured[:steps] == pytest.approx(golden["losses"][:steps], rel=1e-4)
    if golden["environment"] == environment():
        assert measured == golden["losses"]


if __name__ == "__main__":
    for name in sys.argv[1:] or CURVES:
        with tempfile.TemporaryDirectory() as folder:
            curve = {"environment": environment(), "losses": losses(name, Path(folder))}
        (GOLDEN / f"{name}.json").write_text(json.dumps(curve, indent=1) + "\n")
