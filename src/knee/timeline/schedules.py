"""Pipeline schedules as orders: which action each rank runs after which.

An action is (kind, chunk, microbatch): F forward, B backward (of the input alone where W exists), W backward of the
weights. A schedule is nothing but the order on each rank; ``timeline.pipeline`` finds the times.
"""

from __future__ import annotations

from functools import cache

from knee.specs.plan import Schedule

Action = tuple[str, int, int]
"""(kind, chunk of the rank, microbatch)"""


def gpipe(rank: int, ranks: int, microbatches: int) -> list[Action]:
    """All forwards, then all backwards."""
    del rank, ranks
    return [("F", 0, m) for m in range(microbatches)] + [("B", 0, m) for m in range(microbatches)]


def one_f_one_b(rank: int, ranks: int, microbatches: int) -> list[Action]:
    """Narayanan et al. 2019 (PipeDream-flush): warm up, then one forward and one backward in turn."""
    warmup = min(ranks - rank - 1, microbatches)
    actions: list[Action] = [("F", 0, m) for m in range(warmup)]
    for m in range(microbatches - warmup):
        actions += [("F", 0, warmup + m), ("B", 0, m)]
    return actions + [("B", 0, m) for m in range(microbatches - warmup, microbatches)]


def zero_bubble(rank: int, ranks: int, microbatches: int) -> list[Action]:
    """ZB-H1 (Qi et al., arXiv 2401.10241): 1F1B's memory, weight gradients put off to fill the drain.

    Rank r puts off r weight gradients, because it would wait that long for its first backward's successors.
    """
    actions: list[Action] = []
    pending: list[int] = []
    for action in one_f_one_b(rank, ranks, microbatches):
        actions.append(action)
        if action[0] == "B":
            pending.append(action[2])
            if len(pending) > rank:
                actions.append(("W", 0, pending.pop(0)))
    return actions + [("W", 0, m) for m in pending]


def interleaved(rank: int, ranks: int, microbatches: int, chunks: int) -> list[Action]:
    """Narayanan et al. 2021 (Megatron-LM): each rank holds several chunks, microbatches run in groups of ranks."""
    forwards, backwards = _interleaved_passes(ranks, microbatches, chunks)
    warmup = min((ranks - rank - 1) * 2 + (chunks - 1) * ranks, len(forwards))
    steady = zip(forwards[warmup:], backwards, strict=False)
    return [*forwards[:warmup], *(action for pair in steady for action in pair), *backwards[len(forwards) - warmup :]]


@cache
def _interleaved_passes(ranks: int, microbatches: int, chunks: int) -> tuple[list[Action], list[Action]]:
    """All forwards and all backwards in the order of every rank: a group of microbatches through one chunk after the
    other, backward from the last chunk."""
    passes = [
        (chunk, first + micro)
        for first in range(0, microbatches, ranks)
        for chunk in range(chunks)
        for micro in range(min(ranks, microbatches - first))
    ]
    return [("F", c, m) for c, m in passes], [("B", chunks - 1 - c, m) for c, m in passes]


@cache
def orders(schedule: Schedule, ranks: int, chunks: int, microbatches: int) -> tuple[tuple[Action, ...], ...]:
    """The order on each rank."""
    if schedule == "interleaved":
        return tuple(tuple(interleaved(r, ranks, microbatches, chunks)) for r in range(ranks))
    make = {"gpipe": gpipe, "1f1b": one_f_one_b, "zero_bubble": zero_bubble}[schedule]
    return tuple(tuple(make(r, ranks, microbatches)) for r in range(ranks))


def in_flight(schedule: Schedule, rank: int, ranks: int, chunks: int, microbatches: int) -> int:
    """Most microbatch-chunks whose activations a rank holds at once."""
    held = most = 0
    releases = "W" if schedule == "zero_bubble" else "B"
    for kind, _, _ in orders(schedule, ranks, chunks, microbatches)[rank]:
        held += 1 if kind == "F" else -1 if kind == releases else 0
        most = max(most, held)
    return most
