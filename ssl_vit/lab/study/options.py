"""Define the options of the study tool with help texts, without importing torch."""

from typing import Annotated, Literal

from ...recipe.keys import OneOf, key
from ...recipe.names import NewFolder
from ...recipe.tool import ALSO, RecipeKeys, ToolOptions
from ...recipe.tools import Number, flag, out

# the package worth/ builds this study; all other studies are files in recipes/study/
WORTH = "study/worth"
RELEASED = "released"  # the option and the arm of a released encoder, in recipe=study/worth
WORTH_TITLE = "Does pre-training help on your own images? In the hours= that it may take"
# {launcher=: MODULE:CLASS, a launch.Launcher}
LAUNCHERS = {"local": ".local:Local", "slurm": ".slurm:Slurm", "ray": ".ray:Ray"}


class StudyOptions(ToolOptions):
    """Run a study, that is all runs of its file, each after those it needs; or resume it. With the
    word `sweep`, every combination of the values of the keys after it.

    Examples:
        python tools/study.py recipe=study/gap
        python tools/study.py recipe=study/methods cifar10=PATH seeds=3 parallel=2
        python tools/study.py recipe=study/gap launcher=slurm slurm="--time=4:00:00 --gpus=1"
        python tools/study.py recipe=study/worth data.path=IMAGES objective=mae hours=4
        python tools/study.py recipe=study/worth data.path=IMAGES released=timm:NAME
        python tools/study.py recipe=mpp sweep corruption.rate=0.15,0.3,0.5,0.75 seeds=3
        python tools/study.py recipe=mpp sweep optim.lr=1e-3,3e-3 report.measures=[knn,linear]

    Attributes:
        recipe: A study of recipes/study/ (study/NAME) or the path of a YAML file; with `sweep`, an
            ordinary recipe.
        name: The study's folder; default: the file's name.
        seeds: The first N seeds, or a list: seeds=0,2.
        parallel: Runs at once; default: the GPUs, else the cores (recipe=study/worth: these or one
            run, which is faster), of this machine or of Ray's cluster. With launcher=slurm of each
            run of the study (sbatch --array=...%N); default: all.
        measures: Names in result.json that the report compares, instead of those of the study's
            file: the first decides. Default of a sweep: the first measured of linear, attentive,
            knn and few_shot_N.
        match: With `sweep`: exaflop gives each value of the first key as much compute as the recipe
            has without it.
        launcher: What starts the runs.
        slurm: With launcher=slurm: what each task requests, as on sbatch's command line.
        dry: Print what would be started, and start nothing; recipe=study/worth once it is planned.
        device: With --check: the device of whose time the hours are (device=h100); not with
            recipe=study/worth, whose hours are measured.
        hours: With recipe=study/worth: how long it may take on this machine; default: 4.
        only: With index=: run one of these tasks, as an element of a job array does.
        index: The task's place in only=, from 0.
        check: Start no task: print the first mistake of the study's file, or its tasks and what
            they cost; recipe=study/worth times a few steps for that.
    """

    summary = "run many runs that depend on one another"
    command = "lab.study.tool:main"
    recipes = ALSO
    command_line_only = ("only", "index")
    uses = (RecipeKeys(("PLACE",), "Each place that the study's file names under `places`."),)
    recipe: str | None = key(None, metavar="NAME")
    name: str | None = key(None, metavar="TEXT")
    out: NewFolder = out("Folder that holds the study's folder.")
    seeds: str | None = key(None, metavar="N")
    parallel: Number | None = key(None, metavar="N")
    measures: list[str] | None = key(None, alias="report.measures", metavar="[NAME,...]")
    match: Literal["exaflop"] | None = key(None, metavar="NAME")
    launcher: Annotated[str, OneOf(lambda: LAUNCHERS)] = key("local")
    slurm: str = key("", metavar='"--NAME=VALUE ..."')
    dry: bool = key(False)
    device: str | None = key(None, metavar="NAME")
    hours: float | None = key(None, gt=0, lt=1e6, metavar="NUMBER")
    only: str | None = key(None, metavar="TASK/TASK/...")
    index: int | None = key(None, ge=0, le=10**9, metavar="N")
    check: bool = flag()
