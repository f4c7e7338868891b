"""What slows a GPU down: how many graphs are compiled for a run (one of the training step,
whatever is looked at beside it), and steps that wait for the device."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.built import built
from helpers.exports import of_timm
from helpers.options import altered
from helpers.runs import run
from ssl_vit.training import loop, sharding


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompileCounter]:
    """Counts graphs, and runs them as they are: no code is generated, so that a test takes
    seconds."""
    counted, compile_ = CompileCounter(), nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda self, **how: compile_(self, backend=counted, **how)
    )
    torch._dynamo.reset()
    yield counted
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return of_timm(tmp_path_factory.mktemp("teacher"), embed_dim=48, num_heads=3)


COMPILED = [
    "recipe=mpp optim.drop_path=0.5 optim.dropout=0.1",
    "recipe=mae model.positions=rotary model.registers=1",
    "recipe=ijepa optim.drop_path=0.1",
    "recipe=moco_v3",
    "recipe=dino views.local_size=8 dino.prototypes=32 optim.drop_path=0.1 dino.koleo=0.1",
    "recipe=dino views.local=0 dino.balance=sinkhorn dino.prototypes=32",
    "recipe=ibot views.local_size=8 ibot.prototypes=32 ibot.shared=false ibot.own_head=true",
    "recipe=lejepa views.local_size=8 lejepa.slices=32",
    "recipe=distill distill.teacher=TEACHER distill.size=32",
    "recipe=supervised data.mixup=0.5 optim.average=0.9",
    "recipe=joint compute.batch=8",
]


@pytest.mark.parametrize("words", COMPILED)
def test_a_run_compiles_one_graph(
    counter: CompileCounter, tiny: list[str], words: str, teacher: Path
) -> None:
    """The rehearsal's is training's; looking at 24 held-out images, the last 8 alone, needs
    none."""
    words = words.replace("TEACHER", str(teacher))
    run(altered(tiny, *words.split(), "compute.compile=true", "optim.steps=4", "name=run"))
    assert counter.frame_count == 1


# the compiler's own, on a block's input
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_blocks_of_all_rates_of_drop_path_share_graphs(counter: CompileCounter) -> None:
    """Compiled one by one, as under ZeRO 1, 2 and FSDP2: one graph, one of the first block,
    whose rate is 0, and one of the last, which can compute some tokens alone."""
    objective = built("recipe=supervised", "model.depth=12", "optim.drop_path=0.5")
    sharding.compile_blocks(objective)
    image = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    for _ in range(2):
        objective.train().encoder.feature(image, "token").sum().backward()
    assert counter.frame_count == 3


def test_drop_path_keeps_the_mean_and_drops_whole_samples() -> None:
    last = built("recipe=supervised", "optim.drop_path=0.25").encoder.backbone.blocks[-1]
    layer, x = last.drop_path2, torch.ones(20_000, 2, 3)
    made = layer(x)
    kept = made[:, 0, 0] > 0
    assert torch.equal(made, (kept / 0.75)[:, None, None].expand_as(x))
    assert kept.double().mean() == pytest.approx(0.75, abs=4 * (0.25 * 0.75 / 20_000) ** 0.5)
    assert torch.equal(layer.eval()(x), x)


def test_drop_path_rises_linearly_from_0() -> None:
    net = built("recipe=supervised", "model.depth=5", "optim.drop_path=0.4").encoder
    rates = [1 - float(getattr(block.drop_path2, "keep", 1.0)) for block in net.backbone.blocks]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert not [name for name in net.state_dict() if "keep" in name]


# what makes the host wait for a GPU: a number read, or a result whose size depends on the values
READS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "is_nonzero")


class HostReads(TorchDispatchMode):
    """Records what reads values of tensors, but for the optimiser's counts of steps, which torch
    keeps on the CPU, and what waiting for a batch does."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.optimizer = optimizer
        self.found: list[str] = []
        self.paused = False

    def add(self, name: str) -> None:
        if not self.paused:
            self.found.append(name)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        counts = {id(state.get("step")) for state in self.optimizer.state.values()}
        name = func.overloadpacket.__name__
        by_mask = name in ("index", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if by_mask or (name in READS and id(args[0]) not in counts):
            self.add(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def recorded(optimizer: torch.optim.Optimizer) -> Iterator[HostReads]:
    """Also of methods that are no operation of their own where the tensor is on the CPU."""
    with pytest.MonkeyPatch.context() as patch, HostReads(optimizer) as reads:
        wait = loop.Clock.next_batch

        def paused(clock, batches):
            reads.paused = True
            try:
                return wait(clock, batches)
            finally:
                reads.paused = False

        patch.setattr(loop.Clock, "next_batch", paused)
        for method in ("tolist", "numpy", "cpu"):
            patch.setattr(torch.Tensor, method, recording(method, reads))
        yield reads


def recording(method: str, reads: HostReads):
    usual = getattr(torch.Tensor, method)

    def call(tensor, *arguments, **named):
        reads.add(method)
        return usual(tensor, *arguments, **named)

    return call


def test_what_reads_values_is_recorded() -> None:
    """That the test below can fail."""
    x = torch.arange(3.0)
    weight = torch.nn.Parameter(x.clone())
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    with recorded(optimizer) as reads:
        optimizer.step()
        assert reads.found == []
        float(x.sum())
        bool(x.sum() > 2)
        x[x > 1]
        x.tolist()
        x.cpu()
    assert reads.found == ["_local_scalar_dense"] * 2 + ["index", "tolist", "cpu"]


@pytest.mark.parametrize(
    "words",
    [
        *("joint", "simmim", "mae", "ijepa", "moco_v3"),
        *("dino views.local_size=8", "lejepa views.local_size=8"),
        "distill distill.teacher=TEACHER",
    ],
)
def test_a_step_between_rows_reads_nothing_of_the_device(
    monkeypatch: pytest.MonkeyPatch, tiny: list[str], words: str, teacher: Path
) -> None:
    update = loop._update
    found: dict[int, list[str]] = {}

    def watched(state, *rest) -> None:
        with recorded(state.strategy.optimizer) as reads:
            update(state, *rest)
        found[state.step] = reads.found

    monkeypatch.setattr(loop, "_update", watched)
    own = ["optim.steps=4", "log.every=4", "eval.every=4", "name=run"]
    words = words.replace("TEACHER", str(teacher))
    run(altered(tiny, *f"recipe={words}".split(), *own))
    assert found == {step: [] for step in (1, 2, 3, 4)}
