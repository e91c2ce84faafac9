"""Runs collectives over groups of ranks and times them, growing messages until they take too long or do not fit."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from knee.probe.collective_grid import ELEMENT_BYTES, CollectiveSeries
from knee.probe.measure_points import error_text
from knee.probe.overlap_timing import measure_beside
from knee.probe.torchrun_ranks import Ranks
from knee.record.probe_points import CollectivePoint, Record, key_of
from knee.units import show

BATCH_S = {"cuda": 5e-3, "cpu": 0.0}
"""Short collectives are timed several in a row on GPUs, as nccl-tests do: a start costs as much as one. On a host
one at a time: its scheduler stops some for milliseconds, and in a row all would have a share in that."""
LINED_UP_S = 5e-3
"""Shorter ones follow one that is not timed: ranks leave a barrier one after the other, and a collective together."""
BOUND_BYTES = 1 << 20
"""From here on time grows with size, so that the next size's time can be foreseen."""

Add = Callable[[CollectivePoint, Record], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long a probe may take."""

    longest_s: float
    """One execution; larger messages are left out."""
    rounds: int
    """Passes over the sizes of a series: what changes from second to second shows in the spread."""
    round_s: float
    """Spent on one size in one pass."""


FULL = {"cuda": Effort(longest_s=0.5, rounds=3, round_s=0.05), "cpu": Effort(longest_s=0.2, rounds=4, round_s=0.1)}
QUICK = {"cuda": Effort(longest_s=0.1, rounds=2, round_s=0.03), "cpu": Effort(longest_s=0.3, rounds=3, round_s=0.08)}
FEWEST, MOST = 3, 40
"""Samples of a size in one pass."""


@dataclass(slots=True, kw_only=True)
class _Trial:
    """A size that is being measured."""

    point: CollectivePoint
    run: Callable[[], None]
    each: int
    """Executions in a sample."""
    lined_up: bool
    """After one that is not timed."""
    samples: int
    """In one pass."""
    times_s: list[float] = field(default_factory=list)


def measure_all(
    ranks: Ranks,
    series: Sequence[CollectiveSeries],
    known: Mapping[str, float | None],
    effort: Effort,
    add: Add,
    tell: Callable[[CollectiveSeries], None],
) -> bool:
    """Measure what is not known yet; False where someone asked to stop.

    ``add`` hears of every point, ``tell`` of every series that is over, both on every rank.
    """
    group, axis = None, None
    for one in series:
        if finished(one, known):
            continue
        if ranks.stopped():
            return False
        if axis != one.axis:
            if group is not None:
                ranks.leave(group)
            axis, group = one.axis, ranks.group(one.axis.ranks(ranks.launch.rank))
        with ranks.together():
            if not (_beside if one.beside else _alone)(ranks, group, one, known, effort, add):
                return False
        tell(one)
    return True


def finished(series: CollectiveSeries, known: Mapping[str, float | None]) -> bool:
    """Whether nothing of a series is left to measure."""
    return all(key_of(point) in known for point in series.points)


def _beside(
    ranks: Ranks, group: Any, series: CollectiveSeries, known: Mapping[str, float | None], effort: Effort, add: Add
) -> bool:
    for point in series.points:
        if key_of(point) in known:
            continue
        if ranks.stopped():
            return False
        if (record := _too_large(ranks, point)) is None:
            gather, words = _tried(lambda point=point: call_of(ranks, group, point, wait=False))  # type: ignore[misc]
            if (words := ranks.first_error(words)) is not None:
                record = {"error": words}
            else:
                assert gather is not None
                record = measure_beside(ranks, gather, effort.rounds)
        add(point, record)
    return True


def _alone(
    ranks: Ranks, group: Any, series: CollectiveSeries, known: Mapping[str, float | None], effort: Effort, add: Add
) -> bool:
    """One collective, all sizes. What an interruption finds unfinished is measured anew the next time."""
    trials, failure = _ready(ranks, group, series, known, effort)
    for _ in range(effort.rounds):
        for trial in trials:
            if ranks.stopped():
                return False
            trial.times_s += _sample(ranks, trial)
    for trial in trials:
        add(trial.point, reading(trial.times_s, trial.each))
    if failure is not None:
        add(*failure)
    return True


def reading(times_s: Sequence[float], each: int) -> Record:
    """What is kept of the samples: the lowest tenth's end, because whatever disturbs one rank holds all of them up.

    On quiet GPUs it is the median within a per cent or two. With more processes than cores the scheduler stops
    three collectives out of four, and a median tells of it. The spread is half of the middle half, over the time.
    """
    low_s = statistics.quantiles(times_s, n=10, method="inclusive")[0]
    quartiles = statistics.quantiles(times_s, n=4, method="inclusive")
    return {
        "time_s": low_s,
        "median_s": quartiles[1],
        "spread_frac": (quartiles[2] - quartiles[0]) / 2 / low_s,
        "samples": len(times_s),
        "each": each,
    }


def _ready(
    ranks: Ranks, group: Any, series: CollectiveSeries, known: Mapping[str, float | None], effort: Effort
) -> tuple[list[_Trial], tuple[CollectivePoint, Record] | None]:
    """Sizes that are worth measuring, each tried once, and what ended the series if that was an error."""
    trials: list[_Trial] = []
    size, took_s = 0, 0.0
    for point in series.points:
        # foreseen rather than tried: one execution four times too long costs more than all before it
        if size >= BOUND_BYTES and took_s * point.size_bytes / size > effort.longest_s:
            break
        if (key := key_of(point)) in known:
            before_s = known[key]
            if before_s is None:
                break
            size, took_s = point.size_bytes, before_s
            continue
        if (record := _too_large(ranks, point)) is not None:
            return trials, (point, record)
        run, words = _tried(lambda point=point: call_of(ranks, group, point))  # type: ignore[misc]
        if (words := ranks.first_error(words)) is not None:
            return trials, (point, {"error": words})
        assert run is not None
        size, took_s = point.size_bytes, _pilot_s(ranks, run)
        each = max(1, round(BATCH_S[ranks.kind] / took_s))
        lined_up = each * took_s < LINED_UP_S or each > 1
        samples = max(FEWEST, min(MOST, round(effort.round_s / ((each + lined_up) * took_s))))
        trials.append(_Trial(point=point, run=run, each=each, lined_up=lined_up, samples=samples))
    return trials, None


def _tried(make: Callable[[], Callable[[], None]]) -> tuple[Callable[[], None] | None, str | None]:
    """A collective that ran once, or why it cannot."""
    try:
        run = make()
        run()
    except (RuntimeError, ValueError) as error:  # what torch raises where a backend lacks a collective or memory
        return None, error_text(error)
    return run, None


def _too_large(ranks: Ranks, point: CollectivePoint) -> Record | None:
    # smaller sizes of the series stay allocated: a third more
    needs, free = 4 / 3 * _buffer_bytes(point), ranks.free_bytes()
    if needs <= free:
        return None
    return {"error": f"not enough memory: needs {show(needs, 'bytes')}, but {show(free, 'bytes')} are free"}


def _pilot_s(ranks: Ranks, run: Callable[[], None]) -> float:
    """A first idea of how long it takes, the same on all ranks."""
    ranks.barrier()
    start = time.perf_counter()
    for _ in range(3):
        run()
    ranks.synchronize()
    return ranks.slowest([(time.perf_counter() - start) / 3])[0]


def _sample(ranks: Ranks, trial: _Trial) -> list[float]:
    """Samples of one pass; each is the slowest rank's, because a collective is over when all have it."""
    times_s = []
    for _ in range(trial.samples):
        ranks.barrier()
        if trial.lined_up:
            trial.run()
            ranks.synchronize()
        start = time.perf_counter()
        for _ in range(trial.each):
            trial.run()
        ranks.synchronize()
        times_s.append((time.perf_counter() - start) / trial.each)
    return ranks.slowest(times_s)


def _buffer_bytes(point: CollectivePoint) -> float:
    """Memory that one rank's buffers take."""
    parts = {
        "all_gather": 1 + 1 / point.group,
        "reduce_scatter": 1 + 1 / point.group,
        "all_to_all": 2.0,
        "send_receive": 2.0,
    }
    return point.size_bytes * parts.get(point.collective, 1.0)


def call_of(ranks: Ranks, group: Any, point: CollectivePoint, *, wait: bool = True) -> Callable[[], Any]:
    """The collective on buffers of its own, in place where nccl-tests' first column is not."""
    import torch
    import torch.distributed as dist

    # torch 2.13 renamed both and warns of the old names
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

    def buffer(parts: int = 1) -> Any:
        return torch.ones(point.size_bytes // ELEMENT_BYTES // parts, dtype=torch.float32, device=ranks.device)

    whole = buffer()
    match point.collective:
        case "all_reduce":
            # sums grow without end in place; the largest of ones stays one
            return lambda: dist.all_reduce(whole, op=dist.ReduceOp.MAX, group=group)
        case "all_gather":
            part = buffer(point.group)
            return lambda: all_gather(whole, part, group=group, async_op=not wait)
        case "reduce_scatter":
            part = buffer(point.group)
            return lambda: reduce_scatter(part, whole, group=group)
        case "all_to_all":
            other = buffer()
            return lambda: dist.all_to_all_single(other, whole, group=group)
        case "broadcast":
            return lambda: dist.broadcast(whole, group=group, group_src=0)
        case "send_receive":
            return _ring(whole, buffer(), group)
    raise ValueError(f"there is no collective {point.collective!r}")


def _ring(sent: Any, received: Any, group: Any) -> Callable[[], None]:
    """Every rank sends to the next and receives from the one before, as nccl-tests' sendrecv."""
    import torch.distributed as dist

    here, size = dist.get_rank(group), dist.get_world_size(group)

    def run() -> None:
        operations = [
            dist.P2POp(dist.isend, sent, group=group, group_peer=(here + 1) % size),
            dist.P2POp(dist.irecv, received, group=group, group_peer=(here - 1) % size),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return run
