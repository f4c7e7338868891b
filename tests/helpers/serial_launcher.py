"""A launcher of studies that runs one task after the other in this process."""

from typing import ClassVar

import ssl_vit
from ssl_vit.errors import UserError
from ssl_vit.lab.study.launch import LaunchOutcome, StudyJob, has_result, task_command
from ssl_vit.lab.study.tasks import failed_need


class Serial:
    """Attributes:
    started: names of the tasks that any object has run, in order.
    """

    started: ClassVar[list[str]] = []

    def check(self, job: StudyJob) -> None:
        if job.slurm:
            raise UserError(f"slurm={job.slurm}: is of another launcher")

    def preview(self, job: StudyJob) -> list[str]:
        return [f"would run   {name}" for name in job.tasks if not has_result(job.folder, name)]

    def start(self, job: StudyJob) -> LaunchOutcome:
        failed: dict[str, str] = {}
        for name, task in job.tasks.items():
            if has_result(job.folder, name):
                continue
            if missing := failed_need(task, job.tasks, list(failed)):
                failed[name] = f"needs {missing}"
                continue
            tool, *words = task_command(task, job.tasks, job.folder)
            self.started.append(name)
            try:
                getattr(ssl_vit, tool)(words)
            except UserError as error:
                failed[name] = str(error)
        return LaunchOutcome([name for name in job.tasks if has_result(job.folder, name)], failed)
