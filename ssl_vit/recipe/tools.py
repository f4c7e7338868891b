"""Options of the engine's tools, and the text of --help. This module does not import torch."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from .keys import FLAG, WORD, Allowed, NamedChoice, key
from .names import FolderName, NewFolder, RunName, is_path
from .tool import LISTS_ALL_KEYS, RecipeKeys, ToolOptions

PLACES = (
    "scratch, a run's folder, an export's folder, timm:NAME, hf-hub:USER/NAME, or a Google .npz"
    " file"
)
ENCODER = (
    f"Encoder: {PLACES}. For the model and images of PLACE with untrained weights, write"
    " scratch,PLACE, such as scratch,runs/mpp."
)
FIGURES = (
    "filters",
    "positions",
    "attention_distance",
    "attention_rollout",
    "class_attention",
    "feature_map",
    "reconstruction",
    "predicted",
)
ROWS, PATCH_ROWS = 10_000, 500  # images per shard, without and with the features of patches
TOP = 5
MAX_DROP = 1.0  # points of accuracy that an int8 model may lose by default
MOST_IMAGES = 2000  # images that figures are computed over by default
Place = Annotated[str, Allowed(is_path, PLACES)]
Number = Annotated[int, Field(ge=1, le=999_999_999)]
IMAGES = "Images, chosen as for training (pretrain --help data)."
SAME = "These options are the same as for training (pretrain --help compute)."


def flag() -> Any:
    return key(False, form=FLAG)


def json_flag() -> Any:
    return key(False, "Print the result as JSON in the last line.", form=FLAG, alias="json")


def out(help: str = "Folder that holds the runs.", default: str | None = "runs") -> Any:
    return key(default, help, metavar="FOLDER")


class JobOptions(ToolOptions):
    """Options of the tools that make a single run. All further options are keys of recipes."""

    recipes = LISTS_ALL_KEYS
    command_line_only = ("json",)
    uses = (
        RecipeKeys(("recipe",), "Name of a recipe in recipes/, or path of a YAML file."),
        RecipeKeys(("data",), "Name of a data set in recipes/tables/datasets.yaml."),
        RecipeKeys(("model",), "Name of a model in recipes/tables/models.yaml."),
    )
    as_json: bool = json_flag()


class PretrainOptions(JobOptions):
    """Pre-train an encoder. Type the same command again to resume an unfinished run.

    Examples:
        accelerate launch tools/pretrain.py recipe=mpp
        accelerate launch tools/pretrain.py recipe=mpp data=cifar10 data.path=PATH
        ssl-vit pretrain recipe=mpp --help
    """

    summary = "pre-train an encoder"
    command = "jobs.cli:pretrain"
    common_keys = (
        *("data.path", "data.size", "objective", "corruption.rate", "optim.steps"),
        *("optim.batch", "optim.lr", "probe.every", "seed", "name"),
    )


class FinetuneOptions(JobOptions):
    """Fine-tune an encoder on labels, starting from the weights that init= names, and measure the
    accuracy on the test split.

    Examples:
        accelerate launch tools/finetune.py recipe=finetune init=runs/mpp
        accelerate launch tools/finetune.py recipe=paper/finetune_cifar10 data.path=PATH
            init=scratch
    """

    summary = "fine-tune an encoder on labels"
    command = "jobs.cli:finetune"
    common_keys = (
        *("init", "data.path", "data.test", "data.share", "optim.steps"),
        *("optim.batch", "optim.lr", "optim.layer_decay", "seed", "name"),
    )
    positional = "init"


class EvaluateOptions(JobOptions):
    """Measure a frozen encoder. With labels: few-shot, linear and k-NN accuracy. With masks:
    segmentation from patch features.

    Examples:
        accelerate launch tools/evaluate.py recipe=evaluate init=runs/mpp
        accelerate launch tools/evaluate.py recipe=evaluate init=runs/mpp data=cifar10
            data.path=PATH data.size=32 --json
        accelerate launch tools/evaluate.py recipe=segment init=runs/mpp
    """

    summary = "measure a frozen encoder"
    command = "jobs.cli:evaluate"
    common_keys = (
        *("init", "data.path", "data.test", "data.size", "probe.measures"),
        *("probe.pool", "probe.layer", "probe.shots", "seed", "name"),
    )
    positional = "init"


class FigureOptions(ToolOptions):
    """Draw what an encoder has learned, next to an encoder with untrained weights: filters,
    position embeddings, attention distances, attention rollout, attention of the class token,
    features, and predictions of the objective. Each figure is written as .png, .svg and .npz (the
    data), and figures.html shows all figures.

    Examples:
        ssl-vit figures init=runs/mpp
        ssl-vit figures init=runs/mpp data=cifar10 data.path=PATH
        ssl-vit figures init=timm:vit_tiny_patch16_224 data.path=PATH

    Attributes:
        figures: Draw only these figures. Default: all that apply. reconstruction needs an objective
            that predicts patches, such as mae. predicted needs another objective that draws
            predictions, such as ijepa.
        split: Split whose images are used. Default: the test split, or the held-out images if there
            is none.
        shown: Number of images to show in figures.
        name: Name of the folder.
    """

    summary = "draw figures of what an encoder has learned"
    command = "jobs.draw_figures:main"
    positional = "init"
    uses = (
        RecipeKeys(
            ("data", "data.*"),
            f"{IMAGES} Default: the images of the run.",
        ),
        RecipeKeys(("model", "model.*"), "Model for init=scratch and .npz files."),
        RecipeKeys(("seed",), "Seed of the untrained weights. Default: the seed of the run."),
        RecipeKeys(("compute.threads",), SAME),
        RecipeKeys(("plugin",), "Python file that adds the run's objective or target."),
    )
    init: Place = key(
        ...,
        f"Encoder: {PLACES}. The figures compare the encoder with untrained weights.",
        metavar="PLACE",
    )
    figures: list[Annotated[str, NamedChoice(lambda: FIGURES)]] | None = key(
        None, metavar="NAME,..."
    )
    split: str | None = key(None, metavar="NAME")
    images: int | None = key(
        None,
        "Number of images for principal components. Attention distances use the first"
        f" 128. Default: {MOST_IMAGES:,}, or all images if there are fewer.",
        ge=1,
        le=2048,
        metavar="N",
    )
    shown: int = key(6, ge=1, le=64)
    out: NewFolder | None = out(
        "Folder in which the figures' folder is made. Default: figures/ in the folder of the run,"
        " or runs/figures-ENCODER for any other encoder.",
        None,
    )
    name: FolderName | None = key(None, metavar="TEXT")


class EmbedOptions(ToolOptions):
    """Write the features of every image of a data set to parquet files (shards), and find the
    images nearest to a query. Type the same command again to resume. Several processes share the
    work.

    Examples:
        ssl-vit embed init=runs/mpp data.path=IMAGES
        ssl-vit embed init=runs/mpp data.path=IMAGES query=IMAGE top=5
        accelerate launch tools/embed.py init=timm:vit_tiny_patch16_224 data=cifar10
            data.path=IMAGES split=test probe.layer=6

    Attributes:
        split: Embed only these splits. Default: all.
        patches: Also write the features of all patches.
        query: Image files whose nearest images are printed and shown in nearest.html. A path may
            also be relative to data.path=.
        name: Name of the folder. Default: features-ENCODER-DATA.
    """

    summary = "write the features of every image of a data set"
    command = "jobs.embed:main"
    positional = "init"
    uses = (
        RecipeKeys(
            (
                "data",
                *("data.path", "data.hub", "data.size", "data.image_column"),
                *("data.label_column", "data.labels", "data.test", "data.group"),
                *("data.unreadable", "data.eval_mode", "data.eval_crop"),
                *("data.mean", "data.std"),
            ),
            f"{IMAGES} Default: the images that the run was trained on. Size, normalisation and"
            " cropping come from the encoder's export, unless data.size= or data.eval_mode= are"
            " given.",
        ),
        RecipeKeys(
            ("probe.pool",),
            "How tokens are pooled into one feature: token (the class token) or avg (the mean of"
            " the patch tokens). Default: as the encoder's export says.",
        ),
        RecipeKeys(
            ("probe.layer",),
            "Block whose output is used, counted from 1. Default: the last, after the final norm.",
        ),
        RecipeKeys(
            ("model", "model.*", "seed"),
            "Model for init=scratch and .npz files, and the seed of untrained weights.",
        ),
        RecipeKeys(
            (
                *("compute.batch", "compute.workers", "compute.threads", "compute.precision"),
                "compute.patience",
            ),
            SAME,
        ),
    )
    init: Place = key(..., ENCODER, metavar="PLACE")
    split: list[str] | None = key(None, metavar="NAME,...")
    patches: bool = key(False)
    rows: Number | None = key(
        None,
        "Images per shard. Use fewer if memory runs out, because the features of a shard are held"
        f" in memory. Default: {ROWS:,}, or {PATCH_ROWS} with patches=true.",
        metavar="N",
    )
    query: list[str] | None = key(None, metavar="IMAGE,...")
    top: Number | None = key(
        None, f"Number of nearest images for each query. Default: {TOP}.", metavar="N"
    )
    out: NewFolder = out("Folder in which the features' folder is made.")
    name: FolderName | None = key(None, metavar="TEXT")

    @property
    def shard_rows(self) -> int:
        """Number of images per shard."""
        return self.rows or (PATCH_ROWS if self.patches else ROWS)


class ExportOptions(ToolOptions):
    """Convert the encoder of a run from timm's format to transformers' ViT or to ONNX.

    Examples:
        ssl-vit export init=runs/mpp format=transformers out=mpp_transformers
        ssl-vit export init=runs/mpp format=onnx out=mpp.onnx
        ssl-vit export init=runs/mpp format=onnx quantize=int8 max_drop=1 out=mpp_int8.onnx

    Attributes:
        init: Encoder: the folder of a run or of an export.
        format: Format to convert to.
        out: Folder (transformers) or file (onnx) to write.
        quantize: Store and multiply the weights as 8-bit integers, only for format=onnx. The
            accuracy of the int8 model is measured on held-out images of the run.
        max_drop: Largest loss of accuracy in points with quantize=int8. If the int8 model loses
            more, nothing is written.
    """

    summary = "convert a run's encoder to transformers or ONNX"
    command = "jobs.quantize:main"
    positional = "init"
    init: Annotated[str, Allowed(is_path, "the folder of a run or of an export")] = key(
        ..., metavar="FOLDER"
    )
    format: Literal["transformers", "onnx"] = key(..., metavar="NAME")
    out: Path = key(..., metavar="PATH")
    quantize: Literal["int8"] | None = key(None, metavar="NAME")
    max_drop: float = key(MAX_DROP, ge=0, le=100, metavar="POINTS")


class PushOptions(ToolOptions):
    """Upload a run to the Hugging Face Hub: the encoders of hub.every=, the final export and, with
    hub.state=true, the training state. Files that are already on the Hub are skipped.

    Examples:
        ssl-vit push runs/mpp hub.repo=USER/NAME
        ssl-vit push runs/mpp
        ssl-vit push runs/mpp hub.repo=USER/NAME dry=true

    Attributes:
        folder: Folder of the run.
        dry: Upload nothing. Print the name of each file, and write the model card to
            FOLDER/hub/README.md.
    """

    summary = "upload a run to the Hugging Face Hub"
    command = "hub.push:main"
    positional = "folder"
    uses = (
        RecipeKeys(("hub.repo",), "Repository to upload to. Default: the repository of the run."),
        RecipeKeys(("hub.private",), "Make the repository private when creating it."),
        RecipeKeys(("hub.state",), "Also upload the resumable training state."),
        RecipeKeys(("hub.figures",), "Also upload figures that show images of the data."),
    )
    folder: Path = key(..., form=WORD, metavar="FOLDER")
    dry: bool = key(False)


class PullOptions(ToolOptions):
    """Download an uploaded training state (hub.state=true) as a run that can be resumed.

    Examples:
        ssl-vit pull hf-hub:USER/NAME
        ssl-vit pull hf-hub:USER/NAME@COMMIT out=runs name=again

    Attributes:
        repository: Repository on the Hub.
        name: Name of the run's folder. Default: the name of the uploaded run.
    """

    summary = "download an uploaded training state"
    command = "hub.pull:main"
    positional = "repository"
    repository: str = key(..., form=WORD, metavar="hf-hub:USER/NAME[@COMMIT]")
    out: NewFolder = out()
    name: RunName | None = key(None, metavar="TEXT")
