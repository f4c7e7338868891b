"""Split the global batch over processes and passes, without torch.

The global batch is cut into chunks of the device batch. Process p of P processes takes the chunks
p, P+p, 2P+p, ...
"""

from typing import NamedTuple

from ..errors import UserError


class BatchLayout(NamedTuple):
    """Batch sizes, with global_batch = device_batch * processes * accumulation_steps."""

    global_batch: int
    device_batch: int
    rank: int
    processes: int

    @classmethod
    def divide(
        cls, batch: int, wanted: int | None, limit: int, rank: int, processes: int
    ) -> "BatchLayout":
        """Return the layout of a global batch of `batch` images.

        Args:
            batch: Images in the global batch.
            wanted: The device batch. If None, the device batch is the largest number up to `limit`
                that divides the images of a process.
            limit: The largest device batch to choose. Not used if `wanted` is a number.
            rank: The rank of this process.
            processes: The number of processes.

        Raises:
            UserError: The processes or the wanted device batch do not divide the global batch.
        """
        if batch % processes:
            raise UserError(
                f"optim.batch={batch}: {processes} processes cannot share {batch} images equally."
                f" Use a multiple of {processes}."
            )
        per_process = batch // processes
        if wanted is None:
            divisors = (n for n in range(1, min(per_process, limit) + 1) if per_process % n == 0)
            wanted = max(divisors)
        if per_process % wanted:
            raise UserError(
                f"compute.batch={wanted}: with optim.batch={batch} each process has {per_process}"
                f" images, which cannot be divided into batches of {wanted} images. Use a divisor"
                f" of {per_process} as compute.batch."
            )
        return cls(batch, wanted, rank, processes)

    @property
    def accumulation_steps(self) -> int:
        """Return the number of micro-batches of a process in a step."""
        return self.global_batch // (self.device_batch * self.processes)

    def chunk_index(self, micro_batch: int) -> int:
        """Return the number of the chunk that is micro-batch `micro_batch` of this process.

        With 2 processes, the micro-batches 0, 1, 2 of process 1 are the chunks 1, 3, 5.
        """
        return micro_batch * self.processes + self.rank
