"""Few-shot alone reads only the training images that it draws; features of a head's tanh layer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import ssl_vit
from helpers.options import TINY, altered
from helpers.resolving import resolve
from helpers.runs import run
from helpers.sources import listed
from ssl_vit.data import loaders, run_splits
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.data.open import DrawnStore
from ssl_vit.data.source import Source
from ssl_vit.errors import UserError
from ssl_vit.evaluation import features, probes
from ssl_vit.evaluation.images import EvaluationImages
from ssl_vit.measurements import COMMONEST, UNTRAINED
from ssl_vit.models import encoder, weights
from ssl_vit.recipe.init_source import InitSource
from ssl_vit.recipe.schema import Probe
from ssl_vit.runs import console
from ssl_vit.runs.folder import Run
from ssl_vit.training.distributed import WatchedAccelerator

COMMON = ["recipe=evaluate", "data.size=16", "compute.threads=1", "compute.precision=float32"]
FEW = ["data.share=0.5", "probe.shots=[1,3]", "probe.trials=2"]


def measured(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, int, list[torch.Tensor]]:
    """The result, how many images went through the encoder, and few-shot's predictions."""
    forwarded: list[int] = []
    predictions: list[torch.Tensor] = []
    feature, fit = encoder.Encoder.feature, probes.least_squares

    def counted(self: encoder.Encoder, image: torch.Tensor, *more: Any) -> torch.Tensor:
        if image.device.type != "meta":  # where costs are counted
            forwarded.append(len(image))
        return feature(self, image, *more)

    def kept(*tensors: torch.Tensor, **more: Any) -> torch.Tensor:
        predictions.append(fit(*tensors, **more))
        return predictions[-1]

    with monkeypatch.context() as patch:
        patch.setattr(encoder.Encoder, "feature", counted)
        patch.setattr(probes, "least_squares", kept)
        result = ssl_vit.evaluate(words)
    return result, sum(forwarded), predictions


