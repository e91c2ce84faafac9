"""Tokens a second of one model at many counts of GPUs and batches: the best of a lean set of plans, priced together.

A whole search at every size, count and batch would take hours. The lean set has what wins such searches; a test holds
its best within a few percent of theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from knee.arrays import Bools, Floats, Ints, expanded
from knee.search.bound import LeastStep, by_chunk, least_step, least_unsharded_step
from knee.search.memory_fit import fitting, memory_bytes
from knee.search.space import Space, degrees, joined, whole_table
from knee.simulator import Results, joined_results, simulate_table
from knee.specs.hardware import Cluster
from knee.specs.model import Model
from knee.specs.plan import CP_METHODS, RECOMPUTES, RESHARDING, SHARDINGS, Plan
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile

MICRO_BATCHES = (1, 2, 3, 4, 6)
MOST_PP = 16
FIRST = 3
"""Plans of a count and batch that are simulated first."""
FEW = 128
"""Plans that are simulated in one call, whatever their bounds: a second call costs more."""
PIPED_MICRO_BATCH = 2
SHARD_GPUS = (8, 32, 64, 128, 256)
"""GPUs over which HSDP shards, beside all and a node's: with tensor parallelism, those of both."""
SHORT_CP, LONG_CP, LONG_SEQUENCE = 2, 8, 16_384
"""Most context parallelism, and from which length on sequences are cut further."""
SHARDED = ("fsdp", "fsdp_no_reshard", "zero1", "hsdp")

