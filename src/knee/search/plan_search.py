"""The plans of a space in the order of what they can be at best, until no other can be among the best.

Four prices, each for fewer plans than the one before: of kernel shapes, whatever the stages and the sharding
(``bound.least_shape_step``), of all plans that differ in more than their sharding (``bound.least_unsharded_step``), of
every sharding of the best of those that fits in memory (``bound.least_step``), and the simulator's. What is left out is
certain to be worse, so that the first plans are those of simulating everything.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from knee.base.arrays import Bools, ByValue, Columns, Floats, Ints, joined
from knee.base.errors import InputError, argument
from knee.base.progress import Progress, silent
from knee.engine.simulator import Results, simulate_table
from knee.search.bound import LeastStep, by_chunk, least_shape_step, least_step, least_unsharded_step
from knee.search.space import (
    Space,
    count_plans,
    fitting,
    kernel_shapes,
    memory_bytes,
    shardings_that_may_fit,
    unsharded_table,
    whole_tables,
    without_twins,
)
from knee.specs.choices import Objective
from knee.specs.hardware import Cluster
from knee.specs.job import Job
from knee.specs.plan import AXES, KNOBS, Plan
from knee.specs.plan_table import SIZES, PlanTable
from knee.specs.profile import Profile
from knee.specs.schedules import schedule_of

# ``--only "tp <= 8 and sharding == 'fsdp'"``: a condition on plans, evaluated on columns. Only names of columns,
# numbers, words, comparisons, arithmetic and and/or/not are read; nothing is run.

WORDS = {name: knob.choices for name, knob in KNOBS.items() if knob.choices and not (knob.optional or knob.many)}
"""Column -> its words."""
NUMBERS = (*SIZES, *(name for name, knob in KNOBS.items() if not (knob.choices or knob.optional)), "dp", "microbatches")
BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
HINT = f'for example "pp == 1 and tp <= 8"; the columns are {", ".join((*NUMBERS, *WORDS))}'


def matching(table: PlanTable, condition: str) -> Bools:
    """Whether each plan meets the condition."""
    try:
        tree = ast.parse(condition.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _refused(condition, " is not a condition") from None
    try:
        with np.errstate(all="raise"):
            found = np.asarray(_value(tree.body, table, condition))
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise _refused(condition, " cannot be evaluated") from None
    if found.dtype != np.bool_:
        raise _refused(condition, " is a number, not a condition")
    return np.broadcast_to(found, len(table))


def _value(node: ast.expr, table: PlanTable, condition: str) -> Any:
    def of(inner: ast.expr) -> Any:
        return _value(inner, table, condition)

    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return np.logical_and.reduce([np.broadcast_to(_truth(of(v), condition), len(table)) for v in values])
        case ast.BoolOp(op=ast.Or(), values=values):
            return np.logical_or.reduce([np.broadcast_to(_truth(of(v), condition), len(table)) for v in values])
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return np.logical_not(_truth(of(inner), condition))
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -of(inner)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return BINARY[type(op)](_number(of(left), condition), _number(of(right), condition))
        case ast.Compare(left=left, ops=ops, comparators=others):
            found, before = np.ones(len(table), dtype=np.bool_), left
            for how, after in zip(ops, others, strict=True):
                if type(how) not in BINARY:
                    raise _unread(how, condition)
                found &= _compared(BINARY[type(how)], before, after, of, condition)
                before = after
            return found
        case ast.Name(id=name) if name in NUMBERS:
            return getattr(table, name)
        case ast.Name(id=name) if name in WORDS:
            return np.array(WORDS[name])[getattr(table, name)]
        case ast.Name(id=name):
            raise _refused(condition, f": plans have no {name!r}", "unknown-field")
        case ast.Constant(value=int() | float() | str() | bool() as value):
            return value
    raise _unread(node, condition)


def _compared(
    how: Callable[[Any, Any], Any], before: ast.expr, after: ast.expr, of: Callable[[ast.expr], Any], condition: str
) -> Any:
    a, b = of(before), of(after)
    words = [isinstance(x, str) or (isinstance(x, np.ndarray) and x.dtype.kind == "U") for x in (a, b)]
    if words[0] != words[1] or (words[0] and how not in (operator.eq, operator.ne)):
        raise _refused(condition, " compares a word with a number, or orders words by size")
    for one, other in ((before, b), (after, a)):
        if isinstance(one, ast.Name) and one.id in WORDS and isinstance(other, str) and other not in WORDS[one.id]:
            text = f"--only {condition!r}: {one.id} has no value {other!r}"
            hint = f"{one.id} is one of {', '.join(WORDS[one.id])}"
            raise InputError(text, hint=hint, code="unknown-choice", field="only")
    return how(a, b)


def _truth(value: Any, condition: str) -> Any:
    if np.asarray(value).dtype != np.bool_:
        raise _refused(condition, " has a number instead of a condition")
    return value


def _number(value: Any, condition: str) -> Any:
    if np.asarray(value).dtype.kind not in "biuf":
        raise _refused(condition, " does arithmetic with a word")
    return value


def _unread(node: ast.AST, condition: str) -> InputError:
    return _refused(condition, f": {type(node).__name__} is not supported")


def _refused(condition: str, why: str, code: str = "not-a-condition") -> InputError:
    return InputError(f"--only {condition!r}{why}", hint=HINT, code=code, field="only")


FRONT_STEP = 1.15
"""Over the fastest step: a plan that is slower than that is no choice, whatever memory it leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merits(Columns):
    """What plans are compared by, rounded: those within a thousandth, or a hundredth of the memory, count as equal,
    because a front of hundreds that differ by nothing helps nobody. More is better."""

    speed: Floats
    thrift: Floats
    room: Floats

    @classmethod
    def of(cls, *, step_s: Floats, energy_j: Floats, memory_bytes: Floats, hbm_bytes: float) -> Merits:
        """Merits of steps with equally many tokens."""
        with np.errstate(divide="ignore"):
            speed, thrift = (np.round(-np.log(value) / 1e-3) for value in (step_s, energy_j))
        return cls(speed=speed, thrift=thrift, room=np.floor((hbm_bytes - memory_bytes) / (0.01 * hbm_bytes)))

    @classmethod
    def of_results(cls, results: Results, hbm_bytes: float) -> Merits:
        """Merits of simulated plans."""
        energy = results.power_w_per_gpu * results.step_s
        return cls.of(step_s=results.step_s, energy_j=energy, memory_bytes=results.memory_bytes, hbm_bytes=hbm_bytes)

    def matched_by(self, others: Merits) -> Bools:
        """Whether one of the others is at least as good in all three."""
        found = np.zeros(len(self.speed), dtype=np.bool_)
        for speed, thrift, room in zip(others.speed, others.thrift, others.room, strict=True):
            found |= (speed >= self.speed) & (thrift >= self.thrift) & (room >= self.room)
        return found


