"""Choose the checkpoint with the best metric on held-out images (checkpoint.best), and restore it.

The training state holds a record of the best evaluation so far, with the keys "metric", "images",
"step" and "value". Step and value are None before the first evaluation. Because the record is saved
with the training state, a resumed run compares with the same value. Rank 0 decides which evaluation
is best. The test split is never used to choose a checkpoint.
"""

import math

import torch

from ..callbacks import Row
from ..data.layout import role
from ..errors import UserError, suggest
from ..measurements import MetricKey, find_metric, flat_name, read_flat_name
from ..recipe.records.run import Best
from ..recipe.schema import Recipe
from ..training import checkpoint, distributed
from .setup import TrainingJob

RESUME_WITHOUT = "Use checkpoint.best=null to resume, or another name= for a new run."


def check_split(recipe: Recipe) -> None:
    """Check that the best checkpoint is not chosen on the test split.

    The check compares the names of the two splits. A number in `data.validation` or `data.test`
    holds out training images, so there is no name to compare. Without a name, the check passes.

    Raises:
        UserError: checkpoint.best is set, and data.validation and data.test name the same split.
    """
    metric, test = recipe.checkpoint.best, recipe.data.test
    # data.validation=null means the split "validation", if the data have such a split
    held_out = "validation" if recipe.data.validation is None else recipe.data.validation
    if metric is None or not isinstance(held_out, str) or not isinstance(test, str):
        return
    if role(held_out) == role(test):
        raise UserError(
            f"checkpoint.best={metric}: data.test={test} is also the validation split, and a "
            "checkpoint must not be chosen on test images. Use data.validation=0.01, which holds "
            "out a share of train, or another split."
        )


def reconcile(job: TrainingJob) -> None:
    """Check that the run measures the metric of checkpoint.best, and prepare `state.best`.

    `state.best` is the record of the best evaluation so far. A new run begins the record, and a
    resumed run checks the record. Call this function on all processes, after a checkpoint is
    loaded and before the first step.

    Raises:
        UserError: The run does not measure the metric, the run was trained without checkpoint.best
            so far, the loaded record belongs to another metric or to another number of images, or
            the best weights so far are damaged or gone.
    """
    metric = job.recipe.checkpoint.best
    if metric is None:
        job.state.best = None
        return
    with torch.no_grad(), job.state.evaluation_model() as model:
        # The names of the objective's metrics are known only after the evaluation of a batch
        metric_names = job.held_out.names(model.eval())
        model.train()
    if job.online:
        keys = [MetricKey(name, is_probe=True, is_held_out=True) for name in job.online.names()]
        metric_names += map(flat_name, keys)
    distributed.on_main(job.accelerator, lambda: _begin_or_check_record(job, metric, metric_names))


def _begin_or_check_record(job: TrainingJob, metric: str, metrics: list[str]) -> None:
    """Begin the record of the best evaluation at step 0, or check the record of a resumed run.

    A resumed run needs a record. The record must have the same metric and the same number of
    held-out images as the recipe. The checkpoint of the best evaluation must still exist. Only rank
    0 calls this function.

    Args:
        job: Training job. `job.state.best` is the record.
        metric: Value of checkpoint.best.
        metrics: Names of all metrics that the run measures on held-out images.

    Raises:
        UserError: The run does not measure the metric. Or the record of a resumed run is missing,
            has another metric or another number of images, or its checkpoint is damaged or gone.
    """
    state, record = job.state, job.state.best
    settings = {"metric": metric, "images": job.recipe.eval.images}
    if metric not in metrics:
        raise UserError(
            f"checkpoint.best={metric}: no metric of held-out images has this name, "
            f"{suggest(metric, metrics)}"
        )
    if state.step == 0:
        state.best = settings | {"step": None, "value": None}
    elif record is None:
        raise UserError(
            f"checkpoint.best={metric}: until step {state.step:,} the run was trained without this "
            f"option, so the best weights were not kept. {RESUME_WITHOUT}"
        )
    elif any(record[key] != value for key, value in settings.items()):
        raise UserError(
            f"checkpoint.best={metric}: so far the run has used checkpoint.best={record['metric']} "
            f"and eval.images={record['images']}. Use these values, or another name=."
        )
    else:
        _check_best(job)


