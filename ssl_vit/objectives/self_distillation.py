"""Share code among objectives whose student predicts a teacher's prototypes from another view.

Used by DINO (Caron et al., 2021) and iBOT (Zhou et al., 2022).

Legend: X images, views or patches of this process, C inputs, W width of the bottleneck, K
prototypes. For KoLeo: B images of this process, G images of a group, C channels.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..models.encoder import Encoder
from ..models.full_precision import full_precision
from . import global_batch, teacher
from .base import StepHooks
from .dino import DinoOptions

KOLEO_EPS = 1e-8  # DINOv2's loss/koleo_loss.py
STD = 0.02  # standard deviation of initial weights (vision_transformer.py, `DINOHead`)
SINKHORN_STEPS = 3  # Caron et al., 2020, section 4.1


class Prototypes(nn.Linear, StepHooks):
    """Cosine similarities of features with K prototypes, each multiplied by the prototype's length.

    The lengths are 1 or learned. At the beginning of the run, `frozen` is true. Then the gradient
    of the prototypes is zero, and adds nothing to the gradient norm that is clipped.
    """

    frozen: Tensor

    def __init__(self, options: DinoOptions) -> None:
        super().__init__(options.width, options.prototypes, bias=False)
        length_K = torch.ones(options.prototypes)
        self.length_K = nn.Parameter(length_K, requires_grad=options.lengths)
        self.freeze = options.freeze
        self.register_buffer("frozen", torch.tensor(False))

    def start_step(self, progress: float) -> None:
        self.frozen.fill_(progress < self.freeze)

    def forward(self, x_XW: Tensor) -> Tensor:
        # In bfloat16, similarities / temperature would be rounded to 2 or 3 digits
        with full_precision(x_XW.device):
            weight_KW = torch.where(self.frozen, self.weight.detach(), self.weight)
            length_K = torch.where(self.frozen, self.length_K.detach(), self.length_K)
            direction_KW = F.normalize(weight_KW, dim=1)
            return F.linear(F.normalize(x_XW.float(), dim=1), direction_KW) * length_K


class Head(nn.Module):
    """Projection head: three linear layers with GELUs in between, followed by prototypes.

    This is `DINOHead` of the authors' code, without batch norm (Caron et al., 2021, "Network
    architecture").

    Args:
        inputs: Width C of the encoder's features.
        options: Widths of the layers and number of prototypes.
        patches: Whether patches have separate prototypes.
        layers: Whether patches have separate linear layers.
    """

    def __init__(
        self, inputs: int, options: DinoOptions, patches: bool = False, layers: bool = False
    ) -> None:
        super().__init__()
        widths = inputs, options.hidden, options.width
        self.mlp = _layers(*widths)
        self.prototypes = Prototypes(options)
        self.of_patches = Prototypes(options) if patches else None
        self.mlp_of_patches = _layers(*widths) if layers else None

    def patches(self, x_XC: Tensor) -> Tensor:
        """Return logits (X, K) of patch features (X, C), in float32."""
        mlp = self.mlp if self.mlp_of_patches is None else self.mlp_of_patches
        prototypes = self.prototypes if self.of_patches is None else self.of_patches
        return prototypes(mlp(x_XC))

    def forward(self, x_XC: Tensor) -> Tensor:
        """Return logits (X, K) of image features (X, C), in float32."""
        return self.prototypes(self.mlp(x_XC))


def _layers(inputs: int, hidden: int, width: int) -> nn.Sequential:
    """Build the three linear layers of a head, with the initial weights of the authors.

    Args:
        inputs: Width of the input.
        hidden: Width of the two hidden layers.
        width: Width of the output.
    """
    mlp = nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.GELU(),
        nn.Linear(hidden, hidden),
        nn.GELU(),
        nn.Linear(hidden, width),
    )
    for layer in mlp:
        if isinstance(layer, nn.Linear):
            # The authors truncate the distribution at -2 and 2. This is 100 STD, which no draw
            # reaches. torch's trunc_normal_ is avoided because its draws depend on torch's version
            nn.init.normal_(layer.weight, std=STD)
            nn.init.zeros_(layer.bias)
    return mlp


class Teacher(teacher.Teacher):
    """Running average of an encoder and a head."""

    def __init__(self, encoder: Encoder, head: Head) -> None:
        super().__init__(encoder)
        self.head = teacher.frozen_copy(head).eval()


class Assignment(StepHooks):
    """Module that turns a teacher's logits into probabilities of prototypes and prevents collapse.

    With balance "centre", a running mean of all logits is subtracted before the softmax. The mean
    moves after each training step that is not skipped (equations 1 and 4, algorithm 1). With
    "sinkhorn", a few steps of the Sinkhorn-Knopp algorithm make all prototypes about equally likely
    in the batch (Caron et al., 2020, equations 3 to 5).

    In training, `forward` uses the global batch, so all processes must call `forward` together. In
    evaluation, `forward` is a softmax for both balances, and no process waits for another.
    For the balance over the images of all processes, an evaluation calls `assign_all`.

    Args:
        options: Number of prototypes, balance, momentum of the running mean, warm-up.
        temperatures: Temperature in the first step and after the warm-up. The temperature rises
            linearly in between.
    """

    centre_K: Tensor
    mean_K: Tensor
    temperature: Tensor

    def __init__(self, options: DinoOptions, temperatures: list[float]) -> None:
        super().__init__()
        self.balance = options.balance
        self.centre_momentum = options.centre_momentum
        self.temperatures = temperatures
        self.warmup = options.warmup
        self.register_buffer("centre_K", torch.zeros(options.prototypes))
        # Mean of the logits of the current step, used by `after_step`
        self.register_buffer("mean_K", torch.zeros(options.prototypes), persistent=False)
        self.register_buffer("temperature", torch.tensor(temperatures[0]))

    def start_step(self, progress: float) -> None:
        first, last = self.temperatures
        temperature = last
        if progress < self.warmup:
            temperature = first + (last - first) * progress / self.warmup
        self.temperature.fill_(temperature)

    @torch.no_grad()
    def assign_all(self, logits_XK: Tensor) -> Tensor:
        """Return the probabilities (X, K) of logits, treating all processes' images as one batch.

        All processes must call this method together. They may hold different numbers of images. The
        centre does not move.
        """
        if self.balance == "sinkhorn":
            return self._sinkhorn(logits_XK)
        return F.softmax((logits_XK - self.centre_K) / self.temperature, dim=1)

    @torch.no_grad()
    def forward(self, logits_XK: Tensor, counted_X: Tensor | None = None) -> Tensor:
        """Return the probabilities (X, K) of K prototypes for the teacher's logits.

        In training with balance "sinkhorn", all prototypes are made equally likely in the batch.
        Otherwise, the result is the softmax of (logits - centre) / temperature. With "sinkhorn",
        the centre stays 0.

        Args:
            logits_XK: The teacher's logits.
            counted_X: Rows over which sinkhorn makes all prototypes equally likely, bool. None: all
                rows.
        """
        with full_precision(logits_XK.device):
            if self.balance == "sinkhorn" and self.training:
                return self._sinkhorn(logits_XK, counted_X)
            p_XK = F.softmax((logits_XK - self.centre_K) / self.temperature, dim=1)
            if self.training:
                # `after_step` moves the running mean towards this mean
                self.mean_K.copy_(global_batch.mean(logits_XK))
            return p_XK

    def after_step(self, found_inf: Tensor) -> None:
        """Move the centre, a running mean of the logits, towards the mean logits of the step.

        With balance "sinkhorn", no centre is used, so nothing is done.

        Args:
            found_inf: True if the optimiser skipped the step. Then the centre stays. Bool.
        """
        if self.balance != "centre":
            return
        moved_K = self.centre_K.lerp(self.mean_K, 1 - self.centre_momentum)
        self.centre_K.copy_(torch.where(found_inf, self.centre_K, moved_K))

    def _sinkhorn(self, logits_XK: Tensor, counted_X: Tensor | None = None) -> Tensor:
        """Return probabilities (X, K) by the Sinkhorn-Knopp algorithm.

        Each step divides the columns by their totals over the counted rows of all processes. Then
        the step divides each row by the total of the row. The steps work with logarithms, because
        exponentials would exceed the range of float32. If no row of any process counts, the result
        is a softmax.

        Args:
            logits_XK: The teacher's logits.
            counted_X: Rows that count in the totals of prototypes, bool. None: all rows.
        """
        log_XK = logits_XK / self.temperature
        for _ in range(SINKHORN_STEPS):
            counted_XK = log_XK
            if counted_X is not None:
                counted_XK = log_XK.masked_fill(~counted_X[:, None], -torch.inf)
            # Logarithm of each prototype's total: over rows of each process, then over processes
            mass_K = global_batch.gather(counted_XK.logsumexp(0)[None]).logsumexp(0)
            # If no row counts, each total is 0 and its logarithm -inf: then do not divide
            mass_K = mass_K.masked_fill(mass_K.isneginf(), 0.0)
            log_XK = F.log_softmax(log_XK - mass_K, dim=1)
        return log_XK.exp()


def koleo(x_BC: Tensor, group: int | None = None) -> Tensor:
    """Return the KoLeo loss of each image (B,), which pushes features of different images apart.

    Features are scaled to length 1. KoLeo is -log of the distance between an image's feature and
    the nearest feature of another image in the group (Sablayrolles et al., 2019, equation 2;
    DINOv2: Oquab et al., 2024). The gradient flows into both of these features. As in DINOv2's
    `KoLeoLoss`, KOLEO_EPS is added to each channel of the difference of two features, and to the
    distance. If a group has a single image, the loss of this image is 0.

    Args:
        x_BC: Features of the images.
        group: Number of consecutive images in a group. The last group may be smaller. None: the
            images of all processes form one group, and all processes must call this function
            together.
    """
    with full_precision(x_BC.device):
        x_BC = F.normalize(x_BC.float(), dim=1, eps=KOLEO_EPS)
        if group:
            return torch.cat([_to_nearest(x_GC, x_GC, 0) for x_GC in x_BC.split(group)])
        x_GC = global_batch.gather_with_gradient(x_BC)
        return _to_nearest(x_BC, x_GC, len(x_BC) * global_batch.rank())


def _to_nearest(x_BC: Tensor, x_GC: Tensor, first: int) -> Tensor:
    """Return -log of the distance (B,) from each feature to the nearest other feature of a group.

    Args:
        x_BC: Features of this process, of length 1.
        x_GC: Features of the group, which include `x_BC`.
        first: Row of `x_GC` at which `x_BC` begins.
    """
    if len(x_GC) == 1:
        return 0 * x_BC.sum(1)  # 0 with a gradient
    cosine_BG = x_BC.detach() @ x_GC.detach().T
    row_B = first + torch.arange(len(x_BC), device=x_BC.device)
    # No image may be the nearest image of itself
    nearest_B = cosine_BG.scatter(1, row_B[:, None], -torch.inf).argmax(1)
    distance_B = F.pairwise_distance(x_BC, x_GC[nearest_B], eps=KOLEO_EPS)
    return -(distance_B + KOLEO_EPS).log()


def cross_entropies(p_TXK: Tensor, logits_SXK: Tensor, temperature: float) -> Tensor:
    """Return the cross-entropies (X, T, S) between T teacher views and S student views.

    Args:
        p_TXK: The teacher's probabilities.
        logits_SXK: The student's logits.
        temperature: Temperature that divides the student's logits.
    """
    with full_precision(logits_SXK.device):
        log_SXK = F.log_softmax(logits_SXK / temperature, dim=-1)
        return -torch.einsum("txk,sxk->xts", p_TXK, log_SXK)
