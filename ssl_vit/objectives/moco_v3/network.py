"""MoCo v3 (Chen, Xie and He, 2021): two views of an image give the same representation, another
image's views another one. Keys come from a momentum copy of encoder and projector.

Legend: B images of this process, G of all processes, V views (2), C width of what is compared.
"""

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data.augment import VIEWS
from ...data.batching import Batch
from ...models.attention import fuse_on_gpus
from ...models.encoder import Backbone, Encoder
from ...models.full_precision import full_precision
from .. import global_batch, teacher
from ..base import Metrics, Objective, Output, both_views, sums
from ..building import Settings
from ..global_batch import GlobalBatchNorm
from . import MocoOptions

PROJECTOR_LAYERS = 3  # section 4.1, "MLP heads"
PREDICTOR_LAYERS = 2
COPY = "momentum."  # of the copy's names in a state


def mlp(layers: int, inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Linear layers without biases; batch norm and ReLU after all but the last, which a batch norm
    without scale and shift follows (`_build_mlp` of the authors' code)."""
    parts: list[nn.Module] = []
    widths = [inputs, *[hidden] * (layers - 1)]
    for width, following in itertools.pairwise(widths):
        parts += [nn.Linear(width, following, bias=False), GlobalBatchNorm(following), nn.ReLU()]
    parts += [nn.Linear(widths[-1], outputs, bias=False), GlobalBatchNorm(outputs, affine=False)]
    return nn.Sequential(*parts)


class MomentumCopy(nn.Module):
    """Running average of an encoder and its projector, which gets no gradient."""

    def __init__(self, encoder: Backbone, projector: nn.Module) -> None:
        super().__init__()
        self.encoder = teacher.copy_of(encoder)
        self.projector = teacher.copy_of(projector)


class MomentumContrast(Objective):
    """The loss is ctr(q1, k2) + ctr(q2, k1) (section 3, equation 1 and algorithm 1): queries are
    the predictions of the encoder's class tokens, keys the momentum copy's projections.

    ctr is the cross-entropy of finding an image's own key among those of the global batch by
    cosine similarity / temperature, times 2 temperature as in the authors' code. In evaluation the
    keys are this batch's and batch norms use running means, so no process waits for another.

    Args:
        encoder: gives the features.
        temperature: tau of equation 1.
        momentum: of the copy in the first step; it rises to 1 along a cosine.
        hidden: width of the hidden layers of projector and predictor.
        width: C.
        freeze_patches: keep the patch projection at its initial weights (section 4.2).
    """

    def __init__(
        self,
        encoder: Backbone,
        *,
        temperature: float,
        momentum: float,
        hidden: int,
        width: int,
        freeze_patches: bool,
    ) -> None:
        super().__init__(encoder)
        # its contrast magnifies rounding: another kernel moves a loss by 1e-4 within 40 steps
        fuse_on_gpus(encoder)
        self.temperature = temperature
        self.first_momentum = momentum
        self.projector = mlp(PROJECTOR_LAYERS, encoder.width, hidden, width)
        self.predictor = mlp(PREDICTOR_LAYERS, width, hidden, width)
        self.frozen = freeze_patches and isinstance(encoder, Encoder)
        if self.frozen:
            encoder.backbone.patch_embed.requires_grad_(False)
        self.momentum = MomentumCopy(encoder, self.projector)

    def heads(self) -> dict[str, Tensor]:
        return {name: value for name, value in super().heads().items() if COPY not in name}

    def averages(self, progress: float) -> teacher.Averages:
        """The momentum as in the authors' code with `--moco-m-cos`."""
        momentum = teacher.cosine_momentum(self.first_momentum, progress)
        copies = [(self.momentum.encoder, self.encoder), (self.momentum.projector, self.projector)]
        return momentum, teacher.pairs(*copies)

    def forward(self, batch: Batch) -> Output:
        views_BV3HW = both_views(batch)
        q_VBC = [self.predictor(z) for z in _project(self.encoder, self.projector, views_BV3HW)]
        with torch.no_grad():
            copy = self.momentum
            k_VBC = _project(copy.encoder, copy.projector, views_BV3HW)
        pairs = [self._contrast(q_VBC[v], k_VBC[1 - v]) for v in range(VIEWS)]
        loss_B = torch.stack([loss for loss, _ in pairs]).sum(0)
        correct_B = torch.stack([correct for _, correct in pairs]).double().mean(0)
        return Output(loss_B.mean(), sums(loss=loss_B, accuracy=correct_B))

    def _contrast(self, q_BC: Tensor, k_BC: Tensor) -> tuple[Tensor, Tensor]:
        """ctr (B,) of each query, and whether its own key is the nearest."""
        # bfloat16 would round similarities / temperature to 2 or 3 digits
        with full_precision(q_BC.device):
            k_GC = F.normalize(k_BC.float(), dim=1)
            own_B = torch.arange(len(q_BC), device=q_BC.device)
            if self.training:
                k_GC = global_batch.gather(k_GC)
                own_B = own_B + len(q_BC) * global_batch.rank()
            logits_BG = F.normalize(q_BC.float(), dim=1) @ k_GC.T / self.temperature
            loss_B = F.cross_entropy(logits_BG, own_B, reduction="none")
        correct_B = logits_BG.detach().argmax(1) == own_B
        return 2 * self.temperature * loss_B, correct_B

    def baselines(self, batch: Batch) -> Metrics:
        """Guessing: all keys of the batch are equally likely."""
        count = len(batch.key)
        images = torch.tensor(float(count), dtype=torch.float64, device=batch.key.device)
        loss = VIEWS * 2 * self.temperature * math.log(count)
        return {"chance_loss": (images * loss, images), "chance": (images / count, images)}


def _project(encoder: Backbone, projector: nn.Module, views_BV3HW: Tensor) -> list[Tensor]:
    """Projections (B, C) of each view: one pass of the encoder over all, then of the projector,
    whose statistics are a view's own, over each (the authors' code: two passes of both)."""
    feature_BD = encoder.feature(views_BV3HW.transpose(0, 1).flatten(0, 1), "token")
    return [projector(x_BD) for x_BD in feature_BD.chunk(VIEWS)]


def build(settings: Settings, encoder: Backbone, classes: int) -> MomentumContrast:
    return MomentumContrast(encoder, **settings.group(MocoOptions).model_dump())
