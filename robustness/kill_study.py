"""Kill the processes of a study/worth at random moments, repeat its command until it ends, and
compare its results and its report with those of a study that nobody disturbed.

    python robustness/kill_study.py out=FOLDER parents=5 warms=5 tasks=10 interrupts=2 seed=0

The study reads 280 tiny images that this script draws. It is planned without timing any step: the
smallest study that can answer, with four seeds and far more hours than it takes, so that time
decides nothing. The script kills by SIGKILL the study's process `parents` times, the warm process
`warms` times and a running task `tasks` times, and sends SIGINT during tuning and after two seeds.
After each end it looks for processes that the study left, for files that cannot be parsed, and for
hours that were lost. One JSON object comes out, and the exit status is 1 if something is wrong.
"""

import csv
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import psutil
from PIL import Image

from ssl_vit.lab.study import worth
from ssl_vit.lab.study.worth import plan, study_setup
from ssl_vit.lab.study.worth.content import study_file
from ssl_vit.recipe.words import write_all

ROOT = Path(__file__).resolve().parent.parent
MARK = "SSL_VIT_KILL_STUDY"  # the environment of every process of a study has its folder
WARM = "ssl_vit.lab.study.warm"
HOURS, SEEDS, BATCH = 5.0, 4, 16
CLASSES, TRAIN, TEST, SIDE = 4, 40, 30, 32  # images of each class and their side in pixels
SETTLES = 15.0  # seconds for the system to end the children of a killed process
# Lines of report.md about time: the hours, the device hours of each run, when runs finished
CLOCK = re.compile(r"hours used\.$|^Next: |^\| \w+ \| \d+ of \d+ \||^Number of finished runs: ")


def draw_images(folder: Path) -> None:
    """Write a folder of noisy images whose colours and bars depend on their class."""
    rng = np.random.default_rng(0)
    for split, count in (("train", TRAIN), ("test", TEST)):
        for label in range(CLASSES):
            (folder / split / f"class{label}").mkdir(parents=True)
            for number in range(count):
                pixels = rng.normal(60, 110, (SIDE, SIDE, 3))
                pixels[..., label % 3] += 60
                pixels[:, label * 8 : label * 8 + 8] += 60
                image = Image.fromarray(pixels.clip(0, 255).astype("uint8"))
                image.save(folder / split / f"class{label}" / f"{number}.png")


