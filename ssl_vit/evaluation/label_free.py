"""Measure features of images without labels: RankMe, LiDAR, alpha-ReQ, uniformity and alignment.

Nobody knows in general which values are better, so nothing is ranked by these measures. All
measures are computed in float64. docs/evaluate.md explains the measures.

Legend: N images, D width of the features, Q random views of an image, B images of a batch.
"""

import math
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from .. import rng
from ..data import augment
from ..data.batching import Batch
from ..metrics import MEASURES
from ..recipe.probe import Probe
from ..recipe.schema import Recipe, compared_views
from ..recipe.shared_groups import ViewOptions
from ..training.distributed import WatchedAccelerator
from .features import ENCODER, Readers, gather_features
from .probes import effective_rank, entropy_rank

DELTA = 1e-4  # added to LiDAR's covariance within images, as in the paper (Thilak et al., 2024)
# alpha-ReQ fits the eigenvalues number 11 to 100, as the authors' package reptrix. The largest
# eigenvalues do not follow the power law, and the smallest ones suffer from the number of images
FIRST, LAST = 11, 100
FEWEST = 10  # eigenvalues that alpha-ReQ fits at least
KERNEL = 2.0  # uniformity's t (Wang and Isola, 2020)
ROWS = 1024  # rows of a matrix of similarities that are computed at a time
# Views for objectives that do not compare views: random crops and flips
CROPS = ViewOptions(jitter=0.0, grayscale=0.0, blur=[0.0, 0.0], solarize=[0.0, 0.0])