def pareto(results: Results, hbm_bytes: float) -> Ints:
    """Rows that no other row beats in tokens/s, tokens/J and free memory at once, the fastest first."""
    merits = Merits.of_results(results, hbm_bytes)
    near = np.flatnonzero(results.step_s <= FRONT_STEP * results.step_s.min(initial=np.inf))
    order = near[np.lexsort((-merits.room[near], -merits.thrift[near], -merits.speed[near]))]
    front: list[int] = []
    kept = np.empty((0, 2))
    for row in order.tolist():
        # rows before this one are at least as fast
        if not len(kept) or not np.any((kept[:, 0] >= merits.thrift[row]) & (kept[:, 1] >= merits.room[row])):
            front.append(row)
            kept = np.vstack((kept, (merits.thrift[row], merits.room[row])))
    return np.array(front, dtype=np.int64)


FEW_SHAPES, SHAPES_FIRST = 2048, 1024
"""Kernel shapes of a space that is priced at once, and those of another whose plans are priced together at first."""
OPENED_FIRST, OPENED = 128, 8192
"""Unsharded plans whose shardings are priced together, at first and at most."""
FIRST, MOST = 64, 1024
"""Plans simulated together at first, and at most: each call costs, and so does a plan that need not have been."""


def cost_of(step_s: Floats, energy_j: Floats, objective: Objective) -> Floats:
    """What an objective wants least of: energy, or time."""
    return energy_j if objective == "tokens_per_j" else step_s


