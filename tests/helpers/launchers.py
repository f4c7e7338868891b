"""A study of two arms, and stand-in tools of milliseconds that its launchers start."""

import json
import pickle
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest import mock

from helpers.launching import Process, launch
from helpers.resolving import resolve
from ssl_vit.formatting import PROGRAM
from ssl_vit.lab.study import local
from ssl_vit.lab.study.launch import LaunchOutcome, StudyJob
from ssl_vit.lab.study.read import build
from ssl_vit.lab.study.tasks import Tasks, plan_tasks
from ssl_vit.recipe.given import Given

SMALL = {"optim.steps": 20, "optim.warmup": 2}
TUNED = {"recipe": "finetune", "init": "{pretrain}", **SMALL}
GAP = {
    "title": "a gap",
    "seeds": [0, 1],
    "axes": {
        "arm": {
            "scratch": {"pretrain": {"recipe": "supervised"}},
            "mpp": {"pretrain": {"recipe": "mpp"}},
        }
    },
    "runs": {
        "pretrain": {"tool": "pretrain", "over": ["arm"], "options": SMALL},
        "sweep": {
            "tool": "finetune",
            "over": ["arm"],
            "seeds": [0],
            "try": {"optim.lr": [0.01, 0.03, 0.1]},
            "options": TUNED,
        },
        "probe": {"tool": "evaluate", "over": ["arm"], "options": {"init": "{pretrain}"}},
        "final": {"tool": "finetune", "over": ["arm"], "best": "sweep", "options": TUNED},
    },
}
# Takes five steps and goes on from the last one, as a run from its checkpoint: what it measures
# depends on its options, its seed and the run that it starts from, and is best at lr 0.03 for
# scratch and 0.1 for mpp. It notes when it starts and ends, and does what behave.json says of it.
TOOL = """
import hashlib, json, os, signal, socket, sys, time
from pathlib import Path
tool, *given = sys.argv[1:]
words = dict(word.split("=", 1) for word in given)
if tool == "study":  # becomes the tool of an array's element, as the real one
    tasks = json.loads((Path(words["out"]) / "tasks.json").read_text())
    wanted = words["only"].split("/")[int(words["index"])]
    (task,) = [one for one in tasks if one["name"] == wanted]
    for need in task["needs"]:
        if not (Path(words["out"]) / words["name"] / need / "result.json").exists():
            sys.exit(f"error: {need} is not finished")
    os.execv(sys.executable, [sys.executable, "-S", "-E", __file__, *task["command"]])
out, name = Path(words["out"]), words["name"]
notes, folder = out.parent, out / name
behave = json.loads((notes / "behave.json").read_text()).get(name, "")
folder.mkdir(parents=True, exist_ok=True)
(folder / "lock").write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
(folder / "pid").write_text(str(os.getpid()))

def note(file, text):
    with (notes / file).open("a") as lines:
        lines.write(text + "\\n")

note("starts.txt", name)
init = words.get("init")
if init and not (Path(init) / "result.json").exists():
    sys.exit(f"error: {init} is not finished")
keys = ("CUDA_VISIBLE_DEVICES", "PYTHONPATH", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
        "MASTER_ADDR", "MASTER_PORT")
environment = {key: os.environ.get(key) for key in keys}
(folder / f"words{environment['RANK'] or 0}.json").write_text(json.dumps(words | environment))
note("times.txt", f"{time.time()} 1 {environment['CUDA_VISIBLE_DEVICES']}")
state = folder / "state.json"
step, found = json.loads(state.read_text()) if state.exists() else (0, "")
while step < 5:
    plain = [f"{key}={value}" for key, value in sorted(words.items())
             if key not in ("out", "init", "compute.threads", "compute.workers")]
    before = json.loads((Path(init) / "result.json").read_text())["made"] if init else ""
    found = hashlib.sha256(json.dumps([step, found, before, plain]).encode()).hexdigest()
    step += 1
    (folder / "new").write_text(json.dumps([step, found]))
    (folder / "new").rename(state)
    if behave == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behave in ("sleep", "deaf") and step == 3:
        (folder / "asleep").touch()
        time.sleep(60)
if behave.startswith("meet "):  # others that are started meanwhile
    end = time.monotonic() + 120
    while len((notes / "starts.txt").read_text().split()) < int(behave[5:]) and time.monotonic() < end:
        time.sleep(0.02)
    behave = "brief"
if behave == "brief":
    print("step 1/5\\rstep 5/5  loss 1.500\\n", flush=True)
    time.sleep(0.3)
if behave.startswith("end "):  # with a status each time it is started, the last one for good
    codes, starts = behave.split()[1:], (notes / "starts.txt").read_text().split().count(name)
    if code := int(codes[min(starts, len(codes)) - 1]):
        if code == 137:
            os.kill(os.getpid(), 9)
        sys.exit(code)
if behave == "leave":
    sys.exit(0)
if behave == "fail":
    sys.exit("one line\\nerror: it cannot be")
accuracy = 1 - abs(float(words.get("optim.lr", 0)) - (0.1 if "mpp" in name else 0.03))
(folder / "metrics.jsonl").write_text('{"step": 20, "loss": 1.5}\\n')
measured = [{"metric": "accuracy", "value": accuracy, "split": "validation"}]
note("times.txt", f"{time.time()} -1 {environment['CUDA_VISIBLE_DEVICES']}")
(folder / "lock").write_text("")
(folder / "new").write_text(json.dumps({"measurements": measured, "seconds": 1e6, "made": found}))
(folder / "new").rename(folder / "result.json")
"""
# Runs the study of a file as its tool does
STUDY = """
import pickle, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from helpers.launchers import start
from ssl_vit.errors import report_errors
with report_errors():
    sys.exit(1 if start(Path({tool!r}), *pickle.loads(Path({job!r}).read_bytes())).failed else 0)
"""
# In place of `python -P -m`: the stand-in tool, or a warm process that forks it
DRIVER = """
import runpy, sys
tool = {tool!r}
sys.argv[:2] = [tool] if sys.argv[1] == "ssl_vit" else [*sys.argv[1:2]]
if sys.argv[0] == tool:
    runpy.run_path(tool, run_name="__main__")
else:
    from ssl_vit.lab.study import warm
    warm.WITH_OPENBLAS, warm.module_names = (), list
    warm.run_tool = lambda: runpy.run_path(tool, run_name="__main__", init_globals=dict(__file__=tool))
    warm.main(int(sys.argv[1]))
"""
RECIPE = resolve(["recipe=mpp", "optim.batch=64", *(f"{k}={v}" for k, v in SMALL.items())])


