"""Probes while pre-training: what they say, and that training does not notice them."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from helpers.options import altered
from helpers.runs import Killed, run
from helpers.tables import TRAIN, image, table
from ssl_vit.data import loaders, sources
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.errors import UserError
from ssl_vit.jobs import finish
from ssl_vit.models import encoder, weights
from ssl_vit.recipe.init_source import InitSource
from ssl_vit.recipe.load import resolve

PROBED = [
    "probe.every=4",
    "probe.images=300",
    "probe.shots=[1]",
    "probe.steps=10",
    "eval.images=200",
]


@pytest.mark.parametrize(
    "more", [[], ["recipe=supervised", "optim.dropout=0.2"], ["optim.average=0.9"]]
)
def test_training_does_not_notice_the_probes(tiny: list[str], more: list[str]) -> None:
    plain = run(altered(tiny, *more, "eval.images=200", "name=plain"))
    probed = run(altered(tiny, *more, *PROBED, "name=probed"))
    rows = [
        [(row["step"], row["loss"], row["grad_norm"]) for row in one.rows() if "loss" in row]
        for one in (plain, probed)
    ]
    assert rows[0] == rows[1]
    files = [(one.export / "model.safetensors").read_bytes() for one in (plain, probed)]
    assert files[0] == files[1]
    seen = [row["step"] for row in probed.rows() if "probe/knn" in row]
    assert seen == [4, 8, 12] and not any("probe/knn" in row for row in plain.rows())


def test_what_they_say_is_what_scikit_learn_says_of_the_export(tiny: list[str]) -> None:
    done = run(altered(tiny, *PROBED, "name=probed", "probe.neighbors=5"))
    result = done.result()
    assert result is not None
    recipe, splits = done.recipe, sources.load(done.recipe.data)
    net = encoder.build_encoder(recipe.model, recipe.data).eval()
    weights.load_weights(net, InitSource(str(done.folder)))
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

    row = done.rows()[-1]
    share = np.linalg.svd(test.astype(np.float64), compute_uv=False)
    share /= share.sum()
    assert row["features/rank"] == pytest.approx(np.exp(-(share * np.log(share)).sum()), rel=1e-3)
    assert row["features/norm"] == pytest.approx(np.linalg.norm(test, axis=1).mean(), rel=1e-5)
    # the first tenth is dev's
    theirs = KNeighborsClassifier(5, metric="cosine", weights=vote).fit(train[30:], label[30:])
    entry = result["metrics"]["probe_knn"]
    assert (entry["n"], entry["split"]) == (200, "validation")
    assert entry["value"] == pytest.approx((theirs.predict(test) == truth).mean(), abs=0.011)


def test_probes_are_refused_where_there_are_no_labels(tiny: list[str], tmp_path) -> None:
    path = table(tmp_path / "own.parquet", None, [image(n) for n in range(TRAIN)])
    with pytest.raises(UserError, match="has no labels"):
        run(altered(tiny, *PROBED, f"data.path={path}", "data.validation=0.2", "name=run"))
    with pytest.raises(UserError, match=r"probe\.steps=3: objective=mpp has no use for it"):
        resolve(altered(tiny, "probe.steps=3"))
    with pytest.raises(UserError, match=r"probe\.every=3: is for probes while pre-training"):
        resolve(["recipe=evaluate", "init=scratch", "probe.every=3"])


def test_a_probe_that_fails_ends_no_run(tiny: list[str], capsys: pytest.CaptureFixture) -> None:
    done = run(altered(tiny, *PROBED, "probe.shots=[100]", "name=run"))
    assert done.result() is not None and "OnlineProbes failed" in done.log.read_text()


def test_a_run_killed_before_its_export_has_the_probes_in_its_result(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*values: object) -> None:
        raise Killed

    whole, broken = (
        run(altered(tiny, *PROBED, "name=whole")),
        altered(tiny, *PROBED, "name=broken"),
    )
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(finish, "export", killed)
        run(broken)
    results = [one.result().content() for one in (whole, run(broken))]
    timed = {"finished", "seconds", "device_hours", "total_device_hours", "seen"}  # by its name
    untimed = [
        {key: value for key, value in result.items() if key not in timed} for result in results
    ]
    assert untimed[0] == untimed[1] and "probe_knn" in untimed[0]["metrics"]


def test_too_few_images_for_the_neighbours_is_a_line_at_the_start(
    tiny: list[str], capsys: pytest.CaptureFixture
) -> None:
    """A tenth of them chooses the linear probe's learning rate: of 22, 2."""
    few = altered(tiny, *PROBED, "probe.images=22", "probe.measures=[knn]")
    line = "probe.neighbors=21: probes learn from 20 images: no k-NN accuracy"
    for neighbors, too_few in ((21, True), (20, False)):
        done = run([*few, f"probe.neighbors={neighbors}", f"name=of_{neighbors}"])
        assert (line in capsys.readouterr().out) == too_few
        assert any("probe/knn" in row for row in done.rows()) != too_few
