"""A teacher's features as target: loss and gradients of MPP against a plain implementation in
float64, written from the paper and the authors' code; its schedule, its baseline, its keys; a killed
run, and two processes."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.built import Objective, built
from helpers.exactness import (
    Unbroken,
    assert_a_killed_run_ends_as,
    assert_is_plain,
    shaken,
)
from helpers.options import TINY, altered
from helpers.resolving import resolve
from helpers.runs import rows
from helpers.view_batches import image_batch
from ssl_vit.data.batching import Batch
from ssl_vit.errors import UserError
from ssl_vit.models import encoder
from ssl_vit.objectives import corruption

TEACHER = altered(TINY, "target=teacher")


def made(blocks: int = 2) -> Objective:
    shares = "corruption.mask=0.6", "corruption.random=0.2", "corruption.keep=0.2"
    words = "target=teacher", "model.depth=3", f"data2vec.blocks={blocks}", *shares
    return shaken(built(*words))


# The referee, of a copy in float64


def plain_patches(net: encoder.Encoder, image: Tensor) -> list[Tensor]:
    vit = net.backbone
    x = vit.patch_embed.proj((image[None].double() - net.mean) / net.std)
    return [*x.flatten(2)[0].T]


def plain_outputs(net: encoder.Encoder, patches: list[Tensor]) -> list[Tensor]:
    """The patches' tokens after each block of one image."""
    vit = net.backbone
    x = (torch.stack([vit.cls_token[0, 0], *patches]) + vit.pos_embed[0])[None]
    outputs = []
    for block in vit.blocks:
        x = block(x)
        outputs.append(x[0, 1:])
    return outputs


def normalised(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


@torch.no_grad()
def plain_truth(objective: Objective, image: Tensor, blocks: int) -> Tensor:
    net = objective.target.teacher.encoder
    outputs = plain_outputs(net, plain_patches(net, image))[-blocks:]
    return normalised(sum(normalised(one) for one in outputs) / len(outputs))


def smooth(away: Tensor) -> Tensor:
    """Smooth L1 of beta 2: x^2 / 4 up to 2, then |x| - 1."""
    return torch.where(away.abs() < 2, away.square() / 4, away.abs() - 1)


def plain_loss(objective: Objective, given: Batch, blocks: int) -> Tensor:
    net, losses = objective.encoder, []
    drawn = objective.sample_corruption(given)
    for b, image in enumerate(given.image):
        clean = plain_patches(net, image)
        seen = [*clean]
        places = zip(drawn.corrupted_BK[b], drawn.kind_BK[b], drawn.source_BK[b], strict=True)
        for place, kind, source in places:
            new = {
                corruption.MASK: objective.mask_token,
                corruption.RANDOM: clean[int(source) % len(clean)],
                corruption.KEEP: clean[place],
            }
            seen[place] = new[int(kind)]
        h = net.backbone.norm(plain_outputs(net, seen)[-1])[drawn.corrupted_BK[b]]
        truth = plain_truth(objective, image, blocks)[drawn.corrupted_BK[b]]
        losses.append(smooth(objective.head(h) - truth).mean())
    return torch.stack(losses).mean()


@pytest.mark.parametrize("blocks", [2, 3, 6])
def test_loss_and_gradients_are_those_of_a_plain_implementation(blocks: int) -> None:
    """Of 6 blocks all three are averaged. The teacher gets no gradient."""
    objective, given = made(blocks), image_batch(5)
    assert_is_plain(objective, given, lambda plain: plain_loss(plain, given, blocks))
    still = [name for name, p in objective.named_parameters() if not p.requires_grad]
    assert still and all(name.startswith("target.teacher.") for name in still)


def test_the_baseline_is_the_teachers_of_now() -> None:
    """The mean of the visible neighbours' targets; near 0 where all patches have one feature."""
    objective, given = made(), image_batch(2)
    hidden = torch.zeros(2, 16, dtype=torch.bool)
    hidden[:, :2] = True
    found = objective.target.baselines(given.image, hidden)["neighbors_error"]
    plain = deepcopy(objective).double()
    for image, error_N in zip(given.image, found, strict=True):
        truth = plain_truth(plain, image, 2)
        wanted = smooth(truth[0] - truth[[4, 5]].mean(0)).mean()
        assert error_N[0].item() == pytest.approx(wanted.item(), rel=1e-5)
    vit = objective.target.teacher.encoder.backbone
    vit.patch_embed.proj.weight.data.zero_()
    vit.pos_embed.data.zero_()
    found = objective.target.baselines(given.image, hidden)["neighbors_error"]
    assert found.abs().max() < 1e-6


def test_the_picture_is_three_channels() -> None:
    target = made().target
    truth = torch.tensor([0.0, 1.0, -3.0, 5.0])[None, None]
    assert target.render(truth).tolist() == [[[[[128, 176, 0]]]]]


def test_its_keys_are_its_own() -> None:
    resolve(altered(TEACHER, "data2vec.blocks=3", "name=x"))
    for option in ("data2vec.blocks=0", "data2vec.momentum=[0.9]", "data2vec.momentum=[0.9,2]"):
        with pytest.raises(UserError, match=f"^{option.partition('=')[0]}"):
            resolve(altered(TEACHER, option, "name=x"))
    assert "data2vec" not in resolve(altered(TINY, "name=x")).groups


@pytest.mark.parametrize("best", ["loss", "loss_masked"])
def test_nothing_is_chosen_by_its_loss(best: str) -> None:
    """Which a teacher that gives all patches one feature has best."""
    words = altered(TINY, f"checkpoint.best={best}", "name=x")
    assert resolve(words).checkpoint.best == best
    with pytest.raises(UserError, match="collapsed features"):
        resolve(altered(words, "target=teacher"))


def test_joint_training_moves_the_teacher() -> None:
    joint = built("recipe=joint", "target=teacher", "data2vec.momentum=[0.5,0.5]")
    momentum, pairs = joint.averages(0.3)
    assert momentum == 0.5 and len([*pairs]) == len([*joint.encoder.parameters()])
    assert joint.baselines_move


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    return Unbroken.of(TEACHER, tmp_path_factory.mktemp("teacher"))


def test_a_killed_run_goes_on_to_the_same_end(whole: Unbroken) -> None:
    """The checkpoint has the teacher, which is not the encoder any more."""
    assert_a_killed_run_ends_as(whole)
    name, found = "encoder.backbone.blocks.0.mlp.fc1.weight", whole.state()
    assert not torch.equal(found[f"target.teacher.{name}"], found[name])


def test_the_baseline_is_measured_at_each_evaluation(whole: Unbroken) -> None:
    found = [row.get("validation/neighbors_error") for row in rows(whole.folder)]
    assert len({value for value in found if value is not None}) == 3
    assert np.isfinite([value for value in found if value is not None]).all()
