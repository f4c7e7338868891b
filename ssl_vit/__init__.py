"""ssl_vit: self-supervised pre-training of Vision Transformers.

resolve                       the complete, checked Recipe
pretrain, finetune, evaluate  one run, stored in a folder; the measurements
embed                         features of every image of a data set; the images nearest to a query
figures                       what an encoder has learned, drawn
study, plan                   many runs, compared; what a run or a study will cost
report, list_runs             pages of runs and studies; the runs of a folder, ranked
export                        an encoder for transformers or ONNX
load_encoder                  an encoder from a run, an export, timm:, hf-hub: or a .npz file
save_encoder                  an encoder as a folder that load_encoder and timm open
load_run                      a run folder: recipe, result, metrics
objectives.build              the loss of an objective, for your own training loop

Options are those of the command line: ssl_vit.pretrain(recipe="mpp", optim={"steps": 100}), a
mapping {"recipe": "mpp", "optim.steps": 100}, or a string "recipe=mpp optim.steps=100". See
docs/python.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import UserError
    from .jobs.api import (
        embed,
        evaluate,
        export,
        figures,
        finetune,
        load_encoder,
        load_run,
        pretrain,
        resolve,
        save_encoder,
    )
    from .lab.api import list_runs, plan, report, study
    from .recipe.schema import Recipe

__version__ = "0.1.0"
__all__ = [
    "Recipe",
    "UserError",
    "embed",
    "evaluate",
    "export",
    "figures",
    "finetune",
    "list_runs",
    "load_encoder",
    "load_run",
    "plan",
    "pretrain",
    "report",
    "resolve",
    "save_encoder",
    "study",
]
_MODULES = {
    "Recipe": "recipe.schema",
    "UserError": "errors",
    **dict.fromkeys(("list_runs", "plan", "report", "study"), "lab.api"),
}  # all other names are in jobs.api


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import ssl_vit` is fast."""
    if name == "objectives":
        return import_module(f"{__name__}.objectives")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES.get(name, "jobs.api")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__, "__version__", "objectives"]
