"""benchmarks/step.py: which of two ways takes less time, and how sure that is."""

import itertools
import math
import sys

import pytest
import torch

sys.path.insert(0, "benchmarks")
import step


def test_the_interval_of_a_median_has_it_in_95_of_100_cases():
    """Each value is above the median as often as below; the interval misses it where it lies on one
    side of both ends. Counted over all sides, beside the next narrower interval, which is too
    narrow."""
    for n in range(6, 15):
        low, high = step.spread([float(value) for value in range(n)])["95%"]
        assert low + high == n - 1

        def missed(cut: int, n: int = n) -> float:
            return 2 * sum(math.comb(n, k) for k in range(cut + 1)) / 2**n

        assert missed(int(low)) <= 0.05 < missed(int(low) + 1)


def test_fewer_than_six_values_have_no_interval():
    assert step.spread([1.0, 2.0, 3.0, 4.0, 5.0])["95%"] is None
    assert step.spread([6.0, 1.0, 5.0, 2.0, 4.0, 3.0])["95%"] == [1, 6]


def test_ratios_are_taken_within_rounds():
    """A host that is twice as slow in some rounds changes both ways, not their ratio: medians apart
    would say 1.9."""
    slow = (1, 2, 1, 2, 2)
    assert step.paired([95 * s for s in slow], [100 * s for s in slow]) == pytest.approx(0.95)
    assert step.paired([95.0, 190.0, 190.0], [100.0, 100.0, 200.0]) == pytest.approx(0.95)


def timed(shares: list[list[float]], counted: float = 0.5) -> list[step.Timed]:
    """Processes in which mpp takes these shares of timm's time; each process another speed."""
    found = []
    for speed, rounds in enumerate(shares, start=1):
        timm = [100.0 * speed + turn for turn in range(len(rounds))]
        mpp = [share * other for share, other in zip(rounds, timm, strict=True)]
        ways = {"floor": [50.0 * speed] * len(rounds), "mpp": mpp, "timm": timm}
        found.append(step.Timed(ways, {"mpp": counted}, {}))
    return found


def test_an_order_that_a_new_process_turns_round_is_not_found():
    """Rounds within a process agree to a thousandth, processes do not: pooled rounds would exclude
    1."""
    same = [[0.95] * 5, [1.01] * 5, [0.96] * 5, [0.95] * 5, [0.94] * 5, [0.95] * 5]
    found = step.summarized(timed(same), ["timm"])["over peers"]["mpp"]["timm"]
    assert found["median"] == 0.95 and found["95%"] == [0.94, 1.01]
    assert step.spread(list(itertools.chain(*same)))["95%"][1] < 1


def test_a_peer_is_compared_in_time_and_per_multiply_add():
    shares = [[0.97 + 0.001 * process] * 3 for process in range(6)]
    report = step.summarized(timed(shares, counted=0.5), ["timm"])
    assert report["over peers"]["mpp"]["timm"]["95%"] == [0.97, 0.975]
    assert report["over peers, per multiply-add"]["mpp"]["timm"]["95%"] == [1.94, 1.95]
    assert set(report["over floor"]) == {"mpp", "timm"}
    assert [len(rounds) for rounds in report["rounds, ms"]["timm"]] == [3] * 6


def test_one_process_measures_every_way_in_every_round(monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # of the other tests
    given = step.DEFAULTS | {"size": "16", "batch": "2", "rounds": "2", "memory": "default"}
    found = step.timed(given | {"recipes": "mpp,supervised"}, "vit_n8", ["timm"])
    assert set(found.rounds_ms) == {"floor", "mpp", "update", "supervised", "timm"}
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in found.rounds_ms.values())
    assert found.counted["supervised"] == pytest.approx(1, abs=0.05) and found.counted["mpp"] < 1
