"""The words of a study's command line, and what they set going."""

import dataclasses
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ..config.resolve import KEYS
from ..config.schema import Recipe
from ..config.validate import check_value
from ..errors import UserError, suggest
from ..formatting import (
    duration,
    process_command,
    process_environment,
    tool_command,
    typed,
)
from ..runs.environment import cores
from ..runs.folder import Run
from . import scheduling, slurm, sweep
from .local import Local, gpus
from .plan import Task, check, check_finished, command, finished, tasks, unreachable, write_plan
from .progress import ProgressScreen
from .spec import OURS, PLACEHOLDER, Study, find, read
from .vary import MATCHES

SLURM = tuple(f"slurm.{key}" for key in slurm.OPTIONS)
OWN = ("recipe", "match", "name", "out", "seeds", "parallel", "launcher", "only", "index", *SLURM)
LAUNCHERS = ("local", "slurm")
SEED = re.compile(r"-?[0-9]{1,18}")
MOST_SEEDS = 1000


@dataclass(frozen=True)
class StudyRequest:
    """A study as the command line asks for it."""

    study: Study
    plan: dict[str, Task]
    name: str
    folder: Path
    own: dict[str, str]  # the words of OWN that were said


def main(words: list[str]) -> int:
    """Do what the words say; the exit status.

    Raises:
        UserError: a mistake in the words or in the study's file; nothing was started.
    """
    asked = parse_request(words)
    if "only" in asked.own:
        return run_one(asked)  # whose tool checks its words itself
    made = check(asked.plan)
    with Run(Recipe(name=asked.name, out=asked.own.get("out", "runs"))).lock():
        write_plan(asked.study, asked.name, asked.plan, asked.folder)
        for doubt in _check_finished(asked):
            print(f"warning: {doubt}", flush=True)
        if asked.own.get("launcher") == "slurm":
            return submit_all(asked, words)
        needs = {
            name: scheduling.memory_need(recipe, bool(gpus())) for name, recipe in made.items()
        }
        return run_all(asked, needs)


def _check_finished(asked: StudyRequest) -> list[str]:
    """That the runs which are there already are those that would be made now; what could not be
    checked, in words."""
    doubts: list[str] = []
    for task in asked.plan.values():
        # or its values may still be chosen
        if all(finished(asked.folder, name) for name in (task.name, *task.needs)):
            doubts += check_finished(task, asked.plan, asked.folder)
    return list(dict.fromkeys(doubts))


def parse_request(words: list[str]) -> StudyRequest:
    """What the words ask for."""
    given, axes = sweep.split(words)
    if axes is None:
        path = find(given.get("recipe"))
        study, stem = read(path), path.stem
        places, own, over = _sorted(given, study.places)
    else:
        places, own, over = _sorted(given, ())
        study, stem = sweep.study(own.get("recipe"), over, [key for key in axes if key not in own])
        over = {}  # its parts have them
    if "match" in own:
        study = _matched(study, own["match"])
    if "seeds" in own:
        study = dataclasses.replace(study, seeds=_seeds(own["seeds"]))
    if own.get("launcher", "local") not in LAUNCHERS:
        raise UserError(
            f"launcher={own['launcher']}: unknown; {suggest(own['launcher'], LAUNCHERS)}"
        )
    if ("only" in own) != ("index" in own):
        raise UserError(
            "only= and index= belong together: a part, and the number of one of its tasks"
        )
    name = own.get("name", stem)
    for key, value in (("name", name), ("out", own.get("out", "runs"))):
        check_value(key, value)
    _number(own, "parallel", 1)
    plan = tasks(study, places, over)
    return StudyRequest(study, plan, name, Path(own.get("out", "runs")) / name, own)


def _matched(study: Study, match: str) -> Study:
    """The study with its arms matched as the command line says."""
    if match not in MATCHES:
        raise UserError(f"match={match}: unknown; {suggest(match, MATCHES)}")
    if not study.vary:
        raise UserError(f"match={match}: the study varies nothing whose arms could be matched")
    return dataclasses.replace(study, match=match)


