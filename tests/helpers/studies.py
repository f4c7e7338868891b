"""A study, and stand-in tools that it starts."""

import copy
import json
import subprocess
import sys

from omegaconf import OmegaConf

from helpers.options import ROOT

SMALL = {"optim.steps": 20, "optim.warmup": 2}
GAP = {
    "title": "a gap",
    "seeds": [0, 1],
    "arms": {"scratch": "labels alone", "mpp": "patches"},
    "parts": {
        "probe": {"tool": "evaluate", "options": {"recipe": "evaluate", "init": "{pretrain}"}},
        "final": {
            "tool": "finetune",
            "best": {"of": "sweep", "by": "accuracy"},
            "options": {"recipe": "finetune", "init": "{pretrain}", **SMALL},
        },
        "sweep": {
            "tool": "finetune",
            "seeds": [0],
            "grid": {"optim.lr": [0.01, 0.03, 0.1]},
            "options": {"recipe": "finetune", "init": "{pretrain}", **SMALL},
        },
        "pretrain": {
            "tool": "pretrain",
            "options": SMALL,
            "by_arm": {"scratch": {"recipe": "supervised"}, "mpp": {"recipe": "mpp"}},
        },
    },
    "report": {
        "final": "final",
        "probes": ["probe"],
        "baseline": "scratch",
        "candidate": "mpp",
        "paper": {"mpp": 79.9},
    },
}
# Pre-training and its probe, over a varied key
PROBE = {"tool": "evaluate", "options": {"recipe": "evaluate", "init": "{pretrain}"}}
PRETRAIN = {
    "tool": "pretrain",
    "options": {"recipe": "mpp", "optim.steps": 200, "optim.warmup": 20},
}
RATE = {
    "title": "rates",
    "seeds": [0, 1],
    "vary": {"corruption.rate": [0.15, 0.5]},
    "parts": {"pretrain": PRETRAIN, "probe": PROBE},
    "report": {"probes": ["probe"]},
}
# Two arms, without seeds of their own
TWO_ARMS = {
    "title": "made up",
    "arms": {"a": "one", "b": "other"},
    "parts": {
        "pre": {
            "tool": "pretrain",
            "options": {"recipe": "mpp", "optim.steps": 20, "optim.warmup": 2},
            "by_arm": {"a": {"optim.lr": 0.1}, "b": {"optim.lr": 0.2}},
        },
        "fin": {"tool": "finetune", "options": {"recipe": "finetune", "init": "{pre}"}},
    },
    "report": {"final": "fin", "baseline": "a", "candidate": "b"},
}
# Shares of the labels
LABELS = {
    "title": "x",
    "seeds": [0, 1, 2],
    "arms": {"scratch": "a", "mpp": "b"},
    "labels": [{"share": 0.1, "steps": 20}, {"share": 1, "steps": 40}, {"share": 0.01, "steps": 9}],
    "parts": {
        "pretrain": {"tool": "pretrain", "options": {"recipe": "mpp"}, "by_arm": {"mpp": {}}},
        "scratch": {
            "tool": "pretrain",
            "options": {"recipe": "supervised", "data.share": "{share}"},
            "by_arm": {"scratch": {}},
        },
        "sweep": {
            "extends": "final",
            "seeds": [0],
            "grid": {"optim.lr": [0.1, 0.2]},
            "options": {"eval.test": False},
            "by_arm": {"scratch": {"init": "{scratch}"}, "mpp": {"init": "{pretrain}"}},
        },
        "final": {
            "tool": "finetune",
            "best": {"of": "sweep", "by": "accuracy"},
            "options": {"recipe": "finetune", "data.share": "{share}", "optim.steps": "{steps}"},
            "by_arm": {"scratch": {"init": "{scratch}"}, "mpp": {"init": "{pretrain}"}},
        },
        "direct": {
            "extends": "final",
            "best": {"of": "sweep", "by": "accuracy"},
            "by_arm": {"scratch": {"init": "scratch"}},
        },
    },
    "report": {"final": "final", "extra": ["direct"], "baseline": "scratch", "candidate": "mpp"},
}
# Shares of the images of pre-training
IMAGES_CURVE = {
    "title": "t",
    "arms": {"a": "a", "b": "b"},
    "match": "exaflop",
    "images": [{"share": 0.1}, {"share": 1}],
    "parts": {
        "pretrain": {"tool": "pretrain", "options": {"recipe": "mpp", "data.share": "{share}"}},
        "final": {"tool": "finetune", "options": {"recipe": "finetune", "init": "{pretrain}"}},
    },
    "report": {"final": "final", "baseline": "a", "candidate": "b"},
}