class Study:
    """A study in a folder of its own, whose command can be repeated.

    Args:
        images: The folder of its images.
        folder: The study's folder.
    """

    def __init__(self, images: Path, folder: Path) -> None:
        self.folder = folder
        given = {"data.path": str(images), "model": "vit_n8", "data.size": SIDE, "model.depth": 2}
        asked = study_setup.build_setup(
            given, study_setup.find_images(study_setup.sort_options(given)[0])
        )
        extent = plan.smallest_size(asked)._replace(seeds=SEEDS)
        content = study_file(asked, extent, HOURS)
        for run in content["runs"].values():
            if "optim.steps" in run["options"]:
                run["options"]["optim.batch"] = BATCH
        planned = worth.WorthPlan(
            words=write_all(given),
            hours=HOURS,
            spent=0,
            study=content,
            lines=[],
            parallel=2,
            expected=dict.fromkeys(("pretrain", "supervised", "tune", "final"), 10.0),
            frozen_first=False,
        )
        folder.mkdir(parents=True)
        (folder / worth.FILE).write_text(json.dumps(planned.content()))
        options = [*write_all(given), f"hours={HOURS:g}", f"name={folder.name}"]
        self.words = ["tools/study.py", "recipe=study/worth", *options, f"out={folder.parent}"]
        self.log = folder.with_suffix(".txt")

    def start(self) -> subprocess.Popen[bytes]:
        """Start the study's command, which appends to a log."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *self.words],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env=os.environ | {MARK: str(self.folder), "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def processes(self) -> list[psutil.Process]:
        """Return the processes of this study that live."""
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get(MARK) == str(self.folder)
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def warm_processes(self, study: int) -> list[psutil.Process]:
        """Return the warm process of the study's process, if it lives."""
        return [p for p in self.processes() if is_warm(p) and parent_of(p) == study]

    def forked_tasks(self, study: int) -> list[psutil.Process]:
        """Return the tasks that the warm process has forked."""
        warms = {process.pid for process in self.warm_processes(study)}
        return [process for process in self.processes() if parent_of(process) in warms]

    def used(self) -> float:
        """Return the hours that the study has counted."""
        path = self.folder / "hours.json"
        return json.loads(path.read_text())["used"] if path.exists() else 0.0

    def finished(self) -> set[str]:
        """Return the names of the tasks that have a result."""
        return {path.parent.name for path in self.folder.glob("*/result.json")}

    def measurements(self) -> dict[str, Any]:
        """Return {task: measurements of its result}."""
        paths = self.folder.glob("*/result.json")
        return {path.parent.name: json.loads(path.read_text())["measurements"] for path in paths}

    def report(self) -> list[str]:
        """Return the lines of the report and of its tables that do not speak of time."""
        text = (self.folder / "report.md").read_text()
        lines = [line for line in text.splitlines() if not CLOCK.search(line)]
        for name in ("results.csv", "differences.csv"):
            with (self.folder / name).open(newline="") as file:
                for row in csv.DictReader(file):
                    row.pop("device_hours", None)
                    lines.append(json.dumps(row))
        return lines

    def half_written(self) -> list[str]:
        """Return the files that are empty or cannot be parsed."""
        found = []
        for path in self.folder.rglob("*.json*"):
            if path.name.startswith("."):  # a killed process was writing it
                continue
            try:
                whole = path.suffix == ".json"
                texts = [path.read_text()] if whole else path.read_text().splitlines()
                for text in texts:
                    json.loads(text)
            except ValueError:
                found.append(str(path.relative_to(self.folder)))
            except FileNotFoundError:
                continue
        pages = [*self.folder.glob("*.html"), *self.folder.glob("*.md"), *self.folder.glob("*.csv")]
        return found + [path.name for path in pages if not path.stat().st_size]

    def unfinished_files(self) -> list[str]:
        """Return files next to others that killed processes have not renamed."""
        paths = [path.relative_to(self.folder) for path in self.folder.rglob(".*")]
        return sorted(str(path) for path in paths if path.name != ".nojekyll")

    def groups_done(self, names: list[str]) -> bool:
        """Return whether all tasks of these groups of study.json have finished."""
        path = self.folder / "study.json"
        if not path.exists():
            return False
        groups = json.loads(path.read_text())["order"]
        tasks = {task for group in groups if group["name"] in names for task in group["tasks"]}
        finals = {task for task in tasks if task.startswith("final")} or tasks
        return finals <= self.finished()


def is_warm(process: psutil.Process) -> bool:
    """Return whether a process is a warm process or was forked from it."""
    try:
        return WARM in process.cmdline()
    except psutil.Error:
        return False


def parent_of(process: psutil.Process) -> int:
    """Return the number of a process's parent; 0 if the process has ended."""
    try:
        return process.ppid()
    except psutil.Error:
        return 0


def wait_for(
    condition: Callable[[], Any], process: subprocess.Popen[bytes], seconds: float = 600
) -> Any:
    """Wait until a condition holds or a process has ended; return the condition's value."""
    until = time.monotonic() + seconds
    while not (value := condition()) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    return value


def kill_parent(study: Study, process: subprocess.Popen[bytes]) -> str:
    """Kill the study's process at a random moment, also before it starts tasks."""
    time.sleep(random.uniform(1, 25))
    process.send_signal(signal.SIGKILL)
    return "parent"


def kill_warm(study: Study, process: subprocess.Popen[bytes]) -> str:
    """Kill the warm process, while it imports or while its tasks run."""
    warms = wait_for(lambda: study.warm_processes(process.pid), process)
    time.sleep(random.uniform(0, 12))
    warms = study.warm_processes(process.pid) or warms
    if not warms:
        return ""
    warms[0].kill()
    return "warm"


def kill_task(study: Study, process: subprocess.Popen[bytes]) -> str:
    """Kill a running task."""
    if not wait_for(lambda: study.forked_tasks(process.pid), process):
        return ""
    time.sleep(random.uniform(0, 6))
    tasks = wait_for(lambda: study.forked_tasks(process.pid), process)
    if not tasks:
        return ""
    random.choice(tasks).kill()
    return "task"


def check(study: Study, used: float, problems: list[str], event: str) -> None:
    """Note what is wrong after the study's process has ended."""
    until = time.monotonic() + SETTLES
    while study.processes() and time.monotonic() < until:
        time.sleep(0.1)
    problems += [f"{event}: orphan {p.pid} {p.cmdline()[-3:]}" for p in study.processes()]
    problems += [f"{event}: half-written {name}" for name in study.half_written()]
    if study.used() < used:
        problems.append(f"{event}: the hours went back from {used} to {study.used()}")