class Views(NamedTuple):
    """Random views as in the training of an encoder, but cut from the evaluated crop of an image.

    Attributes:
        options: Colours, blur and solarisation.
        crop_area: Smallest share of the image's area in a view.
        flip: Whether to flip half of the views.
    """

    options: ViewOptions
    crop_area: float
    flip: bool

    @classmethod
    def of_training(cls, recipe: Recipe) -> "Views":
        """Return the views that a training run uses: its compared views, or else its crops."""
        data = recipe.data
        return cls(compared_views(recipe) or CROPS, data.crop_area, data.flip)

    def draw(self, batch: Batch, count: int) -> Iterator[Batch]:
        """Yield batches whose images are random views of the images of a batch.

        The random numbers depend only on the keys of the samples.

        Args:
            batch: Images.
            count: Number of views of each image.
        """
        if not len(batch.key):  # all images of the batch are unreadable
            yield from [batch] * count
            return
        key_B = rng.stream(batch.key.numpy(), "views of measures without labels")
        images, size = list(batch.image), batch.image.shape[-1]
        for pair in range(-(-count // 2)):  # rounded up
            views_BVCHW = augment.random_views(
                images, rng.bits(key_B, pair), size, self.crop_area, self.flip, self.options
            )
            for view_BCHW in views_BVCHW.unbind(1)[: count - 2 * pair]:
                yield batch._replace(image=view_BCHW)


def measure(
    readers: Readers,
    probe: Probe,
    read_batches: Callable[[int], Iterable[Batch]],
    views: Views,
    accelerator: WatchedAccelerator,
    warn: Callable[[str], None],
) -> dict[str, dict[str, Tensor]]:
    """Measure the features of encoder and baselines without labels. Collective.

    The features are read in full precision, because rounding to bfloat16 adds directions.

    Args:
        readers: {name: reader of the encoder or a baseline}.
        probe: Measures (probe.measures) and their options.
        read_batches: Takes a largest number of images, 0 for all, and returns this process's
            batches.
        views: Random views.
        accelerator: Processes that read images.
        warn: Receives a warning for each measure of the encoder that cannot be computed.

    Returns:
        {name: {measure: its value and the number of images, float64 (2,)}} on rank 0, without the
        measures that cannot be computed. Other processes get the names without measures.
    """
    values: dict[str, dict[str, Tensor]] = {name: {} for name in readers}
    features: dict[tuple[int, int], dict[str, Tensor]] = {}  # by views and images
    for name in probe.measures_that_read("views"):
        needed = probe.needs(name)
        if needed not in features:
            count, most = needed
            with torch.autocast(accelerator.device.type, enabled=False):
                features[needed] = _gather(readers, read_batches(most), count, views, accelerator)
        if not accelerator.is_main_process:
            continue
        compute: Callable[[Tensor], float] = pkgutil.resolve_name(MEASURES[name].code)
        for reader, x in features[needed].items():
            value = math.nan
            if len(x) > 1 and x.isfinite().all():
                with suppress(torch.linalg.LinAlgError):  # a measure must not end a run
                    value = compute(x)
            if math.isfinite(value):
                values[reader][name] = torch.tensor([value, len(x)], dtype=torch.float64)
            elif reader == ENCODER:
                label = MEASURES[name].label or name
                warn(
                    f"{label} is left out, because the features of {len(x):,} images have too few"
                    " directions or are not finite"
                )
    return values


def _gather(
    readers: Readers,
    batches: Iterable[Batch],
    count: int,
    views: Views,
    accelerator: WatchedAccelerator,
) -> dict[str, Tensor]:
    """Gather features of images, or of random views, in the order of the split. Collective.

    Args:
        readers: {name: reader}.
        batches: Batches of this process.
        count: Number Q of views of each image. 0: the images themselves.
        views: Random views.
        accelerator: Processes that read images.

    Returns:
        {name: features, float64 (N, D), or (N, Q, D) of views}.
    """
    chosen = batches
    if count:
        chosen = (view for batch in batches for view in views.draw(batch, count))
    # The sort by image is stable and parts are joined in order, so views stay in order, too
    *_, x_of_name = gather_features(readers, chosen, accelerator)
    shape = (-1, count) if count else (-1,)
    return {
        name: torch.from_numpy(x).double().view(*shape, x.shape[1]) for name, x in x_of_name.items()
    }


def rankme(x_ND: Tensor) -> float:
    """Return RankMe (Garrido et al., 2023), the effective rank of features that are not centred."""
    return effective_rank(x_ND)


def lidar(x_NQD: Tensor) -> float:
    """Return LiDAR (Thilak et al., 2024), the smooth rank of linear discriminant analysis.

    Each image is a class, and its views are the class's samples. The result is between 1 and
    min(N - 1, D). With b the covariance of the images' means and w the mean covariance within an
    image, the eigenvalues of w^(-1/2) b w^(-1/2) are the squares of the singular values of the
    centred means times w^(-1/2), up to a factor.

    Args:
        x_NQD: Features of the views.
    """
    images, views, width = x_NQD.shape
    mean_N1D = x_NQD.mean(1, keepdim=True)
    within = (x_NQD - mean_N1D).flatten(0, 1)
    covariance_DD = within.T @ within / (images * views) + DELTA * torch.eye(width).to(within)
    eigenvalue_D, eigenvector_DD = torch.linalg.eigh(covariance_DD)
    centred_ND = (mean_N1D - mean_N1D.mean(0)).squeeze(1)
    whitened_ND = centred_ND @ eigenvector_DD / eigenvalue_D.clamp(min=DELTA).sqrt()
    # Centring makes the last of N singular values 0 up to rounding
    return entropy_rank(torch.linalg.svdvals(whitened_ND)[: images - 1].square())


def alpha_req(x_ND: Tensor) -> float:
    """Return alpha-ReQ (Agrawal et al., 2022), the decay of the eigenvalues of the covariance.

    The i-th eigenvalue is proportional to i^-alpha. As in the authors' code, a line is fitted to
    the logarithms of the eigenvalues FIRST to LAST, with weights 1/i. Eigenvalues that are 0 up to
    the rounding of float32 features are left out: there are at most min(N - 1, D) others.

    Args:
        x_ND: Features of N images.

    Returns:
        The exponent, or NaN if there are fewer than FEWEST eigenvalues to fit.
    """
    singular_value = torch.linalg.svdvals(x_ND - x_ND.mean(0))[: len(x_ND) - 1]
    rounding = torch.finfo(torch.float32).eps * x_ND.norm()
    last = min(LAST, int((singular_value > rounding).sum()))
    if last < FIRST + FEWEST - 1:
        return math.nan
    index = np.arange(FIRST, last + 1)
    log_eigenvalue = 2 * singular_value[FIRST - 1 : last].log().numpy()
    # np.polyfit multiplies residuals by w, so w^2 is the weight of a squared residual
    slope, _ = np.polyfit(np.log(index), log_eigenvalue, 1, w=index**-0.5)
    return -float(slope)


def uniformity(x_N2D: Tensor) -> float:
    """Return the uniformity of features (Wang and Isola, 2020), the mean over two views.

    For a view, this is log mean exp(-2 |x - y|^2) over all pairs of different images, where x and y
    have length 1. The lowest values are of features that are spread evenly over the sphere.

    Args:
        x_N2D: Features of two views of N images.
    """
    images = len(x_N2D)
    logs = []
    for x_ND in F.normalize(x_N2D, dim=2).unbind(1):
        if not x_ND.any(1).all():  # the direction of a feature that is 0 is not defined
            return math.nan
        # |x - y|^2 = 2 - 2 x'y. The N pairs of an image with itself add exp(0) each
        sums = [(2 * KERNEL * (x @ x_ND.T - 1)).exp().sum() for x in x_ND.split(ROWS)]
        logs.append(((sum(sums) - images) / (images * (images - 1))).log())
    return float(sum(logs) / len(logs))


def alignment(x_N2D: Tensor) -> float:
    """Return the alignment of features (Wang and Isola, 2020).

    This is the mean of |x - y|^2, where x and y are the features of two views of an image, scaled
    to length 1.

    Args:
        x_N2D: Features of two views of N images.
    """
    x_ND, y_ND = F.normalize(x_N2D, dim=2).unbind(1)
    return float((x_ND - y_ND).square().sum(1).mean())
