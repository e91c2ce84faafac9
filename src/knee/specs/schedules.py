"""Pipeline schedules: for each, the order of its actions, what it allows, what it holds, and its name elsewhere.

An action is a kind, a chunk of the rank and a microbatch: F is the forward, B the backward (of the input alone where W
exists), W the backward of the weights. A schedule is the order of the actions on each rank;
``engine.timeline.pipelines.recurrence`` finds when each of them runs. This is the only file that knows a schedule by
its name: a new one is an entry of ``PIPELINE_SCHEDULES`` and a word of ``Schedule``.

NumPy is imported inside functions, because options and plans read this file and start without it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from knee.base.arrays import Ints

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero_bubble", "dualpipe"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)

ACTION_KINDS = ("F", "B", "W")
F, B, W = range(len(ACTION_KINDS))


class Order(NamedTuple):
    """The actions of one rank, first to last."""

    kind: Ints
    """F, B or W."""
    chunk: Ints
    micro: Ints
    late: Ints
    """Actions that follow before the output of this one leaves; 0 where it leaves at once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PipelineSchedule:
    """One schedule. P is the number of pipeline ranks, V of virtual stages, M of microbatches, r a rank from 0 on.

    Functions of P, V, M and r take numbers or columns of plans.
    """

    name: Schedule
    order: Callable[[int, int, int, int], Order]
    """(r, P, chunks of a rank, microbatches of one direction) -> the order of the rank's actions."""
    in_flight: Callable[[Any, Any, Any, Any], Any]
    """(P, V, M, r) -> most microbatch-chunks whose activations the rank holds at once; a test counts the order's."""
    passes_alone: Callable[[Any, Any], Any]
    """(P, M) -> passes of a rank without a pass of another microbatch, the other way, beside them: those of the warm-up
    and of the drain, mean over ranks. Tokens that travel to experts are hidden beside the others."""
    bubble: Callable[[int, int, float, float, float], float]
    """(P, V, F, B, W) -> time that a rank waits in a pipeline of equal stages, F, B and W being its times of one
    microbatch. Textbooks have it, and a test holds the order against it."""
    source: str
    directions: int = 1
    """Ends of the pipeline from which microbatches come; a rank has a stage for each."""
    virtual: bool = False
    """Whether a rank has several chunks (virtual stages), and microbatches run in groups of P; others have one."""
    splits_backward: bool = False
    """Whether gradients of weights are computed apart from those of inputs."""
    separate_halves: bool = False
    """Whether all forwards come before all backwards: each half then has its own busiest rank."""
    by_default: bool = True
    """Whether a search tries it without being asked; few stacks have the others."""
    torch: str | None
    """Its class in torch.distributed.pipelining; None where torch runs it only from an order of ours."""
    trained: bool = True
    """Whether the trainer runs it."""
    torchtitan: str | None
    """torchtitan's --parallelism.pipeline_parallel_schedule; None if it has none with the same stages."""
    megatron: bool = False
    """Whether Megatron-LM runs it: interleaved with --num-virtual-stages-per-pipeline-rank, 1f1b without."""

    @property
    def code(self) -> int:
        """What stands for it in a table of plans."""
        return SCHEDULES.index(self.name)

    def chunks_per_rank(self, virtual: int) -> int:
        """Virtual stages, or one chunk for each direction."""
        return self.directions if self.directions > 1 else virtual

    def period(self, ranks: int) -> int:
        """Microbatches after which the order repeats itself."""
        return ranks if self.virtual else 1

    def orders(self, ranks: int, chunks: int, microbatches: int) -> list[Order]:
        """The order on each rank; ``microbatches`` are those of one direction."""
        return [self.order(rank, ranks, chunks, microbatches) for rank in range(ranks)]

    def takes_ranks(self, pp: Any) -> Any:
        """Whether so many ranks make a pipeline of it: each direction starts from its own half."""
        return pp % self.directions == 0

    def takes_microbatches(self, pp: Any, microbatches: Any) -> Any:
        """Whether so many microbatches fill it: whole groups of P, or as many as ranks from each end.

        Source:  Megatron-LM's interleaved schedule; deepseek-ai/DualPipe, dualpipe/dualpipe.py: num_chunks is even and
                 at least twice the number of ranks
        """
        if self.directions > 1:
            each = self.directions * pp
            return self.takes_ranks(pp) & (microbatches % self.directions == 0) & (microbatches >= each)
        return microbatches % self.period(pp) == 0


def _gpipe(rank: int, ranks: int, chunks: int, microbatches: int) -> Order:
    """All forwards, then all backwards."""
    import numpy as np

    del rank, ranks, chunks
    every = np.arange(microbatches)
    return _one_chunk(np.repeat((F, B), microbatches), np.concatenate((every, every)))


def _one_f_one_b(rank: int, ranks: int, chunks: int, microbatches: int) -> Order:
    """Warm up, then one forward and one backward in turn."""
    del chunks
    return _one_chunk(*_in_turn(min(ranks - rank - 1, microbatches), microbatches))


def _zero_bubble(rank: int, ranks: int, chunks: int, microbatches: int) -> Order:
    """1F1B's memory, weight gradients put off to fill the drain: rank r puts off r of them, because it would wait that
    long for its first backward's successors."""
    import numpy as np

    kind, _, micro, _ = _one_f_one_b(rank, ranks, chunks, microbatches)
    followed = (kind == B) & (micro >= rank)
    places = np.arange(len(kind)) + np.cumsum(followed) - followed
    kinds, micros = np.full(len(kind) + followed.sum(), W), np.empty(len(kind) + followed.sum(), dtype=np.int64)
    kinds[places], micros[places] = kind, micro
    micros[places[followed] + 1] = micro[followed] - rank
    left = np.arange(max(microbatches - rank, 0), microbatches)
    return _one_chunk(np.concatenate((kinds, np.full(len(left), W))), np.concatenate((micros, left)))


