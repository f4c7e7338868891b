"""Keep a study within the given hours by starting optional groups of tasks only if there is time.

study.json lists the groups in order before the first task starts. The functions that decide receive
names, needs and seconds of tasks, and never results: only time may decide how many seeds a study
has. The decisions and the time used are in hours.json in the study's folder, so an interrupted
study continues with the time that is left.
"""

import json
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from ...formatting import list_names
from ...recipe import records
from ...recipe.records import Number, Record, Whole
from ...runs.files import write_atomically
from .options import RELEASED
from .tasks import Task

FILE = "hours.json"
# values of `HoursRecord.ended`
ENDED_AS_PLANNED = "planned"  # every group of tasks was started
ENDED_FOR_LACK_OF_HOURS = "hours"  # optional groups were left out, because there was no time
SAVED_EVERY = 5.0  # seconds between writes of the time used
Needs = Mapping[str, Sequence[str]]  # {task: tasks that have to end before it}
Seconds = Mapping[str, float]  # {task: seconds that it takes}


class Group(Record):
    """Tasks that are started or left out together.

    Attributes:
        name: Name in words, such as "seed 3".
        kind: `seeds`, `shares` or `frozen` for an optional group, or `""` for a group that always
            runs.
        tasks: Names of the tasks.
    """

    name: str
    kind: str
    tasks: list[str]


class HoursPlan(NamedTuple):
    """Planned hours of a study.

    Attributes:
        hours: Hours that the study may take.
        spent: Seconds that planning took.
        expected: `{kind of task: seconds of one task}`.
        frozen_first: Whether the evaluations of frozen encoders belong to the group of their seed.
            Otherwise they are the last group.
    """

    hours: float
    spent: float
    expected: Mapping[str, float]
    frozen_first: bool = False


class Decision(Record):
    """Record of the decision to start or to leave out a group.

    Attributes:
        group: Name of the group.
        starts: Whether the group was started.
        used: Hours used before the decision.
        expected: Expected hours of the study including the group.
        at: Time of the decision in UTC, ISO 8601.
    """

    group: str
    starts: bool
    used: Number
    expected: Number
    at: str


class HoursRecord(Record):
    """Content of hours.json.

    Attributes:
        hours: Hours that the study may take.
        used: Hours used so far, including planning and excluding pauses.
        took: `{task: seconds that it ran}`.
        decisions: Decisions on optional groups, in order.
        left_out: `{task: why the task does not run}`.
        ended: `planned` if the study has ended and every group was started. `hours` if the study
            has ended and optional groups were left out for lack of time. None if the study has not
            ended, for example because a person has stopped it.
        lengthened: Number of times that the user changed the hours after a task had ended.
    """

    hours: Number
    used: Number
    took: dict[str, Number]
    decisions: list[Decision]
    left_out: dict[str, str]
    ended: str | None = None
    lengthened: Whole = 0


def task_kind(task: Task) -> str:
    """Return the kind of a task, such as "pretrain" or "tune". Tasks of a kind take equally long.

    The kind is the first part of the run's name. Tasks of a released encoder are a separate kind,
    such as "tune released", because their network differs from the network of the other tasks.
    """
    kind = task.run.partition("_")[0]
    return f"{kind} {RELEASED}" if task.at.get("arm") == RELEASED else kind


def makespan(
    tasks: Iterable[str],
    needs: Needs,
    seconds: Seconds,
    parallel: int,
    running: Seconds | None = None,
) -> float:
    """Return the seconds until all tasks have ended, if `parallel` tasks can run at once.

    There are `parallel` slots, each for one running task. The next task goes to the slot that is
    free first, and starts there as soon as the tasks that it needs have ended.

    Args:
        tasks: Names of the waiting tasks, each after the tasks that it needs.
        needs: `{task: tasks that must end first}`. A needed task that neither waits nor runs counts
            as ended.
        seconds: `{task: seconds}`.
        parallel: Number of tasks that run at once.
        running: `{task: seconds until its end}` of running tasks.
    """
    ends = dict(running or {})  # {task: seconds from now until its end}
    # For each slot, the seconds until the slot is free. If more tasks run than there are slots,
    # only the last ends count. For example, if 3 tasks end after 1, 2 and 3 seconds and there are
    # 2 slots, the slots are free after 2 and 3 seconds.
    free_at = sorted(ends.values())[-parallel:]
    free_at += [0.0] * (parallel - len(free_at))
    for name in tasks:
        first_free = free_at.index(min(free_at))
        ends_of_needs = [ends.get(need, 0.0) for need in needs[name]]
        start = max([free_at[first_free], *ends_of_needs])
        ends[name] = free_at[first_free] = start + seconds[name]
    return max([*free_at, *ends.values()])


