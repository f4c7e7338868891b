"""The screen: calm between steps, complete at the end, and held-out results always."""

import io
import sys

import pytest

from ssl_vit.runs import console


class Clock:
    """time.monotonic, told what to say."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(console.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def row(step, **more):
    return {
        "step": step,
        "loss": 3.14159,
        "accuracy_masked": 0.25,
        "images_per_s": 1234.5,
        "data_wait": 0.07,
        **more,
    }


def held_out(step):
    shares = {"accuracy_masked": 0.5, "accuracy_random": 0.125, "accuracy_kept": 1.0}
    return {"step": step, "validation/loss": 2.5} | {
        f"validation/{name}": value for name, value in shares.items()
    }


def printed(capsys):
    return capsys.readouterr().out.splitlines()


def test_lines_come_no_faster_than_every_few_seconds_and_after_the_last_step(clock, capsys):
    lines = console.ProgressLines(0, 1000)
    timed = []
    for step in range(1, 1001):
        clock.now += 0.1
        lines.on_step(step)
        lines.on_row(row(step))
        timed += [(step, text) for text in printed(capsys)]
    at = [step for step, _ in timed]
    assert at[-1] == 1000
    assert (
        min(b - a for a, b in zip([0, *at[:-2]], at[:-1], strict=True)) * 0.1
        >= console.LINE_INTERVAL - 1e-6
    )
    assert len(at) in (19, 20)  # 100 s
    assert all(text.startswith(f"step {step:>6}/1000  loss 3.142  ") for step, text in timed)


def test_a_day_has_a_few_hundred_lines(clock, capsys):
    lines = console.ProgressLines(0, 8640)
    for step in range(1, 8641):
        clock.now += 10
        lines.on_step(step)
        lines.on_row(row(step))
    at = [int(text[5:11]) for text in printed(capsys)]
    assert 200 < len(at) < 500 and at[-1] == 8640
    assert at[:3] == [1, 2, 3] and at[-2] - at[-3] > 100


def test_a_line_says_how_it_goes_and_how_long_it_takes(clock, capsys):
    lines = console.ProgressLines(40, 100)
    clock.now += 30
    lines.on_row(row(50))
    (text,) = printed(capsys)
    assert (
        text
        == "step     50/100  loss 3.142  accuracy masked 25.0%  1,234 images/s  data wait 7%  left 2 min "
        "30 s"
    )


def test_the_last_step_is_told_even_at_once(clock, capsys):
    lines = console.ProgressLines(0, 10)
    clock.now += console.LINE_INTERVAL
    lines.on_row(row(9))
    clock.now += 0.001
    lines.on_row(row(10))
    assert [text.split("/")[0] for text in printed(capsys)] == ["step      9", "step     10"]


def test_held_out_results_are_told_at_once(clock, capsys):
    lines = console.ProgressLines(0, 100)
    right = (
        "held out at step {}: loss 2.500, accuracy masked 50.0%, accuracy random 12.5%, "
        "accuracy kept 100.0%"
    )
    lines.on_row(held_out(7))
    lines.on_row(row(8) | held_out(8))
    assert printed(capsys) == [right.format(7), right.format(8)]
    clock.now += console.LINE_INTERVAL
    lines.on_row(row(9) | held_out(9))
    assert [text.split(":")[0][:11] for text in printed(capsys)] == ["step      9", "held out at"]


def test_held_out_results_stand_beside_the_best_baseline(clock, capsys):
    """Of a loss the lowest, of an accuracy the highest; each objective's own."""
    baselines = {"entropy": 5.0, "commonest": 0.015, "neighbors": 0.125, "supervised/chance": 0.1}
    lines = console.ProgressLines(0, 100, baselines)
    supervised = {"validation/supervised/accuracy": 0.25}
    lines.on_row(held_out(7) | {"validation/loss_masked": 2.75} | supervised)
    (text,) = printed(capsys)
    assert "loss 2.500, accuracy masked 50.0% (to beat 12.5%), accuracy random 12.5%" in text
    # measured on masked patches, as the loss of these
    assert "loss masked 2.750 (to beat 5.000), supervised/accuracy 25.0% (to beat 10.0%)" in text


def test_a_line_has_the_memory(clock, capsys):
    lines = console.ProgressLines(0, 10)
    clock.now += 60
    lines.on_row(row(5, memory_gib=1.26))
    assert "data wait 7%  peak 1.3 GiB  left" in printed(capsys)[0]


def test_held_out_results_do_not_quieten_the_steps(clock, capsys):
    lines = console.ProgressLines(0, 100)
    clock.now += 3
    lines.on_row(held_out(7))
    clock.now += 2
    lines.on_row(row(8))
    assert len(printed(capsys)) == 2


def test_warnings_are_told_at_once(clock, capsys):
    console.ProgressLines(0, 100).on_warning("the board is full")
    assert printed(capsys) == ["warning: the board is full"]


def test_rows_without_a_loss_are_passed_over(clock, capsys):
    lines = console.ProgressLines(0, 10)
    clock.now += 60
    lines.on_row({"step": 10})
    assert printed(capsys) == []


def test_a_table_has_two_columns(capsys):
    console.table([("run", "x"), ("optimiser", "AdamW")])
    assert printed(capsys) == ["run         x", "optimiser   AdamW"]


@pytest.mark.parametrize(
    ("terminal", "kind"), [(True, console.ProgressBar), (False, console.ProgressLines)]
)
def test_a_bar_is_for_terminals_only(monkeypatch, terminal, kind):
    out = io.StringIO()
    out.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stdout", out)
    callback = console.progress(0, 10)
    callback.close()
    assert type(callback) is kind


def test_a_bar_keeps_held_out_results_and_warnings_on_the_screen(monkeypatch):
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
    assert (
        "held out at step 7: loss 2.500, accuracy masked 50.0%" in text
        and "warning: odd [text]" in text
    )
