"""Names of runs whose options give none."""

import json
from pathlib import Path

import ssl_vit
from helpers.options import PROBE, altered


def test_exports_of_two_runs_make_two_names(tmp_path: Path) -> None:
    """Both were called `init=export`, so that the second evaluation was refused."""
    names = set()
    for run in ("a", "b"):
        export = tmp_path / run / "export"
        export.mkdir(parents=True)
        config = {"architecture": "vit_tiny_patch16_224", "num_classes": 0, "pretrained_cfg": {}}
        (export / "config.json").write_text(json.dumps(config))
        (export / "model.safetensors").write_bytes(b"")
        names.add(ssl_vit.resolve(altered(PROBE, f"init={export}", "model=vit_ti16")).name)
    assert len(names) == 2
