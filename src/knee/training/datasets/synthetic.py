"""Synthetic tokens that a model can learn: a Markov chain whose entropy is known, as cheap as random numbers.

Tokens have ranks, and frequencies that fall with the rank as those of words do: the ranks 1, 2-3, 4-7, 8-15, ... are
equally likely together, and alike inside such an octave (Zipf's law in steps). Ranks that fill no octave belong to the
last one. A token is drawn by frequency or, just as often, is the successor of the token before it, which has the next
rank. Frequencies and successors depend on the size of the vocabulary alone, so that runs with other seeds, and
validation, have the same language.
"""

from __future__ import annotations

from functools import lru_cache
from math import log

import numpy as np
from numpy.typing import NDArray

from knee.training.datasets.permutation import GOLDEN, Words, mix, permute

FOLLOWS = 0.5
"""Probability of the successor: one bit of a random word."""
FURTHEST = 60
"""A chain of more successors is less likely than any rounding error."""
_BIT, _OCTAVE, _PLACE = np.uint64(1), np.uint64(40), np.uint64(32)
"""A word's lowest bit says whether its token is drawn, its highest 24 the octave, and 32 others the place in it."""


def markov_tokens(keys: Words, length: int, vocab_size: int) -> NDArray[np.int64]:
    """A row of tokens below ``vocab_size`` for each key."""
    words = mix(keys[:, None] + np.arange(length, dtype=np.uint64) * GOLDEN)
    firsts, sizes = _octaves(vocab_size)
    octave = ((words >> _OCTAVE) * np.uint64(len(sizes))) >> np.uint64(64 - int(_OCTAVE))
    place = (((words >> np.uint64(8)) & np.uint64(2**32 - 1)) * sizes[octave]) >> _PLACE
    at = np.arange(length)
    is_drawn = (words & _BIT) == 0
    is_drawn[:, 0] = True
    drawn_at = np.maximum.accumulate(np.where(is_drawn, at, 0), axis=1)  # of each token the last draw up to it
    rank = np.take_along_axis(firsts[octave] + place, drawn_at, axis=1).astype(np.int64) + (at - drawn_at)
    return np.asarray(_tokens_by_rank(vocab_size)[rank % vocab_size])


def _octaves(vocab_size: int) -> tuple[Words, Words]:
    """The first rank of each octave, from 0, and the number of its ranks; the last has all that are left."""
    firsts = [2**octave - 1 for octave in range((vocab_size + 1).bit_length() - 1)]
    ends = [*firsts[1:], vocab_size]
    return np.array(firsts, np.uint64), np.array([b - a for a, b in zip(firsts, ends, strict=True)], np.uint64)


@lru_cache(maxsize=4)
def _tokens_by_rank(vocab_size: int) -> NDArray[np.int64]:
    """Frequent tokens lie anywhere in the vocabulary: ranks that share it (tp) have equal parts of them."""
    return permute(np.arange(vocab_size, dtype=np.uint64), vocab_size, 0, 0).astype(np.int64)


def frequencies(vocab_size: int) -> NDArray[np.float64]:
    """Return the probability of each rank where a token is drawn."""
    sizes = _octaves(vocab_size)[1].astype(np.int64)
    return np.repeat(1 / (len(sizes) * sizes), sizes)


@lru_cache(maxsize=4)
def best_loss(vocab_size: int) -> float:
    """The loss, in nats per token, of a model that has learned everything: the entropy of the chain.

    Formula: sum over r of s(r) H(r), with s = (1 - q) (z + q z' + q^2 z'' + ...) and
    H(r) = (1 - q) (Hz - ln(1 - q)) + g(r) ln g(r) - (q + g(r)) ln(q + g(r)), g(r) = (1 - q) z(r + 1).
    Where: q is the probability of the successor, z the frequencies by rank, z' those of ranks one higher, Hz the
    entropy of z, s(r) how often rank r occurs, H(r) the entropy of the token after it, g(r) the probability that its
    successor is drawn and not followed.
    Source: the entropy rate of a Markov chain (Shannon, 1948).
    Valid: for long sequences; the first token of a row is always drawn.
    """
    drawn, q = frequencies(vocab_size), FOLLOWS
    occurs = sum((1 - q) * q**n * np.roll(drawn, n) for n in range(FURTHEST))
    again = (1 - q) * np.roll(drawn, -1)
    entropy = (1 - q) * (-(drawn * np.log(drawn)).sum() - log(1 - q))
    after = entropy + again * np.log(again) - (q + again) * np.log(q + again)
    return float((occurs * after).sum())
