"""Collectives measured by one rank among the others: rank 0 keeps the readings, every rank measures."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from knee.base.errors import KneeError, RunFailed
from knee.base.signals import catch_signals
from knee.base.units import show
from knee.measure.machine.collective_grid import ELEMENT_BYTES, CollectiveSeries
from knee.measure.machine.listener import SILENT, ProbeListener, ProbeStopped, error_text
from knee.measure.machine.machine_facts import TorchrunLaunch, describe, open_nvml
from knee.measure.machine.readings import CollectivePoint, Machine, ReadingsFile, Record, key_of, read_readings

# This process among the others of a torchrun job: meeting, agreeing, and stopping together.
# Every decision about what is measured next has to fall alike on all ranks, or they wait for each other for ever.
# Control messages go over a gloo group of their own, so that they work while NCCL is what is measured.

MEETING_S = 300
"""How long ranks wait for each other."""
_UNTIL_THE_END = ExitStack()
"""Signals are caught as long as the process lives: torchrun sends more of them while a rank says how far it came."""


class Ranks:
    """The job's ranks, met."""

    def __init__(self, launch: TorchrunLaunch, device: str) -> None:
        self.launch, self.kind = launch, device
        self.device = torch.device(device, launch.local_rank) if device == "cuda" else torch.device("cpu")
        if device == "cuda":
            torch.cuda.set_device(self.device)
        wait = timedelta(seconds=MEETING_S)
        with self.together():
            dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=wait)
            self.control = dist.new_group(backend="gloo", timeout=wait)
        self.stop = _UNTIL_THE_END.enter_context(catch_signals(second_ends=True))

    @contextmanager
    def together(self) -> Iterator[None]:
        """What all ranks do at once: it fails when one of them is gone."""
        try:
            yield
        except RuntimeError as error:
            first = str(error).strip().splitlines()[0][:160]
            raise RunFailed(
                f"rank {self.launch.rank} lost contact with the other ranks: {first}",
                hint="the readings are saved; find out why the other rank stopped, then run the same command again",
            ) from None

    def slowest(self, values: Sequence[float]) -> list[float]:
        """The largest of all ranks' values, one by one."""
        column = torch.tensor(list(values), dtype=torch.float64)
        with self.together():
            dist.all_reduce(column, op=dist.ReduceOp.MAX, group=self.control)
        return [float(value) for value in column]

    def any(self, flag: bool) -> bool:
        """Whether it holds on some rank."""
        return self.slowest([float(flag)])[0] > 0

    def stopped(self) -> bool:
        """Whether some rank was asked to stop."""
        return self.any(self.stop.signal is not None)

    def barrier(self) -> None:
        """All ranks are here, and their devices have nothing left to do."""
        self.synchronize()
        with self.together():
            dist.barrier(group=self.control)

    def synchronize(self) -> None:
        """The device has done what was asked of it."""
        if self.kind == "cuda":
            torch.cuda.synchronize()

    def share(self, value: Any) -> Any:
        """Rank 0's value, on all."""
        box = [value]
        with self.together():
            dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def first_error(self, words: str | None) -> str | None:
        """The first rank's error, on all; None where none had any."""
        # strings are gathered only when there is one: most points have none
        if not self.any(words is not None):
            return None
        all_words: list[str | None] = [None] * self.launch.world
        with self.together():
            dist.all_gather_object(all_words, words, group=self.control)
        told = {rank: text for rank, text in enumerate(all_words) if text}
        first = min(told)
        alike = len(told) == self.launch.world and len(set(told.values())) == 1
        return told[first] if alike else f"rank {first}: {told[first]}"

    def group(self, members: list[int]) -> Any:
        """A process group of those ranks, of which this is one; other ranks make theirs at the same time."""
        if len(members) == self.launch.world:
            return dist.group.WORLD
        with self.together():
            return dist.new_group(members, use_local_synchronization=True)

    def leave(self, group: Any) -> None:
        """Give a group's connections and buffers back."""
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)

    def free_bytes(self) -> float:
        """Memory that the fullest rank may use for messages."""
        if self.kind == "cuda":
            free = 0.8 * float(torch.cuda.mem_get_info()[0])
        else:  # processes of a node share its memory, and gloo keeps copies of what it sends
            free = 0.4 * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / self.launch.per_node
        return -self.slowest([-free])[0]

    def close(self) -> None:
        """Leave the process group of torch.distributed."""
        dist.destroy_process_group()