def _interleaved(rank: int, ranks: int, chunks: int, microbatches: int) -> Order:
    """Each rank holds several chunks, microbatches run in groups of ranks."""
    import numpy as np

    total = microbatches * chunks
    kind, number = _in_turn(min((ranks - rank - 1) * 2 + (chunks - 1) * ranks, total), total)
    chunk = number % (ranks * chunks) // ranks
    micro = number // (ranks * chunks) * ranks + number % ranks
    return Order(kind, np.where(kind == F, chunk, chunks - 1 - chunk), micro, np.zeros_like(kind))


def _dualpipe(rank: int, ranks: int, chunks: int, microbatches: int) -> Order:
    """So many microbatches from each end. Chunk 0 is a rank's stage on the way from the first rank to the last, chunk 1
    on the way back. A forward and a backward that run beside each other are one action after the other here, and hand
    their outputs on at the end of both.

    Source:  deepseek-ai/DualPipe, dualpipe/dualpipe.py: the eight steps of ``DualPipe.step``
    """
    import numpy as np

    del chunks
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
    import numpy as np

    kind, number = np.empty(2 * total, dtype=np.int64), np.empty(2 * total, dtype=np.int64)
    every = np.arange(total)
    forward = np.where(every < warmup, every, 2 * every - warmup)
    backward = np.where(every < total - warmup, warmup + 2 * every + 1, total + every)
    kind[forward], kind[backward] = F, B
    number[forward], number[backward] = every, every
    return kind, number


def _one_chunk(kind: Ints, micro: Ints) -> Order:
    return Order(kind, kind * 0, micro, kind * 0)


def _least(one: Any, other: Any) -> Any:
    """The smaller of two numbers, or of two columns of whole numbers."""
    return one + (other - one) * (other < one)


ONE_F_ONE_B = PipelineSchedule(
    name="1f1b",
    order=_one_f_one_b,
    in_flight=lambda p, _v, m, r: _least(m, p - r),
    passes_alone=lambda p, _m: (p + 1) / 2,  # P - r of them on rank r: the warm-up is one longer if tokens travel
    bubble=lambda p, _v, f, b, w: (p - 1) * (f + b + w),
    source="Narayanan et al. 2019 (PipeDream-flush)",
    torch="Schedule1F1B",
    torchtitan="1F1B",
    megatron=True,
)
INTERLEAVED = PipelineSchedule(
    name="interleaved",
    order=_interleaved,
    in_flight=lambda p, v, m, r: _least(m * v, 2 * (p - r - 1) + (v - 1) * p + 1),
    passes_alone=lambda p, _m: p,
    bubble=lambda p, v, f, b, w: (p - 1) * (f + b + w) / v,
    source="Narayanan et al. 2021 (Megatron-LM)",
    virtual=True,
    torch="ScheduleInterleaved1F1B",
    torchtitan="Interleaved1F1B",
    megatron=True,
)
ZERO_BUBBLE = PipelineSchedule(
    name="zero_bubble",
    order=_zero_bubble,
    in_flight=lambda p, _v, m, _r: _least(m, p),
    passes_alone=ONE_F_ONE_B.passes_alone,
    bubble=lambda p, _v, f, b, w: (p - 1) * (f + b - w),
    source="ZB-H1: Qi et al., arXiv 2401.10241, table 1",
    splits_backward=True,
    torch=None,  # its own zero-bubble classes want two stages per rank
    torchtitan=None,
)
PIPELINE_SCHEDULES: tuple[PipelineSchedule, ...] = (
    PipelineSchedule(
        name="gpipe",
        order=_gpipe,
        in_flight=lambda _p, _v, m, _r: m,
        passes_alone=lambda _p, m: m,  # there are no pairs
        bubble=lambda p, _v, f, b, w: (p - 1) * (f + b + w),
        source="Huang et al., arXiv 1811.06965",
        separate_halves=True,
        torch="ScheduleGPipe",
        torchtitan="GPipe",
    ),
    ONE_F_ONE_B,
    INTERLEAVED,
    ZERO_BUBBLE,
    PipelineSchedule(
        name="dualpipe",
        order=_dualpipe,
        in_flight=lambda p, _v, m, _r: _least(m, p + 1),
        # 2 P - p - 1 on the p-th rank from either end, less those of its fifth step
        passes_alone=lambda p, _m: 1.25 * p - 0.5,
        # (P / 2 - 1) (F&B + B - 3 W) of one of its two stages, B a whole backward and F as long as B - W
        bubble=lambda p, _v, f, b, w: (p / 2 - 1) * (f + 2 * (b + w) - 3 * w) / 2,
        source="DeepSeek-V3, arXiv 2412.19437, section 3.2.1 and table 2",
        directions=2,
        splits_backward=True,
        by_default=False,
        torch=None,
        trained=False,  # torch's pipelines have one copy of each stage
        torchtitan=None,
    ),
)
"""In the order of ``SCHEDULES``, whose places are the codes of a table of plans."""


def schedule_of(name: Schedule | str) -> PipelineSchedule:
    """The schedule of that name."""
    return next(one for one in PIPELINE_SCHEDULES if one.name == name)


def usual_schedule(virtual_stages: int) -> PipelineSchedule:
    """What Megatron-LM runs with so many virtual stages."""
    return INTERLEAVED if virtual_stages > 1 else ONE_F_ONE_B


def searched_schedules() -> list[PipelineSchedule]:
    """In the order of a search: those of one chunk, of several, and then those that it tries only if it is asked."""
    return sorted(PIPELINE_SCHEDULES, key=lambda one: (not one.by_default, one.virtual))
