"""Groups of keys on how a run is carried out: devices, checkpoints, evaluation, logging, the Hub.
None but compute.precision changes what is computed. No torch here."""

import re
from dataclasses import dataclass

from .. import hub_files
from .fields import is_path, option

METRIC = re.compile(r"[\w/-]+", re.ASCII)
TRACKERS = {name: name for name in ("tensorboard", "wandb", "trackio", "mlflow")}  # pip's names


@dataclass
class Compute:
    batch: int | None = option(
        None, "Images per device and pass; null: the largest divisor that fits.", above=0
    )
    precision: str = option(
        "auto",
        "Precision of the forward and backward pass.",
        choices=("auto", "float32", "bfloat16"),
        identity=True,
    )
    compile: bool | None = option(None, "Use torch.compile; null: where there is a GPU.")
    workers: int | None = option(
        None,
        "Data loading processes per process; null: from the cores.",
        minimum=0,
        maximum=2**12,
        per_process=True,
    )
    resident: bool | None = option(
        None,
        "Decode all training images once and keep them in memory: the same batches, sooner. null:"
        " where they are files of one size, take at most a tenth of the memory, and are seen at"
        " least twice.",
    )
    threads: int | None = option(
        None,
        "Torch threads; null: allowed cores / processes on this machine.",
        above=0,
        maximum=1024,
        per_process=True,
    )
    patience: float = option(
        600.0,
        "Seconds that a process may stay behind the others before the run names it and stops.",
        minimum=10,  # a healthy process reports every 2
        maximum=1e9,
    )


@dataclass
class Checkpoint:
    every: int = option(1000, "Steps between checkpoints.", above=0, maximum=2**40)
    keep: int = option(
        2,
        "Checkpoints that are kept; at least two, as a damaged one needs another before it.",
        minimum=2,
        maximum=2**31,
    )
    background: bool = option(True, "Write while training goes on.")
    best: str | None = option(
        None,
        "Metric of the held-out images (accuracy, loss, ...; probe/knn, ... of probe.every) whose"
        " best evaluation is saved too, then tested and exported; null: the last step.",
        check=lambda v: METRIC.fullmatch(v) is not None,
        expected="a metric's name, such as accuracy or loss",
        in_result=True,
    )


@dataclass
class Eval:
    every: int = option(
        1000, "Steps between evaluations on held-out images.", above=0, maximum=2**40, training=True
    )
    images: int = option(
        2000,
        "Held-out images evaluated, at most.",
        above=0,
        maximum=2**40,
        in_result=True,
        training=True,
        splits=("validation",),
    )
    collapse: int | None = option(
        None,
        "Steps between checks whether features collapse, from step 0 on, on ten held-out images for"
        " each channel of the encoder; null: never.",
        above=0,
        maximum=2**40,
        training=True,
    )
    test: bool = option(
        False,
        "At the end, top-1 and top-5 on every image of data.test.",
        in_result=True,
        training=True,
    )
    real: str | None = option(
        None,
        "ImageNet-ReaL's labels (real.json), where data.test is ImageNet's validation split.",
        check=is_path,
        in_result=True,
        private=True,
    )


@dataclass
class Log:
    every: int = option(20, "Steps between logged rows.", above=0, maximum=2**40)
    trackers: list[str] | None = option(
        None,
        "Where rows and final figures go besides metrics.jsonl; wandb, trackio and mlflow are"
        " installed separately, and write to this machine unless their own settings say otherwise;"
        " null: nowhere.",
        choices=TRACKERS,
    )


@dataclass
class Hub:
    repo: str | None = option(
        None,
        "USER/NAME on the Hugging Face Hub that the export is pushed to at the end.",
        check=lambda v: hub_files.NAME.fullmatch(v) is not None,
        expected="USER/NAME on the Hugging Face Hub",
    )
    private: bool = option(True, "Create the repository as a private one.")
    every: int | None = option(
        None,
        "Steps between pushes of the current encoder, each to a branch of its own; null: never.",
        above=0,
        maximum=2**40,
    )
    state: bool = option(False, "Push the resumable training state too, to the branch `state`.")
    wait: float = option(
        300.0,
        "Seconds that a finished run waits, at most, for pushes to complete.",
        minimum=0,
        maximum=1e9,
    )
