"""Opens what `datasets` reads: parquet files, tars, `save_to_disk` folders and the Hub."""

import glob
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets

from .. import hub_files
from ..errors import UserError
from ..recipe.images import Data


def location(data: Data) -> str:
    return f"data.path={data.path}" if data.path else f"data.hub={data.hub}"


def load_files(kind: str, found: dict[str, list[Path]], stream: bool) -> dict[str, Any]:
    names = {split: [glob.escape(str(file)) for file in some] for split, some in found.items()}
    return datasets.load_dataset(kind, data_files=names, streaming=stream)


def open_splits(load: Callable[[], dict[str, Any]], data: Data) -> dict[str, Any]:
    """The splits that `load` returns: Datasets, or IterableDatasets.

    Raises:
        UserError: `datasets` cannot read them.
    """
    try:
        return load()
    except Exception as error:  # whatever a file written by others causes
        # "An error occurred while generating the dataset" alone says nothing
        text = " ".join(str(error.__cause__ or error).split())[:300]
        if empty := re.search(r'Instruction "(\w+)" corresponds to no data', text):
            text = f"its split {empty[1]} has no images; take its files away, or unpack them"
        if "OfflineModeIsEnabled" in text:
            text = hub_files.NOT_CACHED
        raise UserError(f"{location(data)}: {text}") from None


def from_disk(data: Data) -> tuple[dict[str, Any], list[str]]:
    """The splits of a `save_to_disk` folder, and what was guessed. A single split keeps the name
    that it had."""
    found: Any = open_splits(lambda: datasets.load_from_disk(data.path), data)
    if isinstance(found, datasets.DatasetDict):
        return dict(found), []
    was = str(found.split or "train")
    name = re.match(r"[\w.]+", was)
    if name is None or "+" in was:
        return {"train": found}, [f"its rows are those of {was}: taken as train"]
    return {name[0]: found}, []
