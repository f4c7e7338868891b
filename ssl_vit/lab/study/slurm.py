"""The SLURM launcher: a job array for each run of the study, which waits for those that it needs.

SLURM 19.05 or later. The options stand on sbatch's command line, which goes before its variables.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ...errors import UserError
from ...formatting import process_command, process_environment, shell_command
from ...runs.files import write_atomically
from .. import engine
from .launch import Job, Outcome, finished
from .tasks import Task

SCRIPT = Path(__file__).with_name("slurm_array.sh")
OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:=(.*))?", re.DOTALL)
# What `slurm=` must not have
OURS = (
    *("array", "job-name", "output", "dependency", "signal", "requeue", "no-requeue", "open-mode"),
    *("chdir", "wrap", "wait", "test-only"),
)
BOUND = ("gpus-per-task", "gpu-bind", "tres-bind", "tres-per-task", "ntasks-per-gpu")
REFUSED = {
    **dict.fromkeys(OURS, "the launcher sets it"),
    **dict.fromkeys(BOUND, "a process could see its own GPU alone; expected --gpus-per-node="),
    "ntasks": "expected --ntasks-per-node=",
}
NUMBER = r"([1-9][0-9]*)"
GPUS = rf"(?:[A-Za-z]\w*:)?{NUMBER}"  # also of a type: a100:4
# What tells how many processes a machine has; of several the first
PROCESSES = {"ntasks-per-node": NUMBER, "gpus-per-node": GPUS, "gres": f"gpu:{GPUS}", "gpus": GPUS}


class Slurm:
    """Submits tasks to SLURM (a `Launcher`), and waits for none of them."""

    def check(self, job: Job) -> None:
        """
        Raises:
            UserError: an option is not what sbatch would take or what the launcher sets itself, the
                processes do not divide a task's batch, or there is no SLURM here.
        """
        _options(job)
        for name in ("sbatch", "squeue"):
            if shutil.which(name) is None:
                text = f"there is no {name} here; choices: launcher=local, dry=true to see commands"
                raise UserError(f"launcher=slurm: {text}")

    def preview(self, job: Job) -> list[str]:
        """The commands that would submit what has not finished, were nothing in the queue. {RUN}
        stands for the number of a run's job. No SLURM is needed.

        Raises:
            UserError: as `check`.
        """
        numbers: dict[str, list[str]] = {}
        lines = []
        for run in _runs(job):
            words = _command(job, run, numbers, ())
            numbers[run] = [f"{{{run}}}"] if words else []
            lines += [f"would run   {shell_command(*words)}"] if words else []
        return lines

    def start(self, job: Job) -> Outcome:
        """Submit an array for each run that has tasks that are neither finished nor in the queue.

        Raises:
            UserError: SLURM refuses one.
        """
        _logs(job).mkdir(parents=True, exist_ok=True)
        queue = _queue(job)
        numbers = {run: [*dict.fromkeys(found.values())] for run, found in queue.items()}
        submitted: dict[str, str] = {}
        for run in _runs(job):
            write_atomically(_list(job, run), "\n".join(_elements(job, run)))
            if queue[run]:
                text = f"{len(queue[run])} tasks in job {', '.join(numbers[run])}"
                print(f"in queue    {run}: {text}", flush=True)
            if words := _command(job, run, numbers, queue[run]):
                # of several clusters it prints NUMBER;CLUSTER
                number = _output(words, f"run {run}").strip().partition(";")[0]
                submitted |= {task.name: number for _, task in _left(job, run, queue[run])}
                numbers[run].append(number)
                print(f"submitted   {run}: job {number}", flush=True)
        return Outcome(job.finished, submitted=submitted)


def _elements(job: Job, run: str) -> list[str]:
    """The names of a run's tasks, each at its index in the run's arrays (`only=`, `index=`). Those
    that the study had when it was given before keep theirs, as they may be in the queue."""
    path = _list(job, run)
    before = path.read_text().split() if path.exists() else []
    names = [task.name for task in job.tasks.values() if task.run == run]
    return [*before, *(name for name in names if name not in before)]


def _list(job: Job, run: str) -> Path:
    return _logs(job) / f"{run}.tasks"


def _runs(job: Job) -> list[str]:
    """Each after those that it needs."""
    return [*dict.fromkeys(task.run for task in job.tasks.values())]


def _logs(job: Job) -> Path:
    return job.folder.resolve() / "slurm"


def _job_name(job: Job, run: str) -> str:
    """Of an array, by which the queue is searched: no other folder's study has it."""
    return f"{job.name}-{run}-{hashlib.sha256(bytes(_logs(job))).hexdigest()[:8]}"


