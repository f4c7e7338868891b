"""The SLURM launcher: a job array for each part, which waits for the parts that it needs."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

from ...errors import UserError
from ...formatting import process_command, process_environment
from ...runs.files import write_atomically
from .expand import Plan, Task, finished

OPTIONS = {
    "time": "time",
    "partition": "partition",
    "gpus": "gpus",
    "account": "account",
    "cpus": "cpus-per-task",
}  # key after slurm. -> sbatch's option

ONE_GPU = re.compile(r"(?:[\w.-]+:)?[01]", re.ASCII)


def of_part(plan: Plan, part: str) -> list[Task]:
    """A part's tasks, in the order of the job array's indices."""
    return [task for task in plan.values() if task.part == part]


def script(
    name: str,
    part: str,
    indices: list[int],
    folder: Path,
    options: list[str],
    sbatch: dict[str, str],
) -> str:
    """The text of a part's sbatch script.

    Args:
        name: of the study.
        part: of the study.
        indices: of the tasks to run, in `of_part`.
        folder: of the study.
        options: of the study's command, without the launcher's.
        sbatch: {key of OPTIONS: value}.

    Raises:
        UserError: a value cannot be written in a line for sbatch.
    """
    # sbatch replaces %a and the like by numbers
    place = str(folder.resolve() / "slurm").replace("%", "%%")
    heads = {
        "job-name": f"{name}-{part}",
        "array": ",".join(map(str, indices)),
        "open-mode": "append",
        "output": f"{place}/{part}-%a.txt",
    }
    heads |= {OPTIONS[key]: value for key, value in sbatch.items()}
    keys = {head: f"slurm.{key}" for key, head in OPTIONS.items()}
    keys |= {"output": "out", "job-name": "name"}
    for head, value in heads.items():
        _check(keys.get(head, head), value)
    run = shlex.join(process_command("study", *options, f"only={part}"))
    python_path = process_environment().get("PYTHONPATH", "")
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{head}={shlex.quote(value)}" for head, value in heads.items()),
        f"cd {shlex.quote(str(Path.cwd()))}",
        f"export PYTHONPATH={shlex.quote(python_path)}",
        f"exec {run} index=$SLURM_ARRAY_TASK_ID",
        "",
    ]
    return "\n".join(lines)


def _check(key: str, value: str) -> None:
    """Check that a value is printable and has no backslash.

    sbatch reads its lines one by one, with a shell's quotes but with backslashes inside them: a
    line break in a value would make a line of the script, which is executed.
    """
    if not value.isprintable() or "\\" in value:
        text = "sbatch takes no such characters; choices: printable ones, no backslash"
        raise UserError(f"launcher=slurm: {key}={value!r}: {text}")


def check(name: str, plan: Plan, folder: Path, options: list[str], sbatch: dict[str, str]) -> None:
    """Check that the study can be submitted. Arguments as of `script`.

    Raises:
        UserError: a task has several GPUs, a value cannot be written for sbatch, or it is not here.
    """
    wanted = sbatch.get("gpus", "1")
    if not ONE_GPU.fullmatch(wanted):
        text = "a task of a study is one process, on one GPU"
        raise UserError(
            f"slurm.gpus={wanted}: {text}; choices: 0, 1, TYPE:1 (launch/slurm.sh starts one run on"
            " several)"
        )
    for part in _parts(plan):
        script(name, part, [], folder, options, sbatch)
    if shutil.which("sbatch") is None:
        raise UserError("launcher=slurm: there is no sbatch here; choices: local, slurm")


def _parts(plan: Plan) -> list[str]:
    return list(dict.fromkeys(task.part for task in plan.values()))


def submit(
    name: str, plan: Plan, folder: Path, options: list[str], sbatch: dict[str, str]
) -> dict[str, str]:
    """Write the script of every part and submit those with tasks to run; {part: job}. Arguments as
    of `script`, after `check`.

    Raises:
        UserError: sbatch rejects a script.
    """
    folder = folder.resolve()  # a name that begins with a dash would be an option
    (folder / "slurm").mkdir(parents=True, exist_ok=True)
    jobs: dict[str, str] = {}
    for part in _parts(plan):
        tasks = of_part(plan, part)
        indices = [i for i, task in enumerate(tasks) if not finished(folder, task.name)]
        if not indices:
            continue
        path = folder / "slurm" / f"{part}.sh"
        write_atomically(path, script(name, part, indices, folder, options, sbatch))
        needs = dict.fromkeys(plan[need].part for task in tasks for need in task.needs)
        jobs[part] = _sbatch(path, [jobs[need] for need in needs if need in jobs], jobs)
    return jobs


def _sbatch(path: Path, after: list[str], jobs: dict[str, str]) -> str:
    """Submit one script; the job's number."""
    # afterany, not afterok: a failed arm does not block the others; each task checks for itself
    waits = [f"--dependency=afterany:{':'.join(after)}"] if after else []
    done = subprocess.run(
        ["sbatch", "--parsable", *waits, str(path)], capture_output=True, text=True
    )
    if done.returncode:
        line = (done.stderr.strip().splitlines() or ["no message"])[-1]
        queued = f"; submitted before it: {', '.join(jobs.values())}" if jobs else ""
        raise UserError(f"launcher=slurm: sbatch rejects {path}: {line}{queued}")
    return done.stdout.strip().partition(";")[0]
