"""Run the study tool, which starts a study's tasks with a launcher or estimates the cost."""

import os
import pkgutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UserError, is_first_process, suggest
from ...formatting import (
    format_count,
    format_duration,
    process_command,
    process_environment,
    typed_command,
)
from ...jobs.image_facts import fingerprint
from ...pages.run_page import PAGE
from ...recipe.given import Arguments
from ...recipe.keys import Values
from ...recipe.recipe_files import read
from ...recipe.tool import parse
from ...runs import notebook
from ...runs.folder import Run
from ...runs.identity import check_finished
from ..options import PlanOptions
from . import launch, record, worth
from .estimate import StudyEstimate, estimate_request
from .hours import Group
from .options import LAUNCHERS, StudyOptions
from .request import StudyRequest, parse_request
from .task_options import resolve_options
from .tasks import Tasks, failed_need
from .warm import dies_with_us

ARRAY_OPTIONS = ("only=", "index=")  # the options of an element of a job array


@dataclass(frozen=True)
class StudyOutcome(launch.LaunchOutcome):
    """Outcome of a study. A notebook shows the report.

    Attributes:
        name: Name of the study.
        folder: Folder that holds a folder for the run of each task.
    """

    name: str = ""
    folder: Path = field(default_factory=Path)

    def _repr_html_(self) -> str | None:
        """Return the study's report, or None if there is no report."""
        page = self.folder / PAGE
        if not self.name or not page.is_file():
            return None
        return notebook.inline_page(page.read_text(encoding="utf-8"))


