"""The text that `TOOL --help` prints. No torch here."""

import textwrap
from typing import NamedTuple

from ..config import recipe_files
from ..config.options import WIDTH, help_text
from ..config.resolve import resolve


class ToolHelp(NamedTuple):
    text: str
    examples: tuple[str, ...]
    options: dict[str, str]  # those of the tool itself, besides the keys of recipes
    recipe: str = "none"  # "all": keys of recipes are listed; "also": accepted but not listed


JSON = {"--json": "Print the result as one line of JSON, last."}
RECIPE = {
    "recipe=NAME": "A recipe of recipes/, or the path of a YAML file.",
    "data=NAME": "A row of recipes/tables/datasets.yaml.",
    "model=NAME": "A row of recipes/tables/models.yaml.",
}
HELP = {
    "pretrain": ToolHelp(
        "Pre-train an encoder. The same command resumes an unfinished run.",
        (
            "accelerate launch tools/pretrain.py recipe=mpp",
            "accelerate launch tools/pretrain.py recipe=mpp data=cifar10 data.path=PATH",
            "python tools/pretrain.py recipe=mpp --help",
        ),
        RECIPE | JSON,
        "all",
    ),
    "finetune": ToolHelp(
        "Fine-tune an encoder on labels, from the weights that init= names, and measure its "
        "accuracy"
        " on the test split.",
        (
            "accelerate launch tools/finetune.py recipe=finetune init=runs/mpp",
            "accelerate launch tools/finetune.py recipe=paper/finetune_cifar10 data.path=PATH"
            " init=scratch",
        ),
        RECIPE | JSON,
        "all",
    ),
    "evaluate": ToolHelp(
        "Measure a frozen encoder on labels: few-shot, linear probe, nearest neighbours; or its"
        " patches on masks: segmentation.",
        (
            "accelerate launch tools/evaluate.py recipe=evaluate init=runs/mpp",
            "accelerate launch tools/evaluate.py recipe=evaluate init=runs/mpp data=cifar10"
            " data.path=PATH data.size=32 --json",
            "accelerate launch tools/evaluate.py recipe=segment init=runs/mpp",
        ),
        RECIPE | JSON,
        "all",
    ),
    "study": ToolHelp(
        "Run a study, that is all runs of its file, each after those it needs; or resume it. "
        "With the"
        " word `sweep`, every combination of the values of the keys after it.",
        (
            "python tools/study.py recipe=study/gap",
            "python tools/study.py recipe=study/gap_cifar10 cifar10=PATH tinyimagenet=PATH seeds=3"
            " parallel=2",
            "python tools/study.py recipe=study/gap launcher=slurm slurm.time=4:00:00 slurm.gpus=1",
            "python tools/study.py recipe=mpp sweep corruption.rate=0.15,0.3,0.5,0.75 seeds=3",
        ),
        {
            "recipe=NAME": "A study of recipes/study/ (study/NAME) or the path of a YAML file; with"
            " `sweep`, an ordinary recipe.",
            "PLACE=PATH": "Each place that the study's file names under `places`.",
            "name=TEXT": "The study's folder; default: the file's name.",
            "out=FOLDER": "Folder that holds the study's folder (runs).",
            "seeds=N": "The first N seeds, or a list: seeds=0,2.",
            "parallel=N": "Runs at once; default: the GPUs, else the cores.",
            "match=WHAT": "What the arms have in common: steps (default) or exaflop.",
            "source=FOLDER": "Of a benchmark such as study/vtab: data sets to prepare its tasks"
            " from.",
            "launcher=NAME": "local (default) or slurm.",
            "slurm.time=, slurm.partition=, slurm.gpus=, slurm.account=, slurm.cpus=": "sbatch's"
            " options of the same names (slurm.cpus: --cpus-per-task).",
            "only=PART index=N": "Run one task, as an element of a job array does.",
        },
        "also",
    ),
    "report": ToolHelp(
        "Write pages that need no other file: of a run its report.html, of a study its report.md"
        " and report.html, of a folder of runs the index.html that compares them.",
        (
            "python tools/report.py runs/mpp",
            "python tools/report.py runs/mpp --serve",
            "python tools/report.py runs/gap --json",
            "python tools/report.py runs",
        ),
        {
            "FOLDER": "A folder of a run (also one that goes on or was cut off), a study or runs.",
            "--serve": "Serve the pages and renew them while the runs go on; nothing is written.",
            "--port=N": "The port of --serve (8421; 0: any that is free).",
            "--host=ADDRESS": "Where --serve listens (127.0.0.1: this machine alone).",
            **JSON,
        },
    ),
    "runs": ToolHelp(
        "List all runs in and below a folder, one a line: state, metrics, cost, disk use and what"
        " differs between their recipes; rank them; remove the checkpoints of finished runs.",
        (
            "python tools/runs.py",
            "python tools/runs.py runs sort=disk",
            "python tools/runs.py runs/gap best=top1",
            "python tools/runs.py runs clean=checkpoints",
        ),
        {
            "FOLDER": "A folder of runs and studies (runs).",
            "sort=KEY": "name (default), objective, state, step, exaflop, time, disk, age, or a"
            " metric, the best first; sort=-KEY: the other way round.",
            "best=METRIC": "Rank finished runs by a metric, in groups of one split, data set and"
            " objective: only those compare.",
            "differs=BOOL": "A column with each run's values of the keys that differ.",
            "clean=checkpoints": "Show what removing the checkpoints of finished runs would free."
            " Runs that have not finished, are locked, have no intact export or have pending pushes"
            " keep theirs.",
            "yes=true": "Remove them.",
            **JSON,
        },
    ),
    "plan": ToolHelp(
        "Estimate what a run or a study costs before it runs: parameters, FLOPs, memory, "
        "time, price;"
        " and warn of common mistakes.",
        (
            "python tools/plan.py recipe=paper/mpp_b16_imagenet device=h100 processes=8 price=2.5",
            "python tools/plan.py recipe=mpp --probe",
            "python tools/plan.py recipe=study/gap device=h100",
        ),
        {
            **RECIPE,
            "device=NAME": "The device, as in device=h100; an unknown name lists them.",
            "processes=N": "Devices that train together (1).",
            "nodes=N": "Nodes that the processes are on (8 processes a node).",
            "network=NUMBER": "GB/s that each process sends to other nodes (the device's).",
            "price=NUMBER": "Price of a device-hour, in any currency.",
            "zero=N": "ZeRO stage: 0 (plain DDP, default), 1, 2 or 3.",
            "efficiency=SHARE": "Share of the device's peak that training reaches (0.4).",
            "epochs=NUMBER": "In place of optim.steps.",
            "images=N": "Training images, where the data set is neither known nor here.",
            "--probe": "Measure the first steps on this machine.",
            **JSON,
        },
        "also",
    ),
    "figures": ToolHelp(
        "Draw what encoders have learned, side by side: filters, positions, attention distance,"
        " rollout, the class token's attention, features and what the objective predicts. Each"
        " figure is a .png, a .svg and a .npz with its data.",
        (
            "python tools/figures.py init=runs/mpp",
            "python tools/figures.py init=scratch,runs/mpp data=cifar10 data.path=PATH",
            "python tools/figures.py init=timm:vit_tiny_patch16_224 model=vit_ti16 data.path=PATH",
        ),
        {
            "init=PLACE,PLACE": "One encoder or several: scratch, a run's folder,"
            " an export's folder, timm:NAME, hf-hub:USER/NAME or a Google .npz file. scratch beside"
            " a run is what that run began with.",
            "data=NAME, data.KEY=VALUE": "The images, as for training (pretrain --help); their test"
            " split, else the held-out images. Default: those of the first run.",
            "model=NAME": "The model of scratch alone, timm: and .npz files.",
            "figures=NAME,NAME": "Only these: filters, positions, attention_distance,"
            " attention_rollout, class_attention, feature_map, image_map, reconstruction (of"
            " objectives that predict patches), predicted (of others that draw what they predict).",
            "images=N": "Images that distances and projections are computed over (128).",
            "shown=N": "Images that figures show (6).",
            "out=FOLDER name=TEXT": "Write to FOLDER/TEXT. Default: figures/ in the folder of the"
            " one run; of several encoders runs/figures-LABELS.",
            "seed=N": "Of fresh weights; default: the run's.",
            "plugin=FILE": "Python file that adds the run's objective or target.",
        },
    ),
    "embed": ToolHelp(
        "Write the features of every image of a data set in shards (parquet or npz), or resume"
        " that; find the images nearest to a query. Several processes share the shards.",
        (
            "python tools/embed.py init=runs/mpp data.path=IMAGES",
            "python tools/embed.py init=runs/mpp data.path=IMAGES query=IMAGE top=5",
            "accelerate launch tools/embed.py init=timm:vit_tiny_patch16_224 model=vit_ti16"
            " data=cifar10 data.path=IMAGES split=test probe.layer=6 format=npz",
        ),
        {
            "init=PLACE": "The encoder: scratch, a run's folder, an export's folder, timm:NAME,"
            " hf-hub:USER/NAME or a Google .npz file.",
            "data=NAME, data.KEY=VALUE": "The images, as for training (pretrain --help). Default:"
            " those that the run was trained on. Size, normalisation and cropping are those of the"
            " encoder's export, unless data.size= or data.eval_mode= say otherwise.",
            "split=NAME,NAME": "Only these splits; default: all.",
            "probe.pool=NAME": "token (the class token) or avg (the mean of the patches); default:"
            " as the encoder's export says.",
            "probe.layer=N": "The block whose output is taken, from 1; default: the last one, after"
            " the final norm.",
            "patches=BOOL": "Write the features of all patches too.",
            "format=NAME": "parquet (default) or npz.",
            "rows=N": "Images per shard (10,000; with patches=true 500). Features of one shard are"
            " held in memory.",
            "query=IMAGE top=N": "Print the N (5) images whose features have the highest cosine"
            " similarity with this image's.",
            "out=FOLDER name=TEXT": "Write to FOLDER/TEXT (runs/features-LABEL-DATA).",
            "model=NAME, seed=N": "The model of scratch, timm: and .npz files; scratch's seed.",
            "compute.KEY=VALUE": "batch, workers, threads, precision, patience.",
        },
    ),
    "overlap": ToolHelp(
        "Find test images of a study that are also among its training images: the same pixels, or "
        "a perceptual hash that is near. Needs pip install 'ssl_vit[overlap]'.",
        ("python tools/overlap.py runs/gap_cifar10",),
        {"FOLDER": "The study's folder; overlap.json is written into it, which its report shows."},
    ),
    "shards": ToolHelp(
        "Convert images into pre-resized parquet shards, which training reads fast; or "
        "resume that.",
        (
            "python tools/shards.py data.path=IMAGES out=FOLDER",
            "python tools/shards.py data=imagenet data.path=IMAGES out=FOLDER size=256 rows=10000"
            " format=jpeg quality=90 workers=16",
        ),
        {
            "data=NAME, data.KEY=VALUE": "The images, as for training (pretrain --help).",
            "out=FOLDER": "Where the shards are written.",
            "size=N": "Shorter side in pixels, 1 to 16,384 (256).",
            "rows=N": "Images per shard (10,000).",
            "format=NAME": "jpeg (default) or webp.",
            "quality=N": "1 to 100 (90).",
            "workers=N": "Processes; default: the cores.",
        },
    ),
    "prepare": ToolHelp(
        "Write VTAB-1k's tasks (recipes/tables/vtab.yaml) as parquet files of squares, for"
        " recipe=study/vtab. Tasks that are there already are left as they are.",
        (
            "python tools/prepare.py source=$HOME/tensorflow_datasets out=VTAB",
            "python tools/prepare.py source=FOLDER out=VTAB tasks=dtd,clevr_count",
        ),
        {
            "source=FOLDER": "Holds BUILDER[/CONFIG] of each task: as tensorflow-datasets wrote it,"
            " which has to be installed then, or SPLIT.parquet with the same features as columns.",
            "out=FOLDER": "Gets TASK/tune/{train,validation}.parquet and"
            " TASK/final/{train,test}.parquet.",
            "tasks=NAME,...": "Some of the 19 tasks (all).",
            "size=N": "Side in pixels of what is no square or larger (384).",
        },
    ),
    "export": ToolHelp(
        "Convert a run's encoder to another format than timm's: transformers' ViT, or ONNX.",
        (
            "python tools/export.py runs/mpp format=transformers out=mpp_transformers",
            "python tools/export.py runs/mpp format=onnx out=mpp.onnx",
        ),
        {
            "FOLDER": "A run's folder, or an export's.",
            "format=NAME": "transformers or onnx.",
            "out=PATH": "The folder (transformers) or file (onnx) to write.",
        },
    ),
    "push": ToolHelp(
        "Upload a run to the Hugging Face Hub: what is not there yet of its milestones, its final"
        " export and, with hub.state=true, its training state.",
        ("python tools/push.py runs/mpp hub.repo=USER/NAME", "python tools/push.py runs/mpp"),
        {
            "FOLDER": "The run's folder.",
            "hub.repo=USER/NAME": "The repository; default: the run's own.",
            "hub.private=BOOL": "Create the repository as a private one.",
            "hub.state=BOOL": "Upload the resumable training state too.",
            "--quiet": "Upload only what is missing; wait while another process uploads this run.",
        },
    ),
    "pull": ToolHelp(
        "Download an uploaded training state (hub.state=true) as a run that can be resumed.",
        (
            "python tools/pull.py hf-hub:USER/NAME",
            "python tools/pull.py hf-hub:USER/NAME@COMMIT out=runs name=again",
        ),
        {
            "hf-hub:USER/NAME[@COMMIT]": "The repository.",
            "out=FOLDER": "Folder that holds the runs (runs).",
            "name=TEXT": "The run's folder; default: its own name.",
        },
    ),
}
FLAGS = frozenset({"-h", "--help"})