class Unsharded:
    """The plans of a space before their sharding is chosen, with their bounds: at any time, those of the shapes that
    were asked for so far. More come at the end of the columns."""

    def __init__(self, space: Space, cluster: Cluster, profile: Profile, objective: Objective) -> None:
        self.space, self.cluster, self.profile, self.objective = space, cluster, profile, objective
        self._shapes = kernel_shapes(space)
        least = LeastStep(step_s=np.zeros(len(self._shapes)), energy_j=np.zeros(len(self._shapes)))
        # messages of other placements depend on the stages; and few shapes are not worth two bounds
        self._together = SHAPES_FIRST
        if len(self._shapes) > FEW_SHAPES and space.fixed.placement == AXES:
            least = by_chunk(least_shape_step, space.model, cluster, profile, hides_most(space, self._shapes))
        else:
            self._together = len(self._shapes)
        cost = cost_of(least.step_s, least.energy_j, objective)
        order = np.argsort(cost, kind="stable")
        self._shapes, self._shape_s, self._shape_cost = self._shapes.rows(order), least.step_s[order], cost[order]
        self._left = np.ones(len(order), dtype=np.bool_)
        self.table = unsharded_table(space, self._shapes.rows(slice(0, 0)))
        self.step_s, self.cost = np.zeros(0), np.zeros(0)
        """Bounds, and what plans are ordered by."""

    @property
    def complete_cost(self) -> float:
        """Plans that may cost less are all in the table."""
        return float(self._shape_cost[self._left].min(initial=np.inf))

    def extend(self, cost: float) -> bool:
        """Add plans that may cost no more than this, of the shapes that may cost least; whether there were some."""
        shapes = np.flatnonzero(self._left & (self._shape_cost <= cost))[: self._together]
        self._together *= 4
        self._price(shapes)
        return len(shapes) > 0

    def extend_to(self, step_s: float) -> None:
        """Add all plans that may take no longer than this."""
        self._price(np.flatnonzero(self._left & (self._shape_s <= step_s)))

    def part(self, rows: Ints) -> Unsharded:
        """Some of the plans of the table, and no others."""
        some = copy(self)
        some.table, some.step_s, some.cost = self.table.rows(rows), self.step_s[rows], self.cost[rows]
        some._left = np.zeros(len(self._left), dtype=np.bool_)
        return some

    def _price(self, shapes: Ints) -> None:
        if not len(shapes):
            return
        self._left[shapes] = False
        table = unsharded_table(self.space, self._shapes.rows(shapes))
        least = by_chunk(least_unsharded_step, self.space.model, self.cluster, self.profile, table)
        self.table = joined(self.table, table)
        self.step_s = np.concatenate((self.step_s, least.step_s))
        self.cost = np.concatenate((self.cost, cost_of(least.step_s, least.energy_j, self.objective)))


def hides_most(space: Space, shapes: PlanTable) -> PlanTable:
    """The shapes as in plans that hide most tokens: pipelines that run both ways hide them in all plans."""
    both_ways = any(schedule_of(name).directions > 1 for name in space.schedules)
    return replace(shapes, ep_overlap=shapes.ep_overlap | both_ways)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting(Columns):
    """Plans that fit and are not simulated yet."""

    table: PlanTable
    step_s: Floats
    """Bounds."""
    energy_j: Floats
    memory_bytes: Floats