def _queue(job: Job) -> dict[str, dict[int, str]]:
    """{run: {index: number of the job}} of the study's tasks that wait or run.

    Raises:
        UserError: SLURM does not answer.
    """
    runs = {_job_name(job, run): run for run in _runs(job)}
    found: dict[str, dict[int, str]] = {run: {} for run in runs.values()}
    clusters = [word for word in shlex.split(job.slurm) if word.startswith("--clusters=")]
    words = ["squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%F %K %j"]
    for line in _output([*words, *clusters], "the queue").splitlines():
        number, index, name = [*line.strip().split(" ", 2), "", ""][:3]
        if name in runs and index.isdecimal():
            found[runs[name]][int(index)] = number
    return found


def _output(words: Sequence[str], what: str) -> str:
    """What one of SLURM's commands prints.

    Raises:
        UserError: it fails.
    """
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        text = "; ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
        text += "; the same command goes on once it is mended"
        raise UserError(f"launcher=slurm: {what}: {text}")
    return done.stdout


def _left(job: Job, run: str, queued: Collection[int]) -> list[tuple[str, Task]]:
    """The tasks of a run that are neither finished nor in the queue, each with its index."""
    return [
        (str(index), job.tasks[name])
        for index, name in enumerate(_elements(job, run))
        if name in job.tasks and index not in queued and not finished(job.folder, name)
    ]


def _command(
    job: Job, run: str, numbers: Mapping[str, Sequence[str]], queued: Collection[int]
) -> list[str]:
    """The command that submits what is left of a run; empty where nothing is.

    Args:
        job: the study.
        run: of it.
        numbers: {run: its jobs} of those that it may need. That one of their tasks has failed does
            not keep all others from starting (afterok would): each checks for itself.
        queued: indices of its tasks that are in the queue.
    """
    left = _left(job, run, queued)
    if not left:
        return []
    needed = dict.fromkeys(job.tasks[one].run for _, task in left for one in task.needs)
    waits = ":".join(number for one in needed for number in numbers[one])
    logs, most = _logs(job), f"%{job.parallel}" if job.parallel else ""
    return [
        *("sbatch", "--parsable", *_options(job)),
        *([f"--dependency=afterany:{waits}"] if waits else []),
        f"--job-name={_job_name(job, run)}",
        f"--array={','.join(index for index, _ in left)}{most}",
        # sbatch replaces %a by the index, and the like of a folder's name too
        f"--output={str(logs).replace('%', '%%')}/{run}-%a.txt",
        *(str(SCRIPT), str(logs / run)),
        *("env", f"PYTHONPATH={process_environment().get('PYTHONPATH', '')}"),
        *process_command("study", *job.words, f"only={'/'.join(_elements(job, run))}"),
    ]


def _options(job: Job) -> list[str]:
    """sbatch's options for every run of the study: those of `slurm=`, then ours.

    Raises:
        UserError: a word is no long option, an option stands against ours, or the processes do not
            divide a batch.
    """
    given: dict[str, str] = {}
    try:
        words = shlex.split(job.slurm)
    except ValueError as error:
        raise UserError(f"slurm={job.slurm}: {error}") from None
    for word in words:
        found = OPTION.fullmatch(word)
        if found is None:
            expected = "expected long options of sbatch, as in --time=4:00:00 --gpus=8"
            raise UserError(f"slurm: {word}: {expected}")
        if found[1] in REFUSED:
            raise UserError(f"slurm: {word}: {REFUSED[found[1]]}")
        given[found[1]] = found[2] or ""
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


def _layout(given: Mapping[str, str]) -> tuple[int, int]:
    """Machines of a task, and processes on each: as many as are asked for, else one for each GPU.

    Raises:
        UserError: a number is none, or the machines do not divide the GPUs.
    """
    nodes = _number(given, "nodes", NUMBER)
    name = next((one for one in PROCESSES if one in given), "")
    each = _number(given, name, PROCESSES.get(name, NUMBER))
    if name != "gpus":
        return nodes, each
    if each % nodes:
        raise UserError(f"slurm: --gpus={given[name]}: {nodes} machines do not divide them")
    return nodes, each // nodes


def _number(given: Mapping[str, str], name: str, pattern: str) -> int:
    """An option's number; 1 where it is not given."""
    found = re.fullmatch(pattern, given.get(name, "1"), re.ASCII)
    if found is None:
        expected = "a number, at least 1"
        if pattern != NUMBER:
            expected = "how many GPUs (4, a100:4, of gres gpu:4), or --ntasks-per-node= beside it"
        raise UserError(f"slurm: --{name}={given[name]}: expected {expected}")
    return int(found[1])
