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
from .base import Stepped
from .dino import DinoOptions

KOLEO_EPS = 1e-8  # DINOv2's loss/koleo_loss.py
STD = 0.02  # standard deviation of initial weights (vision_transformer.py, `DINOHead`)
SINKHORN_STEPS = 3  # Caron et al., 2020, section 4.1


class Prototypes(nn.Linear, Stepped):
    """Cosine similarities with K directions, each multiplied by a length, which is 1 or learned.

    While `frozen`, at the beginning of the run, the gradient of the prototypes is zero, so that it
    adds nothing to the norm for gradient clipping.
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
        # In bfloat16, the quotients by the temperature would be rounded to 2 or 3 digits
        with full_precision(x_XW.device):
            weight_KW = torch.where(self.frozen, self.weight.detach(), self.weight)
            length_K = torch.where(self.frozen, self.length_K.detach(), self.length_K)
            direction_KW = F.normalize(weight_KW, dim=1)
            return F.linear(F.normalize(x_XW.float(), dim=1), direction_KW) * length_K


class Head(nn.Module):
    """Three linear layers with GELUs in between, the last one narrow, followed by prototypes.

    After Caron et al. (2021, "Network architecture"), whose code calls it `DINOHead`, without batch
    norm.

    Args:
        inputs: C.
        options: widths and prototypes.
        patches: give patches separate prototypes.
        layers: give patches separate linear layers, too.
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
        """Return logits (X, K) of patches, in float32."""
        mlp = self.mlp if self.mlp_of_patches is None else self.mlp_of_patches
        prototypes = self.prototypes if self.of_patches is None else self.of_patches
        return prototypes(mlp(x_XC))

    def forward(self, x_XC: Tensor) -> Tensor:
        """Return logits (X, K) of images, in float32."""
        return self.prototypes(self.mlp(x_XC))


def _layers(inputs: int, hidden: int, width: int) -> nn.Sequential:
    mlp = nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.GELU(),
        nn.Linear(hidden, hidden),
        nn.GELU(),
        nn.Linear(hidden, width),
    )
    for layer in mlp:
        if isinstance(layer, nn.Linear):
            # The authors cut the distribution at 100 STD, which no draw reaches. torch's
            # trunc_normal_ is avoided because its draws depend on the version of torch
            nn.init.normal_(layer.weight, std=STD)
            nn.init.zeros_(layer.bias)
    return mlp


class Teacher(teacher.Teacher):
    """Running average of an encoder and a head."""

    def __init__(self, encoder: Encoder, head: Head) -> None:
        super().__init__(encoder)
        self.head = teacher.copy_of(head).eval()


