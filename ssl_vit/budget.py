"""What a run will need, counted before it runs: pictures, bytes of tensors, device-hours; and what a careful colleague would
say of it. No torch here; compute.py counts the work."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import compute, counted
from .data.shapes import SIZES
from .recipe import EMBEDDED, Data, Recipe, UserError
from .words import advise_model, load

GIB = 2**30
# Pictures of each split as published: JFT after the paper's 4.1, the others after their authors. A local copy may hold fewer.
PUBLISHED: dict[str, dict[str, int]] = {
    EMBEDDED: SIZES,
    "cifar10": {"train": 50_000, "test": 10_000},
    "cifar100": {"train": 50_000, "test": 10_000},
    "tinyimagenet": {"train": 100_000, "validation": 10_000},
    "imagenet": {"train": 1_281_167, "validation": 50_000},
    "imagenet21k": {"train": 14_197_122},
    "jft": {"train": 303_000_000},
    "pets": {"train": 3_680, "test": 3_669},
    "flowers102": {"train": 1_020, "validation": 1_020, "test": 6_149},
}
ANSWERS = {"mean_color": 512, "grid_color": 16 * 512}  # that MPP's head gives a patch (B.1.2); pixels: 3 P^2
STEM_BYTES = 2200  # a pixel, in a ResNet-50's stem, float32; measured: 2,172 with stages (3, 4, 9), 1,913 with (3, 4, 6, 3)
PAPER_BATCH = 4096
PAPER_MPP = 2e-4  # B.1.2
PAPER_LABELS = {"jft": (2e-4, 3e-4, 4e-4, 6e-4, 8e-4), "imagenet21k": (1e-3,), "imagenet": (3e-3,)}  # Table 3


@dataclass(frozen=True)
class Device:
    """A row of hardware.yaml: peak dense rates in TFLOP/s (None: not planned in that precision), memory in GiB."""

    name: str
    bfloat16: float | None
    float32: float | None
    memory: float
    verified: bool = True

    def rate(self, precision: str) -> float:
        """Peak TFLOP/s.

        Raises:
            UserError: the table has none for this precision.
        """
        rate = self.bfloat16 if precision == "bfloat16" else self.float32
        if rate is None:
            other = "float32" if precision == "bfloat16" else "bfloat16"
            raise UserError(f"compute.precision={precision}: device={self.name} is not planned in it; say {other}")
        return rate


def devices() -> dict[str, Device]:
    """Those of hardware.yaml, by name."""
    rows = load(Path(__file__).with_name("hardware.yaml"))
    return {name: Device(name, **row) for name, row in rows.items()}


def settle(recipe: Recipe, on: Device | None) -> None:
    """Write into the recipe what a precision of auto becomes: bfloat16 on a device that has it, or where none is named."""
    if recipe.compute.precision == "auto":
        recipe.compute.precision = "bfloat16" if on is None or on.bfloat16 else "float32"


def trained_on(data: Data, said: int | None = None) -> int | None:
    """Training pictures after data.share and what data.validation holds out of them (as data/sources.py), of the set as
    published or of `said` many; None where neither is known."""
    whole = said or PUBLISHED.get(data.name, {}).get("train")
    if whole is None:
        return None
    count = whole if data.share == 1 else max(1, round(data.share * whole))
    if not isinstance(data.validation, float) or data.validation == 0:
        return count
    return count - max(1, min(round(data.validation * count), count - 1))


def seen(recipe: Recipe, said: int | None = None) -> int | None:
    """Pictures that a run sends through the encoder: steps x batch, or for an evaluation every picture once."""
    if recipe.objective != "probe":
        return recipe.optim.steps * recipe.optim.batch
    data, splits = recipe.data, PUBLISHED.get(recipe.data.name, {})
    apart = data.validation if isinstance(data.validation, str) else None
    named = [splits.get(name) for name in (data.test, apart) if name]
    train = trained_on(Data(name=data.name, share=data.share), said)
    return None if train is None or None in named else train + sum(n for n in named if n)


def work(recipe: Recipe, pictures: int | None) -> float | None:
    """ExaFLOP of the run: forward and backward, or for an evaluation forward alone."""
    if pictures is None:
        return None
    return compute.exaflop(recipe, pictures) / (3 if recipe.objective == "probe" else 1)


def hours(exaflop: float, on: Device, precision: str, efficiency: float) -> float:
    """Device-hours at a share `efficiency` of the device's peak."""
    return exaflop * 1e18 / (on.rate(precision) * 1e12 * efficiency) / 3600


