"""Launch tasks as processes on this machine, each as soon as the needed tasks have finished.

`run` launches tasks with any `Executor`. The executor of this launcher is `LocalExecutor`.
"""

import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from ...errors import LostError, UserError
from ...formatting import (
    PROGRAM,
    format_duration,
    process_command,
    process_environment,
    shell_command,
)
from ...recipe.words import write_all
from ...runs import files, shared
from ...runs.environment import cores, requested_threads
from ...runs.lock import is_held
from ..memory import memory_need
from .hours import SAVED_EVERY, Decision, Hours, task_kind
from .launch import (
    LaunchOutcome,
    StudyJob,
    chosen_needs,
    describe_result,
    has_result,
    planned_options,
    read_result,
    task_command,
    tuned_needs,
)
from .tasks import Task, Tasks, failed_need
from .warm import LOST, WarmProcess, dies_with_us, is_possible

QUIET = 15.0  # fewest seconds between two reports about running tasks
# later pauses between reports last a sixtieth of the elapsed time, so that a study of days does not
# print too many lines
SHARE = 1 / 60
WARM_ATTEMPTS = 3  # most warm processes to start, each after the previous process was lost
SECONDS_TO_RELEASE = 15.0  # seconds that a process killed with its parent has to release its folder
SECONDS_TO_SAVE = 120.0  # seconds that a terminated task has to save, as under SLURM
TAIL = 8192  # bytes to read from the end of a log
CGROUP_ROOT, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


class Local:
    """Launcher that runs tasks on this machine."""

    def check(self, job: StudyJob) -> None:
        """Check the options of the job.

        Raises:
            UserError: There are options for SLURM.
        """
        if job.slurm:
            raise UserError(
                f"slurm={job.slurm}: this option has no effect without launcher=slurm. Leave"
                " slurm= out."
            )

    def preview(self, job: StudyJob) -> list[str]:
        """Return a line for each unfinished task, with `?` for values that are not chosen yet."""
        self.check(job)
        return preview(job, LocalExecutor(job).parallel)

    def start(self, job: StudyJob) -> LaunchOutcome:
        """Run the unfinished tasks and wait until they have ended.

        If a signal or an error ends this call early, it asks the running tasks to save, kills tasks
        that still run after two minutes, and only then returns or raises.

        Raises:
            KeyboardInterrupt: SIGINT or SIGTERM. The signals are handled only in the main thread.
        """
        with closing(LocalExecutor(job)) as here:
            return run(job, here)


class TaskProcess(Protocol):
    """Process of a task, with the methods `poll`, `terminate` and `kill` of `subprocess.Popen`.

    A single call of `kill` may have no effect, so callers call `kill` again until the process has
    ended.
    """

    def poll(self) -> int | None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Executor(Protocol):
    """Interface that starts the processes of tasks, for example on this machine.

    Attributes:
        parallel: Number of processes at once.
        cores: Cores for each process.
        gpus: Whether there are GPUs. Each process then gets one GPU.
    """

    parallel: int
    cores: int
    gpus: bool

    def start(self, line: Sequence[str], folder: Path, log: Path) -> TaskProcess:
        """Start a task's command, which writes its run to `folder` and its output to `log`."""


