"""The SLURM launcher: a job array for each part, which waits for the parts that it needs."""

import shlex
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...config.schema import Recipe
from ...data.batch_layout import BatchLayout
from ...errors import UserError
from ...runs.files import write_atomically
from ..lab_tools import Slurm
from . import slurm_script
from .expand import Plan, Task, finished


@dataclass(frozen=True)
class Submission:
    """A study as SLURM is given it.

    Attributes:
        name: of the study.
        plan: its tasks.
        folder: of the study.
        options: of the study's command, without the launcher's.
        resources: that each task requests.
        parallel: tasks of a part at once; None: all.
    """

    name: str
    plan: Plan
    folder: Path
    options: list[str]
    resources: Slurm
    parallel: int | None = None

    def heads(self, part: str, indices: list[int]) -> dict[str, str]:
        """sbatch's options for a part's tasks with these indices.

        Raises:
            UserError: as slurm_script.heads.
        """
        array = ",".join(map(str, indices)) + (f"%{self.parallel}" if self.parallel else "")
        return slurm_script.heads(self.name, part, array, self.folder, self.resources)


def of_part(plan: Plan, part: str) -> list[Task]:
    """A part's tasks, in the order of the job array's indices."""
    return [task for task in plan.values() if task.part == part]


def check(study: Submission, dry: bool) -> None:
    """Check that the scripts can be written and, unless `dry`, submitted.

    Raises:
        UserError: an option cannot be written for sbatch or is not what sbatch would take, or
            sbatch is not here.
    """
    for part in _parts(study.plan):
        found = study.heads(part, [])
        if not dry:
            slurm_script.check_environment(found)
    if not dry and shutil.which("sbatch") is None:
        text = "there is no sbatch here; choices: launcher=local, dry=true to see the scripts"
        raise UserError(f"launcher=slurm: {text}")


def check_batches(study: Submission, recipes: dict[str, Recipe]) -> None:
    """Check that the processes of each task divide its batch; `recipes` are {task: its recipe}.

    Raises:
        UserError: they do not.
    """
    count = slurm_script.processes(study.resources)
    for name, recipe in recipes.items():
        if recipe.objective == "probe":  # which takes any
            continue
        batch = recipe.optim.batch
        try:
            BatchLayout.divide(batch, recipe.compute.batch, batch, 0, count)
        except UserError as error:
            raise UserError(f"slurm.gpus={study.resources.gpus}: {name}: {error}") from None


def _parts(plan: Plan) -> list[str]:
    return list(dict.fromkeys(task.part for task in plan.values()))


def write_scripts(study: Submission) -> dict[str, Path]:
    """Write the script of every part with tasks to run; {part: its script}, each after those that
    it waits for."""
    folder = study.folder.resolve()  # a name that begins with a dash would be an option
    (folder / "slurm").mkdir(parents=True, exist_ok=True)
    scripts: dict[str, Path] = {}
    for part in _parts(study.plan):
        tasks = of_part(study.plan, part)
        indices = [i for i, task in enumerate(tasks) if not finished(folder, task.name)]
        if indices:
            scripts[part] = folder / "slurm" / f"{part}.sh"
            heads = study.heads(part, indices)
            text = slurm_script.script(heads, part, study.options, study.folder, study.resources)
            write_atomically(scripts[part], text)
            for left in (folder / "slurm").glob(f"{part}-*.failures"):  # of jobs that were ended
                left.unlink(missing_ok=True)
    return scripts


def submit(study: Submission) -> dict[str, str]:
    """Write the script of every part with tasks to run, and submit it; {part: job}.

    Raises:
        UserError: sbatch rejects a script.
    """
    jobs: dict[str, str] = {}
    for part, path in write_scripts(study).items():
        jobs[part] = _sbatch(path, _after(study.plan, part, jobs), jobs)
    return jobs


def commands(study: Submission, scripts: dict[str, Path]) -> list[str]:
    """What `submit` does with the scripts, as lines for a shell."""
    names: dict[str, str] = {}
    lines = []
    for number, (part, path) in enumerate(scripts.items(), 1):
        jobs = {one: f"${{{name}%;*}}" for one, name in names.items()}
        waits = _dependency(_after(study.plan, part, jobs))
        names[part] = f"job{number}"
        words = " ".join(["sbatch", "--parsable", *waits, shlex.quote(str(path))])
        lines.append(f"{names[part]}=$({words})")
    return lines


def _after(plan: Plan, part: str, jobs: dict[str, str]) -> list[str]:
    """The jobs of the parts that a part needs."""
    needs = dict.fromkeys(plan[need].part for task in of_part(plan, part) for need in task.needs)
    return [jobs[need] for need in needs if need in jobs]


def _dependency(jobs: Iterable[str]) -> list[str]:
    """sbatch's option that makes a job wait for others. A failed arm does not block the others
    (afterok would): each task checks for itself."""
    listed = ":".join(jobs)
    return [f"--dependency=afterany:{listed}"] if listed else []


def _sbatch(path: Path, after: list[str], jobs: dict[str, str]) -> str:
    """Submit one script after `jobs`; the job's number."""
    command = ["sbatch", "--parsable", *_dependency(after), str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        text = "; ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
        queued = f"; submitted before it: {', '.join(jobs.values())}" if jobs else ""
        raise UserError(f"launcher=slurm: sbatch rejects {path}: {text or 'no message'}{queued}")
    return done.stdout.strip().partition(";")[0]
