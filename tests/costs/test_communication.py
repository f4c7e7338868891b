"""What the strategies exchange in a step: the bytes counted from the recipe beside those of the
collectives that two CPU processes call."""

import json
from pathlib import Path

import pytest

from helpers.launching import free_port, launch_ranks, outcome
from helpers.options import altered
from helpers.strategies import LONG, SERIES, launched
from ssl_vit import costs
from ssl_vit.config.resolve import resolve
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.errors import UserError
from ssl_vit.lab.planning import network

WAYS = {"ddp": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3"}
OPTIONS = altered(LONG, "optim.steps=2", "optim.warmup=1", "eval.every=2", "compute.batch=4")
# Before SERIES: the collectives of each step, as the dispatcher has them, DDP's from C++ too
COUNTER = """
import os
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from ssl_vit.training import sharding, strategy

sent = {}
now = []

def size(x):
    return sum(t.numel() * t.element_size() for t in tree_leaves(x) if isinstance(t, torch.Tensor))

class Counter(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":  # the whole tensor: the output of a gather, else the input
            now.append((func._opname, max(size(x) for x in args[:2])))
        return func(*args, **(kwargs or {}))

def counts(do):
    def counted(*given, **named):
        with Counter():
            return do(*given, **named)
    return counted

def ends_step(update):
    def counted(self):
        done = counts(update)(self)
        sent[name] = list(now)  # the last step's stay
        now.clear()
        return done
    return counted

strategy.Strategy.run_pass = counts(strategy.Strategy.run_pass)
for kind in (strategy.Strategy, sharding.ZeroStrategy):
    kind.update = ends_step(kind.update)
"""
WRITES = """
if os.environ["RANK"] == "0":
    with open(sys.argv[3], "w") as file:
        json.dump(sent, file)
"""


@pytest.fixture(scope="module")
def collectives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list]:
    """{strategy: (operation, bytes of the whole tensor) of the second step, of two passes}."""
    out = tmp_path_factory.mktemp("sent")
    series = [
        (way, launched(way), [*OPTIONS, f"out={out}", f"name={way}"], False, None, free_port())
        for way in WAYS
    ]
    paths = [str(out / "facts.json"), str(out / "sent.json")]
    script = COUNTER + SERIES + WRITES
    codes, outputs = outcome(launch_ranks(2, "-c", script, json.dumps(series), *paths), 600)
    assert codes == [0, 0], outputs
    return json.loads(Path(paths[1]).read_text())


@pytest.mark.parametrize("way", WAYS)
def test_the_counted_bytes_are_those_of_two_processes(way: str, collectives) -> None:
    """Of two processes each sends in a ring a whole tensor for an all-reduce, half of one for the
    others. Flags and norms are a few bytes."""
    found = {"gradients": 0.0, "weights": 0.0}
    for operation, size in collectives[way]:
        if operation.startswith("allreduce"):
            found["gradients"] += size
        elif "reduce_scatter" in operation:
            found["gradients"] += size / 2
        elif "allgather" in operation:
            found["weights"] += size / 2
    counted = costs.sent_bytes(resolve(OPTIONS), processes=2, passes=2)[WAYS[way]]
    assert found == {key: pytest.approx(n, rel=0, abs=64) for key, n in counted.items()}


def test_bytes_by_hand() -> None:
    """ViT-B/16 with MPP's head on 512 processes: 86.19M weights, 12 blocks of 7,087,872."""
    size = 4 * (85_798_656 + 768 + 769 * 512)
    blocks = 4 * 12 * 7_087_872
    share = 511 / 512
    recipe = resolve(["recipe=paper/mpp_b16_jft"], here=False)
    for passes in (1, 3):
        found = costs.sent_bytes(recipe, 512, passes)
        totals = {name: sum(sent.values()) for name, sent in found.items()}
        assert totals == {
            "DDP": pytest.approx(2 * size * share),
            "ZeRO-1": pytest.approx(3 * size * share),
            "ZeRO-2": pytest.approx((2 * passes + 1) * size * share),
            "ZeRO-3": pytest.approx(2 * passes * size * share),
            "FSDP2": pytest.approx((size + passes * (size + blocks)) * share),
        }


def test_zero_3_gathers_again_what_deepspeed_does_not_keep() -> None:
    """Of ViT-H/14's 656M weights those beyond 500M, whose next use is over a billion away."""
    recipe = resolve(["recipe=paper/supervised_h14_jft"], here=False)
    count = costs.parameters(recipe)
    weights = costs.sent_bytes(recipe, 8, 1)["ZeRO-3"]["weights"]
    assert weights == pytest.approx(4 * (2 * count - 500_000_000) * 7 / 8)


def test_times_by_hand() -> None:
    """690 MB at 50 GB/s; through all eight cards of a node an eighth of that."""
    recipe = resolve(["recipe=paper/mpp_b16_jft"], here=False)
    layout = BatchLayout(recipe.optim.batch, 8, 0, 512)
    found = network.communication(recipe, layout, 64, 0.002, None, 50.0)
    one, each = (found["strategies"]["DDP"][kind] for kind in ("one_ring", "ring_each"))
    assert one["seconds"] == pytest.approx(0.0138, rel=0.003)
    assert one["overlapped"] == one["seconds"]
    assert one["one_by_one"] == pytest.approx(one["seconds"] + 0.002)
    assert each["seconds"] == pytest.approx(one["seconds"] / 8)
    assert each["overlapped"] == 0.002 and found["passes"] == 1


@pytest.mark.parametrize(
    ("given", "settled"),
    [
        ((None, None), (1, 1)),
        ((None, 64), (512, 64)),
        ((512, None), (512, 64)),
        ((8, None), (8, 1)),
        ((4, None), (4, 1)),
        ((12, None), (12, 12)),
        ((12, 3), (12, 3)),
    ],
)
def test_nodes(given: tuple, settled: tuple) -> None:
    assert network.settle_nodes(*given) == settled


def test_nodes_that_do_not_divide() -> None:
    with pytest.raises(UserError, match="nodes=3: expected a divisor of processes=8"):
        network.settle_nodes(8, 3)
