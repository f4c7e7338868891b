"""List the files of each branch that is uploaded to the Hub. Nothing else leaves the machine.

`public` removes private values from the files. Torch is imported only for the training state.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..formatting import list_names
from ..recipe import export_files
from ..recipe.schema import dump
from ..runs.checkpoint_files import list_checkpoints, step_of
from ..runs.folder import COMPARED, TRAINED_ON, Run
from ..runs.identity import FACTS
from . import card, public

STATE = ("recipe.yaml", "environment.json", "metrics.jsonl", "state.json", "state.safetensors")
BEST = ("best.json", "best.safetensors")  # added to STATE if checkpoint.best chose an older step
EXPORTED = ("config.json", *export_files.WRITTEN)
Files = dict[str, bytes | Path]  # content or path by the name in the repository


class Upload(NamedTuple):
    """Content of a commit to a branch.

    Attributes:
        branch: Name of the branch.
        stamp: Text that changes with the content, such as the time at which the run finished. If
            hub.json has the same stamp, the content was already uploaded. Empty for a milestone.
        message: Message of the commit.
        files: Function that returns the files, {name in the repository: content or path}.
    """

    branch: str
    stamp: str
    message: str
    files: Callable[[], Files]

    @property
    def is_milestone(self) -> bool:
        """Whether the content is a milestone, which is an export during training."""
        return not self.stamp


def uploads(run: Run) -> Iterator[Upload]:
    """Yield the uploads of a run, one for each branch.

    The branches are
    - `step-000001000` and others, for the milestones (exports during training) that are waiting in
      the folder hub/ (`run.outbox`). A milestone needs no stamp, because an upload removes the
      milestone from the folder.
    - `main`, for the finished run. The stamp is the time at which the run finished.
    - `state`, for the newest training state if hub.state=true. The stamp is the name of the
      checkpoint.
    """
    name = public.with_public_names(run.recipe).name
    for folder in list_checkpoints(run.outbox):
        step = step_of(folder)
        message = f"{name} after {step:,} of {run.recipe.optim.steps:,} steps"
        files = partial(_export, run, folder, step)
        yield Upload(folder.name, stamp="", message=message, files=files)
    result = run.result()
    if result:
        yield Upload("main", result.finished, f"{name}, finished", partial(_finished, run))
    checkpoints = list_checkpoints(run.checkpoints)
    if run.recipe.hub.state and checkpoints:
        message = f"{name}, the training state"
        yield Upload("state", checkpoints[-1].name, message, partial(_state, run))


def identity(run: Run) -> dict[str, Any]:
    """Return the hashes of images, initial weights and plugin, which identify a run."""
    environment = run.environment().content()
    return {key: environment[key] for key in FACTS if environment.get(key)}


def _description(run: Run) -> Files:
    """Return the files that every branch has: the public recipe, and hashes (`identity`)."""
    return {
        "recipe.yaml": dump(public.public_recipe(run.recipe)).encode(),
        "run.json": _json(identity(run)),
    }


def _export(run: Run, folder: Path, step: int | None = None) -> Files:
    """Return the files of an export, its model card, and the files that every branch has.

    Args:
        run: The run.
        folder: Folder of the export.
        step: Step of a milestone. None: the finished run.

    Raises:
        UserError: Weights were replaced or are not finite.
    """
    _, *weight_files = export_files.WRITTEN  # the first file is config.json
    for name in weight_files:
        export_files.check_weights(folder, name, f"hub.repo={run.recipe.hub.repo}")
    # Upload only files that an export writes, and no files that a user has added
    files: Files = {path.name: path for path in folder.iterdir() if path.name in EXPORTED}
    return files | {"README.md": card.render(run, folder, step).encode()} | _description(run)


def _finished(run: Run) -> Files:
    """Return the files of a finished run: export, result.json and figures."""
    result = run.result()
    assert result is not None
    records = {"result.json": _json(public.public_result(run, result).content())}
    return _export(run, run.export) | records | public.find_figures(run).uploaded


def _state(run: Run) -> Files:
    """Return the files of the newest training state, with which the run can be resumed."""
    from .state_io import pack_newest  # imports torch

    names = ("metrics.jsonl", TRAINED_ON, COMPARED)
    files: Files = {name: run.folder / name for name in names if (run.folder / name).exists()}
    files["environment.json"] = _json(public.public_environment(run))
    state = pack_newest(run.checkpoints, partial(public.public_state, run))
    return files | _description(run) | state


def about_data(run: Run) -> Iterator[str]:
    """Describe in lines what the uploads reveal about the run's images.

    The lines are about figures, names of classes and hashes of images.
    """
    withheld = public.find_figures(run).withheld if run.result() else []
    if withheld:
        yield (
            f"kept here   {list_names(withheld)}, because figures may show images or names of"
            " images. To upload figures, use hub.figures=true"
        )
    if (run.export / "config.json").exists():
        classes = export_files.read_config(run.export).get("label_names") or []
        if classes:
            yield f"includes    the names of the {len(classes):,} classes: {list_names(classes)}"
    if run.recipe.hub.state:
        yield (
            "includes    hashes of the data and of each image. Anyone who has the images can"
            " recognise the images by hash"
        )
    else:
        yield (
            "includes    hashes of the data. Anyone who has the images can recognise the images by"
            " hash"
        )


def _json(content: Any) -> bytes:
    return f"{json.dumps(content, indent=2)}\n".encode()
