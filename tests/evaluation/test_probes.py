"""Probes of frozen features: few-shot against a float64 solve, the linear probe and k-NN against
scikit-learn."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from helpers import plain_sgd
from ssl_vit import rng
from ssl_vit.errors import UserError
from ssl_vit.evaluation import probes
from ssl_vit.recipe.schema import Probe


def blobs(rows, width, classes, batch_layout=1.0, seed=0, skew=True):
    """Overlapping classes; features of very different mean and deviation, as an encoder's are."""
    rng = np.random.default_rng(seed)
    label = rng.permutation(np.arange(rows) % classes)
    centre = np.random.default_rng(1000 + width).normal(size=(classes, width))
    x = centre[label] + batch_layout * rng.normal(size=(rows, width))
    if skew:
        x = x * np.geomspace(0.1, 10, width) + np.linspace(-5, 5, width)
    return torch.from_numpy(x).float(), torch.from_numpy(label)


def few_shot(train, label, test, shots, classes, seed):
    rows = probes.sample_shots(label, shots, classes, seed)
    return probes.least_squares(train[rows], label[rows], test, classes=classes)


def by_normal_equations(train, label, test, rows, classes, l2=1024.0, bias=100.0):
    """Few-shot scores of the paper's 4.1 from the picked rows, with numpy's solver."""
    x, y = train.double().numpy()[rows], 2 * np.eye(classes)[label.numpy()[rows]] - 1
    mean, std = x.mean(0), x.std(0) + 1e-5
    x, z = (
        (np.concatenate([(a - mean) / std, np.full((len(a), 1), bias)], 1))
        for a in (x, test.double().numpy())
    )
    return z @ np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ y)


@settings(max_examples=25)
@given(
    width=st.integers(1, 40),
    classes=st.integers(2, 6),
    shots=st.integers(2, 12),
    seed=st.integers(0, 99),
    l2=st.floats(0.1, 2e3),
)
def test_few_shot_is_the_normal_equations_with_more_and_with_fewer_images_than_features(
    width, classes, shots, seed, l2
):
    train, label = blobs(90, width, classes, seed=seed)
    test, _ = blobs(50, width, classes, seed=seed + 1)
    rows = probes.sample_shots(label, shots, classes, seed).numpy()
    scores = by_normal_equations(train, label, test, rows, classes, l2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "L2", l2)
        predicted = few_shot(train, label, test, shots, classes, seed).numpy()
    best, second = np.sort(scores, axis=1)[:, [-1, -2]].T
    clear = best - second > 1e-9
    assert clear.mean() > 0.9
    assert np.array_equal(predicted[clear], scores.argmax(1)[clear])


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=120), st.integers(1, 8), st.integers(0, 2**40)
)
def test_pick_takes_as_many_of_each_class_and_fewer_are_among_more(labels, shots, seed):
    label = torch.tensor(labels)
    count = np.bincount(labels, minlength=5)
    if count.min() < shots:
        with pytest.raises(UserError) as raised:
            probes.sample_shots(label, shots, 5, seed)
        named = int(str(raised.value).split("class ")[1].split()[0])
        assert count[named] < shots and f"class {named} has {count[named]} im" in str(raised.value)
        assert f"probe.shots={shots}: " in str(raised.value)
        assert (f"probe.shots=[{count.min()}]" in str(raised.value)) == (count.min() > 0)
        assert "probe.measures= without few_shot" in str(raised.value)
        return
    rows = probes.sample_shots(label, shots, 5, seed).numpy().reshape(5, shots)
    assert (label.numpy()[rows] == np.arange(5)[:, None]).all()
    assert len(set(rows.ravel())) == 5 * shots
    assert np.array_equal(probes.sample_shots(label, 1, 5, seed).numpy(), rows[:, 0])


def test_pick_depends_on_the_seed_alone_and_takes_each_row_as_often():
    label = torch.arange(40) % 2
    rows = [probes.sample_shots(label, 5, 2, seed).tolist() for seed in range(2000)]
    assert rows[:20] == [probes.sample_shots(label, 5, 2, seed).tolist() for seed in range(20)]
    often = np.bincount(np.ravel(rows), minlength=40)  # binomial(2000, 1/4): deviation 19.4
    assert abs(often - 500).max() < 4.5 * 19.4


def keys(rates=(0.1, 0.3), steps=200, batch=32):
    """Also without the bounds of recipes."""
    return Probe.model_construct(rates=[*rates], steps=steps, batch=batch)


