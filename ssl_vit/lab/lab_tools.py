"""The options of the lab's tools, and what their --help says. No torch here."""

import re
from dataclasses import dataclass
from pathlib import Path

from ..config.fields import WORD, group, option
from ..config.tool_options import ALSO, RecipeKeys, ToolOptions
from ..config.tools import count, flag, json_flag, one_of, out, path

LARGEST_NUMBER = 2**40
MATCHES = ("steps", "exaflop")

GPUS = re.compile(r"(?:[\w.-]+:)?[0-9]{1,2}", re.ASCII)
MEMORY = re.compile(r"[0-9]{1,9}[KMGT]?", re.ASCII | re.IGNORECASE)
# days-hours, days-hours:minutes, days-hours:minutes:seconds; minutes, minutes:seconds,
# hours:minutes:seconds (sbatch(1))
WITH_DAYS = re.compile(r"(\d{1,4})-(\d{1,4})(?::(\d{1,4}))?(?::(\d{1,4}))?", re.ASCII)
WITHOUT_DAYS = re.compile(r"(?:(\d{1,6}):(?=\d+:))?(\d{1,6})(?::(\d{1,4}))?", re.ASCII)
# The signal comes up to three minutes before the limit: in less than five a task would be stopped
# before it trains, and start again for ever
SHORTEST = 5  # minutes


def is_time_limit(text: str) -> bool:
    """Whether a text is a time limit as sbatch takes it, of SHORTEST minutes or more; 0: none."""
    if found := WITH_DAYS.fullmatch(text):
        days, hours, minutes, seconds = (int(one or 0) for one in found.groups())
        hours += 24 * days
    elif found := WITHOUT_DAYS.fullmatch(text):
        hours, minutes, seconds = (int(one or 0) for one in found.groups())
    else:
        return False
    total = 60 * hours + minutes + seconds / 60
    return total == 0 or total >= SHORTEST


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """What each task of a study requests of SLURM."""

    time: str | None = option(
        None,
        "Time limit of a task, as in 4:00:00 (sbatch --time). Two minutes before it the task saves,"
        " and goes back into the queue.",
        check=is_time_limit,
        expected=f"a time limit of sbatch, of {SHORTEST} minutes or more: 90 (minutes), 4:00:00,"
        " 2-00:00:00 (days), or 0 for none",
        metavar="TIME",
    )
    partition: str | None = option(None, "sbatch --partition.", metavar="NAME")
    qos: str | None = option(None, "sbatch --qos.", metavar="NAME")
    account: str | None = option(None, "sbatch --account.", metavar="NAME")
    constraint: str | None = option(
        None, "Features that the machine must have (sbatch --constraint).", metavar="TEXT"
    )
    gpus: str | None = option(
        None,
        "GPUs of a task, as in 1, 8 or a100:4: on one machine, with a process for each (sbatch"
        " --gpus-per-node).",
        check=lambda text: GPUS.fullmatch(text) is not None,
        expected="how many on one machine, from 0 to 99, as in 4 or, of a type, a100:4",
        metavar="N",
    )
    cpus: int | None = count(None, "CPUs of each process (sbatch --cpus-per-task).", 4096)
    memory: str | None = option(
        None,
        "Memory of a task, as in 64G (sbatch --mem).",
        check=lambda text: MEMORY.fullmatch(text) is not None,
        expected="a size, as in 64G (K, M, G or T; megabytes without), or 0 for all of the machine",
        metavar="SIZE",
    )
    options: dict[str, str] | None = option(
        None,
        "Any other long option of sbatch, as in slurm.options={exclude: n1, exclusive: true}, true"
        " for one without a value.",
        metavar="{NAME: VALUE}",
    )


@dataclass(frozen=True, kw_only=True)
class StudyOptions(ToolOptions):
    summary = "run many runs that depend on one another"
    command = "lab.study_tool:main"
    lasting = True
    recipes = ALSO
    command_line_only = ("check", "only", "index")
    purpose = (
        "Run a study, that is all runs of its file, each after those it needs; or resume it. With"
        " the word `sweep`, every combination of the values of the keys after it."
    )
    examples = (
        "python tools/study.py recipe=study/gap",
        "python tools/study.py recipe=study/methods cifar10=PATH seeds=3 parallel=2",
        "python tools/study.py recipe=study/gap launcher=slurm slurm.time=4:00:00 slurm.gpus=1",
        "python tools/study.py recipe=mpp sweep corruption.rate=0.15,0.3,0.5,0.75 seeds=3",
    )
    uses = (RecipeKeys(("PLACE",), "Each place that the study's file names under `places`."),)
    recipe: str | None = option(
        None,
        "A study of recipes/study/ (study/NAME) or the path of a YAML file; with `sweep`, an"
        " ordinary recipe.",
        metavar="NAME",
    )
    match: str | None = one_of(None, "What the arms have in common; default: steps.", MATCHES)
    name: str | None = option(None, "The study's folder; default: the file's name.", metavar="TEXT")
    out: str = out("Folder that holds the study's folder.")
    seeds: str | None = option(
        None,
        "The first N seeds, or a list: seeds=0,2.",
        expected="how many (seeds=3) or which ones (seeds=0,2)",
        metavar="N",
    )
    parallel: int | None = count(
        None,
        "Runs at once; default: the GPUs, else the cores. With launcher=slurm of each part (sbatch"
        " --array=...%N); default: all.",
    )
    labels_seen: bool = option(
        False,
        "true: run a study although its first weights have learned labels of its test images, which"
        " is refused else; its report says of how many.",
    )
    launcher: str = one_of("local", "What starts the runs.", ("local", "slurm"))
    dry: bool = option(
        False, "With launcher=slurm: write the scripts and print them, submit nothing."
    )
    only: str | None = option(
        None, "With index=: run one task, as an element of a job array does.", metavar="PART"
    )
    index: int | None = option(
        None, "The task's place in the part, from 0.", minimum=0, maximum=10**9, metavar="N"
    )
    check: bool = flag(
        "Start nothing: print the first mistake of the study's file, or its tasks and what they"
        " cost, with device= and price= as of tools/plan.py."
    )
    slurm: Slurm = group(Slurm, "What each task requests of SLURM.")


