"""Train two views of an image to match, and views of different images to differ (MoCo v3).

After Chen, Xie and He (2021). Keys come from a momentum copy of encoder and projector.

Legend: B images of this process, G images of all processes, V views (2), D width of the encoder, C
width of the vectors that are compared.
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
COPY = "momentum."  # prefix of the copy's tensors in a state


def mlp(layers: int, inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Build the MLP of projector and predictor (`_build_mlp` of the authors' code).

    Linear layers have no biases. Batch norm and ReLU follow every layer except the last, which is
    followed by a batch norm without scale and shift.

    Args:
        layers: Number of linear layers.
        inputs: Width of the input.
        hidden: Width of the hidden layers.
        outputs: Width of the output.
    """
    parts: list[nn.Module] = []
    widths = [inputs, *[hidden] * (layers - 1)]
    for width, following in itertools.pairwise(widths):
        parts += [nn.Linear(width, following, bias=False), GlobalBatchNorm(following), nn.ReLU()]
    parts += [nn.Linear(widths[-1], outputs, bias=False), GlobalBatchNorm(outputs, affine=False)]
    return nn.Sequential(*parts)


class MomentumCopy(nn.Module):
    """Running average of an encoder and a projector, without gradients."""

    def __init__(self, encoder: Backbone, projector: nn.Module) -> None:
        super().__init__()
        self.encoder = teacher.frozen_copy(encoder)
        self.projector = teacher.frozen_copy(projector)


class MomentumContrast(Objective):
    """MoCo v3: the loss is ctr(q1, k2) + ctr(q2, k1) (section 3, equation 1 and algorithm 1).

    q1 and q2 are queries for the two views of an image: predictions from the encoder's class
    tokens. k1 and k2 are keys for the views: projections by the momentum copy. ctr is 2 *
    temperature * cross-entropy, as in the authors' code. The cross-entropy is that of finding the
    image's key among the keys of the global batch, with the logits cosine similarity / temperature.

    In evaluation, no process waits for another: the keys are those of the process's own batch, and
    batch norms use the running mean and variance.

    Args:
        encoder: Network that computes the features.
        temperature: Temperature tau of equation 1.
        momentum: Momentum of the copy in the first step. The momentum rises to 1 along a cosine.
        hidden: Width of the hidden layers of projector and predictor.
        width: Width C of the vectors that are compared.
        freeze_patches: Whether the patch projection keeps its initial weights (section 4.2).
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
        # The contrastive loss magnifies rounding: another kernel changes it by 1e-4 in 40 steps
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
        """Return the momentum, and pairs (weight of the momentum copy, original weight).

        The momentum rises from `first_momentum` to 1 along a cosine, as with the authors' option
        `--moco-m-cos`.

        Args:
            progress: Share of the run that is done after the step, from 0 to 1.
        """
        momentum = teacher.cosine_momentum(self.first_momentum, progress)
        copy = self.momentum  # a `MomentumCopy`
        copies = [(copy.encoder, self.encoder), (copy.projector, self.projector)]
        return momentum, teacher.pair_parameters(*copies)

    def forward(self, batch: Batch) -> Output:
        views_BV3HW = both_views(batch)
        q_VBC = [self.predictor(z) for z in _project(self.encoder, self.projector, views_BV3HW)]
        with torch.no_grad():
            copy = self.momentum
            k_VBC = _project(copy.encoder, copy.projector, views_BV3HW)
        # The queries of a view are compared with the keys of the other view
        results = [self._contrast(q_VBC[v], k_VBC[1 - v]) for v in range(VIEWS)]
        loss_B = torch.stack([loss for loss, _ in results]).sum(0)
        correct_B = torch.stack([correct for _, correct in results]).double().mean(0)
        return Output(loss_B.mean(), sums(loss=loss_B, accuracy=correct_B))

    def _contrast(self, q_BC: Tensor, k_BC: Tensor) -> tuple[Tensor, Tensor]:
        """Compare each query with the keys of all images.

        Each query should be most similar to the key of the same image. The loss is the function ctr
        of the paper's algorithm 1: 2 * temperature * cross-entropy (equation 1). The factor makes
        training less sensitive to the temperature.

        Args:
            q_BC: Queries of a view.
            k_BC: Keys of the other view.

        Returns:
            The loss of each query (B,), and whether the most similar key belongs to the same image,
            bool (B,).
        """
        # In bfloat16, similarities / temperature would be rounded to 2 or 3 digits
        with full_precision(q_BC.device):
            k_GC = F.normalize(k_BC.float(), dim=1)
            same_image_B = torch.arange(len(q_BC), device=q_BC.device)  # row in k_GC
            if self.training:
                k_GC = global_batch.gather(k_GC)
                same_image_B = same_image_B + len(q_BC) * global_batch.rank()
            logits_BG = F.normalize(q_BC.float(), dim=1) @ k_GC.T / self.temperature
            loss_B = F.cross_entropy(logits_BG, same_image_B, reduction="none")
        correct_B = logits_BG.detach().argmax(1) == same_image_B
        return 2 * self.temperature * loss_B, correct_B

    def baselines(self, batch: Batch) -> Metrics:
        """Return the loss and the accuracy of choosing one of the batch's n keys at random.

        The accuracy is 1 / n. The cross-entropy of each view is log(n).
        """
        images = len(batch.key)
        num_images = torch.tensor(float(images), dtype=torch.float64, device=batch.key.device)
        # As in `_contrast`, the loss of a view is 2 * temperature * cross-entropy
        loss = VIEWS * 2 * self.temperature * math.log(images)
        return {
            "chance_loss": (num_images * loss, num_images),
            "chance": (num_images / images, num_images),
        }


def _project(encoder: Backbone, projector: nn.Module, views_BV3HW: Tensor) -> list[Tensor]:
    """Return the projections (B, C) of the images, for each of the V views.

    The encoder runs once on all views. The projector runs once per view, so that batch statistics
    are computed per view. (In the authors' code the encoder runs once per view, too.)

    Args:
        encoder: The encoder, or its momentum copy.
        projector: The projector, or its momentum copy.
        views_BV3HW: Two views of each image.
    """
    feature_BD = encoder.feature(views_BV3HW.transpose(0, 1).flatten(0, 1), "token")
    return [projector(x_BD) for x_BD in feature_BD.chunk(VIEWS)]


def build(settings: Settings, encoder: Backbone, classes: int) -> MomentumContrast:
    return MomentumContrast(encoder, **settings.group(MocoOptions).model_dump())
