"""Whether features collapse: what is measured against hand-worked values, the alarm on rows of
known runs, and runs that are made to collapse."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.options import TINY, altered
from helpers.runs import rows, run
from ssl_vit.data.batching import Batch
from ssl_vit.evaluation import collapse
from ssl_vit.evaluation.collapse import CollapseEvaluator
from ssl_vit.jobs import train as train_job
from ssl_vit.models.encoder import build_encoder
from ssl_vit.objectives.ibot import IbotOptions
from ssl_vit.objectives.ibot.network import MaskedSelfDistillation
from ssl_vit.recipe.schema import Data, Model
from ssl_vit.runs.collapse_alarm import CollapseAlarm
from ssl_vit.training.distributed import WatchedAccelerator

ALARM = "features may be collapsing"


def features(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_rank_is_of_what_is_left_after_the_mean() -> None:
    """Of points at the ends of two axes of equal length about any centre it is 2; of a line 1."""
    cross = features([1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0])
    assert collapse.centred_rank(cross + 100) == pytest.approx(2, rel=1e-4)
    line = features([1, 2, 3], [2, 4, 6], [3, 6, 9])
    assert collapse.centred_rank(line) == pytest.approx(1, rel=1e-4)
    # singular values 3 : 1, of shares 3/4 and 1/4
    wide = features([3, 0], [-3, 0], [0, 1], [0, -1])
    wanted = math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    assert collapse.centred_rank(wide + 7) == pytest.approx(wanted, rel=1e-4)


def test_features_that_differ_by_rounding_alone_have_one_direction() -> None:
    generator = torch.Generator().manual_seed(0)
    same = torch.randn(8, generator=generator).expand(100, -1)
    rounding = 1e-8 * torch.randn(100, 8, generator=generator)
    assert collapse.centred_rank((same + rounding).double()) == 1.0
    apart = 1e-3 * torch.randn(100, 8, generator=generator)
    assert collapse.centred_rank((same + apart).double()) > 7


def test_mean_cosine_is_over_pairs_of_different_images() -> None:
    """Of angles 0, 60 and 120 degrees: (1/2 + 1/2 - 1/2) / 3."""
    angle = np.deg2rad([0, 60, 120])
    found = collapse.mean_cosine(5 * torch.tensor(np.stack([np.cos(angle), np.sin(angle)], 1)))
    assert found == pytest.approx(1 / 6)


@pytest.mark.parametrize(
    ("p", "share"),
    [
        ([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], 1.0),
        ([[1, 0, 0, 0], [0, 1, 0, 0]], 0.5),
        ([[0, 1, 0, 0], [0, 1, 0, 0]], 0.0),  # one prototype for all
        ([[0.25] * 4, [0.25] * 4], 0.0),  # all prototypes for all
        ([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]], 0.5),
    ],
)
def test_information_sees_both_ways_to_collapse(p: list[list[float]], share: float) -> None:
    p_BK = torch.tensor(p)
    mean_entropy = float(collapse.entropies(p_BK).mean())
    assert collapse.information(p_BK.double().mean(0), mean_entropy) == pytest.approx(share)


def row(step: int, rank: float) -> dict:
    return {"step": step, "features/effective_rank": rank, "features/mean_cosine": 0.5}


def warned(found: list[dict], known: int = 0, warmup: int = 20) -> list[str]:
    texts: list[str] = []
    alarm = CollapseAlarm(warmup, found[:known], texts.append)
    for one in found[known:]:
        alarm.on_row({"step": one["step"], "loss": 1.0})  # rows between checks
        alarm.on_row(one)
    return texts


def test_the_alarm_needs_two_checks_in_a_row_after_warm_up() -> None:
    low, high = 2.4, 10.0
    steps = [0, 10, 20, 30, 40, 50]

    def of(*ranks: float) -> list[str]:
        return warned([row(step, rank) for step, rank in zip(steps, ranks, strict=False)])

    assert of(high, low, low, high, low, high) == []
    (text,) = of(high, low, low, low, low, low)  # once
    assert text.startswith("step 30: ") and all(said in text for said in ("2.4", "25%", "10.0"))
    again = of(high, high, low, low, high, low)
    assert [text.split(":")[0] for text in again] == ["step 30"]
    steps += [60, 70]
    again = of(high, high, low, low, low, high, low, low)  # again after a check within bounds
    assert [text.split(":")[0] for text in again] == ["step 30", "step 70"]
    assert of(low, low, low, low) == []
    (text,) = of(high, high, high, math.nan, math.nan)
    assert text.startswith("step 40: ")


@pytest.mark.parametrize(
    ("measured", "says"),
    [
        ({"features/mean_cosine": 0.995}, "0.9950"),
        ({"features/information": 0.03}, "3.0%"),
        ({"features/patch_information": 0.02}, "patches and their prototypes is 2.0%"),
    ],
)
def test_the_alarm_of_other_measures(measured: dict[str, float], says: str) -> None:
    found = [row(step, 10) | (measured if step else {}) for step in (0, 20, 40)]
    (text,) = warned(found)
    assert text.startswith("step 40: ") and says in text


def test_the_alarm_of_a_resumed_run_knows_the_checks_before() -> None:
    """And says nothing again of what was said."""
    found = [row(step, rank) for step, rank in ((0, 10), (20, 2), (40, 2), (60, 2))]
    assert len(warned(found)) == len(warned(found, known=2)) == 1
    assert warned(found, known=3) == []


COLLAPSE = altered(TINY, "eval.collapse=4")
DINO = altered(COLLAPSE, "recipe=dino", "views.local_size=8", "dino.prototypes=32")


def test_features_are_looked_at_from_step_0(tmp_path: Path) -> None:
    """Which changes nothing else of the run."""
    words = altered(COLLAPSE, f"out={tmp_path}", "optim.steps=8")
    words = altered(words, "data.validation=0.002")
    looked = run([*words, "name=looked"])
    plain = run(altered(words, "name=plain", "eval.collapse=null"))
    checks = [one for one in rows(looked.folder) if "features/effective_rank" in one]
    assert [one["step"] for one in checks] == [0, 4, 8]
    assert all("features/information" not in one for one in checks)
    assert all(1 <= one["features/effective_rank"] <= 32 for one in checks)
    assert all(-1 <= one["features/mean_cosine"] <= 1 for one in checks)
    without = [
        {name: value for name, value in one.items() if not name.startswith("features/")}
        for one in rows(looked.folder)
        if one["step"]
    ]
    assert without == rows(plain.folder)


def looked_at(size: int, **own: object) -> tuple[CollapseEvaluator, MaskedSelfDistillation]:
    """64 images in batches of a size, and an iBOT that looks at them, in evaluation mode."""
    torch.manual_seed(0)
    options = IbotOptions(prototypes=12, hidden=24, width=10, **own)
    model = Model(patch=4, width=32, depth=2, heads=4, mlp=64)
    objective = MaskedSelfDistillation(build_encoder(model, Data(size=16)), options).eval()
    index = np.arange(64)
    images = np.random.default_rng(0).integers(0, 256, (64, 3, 16, 16), dtype=np.uint8)
    parts = (images, index, index, index)
    batches = [
        Batch(
            *(torch.from_numpy(part[at : at + size]) for part in parts),
            content=index[at : at + size],
        )
        for at in range(0, 64, size)
    ]
    return CollapseEvaluator(batches, "token", WatchedAccelerator(cpu=True)), objective


@pytest.mark.parametrize("balance", ["centre", "sinkhorn"])
def test_batches_of_any_size_measure_as_one(balance: str) -> None:
    """And the patch in the middle is that of the third row and column of 4."""
    found = []
    for size in (8, 32):
        evaluator, objective = looked_at(size, balance=balance)
        found.append(dict(evaluator(0, {}, objective)))
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    assert {"features/information", "features/patch_information"} <= found[0].keys()
    seen: list[Tensor] = []
    objective.teacher.head.mlp.register_forward_hook(lambda _, given, __: seen.append(given[0]))
    tokens = objective.teacher_tokens(evaluator.batches[0].image)
    objective.teacher_logits(tokens)
    assert any(torch.equal(one, tokens[:, 1 + 4 * 2 + 2]) for one in seen)


def test_features_are_read_in_float32_under_autocast() -> None:
    """Else the rank of features that are nearly the same would be that of bfloat16's rounding."""
    evaluator, objective = looked_at(32)
    plain = dict(evaluator(0, {}, objective))
    with torch.autocast("cpu", torch.bfloat16):
        assert dict(evaluator(0, {}, objective)) == plain


