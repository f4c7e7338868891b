"""The options of the lab's tools, and what their --help says. No torch here."""

from dataclasses import dataclass
from pathlib import Path

from ..config.fields import LONG, WORD, group, option
from ..config.tool_options import ALSO, RecipeKeys, ToolOptions
from ..config.tools import count, flag, json_flag, one_of, out, path

LARGEST_NUMBER = 2**40
PORT = 8421
MATCHES = ("steps", "exaflop")
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """sbatch's options."""

    time: str | None = option(None, "sbatch --time.", metavar="TEXT")
    partition: str | None = option(None, "sbatch --partition.", metavar="NAME")
    gpus: str | None = option(None, "sbatch --gpus.", metavar="TEXT")
    account: str | None = option(None, "sbatch --account.", metavar="NAME")
    cpus: str | None = option(None, "sbatch --cpus-per-task.", metavar="N")


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
        "python tools/study.py recipe=study/gap_cifar10 cifar10=PATH tinyimagenet=PATH seeds=3"
        " parallel=2",
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
    parallel: int | None = count(None, "Runs at once; default: the GPUs, else the cores.")
    labels_seen: bool = option(
        False,
        "true: run a study although its first weights have learned labels of its test images, which"
        " is refused else; its report says of how many.",
    )
    launcher: str = one_of("local", "What starts the runs.", ("local", "slurm"))
    source: Path | None = path(
        "Of a benchmark such as study/vtab: data sets to prepare its tasks from.", None
    )
    only: str | None = option(
        None, "With index=: run one task, as an element of a job array does.", metavar="PART"
    )
    index: int | None = option(
        None, "The task's place in the part, from 0.", minimum=0, maximum=10**9, metavar="N"
    )
    check: bool = flag(
        "Start nothing: print every mistake of the study's file, or its tasks and what they cost,"
        " with device= and price= as of tools/plan.py."
    )
    slurm: Slurm = group(Slurm, "sbatch's options.")


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
        "python tools/report.py runs/mpp --serve",
        "python tools/report.py runs/gap --json",
        "python tools/report.py runs/methods pairs=mpp:mae",
        "python tools/report.py runs",
    )
    positional = "folder"
    command_line_only = ("json", "serve", "port", "host")
    folder: Path = path(
        "The folder of a run (also one that goes on or was cut off), of a study or of runs.",
        form=WORD,
    )
    pairs: str | None = option(
        None,
        "Of a study: arms to compare, as pairs=mpp:mae,mpp:scratch; the first minus the second, on"
        " the measure that the study is judged by.",
        metavar="A:B",
    )
    format: str | None = one_of(
        None,
        "Of a study, for papers: results.csv (a row for each metric of each run), tables.tex"
        " (booktabs), or figures/*.pdf.",
        ("csv", "latex", "pdf"),
    )
    serve: bool = flag("Serve the pages and renew them while the runs go on; nothing is written.")
    port: int = option(
        PORT,
        "The port of --serve; 0: any that is free.",
        minimum=0,
        below=2**16,
        form=LONG,
        metavar="N",
    )
    host: str = option(
        LOOPBACK,
        "Where --serve listens; the default: this machine alone.",
        form=LONG,
        metavar="ADDRESS",
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
    processes: int | None = count(None, "Devices that train together; default: 1.", LARGEST_NUMBER)
    nodes: int | None = count(
        None, "Nodes that the processes are on; default: 8 processes a node.", LARGEST_NUMBER
    )
    network: float | None = option(
        None,
        "GB/s that each process sends to other nodes; default: the device's.",
        above=0,
        below=1e6,
        expected="GB/s that each process sends to other nodes, above 0",
        metavar="NUMBER",
    )
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
