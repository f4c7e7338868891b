"""The study tool: its command line, and what it starts."""

import dataclasses
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ..config import tool_options
from ..config.resolve import run_plugin
from ..config.schema import Recipe, options
from ..config.tools import PrepareOptions
from ..config.validate import check_value
from ..config.values import check_renamed
from ..errors import UserError, suggest
from ..evaluation import prepare_vtab
from ..formatting import duration, process_command, process_environment, tool_command, typed
from ..runs.environment import cores
from ..runs.folder import Run
from .lab_tools import StudyOptions
from .studies import benchmark_images, scheduling, slurm, sweep
from .studies.expand import Plan, check, command, finished, tasks, unreachable
from .studies.local import Local, gpus
from .studies.optional_places import without_missing
from .studies.progress import ProgressScreen
from .studies.record import check_finished, write_plan
from .studies.spec import OURS, PLACEHOLDER, Study, find, read

OWN = tuple(StudyOptions.options())
OF_PLACES = ("init",)  # keys that only a study's file sets, and so may be places
SEED = re.compile(r"-?[0-9]{1,18}")
MOST_SEEDS = 1000


@dataclass(frozen=True)
class StudyRequest:
    """A study as the command line gives it."""

    study: Study
    plan: Plan
    name: str
    folder: Path
    own: StudyOptions
    places: dict[str, str]
    overrides: dict[str, str]  # options of a recipe
    left_out: list[str]  # arms whose optional places are not given


def main(options: list[str]) -> int:
    """Run or submit the study; the exit status.

    Raises:
        UserError: an option or the study's file is wrong; nothing was started.
    """
    request = parse_request(options)
    on_slurm = request.own.launcher == "slurm" and request.own.only is None
    if on_slurm:
        slurm.check(*_submission(request, options))
    if request.study.benchmark:
        request = _with_images(request)
    if request.own.only is not None:
        # whose tool checks its options itself
        return run_one(request, request.own.only, request.own.index or 0)
    recipes = check(request.study, request.plan)
    with Run(Recipe(name=request.name, out=request.own.out)).lock():
        write_plan(request.study, request.name, request.plan, request.folder)
        for warning in [*request.left_out, *_check_finished(request)]:
            print(f"warning: {warning}", flush=True)
        if on_slurm:
            return submit_all(request, options)
        on_gpu = bool(gpus())
        needs = {name: scheduling.memory_need(recipe, on_gpu) for name, recipe in recipes.items()}
        return run_all(request, needs)


def _with_images(request: StudyRequest) -> StudyRequest:
    """A benchmark's study with the tasks that have images, prepared from `source=` where they were
    missing; prints those that have none.

    Raises:
        UserError: none has, or those of one cannot be the benchmark's.
    """
    study = request.study
    if request.own.source is not None and request.own.only is None:
        folder = Path(benchmark_images.root(study, request.places))
        prepare_vtab.prepare(PrepareOptions(source=request.own.source, out=folder))
    study, found = benchmark_images.with_images(study, request.places)
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


def parse_request(arguments: list[str]) -> StudyRequest:
    """The study, its plan and the tool's own options.

    Raises:
        UserError: an option or the study's file is wrong.
    """
    given, axes = sweep.split(arguments)
    run_plugin(given.get("plugin"))  # whose keys are known from here on
    left_out: list[str] = []
    if axes is None:
        path = find(given.get("recipe"))
        study, left_out = without_missing(read(path), given)
        stem = path.stem
        places, own, overrides = _sorted(given, study.places)
    else:
        places, own, overrides = _sorted(given, ())
        axes = [key for key in axes if key not in own]
        study, stem = sweep.study(own.get("recipe"), overrides, axes)
        # the study's parts have them; a plugin runs because the command line names it
        overrides = {key: value for key, value in overrides.items() if key == "plugin"}
    settings = tool_options.build(StudyOptions, own)
    if settings.match is not None:
        study = _matched(study, settings.match)
    if settings.seeds is not None:
        study = dataclasses.replace(study, seeds=_seeds(settings.seeds))
    if settings.source is not None and not study.benchmark:
        text = "is for studies of a benchmark, as study/vtab"
        raise UserError(f"source={settings.source}: {text}")
    if (settings.only is None) != (settings.index is None):
        raise UserError("only= and index= belong together: a part, and the number of one task")
    name = settings.name or stem
    check_value("name", name)
    plan = tasks(study, places, overrides)
    folder = Path(settings.out) / name
    return StudyRequest(study, plan, name, folder, settings, places, overrides, left_out)


def _matched(study: Study, match: str) -> Study:
    """The study with its arms matched by steps or exaFLOP."""
    if len(study.arms) < 2:
        raise UserError(f"match={match}: the study has one arm, and nothing to match it with")
    return dataclasses.replace(study, match=match)


