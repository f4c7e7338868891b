"""Times: to a tool's --help, to the first training step, CPU time of a step, images a second of the
loader (`only=speed`), and of the tests (`only=suite`). On an idle machine.

    SSL_VIT_DATA=FOLDER python robustness/baseline.py make FOLDER only=speed
    python robustness/baseline.py make FOLDER only=suite workers=2

Step and loader are those of benchmarks/overhead.py and benchmarks/loader.py; the loader's need real
images in SSL_VIT_DATA and are left out without them. Times of processes are medians of 5 starts.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tree import ROOT, environment

STARTS = 5


def measure(folder: Path, options: dict[str, str]) -> dict[str, Any]:
    """{name: seconds, or images/s}; rounds=, images=, pairs= and starts= for shorter ones."""
    starts = int(options.get("starts", STARTS))
    found = started("help", ["--help"], starts)
    found |= started("pretrain --help", ["pretrain", "--help"], starts)
    found |= first_step(starts)
    step = benchmark("overhead.py", f"pairs={options.get('pairs', 15)}")
    found["bare step, CPU s"] = step["engine over bare loop"]["bare step, s"]
    found["engine over bare loop"] = step["engine over bare loop"]["median"]
    if "SSL_VIT_DATA" in os.environ:
        size = (f"rounds={options.get('rounds', 9)}", f"images={options.get('images', 1024)}")
        loader = benchmark("loader.py", *size)
        for case in ("CIFAR-10, 32 px WebP", "500 x 375 px JPEG"):
            for way, rate in loader[case]["images/s"].items():
                if way.startswith("ssl_vit"):
                    found[f"{case}, {way}, images/s"] = rate
    return found | {"load": round(os.getloadavg()[0], 1)}


def started(name: str, words: list[str], starts: int) -> dict[str, float]:
    """Wall and CPU seconds of `python -m ssl_vit WORDS`."""
    walls, cpus = [], []
    for _ in range(starts):
        used = _children()
        begin = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "ssl_vit", *words],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.DEVNULL,
            check=True,
        )
        walls.append(time.monotonic() - begin)
        cpus.append(_children() - used)
    return {f"{name}, s": _median(walls), f"{name}, CPU s": _median(cpus)}


def first_step(starts: int) -> dict[str, float]:
    """Seconds from the command to the row of the first step, and CPU seconds of that whole run."""
    firsts, cpus = [], []
    for _ in range(starts):
        used = _children()
        with tempfile.TemporaryDirectory() as out:
            short = ("optim.steps=1", "optim.warmup=0", "log.every=1", "compute.threads=1")
            command = [sys.executable, "-m", "ssl_vit", "pretrain", "recipe=mpp", *short]
            begin = time.monotonic()
            with subprocess.Popen(
                [*command, f"out={out}", "name=run"],
                cwd=ROOT,
                env=environment(),
                stdout=subprocess.DEVNULL,
            ) as process:
                rows = Path(out) / "run" / "metrics.jsonl"
                while process.poll() is None and not (rows.exists() and rows.stat().st_size):
                    time.sleep(0.005)
                firsts.append(time.monotonic() - begin)
            if process.returncode != 0:
                raise RuntimeError(f"a run of one step: status {process.returncode}")
        cpus.append(_children() - used)
    return {"first step, s": _median(firsts), "run of one step, CPU s": _median(cpus)}


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _median(values: list[float]) -> float:
    return round(statistics.median(values), 3)


def benchmark(name: str, *words: str) -> dict[str, Any]:
    """The JSON that a script of benchmarks/ prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / name), *words],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def measure_suite(folder: Path, options: dict[str, str]) -> dict[str, Any]:
    """Seconds of all tests on `workers=` processes (default 2), and what pytest counted."""
    workers = options.get("workers", "2")
    tests = [word for word in options.get("tests", "").split(",") if word]
    spread = ["-n", workers, "--dist", "loadfile"] if workers != "1" else []
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *spread, *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the tests fail: {done.stdout[-3000:]}")
    return {"suite, s": round(time.monotonic() - begin, 1), "workers": workers}
