"""checkpoint.best: finds the best evaluation on held-out images, and restores its weights.

The record of the best evaluation so far ({"metric", "images", "step", "value"}; step and value are
None before the first) is part of the training state, so a resumed run compares with the same value.
Rank 0 decides. The split that the run is tested on is never chosen on.
"""

import math

import torch

from ..callbacks import Row
from ..data.layout import role
from ..errors import UserError, suggest
from ..metrics import HELD_OUT, PROBE, find_metric
from ..recipe.records.run import Best
from ..recipe.schema import Recipe
from ..training import checkpoint, distributed
from .setup import Job


def check_split(recipe: Recipe) -> None:
    """Check that the best checkpoint is not chosen on the split that the run is tested on.

    Raises:
        UserError: it would be.
    """
    metric = recipe.checkpoint.best
    held_out = recipe.data.validation
    name = "validation" if held_out is None else held_out  # null: that split, if there is one
    tested = recipe.data.test
    if metric is None or not isinstance(name, str) or not isinstance(tested, str):
        return
    if role(name) == role(tested):
        raise UserError(
            f"checkpoint.best={metric}: data.test={tested} is the split that it would be chosen on;"
            " expected data.validation= with another split, or a share of train such as 0.01"
        )


def check_metric(job: Job) -> None:
    """Check that the held-out evaluation, or a probe of probe.every, measures the metric.

    Raises:
        UserError: none does; ReportedError on the other processes.
    """
    metric = job.recipe.checkpoint.best
    if metric is None:
        return
    with torch.no_grad(), job.state.evaluation_model() as model:
        known = job.held_out.names(model.eval())
        model.train()
    if job.online:
        known += [f"{PROBE}{name}" for name in job.online.probes.names()]

    def check() -> None:
        if metric not in known:
            reason = "no metric of the held-out images"
            raise UserError(f"checkpoint.best={metric}: {reason}; {suggest(metric, known)}")

    distributed.on_main(job.accelerator, check)


def reconcile(job: Job) -> None:
    """Complete or check the record after a checkpoint was loaded, or none.

    Raises:
        UserError: the checkpoint's record is of another metric or other images, or the weights that
            it names are damaged or gone.
    """
    distributed.on_main(job.accelerator, lambda: _reconcile(job))


def _reconcile(job: Job) -> None:
    state = job.state
    metric = job.recipe.checkpoint.best
    if metric is None:
        state.best = None
        return
    images = job.recipe.eval.images
    if state.step == 0:
        state.best = {"metric": metric, "images": images, "step": None, "value": None}
        return
    prefix = f"checkpoint.best={metric}"
    off = "checkpoint.best=null resumes without it, another name= begins again"
    if state.best is None:
        raise UserError(
            f"{prefix}: the run was trained to step {state.step:,} without it, and its earlier"
            f" weights are gone; {off}"
        )
    for key, now in (("metric", metric), ("images", images)):
        if state.best[key] != now:
            option = {"metric": "checkpoint.best", "images": "eval.images"}[key]
            raise UserError(
                f"{prefix}: the run has chosen by {option}={state.best[key]} so far, not {now};"
                f" expected {option}={state.best[key]}, or another name="
            )
    best = state.best["step"]
    if best is not None and not checkpoint.is_intact(checkpoint.folder(job.run.checkpoints, best)):
        raise UserError(f"{prefix}: the checkpoint of step {best:,} is damaged or gone; {off}")


class BestSoFar:
    """Compares each evaluation with the best one before it. Call it on all processes.

    Args:
        job: whose `state.best` is the record.
        saver: of the job's checkpoints.
    """

    def __init__(self, job: Job, saver: checkpoint.Saver) -> None:
        self.job = job
        self.saver = saver
        self.before = job.state.best  # the record that the newest one has replaced
        metric = job.recipe.checkpoint.best or ""
        self.key = metric if metric.startswith(PROBE) else f"{HELD_OUT}{metric}"
        self.higher = find_metric(metric).higher

    @property
    def is_on(self) -> bool:
        return self.job.recipe.checkpoint.best is not None

    def update(self, row: Row) -> bool:
        """Whether a row of metrics is better than all before it; then the record is its own, and
        the step is to be saved. Of equal values the first is the best; one that is not finite never
        is.

        Raises:
            UserError: too many saves have failed.
        """
        if not self.is_on:
            return False
        return distributed.broadcast_from_main(self.job.accelerator, lambda: self._update(row))

    def _update(self, row: Row) -> bool:
        value = row.get(self.key)
        if value is None or not math.isfinite(value):
            return False
        self.drop_unsaved()
        record = self.job.state.best
        assert record is not None
        if not self._is_better(value, record["value"]):
            return False
        self.before = record
        self.job.state.best = record | {"step": self.job.state.step, "value": value}
        return True

    def _is_better(self, value: float, than: float | None) -> bool:
        if than is None:
            return True
        return value > than if self.higher else value < than

    def drop_unsaved(self) -> None:
        """Return to the record before the newest one if that one's weights could not be saved.
        Called on rank 0, before the next checkpoint is written.

        Raises:
            UserError: too many saves have failed.
        """
        record = self.job.state.best
        if not self.is_on or record is None or record["step"] in (None, self.job.state.step):
            return  # the weights of this step are those in memory
        self.saver.wait()
        if not checkpoint.folder(self.saver.root, record["step"]).exists():
            self.job.state.best = self.before


def restore(job: Job) -> Best | None:
    """Load the weights of the best evaluation into the trained job; what result.json says of it
    None where checkpoint.best is not set. Without a finite value,
    which is a warning, the last weights stay and step and value are None.

    Raises:
        UserError: their checkpoint is damaged.
    """
    metric = job.recipe.checkpoint.best
    if metric is None:
        return None
    record = distributed.broadcast_from_main(job.accelerator, lambda: job.state.best)
    assert record is not None
    step = record["step"]
    if step is None and job.accelerator.is_main_process:
        job.warn(f"checkpoint.best={metric}: it was never finite; the last weights are kept")
    if step not in (None, job.state.step):
        distributed.on_main(job.accelerator, lambda: _reconcile(job))
        job.state.load_weights(checkpoint.load(checkpoint.folder(job.run.checkpoints, step)))
        job.held_out.latest = {}
        if job.online:
            job.online.probes.has_run = False
    if step is not None and job.accelerator.is_main_process:
        job.run.write_log(f"the weights of step {step} are the best by {metric}: {record['value']}")
    return Best(metric=record["metric"], step=step, value=record["value"])
