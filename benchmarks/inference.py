"""Images per second and the largest batch of encoders at inference (paper, D.5 and Figure 12).

    python benchmarks/inference.py models=vit_ti16,vit_s16,bit_r50x1 sizes=32,224 out=FILE.json
    python benchmarks/inference.py models=vit_b16 precisions=bfloat16 device=cuda batch=256 out=FILE.json

models: rows of recipes/tables/models.yaml, with fresh weights: ViTs, hybrids, ResNets. sizes: of images,
in pixels. precisions: float32, bfloat16 (autocast). batch: images of a forward pass that is timed
(CPU 8, GPU 64), fewer where fewer fit. rounds: how often each case is timed, in turn with all
others (5), for at least seconds= each (0.5); the figure is their median. On a CPU it is per second
of CPU time, thus of one core, whatever else runs there. threads: of a CPU (1). device: cuda where
there is one, else cpu. largest=false leaves out the largest batch.

The largest batch is found by doubling and bisection: on a GPU until its memory is exhausted; on a
CPU until the process holds memory= GiB (a quarter of what is free), all models of the command
included; smaller batches predict which is tried next, and one that would hold more is not run. No
batch is above most= (CPU 256, GPU 65,536): where that ends the search, the result is a lower bound,
`ends: most`.
"""

import contextlib
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from ssl_vit import costs
from ssl_vit.config.resolve import resolve
from ssl_vit.config.schema import Recipe
from ssl_vit.config.values import parse
from ssl_vit.errors import UserError, guard_streams, report_errors, suggest
from ssl_vit.models.encoder import build_backbone
from ssl_vit.runs.environment import environment

PRECISIONS = ("float32", "bfloat16")
DEFAULTS = {
    "cpu": {"batch": "8", "most": "256", "threads": "1"},
    "cuda": {"batch": "64", "most": "65536", "threads": str(torch.get_num_threads())},
}
OPTIONS = {
    "models": "vit_ti16,vit_s16",
    "sizes": "224",
    "precisions": "float32,bfloat16",
    "rounds": "5",
    "seconds": "0.5",
    "memory": "",
    "largest": "true",
    "device": "",
    "out": "",
}
GIB = 2**30
MEMORY_SHARE = 0.25  # of the free memory of a CPU
STATUS = Path("/proc/self/status")


@dataclass
class Case:
    """A model at one image size and precision; `rates` are images per second, by round."""

    model: str
    size: int
    precision: str
    run: Callable[[int], None]  # one forward pass of so many images
    about: dict[str, Any]
    batch: int = 0
    rates: list[float] = field(default_factory=list)
    largest: dict[str, Any] | None = None


def main(words: list[str]) -> int:
    given = parse(words)
    device = given.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in DEFAULTS:
        raise UserError(f"device={device}: expected cpu or cuda")
    options = OPTIONS | DEFAULTS[device]
    for key, value in given.items():
        if key not in options:
            raise UserError(f"{key}={value}: unknown; {suggest(key, options)}")
    options |= given
    out = options["out"]
    if not out or not Path(out).absolute().parent.is_dir():
        raise UserError(f"out={out}: expected a file in a folder that is there")
    torch.set_num_threads(_number(options, "threads"))
    begun = environment({"device": name_of(device)})  # before anything could be changed
    load = os.getloadavg()
    limit = round(_memory(options) * GIB) if device == "cpu" else None
    cases, skipped = build(options, device)
    for case in cases:
        case.batch = _number(options, "batch")
        if options["largest"] == "true":
            case.largest = largest_of(case, device, limit, _number(options, "most"))
            case.batch = max(1, min(case.batch, case.largest["images"]))
    measure(cases, _number(options, "rounds"), float(options["seconds"]), device)
    report = begun | {
        "threads": torch.get_num_threads(),
        "seconds_of": "the clock" if device == "cuda" else "CPU time of all threads",
        "load": [round(one, 2) for one in (load[0], os.getloadavg()[0])],
        "rounds": _number(options, "rounds"),
        "memory_limit_bytes": limit,
        "command": f"python benchmarks/inference.py {' '.join(words)}",
        "results": [_record(case) for case in cases],
        "skipped": skipped,
    }
    Path(out).write_text(json.dumps(report, indent=1) + "\n")
    print(table(report))
    for name, reason in skipped.items():
        print(f"skipped: {name}: {reason}")
    return 0