def tool_help(tool: str, options: list[str]) -> str:
    """The tool's purpose, examples and options; with the values of the recipe that `options` name,
    if they do.

    Raises:
        UserError: an option is wrong.
    """
    entry = HELP[tool]
    lines = [*textwrap.wrap(entry.text, WIDTH), ""]
    lines += [f"  {example}" for example in entry.examples]
    lines += ["", "Options:"]
    for name, meaning in entry.options.items():
        lines += [f"  {name}", *_indented(meaning)]
    if entry.recipe == "also":
        lines += ["", "All keys of recipes are accepted too: pretrain --help lists them."]
    if entry.recipe == "all":
        lines += ["", _recipe_keys(options)]
    return "\n".join(lines)


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _recipe_keys(options: list[str]) -> str:
    """Every key of a recipe, with the values of the options where there are any, and the recipes
    that the one they name is based on."""
    overrides = [option for option in options if "=" in option]
    if not overrides:
        return "Keys of a recipe, with their defaults:\n\n" + help_text()
    recipe = resolve(overrides, here=False)
    named = [one.removeprefix("recipe=") for one in overrides if one.startswith("recipe=")]
    bases = recipe_files.bases(recipe_files.find_recipe(named[0] if named else None))
    based_on = f" (base: {', '.join(bases)})" if bases else ""
    title = f"Keys of a recipe, with the values of {' '.join(overrides)}{based_on}:"
    return f"{title}\n\n{help_text(recipe)}"
