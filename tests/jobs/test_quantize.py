"""`ssl-vit export quantize=int8`: written if the accuracy stays, and refused otherwise."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import ssl_vit
from helpers.exports import of_timm
from helpers.hub_runs import refused
from helpers.options import CLASSIFIER, TINY, altered
from helpers.runs import run
from ssl_vit.__main__ import main

SHORT = altered(TINY, "optim.steps=2", "optim.warmup=1", "eval.collapse=null")
INT8 = {"format": "onnx", "quantize": "int8"}
UNLABELLED = "accuracy not measured, because too few images have labels"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on images of three colours, which k-NN tells apart."""
    for module in ("onnxruntime", "onnxscript"):
        pytest.importorskip(module, reason="needs the extra [onnx]")
    folder = tmp_path_factory.mktemp("runs")
    noise = np.random.default_rng(0)
    for number, name in enumerate(("red", "green", "blue")):
        (folder / "photos" / name).mkdir(parents=True)
        for count in range(40):
            pixels = noise.integers(0, 100, (16, 16, 3), dtype=np.uint8)
            pixels[..., number] += 150
            Image.fromarray(pixels).save(folder / "photos" / name / f"{count}.png")
    words = altered(SHORT, f"data.path={folder}/photos", "data.validation=0.3", "data.test=0.1")
    return run([*words, f"out={folder}", "name=run"]).folder


def test_an_int8_model_is_measured_and_written(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    import onnxruntime

    out = ssl_vit.export(init=trained, out=tmp_path / "int8.onnx", **INT8)
    printed = capsys.readouterr().out
    assert "int8        k-NN 100.0% as float32 and 100.0% as int8 (+0.0 points" in printed
    plain = ssl_vit.export(init=trained, out=tmp_path / "float.onnx", format="onnx")
    assert out.stat().st_size < plain.stat().st_size
    encoder = ssl_vit.load_encoder(trained)
    image = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    assert json.loads(session.get_modelmeta().custom_metadata_map["preprocessing"])["std"]
    pixels = encoder.normalize(image).numpy()
    (features,) = session.run(["features"], {"pixels": pixels})
    similarity = torch.cosine_similarity(torch.from_numpy(features), encoder.feature(image))
    assert similarity.min() > 0.9
    assert str(tmp_path).encode() not in out.read_bytes()


def test_a_model_that_loses_too_much_is_refused_and_leaves_nothing(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    import onnx
    from onnxruntime import quantization

    def ruin(path: Path, out: Path, **_: Any) -> None:
        model = onnx.load(path)
        for tensor in model.graph.initializer:
            value = onnx.numpy_helper.to_array(tensor)
            if value.dtype == np.float32:
                tensor.CopyFrom(onnx.numpy_helper.from_array(0 * value, tensor.name))
        onnx.save(model, out)

    monkeypatch.setattr(quantization, "quantize_dynamic", ruin)
    words = [f"init={trained}", "format=onnx", "quantize=int8", f"out={tmp_path}/int8.onnx"]
    with pytest.raises(SystemExit) as stopped:
        main(["export", *words])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "max_drop=1: k-NN " in line and "Nothing was written" in line
    assert [*tmp_path.iterdir()] == []
    assert ssl_vit.export(init=trained, out=tmp_path / "x", max_drop=100, **INT8).exists()


@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["data.labels=false"], UNLABELLED),
        (["data.validation=0"], UNLABELLED),
        ([*CLASSIFIER, "supervised.hidden=false"], "int8        top-1 "),
    ],
)
def test_without_labels_the_outputs_are_compared_and_a_classifier_classifies(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = run([*altered(SHORT, *words), f"out={tmp_path}", "name=run"]).folder
    ssl_vit.export(init=folder, out=tmp_path / "int8.onnx", max_drop=50, **INT8)
    assert says in capsys.readouterr().out


def test_wrong_options_of_quantisation_are_one_line(tmp_path: Path) -> None:
    folder, out = of_timm(tmp_path / "export"), tmp_path / "out"
    export = {"init": folder, "out": out}
    assert "only for format=onnx" in refused(
        lambda: ssl_vit.export(**export, format="transformers", quantize="int8")
    )
    assert "without quantize=int8" in refused(
        lambda: ssl_vit.export(**export, format="onnx", max_drop=2)
    )
    assert "quantize=int4: " in refused(
        lambda: ssl_vit.export(**export, format="onnx", quantize="int4")
    )
    pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")
    assert "the run of this export is not known" in refused(
        lambda: ssl_vit.export(**export, **INT8)
    )
