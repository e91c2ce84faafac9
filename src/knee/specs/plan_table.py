"""Many plans as columns: what the engine evaluates at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from knee.base.arrays import Bools, ByValue, Floats, Ints
from knee.base.errors import SpecError
from knee.specs.job import Job
from knee.specs.plan import (
    AXES,
    COLLECTIVES,
    CP_METHODS,
    DISPATCHERS,
    FP8_RECIPES,
    PRECISIONS,
    RECOMPUTE_MODULES,
    RECOMPUTES,
    REDUCE_DTYPES,
    ROUTINGS,
    SHARDINGS,
    STATE_DTYPES,
    SYNC_DTYPES,
    Plan,
    Recompute,
    RecomputeModule,
)
from knee.specs.schedules import PIPELINE_SCHEDULES, SCHEDULES

_SPLITS = np.array([schedule.splits_backward for schedule in PIPELINE_SCHEDULES])
_TWO_WAY = np.array([schedule.directions > 1 for schedule in PIPELINE_SCHEDULES])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanTable(ByValue):
    """Plans of one model on one cluster under one profile; words are codes into the tuples of ``specs.plan``.

    Rows are taken to be valid: whoever makes a table generates valid plans or goes through ``Job``, which
    checks them.
    """

    gpus: Ints
    global_batch: Ints
    seq_len: Ints
    dp_shard: Ints
    dp_replicate: Ints
    tp: Ints
    pp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    micro_batch: Ints
    virtual_stages: Ints
    prefetch: Ints
    sharding: Ints
    schedule: Ints
    recompute: Ints
    modules: Ints
    """Bit i: the plan recomputes ``RECOMPUTE_MODULES[i]``."""
    cp_method: Ints
    precision: Ints
    fp8_recipe: Ints
    reduce_dtype: Ints
    state_dtype: Ints
    sync_every: Ints
    sync_fragments: Ints
    sync_dtype: Ints
    """0 for the type of gradient reduction; else 1 plus a code into ``SYNC_DTYPES``."""
    collectives: Ints
    dispatcher: Ints
    routing: Ints
    ep_overlap: Bools
    sequence_parallel: Bools
    recompute_frac: Floats
    tp_overlap_frac: Floats
    """NaN where the profile decides."""
    imbalance: Floats
    """NaN where the routing decides."""
    capacity_factor: Floats
    """NaN where no token is dropped."""
    placement: tuple[str, ...] = AXES
    """One for the whole table."""

    def __len__(self) -> int:
        return len(self.gpus)

    @property
    def dp(self) -> Ints:
        """Data-parallel ranks."""
        return self.dp_shard * self.dp_replicate

    @property
    def microbatches(self) -> Ints:
        """Microbatches per data-parallel rank and step."""
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def state_bytes(self) -> Floats:
        """Bytes of one parameter, moment or gradient as the optimizer keeps it."""
        return np.where(self.state_dtype == STATE_DTYPES.index("fp32"), 4.0, 2.0)

    @property
    def micro_tokens(self) -> Ints:
        """Tokens of one microbatch on one context-parallel rank."""
        return self.micro_batch * self.seq_len // self.cp

    @property
    def repeats_frac(self) -> Floats:
        """Share of the blocks that are run again in backward; 0 for plans that recompute no whole block."""
        return np.where(self.recompute >= RECOMPUTES.index("blocks"), self.recompute_frac, 0.0)

    @property
    def splits_backward(self) -> Bools:
        """Plans whose backward is split in two."""
        return _SPLITS[self.schedule] & (self.pp > 1)

    def recomputes(self, policy: Recompute) -> Floats:
        """1 for plans with this policy, 0 for others."""
        return np.where(self.recompute == RECOMPUTES.index(policy), 1.0, 0.0)

    def recomputes_module(self, module: RecomputeModule) -> Floats:
        """1 for plans that recompute this part of a block."""
        return ((self.modules >> RECOMPUTE_MODULES.index(module)) & 1).astype(np.float64)

    def rows(self, index: slice | Ints) -> PlanTable:
        """Some of the rows."""
        columns = {name: getattr(self, name)[index] for name in COLUMNS}
        return PlanTable(placement=self.placement, **columns)

    def plan(self, row: int) -> Plan:
        """One row as a plan."""
        return Plan(
            dp_shard=int(self.dp_shard[row]),
            dp_replicate=int(self.dp_replicate[row]),
            tp=int(self.tp[row]),
            pp=int(self.pp[row]),
            cp=int(self.cp[row]),
            ep=int(self.ep[row]),
            etp=int(self.etp[row]),
            dispatcher=DISPATCHERS[self.dispatcher[row]],
            ep_overlap=bool(self.ep_overlap[row]),
            routing=ROUTINGS[self.routing[row]],
            imbalance=_optional(self.imbalance[row]),
            capacity_factor=_optional(self.capacity_factor[row]),
            sharding=SHARDINGS[self.sharding[row]],
            sequence_parallel=bool(self.sequence_parallel[row]),
            tp_overlap_frac=_optional(self.tp_overlap_frac[row]),
            schedule=SCHEDULES[self.schedule[row]],
            virtual_stages=int(self.virtual_stages[row]),
            cp_method=CP_METHODS[self.cp_method[row]],
            micro_batch=int(self.micro_batch[row]),
            recompute=RECOMPUTES[self.recompute[row]],
            recompute_modules=tuple(m for i, m in enumerate(RECOMPUTE_MODULES) if self.modules[row] >> i & 1),
            recompute_frac=float(self.recompute_frac[row]),
            precision=PRECISIONS[self.precision[row]],
            fp8_recipe=FP8_RECIPES[self.fp8_recipe[row]],
            prefetch=int(self.prefetch[row]),
            reduce_dtype=REDUCE_DTYPES[self.reduce_dtype[row]],
            state_dtype=STATE_DTYPES[self.state_dtype[row]],
            sync_every=int(self.sync_every[row]),
            sync_fragments=int(self.sync_fragments[row]),
            sync_dtype=(None, *SYNC_DTYPES)[self.sync_dtype[row]],
            collectives=COLLECTIVES[self.collectives[row]],
            placement=self.placement,
        )


COLUMNS = tuple(f.name for f in fields(PlanTable) if f.name != "placement")


def _optional(value: float) -> float | None:
    """None where a column has no value."""
    return None if np.isnan(value) else float(value)


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def sync_code(plan: Plan) -> int:
    """The type of the outer sync as the table has it."""
    return 0 if plan.sync_dtype is None else 1 + SYNC_DTYPES.index(plan.sync_dtype)


def table_of(jobs: Sequence[Job]) -> PlanTable:
    """Jobs of one model, cluster, profile and placement as a table."""
    plans = [job.plan for job in jobs]
    for what, of in (
        ("model", [j.model for j in jobs]),
        ("cluster", [j.cluster for j in jobs]),
        ("profile", [j.profile for j in jobs]),
        ("placement", [p.placement for p in plans]),
    ):
        if any(value != of[0] for value in of):
            raise SpecError(f"a table has one {what}, but the jobs differ in it", hint=f"make a table for each {what}")

    def ints(values: Sequence[int]) -> Ints:
        return np.array(values, dtype=np.int64)

    return PlanTable(
        gpus=ints([job.gpus for job in jobs]),
        global_batch=ints([job.global_batch for job in jobs]),
        seq_len=ints([job.seq_len for job in jobs]),
        dp_shard=ints([p.dp_shard for p in plans]),
        dp_replicate=ints([p.dp_replicate for p in plans]),
        tp=ints([p.tp for p in plans]),
        pp=ints([p.pp for p in plans]),
        cp=ints([p.cp for p in plans]),
        ep=ints([p.ep for p in plans]),
        etp=ints([p.etp for p in plans]),
        micro_batch=ints([p.micro_batch for p in plans]),
        virtual_stages=ints([p.virtual_stages for p in plans]),
        prefetch=ints([p.prefetch for p in plans]),
        sharding=ints([SHARDINGS.index(p.sharding) for p in plans]),
        schedule=ints([SCHEDULES.index(p.schedule) for p in plans]),
        recompute=ints([RECOMPUTES.index(p.recompute) for p in plans]),
        modules=ints([sum(1 << RECOMPUTE_MODULES.index(m) for m in set(p.recompute_modules)) for p in plans]),
        cp_method=ints([CP_METHODS.index(p.cp_method) for p in plans]),
        precision=ints([PRECISIONS.index(p.precision) for p in plans]),
        fp8_recipe=ints([FP8_RECIPES.index(p.fp8_recipe) for p in plans]),
        reduce_dtype=ints([REDUCE_DTYPES.index(p.reduce_dtype) for p in plans]),
        state_dtype=ints([STATE_DTYPES.index(p.state_dtype) for p in plans]),
        sync_every=ints([p.sync_every for p in plans]),
        sync_fragments=ints([p.sync_fragments for p in plans]),
        sync_dtype=ints([sync_code(p) for p in plans]),
        collectives=ints([COLLECTIVES.index(p.collectives) for p in plans]),
        dispatcher=ints([DISPATCHERS.index(p.dispatcher) for p in plans]),
        routing=ints([ROUTINGS.index(p.routing) for p in plans]),
        ep_overlap=np.array([p.ep_overlap for p in plans], dtype=np.bool_),
        sequence_parallel=np.array([p.sequence_parallel for p in plans], dtype=np.bool_),
        recompute_frac=np.array([p.recompute_frac for p in plans], dtype=np.float64),
        tp_overlap_frac=_floats([p.tp_overlap_frac for p in plans]),
        imbalance=_floats([p.imbalance for p in plans]),
        capacity_factor=_floats([p.capacity_factor for p in plans]),
        placement=plans[0].placement if plans else AXES,
    )


def runs_both_ways(table: PlanTable) -> Bools:
    """Plans whose microbatches come from both ends of the pipeline, so that each stage has two copies."""
    return np.asarray(_TWO_WAY[table.schedule] & (table.pp > 1), dtype=np.bool_)


def by_schedule(table: PlanTable, columns: Sequence[Floats | Ints]) -> Floats | Ints:
    """Of columns, one for each of ``PIPELINE_SCHEDULES``, each plan's that of its schedule."""
    return np.select([table.schedule == code for code in range(len(columns))], columns)


def stage_copies(table: PlanTable) -> Ints:
    """Copies of each stage inside one pipeline."""
    return np.where(runs_both_ways(table), 2, 1)
