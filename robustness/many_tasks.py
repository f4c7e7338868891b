"""Run a study of many tiny tasks, and measure the memory of its process and of its warm process.

    python robustness/many_tasks.py out=FOLDER tasks=300

The memory (PSS and RSS of /proc/PID/smaps_rollup, in MiB), the open files and the CPU seconds of
both processes are read after the first task and then after every tenth. One JSON object comes out.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent

WARM = "ssl_vit.lab.study.warm"
STUDY = """\
title: Many
seeds: {tasks}
runs:
  pretrain:
    tool: pretrain
    options:
      recipe: mpp
      data: shapes
      data.size: 16
      model: {{patch: 4, width: 32, depth: 1, heads: 2, mlp: 64}}
      optim: {{steps: 2, warmup: 1, batch: 8}}
      eval: {{images: 8, every: 2}}
      compute: {{threads: 1, workers: 0}}
"""


def measure(process: psutil.Process) -> dict[str, float]:
    """Return the memory in MiB, the open files and the CPU seconds of a process."""
    text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    rows = dict(line.split(":", 1) for line in text.splitlines()[1:])
    times = process.cpu_times()
    return {
        "pss": round(int(rows["Pss"].split()[0]) / 1024, 1),
        "rss": round(int(rows["Rss"].split()[0]) / 1024, 1),
        "files": process.num_fds(),
        "cpu": round(times.user + times.system, 1),
    }


def main(words: list[str]) -> None:
    """Run the study, and print what was measured."""
    options = dict(word.split("=", 1) for word in words)
    out = Path(options["out"]).absolute()
    out.mkdir(parents=True)
    (out / "many.yaml").write_text(STUDY.format(tasks=options.get("tasks", "300")))
    command = ["tools/study.py", f"recipe={out / 'many.yaml'}", f"out={out}", "name=many"]
    began, found = time.monotonic(), dict[str, Any]()
    with (out / "many.txt").open("w") as log:
        study = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
    parent, step = psutil.Process(study.pid), 1
    while study.poll() is None:
        time.sleep(0.2)
        finished = (out / "many.txt").read_text().count("\nfinished    pretrain")
        if finished >= step:
            warm = [process for process in parent.children() if WARM in process.cmdline()]
            found[str(finished)] = [measure(process) for process in (parent, *warm)]
            print(finished, found[str(finished)], file=sys.stderr, flush=True)
            step = 10 * (finished // 10 + 1)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    found |= {
        "status": study.returncode,
        "seconds": round(time.monotonic() - began, 1),
        "CPU seconds": round(used.ru_utime + used.ru_stime, 1),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