Key = tuple[int, int]
"""GPUs, sequences a step."""
Degrees = tuple[tuple[int, int, int, int], ...]
"""Every (tp, pp, cp, dp) of a model on so many GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """The fastest plan of one count and batch."""

    gpus: int
    global_batch: int
    tokens_per_s: float
    tokens_per_j: float
    mfu_frac: float
    exposed_frac: float
    """Of the step: communication without compute beside it."""
    plan: Plan
    thrifty: Rate | None = None
    """Of the plans that were simulated, the one with most tokens a joule, where that is another."""


@dataclass(slots=True, kw_only=True)
class Rates:
    """Of all models that are asked for; each count and batch is priced once."""

    cluster: Cluster
    profile: Profile
    seq_len: int
    fixed: Plan = field(default_factory=Plan)
    known: dict[tuple[Model, Key], Rate | None] = field(default_factory=dict)
    """None: no plan fits, or none is."""
    ceilings: dict[tuple[Model, Key], float] = field(default_factory=dict)
    """Tokens/s that no plan of a count and batch exceeds, by the bounds of its plans."""
    bounds: dict[Model, float] = field(default_factory=dict)
    """Tokens/s a GPU that no plan of a model exceeds on any count."""
    tables: dict[tuple[Key, Degrees], PlanTable] = field(default_factory=dict)
    """Plans of a count and batch: models that are cut into the same degrees have the same ones."""
    undivided: PlanTable | None = None
    """Plans of one GPU."""
    plans: int = 0
    """Looked at so far."""

    def of(self, model: Model, keys: Iterable[Key], least_tokens_per_s: float = 0.0) -> dict[Key, Rate | None]:
        """The fastest plan at each count and batch; None where none fits, or none does ``least_tokens_per_s``: plans
        whose bound is below are not simulated."""
        keys = list(dict.fromkeys(keys))
        new = [
            key
            for key in keys
            if (model, key) not in self.known and self.ceilings.get((model, key), np.inf) >= least_tokens_per_s
        ]
        if new:
            self.known |= {(model, key): rate for key, rate in self._priced(model, new, least_tokens_per_s).items()}
        return {key: self.known.get((model, key)) for key in keys}

    def most_tokens_per_s_per_gpu(self, model: Model) -> float:
        """No plan does more: the compute of an undivided model alone, at its best micro-batch."""
        if model not in self.bounds:
            table = self._undivided(model)
            least = least_unsharded_step(model, self.cluster, self.profile, table).step_s
            self.bounds[model] = float(np.max(table.global_batch * self.seq_len / least))
        return self.bounds[model]

    def _undivided(self, model: Model) -> PlanTable:
        """One GPU at every micro-batch: the same plans for all models."""
        if self.undivided is None:
            spaces = [replace(self._space(model, 1, micro), micro_batches=(micro,)) for micro in MICRO_BATCHES]
            spaces = [replace(space, recomputes=("none",), shardings=("zero1",)) for space in spaces]
            self.undivided = joined(*map(whole_table, spaces))
        return self.undivided

    def _priced(self, model: Model, keys: list[Key], least_tokens_per_s: float) -> dict[Key, Rate | None]:
        """What is now known of the keys: a plan, or that there is none. Those that are too slow are left out."""
        nothing: dict[Key, Rate | None] = dict.fromkeys(keys)
        parts = [part for key in keys if (part := self._table(model, *key)) is not None]
        if not parts:
            return nothing
        table = joined(*parts)
        self.plans += len(table)
        # recomputation only costs time: what is too slow without it need not be tried for memory
        least, most, rows = self._quick(model, table, least_tokens_per_s)
        slow = np.ones(len(table), dtype=np.bool_)
        slow[rows] = False
        ceilings = _highest(table.rows(np.flatnonzero(slow)), most[slow])
        fit, least = self._fitting(model, table.rows(rows), least)
        known: dict[Key, Rate | None] = {key: None for key in keys if key not in _keys(fit) | ceilings.keys()}
        most = fit.global_batch * self.seq_len / least.step_s
        quick, slow = (np.flatnonzero(rows) for rows in (most >= least_tokens_per_s, most < least_tokens_per_s))
        found = self._fastest(model, fit.rows(quick), least.rows(quick)) if len(quick) else {}
        for others in (_highest(fit.rows(slow), most[slow]), {key: rate.tokens_per_s for key, rate in found.items()}):
            ceilings |= {key: max(value, ceilings.get(key, 0.0)) for key, value in others.items()}
        self.ceilings |= {(model, key): value for key, value in ceilings.items()}
        return known | {key: rate for key, rate in found.items() if rate.tokens_per_s >= least_tokens_per_s}

    def _quick(self, model: Model, table: PlanTable, least_tokens_per_s: float) -> tuple[LeastStep, Floats, Ints]:
        """Bounds of the plans that may be as fast as this, the tokens/s that each plan of the table does not exceed,
        and the rows of the former. Most others are ruled out whatever their sharding."""
        tokens, rows, most = table.global_batch * self.seq_len, np.arange(len(table)), np.full(len(table), np.inf)
        for bound in (least_unsharded_step, least_step) if least_tokens_per_s else (least_step,):
            least = by_chunk(bound, model, self.cluster, self.profile, table.rows(rows))
            most[rows] = tokens[rows] / least.step_s
            at = np.flatnonzero(most[rows] >= least_tokens_per_s)
            rows = rows[at]
        return least.rows(at), most, rows

    def _fastest(self, model: Model, table: PlanTable, least: LeastStep) -> dict[Key, Rate]:
        """The best of each count and batch; plans that cannot be it by their bound are not simulated."""
        every = simulate_table(model, self.cluster, self.profile, table) if len(table) <= FEW else None

        def simulated(rows: Ints) -> Results:
            if every is not None:
                return expanded(every, rows)
            return simulate_table(model, self.cluster, self.profile, table.rows(rows))

        group = _groups(table)
        # the fastest and the thriftiest by their bounds
        first = np.union1d(_least(least.step_s, group, FIRST), _least(least.energy_j, group, 1))
        results = simulated(first)
        best = np.full(group.max() + 1, np.inf)
        np.minimum.at(best, group[first], results.step_s)
        left = least.step_s <= best[group]
        left[first] = False
        index = np.concatenate((first, np.flatnonzero(left)))
        return _winners(table.rows(index), joined_results([results, simulated(np.flatnonzero(left))]), group[index])

    def _space(self, model: Model, gpus: int, batch: int) -> Space:
        return Space(
            model=model,
            gpus=gpus,
            global_batch=batch,
            seq_len=self.seq_len,
            fixed=self.fixed,
            max_tp=min(8, self.cluster.node.gpus),
            max_pp=MOST_PP,
            max_cp=SHORT_CP if self.seq_len < LONG_SEQUENCE else LONG_CP,
            shardings=SHARDED,
            schedules=("zero_bubble",),
            recomputes=("none", "full"),
            micro_batches=MICRO_BATCHES,
        )

    def _table(self, model: Model, gpus: int, batch: int) -> PlanTable | None:
        space = replace(self._space(model, gpus, batch), recomputes=("none",))
        key = (gpus, batch), tuple(degrees(space))  # the model has no other part in it: interleaving is left out
        if key not in self.tables:
            table = whole_table(space)
            self.tables[key] = table.rows(np.flatnonzero(self._lean(table)))
        return self.tables[key] if len(self.tables[key]) else None

    def _lean(self, table: PlanTable) -> Bools:
        """Few shard sizes; pipelines without a bubble, which gather nothing again, with small micro-batches."""
        shards = np.isin(table.dp_shard * table.tp * table.cp, (*SHARD_GPUS, self.cluster.node.gpus))
        shards |= table.dp_replicate == 1
        split = (table.tp == 1) | table.sequence_parallel | (self.seq_len // table.cp % table.tp > 0)
        piped = table.pp > 1
        reshards = np.isin(table.sharding, [SHARDINGS.index(name) for name in RESHARDING])
        order = ~piped | (~reshards & (table.micro_batch <= PIPED_MICRO_BATCH))
        # without a pipeline zero1 is what fsdp_no_reshard is, with its gather in one piece
        zero1 = (table.sharding == SHARDINGS.index("zero1")) & ~piped & (table.dp > 1)
        good: Bools = shards & split & order & ~zero1 & (table.cp_method == CP_METHODS.index("allgather"))
        return good

    def _fitting(self, model: Model, table: PlanTable, least: LeastStep) -> tuple[PlanTable, LeastStep]:
        """Each plan with the least recomputation with which it fits, if there is one, and its bound: more only costs
        time."""
        space, hbm_bytes = self._space(model, 1, 1), self.cluster.gpu.hbm_bytes
        fit = fitting(space, self.profile, table, hbm_bytes)
        rest = table.rows(np.setdiff1d(np.arange(len(table)), fit.row))
        full = replace(rest, recompute=np.full(len(rest), RECOMPUTES.index("full"), dtype=np.int64))
        full = full.rows(np.flatnonzero(memory_bytes(space, self.profile, full) <= hbm_bytes))
        # bounds of plans that fit as they are, which come first, are known
        same = int(np.count_nonzero(fit.table.recompute == RECOMPUTES.index("none")))
        again = joined(fit.table.rows(slice(same, None)), full)
        bounds = by_chunk(least_step, model, self.cluster, self.profile, again)
        return joined(fit.table, full), least.rows(fit.row[:same]).plus(bounds)


def _keys(table: PlanTable) -> set[Key]:
    return set(zip(table.gpus.tolist(), table.global_batch.tolist(), strict=True))


def _highest(table: PlanTable, values: Floats) -> dict[Key, float]:
    """The highest value of each count and batch."""
    found: dict[Key, float] = {}
    for row in _least(-values, _groups(table), 1).tolist():
        found[int(table.gpus[row]), int(table.global_batch[row])] = float(values[row])
    return found


def _groups(table: PlanTable) -> Ints:
    """A number for each count and batch."""
    keys = table.gpus * 2**32 + table.global_batch
    return np.asarray(np.unique(keys, return_inverse=True)[1], dtype=np.int64)


def _least(bound: Floats, group: Ints, count: int) -> Ints:
    """Rows with the least bounds of each group."""
    order = np.lexsort((bound, group))
    starts = np.searchsorted(group[order], group[order])
    return np.sort(order[np.arange(len(order)) - starts < count])


def _winners(table: PlanTable, results: Results, group: Ints) -> dict[Key, Rate]:
    found: dict[Key, Rate] = {}
    # of equally fast plans the one that recomputes nothing, so that answers do not hang on the order of rows
    again = table.recompute != RECOMPUTES.index("none")
    fastest = _least(np.where(again, 1.0 + 1e-9, 1.0) * results.step_s, group, 1)
    thriftiest = {int(group[row]): row for row in _least(-results.tokens_per_j, group, 1).tolist()}
    for row in fastest.tolist():
        rate = _rate(table, results, row)
        other = _rate(table, results, thriftiest[int(group[row])])
        if rate is not None:
            saves = other is not None and other.tokens_per_j > rate.tokens_per_j * (1.0 + 1e-9)
            found[rate.gpus, rate.global_batch] = replace(rate, thrifty=other if saves else None)
    return found


def _rate(table: PlanTable, results: Results, row: int) -> Rate | None:
    speed = float(results.tokens_per_s[row])
    if not (0 < speed < math.inf):
        return None
    return Rate(
        gpus=int(table.gpus[row]),
        global_batch=int(table.global_batch[row]),
        tokens_per_s=speed,
        tokens_per_j=float(results.tokens_per_j[row]),
        mfu_frac=float(results.mfu_frac[row]),
        exposed_frac=float(results.exposed_comm_s[row] / results.step_s[row]),
        plan=table.plan(row),
    )
