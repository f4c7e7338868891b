"""Process group, threads and precision of a run, and collectives that carry errors to all ranks."""

import os
import re
import socket
import sys
import threading
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

from ..config.operation import Compute
from ..data.batching import Batch
from ..errors import ReportedError, UserError, one_line
from ..runs.environment import cores

T = TypeVar("T")
# Collectives do not time out: heartbeat.Watchdog finds lost ranks, and what rank 0 does before the
# others may take hours. More milliseconds would not fit into 32 bits.
COLLECTIVE_TIMEOUT = timedelta(days=20)
# Flags of CPUs whose instructions multiply bfloat16: x86 (AVX-512, AMX), and ARM from 8.6 on
# (BFDOT, BFMMLA).
BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
# seconds that processes wait for others at the start until they say so, and until they leave
RENDEZVOUS_NOTICE, RENDEZVOUS_TIMEOUT = 10.0, 1800.0


class WatchedAccelerator(Accelerator):
    """Accelerate's, watched: `tick` is called before each collective; loaders are iterated through
    `watch_loader`."""

    tick: Callable[[], None] = staticmethod(lambda: None)
    watch_loader: Callable[[Iterable[Batch]], Iterable[Batch]] = staticmethod(
        lambda batching: batching
    )

    def reduce(self, *values: Any, **settings: Any) -> Any:
        self.tick()
        return super().reduce(*values, **settings)


@contextmanager
def accelerator_session(compute: Compute) -> Iterator[WatchedAccelerator]:
    """Start the process group, and destroy it when the body ends, so that one process can hold one
    run after another.

    Raises:
        UserError: as `_start`.
    """
    accelerator = None
    try:
        accelerator = _start(compute)
        yield accelerator
        accelerator.wait_for_everyone()  # so that none leaves while another still speaks to it
    finally:
        _end(accelerator)


def _end(accelerator: Accelerator | None) -> None:
    """The engine first, then the group of processes, then what is known of them."""
    if not PartialState._shared_state:
        return
    if PartialState().distributed_type == DistributedType.DEEPSPEED:
        if accelerator is not None:
            accelerator.free_memory()
        _end_deepspeed()
    PartialState().destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)


def _end_deepspeed() -> None:
    """Its group of processes. `cdb` is DeepSpeed's own (0.19; bounded in pyproject): left as it is,
    a next run in this process would take the group for alive."""
    from deepspeed.comm import comm

    comm.destroy_process_group()
    comm.cdb = None


def _start(compute: Compute) -> WatchedAccelerator:
    """Threads, precision and processes. A precision of auto is settled here, on the first process,
    and written into `compute`.

    Raises:
        UserError: as `_check_gpus`, `_check_processes` and `_check_sharding`.
    """
    torch.set_num_threads(
        compute.threads or max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    )
    cpu, sharded = not torch.cuda.is_available(), _requested("DEEPSPEED")
    _check_gpus()
    if sharded and "LOCAL_RANK" not in os.environ:
        raise UserError(
            "distributed_type=DEEPSPEED: no launcher has started this process; use `accelerate launch` or srun"
        )
    if sharded and not is_deepspeed_available():
        raise UserError(
            "distributed_type=DEEPSPEED: DeepSpeed is not installed; pip install deepspeed, on Linux"
        )
    if cpu and sharded:
        _prepare_deepspeed_on_cpu()
    # with cpu=True, Accelerate would quietly run plain DDP
    with _rendezvous():
        state = PartialState(
            cpu=cpu and not sharded,
            timeout=COLLECTIVE_TIMEOUT,
            **({"backend": "gloo"} if cpu and sharded else {}),
        )
    _check_processes(state.num_processes)
    if compute.precision == "auto":
        settled = [_native_precision(state.device) if state.is_main_process else None]
        compute.precision = str(broadcast_object_list(settled)[0])
    # the engine casts
    accelerator = WatchedAccelerator(cpu=cpu and not sharded, mixed_precision="no")
    _check_sharding(accelerator)
    return accelerator


@contextmanager
def _rendezvous() -> Iterator[None]:
    """While the processes find one another: says where, if it takes long, and leaves if it takes
    too long.

    Raises:
        UserError: they cannot.
    """
    place = ":".join(os.environ.get(f"MASTER_{name}", "?") for name in ("ADDR", "PORT"))
    choices = "is that the first process's machine, reached from here, the port free, and every process started?"
    waiting = (
        _rendezvous_timers(f"MASTER_ADDR:MASTER_PORT={place}", choices)
        if int(os.environ.get("WORLD_SIZE", "1")) > 1
        else []
    )
    for timer in waiting:
        timer.daemon = True
        timer.start()
    try:
        yield
    except distributed.DistError as error:
        raise UserError(f"MASTER_ADDR:MASTER_PORT={place}: {one_line(error)}; {choices}") from None
    finally:
        for timer in waiting:
            timer.cancel()


def _rendezvous_timers(place: str, choices: str) -> list[threading.Timer]:
    """What is said and done if the processes do not come; one of each machine speaks."""
    count, speaks = os.environ["WORLD_SIZE"], os.environ.get("LOCAL_RANK", "0") == "0"

    def print_notice() -> None:
        if speaks:
            print(f"waiting for {count} processes at {place}", flush=True)

    def abort() -> None:
        if speaks:
            sys.stderr.write(
                f"error: {place}: not all of {count} processes came in {RENDEZVOUS_TIMEOUT:g} s; {choices}\n"
            )
            sys.stderr.flush()
        os._exit(2)  # the main thread waits outside Python

    return [
        threading.Timer(RENDEZVOUS_NOTICE, print_notice),
        threading.Timer(RENDEZVOUS_TIMEOUT, abort),
    ]


