"""Define the options of the study tool with help texts, without importing torch."""

from typing import Annotated, Literal, NamedTuple

from ...recipe.keys import NamedChoice, key
from ...recipe.names import NewFolder
from ...recipe.tool import TAKES_ALL_KEYS, RecipeKeys, ToolOptions
from ...recipe.tools import Number, flag, out

# the package worth/ builds this study; all other studies are files in recipes/study/
WORTH = "study/worth"
RELEASED = "released"  # the option and the arm of a released encoder, in recipe=study/worth
WORTH_TITLE = "Does pre-training help on your own images? The option hours= limits the time"


class LauncherEntry(NamedTuple):
    """Launcher that `launcher=` can choose.

    Attributes:
        code: MODULE:CLASS of a class with the methods of `launch.Launcher`.
        runs_here: Whether all tasks run on this machine. Only then does hours= limit the study, and
            only then is the speed measured on this machine the speed of the tasks.
    """

    code: str
    runs_here: bool = False


LAUNCHERS = {
    "local": LauncherEntry("ssl_vit.lab.study.local:Local", runs_here=True),
    "slurm": LauncherEntry("ssl_vit.lab.study.slurm:Slurm"),
    "ray": LauncherEntry("ssl_vit.lab.study.ray:Ray"),
}


class StudyOptions(ToolOptions):
    """Run all runs of a study's file, each after the runs that it needs, or resume the study. After
    the word `sweep`, pre-train and evaluate every combination of the values of the next keys.

    Examples:
        ssl-vit study recipe=study/gap
        ssl-vit study recipe=study/methods cifar10=PATH seeds=3 parallel=2
        ssl-vit study recipe=study/gap launcher=slurm slurm="--time=4:00:00 --gpus=1"
        ssl-vit study recipe=study/worth data.path=IMAGES objective=mae hours=4
        ssl-vit study recipe=study/worth data.path=IMAGES released=timm:NAME
        ssl-vit study recipe=mpp sweep corruption.rate=0.15,0.3,0.5,0.75 seeds=3
        ssl-vit study recipe=mpp sweep optim.lr=1e-3,3e-3 report.measures=[knn,linear]

    Attributes:
        recipe: Study that comes with ssl_vit (study/NAME), or path of a study's YAML file. With
            `sweep`, a recipe of a single run.
        name: Name of the study's folder. Default: the name of the study's file.
        seeds: Number of seeds, or a list of seeds: seeds=0,2.
        parallel: Number of tasks that run at once. Default: the number of GPUs, or of CPU cores
            without a GPU, as far as memory allows. With recipe=study/worth the study measures which
            number is faster. With launcher=slurm the number limits the tasks of each run, and the
            default is no limit.
        measures: Metrics of result.json that the report compares. The first metric decides.
            Default: `measures` of the study's file, or the first measured metric of linear,
            attentive, knn and few_shot_N.
        match: Only with `sweep`. exaflop gives each value of the first key as much compute as the
            recipe without that key.
        launcher: Program that starts the tasks.
        slurm: Options of sbatch for each task, with launcher=slurm.
        dry: Print what would be started, and start nothing. recipe=study/worth accepts dry=true
            only after the study has been started once.
        device: Device whose speed --check assumes (device=h100). recipe=study/worth measures the
            speed of this machine instead.
        hours: Hours that recipe=study/worth may take on this machine. Default: 4.
        only: Names of tasks, of which index= selects a task. Job arrays use this option.
        index: Position of the task in only=, from 0.
        check: Start no task. Print the first mistake of the study's file, or else the tasks and
            their cost. With recipe=study/worth this times a few steps.
    """

    summary = "run and compare many runs"
    command = "lab.study.tool:main"
    recipes = TAKES_ALL_KEYS
    command_line_only = ("only", "index")
    uses = (RecipeKeys(("PLACE",), "Path for each name under `places` of the study's file."),)
    recipe: str | None = key(None, metavar="NAME")
    name: str | None = key(None, metavar="TEXT")
    out: NewFolder = out("Folder in which the study's folder is made.")
    seeds: str | None = key(None, metavar="N")
    parallel: Number | None = key(None, metavar="N")
    measures: list[str] | None = key(None, alias="report.measures", metavar="[NAME,...]")
    match: Literal["exaflop"] | None = key(None, metavar="NAME")
    launcher: Annotated[str, NamedChoice(lambda: LAUNCHERS)] = key("local")
    slurm: str = key("", metavar='"--NAME=VALUE ..."')
    dry: bool = key(False)
    device: str | None = key(None, metavar="NAME")
    hours: float | None = key(None, gt=0, lt=1e6, metavar="NUMBER")
    only: str | None = key(None, metavar="TASK/TASK/...")
    index: int | None = key(None, ge=0, le=10**9, metavar="N")
    check: bool = flag()
