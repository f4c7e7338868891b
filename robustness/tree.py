"""This checkout: where it is, which commit, which files were moved; and a file of what was measured
of it."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

# As the tests: one thread, no network
CALM = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}


def environment(**more: str) -> dict[str, str]:
    """This process's, calm, with ssl_vit from this checkout in any working directory."""
    return os.environ | CALM | {"PYTHONPATH": str(ROOT)} | more


def git(*words: str) -> str:
    command = ["git", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def commit() -> str:
    """The commit; with a + where files differ from it."""
    changed = git("status", "--porcelain", "--untracked-files=no").strip()
    return git("rev-parse", "--short=12", "HEAD").strip() + ("+" if changed else "")


def renames(old: str, new: str) -> dict[str, str]:
    """{path at commit `old`: path at commit `new`} of files that were moved in between, commit by
    commit as `git log --follow` reads them."""
    log = git("log", "--reverse", "--format=", "--name-status", "-M", "--diff-filter=R",
              f"{old.rstrip('+')}..{new.rstrip('+')}")  # fmt: skip
    found: dict[str, str] = {}
    for line in log.splitlines():
        if not line:
            continue
        _, before, after = line.split("\t")
        first = next((one for one, now in found.items() if now == before), before)
        found[first] = after
    return found


def write(path: Path, value: Any) -> None:
    """As JSON, with the commit that it was measured at."""
    path.write_text(json.dumps({"made": {"commit": commit()}, "value": value}, indent=1) + "\n")