def expected_seconds(kinds: Mapping[str, str], took: Seconds, expected: Seconds) -> Seconds:
    """Estimate the seconds of each task as the mean of the finished tasks of the same kind.

    For a kind without a finished task, the estimate is the planned time of the kind, multiplied by
    the slowdown. The slowdown is the total time of all finished tasks, divided by the total time
    that was planned for these tasks.

    Args:
        kinds: `{task: kind}` of all tasks.
        took: `{task: seconds}` of the finished tasks.
        expected: `{kind: seconds}` as planned.

    Returns:
        `{task: seconds}` of all tasks. For example, `{"tune-0": 60, "tune-1": 60}` if `tune-0` has
            finished after 60 seconds and both tasks have the kind "tune".
    """
    took_by_kind: dict[str, list[float]] = {}
    for name, seconds in took.items():
        took_by_kind.setdefault(kinds[name], []).append(seconds)
    planned_tasks = [name for name in took if kinds[name] in expected]
    planned = sum(expected[kinds[name]] for name in planned_tasks)
    slowdown = 1.0
    if planned:
        slowdown = sum(took[name] for name in planned_tasks) / planned
    seconds_of_kind = {kind: slowdown * seconds for kind, seconds in expected.items()}
    seconds_of_kind |= {kind: statistics.mean(seconds) for kind, seconds in took_by_kind.items()}
    # for a kind that is neither planned nor finished
    usual = statistics.mean(seconds_of_kind.values()) if seconds_of_kind else 0.0
    return {name: seconds_of_kind.get(kind, usual) for name, kind in kinds.items()}


