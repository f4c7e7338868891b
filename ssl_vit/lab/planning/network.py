"""Time of a step's communication beside that of its compute, on many nodes. No torch here."""

from collections.abc import Iterator
from typing import Any

from ...config.schema import Recipe
from ...costs import sent_bytes
from ...data.batch_layout import BatchLayout
from ...errors import UserError
from .budget import Device

NODE = 8  # processes of a node, where nodes= does not say


def settle_nodes(processes: int | None, nodes: int | None) -> tuple[int, int]:
    """Processes and nodes, where one or both may be left out. Processes that no nodes of 8 hold are
    on one node if fewer, else each on its own.

    Raises:
        UserError: the nodes do not divide the processes.
    """
    if processes is None:
        processes = 1 if nodes is None else NODE * nodes
    if nodes is None:
        nodes = processes if processes % NODE else processes // NODE
        nodes = 1 if processes < NODE else nodes
    if processes % nodes:
        raise UserError(f"nodes={nodes}: expected a divisor of processes={processes}")
    return processes, nodes


def communication(
    recipe: Recipe,
    layout: BatchLayout,
    nodes: int,
    compute: float | None,
    device: Device | None,
    network: float | None,
) -> dict[str, Any]:
    """What each strategy sends in a step, and how long that takes.

    Args:
        layout: how the global batch is split.
        compute: seconds of a step's compute.
        network: GB/s that a process sends to other nodes; None takes the device's, between nodes.

    Returns:
        `passes`, `compute_seconds`, `nodes`, `network` and `strategies`: by name `bytes`
        (`gradients`, `weights`), and `one_ring` and `ring_each`, None where `network` is. Each has
        `seconds` of communication, and of a whole step `overlapped`, the longer of both, and
        `one_by_one`, their sum. In one ring all that a process sends passes its own card, as if
        each were a node; with a ring for each process of a node, which NCCL builds where every
        process has a card, each ring has that share of the bytes and leaves the node once.
    """
    if network is None and device is not None and nodes > 1:
        network = device.network
    processes, passes = layout.processes, layout.accumulation_steps
    found: dict[str, Any] = {}
    for name, sent in sent_bytes(recipe, processes, passes).items():
        slow = None if network is None else sum(sent.values()) / (network * 1e9)
        # within one node no ring leaves it
        fast = None if slow is None or nodes == 1 else slow * nodes / processes
        found[name] = {
            "bytes": sent,
            "one_ring": _step(slow, compute),
            "ring_each": _step(fast, compute),
        }
    return {
        "nodes": nodes,
        "passes": passes,
        "network": network,
        "compute_seconds": compute,
        "strategies": found,
    }


def _step(seconds: float | None, compute: float | None) -> dict[str, float] | None:
    if seconds is None or compute is None:
        return None
    return {
        "seconds": seconds,
        "overlapped": max(seconds, compute),
        "one_by_one": seconds + compute,
    }


def lines(record: dict[str, Any], processes: int, given: bool) -> Iterator[tuple[str, str]]:
    """What is printed of `communication`, as name and text; `given`: network= was."""
    nodes, network = record["nodes"], record["network"]
    where = f"{nodes} nodes of {processes // nodes}" if nodes > 1 else f"one node of {processes}"
    yield (
        "a step",
        f"estimated, not measured: compute {_time(record['compute_seconds'])}, passes "
        f"{record['passes']}; {where}",
    )
    if network is None:
        yield "", "network not known: say network= in GB/s a process for times"
    else:
        source = "network=" if given else "assumed in hardware.yaml; or say network="
        yield "", f"network {network:g} GB/s a process ({source})"
    both = nodes > 1 and processes > nodes
    titles = ["one ring", *(["a ring for each process of a node"] if both else [])]
    if network is not None:
        yield "", f"{'':>8}" + "".join(f"  {title:<35}" for title in titles).rstrip()
        columns = f"  {'network':>8} {'step':>18} {'bound':>7}" * len(titles)
        yield "strategy", f"{'sent':>8}{columns}"
    for name, row in record["strategies"].items():
        kinds = ("one_ring", "ring_each") if both else ("one_ring",)
        steps = [row[kind] for kind in kinds if row[kind]]
        text = "".join(_columns(step, record["compute_seconds"]) for step in steps)
        yield name, f"{_size(sum(row['bytes'].values())):>8}{text}"
    if network is not None:
        yield "", "step: from fully overlapped with the compute to not at all"


def _columns(step: dict[str, float], compute: float) -> str:
    bound = "network" if step["seconds"] > compute else "compute"
    span = f"{_time(step['overlapped'])} to {_time(step['one_by_one'])}"
    return f"  {_time(step['seconds']):>8} {span:>18} {bound:>7}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


def _size(count: int) -> str:
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"
