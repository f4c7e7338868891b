"""The order of rows that lie in shards: shards permuted by key, then the rows inside a window, so
that reading stays local.

Legend: S shards; everything else has one value for each place asked for.
"""

from functools import lru_cache

import numpy as np

from .. import rng


class WindowSampler:
    """The rows of an epoch, as a function of its key and of nothing read before.

    The shards are permuted and laid end to end, and this is cut into windows of so many rows. A
    window is dealt out evenly to `lanes`, one for each place of the global batch: place q of the
    window takes the next row of part q mod lanes, in an order of the part's own. So a batch has a
    row of every part of the window, and a process, which has the same places in each batch, reads
    parts that no other process reads. What does not go evenly ends the window, permuted. Memory:
    the shards' sizes.
    """

    def __init__(self, sizes_S: np.ndarray, window: int, lanes: int) -> None:
        self.sizes_S, self.window, self.lanes = sizes_S, window, lanes
        self.start_S = np.cumsum(sizes_S) - sizes_S
        self.length = int(sizes_S.sum())
        self._laid = lru_cache(maxsize=2)(self._lay)  # a batch may straddle two epochs

    def rows(self, place: np.ndarray, key: np.ndarray) -> np.ndarray:
        """The rows at these places, 0 .. length-1, of the epochs with these keys."""
        found = np.empty_like(place)
        for epoch in np.unique(key).tolist():
            mine = key == epoch
            order_S, end_S = self._laid(epoch)
            laid = self._stirred(place[mine], epoch)
            at = np.searchsorted(end_S, laid, side="right")
            shard = order_S[at]
            found[mine] = self.start_S[shard] + laid - (end_S[at] - self.sizes_S[shard])
        return found

    def _lay(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The shards in the epoch's order, and where each ends when they are laid end to end."""
        count = len(self.sizes_S)
        order_S = rng.permute(np.arange(count), count, rng.stream(np.array([epoch]), "shards"))
        return order_S, np.cumsum(self.sizes_S[order_S])

    def _stirred(self, place: np.ndarray, epoch: int) -> np.ndarray:
        """Places of an epoch -> places in the shards laid end to end, of the same window."""
        stirred = np.empty_like(place)
        for window in np.unique(place // self.window).tolist():
            mine, first = place // self.window == window, window * self.window
            count = min(self.window, self.length - first)
            stirred[mine] = first + _deal(
                place[mine] - first, count, self.lanes, rng.key(epoch, window)
            )
        return stirred


def _deal(place: np.ndarray, count: int, lanes: int, key: np.ndarray) -> np.ndarray:
    """A permutation of 0 .. count-1 that takes the parts of `lanes` in turn."""
    each = count // lanes
    dealt, even = np.empty_like(place), place < each * lanes
    turn, lane = np.divmod(place[even], lanes)
    dealt[even] = lane * each + rng.permute(turn, each, rng.key(key, lane))
    rest = each * lanes
    dealt[~even] = rest + rng.permute(place[~even] - rest, count - rest, rng.key(key, lanes))
    return dealt
