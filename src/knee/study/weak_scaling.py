"""The paper's weak scaling (its Figures 1, 3, 4 and 10b): Llama-2-7B on 8 to 2,048 H100s, local batch 2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from knee.errors import SpecError
from knee.record.measurement import Kind
from knee.study.runs import Bench, Run

GPUS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
FSDP = "FSDP"
PLANS: dict[str, int] = {FSDP: 1, "TP 2": 2, "TP 4": 4}
"""Plan -> its tensor-parallel degree; the rest of the GPUs is one FSDP group."""
LARGE, LARGEST = 128, 2048
"""The paper's own two ends: up to 128 GPUs communication hides, 2,048 is its largest run."""
PAYS_FRAC = 0.95
"""A doubling pays if it keeps this share of the throughput per GPU, that is, if it buys at least 1.9x."""

ASSUMPTIONS = (
    "Llama-2-7B, DGX H100, sequences of 4,096 tokens, 2 sequences per GPU and step, the paper's software profile",
    "FSDP keeps the gathered parameters between forward and backward, as the paper did; TP groups are inside a node",
    "the ideal line is the throughput of FSDP on 8 GPUs times the number of GPUs over 8",
    "the paper states throughput and tokens per joule as changes only: its points are those changes, put on the "
    "simulated value at 128 GPUs under FSDP; its watts are stated outright; the degree of its TP is not stated",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One point: a plan on a number of GPUs. Times are per step, means over the GPUs."""

    kind: Kind
    model: str
    cluster: str
    profile: str
    plan: str
    tp: int
    gpus: int
    nodes: int
    global_batch: int
    seq_len: int
    step_s: float
    tokens_per_s: float
    ideal_tokens_per_s: float
    tokens_per_s_per_gpu: float
    ideal_tokens_per_s_per_gpu: float
    mfu_frac: float
    flop_convention: str
    compute_s: float
    exposed_comm_s: float
    bubble_s: float
    idle_s: float
    overlapped_comm_s: float
    compute_load_s: float
    comm_load_s: float
    straggler_s: float
    memory_bytes: float
    fits: bool
    power_w_per_gpu: float
    tokens_per_j: float

    @property
    def exposed_frac(self) -> float:
        """Exposed communication as a share of the step."""
        return self.exposed_comm_s / self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperPoint:
    """A value that follows from the paper's text."""

    plan: str
    gpus: int
    metric: str
    """The field of ``Row`` that it is held against."""
    value: float
    how: str
    """``stated``, or how it was derived from what is stated."""
    kind: Kind = "published"


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubling:
    """What twice the GPUs buy under FSDP."""

    from_gpus: int
    to_gpus: int
    speedup: float
    """Global throughput over that before; 2 is ideal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the weak scaling says, in numbers."""

    small_change_frac: float
    """Throughput per GPU under FSDP, 8 to 128 GPUs."""
    large_change_frac: float
    """The same, 128 to 2,048 GPUs."""
    doublings: tuple[Doubling, ...]
    pays_until_gpus: int
    """Every doubling up to this many GPUs pays (``PAYS_FRAC``)."""
    exposed_large_frac: float
    exposed_largest_frac: float
    best_tp: str
    """The faster of TP 2 and TP 4 on 2,048 GPUs."""
    best_tp_gain_frac: float
    best_tp_extra_w: float
    power_large_w: float
    power_largest_w: float
    power_change_frac: float
    tokens_per_j_change_frac: float


def weak_scaling(bench: Bench) -> Iterator[Row]:
    """Simulate the grid, plan by plan."""
    smallest = bench.weak(GPUS[0]).result.tokens_per_s_per_gpu
    for plan, tp in PLANS.items():
        for gpus in GPUS:
            yield _row(plan, bench.weak(gpus, tp=tp) if tp > 1 else bench.weak(gpus), smallest)


def _row(plan: str, run: Run, ideal_per_gpu: float) -> Row:
    job, r = run.job, run.result
    if r.power_w_per_gpu is None or r.tokens_per_j is None:
        raise SpecError(
            f"{job.cluster.gpu.name}: its power is not known", hint="give the GPU its power in the catalogue"
        )
    return Row(
        kind=r.kind,
        model=job.model.name,
        cluster=job.cluster.name,
        profile=job.profile.name,
        plan=plan,
        tp=job.plan.tp,
        gpus=job.gpus,
        nodes=-(-job.gpus // job.cluster.node.gpus),
        global_batch=job.global_batch,
        seq_len=job.seq_len,
        step_s=r.step_s,
        tokens_per_s=r.tokens_per_s,
        ideal_tokens_per_s=ideal_per_gpu * job.gpus,
        tokens_per_s_per_gpu=r.tokens_per_s_per_gpu,
        ideal_tokens_per_s_per_gpu=ideal_per_gpu,
        mfu_frac=r.mfu_frac,
        flop_convention=r.flop_convention,
        compute_s=r.compute_s,
        exposed_comm_s=r.exposed_comm_s,
        bubble_s=r.bubble_s,
        idle_s=r.idle_s,
        overlapped_comm_s=r.overlapped_comm_s,
        compute_load_s=r.compute_load_s,
        comm_load_s=r.comm_load_s,
        straggler_s=r.straggler_s,
        memory_bytes=r.memory_bytes,
        fits=r.fits,
        power_w_per_gpu=r.power_w_per_gpu,
        tokens_per_j=r.tokens_per_j,
    )


def at(rows: Sequence[Row], plan: str, gpus: int) -> Row:
    """The row of a plan on a number of GPUs."""
    return next(row for row in rows if row.plan == plan and row.gpus == gpus)


THROUGHPUT_CHANGE = -0.3722
TP_GAIN = 0.526
POWER_LARGE_W, POWER_LARGEST_W, TP_EXTRA_W = 658.0, 620.0, 30.0
POWER_CHANGE = -0.0587
TP_PLAN = "TP"


def paper_points(rows: Sequence[Row]) -> list[PaperPoint]:
    """The paper's points that belong to this grid, stated or derived from what its sections 4.1 and 5 state."""
    base = at(rows, FSDP, LARGE)
    kept = 1.0 + THROUGHPUT_CHANGE
    scaled = "the stated -37.22% on the simulated 128 GPUs"
    scaled_tp = "the stated -37.22% and +52.60% on the simulated 128 GPUs"
    # tokens per joule is throughput over power, and both changes are stated
    per_joule = kept / (1.0 + POWER_CHANGE)
    per_joule_tp = per_joule * (1.0 + TP_GAIN) * POWER_LARGEST_W / (POWER_LARGEST_W + TP_EXTRA_W)
    points: list[tuple[str, int, str, float, str]] = [
        (FSDP, LARGEST, "tokens_per_s", base.tokens_per_s * LARGEST / LARGE * kept, scaled),
        (TP_PLAN, LARGEST, "tokens_per_s", base.tokens_per_s * LARGEST / LARGE * kept * (1.0 + TP_GAIN), scaled_tp),
        (FSDP, LARGEST, "tokens_per_s_per_gpu", base.tokens_per_s_per_gpu * kept, scaled),
        (TP_PLAN, LARGEST, "tokens_per_s_per_gpu", base.tokens_per_s_per_gpu * kept * (1.0 + TP_GAIN), scaled_tp),
        (FSDP, LARGE, "power_w_per_gpu", POWER_LARGE_W, "stated"),
        (FSDP, LARGEST, "power_w_per_gpu", POWER_LARGEST_W, "stated"),
        (TP_PLAN, LARGEST, "power_w_per_gpu", POWER_LARGEST_W + TP_EXTRA_W, "the stated 620 W and +30 W"),
        (
            FSDP,
            LARGEST,
            "tokens_per_j",
            base.tokens_per_j * per_joule,
            "the stated -37.22% and -5.87% W on the simulated 128 GPUs",
        ),
        (
            TP_PLAN,
            LARGEST,
            "tokens_per_j",
            base.tokens_per_j * per_joule_tp,
            "the stated -37.22%, -5.87% W, +52.60% and +30 W on the simulated 128 GPUs",
        ),
    ]
    return [
        PaperPoint(plan=plan, gpus=gpus, metric=metric, value=value, how=how)
        for plan, gpus, metric, value, how in points
    ]


def findings(rows: Sequence[Row]) -> Findings:
    """What changes with scale, where doublings stop paying, what TP gives back, what it draws."""
    fsdp = [row for row in rows if row.plan == FSDP]
    small, large, largest = fsdp[0], at(rows, FSDP, LARGE), at(rows, FSDP, LARGEST)
    best = max((at(rows, plan, LARGEST) for plan in PLANS if plan != FSDP), key=lambda row: row.tokens_per_s)
    doublings = tuple(
        Doubling(from_gpus=a.gpus, to_gpus=b.gpus, speedup=b.tokens_per_s / a.tokens_per_s) for a, b in pairwise(fsdp)
    )
    return Findings(
        small_change_frac=large.tokens_per_s_per_gpu / small.tokens_per_s_per_gpu - 1.0,
        large_change_frac=largest.tokens_per_s_per_gpu / large.tokens_per_s_per_gpu - 1.0,
        doublings=doublings,
        pays_until_gpus=_pays_until(small.gpus, doublings),
        exposed_large_frac=large.exposed_frac,
        exposed_largest_frac=largest.exposed_frac,
        best_tp=best.plan,
        best_tp_gain_frac=best.tokens_per_s / largest.tokens_per_s - 1.0,
        best_tp_extra_w=best.power_w_per_gpu - largest.power_w_per_gpu,
        power_large_w=large.power_w_per_gpu,
        power_largest_w=largest.power_w_per_gpu,
        power_change_frac=largest.power_w_per_gpu / large.power_w_per_gpu - 1.0,
        tokens_per_j_change_frac=largest.tokens_per_j / large.tokens_per_j - 1.0,
    )


def _pays_until(smallest: int, doublings: Sequence[Doubling]) -> int:
    until = smallest
    for doubling in doublings:
        if doubling.speedup < 2.0 * PAYS_FRAC:
            break
        until = doubling.to_gpus
    return until