class BestFirst:
    """A search under way."""

    def __init__(
        self,
        start: Unsharded,
        *,
        hbm_bytes: float,
        below: float = np.inf,
        above_bytes: float = 0.0,
        wanted: Callable[[PlanTable], Bools] | None = None,
        watch: Callable[[PlanTable, Results], None] | None = None,
    ) -> None:
        """``watch`` sees all that is simulated, each time that more is. ``below`` is a cost that is known to be
        reached: plans that cannot be under it are not looked at, nor those that need no more memory than
        ``above_bytes``."""
        self.start, self.hbm_bytes, self.below, self.wanted, self.watch = start, hbm_bytes, below, wanted, watch
        self.above_bytes = above_bytes
        none, nothing = start.table.rows(slice(0)), np.zeros(0)
        self.table = none
        self.results = simulate_table(start.space.model, start.cluster, start.profile, none)
        self._waiting = _Waiting(table=none, step_s=nothing, energy_j=nothing, memory_bytes=nothing)
        self._is_open = np.zeros(0, dtype=np.bool_)
        self._opened = OPENED_FIRST
        self._together = FIRST

    def rank(self, keep: int) -> None:
        """Simulate until the best ``keep`` plans are certain."""
        while True:
            # a plan is simulated once no closed one has a smaller bound than so many
            while len(unsharded := self._openable(self._last(keep, waiting=True))):
                self._open(unsharded)
            left = np.flatnonzero(self._bounds() <= self._last(keep))
            if not len(left):
                return
            self._simulate(left)

    def _openable(self, cost: float) -> Ints:
        """The next closed plans that may be as good as this cost: few at first, as most searches end with them."""
        start, count = self.start, self._opened
        self._opened = min(4 * self._opened, OPENED)
        while True:
            closed = self._closed(start.cost <= min(cost, start.complete_cost))
            if len(closed) >= count or not start.extend(cost):
                return closed[np.argsort(start.cost[closed], kind="stable")[:count]]

    def _closed(self, where: Bools) -> Ints:
        """Of some of the plans, those whose shardings have not been priced."""
        more = np.zeros(len(where) - len(self._is_open), dtype=np.bool_)
        self._is_open = np.concatenate((self._is_open, more))
        return np.flatnonzero(where & ~self._is_open)

    def find_front(self) -> None:
        """Simulate until the plans that no other beats in speed, energy and memory are certain."""
        if not len(self.table):
            return
        slowest = FRONT_STEP * float(self.results.step_s.min())
        self.start.extend_to(slowest)
        closed = self._closed(self.start.step_s <= slowest)
        for i in range(0, len(closed), OPENED):
            self._open(closed[i : i + OPENED])
        while True:
            slowest = FRONT_STEP * self.results.step_s.min()
            self._waiting = self._waiting.rows(np.flatnonzero(self._waiting.step_s <= slowest))
            left = np.flatnonzero(~self._matched())
            if not len(left):
                return
            self._simulate(left)

    def _bounds(self) -> Floats:
        return cost_of(self._waiting.step_s, self._waiting.energy_j, self.start.objective)

    def _last(self, keep: int, *, waiting: bool = False) -> float:
        """The cost of the last of so many simulated plans; with ``waiting``, as the others' bounds would have it."""
        energy = self.results.power_w_per_gpu * self.results.step_s
        known = cost_of(self.results.step_s, energy, self.start.objective)
        if waiting:
            known = np.concatenate((known, self._bounds()))
        return min(self.below, float(np.partition(known, keep - 1)[keep - 1]) if len(known) >= keep else np.inf)

    def _matched(self) -> Bools:
        """Whether a simulated plan is as good as what waits can be at best."""
        w = self._waiting
        best = Merits.of(step_s=w.step_s, energy_j=w.energy_j, memory_bytes=w.memory_bytes, hbm_bytes=self.hbm_bytes)
        done = Merits.of_results(self.results, self.hbm_bytes)
        return best.matched_by(done.rows(pareto(self.results, self.hbm_bytes)))

    def _open(self, unsharded: Ints) -> None:
        """Price every sharding of these that fits in memory, with the least share of layers recomputed where it does
        not without."""
        start = self.start
        self._is_open[unsharded] = True
        some = start.table.rows(unsharded)
        table = shardings_that_may_fit(start.space, start.profile, some, self.hbm_bytes)
        fit = fitting(start.space, start.profile, table, self.hbm_bytes)
        if self.above_bytes:
            fit = fit.rows(np.flatnonzero(fit.memory_bytes > self.above_bytes))
        if self.wanted is not None:
            fit = fit.rows(np.flatnonzero(self.wanted(fit.table)))
        table = fit.table
        bounds = by_chunk(least_step, start.space.model, start.cluster, start.profile, table)
        more = _Waiting(table=table, step_s=bounds.step_s, energy_j=bounds.energy_j, memory_bytes=fit.memory_bytes)
        self._waiting = joined(self._waiting, more)

    def _simulate(self, left: Ints) -> None:
        """Of what is left, the plans with the least bounds."""
        start, count = self.start, min(self._together, len(left))
        self._together = min(2 * self._together, MOST)
        first = np.sort(left[np.argpartition(self._bounds()[left], count - 1)[:count]])
        now = self._waiting.rows(first)
        results = simulate_table(start.space.model, start.cluster, start.profile, now.table)
        self.table = joined(self.table, now.table)
        self.results = joined(self.results, results)
        self._waiting = self._waiting.rows(np.delete(np.arange(len(self._waiting.step_s)), first))
        if self.watch is not None:
            self.watch(self.table, self.results)


