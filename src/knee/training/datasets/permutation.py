"""Shuffles and random words that are functions of their place alone: no state, no memory, the same on every machine.

NumPy does not promise that its generators give the same numbers in later versions; these do.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

ROUNDS = 8
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_ALL = 2**64 - 1


def mix(words: Words) -> Words:
    """64 well-mixed bits for each word.

    Source: Steele, Lea, Flood, Fast splittable pseudorandom number generators (OOPSLA 2014): splitmix64.
    """
    words = words + GOLDEN  # arithmetic of arrays is modulo 2**64
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    return words ^ (words >> np.uint64(31))


def key(*parts: int) -> int:
    """One key of 64 bits from several numbers; another order is another key. ``mix``, without arrays."""
    word = 0
    for part in parts:
        word = ((word ^ (part & _ALL)) + int(GOLDEN)) & _ALL
        word = ((word ^ (word >> 30)) * int(_FIRST)) & _ALL
        word = ((word ^ (word >> 27)) * int(_SECOND)) & _ALL
        word ^= word >> 31
    return word


def permute(places: Words, n: int, seed: int, epoch: int) -> Words:
    """Where each of the places 0 .. n-1 lies in a shuffle of n; O(1) memory, whatever n is.

    A Feistel network permutes the smallest power of two that holds n; what falls outside n is sent round again until
    it falls inside (cycle walking), which takes fewer than two rounds on average.
    Source: Black, Rogaway, Ciphers with arbitrary finite domains (CT-RSA 2002).
    """
    bits = max(2, (n - 1).bit_length())
    keys = _keys(seed, epoch)
    found = _feistel(places, bits, keys)
    while (outside := found >= np.uint64(n)).any():
        found[outside] = _feistel(found[outside], bits, keys)
    return found


@lru_cache(maxsize=16)
def _keys(seed: int, epoch: int) -> tuple[np.uint64, ...]:
    return tuple(np.uint64(key(seed, epoch, turn)) for turn in range(ROUNDS))


def _feistel(words: Words, bits: int, keys: tuple[np.uint64, ...]) -> Words:
    low_bits = np.uint64(bits // 2)
    low_mask, high_mask = np.uint64(2 ** (bits // 2) - 1), np.uint64(2 ** (bits - bits // 2) - 1)
    high, low = words >> low_bits, words & low_mask
    for even, odd in zip(keys[::2], keys[1::2], strict=True):  # either line can be undone, so that nothing collides
        high = high ^ (mix(low ^ even) & high_mask)
        low = low ^ (mix(high ^ odd) & low_mask)
    return (high << low_bits) | low
