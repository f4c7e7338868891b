"""The study tool: its command line, and what it starts."""

import dataclasses
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from ..config import tool_options
from ..config.schema import Recipe
from ..errors import UserError, suggest
from ..formatting import duration, process_command, process_environment, shell_command, tool_command
from ..runs import notebook
from ..runs.environment import cores
from ..runs.folder import Run
from . import plan_tool, reports
from .lab_tools import PlanOptions, StudyOptions
from .studies import benchmark_images, compared_parts, scheduling, slurm, task_images
from .studies.expand import command, finished, tasks, unreachable
from .studies.local import Local, gpus
from .studies.progress import ProgressScreen
from .studies.record import check_finished, check_plan, write_plan
from .studies.request import StudyRequest, parse_request, study_places, with_places
from .studies.task_recipes import check

CHECK = "--check"


@dataclass(frozen=True)
class StudyOutcome:
    """What has become of a study's tasks. In a notebook it shows the study's report.

    Attributes:
        name: of the study.
        folder: which holds a folder for each task's run.
        finished: the tasks that have a result.
        failed: {task: why it has none}, of this call.
        jobs: {part: number of the job array}, of launcher=slurm, which waits for none of them; none
            with dry=true.
    """

    name: str
    folder: Path
    finished: list[str]
    failed: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        return notebook.inline_page(reports.render(self.folder))


def main(options: list[str]) -> int:
    """Run or submit the study; the exit status.

    Raises:
        UserError: an option or the study's file is wrong; nothing was started.
    """
    if CHECK in options:
        check_file([option for option in options if option != CHECK])
        return 0
    request = _request(options)
    if request.own.only is not None:
        # whose tool checks its options itself
        return run_one(request, request.own.only, request.own.index or 0)
    return 1 if _start(request, options).failed else 0


def study(options: list[str]) -> StudyOutcome:
    """Run or submit the study.

    Raises:
        UserError: as `main`.
    """
    return _start(_request(options), options)


def _request(options: list[str]) -> StudyRequest:
    """The study of the options, whose benchmark has images and which SLURM would take."""
    request = parse_request(options)
    if _on_slurm(request):
        slurm.check(_submission(request, options), request.own.dry)
    elif request.own.only is None:
        _check_local(request.own)
    return _with_images(request) if request.study.benchmark else request


def _check_local(own: StudyOptions) -> None:
    """Check that no option is given that is for SLURM alone.

    Raises:
        UserError: one is.
    """
    given = {f"slurm.{key}": value for key, value in dataclasses.asdict(own.slurm).items()}
    given["dry"] = "true" if own.dry else None
    for key, value in given.items():
        if value is not None:
            raise UserError(f"{key}={value}: has no effect with launcher=local; choices: slurm")


def _on_slurm(request: StudyRequest) -> bool:
    return request.own.launcher == "slurm" and request.own.only is None


def _start(request: StudyRequest, options: list[str]) -> StudyOutcome:
    """Run or submit the tasks that have not finished."""
    recipes = check(request.study, request.plan, labels_seen=request.own.labels_seen)
    few = task_images.check(request.study, request.plan, recipes)
    if _on_slurm(request):
        slurm.check_batches(_submission(request, options), recipes)
    with Run(Recipe(name=request.name, out=request.own.out)).lock():
        if request.own.dry:
            check_plan(request.name, request.plan, request.folder)
        else:
            write_plan(request.study, request.name, request.plan, request.folder)
        differing = compared_parts.warnings(request.study, request.plan, recipes)
        for warning in [*request.left_out, *few, *differing, *_check_finished(request)]:
            print(f"warning: {warning}", flush=True)
        if request.own.dry:
            return show_scripts(request, options)
        if _on_slurm(request):
            return submit_all(request, options)
        on_gpu = bool(gpus())
        needs = {name: scheduling.memory_need(recipe, on_gpu) for name, recipe in recipes.items()}
        return run_all(request, needs)


def check_file(options: list[str]) -> None:
    """Print a study's tasks and their cost.

    Raises:
        UserError: an option is wrong, or the first mistake of the study's file.
    """
    places = study_places([option for option in options if not option.startswith("--")])
    _, given = tool_options.split(PlanOptions, options, leave=places)  # without device=, price=
    whole = with_places(given)
    request = parse_request(whole)
    here = whole == given
    recipes = check(request.study, request.plan, here, request.own.labels_seen)
    warnings: list[str] = []
    # a benchmark's may be prepared yet; what stands in for a place is none
    if here and not request.study.benchmark:
        warnings += task_images.check(request.study, request.plan, recipes)
    plan_tool.main(options)
    if here or "init" not in request.study.places:  # whose stand-in is of another architecture
        warnings += compared_parts.warnings(request.study, request.plan, recipes)
    for text in warnings:
        print(f"warning: {text}")


