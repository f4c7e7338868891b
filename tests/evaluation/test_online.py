"""Probes while pre-training: what they say, of which labels, and that training does not notice
them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from helpers.images import images
from helpers.measurements import by_name
from helpers.options import SHORT, TINY, altered
from helpers.resolving import resolve
from helpers.runs import Killed, run
from helpers.tables import TRAIN, image, table
from ssl_vit import rng
from ssl_vit.data import loaders, run_splits
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.data.batching import Batch
from ssl_vit.errors import UserError
from ssl_vit.evaluation import online
from ssl_vit.evaluation.online import OnlineProbes
from ssl_vit.jobs import finish
from ssl_vit.models import encoder, weights
from ssl_vit.recipe.init_source import InitSource
from ssl_vit.recipe.schema import Data, Probe
from ssl_vit.runs.folder import Run
from ssl_vit.training.distributed import WatchedAccelerator

PROBED = [
    *("probe.every=4", "probe.images=300", "probe.shots=[1]", "probe.steps=10"),
    *("probe.neighbors=5", "eval.images=200", "eval.knn=true"),
]


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run([*altered(TINY, *PROBED), f"out={tmp_path_factory.mktemp('runs')}", "name=probed"])


@pytest.mark.parametrize("more", [[], ["recipe=supervised", "optim.dropout=0.2"]])
def test_training_does_not_notice_the_probes(tiny: list[str], probed: Run, more: list[str]) -> None:
    plain = run(altered(tiny, *more, "eval.images=200", "name=plain"))
    other = run(altered(tiny, *more, *PROBED, "name=probed")) if more else probed
    rows = [
        [(row["step"], row["loss"], row["grad_norm"]) for row in one.rows() if "loss" in row]
        for one in (plain, other)
    ]
    assert rows[0] == rows[1]
    files = [(one.export / "model.safetensors").read_bytes() for one in (plain, other)]
    assert files[0] == files[1]
    seen = [row["step"] for row in other.rows() if "probe/knn" in row]
    assert seen == [4, 8, 12] and not any("probe/knn" in row for row in plain.rows())


def test_what_they_say_is_what_scikit_learn_says_of_the_export(probed: Run) -> None:
    result = probed.result()
    assert result is not None
    recipe, splits = probed.recipe, run_splits.load(probed.recipe.data)
    net = encoder.build_encoder(recipe.model, recipe.data).eval()
    weights.load_weights(net, InitSource(str(probed.folder)))
    batch_layout = BatchLayout(16, 16, 0, 1)
    splits_read = []
    for source, most in ((splits.train, 300), (splits.validation, 200)):
        seen = loaders.held_out_batches(source, recipe.data, batch_layout, most)
        with torch.no_grad():
            x = torch.cat([net.feature(b.image, "avg") for b in seen])
        index, label = (torch.cat([getattr(b, name) for b in seen]) for name in ("index", "label"))
        order = index.argsort()
        splits_read.append((x[order].numpy(), label[order].numpy()))
    (train, label), (test, truth) = splits_read

    def vote(distance: np.ndarray) -> np.ndarray:
        return np.exp((1 - distance) / 0.07)

    row = probed.rows()[-1]
    share = np.linalg.svd(test.astype(np.float64), compute_uv=False)
    share /= share.sum()
    assert row["features/rank"] == pytest.approx(np.exp(-(share * np.log(share)).sum()), rel=1e-3)
    # a drawn tenth chooses the linear probe's rate
    row_N = rng.permute(np.arange(300), 300, rng.key(online.RATE_KEY))[30:]
    theirs = KNeighborsClassifier(5, metric="cosine", weights=vote).fit(train[row_N], label[row_N])
    entry = by_name(result)["probe_knn"]
    assert (entry["n"], entry["split"]) == (200, "validation")
    assert entry["value"] == pytest.approx((theirs.predict(test) == truth).mean(), abs=0.011)


def test_probes_are_refused_where_there_are_no_labels(tiny: list[str], tmp_path) -> None:
    path = table(tmp_path / "own.parquet", None, [image(n) for n in range(TRAIN)])
    with pytest.raises(UserError, match="has no labels"):
        run(altered(tiny, *PROBED, f"data.path={path}", "data.validation=0.2", "name=run"))


def test_a_probe_that_fails_ends_no_run(tiny: list[str]) -> None:
    done = run(altered(tiny, *PROBED, "optim.steps=4", "probe.shots=[100]", "name=run"))
    assert done.result() is not None and "OnlineProbes failed" in done.log.read_text()


def test_a_run_killed_before_its_export_has_the_probes_in_its_result(
    tiny: list[str], probed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*values: object) -> None:
        raise Killed

    broken = altered(tiny, *PROBED, "name=probed")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(finish, "export", killed)
        run(broken)
    results = [one.result().content() for one in (probed, run(broken))]
    timed = {"finished", "seconds", "device_hours", "total_device_hours"}
    untimed = [
        {key: value for key, value in result.items() if key not in timed} for result in results
    ]
    assert untimed[0] == untimed[1] and "probe_knn" in by_name(untimed[0])


@pytest.mark.parametrize(("neighbors", "too_few"), [(21, True), (20, False)])
def test_too_few_images_for_the_neighbours_is_a_line_at_the_start(
    tiny: list[str], capsys: pytest.CaptureFixture, neighbors: int, too_few: bool
) -> None:
    """A tenth of them chooses the linear probe's learning rate: of 22, 2."""
    few = ("probe.images=22", "probe.measures=[knn,linear]", f"probe.neighbors={neighbors}")
    done = run(altered(tiny, *PROBED, *few, "optim.steps=4", "name=run"))
    line = f"warning: probe.neighbors={neighbors}: "
    assert (line in capsys.readouterr().out) == too_few
    assert any("probe/knn" in row for row in done.rows()) != too_few


