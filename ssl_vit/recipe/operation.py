"""Groups of keys for how a run is carried out: devices, checkpoints, evaluation, logging, the Hub.

Only compute.precision changes what is computed. This module does not import torch.
"""

import re
from typing import Annotated, Literal

from .. import hub_files
from .keys import Allowed, Keys, Steps, key
from .names import PathText

METRIC = re.compile(r"[\w/-]+", re.ASCII)
MetricName = Annotated[
    str, Allowed(lambda v: METRIC.fullmatch(v), "a metric's name, such as accuracy or loss")
]
RepositoryName = Annotated[
    str, Allowed(lambda v: hub_files.NAME.fullmatch(v), "USER/NAME on the Hugging Face Hub")
]

Precision = Literal["auto", "float32", "bfloat16"]


class Compute(Keys):
    """Devices, precision and processes.

    Attributes:
        batch: Images that a device processes in one forward and backward pass. Lower it if memory
            runs out: gradients are then accumulated over more passes, up to optim.batch. null: the
            largest number that fits into memory and divides the images of a process.
        precision: Number format of the forward and backward pass. auto: bfloat16 if the hardware
            multiplies it natively, otherwise float32.
        compile: Compile the network with torch.compile. null: only on a GPU.
        workers: Data loading processes for each training process. Raise it if training waits for
            data. null: chosen from the number of cores.
        resident: Decode all training images once and keep them in memory, which yields the same
            batches sooner. null: do so if the images are files of one size, need at most a tenth of
            the memory and are seen at least twice.
        threads: Number of torch threads per process. null: OMP_NUM_THREADS unless a launcher such
            as torchrun set it, otherwise the allowed cores of this machine divided by the
            processes.
        patience: Seconds that a process may lag behind the others. After that, the run names the
            process and stops.
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
        keep: Number of checkpoints to keep. At least two, so that an earlier one remains if the
            newest is damaged.
        background: Write checkpoints while training continues.
        best: Metric of the held-out images that chooses the best checkpoint, such as accuracy,
            loss, or probe/knn together with probe.every. That checkpoint is also saved, and then
            tested and exported. null: test and export the last step.
    """

    effect = "run"

    every: Steps = key(1000)
    keep: int = key(2, ge=2, le=2**31)
    background: bool = key(True)
    best: MetricName | None = key(None, effect="result")


class Eval(Keys):
    """Evaluation during and after training.

    Attributes:
        every: Steps between evaluations on held-out images.
        images: Largest number of held-out images to evaluate.
        collapse: Steps between checks for collapsing features, starting at step 0. Each check uses
            ten held-out images per channel of the encoder. null: no checks.
        knn: While pre-training on labelled images, measure k-NN accuracy and compare it with
            untrained weights. The images are cut so that this takes at most 3% of the work, but it
            is measured at least once. probe.every= measures more.
        test: Measure top-1 and top-5 accuracy at the end, on every image of data.test.
        real: Path of ImageNet-ReaL's labels (real.json), if data.test is the validation split of
            ImageNet.
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
        trackers: Trackers that receive each row in addition to metrics.jsonl. Their packages must
            be installed separately. They write to this machine unless their own settings say
            otherwise. null: none.
    """

    effect = "run"

    every: Steps = key(20)
    trackers: list[Literal["tensorboard", "wandb", "trackio", "mlflow"]] | None = key(
        None, min_length=1
    )


class Hub(Keys):
    """Uploads to the Hugging Face Hub.

    Attributes:
        repo: Repository (USER/NAME) to which the export is uploaded at the end. null: upload
            nothing.
        private: Make the repository private when creating it.
        every: Steps between uploads of the current encoder, each to its own branch. null: no
            uploads during training.
        state: Also upload the resumable training state, to the branch `state`.
        figures: Also upload figures that show images of the data. Without it, they are uploaded
            only for generated and published data sets.
        wait: Seconds that a finished run waits, at most, for uploads to complete.
    """

    effect = "run"

    repo: RepositoryName | None = key(None)
    private: bool = key(True)
    every: Steps | None = key(None)
    state: bool = key(False)
    figures: bool = key(False)
    wait: float = key(300.0, ge=0, le=1e9)