# An all-gather and products at the same time: how much each slows the other down.

PRODUCT = {"cuda": (8192, 4096, 4096), "cpu": (256, 256, 256)}
"""(m, n, k): a layer's on a GPU; on a CPU one that takes about a millisecond."""
WINDOW_S = {"cuda": 0.03, "cpu": 0.15}
"""The one that is timed runs this long; the other is given half as much again, so that it is there all the while."""
SURPLUS = 1.5


def measure_beside(ranks: Ranks, gather: Callable[[], Any], rounds: int) -> Record:
    """Times of a product and of an all-gather, alone and beside the other; ``gather`` starts one and returns."""
    run = partial(_run_both, ranks, _product(ranks), gather)
    run(3, 3)  # picks algorithms, connects
    window_s = WINDOW_S[ranks.kind]
    products, gathers = 8, 2
    product_s, gather_s = run(products, 0)[0] / products, run(0, gathers)[1] / gathers
    products, gathers = max(4, round(window_s / product_s)), max(2, round(window_s / gather_s))
    samples: dict[str, list[float]] = {name: [] for name in ("gemm", "gemm_beside", "gather", "gather_beside")}
    # alone and beside in turn, so that clocks and neighbours are the same for both
    for _ in range(max(rounds, 3)):
        samples["gemm"].append(run(products, 0)[0] / products)
        samples["gather"].append(run(0, gathers)[1] / gathers)
        # a slowed-down partner outlasts its plan; one that ended early would leave time alone in the sample
        lasting = max(2, round(SURPLUS * 2 * window_s / gather_s))
        samples["gemm_beside"].append(run(products, lasting)[0] / products)
        lasting = max(4, round(SURPLUS * 2 * window_s / product_s))
        samples["gather_beside"].append(run(lasting, gathers)[1] / gathers)
    times = {f"{name}_s": statistics.median(values) for name, values in samples.items()}
    spreads = [(max(v) - min(v)) / 2 / statistics.median(v) for v in samples.values()]
    return {"time_s": times["gather_beside_s"], "spread_frac": max(spreads), "samples": len(samples["gemm"]), **times}


def _run_both(
    ranks: Ranks, multiply: Callable[[], Any], gather: Callable[[], Any], products: int, gathers: int
) -> tuple[float, float]:
    """Run so many products and so many all-gathers at once; return the slowest rank's seconds for each."""
    ended_s = 0.0

    def wait() -> None:
        nonlocal ended_s
        with ExitStack() as own_stream:
            if ranks.kind == "cuda":
                stream = torch.cuda.Stream(ranks.device)
                own_stream.callback(stream.synchronize)
                own_stream.enter_context(torch.cuda.device(ranks.device))
                own_stream.enter_context(torch.cuda.stream(stream))
            for work in works:
                work.wait()
        ended_s = time.perf_counter()

    ranks.barrier()
    start_s = time.perf_counter()
    works = [gather() for _ in range(gathers)]
    waiting = threading.Thread(target=wait)  # with a stream of its own, so that products do not wait for it
    waiting.start()
    launched_s = time.perf_counter()
    for _ in range(products):
        multiply()
    if ranks.kind == "cuda":
        torch.cuda.current_stream().synchronize()
    multiplied_s = time.perf_counter()
    waiting.join()
    product_s, gather_s = ranks.slowest([multiplied_s - launched_s, ended_s - start_s])
    return product_s, gather_s


def _product(ranks: Ranks) -> Callable[[], Any]:
    m, n, k = PRODUCT[ranks.kind]
    # 16-bit products on CPUs are emulated on many: fp32 there
    dtype = torch.bfloat16 if ranks.kind == "cuda" else torch.float32
    left = torch.randn(m, k, dtype=torch.float32, device=ranks.device).to(dtype)
    right = torch.randn(n, k, dtype=torch.float32, device=ranks.device).to(dtype).t()
    out = torch.empty(m, n, dtype=dtype, device=ranks.device)
    return lambda: torch.mm(left, right, out=out)


