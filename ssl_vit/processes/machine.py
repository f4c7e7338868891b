"""The machine under a run: processes, threads, precision, memory, and what environment.json says of them."""

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

import psutil
import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, broadcast_object_list, gather_object, is_deepspeed_available
from torch import distributed

from .. import budget
from ..data import batches, fingerprints, sources
from ..data.batches import Batch
from ..recipe import Recipe, ToldError, UserError, in_a_line
from ..runs import Run, cores

T = TypeVar("T")
# How long the processes wait for one another: who is lost, liveness.Life finds out, and what the first one does before the
# others may take hours. More milliseconds would not fit into 32 bits.
FOREVER = timedelta(days=20)
# Flags of CPUs whose instructions multiply bfloat16: x86 (AVX-512, AMX), and ARM from 8.6 on (BFDOT, BFMMLA).
BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
TOLD, GIVEN_UP = 10.0, 1800.0  # seconds that processes wait for others at the start until they say so, and until they leave


class Together(Accelerator):
    """Accelerate's. `mark` is called before what the processes do together; what a loader brings comes through `reading`."""

    mark: Callable[[], None] = staticmethod(lambda: None)
    reading: Callable[[Iterable[Batch]], Iterable[Batch]] = staticmethod(lambda batches: batches)

    def reduce(self, *values: Any, **settings: Any) -> Any:
        self.mark()
        return super().reduce(*values, **settings)


@contextmanager
def started(run: Run) -> Iterator[Together]:
    """The processes of a run, given back when the body ends, so that one process can hold one run after another.

    Raises:
        UserError: as `_start`; or some place of the run's folder cannot be read or written.
    """
    accelerator = None
    try:
        accelerator = _start(run.recipe)
        yield accelerator
        accelerator.wait_for_everyone()  # so that none leaves while another still speaks to it
    except OSError as error:
        place, why = error.filename, error.strerror or str(error)
        if place and not Path(os.fsdecode(place)).resolve().is_relative_to(run.folder.resolve()):
            raise UserError(f"{place}: {why}") from None  # nothing of the run's own: out= would lead astray
        raise UserError(f"out={run.recipe.out}: {place or run.folder}: {why}") from None
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
    """Its group of processes. `cdb` is DeepSpeed's own (0.19; bounded in pyproject): left as it is, a next run in this
    process would take the group for alive."""
    from deepspeed.comm import comm

    comm.destroy_process_group()
    comm.cdb = None


