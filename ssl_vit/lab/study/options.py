"""The options of the study tool, and what its --help says. No torch here."""

from dataclasses import dataclass

from ...config.fields import option
from ...config.tool_options import ALSO, RecipeKeys, ToolOptions
from ...config.tools import count, flag, one_of, out

# built by worth.py; the other studies are files of recipes/study/
WORTH = "study/worth"
WORTH_TITLE = "Does pre-training help on your own images? In the hours= that it may take"
# {launcher=: MODULE:CLASS, a launch.Launcher}
LAUNCHERS = {"local": ".local:Local", "slurm": ".slurm:Slurm"}


@dataclass(frozen=True, kw_only=True)
class StudyOptions(ToolOptions):
    summary = "run many runs that depend on one another"
    command = "lab.study.tool:main"
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
        'python tools/study.py recipe=study/gap launcher=slurm slurm="--time=4:00:00 --gpus=1"',
        "python tools/study.py recipe=study/worth data.path=IMAGES objective=mae hours=4",
        "python tools/study.py recipe=mpp sweep corruption.rate=0.15,0.3,0.5,0.75 seeds=3",
    )
    uses = (RecipeKeys(("PLACE",), "Each place that the study's file names under `places`."),)
    recipe: str | None = option(
        None,
        "A study of recipes/study/ (study/NAME) or the path of a YAML file; with `sweep`, an"
        " ordinary recipe.",
        metavar="NAME",
    )
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
        "Runs at once; default: the GPUs, else the cores. With launcher=slurm of each run of the"
        " study (sbatch --array=...%N); default: all.",
    )
    match: str | None = one_of(
        None,
        "With `sweep`: exaflop gives each value of the first key as much compute as the recipe has"
        " without it.",
        ("exaflop",),
    )
    launcher: str = one_of("local", "What starts the runs.", LAUNCHERS)
    slurm: str = option(
        "",
        "With launcher=slurm: what each task requests, as on sbatch's command line.",
        metavar='"--NAME=VALUE ..."',
    )
    dry: bool = option(False, "Print what would be started, and start nothing.")
    device: str | None = option(
        None, "With --check: the device of whose time the hours are (device=h100).", metavar="NAME"
    )
    hours: float | None = option(
        None,
        "With recipe=study/worth: how long it may take on this machine; default: 4.",
        above=0,
        below=1e6,
        metavar="NUMBER",
    )
    anyway: bool = option(
        False, "With recipe=study/worth: start although the hours are too few to answer."
    )
    only: str | None = option(
        None,
        "With index=: run one of these tasks, as an element of a job array does.",
        metavar="TASK/TASK/...",
    )
    index: int | None = option(
        None, "The task's place in only=, from 0.", minimum=0, maximum=10**9, metavar="N"
    )
    check: bool = flag(
        "Start nothing: print the first mistake of the study's file, or its tasks and what they"
        " cost."
    )