def _sorted(
    given: dict[str, str], asked: tuple[str, ...]
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """The words as the places that the study asks for, the command's own, and a recipe's."""
    if taken := next((place for place in asked if place in (*OWN, *KEYS)), None):
        raise UserError(f"places: {taken}= means something else already; take another name")
    if missing := [f"{place}=" for place in asked if place not in given]:
        raise UserError(
            f"{', '.join(missing)} is missing: the study needs the places {', '.join(asked)}"
        )
    places = {place: _whole(given[place]) for place in asked}
    own = {key: value for key, value in given.items() if key in OWN}
    over = {key: value for key, value in given.items() if key not in places | own}
    known = [
        key
        for key in (*KEYS, "model", "data")
        if key not in (*OURS, "init", "data.name", "model.name")
    ]
    for key, value in over.items():
        if key == "seed":
            these = value if "," in value else f"{value},"
            raise UserError(
                f"seed={value}: say seeds={these} for just that, or seeds=N for the first N"
            )
        if key not in known:
            told = suggest(key, [*OWN, *asked, *known]).partition("choices:")[0]
            raise UserError(
                f"unknown word {key}; {told}choices: {', '.join((*OWN, *asked))}, or a recipe's key"
            )
        if PLACEHOLDER.search(value):
            raise UserError(f"{key}={value}: braces are for the study's file")
    return places, own, over


def _whole(place: str) -> str:
    """A place found again from any folder, where it is a path."""
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
        raise UserError(f"seeds={text}: how many (seeds=3) or which ones (seeds=0,2) is asked for")
    return seeds


def _number(own: dict[str, str], key: str, default: int, least: int = 1) -> int:
    text = own.get(key, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 10) or int(text) < least:
        raise UserError(f"{key}={text}: a whole number of at least {least} is asked for")
    return int(text)


def run_all(asked: StudyRequest, needs: dict[str, int]) -> int:
    """Run the study on this machine, in whose memory each task needs so many bytes."""
    parallel, begun = (
        _number(asked.own, "parallel", len(gpus()) or min(cores(), len(asked.plan))),
        time.monotonic(),
    )
    there = sum(finished(asked.folder, name) for name in asked.plan)
    print(f"study       {asked.name}: {asked.study.title}")
    print(
        f"tasks       {len(asked.plan)}, of which {there} are finished; up to {parallel} at once",
        flush=True,
    )
    with ProgressScreen() as screen:
        failed = Local(asked.plan, asked.folder, parallel, screen, needs).run()
    _check_finished(asked)
    done = sum(finished(asked.folder, name) for name in asked.plan)
    print(
        f"finished    {done} of {len(asked.plan)} tasks in {duration(time.monotonic() - begun)}: {asked.folder}"
    )
    for name, why in failed.items():
        print(f"not there   {name}: {why}")
    print(f"next        {typed(sys.executable, *tool_command('report'), asked.folder)}")
    return 1 if failed else 0


def submit_all(asked: StudyRequest, words: list[str]) -> int:
    """Hand the study over to SLURM."""
    options = {
        key.removeprefix("slurm."): value
        for key, value in asked.own.items()
        if key.startswith("slurm.")
    }
    passed = [
        word
        for word in words
        if word.split("=")[0].partition(".")[0] not in ("launcher", "slurm", "parallel")
    ]
    jobs = slurm.submit(asked.name, asked.plan, asked.folder, passed, options)
    for part, job in jobs.items():
        print(f"submitted   {part}: job {job}, {asked.folder}/slurm/{part}.sh")
    print(f"next        {typed(sys.executable, *tool_command('report'), asked.folder)}")
    return 0


def run_one(asked: StudyRequest) -> int:
    """Become the tool of one task: only=PART index=N, as a job array's element calls it."""
    own, parts = asked.own, asked.study.parts
    if own["only"] not in parts:
        raise UserError(f"only={own['only']}: no such part; {suggest(own['only'], parts)}")
    found, index = slurm.of_part(asked.plan, own["only"]), _number(own, "index", 0, 0)
    if index >= len(found):
        raise UserError(f"index={index}: part {own['only']} has the tasks 0 to {len(found) - 1}")
    task = found[index]
    if missing := unreachable(
        task, asked.plan, [name for name in task.needs if not finished(asked.folder, name)]
    ):
        raise UserError(
            f"only={task.part} index={index}: {task.name} needs {missing}, which is not finished"
        )
    asked.folder.mkdir(parents=True, exist_ok=True)
    write_plan(asked.study, asked.name, asked.plan, asked.folder)
    line = process_command(*command(task, asked.plan, asked.folder))
    print(f"task        {task.name}", flush=True)
    os.execve(line[0], line, process_environment())