def _start(recipe: Recipe) -> Together:
    """Threads, precision and processes. A precision of auto is settled here, on the first process, and written into the recipe.

    Raises:
        UserError: as `_check_gpus`, `_check_processes` and `_check_sharding`.
    """
    torch.set_num_threads(recipe.compute.threads or max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    cpu, sharded = not torch.cuda.is_available(), _asked("DEEPSPEED")
    _check_gpus()
    if sharded and "LOCAL_RANK" not in os.environ:
        raise UserError("distributed_type=DEEPSPEED: no launcher has started this process; use `accelerate launch` or srun")
    if sharded and not is_deepspeed_available():
        raise UserError("distributed_type=DEEPSPEED: DeepSpeed is not installed; pip install deepspeed, on Linux")
    if cpu and sharded:
        _prepare_deepspeed_on_cpu()
    # with cpu=True, Accelerate would quietly run plain DDP
    with _meeting():
        state = PartialState(cpu=cpu and not sharded, timeout=FOREVER, **({"backend": "gloo"} if cpu and sharded else {}))
    _check_processes(state.num_processes)
    if recipe.compute.precision == "auto":
        settled = [_native(state.device) if state.is_main_process else None]
        recipe.compute.precision = str(broadcast_object_list(settled)[0])
    accelerator = Together(cpu=cpu and not sharded, mixed_precision="no")  # the engine casts
    _check_sharding(accelerator)
    return accelerator


@contextmanager
def _meeting() -> Iterator[None]:
    """While the processes find one another: says where, if it takes long, and leaves if it takes too long.

    Raises:
        UserError: they cannot.
    """
    place = ":".join(os.environ.get(f"MASTER_{name}", "?") for name in ("ADDR", "PORT"))
    choices = "is that the first process's machine, reached from here, the port free, and every process started?"
    waiting = _waiting(f"MASTER_ADDR:MASTER_PORT={place}", choices) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else []
    for timer in waiting:
        timer.daemon = True
        timer.start()
    try:
        yield
    except distributed.DistError as error:
        raise UserError(f"MASTER_ADDR:MASTER_PORT={place}: {in_a_line(error)}; {choices}") from None
    finally:
        for timer in waiting:
            timer.cancel()


def _waiting(place: str, choices: str) -> list[threading.Timer]:
    """What is said and done if the processes do not come; one of each machine speaks."""
    count, speaks = os.environ["WORLD_SIZE"], os.environ.get("LOCAL_RANK", "0") == "0"

    def told() -> None:
        if speaks:
            print(f"waiting for {count} processes at {place}", flush=True)

    def given_up() -> None:
        if speaks:
            sys.stderr.write(f"error: {place}: not all of {count} processes came in {GIVEN_UP:g} s; {choices}\n")
            sys.stderr.flush()
        os._exit(2)  # the main thread waits outside Python

    return [threading.Timer(TOLD, told), threading.Timer(GIVEN_UP, given_up)]


def _prepare_deepspeed_on_cpu() -> None:
    """Before it is imported first; and no compiler is called for an operator that only inference needs: the table of those
    is DeepSpeed's own (0.19; bounded in pyproject)."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def _asked(way: str) -> bool:
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
        kind = UserError if os.environ.get("LOCAL_RANK", "0") == "0" else ToldError
        raise kind(f"LOCAL_WORLD_SIZE={here}: processes share no GPU, and this machine has {gpus}; {choices}")


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
    if "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ:
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
        if _asked(way) and accelerator.distributed_type.value != way:
            got = f"{accelerator.distributed_type.value} on {accelerator.device.type} came of it"
            choices = "launch/zero2.yaml, accelerate_config.yaml" + (", or GPUs" if way == "FSDP" else "")
            raise UserError(f"distributed_type={way}: {got}; choices: {choices}")
    if _asked("FSDP") and not accelerator.is_fsdp2:
        raise UserError("fsdp_version=1: its flat weights have no names to be saved under; choices: 2 (launch/fsdp2.yaml)")


def _native(device: torch.device) -> str:
    """bfloat16 where the hardware multiplies it natively, else float32. Nothing is timed, so every call gives the same."""
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu":
        native = bool(_cpu_flags() & BFLOAT16)
    else:  # mps emulates it on some generations
        native = False
    return "bfloat16" if native else "float32"


def _cpu_flags(table: Path = Path("/proc/cpuinfo")) -> set[str]:
    """What Linux says that the CPU can do; nothing on other systems. torch's own answer has a private name on 2.11, and its
    oneDNN check is also true of CPUs that only emulate bfloat16."""
    try:
        text = table.read_text()
    except OSError:
        return set()
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)  # x86, ARM
    return set(found[1].split()) if found else set()


def on_main(accelerator: Together, do: Callable[[], T]) -> T | None:
    """Do something on the first process, and have it there; what a user did wrong there is raised on all.

    Raises:
        UserError: what `do` raises; ToldError on the other processes.
    """
    said: list[str | None] = [None]
    done = None
    if accelerator.is_main_process:
        try:
            done = do()
        except UserError as error:
            said = [str(error)]
    accelerator.mark()
    if text := broadcast_object_list(said)[0]:
        raise (UserError if accelerator.is_main_process else ToldError)(text)
    return done


def from_main(accelerator: Together, find: Callable[[], T]) -> T:
    """What the first process finds, on all.

    Raises:
        UserError: as `on_main`.
    """
    return broadcast_object_list([on_main(accelerator, find)])[0]


def check_same(accelerator: Together, mine: dict[str, Any]) -> None:
    """That all processes have what the first one has.

    Raises:
        UserError: one has not; it names the process, its machine, and what differs.
    """
    (_, wanted), *others = gather_object([(socket.gethostname(), mine)])
    for rank, (host, said) in enumerate(others, 1):
        for key, value in said.items():
            if value != wanted[key]:
                text = f"{key}={value} on process {rank}, on {host}; process 0 has {wanted[key]}; all need the same"
                raise (UserError if accelerator.is_main_process else ToldError)(text)


def load(recipe: Recipe, accelerator: Together, test: bool) -> sources.Splits:
    """The splits, on the first process before the others, so that they find what it prepared and are told what it met."""
    first = max(sources.FIRST, recipe.eval.pictures, recipe.probe.pictures if recipe.probe.every else 0)
    found = on_main(accelerator, lambda: sources.load(recipe.data, test, first, recipe.seed))
    return found or sources.load(recipe.data, test, first, recipe.seed)


def on_a_mac() -> str | None:
    """What a user of a Mac should know."""
    if sys.platform != "darwin" or torch.cuda.is_available():
        return None
    slower = "the CPU computes, which is much slower than a CUDA GPU"
    return f"macOS is untested: {slower}; the Mac's own GPU (MPS) is not used"


def fits(recipe: Recipe, accelerator: Accelerator) -> int:
    """Pictures whose activations take half of the memory of one process."""
    return max(1, int(_memory(accelerator) / 2 / budget.activations(recipe, fused=accelerator.device.type == "cuda")))


def device_batch(recipe: Recipe, accelerator: Accelerator) -> int:
    """Pictures of one pass without training."""
    return recipe.compute.batch or min(256, fits(recipe, accelerator))


def _memory(accelerator: Accelerator) -> float:
    """Bytes of memory for one process: its GPU's, or its share of the machine's."""
    if accelerator.device.type == "cuda":
        return torch.cuda.get_device_properties(accelerator.device).total_memory
    return psutil.virtual_memory().total / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def workers(recipe: Recipe, accelerator: Accelerator) -> int:
    if recipe.compute.workers is not None:
        return recipe.compute.workers
    share = cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(16, max(1, share - 1)) if accelerator.device.type == "cuda" else 0  # on a CPU they only take cores away


def sharding_facts(accelerator: Accelerator) -> dict[str, Any]:
    """What Accelerate has set up, whatever its configuration requested."""
    together = accelerator.num_processes > 1
    return {
        "accelerate": accelerator.distributed_type.value,
        "backend": distributed.get_backend() if together else None,
        "processes": accelerator.num_processes,
        "machines": gather_object([accelerator.local_process_index]).count(0) if together else 1,
    }


def _first_there(recipe: Recipe, accelerator: Accelerator) -> bool:
    """Whether this process is the first of those on its machine that read the same place, which need not all hash it."""
    here = (socket.gethostname(), recipe.data.path)
    return gather_object([here]).index(here) == accelerator.process_index


def facts(recipe: Recipe, accelerator: Accelerator, spread: batches.Spread, splits: sources.Splits) -> dict[str, Any]:
    """What environment.json says beyond versions and hardware."""
    device = accelerator.device
    return {
        "data": fingerprints.of(splits, recipe.data.path) if _first_there(recipe, accelerator) else {},
        "classes": list(splits.train.classes),  # label 0 is the first
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "processes": spread.processes,
        "device_batch": spread.device_batch,
        "accumulation": spread.accumulation,
        "threads": torch.get_num_threads(),
        "precision": recipe.compute.precision,
    }
