"""The model with the lowest loss within a budget: how many parameters and tokens, on how many GPUs, under which plan.

It also finds sizes whose loss is as low as far as that matters, what counting FLOP would choose, and what replicas that
exchange only every few steps would gain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, starmap
from typing import Any, Literal

from knee.base.progress import Progress, silent
from knee.base.units import DAY_S, HOUR_S, short
from knee.commands.budget.model_family import Family
from knee.commands.budget.scaling_laws import FLOP_PER_PARAM_TOKEN, BatchLaw, Law
from knee.commands.budget.throughput import Asked, Rate, Rates
from knee.engine.cost.outer_sync import fitted_replicas, loss_ratio, outside_fit
from knee.engine.energy import J_PER_KWH
from knee.engine.workload.parameters import parameter_count
from knee.specs.hardware import Cluster
from knee.specs.model import Model
from knee.specs.plan import Plan

Name = Literal["days", "usd", "mwh", "tokens_max", "tokens_per_param"]
J_PER_MWH = 1e3 * J_PER_KWH


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLimits:
    """What may be spent; None where there is no limit."""

    gpus: int
    days: float | None = None
    usd: float | None = None
    mwh: float | None = None
    tokens_max: float | None = None

    def scaled(self, factor: float) -> BudgetLimits:
        """All of them times a factor, but for the GPUs and the data."""

        def of(value: float | None) -> float | None:
            return None if value is None else value * factor

        return replace(self, days=of(self.days), usd=of(self.usd), mwh=of(self.mwh))


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRun:
    """One candidate, trained on all the tokens that the limits afford."""

    model: Model
    params: int
    counted: float
    """Parameters as the law counts them."""
    rate: Rate
    tokens: float
    loss: float
    binding: Name
    """The limit that ends it."""
    time_s: float
    energy_j: float
    """Of the GPUs and the site around them."""
    cost_usd: float | None
    batch_tokens: float
    critical_batch_tokens: float

    @property
    def gpus(self) -> int:
        return self.rate.gpus

    @property
    def step_s(self) -> float:
        return self.batch_tokens / self.rate.tokens_per_s

    @property
    def days(self) -> float:
        return self.time_s / DAY_S

    @property
    def mwh(self) -> float:
        return self.energy_j / J_PER_MWH

    @property
    def tokens_per_param(self) -> float:
        return self.tokens / self.params

    @property
    def gpu_hours(self) -> float:
        return self.time_s * self.gpus / HOUR_S


# Counts of GPUs that a budget tries: a ladder that does not hang on the limit, and what the limits themselves name.

ODDS = (1, 3)
"""Of the ladder's counts, times doublings of a node: a larger limit only adds to them. Fives and sevens would double
the time of an answer."""


def doublings(node: int, most: int) -> list[int]:
    """From a node to the limit, ascending."""
    least = 1 << (min(node, most).bit_length() - 1)
    return [least << k for k in range((most // least).bit_length())]


def ladder(node: int, most: int) -> list[int]:
    """Odd multiples of doublings, ascending: a subset of that of any larger limit."""
    steps = doublings(node, most)
    return sorted({odd * step for step in steps for odd in ODDS if odd * step <= most})


def rounded(node: int, counts: Iterable[float]) -> set[int]:
    """Each count less what does not make whole nodes, pairs of nodes, pairs of those: 201 GPUs divide worse than 200,
    and those than 192."""
    wholes = {int(count) // step * step for count in counts if count >= 1 for step in doublings(node, int(count))}
    return wholes - {0}


Candidate = tuple[int, Model]
"""GPUs and size: a shape of the family's ladder. One that could not be best even if it only computed is not priced."""
LEAST_DRAW_FRAC = 0.4
"""Of the board's limit: no plan worth having draws less, so that energy cannot buy more tokens than this."""
TOGETHER = 3
"""Batches that are priced at once, from the largest down to half of it: one that splits better may be faster."""
AHEAD = 12
"""Candidates that are priced at once, after the first of them: it may rule out most others."""
TABLE_COUNTS = 2
"""Counts of GPUs whose best run is always found, from the most down: what fewer GPUs would reach."""


