"""A study keeps to its hours: hand-worked schedules, decisions by time alone, and whole studies on a
clock that only the tests move."""

import json
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from helpers.images import put
from helpers.measurements import written
from helpers.resolving import parse_request
from helpers.worth_setups import ASKED, tasks_of
from ssl_vit.lab import report
from ssl_vit.lab.study import hours, local, read, record, tool, worth
from ssl_vit.lab.study.hours import Group, Hours, HoursPlan, expected_seconds, makespan
from ssl_vit.lab.study.launch import StudyJob
from ssl_vit.lab.study.tasks import plan_tasks
from ssl_vit.lab.study.worth.content import StudySize, order_groups, study_file
from ssl_vit.lab.study.worth.plan import RunSeconds, RunSpeed
from ssl_vit.recipe.given import Arguments, Given

SECONDS = {"pretrain": 100.0, "supervised": 100.0, "tune": 50.0, "final": 50.0, "frozen": 20.0}
EIGHT_SEEDS = StudySize(4, 8, 200)
SEED = 100 + 100 + 50 + 50  # of one seed, one task at a time
TUNING = 100 + 100 + 8 * 50


class Time:
    """Stands in for the module `time`: sleeping moves its clock."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += 1.0


class Child:
    """A task that ends after its time, with a result."""

    def __init__(self, time: Time, ends: float, write: Callable[[], None]) -> None:
        self.time, self.ends, self.write = time, ends, write
        self.killed = False

    def poll(self) -> int | None:
        if self.killed:
            return -9
        if self.time.now < self.ends:
            return None
        self.write()
        return 0

    def terminate(self) -> None:
        self.killed = True

    kill = terminate


class Machine:
    """Runs the tasks of a study without computing anything (a `Place`).

    Args:
        monkeypatch: Puts its clock into the runner.
        folder: Of the study.
        slower: How much longer than planned a task takes.
        parallel: Tasks at once.
        best: Of tuning: {text in a task's name: its accuracy}.
    """

    cores, gpus = 1, False

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        folder: Path,
        slower: float = 1.0,
        parallel: int = 1,
        best: dict[str, float] | None = None,
    ) -> None:
        self.time, self.folder, self.slower = Time(), folder, slower
        self.parallel, self.best = parallel, best or {"init=_supervised": 0.6}
        self.started: list[str] = []
        self.stop_after: int | None = None
        monkeypatch.setattr(local, "time", self.time)

    def start(self, line: Sequence[str], folder: Path, log: Path) -> Child:
        name = folder.name
        self.started.append(name)
        seconds = self.slower * SECONDS[name.partition("-")[0].partition("_")[0]]

        def write() -> None:
            value = next((one for text, one in self.best.items() if text in name), 0.5)
            split = "validation" if name.startswith("tune") else "test"
            metrics = {"accuracy": {"value": value, "n": 100, "split": split}}
            folder.mkdir(exist_ok=True)
            (folder / "result.json").write_text(json.dumps({"measurements": written(metrics)}))

        return Child(self.time, self.time.now + seconds, write)

    def run(
        self, limit: float, extent: StudySize = EIGHT_SEEDS, frozen_first: bool = False
    ) -> dict[str, Any]:
        """Run the study with so many seconds; what hours.json holds."""
        tasks = tasks_of(ASKED, extent)
        job = StudyJob(
            name="worth",
            folder=self.folder,
            tasks=tasks,
            recipes={},
            hours=HoursPlan(limit / 3600, 30.0, SECONDS, frozen_first),
            order=tuple(order_groups(tasks, frozen_first)),
        )
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        processes = local._Processes(job, self)
        if self.stop_after is not None:
            after, say = self.stop_after, local._say

            def interrupt() -> None:
                if len(self.started) > after:
                    processes.signals += 1

            processes._report = interrupt  # type: ignore[method-assign]
            with pytest.raises(KeyboardInterrupt):
                processes.run()
            assert say is local._say
        else:
            processes.run()
        return dict(json.loads((self.folder / "hours.json").read_text()))


def seeds_of(names: Sequence[str]) -> list[int]:
    return sorted({int(name.split("-")[-1]) for name in names if name.startswith("final-")})


# Schedules


def test_a_schedule_by_hand() -> None:
    """b (2 s) and c (3 s) after a (1 s), d (4 s) after both: 1 + 3 + 4 with two places, the sum with
    one. With a task that runs for 5 more seconds one place is free at first."""
    needs = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}
    seconds = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    assert makespan("abcd", needs, seconds, 2) == 1 + 3 + 4
    assert makespan("abcd", needs, seconds, 1) == 10
    assert makespan("", needs, seconds, 2) == 0
    assert makespan("abcd", needs, seconds, 2, {"x": 5.0}) == 1 + 2 + 3 + 4  # all on the free place
    # what needs the running task waits for it; what has ended is not waited for
    assert makespan("d", {"d": ("x", "gone")}, seconds, 2, {"x": 5.0}) == 9


def test_tasks_are_expected_to_take_what_others_of_their_kind_took() -> None:
    """A kind of which none has ended: its planned time, times what the others took over theirs."""
    kinds = {"tune-1": "tune", "tune-2": "tune", "supervised-1": "supervised", "final-1": "final"}
    found = expected_seconds(
        kinds, {"tune-1": 30, "supervised-1": 60}, {"tune": 20, "supervised": 40, "final": 8}
    )
    assert found == {"tune-1": 30, "tune-2": 30, "supervised-1": 60, "final-1": 8 * 90 / 60}


def test_groups_are_decided_by_time_alone(tmp_path: Path) -> None:
    """100 s a task, 500 s: after seed 0 the seeds 1 and 2 fit, 3 does not, and 4 is not asked; the
    frozen encoders, another kind of 50 s, fit."""
    names = [f"final-{seed}" for seed in range(5)]
    groups = [Group(name="seed 0", kind="", tasks=["final-0"])]
    groups += [Group(name=f"seed {n}", kind="seeds", tasks=[f"final-{n}"]) for n in range(1, 5)]
    groups.append(Group(name="frozen", kind="frozen", tasks=["frozen-2", "frozen-3"]))
    needs = dict.fromkeys(names, ()) | {"frozen-2": ("final-2",), "frozen-3": ("final-3",)}
    kinds = {name: name.partition("-")[0] for name in needs}
    budget = HoursPlan(380 / 3600, 0.0, {"final": 100, "frozen": 50})
    clock = Time()
    kept = Hours(tmp_path, budget, groups, needs, kinds, 1, clock.monotonic)
    clock.now, took = 100.0, {"final-0": 100.0}
    decided = []
    while decision := kept.decide(took, {}):
        decided.append((decision.group, decision.starts))
    assert decided == [
        *(("seed 1", True), ("seed 2", True), ("seed 3", False), ("seed 4", False)),
        ("frozen", True),
    ]
    assert {*kept.runs} == {"final-0", "final-1", "final-2", "frozen-2"}
    assert {*kept.ledger.left_out} == {"final-3", "final-4", "frozen-3"}
    # written at once: a kill changes no decision
    again = Hours(tmp_path, budget, groups, needs, kinds, 1, clock.monotonic)
    assert again.decide(took, {}) is None and {*again.runs} == {*kept.runs}
    assert again.used == pytest.approx(100 / 3600, abs=1e-4)


# The order


@pytest.mark.parametrize("frozen_first", [True, False])
def test_the_order_stands_in_study_json(frozen_first: bool, tmp_path: Path) -> None:
    study = read.build(study_file(ASKED, StudySize(4, 8, 200, (0.1,), True), 1), "x")
    tasks = plan_tasks(study, {}, Given())
    groups = order_groups(tasks, frozen_first)
    record.write(tmp_path, record.content(study, tasks, (), groups))
    assert record.read(tmp_path).order == groups
    last = [] if frozen_first else ["frozen encoders"]
    names = ["tuning", *(f"seed {n}" for n in range(8)), "10% of the labels", *last]
    assert [group.name for group in groups] == names
    assert [group.kind for group in groups[:5]] == ["", "", "", "", "seeds"]
    assert sorted(name for group in groups for name in group.tasks) == sorted(tasks)
    known: set[str] = set()
    for group in groups:
        for name in group.tasks:
            assert known.issuperset(tasks[name].needs)
            known.add(name)
    of_seed = next(group.tasks for group in groups if group.name == "seed 1")
    assert ("frozen-mae-1" in of_seed) == frozen_first


# Whole studies, by hand: with one task at a time tuning takes 600 s and a seed 300 s


@pytest.mark.parametrize(
    ("slower", "limit", "seeds"),
    [
        (1.0, 2150, 5),  # 30 of planning + 600 + 5 x 300 = 2,130
        (1.0, 2120, 4),
        (1.3, 2150, 3),  # 30 + 1.3 x 1,500 = 1,980, and a fourth needs 390
        (0.5, 2150, 8),  # 30 + 0.5 x 3,000
        (2.0, 2150, 3),  # 3,030: three seeds run all the same
    ],
)
def test_seeds_follow_the_time(
    slower: float,
    limit: float,
    seeds: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine = Machine(monkeypatch, tmp_path, slower)
    found = machine.run(limit)
    assert seeds_of(machine.started) == [*range(seeds)]
    takes = 30 + slower * (TUNING + seeds * SEED)
    # the runner looks once a second, after each of its tasks
    assert 3600 * found["used"] == pytest.approx(takes, abs=2 * len(machine.started))
    assert found["ended"] == ("planned" if seeds == 8 else "hours")
    said = capsys.readouterr().out
    assert ("run in any case" in said) == (takes > limit)
    assert len(machine.started) == len({*machine.started}) == 10 + 4 * seeds
    if takes <= limit and seeds < 8:
        assert takes + slower * SEED > limit
    assert {*found["left_out"]} == {
        f"{name}-{seed}"
        for seed in range(seeds, 8)
        for name in ("pretrain", "supervised", "final-mae", "final-scratch")
    }


def test_two_tasks_at_once_are_planned_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, tmp_path, parallel=2)
    found = machine.run(30 + (TUNING + 5 * SEED) / 2 + 40)
    assert seeds_of(machine.started) == [0, 1, 2, 3, 4]
    assert 3600 * found["used"] == pytest.approx(30 + (TUNING + 5 * SEED) / 2, abs=40)


def test_time_decides_and_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other accuracies, the same decisions."""
    decisions = []
    for number, best in enumerate(({"supervised": 0.9}, {"init=_supervised": 0.6, "mae": 0.1})):
        machine = Machine(monkeypatch, tmp_path / str(number), best=best)
        found = machine.run(2150)
        decisions.append([(one["group"], one["starts"]) for one in found["decisions"]])
    assert decisions[0] == decisions[1]
    assert decisions[0][:3] == [("seed 3", True), ("seed 4", True), ("seed 5", False)]


@pytest.mark.parametrize("after", [3, 11, 20])
def test_a_study_that_was_stopped_goes_on_with_the_time_that_is_left(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in tuning, in the first and in the third seed: nothing of the pause counts, a person
    did not end it as planned, and the same seeds are there in the end."""
    machine = Machine(monkeypatch, tmp_path)
    machine.stop_after = after
    stopped = machine.run(2150)
    assert stopped["ended"] is None and stopped["left_out"] == {}
    assert stopped["used"] < 2150 / 3600
    again = Machine(monkeypatch, tmp_path)
    again.time.now = 1e6  # days later
    found = again.run(2150)
    done = 30 + TUNING + 5 * SEED
    lost = 100  # at most a task that was begun twice
    assert 3600 * found["used"] == pytest.approx(done, abs=lost + 80)
    expected = [0, 1, 2, 3] if 3600 * found["used"] < done - SEED / 2 else [0, 1, 2, 3, 4]
    assert seeds_of([*machine.started, *again.started]) == expected
    assert found["ended"] == "hours"


def test_a_study_that_gets_more_hours_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(monkeypatch, tmp_path).run(1550)
    more = Machine(monkeypatch, tmp_path)
    found = more.run(2150)
    assert seeds_of(more.started) == [3, 4] and found["lengthened"] == 1
    assert {name.split("-")[-1] for name in found["left_out"]} == {"5", "6", "7"}
    same = Machine(monkeypatch, tmp_path)
    assert same.run(2150)["lengthened"] == 1 and same.started == []


def test_shares_and_frozen_encoders_come_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After eight seeds (3,030 s) a share has tuning (500 s) and eight seeds of 200 s each, which
    2,100 s allow; where seeds are left out the share has only those seeds."""
    extent = StudySize(4, 8, 200, (0.1,), True)
    machine = Machine(monkeypatch, tmp_path / "whole")
    found = machine.run(3030 + 2100 + 16 * 20 + 100, extent)
    assert found["ended"] == "planned" and len(machine.started) == 10 + 32 + 9 + 8 + 16 + 16
    short = Machine(monkeypatch, tmp_path / "short", slower=0.5)
    found = short.run(30 + 0.5 * (TUNING + 3 * SEED) + 140, extent)
    assert seeds_of(short.started) == [0, 1, 2] and found["ended"] == "hours"
    assert not any("fewer" in name for name in short.started)
    # the frozen encoders of the three seeds take 60 s
    assert sum(name.startswith("frozen") for name in short.started) == 6


# Learning rates of pre-training


def test_only_the_chosen_learning_rate_is_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three rates one is chosen by validation after fine-tuning, for each arm; the seeds that
    confirm train only that one, and the final run starts from it."""
    best = {"tune-mae-99-init=_pretrain_high_-lr=0.1-mixup=0.0": 0.9, "tune-scratch": 0.4}
    best |= {"tune-mae": 0.5}
    best = {"tune-scratch-99-init=_supervised_low_-lr=0.03-mixup=0.8": 0.8} | best
    machine = Machine(monkeypatch, tmp_path, best=best)
    found = machine.run(5000, StudySize(24, 3, 200))
    seeds = [name for name in machine.started if not name.endswith("-99") and "tune" not in name]
    ran = {name.rpartition("-")[0] for name in seeds if not name.startswith("final")}
    assert ran == {"pretrain_high", "supervised_low"}, sorted(seeds)
    log = (tmp_path / "logs" / "final-mae-1.txt").read_text()
    assert f"init={tmp_path}/pretrain_high-1" in log
    assert "pretrain-1" in found["left_out"] and found["ended"] == "planned"
    assert "mae-99" in str(machine.started) and len(machine.started) == 6 + 48 + 3 * 4


def test_without_hours_every_task_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on SLURM and Ray: the plan stays as it is."""
    machine = Machine(monkeypatch, tmp_path)
    tasks = tasks_of(ASKED, StudySize(4, 3, 200))
    (tmp_path / "logs").mkdir()
    runner = local._Processes(StudyJob("worth", tmp_path, tasks, {}), machine)
    runner.run()
    assert sorted(machine.started) == sorted(tasks) and runner.left_out == {}
    assert not (tmp_path / hours.FILE).exists()


def test_what_was_left_out_is_not_missing(tmp_path: Path) -> None:
    assert hours.read(tmp_path) is None
    kept = Hours(
        tmp_path,
        HoursPlan(1.0, 0.0, {"final": 1e6}),
        [Group(name="seed 3", kind="seeds", tasks=["final-3"])],
        {"final-3": ()},
        {"final-3": "final"},
        1,
    )
    assert kept.decide({}, {}) is not None
    assert hours.read(tmp_path).left_out == {"final-3": "seed 3 does not fit into hours=1"}
    assert kept.end({}).endswith("There was no time for seed 3.")


# With the real tools


def test_a_real_study_keeps_to_its_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planned, tuned and confirmed; one seed is required here, and no other fits into hours that
    are over from the start. Nothing that was left out is missing in the report."""
    clocks = dict.fromkeys(SECONDS, RunSeconds(5.0, 0.01))  # so that few steps are planned
    clocks |= {"tune": RunSeconds(0.0, 10.0), "frozen": RunSeconds(0.0, 1e6)}
    rates = {4: ([0.1], [0.1]), 24: ([0.1], [0.1])}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(worth, "calibrate", lambda *given: RunSpeed(clocks, 2))
    monkeypatch.setattr(worth, "Timer", nullcontext)
    monkeypatch.setattr("ssl_vit.lab.study.worth.plan.FEWEST", 1)
    monkeypatch.setattr("ssl_vit.lab.study.worth.plan.RATES", rates)
    monkeypatch.setattr("ssl_vit.lab.study.worth.plan._SCHEDULES", {})
    monkeypatch.setattr("ssl_vit.lab.study.worth.content.FEWEST", 1)
    monkeypatch.setattr("ssl_vit.lab.study.worth.content.RATES", rates)
    for key, value in {"EPOCHS": 1, "FINE_EPOCHS": 1, "FINE_STEPS": 4}.items():
        monkeypatch.setattr(f"ssl_vit.lab.study.worth.study_setup.{key}", value)
    for name in "ab":
        put(tmp_path / "images" / name, 160)
    network = ["model=vit_p8", "data.size=32", "compute.threads=1"]
    words = ["recipe=study/worth", f"data.path={tmp_path}/images", f"out={tmp_path}", *network]
    parse_request([*words, "hours=0.05"])
    path = tmp_path / "worth" / "worth.json"
    planned = json.loads(path.read_text()) | {"hours": 1e-6}
    path.write_text(json.dumps(planned))
    capsys.readouterr()
    outcome = tool.study(Arguments([*words, "hours=1e-6"]))
    shown = capsys.readouterr().out
    # each of the seven seeds had an equal line
    assert shown.count("hours       left out: seed 1, seed 2, seed 3, seed 4, ") == 1
    assert shown.count("left out: ") == 1
    assert re.search(r"^tasks .* and \d+ more if there is time", shown, re.M)
    assert not outcome.failed and {"final-mae-0", "final-scratch-0"} < {*outcome.finished}
    made = json.loads((path.parent / "study.json").read_text())
    groups = [group["name"] for group in made["order"]]
    assert groups[:3] == ["tuning", "seed 0", "seed 1"]
    named = {name for group in made["order"] for name in group["tasks"]}
    assert named == {*outcome.finished} | {*outcome.left_out} and len(outcome.finished) <= 9
    kept = json.loads((path.parent / "hours.json").read_text())
    assert kept["ended"] == "hours" and {*kept["took"]} == {*outcome.finished}
    assert report.write(path.parent).results.missing == []
    again = tool.study(Arguments([*words, "hours=1e-6"]))
    assert again.finished == outcome.finished and again.left_out == outcome.left_out