def parts(recipe: Recipe) -> list[str]:
    """The objectives that are trained: of `joint` those that have a weight."""
    if recipe.objective != "joint":
        return [recipe.objective]
    return [name for name in ("mpp", "supervised") if getattr(recipe.joint, name)]


def parameters(recipe: Recipe) -> int:
    """Parameters of the encoder and of the objective's heads and tokens; a head of unknown size (no data.classes) left out."""
    d, classes = recipe.model.width, recipe.data.classes or 0
    heads = {
        "mpp": d + (d + 1) * answers(recipe),
        "supervised": (d + 1) * classes + (d * (d + 1) if recipe.supervised.hidden else 0),
    }
    return compute.parameters(recipe) + sum(heads.get(name, 0) for name in parts(recipe))


def answers(recipe: Recipe) -> int:
    """Numbers that MPP's head gives for a patch; 0 for a plugin's target."""
    return 3 * recipe.model.patch**2 if recipe.target == "pixels" else ANSWERS.get(recipe.target, 0)


def activations(recipe: Recipe, fused: bool) -> int:
    """Bytes that the backward pass of one picture holds on to, parameters aside, in timm's blocks run as they stand (a
    compiled objective keeps less). T tokens, D width, M MLP, A heads; a value takes w = 2 bytes in bfloat16, 4 in float32.

    Each block: two inputs of norms, T D in float32; queries, keys and values, and the inputs of qkv, of the projection and of
    the MLP, 6 T D w; around the GELU 2 T M w; where attention is not fused its matrices, A T^2 w; where there is dropout its
    masks, 2 T D + T M, of one byte on a GPU and w on a CPU. Then the picture, the embedded patches, the last norm, the head.
    A ResNet's stem is taken as STEM_BYTES a pixel, a wider one as much more as it is wider.
    """
    model, t = recipe.model, compute.tokens(recipe)
    if model.convolutional:
        return round(STEM_BYTES * recipe.data.size**2 * max(1.0, model.width / 2048))
    w = 2 if recipe.compute.precision == "bfloat16" else 4
    mask = (1 if fused else w) if recipe.optim.dropout else 0
    matrices = 0 if fused else w * model.heads * t * t
    block = (
        8 * t * model.width + w * (6 * model.width + 2 * model.mlp) * t + matrices + mask * (2 * model.width + model.mlp) * t
    )
    stem = STEM_BYTES * recipe.data.size**2 if model.hybrid else w * 3 * recipe.data.size**2
    ends = stem + 8 * t * model.width + (4 * t * model.width if mask else 0)
    hit = counted.share(recipe.corruption.rate, t - 1)
    head = hit * (w * model.width + 4 * answers(recipe)) if "mpp" in parts(recipe) else 4 * (recipe.data.classes or 0)
    return compute.passes(recipe) * (ends + model.depth * block) + head