def _with_images(request: StudyRequest) -> StudyRequest:
    """A benchmark's study with the tasks that have images; prints those that have none.

    Raises:
        UserError: none has, or those of one cannot be the benchmark's.
    """
    study, found = benchmark_images.with_images(request.study, request.places)
    for task, reason in found.missing.items():
        print(f"missing     {task}: {reason}")
    for text in found.warnings:
        print(f"warning: {text}")
    plan = tasks(study, request.places, request.overrides)
    return dataclasses.replace(request, study=study, plan=plan)


def _check_finished(request: StudyRequest) -> list[str]:
    """Check that the finished runs are those that would be made now; warnings about what could not
    be checked."""
    warnings: list[str] = []
    for task in request.plan.values():
        # or its values may still be chosen
        if all(finished(request.folder, name) for name in (task.name, *task.needs)):
            warnings += check_finished(task, request.plan, request.folder)
    return list(dict.fromkeys(warnings))


def run_all(request: StudyRequest, needs: dict[str, int]) -> StudyOutcome:
    """Run the study on this machine.

    Args:
        request: the study.
        needs: {task: bytes of memory}.
    """
    plan, folder = request.plan, request.folder
    parallel = request.own.parallel or len(gpus()) or min(cores(), len(plan))
    started_at = time.monotonic()
    before = len(_finished(request))
    print(f"study       {request.name}: {request.study.title}")
    print(
        f"tasks       {len(plan)}, of which {before} are finished; up to {parallel} at once",
        flush=True,
    )
    with ProgressScreen() as screen:
        failed = Local(plan, folder, parallel, screen, needs).run()
    _check_finished(request)
    done = _finished(request)
    took = duration(time.monotonic() - started_at)
    print(f"finished    {len(done)} of {len(plan)} tasks in {took}: {folder}")
    for name, why in failed.items():
        print(f"not there   {name}: {why}")
    print(f"next        {shell_command(sys.executable, *tool_command('report'), folder)}")
    return StudyOutcome(request.name, folder, done, failed)


def _finished(request: StudyRequest) -> list[str]:
    return [name for name in request.plan if finished(request.folder, name)]


def _submission(request: StudyRequest, options: list[str]) -> slurm.Submission:
    """The study as SLURM is given it."""
    own_groups = ("launcher", "slurm", "parallel", "dry")
    passed = [
        option for option in options if option.split("=")[0].partition(".")[0] not in own_groups
    ]
    own = request.own
    return slurm.Submission(
        request.name, request.plan, request.folder, passed, own.slurm, own.parallel
    )


def show_scripts(request: StudyRequest, options: list[str]) -> StudyOutcome:
    """Write the study's scripts for SLURM and print them, with the commands that submit them."""
    submission = _submission(request, options)
    scripts = slurm.write_scripts(submission)
    for path in scripts.values():
        print(f"script      {path}\n{path.read_text()}")
    print(f"scripts     {len(scripts)} in {request.folder}/slurm; nothing is submitted")
    for line in slurm.commands(submission, scripts):
        print(f"submit      {line}")
    given = [option for option in options if not option.startswith("dry=")]
    print(f"next        {shell_command(sys.executable, *tool_command('study'), *given)}")
    return StudyOutcome(request.name, request.folder, _finished(request))


def submit_all(request: StudyRequest, options: list[str]) -> StudyOutcome:
    """Submit the study to SLURM."""
    jobs = slurm.submit(_submission(request, options))
    for part, job in jobs.items():
        print(f"submitted   {part}: job {job}, {request.folder}/slurm/{part}.sh")
    print(f"next        {shell_command(sys.executable, *tool_command('report'), request.folder)}")
    return StudyOutcome(request.name, request.folder, _finished(request), jobs=jobs)


def run_one(request: StudyRequest, part: str, index: int) -> int:
    """Become the tool of one task of a part, as an element of a job array.

    Raises:
        UserError: there is no such task, or it needs one that has not finished.
    """
    if part not in request.study.parts:
        raise UserError(f"only={part}: no such part; {suggest(part, request.study.parts)}")
    of_part = slurm.of_part(request.plan, part)
    if index >= len(of_part):
        raise UserError(f"index={index}: part {part} has the tasks 0 to {len(of_part) - 1}")
    task = of_part[index]
    unfinished = [name for name in task.needs if not finished(request.folder, name)]
    missing = unreachable(task, request.plan, unfinished)
    if missing:
        text = f"{task.name} needs {missing}, which is not finished"
        raise UserError(f"only={part} index={index}: {text}")
    line = process_command(*command(task, request.plan, request.folder))
    if os.environ.get("RANK", "0") == "0":  # of several processes of a task
        request.folder.mkdir(parents=True, exist_ok=True)
        write_plan(request.study, request.name, request.plan, request.folder)
        print(f"task        {task.name}", flush=True)
    os.execve(line[0], line, process_environment())