def interrupt(study: Study, names: list[str], problems: list[str]) -> dict[str, Any]:
    """Send SIGINT when the tasks of these groups have finished; return what the study left."""
    process, used = study.start(), study.used()
    if names:
        wait_for(lambda: study.groups_done(names), process)
    else:  # during tuning
        wait_for(lambda: any(name.startswith("tune") for name in study.finished()), process)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    status = process.wait(timeout=200)
    seconds = time.monotonic() - began
    event = f"SIGINT after {', '.join(names) or 'the first try'}"
    check(study, used, problems, event)
    if status != 130:
        problems.append(f"{event}: status {status}")
    page = study.folder / "report.md"
    return {
        "event": event,
        "seconds to end": round(seconds, 1),
        "finished": len(study.finished()),
        "page": page.read_text().splitlines()[:8] if page.exists() else None,
        "last lines": study.log.read_text().splitlines()[-3:],
    }


def storm(study: Study, kills: dict[Callable[..., str], int]) -> Iterator[dict[str, Any]]:
    """Kill processes in a random order and repeat the command; yield what happened each time."""
    events = [kill for kill, count in kills.items() for _ in range(count)]
    random.shuffle(events)
    while events:
        process, used, problems = study.start(), study.used(), list[str]()
        done = list[str]()
        while events and process.poll() is None:
            event = events.pop()
            happened = event(study, process)
            if not happened:
                events.append(event)
                break
            done.append(happened)
            if event is kill_parent:
                break
            time.sleep(random.uniform(0, 2))
        if process.poll() is None and not (done and done[-1] == "parent"):
            # the last event was of a warm process or of a task, which the study survives
            process.send_signal(signal.SIGKILL) if random.random() < 0.5 else None
        process.wait(timeout=900)
        check(study, used, problems, "+".join(done) or "nothing")
        yield {
            "killed": done,
            "status": process.returncode,
            "finished": len(study.finished()),
            "used": study.used(),
            "problems": problems,
        }
        if process.returncode == 0 and not done:
            return


def finish(study: Study) -> int:
    """Repeat the study's command until it ends; return how often it was needed."""
    for attempt in range(1, 5):
        if study.start().wait() == 0:
            return attempt
    return 0


def main(words: list[str]) -> int:
    """Run both studies, and print what differs."""
    options = dict(word.split("=", 1) for word in words)
    out = Path(options["out"]).absolute()
    random.seed(int(options.get("seed", 0)))
    images = out / "images"
    if not images.exists():
        draw_images(images)
    whole = Study(images, out / "whole" / "study")
    began = time.monotonic()
    found: dict[str, Any] = {"undisturbed": finish(whole)}
    found["seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps(found), file=sys.stderr, flush=True)
    problems: list[str] = []
    disturbed = Study(images, out / "killed" / "study")
    counts = {
        kill_parent: int(options.get("parents", 5)),
        kill_warm: int(options.get("warms", 5)),
        kill_task: int(options.get("tasks", 10)),
    }
    if int(options.get("interrupts", 2)):
        stopped = Study(images, out / "interrupted" / "study")
        found["interrupts"] = [
            interrupt(stopped, names, problems) for names in ([], ["tuning", "seed 0", "seed 1"])
        ]
        print(json.dumps(found["interrupts"], indent=1), file=sys.stderr, flush=True)
        found["interrupted ends after"] = finish(stopped)
    found["storm"] = []
    for event in storm(disturbed, counts):
        found["storm"].append(event)
        problems += event["problems"]
        print(json.dumps(event), file=sys.stderr, flush=True)
    found["killed ends after"] = finish(disturbed)
    for study in (disturbed, stopped) if int(options.get("interrupts", 2)) else (disturbed,):
        check(study, 0, problems, "at the end")
        problems += [f"left over: {name}" for name in study.unfinished_files()]
        before, after = whole.measurements(), study.measurements()
        differ = [name for name in before | after if before.get(name) != after.get(name)]
        problems += [f"{study.folder.parent.name}: {name} differs" for name in differ]
        lines = {*whole.report()} ^ {*study.report()}
        problems += [f"{study.folder.parent.name}: report: {line}" for line in sorted(lines)]
        found[f"compared {study.folder.parent.name}"] = [len(after), len(study.report())]
    found["problems"] = problems
    print(json.dumps(found, indent=1))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
