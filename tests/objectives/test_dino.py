"""DINO: its loss and gradients against a plain implementation in float64, its centre and
schedules against hand-worked values, and runs. Its teacher is in test_teacher.py."""

import math
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

from helpers.built import Objective, built
from helpers.exactness import (
    Unbroken,
    assert_a_killed_run_ends_as,
    assert_is_plain,
    shaken,
)
from helpers.options import TINY, altered
from helpers.runs import run
from helpers.self_distillation import plain_koleo, plain_logits, plain_sinkhorn, plain_tokens
from helpers.view_batches import view_batch
from ssl_vit.data.batching import Batch
from ssl_vit.errors import UserError
from ssl_vit.recipe.schema import Optim
from ssl_vit.training import checkpoint, optim
from ssl_vit.training.strategy import Strategy

PROTOTYPES = ("head.prototypes.weight", "head.prototypes.length_K")
DINO = altered(
    TINY, "recipe=dino", "views.local_size=8", "dino.prototypes=32", "eval.collapse=null"
)
SIZES = ("dino.prototypes=12", "dino.hidden=24", "dino.width=10", "dino.momentum=0.8")
SCHEDULES = ("dino.teacher_temperature=[0.04,0.07]", "dino.freeze=0.25", "dino.warmup=0.5")


def made(*own: str) -> Objective:
    objective = shaken(built(*DINO, *SIZES, *SCHEDULES, *own))
    objective.assign.centre_K.copy_(torch.linspace(-0.2, 0.3, 12))
    objective.start_step(0.6)
    return objective


def own_logits(of: nn.Module, pixels: Tensor) -> Tensor:
    """Of the class tokens, by the student's encoder and head or by the teacher's."""
    token = plain_tokens(of.encoder, pixels)[:, 0]
    return plain_logits(of.head.mlp, of.head.prototypes, token)


def plain_loss(objective: Objective, given: Batch, temperature: float) -> Tensor:
    """Algorithm 1 and multi-crop of the paper: the mean over pairs of different views; and KoLeo of
    both views (DINOv2's ssl_meta_arch.py)."""
    views = [given.views[:, 0], given.views[:, 1]]
    crops = [] if given.local is None else list(given.local.transpose(0, 1))
    with torch.no_grad():
        taught = [own_logits(objective.teacher, view) for view in views]
        if objective.assign.balance == "sinkhorn":
            targets = plain_sinkhorn(torch.cat(taught), temperature).chunk(2)
        else:
            centre = objective.assign.centre_K
            targets = [torch.softmax((one - centre) / temperature, 1) for one in taught]
    total, pairs = torch.zeros((), dtype=torch.float64), 0
    for i, target in enumerate(targets):
        for j, view in enumerate([*views, *crops]):
            if i != j:
                logits = own_logits(objective, view)
                total = total - (target * torch.log_softmax(logits / 0.1, 1)).sum(1).mean()
                pairs += 1
    tokens = [plain_tokens(objective.encoder, view)[:, 0] for view in views]
    koleo = sum(plain_koleo(token, objective.koleo_group) for token in tokens)
    return total / pairs + objective.koleo_weight * koleo


@pytest.mark.parametrize(
    ("local", "own"),
    [
        (3, ()),
        (0, ("dino.lengths=true",)),
        (3, ("dino.balance=sinkhorn", "dino.lengths=true")),
        (3, ("dino.koleo=0.3",)),
    ],
)
def test_loss_and_gradients_are_those_of_a_plain_implementation(
    local: int, own: tuple[str, ...]
) -> None:
    objective, given = made(*own), view_batch(5, local)
    metrics = assert_is_plain(objective, given, lambda plain: plain_loss(plain, given, 0.07))
    assert ("koleo_loss" in metrics) == ("dino.koleo=0.3" in own)


@pytest.mark.parametrize("balance", ["centre", "sinkhorn"])
def test_held_out_images_are_measured_each_by_itself(balance: str) -> None:
    """So that it does not matter how many processes and passes share them; KoLeo and Sinkhorn's
    assignment are of a batch."""
    objective = made(f"dino.balance={balance}", "dino.koleo=0.3").eval()
    given = view_batch(6, local=0)
    whole = objective(given).metrics
    parts = [
        objective(given.map(lambda x, rows=rows: x[rows])).metrics
        for rows in (slice(0, 2), slice(2, 3), slice(3, 6))
    ]
    assert whole.keys() == {"loss", "same_prototype"}
    for name, (total, count) in whole.items():
        assert float(total) == pytest.approx(sum(float(one[name][0]) for one in parts), rel=1e-6)
        assert float(count) == sum(float(one[name][1]) for one in parts)