def _prepare_deepspeed_on_cpu() -> None:
    """Before it is imported first; and no compiler is called for an operator that only inference
    needs: the table of those is DeepSpeed's own (0.19; bounded in pyproject)."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def _requested(way: str) -> bool:
    """Whether the launcher was told to share by DEEPSPEED or FSDP."""
    return os.environ.get(f"ACCELERATE_USE_{way}", "false").lower() == "true"


def _check_gpus() -> None:
    """That each process of this machine has a GPU of its own, where there are any.

    Raises:
        UserError: there are too few; the first process of the machine speaks.
    """
    here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if torch.cuda.is_available() and here > gpus:
        choices = f"choices: --num_processes {gpus}, or CUDA_VISIBLE_DEVICES= for the CPU"
        kind = UserError if os.environ.get("LOCAL_RANK", "0") == "0" else ReportedError
        raise kind(
            f"LOCAL_WORLD_SIZE={here}: processes share no GPU, and this machine has {gpus}; {choices}"
        )


def _check_processes(found: int) -> None:
    """That as many processes found one another as were asked for.

    Raises:
        UserError: fewer did.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if found != launched:
        raise UserError(
            f"WORLD_SIZE={launched}: only {found} of the launched processes found one another; "
            "does the configuration ask for GPUs that are not here?"
        )
    if (
        "ACCELERATE_MIXED_PRECISION" in os.environ
        and "MASTER_ADDR" in os.environ
        and "WORLD_SIZE" not in os.environ
    ):
        raise UserError(
            "num_processes: `accelerate launch` was asked for several and has started one, as it does without GPUs; "
            "choices: --num_processes 1, or torchrun --nproc_per_node N in place of accelerate launch"
        )


def _check_sharding(accelerator: Accelerator) -> None:
    """That the weights are shared as the configuration asks.

    Raises:
        UserError: Accelerate has fallen back to something else.
    """
    for way in ("DEEPSPEED", "FSDP"):
        if _requested(way) and accelerator.distributed_type.value != way:
            got = f"{accelerator.distributed_type.value} on {accelerator.device.type} came of it"
            choices = "launch/zero2.yaml, accelerate_config.yaml" + (
                ", or GPUs" if way == "FSDP" else ""
            )
            raise UserError(f"distributed_type={way}: {got}; choices: {choices}")
    if _requested("FSDP") and not accelerator.is_fsdp2:
        raise UserError(
            "fsdp_version=1: its flat weights have no names to be saved under; choices: 2 (launch/fsdp2.yaml)"
        )


def _native_precision(device: torch.device) -> str:
    """bfloat16 where the hardware multiplies it natively, else float32. Nothing is timed, so every
    call gives the same."""
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu":
        native = bool(_cpu_flags() & BFLOAT16)
    else:  # mps emulates it on some generations
        native = False
    return "bfloat16" if native else "float32"


def _cpu_flags(table: Path = Path("/proc/cpuinfo")) -> set[str]:
    """What Linux says that the CPU can do; nothing on other systems. torch's own answer has a
    private name on 2.11, and its oneDNN check is also true of CPUs that only emulate bfloat16."""
    try:
        text = table.read_text()
    except OSError:
        return set()
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)  # x86, ARM
    return set(found[1].split()) if found else set()


def on_main(accelerator: WatchedAccelerator, do: Callable[[], T]) -> T | None:
    """Call `do` on rank 0 and return its value there, None elsewhere. A UserError is raised on
    all ranks.

    Raises:
        UserError: what `do` raises; ReportedError on the other processes.
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
    """Call `find` on rank 0 and return its value on all ranks.

    Raises:
        UserError: as `on_main`.
    """
    return broadcast_object_list([on_main(accelerator, find)])[0]


def check_same(accelerator: WatchedAccelerator, mine: dict[str, Any]) -> None:
    """Check that all ranks have the values of rank 0.

    Raises:
        UserError: one has not; it names the process, its machine, and what differs.
    """
    (_, wanted), *others = gather_object([(socket.gethostname(), mine)])
    for rank, (host, theirs) in enumerate(others, 1):
        for key, value in theirs.items():
            if value != wanted[key]:
                text = f"{key}={value} on process {rank}, on {host}; process 0 has {wanted[key]}; all need the same"
                raise (UserError if accelerator.is_main_process else ReportedError)(text)


def macos_warning() -> str | None:
    """What a user of a Mac should know."""
    if sys.platform != "darwin" or torch.cuda.is_available():
        return None
    slower = "the CPU computes, which is much slower than a CUDA GPU"
    return f"macOS is untested: {slower}; the Mac's own GPU (MPS) is not used"


def sharding_facts(accelerator: Accelerator) -> dict[str, Any]:
    """What Accelerate has set up, whatever its configuration requested."""
    together = accelerator.num_processes > 1
    return {
        "accelerate": accelerator.distributed_type.value,
        "backend": distributed.get_backend() if together else None,
        "processes": accelerator.num_processes,
        "machines": gather_object([accelerator.local_process_index]).count(0) if together else 1,
    }