def memory(recipe: Recipe, processes: int, zero: int, batch: int, fused: bool) -> dict[str, int]:
    """Bytes of tensors in one process, by kind, at a device batch of `batch` pictures; at most, as gradients come while
    activations go. What the allocator, CUDA and DeepSpeed's own buffers take comes on top.

    Weights, gradients, moments (AdamW 2, SGD 1 with momentum) and averaged weights in float32; autocast's copies of the
    weights in 16 bits; DDP's buckets, one more copy of the gradients (torch's gradient_as_bucket_view=False). ZeRO-1 shards
    the moments over the processes, -2 the gradients too, -3 the weights too (Rajbhandari et al., 2020, sections 3.1 and 5;
    there Adam's weights are of 16 bits, and their float32 master counts among its states).
    """
    size, o = 4 * parameters(recipe), recipe.optim
    trains = recipe.objective != "probe"
    moments = 2 if o.name == "adamw" else int(o.momentum > 0)
    share = {stage: processes if zero >= stage else 1 for stage in (1, 2, 3)}
    return {
        "weights": -(-size // share[3]),
        "gradients": trains * -(-size // share[2]),
        "moments": trains * -(-moments * size // share[1]),
        "averaged": size if trains and o.average else 0,
        "copies": size // 2 if recipe.compute.precision == "bfloat16" else 0,
        "buckets": size if trains and zero == 0 and processes > 1 else 0,
        "activations": trains * batch * activations(recipe, fused),
    }


def device_batch(recipe: Recipe, processes: int, on: Device | None) -> int | None:
    """Pictures of a pass: compute.batch, or the largest divisor whose activations take half of the device (as machine.py).

    Raises:
        UserError: the batch does not divide.
    """
    batch, wanted = recipe.optim.batch, recipe.compute.batch
    if batch % processes:
        raise UserError(f"optim.batch={batch}: not divisible by processes={processes}")
    share = batch // processes
    if wanted and share % wanted:
        raise UserError(f"compute.batch={wanted}: {processes} processes x {wanted} do not divide optim.batch={batch}")
    if wanted or on is None:
        return wanted
    return _divisor(share, int(on.memory * GIB / 2 / activations(recipe, fused=True)))


def _divisor(share: int, most: int) -> int:
    return max(d for d in range(1, max(1, min(share, most)) + 1) if share % d == 0)


def concerns(recipe: Recipe, processes: int, on: Device | None, need: dict[str, int]) -> Iterator[str]:
    """What a careful colleague would say, one line each."""
    o, patches = recipe.optim, compute.tokens(recipe) - 1
    if recipe.objective != "probe" and 3 * o.warmup > o.steps:
        share = f"takes {o.warmup / o.steps:.0%} of the run, more than a third"
        yield f"optim.warmup={o.warmup} {share}; try optim.warmup={max(1, o.steps // 10)}"
    if o.name == "adamw" and o.batch != PAPER_BATCH and _papers_rate(recipe):
        ratio = o.batch / PAPER_BATCH
        said = f"optim.lr={o.lr:g} is the paper's for a batch of {PAPER_BATCH}, and is never scaled; for optim.batch={o.batch}"
        yield f"{said} try {o.lr * ratio:.2g} (in proportion) to {o.lr * ratio**0.5:.2g} (by the square root)"
    if on is not None and sum(need.values()) > on.memory * GIB:
        yield _too_large(recipe, processes, on, need)
    if not recipe.model.convolutional and patches < 16:
        yield f"{patches} patches a picture are few to learn from; {advise_model(recipe)}"


def _papers_rate(recipe: Recipe) -> bool:
    """Whether the learning rate is the paper's own for this objective and data."""
    rates = {"mpp": (PAPER_MPP,), "supervised": PAPER_LABELS.get(recipe.data.name, ())}
    return any(abs(recipe.optim.lr / rate - 1) < 1e-6 for name in parts(recipe) for rate in rates.get(name, ()))


def _too_large(recipe: Recipe, processes: int, on: Device, need: dict[str, int]) -> str:
    """That the tensors do not fit, and what would."""
    said = f"{sum(need.values()) / GIB:.1f} GiB of tensors a process, device={on.name} has {on.memory:g}"
    left = on.memory * GIB - sum(need.values()) + need["activations"]
    most = int(left / activations(recipe, fused=True))
    if most > 0:
        return f"{said}; compute.batch={_divisor(recipe.optim.batch // processes, most)} would fit"
    return f"{said}, too few for one picture a pass; say zero= with more processes="
