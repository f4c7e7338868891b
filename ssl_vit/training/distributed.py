"""Set up the process group, threads and precision of a run, and provide collectives that carry
errors to all ranks.
"""

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import (
    DistributedType,
    broadcast_object_list,
    gather_object,
    is_deepspeed_available,
)
from torch import distributed

from ..data.batching import Batch
from ..errors import ReportedError, UserError, one_line
from ..recipe.operation import Compute
from ..runs.environment import default_threads
from .allocator import keep_freed_memory

T = TypeVar("T")
# Collectives do not time out: heartbeat.Watchdog finds lost ranks, and the others may wait hours
# for rank 0. More milliseconds would not fit into 32 bits.
COLLECTIVE_TIMEOUT = timedelta(days=20)
# Flags of CPUs with instructions that multiply bfloat16: x86 (AVX-512, AMX), and ARM from 8.6 on
# (BFDOT, BFMMLA).
BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
PRECISIONS = {"bf16": "bfloat16"}  # {launcher's name of a mixed precision: the recipe's name}
RENDEZVOUS_TIMEOUT = timedelta(minutes=30)  # how long processes wait for each other at the start


class FailedError(Exception):
    """Failure on a process, raised on all processes with a message that names the process."""


class WatchedAccelerator(Accelerator):
    """Accelerator that a watchdog can follow: `tick` is called before each collective, and loaders
    are iterated through `watch_loader`.
    """

    is_together = False  # whether the body of `together` is running

    tick: Callable[[], None] = staticmethod(lambda: None)
    watch_loader: Callable[[Iterable[Batch]], Iterable[Batch]] = staticmethod(
        lambda batches: batches
    )

    def reduce(self, *values: Any, **settings: Any) -> Any:
        self._begin()
        return super().reduce(*values, **settings)

    def gather_parts(self, parts: list[T]) -> list[T]:
        """Return the parts of all processes (any Python objects), in the order of ranks."""
        self._begin()
        return gather_object(parts)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raise on all processes what the body raises on any process.

        Before each collective in the body, and at its end, the processes tell each other whether
        one has failed, so no process waits for a failed one.

        Raises:
            FailedError: A process failed; if several did, the first of them is named.
        """
        self.is_together = True
        try:
            yield
            self._tell("")
        except FailedError:
            raise
        except Exception as error:
            self._tell(repr(error))
        finally:
            self.is_together = False

    def _tell(self, failure: str) -> None:
        """Tell all processes about a failure, and raise FailedError if any process has told a
        failure.
        """
        self.tick()
        for rank, text in enumerate(gather_object([failure])):
            if text:
                raise FailedError(f"{text} on process {rank}" if self.num_processes > 1 else text)

    def _begin(self) -> None:
        """Exchange failures and count progress, before a collective."""
        if self.is_together:
            self._tell("")
        self.tick()


@contextmanager
def accelerator_session(compute: Compute) -> Iterator[WatchedAccelerator]:
    """Start the process group, and destroy the group when the body ends.

    A process can therefore hold several runs, one after the other.

    Raises:
        UserError: As in `_start`.
    """
    accelerator = None
    try:
        accelerator = _start(compute)
        yield accelerator
        # no process may leave while another still communicates with it
        accelerator.wait_for_everyone()
    finally:
        _end(accelerator)


def _end(accelerator: Accelerator | None) -> None:
    """Destroy the DeepSpeed engine, then the process group, then Accelerate's state."""
    if not PartialState._shared_state:
        return
    if PartialState().distributed_type == DistributedType.DEEPSPEED:
        from deepspeed.comm import comm

        if accelerator is not None:
            accelerator.free_memory()
        comm.destroy_process_group()
        # A private name (0.19; bounded in pyproject). Unless it is reset, the next run in this
        # process would take the group for alive.
        comm.cdb = None
    PartialState().destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)


