"""Groups of keys on how a run is carried out: devices, checkpoints, evaluation, logging, the Hub.
None but compute.precision changes what is computed. No torch here."""

import re
from typing import Annotated, Literal

from .. import hub_files
from .keys import Keys, Only, Steps, key
from .names import PathText

METRIC = re.compile(r"[\w/-]+", re.ASCII)
TRACKERS = {name: name for name in ("tensorboard", "wandb", "trackio", "mlflow")}  # pip's names
MetricName = Annotated[
    str, Only(lambda v: METRIC.fullmatch(v), "a metric's name, such as accuracy or loss")
]
RepositoryName = Annotated[
    str, Only(lambda v: hub_files.NAME.fullmatch(v), "USER/NAME on the Hugging Face Hub")
]

Precision = Literal["auto", "float32", "bfloat16"]


class Compute(Keys):
    effect = "run"

    batch: int | None = key(
        None, "Images per device and pass; null: the largest divisor that fits.", gt=0
    )
    precision: Precision = key(
        "auto", "Precision of the forward and backward pass.", effect="compute"
    )
    compile: bool | None = key(None, "Use torch.compile; null: where there is a GPU.")
    workers: int | None = key(
        None, "Data loading processes per process; null: from the cores.", ge=0, le=2**12
    )
    resident: bool | None = key(
        None,
        "Decode all training images once and keep them in memory: the same batches, sooner. null:"
        " where they are files of one size, take at most a tenth of the memory, and are seen at"
        " least twice.",
    )
    threads: int | None = key(
        None, "Torch threads; null: allowed cores / processes on this machine.", gt=0, le=1024
    )
    patience: float = key(
        600.0,
        "Seconds that a process may stay behind the others before the run names it and stops.",
        ge=10,
        le=1e9,
    )


class Checkpoint(Keys):
    effect = "run"

    every: Steps = key(1000, "Steps between checkpoints.")
    keep: int = key(
        2,
        "Checkpoints that are kept; at least two, as a damaged one needs another before it.",
        ge=2,
        le=2**31,
    )
    background: bool = key(True, "Write while training goes on.")
    best: MetricName | None = key(
        None,
        "Metric of the held-out images (accuracy, loss, ...; probe/knn, ... of probe.every) whose"
        " best evaluation is saved too, then tested and exported; null: the last step.",
        effect="result",
    )


class Eval(Keys):
    effect = "run"

    every: Steps = key(1000, "Steps between evaluations on held-out images.")
    images: Steps = key(2000, "Held-out images evaluated, at most.", effect="result")
    collapse: Steps | None = key(
        None,
        "Steps between checks whether features collapse, from step 0 on, on ten held-out images"
        " for each channel of the encoder; null: never.",
    )
    knn: bool = key(
        True,
        "While pre-training on images with labels: k-NN accuracy beside that of fresh weights, cut"
        " to 3% of the work; probe.every= measures more.",
        effect="result",
    )
    test: bool = key(
        False, "At the end, top-1 and top-5 on every image of data.test.", effect="result"
    )
    real: PathText | None = key(
        None,
        "ImageNet-ReaL's labels (real.json), where data.test is ImageNet's validation split.",
        effect="result",
    )


class Log(Keys):
    effect = "run"

    every: Steps = key(20, "Steps between logged rows.")
    trackers: list[Literal["tensorboard", "wandb", "trackio", "mlflow"]] | None = key(
        None,
        "Where rows go besides metrics.jsonl; wandb, trackio and mlflow are"
        " installed separately, and write to this machine unless their own settings say otherwise;"
        " null: nowhere.",
        min_length=1,
    )


class Hub(Keys):
    effect = "run"

    repo: RepositoryName | None = key(
        None, "USER/NAME on the Hugging Face Hub that the export is pushed to at the end."
    )
    private: bool = key(True, "Create the repository as a private one.")
    every: Steps | None = key(
        None,
        "Steps between pushes of the current encoder, each to a branch of its own; null: never.",
    )
    state: bool = key(False, "Push the resumable training state too, to the branch `state`.")
    wait: float = key(
        300.0, "Seconds that a finished run waits, at most, for pushes to complete.", ge=0, le=1e9
    )