def process_command(tool: Path, *options: str) -> list[str]:
    """In place of formatting.process_command: the stand-in tool, which starts in milliseconds."""
    return [sys.executable, "-S", "-E", str(tool), *options]


def start(tool: Path, job: StudyJob, launcher=local.Local, memory: int = 1 << 50) -> LaunchOutcome:
    """A launcher with the stand-in tool and, here, so much memory, by default enough for all. Next
    to a driver the tool is forked by a warm process that imports nothing."""
    driver = tool.with_name("driver.py")
    with ExitStack() as stack:
        changed = {"usable_memory": lambda: memory}
        if driver.exists():
            program = [sys.executable, str(driver), "ssl_vit"]
            stack.callback(PROGRAM.__setitem__, slice(None), [*PROGRAM])
            PROGRAM[:] = program
        else:
            changed["process_command"] = lambda *options: process_command(tool, *options)
        stack.enter_context(mock.patch.multiple(local, **changed))
        return launcher().start(job)


class Bench:
    """A folder with the stand-in tool, and the study's job, whose runs are in `runs`. `warm`: a warm
    process forks the tool."""

    def __init__(self, folder: Path, content=GAP, launcher=local.Local, warm=False) -> None:
        self.launcher = launcher
        self.notes, self.runs = folder / "runs", folder / "runs" / "gap"
        self.notes.mkdir()
        self.tool = folder / "tool.py"
        self.tool.write_text(TOOL)
        if warm:
            (folder / "driver.py").write_text(DRIVER.format(tool=str(self.tool)))
        tasks = plan_tasks(build(content, "gap"), {}, Given())
        recipes = dict.fromkeys(tasks, RECIPE)
        words = ("name=gap", f"out={self.notes}")
        self.job = StudyJob("gap", self.runs, tasks, recipes, words, parallel=2)
        self.behave()

    def behave(self, how=None) -> None:
        """What tasks do: {task: sleep, deaf, brief, meet N, end STATUS ..., leave or fail}."""
        (self.notes / "behave.json").write_text(json.dumps(how or {}))

    def only(self, *names: str) -> Tasks:
        return {name: self.job.tasks[name] for name in names}

    def run(self, memory: int = 1 << 50, **changes) -> LaunchOutcome:
        """Run the study in this process, with changes of its job."""
        return start(self.tool, replace(self.job, **changes), self.launcher, memory)

    def start(self, first="", **changes) -> Process:
        """Run it in a process of its own, which does something else first."""
        path = self.notes / "job.pickle"
        path.write_bytes(pickle.dumps((replace(self.job, **changes), self.launcher)))
        tests = str(Path(__file__).parents[1])
        text = STUDY.format(tests=tests, tool=str(self.tool), job=str(path))
        return launch("-c", first + text, stderr=True)

    def starts(self) -> list[str]:
        """The tasks that were started, in this order."""
        path = self.notes / "starts.txt"
        return path.read_text().split() if path.exists() else []

    def finished(self) -> set[str]:
        return {path.parent.name for path in self.runs.glob("*/result.json")}

    def words(self, task: str, rank: int = 0) -> dict[str, str]:
        """The options that a task was given, and some variables of its environment."""
        return json.loads((self.runs / task / f"words{rank}.json").read_text())

    def made(self) -> dict[str, str]:
        """{task: what it has measured, of every step that led to it}."""
        found = self.runs.glob("*/result.json")
        return {path.parent.name: json.loads(path.read_text())["made"] for path in found}

    def at_once(self) -> list[list[str]]:
        """Each time that a task started or ended the GPUs of all that ran then."""
        lines = (self.notes / "times.txt").read_text().splitlines()
        running: list[str] = []
        seen = []
        for _, change, gpu in sorted(line.split(" ") for line in lines):
            running.append(gpu) if change == "1" else running.remove(gpu)
            seen.append([*running])
        return seen


def is_alive(task: Path) -> bool:
    """Whether the process that wrote a task's folder runs."""
    try:
        stat = Path(f"/proc/{(task / 'pid').read_text()}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def until(holds, seconds=300.0):
    """Wait until it holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)
