"""Version 2 of `tools/report.py STUDY --json` as version 1, for scripts that read the earlier one.

    python tools/report.py runs/gap --json | tail -n 1 | python docs/report_json_v1.py > report.json

In version 1 the values of an arm lie inside its measure, by seed, and a measure inside its point of
the curve; there is no table of results.
"""

import json
import sys
from typing import Any


def converted(report: dict[str, Any]) -> dict[str, Any]:
    """A report of version 2 in the layout of version 1, with the same numbers."""
    numbers = dict(report["numbers"])
    rows = {(row["run"], row["metric"]): row for row in report["results"]}
    summaries = numbers.pop("summaries")
    measures = {}
    for measure in numbers["measures"]:
        results: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        for one in summaries:
            if (one["measure"], one["part"]) == (measure["name"], measure["part"]):
                own = [rows[run, measure["metric"]] for run in one["runs"]]
                results[one["compared"]].append(_result(one, own))
        keys = ("name", "label", "part", "percent", "higher", "question_keys")
        whole = {key: measure[key] for key in keys}
        whole |= {"results": results[True], "not_compared": results[False]}
        whole["images"] = measure["images"]
        measures[measure["name"], measure["part"]] = whole
    numbers["measures"] = list(measures.values())
    if numbers["scaling"]:
        named = {name: whole for (name, _), whole in reversed(measures.items())}  # the first of one
        points = [
            point | {"measure": named[point["measure"]]} for point in numbers["scaling"]["points"]
        ]
        numbers["scaling"] = numbers["scaling"] | {"points": points}
    return {"answer": report["answer"], "numbers": numbers}


def _result(summary: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One arm on one measure, with the rows of its runs."""
    spent = {str(row["seed"]): row["exaflop"] for row in rows}
    return {
        "arm": summary["arm"],
        "seeds": {str(row["seed"]): row["value"] for row in rows},
        "value": summary["value"],
        "resampled": summary["resampled"],
        "exaflop": {} if None in spent.values() else spent,
        "probability": summary["probability"],
        "gain": summary["gain"],
    }


if __name__ == "__main__":
    print(json.dumps(converted(json.load(sys.stdin))))
