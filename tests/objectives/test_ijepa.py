"""I-JEPA: its loss and gradients against a plain implementation in float64, and its
picture. Its masks are in test_ijepa_masks.py, its
teacher and what the workbench does for it in test_teacher.py."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from helpers.built import Objective, built
from helpers.exactness import assert_is_plain, shaken
from helpers.view_batches import image_batch
from ssl_vit.data.batching import Batch
from ssl_vit.models import encoder

GRID = 4


def made() -> Objective:
    words = "ijepa.blocks=3", "ijepa.width=16", "ijepa.depth=2", "ijepa.heads=2"
    return shaken(built("recipe=ijepa", *words))


# The referee: of a copy in float64, an image and a block at a time, from the paper and the authors'
# models/vision_transformer.py and train.py


def plain_tokens(net: encoder.Encoder, image: Tensor, visible: list[int]) -> Tensor:
    """Of one image: class token and the visible patches with their positions, timm's blocks."""
    vit = net.backbone
    pixels = (image[None].double() - net.mean) / net.std
    patch = vit.patch_embed.proj(pixels).flatten(2)[0].T + vit.pos_embed[0, 1:]
    rows = [vit.cls_token[0, 0] + vit.pos_embed[0, 0], *(patch[n] for n in visible)]
    return vit.norm(vit.blocks(torch.stack(rows)[None]))[0]


def plain_predicted(
    objective: Objective, h: Tensor, visible: list[int], target: list[int]
) -> Tensor:
    predictor = objective.predictor
    place = predictor.position_TW[1:]  # test_mae.py has their values
    rows = [predictor.embed(h[0])]
    rows += [predictor.embed(one) + place[n] for one, n in zip(h[1:], visible, strict=True)]
    rows += [predictor.mask_token + place[n] for n in target]
    x = predictor.blocks(torch.stack(rows)[None])
    return objective.head(predictor.norm(x))[0, -len(target) :]


def plain_loss(objective: Objective, given: Batch, blocks: NamedTuple) -> Tensor:
    """Of weights and blocks that are given."""
    losses = []
    pairs = zip(blocks.visible_BV.tolist(), blocks.target_BMK.tolist(), strict=True)
    for image, (visible, targets) in zip(given.image, pairs, strict=True):
        with torch.no_grad():
            taught = plain_tokens(objective.teacher.encoder, image, list(range(GRID**2)))[1:]
            taught = taught - taught.mean(1, keepdim=True)
            taught = taught / (taught.square().mean(1, keepdim=True) + 1e-5).sqrt()
        h = plain_tokens(objective.encoder, image, visible)
        for target in targets:
            away = (plain_predicted(objective, h, visible, target) - taught[target]).abs()
            losses.append(torch.where(away < 1, away.square() / 2, away - 0.5).mean())
    return torch.stack(losses).mean()


def test_loss_and_gradients_are_those_of_a_plain_implementation() -> None:
    objective, given = made(), image_batch(5)
    blocks = objective.masks(given.key)
    assert_is_plain(objective, given, lambda plain: plain_loss(plain, given, blocks))
    still = [name for name, p in objective.named_parameters() if not p.requires_grad]
    assert still and all(name.startswith("teacher.") for name in still)


def test_the_spread_of_features_by_hand() -> None:
    """Of all patches, after the norm of channels; 0 where all are the same."""
    objective, given = made(), image_batch(5)
    taught = objective._teacher_features(given.image)
    by_hand = sum(one.double().numpy().std(0).mean() for one in taught)
    total, count = objective(given).metrics["feature_spread"]
    assert count == 5 and float(total) == pytest.approx(by_hand, rel=1e-5)
    objective.teacher.encoder.backbone.norm.weight.data.zero_()
    total, _ = objective(given).metrics["feature_spread"]
    assert float(total) == pytest.approx(0, abs=1e-5)


def test_the_picture_shows_where_predictions_are_near_the_teachers() -> None:
    """White where they are the same, black where they are opposite; elsewhere the image."""
    objective, given = made(), image_batch(5)
    blocks = objective.masks(given.key)

    def pixels(index: Tensor) -> Tensor:
        place = torch.zeros(len(given.key), GRID**2, dtype=torch.bool).scatter(1, index, True)
        place = place.unflatten(1, (GRID, GRID)).repeat_interleave(4, 1).repeat_interleave(4, 2)
        return place[:, None].expand_as(given.image)

    predicted, visible = pixels(blocks.target_BMK.flatten(1)), pixels(blocks.visible_BV)
    objective.head.weight.data.zero_()
    for sign, level in ((1, 255), (-1, 0)):
        feature_BND = torch.full((len(given.key), GRID**2, 32), 1.0)
        objective._teacher_features = lambda image, feature_BND=feature_BND: feature_BND
        objective.head.bias.data.fill_(float(sign))
        found = objective.panels(given)
        assert torch.equal(found["original"], given.image)
        assert torch.equal(found["visible"][visible], given.image[visible])
        assert (found["visible"][~visible] == 128).all()
        assert (found["similarity"][predicted] == level).all()
        assert torch.equal(found["similarity"][~predicted], given.image[~predicted])
