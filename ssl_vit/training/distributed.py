"""Set up the process group, threads and precision of a run, and raise errors on all ranks."""

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
# Collectives practically never time out, because ranks may wait hours for rank 0. Lost ranks are
# found by heartbeat.Watchdog. The timeout must fit into 32 bits in milliseconds: at most 24 days.
COLLECTIVE_TIMEOUT = timedelta(days=20)
# Flags of CPUs with instructions that multiply bfloat16: AVX-512 and AMX on x86, and BFDOT and
# BFMMLA on ARM from version 8.6 on.
BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
PRECISIONS = {"bf16": "bfloat16"}  # {launcher's name of a mixed precision: the recipe's name}
RENDEZVOUS_TIMEOUT = timedelta(minutes=30)  # how long processes wait for each other at the start


class FailedError(Exception):
    """Failure on a process, raised on all processes with a message that names the process."""


class WatchedAccelerator(Accelerator):
    """Accelerator that reports progress to a watchdog.

    Attributes:
        tick: Called before each collective.
        watch_loader: Wraps loaders, so that the watchdog notices waiting for a batch.
        is_together: Whether the body of a `raise_on_all` context is running.
    """

    is_together = False
    # `staticmethod`, because a plain function in a class would be called with `self`
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
    def raise_on_all(self) -> Iterator[None]:
        """Return a context that fails on all processes if the body fails on any process.

        The processes exchange failures at the end of the body, and before each collective in the
        body (`_begin`). A process whose body has failed exchanges its failure at once. No process
        thus waits in a collective for a failed process.

        Raises:
            FailedError: A process failed. The message names the lowest rank that failed.
        """
        self.is_together = True
        try:
            yield
            self._share_failure("")
        except FailedError:
            raise
        except Exception as error:
            self._share_failure(repr(error))
        finally:
            self.is_together = False

    def _share_failure(self, failure: str) -> None:
        """Exchange failures with all processes, and raise FailedError if any process has failed.

        Args:
            failure: Error of this process, empty if this process has not failed.
        """
        self.tick()
        for rank, rank_failure in enumerate(gather_object([failure])):
            if rank_failure:
                process = f" on process {rank}" if self.num_processes > 1 else ""
                raise FailedError(f"{rank_failure}{process}")

    def _begin(self) -> None:
        """Prepare for a collective: exchange failures and count progress."""
        if self.is_together:
            self._share_failure("")
        self.tick()


@contextmanager
def accelerator_session(compute: Compute) -> Iterator[WatchedAccelerator]:
    """Start the process group of a run, and destroy the group when the body of the context ends.

    A Python process can therefore do several runs, one after another.

    Args:
        compute: Group `compute` of the recipe. If `compute.precision` is "auto", it is set to the
            chosen precision.

    Raises:
        UserError: The launcher's configuration does not suit the machine or the recipe, or the
            processes cannot connect.
    """
    accelerator = None
    try:
        accelerator = _start(compute)
        yield accelerator
        # Wait, because no process may leave while another process still communicates with it
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
        # DeepSpeed stores the group in this private variable (version 0.19, see pyproject.toml).
        # Without a reset, the next run in this process would use the destroyed group.
        comm.cdb = None
    PartialState().destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)


def _start(compute: Compute) -> WatchedAccelerator:
    """Connect the processes, and set threads, allocator and precision.

    If `compute.precision` is "auto", it is set to the precision that rank 0 chooses.

    Raises:
        UserError: The launcher's configuration does not suit the machine or the recipe, or the
            processes cannot connect.
    """
    on_cpu = not torch.cuda.is_available()
    if on_cpu:
        keep_freed_memory()
    uses_deepspeed = _requested("DEEPSPEED")
    _check_gpus()
    if uses_deepspeed:
        _prepare_deepspeed(on_cpu)
    # With cpu=True, Accelerate would silently run plain DDP instead of DeepSpeed.
    cpu_argument = on_cpu and not uses_deepspeed
    backend = {"backend": "gloo"} if on_cpu and uses_deepspeed else {}
    with _rendezvous():
        state = PartialState(cpu=cpu_argument, timeout=RENDEZVOUS_TIMEOUT, **backend)
    # Set the threads after PartialState: for several processes without OMP_NUM_THREADS, Accelerate
    # sets another number, which would replace the recipe's number
    torch.set_num_threads(compute.threads or default_threads())
    _check_processes(state.num_processes)
    if compute.precision == "auto":
        # Machines may differ, so all ranks use the choice of rank 0
        choice = _native_precision(state.device) if state.is_main_process else None
        compute.precision = broadcast_object_list([choice])[0]
    _check_precision(compute.precision)
    # mixed_precision is "no", because the training loop enters autocast itself
    accelerator = WatchedAccelerator(cpu=cpu_argument, mixed_precision="no")
    _check_sharding(accelerator)
    return accelerator


