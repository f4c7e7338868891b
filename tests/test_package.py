"""The package as others use it: `import ssl_vit`, `python -m ssl_vit`, and the example notebook."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ssl_vit
from helpers.hub_runs import refused
from helpers.launching import python
from helpers.options import ROOT, TINY, altered
from ssl_vit.__main__ import TOOLS

SHORT = altered(TINY, "optim.steps=4", "optim.warmup=1")


def test_the_interface_is_imported_when_it_is_used() -> None:
    code = (
        "import sys, ssl_vit; assert set(ssl_vit.__all__) <= set(dir(ssl_vit));"
        "assert 'torch' not in sys.modules;"
        "ssl_vit.resolve('recipe=mpp'); assert 'torch' not in sys.modules"
    )
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(getattr(ssl_vit, name).__doc__ for name in ssl_vit.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = ssl_vit.nothing


def test_a_run_from_its_options_to_its_encoder(tmp_path: Path) -> None:
    """Pre-training, the run folder, and the encoder, whose features are those of timm's export."""
    import timm
    import torch

    recipe = ssl_vit.resolve([*SHORT, f"out={tmp_path}", "name=run"])
    before = ssl_vit.resolve([*SHORT, f"out={tmp_path}", "name=run"])
    result = ssl_vit.pretrain(recipe)
    assert recipe == before  # a run fills in its own copy
    run = ssl_vit.load_run(tmp_path / "run")
    assert result["steps"] == 4
    assert result.content() == {"folder": str(run.folder), **run.result().content()}
    assert run.result().metrics["loss"].value == result.metrics["loss"].value
    assert ssl_vit.pretrain([*SHORT, f"out={tmp_path}", "name=run"]) == result
    assert run.recipe.optim.steps == 4
    assert run.rows()[-1]["step"] == 4

    exported = timm.create_model(f"local-dir:{run.export}", pretrained=True).eval()
    image = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    for place in (run.folder, run.export):
        encoder = ssl_vit.load_encoder(place)
        assert not encoder.training
        with torch.no_grad():
            torch.testing.assert_close(encoder.feature(image), exported(encoder.normalize(image)))
    larger = ssl_vit.load_encoder(run.folder, "data.size=32")
    assert larger.feature(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "token").shape == (1, 32)
    fresh = ssl_vit.load_encoder("scratch", {"model": "vit_n8"})
    assert fresh.feature(torch.zeros(1, 3, 224, 224, dtype=torch.uint8)).shape == (1, fresh.width)


def test_mistakes_of_the_interface_are_user_errors(tmp_path: Path) -> None:
    assert "recipe.yaml" in refused(ssl_vit.load_run, tmp_path)
    assert "init=" in refused(ssl_vit.load_encoder, tmp_path)
    assert "init= is missing" in refused(ssl_vit.finetune, "recipe=finetune")


def test_every_tool_is_a_command_of_the_package() -> None:
    assert {path.stem for path in (ROOT / "tools").glob("*.py")} == TOOLS.keys()
    done = python("-m", "ssl_vit", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"  {name} " in done.stdout for name in TOOLS)
    wrong = python("-m", "ssl_vit", "pretain", "recipe=mpp")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "did you mean pretrain?" in wrong.stderr


def test_a_child_process_is_this_package_whatever_the_working_directory_holds(
    tmp_path: Path,
) -> None:
    """A module there, or another ssl_vit, does not take the place of this one."""
    from ssl_vit.formatting import process_command, process_environment

    (tmp_path / "ssl_vit").mkdir()
    for name in ("json.py", "ssl_vit/__init__.py", "ssl_vit/__main__.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong module')")
    done = subprocess.run(
        process_command("study", "--help"),
        cwd=tmp_path,
        env=process_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "wrong module" not in done.stderr
    assert "Traceback" not in done.stderr


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code cells in one process; after the cell of its parameters runs of seconds are set."""
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "docs" / "example.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    names: dict = {}
    values: list = []
    for cell in cells:
        body = ast.parse("".join(cell["source"])).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        if last is not None:
            values.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
        if "parameters" in cell["metadata"].get("tags", []):
            short = {"steps": 2, "warmup": 1, "batch": 16}
            names["PRETRAIN"] |= {"optim": short, "eval.knn": False, "compute.threads": 1}
            names["FINETUNE"] |= {"optim": short, "compute.threads": 1}
            names |= {"DRAWINGS": 200, "SEEDS": [1], "RATES": [0.03]}
    assert names["result"].recipe == ssl_vit.load_run("runs/mae").result().recipe
    assert ssl_vit.load_run("runs/mae").recipe.data.augment == "lighter"
    assert "3 independent seeds" in str(names["report"])  # the study has run, and compares
    assert len(names["similar"].nearest) == 5 and names["similar"].nearest[0].similarity > 0.999
    assert {"loss", "accuracy", "chance"} <= names["own"].metrics.keys()
    shown = [value._repr_html_() for value in values if hasattr(value, "_repr_html_")]
    assert len(shown) == 3 and all("<iframe" in text for text in shown)


def test_the_metrics_of_the_page_about_python_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line of the example reads a metric that the run has, and there are no others to name."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "python.md").read_text()
    (block,) = (one for one in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "knn" in one)
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (300, 32, 32, 3), dtype=np.uint8)
    photos = [(image, "ab"[row % 2]) for row, image in enumerate(pixels)]
    names: dict = {"ssl_vit": ssl_vit, "photos": photos}
    exec(block, names)
    runs = [names[name] for name in ("result", "measured", "tuned")]
    assert [{"probe_knn", "knn", "top1"} & run.metrics.keys() for run in runs] == [
        {"probe_knn"},
        {"knn"},
        {"top1"},
    ]


def test_the_page_about_python_is_made_from_the_code() -> None:
    text = (ROOT / "docs" / "python.md").read_text()
    command = [sys.executable, "docs/make_reference.py", "python"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert text == done.stdout, "python docs/make_reference.py python > docs/python.md"
    assert all(f"### {name}\n" in text for name in ssl_vit.__all__ if name[0].islower())
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (same,) = (block for block in blocks if "assert" in block)
    exec(same, {})
