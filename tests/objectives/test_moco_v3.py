"""MoCo v3: its loss against a plain implementation, and a run. Its momentum copy is in
test_teacher.py."""

import math

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from helpers.built import Objective, built
from helpers.exactness import assert_is_plain, shaken
from helpers.options import TINY, altered
from helpers.runs import run
from helpers.self_distillation import plain_tokens
from helpers.view_batches import view_batch
from ssl_vit.data.batching import Batch
from ssl_vit.errors import UserError
from ssl_vit.runs.folder import Run
from ssl_vit.training import checkpoint
from ssl_vit.training.strategy import Strategy


def moco(freeze: bool = True) -> Objective:
    words = "moco.hidden=24", "moco.width=12", f"moco.freeze_patches={str(freeze).lower()}"
    return shaken(built("recipe=moco_v3", "model.heads=4", "moco.temperature=0.2", *words))


def batch() -> Batch:
    return view_batch(6, local=0)


def plain_mlp(x: Tensor, module: nn.Sequential) -> Tensor:
    """`_build_mlp` of the authors' moco/builder.py on one view's whole batch."""
    for layer in module:
        if isinstance(layer, nn.Linear):
            assert layer.bias is None
            x = x @ layer.weight.T
        elif isinstance(layer, nn.ReLU):
            x = x.clamp(min=0)
        else:
            x = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()
            x = x if layer.weight is None else x * layer.weight + layer.bias
    return x


def plain_loss(objective: Objective, given: Batch) -> tuple[Tensor, float]:
    """Algorithm 1 of the paper, each view on its own: the class token through projector and
    predictor, keys by the copy; cross-entropy on the diagonal, times 2 tau. And the accuracy."""
    copy = objective.momentum
    q, k = [], []
    for v in range(2):
        own = plain_tokens(objective.encoder, given.views[:, v])[:, 0]
        q.append(plain_mlp(plain_mlp(own, objective.projector), objective.predictor))
        with torch.no_grad():
            k.append(plain_mlp(plain_tokens(copy.encoder, given.views[:, v])[:, 0], copy.projector))
    loss, right = torch.zeros((), dtype=torch.float64), 0.0
    for one, other in ((q[0], k[1]), (q[1], k[0])):
        unit, key = (x / x.norm(dim=1, keepdim=True) for x in (one, other))
        logits = unit @ key.T / 0.2
        loss = loss + 2 * 0.2 * (logits.exp().sum(1).log() - logits.diag()).mean()
        right += (logits.argmax(1) == torch.arange(len(logits))).double().mean().item() / 2
    return loss, right


@pytest.mark.parametrize("freeze", [True, False])
def test_loss_and_gradients_are_those_of_a_plain_implementation(freeze: bool) -> None:
    """Neither the copy nor a patch projection that is kept gets a gradient."""
    objective, given = moco(freeze), batch()
    still = {f"encoder.backbone.patch_embed.proj.{name}" for name in ("weight", "bias")}
    still = (still if freeze else set()) | {
        name for name, _ in objective.named_parameters() if name.startswith("momentum.")
    }
    assert still == {name for name, p in objective.named_parameters() if not p.requires_grad}
    # the projector's first batch norm takes it off: its gradient is rounding
    objective.encoder.backbone.norm.bias.requires_grad_(False)
    metrics = assert_is_plain(objective, given, lambda plain: plain_loss(plain, given)[0])
    right, count = metrics["accuracy"]
    assert float(right / count) == pytest.approx(plain_loss(objective.double(), given)[1])


def test_batch_norm_is_torchs() -> None:
    """Output, gradients and running means, in training and evaluation."""
    torch.manual_seed(0)
    ours, theirs = moco().projector[1], nn.BatchNorm1d(24)
    weight = torch.randn(24)
    for layer in (ours, theirs):
        layer.weight.data.copy_(weight)
        layer.bias.data.zero_()
    for _ in range(3):
        x = (3 * torch.randn(8, 24) + 2).requires_grad_()
        y = x.detach().clone().requires_grad_()
        out, wanted = ours(x), theirs(y)
        torch.testing.assert_close(out, wanted)
        up = torch.randn(8, 24)
        out.backward(up)
        wanted.backward(up)
        torch.testing.assert_close(x.grad, y.grad)
    for name in ("weight", "bias"):
        torch.testing.assert_close(getattr(ours, name).grad, getattr(theirs, name).grad)
    kept = ours.running_mean.clone(), ours.running_var.clone()
    torch.testing.assert_close(kept, (theirs.running_mean, theirs.running_var))
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(y))