def _prepare_deepspeed(cpu: bool) -> None:
    """Check that DeepSpeed can run here, and on a CPU set it up for the CPU.

    The CPU backend must be selected before DeepSpeed is first imported.

    Args:
        cpu: Whether the run uses the CPU.

    Raises:
        UserError: DeepSpeed is not installed, or no launcher started this process.
    """
    if "LOCAL_RANK" not in os.environ:
        raise UserError(
            "distributed_type=DEEPSPEED: no launcher started this process. "
            "Use `accelerate launch` or srun."
        )
    if not is_deepspeed_available():
        raise UserError(
            "distributed_type=DEEPSPEED: deepspeed is not installed. "
            "On Linux, type `pip install deepspeed`."
        )
    if cpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        import deepspeed.ops

        # Do not compile this operator, which only inference needs. The table of operators is
        # private to DeepSpeed (version 0.19, see pyproject.toml)
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


@contextmanager
def _rendezvous() -> Iterator[None]:
    """Return a context in which the processes connect.

    If other machines take part, the first process of each machine prints the address. After the
    processes have connected, the timeout becomes COLLECTIVE_TIMEOUT.

    Raises:
        UserError: The processes cannot connect, a process does not arrive within
            RENDEZVOUS_TIMEOUT, or MASTER_ADDR or MASTER_PORT is not set. The error names the
            address.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    processes_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    host, port = os.environ.get("MASTER_ADDR", "?"), os.environ.get("MASTER_PORT", "?")
    address = f"{host}:{port}"
    is_first_here = os.environ.get("LOCAL_RANK", "0") == "0"
    if processes > processes_here and is_first_here:  # one line for each machine
        print(f"waiting for {processes} processes at MASTER_ADDR:MASTER_PORT={address}", flush=True)
    try:
        yield
    except (distributed.DistError, ValueError) as error:
        raise UserError(
            f"MASTER_ADDR:MASTER_PORT={address}: {one_line(error)}. MASTER_ADDR must be the "
            "machine of process 0 and reachable from this machine, the port must be free, and "
            "every process must be started."
        ) from None
    if distributed.is_initialized():
        c10d = distributed.distributed_c10d
        c10d._get_default_store().set_timeout(COLLECTIVE_TIMEOUT)
        # In torch 2.11 the function has a private name, which torch 2.14 deprecates
        set_timeout = getattr(c10d, "set_timeout", None) or c10d._set_pg_timeout
        set_timeout(COLLECTIVE_TIMEOUT)


def _requested(library: str) -> bool:
    """Return whether the launcher's configuration requests `library`: DEEPSPEED or FSDP."""
    return os.environ.get(f"ACCELERATE_USE_{library}", "false").lower() == "true"


def _check_gpus() -> None:
    """Check that this machine has a GPU for each process on the machine, if GPUs are used.

    A machine without GPUs is allowed, unless CUDA_VISIBLE_DEVICES names GPUs. A scheduler, a
    launcher or the user may have set this variable.

    Raises:
        UserError: There are too few GPUs. All processes but the first on the machine raise
            ReportedError.
    """
    processes_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    gpus = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    # SLURM sets "NoDevFiles" for no GPU
    names_gpus = visible.strip() not in ("", "-1", "NoDevFiles")
    is_first_here = os.environ.get("LOCAL_RANK", "0") == "0"
    error_class = UserError if is_first_here else ReportedError
    if torch.cuda.is_available() and processes_here > gpus:
        raise error_class(
            f"LOCAL_WORLD_SIZE={processes_here}: each process needs a GPU, and this machine has "
            f"{gpus}. Use --num_processes {gpus}, or CUDA_VISIBLE_DEVICES= for the CPU."
        )
    if not gpus and names_gpus:
        raise error_class(
            f"CUDA_VISIBLE_DEVICES={visible}: torch finds no GPU. Install a driver and a CUDA "
            "build of torch, or use CUDA_VISIBLE_DEVICES= for the CPU."
        )