def _start(compute: Compute) -> WatchedAccelerator:
    """Set threads and allocator, and start the processes.

    If the precision is auto, rank 0 chooses and the choice is written into `compute`.

    Raises:
        UserError: As in `_check_gpus`, `_check_processes`, `_check_precision` and
            `_check_sharding`.
    """
    cpu = not torch.cuda.is_available()
    if cpu:
        keep_freed_memory()
    sharded = _requested("DEEPSPEED")
    _check_gpus()
    if sharded:
        _prepare_deepspeed(cpu)
    # With cpu=True, Accelerate would silently run plain DDP instead of DeepSpeed.
    with _rendezvous():
        state = PartialState(
            cpu=cpu and not sharded,
            timeout=RENDEZVOUS_TIMEOUT,
            **({"backend": "gloo"} if cpu and sharded else {}),
        )
    # Not earlier: Accelerate sets the threads of several processes that have no OMP_NUM_THREADS.
    torch.set_num_threads(compute.threads or default_threads())
    _check_processes(state.num_processes)
    if compute.precision == "auto":
        native = [_native_precision(state.device) if state.is_main_process else None]
        compute.precision = broadcast_object_list(native)[0]
    _check_precision(compute.precision)
    # "no": the training loop enters autocast itself
    accelerator = WatchedAccelerator(cpu=cpu and not sharded, mixed_precision="no")
    _check_sharding(accelerator)
    return accelerator


def _prepare_deepspeed(cpu: bool) -> None:
    """Check that DeepSpeed is installed and that a launcher started this process.

    On a CPU, select the CPU backend before DeepSpeed is first imported, and keep DeepSpeed from
    compiling an operator that only inference needs. The table of operators is private (0.19;
    bounded in pyproject).

    Raises:
        UserError: DeepSpeed is not installed, or no launcher started this process.
    """
    prefix = "distributed_type=DEEPSPEED"
    if "LOCAL_RANK" not in os.environ:
        text = "no launcher started this process. Use `accelerate launch` or srun."
        raise UserError(f"{prefix}: {text}")
    if not is_deepspeed_available():
        raise UserError(f"{prefix}: not installed. On Linux, type `pip install deepspeed`.")
    if cpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        import deepspeed.ops

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


@contextmanager
def _rendezvous() -> Iterator[None]:
    """Surround the start of the process group: print where processes wait for more machines, and
    lift the time-out at the end.

    Raises:
        UserError: The processes cannot connect, not all arrive within RENDEZVOUS_TIMEOUT, or the
            variables with the address are not set.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    place = ":".join(os.environ.get(f"MASTER_{name}", "?") for name in ("ADDR", "PORT"))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if count > here and os.environ.get("LOCAL_RANK", "0") == "0":  # one line for each machine
        print(f"waiting for {count} processes at MASTER_ADDR:MASTER_PORT={place}", flush=True)
    try:
        yield
    except (distributed.DistError, ValueError) as error:
        hint = "MASTER_ADDR must be the machine of process 0 and reachable from this machine, the"
        hint += " port must be free, and every process must be started"
        raise UserError(f"MASTER_ADDR:MASTER_PORT={place}: {one_line(error)}. {hint}.") from None
    if distributed.is_initialized():
        c10d = distributed.distributed_c10d
        c10d._get_default_store().set_timeout(COLLECTIVE_TIMEOUT)
        # torch 2.11 has it under a private name, which 2.14 deprecates
        set_timeout = getattr(c10d, "set_timeout", None) or c10d._set_pg_timeout
        set_timeout(COLLECTIVE_TIMEOUT)


def _requested(way: str) -> bool:
    """Return whether the launcher's configuration requests DEEPSPEED or FSDP."""
    return os.environ.get(f"ACCELERATE_USE_{way}", "false").lower() == "true"


def _check_gpus() -> None:
    """Check that each process on this machine has a separate GPU, and that GPUs exist if any were
    requested.

    A machine without GPUs is fine, unless a scheduler, a launcher or the user named GPUs.

    Raises:
        UserError: There are too few GPUs. All processes but the first on the machine raise
            ReportedError.
    """
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    gpus, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    reason, cpu = "", "CUDA_VISIBLE_DEVICES= for the CPU"
    if torch.cuda.is_available() and here > gpus:
        reason = f"LOCAL_WORLD_SIZE={here}: each process needs a GPU, and this machine has {gpus}."
        reason += f" Use --num_processes {gpus}, or {cpu}."
    # "NoDevFiles" is SLURM's word for none
    elif not gpus and visible.strip() not in ("", "-1", "NoDevFiles"):
        reason = f"CUDA_VISIBLE_DEVICES={visible}: torch finds no GPU. Install a driver and a CUDA"
        reason += f" build of torch, or use {cpu}."
    if reason:
        raise (UserError if os.environ.get("LOCAL_RANK", "0") == "0" else ReportedError)(reason)


