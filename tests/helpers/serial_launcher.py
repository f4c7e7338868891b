"""A launcher of studies that runs one task after the other in this process."""

from typing import ClassVar

import ssl_vit
from ssl_vit.errors import UserError
from ssl_vit.lab.study.launch import Job, Outcome, command, finished
from ssl_vit.lab.study.tasks import unreachable


class Serial:
    """Attributes:
    started: names of the tasks that any object has run, in order.
    """

    started: ClassVar[list[str]] = []

    def check(self, job: Job) -> None:
        if job.slurm:
            raise UserError(f"slurm={job.slurm}: is of another launcher")

    def preview(self, job: Job) -> list[str]:
        return [f"would run   {name}" for name in job.tasks if not finished(job.folder, name)]

    def start(self, job: Job) -> Outcome:
        failed: dict[str, str] = {}
        for name, task in job.tasks.items():
            if finished(job.folder, name):
                continue
            if missing := unreachable(task, job.tasks, list(failed)):
                failed[name] = f"needs {missing}"
                continue
            tool, *words = command(task, job.tasks, job.folder)
            self.started.append(name)
            try:
                getattr(ssl_vit, tool)(words)
            except UserError as error:
                failed[name] = str(error)
        return Outcome([name for name in job.tasks if finished(job.folder, name)], failed)
