"""The image of held-out predictions shows what was hidden, given and told."""

import numpy as np
import torch

from ssl_vit.config.schema import Data, Model
from ssl_vit.data.batching import Batch
from ssl_vit.inspection import mpp
from ssl_vit.models import encoder
from ssl_vit.objectives import MaskedPatchPrediction, corruption, targets


def test_the_columns_follow_the_corruption_patch_by_patch() -> None:
    torch.manual_seed(0)
    net = encoder.build_encoder(Model(patch=4, width=32, depth=1, heads=2, mlp=64), Data(size=16))
    objective = MaskedPatchPrediction(
        net, targets.Colors(4, 1), rate=0.5, mask=0.4, random=0.3, source="image"
    )
    torch.nn.init.normal_(objective.head.weight)
    image = torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8)
    batch = Batch(image, torch.zeros(6), torch.arange(6), torch.arange(6) * 7919)
    drawn, scores = objective.predict(batch)
    original, saw, predicted, true = mpp.panels(objective, batch).unbind(1)
    assert torch.equal(original, image)
    classes = targets.mean_color(image, 4)
    seen_kinds = set()
    for b in range(6):
        corrupted = dict(zip(drawn.corrupted_BK[b].tolist(), range(8), strict=True))
        for n in range(16):
            at = np.s_[:, 4 * (n // 4) : 4 * (n // 4) + 4, 4 * (n % 4) : 4 * (n % 4) + 4]
            assert (true[b][at] == targets.class_color(classes[b, n])[:, None, None]).all()
            if n not in corrupted:
                assert torch.equal(saw[b][at], image[b][at]) and torch.equal(
                    predicted[b][at], image[b][at]
                )
                continue
            k = corrupted[n]
            kind, source = drawn.kind_BK[b, k].item(), drawn.source_BK[b, k].item() - 16 * b
            seen_kinds.add(kind)
            other = np.s_[
                :,
                4 * (source // 4) : 4 * (source // 4) + 4,
                4 * (source % 4) : 4 * (source % 4) + 4,
            ]
            if kind == corruption.MASK:
                assert (saw[b][at] == mpp.GREY).all()
            else:
                assert torch.equal(saw[b][at], image[b][other if kind == corruption.RANDOM else at])
            assert (predicted[b][at] == targets.class_color(scores[b, k, 0])[:, None, None]).all()
    assert seen_kinds == {corruption.MASK, corruption.RANDOM, corruption.KEEP}
