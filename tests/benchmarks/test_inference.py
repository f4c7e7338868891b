"""benchmarks/inference.py: the search for the largest batch, turns, and its report on a CPU."""

import json
import mmap
import os
import sys
from pathlib import Path

import pytest
import torch

from ssl_vit.errors import UserError

sys.path.insert(0, "benchmarks")
import inference

TINY = ["models=vit_n8", "sizes=32", "precisions=float32", "rounds=2", "seconds=0.001", "batch=2"]


@pytest.mark.parametrize("most", [1, 2, 7, 8, 100])
def test_the_largest_batch_is_that_of_a_search_one_by_one(most: int) -> None:
    for fit in range(105):
        tried: list[int] = []

        def fits(batch: int, fit: int = fit, tried: list[int] = tried) -> bool:
            tried.append(batch)
            return batch <= fit

        assert inference.largest(fits, most) == min(fit, most)
        assert len(tried) == len(set(tried)) <= 14 and max(tried) <= most


def test_a_batch_above_the_limit_of_a_cpu_is_not_run() -> None:
    """500 bytes and 20 an image, in 1,000: 25 images, found without a batch that takes more."""
    ran: list[int] = []

    def peak(run) -> int:
        run()
        return 500 + 20 * ran[-1]

    memory = inference.CpuMemory(ran.append, 1000, peak)
    assert inference.largest(memory.fits, 64) == 25
    assert max(ran) == 25
    ran.clear()
    memory = inference.CpuMemory(ran.append, 1000, peak)
    assert memory.largest(64) == 25
    assert ran == [1, 2, 4, 8, 16, 25]


def test_memory_that_grows_unevenly_is_searched_to_its_end() -> None:
    """Steps of 90 bytes every 3 images, then of 9 an image: the line is wrong both ways."""
    ran: list[int] = []

    def held(batch: int) -> int:
        return 100 + 90 * (min(batch, 60) // 3) + 9 * max(0, batch - 60)

    def peak(run) -> int:
        run()
        return held(ran[-1])

    for limit in range(100, 2500, 13):
        ran.clear()
        memory = inference.CpuMemory(ran.append, limit, peak)
        found = memory.largest(128)
        assert found == 128 or found + 1 in ran or memory.predicted(found + 1) > limit
        assert found == 0 or held(found) <= limit
        assert len(ran) == len(set(ran)) <= 20


def test_peak_memory_is_that_of_the_call() -> None:
    if not os.access("/proc/self/clear_refs", os.W_OK):  # then it is that of the whole process
        pytest.skip("the highest value cannot be reset")

    def fill_new_pages() -> None:  # not malloc's, which may keep 64 MiB of what tests before freed
        with mmap.mmap(-1, 2**26) as memory:
            memory[:: mmap.PAGESIZE] = bytes(2**26 // mmap.PAGESIZE)

    small = inference.peak_bytes(lambda: None)
    large = inference.peak_bytes(fill_new_pages)
    assert large - small > 2**25


def test_cases_are_timed_in_turn(monkeypatch) -> None:
    """Each at least as long as said, at a clock of half a second an image: two images a second."""
    order: list[str] = []
    now = [0.0]

    def case(name: str) -> inference.Case:
        def run(batch: int) -> None:
            order.append(name)
            now[0] += 0.5 * batch

        return inference.Case(name, 32, "float32", run, {}, batch=2)

    monkeypatch.setattr(inference.time, "process_time", lambda: now[0])
    cases = [case("a"), case("b")]
    inference.measure(cases, 2, 1.5, "cpu")
    assert "".join(order) == "ab" + 2 * "aabb"  # once to warm up, then two batches a round
    assert [one.rates for one in cases] == [[2.0, 2.0], [2.0, 2.0]]


def test_the_report_has_each_case_and_what_was_left_out(tmp_path: Path, capsys) -> None:
    threads = torch.get_num_threads()
    out = tmp_path / "found.json"
    try:
        words = [*TINY, "most=2", "memory=1000", f"out={out}", f"threads={threads}"]
        assert inference.main([*words[1:], "models=vit_n8,vit_h14,bit_r14x05"]) == 0
    finally:
        torch.set_num_threads(threads)
    report = json.loads(out.read_text())
    assert [one["model"] for one in report["results"]] == ["vit_n8", "bit_r14x05"]
    assert list(report["skipped"]) == ["vit_h14 at 32 px"]  # no multiple of its patch
    for one in report["results"]:
        assert one["n"] == 2 and 0 < one["least"] <= one["images_per_second"] <= one["most"]
        assert one["largest_batch"] == {"images": 2, "ends": "most"} and one["batch"] == 2
    assert {"revision", "host", "threads", "load", "command"} <= report.keys()
    assert "| vit_n8 | 32 | float32 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("models=vit_n9", "model=vit_n9: unknown"),
        ("precisions=float16", "unknown"),
        ("batch=0", "expected a whole number"),
        ("device=tpu", "expected cpu or cuda"),
        ("modles=vit_n8", "did you mean models"),
        ("out=/no/such/folder/file", "expected a file in a folder"),
    ],
)
def test_a_mistake_is_one_line(word: str, says: str, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    key = word.partition("=")[0]
    kept = [one for one in [*TINY, f"out={tmp_path}/x"] if one.partition("=")[0] != key]
    with pytest.raises(UserError, match=says) as caught:
        inference.main([*kept, word, f"threads={threads}"])
    assert "\n" not in str(caught.value)
