"""The study tool: its command line, and what it starts."""

import dataclasses
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ..config.resolve import run_plugin
from ..config.schema import Recipe, options
from ..config.validate import check_value
from ..config.values import check_renamed
from ..errors import UserError, suggest
from ..evaluation import prepare_vtab
from ..formatting import duration, process_command, process_environment, tool_command, typed
from ..runs.environment import cores
from ..runs.folder import Run
from .studies import benchmark_images, scheduling, slurm, sweep
from .studies.expand import Plan, check, command, finished, tasks, unreachable
from .studies.local import Local, gpus
from .studies.optional_places import without_missing
from .studies.progress import ProgressScreen
from .studies.record import check_finished, write_plan
from .studies.spec import OURS, PLACEHOLDER, Study, find, read
from .studies.vary import MATCHES

SLURM = tuple(f"slurm.{key}" for key in slurm.OPTIONS)
OWN = (
    *("recipe", "match", "name", "out", "seeds", "parallel", "launcher", "source", "only", "index"),
    *SLURM,
)
LAUNCHERS = ("local", "slurm")
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
    own: dict[str, str]  # the given options of OWN
    places: dict[str, str]
    overrides: dict[str, str]  # options of a recipe
    left_out: list[str]  # arms whose optional places are not given


def main(options: list[str]) -> int:
    """Run or submit the study; the exit status.

    Raises:
        UserError: an option or the study's file is wrong; nothing was started.
    """
    request = parse_request(options)
    on_slurm = request.own.get("launcher") == "slurm" and "only" not in request.own
    if on_slurm:
        slurm.check(*_submission(request, options))
    if request.study.benchmark:
        request = _with_images(request)
    if "only" in request.own:
        return run_one(request)  # whose tool checks its options itself
    recipes = check(request.study, request.plan)
    with Run(Recipe(name=request.name, out=request.own.get("out", "runs"))).lock():
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
    if "source" in request.own and "only" not in request.own:
        source = f"source={request.own['source']}"
        folder = benchmark_images.root(study, request.places)
        prepare_vtab.prepare(prepare_vtab.parse_options([source, f"out={folder}"]))
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


def parse_request(options: list[str]) -> StudyRequest:
    """The study, its plan and the tool's own options.

    Raises:
        UserError: an option or the study's file is wrong.
    """
    given, axes = sweep.split(options)
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
    if "match" in own:
        study = _matched(study, own["match"])
    if "seeds" in own:
        study = dataclasses.replace(study, seeds=_seeds(own["seeds"]))
    launcher = own.get("launcher", "local")
    if "source" in own and not study.benchmark:
        text = "is for studies of a benchmark, as study/vtab"
        raise UserError(f"source={own['source']}: {text}")
    if launcher not in LAUNCHERS:
        raise UserError(f"launcher={launcher}: unknown; {suggest(launcher, LAUNCHERS)}")
    if ("only" in own) != ("index" in own):
        raise UserError("only= and index= belong together: a part, and the number of one task")
    name = own.get("name", stem)
    out = own.get("out", "runs")
    check_value("name", name)
    check_value("out", out)
    _number(own, "parallel", 1)
    plan = tasks(study, places, overrides)
    return StudyRequest(study, plan, name, Path(out) / name, own, places, overrides, left_out)


def _matched(study: Study, match: str) -> Study:
    """The study with its arms matched by steps or exaFLOP."""
    if match not in MATCHES:
        raise UserError(f"match={match}: unknown; {suggest(match, MATCHES)}")
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


def _number(own: dict[str, str], key: str, default: int, least: int = 1) -> int:
    text = own.get(key, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 10) or int(text) < least:
        raise UserError(f"{key}={text}: expected a whole number of at least {least}")
    return int(text)


def run_all(request: StudyRequest, needs: dict[str, int]) -> int:
    """Run the study on this machine; the exit status.

    Args:
        request: the study.
        needs: {task: bytes of memory}.
    """
    plan, folder = request.plan, request.folder
    parallel = _number(request.own, "parallel", len(gpus()) or min(cores(), len(plan)))
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
    sbatch = {
        key.removeprefix("slurm."): value
        for key, value in request.own.items()
        if key.startswith("slurm.")
    }
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


def run_one(request: StudyRequest) -> int:
    """Become the tool of one task: only=PART index=N, as an element of a job array.

    Raises:
        UserError: there is no such task, or it needs one that has not finished.
    """
    part = request.own["only"]
    if part not in request.study.parts:
        raise UserError(f"only={part}: no such part; {suggest(part, request.study.parts)}")
    of_part = slurm.of_part(request.plan, part)
    index = _number(request.own, "index", 0, 0)
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