def changed(study, *changes):
    """A study's mapping with (path, value) changes; a value of ... removes."""
    study = copy.deepcopy(study)
    for path, value in changes:
        *above, last = path.split("/")
        node = study
        for key in above:
            node = node.setdefault(key, {})
        if value is ...:
            del node[last]
        else:
            node[last] = value
    return study


# A tool that writes its name into starts.txt and does what behave.json says of it; its accuracy is
# best at lr 0.03 for scratch and 0.1 for mpp.
TOOL = """
import fcntl, json, os, sys, time
from pathlib import Path
words = dict(word.split("=", 1) for word in sys.argv[1:])
out, name = Path(words["out"]), words["name"]
behave = json.loads((out.parent / "behave.json").read_text()).get(name, "")
folder = out / name
folder.mkdir(parents=True, exist_ok=True)
lock = (folder / "lock").open("a+")
try:
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit("error: held")
(out.parent / "starts.txt").open("a").write(name + "\\n")
init = words.get("init", "scratch")
if init != "scratch" and not (Path(init) / "result.json").exists():
    sys.exit(f"error: {init} is not finished")
(folder / "words.json").write_text(json.dumps(words))
(out.parent / "times.txt").open("a").write(f"{time.time()} 1\\n")
if behave == "sleep":
    (folder / "pid").write_text(str(os.getpid()))
    time.sleep(60)
if behave == "brief":
    time.sleep(0.4)
if behave.startswith("end "):  # with a status each time it is started, the last one for good
    codes, starts = behave.split()[1:], (out.parent / "starts.txt").read_text().split().count(name)
    if code := int(codes[min(starts, len(codes)) - 1]):
        os.kill(os.getpid(), 9) if code == 137 else sys.exit(code)
if behave == "leave":
    sys.exit(0)
if behave == "fail":
    sys.exit("one line\\nerror: it cannot be")
if behave == "die" or behave == "die once" and not (folder / "died").exists():
    (folder / "died").touch()
    os.kill(os.getpid(), 9)
lr = float(words.get("optim.lr", 0))
accuracy = 1 - abs(lr - (0.1 if "mpp" in name else 0.03))
(folder / "metrics.jsonl").write_text('{"step": 20, "loss": 1.5}\\n')
(out.parent / "times.txt").open("a").write(f"{time.time()} -1\\n")
(folder / "result.json").write_text(json.dumps({"metrics": {"accuracy": {"value": accuracy, "n": 9, "split": "validation"}}}))
"""
# `tool.py NAME ...` in place of `python -m ssl_vit NAME ...`
DISPATCH = """
import runpy, sys
from pathlib import Path
name = sys.argv.pop(1)
runpy.run_path(str(Path(__file__).parent / f"{name}.py"), run_name="__main__")
"""
DRIVER = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from ssl_vit import formatting
from ssl_vit.errors import report_errors
formatting.PROGRAM = [sys.executable, str(Path(__file__).parent / "tool.py")]
from ssl_vit.lab import study_tool
from ssl_vit.lab.study_tool import main
study_tool.check_finished = lambda task, plan, folder: []  # stand-in tools leave no recipe
if __name__ == "__main__":
    with report_errors():
        sys.exit(main(sys.argv[1:]))
"""


class Bench:
    """A folder with stand-in tools, a study's file and its runs."""

    def __init__(self, folder, study):
        self.folder, self.tools, self.runs = folder, folder / "tools", folder / "runs" / "gap"
        self.tools.mkdir()
        for tool in ("pretrain", "finetune", "evaluate"):
            (self.tools / f"{tool}.py").write_text(TOOL)
        (self.tools / "study.py").write_text(DRIVER)
        (self.tools / "tool.py").write_text(DISPATCH)
        self.program = [sys.executable, str(self.tools / "tool.py")]
        (folder / "runs").mkdir()
        OmegaConf.save(OmegaConf.create(study), folder / "gap.yaml")
        self.words = [f"recipe={folder}/gap.yaml", f"out={folder}/runs"]
        self.behave()

    def behave(self, **how):
        (self.folder / "runs" / "behave.json").write_text(
            json.dumps({k.replace("_", "-"): v for k, v in how.items()})
        )

    def started(self):
        path = self.folder / "runs" / "starts.txt"
        return path.read_text().split() if path.exists() else []

    def start(self, *words):
        """The study in a process of its own."""
        command = [sys.executable, str(self.tools / "study.py"), *self.words, *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def task_options(self, task):
        """The words that a task's tool was given."""
        return json.loads((self.runs / task / "words.json").read_text())

    def finished(self):
        return sorted(path.parent.name for path in self.runs.glob("*/result.json"))
