"""The order of rows in shards: shards permuted by key, then rows inside of windows, so that reading
stays local.

Legend: S shards; other arrays have an entry for each requested place.
"""

from functools import lru_cache

import numpy as np

from .. import rng


class WindowSampler:
    """The rows of an epoch, as a stateless function of its key; it keeps the shards' sizes only.

    The shards are permuted and laid end to end, and cut into windows of `window` rows. A window is
    divided into `lanes` equal parts, one for each place of the global batch. Place q of the window
    takes the next row of part q mod lanes, and each part is permuted on its own. So a batch has a
    row of every part, and a process, which has the same places in each batch, reads parts that no
    other process reads. The rest of a window, fewer than `lanes` rows, comes last, permuted.
    """

    def __init__(self, sizes_S: np.ndarray, window: int, lanes: int) -> None:
        self.sizes_S = sizes_S
        self.window = window
        self.lanes = lanes
        self.start_S = np.cumsum(sizes_S) - sizes_S
        self.length = int(sizes_S.sum())
        self._laid = lru_cache(maxsize=2)(self._lay)  # a batch may straddle two epochs

    def rows(self, place: np.ndarray, key: np.ndarray) -> np.ndarray:
        """The rows at these places, 0 .. length-1, of the epochs with these keys."""
        found = np.empty_like(place)
        for epoch in np.unique(key).tolist():
            mine = key == epoch
            order_S, end_S = self._laid(epoch)
            laid = self._permuted(place[mine], epoch)
            at = np.searchsorted(end_S, laid, side="right")
            shard = order_S[at]
            found[mine] = self.start_S[shard] + laid - (end_S[at] - self.sizes_S[shard])
        return found

    def _lay(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The shards in the epoch's order, and where each ends when they are laid end to end."""
        count = len(self.sizes_S)
        order_S = rng.permute(np.arange(count), count, rng.stream(np.array([epoch]), "shards"))
        return order_S, np.cumsum(self.sizes_S[order_S])

    def _permuted(self, place: np.ndarray, epoch: int) -> np.ndarray:
        """Places of an epoch -> places in the same windows of the shards laid end to end."""
        permuted = np.empty_like(place)
        for window in np.unique(place // self.window).tolist():
            mine = place // self.window == window
            first = window * self.window
            count = min(self.window, self.length - first)
            key = rng.key(epoch, window)
            permuted[mine] = first + _deal(place[mine] - first, count, self.lanes, key)
        return permuted


def _deal(place: np.ndarray, count: int, lanes: int, key: np.ndarray) -> np.ndarray:
    """A permutation of 0 .. count-1 that takes rows of the `lanes` parts in turn."""
    each = count // lanes
    dealt = np.empty_like(place)
    even = place < each * lanes
    turn, lane = np.divmod(place[even], lanes)
    dealt[even] = lane * each + rng.permute(turn, each, rng.key(key, lane))
    rest = each * lanes
    dealt[~even] = rest + rng.permute(place[~even] - rest, count - rest, rng.key(key, lanes))
    return dealt