def _number(options: dict[str, str], key: str) -> int:
    text = options[key]
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and int(text) > 0):
        raise UserError(f"{key}={text}: expected a whole number of at least 1")
    return int(text)


def _memory(options: dict[str, str]) -> float:
    """GiB that the process may hold on a CPU."""
    if options["memory"]:
        try:
            return float(options["memory"])
        except ValueError:
            raise UserError(f"memory={options['memory']}: expected GiB") from None
    return MEMORY_SHARE * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB


def build(options: dict[str, str], device: str) -> tuple[list[Case], dict[str, str]]:
    """All cases, and why a model cannot have images of a size."""
    cases: list[Case] = []
    skipped: dict[str, str] = {}
    precisions = options["precisions"].split(",")
    for precision in precisions:
        if precision not in PRECISIONS:
            raise UserError(f"precisions={precision}: unknown; {suggest(precision, PRECISIONS)}")
    for model in options["models"].split(","):
        _recipe(model)  # an unknown model ends the command
        for size in options["sizes"].split(","):
            try:
                made = _encoder(model, size, device)
            except UserError as error:
                skipped[f"{model} at {size} px"] = str(error)
                continue
            net, about = made
            cases += [
                Case(model, int(size), one, _forward(net, int(size), one, device), about)
                for one in precisions
            ]
    if not cases:
        raise UserError(f"nothing to measure: {next(iter(skipped.values()))}")
    return cases, skipped


def _recipe(model: str, size: str = "224") -> Recipe:
    return resolve(["recipe=finetune", "init=scratch", f"model={model}", f"data.size={size}"])


def _encoder(model: str, size: str, device: str) -> tuple[Any, dict[str, Any]]:
    recipe = _recipe(model, size)
    net = build_backbone(recipe.model, recipe.data).to(device).eval()
    about = {
        "parameters": sum(one.numel() for one in net.parameters()),
        "multiply_adds": costs.encoder_multiply_adds(recipe),
    }
    return net, about


