"""Hash (key, slot) to random numbers without state, bit-identical in NumPy and torch, CPU and GPU.

A sample's key is a hash of (seed, epoch, index). Each use of a key (crop, flip, corruption) derives
a separate stream by name, so that a sample is the same on any number of workers and processes and
after any interruption. Arguments are int64 arrays or int64 tensors, whose arithmetic wraps around.
The result is an array for arrays, and a tensor for tensors.
"""

from typing import Any

import numpy as np

GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64: splitmix64's step
SORTED = 64  # up to this many items are permuted by sorting their hashes


def _shift(x: Any, n: int) -> Any:
    """Shift int64 right by n bits. Zeros fill the upper bits, also for negative numbers.

    `>>` alone would fill the upper bits of a negative number with ones.
    """
    return (x >> n) & ((1 << (64 - n)) - 1)


def _mix(x: Any) -> Any:
    """Apply splitmix64's finaliser, a bijection of int64.

    The finaliser is from Steele, Lea and Flood (2014), with the constants of Stafford's variant 13.
    """
    x = (x ^ _shift(x, 30)) * -4658895280553007687
    x = (x ^ _shift(x, 27)) * -7723592293110705685
    return x ^ _shift(x, 31)


def bits(key: Any, slot: Any) -> Any:
    """Return 64 random bits as int64 for each (key, slot), with broadcasting.

    Args:
        key: Seed of splitmix64, int64.
        slot: Number of the output of splitmix64, from 0.
    """
    if isinstance(slot, int):
        # Python's integers do not wrap around, so the product is wrapped to the range of int64
        step = ((slot + 1) * GAMMA + 2**63) % 2**64 - 2**63
    else:
        # torch.compile may turn an arange into symbols, which do not wrap around. The xor with
        # key & 0, a tensor of zeros, turns the symbols into an int64 tensor with the same numbers.
        step = ((slot ^ (key & 0)) + 1) * GAMMA
    return _mix(key + step)


def key(*parts: Any) -> np.ndarray:
    """Hash integers, such as (seed, epoch, index), to a key.

    The other functions of this module turn the key into random numbers. Equal integers give equal
    keys.

    Args:
        *parts: Integers or integer arrays, which are broadcast.

    Returns:
        Keys, int64, with at least one dimension.
    """
    hashed = np.zeros(1, np.int64)
    for part in parts:
        hashed = bits(hashed, np.atleast_1d(np.asarray(part, np.int64)))
    return hashed


def stream_id(purpose: str) -> int:
    """Hash the name of a stream of random numbers, such as "crop", by 32-bit FNV-1a.

    Compiled code cannot call this function: torch 2.11 cannot trace a loop over bytes.
    """
    hashed = 0x811C9DC5
    for byte in purpose.encode():
        hashed = (hashed ^ byte) * 0x01000193 % 2**32
    return hashed


def stream(key: Any, purpose: str | int) -> Any:
    """Derive a key for one purpose, such as "crop", so that no two purposes share random numbers.

    Compiled code passes the `stream_id` of the purpose, computed at import.
    """
    slot = stream_id(purpose) if isinstance(purpose, str) else purpose
    return bits(key, slot)


def uniform(key: Any, slot: Any) -> Any:
    """Return uniform numbers in [0, 1), as multiples of 2^-24, which float32 holds exactly."""
    return _shift(bits(key, slot), 40) * 2.0**-24


def top_bits(value: Any, n: int) -> Any:
    """Return the upper n bits of int64 numbers, for 0 < n < 64.

    The result is from 0 to 2^n - 1, also for negative numbers.
    """
    return _shift(value, 64 - n)


def integers(key: Any, slot: Any, n: Any) -> Any:
    """Return a uniform integer from 0 to n-1 for each (key, slot), for 0 < n < 2^31.

    A random number of 31 bits, from 0 to 2^31 - 1, is multiplied by n and divided by 2^31. The bias
    of the integers is below n / 2^31.
    """
    return (_shift(bits(key, slot), 33) * n) >> 31


def permute(position: Any, n: int, key: Any, rounds: int = 6) -> np.ndarray:
    """Return the items at some positions of a random permutation of 0 to n-1.

    The key selects the permutation. Up to SORTED items are sorted by (hash, index), so all orders
    are equally likely.

    More items are permuted by a balanced Feistel network over the next power of four. An item that
    is not below n is put into the network again (cycle walking: Black and Rogaway, 2002). The
    network needs memory only for the requested positions, and not for the whole permutation.

    The network has two weaknesses. For few items, some orders are more likely than others, visibly
    below 20 items. Therefore few items are sorted instead. If n is a power of four, the network
    gives only even permutations (an even number of swaps), which are half of all permutations.
    Nobody can notice this for more than SORTED items.

    Args:
        position: Positions from 0 to n-1, an integer or integer array.
        n: Number of items.
        key: Random key for each position, or a single key. A NumPy array, not a tensor.
        rounds: Rounds of the Feistel network.

    Returns:
        The item at each position, int64.
    """
    position, key = np.broadcast_arrays(
        np.atleast_1d(np.asarray(position, np.int64)), np.asarray(key, np.int64)
    )
    if n <= SORTED:
        return _sorted(position, n, key)
    half_bits = ((n - 1).bit_length() + 1) // 2
    mask = (1 << half_bits) - 1

    def feistel(x: np.ndarray, key: np.ndarray) -> np.ndarray:
        left = x >> half_bits
        right = x & mask
        for r in range(rounds):
            # the round function is a hash of the right half and the number of the round
            left, right = right, left ^ (bits(key, right * rounds + r) & mask)
        return (left << half_bits) | right

    item = feistel(position, key)
    while (item >= n).any():
        outside = item >= n
        item[outside] = feistel(item[outside], key[outside])
    return item


def _sorted(position: np.ndarray, n: int, key: np.ndarray) -> np.ndarray:
    """Sort 0 to n-1 by (hash, index), and return the items at the positions."""
    # sort once for each distinct key, because all positions of an epoch have the same key
    keys, key_index = np.unique(key, return_inverse=True)
    hashes = bits(stream(keys, "permute")[:, None], np.arange(n))
    order = np.argsort(hashes, axis=1, kind="stable")
    return order[key_index.reshape(position.shape), position]
