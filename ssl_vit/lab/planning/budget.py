"""What a run will need, counted before it runs: device-hours, device batch, and warnings about
common mistakes. No torch here; costs/ counts FLOPs and bytes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ... import costs
from ...config.parsing import load_yaml
from ...config.recipe_files import suggest_model
from ...config.schema import Recipe, compared_views
from ...costs import activation_bytes, trained_objectives
from ...data.batch_layout import BatchLayout
from ...errors import UserError

GIB = 2**30
PAPER_BATCH = 4096
PAPER_MPP = 2e-4  # learning rate of MPP: paper, B.1.2
# learning rates of supervised pre-training by data set: paper, Table 3
PAPER_LABELS = {"jft": (2e-4, 3e-4, 4e-4, 6e-4, 8e-4), "imagenet21k": (1e-3,), "imagenet": (3e-3,)}


@dataclass(frozen=True)
class Device:
    """A row of hardware.yaml: peak dense rates in TFLOP/s (None where a precision is not
    supported), memory in GiB."""

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
            raise UserError(
                f"compute.precision={precision}: device={self.name} is not planned in it; say "
                f"{other}"
            )
        return rate


def devices() -> dict[str, Device]:
    """The devices of hardware.yaml by name."""
    rows = load_yaml(Path(__file__).with_name("hardware.yaml"))
    return {name: Device(name, **row) for name, row in rows.items()}


def settle_precision(recipe: Recipe, on: Device | None) -> None:
    """Replace compute.precision=auto: by bfloat16 on a device that has it or if none is named, else
    by float32."""
    if recipe.compute.precision == "auto":
        recipe.compute.precision = "bfloat16" if on is None or on.bfloat16 else "float32"


def hours(exaflop: float, on: Device, precision: str, efficiency: float) -> float:
    """Device-hours at a share `efficiency` of the device's peak."""
    return exaflop * 1e18 / (on.rate(precision) * 1e12 * efficiency) / 3600


def batch_layout(recipe: Recipe, processes: int, on: Device | None) -> BatchLayout | None:
    """The layout that training chooses; None where neither the device nor compute.batch is known.

    Raises:
        UserError: as BatchLayout.divide.
    """
    limit = 1 if on is None else costs.fitting_images(recipe, on.memory * GIB, fused=True)
    wanted = recipe.compute.batch
    layout = BatchLayout.divide(recipe.optim.batch, wanted, limit, 0, processes)
    return layout if wanted or on else None


def warnings_for(
    recipe: Recipe, processes: int, on: Device | None, need: dict[str, int]
) -> Iterator[str]:
    """Warnings about settings that are likely mistakes, one line each."""
    o = recipe.optim
    patches = costs.patches(recipe)
    if recipe.declared.trains and 3 * o.warmup > o.steps:
        share = f"takes {o.warmup / o.steps:.0%} of the run, more than a third"
        yield f"optim.warmup={o.warmup} {share}; try optim.warmup={max(1, o.steps // 10)}"
    # recipes never scale the learning rate with the batch, so a smaller batch keeps the paper's
    if o.name == "adamw" and o.batch != PAPER_BATCH and _has_paper_lr(recipe):
        ratio = o.batch / PAPER_BATCH
        text = (
            f"optim.lr={o.lr:g} is the paper's for a batch of {PAPER_BATCH}, and is never "
            f"scaled; for optim.batch={o.batch}"
        )
        yield (
            f"{text} try {o.lr * ratio:.2g} (in proportion) to {o.lr * ratio**0.5:.2g} (by "
            f"the square root)"
        )
    if on is not None and sum(need.values()) > on.memory * GIB:
        yield _too_large(recipe, processes, on, need)
    layout = batch_layout(recipe, processes, on) if on and compared_views(recipe) else None
    if layout and layout.accumulation_steps > 1:
        each = o.batch // processes
        yield (
            f"objective={recipe.objective} takes a step in one pass, and {layout.device_batch} of"
            f" {each} images a process are estimated to fit; expected more processes=, or"
            f" compute.batch={each} to try"
        )
    if not recipe.model.convolutional and patches < 16:
        yield f"{patches} patches an image are few to learn from; {suggest_model(recipe)}"


def _has_paper_lr(recipe: Recipe) -> bool:
    """Whether the learning rate is the paper's own for this objective and data."""
    rates = {"mpp": (PAPER_MPP,), "supervised": PAPER_LABELS.get(recipe.data.name, ())}
    return any(
        abs(recipe.optim.lr / rate - 1) < 1e-6
        for name in trained_objectives(recipe)
        for rate in rates.get(name, ())
    )


def _too_large(recipe: Recipe, processes: int, on: Device, need: dict[str, int]) -> str:
    """The warning that the tensors do not fit, with the device batch that would."""
    text = (
        f"{sum(need.values()) / GIB:.1f} GiB of tensors a process, device={on.name} has "
        f"{on.memory:g}"
    )
    left = on.memory * GIB - sum(need.values()) + need["activations"]
    most = int(left / activation_bytes(recipe, fused=True))
    if most > 0:
        layout = BatchLayout.divide(recipe.optim.batch, None, most, 0, processes)
        return f"{text}; compute.batch={layout.device_batch} would fit"
    return f"{text}, too few for one image; try zero= with more processes="