def _forward(net: Any, size: int, precision: str, device: str) -> Callable[[int], None]:
    pool = "token" if getattr(net, "has_class_token", False) else "avg"

    def run(batch: int) -> None:
        images_B3HW: Tensor = torch.randint(
            0, 256, (batch, 3, size, size), dtype=torch.uint8, device=device
        )
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            net.feature(images_B3HW, pool)
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def measure(cases: list[Case], rounds: int, seconds: float, device: str) -> None:
    """Time all cases in turn, so that what else the machine does reaches each alike; on a CPU by
    the process's own time, which leaves out most of that."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    with torch.inference_mode():
        for case in cases:
            case.run(case.batch)  # warm-up
        for _ in range(rounds):
            for case in cases:
                start = clock()
                images = 0
                while clock() - start < seconds or not images:
                    case.run(case.batch)
                    images += case.batch
                case.rates.append(images / (clock() - start))


def largest(fits: Callable[[int], bool], most: int, guess: Callable[[], int] = lambda: 0) -> int:
    """The largest batch of 1 to `most` that fits, 0 if none does, by doubling and then by what
    `guess` expects, or bisection where that is outside of what is still possible."""
    low = 0
    high = 1
    while high <= most and fits(high):
        low = high
        high *= 2
    high = min(high, most + 1)
    while high - low > 1:
        middle = guess()
        if not low < middle < high:
            middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def largest_of(case: Case, device: str, limit: int | None, most: int) -> dict[str, Any]:
    """The largest batch of a case, and what ended the search: memory or most."""
    with torch.inference_mode():
        if limit is None:
            found = largest(lambda batch: _fits_gpu(case, batch), most)
        else:
            found = CpuMemory(case.run, limit).largest(most)
    return {"images": found, "ends": "most" if found == most else "memory"}


def _fits_gpu(case: Case, batch: int) -> bool:
    try:
        case.run(batch)
    except torch.cuda.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
    return True


class CpuMemory:
    """Whether the process stays below `limit` bytes with a batch. One that would not, by the growth
    from one batch to another so far, is not run."""

    def __init__(
        self,
        run: Callable[[int], None],
        limit: int,
        peak: Callable[[Callable[[], None]], int] | None = None,
    ) -> None:
        self.run = run
        self.limit = limit
        self.peak = peak or peak_bytes
        self.peaks: dict[int, int] = {}

    def largest(self, most: int) -> int:
        """The largest batch that fits. The next one was run too, or would not fit by the line
        through the two largest that were."""
        found = largest(self.fits, most, self.expected)
        while 0 < found < most and found + 1 not in self.peaks and self.fits(found + 1):
            found += 1
        return found

    def fits(self, batch: int) -> bool:
        if self.predicted(batch) > self.limit:
            return False
        self.peaks[batch] = self.peak(lambda: self.run(batch))
        return self.peaks[batch] <= self.limit

    def predicted(self, batch: int) -> float:
        """On a line through the two largest batches below; nothing is known of the first two."""
        known = sorted(one for one in self.peaks if one < batch)[-2:]
        if len(known) < 2:
            return 0.0
        large, slope = self._line(known)
        return large + slope * (batch - known[1])

    def expected(self) -> int:
        """The largest batch on the line through the two largest that fit; 0 without a slope."""
        known = sorted(one for one, peak in self.peaks.items() if peak <= self.limit)[-2:]
        if len(known) < 2:
            return 0
        large, slope = self._line(known)
        return known[1] + int((self.limit - large) / slope) if slope else 0

    def _line(self, known: list[int]) -> tuple[int, float]:
        """Bytes at the second of two batches, and bytes an image from the first to it."""
        small, large = (self.peaks[one] for one in known)
        return large, max(0.0, (large - small) / (known[1] - known[0]))


def peak_bytes(run: Callable[[], None]) -> int:
    """The most memory that the process held at once while `run` ran (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    run()
    found = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text())
    if found is None:
        raise UserError(f"largest=true: {STATUS} has no VmHWM here; say largest=false")
    return 1024 * int(found[1])


def name_of(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def _record(case: Case) -> dict[str, Any]:
    return {
        "model": case.model,
        "size": case.size,
        "precision": case.precision,
        **case.about,
        "batch": case.batch,
        "images_per_second": statistics.median(case.rates),
        "least": min(case.rates),
        "most": max(case.rates),
        "n": len(case.rates),
        "largest_batch": case.largest,
    }


def table(report: dict[str, Any]) -> str:
    """The results in Markdown."""
    return "\n".join(_rows(report["results"]))


def _rows(results: list[dict[str, Any]]) -> Iterator[str]:
    yield "| model | px | precision | images/s, median | least to most | n | largest batch |"
    yield "|---|---|---|---|---|---|---|"
    for one in results:
        found = one["largest_batch"]
        batch = "-" if found is None else f"{found['images']:,}"
        if found is not None and found["ends"] == "most":
            batch = f"at least {batch}"
        rates = [f"{one[key]:.3g}" for key in ("images_per_second", "least", "most")]
        cells = [one["model"], str(one["size"]), one["precision"], rates[0]]
        cells += [f"{rates[1]} to {rates[2]}", str(one["n"]), batch]
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    guard_streams(lasting=True)
    with report_errors():
        status = main(sys.argv[1:])
    sys.exit(status)