CLASSES, EACH = 5, 4


def class_batch(first: int, label_B: torch.Tensor) -> Batch:
    """Images whose one pixel is their class, at rows from `first` on."""
    index_B = torch.arange(first, first + len(label_B))
    image = label_B.to(torch.uint8)[:, None, None, None]
    rows = index_B.numpy()
    return Batch(image=image, label=label_B, index=index_B, key=index_B, content=rows)


def one_hot(image: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(image.flatten().long(), CLASSES).float()


@pytest.mark.parametrize("measures", [["knn"], ["knn", "linear"]])
def test_all_classes_are_learned_from_images_that_come_class_by_class(measures: list[str]) -> None:
    """The first tenth was held back for the linear probe's learning rate: of a folder the first
    classes, which k-NN then knew nothing of, also where no linear probe was measured."""
    ordered = torch.arange(CLASSES).repeat_interleave(EACH)
    probe = Probe(measures=measures, neighbors=2, steps=20, batch=8)
    probes = OnlineProbes(
        Run(resolve(["recipe=mpp"])),
        [class_batch(0, ordered)],
        [class_batch(0, torch.arange(CLASSES))],
        probe,
        "avg",
        CLASSES,
        WatchedAccelerator(cpu=True),
    )
    right = probes.measure({"one": one_hot})["one"]
    assert right["knn"].all()
    assert probes.count_images_set_aside(CLASSES * EACH) == (2 if "linear" in measures else 0)


# ---- which names of folders may be no classes, and what a run says of them


@pytest.mark.parametrize(
    ("folders", "says"),
    [
        # of half of them: the median of 9, 4 and 2 is 4, that of 9, 5 and 2 is 5
        ({"ant": 9, "bee": 4, "cat": 2}, "half of the folders have at most 4 images"),
        ({"ant": 9, "bee": 5, "cat": 2}, ""),
        # k-NN was measured by the years of photographs, with a verdict
        ({"2024": 9, "2025-01-07": 9}, "years or dates"),
        ({"2024": 9, "12": 9}, ""),
    ],
)
def test_folders_that_may_be_no_classes(folders: dict[str, int], says: str, tmp_path: Path) -> None:
    images(tmp_path, **folders)
    source = run_splits.load(Data(path=str(tmp_path))).train.all_rows()
    found = online.why_folders_are_not_classes(source)
    assert says in found and bool(says) == bool(found)


def test_an_image_that_probes_leave_out_is_named(tmp_path: Path) -> None:
    """The next one stood in its place, with its label, and nothing was said."""
    images(tmp_path / "IMAGES", a=60, b=60)
    for name in ("a", "b"):
        (tmp_path / "IMAGES" / name / "broken.png").write_bytes(b"no image")
    more = ("eval.knn=true", "data.validation=0.3", "data.unreadable=0.5")
    words = [f"data.path={tmp_path}/IMAGES", f"out={tmp_path}", "name=run", "eval.every=2", *more]
    done = run(altered(TINY, *SHORT, *words, "eval.images=100"))
    text = done.log.read_text()
    assert text.count("an image is left out of the probes: ") == 2


@pytest.mark.parametrize(
    ("count", "more", "says"),
    [
        (15, [], "labels: names of folders, 2 classes: a, b"),
        (15, ["data.labels=false", "data.test=0.2"], "labels: none (data.labels=false)"),
        (4, [], "half of the folders have at most 4 images"),
    ],
)
def test_a_run_says_what_it_takes_for_labels_and_records_none_that_it_does_not_learn(
    count: int, more: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    images(tmp_path / "IMAGES", a=count, b=count)
    own = [f"data.path={tmp_path}/IMAGES", f"out={tmp_path}", "name=run", "eval.every=2", *more]
    folder = run(altered(TINY, *SHORT, *own)).folder
    assert says in capsys.readouterr().out
    assert json.loads((folder / "environment.json").read_text())["classes"] == []