def _check_best(job: TrainingJob) -> None:
    """Check that the checkpoint of the best evaluation so far is intact.

    Raises:
        UserError: The checkpoint is damaged or gone.
    """
    assert job.state.best is not None
    step = job.state.best["step"]
    if step is None:  # no best evaluation was recorded yet, so there is no checkpoint
        return
    if not checkpoint.is_intact(checkpoint.folder(job.run.checkpoints, step)):
        raise job.recipe.error(
            "checkpoint.best",
            f"the checkpoint of step {step:,} is damaged or missing. {RESUME_WITHOUT}",
        )


class BestSoFar:
    """Best evaluation so far, for comparison with each new evaluation.

    Args:
        job: Training job. `job.state.best` holds the record.
        saver: Saver of the job's checkpoints.
    """

    def __init__(self, job: TrainingJob, saver: checkpoint.Saver) -> None:
        self.job = job
        self.saver = saver
        self.previous_best = job.state.best  # restored if the newest record has no checkpoint
        key = read_flat_name(job.recipe.checkpoint.best or "")
        self.column = flat_name(key._replace(is_held_out=True))
        self.sign = 1 if find_metric(key).higher else -1

    def update(self, row: Row) -> bool:
        """Return whether a row of metrics is better than every earlier row.

        A better row becomes the record of the best evaluation. The caller must then save a
        checkpoint of the row's step. A value that equals the best value is not better, and neither
        is a value that is not finite. All processes must call this method, and rank 0 decides.

        Args:
            row: Row of metrics of the current step.

        Raises:
            UserError: Too many saves have failed.
        """
        if self.job.recipe.checkpoint.best is None:
            return False
        return distributed.broadcast_from_main(self.job.accelerator, lambda: self._update(row))

    def _update(self, row: Row) -> bool:
        value = row.get(self.column)
        if value is None or not math.isfinite(value):
            return False
        self.drop_unsaved()
        record = self.job.state.best
        assert record is not None
        best_value = record["value"]
        # `sign` is -1 if lower values are better, so that the greater product is always better
        if best_value is not None and self.sign * value <= self.sign * best_value:
            return False
        self.previous_best = record
        self.job.state.best = record | {"step": self.job.state.step, "value": value}
        return True

    def drop_unsaved(self) -> None:
        """Restore the previous record of the best evaluation if the newest has no checkpoint.

        A checkpoint is missing if saving failed. A record of the current step always stays, because
        the weights of this step are still in memory and can be saved again. Call this method on
        rank 0, before the next checkpoint is written.

        Raises:
            UserError: Too many saves have failed.
        """
        record = self.job.state.best
        if record is None or record["step"] is None or record["step"] == self.job.state.step:
            return
        self.saver.wait()
        if not checkpoint.folder(self.saver.root, record["step"]).exists():
            self.job.state.best = self.previous_best


def restore(job: TrainingJob) -> Best | None:
    """Load the weights of the best checkpoint into the trained job.

    If other weights than the last weights are loaded, the metrics of the last weights are
    discarded, so that the caller measures the loaded weights.

    Returns:
        The entry of result.json about the best evaluation, or None if checkpoint.best is not set.
        If the metric was never finite, a warning says so, the job keeps the last weights, and the
        step and the value of the entry are None.

    Raises:
        UserError: The checkpoint of the best evaluation is damaged.
    """
    metric = job.recipe.checkpoint.best
    if metric is None:
        return None
    record = distributed.broadcast_from_main(job.accelerator, lambda: job.state.best)
    assert record is not None
    step = record["step"]
    if step is None and job.accelerator.is_main_process:
        job.run.warn(
            f"checkpoint.best={metric}: the metric was never finite, so the last weights stay"
        )
    # With None there is no best checkpoint. The weights of the current step are loaded already
    if step not in (None, job.state.step):
        distributed.on_main(job.accelerator, lambda: _check_best(job))
        job.state.load_weights(checkpoint.load(checkpoint.folder(job.run.checkpoints, step)))
        job.held_out.latest = {}
        if job.online:
            job.online.has_run = False
    return Best(metric=metric, step=step, value=record["value"])