@pytest.fixture(autouse=True, scope="module")
def few_images() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DrawnStore, "__len__", lambda self: 800)
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Of labels with a hidden layer and without one, and of none."""
    ways = {
        "mpp": [],
        "hidden": ["recipe=supervised"],
        "linear": ["recipe=supervised", "supervised.hidden=false"],
    }
    where = [f"out={tmp_path_factory.mktemp('runs')}", "optim.steps=4", "optim.warmup=1"]
    return {name: run(altered(TINY, *own, *where, f"name={name}")) for name, own in ways.items()}


def test_few_shot_alone_reads_the_images_it_draws_and_predicts_the_same(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*COMMON, *FEW, f"init={runs['mpp'].folder}", f"out={tmp_path}"]
    splits = run_splits.load(resolve(words).data, test=True)
    alone, few, drawn = measured([*words, "name=alone", "probe.measures=[few_shot]"], monkeypatch)
    both, all_, whole = measured(
        [*words, "name=both", "probe.measures=[few_shot,knn]"], monkeypatch
    )
    # untrained weights see the same images, and are not counted
    assert all_ == 2 * both["images"] == 2 * (len(splits.train) + len(splits.test))
    most = len(splits.test) + 2 * 3 * 10  # trials, most shots, classes
    assert few == 2 * alone["images"] <= 2 * most
    assert len(drawn) == len(whole) == 8 and all(map(torch.equal, drawn, whole))
    names = ("few_shot_1", "few_shot_3")
    assert [alone.metrics[name] for name in names] == [both.metrics[name] for name in names]


def broken(unreadable: set[int]) -> Source:
    """Grey images of two classes; some rows cannot be read."""
    images = [
        b"" if row in unreadable else np.full((16, 16, 3), 2 * row, np.uint8) for row in range(60)
    ]
    row_N = np.arange(60)
    return listed(images, np.where(row_N % 3 == 2, -1, row_N % 3))


def test_a_drawn_image_that_cannot_be_read_gives_way_to_the_next_of_its_class(monkeypatch) -> None:
    """And how many are read is said, not how many there are."""
    told: list[str] = []
    monkeypatch.setattr(console, "with_progress", lambda items, _, what: told.append(what) or items)
    recipe = resolve([*COMMON, "init=scratch", "probe.shots=[2,5]", "probe.trials=3"])
    layout = BatchLayout(7, 7, 0, 1)

    def draw(unreadable: set[int]) -> dict[tuple[int, int], list[int]]:
        splits = run_splits.Splits(broken(unreadable), broken(set()))
        images = EvaluationImages(recipe, splits, 2, WatchedAccelerator(cpu=True), layout, 0, print)
        read = {"": lambda image: image[:, :1, 0, 0].float()}
        drawn, picks = features.sample_few_shot(read, images, recipe.probe)
        row_S = (drawn[""][0][:, 0] / 2).int()  # an image's grey is its row
        return {key: row_S[places].tolist() for key, places in picks.items()}

    sound = draw(set())
    assert told == [f"batches of {len({row for rows in sound.values() for row in rows})} images"]
    lost = {rows[0] for rows in sound.values()}
    mended = draw(lost)
    for key, rows in mended.items():
        assert not lost & set(rows)
        assert [row % 3 for row in rows] == [0] * key[0] + [1] * key[0]
        assert set(sound[key]) - lost <= set(rows)  # the others stay


def test_probes_are_the_same_under_a_callers_bfloat16() -> None:
    """While a run trains in bfloat16, its probes found other neighbours than float32's, and k-NN
    16% for 10%: cosines of features that are alike are equal in bfloat16."""
    generator = torch.Generator().manual_seed(0)
    label_N = torch.arange(600) % 5
    near_ND = 1 + 0.1 * torch.randn(600, 16, generator=generator) + 0.02 * label_N[:, None]
    parts = {"train": slice(300), "validation": slice(300, 400), "test": slice(400, 600)}
    seen = {name: (near_ND[rows], label_N[rows]) for name, rows in parts.items()}
    probe = Probe(shots=[5], trials=2, steps=20, batch=64, neighbors=10)
    exact = dict(features.run_probes(seen, probe, 5))
    with torch.autocast("cpu", torch.bfloat16):
        found = dict(features.run_probes(seen, probe, 5))
    assert found.keys() == exact.keys() == {"few_shot_5", "linear", "knn"}
    assert all(torch.equal(found[name], exact[name]) for name in exact)


def test_a_class_of_too_few_images_is_named() -> None:
    seen = {key: {"": (torch.randn(8, 4), torch.arange(8) % 2)} for key in ("train", "test")}
    probe = Probe(measures=["few_shot"], shots=[5])
    with pytest.raises(UserError, match="class ant has only 4 images"):
        features.probe_all(seen, probe, 2, print, names=["ant", "bee"])


def test_shots_that_a_class_has_too_few_images_for_are_left_out() -> None:
    """recipe=evaluate, as a run prints it, ended in an error: one of 40 classes had fewer than 25
    images."""
    images = [np.zeros((4, 4, 3), np.uint8)] * 12
    source = listed(images, np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, -1]))
    probe = Probe(measures=["few_shot", "knn"], shots=[1, 5, 10, 25])
    fitting, said = features.drop_large_shots(probe, source, 2)
    assert fitting.shots == [1, 5] and "10, 25" in said and "5 images" in said
    assert features.drop_large_shots(fitting, source, 2) == (fitting, "")
    alone = probe.model_copy(update={"measures": ["knn"]})
    assert features.drop_large_shots(alone, source, 3) == (alone, "")
    with pytest.raises(UserError, match=r"probe\.shots=10"):
        features.drop_large_shots(probe.model_copy(update={"shots": [25, 10]}), source, 2)


def test_an_evaluation_ends_where_its_baseline_fails_by_an_error_of_the_program() -> None:
    """It ended well, without the row of untrained weights."""
    label_N = torch.arange(8) % 2
    whole, fewer = (torch.randn(8, width) for width in (4, 3))
    seen = {
        "train": {"": (whole, label_N), UNTRAINED: (whole, label_N)},
        "test": {"": (whole, label_N), UNTRAINED: (fewer, label_N)},
    }
    probe = Probe(measures=["knn"], neighbors=1)
    with pytest.raises(RuntimeError):
        features.probe_all(seen, probe, 2, print)
    assert features.probe_all(seen, probe, 2, print, error=Exception).keys() == {"", COMMONEST}


def test_few_shot_reads_the_tanh_layer_of_a_supervised_run(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = runs["hidden"]
    words = [*COMMON, *FEW, f"init={trained.folder}", f"out={tmp_path}"]
    words.append("probe.measures=[few_shot]")
    result, _, first = measured([*words, "name=hidden", "probe.feature=hidden"], monkeypatch)
    _, _, plain = measured([*words, "name=plain"], monkeypatch)
    recipe = resolve(words)
    splits = run_splits.load(recipe.data, test=True)
    net = encoder.build_encoder(recipe.model, recipe.data).eval()
    weights.load_weights(net, InitSource(str(trained.folder)))
    head = load_file(trained.export / "heads.safetensors")

    @torch.no_grad()
    def seen(source: Source) -> tuple[torch.Tensor, torch.Tensor]:
        layout = BatchLayout(len(source), len(source), 0, 1)
        batch = next(iter(loaders.evaluation_loader(source, recipe.data, layout, 0)))
        token_BD = net.feature(batch.image, "token")
        hidden_BD = token_BD @ head["hidden.0.weight"].T + head["hidden.0.bias"]
        return torch.tanh(hidden_BD), batch.label

    (train, label), (test, _) = seen(splits.train), seen(splits.test)
    row_S = probes.sample_shots(label, 1, 10, features.SEED)
    wanted = probes.least_squares(train[row_S], label[row_S], test, classes=10)
    assert (wanted == first[0]).double().mean() > 0.99
    assert (wanted == plain[0]).double().mean() < 0.99  # the layer makes a difference
    assert result["pool"] == "token"


@pytest.mark.parametrize(
    ("made", "says"),
    [("mpp", "no classifier"), ("linear", "supervised.hidden=false")],
)
def test_a_run_without_a_hidden_layer_is_named(
    runs: dict[str, Run], made: str, says: str, tmp_path: Path
) -> None:
    words = [*COMMON, f"init={runs[made].folder}", f"out={tmp_path}", "probe.feature=hidden"]
    with pytest.raises(UserError, match=rf"probe\.feature=hidden: .*{says}"):
        ssl_vit.evaluate(words)