def test_first_features_are_measured_once_of_a_run_that_began_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped before its first checkpoint."""
    words = altered(COLLAPSE, f"out={tmp_path}", "name=twice", "data.validation=0.002")

    def stopped(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train_job.loop, "train", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(words)
    assert [one["step"] for one in rows(tmp_path / "twice")] == [0]
    assert sum(one["step"] == 0 for one in rows(run(words).folder)) == 1


SHARP = "dino.teacher_temperature=[0.001,0.001]"  # one prototype for each image


@pytest.mark.parametrize(
    ("words", "collapsed"),
    [
        (DINO, None),
        (altered(DINO, "dino.centre_momentum=1", "dino.momentum=0.9", SHARP), "under 5%"),
    ],
)
def test_a_run_that_collapses_is_flagged(
    words: list[str], collapsed: str | None, tmp_path: Path
) -> None:
    words = altered(words, f"out={tmp_path}", "name=run", "optim.steps=60", "optim.batch=32")
    done = run(altered(words, "eval.every=60", "eval.collapse=15", "data.validation=0.0064"))
    warnings = [
        line for line in (done.folder / "log.txt").read_text().splitlines() if ALARM in line
    ]
    assert len(warnings) == (collapsed is not None)
    assert all(collapsed in line for line in warnings)
    first = next(one for one in rows(done.folder) if one["step"] == 0)
    assert first.get("features/information", 1) > 0.05  # within the bounds, before any step