def test_the_centre_is_a_running_mean_of_both_views_logits() -> None:
    """centre <- 0.9 centre + 0.1 mean, after the step; not in evaluation, not where the step is
    skipped, be it for a gradient alone."""
    objective, given = made(), view_batch(5, local=3)
    plain = deepcopy(objective).double()
    logits = torch.cat([own_logits(plain.teacher, given.views[:, v]) for v in range(2)])
    wanted = 0.9 * plain.assign.centre_K + 0.1 * logits.mean(0)
    objective.eval()(given)
    assert torch.equal(objective.assign.centre_K.double(), plain.assign.centre_K)
    objective.train()(given)
    objective.after_step(torch.tensor(True))
    assert torch.equal(objective.assign.centre_K.double(), plain.assign.centre_K)
    objective.after_step(torch.tensor(False))
    moved = objective.assign.centre_K.clone()
    torch.testing.assert_close(moved.double(), wanted, rtol=1e-6, atol=1e-7)
    objective.assign(torch.full((4, 12), torch.nan))
    objective.after_step(torch.tensor(True))
    assert torch.equal(objective.assign.centre_K, moved)


def test_schedules_are_worked_values() -> None:
    objective = made()
    objective.start_step(0.0)
    assert objective.assign.temperature == torch.tensor(0.04) and objective.head.prototypes.frozen
    objective.start_step(0.25)  # half of the warm-up; the share that is frozen has ended
    assert objective.assign.temperature.item() == pytest.approx(0.055)
    assert not objective.head.prototypes.frozen
    objective.start_step(0.5)
    assert objective.assign.temperature == torch.tensor(0.07)
    settings = Optim(steps=12, weight_decay=0.04, weight_decay_end=0.4)
    decays = [optim.weight_decay_at(settings, step) for step in (0, 4, 6, 8, 12)]
    assert decays == pytest.approx([0.04, 0.13, 0.22, 0.31, 0.4])
    assert optim.weight_decay_at(Optim(weight_decay=0.3), 7) == 0.3


def test_weight_decay_follows_its_schedule_where_there_is_any() -> None:
    objective = made()
    settings = Optim(steps=12, lr=0.1, weight_decay=0.04, weight_decay_end=0.4)
    optimizer, _ = optim.build_optimizer(objective, settings)
    optim.set_weight_decay(optimizer, settings, 6)
    decays = [group["weight_decay"] for group in optimizer.param_groups]
    assert decays == pytest.approx([0.22, 0.22, 0])  # the second is the prototypes'
    bias = objective.encoder.backbone.blocks[0].mlp.fc1.bias
    weights = objective.encoder.backbone.blocks[0].mlp.fc1.weight
    before = weights.detach().clone(), bias.detach().clone()
    weights.grad, bias.grad = torch.zeros_like(weights), torch.zeros_like(bias)
    optimizer.step()
    torch.testing.assert_close(weights.detach(), before[0] * (1 - 0.1 * 0.22))
    assert torch.equal(bias.detach(), before[1])


def test_frozen_prototypes_get_a_gradient_of_zeros() -> None:
    """And give the same loss; all others get theirs."""
    objective, given = made("dino.lengths=true"), view_batch(5, local=3)
    free = objective(given).loss
    again = made("dino.lengths=true")
    again.head.prototypes.frozen.fill_(True)
    frozen = again(given).loss
    frozen.backward()
    assert torch.equal(free, frozen)
    zero = {name for name, p in again.named_parameters() if p.grad is not None and not p.grad.any()}
    assert zero == {"head.prototypes.weight", "head.prototypes.length_K"}


def test_same_prototypes_by_hand() -> None:
    """The loss of a student that gives every prototype the same is log K; that is no baseline, as
    a collapsed one is below it."""
    objective, given = made(), view_batch(5, local=3)
    assert objective.baselines(given) == {}
    objective.head.register_forward_hook(lambda _, __, out: 0 * out)
    assert objective(given).loss.item() == pytest.approx(math.log(12))
    alike = made()
    first = torch.tensor([5, 1, 2, 3, 4])
    for head, shift in ((alike.teacher.head, 0), (alike.head, 1)):
        order = torch.cat([first, first])
        order[0] += shift  # the student's first view of one image differs
        wanted = F.one_hot(order, 12).float()
        head.register_forward_hook(lambda _, __, out, w=wanted: out + 0 * out + 9 * _fit(w, out))
    total, count = alike(given).metrics["same_prototype"]
    assert float(total) == pytest.approx(4.5) and count == 5


def _fit(wanted: Tensor, out: Tensor) -> Tensor:
    """Those rows, then nothing for the local views."""
    return torch.cat([wanted, wanted.new_zeros(len(out) - len(wanted), wanted.shape[1])])


