"""Submit a study to SLURM as a job array for each run. An array waits for the arrays it needs.

SLURM 19.05 or later is needed. All options are on the command line of sbatch, where they override
the environment variables of sbatch.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ...data.batch_layout import BatchLayout
from ...errors import UserError
from ...formatting import format_count, process_command, process_environment, shell_command
from ...runs.files import write_atomically
from .launch import LaunchOutcome, StudyJob, has_result
from .tasks import Task

SCRIPT = Path(__file__).with_name("slurm_array.sh")
OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:=(.*))?", re.DOTALL)
# Options that `slurm=` must not contain
LAUNCHER_OPTIONS = (
    *("array", "job-name", "output", "dependency", "signal", "requeue", "no-requeue", "open-mode"),
    *("chdir", "wrap", "wait", "test-only"),
)
# Options that would bind each process to a single GPU
BOUND = ("gpus-per-task", "gpu-bind", "tres-bind", "tres-per-task", "ntasks-per-gpu")
REFUSED = {
    **dict.fromkeys(LAUNCHER_OPTIONS, "the launcher sets this option. Leave the option out."),
    **dict.fromkeys(BOUND, "each process would see a single GPU. Use --gpus-per-node= instead."),
    "ntasks": "the launcher sets this option. Use --ntasks-per-node= instead.",
}
NUMBER = r"([1-9][0-9]*)"
GPUS = rf"(?:[A-Za-z]\w*:)?{NUMBER}"  # with or without a type: a100:4
# {option that gives the number of processes: pattern of its value}. The first one present counts.
PROCESSES = {"ntasks-per-node": NUMBER, "gpus-per-node": GPUS, "gres": f"gpu:{GPUS}", "gpus": GPUS}


class Slurm:
    """Launcher that submits tasks to SLURM without waiting."""

    def check(self, job: StudyJob) -> None:
        """Check the SLURM options, the number of processes, and that SLURM is installed.

        Raises:
            UserError: An option is not a long option of sbatch, or the launcher sets it itself,
                such as `--array`. Or the processes do not divide the batch of a task equally. Or
                SLURM is not installed.
        """
        _options(job)  # raises an error if an option or the number of processes is wrong
        for name in ("sbatch", "squeue"):
            if shutil.which(name) is None:
                raise UserError(
                    f"launcher=slurm: {name} is not installed here. Use launcher=local, or"
                    " dry=true to see the commands."
                )

    def preview(self, job: StudyJob) -> list[str]:
        """Return the commands that would submit all unfinished tasks if the queue were empty.

        `{RUN}` stands for the job number of a run. SLURM need not be installed.

        Raises:
            UserError: An option is wrong; see `check`.
        """
        job_numbers: dict[str, list[str]] = {}  # {run: numbers of its jobs}
        lines = []
        for run in _runs(job):
            command = _command(job, run, job_numbers, queued=())
            job_numbers[run] = []
            if command:
                job_numbers[run].append(f"{{{run}}}")
                lines.append(f"would run   {shell_command(*command)}")
        return lines

    def start(self, job: StudyJob) -> LaunchOutcome:
        """Submit an array for each run with tasks that are neither finished nor in the queue.

        Raises:
            UserError: SLURM refuses an array.
        """
        _logs(job).mkdir(parents=True, exist_ok=True)
        queue = _queue(job)
        # {run: numbers of its jobs}. Each number counts once, because an array has several tasks
        job_numbers = {run: [*dict.fromkeys(jobs.values())] for run, jobs in queue.items()}
        submitted: dict[str, str] = {}
        for run in _runs(job):
            write_atomically(_list_path(job, run), "\n".join(_task_names_by_index(job, run)))
            if queue[run]:
                print(
                    f"in queue    {run}: {format_count(len(queue[run]), 'tasks')} in job"
                    f" {', '.join(job_numbers[run])}",
                    flush=True,
                )
            command = _command(job, run, job_numbers, queue[run])
            if command:
                # with several clusters sbatch prints NUMBER;CLUSTER
                number = _output(command, f"run {run}").strip().partition(";")[0]
                submitted |= {
                    task.name: number for _, task in _unfinished_tasks(job, run, queue[run])
                }
                job_numbers[run].append(number)
                print(f"submitted   {run}: job {number}", flush=True)
        return LaunchOutcome(job.finished, submitted=submitted)


def _task_names_by_index(job: StudyJob, run: str) -> list[str]:
    """Return the names of a run's tasks, in the order of their indices in job arrays.

    A file in the study's folder has the names of earlier submissions. These names come first. So a
    task that is still in the queue keeps its index when the user starts the study again.
    """
    path = _list_path(job, run)
    listed_names = path.read_text().split() if path.exists() else []
    names = [task.name for task in job.tasks.values() if task.run == run]
    return [*listed_names, *(name for name in names if name not in listed_names)]


def _list_path(job: StudyJob, run: str) -> Path:
    return _logs(job) / f"{run}.tasks"


def _runs(job: StudyJob) -> list[str]:
    """Return the names of the runs, each after the needed runs."""
    return [*dict.fromkeys(task.run for task in job.tasks.values())]


def _logs(job: StudyJob) -> Path:
    return job.folder.resolve() / "slurm"


def _job_name(job: StudyJob, run: str) -> str:
    """Return the name of an array, such as `gap-pretrain-1a2b3c4d`, to find the array in the queue.

    The last part is a hash of the study's folder. It distinguishes the array from arrays of studies
    in other folders.
    """
    return f"{job.name}-{run}-{hashlib.sha256(bytes(_logs(job))).hexdigest()[:8]}"


def _queue(job: StudyJob) -> dict[str, dict[int, str]]:
    """Return `{run: {index of a task: job number}}` of the study's tasks that wait or run.

    For example, `{"pretrain": {0: "712", 1: "712"}, "final": {}}`.

    Raises:
        UserError: SLURM does not answer.
    """
    run_by_job_name = {_job_name(job, run): run for run in _runs(job)}
    queue: dict[str, dict[int, str]] = {run: {} for run in run_by_job_name.values()}
    clusters = [word for word in shlex.split(job.slurm) if word.startswith("--clusters=")]
    command = ["squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%F %K %j"]
    for line in _output([*command, *clusters], "the queue").splitlines():
        # %F is the number of a job, %K its index in an array (N/A outside an array), %j its name
        fields = line.strip().split(" ", 2)
        if len(fields) == 3:
            number, index, name = fields
            if name in run_by_job_name and index.isdecimal():
                queue[run_by_job_name[name]][int(index)] = number
    return queue


def _output(words: Sequence[str], what: str) -> str:
    """Run a SLURM command and return the output.

    Args:
        words: Command line.
        what: What the command is about, for the error message, such as "run pretrain".

    Raises:
        UserError: The command fails.
    """
    completed = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if completed.returncode:
        error = ", ".join(line.strip() for line in completed.stderr.splitlines() if line.strip())
        raise UserError(
            f"launcher=slurm: {what}: {error.rstrip('.')}. Solve this problem, then type the same"
            " command again to continue."
        )
    return completed.stdout


def _unfinished_tasks(job: StudyJob, run: str, queued: Collection[int]) -> list[tuple[str, Task]]:
    """Return (index, task) for each task of a run that is neither finished nor in the queue."""
    return [
        (str(index), job.tasks[name])
        for index, name in enumerate(_task_names_by_index(job, run))
        if name in job.tasks and index not in queued and not has_result(job.folder, name)
    ]


def _command(
    job: StudyJob, run: str, job_numbers: Mapping[str, Sequence[str]], queued: Collection[int]
) -> list[str]:
    """Return the command that submits the remaining tasks of a run as a job array.

    The array waits until all jobs of the needed runs have ended, failed or not (`afterany`). Then
    each task checks whether the needed tasks have a result. With `afterok` in place of `afterany`,
    one failed task would block all tasks of the array.

    Args:
        job: Study to submit.
        run: Name of the run.
        job_numbers: `{run: job numbers}` of the runs submitted before.
        queued: Indices of the run's tasks that are in the queue.

    Returns:
        Command and arguments. Empty if no task of the run remains.
    """
    unfinished = _unfinished_tasks(job, run, queued)
    if not unfinished:
        return []
    indices = ",".join(index for index, _ in unfinished)
    needed_tasks = [job.tasks[name] for _, task in unfinished for name in task.needs]
    needed_runs = dict.fromkeys(task.run for task in needed_tasks)  # each once, in order
    needed_jobs = ":".join(
        number for needed_run in needed_runs for number in job_numbers[needed_run]
    )
    dependency = [f"--dependency=afterany:{needed_jobs}"] if needed_jobs else []
    logs = _logs(job)
    at_once = f"%{job.parallel}" if job.parallel else ""
    task_names = "/".join(_task_names_by_index(job, run))
    return [
        *("sbatch", "--parsable", *_options(job)),
        *dependency,
        f"--job-name={_job_name(job, run)}",
        f"--array={indices}{at_once}",
        # sbatch replaces %a by the index. Other percent signs in the folder's name are doubled.
        f"--output={str(logs).replace('%', '%%')}/{run}-%a.txt",
        # The first argument of the script is the beginning of the paths of files in which it counts
        # the failures of tasks. The further arguments are the command that the script runs.
        *(str(SCRIPT), str(logs / run)),
        *("env", f"PYTHONPATH={process_environment().get('PYTHONPATH', '')}"),
        *process_command("study", *job.words, f"only={task_names}"),
    ]


def _options(job: StudyJob) -> list[str]:
    """Return the options of sbatch for the runs of a study.

    The user's options (`slurm=`) come first, followed by the options that the launcher sets.

    Raises:
        UserError: `slurm=` has an argument that is not a long option, or an option that the
            launcher sets itself. Or the processes do not divide the batch of a task equally.
    """
    values: dict[str, str] = {}
    try:
        words = shlex.split(job.slurm)
    except ValueError as error:
        raise UserError(f"slurm={job.slurm}: {error}") from None
    for word in words:
        match = OPTION.fullmatch(word)
        if match is None:
            raise UserError(
                f"slurm: {word}: expected long options of sbatch, such as --time=4:00:00 --gpus=8"
            )
        if match[1] in REFUSED:
            raise UserError(f"slurm: {word}: {REFUSED[match[1]]}")
        values[match[1]] = match[2] or ""
    nodes, per_node = _layout(values)
    processes = nodes * per_node
    for name, recipe in job.recipes.items():
        if not recipe.trains:  # an evaluation runs with any number of processes
            continue
        batch = recipe.optim.batch
        try:
            # called only for its error, which says that the processes do not divide the batch
            BatchLayout.divide(
                batch, recipe.compute.batch, limit=batch, rank=0, processes=processes
            )
        except UserError as error:
            raise UserError(f"slurm={job.slurm}: {name}: {error}") from None
    return [
        *words,
        *(f"--nodes={nodes}", f"--ntasks={processes}", f"--ntasks-per-node={per_node}"),
        # USR1 goes to the processes of srun. With B:USR1 it would go to the script. A preemption
        # with a grace time sends its SIGTERM to the processes of srun, too.
        *("--signal=USR1@120", "--requeue", "--open-mode=append", f"--chdir={Path.cwd()}"),
    ]


def _layout(values: Mapping[str, str]) -> tuple[int, int]:
    """Return the number of machines of a task, and the number of processes on each machine.

    The first of these options that is present gives the number of processes:

    1. `--ntasks-per-node=`: processes on each machine
    2. `--gpus-per-node=`, and then `--gres=gpu:`: GPUs of each machine, with one process for each
    3. `--gpus=`: GPUs of all machines together, with one process for each

    Without these options, each machine has a single process. For example, the result for
    `--nodes=2 --gpus=8` is `(2, 4)`.

    Args:
        values: `{option of sbatch: value}`.

    Raises:
        UserError: The number in an option is invalid, or `--gpus=` is not a multiple of the number
            of machines.
    """
    nodes = _number(values, "nodes", NUMBER)
    name = next((option for option in PROCESSES if option in values), None)
    if name is None:
        return nodes, 1
    processes = _number(values, name, PROCESSES[name])
    if name != "gpus":  # only --gpus= counts the GPUs of all machines together
        return nodes, processes
    if processes % nodes:
        raise UserError(
            f"slurm: --gpus={values[name]}: the number of GPUs must be a multiple of"
            f" --nodes={nodes}"
        )
    return nodes, processes // nodes


def _number(values: Mapping[str, str], name: str, pattern: str) -> int:
    """Return the number in the value of an option of sbatch, or 1 if the option is missing.

    Args:
        values: `{option of sbatch: value}`.
        name: Name of the option.
        pattern: Pattern of a valid value, with the number as its first group: `NUMBER` for
            machines and processes, or a pattern for GPUs such as `a100:4`.

    Raises:
        UserError: The value does not match the pattern.
    """
    match = re.fullmatch(pattern, values.get(name, "1"), re.ASCII)
    if match is None and pattern == NUMBER:
        raise UserError(f"slurm: --{name}={values[name]}: expected a number of at least 1")
    if match is None:  # a pattern for GPUs
        raise UserError(
            f"slurm: --{name}={values[name]}: expected a number of GPUs, as in --gpus=4,"
            " --gpus-per-node=a100:4 or --gres=gpu:4. Or give the number of processes with"
            " --ntasks-per-node="
        )
    return int(match[1])
