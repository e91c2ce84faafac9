"""The plans of a space, best first: memory decides first, then a bound, and what is left is simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from knee.arrays import Bools, ByValue, Floats, Ints
from knee.cost.step_parts import shapes_of
from knee.errors import InputError, argument
from knee.progress import Progress, silent
from knee.search.bound import least_compute_s, least_step_s
from knee.search.plan_filter import matching
from knee.search.space import Space, whole_table
from knee.simulator import CHUNK, Results, simulate_table
from knee.specs.choices import Objective
from knee.specs.hardware import Cluster
from knee.specs.job import Job
from knee.specs.plan import RECOMPUTES, Plan
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile
from knee.workload.memory import MemoryColumns, memory_of
from knee.workload.traffic import Modes, traffic_of

LIKELY, FIRST = 8192, 1024
"""Plans with the least compute, and of those the ones with the least bounds, simulated first: one is near the best."""
MARGIN = 1.15
"""Plans whose bound is so much above the best step found are left out: they cannot come within an eighth of it."""
LEAN_MARGIN = 2.0
"""The same where tokens per joule are asked for: a slower step may draw less."""
SLACK = 0.98
"""Of a bound: where a stage waits anyway, some of what it is made of hides."""
MORE_MEMORY = 1.25
SHARES = (0.25, 0.5, 0.75)
"""Of the layers, that a plan recomputes where none do not fit: every fourth, every second, three of four."""
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "comm_buffers", "context")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchResult(ByValue):
    """A searched space."""

    space: Space
    cluster: Cluster
    profile: Profile
    objective: Objective
    plans: int
    """Valid plans within the limits, and those that a share of recomputed layers adds."""
    too_large: dict[str, int]
    """Those that do not fit in memory, by the part that takes most of theirs."""
    bounded: int
    """Those whose least time shows that they cannot come near the best."""
    table: PlanTable
    """The others, simulated, best first."""
    results: Results
    nearly: PlanTable
    """Plans that a quarter more memory would hold, not simulated."""
    least_memory: PlanTable
    """The plan that needs least memory, in a table of one row (none for an empty space)."""
    least_memory_bytes: float

    def __len__(self) -> int:
        return len(self.table)

    def job(self, row: int) -> Job:
        """One of the simulated plans as a job."""
        space = self.space
        return Job(
            model=space.model,
            cluster=self.cluster,
            profile=self.profile,
            plan=self.table.plan(row),
            gpus=space.gpus,
            global_batch=space.global_batch,
            seq_len=space.seq_len,
        )

    @property
    def scores(self) -> Floats:
        """What the plans are ordered by; more is better."""
        return score(self.results, self.objective)


def score(results: Results, objective: Objective) -> Floats:
    """More is better."""
    column: Floats = getattr(results, objective)
    return -column if objective == "usd_per_mtoken" else column


def memory_table(space: Space, profile: Profile, table: PlanTable) -> MemoryColumns:
    """Memory of every plan."""
    modes = Modes.of(table)
    traffic = traffic_of(space.model, table, modes, scatters_sends=profile.scatters_sends)
    return memory_of(space.model, profile, table, shapes_of(table), modes, traffic)


def search(
    space: Space,
    cluster: Cluster,
    profile: Profile,
    *,
    objective: Objective = "tokens_per_s",
    only: str | None = None,
    margin: float = MARGIN,
    progress: Progress = silent,
) -> SearchResult:
    """Find the best plans of a space; with a ``margin`` of 1 the best one alone."""
    if objective == "usd_per_mtoken" and cluster.usd_per_gpu_h is None:
        hint = f"give {argument('overrides')} cluster.usd_per_gpu_h='2.5 USD/h'"
        text = f"the price of {cluster.name} is unknown"
        raise InputError(text, hint=hint, code="no-rate", field="cluster.usd_per_gpu_h")
    if space.gpus > cluster.max_gpus:
        text = f"gpus is {space.gpus:,}; {cluster.name} is described only up to {cluster.max_gpus:,}"
        raise InputError(text, code="out-of-range", field="gpus")
    _check_modelled(space, cluster, profile)
    progress("listing plans", 0, 0)
    table = whole_table(space)
    fits, total, _ = _memory(space, cluster, profile, table)
    partly = partly_recomputed(space, cluster, profile, table, fits)
    if only is not None:
        chosen = np.flatnonzero(matching(table, only))
        table, fits, total = table.rows(chosen), fits[chosen], total[chosen]
        partly = partly.rows(np.flatnonzero(matching(partly, only)))
    too_large = _by_part(space, cluster, profile, table.rows(np.flatnonzero(~fits)))
    least = np.array([int(np.argmin(total))]) if len(table) else np.array([], dtype=np.int64)
    left = joined(table.rows(np.flatnonzero(fits)), partly)
    if objective == "tokens_per_j":
        margin = max(margin, LEAN_MARGIN)
    simulated, results = _simulated(space, cluster, profile, left, margin, progress)
    order = np.argsort(-score(results, objective), kind="stable")
    return SearchResult(
        space=space,
        cluster=cluster,
        profile=profile,
        objective=objective,
        plans=len(table) + len(partly),
        too_large=too_large,
        bounded=len(left) - len(simulated),
        table=simulated.rows(order),
        results=results_rows(results, order),
        nearly=table.rows(np.flatnonzero(~fits & (total <= MORE_MEMORY * cluster.gpu.hbm_bytes))),
        least_memory=table.rows(least),
        least_memory_bytes=float(total[least[0]]) if len(least) else float("nan"),
    )


def partly_recomputed(space: Space, cluster: Cluster, profile: Profile, table: PlanTable, fits: Bools) -> PlanTable:
    """Plans that do not fit without recomputation, with the least share of layers recomputed that makes them fit.

    More than that share only costs time, and a plan that fits without needs none.
    """
    open_ = np.flatnonzero(~fits & (table.recompute == RECOMPUTES.index("none")))
    given = set(space.recomputes)
    if given and not ("none" in given and given & {"blocks", "full"}):
        open_ = open_[:0]
    largest, *smaller = sorted(SHARES, reverse=True)
    # what does not fit with most of its layers recomputed need not be asked again
    open_ = open_[_with_share(space, cluster, profile, table.rows(open_), largest)[1]]
    found = []
    for share in sorted(smaller):
        some, fits_now = _with_share(space, cluster, profile, table.rows(open_), share)
        found.append(some.rows(np.flatnonzero(fits_now)))
        open_ = open_[~fits_now]
    return joined(*found, _with_share(space, cluster, profile, table.rows(open_), largest)[0])


def _with_share(
    space: Space, cluster: Cluster, profile: Profile, table: PlanTable, share: float
) -> tuple[PlanTable, Bools]:
    """The plans with that share of their layers recomputed, and which of them fit."""
    blocks = np.full(len(table), RECOMPUTES.index("blocks"))
    some = replace(table, recompute=blocks, recompute_frac=np.full(len(table), share))
    return some, _memory(space, cluster, profile, some)[0]


def joined(*tables: PlanTable) -> PlanTable:
    """Tables one after the other."""
    columns = {
        f.name: np.concatenate([getattr(t, f.name) for t in tables]) for f in fields(PlanTable) if f.name != "placement"
    }
    return PlanTable(placement=tables[0].placement, **columns)


def results_rows(results: Results, index: Ints) -> Results:
    """Some of the rows."""
    return Results(**{f.name: getattr(results, f.name)[index] for f in fields(Results)})


def _check_modelled(space: Space, cluster: Cluster, profile: Profile) -> None:
    """Refuse what no plan could be simulated on: a precision, an attention kernel, a length."""
    one = replace(Plan(), precision=space.fixed.precision, reduce_dtype=space.fixed.reduce_dtype)
    Job(model=space.model, cluster=cluster, profile=profile, plan=one, gpus=1, global_batch=1, seq_len=space.seq_len)


def _memory(space: Space, cluster: Cluster, profile: Profile, table: PlanTable) -> tuple[Bools, Floats, Ints]:
    """Which plans fit, what each needs, and which of PARTS takes most of it."""
    totals, largest = [np.zeros(0)], [np.zeros(0, dtype=np.int64)]
    for i in range(0, len(table), CHUNK):
        memory = memory_table(space, profile, table.rows(slice(i, i + CHUNK)))
        totals.append(memory.total_bytes)
        largest.append(np.argmax(np.stack([getattr(memory, f"{part}_bytes") for part in PARTS]), axis=0))
    total = np.concatenate(totals)
    return total <= cluster.gpu.hbm_bytes, total, np.concatenate(largest)


def _by_part(space: Space, cluster: Cluster, profile: Profile, table: PlanTable) -> dict[str, int]:
    """How many plans, by the part that takes most of their memory."""
    counts = np.bincount(_memory(space, cluster, profile, table)[2], minlength=len(PARTS))
    return {name: int(n) for name, n in zip(PARTS, counts, strict=True) if n}


def _simulated(
    space: Space, cluster: Cluster, profile: Profile, table: PlanTable, margin: float, progress: Progress
) -> tuple[PlanTable, Results]:
    """Simulate what may come near the best step."""
    if not len(table):
        return table, simulate_table(space.model, cluster, profile, table)
    progress("pruning plans", 0, 0)
    loose = _by_chunk(least_compute_s, space, cluster, profile, table)
    likely = np.sort(np.argsort(loose, kind="stable")[:LIKELY])
    tight = _by_chunk(least_step_s, space, cluster, profile, table.rows(likely))
    first = np.sort(likely[np.argsort(tight, kind="stable")[:FIRST]])
    some = simulate_table(space.model, cluster, profile, table.rows(first))
    most = margin * some.step_s.min()
    near = np.flatnonzero(SLACK * loose <= most)
    near = near[SLACK * _by_chunk(least_step_s, space, cluster, profile, table.rows(near)) <= most]
    rest = np.setdiff1d(near, first)
    # neighbours share pipelines, so that chunks in the space's order have fewer of them
    done, parts = 0, [some]
    for i in range(0, len(rest), CHUNK):
        progress("simulating plans", done, len(rest))
        parts.append(simulate_table(space.model, cluster, profile, table.rows(rest[i : i + CHUNK])))
        done += CHUNK
    index = np.concatenate((first, rest))
    results = Results(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Results)})
    return table.rows(index), results


def _by_chunk(
    bound: Callable[..., Floats], space: Space, cluster: Cluster, profile: Profile, table: PlanTable
) -> Floats:
    pieces = [table.rows(slice(i, i + CHUNK)) for i in range(0, len(table), CHUNK)]
    return np.concatenate([np.zeros(0), *(bound(space.model, cluster, profile, piece) for piece in pieces)])