def test_freed_prototypes_are_updated_as_if_they_were_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the authors' code, where they have no gradient while they are frozen: by PyTorch's own
    AdamW, which leaves out what has none. The first update of all is the learning rate itself."""
    settings: list[tuple[float, float]] = []  # of each step: learning rate, weight decay
    before: dict[str, list[Tensor]] = {name: [] for name in PROTOTYPES}
    gradients: dict[str, list[Tensor]] = {name: [] for name in PROTOTYPES}
    update = Strategy.update

    def noted(strategy: Strategy) -> tuple[Tensor, Tensor]:
        first = strategy.optimizer.param_groups[0]
        settings.append((first["lr"], first["weight_decay"]))
        for name in PROTOTYPES:
            p = strategy.objective.get_parameter(name)
            before[name].append(p.detach().clone())
            gradients[name].append(p.grad.clone())
        return update(strategy)

    monkeypatch.setattr(Strategy, "update", noted)
    words = altered(DINO, f"out={tmp_path}", "name=run", "dino.freeze=0.4", "dino.lengths=true")
    words += ["optim.clip=null", "optim.weight_decay=0.4", "optim.weight_decay_end=0.1"]
    done = run(words)
    saved = checkpoint.load(checkpoint.list_checkpoints(done.checkpoints)[-1])
    for name, decayed in zip(PROTOTYPES, (True, False), strict=True):
        drawn = before[name][0]
        assert all(torch.equal(one, drawn) for one in before[name][:6])  # steps 0 to 4 of 12
        moved, (lr, decay) = before[name][6], settings[5]
        wanted = drawn * (1 - lr * decay * decayed) - lr * gradients[name][5].sign()
        seen = gradients[name][5].abs() > 1e-5  # AdamW adds 1e-8 to it
        assert seen.any() and lr > 0
        torch.testing.assert_close(moved[seen], wanted[seen], rtol=0, atol=2e-3 * lr)
        plain = nn.Parameter(drawn.clone())
        adamw = AdamW([plain], betas=tuple(done.recipe.optim.betas), foreach=False, fused=False)
        for step, (lr, decay) in enumerate(settings):
            adamw.param_groups[0].update(lr=lr, weight_decay=decay * decayed)
            plain.grad = gradients[name][step] if step >= 5 else None
            adamw.step()
        torch.testing.assert_close(saved["objective"][name], plain.detach(), rtol=0, atol=1e-7)
        assert saved["moments"][name]["step"] == 7
    assert saved["moments"]["head.mlp.0.weight"]["step"] == 12


def test_groups_of_koleo_that_do_not_divide_a_pass_are_refused_at_first(tmp_path: Path) -> None:
    """In a compiled step it would be no line, and the run had begun."""
    words = altered(DINO, "dino.koleo=0.1", "dino.koleo_group=5", f"out={tmp_path}", "name=run")
    with pytest.raises(UserError, match=r"dino\.koleo_group=5: .*16"):
        run(words)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Unbroken]:
    """With all that is scheduled; prototypes are frozen until after step 4, behind which a killed
    run goes on, and until it."""
    ways = (
        ("dino.freeze=0.4", "dino.lengths=true", "dino.koleo=0.1", "optim.average=0.5"),
        ("dino.freeze=0.3", "dino.balance=sinkhorn"),
    )
    words = altered(DINO, "dino.teacher_temperature=[0.04,0.07]", "dino.warmup=0.7")
    words = altered(words, "eval.collapse=4", "data.validation=0.002")
    return [Unbroken.of(altered(words, *own), tmp_path_factory.mktemp("dino")) for own in ways]


def test_a_killed_run_goes_on_to_the_same_end(runs: list[Unbroken]) -> None:
    """With its teacher, centre and schedules, and averaged weights."""
    for whole in runs:
        assert_a_killed_run_ends_as(whole)
    assert runs[0].state()["assign.centre_K"].abs().sum() > 0


def test_the_teachers_encoder_and_head_are_exported(runs: list[Unbroken]) -> None:
    state, export = runs[1].state(), runs[1].folder / "export"
    for name, value in load_file(export / "model.safetensors").items():
        assert torch.equal(state[f"teacher.encoder.backbone.{name}"], value)
    heads = load_file(export / "heads.safetensors")
    owned = {name for name in heads if name.startswith("head.")}
    assert owned and heads.keys() - owned == {"assign.centre_K", "assign.temperature"}
    assert all(torch.equal(heads[name], state[f"teacher.{name}"]) for name in owned)
    assert not torch.equal(state["teacher.head.mlp.0.weight"], state["head.mlp.0.weight"])
    block = "encoder.backbone.blocks.0.mlp.fc1.weight"
    assert not torch.equal(state[f"teacher.{block}"], state[block])
