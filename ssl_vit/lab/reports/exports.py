"""A study's results for other programs and for papers: all results as CSV, the report's numbers as
JSON, its tables as LaTeX. No torch here."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ...pages.blocks import Section
from ...runs.files import write_atomically
from ...stats import as_json
from . import latex
from .results import StudyResults, axes_of, exact_text
from .statistics import Numbers

if TYPE_CHECKING:
    from pandas import DataFrame

VERSION = 2  # of what `content` gives
FORMATS = ("csv", "latex")
DIFFERENCES = (
    *("arm", "other", "measure", "n", "difference", "sd", "low", "high"),
    *("images_low", "images_high", "pairs", "corrected_low", "corrected_high"),
)


def write(
    folder: Path, form: str, study: StudyResults, numbers: Numbers, sections: list[Section]
) -> list[Path]:
    """Write a study's results in one of FORMATS into its folder; the files.

    Args:
        folder: of the study.
        form: the format.
        study: its runs.
        numbers: of its report.
        sections: of its report.
    """
    if form == "csv":
        texts = {"results.csv": table(study), "differences.csv": differences(numbers)}
        for name, text in texts.items():
            write_atomically(folder / name, text)
        return [folder / name for name in texts]
    path = folder / "tables.tex"
    write_atomically(path, latex.tables(sections, study.plan.name))
    return [path]


def table(study: StudyResults) -> str:
    """The study's results as CSV: one row for each metric of each finished run, values to their
    last digit; empty where a run has none."""
    rows = study.table
    texts = {axis: rows[axis].map(_coordinate) for axis in axes_of(rows)}
    return rows.assign(**texts, value=rows["value"].map(repr)).to_csv(index=False)


def differences(numbers: Numbers) -> str:
    """The differences in pairs as CSV, to their last digit: a row for each pair.

    Columns:
        arm, other: the difference is `arm` minus `other`, positive where `arm` is the better.
        measure: its name; shares are not in percent.
        n, difference, sd, low, high: over seeds, with Student's 95% interval.
        images_low, images_high: with the test images resampled too.
        pairs, corrected_low, corrected_high: an interval that holds together with those of so many
            pairs, which were asked for.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(DIFFERENCES)
    family = sum(pair.corrected is not None for pair in numbers.pairs) or None
    for pair in numbers.pairs:
        found = pair.difference
        if found is None:
            continue
        ends = (found.interval, pair.resampled, pair.corrected)
        low_high = [repr(end) if one else "" for one in ends for end in one or (None, None)]
        row = [pair.arm, pair.other, pair.measure, found.n, repr(found.mean)]
        row += ["" if found.sd is None else repr(found.sd), *low_high]
        row.insert(-2, (family if pair.corrected else None) or "")
        writer.writerow(row)
    return text.getvalue()


def content(answer: str, numbers: Numbers, table: DataFrame) -> dict[str, Any]:
    """What the report tool prints of a study with --json.

    Returns:
        answer: the report's.
        results: the rows of the table; one has no key for a coordinate that its run has not.
        numbers: all numbers, as lists of flat records: `measures` without their results, which are
            the `summaries` of each arm on each measure; the values that one is of are those of its
            `runs` on the measure's `metric`. A measure is told by its name and part. Points of the
            curve name their measure.
    """
    found = numbers._asdict()
    found["measures"] = [_without(one, "results", "not_compared") for one in numbers.measures]
    found["summaries"] = [
        {
            "measure": measure.name,
            "part": measure.part,
            "compared": compared,
            **_without(one, "seeds", "exaflop"),
        }
        for measure in numbers.measures
        for compared, results in ((True, measure.results), (False, measure.not_compared))
        for one in results
    ]
    if numbers.scaling:
        points = [one._asdict() | {"measure": one.measure.name} for one in numbers.scaling.points]
        found["scaling"] = numbers.scaling._asdict() | {"points": points}
    axes = axes_of(table)
    other = table.drop(columns=axes)
    rows = other.astype(object).where(other.notna(), None).to_dict("records")
    for row, place in zip(rows, table[axes].to_dict("records"), strict=True):
        row |= {axis: value for axis, value in place.items() if not _is_nan(value)}
    record = {"version": VERSION, "answer": answer, "results": rows, "numbers": found}
    return cast(dict[str, Any], as_json(record))


def _without(record: NamedTuple, *names: str) -> dict[str, Any]:
    return {name: value for name, value in record._asdict().items() if name not in names}


def _coordinate(value: Any) -> str:
    """As it is typed; NaN is none."""
    return "" if _is_nan(value) else exact_text(value)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
