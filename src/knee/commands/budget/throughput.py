"""Tokens a second of models at many counts of GPUs and batches: the best of a lean set of plans, priced together.

A whole search at every size, count and batch would take hours. The lean set has what wins such searches; a test holds
its best within a few percent of theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

import numpy as np

from knee.base.arrays import Bools, Floats, Ints, expanded, joined, names_of
from knee.engine.simulator import simulate_table
from knee.search.bound import by_chunk, least_step, least_unsharded_step
from knee.search.space import SHARES, Space, degrees, fitting, memory_bytes, whole_table
from knee.specs.hardware import Cluster
from knee.specs.job import Job
from knee.specs.model import Model
from knee.specs.plan import CP_METHODS, RECOMPUTES, RESHARDING, SHARDINGS, Plan
from knee.specs.plan_table import PlanTable, side_by_side, variant_rows
from knee.specs.profile import Profile
from knee.specs.schedules import ZERO_BUBBLE

# Plans of a model, count of GPUs and batch, and what is known of them so far: bounds, memory, simulated steps. A
# budget asks for the same plans again and again, each time for those that are faster than something else. Nothing is
# priced before it is asked for, and nothing twice. Those of several models are priced in one call: ``space.model``
# then has columns over plans (``specs.plan_table``).

UNKNOWN, NEVER = -2, -1
"""Whether a plan fits: not asked yet, or with no recomputation."""
POLICIES = ("none", *("blocks" for _ in SHARES), "full")
FRACS = (1.0, *SHARES, 1.0)
"""Recomputation, least first: a plan has the first with which it fits."""
_CODES = np.array([RECOMPUTES.index(name) for name in POLICIES])


@dataclass(slots=True, kw_only=True)
class PricedPlans:
    """Columns over plans that recompute nothing; NaN stands for what is not known."""

    table: PlanTable
    least_s: Floats
    """Bound of the step, whatever the sharding until ``is_sharded``; 0 at first."""
    is_sharded: Bools
    least_j: Floats
    recompute: Ints
    """The least recomputation with which the plan fits: an index of ``POLICIES``, or one of the two above."""
    fit_s: Floats
    """Bounds with that recomputation."""
    fit_j: Floats
    step_s: Floats
    """As it was simulated, with that recomputation."""
    tokens_per_s: Floats
    tokens_per_j: Floats
    mfu_frac: Floats
    exposed_comm_s: Floats

    @classmethod
    def of(cls, table: PlanTable) -> PricedPlans:
        """Nothing is known yet."""
        n = len(table)
        unknown = {name: np.full(n, np.nan) for name in ("least_j", "fit_s", "fit_j", *MEASURED)}
        return cls(
            table=table,
            least_s=np.zeros(n),
            is_sharded=np.zeros(n, dtype=np.bool_),
            recompute=np.full(n, UNKNOWN),
            **unknown,
        )

    def is_narrowed(self, longest_s: float) -> bool:
        """Whether ``bound`` and ``fit`` have nothing to find out for plans that take no longer than this."""
        asked = self.least_s <= longest_s
        unknown = ~self.is_sharded | (self.recompute == UNKNOWN)
        return not (asked & unknown).any()

    def fitted(self, rows: Ints) -> PlanTable:
        """Some of the plans, with the recomputation with which they fit."""
        chosen = self.recompute[rows]
        return replace(self.table.rows(rows), recompute=_CODES[chosen], recompute_frac=np.array(FRACS)[chosen])

    def bound(self, space: Space, cluster: Cluster, profile: Profile, longest_s: Floats) -> None:
        """Find the plans that may take no longer than this. Most others are ruled out whatever their sharding."""
        rows = np.flatnonzero(self.least_s == 0.0)
        if len(rows) and np.isfinite(longest_s).all():
            model, some = variant_rows(space.model, rows), self.table.rows(rows)
            self.least_s[rows] = by_chunk(least_unsharded_step, model, cluster, profile, some).step_s
        rows = np.flatnonzero(~self.is_sharded & (self.least_s <= longest_s))
        if len(rows):
            model = variant_rows(space.model, rows)
            least = by_chunk(least_step, model, cluster, profile, self.table.rows(rows))
            self.least_s[rows], self.least_j[rows], self.is_sharded[rows] = least.step_s, least.energy_j, True

    def fit(self, space: Space, cluster: Cluster, profile: Profile, longest_s: Floats) -> None:
        """Find with which recomputation they fit: the least, as more only costs time. What is too slow without it need
        not be tried."""
        rows = np.flatnonzero((self.recompute == UNKNOWN) & (self.least_s <= longest_s))
        if not len(rows):
            return
        table, hbm_bytes = self.table.rows(rows), cluster.gpu.hbm_bytes
        self.recompute[rows] = NEVER
        found = fitting(replace(space, model=variant_rows(space.model, rows)), profile, table, hbm_bytes)
        none = found.table.recompute == RECOMPUTES.index("none")
        self.recompute[rows[found.row]] = np.where(none, 0, 1 + np.searchsorted(SHARES, found.table.recompute_frac))
        rest = rows[self.recompute[rows] == NEVER]
        full = replace(self.table.rows(rest), recompute=np.full(len(rest), RECOMPUTES.index("full")))
        needs = memory_bytes(variant_rows(space.model, rest), profile, full)
        self.recompute[rest[needs <= hbm_bytes]] = POLICIES.index("full")
        same, again = rows[self.recompute[rows] == 0], rows[self.recompute[rows] > 0]
        self.fit_s[same], self.fit_j[same] = self.least_s[same], self.least_j[same]
        if len(again):
            model = variant_rows(space.model, again)
            least = by_chunk(least_step, model, cluster, profile, self.fitted(again))
            self.fit_s[again], self.fit_j[again] = least.step_s, least.energy_j

    def simulate(self, space: Space, cluster: Cluster, profile: Profile, rows: Ints) -> None:
        """Simulate those of them that were not simulated before."""
        new = rows[np.isnan(self.step_s[rows])]
        if len(new):
            results = simulate_table(variant_rows(space.model, new), cluster, profile, self.fitted(new))
            for name in MEASURED:
                getattr(self, name)[new] = getattr(results, name)

    def take(self, other: PricedPlans, rows: slice) -> None:
        """Take over what others know of these plans."""
        for name in KNOWN:
            getattr(self, name)[:] = getattr(other, name)[rows]


MEASURED = ("step_s", "tokens_per_s", "tokens_per_j", "mfu_frac", "exposed_comm_s")
KNOWN = tuple(name for name in names_of(PricedPlans) if name != "table")


def joined_plans(parts: Sequence[PricedPlans]) -> PricedPlans:
    """All of them, so that they are priced together; ``give_back`` returns what was found."""
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in KNOWN}
    return PricedPlans(table=joined(*(part.table for part in parts)), **columns)


def give_back(together: PricedPlans, parts: Sequence[PricedPlans]) -> None:
    """Hand what is known now to the parts."""
    ends = accumulate((len(part.table) for part in parts), initial=0)
    for part, (start, end) in zip(parts, pairwise(ends), strict=True):
        part.take(together, slice(start, end))


def some_of(plans: PricedPlans, rows: Ints) -> PricedPlans:
    """Some of the plans, with the recomputation with which they fit."""
    columns = {name: expanded(getattr(plans, name), rows) for name in KNOWN}
    return PricedPlans(table=plans.fitted(rows), **columns)


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


Asked = tuple[Model, Key, float]
"""A model, a count and batch, and the tokens a second below which a plan does not matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlansTogether:
    """Plans of one or more models, counts and batches that were bounded and fitted into memory at once."""

    parts: Sequence[PricedPlans]
    """Of each model, count and batch."""
    plans: PricedPlans
    """All of them."""
    model: Ints
    """Of each plan, a number."""
    part: Ints
    space: Space
    """Whose model has columns over the plans, where there are several."""
    longest_s: Floats

    @property
    def is_slow(self) -> Bools:
        """Plans that are too slow, whether they fit or not."""
        return self.plans.least_s > self.longest_s

    @property
    def quick(self) -> Ints:
        """Plans that fit and may be as fast. Those that need the least recomputation come first, so that answers do not
        hang on what was asked before."""
        plans = self.plans
        rows = np.flatnonzero(~self.is_slow & (plans.recompute >= 0) & (plans.fit_s <= self.longest_s))
        return rows[np.argsort(plans.recompute[rows], kind="stable")]

    def simulate(self, cluster: Cluster, profile: Profile) -> Ints:
        """Simulate all plans that may be the fastest of their part, by their bounds; their rows. Others of a model that
        has few may be simulated with them."""
        plans, rows = self.plans, self.quick
        part, bound, model = self.part[rows], plans.fit_s[rows], self.model[rows]
        # the fastest and the thriftiest by their bounds
        first = np.union1d(_least(bound, part, FIRST), _least(plans.fit_j[rows], part, 1))
        at_once = np.bincount(model, minlength=1)[model] <= FEW
        at_once[first] = True
        plans.simulate(self.space, cluster, profile, rows[at_once])
        best = np.full(len(self.parts), np.inf)
        np.minimum.at(best, part[first], plans.step_s[rows[first]])
        left = bound <= best[part]
        left[first] = False
        index = np.concatenate((first, np.flatnonzero(left)))
        plans.simulate(self.space, cluster, profile, rows[index])
        return rows[index]

    def give_back(self) -> None:
        """Hand what is known now to the parts."""
        give_back(self.plans, self.parts)


