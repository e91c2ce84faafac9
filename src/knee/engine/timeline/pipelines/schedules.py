"""Pipeline schedules as orders: which action each rank runs after which.

An action is a kind, a chunk of the rank and a microbatch: F is the forward, B the backward (of the input alone where W
exists), W the backward of the weights. A schedule is nothing but the order on each rank, and ``recurrence`` finds when
each action runs.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from knee.base.arrays import Ints
from knee.specs.plan import SPLIT_BACKWARD, Schedule

KINDS = ("F", "B", "W")
F, B, W = range(len(KINDS))


class Order(NamedTuple):
    """The actions of one rank, first to last."""

    kind: Ints
    """F, B or W."""
    chunk: Ints
    micro: Ints
    late: Ints
    """Actions that follow before the output of this one leaves; 0 where it leaves at once."""


def gpipe(rank: int, ranks: int, microbatches: int) -> Order:
    """All forwards, then all backwards."""
    del rank, ranks
    every = np.arange(microbatches)
    return _one_chunk(np.repeat((F, B), microbatches), np.concatenate((every, every)))


def one_f_one_b(rank: int, ranks: int, microbatches: int) -> Order:
    """Narayanan et al. 2019 (PipeDream-flush): warm up, then one forward and one backward in turn."""
    return _one_chunk(*_in_turn(min(ranks - rank - 1, microbatches), microbatches))


def zero_bubble(rank: int, ranks: int, microbatches: int) -> Order:
    """ZB-H1 (Qi et al., arXiv 2401.10241): 1F1B's memory, weight gradients put off to fill the drain.

    Rank r puts off r weight gradients, because it would wait that long for its first backward's successors.
    """
    kind, _, micro, _ = one_f_one_b(rank, ranks, microbatches)
    followed = (kind == B) & (micro >= rank)
    places = np.arange(len(kind)) + np.cumsum(followed) - followed
    kinds, micros = np.full(len(kind) + followed.sum(), W), np.empty(len(kind) + followed.sum(), dtype=np.int64)
    kinds[places], micros[places] = kind, micro
    micros[places[followed] + 1] = micro[followed] - rank
    left = np.arange(max(microbatches - rank, 0), microbatches)
    return _one_chunk(np.concatenate((kinds, np.full(len(left), W))), np.concatenate((micros, left)))


def interleaved(rank: int, ranks: int, microbatches: int, chunks: int) -> Order:
    """Narayanan et al. 2021 (Megatron-LM): each rank holds several chunks, microbatches run in groups of ranks."""
    total = microbatches * chunks
    kind, number = _in_turn(min((ranks - rank - 1) * 2 + (chunks - 1) * ranks, total), total)
    chunk = number % (ranks * chunks) // ranks
    micro = number // (ranks * chunks) * ranks + number % ranks
    return Order(kind, np.where(kind == F, chunk, chunks - 1 - chunk), micro, np.zeros_like(kind))


def dualpipe(rank: int, ranks: int, microbatches: int) -> Order:
    """DualPipe (DeepSeek-V3, arXiv 2412.19437, section 3.2.1): so many microbatches from each end. Chunk 0 is a rank's
    stage on the way from the first rank to the last, chunk 1 on the way back. A forward and a backward that run beside
    each other are one action after the other here, and hand their outputs on at the end of both.

    Source:  deepseek-ai/DualPipe, dualpipe/dualpipe.py: the eight steps of ``DualPipe.step``
    """
    half, inner = ranks // 2, min(rank, ranks - 1 - rank)
    # the second half of the ranks sees both directions the other way round
    swap = int(rank >= half)
    actions: list[tuple[int, int, int, int]] = []
    ran, put_off = {F: [0, 0], B: [0, 0]}, deque[tuple[int, int]]()

    def forward(way: int, *, late: int = 0) -> None:
        actions.append((F, way ^ swap, ran[F][way], late))
        ran[F][way] += 1

    def backward(way: int, *, split: bool = False) -> None:
        actions.append((B, way ^ swap, ran[B][way], 0 if split else 1))
        put_off.append((way ^ swap, ran[B][way]))
        ran[B][way] += 1
        if not split:
            actions.append((W, *put_off.pop(), 0))

    def weights() -> None:
        actions.append((W, *put_off.popleft(), 0))

    def pair(way: int) -> None:
        forward(way, late=2)
        backward(1 - way)

    for _ in range(2 * (half - inner - 1)):
        forward(0)
    for _ in range(inner + 1):
        forward(0)
        forward(1)
    for _ in range(half - inner - 1):
        backward(1, split=True)
        weights()
        forward(1)
    for _ in range(microbatches - ranks + inner + 1):
        pair(0)
        pair(1)
    for _ in range(half - inner - 1):
        backward(1)
        pair(1)
    # about half of the last backwards leave their weights for the drain
    for i in range(2 * (inner + 1)):
        backward(1 - i % 2, split=i > inner)
    for _ in range(half - inner - 1):
        weights()
        backward(0, split=True)
    while put_off:
        weights()
    return Order(*np.array(actions, dtype=np.int64).T)


def _in_turn(warmup: int, total: int) -> tuple[Ints, Ints]:
    """Kinds and numbers of forwards and backwards: so many forwards, then one of each in turn, then backwards."""
    kind, number = np.empty(2 * total, dtype=np.int64), np.empty(2 * total, dtype=np.int64)
    every = np.arange(total)
    forward = np.where(every < warmup, every, 2 * every - warmup)
    backward = np.where(every < total - warmup, warmup + 2 * every + 1, total + every)
    kind[forward], kind[backward] = F, B
    number[forward], number[backward] = every, every
    return kind, number


def _one_chunk(kind: Ints, micro: Ints) -> Order:
    return Order(kind, np.zeros_like(kind), micro, np.zeros_like(kind))


def orders(schedule: Schedule, ranks: int, chunks: int, microbatches: int) -> list[Order]:
    """The order on each rank; of DualPipe's microbatches, those of one direction."""
    if schedule == "interleaved":
        return [interleaved(r, ranks, microbatches, chunks) for r in range(ranks)]
    if schedule == "dualpipe":
        return [dualpipe(r, ranks, microbatches) for r in range(ranks)]
    make = {"gpipe": gpipe, "1f1b": one_f_one_b, "zero_bubble": zero_bubble}[schedule]
    return [make(r, ranks, microbatches) for r in range(ranks)]


def in_flight(schedule: Schedule, rank: int, ranks: int, chunks: int, microbatches: int) -> int:
    """Most microbatch-chunks whose activations a rank holds at once."""
    kind = orders(schedule, ranks, chunks, microbatches)[rank].kind
    releases = W if schedule in SPLIT_BACKWARD else B
    return int(np.cumsum((kind == F) * 1 - (kind == releases)).max())