@dataclass(frozen=True, kw_only=True)
class ReportOptions(ToolOptions):
    summary = "write the page of a run, a study or a folder of runs"
    command = "lab.report_tool:main"
    purpose = (
        "Write pages that need no other file: of a run its report.html, of a study its report.md"
        " and report.html, of a folder of runs the index.html that compares them."
    )
    examples = (
        "python tools/report.py runs/mpp",
        "python tools/report.py runs/gap --json",
        "python tools/report.py runs/methods pairs=mpp:mae",
        "python tools/report.py runs",
    )
    positional = "folder"
    command_line_only = ("json",)
    folder: Path = path(
        "The folder of a run (also one that goes on or was cut off), of a study or of runs.",
        form=WORD,
    )
    pairs: str | None = option(
        None,
        "Of a study: arms to compare, as pairs=mpp:mae,mpp:scratch; the first minus the second, on"
        " the measure that the study is judged by, beside the pairs of its file. Later reports keep"
        " them; `pairs=` leaves them out.",
        metavar="A:B",
    )
    format: list[str] | None = option(
        None,
        "Of a study, for papers, one or several: csv, that is results.csv (a row for each metric of"
        " each run) and differences.csv (a row for each pair); latex, tables.tex (booktabs).",
        choices=("csv", "latex"),
        metavar="NAME,...",
    )
    json: bool = json_flag()


@dataclass(frozen=True, kw_only=True)
class RunsOptions(ToolOptions):
    summary = "list the runs of a folder, rank them, remove their checkpoints"
    command = "lab.runs_tool:main"
    purpose = (
        "List all runs in and below a folder, one a line: state, metrics, cost, disk use and what"
        " differs between their recipes; rank them; remove the checkpoints of finished runs."
    )
    examples = (
        "python tools/runs.py",
        "python tools/runs.py runs sort=disk",
        "python tools/runs.py runs/gap best=top1",
        "python tools/runs.py runs clean=checkpoints",
    )
    positional = "folder"
    command_line_only = ("json",)
    folder: Path = path("The folder with runs and studies; default: runs.", Path("runs"), form=WORD)
    sort: str = option(
        "name",
        "What they are sorted by: name, objective, state, step, exaflop, time, disk, age, or a"
        " metric, the best first; sort=-KEY: the other way round.",
        metavar="KEY",
    )
    best: str | None = option(
        None,
        "Rank finished runs by a metric, in groups of one split, data set and objective: only those"
        " compare.",
        metavar="METRIC",
    )
    differs: bool = option(False, "A column with each run's values of the keys that differ.")
    clean: str | None = one_of(
        None,
        "Show what removing the checkpoints of finished runs would free. Runs that have not"
        " finished, are locked, have no intact export or have pending pushes keep theirs.",
        ("checkpoints",),
    )
    yes: bool = option(False, "With clean=checkpoints: remove them.")
    json: bool = json_flag()


@dataclass(frozen=True, kw_only=True)
class PlanOptions(ToolOptions):
    summary = "estimate time, memory and price of a run or a study"
    command = "lab.plan_tool:main"
    recipes = ALSO
    command_line_only = ("json",)
    purpose = (
        "Estimate what a run or a study costs before it runs: parameters, FLOPs, memory, time,"
        " price; and warn of common mistakes."
    )
    examples = (
        "python tools/plan.py recipe=paper/mpp_b16_imagenet device=h100 processes=8 price=2.5",
        "python tools/plan.py recipe=mpp --probe",
        "python tools/plan.py recipe=study/gap device=h100",
    )
    device: str | None = option(
        None, "The device, as in device=h100; an unknown name lists them.", metavar="NAME"
    )
    processes: int = count(1, "Devices that train together.", LARGEST_NUMBER)
    price: float | None = option(
        None, "Price of a device-hour, in any currency.", minimum=0, below=1e12, metavar="NUMBER"
    )
    zero: int = option(0, "ZeRO stage.", minimum=0, maximum=3, expected="0 (plain DDP), 1, 2 or 3")
    efficiency: float = option(
        0.4,
        "Share of the device's peak that training reaches.",
        above=0,
        maximum=1,
        expected="a share of the device's peak, above 0 and at most 1",
    )
    epochs: float | None = option(
        None, "In place of optim.steps.", above=0, below=1e9, metavar="NUMBER"
    )
    images: int | None = count(
        None, "Training images, where the data set is neither known nor here.", 2**50
    )
    probe: bool = flag("Measure the first steps on this machine.")
    json: bool = json_flag()
