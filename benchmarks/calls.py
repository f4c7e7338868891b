"""Count the functions of the package that a training run calls, and the files that they are in.

    python benchmarks/calls.py recipe=mpp optim.steps=3 optim.warmup=1 other=OTHER

All arguments except `other` are arguments of `pretrain`, which writes into a temporary folder. With
OTHER, another checkout, the same run is also counted with the package of that checkout. The result
is a JSON object with the counts of each checkout: all functions, their files, and the calls of the
functions in COUNTED.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Calls of these functions are counted: (file in the package, qualified name)
COUNTED = {
    "parses of the command line": ("recipe/words.py", "parse"),
    "builds of the network": ("models/encoder.py", "build_encoder"),
    "lists of all values of the recipe": ("recipe/schema.py", "Recipe.values"),
}
# Runs in a process of its own, because a checkout's package can be imported once
PROFILED_RUN = """
import collections, json, sys
from pathlib import Path

import ssl_vit
from ssl_vit.jobs import cli

package = Path(ssl_vit.__file__).parent
calls = collections.Counter()


def count(frame, event, argument):
    code = frame.f_code
    file = Path(code.co_filename)
    if event == "call" and file.is_relative_to(package):
        calls[file.relative_to(package).as_posix(), code.co_qualname] += 1


sys.setprofile(count)
try:
    cli.pretrain(sys.argv[1:])
finally:
    sys.setprofile(None)
    print("calls", json.dumps([[file, name, number] for (file, name), number in calls.items()]))
"""


def count_calls(checkout: Path, arguments: list[str]) -> dict[str, int]:
    """Return the counts of a run of `pretrain` with the package of a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            [sys.executable, "-c", PROFILED_RUN, *arguments, f"out={folder}"],
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": str(checkout)},
            capture_output=True,
            text=True,
            check=False,
        )
    lines = [line for line in process.stdout.splitlines() if line.startswith("calls [")]
    if not lines:
        sys.exit(f"{checkout}: the run failed: {process.stderr[-1000:]}")
    calls = json.loads(lines[-1].removeprefix("calls "))
    # comprehensions and lambdas belong to the function around them
    functions = {(file, name): number for file, name, number in calls if "<" not in name}
    return {
        "functions": len(functions),
        "files": len({file for file, _ in functions}),
        **{text: functions.get(function, 0) for text, function in COUNTED.items()},
    }


def main(words: list[str]) -> None:
    others = [word.removeprefix("other=") for word in words if word.startswith("other=")]
    arguments = [word for word in words if not word.startswith("other=")]
    counts = {
        str(checkout): count_calls(Path(checkout).resolve(), arguments)
        for checkout in (ROOT, *others)
    }
    print(json.dumps(counts, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
