"""Measurements of result.json by their flat names, such as `fresh_knn`."""

from collections.abc import Mapping
from typing import Any

from ssl_vit import metrics  # noqa: F401, declares the metrics of the package
from ssl_vit.measurements import MetricKey, flat_name, read_flat_name
from ssl_vit.recipe.records.run import Measurement, known

Fields = Mapping[str, Any]
# fields of a measurement; a baseline may have a `difference`, the metric minus the baseline
Measured = dict[str, Any]


def measurements(
    measured: Mapping[str, Fields],
    measured_on: Mapping[str, int] | None = None,
) -> list[Measurement]:
    """Return the records of `{flat name: fields}`."""
    by_key = {read_flat_name(name): {**fields} for name, fields in measured.items()}
    for key, fields in by_key.items():
        if "difference" in fields:
            differences = by_key[key.of_model].setdefault("differences", {})
            differences[key.subject] = fields.pop("difference")
    records = [Measurement(**known(**key._asdict()), **fields) for key, fields in by_key.items()]
    return [record.with_interval(measured_on) for record in records]


def written(
    measured: Mapping[str, Fields],
    measured_on: Mapping[str, int] | None = None,
) -> list[dict[str, Any]]:
    """Return the records of `{flat name: fields}` as result.json has them."""
    return [record.content() for record in measurements(measured, measured_on)]


def key_of(record: Fields) -> MetricKey:
    """Return the key of a record in result.json."""
    return MetricKey(**{name: record[name] for name in MetricKey._fields if name in record})


def by_name(result: Fields) -> dict[str, dict[str, Any]]:
    """Return `{flat name: record}` of the measurements in result.json or that `--json` prints."""
    return {flat_name(key_of(record)): record for record in result["measurements"]}


def altered_records(result: Fields, changes: Mapping[str, Fields]) -> list[dict[str, Any]]:
    """Return the records of a result with other fields, `{flat name: fields}`, or new records."""
    records = by_name(result)
    for name, fields in changes.items():
        named = known(**read_flat_name(name)._asdict())
        records[name] = named | records.get(name, {}) | fields
    return [*records.values()]