# Runs collectives over groups of ranks and times them, growing messages until they take too long or do not fit.

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
        gather, error = _prepare(ranks, group, point, wait=False)
        add(point, {"error": error} if gather is None else measure_beside(ranks, gather, effort.rounds))
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
        run, error = _prepare(ranks, group, point)
        if run is None:
            return trials, (point, {"error": error})
        pilot = _Trial(point=point, run=run, each=3, lined_up=False, samples=1)
        size, took_s = point.size_bytes, _sample(ranks, pilot)[0]
        each = max(1, round(BATCH_S[ranks.kind] / took_s))
        lined_up = each * took_s < LINED_UP_S or each > 1
        samples = max(FEWEST, min(MOST, round(effort.round_s / ((each + lined_up) * took_s))))
        trials.append(_Trial(point=point, run=run, each=each, lined_up=lined_up, samples=samples))
    return trials, None


def _prepare(
    ranks: Ranks, group: Any, point: CollectivePoint, *, wait: bool = True
) -> tuple[Callable[[], Any] | None, str | None]:
    """A collective that ran once; or None, on all ranks, and why it cannot run."""
    # smaller sizes of the series stay allocated: a third more
    needs, free = 4 / 3 * _buffer_bytes(point), ranks.free_bytes()
    if needs > free:
        return None, f"not enough memory: needs {show(needs, 'bytes')}, but {show(free, 'bytes')} are free"
    run, words = None, None
    try:
        run = call_of(ranks, group, point, wait=wait)
        run()
    except (RuntimeError, ValueError) as error:  # what torch raises where a backend lacks a collective or memory
        words = error_text(error)
    words = ranks.first_error(words)
    return (run, None) if words is None else (None, words)


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
    here, size = dist.get_rank(group), dist.get_world_size(group)

    def run() -> None:
        operations = [
            dist.P2POp(dist.isend, sent, group=group, group_peer=(here + 1) % size),
            dist.P2POp(dist.irecv, received, group=group, group_peer=(here - 1) % size),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return run


Known = dict[str, float | None]
"""What was measured before -> seconds, or None where it failed."""


def measure_collectives(
    launch: TorchrunLaunch,
    device: str,
    series: Sequence[CollectiveSeries],
    open_file: Callable[[Machine], ReadingsFile],
    *,
    quick: bool,
    listener: ProbeListener,
) -> None:
    """Measure with the other ranks. What is wrong with the file is raised on every rank."""
    ranks = Ranks(launch, device)
    file, known = _open(ranks, open_file)
    if file is None:  # another rank writes, and tells
        listener = SILENT
    elif known:
        listener.resumed(file.path, len(known), None)

    def add(point: CollectivePoint, record: Record) -> None:
        if file is not None:
            file.add(key_of(point), asdict(point) | record)

    if todo := sum(not finished(one, known) for one in series):
        listener.started(todo, "series")
    try:
        effort = (QUICK if quick else FULL)[device]
        complete = measure_all(ranks, series, known, effort, add, lambda one: listener.advanced(one.points[-1]))
    finally:
        listener.ended()
    ranks.close()
    if not complete:
        number = ranks.stop.signal or signal.SIGINT
        raise ProbeStopped(file.path if file else None, kept=len(file.done) if file else 0, signal=number)


def _open(ranks: Ranks, open_file: Callable[[Machine], ReadingsFile]) -> tuple[ReadingsFile | None, Known]:
    """Open the file on rank 0, and tell all ranks what is in it or why it cannot be used."""
    file, failure, known = None, None, {}
    if ranks.launch.rank == 0:
        try:
            nvml = open_nvml()[0] if ranks.kind == "cuda" else None
            file = open_file(describe("collectives", ranks.kind, nvml=nvml, devices=ranks.launch.per_node))
            known = {r["key"]: r.get("time_s") for r in read_readings(file.path).records}
        except KneeError as error:
            failure = error
    failure, known = ranks.share((failure, known))
    if failure is not None:
        ranks.close()
        raise failure
    return file, known