def _check_processes(processes: int) -> None:
    """Check that all launched processes found each other.

    Raises:
        UserError: Fewer processes did.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if processes != launched:
        raise UserError(
            f"WORLD_SIZE={launched}: only {processes} of the launched processes could connect."
            " Check that the configuration does not request GPUs that this machine lacks."
        )
    if (
        "ACCELERATE_MIXED_PRECISION" in os.environ
        and "MASTER_ADDR" in os.environ
        and "WORLD_SIZE" not in os.environ
    ):
        raise UserError(
            "num_processes: without GPUs, `accelerate launch` has started a single process. Use"
            " --num_processes 1, or `torchrun --nproc_per_node N` instead of `accelerate launch`."
        )


def _check_precision(precision: str) -> None:
    """Check that the launcher requests no precision, or the precision of the recipe, which alone is
    used.

    Raises:
        UserError: The launcher requests another precision.
    """
    requested = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if requested != "no" and PRECISIONS.get(requested) != precision:
        text = f"the recipe has compute.precision={precision}. Use mixed_precision=no"
        raise UserError(f"mixed_precision={requested}: {text}.")


def _check_sharding(accelerator: Accelerator) -> None:
    """Check that the weights are sharded as the configuration requests.

    Raises:
        UserError: Accelerate has fallen back to something else.
    """
    for way in ("DEEPSPEED", "FSDP"):
        if _requested(way) and accelerator.distributed_type.value != way:
            got = f"{accelerator.distributed_type.value} on {accelerator.device.type}"
            choices = "launch/zero2.yaml or accelerate_config.yaml"
            if way == "FSDP":
                choices = f"{choices}, or GPUs"
            text = f"the launcher set up {got} instead. Use {choices}"
            raise UserError(f"distributed_type={way}: {text}.")
    if _requested("FSDP") and not accelerator.is_fsdp2:
        raise UserError(
            "fsdp_version=1: the flat weights of this version cannot be saved by name. Use"
            " fsdp_version=2 (launch/fsdp2.yaml)."
        )


def _native_precision(device: torch.device) -> str:
    """Return bfloat16 if the hardware multiplies bfloat16 natively, otherwise float32.

    Nothing is timed, so every call returns the same precision.
    """
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = bool(_cpu_flags() & BFLOAT16)
    return "bfloat16" if native else "float32"


def _cpu_flags(table: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Return the flags of the CPU on Linux, or an empty set elsewhere.

    torch's function for this is private in 2.11, and its oneDNN check is also true on CPUs that
    only emulate bfloat16.
    """
    try:
        text = table.read_text()
    except OSError:
        return set()
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)  # x86, ARM
    return set(match[1].split()) if match else set()


def on_main(accelerator: WatchedAccelerator, do: Callable[[], T]) -> T | None:
    """Call `do` on rank 0 and return the value there, or None on all ranks above 0.

    Raises:
        UserError: `do` raised it. All other processes raise ReportedError.
    """
    messages: list[str | None] = [None]
    done = None
    if accelerator.is_main_process:
        try:
            done = do()
        except UserError as error:
            messages = [str(error)]
    accelerator.tick()
    if text := broadcast_object_list(messages)[0]:
        raise (UserError if accelerator.is_main_process else ReportedError)(text)
    return done


def broadcast_from_main(accelerator: WatchedAccelerator, find: Callable[[], T]) -> T:
    """Call `find` on rank 0 and return the value on all ranks.

    Raises:
        UserError: As in `on_main`.
    """
    return broadcast_object_list([on_main(accelerator, find)])[0]


def check_same(accelerator: WatchedAccelerator, mine: dict[str, Any]) -> None:
    """Check that all ranks have the values of rank 0.

    Raises:
        UserError: A rank has other values. The error names the process, its machine and the value.
    """
    (_, wanted), *others = gather_object([(socket.gethostname(), mine)])
    for rank, (host, theirs) in enumerate(others, 1):
        for key, value in theirs.items():
            if value != wanted[key]:
                text = (
                    f"{key}={value} on process {rank} ({host}), but {key}={wanted[key]} on"
                    " process 0. All processes need the same value."
                )
                raise (UserError if accelerator.is_main_process else ReportedError)(text)
