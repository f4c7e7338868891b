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
    """Devices, precision and processes.

    Attributes:
        batch: Images per device and pass; null: the largest divisor that fits.
        precision: Precision of the forward and backward pass.
        compile: Use torch.compile; null: where there is a GPU.
        workers: Data loading processes per process; null: from the cores.
        resident: Decode all training images once and keep them in memory: the same batches, sooner.
            null: where they are files of one size, take at most a tenth of the memory, and are seen
            at least twice.
        threads: Torch threads of a process; null: OMP_NUM_THREADS, unless a launcher such as
            torchrun set it, else the allowed cores of this machine / processes.
        patience: Seconds that a process may stay behind the others before the run names it and
            stops.
    """

    effect = "run"

    batch: int | None = key(None, gt=0)
    precision: Precision = key("auto", effect="compute")
    compile: bool | None = key(None)
    workers: int | None = key(None, ge=0, le=2**12)
    resident: bool | None = key(None)
    threads: int | None = key(None, gt=0, le=1024)
    patience: float = key(600.0, ge=10, le=1e9)


class Checkpoint(Keys):
    """Checkpoints.

    Attributes:
        every: Steps between checkpoints.
        keep: Checkpoints that are kept; at least two, as a damaged one needs another before it.
        background: Write while training goes on.
        best: Metric of the held-out images (accuracy, loss, ...; probe/knn, ... of probe.every)
            whose best evaluation is saved too, then tested and exported; null: the last step.
    """

    effect = "run"

    every: Steps = key(1000)
    keep: int = key(2, ge=2, le=2**31)
    background: bool = key(True)
    best: MetricName | None = key(None, effect="result")


class Eval(Keys):
    """Evaluation while training and after it.

    Attributes:
        every: Steps between evaluations on held-out images.
        images: Held-out images evaluated, at most.
        collapse: Steps between checks whether features collapse, from step 0 on, on ten held-out
            images for each channel of the encoder; null: never.
        knn: While pre-training on images with labels: k-NN accuracy beside that of fresh weights,
            cut to 3% of the work, but measured once at least; probe.every= measures more.
        test: At the end, top-1 and top-5 on every image of data.test.
        real: ImageNet-ReaL's labels (real.json), where data.test is ImageNet's validation split.
    """

    effect = "run"

    every: Steps = key(1000)
    images: Steps = key(2000, effect="result")
    collapse: Steps | None = key(None)
    knn: bool = key(True, effect="result")
    test: bool = key(False, effect="result")
    real: PathText | None = key(None, effect="result")


class Log(Keys):
    """Logging.

    Attributes:
        every: Steps between logged rows.
        trackers: Where rows go besides metrics.jsonl; wandb, trackio and mlflow are installed
            separately, and write to this machine unless their own settings say otherwise; null:
            nowhere.
    """

    effect = "run"

    every: Steps = key(20)
    trackers: list[Literal["tensorboard", "wandb", "trackio", "mlflow"]] | None = key(
        None, min_length=1
    )


class Hub(Keys):
    """Pushing to the Hugging Face Hub.

    Attributes:
        repo: USER/NAME on the Hugging Face Hub that the export is pushed to at the end.
        private: Create the repository as a private one.
        every: Steps between pushes of the current encoder, each to a branch of its own; null:
            never.
        state: Push the resumable training state too, to the branch `state`.
        figures: Push the figures that show images of the data too. They are pushed without it only
            for generated and published sets.
        wait: Seconds that a finished run waits, at most, for pushes to complete.
    """

    effect = "run"

    repo: RepositoryName | None = key(None)
    private: bool = key(True)
    every: Steps | None = key(None)
    state: bool = key(False)
    figures: bool = key(False)
    wait: float = key(300.0, ge=0, le=1e9)