def _check_processes(processes: int) -> None:
    """Check that all launched processes are connected.

    Args:
        processes: Number of connected processes.

    Raises:
        UserError: Some launched processes are not connected, or `accelerate launch` has started a
            single process instead of several.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if processes != launched:
        raise UserError(
            f"WORLD_SIZE={launched}: only {processes} of the launched processes could connect."
            " Check that the configuration does not request GPUs that this machine lacks."
        )
    # `accelerate launch` sets these variables only for a run on several processes. If there are no
    # GPUs, it then starts a single process without torch's launcher, which would set WORLD_SIZE
    variables = ("ACCELERATE_MIXED_PRECISION", "MASTER_ADDR")
    was_launched_for_several = all(name in os.environ for name in variables)
    if was_launched_for_several and "WORLD_SIZE" not in os.environ:
        raise UserError(
            "num_processes: without GPUs, `accelerate launch` has started a single process. Use"
            " --num_processes 1, or `torchrun --nproc_per_node N` instead of `accelerate launch`."
        )


def _check_precision(precision: str) -> None:
    """Check that the launcher's mixed_precision is "no" or equals the recipe's precision.

    The launcher writes "bf16" for the recipe's "bfloat16".

    Raises:
        UserError: The launcher requests another precision.
    """
    requested = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if requested != "no" and PRECISIONS.get(requested) != precision:
        raise UserError(
            f"mixed_precision={requested}: the recipe has compute.precision={precision}. "
            "Use mixed_precision=no."
        )


def _check_sharding(accelerator: Accelerator) -> None:
    """Check that Accelerate uses DeepSpeed or FSDP if the launcher's configuration asks for it.

    Raises:
        UserError: Accelerate uses something else, or FSDP1 instead of FSDP2.
    """
    actual = accelerator.distributed_type.value
    if _requested("DEEPSPEED") and actual != "DEEPSPEED":
        raise UserError(
            "distributed_type=DEEPSPEED: the configuration asks for DeepSpeed, but Accelerate uses "
            f"{actual} on the device {accelerator.device.type}. Start with the configuration "
            "launch/zero2.yaml (DeepSpeed) or accelerate_config.yaml (no sharding)."
        )
    if _requested("FSDP") and actual != "FSDP":
        raise UserError(
            "distributed_type=FSDP: the configuration asks for FSDP, but Accelerate uses "
            f"{actual} on the device {accelerator.device.type}. Use GPUs, or start with the "
            "configuration launch/zero2.yaml (DeepSpeed) or accelerate_config.yaml (no sharding)."
        )
    if _requested("FSDP") and not accelerator.is_fsdp2:
        raise UserError(
            "fsdp_version=1: FSDP1 joins weights into flat tensors, and checkpoints need each"
            " weight by its name. Use fsdp_version=2 (launch/fsdp2.yaml)."
        )


def _native_precision(device: torch.device) -> str:
    """Return "bfloat16" if the hardware multiplies bfloat16 natively, otherwise "float32".

    The choice depends on features of the hardware and not on measured speed, so that each start of
    a run makes the same choice.
    """
    if device.type == "cuda":
        is_native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        is_native = bool(_cpu_flags() & BFLOAT16)
    return "bfloat16" if is_native else "float32"


def _cpu_flags(table: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Return the names of the CPU's instruction sets on Linux, or an empty set elsewhere.

    For example, the line "flags : fpu avx512_bf16" gives {"fpu", "avx512_bf16"}.

    torch 2.11 has no public function for this. Its check of oneDNN
    (`torch.ops.mkldnn._is_mkldnn_bf16_supported`) is also true on CPUs that only emulate bfloat16.

    Args:
        table: File in which Linux describes the CPU.
    """
    try:
        cpu_info = table.read_text()
    except OSError:
        return set()
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", cpu_info, re.MULTILINE)  # x86, ARM
    return set(match[1].split()) if match else set()


def on_main(accelerator: WatchedAccelerator, do: Callable[[], T]) -> T | None:
    """Call a function on rank 0 only, and wait on all ranks until the function returns. Collective.

    Args:
        accelerator: Processes of the run.
        do: The function.

    Returns:
        The value of `do` on rank 0, None on all other ranks.

    Raises:
        UserError: `do` raised a UserError. All other processes raise ReportedError.
    """
    messages: list[str | None] = [None]
    value = None
    if accelerator.is_main_process:
        try:
            value = do()
        except UserError as error:
            messages = [str(error)]
    # Tick before the broadcast: rank 0 ticks after `do` and all other ranks tick at once, so the
    # watchdog knows that the other ranks wait for rank 0
    accelerator.tick()
    message = broadcast_object_list(messages)[0]
    if message:
        raise UserError(message) if accelerator.is_main_process else ReportedError(message)
    return value


def broadcast_from_main(accelerator: WatchedAccelerator, compute: Callable[[], T]) -> T:
    """Call a function on rank 0, and return the function's value on all ranks. Collective.

    Args:
        accelerator: Processes of the run.
        compute: Function without arguments, for example a function that reads a file.

    Raises:
        UserError: `compute` raised a UserError on rank 0. All other ranks raise ReportedError,
            which ends a process without a second message.
    """
    return broadcast_object_list([on_main(accelerator, compute)])[0]


def check_same(accelerator: WatchedAccelerator, mine: dict[str, Any]) -> None:
    """Check that all ranks have the same values. Collective.

    Args:
        accelerator: Processes of the run.
        mine: {key: value} of this process.

    Raises:
        UserError: A rank has another value than rank 0. The error names the process, its machine
            and the value. All processes but rank 0 raise ReportedError.
    """
    error_class = UserError if accelerator.is_main_process else ReportedError
    (_, main_values), *others = gather_object([(socket.gethostname(), mine)])
    for rank, (host, values) in enumerate(others, 1):
        for key, value in values.items():
            if value != main_values[key]:
                raise error_class(
                    f"{key}={value} on process {rank} ({host}), but {key}={main_values[key]} on "
                    "process 0. All processes need the same value."
                )
