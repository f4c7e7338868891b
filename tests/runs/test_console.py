"""The screen: calm between steps, complete at the end, and held-out results always."""

import io
import sys

import pytest

from ssl_vit.callbacks import Row
from ssl_vit.runs import console


class Clock:
    """time.monotonic, told what to say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(console.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def row(step: int, **more: float) -> Row:
    measured = {"loss": 3.14159, "accuracy_masked": 0.25, "lr": 0.00025}
    return {"step": step, **measured, "images_per_s": 1234.5, "data_wait": 0.07, **more}


def held_out(step: int, **more: float) -> Row:
    values = {"loss": 2.5, "accuracy_masked": 0.5, "accuracy_random": 0.125, **more}
    return {"step": step} | {f"validation/{name}": value for name, value in values.items()}


def printed(capsys: pytest.CaptureFixture) -> list[str]:
    return capsys.readouterr().out.splitlines()


def steps_of(texts: list[str]) -> list[int]:
    return [int(text.removeprefix("step").partition("/")[0]) for text in texts]


@pytest.mark.parametrize(
    ("steps", "seconds", "few", "many"), [(1000, 0.1, 19, 20), (8640, 10, 200, 500)]
)
def test_lines_come_no_faster_than_every_few_seconds_and_after_the_last_step(
    clock: Clock, capsys: pytest.CaptureFixture, steps: int, seconds: float, few: int, many: int
) -> None:
    """100 s have twenty, a day a few hundred, which come more rarely towards its end."""
    lines = console.ProgressLines(0, steps)
    for step in range(1, steps + 1):
        clock.now += seconds
        lines.on_step(step)
        lines.on_row(row(step))
    at = steps_of(printed(capsys))
    apart = [(b - a) * seconds for a, b in zip([0, *at], at, strict=False)]
    assert few <= len(at) <= many and at[-1] == steps
    assert min(apart[:-1]) >= console.LINE_INTERVAL - 1e-6
    assert apart[-2] > 1000 or steps == 1000


def test_a_line_says_how_it_goes_and_how_long_it_takes(
    clock: Clock, capsys: pytest.CaptureFixture
) -> None:
    lines = console.ProgressLines(40, 100)
    clock.now += 30
    lines.on_row(row(50, memory_gib=1.26))
    (text,) = printed(capsys)
    assert text.split("  ")[-7:] == [
        *("loss 3.142", "accuracy masked 25.0%", "lr 2.5e-04", "1,234 images/s", "data wait 7%"),
        *("peak 1.3 GiB", "left 2 min 30 s"),
    ]
    lines.on_row({"step": 60})  # without a loss
    assert printed(capsys) == []


def test_what_is_measured_is_told_as_training_is(clock: Clock, capsys) -> None:
    for _ in console.with_progress(range(3), 3, "batches"):
        clock.now += 30
    assert printed(capsys)[0] == "measured      1/3  batches  left 1 min 00 s"


def test_held_out_results_and_warnings_are_told_at_once(
    clock: Clock, capsys: pytest.CaptureFixture
) -> None:
    """Beside the best of their baselines; they do not quieten the steps."""
    lines = console.ProgressLines(0, 100)
    baselines = {"commonest": 0.015, "neighbors": 0.125}
    lines.on_row(held_out(7, **baselines))
    lines.on_row(row(8) | held_out(8, **baselines))
    lines.on_warning("the board is full")
    measured = "loss 2.500, accuracy masked 50.0% (to beat 12.5%), accuracy random 12.5%"
    told = [f"held out at step {step}: {measured}" for step in (7, 8)]
    assert printed(capsys) == [*told, "warning: the board is full"]
    clock.now += console.LINE_INTERVAL
    lines.on_row(row(9) | held_out(9))
    assert [text[:11] for text in printed(capsys)] == ["step      9", "held out at"]


@pytest.mark.parametrize(
    ("terminal", "kind"), [(True, console.ProgressBar), (False, console.ProgressLines)]
)
def test_a_bar_is_for_terminals_only(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, kind: type
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stdout", out)
    callback = console.progress(0, 10)
    callback.close()
    assert type(callback) is kind


def test_a_bar_keeps_held_out_results_and_warnings_on_the_screen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    bar = console.ProgressBar(3, 10)
    bar.on_step(7)
    bar.on_row(row(7) | held_out(7))
    bar.on_warning("odd [text]")
    bar.close()
    task = bar.progress.tasks[0]
    assert (task.completed, task.total) == (7, 10) and "loss 3.142" in task.description
    text = " ".join(out.getvalue().split())
    assert "held out at step 7: loss 2.500" in text and "warning: odd [text]" in text
