"""The images of a benchmark's tasks: which of them are there, and whether they can be the
benchmark's."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ...errors import UserError
from ...evaluation import vtab_folder
from .axes import fill
from .checks import PATH
from .read_axes import BENCHMARKS
from .study import Study


class Images(NamedTuple):
    """Which of a benchmark's tasks have images.

    Attributes:
        missing: {task: why it is left out}.
        warnings: tasks whose test split is not the benchmark's.
    """

    missing: dict[str, str]
    warnings: list[str]


def with_images(study: Study, places: Mapping[str, str]) -> tuple[Study, Images]:
    """The study with the tasks that have images, and the others. Labels and numbers of images are
    checked.

    Raises:
        UserError: no task has images, or those of one cannot be the benchmark's.
    """
    rows = BENCHMARKS[str(study.benchmark)]()
    found = Images({}, [])
    for task, folders in _folders(study, places).items():
        lacking = [reason for reason in map(vtab_folder.missing, folders) if reason]
        if lacking:
            found.missing[task] = lacking[0]
            continue
        for folder in folders:
            counts = vtab_folder.check(folder, rows[task]["classes"])
            wanted = rows[task]["test_images"]
            if counts.get("test", wanted) != wanted:
                count = f"{counts['test']:,} test images, the benchmark's has {wanted:,}"
                found.warnings.append(f"{task}: {count}: its accuracy is not the benchmark's")
    if study.arms.keys() <= found.missing.keys():
        first, reason = next(iter(found.missing.items()))
        text = f"none of {len(rows)} tasks has images; {first}: {reason}"
        raise UserError(f"benchmark={study.benchmark}: {text}")
    return study.without(found.missing), found


def _folders(study: Study, places: Mapping[str, str]) -> dict[str, list[Path]]:
    """{task: the folders of its images, of all parts}."""
    filled = {
        task: [fill(part.options[task][PATH], places) for part in study.parts.values()]
        for task in study.arms
    }
    return {task: [Path(path) for path in dict.fromkeys(paths)] for task, paths in filled.items()}
