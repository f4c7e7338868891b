"""The SLURM launcher: a job array for each part, one index one task, each after the parts that it
needs."""

import shlex
import shutil
import subprocess
from pathlib import Path

from ..errors import UserError
from ..formatting import process_command, process_environment
from .plan import Task, finished

OPTIONS = {
    "time": "time",
    "partition": "partition",
    "gpus": "gpus",
    "account": "account",
    "cpus": "cpus-per-task",
}  # word -> sbatch's


def of_part(plan: dict[str, Task], part: str) -> list[Task]:
    """A part's tasks; their places here are the array's indices."""
    return [task for task in plan.values() if task.part == part]


def script(
    name: str,
    part: str,
    indices: list[int],
    folder: Path,
    words: list[str],
    options: dict[str, str],
) -> str:
    """The text of a part's sbatch script. `words` are those of the study's command, without the
    launcher's.

    Raises:
        UserError: a value cannot stand in a line for sbatch.
    """
    heads = {
        "job-name": f"{name}-{part}",
        "array": ",".join(map(str, indices)),
        "open-mode": "append",
    }
    # sbatch puts numbers in for %a and its like
    place = str(folder.resolve() / "slurm").replace("%", "%%")
    heads |= {"output": f"{place}/{part}-%a.txt"}
    heads |= {OPTIONS[key]: value for key, value in options.items()}
    words_of = {sbatch: f"slurm.{key}" for key, sbatch in OPTIONS.items()} | {
        "output": "out",
        "job-name": "name",
    }
    for key, value in heads.items():
        _check(words_of.get(key, key), value)
    run = shlex.join(process_command("study", *words, f"only={part}"))
    lines = [f"#SBATCH --{key}={shlex.quote(value)}" for key, value in heads.items()]
    return "\n".join(
        [
            "#!/bin/bash",
            *lines,
            f"cd {shlex.quote(str(Path.cwd()))}",
            f"export PYTHONPATH={shlex.quote(process_environment().get('PYTHONPATH', ''))}",
            f"exec {run} index=$SLURM_ARRAY_TASK_ID",
            "",
        ]
    )


def _check(word: str, value: str) -> None:
    """sbatch reads its lines one by one, quotes as a shell does and backslashes in them too: a line
    that ends within a value would be one of the script's own, to be executed."""
    if not value.isprintable() or "\\" in value:
        raise UserError(
            f"launcher=slurm: {word}={value!r}: sbatch takes no such characters; choices: printable ones, no backslash"
        )


def submit(
    name: str, plan: dict[str, Task], folder: Path, words: list[str], options: dict[str, str]
) -> dict[str, str]:
    """Write every part's script and hand over those with tasks to run; {part: job}.

    Raises:
        UserError: sbatch is not here, or refuses a script.
    """
    if shutil.which("sbatch") is None:
        raise UserError("launcher=slurm: there is no sbatch here; choices: local, slurm")
    parts = list(dict.fromkeys(task.part for task in plan.values()))
    for part in parts:
        script(name, part, [], folder, words, options)  # before any is submitted
    folder = folder.resolve()  # a name that begins with a dash would be an option
    (folder / "slurm").mkdir(parents=True, exist_ok=True)
    jobs: dict[str, str] = {}
    for part in parts:
        tasks = of_part(plan, part)
        indices = [i for i, task in enumerate(tasks) if not finished(folder, task.name)]
        if not indices:
            continue
        path = folder / "slurm" / f"{part}.sh"
        path.write_text(script(name, part, indices, folder, words, options))
        needs = dict.fromkeys(plan[need].part for task in tasks for need in task.needs)
        jobs[part] = _sbatch(path, [jobs[need] for need in needs if need in jobs], jobs)
    return jobs


def _sbatch(path: Path, after: list[str], jobs: dict[str, str]) -> str:
    """Submit one script; the job's number."""
    # afterany, not afterok: an arm that failed holds up no other; each task looks for what it needs
    # itself
    waits = [f"--dependency=afterany:{':'.join(after)}"] if after else []
    done = subprocess.run(
        ["sbatch", "--parsable", *waits, str(path)], capture_output=True, text=True
    )
    if done.returncode:
        line = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        queued = f"; submitted before it: {', '.join(jobs.values())}" if jobs else ""
        raise UserError(f"launcher=slurm: sbatch refuses {path}: {line}{queued}")
    return done.stdout.strip().partition(";")[0]
