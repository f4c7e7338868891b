"""A damaged file among the images that are measured: every place gives the number of the others."""

import json
from pathlib import Path

import numpy as np
import pytest

from helpers.launching import launch_ranks, outcome
from helpers.measurements import by_name
from helpers.options import SHORT, TINY, altered
from helpers.runs import result
from helpers.tables import broken, image, table
from ssl_vit.jobs import cli

HELD_OUT, TESTED = 23, 11  # images, one of which is damaged
WORDS = altered(TINY, *SHORT, "data.validation=validation", "eval.every=1", "log.every=1")
WORDS += ["probe.every=1", "probe.measures=[knn]", "probe.neighbors=2"]


@pytest.fixture
def images(tmp_path: Path) -> str:
    for name, first, count in (("train", 0, 24), ("validation", 100, HELD_OUT), ("test", 200, 11)):
        content = [image(number) for number in range(first, first + count)]
        if name != "train":
            content[count // 2] = broken(count)
        labels = [number % 2 for number in range(count)]
        (tmp_path / "images").mkdir(exist_ok=True)
        table(tmp_path / "images" / f"{name}.parquet", labels, content)
    return f"data.path={tmp_path}/images"


@pytest.mark.parametrize("processes", [1, 2])
def test_held_out_images_and_probes_count_each_readable_image_once(
    processes: int, images: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """The loss counted the image after the damaged one twice, and the probes during training counted
    the damaged one."""
    words = [*WORDS, images, f"out={tmp_path}", "name=run"]
    if processes == 1:
        cli.pretrain(words)
        out = capsys.readouterr().out
    else:
        statuses, outputs = outcome(launch_ranks(2, "tools/pretrain.py", *words))
        assert statuses == [0, 0], outputs
        out = outputs[0]
    readable = HELD_OUT - 1
    assert out.count(f"(n = {readable} images)") >= 4 and f"n = {HELD_OUT}" not in out
    assert f"held-out images: {readable}." in out
    assert f"{readable} held out" in out and f"k-NN of {readable} labelled held-out images" in out
    found = result(tmp_path / "run")
    counts = {name: measurement["n"] for name, measurement in by_name(found).items()}
    assert counts["corrupted"] == counts["probe_knn"] == readable
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert found["measured_on"] == environment["measured_on"] == {"validation": readable}


def test_fine_tuning_and_evaluation_count_each_readable_image_once(
    images: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """The prediction of the next image stood under the damaged one's name."""
    cli.pretrain([*WORDS, images, f"out={tmp_path}", "name=run"])
    tune = ["recipe=finetune", f"init={tmp_path}/run", images, f"out={tmp_path}", "name=tuned"]
    cli.finetune([*altered(tune, *SHORT), "data.size=16", "data.validation=validation"])
    tuned = result(tmp_path / "tuned")
    assert by_name(tuned)["top1"]["n"] == TESTED - 1
    assert tuned["measured_on"] == {"validation": HELD_OUT - 1, "test": TESTED - 1}
    predicted, damaged = np.load(tmp_path / "tuned" / "predictions.npz"), TESTED // 2
    readable = [row for row in range(TESTED) if row != damaged]
    assert predicted["index"].tolist() == readable
    assert predicted["image"].tolist() == [f"row {row}" for row in readable]
    for text in (capsys.readouterr().out, (tmp_path / "tuned" / "log.txt").read_text()):
        assert text.count(f"a test image is left out: row {damaged}: ") == 1
    measures = ["probe.measures=[knn,linear,few_shot,top1]", "probe.shots=[1]", "probe.steps=2"]
    given = [
        "recipe=evaluate",
        f"init={tmp_path}/tuned",
        images,
        f"out={tmp_path}",
        "name=measured",
    ]
    cli.evaluate([*given, *measures, "probe.neighbors=2", "data.validation=validation"])
    measured = result(tmp_path / "measured")
    counts = {name: measurement["n"] for name, measurement in by_name(measured).items()}
    assert set(counts.values()) == {TESTED - 1}, counts
    assert measured["measured_on"]["test"] == TESTED - 1