@pytest.mark.parametrize("bad", [False, True])
def test_a_skipped_step_leaves_running_means_as_they_were(bad: bool) -> None:
    """All norms', also after a step whose gradient alone was not finite."""
    objective = moco()
    norms = [one for one in objective.modules() if hasattr(one, "running_mean")]
    objective.start_step(0.0)
    objective(batch())
    objective.after_step(torch.tensor(False))
    before = [(norm.running_mean.clone(), norm.running_var.clone()) for norm in norms]
    objective.start_step(0.5)
    objective(batch())
    objective.after_step(torch.tensor(bad))
    for norm, kept in zip(norms, before, strict=True):
        same = torch.equal(norm.running_mean, kept[0]), torch.equal(norm.running_var, kept[1])
        assert same == (bad, bad)


def test_a_process_counts_before_it_waits_for_others_in_a_forward_pass() -> None:
    """So that the watchdog sees which one is late."""
    objective = moco()
    made = object.__new__(Strategy)
    made.prepared = made.objective = objective
    ticks: list[int] = []
    made.watch_progress(lambda: ticks.append(1))
    before: list[int] = []
    objective.projector.register_forward_pre_hook(lambda *_: before.append(len(ticks)))
    objective(batch())
    assert before[0] == 1 and len(ticks) == 2


def test_baselines_are_those_of_equally_likely_keys() -> None:
    objective, given = moco(), batch()
    values = {name: float(a / n) for name, (a, n) in objective.baselines(given).items()}
    assert values == {"chance_loss": pytest.approx(4 * 0.2 * math.log(6)), "chance": 1 / 6}
    for heads in (objective.predictor, objective.momentum.projector):
        heads.register_forward_hook(lambda _, __, out: torch.ones_like(out))
    collapsed = objective(given).metrics
    assert float(collapsed["loss"][0] / 6) == pytest.approx(values["chance_loss"])


def test_evaluation_looks_at_its_own_batch_alone() -> None:
    """By running means, so that one image's query and key do not depend on the others."""
    objective, given = moco(), batch()
    objective(given)
    objective.eval()
    seen: list[torch.Tensor] = []
    objective.predictor.register_forward_hook(lambda _, __, out: seen.append(out))
    objective(given)
    objective(given.map(lambda x: x[:2]))
    torch.testing.assert_close(seen[2], seen[0][:2])


def test_one_view_is_one_line() -> None:
    objective, given = moco(), batch()
    with pytest.raises(UserError, match=r"forward: .* batch has 1\."):
        objective(given._replace(views=None))


WORDS = altered(TINY, "recipe=moco_v3", "log.every=10")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("moco")
    words = altered(WORDS, "optim.steps=60", "optim.lr=3e-3", "eval.every=60", "eval.images=64")
    words = altered(words, "checkpoint.every=50", "checkpoint.keep=2", "data.crop_area=0.6")
    return run(altered(words, f"out={folder}", "name=run"))


def test_a_short_run_beats_its_baselines(trained: Run) -> None:
    metrics = {name: entry.value for name, entry in trained.result().metrics.items()}
    assert metrics["chance_loss"] == pytest.approx(0.8 * math.log(16))
    assert metrics["loss"] < metrics["chance_loss"] - 0.05
    assert metrics["accuracy"] > 2 * metrics["chance"] == pytest.approx(2 / 16)


def test_what_is_exported_is_the_trained_encoder(trained: Run) -> None:
    """With its class token; the copy, which lags behind, is in checkpoints alone. The patch
    projection is as the seed drew it."""
    export = load_file(trained.export / "model.safetensors")
    heads = load_file(trained.export / "heads.safetensors")
    assert {name.partition(".")[0] for name in heads} == {"projector", "predictor"}
    states = [
        checkpoint.load(path)["objective"]
        for path in checkpoint.list_checkpoints(trained.checkpoints)
    ]
    last = states[-1]
    own, copy = "encoder.backbone.", "momentum.encoder.backbone."
    for name, value in export.items():
        assert torch.equal(last[own + name], value)
    block = "blocks.0.mlp.fc1.weight"
    assert not torch.equal(last[copy + block], last[own + block])
    assert not torch.equal(states[0][copy + block], last[copy + block])
    drawn = built("recipe=moco_v3").encoder.backbone.patch_embed.proj.weight
    assert torch.equal(export["patch_embed.proj.weight"], drawn)
    assert '"global_pool": "token"' in (trained.export / "config.json").read_text()
