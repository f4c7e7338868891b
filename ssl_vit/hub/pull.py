"""A pushed training state becomes a run's folder again, from which the same command goes on.
Nothing of it is unpickled."""

import json
import shutil
from pathlib import Path

from .. import formatting, hub_files
from ..config.resolve import from_untrusted
from ..config.schema import EMBEDDED, Recipe, dump
from ..config.values import parse
from ..errors import UserError
from ..formatting import typed
from ..runs.files import write_atomically
from ..runs.folder import Run
from .payload import STATE
from .state_io import unpack_checkpoint


def pull(place: str, out: str, name: str | None = None) -> Run:
    """Fetch hf-hub:USER/NAME, its branch `state` unless another revision is said, into out/name.

    The ledger, hub.json, says which commit it was.

    Raises:
        UserError: there is no such state, it is damaged or needs a plugin, or the folder is there
        already.
    """
    repository, revision = hub_files.split(place)
    source = hub_files.fetch(f"{repository}@{revision or 'state'}", place, STATE)
    if missing := [file for file in STATE if not (source / file).exists()]:
        raise UserError(
            f"{place}: it holds no training state: it has no {missing[0]}; hub.state=true pushes one"
        )
    run = Run(_recipe(source, place, out, name))
    if run.folder.exists():
        raise UserError(f"{place}: {run.folder} is there already; say name= or remove it")
    _unfold(source, run, place)
    return run


def _recipe(source: Path, place: str, out: str, name: str | None) -> Recipe:
    """The pushed recipe, checked as every other: a name, too, which cannot lead out of `out`."""
    try:
        return from_untrusted(source / "recipe.yaml", out, name)
    except UserError as error:
        raise UserError(f"{place}: its recipe.yaml: {error}") from None


def _unfold(source: Path, run: Run, place: str) -> None:
    """Write the folder; of a state that turns out to be none, nothing stays."""
    run.folder.mkdir(parents=True)
    try:
        structure, tensors = (
            (source / file).read_bytes() for file in ("state.json", "state.safetensors")
        )
        unpack_checkpoint(run.checkpoints, structure, tensors, place)
    except UserError:
        shutil.rmtree(run.folder)
        raise
    for file in ("environment.json", "metrics.jsonl"):
        shutil.copyfile(source / file, run.folder / file)
    # not theirs, which could name a plugin or a repository
    write_atomically(run.folder / "recipe.yaml", dump(run.recipe))
    pulled = f"{hub_files.SCHEME}{hub_files.split(place)[0]}@{source.name}"
    write_atomically(run.ledger, json.dumps({"pulled": pulled}, indent=2) + "\n")


def parse_options(words: list[str]) -> tuple[str, dict[str, str]]:
    """A place of the Hub, and out= and name= where they are said.

    Raises:
        UserError: a word is not understood.
    """
    places, given = (
        [word for word in words if "=" not in word],
        parse(word for word in words if "=" in word),
    )
    if (
        len(places) != 1
        or not places[0].startswith(hub_files.SCHEME)
        or given.keys() - {"out", "name"}
    ):
        text = (
            "say one place of the Hub, and out= and name= if wanted: tools/pull.py hf-hub:USER/NAME"
        )
        raise UserError(f"{' '.join(words) or 'nothing'} is said; {text}")
    return places[0], given


def main(words: list[str]) -> None:
    """Do what the words of tools/pull.py say.

    Raises:
        UserError: as `asked` and `pull`.
    """
    place, given = parse_options(words)
    run = pull(place, given.get("out", "runs"), given.get("name"))
    words = [f"recipe={run.folder}/recipe.yaml", f"name={run.recipe.name}", f"out={run.recipe.out}"]
    words += [] if run.recipe.data.name == EMBEDDED or run.recipe.data.hub else ["data.path=IMAGES"]
    print(f"pulled      {run.folder}")
    print(
        f"go on       {typed('accelerate', 'launch', *formatting.tool_command(run.recipe.training_tool), *words)}"
    )