def linear(x, y, dev, dev_y, test, classes=3, **changes):
    seen = {"train": (x, y), "validation": (dev, dev_y), "test": (test, None)}
    return probes.linear_probe(seen, classes, keys(**changes))


def weights(x, y, rates, **changes):
    return probes.train_linear(x, y, probes.mean_and_std(x), 3, keys(rates, **changes))


def test_a_converged_linear_probe_is_scikit_learns_logistic_regression():
    x, y = blobs(300, 5, 3, batch_layout=1.5)
    test, _ = blobs(200, 5, 3, batch_layout=1.5, seed=1)
    wanted = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000)
    scale = probes.mean_and_std(x)
    z, z_test = (scale(a.double(), 1.0)[:, :-1].numpy() for a in (x, test))
    wanted.fit(z, y.numpy())
    assert wanted.score(z, y.numpy()) < 0.9  # not separable, so that there is an optimum
    (ours,) = weights(x, y, [0.5], steps=1500, batch=300)
    probability = (scale(test, 1.0) @ ours).softmax(1).numpy()
    assert abs(probability - wanted.predict_proba(z_test)).max() < 1e-4
    theirs = np.concatenate([wanted.coef_.T, wanted.intercept_[None]])
    assert np.allclose(ours.numpy(), theirs - theirs.mean(1, keepdims=True), atol=2e-3)
    predicted = linear(x, y, x, y, test, rates=[0.5], steps=1500, batch=300)
    assert np.array_equal(predicted.numpy(), wanted.predict(z_test))


@pytest.mark.parametrize("batch", [32, 700])  # also more than there are images
def test_training_is_torchs_sgd_on_the_same_batches(batch):
    x, y = blobs(150, 6, 3)
    scale, steps = probes.mean_and_std(x), 40
    _, ours = weights(x, y, [0.01, 0.2], steps=steps, batch=batch)  # among others as alone
    layer = torch.nn.Linear(6, 3)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)

    def loss_at(step):
        rows = probes.rows_of_batch(step, batch, 150)
        return torch.nn.functional.cross_entropy(layer(scale(x, 1.0)[rows, :-1]), y[rows])

    plain_sgd.train(layer.parameters(), 0.2, steps, loss_at)
    assert torch.allclose(ours[:-1], layer.weight.T, atol=1e-4) and torch.allclose(
        ours[-1], layer.bias, atol=1e-4
    )


def test_batches_are_epochs_that_each_show_every_row_once():
    stream = torch.cat([probes.rows_of_batch(step, 32, 100) for step in range(25)]).reshape(8, 100)
    assert all(sorted(epoch.tolist()) == list(range(100)) for epoch in stream)
    assert len({tuple(epoch.tolist()) for epoch in stream}) == 8