def _sorted(
    given: dict[str, str], needed: tuple[str, ...]
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """The options as the places that the study needs, the tool's own, and those of a recipe.

    Raises:
        UserError: a place is missing, or an option is unknown.
    """
    for place in needed:
        if place in (*OWN, *options()) and place not in OF_PLACES:
            raise UserError(f"places: {place}= means something else already; take another name")
    missing = [f"{place}=" for place in needed if place not in given]
    if missing:
        text = f"{', '.join(missing)} is missing: the study needs the places {', '.join(needed)}"
        raise UserError(text)
    places = {place: _absolute(given[place]) for place in needed}
    own = {key: value for key, value in given.items() if key in OWN}
    overrides = {key: value for key, value in given.items() if key not in places | own}
    if "plugin" in overrides:
        overrides["plugin"] = _absolute(overrides["plugin"])
    for key, value in overrides.items():
        _check_override(key, value, needed)
    return places, own, overrides


def _check_override(key: str, value: str, places: tuple[str, ...]) -> None:
    """Check that an option is a recipe's key that a command line may set for a whole study."""
    if key == "seed":
        seeds = value if "," in value else f"{value},"
        text = f"say seeds={seeds} for just that, or seeds=N for the first N"
        raise UserError(f"seed={value}: {text}")
    fixed = (*OURS, "init", "data.name", "model.name")
    known = [name for name in (*options(), "model", "data") if name not in fixed]
    if key not in known:
        check_renamed(key)
        nearest = suggest(key, [*OWN, *places, *known]).partition("choices:")[0]
        choices = f"choices: {', '.join((*OWN, *places))}, or a recipe's key"
        raise UserError(f"unknown option {key}; {nearest}{choices}")
    if PLACEHOLDER.search(value):
        raise UserError(f"{key}={value}: braces are for the study's file")


def _absolute(place: str) -> str:
    """A path that does not depend on the working directory; anything else as it is."""
    return str(Path(place).resolve()) if Path(place).exists() else place


def _seeds(text: str) -> tuple[int, ...]:
    """`3` is 0, 1, 2; `0,1` and `5,` are lists."""
    parts = text.removesuffix(",").split(",")
    numbers = [int(part) for part in parts if SEED.fullmatch(part)]
    seeds = tuple(numbers)
    if "," not in text and numbers:
        seeds = tuple(range(min(numbers[0], MOST_SEEDS + 1)))
    whole = len(numbers) == len(parts) and len(set(seeds)) == len(seeds)
    if not whole or not 0 < len(seeds) <= MOST_SEEDS:
        raise UserError(f"seeds={text}: expected how many (seeds=3) or which ones (seeds=0,2)")
    return seeds


def run_all(request: StudyRequest, needs: dict[str, int]) -> int:
    """Run the study on this machine; the exit status.

    Args:
        request: the study.
        needs: {task: bytes of memory}.
    """
    plan, folder = request.plan, request.folder
    parallel = request.own.parallel or len(gpus()) or min(cores(), len(plan))
    started_at = time.monotonic()
    before = sum(finished(folder, name) for name in plan)
    print(f"study       {request.name}: {request.study.title}")
    print(
        f"tasks       {len(plan)}, of which {before} are finished; up to {parallel} at once",
        flush=True,
    )
    with ProgressScreen() as screen:
        failed = Local(plan, folder, parallel, screen, needs).run()
    _check_finished(request)
    done = sum(finished(folder, name) for name in plan)
    took = duration(time.monotonic() - started_at)
    print(f"finished    {done} of {len(plan)} tasks in {took}: {folder}")
    for name, why in failed.items():
        print(f"not there   {name}: {why}")
    print(f"next        {typed(sys.executable, *tool_command('report'), folder)}")
    return 1 if failed else 0


def _submission(
    request: StudyRequest, options: list[str]
) -> tuple[str, Plan, Path, list[str], dict[str, str]]:
    """The arguments of slurm.check and slurm.submit."""
    given = dataclasses.asdict(request.own.slurm)
    sbatch = {key: value for key, value in given.items() if value is not None}
    own_groups = ("launcher", "slurm", "parallel")
    passed = [
        option for option in options if option.split("=")[0].partition(".")[0] not in own_groups
    ]
    return request.name, request.plan, request.folder, passed, sbatch


def submit_all(request: StudyRequest, options: list[str]) -> int:
    """Submit the study to SLURM; the exit status."""
    jobs = slurm.submit(*_submission(request, options))
    for part, job in jobs.items():
        print(f"submitted   {part}: job {job}, {request.folder}/slurm/{part}.sh")
    print(f"next        {typed(sys.executable, *tool_command('report'), request.folder)}")
    return 0


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
    request.folder.mkdir(parents=True, exist_ok=True)
    write_plan(request.study, request.name, request.plan, request.folder)
    line = process_command(*command(task, request.plan, request.folder))
    print(f"task        {task.name}", flush=True)
    os.execve(line[0], line, process_environment())
