"""This checkout: where it is, which commit, which files were moved; and its tools as commands."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

# As the tests: one thread, no network
CALM = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}


def environment(**more: str) -> dict[str, str]:
    """This process's, calm, with ssl_vit from this checkout in any working directory."""
    return os.environ | CALM | {"PYTHONPATH": str(ROOT)} | more


def tool(*words: str, status: int = 0, root: Path = ROOT) -> str:
    """Standard output of a tool, `python -m ssl_vit WORDS`.

    Raises:
        RuntimeError: it ended with another status.
    """
    command = [sys.executable, "-m", "ssl_vit", *words]
    done = subprocess.run(command, cwd=root, env=environment(), capture_output=True, text=True)
    if done.returncode != status:
        raise RuntimeError(f"{' '.join(words)}: status {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def git(*words: str, root: Path = ROOT) -> str:
    return subprocess.run(
        ["git", *words], cwd=root, capture_output=True, text=True, check=True
    ).stdout


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


def cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"