RANKED = 64
"""Plans whose order is that of simulating everything."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchResult(ByValue):
    """A searched space."""

    space: Space
    cluster: Cluster
    profile: Profile
    objective: Objective
    only: str | None
    plans: int
    """Valid plans within the limits; those that recompute a share of their layers count where there are no others."""
    ranked: int
    """Plans at the head of the table that no other plan of the space is better than."""
    table: PlanTable
    """What was simulated, best first."""
    results: Results
    start: Unsharded = field(compare=False)

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

    def fastest_with_memory(self, hbm_bytes: float) -> float:
        """Tokens/s of the fastest plan that so much memory would hold; 0 where none fits."""
        known = self.results.tokens_per_s[self.results.memory_bytes <= hbm_bytes].max(initial=0.0)
        fastest = float(self.results.tokens_per_s.max())
        # the front has the fastest plan of every size that is not much slower than the fastest of all
        if hbm_bytes <= self.cluster.gpu.hbm_bytes and known * FRONT_STEP >= fastest:
            return float(known)
        tokens = self.space.global_batch * self.space.seq_len
        below = tokens / known if known else np.inf
        start, now = self.start, self.cluster.gpu.hbm_bytes
        # of the plans that fit now, the fastest is known
        above = now if hbm_bytes > now else 0.0
        if self.objective == "tokens_per_j":
            start, above = Unsharded(self.space, self.cluster, self.profile, "tokens_per_s"), 0.0
        found = BestFirst(start, hbm_bytes=hbm_bytes, below=below, above_bytes=above, wanted=wanted_by(self.only))
        found.rank(1)
        return float(found.results.tokens_per_s.max(initial=known))

    def least_memory(self) -> tuple[Plan, float]:
        """Of all plans, the one that needs least memory, and the bytes."""
        found: list[tuple[float, Plan]] = []
        for table in _every_plan(self.space, self.only):
            needs = memory_bytes(self.space.model, self.profile, table)
            if len(needs) and (not found or needs.min() < found[-1][0]):
                found.append((float(needs.min()), table.plan(int(np.argmin(needs)))))
        needed, plan = found[-1]
        return plan, needed


def score(results: Results, objective: Objective) -> Floats:
    """What the objective ranks plans by; the larger the better."""
    column: Floats = getattr(results, objective)
    return -column if objective == "usd_per_mtoken" else column


def search(
    space: Space,
    cluster: Cluster,
    profile: Profile,
    *,
    objective: Objective = "tokens_per_s",
    only: str | None = None,
    keep: int = RANKED,
    front: bool = False,
    progress: Progress = silent,
    watch: Callable[[PlanTable, Results], None] | None = None,
) -> SearchResult:
    """Find the best ``keep`` plans of a space, and with ``front`` those that no other beats in speed, energy and memory
    at once. ``watch`` sees what has been simulated, each time that there is more."""
    if objective == "usd_per_mtoken" and cluster.usd_per_gpu_h is None:
        hint = f"give {argument('overrides')} cluster.usd_per_gpu_h='2.5 USD/h'"
        text = f"the price of {cluster.name} is unknown"
        raise InputError(text, hint=hint, code="no-rate", field="cluster.usd_per_gpu_h")
    if space.gpus > cluster.max_gpus:
        text = f"gpus is {space.gpus:,}; {cluster.name} is described only up to {cluster.max_gpus:,}"
        raise InputError(text, code="out-of-range", field="gpus")
    _check_modelled(space, cluster, profile)
    wanted = wanted_by(only)
    progress("listing plans", 0, 0)
    start = Unsharded(space, cluster, profile, objective)
    plans = count_plans(space) if only is None else sum(map(len, _every_plan(space, only)))

    def watched(table: PlanTable, results: Results) -> None:
        progress("simulating plans", 0, 0)
        if watch is not None:
            watch(table, results)

    found = BestFirst(start, hbm_bytes=cluster.gpu.hbm_bytes, wanted=wanted, watch=watched)
    # a plan may take the same time with each kind of collectives, and counts once
    found.rank(keep * len(space.every_collectives))
    if front:
        found.find_front()
    order = _order(found.table, score(found.results, objective))
    order = order[without_twins(found.table.rows(order), found.results.rows(order))]
    return SearchResult(
        space=space,
        cluster=cluster,
        profile=profile,
        objective=objective,
        only=only,
        plans=max(plans, len(order)),
        ranked=min(keep, len(order)),
        table=found.table.rows(order),
        results=found.results.rows(order),
        start=start,
    )


def wanted_by(only: str | None) -> Callable[[PlanTable], Bools] | None:
    """A function of a table: whether each plan meets the condition."""
    if only is None:
        return None
    return lambda table: matching(table, only)


def _every_plan(space: Space, only: str | None) -> Iterator[PlanTable]:
    """Tables of all plans that are asked for, of which one is held at a time."""
    for table in whole_tables(space):
        yield table if only is None else table.rows(np.flatnonzero(matching(table, only)))


SPLITS = ("pp", "cp", "tp", "virtual_stages", "dp_replicate")
REST = ("sharding", "schedule", "recompute", "recompute_frac", "micro_batch", "cp_method", "ep", "etp", "collectives")
TIES = (*SPLITS, *REST)
"""Of plans with the same score, those that split the model less come first."""


def _order(table: PlanTable, scores: Floats) -> Ints:
    """Best first; plans of the same score always in the same order."""
    columns = [getattr(table, name) for name in TIES]
    return np.lexsort((~table.sequence_parallel, *reversed(columns), -scores))


def _check_modelled(space: Space, cluster: Cluster, profile: Profile) -> None:
    """Refuse what no plan could be simulated on: a precision, an attention kernel, a length, parts to recompute that
    are not named or that no plan may recompute."""
    one = replace(Plan(), precision=space.fixed.precision, reduce_dtype=space.fixed.reduce_dtype)
    if space.modules or "modules" in space.recomputes:
        again = "modules" if not space.recomputes or "modules" in space.recomputes else space.recomputes[0]
        changed: dict[str, Any] = {"recompute": again, "recompute_modules": space.modules}
        one = replace(one, **changed)
    Job(model=space.model, cluster=cluster, profile=profile, plan=one, gpus=1, global_batch=1, seq_len=space.seq_len)


# The best plan of every pair of tp and pp: what a heat map of a search shows.


@dataclass(frozen=True, slots=True, kw_only=True)
class CellBest:
    """One pair; without a plan, none of its plans fits in memory."""

    tp: int
    pp: int
    plans: int
    """Plans of the pair before their sharding is chosen."""
    plan: Plan | None = None
    results: Results | None = None
    """Of that plan alone."""


def cell_pairs(found: SearchResult) -> list[tuple[int, int]]:
    """Pairs of tp and pp that have plans."""
    found.start.extend_to(np.inf)
    pairs = np.stack((found.start.table.tp, found.start.table.pp), axis=1)
    return [(tp, pp) for tp, pp in np.unique(pairs, axis=0).tolist()]


def cell_bests(found: SearchResult) -> Iterator[CellBest]:
    """Each of them, searched as the whole space was, for its best plan alone."""
    start = found.start
    for tp, pp in cell_pairs(found):
        rows = np.flatnonzero((start.table.tp == tp) & (start.table.pp == pp))
        best = BestFirst(start.part(rows), hbm_bytes=found.cluster.gpu.hbm_bytes, wanted=wanted_by(found.only))
        best.rank(1)
        if not len(best.table):
            yield CellBest(tp=tp, pp=pp, plans=len(rows))
            continue
        row = int(np.argmax(score(best.results, found.objective)))
        results = best.results.rows(np.array([row]))
        yield CellBest(tp=tp, pp=pp, plans=len(rows), plan=best.table.plan(row), results=results)
