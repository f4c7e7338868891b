"""Rules of what objectives share, corruption and views, and of steps and batches."""

from ..schema import Recipe
from ..shared_groups import CorruptionOptions, ViewOptions
from ..split_counts import selected_count
from .rule import Rule, fewer_than, value_of


def _corruption(r: Recipe) -> CorruptionOptions | None:
    return r.group(CorruptionOptions) if "corruption" in r.groups else None


def _kinds(r: Recipe) -> float:
    """The sum of the shares of corrupted patches by kind."""
    found = _corruption(r)
    return found.mask + found.random + found.keep if found else 1.0


def _grid(r: Recipe) -> int:
    """Patches along a side of an image."""
    return r.data.size // r.model.patch


def _masks_all(r: Recipe) -> bool:
    """Whether masking, the only corruption, takes all patches."""
    found = _corruption(r)
    if found is None or r.model.convolutional or found.mask < 1:
        return False
    return selected_count(found.rate, _grid(r) ** 2) >= _grid(r) ** 2


def _all_masked(r: Recipe) -> str:
    patches = _grid(r) ** 2
    less = f"{fewer_than(patches)}, or corruption.mask below 1"
    return f"masks all of an image's {patches} patches; {less}"


def _views(r: Recipe) -> ViewOptions | None:
    return r.group(ViewOptions) if "views" in r.groups else None


def _blurs_backwards(r: Recipe) -> bool:
    found = _views(r)
    return found is not None and found.blur_sigma[0] > found.blur_sigma[1]


def local_views(r: Recipe) -> ViewOptions | None:
    """The keys of views where there are local ones."""
    found = _views(r)
    return found if found is not None and found.local else None


def _several(key: str) -> Rule:
    """That there are images to compare with one another."""
    return Rule(
        key,
        lambda r: _views(r) and value_of(r, key) == 1,
        "objective={r.objective} compares the images of a batch; expected at least 2",
    )


CORRUPTION = (
    Rule(
        "corruption.mask + .random + .keep",
        lambda r: abs(_kinds(r) - 1) >= 1e-6,
        "the three shares must sum to 1",
        lambda r: f"{_kinds(r):g}",
    ),
    Rule(
        "corruption.side",
        lambda r: (found := _corruption(r)) and found.side != 1 and found.side >= _grid(r),
        lambda r: f"expected less than {_grid(r)}: an image has {_grid(r)} x {_grid(r)} patches",
    ),
    Rule("corruption.rate", _masks_all, _all_masked),
)
VIEWS = (
    _several("optim.batch"),
    _several("eval.images"),
    Rule(
        "views.blur_sigma",
        _blurs_backwards,
        "expected the smaller standard deviation first",
    ),
    Rule(
        "views.local",
        lambda r: local_views(r) and not r.declared.local_views,
        "objective={r.objective} has no use for local views; expected 0",
    ),
    Rule(
        "views.local_size",
        lambda r: (found := local_views(r)) and found.local_size > r.data.size,
        "larger than the other views, data.size={r.data.size}",
    ),
    Rule(
        "views.local_size",
        lambda r: (found := local_views(r)) and found.local_size % r.model.patch,
        "no multiple of model.patch={r.model.patch}",
    ),
    Rule(
        "views.local_area",
        lambda r: (found := local_views(r)) and found.local_area[0] > found.local_area[1],
        "expected the smaller share first",
    ),
    Rule(
        "views.local_area",
        lambda r: (found := local_views(r)) and found.local_area[0] > r.data.crop_area,
        "the smallest is larger than that of the other views, data.crop_area={r.data.crop_area:g}",
    ),
)
LENGTHS = (
    Rule(
        "optim.warmup",
        lambda r: not 0 <= r.optim.warmup < r.optim.steps,
        lambda r: f"not below optim.steps={r.optim.steps}; add optim.warmup={r.optim.steps // 10}",
    ),
    Rule(
        "compute.batch",
        lambda r: r.compute.batch and r.optim.batch % r.compute.batch,
        "does not divide optim.batch={r.optim.batch}",
    ),
    Rule(
        "probe.layer",
        lambda r: (r.probe.layer or 1) > r.model.depth,
        "expected at most model.depth={r.model.depth}",
    ),
)
