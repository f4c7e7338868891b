"""CPU time of a command that ends at once, such as --help, in this checkout over that in another:
the median ratio of interleaved pairs with its 95% interval, as JSON.

    python benchmarks/start.py OTHER_CHECKOUT pretrain recipe=mpp --help
    PAIRS=41 python benchmarks/start.py OTHER_CHECKOUT study recipe=study/labels plan
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from step import spread

ROOT = Path(__file__).resolve().parent.parent


def seconds(checkout: Path, words: list[str]) -> float:
    """CPU seconds of `python -m ssl_vit WORDS` with the package of a checkout."""
    before = _children()
    subprocess.run(
        [sys.executable, "-m", "ssl_vit", *words],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return _children() - before


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(other: str, *words: str) -> None:
    pairs = int(os.environ.get("PAIRS", "21"))
    places = {"this": ROOT, "other": Path(other).resolve()}
    times: dict[str, list[float]] = {name: [] for name in places}
    for _ in range(pairs + 1):
        for name, checkout in places.items():
            times[name].append(seconds(checkout, list(words)))
    this, before = (one[1:] for one in times.values())  # the first pair fills the disk's cache
    ratios = [a / b for a, b in zip(this, before, strict=True)]
    print(json.dumps({"pairs": pairs, "this over other": spread(ratios), "this, s": spread(this)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
