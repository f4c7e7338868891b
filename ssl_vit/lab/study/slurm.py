"""The SLURM launcher: a job array for each run of the study, which waits for those that it needs.

SLURM 19.05 or later. The options stand on sbatch's command line, which goes before its variables.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from ...errors import UserError
from ...formatting import process_command, process_environment, shell_command
from .. import engine
from .launch import Job, Outcome, finished
from .tasks import Task, Tasks

SCRIPT = Path(__file__).with_name("slurm_array.sh")
OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:=(.*))?", re.DOTALL)
# What `slurm=` must not have
OURS = (
    *("array", "job-name", "output", "dependency", "signal", "requeue", "no-requeue", "open-mode"),
    *("chdir", "wrap", "wait", "parsable", "test-only", "help", "usage", "version"),
)
BOUND = (
    *("gpus-per-task", "gpus-per-socket", "gpu-bind", "tres-bind", "tres-per-task"),
    *("ntasks-per-gpu", "ntasks-per-tres"),
)
REFUSED = dict.fromkeys(OURS, "the launcher sets it") | dict.fromkeys(
    BOUND, "a process could see its own GPU alone; expected --gpus= or --gpus-per-node="
)
# The signal comes up to three minutes before the limit: in less than five a task would be stopped
# before it trains, and start again for ever
SHORTEST = 300  # seconds
TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)


class Slurm:
    """Submits tasks to SLURM (a `Launcher`), and waits for none of them.

    Args:
        process_command: the command of a tool with options as a process.
    """

    def __init__(self, process_command: Callable[..., list[str]] = process_command) -> None:
        self.process_command = process_command

    def check(self, job: Job) -> None:
        """
        Raises:
            UserError: an option is not what sbatch would take or what the launcher sets itself, the
                processes do not divide a task's batch, or there is no sbatch here.
        """
        _options(job)
        if shutil.which("sbatch") is None:
            text = "there is no sbatch here; choices: launcher=local, dry=true to see the commands"
            raise UserError(f"launcher=slurm: {text}")

    def preview(self, job: Job) -> list[str]:
        """The script, and the commands that would submit it. It needs no sbatch.

        Raises:
            UserError: as `check`.
        """
        arrays = self._arrays(job)
        lines = [f"script      {SCRIPT}", *SCRIPT.read_text().splitlines()]
        lines.append(f"submit      {shell_command('mkdir', '-p', _logs(job))}")
        numbers: dict[str, str] = {}  # {run: its job's, as a shell has it}
        for place, (run, words) in enumerate(arrays.items(), 1):
            waits = [f'"{option}"' for option in _dependency(job.tasks, run, numbers)]
            command = " ".join(["sbatch --parsable", *waits, shell_command(*words)])
            lines.append(f"submit      job{place}=$({command})")
            numbers[run] = f"${{job{place}%;*}}"
        return lines

    def start(self, job: Job) -> Outcome:
        """Submit an array for each run that has tasks left.

        Raises:
            UserError: sbatch refuses one.
        """
        _logs(job).mkdir(parents=True, exist_ok=True)
        for left in _logs(job).glob("*.failures"):  # of jobs that were ended
            left.unlink(missing_ok=True)
        numbers: dict[str, str] = {}
        for run, words in self._arrays(job).items():
            command = ["sbatch", "--parsable", *_dependency(job.tasks, run, numbers), *words]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode:
                text = "; ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
                queued = f"; submitted before it: {', '.join(numbers.values())}" if numbers else ""
                raise UserError(f"launcher=slurm: sbatch refuses run {run}: {text}{queued}")
            numbers[run] = done.stdout.strip().partition(";")[0]
            print(f"submitted   {run}: job {numbers[run]}", flush=True)
        ready = [name for name in job.tasks if finished(job.folder, name)]
        return Outcome(ready, submitted=numbers)

    def _arrays(self, job: Job) -> dict[str, list[str]]:
        """{run: sbatch's options, the script and its arguments} of each run that has tasks left, in
        the order in which they need one another."""
        options, logs = _options(job), _logs(job)
        python_path = process_environment().get("PYTHONPATH", "")
        limit = f"%{job.parallel}" if job.parallel else ""
        arrays: dict[str, list[str]] = {}
        for run in dict.fromkeys(task.run for task in job.tasks.values()):
            names = [task.name for task in of_run(job.tasks, run)]
            left = [str(i) for i, name in enumerate(names) if not finished(job.folder, name)]
            if left:
                arrays[run] = [
                    *options,
                    f"--job-name={job.name}-{run}",
                    f"--array={','.join(left)}{limit}",
                    # sbatch replaces %a by the index, and the like of a folder's name too
                    f"--output={str(logs).replace('%', '%%')}/{run}-%a.txt",
                    str(SCRIPT),
                    str(logs / run),
                    *("env", f"PYTHONPATH={python_path}"),
                    *self.process_command("study", *job.words, f"only={'/'.join(names)}"),
                ]
        return arrays


def of_run(tasks: Tasks, run: str) -> list[Task]:
    """A run's tasks, in the order of the array's indices (`index=`)."""
    return [task for task in tasks.values() if task.run == run]


def _logs(job: Job) -> Path:
    return job.folder.resolve() / "slurm"


def _dependency(tasks: Tasks, run: str, numbers: Mapping[str, str]) -> list[str]:
    """sbatch's option that makes a run wait for those that it needs. A failed task does not keep
    all others from starting (afterok would): each checks for itself.

    Args:
        tasks: of the study.
        run: that waits.
        numbers: {run: number of its job}, of those that were submitted.
    """
    needed = dict.fromkeys(tasks[one].run for task in of_run(tasks, run) for one in task.needs)
    listed = ":".join(numbers[one] for one in needed if one in numbers)
    return [f"--dependency=afterany:{listed}"] if listed else []


def _options(job: Job) -> list[str]:
    """sbatch's options for every run of the study: those of `slurm=`, then ours.

    Raises:
        UserError: an option, also one that sbatch takes from its variables, stands against ours, or
            the processes do not divide a batch.
    """
    for name in (*BOUND, "wait"):
        variable = f"SBATCH_{name.upper().replace('-', '_')}"
        if variable in os.environ:
            raise UserError(f"{variable}={os.environ[variable]}: {REFUSED[name]}; unset it")
    words, given = _given(job.slurm)
    nodes, each = _layout(given)
    for name, recipe in job.recipes.items():
        try:
            engine.check_processes(recipe, nodes * each)
        except UserError as error:
            raise UserError(f"slurm={job.slurm}: {name}: {error}") from None
    return [
        *words,
        *(f"--nodes={nodes}", f"--ntasks={nodes * each}", f"--ntasks-per-node={each}"),
        # without B: the signal goes to the processes of srun, not to the script, as does the
        # SIGTERM of a preemption with a grace time
        *("--signal=USR1@120", "--requeue", "--open-mode=append", f"--chdir={Path.cwd()}"),
    ]


def _given(text: str) -> tuple[list[str], dict[str, str]]:
    """The words of `slurm=`, and {option: its value, empty of one without}.

    Raises:
        UserError: a word is no long option, an option is ours, or the time is too short.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"slurm={text}: {error}") from None
    given: dict[str, str] = {}
    for word in words:
        found = OPTION.fullmatch(word)
        if found is None:
            expected = "expected long options of sbatch, as in --time=4:00:00 --gpus=8"
            raise UserError(f"slurm: {word}: {expected}")
        if found[1] in REFUSED:
            raise UserError(f"slurm: {word}: {REFUSED[found[1]]}")
        given[found[1]] = found[2] or ""
    if 0 < _seconds(given.get("time", "")) < SHORTEST:
        raise UserError(f"slurm: --time={given['time']}: expected 5 minutes or more")
    return words, given


