"""The options of a run of seconds, how options are altered, and those that make no other run."""

from helpers.launching import ROOT as ROOT  # of the repository

TINY = [
    *("recipe=mpp", "data.size=16", "model.patch=4", "model.width=32", "model.depth=2"),
    *("model.heads=2", "model.mlp=64"),
    *("optim.steps=12", "optim.batch=16", "optim.warmup=2", "checkpoint.every=4", "eval.every=4"),
    *("eval.images=24", "log.every=2", "compute.precision=float32", "compute.threads=1"),
    "compute.compile=false",  # where there is a GPU the default is true: minutes a run
    "eval.knn=false",  # of more images than are trained on
]
# of the shortest runs, and of what starts from one
LOADED = "compute.threads=1", "compute.precision=float32", "compute.compile=false"
SHORT = ["optim.steps=2", "optim.warmup=1", "optim.batch=8", "eval.knn=false", *LOADED]
TUNE = [
    *("recipe=finetune", "eval.every=2", "checkpoint.every=2"),
    *SHORT,
]
# over TINY: a linear classifier of 495 images, tested on 500
CLASSIFIER = ["recipe=finetune", "init=scratch", "data.test=0.01", "data.share=0.01"]
CLASSIFIER += ["optim.lr=0.1", "supervised.pool=avg"]
PROBE = ["recipe=evaluate", "probe.shots=[1]", "probe.steps=2", "probe.neighbors=2", *LOADED]


def altered(options: list[str], *new: str) -> list[str]:
    """The options with others over them; the last one of a key counts."""
    last = {option.partition("=")[0]: option for option in (*options, *new)}
    return list(last.values())


# Where a run lies, how fast and how often it is looked at: the keys that must not make another run
# of it
FREE = {
    *("name", "out", "resume", "plugin", "data.path", "data.unreadable", "optim.nonfinite"),
    *("probe.every", "probe.images", "compute.batch", "compute.compile", "compute.workers"),
    *("compute.resident", "compute.threads", "compute.patience"),
    *("checkpoint.every", "checkpoint.keep", "checkpoint.background", "checkpoint.best"),
    *("hub.repo", "hub.private", "hub.every", "hub.state", "hub.figures", "hub.wait"),
    *("eval.every", "eval.images", "eval.collapse", "eval.knn", "eval.test", "eval.real"),
    *("log.every", "log.trackers"),
}
