"""Many ranks of a process group as threads of one process.

torch's threaded process group is private: only tests use it. Its collectives are real: each waits
for all ranks.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import distributed
from torch.testing._internal.distributed import multi_threaded_pg

T = TypeVar("T")
R = TypeVar("R")
set_thread_isolation = getattr(torch._C._distributed_c10d, "_set_thread_isolation_mode")  # noqa: B009


def run_ranks(work: Callable[[T, int, int], R], arguments: Sequence[T]) -> list[R]:
    """Call `work(argument, rank, number of ranks)` in one thread for each argument.

    Returns:
        The results, in the order of ranks.

    Raises:
        Exception: The first exception of any rank. The ranks that wait for this rank stop too.
    """
    world_size = len(arguments)
    results: dict[int, R] = {}
    errors: dict[int, BaseException] = {}
    multi_threaded_pg.ProcessLocalGroup.reset()
    world = multi_threaded_pg._install_threaded_pg()
    set_thread_isolation(True)
    store = distributed.HashStore()

    def run(rank: int) -> None:
        try:
            distributed.init_process_group(
                "threaded", rank=rank, world_size=world_size, store=store
            )
            results[rank] = work(arguments[rank], rank, world_size)
        except BaseException as error:
            errors[rank] = error
            multi_threaded_pg.ProcessLocalGroup.exception_handle(error)
        finally:
            if world.default_pg is not None:
                distributed.destroy_process_group()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        multi_threaded_pg._uninstall_threaded_pg()
        set_thread_isolation(False)
    for rank in sorted(errors):
        # ranks that only waited for the failed rank end without a message of their own
        if not isinstance(errors[rank], SystemExit):
            raise errors[rank]
    return [results[rank] for rank in range(world_size)]