def _seconds(text: str) -> int:
    """Of a time limit as sbatch takes it: minutes, minutes:seconds, hours:minutes:seconds,
    days-hours, days-hours:minutes, days-hours:minutes:seconds; 0 of any other text."""
    found = TIME.fullmatch(text)
    if found is None:
        return 0
    days, *texts = found.groups()
    parts = [int(part) for part in texts if part is not None]
    units = (3600, 60, 1) if days or len(parts) == 3 else (60, 1)
    clock = sum(unit * part for unit, part in zip(units, parts, strict=False))
    return 86400 * int(days or 0) + clock


def _layout(given: Mapping[str, str]) -> tuple[int, int]:
    """Machines of a task, and processes on each: as many as are asked for, else one for each GPU.

    Raises:
        UserError: a number is none, or the machines do not divide the processes.
    """
    counts = {"nodes": 1, "ntasks": 0, "ntasks-per-node": 0}
    for name in counts.keys() & given.keys():
        if not given[name].isdecimal() or int(given[name]) == 0:
            raise UserError(f"slurm: --{name}={given[name]}: expected a number, at least 1")
        counts[name] = int(given[name])
    nodes, total, each = counts.values()
    if not total and not each:
        total = _gpus(given.get("gpus", ""))
        each = _gpus(given.get("gpus-per-node", "")) or _gpus(given.get("gres", ""), "gpu")
    if total % nodes:
        raise UserError(f"slurm: {total} processes: {nodes} machines do not divide them")
    return nodes, max(1, total // nodes or each)


def _gpus(text: str, kind: str = "") -> int:
    """How many GPUs a value asks for: 8, a100:4, or of --gres gpu, gpu:2, gpu:a100:4."""
    found = [part.removeprefix("gres/").split(":") for part in text.split(",") if part]
    of_kind = [parts for parts in found if not kind or parts[0] == kind]
    return sum(int(parts[-1]) if parts[-1].isdecimal() else 1 for parts in of_kind)