@pytest.mark.parametrize("batch", [7, 100, 250])  # also more than there are images
def test_a_batch_is_the_same_drawn_alone(batch):
    for step in (0, 15, 16, 40):
        samples = np.arange(step * batch, (step + 1) * batch)
        key = rng.stream(rng.key(probes.SEED, samples // 100), "linear probe")
        alone = [rng.permute(s % 100, 100, k)[0] for s, k in zip(samples, key, strict=True)]
        assert probes.rows_of_batch(step, batch, 100).tolist() == alone


def test_the_rate_is_chosen_on_dev_and_ties_go_to_the_first():
    x, y = blobs(300, 6, 3, batch_layout=2.0)
    dev, dev_y = blobs(100, 6, 3, batch_layout=2.0, seed=1)
    test, _ = blobs(100, 6, 3, batch_layout=2.0, seed=2)
    rates = [0.1, 0.001, 3.0]
    alone = {rate: linear(x, y, dev, dev_y, test, rates=[rate]) for rate in rates}
    for one, other in itertools.combinations(rates, 2):
        assert not torch.equal(alone[one], alone[other])
    right = {
        rate: (linear(x, y, dev, dev_y, dev, rates=[rate]) == dev_y).double().mean()
        for rate in rates
    }
    best = max(rates, key=lambda rate: right[rate])
    assert best == 0.001 and right[best] > max(right[0.1], right[3.0])
    assert torch.equal(linear(x, y, dev, dev_y, test, rates=rates), alone[best])
    # at the classes' means every rate is right
    mean, mean_y = torch.stack([x[y == c].mean(0) for c in range(3)]), torch.arange(3)
    for rate in rates:
        assert torch.equal(linear(x, y, mean, mean_y, mean, rates=[rate]), mean_y)
    for order in (rates, rates[::-1]):
        assert torch.equal(linear(x, y, mean, mean_y, test, rates=order), alone[order[0]])


def test_a_rate_that_diverges_spoils_no_other_and_all_that_diverge_are_an_error():
    x, y = blobs(200, 8, 3)
    sound = linear(x, y, x, y, x, rates=[0.1])
    for rates in ([1e38, 0.1], [0.1, 1e38]):
        assert torch.equal(linear(x, y, x, y, x, rates=rates), sound)
        for guess in range(3):  # whatever class a row of NaN is given
            found = linear(x, y, x, torch.full_like(y, guess), x, rates=rates)
            assert torch.equal(found, sound)
    with pytest.raises(UserError, match=r"probe\.rates=\[1e\+38\]: .* diverges"):
        linear(x, y, x, y, x, rates=[1e38])


@pytest.mark.parametrize("temperature", [0.07, 0.001])  # exp(1 / 0.001) is more than float64 holds
@pytest.mark.parametrize("k", [1, 5, 20])
def test_knn_is_scikit_learns(k, temperature, monkeypatch):
    monkeypatch.setattr(probes, "TEMPERATURE", temperature)
    train, label = blobs(300, 16, 7, batch_layout=2.5, skew=False)
    test, _ = blobs(400, 16, 7, batch_layout=2.5, seed=1, skew=False)
    wanted = KNeighborsClassifier(
        k, metric="cosine", weights=lambda far: np.exp((far[:, :1] - far) / temperature)
    )
    wanted.fit(train.double().numpy(), label.numpy())
    predicted = probes.knn(train, label, test, classes=7, k=k)
    assert np.array_equal(predicted.numpy(), wanted.predict(test.double().numpy()))


def test_k_beyond_the_training_images_is_named():
    train, label = blobs(10, 4, 2)
    with pytest.raises(UserError, match=r"probe\.neighbors=11: only 10 training images "):
        probes.knn(train, label, train, classes=2, k=11)
    with pytest.raises(UserError, match=r"probe\.neighbors=11: only 1 training image "):
        probes.knn(train[:1], label[:1], train, classes=2, k=11)


def test_chunks_change_no_prediction(monkeypatch):
    train, label = blobs(200, 8, 4, batch_layout=2.0)
    test, _ = blobs(130, 8, 4, batch_layout=2.0, seed=1)

    def everything():
        few = few_shot(train, label, test, shots=5, classes=4, seed=0)
        probe = linear(train, label, test, label[:130], test, classes=4, batch=300, steps=50)
        return torch.stack([few, probe, probes.knn(train, label, test, classes=4, k=7)])

    whole = everything()
    monkeypatch.setattr(probes, "ELEMENTS", 300)
    assert torch.equal(everything(), whole)


def test_a_feature_that_never_changes_harms_nothing():
    train, label = blobs(120, 6, 3)
    test, _ = blobs(60, 6, 3, seed=1)
    dead_train, dead_test = (torch.cat([x, torch.full((len(x), 1), 0.1)], 1) for x in (train, test))
    for probe in (
        lambda x, z: few_shot(x, label, z, shots=9, classes=3, seed=0),
        lambda x, z: linear(x, label, x, label, z),
    ):
        assert torch.equal(probe(train, test), probe(dead_train, dead_test))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_predicts_the_same():
    train, label = blobs(400, 24, 5, batch_layout=2.0)
    test, _ = blobs(300, 24, 5, batch_layout=2.0, seed=1)

    def everything(place):
        x, y, z = (tensor.to(place) for tensor in (train, label, test))
        few = few_shot(x, y, z, shots=5, classes=5, seed=0)
        return few, linear(x, y, x, y, z, classes=5), probes.knn(x, y, z, classes=5, k=7)

    for ours, theirs in zip(everything("cuda"), everything("cpu"), strict=True):
        assert (ours.cpu() == theirs).double().mean() > 0.99


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_effective_rank_counts_directions_of_equal_weight(rank):
    x_ND = torch.eye(8)[torch.arange(400) % rank] * 7.0
    assert probes.effective_rank(x_ND) == pytest.approx(rank, rel=1e-4)
