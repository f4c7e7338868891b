"""How the global batch is split over processes and passes. No torch here.

It is cut into chunks of the device batch: process p of P takes chunks p, P+p, 2P+p, ...
"""

from typing import NamedTuple

from ..errors import UserError


class BatchLayout(NamedTuple):
    """global_batch = device_batch * processes * accumulation_steps."""

    global_batch: int
    device_batch: int
    rank: int
    processes: int

    @classmethod
    def divide(
        cls, batch: int, wanted: int | None, limit: int, rank: int, processes: int
    ) -> "BatchLayout":
        """The layout with the wanted device batch, else with the largest one up to `limit` that
        divides the global batch over the processes.

        Raises:
            UserError: the processes or the wanted device batch do not divide the global batch.
        """
        if batch % processes:
            raise UserError(f"optim.batch={batch}: not divisible by {processes} processes")
        per_process = batch // processes
        if wanted and per_process % wanted:
            raise UserError(
                f"compute.batch={wanted}: {processes} processes x {wanted} do not divide "
                f"optim.batch={batch}"
            )
        divisors = (n for n in range(1, min(per_process, limit) + 1) if per_process % n == 0)
        return cls(batch, wanted or max(divisors), rank, processes)

    @property
    def accumulation_steps(self) -> int:
        return self.global_batch // (self.device_batch * self.processes)

    def chunk_index(self, micro_batch: int) -> int:
        """The chunk of the global batch that is this process's micro-batch with this number."""
        return micro_batch * self.processes + self.rank
