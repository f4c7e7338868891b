"""Masked patch prediction: the loss of exactly the hit patches, in one graph, against what can be
worked out by hand."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from ssl_vit import rng
from ssl_vit.data.batching import Batch
from ssl_vit.models import encoder
from ssl_vit.objectives import corruption
from ssl_vit.objectives.mpp.network import MaskedPatchPrediction
from ssl_vit.objectives.targets import patch_targets
from ssl_vit.recipe.schema import Data, Model
from ssl_vit.recipe.split_counts import selected_count

TINY = Model(patch=4, width=32, depth=1, heads=2, mlp=64)
N = 16  # patches of a 16 px image


def mpp(rate=0.5, mask=0.8, random=0.1, source="image", trained=True):
    """An objective with fixed weights; `trained`: with noise, so that the head, biases and tokens
    say something."""
    torch.manual_seed(0)
    made = MaskedPatchPrediction(
        encoder.build_encoder(TINY, Data(size=16)),
        patch_targets.Colors(4, 1),
        rate=rate,
        mask=mask,
        random=random,
        source=source,
    )
    if trained:
        for parameter in made.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
    return made


def batch(count, seed=0):
    """Images of 4 x 4 patches, each of a colour of its own and a little noise."""
    generator = np.random.default_rng(seed)
    color = generator.integers(8, 248, (count, 3, 4, 4)).repeat(4, 2).repeat(4, 3)
    image = (color + generator.integers(-8, 9, color.shape)).astype(np.uint8)
    index = np.arange(count)
    parts = (image, np.full(count, -1), index, rng.key(seed, 0, index))
    return Batch(*map(torch.from_numpy, parts))


def slow_colors(image_3HW):
    """The patches' classes, one after the other."""
    patches = [
        image_3HW[:, y : y + 4, x : x + 4].reshape(3, -1).long().sum(1)
        for y in range(0, 16, 4)
        for x in range(0, 16, 4)
    ]
    bins = [[min(7, 8 * int(s) // (255 * 16)) for s in sums] for sums in patches]
    return [64 * r + 8 * g + b for r, g, b in bins]


def slow_losses(objective, given):
    """[(image, patch, kind, loss, right)] of every hit patch, from features of corrupted
    embeddings, by the definition."""
    drawn = objective.sample_corruption(given)
    x_BND = objective.encoder.patch(given.image)
    clean, corrupted = x_BND.flatten(0, 1), x_BND.clone()
    for b in range(len(x_BND)):
        for position, kind, source in zip(
            drawn.corrupted_BK[b], drawn.kind_BK[b], drawn.source_BK[b], strict=True
        ):
            new = {
                corruption.MASK: objective.mask_token,
                corruption.RANDOM: clean[source],
                corruption.KEEP: clean[b * N + position],
            }
            corrupted[b, position] = new[int(kind)]
    score_BTC = objective.encoder(corrupted) @ objective.head.weight.T + objective.head.bias
    rows = []
    for b in range(len(x_BND)):
        colors = slow_colors(given.image[b])
        for position, kind in zip(
            drawn.corrupted_BK[b].tolist(), drawn.kind_BK[b].tolist(), strict=True
        ):
            scores = score_BTC[b, 1 + position].double()  # after the class token
            loss = torch.logsumexp(scores, 0) - scores[colors[position]]
            rows.append((b, position, kind, loss, float(scores.argmax() == colors[position])))
    return rows


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("source", ["image", "batch"])
def test_the_loss_is_the_cross_entropy_of_the_hit_patches(rate, source):
    objective, given = mpp(rate, 0.4, 0.4, source), batch(6)
    rows = slow_losses(objective, given)
    assert len(rows) == 6 * selected_count(rate, N)
    loss = torch.stack([row[3] for row in rows]).mean()
    assert objective(given).loss.item() == pytest.approx(loss.item(), rel=1e-5)
    loss.backward()
    slow = {name: p.grad.clone() for name, p in objective.named_parameters() if p.grad is not None}
    objective.zero_grad()
    objective(given).loss.backward()
    fast = {name: p.grad for name, p in objective.named_parameters() if p.grad is not None}
    assert fast.keys() == slow.keys() and "mask_token" in fast
    for name, gradient in fast.items():
        torch.testing.assert_close(gradient, slow[name], rtol=1e-3, atol=1e-6, msg=name)


@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_a_fresh_models_loss_is_that_of_guessing_whatever_the_rate(rate):
    assert mpp(rate, trained=False)(batch(4)).loss.item() == pytest.approx(math.log(512), rel=1e-6)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_only_hit_patches_and_their_exact_colors_teach_the_head(precision):
    """With a zero head the bias's gradient is the hit patches' mean of softmax - one-hot, so it
    tells their targets."""
    objective, given = mpp(trained=False), batch(8)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision is torch.bfloat16):
        step = objective(given)
    assert step.loss.dtype == torch.float32
    step.loss.backward()
    used = (1 / 512 - objective.head.bias.grad.double()) * 8 * 8
    expected = torch.zeros(512, dtype=torch.float64)
    for b, hits in enumerate(objective.sample_corruption(given).corrupted_BK.tolist()):
        colors = slow_colors(given.image[b])
        for position in hits:
            expected[colors[position]] += 1
    torch.testing.assert_close(used, expected, rtol=0, atol=0.02)
    everywhere = torch.bincount(
        torch.tensor([slow_colors(image) for image in given.image]).flatten(), minlength=512
    )
    assert not torch.equal(everywhere.double(), expected)


def test_the_head_sees_only_the_hit_patches():
    objective, shapes = mpp(0.3), []
    objective.head.register_forward_hook(
        lambda _, given, made: shapes.append((given[0].shape, made.shape))
    )
    for seed in range(3):
        objective(batch(4, seed))
    assert shapes == [((4, 5, 32), (4, 5, 512))] * 3  # floor(0.3 * 16 + 1/2) = 5


def test_dark_and_bright_images_embed_differently():
    """A norm on the raw patches would erase the colour that is to be told."""
    objective = mpp()
    flat = torch.tensor([20, 128, 235], dtype=torch.uint8)[:, None, None, None].expand(
        -1, 3, 16, 16
    )
    dark, middle, bright = objective.encoder.patch(flat)
    assert (dark - bright).norm() > 0.5 * bright.norm()
    torch.testing.assert_close(
        dark + bright - 2 * middle, torch.zeros_like(dark), atol=0.05, rtol=0
    )  # 20 + 235 = 255
    projection = objective.encoder.backbone.patch_embed.proj
    by_hand = (20 / 255 - 0.5) / 0.5 * projection.weight.flatten(1).sum(1) + projection.bias
    torch.testing.assert_close(dark, by_hand.expand(N, -1), rtol=1e-4, atol=1e-5)


def test_metrics_are_split_by_kind_and_sum_to_the_whole():
    objective, given = mpp(0.5, 0.4, 0.3), batch(12)
    with torch.no_grad():
        rows = slow_losses(objective, given)
    step = objective(given)
    kinds = {"masked": corruption.MASK, "random": corruption.RANDOM, "kept": corruption.KEEP}
    for name, column in (("loss", 3), ("accuracy", 4)):
        parts = [step.metrics[f"{name}_{kind}"] for kind in kinds]
        total, count = step.metrics[name]
        assert count == len(rows) == 12 * 8 == sum(c for _, c in parts)
        assert sum(s for s, _ in parts).item() == pytest.approx(total.item(), rel=1e-6)
        for (part, size), number in zip(parts, kinds.values(), strict=True):
            own = [float(row[column]) for row in rows if row[2] == number]
            assert size == len(own) > 10
            assert part.item() == pytest.approx(sum(own), rel=1e-5)
    assert step.metrics["loss"][0].item() / step.metrics["loss"][1].item() == pytest.approx(
        step.loss.item(), rel=1e-6
    )
    assert [float(part) for part in step.metrics["corrupted"]] == [96, 12]
    assert not any(part.requires_grad for pair in step.metrics.values() for part in pair)


def test_kept_patches_can_be_learned():
    objective, given = mpp(0.5, 0.0, 0.0, trained=False), batch(8)
    optimizer = torch.optim.Adam(objective.parameters(), lr=1e-2)
    for _ in range(50):
        optimizer.zero_grad()
        objective(given).loss.backward()
        optimizer.step()
    right, count = objective(given).metrics["accuracy_kept"]
    assert count == 64 and right / count > 0.9
    assert objective(given).metrics["accuracy_masked"][1] == 0


def test_no_text_is_hashed_in_what_is_compiled(monkeypatch):
    """torch 2.11's compiler breaks the graph at a loop over bytes; newer ones hide that."""
    objective, given = mpp(0.5, 0.4, 0.4), batch(4)
    monkeypatch.delattr(rng, "stream_id")
    assert objective(given).loss.isfinite()


def test_it_compiles_as_one_graph():
    objective, given = mpp(0.5, 0.4, 0.4), batch(4)
    eager = objective(given)
    eager.loss.backward()
    gradient = objective.mask_token.grad.clone()
    objective.zero_grad()
    torch._dynamo.reset()
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    compiled = torch.compile(objective, fullgraph=True, backend=counting)
    made = compiled(given)
    made.loss.backward()
    torch.testing.assert_close(made.loss, eager.loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(objective.mask_token.grad, gradient, rtol=1e-4, atol=1e-7)
    for name, pair in eager.metrics.items():
        torch.testing.assert_close(made.metrics[name], pair, msg=name)
    other = batch(4, seed=1)  # other hit patches: the same graph
    torch.testing.assert_close(compiled(other).loss, objective(other).loss, rtol=1e-6, atol=0)
    assert len(graphs) == 1


def test_baselines_are_the_slow_ones():
    objective, given, training = mpp(0.7), batch(30), [batch(25, seed) for seed in (1, 2)]
    objective.fit_baselines(training)
    made = {
        name: (float(total), float(count))
        for name, (total, count) in objective.baselines(given).items()
    }
    colors = [color for part in training for image in part.image for color in slow_colors(image)]
    counts = np.bincount(colors, minlength=512)
    assert objective.target.count.tolist() == counts.tolist() and counts.sum() == 50 * N
    assert made["entropy"][0] / made["entropy"][1] == pytest.approx(stats.entropy(counts))

    drawn = objective.sample_corruption(given)
    common, guessed, masked = 0, 0, 0
    for b, image in enumerate(given.image):
        truth, hidden = slow_colors(image), drawn.corrupted_BK[b].tolist()
        sums = [
            image[:, y : y + 4, x : x + 4].reshape(3, -1).long().sum(1)
            for y in range(0, 16, 4)
            for x in range(0, 16, 4)
        ]
        for position, kind in zip(hidden, drawn.kind_BK[b].tolist(), strict=True):
            if kind != corruption.MASK:
                continue
            away = {
                m: max(abs(m // 4 - position // 4), abs(m % 4 - position % 4))
                for m in range(N)
                if m not in hidden
            }
            ring = [m for m in away if away[m] == min(away.values())]
            bins = [
                min(7, 8 * int(s) // (255 * 16 * len(ring))) for s in sum(sums[m] for m in ring)
            ]
            masked += 1
            common += truth[position] == counts.argmax()
            guessed += truth[position] == 64 * bins[0] + 8 * bins[1] + bins[2]
    assert made["commonest"] == (common, masked)
    assert made["neighbors"] == (guessed, masked)


def test_no_global_random_number_is_drawn_and_the_same_batch_gives_the_same():
    objective, given = mpp(), batch(4)
    state = torch.get_rng_state()
    first = objective(given)
    objective.baselines(given)
    objective.predict(given)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(5)
    second = objective(given)
    assert torch.equal(first.loss, second.loss)


def test_predictions_are_the_likeliest_colors():
    objective, given = mpp(), batch(4)
    drawn, made = objective.predict(given)
    assert torch.equal(drawn.corrupted_BK, objective.sample_corruption(given).corrupted_BK)
    right = made[..., 0] == torch.tensor([slow_colors(image) for image in given.image]).gather(
        1, drawn.corrupted_BK
    )
    assert right.sum() == objective(given).metrics["accuracy"][0]
    assert ((made >= 0) & (made < 512)).all() and len(made.unique()) > 1
