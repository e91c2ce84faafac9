"""Many plans as columns: what the engine evaluates at once. Variants of a model, a cluster or a profile are one spec.

A number in which the variants differ is a column over rows, a row for each plan of each variant; formulas take a column
wherever they take a number. What is no number (a kernel set, a switch) must be the same in all; of names the first
counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, cast

import numpy as np

from knee.base.arrays import Bools, ByValue, Columns, Floats, Ints, names_of
from knee.base.errors import SpecError
from knee.specs.job import Job
from knee.specs.plan import (
    AXES,
    KNOBS,
    MOMENT_DTYPES,
    RECOMPUTE_MODULES,
    RECOMPUTES,
    STATE_DTYPES,
    Knob,
    Plan,
    Recompute,
    RecomputeModule,
)
from knee.specs.schedules import PIPELINE_SCHEDULES

SIZES = ("gpus", "global_batch", "seq_len")
_SPLITS = np.array([schedule.splits_backward for schedule in PIPELINE_SCHEDULES])
_TWO_WAY = np.array([schedule.directions > 1 for schedule in PIPELINE_SCHEDULES])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanTable(ByValue, Columns):
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
    recompute_modules: Ints
    """Bit i: the plan recomputes ``RECOMPUTE_MODULES[i]``."""
    cp_method: Ints
    precision: Ints
    fp8_recipe: Ints
    reduce_dtype: Ints
    state_dtype: Ints
    moment_dtype: Ints
    """0 for the type of the parameters; else 1 plus a code into ``MOMENT_DTYPES``."""
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
    def moment_bytes(self) -> Floats:
        """Bytes of one moment as the optimizer keeps it."""
        known = np.array([0.0, *({"fp32": 4.0, "bf16": 2.0, "fp8": 1.0}[name] for name in MOMENT_DTYPES)])
        return np.where(self.moment_dtype == 0, self.state_bytes, known[self.moment_dtype])

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
        return ((self.recompute_modules >> RECOMPUTE_MODULES.index(module)) & 1).astype(np.float64)

    def plan(self, row: int) -> Plan:
        """One row as a plan."""
        values = {knob.name: _value(knob, getattr(self, knob.name)[row]) for knob in _KNOBS}
        return Plan(**values, placement=self.placement)


COLUMNS = tuple(f.name for f in fields(PlanTable) if f.name != "placement")
_KNOBS = tuple(knob for knob in KNOBS.values() if knob.name != "placement")
"""Those of a column; a test holds them against the columns."""


def column_of(name: str, values: Sequence[Any]) -> Any:
    """Values of a plan's field as a column: words as codes, sets of words as bits, None as NaN or as code 0."""
    knob = KNOBS[name]
    if knob.many:
        return np.array([sum(1 << knob.choices.index(one) for one in set(value)) for value in values], dtype=np.int64)
    if knob.choices:
        codes = {word: code for code, word in enumerate((*((None,) if knob.optional else ()), *knob.choices))}
        return np.array([codes[value] for value in values], dtype=np.int64)
    if knob.kind is float:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return np.array(values, dtype=np.bool_ if knob.kind is bool else np.int64)


def same_columns(plan: Plan, names: Iterable[str], rows: int) -> dict[str, Any]:
    """Columns that have the plan's value in every row."""
    return {name: np.repeat(column_of(name, [getattr(plan, name)]), rows) for name in names if name != "placement"}


def _value(knob: Knob, cell: Any) -> Any:
    """A cell of a column as the value of a plan's field."""
    if knob.many:
        return tuple(word for bit, word in enumerate(knob.choices) if cell >> bit & 1)
    if knob.choices:
        return ((None, *knob.choices) if knob.optional else knob.choices)[cell]
    if knob.optional and np.isnan(cell):
        return None
    return knob.kind(cell)


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
    sizes: dict[str, Any] = {name: np.array([getattr(job, name) for job in jobs], dtype=np.int64) for name in SIZES}
    columns = {knob.name: column_of(knob.name, [getattr(plan, knob.name) for plan in plans]) for knob in _KNOBS}
    return PlanTable(**sizes, **columns, placement=plans[0].placement if plans else AXES)


def runs_both_ways(table: PlanTable) -> Bools:
    """Plans whose microbatches come from both ends of the pipeline, so that each stage has two copies."""
    return np.asarray(_TWO_WAY[table.schedule] & (table.pp > 1), dtype=np.bool_)


def by_schedule(table: PlanTable, columns: Sequence[Floats | Ints]) -> Floats | Ints:
    """Of columns, one for each of ``PIPELINE_SCHEDULES``, each plan's that of its schedule."""
    return np.select([table.schedule == code for code in range(len(columns))], columns)


def stage_copies(table: PlanTable) -> Ints:
    """Copies of each stage inside one pipeline."""
    return np.where(runs_both_ways(table), 2, 1)


Spec = TypeVar("Spec")


def side_by_side(variants: Sequence[Spec], index: Ints) -> Spec:
    """One spec for many rows: row i has the numbers of ``variants[index[i]]``."""
    return cast(Spec, _merged(variants, index))


def variant_rows(spec: Spec, index: Ints | slice) -> Spec:
    """The spec of some of the rows; a spec without columns is the same for all rows."""
    return cast(Spec, _cut(spec, index))


def has_columns(spec: object) -> bool:
    """Whether the spec stands for several."""
    return isinstance(spec, _HasColumns)


def columns_of(*specs: object) -> list[Floats]:
    """All columns of these specs: rows with equal ones have the same variant."""
    found: list[Floats] = []
    for spec in specs:
        if isinstance(spec, np.ndarray):
            found.append(spec)
        elif isinstance(spec, tuple):
            found += columns_of(*spec)
        elif has_columns(spec):
            found += columns_of(*(getattr(spec, name) for name in names_of(type(spec))))
    return found


class _HasColumns:
    """What tells a spec with columns from others, without a look at all its fields."""

    __slots__ = ()


@cache
def _with_columns(kind: type) -> type:
    if issubclass(kind, _HasColumns):
        return kind
    return type(kind.__name__, (kind, _HasColumns), {"__slots__": ()})


def _merged(values: Sequence[Any], index: Ints) -> Any:
    first = values[0]
    if all(value is first or value == first for value in values):
        return first
    if isinstance(first, tuple):
        return tuple(_merged(items, index) for items in zip(*values, strict=True))
    if is_dataclass(first):
        kind = type(first)
        every = {name: [getattr(value, name) for value in values] for name in names_of(kind)}
        return _made(kind, {name: own[0] if name == "name" else _merged(own, index) for name, own in every.items()})
    return np.array(values, dtype=np.float64)[index]


def _cut(value: Any, index: Ints | slice) -> Any:
    if isinstance(value, np.ndarray):
        return value[index]
    if isinstance(value, tuple):
        return tuple(_cut(item, index) for item in value)
    if has_columns(value):
        return _made(type(value), {name: _cut(getattr(value, name), index) for name in names_of(type(value))})
    return value


def _made(kind: type, values: dict[str, Any]) -> Any:
    """A spec with these values; each variant was checked when it was made, and a check does not take columns."""
    made: Any = object.__new__(_with_columns(kind))
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made