def main(words: Sequence[str]) -> int:
    """Run, submit or check a study and return the exit status.

    The launcher for SLURM adds `only=` and `index=`. With these options, this process becomes the
    run of a single task. If the user stops the study, the last printed line is the command that
    continues the study.

    Args:
        words: Arguments of the command line after `ssl-vit study`.

    Raises:
        UserError: An option or the study's file is wrong. Nothing was started.
        KeyboardInterrupt: SIGINT or SIGTERM. Every process that this call started has ended.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        arguments = Arguments([*words])
        if is_check(arguments):
            print(*check(arguments), sep="\n")
            return 0
        if any(word.startswith(ARRAY_OPTIONS) for word in words):
            _exec_task(arguments)
        return 1 if study(arguments).failed else 0
    except KeyboardInterrupt:
        print(f"next        {typed_command('study', *words)}", flush=True)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def is_check(arguments: Arguments) -> bool:
    """Return whether the arguments ask only for a check of the study."""
    return "--check" in arguments.words or bool(dict(arguments.pairs or ()).get("check"))


def check(
    arguments: Arguments, content: Mapping[str, Any] | None = None
) -> tuple[StudyEstimate, str]:
    """Estimate the cost of a study without starting a task.

    Args:
        arguments: Arguments of the study tool.
        content: Study as a mapping, or None if `recipe=` names a study.

    Returns:
        The estimate, and a line that begins with `kept` and says how many tasks have finished.
            Their results are kept when the study starts.

    Raises:
        UserError: An option or the study's file is wrong.
    """
    request = parse_request(arguments, content)
    estimate = estimate_request(request, PlanOptions(device=request.tool_options.device))
    job = _job(request, record.assign_folders(request.tasks, request.folder)[0])
    finished = f"{len(job.finished)} of {format_count(len(job.tasks), 'tasks')}"
    if not request.hours:
        return estimate, f"kept        finished: {finished}"
    # only optional groups have a kind
    optional = sum(len(group.tasks) for group in job.order if group.kind)
    return estimate, (
        f"kept        finished: {finished}. {format_count(optional, 'tasks')} will run only if"
        " there is time within hours=."
    )


def study(arguments: Arguments, content: Mapping[str, Any] | None = None) -> StudyOutcome:
    """Run or submit a study.

    Args:
        arguments: Arguments of the study tool.
        content: Study with the structure of a study file, or None if `recipe=` names a study.

    Raises:
        UserError: An option or the study's file is wrong. Nothing was started.
        KeyboardInterrupt: The study was stopped. Every task that it ran has ended.
    """
    request = parse_request(arguments, content)
    code = LAUNCHERS[request.tool_options.launcher].code
    launcher: launch.Launcher = pkgutil.resolve_name(code)()
    dry = request.tool_options.dry
    if not dry:
        launcher.check(_job(request, request.tasks))
    with nullcontext() if dry else record.lock(request.folder):
        tasks, others = record.assign_folders(request.tasks, request.folder)
        job = _job(request, tasks)
        for line in request.opening:
            print(line)
        history = record.update_history(job.folder, request.study, job.tasks)
        for line in [*request.cautions, *_describe_unchecked(job), *history.changes]:
            print(f"warning: {line}")
        for name, reason in others.items():
            print(f"kept        {name}: {reason}")
        print(f"study       {request.name}: {request.study.title}", flush=True)
        if dry:
            print("\n".join(launcher.preview(job)))
            print(
                "dry         dry=true: nothing was started or written. To start the study, leave"
                " out dry=true. Do not submit the commands of job arrays yourself, because the"
                " tasks need study.json, which dry=true does not write."
            )
            return StudyOutcome(job.finished, name=job.name, folder=job.folder)
        started = time.monotonic()
        while True:
            planned = record.content(
                request.study, job.tasks, history, job.order, request.command_words, str(Path.cwd())
            )
            record.write(job.folder, planned)
            outcome = launcher.start(job)
            tasks, _ = record.assign_folders(request.tasks, request.folder)
            before, job = job, _job(request, tasks)
            # New results of tries may have changed which values are best. Tasks that take these
            # values then have new folders and must run.
            if job.tasks == before.tasks or outcome.submitted:
                break
    finished_tasks, took = job.finished, format_duration(time.monotonic() - started)
    wanted = len(job.tasks) - len(outcome.left_out)
    finished = f"{len(finished_tasks)} of {format_count(wanted, 'tasks')}"
    num_open = len(
        {*job.tasks} - {*finished_tasks} - outcome.failed.keys() - outcome.left_out.keys()
    )
    runs_here = LAUNCHERS[request.tool_options.launcher].runs_here
    if num_open and not runs_here and not outcome.submitted:
        print(
            f"open        {num_open:,} of {format_count(wanted, 'tasks')} have no result, and"
            f" launcher={request.tool_options.launcher} submitted none of them now. Tasks that were"
            " submitted earlier may still be in the queue. When they have ended, type the same"
            " command again."
        )
    elif num_open and not runs_here:
        jobs = len({*outcome.submitted.values()})
        print(
            f"submitted   {format_count(len(outcome.submitted), 'tasks')} in"
            f" {format_count(jobs, 'jobs')}. Finished: {finished}."
        )
        print("later       type the same command again to submit missing tasks or write the report")
    else:
        print(f"finished    {finished} in {took}: {job.folder}")
    for name, reason in outcome.failed.items():
        print(f"no result   {name}: {reason}")
    if finished_tasks and not outcome.submitted:
        _print_report(job.folder)
    else:
        print(f"next        {typed_command('report', job.folder)}")
    return StudyOutcome(
        finished_tasks, outcome.failed, outcome.submitted, outcome.left_out, job.name, job.folder
    )


def _job(request: StudyRequest, tasks: Tasks) -> launch.StudyJob:
    """Build the job that a launcher runs: the tasks of a study, their recipes and their order.

    Args:
        request: Study that the user asked for.
        tasks: Tasks of the request in the same order, as `record.assign_folders` returns them. A
            task may have another name than in the request.
    """
    options = request.tool_options
    recipes_in_order = [request.recipes[name] for name in request.tasks]
    # arguments of the command with which each element of a SLURM array runs a task
    words = [f"name={request.name}", f"out={request.folder.parent.resolve()}"]
    if request.plugin:
        words.append(f"plugin={request.plugin}")
    order: list[Group] = []
    compared_run = ""  # after each task of this run, the study's page is written
    if request.hours:
        # frozen_first: the evaluations of frozen encoders belong to the group of their seed.
        # Otherwise they are the last group.
        order = worth.order_groups(tasks, request.hours.frozen_first)
        compared_run = request.study.report.test or ""
    return launch.StudyJob(
        name=request.name,
        folder=request.folder,
        tasks=tasks,
        recipes=dict(zip(tasks, recipes_in_order, strict=True)),
        words=tuple(words),
        parallel=options.parallel,
        slurm=options.slurm,
        measures=request.study.report.measures,
        hours=request.hours,
        order=tuple(order),
        page_of=compared_run,
    )


def _print_report(folder: Path) -> None:
    """Write the report of a study in a separate process, and print the report.

    If the report cannot be written, for example because the study compares nothing, the function
    prints the reason.
    """
    line = process_command("report", str(folder))
    completed = subprocess.run(
        line,
        env=process_environment(),
        capture_output=True,
        text=True,
        preexec_fn=dies_with_us(),
    )
    if completed.returncode == 0:
        print(completed.stdout.rstrip(), flush=True)
        return
    lines = completed.stderr.splitlines() or [
        f"the report ended with status {completed.returncode}"
    ]
    print(f"no report   {lines[-1].removeprefix('error: ')}", flush=True)


def _describe_unchecked(job: launch.StudyJob) -> list[str]:
    """Check finished runs for changes, and return lines about what could not be checked.

    Raises:
        UserError: The images, weights or files of a run have changed.
    """
    lines: dict[str, None] = {}  # each line once, in order
    for name in job.finished:
        options, _ = launch.planned_options(job.tasks[name], job.tasks, job.folder)
        lines |= dict.fromkeys(_check_unchanged(job.folder / name, options))
    return list(lines)


def _check_unchanged(run: Path, options: Values) -> list[str]:
    """Check that the images, weights and files of a finished run have not changed since the run.

    Args:
        run: Folder of the run.
        options: `{dotted key: value}` that resolves to the recipe of the run.

    Returns:
        Lines about images and weights that were not checked, because they are not on this machine.

    Raises:
        UserError: The images, weights or files have changed.
    """
    try:
        recipe = resolve_options(options, "", check_images=False)
    except UserError:
        # the same options were valid before the run, so only the initial weights can be missing now
        recipe = read(run / "recipe.yaml")
        recipe.out = str(run.parent)  # where the run is now
    # `fingerprint` computes a hash of the images to compare with the recorded hash
    return check_finished(Run(recipe), fingerprint)


def _exec_task(arguments: Arguments) -> None:
    """Replace this process by the run of a single task of a job array, and never return.

    `only=` lists the tasks of the array, and `index=` is the position of the task in this list. For
    example, `only=mae-0/mae-1 index=1` runs task `mae-1`. The options of the task come from
    study.json.

    Args:
        arguments: Arguments of the study tool, with `only=` and `index=`.

    Raises:
        UserError: There is no such task, or the task needs a task that has not finished.
    """
    options = parse(StudyOptions, arguments)
    if options.only is None or options.index is None:
        raise UserError(
            "only= and index= belong together: only= lists the tasks of a job array, and index= is"
            " the position of a task in this list, from 0. Give both options."
        )
    names = options.only.split("/")
    if options.index >= len(names):
        raise UserError(
            f"index={options.index}: expected the position of a task in only=, a number from 0 to"
            f" {len(names) - 1}"
        )
    # running the plugin declares its metrics, which the choice of the best tried values may need
    options.unread.run_plugin()
    folder = Path(options.out) / (options.name or Path(options.recipe or "").stem)
    tasks, name = record.read(folder).by_name, names[options.index]
    if name not in tasks:
        raise UserError(f"only={name}: not a task of the study, {suggest(name, tasks)}")
    unfinished = [need for need in tasks[name].needs if not launch.has_result(folder, need)]
    # the needed jobs have ended, so a needed task without a result counts as failed
    missing = failed_need(tasks[name], tasks, unfinished)
    if missing is not None:
        raise UserError(f"only={name}: this task needs {missing}, which has not finished")
    line = process_command(*launch.task_command(tasks[name], tasks, folder))
    if is_first_process():  # print once if the task has several processes
        print(f"task        {name}", flush=True)
    os.execve(line[0], line, process_environment())
