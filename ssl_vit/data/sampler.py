"""The order of rows stored in shards: shards are permuted first, then rows within windows, so that
reads stay local.

Legend: S shards; other arrays have one entry for each requested position.
"""

from functools import lru_cache

import numpy as np

from .. import rng


class WindowSampler:
    """The rows of an epoch as a stateless function of its key; only the sizes of shards are stored.

    The shards are permuted and concatenated, and the result is cut into windows of `window` rows.
    A window is cut into `batch` parts of window // batch consecutive rows, one for each position of
    the global batch, and each part is permuted on its own. The window's order takes one row of each
    part, then the next row of each part, and so on: number q comes from part q % batch. The
    remainder, fewer than `batch` rows, comes last, permuted.

    So a batch contains a row of every part, and a process, which has the same positions in each
    batch, reads parts that no other process reads. 6 rows in the shards (0 1 2) and (3 4 5), with
    window=6 and batch=2:

        shards permuted, concatenated    3 4 5 0 1 2
        cut into one part a position     3 4 5 | 0 1 2
        each part permuted               4 5 3 | 1 2 0
        one row of each part in turn     4 1, 5 2, 3 0    three batches
    """

    def __init__(self, sizes_S: np.ndarray, window: int, batch: int) -> None:
        self.sizes_S = sizes_S
        self.window = window
        self.batch = batch
        self.start_S = np.cumsum(sizes_S) - sizes_S
        self.length = int(sizes_S.sum())
        # two entries, because a batch may contain the end of one epoch and the start of the next
        self._shards_of = lru_cache(maxsize=2)(self._permute_shards)

    def rows(self, position: np.ndarray, key: np.ndarray) -> np.ndarray:
        """The rows at these positions, 0 .. length-1, of the epochs with these keys."""
        row = np.empty_like(position)
        for epoch in np.unique(key).tolist():
            in_epoch = key == epoch
            order_S, end_S = self._shards_of(epoch)
            offset = self._permute_windows(position[in_epoch], epoch)
            number = np.searchsorted(end_S, offset, side="right")
            shard = order_S[number]
            offset_in_shard = offset - (end_S[number] - self.sizes_S[shard])
            row[in_epoch] = self.start_S[shard] + offset_in_shard
        return row

    def _permute_shards(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The shards in the epoch's order, and the offset at which each ends in their
        concatenation."""
        count = len(self.sizes_S)
        order_S = rng.permute(np.arange(count), count, rng.stream(np.array([epoch]), "shards"))
        return order_S, np.cumsum(self.sizes_S[order_S])

    def _permute_windows(self, position: np.ndarray, epoch: int) -> np.ndarray:
        """Positions of an epoch -> offsets in the concatenated shards, within the same windows."""
        offset = np.empty_like(position)
        for window in np.unique(position // self.window).tolist():
            in_window = position // self.window == window
            first = window * self.window
            count = min(self.window, self.length - first)  # an epoch's last window may be smaller
            order = _permute_parts(
                position[in_window] - first, count, self.batch, rng.key(epoch, window)
            )
            offset[in_window] = first + order
        return offset


def _permute_parts(position: np.ndarray, count: int, parts: int, key: np.ndarray) -> np.ndarray:
    """The image of each position under a permutation of 0 .. count-1 that takes one entry of each
    of `parts` equal parts in turn; the remainder is permuted at the end."""
    size = count // parts
    remainder = parts * size  # where it begins
    permuted = np.empty_like(position)
    in_part = position < remainder
    number, part = np.divmod(position[in_part], parts)
    permuted[in_part] = part * size + rng.permute(number, size, rng.key(key, part))
    permuted[~in_part] = remainder + rng.permute(
        position[~in_part] - remainder, count - remainder, rng.key(key, parts)
    )
    return permuted