class Hours:
    """Decide which tasks of a study may start within the study's hours.

    Args:
        folder: Folder of the study.
        plan: Planned hours.
        order: Groups of tasks in the order of study.json.
        needs: `{task: tasks that must end first}`.
        kinds: `{task: kind}`.
        parallel: Number of tasks that run at once.
        clock: Function that returns seconds.

    Attributes:
        runs: Names of the tasks that run, finished or not, in order.
    """

    def __init__(
        self,
        folder: Path,
        plan: HoursPlan,
        order: Sequence[Group],
        needs: Needs,
        kinds: Mapping[str, str],
        parallel: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path, self.plan, self.order = folder / FILE, plan, order
        self.needs, self.kinds, self.parallel, self.clock = needs, kinds, parallel, clock
        self.ledger = read(folder) or HoursRecord(
            hours=plan.hours, used=plan.spent / 3600, took={}, decisions=[], left_out={}
        )
        if self.ledger.hours != plan.hours:
            self.ledger.hours = plan.hours
            # counted because a user who has seen results may choose the hours in view of them
            self.ledger.lengthened += bool(self.ledger.took)
            self.ledger.decisions = [
                decision for decision in self.ledger.decisions if decision.starts
            ]
            self.ledger.left_out = {}
        self.ledger.ended = None
        # hours used before this call, and the start of this call in seconds
        self.before, self.began = float(self.ledger.used), clock()
        self.saved = self.began
        self.runs: list[str] = []
        self._list_runs()

    @property
    def used(self) -> float:
        """Hours used so far by planning and by all calls. Time between calls does not count."""
        return self.before + (self.clock() - self.began) / 3600

    def _list_runs(self) -> None:
        """Set `runs` to the tasks of every required group and of every started group."""
        started = {decision.group for decision in self.ledger.decisions if decision.starts}
        self.runs = []
        for group in self.order:
            if not group.kind or group.name in started:
                self.runs += [name for name in group.tasks if name not in self.ledger.left_out]

    def forecast(
        self, tasks: Iterable[str], took: Seconds, running: Seconds, without_result: Collection[str]
    ) -> float:
        """Estimate the hours that the study will have taken when these tasks have ended.

        Args:
            tasks: Names of tasks.
            took: `{task: seconds}` of the finished tasks.
            running: `{task: seconds since its start}` of the running tasks.
            without_result: Names of tasks that failed or were skipped, and so will not run.
        """
        seconds = expected_seconds(self.kinds, took, self.plan.expected)
        remaining = {name: max(0.0, seconds[name] - since) for name, since in running.items()}
        not_waiting = {*took, *running, *without_result}
        waiting = [name for name in tasks if name not in not_waiting]
        return self.used + makespan(waiting, self.needs, seconds, self.parallel, remaining) / 3600

    def decide(
        self, took: Seconds, running: Seconds, without_result: Collection[str] = ()
    ) -> Decision | None:
        """Decide whether the next optional group of tasks starts or is left out.

        A group starts if the study, including the group, is expected to end within the study's
        hours. After the first group that does not fit, all later groups of the same kind are left
        out.

        Args:
            took: `{task: seconds}` of the finished tasks.
            running: `{task: seconds since its start}` of the running tasks.
            without_result: Names of tasks that failed or were skipped, and so will not run.

        Returns:
            The decision, or None if every group is decided.
        """
        decided = {past.group for past in self.ledger.decisions}
        undecided = [group for group in self.order if group.kind and group.name not in decided]
        if not undecided:
            return None
        group = undecided[0]
        tasks = self._possible(group)
        expected = self.forecast([*self.runs, *tasks], took, running, without_result)
        left_out = {past.group for past in self.ledger.decisions if not past.starts}
        left_out_kinds = {earlier.kind for earlier in self.order if earlier.name in left_out}
        fits = bool(tasks) and expected <= self.ledger.hours
        starts = fits and group.kind not in left_out_kinds
        reason = f"does not fit into hours={self.ledger.hours:g}"
        for name in group.tasks:
            if not starts:
                self.ledger.left_out[name] = f"{group.name} {reason}"
            elif name not in tasks:
                self.ledger.left_out[name] = f"this task needs an earlier task that {reason}"
        decision = Decision(
            group=group.name,
            starts=starts,
            used=round(self.used, 4),
            expected=round(expected, 4),
            at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self.ledger.decisions.append(decision)
        self._list_runs()
        self.save(took)
        return decision

    def _possible(self, group: Group) -> list[str]:
        """Return the tasks of a group, without the tasks that need a task that is left out."""
        left_out = {*self.ledger.left_out}
        possible: list[str] = []
        for name in group.tasks:
            if left_out.isdisjoint(self.needs[name]):
                possible.append(name)
            else:
                left_out.add(name)
        return possible

    def leave_out(self, tasks: Mapping[str, str]) -> None:
        """Record tasks that will not run, as `{task: reason}`."""
        self.ledger.left_out |= tasks
        self._list_runs()

    def save(self, took: Seconds, every: float = 0.0) -> None:
        """Write hours.json, unless the file was written a short time ago.

        Args:
            took: `{task: seconds}` of the finished tasks.
            every: Fewest seconds between two writes. With 0, the file is always written.
        """
        if every and self.clock() - self.saved < every:
            return
        self.saved = self.clock()
        self.ledger.used = round(self.used, 5)
        self.ledger.took = {name: round(seconds, 2) for name, seconds in took.items()}
        write_atomically(self.path, json.dumps(self.ledger.model_dump(), indent=1) + "\n")

    def end(self, took: Seconds) -> str:
        """Record in hours.json that the study has ended, and whether groups were left out.

        Args:
            took: `{task: seconds}` of the finished tasks.

        Returns:
            The hours used, and the groups that were left out, in one or two sentences.
        """
        left_out = [decision.group for decision in self.ledger.decisions if not decision.starts]
        self.ledger.ended = ENDED_FOR_LACK_OF_HOURS if left_out else ENDED_AS_PLANNED
        self.save(took)
        sentence = f"{self.used:.2g} of {self.ledger.hours:g} hours were used."
        if left_out:
            sentence += f" There was no time for {list_names(left_out)}."
        return sentence


def read(folder: Path) -> HoursRecord | None:
    """Read the hours.json of a study's folder. Return None if there is no such file.

    Raises:
        UserError: The file is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return None
    return records.require(
        path,
        HoursRecord,
        "remove the file and type the study's command again. The used hours start again at 0",
    )