@dataclass(slots=True, kw_only=True)
class Problem:
    """A question, with everything that was priced on the way to its answer."""

    rates: Rates
    law: Law
    batch_law: BatchLaw
    family: Family
    pue: float
    batch_max_tokens: float | None = None
    """A given limit in place of the law's."""
    model: Model | None = None
    """The one size that is asked about."""
    tokens_per_param: float | None = None
    counts_only: tuple[int, ...] = ()
    """Counts of GPUs; empty: doublings from a node to the limit, and the limit."""
    progress: Progress = silent
    rungs: list[Model] = field(default_factory=list)
    """The ladder, once it was made."""

    # ---- what may be ----------------------------------------------------------------------------------------------

    def ladder(self) -> list[Model]:
        """The sizes in question."""
        if self.model is not None:
            return [self.model]
        if not self.rungs:
            self.rungs = self.family.ladder()
        return self.rungs

    def sizes_near(self, model: Model, rungs: int) -> list[Model]:
        """A size of the ladder, and those up to so many rungs from it; none where it is another's."""
        ladder = self.ladder()
        at = ladder.index(model) if model in ladder else None
        return [] if at is None else ladder[max(0, at - rungs) : at + rungs + 1]

    def doublings(self, limits: BudgetLimits) -> list[int]:
        """From a node to the limit, ascending."""
        return doublings(self.rates.cluster.node.gpus, limits.gpus)

    def counts(self, limits: BudgetLimits) -> list[int]:
        """Ascending: a ladder that is the same for all limits, the limit, the count that spends all dollars in all
        days, and whole nodes of both."""
        if self.counts_only:
            return [count for count in self.counts_only if count <= limits.gpus]
        node, price = self.rates.cluster.node.gpus, self.rates.cluster.usd_per_gpu_h
        named = [float(limits.gpus)]
        if limits.usd is not None and limits.days is not None and price:
            # a hair more, so that a count whose price was worked out by hand is not rounded off
            named.append(min(limits.usd / (price * limits.days * DAY_S / HOUR_S) * (1.0 + 1e-9), named[0]))
        return sorted({*ladder(node, limits.gpus), *rounded(node, named), limits.gpus})

    def most_tokens(self, limits: BudgetLimits, model: Model, gpus: int) -> float:
        """No plan affords more."""
        speed = self.rates.most_tokens_per_s_per_gpu(model, beside=self.ladder())
        gpu = self.rates.cluster.gpu
        return self.tokens(limits, gpus, gpus * speed, speed / (LEAST_DRAW_FRAC * gpu.tdp_w), model)[0]

    def tokens(
        self, limits: BudgetLimits, gpus: int, tokens_per_s: float, tokens_per_j: float, model: Model
    ) -> tuple[float, Name]:
        """Tokens under every limit, and the limit that is tightest.

        Formula: D = min(tokens/s * days, tokens/s * USD / (price * GPUs), tokens/J * energy / PUE, data)
        """
        price = self.rates.cluster.usd_per_gpu_h
        found: list[tuple[float, Name]] = []
        if limits.days is not None:
            found.append((tokens_per_s * limits.days * DAY_S, "days"))
        if limits.usd is not None and price:
            found.append((tokens_per_s * limits.usd / (price * gpus) * HOUR_S, "usd"))
        if limits.mwh is not None:
            found.append((tokens_per_j * limits.mwh * J_PER_MWH / self.pue, "mwh"))
        if limits.tokens_max is not None:
            found.append((limits.tokens_max, "tokens_max"))
        tokens, name = min(found, key=lambda one: one[0])
        if self.tokens_per_param is not None:
            wanted = self.tokens_per_param * parameter_count(model)
            # a ratio is all or nothing: what affords fewer tokens does not have it
            return (wanted, "tokens_per_param") if wanted <= tokens else (0.0, name)
        return tokens, name

    def least_loss(self, limits: BudgetLimits, model: Model, gpus: int) -> float:
        """No plan reaches less."""
        tokens = self.most_tokens(limits, model, gpus)
        return float(self.law.loss(self.law.counted(model), tokens)) if tokens > 0 else math.inf

    # ---- one candidate --------------------------------------------------------------------------------------------

    def batches(self, limits: BudgetLimits, model: Model, gpus: int) -> list[int]:
        """Sequences a step that might be allowed, the most first: powers of two, and one and a half times those, times
        what of the GPUs' count is odd."""
        seq_len = self.rates.seq_len
        odd = gpus // (gpus & -gpus)
        most = self.allowed_batch_tokens(self.least_loss(limits, model, gpus)) / seq_len
        rungs = [odd * size for k in range(25) for size in (2**k, 3 * 2**k)]
        return sorted({rung for rung in rungs if rung <= most}, reverse=True)

    def allowed_batch_tokens(self, loss: float) -> float:
        """The critical batch at this loss, or what was given in its place."""
        if self.batch_max_tokens is not None:
            return self.batch_max_tokens
        return 0.0 if loss == math.inf else float(self.batch_law.tokens(loss))

    def run_of(self, limits: BudgetLimits, model: Model, rate: Rate) -> BudgetRun | None:
        """A candidate's whole run; None where its batch is beyond the critical one at the loss that it reaches. Where
        energy ends it, by the plan that takes least of it."""
        own = self._run(limits, model, rate)
        if limits.mwh is None or rate.thrifty is None:
            return own
        saving = self._run(limits, model, rate.thrifty)
        return min((run for run in (own, saving) if run is not None), key=lambda run: run.loss, default=None)

    def _run(self, limits: BudgetLimits, model: Model, rate: Rate) -> BudgetRun | None:
        tokens, binding = self.tokens(limits, rate.gpus, rate.tokens_per_s, rate.tokens_per_j, model)
        batch = float(rate.global_batch * self.rates.seq_len)
        if tokens < batch:
            return None
        counted = self.law.counted(model)
        loss = float(self.law.loss(counted, tokens))
        allowed = self.allowed_batch_tokens(loss)
        if batch > allowed * (1.0 + 1e-12):
            return None
        price, time_s = self.rates.cluster.usd_per_gpu_h, tokens / rate.tokens_per_s
        return BudgetRun(
            model=model,
            params=parameter_count(model),
            counted=counted,
            rate=rate,
            tokens=tokens,
            loss=loss,
            binding=binding,
            time_s=time_s,
            energy_j=tokens / rate.tokens_per_j * self.pue,
            cost_usd=None if price is None else time_s / HOUR_S * rate.gpus * price,
            batch_tokens=batch,
            critical_batch_tokens=float(self.batch_law.tokens(loss)),
        )

    def best_at(self, limits: BudgetLimits, model: Model, gpus: int, *, below: float = math.inf) -> BudgetRun | None:
        """The best allowed batch of a size and count; None where no plan fits, no batch is allowed, or all of them lose
        at least ``below``."""
        if self.least_loss(limits, model, gpus) >= below:
            return None
        speed = self._least_tokens_per_s(limits, model, gpus, below)
        sizes = self.batches(limits, model, gpus)
        for first in range(0, len(sizes), TOGETHER):
            keys = [(gpus, size) for size in sizes[first : first + TOGETHER]]
            self.rates.of(model, keys, speed)
            # smaller batches that were priced before are nearly always slower, and count where they are not
            known = [rate for size in sizes if (rate := self.rates.known.get((model, (gpus, size))))]
            runs = [run for rate in known if (run := self.run_of(limits, model, rate))]
            if runs:
                best = min(runs, key=lambda run: run.loss)
                return best if best.loss < below else None
            if any((model, key) not in self.rates.known for key in keys):
                # some fit and are too slow, and so are smaller ones
                return None
        return None

    def look_ahead_at(self, several: Iterable[BudgetLimits], *, every: int) -> None:
        """Price what ``optimum`` will ask for within each of several limits, by what is known of them."""
        asked: list[Asked] = []
        for limits in several:
            known = self.reachable(limits)
            if known is not None:
                some = chain(
                    self._candidates(limits, self.counts(limits), known.loss, every),
                    ((known.gpus, model) for model in self.sizes_near(known.model, every // 2)),
                )
                asked += [new for one in some for new in self._asked(limits, *one, known.loss)]
        self.rates.look_ahead(asked)

    def look_ahead(self, limits: BudgetLimits, candidates: Iterable[Candidate], below: float = math.inf) -> None:
        """Price several candidates in few calls, for ``best_at`` to find."""
        self.rates.look_ahead(asked for one in candidates for asked in self._asked(limits, *one, below))

    def _asked(self, limits: BudgetLimits, gpus: int, model: Model, below: float) -> list[Asked]:
        if self.least_loss(limits, model, gpus) >= below:
            return []
        speed = self._least_tokens_per_s(limits, model, gpus, below)
        return [(model, (gpus, size), speed) for size in self.batches(limits, model, gpus)[:TOGETHER]]

    def price(self, limits: BudgetLimits, model: Model, counts: Iterable[int]) -> None:
        """Price the first batches of several counts at once, for ``best_at`` to find."""
        self.rates.of(model, [(gpus, size) for gpus in counts for size in self.batches(limits, model, gpus)[:TOGETHER]])

    def _least_tokens_per_s(self, limits: BudgetLimits, model: Model, gpus: int, below: float) -> float:
        """What a run has to do to lose less than ``below`` within the days, the dollars and the energy."""
        if below == math.inf:
            return 0.0
        cluster = self.rates.cluster
        price, least_w = cluster.usd_per_gpu_h, LEAST_DRAW_FRAC * cluster.gpu.tdp_w * gpus
        within_s = [limits.days * DAY_S] if limits.days is not None else []
        within_s += [limits.usd / (price * gpus) * HOUR_S] if limits.usd is not None and price else []
        within_s += [limits.mwh * J_PER_MWH / self.pue / least_w] if limits.mwh is not None else []
        return self.law.tokens_for(below, self.law.counted(model)) / min(within_s)

    def _large_enough(self, rungs: Sequence[Model], below: float) -> list[Model]:
        """Sizes that could lose less on tokens without end: how fast others train need not be known."""
        if below == math.inf:
            return list(rungs)
        return [model for model in rungs if self.law.tokens_for(below, self.law.counted(model)) < math.inf]

    # ---- all of them ----------------------------------------------------------------------------------------------

    def best_of_count(
        self,
        limits: BudgetLimits,
        gpus: int,
        *,
        below: float = math.inf,
        every: int = 1,
        then: Sequence[int] | None = None,
    ) -> BudgetRun | None:
        """The size that loses least on so many GPUs, if it loses less than ``below``: exact, by bounds. ``then`` are
        the counts that come next, if a count before this one has ruled out most sizes."""
        best = self.reachable(limits, (gpus,))
        best = best if best is not None and best.loss < below else None
        below = min(below, best.loss) if best is not None else below
        informed = best is not None or then is not None
        for n, (bound, model) in enumerate(sizes := self._by_bound(limits, gpus, below, every)):
            if bound >= below:
                break
            if (n or informed) and not all(starmap(self.rates.is_narrowed, self._asked(limits, gpus, model, below))):
                own = ((gpus, one) for _, one in sizes[n:])
                coming = chain(own, self._candidates(limits, then or (), below, every))
                self.look_ahead(limits, islice(coming, AHEAD), below)
            self.progress(f"{gpus:,} GPUs, {short(parameter_count(model))} parameters", 0, 0)
            run = self.best_at(limits, model, gpus, below=below)
            if run is not None:
                best, below = run, run.loss
        return best

    def _by_bound(self, limits: BudgetLimits, gpus: int, below: float, every: int) -> list[tuple[float, Model]]:
        """Sizes that may lose less than ``below`` on so many GPUs, best first, with the least that each can lose."""
        rungs = self._large_enough(self.ladder()[::every], below)
        return sorted(((self.least_loss(limits, model, gpus), model) for model in rungs), key=lambda pair: pair[0])

    def _candidates(self, limits: BudgetLimits, counts: Iterable[int], below: float, every: int) -> Iterator[Candidate]:
        """Sizes on these counts that may lose less, count by count."""
        for gpus in counts:
            yield from ((gpus, model) for bound, model in self._by_bound(limits, gpus, below, every) if bound < below)

    def by_count(self, limits: BudgetLimits, *, every: int = 1, shown: int = TABLE_COUNTS) -> dict[int, BudgetRun]:
        """The best run of each count that could be the best of all, and of the largest doublings anyway."""
        counts = self.counts(limits)
        known = self.reachable(limits, counts)
        found = {known.gpus: known} if known is not None else {}
        rungs = self.ladder()[::every]
        some = self._large_enough(rungs, known.loss if known is not None else math.inf)
        least = [
            (min((self.least_loss(limits, model, gpus) for model in some), default=math.inf), gpus) for gpus in counts
        ]
        bounds = sorted(least)
        for n, (bound, gpus) in enumerate(bounds):
            below = min((run.loss for run in found.values()), default=math.inf)
            if bound >= below:
                break
            then = [count for _, count in bounds[n + 1 :]] if n else None
            run = self.best_of_count(limits, gpus, below=below, every=every, then=then)
            if run is not None:
                found[gpus] = run
        # from the most down, beside a size that a neighbour suggests: the best is found sooner
        for gpus in sorted({*self.doublings(limits), limits.gpus} & set(counts))[: -shown - 1 : -1]:
            if found:
                near = min(found.values(), key=lambda run: abs(math.log(run.gpus / gpus)))
                wanted = near.params * math.sqrt(gpus / near.gpus)
                self.best_at(limits, min(rungs, key=lambda model: abs(math.log(parameter_count(model) / wanted))), gpus)
            run = self.best_of_count(limits, gpus, every=every)
            if run is not None:
                found[gpus] = run
        return dict(sorted(found.items()))

    def optimum(self, limits: BudgetLimits, *, every: int = 1) -> BudgetRun | None:
        """The run that loses least; of equal ones that on fewer GPUs."""
        runs = self.by_count(limits, every=every, shown=0)
        return min(runs.values(), key=lambda run: run.loss) if runs else None

    def reachable(
        self, limits: BudgetLimits, counts: Sequence[int] = (), *, without: Model | None = None
    ) -> BudgetRun | None:
        """The best of what was priced before, on any count or on these: for budgets next to one that was answered."""
        runs = (
            self.run_of(limits, model, rate)
            for (model, _), rate in self.rates.known.items()
            if rate is not None and model != without and (rate.gpus in counts if counts else rate.gpus <= limits.gpus)
        )
        return min((run for run in runs if run is not None), key=lambda run: run.loss, default=None)

    def between(self, limits: BudgetLimits, run: BudgetRun, *, every: int = 1) -> float:
        """Parameters at which the loss would be least if shapes had all sizes: a parabola over neighbouring rungs."""
        ladder = self.ladder()
        at = ladder.index(run.model) if run.model in ladder else -1
        if not every <= at < len(ladder) - every:
            return float(run.params)
        places = (at - every, at, at + every)
        self.look_ahead(limits, [(run.gpus, ladder[place]) for place in places])
        around = [self.best_at(limits, ladder[place], run.gpus) for place in places]
        points = [(math.log(one.params), one.loss) for one in around if one is not None]
        return math.exp(_vertex(points)) if len(points) == 3 else float(run.params)


def _vertex(points: Sequence[tuple[float, float]]) -> float:
    """Where the parabola through three points is least."""
    (x0, y0), (x1, y1), (x2, y2) = points
    a = (y2 - y1) / (x2 - x1) - (y1 - y0) / (x1 - x0)
    b = (y1 - y0) * (x2 - x1) / (x1 - x0) + (y2 - y1) * (x1 - x0) / (x2 - x1)
    return x1 if a <= 0 else min(max(x1 - b / (2.0 * a), x0), x2)


# Sizes that lose as little as the best one, as far as that matters.

EVEN_LOSS = 0.001
"""Above the least loss: what lies below is decided by how layers and heads divide, not by the law."""
PATIENCE = 2
"""Rungs in a row that lose more: one alone may only divide badly."""


def even_sizes(problem: Problem, limits: BudgetLimits, best: BudgetRun) -> tuple[int, int]:
    """Parameters of the smallest and the largest shape that lose less than ``EVEN_LOSS`` above the best, on its
    GPUs."""
    ladder = problem.ladder()
    if best.model not in ladder:
        return best.params, best.params
    at = ladder.index(best.model)

    beside = [ladder[at + d] for d in range(-PATIENCE, PATIENCE + 1) if 0 <= at + d < len(ladder)]
    problem.look_ahead(limits, [(best.gpus, model) for model in beside], best.loss + EVEN_LOSS)

    def furthest(rungs: Iterable[Model]) -> int:
        found, missed = best.params, 0
        for model in rungs:
            run = problem.best_at(limits, model, best.gpus, below=best.loss + EVEN_LOSS)
            missed = 0 if run is not None else missed + 1
            found = parameter_count(model) if run is not None else found
            if missed == PATIENCE:
                break
        return found

    return furthest(reversed(ladder[:at])), furthest(ladder[at + 1 :])


# What counting FLOP would choose for a budget, and what becomes of that choice on a real cluster.


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopChoice:
    """What counting FLOP would have chosen, and what becomes of it."""

    mfu_frac: float
    """Of the peak, which it assumes."""
    flop: float
    params: float
    tokens: float
    loss: float
    """That the law promises for them."""
    gpus: int
    time_s: float
    """That its tokens take at that MFU."""
    energy_j: float
    """At the boards' power, and the site around them."""
    cost_usd: float | None
    run: BudgetRun | None
    """The nearest shape on the count of GPUs that trains it furthest within the limits; None where there is none."""
    why_not: str
    """Why there is no run; empty where there is one."""

    @property
    def reached_frac(self) -> float | None:
        """Share of the FLOP it counted on that the run gets through, by the law's own count of them."""
        return None if self.run is None else self.run.counted * self.run.tokens / (self.params * self.tokens)

    def loss_of(self, law: Law, params: float) -> float:
        """What the same FLOP promise another size."""
        return float(law.loss(params, self.flop / (FLOP_PER_PARAM_TOKEN * params)))

    @property
    def full_time_s(self) -> float | None:
        """What all of its tokens would take."""
        return None if self.run is None else self.tokens / self.run.rate.tokens_per_s


def gpu_seconds(cluster: Cluster, limits: BudgetLimits, pue: float) -> dict[str, float]:
    """Return the GPU seconds that each limit on compute allows at the boards' power, for the limits that are given."""
    price, found = cluster.usd_per_gpu_h, {}
    if limits.days is not None:
        found["days"] = limits.gpus * (limits.days * DAY_S)
    if limits.usd is not None and price:
        found["usd"] = limits.usd / price * HOUR_S
    if limits.mwh is not None:
        found["mwh"] = limits.mwh * J_PER_MWH / (cluster.gpu.tdp_w * pue)
    return found


def flop_choice(problem: Problem, limits: BudgetLimits, mfu_frac: float) -> FlopChoice:
    """What the closed form chooses for GPUs x peak x an assumed MFU x time, and what that reaches here.

    Formula: C = GPUs * peak * MFU * min(days, USD / (price * GPUs), energy / (PUE * board power * GPUs))
    Where:   the law's own split of C, within the data, the size or the ratio that is asked for
    """
    cluster, gpu = problem.rates.cluster, problem.rates.cluster.gpu
    price, days_s = cluster.usd_per_gpu_h, None if limits.days is None else limits.days * DAY_S
    gpu_s = min(gpu_seconds(cluster, limits, problem.pue).values(), default=math.inf)
    flop_per_s_per_gpu = gpu.peak_flop_per_s(problem.rates.fixed.precision) * mfu_frac
    flop = flop_per_s_per_gpu * gpu_s
    params, tokens = _counted_split(problem, limits, flop)
    near = min(problem.ladder(), key=lambda model: abs(math.log(problem.law.counted(model) / params)))
    run = _best_count(problem, limits, near)
    # FLOP are the same on any count that the limits let work for all of its GPU seconds
    gpus = run.gpus if run is not None else limits.gpus
    gpus = gpus if days_s is None else min(limits.gpus, math.ceil(gpu_s / days_s * (1.0 - 1e-9)))
    worked_s = FLOP_PER_PARAM_TOKEN * params * tokens / flop_per_s_per_gpu
    return FlopChoice(
        mfu_frac=mfu_frac,
        flop=flop,
        params=params,
        tokens=tokens,
        loss=float(problem.law.loss(params, tokens)),
        run=run,
        gpus=gpus,
        time_s=worked_s / gpus,
        energy_j=worked_s * gpu.tdp_w * problem.pue,
        cost_usd=None if price is None else worked_s / HOUR_S * price,
        why_not="" if run is not None else _why_not(problem, limits, near),
    )


def _best_count(problem: Problem, limits: BudgetLimits, model: Model) -> BudgetRun | None:
    """The best run of one size on any count: what FLOP do not say, others would choose well."""
    best: BudgetRun | None = None
    bounds = sorted((problem.least_loss(limits, model, gpus), gpus) for gpus in problem.counts(limits))
    for _, gpus in bounds:
        run = problem.best_at(limits, model, gpus, below=math.inf if best is None else best.loss)
        best = run or best
    return best


def _why_not(problem: Problem, limits: BudgetLimits, model: Model) -> str:
    rates = [rate for (one, _), rate in problem.rates.known.items() if one == model]
    afford = max(problem.most_tokens(limits, model, gpus) for gpus in problem.counts(limits))
    if problem.tokens_per_param is not None and (afford == 0.0 or any(rate is not None for rate in rates)):
        return f"which these limits do not allow at {problem.tokens_per_param:g} tokens per parameter"
    if all(rate is None for rate in rates):
        return "for which no plan fits"
    return "for which no batch is allowed"


def _counted_split(problem: Problem, limits: BudgetLimits, flop: float) -> tuple[float, float]:
    work = flop / FLOP_PER_PARAM_TOKEN
    if problem.model is not None:
        params = problem.law.counted(problem.model)
        tokens = work / params
        if problem.tokens_per_param is not None:
            tokens = problem.tokens_per_param * parameter_count(problem.model)
    elif problem.tokens_per_param is not None:
        params = math.sqrt(work / problem.tokens_per_param)
        tokens = work / params
    else:
        params, tokens = problem.law.split(flop)
    if limits.tokens_max is not None and tokens > limits.tokens_max:
        tokens = limits.tokens_max
        if problem.model is None:
            params = work / tokens if problem.tokens_per_param is None else tokens / problem.tokens_per_param
    return params, tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RareExchange:
    """The best run within the same limits whose replicas run apart: its size, GPUs, batch and plan chosen anew."""

    sync_every: int
    replicas: int
    gpus: int
    global_batch: int
    params: int
    plan: Plan
    tokens_per_s: float
    tokens: float
    days: float
    cost_usd: float | None
    loss_ratio: float
    """Loss with the replicas over that of data parallelism, by the law."""
    loss: float
    gained: float
    """Loss that is saved; negative if an exchange in every step is better."""
    extrapolated: tuple[str, ...]
    """What is outside the runs that the law was fitted to; empty if nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLaw(Law):
    """A scaling law of models that are trained by replicas.

    Formula: L(N, D) r(N, M)
    Source:  r as ``cost.outer_sync.loss_ratio``
    Valid:   where both laws are; r was fitted to 20 tokens per parameter
    """

    replicas: int

    def loss(self, params: Any, tokens: Any, values: Any = None) -> Any:
        """Of the law without replicas, times their ratio."""
        return Law.loss(self, params, tokens, values) * loss_ratio(params, self.replicas)

    def tokens_for(self, loss: float, params: float) -> float:
        """The tokens after which so many parameters reach a loss with the replicas."""
        return Law.tokens_for(self, loss / loss_ratio(params, self.replicas), params)


def rare_exchange(
    problem: Problem, limits: BudgetLimits, best: BudgetRun, sync_every: int, fixed: Plan
) -> RareExchange | None:
    """The run of the lowest loss with an exchange every ``sync_every`` steps, in the fragments and the type of
    ``fixed``; None if no plan has replicas.

    The search is that of the budget, over sizes, GPU counts and batches, once for each number of replicas that the law
    was fitted to. The critical batch size is that of data parallelism.
    """
    found = []
    for replicas in fitted_replicas():
        law = ReplicaLaw(**{name: getattr(problem.law, name) for name in Law.__dataclass_fields__}, replicas=replicas)
        run = replace(problem, rates=problem.rates.apart(fixed, sync_every, replicas), law=law).optimum(limits)
        if run is not None:
            found.append((run.loss, replicas, run))
    if not found:
        return None
    loss, replicas, run = min(found, key=lambda one: one[:2])
    return RareExchange(
        sync_every=sync_every,
        replicas=replicas,
        gpus=run.gpus,
        global_batch=run.rate.global_batch,
        params=run.params,
        plan=run.rate.plan,
        tokens_per_s=run.rate.tokens_per_s,
        tokens=run.tokens,
        days=run.days,
        cost_usd=run.cost_usd,
        loss_ratio=loss_ratio(run.counted, replicas),
        loss=loss,
        gained=best.loss - loss,
        extrapolated=tuple(outside_fit(run.counted, replicas, sync_every=sync_every)),
    )