@dataclass(slots=True, kw_only=True)
class Rates:
    """Of all models that are asked for; each count and batch is priced once."""

    cluster: Cluster
    profile: Profile
    seq_len: int
    fixed: Plan = field(default_factory=Plan)
    sync_every: int = 1
    """Steps between exchanges of replicas."""
    replicas: int | None = None
    """Number of replicas of all plans, if it is given."""
    known: dict[tuple[Model, Key], Rate | None] = field(default_factory=dict)
    """None: no plan fits, or none is."""
    ceilings: dict[tuple[Model, Key], float] = field(default_factory=dict)
    """Tokens/s that no plan of a count and batch exceeds, as far as that was asked."""
    bounds: dict[Model, float] = field(default_factory=dict)
    """Tokens/s a GPU that no plan of a model exceeds on any count."""
    tables: dict[tuple[Key, Degrees], PlanTable] = field(default_factory=dict)
    """Plans of a count and batch: models that are cut into the same degrees have the same ones."""
    priced: dict[tuple[Model, Key], PricedPlans | None] = field(default_factory=dict, compare=False, repr=False)
    """What is known of the plans of a model, count and batch; None: there are none."""
    undivided: PlanTable | None = None
    """Plans of one GPU."""

    def apart(self, fixed: Plan, sync_every: int, replicas: int) -> Rates:
        """The same of plans with so many replicas that exchange only every few steps; nothing is known of them yet."""
        same = {name: getattr(self, name) for name in ("cluster", "profile", "seq_len")}
        return Rates(**same, fixed=fixed, sync_every=sync_every, replicas=replicas)

    @property
    def plans(self) -> int:
        """Of all models, counts and batches that were asked for."""
        asked = {*self.known, *self.ceilings}
        return sum(len(plans.table) for key, plans in self.priced.items() if plans is not None and key in asked)

    def of(self, model: Model, keys: Iterable[Key], least_tokens_per_s: float = 0.0) -> dict[Key, Rate | None]:
        """The fastest plan at each count and batch; None where none fits, or none does ``least_tokens_per_s``: plans
        whose bound is below are not simulated."""
        keys = list(dict.fromkeys(keys))
        new = [key for key in keys if self._is_open(model, key, least_tokens_per_s)]
        if new:
            self.known |= {(model, key): rate for key, rate in self._priced(model, new, least_tokens_per_s).items()}
        return {key: self.known.get((model, key)) for key in keys}

    def look_ahead(self, asked: Iterable[Asked]) -> None:
        """Price the plans of several models at once, as far as ``of`` will have to. What it answers does not depend on
        this; a call of the simulator takes little longer for many plans than for few."""
        least: dict[tuple[Model, Key], float] = {}
        for model, key, speed in asked:
            least[model, key] = min(speed, least.get((model, key), math.inf))
        every = [(model, key, speed) for (model, key), speed in least.items()]
        new = [one for one in every if self._is_open(*one) and not self.is_narrowed(*one)]
        together = self._narrowed(new) if len({(model, gpus) for model, (gpus, _), _ in new}) > 1 else None
        if together is not None:
            together.simulate(self.cluster, self.profile)
            together.give_back()

    def job(self, model: Model, rate: Rate) -> Job:
        """A model under the plan of a rate."""
        sizes = {"gpus": rate.gpus, "global_batch": rate.global_batch, "seq_len": self.seq_len}
        return Job(model=model, cluster=self.cluster, profile=self.profile, plan=rate.plan, **sizes)

    def is_narrowed(self, model: Model, key: Key, least_tokens_per_s: float) -> bool:
        """Whether nothing is left to be priced for ``of`` but steps."""
        plans = self._plans(model, *key)
        tokens = key[1] * self.seq_len
        return plans is None or plans.is_narrowed(tokens / least_tokens_per_s if least_tokens_per_s else np.inf)

    def _is_open(self, model: Model, key: Key, least_tokens_per_s: float) -> bool:
        at = model, key
        return at not in self.known and self.ceilings.get(at, np.inf) >= least_tokens_per_s

    def most_tokens_per_s_per_gpu(self, model: Model, beside: Iterable[Model] = ()) -> float:
        """No plan does more: the compute of an undivided model alone, at its best micro-batch. Bounds of the models
        ``beside`` it are found in the same call."""
        if model not in self.bounds:
            new = [one for one in dict.fromkeys((model, *beside)) if one not in self.bounds]
            table = self._undivided(model)
            one, row = (grid.ravel() for grid in np.indices((len(new), len(table))))
            least = least_unsharded_step(side_by_side(new, one), self.cluster, self.profile, table.rows(row)).step_s
            speeds = (table.global_batch[row] * self.seq_len / least).reshape(len(new), -1).max(axis=1)
            self.bounds |= dict(zip(new, speeds.tolist(), strict=True))
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
        together = self._narrowed([(model, key, least_tokens_per_s) for key in keys])
        if together is None:
            return dict.fromkeys(keys)
        possible = _keys(together.plans.table.rows(np.flatnonzero(together.is_slow | (together.plans.recompute >= 0))))
        known: dict[Key, Rate | None] = {key: None for key in keys if key not in possible}
        rows = together.simulate(self.cluster, self.profile)
        found = _winners(some_of(together.plans, rows), together.part[rows])
        together.give_back()
        known |= {key: rate for key, rate in found.items() if rate.tokens_per_s >= least_tokens_per_s}
        # none is as fast: who asks for as much need not look again
        too_slow = least_tokens_per_s * (1.0 - 1e-12)
        self.ceilings |= {(model, key): too_slow for key in keys if key not in known}
        return known

    def _narrowed(self, asked: Sequence[Asked]) -> PlansTogether | None:
        """All plans in question with their bounds and memory, as far as they may be as fast; None where there are
        none."""
        known = {one: plans for one in asked if (plans := self._plans(one[0], *one[1])) is not None}
        if not known:
            return None
        parts = list(known.values())
        plans, part = joined_plans(parts), np.repeat(np.arange(len(parts)), [len(one.table) for one in parts])
        models = {model: i for i, model in enumerate(dict.fromkeys(model for model, _, _ in known))}
        model = np.array([models[one] for one, _, _ in known])[part]
        space = replace(self._space(asked[0][0], 1, 1), model=side_by_side(list(models), model))
        slowest = np.array([speed for _, _, speed in known])[part]
        with np.errstate(divide="ignore"):
            longest_s = plans.table.global_batch * self.seq_len / slowest
        plans.bound(space, self.cluster, self.profile, longest_s)
        plans.fit(space, self.cluster, self.profile, longest_s)
        return PlansTogether(parts=parts, plans=plans, model=model, part=part, space=space, longest_s=longest_s)

    def _plans(self, model: Model, gpus: int, batch: int) -> PricedPlans | None:
        key = model, (gpus, batch)
        if key not in self.priced:
            table = self._table(model, gpus, batch)
            self.priced[key] = None if table is None else PricedPlans.of(table)
        return self.priced[key]

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
            schedules=(ZERO_BUBBLE.name,),
            recomputes=("none", "full"),
            micro_batches=MICRO_BATCHES,
            sync_every=self.sync_every,
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
        shards = shards | (table.dp_replicate == 1) if self.replicas is None else table.dp_replicate == self.replicas
        split = (table.tp == 1) | table.sequence_parallel | (self.seq_len // table.cp % table.tp > 0)
        piped = table.pp > 1
        reshards = np.isin(table.sharding, [SHARDINGS.index(name) for name in RESHARDING])
        order = ~piped | (~reshards & (table.micro_batch <= PIPED_MICRO_BATCH))
        # without a pipeline zero1 is what fsdp_no_reshard is, with its gather in one piece
        zero1 = (table.sharding == SHARDINGS.index("zero1")) & ~piped & (table.dp > 1)
        good: Bools = shards & split & order & ~zero1 & (table.cp_method == CP_METHODS.index("allgather"))
        return good


def _keys(table: PlanTable) -> set[Key]:
    return set(zip(table.gpus.tolist(), table.global_batch.tolist(), strict=True))


def _least(bound: Floats, group: Ints, count: int) -> Ints:
    """Rows with the least bounds of each group."""
    order = np.lexsort((bound, group))
    starts = np.searchsorted(group[order], group[order])
    return np.sort(order[np.arange(len(order)) - starts < count])


def _winners(plans: PricedPlans, group: Ints) -> dict[Key, Rate]:
    found: dict[Key, Rate] = {}
    # of equally fast plans the one that recomputes nothing, so that answers do not hang on the order of rows
    fastest = _least(np.where(plans.recompute > 0, 1.0 + 1e-9, 1.0) * plans.step_s, group, 1)
    thriftiest = {int(group[row]): row for row in _least(-plans.tokens_per_j, group, 1).tolist()}
    for row in fastest.tolist():
        rate = _rate(plans, row)
        other = _rate(plans, thriftiest[int(group[row])])
        if rate is not None:
            saves = other is not None and other.tokens_per_j > rate.tokens_per_j * (1.0 + 1e-9)
            found[rate.gpus, rate.global_batch] = replace(rate, thrifty=other if saves else None)
    return found


def _rate(plans: PricedPlans, row: int) -> Rate | None:
    speed = float(plans.tokens_per_s[row])
    if not (0 < speed < math.inf):
        return None
    return Rate(
        gpus=int(plans.table.gpus[row]),
        global_batch=int(plans.table.global_batch[row]),
        tokens_per_s=speed,
        tokens_per_j=float(plans.tokens_per_j[row]),
        mfu_frac=float(plans.mfu_frac[row]),
        exposed_frac=float(plans.exposed_comm_s[row] / plans.step_s[row]),
        plan=plans.table.plan(row),
    )
