"""How the runs of a report were made: commands, machines, versions, dates. No torch here."""

import shlex
from collections.abc import Iterator
from typing import Any

from ..formatting import sharded
from .load import FinishedRun, StudyResults
from .numbers import Numbers
from .pages import Block, Commands, Listing, Text


def section(study: StudyResults, numbers: Numbers) -> Iterator[Block]:
    """Commands, where study.json has them; hardware and versions; when."""
    yield from commands(study.plan["tasks"])
    runs = list(study.finished.values())
    yield Listing(sorted({machine(run) for run in runs}))
    finished = sorted(run.result["finished"] for run in runs)
    hours = sum(run.result["device_hours"] for run in runs)
    yield Text(
        f"{len(finished)} runs, {hours:.3g} device-hours, "
        f"finished between {finished[0]} and {finished[-1]}."
    )


def commands(tasks: list[dict[str, Any]]) -> Iterator[Block]:
    """The command of the first task of each part and arm."""
    found: dict[tuple[str, str], str] = {}
    for task in tasks:
        if task.get("options"):
            options = [f"tools/{task['tool']}.py", *map(str, task["options"])]
            found.setdefault((task["part"], task["arm"]), shlex.join(options))
    if found:
        yield Text(
            "The first run of each part and arm. {NAME} is that run's folder; seed=, and what a "
            "sweep chose, are added:"
        )
        yield Commands(list(found.values()))


def machine(run: FinishedRun) -> str:
    """Where a run was made and with what."""
    environment = run.environment
    host = environment.get("host") or {}
    cpu = host.get("cpu", "unknown processor")
    device = f"{environment.get('processes', 1)} x {environment.get('device', 'unknown device')}"
    device += f" ({cpu})"
    if isinstance(environment.get("sharding"), dict):  # not recorded by older runs
        device += f", {sharded(environment['sharding'])}"
    packages = environment.get("packages") or {}
    versions = ", ".join(f"{package} {version}" for package, version in packages.items())
    whole = environment.get("revision") or "unknown"
    changed = "+" if whole.endswith("+") else ""
    return (
        f"{device}, {environment.get('threads', 'unknown')} threads, "
        f"precision {environment.get('precision', 'unknown')}; "
        f"Python {environment.get('python', 'unknown')}, {versions}; revision {whole[:10]}{changed}"
    )