class LocalExecutor:
    """Executor that starts tasks on this machine.

    By default, each GPU runs one task. Without GPUs, each core runs one task. Fewer tasks run at
    once if the memory does not suffice, where each task counts with the memory of the largest task.

    If several tasks are unfinished, a warm process forks the tasks (see warm.py). The warm process
    has already imported the slow libraries. Otherwise each task starts as a new Python process.
    """

    def __init__(self, job: StudyJob) -> None:
        self.names: list[str] = usable_gpus()
        self.gpus = bool(self.names)
        most = len(self.names) or min(cores(), len(job.tasks))
        self.parallel = job.parallel or max(
            1, min(most, usable_memory() // largest_need(job, self.gpus))
        )
        self.cores = max(1, cores() // self.parallel)
        self.begun: list[tuple[TaskProcess, str]] = []  # (process, GPU) of each started task
        several = len(job.tasks) - len(job.finished) > 1
        self.attempts_left = WARM_ATTEMPTS if several and is_possible() else 0
        self.warm: WarmProcess | None = None

    def start(self, line: Sequence[str], folder: Path, log: Path) -> TaskProcess:
        environment, gpu = process_environment(), ""
        if self.gpus:
            used_gpus = [gpu for process, gpu in self.begun if process.poll() is None]
            gpu = min(self.names, key=used_gpus.count)  # the GPU with the fewest running tasks
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        warm = self._warm_process(line)
        if warm is not None and warm.suits(environment):
            child: TaskProcess = warm.start(line[len(PROGRAM) :], environment, log)
        else:
            child = start_process(line, environment, log)
        self.begun.append((child, gpu))
        return child

    def close(self) -> None:
        """End the warm process."""
        if self.warm is not None:
            self.warm.close()

    def _warm_process(self, line: Sequence[str]) -> WarmProcess | None:
        """Return the warm process that forks tasks, or None if a new Python process must start.

        The first call starts the warm process. If the warm process has ended unexpectedly, this
        method prints the reason and starts another warm process. At most `WARM_ATTEMPTS` warm
        processes are started.

        Args:
            line: Command line to start. The result is None if the command is not ssl_vit with this
                Python.
        """
        if [*line[: len(PROGRAM)]] != PROGRAM or PROGRAM[0] != sys.executable:
            return None
        if self.warm is not None:
            self.warm.receive()
            if self.warm.lost is None:
                return self.warm
            if not self.warm.can_fork:
                self.attempts_left = 0
            reason = f"the process that starts tasks has ended ({self.warm.lost})."
            effect = "A new process starts" if self.attempts_left else "Tasks now start more slowly"
            _say("forking", f"{reason} {effect}.")
            self.warm = None
        if self.attempts_left:
            self.attempts_left -= 1
            self.warm = WarmProcess()
        return self.warm


def run(job: StudyJob, executor: Executor) -> LaunchOutcome:
    """Run the unfinished tasks of a study until all have ended, and return the outcome.

    Args:
        job: Study that is ready to start.
        executor: Executor that starts the processes of the tasks.
    """
    (job.folder / "logs").mkdir(parents=True, exist_ok=True)
    # remove unfinished files of killed tasks, whose names match `shared.OWN`
    files.sweep(job.folder / shared.FOLDER, shared.OWN)
    print(_opening(job, executor.parallel), flush=True)
    processes = _Processes(job, executor)
    processes.run()
    return LaunchOutcome(job.finished, processes.failed, left_out=processes.left_out)


def preview(job: StudyJob, parallel: int | None = None) -> list[str]:
    """Return the lines that a dry start prints: the number of tasks and each unfinished command.

    In a command, `?` stands for a value that tuning has not chosen yet.

    Args:
        job: Study that is ready to start.
        parallel: Number of tasks that run at once, or None if it is not known.
    """
    lines = [_opening(job, parallel)]
    for name, task in job.tasks.items():
        if not has_result(job.folder, name):
            options, undecided = planned_options(task, job.tasks, job.folder)
            words = [task.tool, *write_all(options), *(f"{key}=?" for key in undecided)]
            lines.append(f"would run   {name}: {' '.join(words)}")
    return lines


def start_process(
    line: Sequence[str], environment: dict[str, str], log: Path, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that appends its output to a log and ends when this process ends.

    Args:
        line: Command line.
        environment: Environment variables of the new process.
        log: File that the output is appended to.
        cwd: Working directory, or None for the working directory of this process.
    """
    with log.open("ab") as file:
        # In a new session, Ctrl-C does not reach the child: this process decides when to end it
        return subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=environment,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=dies_with_us(),
        )


def largest_need(job: StudyJob, gpu: bool) -> int:
    """Return the bytes of memory that the largest task needs."""
    return max(memory_need(recipe, gpu) for recipe in job.recipes.values())


def usable_gpus() -> list[str]:
    """Return the names of the usable GPUs as in CUDA_VISIBLE_DEVICES, without initialising CUDA."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip()]
    folders = list(Path("/proc/driver/nvidia/gpus").glob("*"))
    return [str(number) for number in range(len(folders))]


def usable_memory() -> int:
    """Return the bytes of memory that all tasks may take together.

    The result is the free memory of the machine, or the memory limit of a container or of a SLURM
    job if this limit is lower than the free memory. Linux sets such limits by control groups, see
    cgroups(7). For example, the line `0::/user.slice/job_7` in /proc/self/cgroup names a group of
    this process. The limit of this group is in /sys/fs/cgroup/user.slice/job_7/memory.max. The
    limits of the parent groups, such as /user.slice, hold as well.
    """
    limits = [psutil.virtual_memory().available]
    for line in OWN_CGROUPS.read_text().splitlines() if OWN_CGROUPS.exists() else ():
        _, controllers, group_path = line.split(":", 2)
        name = "memory.limit_in_bytes" if controllers else "memory.max"  # cgroup version 1 or 2
        folder = CGROUP_ROOT / controllers / group_path.strip("/")
        for group in (folder, *folder.parents):
            with suppress(OSError, ValueError):  # no such group, or no limit
                limits.append(int((group / name).read_text()))
    return min(limits)


def last_line(log: Path, start: int = 0, default: str = "no output") -> str:
    """Return the last non-blank line of a log. Only the last 8 KiB of the file are read.

    Args:
        log: File of the log.
        start: Byte at which to begin reading.
        default: Text to return if all lines are blank.
    """
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - TAIL))
        text = file.read().decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else default


def _opening(job: StudyJob, parallel: int | None) -> str:
    """Return the line with the numbers of tasks, such as "tasks       6, 2 finished".

    Args:
        job: Study that is ready to start.
        parallel: Number of tasks that run at once, or None if it is not known.
    """
    # only optional groups have a kind
    optional = sum(len(group.tasks) for group in job.order if group.kind)
    limit = "" if parallel is None else f", at most {parallel} at once"
    required = f"{len(job.tasks) - optional}"
    if optional:
        required = f"{required} in any case and {optional} more if there is time within hours="
    return f"tasks       {required}, {len(job.finished)} finished{limit}"


def _say(what: str, text: str) -> None:
    print(f"{what:<11} {text}", flush=True)


def _dependent_tasks(name: str, tasks: Tasks) -> list[str]:
    """Return the names of the tasks that need a task."""
    return [task.name for task in tasks.values() if name in task.needs]


@dataclass
class _Running:
    """Running task. The output of the process begins at byte `start` of the log."""

    process: TaskProcess
    log: Path
    start: int
    begun: float = field(default_factory=lambda: time.monotonic())


class _Processes:
    """State and main loop of one call of `run`."""

    def __init__(self, job: StudyJob, executor: Executor) -> None:
        self.job, self.tasks, self.folder = job, job.tasks, job.folder
        self.executor, self.parallel = executor, executor.parallel
        self.begun = self.reported = self.lost = time.monotonic()
        self.running: dict[str, _Running] = {}
        self.took = {name: read_result(self.folder, name).seconds for name in job.finished}
        self.failed: dict[str, str] = {}  # {task: reason}, including tasks that are left out
        self.retried: set[str] = set()
        self.signals = 0  # number of signals received
        self.page: subprocess.Popen[bytes] | None = None  # the process that writes the study's page
        self.page_is_old = False  # whether a compared task has finished since the page was started
        self.hours = self._limit_hours()
        self.dependents = {name: _dependent_tasks(name, self.tasks) for name in self.tasks}
        self.chosen: dict[str, set[str]] = {}  # {task: tasks that tuning has chosen for it}
        self.compared: set[str] = set()  # required groups whose time was compared with the plan

    @property
    def left_out(self) -> dict[str, str]:
        """`{task: reason}` of tasks left out because time is short or their result is not used."""
        return {} if self.hours is None else self.hours.ledger.left_out

    def _limit_hours(self) -> Hours | None:
        """Return the planner of the study's hours, or None if no hours limit the study.

        The planner (`Hours`) decides which optional tasks start and which are left out. An earlier
        call may have written hours.json with the times of finished tasks. These times replace the
        times in `took`, because only the times in hours.json include starting and ending the
        processes.
        """
        if self.job.hours is None:
            return None
        needs = {name: task.needs for name, task in self.tasks.items()}
        kinds = {name: task_kind(task) for name, task in self.tasks.items()}
        order, clock = self.job.order, time.monotonic
        hours = Hours(self.folder, self.job.hours, order, needs, kinds, self.parallel, clock)
        recorded = hours.ledger.took
        self.took |= {name: recorded[name] for name in self.took if name in recorded}
        return hours

    def run(self) -> None:
        """Run the unfinished tasks that fit into the study's hours, until all have ended.

        Raises:
            KeyboardInterrupt: SIGINT or SIGTERM arrived. Every process has ended.
        """
        with ExitStack() as stack:
            # only the main thread can set signal handlers
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGINT, signal.SIGTERM):
                    previous_handler = signal.signal(number, self._stop)
                    stack.callback(signal.signal, number, previous_handler)
            # Callbacks run in reverse order. On leaving the block, the tasks are terminated, then
            # the page is finished, and then the signal handlers are restored.
            stack.callback(self._finish_page)
            stack.callback(self._terminate_all)
            while not self.signals and (self.running or self._has_more()):
                self._handle_ended()
                self._start()
                self._write_page()
                self._report()
                time.sleep(0.05)
            self._close_hours()
            if self.running:  # only after a signal
                _say(
                    "stopping",
                    "running tasks have two minutes to save. A second Ctrl-C kills the tasks",
                )
        if self.signals:
            raise KeyboardInterrupt

    def _stop(self, number: int, frame: Any) -> None:
        """Count a signal. The first ends the loop of `run`, the second ends the time to save.

        The handler raises no exception, because an exception while a process is starting could
        leave that process unrecorded, and so running.
        """
        self.signals += 1

    def _terminate_all(self) -> None:
        """Terminate the running tasks, which then save, and kill tasks that do not end in time."""
        processes = [child.process for child in self.running.values()]

        def list_running() -> list[TaskProcess]:
            return [process for process in processes if process.poll() is None]

        deadline = time.monotonic() + SECONDS_TO_SAVE
        try:
            for process in processes:
                process.terminate()
            # a second signal ends the time to save
            while self.signals < 2 and list_running() and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            while list_running():
                for process in list_running():
                    process.kill()
                time.sleep(0.05)

    def _waiting(self) -> list[Task]:
        """Return the tasks that have not started, each after the tasks that it needs.

        If hours limit the study, tasks of an optional group are included only after the group has
        started.
        """
        started = self.took.keys() | self.failed.keys() | self.running.keys()
        names = self.tasks if self.hours is None else self.hours.runs
        return [self.tasks[name] for name in names if name not in started]

    def _has_more(self) -> bool:
        """Return whether a task remains to run.

        If the results of all waiting tasks are unused, this method starts the next optional group
        that fits into the hours.
        """
        if any(self._is_used(task.name) is not False for task in self._waiting()):
            return True
        return self._start_group()

    def _ended_or_skipped(self) -> set[str]:
        """Return the tasks that have ended or will not run."""
        ended = self.took.keys() | self.failed.keys() | self.left_out.keys()
        if self.hours is None:
            return ended
        return ended | {task.name for task in self._waiting() if self._is_used(task.name) is False}

    def _start(self) -> None:
        """Start ready tasks while fewer than `parallel` tasks run.

        A task that needs a failed task is recorded as failed. In a study with limited hours, the
        next optional group starts if fewer than `parallel` tasks run and tuning has ended.
        """
        ended = self._ended_or_skipped()
        # A task killed together with the warm process may still write its folder for a few seconds,
        # so its next start waits. If the folder is in use even later, another program uses it, and
        # the started task reports this.
        is_recent_loss = time.monotonic() - self.lost < SECONDS_TO_RELEASE
        for task in self._waiting():
            failed = failed_need(task, self.tasks, [*self.failed])
            if failed:
                self._fail(task.name, f"needs {failed}", "left out")
            elif self._has_room() and {*task.needs} <= ended:
                # start the task unless its folder is still being written, or its result is not used
                is_written = is_recent_loss and is_held(self.folder / task.name)
                if not is_written and self._is_used(task.name):
                    self._launch(task)
        # order[0] is the group of tuning
        is_tuned = self.hours is None or {*self.hours.order[0].tasks} <= ended
        if is_tuned and self._has_room():
            self._start_group()

    def _has_room(self) -> bool:
        """Return whether one more task may start now: no signal has come and a slot is free."""
        return not self.signals and len(self.running) < self.parallel

    def _is_used(self, name: str) -> bool | None:
        """Return whether a task should run because its result is used. None if not known yet.

        In a study without limited hours, every task counts as used. With limited hours:

        - A task that no other task needs is a result of the study and counts as used.
        - If tuning chooses one of several pre-trainings, the other pre-trainings are not used.
        - Before tuning has chosen, the result for each of these pre-trainings is None.
        """
        if self.hours is None:
            return True
        dependents = self.dependents[name]
        if not dependents:
            return True
        # hours.runs are the tasks that have run or will run
        planned_dependents = {*self.hours.runs}.intersection(dependents)
        answers = [self._uses(self.tasks[dependent], name) for dependent in planned_dependents]
        if True in answers:
            return True
        # undecided while tuning may still choose the task for one of the dependents, else unused
        return None if None in answers else False

    def _uses(self, dependent: Task, needed: str) -> bool | None:
        """Return whether a task uses the result of a needed task, or None if not known yet.

        The result is None while tuning still has to choose one of several needed tasks.

        Args:
            dependent: Task that needs the other task.
            needed: Name of the needed task.
        """
        if needed not in tuned_needs(dependent, self.tasks):  # needed whatever tuning chooses
            return True
        if dependent.name not in self.chosen:
            have_tries_ended = {*dependent.tries} <= self.took.keys() | self.failed.keys()
            if not have_tries_ended:
                return None
            try:
                self.chosen[dependent.name] = chosen_needs(dependent, self.tasks, self.folder)
            except UserError:  # No try has a result. The start of the task will report this error.
                self.chosen[dependent.name] = set()
        return needed in self.chosen[dependent.name]

    def _start_group(self) -> bool:
        """Start the next optional group that fits into the hours. Return whether a group started.

        Earlier groups that do not fit are left out. The decisions are printed, with a single line
        for all groups that this call leaves out.
        """
        if self.hours is None:
            return False
        self._compare_with_plan()
        now = time.monotonic()
        running = {name: now - child.begun for name, child in self.running.items()}
        # tasks that failed or were skipped, so no time is planned for them
        without_result = self._ended_or_skipped() - self.took.keys()
        limit = self.hours.ledger.hours
        left_out: list[Decision] = []
        while True:
            decision = self.hours.decide(self.took, running, without_result)
            if decision is not None and not decision.starts:
                left_out.append(decision)
                continue
            if left_out:
                _say(
                    "hours",
                    f"left out: {', '.join(past.group for past in left_out)}. With"
                    f" {left_out[0].group}, the study would end after"
                    f" {left_out[0].expected:.2f} of {limit:g} hours",
                )
            if decision is None:
                return False
            _say(
                "hours",
                f"{decision.group} starts in addition: the study is expected to end after"
                f" {decision.expected:.2f} of {limit:g} hours",
            )
            return True

    def _compare_with_plan(self) -> None:
        """Print the hours used so far, once after tuning and once after each required seed.

        The printed line may add when the required seeds will end: if they will end after more than
        the study's hours. `self.compared` has the names of the groups whose line was printed.
        """
        assert self.hours is not None
        ended = self._ended_or_skipped()
        # only optional groups have a kind
        required_groups = [group for group in self.hours.order if not group.kind]
        required = [name for group in required_groups for name in group.tasks]
        for group in required_groups:
            if group.name in self.compared or not {*group.tasks} <= ended:
                continue
            self.compared.add(group.name)
            without_result = ended - self.took.keys()
            total = self.hours.forecast(required, self.took, {}, without_result)
            limit = self.hours.ledger.hours
            message = f"after {group.name}, {self.hours.used:.2g} of {limit:g} hours are used."
            if total > limit and not {*required} <= ended:
                message += (
                    " Three seeds run in any case, because the report claims a difference only with"
                    f" three or more seeds. They end after {total:.2g} hours, which is more than"
                    f" hours={limit:g}."
                )
            _say("hours", message)

    def _close_hours(self) -> None:
        """Record the used hours in hours.json and, if the study has ended, how it ended.

        After a signal or a failed task, the study has not ended: the same command continues the
        study. A failed try is an exception: the study ends without the try. Training may diverge
        with a tried value, such as a high learning rate.
        """
        if self.hours is None:
            return
        # a failed try, which is a task with tried values, does not count
        failed = [name for name in self.failed if not self.tasks[name].tried]
        if self.signals or self.running or failed:
            self.hours.save(self.took)
            return
        unused = [task.name for task in self._waiting()]
        self.hours.leave_out(dict.fromkeys(unused, "no remaining task needs this task"))
        _say("hours", self.hours.end(self.took))

    def _launch(self, task: Task) -> None:
        try:
            arguments = task_command(task, self.tasks, self.folder)
        except UserError as error:
            self._fail(task.name, str(error))
            return
        defaults = {"compute.threads": requested_threads() or self.executor.cores}
        if self.executor.gpus:  # one core runs the training loop, and the others load the data
            defaults["compute.workers"] = max(1, self.executor.cores - 1)
        arguments += [
            f"{key}={value}" for key, value in defaults.items() if key not in task.options
        ]
        line = process_command(*arguments)
        log = self.folder / "logs" / f"{task.name}.txt"
        with log.open("ab") as file:
            file.write(f"$ {shell_command(*line)}\n".encode(errors="surrogateescape"))
            start = file.tell()
        process = self.executor.start(line, self.folder / task.name, log)
        self.running[task.name] = _Running(process, log, start)
        _say("started", task.name)

    def _handle_ended(self) -> None:
        """Record the outcome of each process that has ended, or let its task start again.

        The status of the process decides whether the task starts again:

        - below 0 (killed by a signal), or the status of `LostError` (one of several processes of
          the task was lost): the task starts again once.
        - `LOST` (the warm process has ended, see `LocalExecutor`): the task starts again each time.
        - 0 with a result: the task has finished.
        - otherwise: the task has failed.
        """
        for name, child in list(self.running.items()):
            status = child.process.poll()
            if status is None:
                continue
            del self.running[name]
            if status == LOST:  # cannot repeat forever: only WARM_ATTEMPTS warm processes start
                self.lost = time.monotonic()  # time of the last such loss
                _say("again", f"{name}: the process that started this task has ended")
            elif status == 0 and has_result(self.folder, name):
                self.took[name] = time.monotonic() - child.begun
                duration = format_duration(self.took[name])
                _say("finished", f"{name} in {duration}: {describe_result(self.job, name)}")
                if self.hours is not None:
                    self.hours.save(self.took)
                    self._compare_with_plan()
                # page_of is the run that the report compares
                self.page_is_old |= self.tasks[name].run == self.job.page_of
            else:
                reason = last_line(child.log, child.start).removeprefix("error: ")
                if status < 0:
                    reason = f"killed by signal {-status}. The last line of the task: {reason}"
                elif status == 0:
                    reason = f"ended without a result. The last line of the task: {reason}"
                may_retry = status < 0 or status == LostError.status
                if may_retry and name not in self.retried:
                    self.retried.add(name)
                    _say("again", f"{name}: {reason}")
                else:
                    self._fail(name, f"{reason} ({child.log})")

    def _write_page(self) -> None:
        """Start a process that writes the study's page (the HTML report), if it is out of date.

        The page is out of date once a task of the compared run has finished. While a process is
        writing the page, no second process starts. The output of the process is in a log.
        """
        is_writing = self.page is not None and self.page.poll() is None
        if self.page_is_old and not is_writing:
            self.page_is_old = False
            line = process_command("report", str(self.folder))
            log = self.folder / "logs" / "report.txt"
            self.page = start_process(line, process_environment(), log)

    def _finish_page(self) -> None:
        """Wait until the study's page (the HTML report) is written.

        If a signal has stopped the study, an outdated page is written once more. Otherwise the
        study tool writes the last page after this call, and no process may overwrite that page.
        """
        if self.page is not None:
            self.page.wait()
        if self.signals == 1:  # a second signal asks to end at once
            self._write_page()
            if self.page is not None:
                self.page.wait()

    def _fail(self, name: str, reason: str, what: str = "failed") -> None:
        self.failed[name] = reason
        _say(what, f"{name}: {reason}")

    def _report(self) -> None:
        """Print the study's progress and each running task's last line from time to time.

        The last line of a task has its step, loss and remaining time.
        """
        if self.hours is not None:
            self.hours.save(self.took, SAVED_EVERY)
        now = time.monotonic()
        # The pause between reports is at least QUIET seconds. Later it is a share of the elapsed
        # time, so that reports become rarer the longer the study runs.
        if now - self.reported < max(QUIET, SHARE * (now - self.begun)):
            return
        self.reported = now
        for name, child in self.running.items():
            line = last_line(child.log, child.start, "has printed nothing yet")
            _say("running", f"{name}: {line}")
        failed = f", {len(self.failed)} failed or left out" if self.failed else ""
        # hours.runs are the tasks that have run or will run
        wanted = len(self.tasks) if self.hours is None else len(self.hours.runs)
        seconds = self._remaining_seconds(now)
        left = f", about {format_duration(seconds)} left" if seconds is not None else ""
        _say("so far", f"{len(self.took)} of {wanted} finished{failed}{left}")

    def _remaining_seconds(self, now: float) -> float | None:
        """Estimate the seconds until all tasks have ended.

        Each remaining task is expected to take as long as the mean of the finished tasks of the
        same run of the study file. The result is None in these cases:

        - Nothing remains.
        - The run of a remaining task has no finished task yet.
        - A running task already takes longer than this mean.

        Args:
            now: Current value of `time.monotonic()`.
        """
        seconds_of_run: dict[str, list[float]] = {}
        for name, seconds in self.took.items():
            seconds_of_run.setdefault(self.tasks[name].run, []).append(seconds)
        elapsed = {name: now - child.begun for name, child in self.running.items()}
        remaining: list[float] = []  # seconds of each task
        # hours.runs are the tasks that have run or will run
        for name in self.tasks if self.hours is None else self.hours.runs:
            run = self.tasks[name].run
            if name not in self.took and name not in self.failed:
                if run not in seconds_of_run:
                    return None
                seconds = statistics.mean(seconds_of_run[run]) - elapsed.get(name, 0.0)
                if seconds < 0:
                    return None
                remaining.append(seconds)
        if not remaining:
            return None
        # `self.parallel` tasks run at once. The study cannot end before its longest task
        return max([*remaining, sum(remaining) / self.parallel])