class Assignment(Stepped):
    """Module that turns a teacher's logits into probabilities of prototypes and prevents collapse.

    With "centre", a running mean of all logits is subtracted before the softmax. The mean moves
    after each training step that is not skipped (equations 1 and 4, algorithm 1). With "sinkhorn",
    the result is the nearest assignment in which all prototypes are equally likely in the batch
    (Caron et al., 2020, equations 3 to 5). Since sinkhorn needs a batch, `forward` takes a softmax
    in evaluation.

    In training, both use the global batch, so `forward` is collective. In evaluation, `assign_all`
    uses the images of all processes.

    Args:
        options: prototypes, balance, momentum of the running mean, warm-up.
        temperatures: the first and the last temperature. The temperature rises linearly during the
            warm-up.
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
        if progress < self.warmup:
            last = first + (last - first) * progress / self.warmup
        self.temperature.fill_(last)

    @torch.no_grad()
    def assign_all(self, logits_XK: Tensor) -> Tensor:
        """Return probabilities (X, K), treating the images of all processes as one batch.

        Processes may hold different numbers of images. Collective. The centre does not move.
        """
        if self.balance == "sinkhorn":
            return self._sinkhorn(logits_XK)
        return F.softmax((logits_XK - self.centre_K) / self.temperature, dim=1)

    @torch.no_grad()
    def forward(self, logits_XK: Tensor, counted_X: Tensor | None = None) -> Tensor:
        """Return probabilities (X, K).

        Args:
            logits_XK: the teacher's logits.
            counted_X: bool, the rows among which sinkhorn makes prototypes equally likely. Default:
                all.
        """
        with full_precision(logits_XK.device):
            if self.balance == "sinkhorn" and self.training:
                return self._sinkhorn(logits_XK, counted_X)
            p_XK = F.softmax((logits_XK - self.centre_K) / self.temperature, dim=1)
            if self.training:
                self.mean_K.copy_(global_batch.mean(logits_XK))
            return p_XK

    def after_step(self, found_inf: Tensor) -> None:
        """Move the centre by the logits of the step, unless the optimiser skipped the step.

        Without balance "centre", nothing moves.
        """
        if self.balance != "centre":
            return
        moved_K = self.centre_K.lerp(self.mean_K, 1 - self.centre_momentum)
        self.centre_K.copy_(torch.where(found_inf, self.centre_K, moved_K))

    def _sinkhorn(self, logits_XK: Tensor, counted_X: Tensor | None = None) -> Tensor:
        """Normalise over prototypes and over images of all processes in turn, images last.

        Computes with logarithms, because exponentials would exceed the range of float32. If no row
        counts, the result is a softmax.
        """
        log_XK = logits_XK / self.temperature
        for _ in range(SINKHORN_STEPS):
            counted_XK = log_XK
            if counted_X is not None:
                counted_XK = log_XK.masked_fill(~counted_X[:, None], -torch.inf)
            mass_K = global_batch.gather(counted_XK.logsumexp(0)[None]).logsumexp(0)
            mass_K = mass_K.masked_fill(mass_K.isneginf(), 0.0)
            log_XK = F.log_softmax(log_XK - mass_K, dim=1)
        return log_XK.exp()


def koleo(x_BC: Tensor, group: int | None = None) -> Tensor:
    """Return the KoLeo loss of each image (B,), which pushes features of different images apart.

    KoLeo is -log of the distance between an image's feature and the nearest feature of another
    image in the group, both of length 1 (Sablayrolles et al., 2019, equation 2; DINOv2: Oquab et
    al., 2024). Both features get a gradient. As in the authors' `KoLeoLoss`, KOLEO_EPS is added to
    each difference of two channels and to the distance. The loss of a single image is 0. Without
    `group`, collective.

    Args:
        x_BC: features.
        group: number of consecutive images in a group. The last group may be smaller. None: the
            images of all processes are one group.
    """
    with full_precision(x_BC.device):
        x_BC = F.normalize(x_BC.float(), dim=1, eps=KOLEO_EPS)
        if group:
            return torch.cat([_to_nearest(x_GC, x_GC, 0) for x_GC in x_BC.split(group)])
        x_GC = global_batch.gather_with_gradient(x_BC)
        return _to_nearest(x_BC, x_GC, len(x_BC) * global_batch.rank())


def _to_nearest(x_BC: Tensor, x_GC: Tensor, first: int) -> Tensor:
    """Return -log of the distance (B,) to the nearest other feature of the group.

    Args:
        x_BC: features of this process.
        x_GC: features of the group, among them those of this process.
        first: row of the group that is the first row of `x_BC`.
    """
    if len(x_GC) == 1:
        return 0 * x_BC.sum(1)
    cosine_BG = x_BC.detach() @ x_GC.detach().T
    own_B = first + torch.arange(len(x_BC), device=x_BC.device)
    nearest_B = cosine_BG.scatter(1, own_B[:, None], -torch.inf).argmax(1)
    distance_B = F.pairwise_distance(x_BC, x_GC[nearest_B], eps=KOLEO_EPS)
    return -(distance_B + KOLEO_EPS).log()


def cross_entropies(p_TXK: Tensor, logits_SXK: Tensor, temperature: float) -> Tensor:
    """Return the cross-entropies (X, T, S) between T teacher views and S student views.

    Args:
        p_TXK: the teacher's probabilities.
        logits_SXK: the student's logits.
        temperature: divides the student's logits.
    """
    with full_precision(logits_SXK.device):
        log_SXK = F.log_softmax(logits_SXK / temperature, dim=-1)
        return -torch.einsum("txk,sxk->xts", p_TXK, log_SXK)
