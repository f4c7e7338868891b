"""`ssl_vit.objectives.build`: the loss of a run in a loop of one's own."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import ssl_vit
from helpers.exports import of_timm
from helpers.hub_runs import refused
from helpers.options import TINY, altered
from helpers.resolving import resolve
from helpers.runs import run
from ssl_vit.data import pixel_values
from ssl_vit.data.batching import Batch
from ssl_vit.data.open import open_splits
from ssl_vit.errors import UserError
from ssl_vit.training import optim
from ssl_vit.training.strategy import Strategy

SIZES = {"model": {"patch": 4, "width": 32, "depth": 2, "heads": 2, "mlp": 64}, "data.size": 16}
STEPS, SHOWN = 12, 3
# name -> the recipe's options of the objective, as Python values
OBJECTIVES: dict[str, dict[str, Any]] = {
    "mpp": {},
    "mpp teacher": {"target": "teacher"},
    "simmim": {"recipe": "simmim"},
    "mae": {},
    "ijepa": {},
    "moco_v3": {},
    "dino": {"views": {"local_size": 8}, "dino": {"prototypes": 32, "freeze": 0.0}},
    "dino freeze": {"views": {"local_size": 8}, "dino": {"prototypes": 32, "freeze": 0.1}},
    "ibot": {"views": {"local_size": 8}, "ibot": {"prototypes": 32, "freeze": 0.0}},
    "lejepa": {"views": {"local_size": 8}, "lejepa": {"slices": 32}},
    "distill": {},
    "supervised": {},
    "joint": {},
}


def images(count: int = 4, size: int = 16) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)


def scratch() -> Any:
    return ssl_vit.load_encoder("scratch", SIZES)


def as_words(options: dict[str, Any]) -> list[str]:
    """The options as words of a command line."""
    return [
        f"{key}.{inner}={value[inner]}" if inner else f"{key}={value}"
        for key, value in options.items()
        if key != "recipe"
        for inner in (value if isinstance(value, dict) else [""])
    ]


class Step(NamedTuple):
    batch: Batch
    loss: float
    gradients: dict[str, Tensor]


def steps_of_a_run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[dict, list[Step]]:
    """The state of the objective before the first step, and the first steps."""
    state: dict[str, Tensor] = {}
    passes: list[tuple[Batch, Tensor]] = []  # before the first step, a pass measures its time
    steps: list[Step] = []
    run_pass, update = Strategy.run_pass, Strategy.update

    def watched_pass(self: Strategy, batch: Batch, cast: Any, last: bool) -> Any:
        if not steps:
            state.update(
                {name: value.clone() for name, value in self.objective.state_dict().items()}
            )
        output = run_pass(self, batch, cast, last)
        passes.append((batch, output.loss.detach()))
        return output

    def watched_update(self: Strategy) -> Any:
        trained = self.objective.named_parameters()
        gradients = {name: p.grad.clone() for name, p in trained if p.grad is not None}
        batch, loss = passes[-1]
        steps.append(Step(batch, loss.item(), gradients))
        return update(self)

    with monkeypatch.context() as patched:
        patched.setattr(Strategy, "run_pass", watched_pass)
        patched.setattr(Strategy, "update", watched_update)
        run(words)
    return state, steps


@pytest.mark.parametrize("case", OBJECTIVES)
def test_losses_and_gradients_are_those_of_a_run(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the images themselves, of which the views are made from the keys; over several steps, in
    which the teacher moves and the schedules go on."""
    name, options = case.split()[0], dict(OBJECTIVES[case])
    name, recipe = ("mpp", name) if name == "simmim" else (name, name)
    if name == "distill":
        options["distill"] = {"teacher": str(of_timm(tmp_path / "teacher", embed_dim=48))}
    words = altered(
        [*TINY, *as_words(options)],
        *(f"recipe={recipe}", "optim.batch=8", "optim.clip=null", "optim.dropout=0"),
        *("optim.warmup=0", "optim.weight_decay_end=null", "eval.collapse=null", f"out={tmp_path}"),
    )
    given = resolve(words)
    state, steps = steps_of_a_run(words, monkeypatch)
    labels = {"classes": 10} if name in ("supervised", "joint") else {}
    objective = ssl_vit.objectives.build(name, scratch(), steps=STEPS, **labels, **options)
    objective.objective.load_state_dict(state)
    optimizer, schedule = optim.build_optimizer(objective.objective, given.optim)
    objective.follow(optimizer)
    source = open_splits(given.data).splits["train"]
    for step in steps[:SHOWN]:
        seen = step.batch.image
        if step.batch.views is not None:
            raw, _ = source.fetch(step.batch.index.numpy())
            seen = torch.stack([pixel_values.decoder(given.data)(image) for image in raw])
        output = objective(seen, label=step.batch.label, key=step.batch.key)
        output.loss.backward()
        assert output.loss.item() == pytest.approx(step.loss, rel=1e-6)
        worst = 0.0
        for parameter, p in objective.objective.named_parameters():
            if p.grad is not None:
                worst = max(worst, float((p.grad - step.gradients[parameter]).abs().max()))
        print(f"MEASURED {case}: {abs(output.loss.item() - step.loss):.2e} {worst:.2e}")
        assert worst < 1e-6
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
