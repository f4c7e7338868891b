"""Wrong command lines for every tool: each must be answered in one line, or be right.

    python robustness/fuzz.py count=3000 processes=60 seed=0

Every case is a valid command line of one of tools/ with up to three mistakes in it: typos, values
of other types, nested lists, NaN, infinities, huge and negative numbers, blanks, other alphabets,
bytes that are no UTF-8, names too long. It runs in a forked child in which the work that accepted
words would begin is taken out; `processes` of them run again as real processes, whose tools must
answer the same. What was accepted is held against a list of what nobody can mean. One JSON object
comes out; tests/robustness/test_fuzz.py does a few hundred.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from forked import ACCEPTED, ANSWERED, HANG, TRACEBACK, Accepted, outcome
from fuzz_cases import cases, nonsense

from ssl_vit.config.parsing import flatten
from ssl_vit.data import make_shards
from ssl_vit.errors import report_errors
from ssl_vit.hub import pull, push
from ssl_vit.jobs import cli
from ssl_vit.lab import plan_tool, study_tool
from ssl_vit.lab import report_tool as report
from ssl_vit.models import interop

TOOLS = Path(__file__).resolve().parent.parent / "tools"


def prepared(folder: Path) -> None:
    """What the words name: images (`own`), a run (`run`) and a study (`study`); small, and none of
    them trained."""
    import numpy as np
    from PIL import Image

    for split in ("train", "validation"):
        for label in ("cat", "dog"):
            (folder / "own" / split / label).mkdir(parents=True)
            for number in range(3):
                pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / "own" / split / label / f"{number}.png")
    (folder / "run" / "export").mkdir(parents=True)
    (folder / "run" / "recipe.yaml").write_text("objective: mpp\n")
    (folder / "run" / "export" / "config.json").write_text(
        '{"architecture": "vit_base_patch16_224", "num_classes": 0}'
    )
    (folder / "run" / "export" / "model.safetensors").write_bytes(b"")
    (folder / "study").mkdir()
    (folder / "study" / "study.json").write_text("{}")


def _accept(*_: Any, **__: Any) -> Any:
    raise Accepted


def _accept_run(run: Any, *_: Any) -> Any:
    raise Accepted(flatten(dataclasses.asdict(run.recipe)))


def _plain(main: Callable[[list[str]], Any]) -> Callable[[list[str]], Any]:
    def call(words: list[str]) -> Any:
        with report_errors():
            return main(words)

    return call


MAINS: dict[str, Callable[[list[str]], Any]] = {
    "pretrain": cli.pretrain,
    "finetune": cli.finetune,
    "evaluate": cli.evaluate,
    "plan": _plain(plan_tool.main),
    "study": _plain(study_tool.main),
    "report": _plain(report.main),
    "export": _plain(interop.main),
    "push": _plain(push.main),
    "pull": _plain(pull.main),
    "shards": _plain(make_shards.main),
}


def disarm() -> None:
    """Take out what accepted words would begin."""
    cli._train = cli._probe = _accept_run  # type: ignore[assignment]
    study_tool.run_all = study_tool.submit_all = _accept  # type: ignore[assignment]
    study_tool.show_scripts = _accept  # type: ignore[assignment]
    study_tool.os.execve = _accept  # type: ignore[assignment]
    make_shards._make = _accept  # type: ignore[assignment]
    push.push = _accept  # type: ignore[assignment]
    from ssl_vit.lab.planning import forecast

    forecast.measure = _accept  # type: ignore[assignment]


def fuzz(seed: int, count: int, folder: Path) -> dict[str, Any]:
    """Run the cases in forked children; counts, and what failed."""
    disarm()
    summary: dict[str, Any] = {
        "command lines": 0,
        ANSWERED: 0,
        ACCEPTED: 0,
        TRACEBACK: 0,
        HANG: 0,
        "nonsense accepted": 0,
    }
    found: list[dict[str, Any]] = []
    wanted: set[str] = set()
    cwd = folder / "one" / "two"
    cwd.mkdir(parents=True)
    prepared(cwd)
    for tool, words in cases(seed, count):
        came = outcome(lambda tool=tool, words=words: MAINS[tool](words), cwd)  # type: ignore[misc]
        summary["command lines"] += 1
        wanted |= {os.path.normpath(cwd / word[4:]) for word in words if word.startswith("out=")}
        summary[came.kind] += 1
        why = (
            nonsense(came.value, words)
            if came.kind == ACCEPTED and isinstance(came.value, dict)
            else None
        )
        summary["nonsense accepted"] += why is not None
        if came.kind in (TRACEBACK, HANG) or why:
            found.append(
                {
                    "tool": tool,
                    "words": [word[:200] for word in words],
                    "what": why or came.err[-1500:] or came.kind,
                }
            )
    if outside := sorted(
        str(path)
        for path in [*folder.glob("*"), *folder.glob("one/*")]
        if path.name not in ("one", "two") and str(path) not in wanted
    ):
        found.append({"what": f"written outside: {outside}"})
    return summary | {"found": found}


def processes(seed: int, count: int, folder: Path) -> dict[str, Any]:
    """Some of the cases as a user would start them, none of which is accepted: tools themselves
    must answer in one line."""
    disarm()
    summary = {"processes": 0, ANSWERED: 0, "otherwise": []}
    cwd = folder / "three" / "four"
    cwd.mkdir(parents=True)
    prepared(cwd)
    for tool, words in cases(seed, 100 * count):
        if summary["processes"] == count:
            break
        if outcome(lambda tool=tool, words=words: MAINS[tool](words), cwd).kind != ANSWERED or any(
            len(w) > 80_000 for w in words
        ):  # type: ignore[misc]
            continue
        line = [sys.executable, os.fsencode(TOOLS / f"{tool}.py"), *map(os.fsencode, words)]
        done = subprocess.run(line, cwd=cwd, capture_output=True, timeout=300)
        summary["processes"] += 1
        if (
            done.returncode > 0
            and done.stderr.count(b"\n") == 1
            and done.stderr.startswith(b"error: ")
        ):
            summary[ANSWERED] += 1
        else:
            summary["otherwise"].append(
                [tool, words, done.returncode, done.stderr.decode(errors="replace")[-500:]]
            )
    return summary


def main() -> None:
    words = dict(word.split("=", 1) for word in sys.argv[1:])
    seed, count = int(words.get("seed", 0)), int(words.get("count", 3000))
    with tempfile.TemporaryDirectory() as folder:
        summary = {"seed": seed} | fuzz(seed, count, Path(folder))
        if wanted := int(words.get("processes", 0)):
            summary["as processes"] = processes(seed + 1, wanted, Path(folder))
    print(json.dumps(summary, indent=2, default=str))


if __name__ == "__main__":
    main()
