"""Download an uploaded training state as a run folder that can be resumed, without unpickling."""

import json
import shutil
from pathlib import Path

from .. import formatting, hub_files
from ..errors import UserError, reason
from ..formatting import shell_command
from ..recipe.given import Arguments
from ..recipe.images import EMBEDDED
from ..recipe.load import from_untrusted
from ..recipe.schema import dump
from ..recipe.tool import parse
from ..recipe.tools import PullOptions
from ..runs.files import replacing
from ..runs.folder import COMPARED, TRAINED_ON, Run
from .payload import BEST, STATE
from .state_io import unpack_checkpoints


def pull(place: str, out: str, name: str | None = None) -> Run:
    """Download a training state into a new run folder out/name, and return the run.

    The files on the Hub are not trusted. For example, the recipe is checked, so that the name of
    the run cannot be a path outside of `out`. The file hub.json of the run records the commit.

    Args:
        place: Repository hf-hub:USER/NAME or hf-hub:USER/NAME@REVISION. The default revision is the
            branch `state`.
        out: Folder in which the run folder is created.
        name: Name of the run folder. None: the name of the uploaded run.

    Raises:
        UserError: The repository has no training state, the state is damaged or was trained with a
            plugin, or the run folder exists or cannot be written.
    """
    repository, revision = hub_files.split_place(place)
    files = (*STATE, *BEST, TRAINED_ON, COMPARED)
    source = hub_files.fetch(f"{repository}@{revision or 'state'}", place, files)
    missing = [file for file in STATE if not (source / file).exists()]
    if missing:
        raise UserError(
            f"{place}: this repository has no training state ({missing[0]} is missing). Push the"
            " run with hub.state=true."
        )
    try:
        run = Run(from_untrusted(source / "recipe.yaml", out, name))
    except UserError as error:
        raise UserError(f"{place}: recipe.yaml: {error}") from None
    if run.folder.exists():
        raise UserError(
            f"{place}: {run.folder} already exists. Use another name=, or remove the folder."
        )
    _write_run_folder(source, run, place)
    return run


def _write_run_folder(source: Path, run: Run, place: str) -> None:
    """Write the run folder from the downloaded files, completely or not at all.

    Args:
        source: Folder of the downloaded files. Its name is the id of the commit.
        run: The run whose folder is written.
        place: Repository as the user has typed it, such as hf-hub:USER/NAME.

    Raises:
        UserError: The state is invalid, or the folder cannot be written.
    """
    repository, _ = hub_files.split_place(place)
    pulled = f"{hub_files.SCHEME}{repository}@{source.name}"
    try:
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing(run.folder) as folder:
            folder.mkdir()
            unpack_checkpoints(folder / run.checkpoints.name, source, place, run.recipe.optim.steps)
            # Not every run has the files TRAINED_ON (hashes of training images) and COMPARED
            # (results of probes on the baselines)
            for file in ("environment.json", "metrics.jsonl", TRAINED_ON, COMPARED):
                if (source / file).exists():
                    shutil.copyfile(source / file, folder / file)
            # Write the checked recipe. The downloaded file could name a plugin, whose code would be
            # executed, or a repository, to which the run would upload
            (folder / "recipe.yaml").write_text(dump(run.recipe))
            (folder / run.ledger.name).write_text(json.dumps({"pulled": pulled}, indent=2) + "\n")
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError if the disk is full
        raise UserError(
            f"out={run.recipe.out}: {run.folder} cannot be written: {reason(error)}"
        ) from None


def main(arguments: list[str]) -> None:
    """Run the pull tool: download a training state, and print the command that resumes the run.

    Raises:
        UserError: An option is wrong, the repository is not on the Hub or has no valid training
            state, or the run folder exists or cannot be written.
    """
    pull_options = parse(PullOptions, Arguments(arguments))
    place = pull_options.repository
    if not place.startswith(hub_files.SCHEME):
        raise UserError(f"{place}: this is not a repository on the Hub. Use hf-hub:USER/NAME.")
    run = pull(place, pull_options.out, pull_options.name)
    recipe = run.recipe
    options = [f"recipe={run.folder}/recipe.yaml", f"name={recipe.name}", f"out={recipe.out}"]
    # Images of EMBEDDED are part of the package, and images of data.hub come from the Hub. Other
    # images are in a folder that the user must name
    if recipe.data.name != EMBEDDED and not recipe.data.hub:
        options.append("data.path=IMAGES")
    tool = formatting.tool_command(recipe.training_tool)
    print(f"pulled      {run.folder}")
    print(f"resume      {shell_command('accelerate', 'launch', *tool, *options)}")
