"""The model that loses least within a budget: how many parameters and tokens, on how many GPUs, under which plan.

A candidate is a shape of the family's ladder at a count of GPUs and a batch; the simulator says how fast it trains, the
limits how many tokens that affords, a scaling law what they are worth. Candidates that could not be best even if they
only computed are not priced.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, starmap

from knee.base.progress import Progress, silent
from knee.base.units import DAY_S, HOUR_S, short
from knee.commands.budget.budget_run import J_PER_MWH, BudgetLimits, BudgetRun, Name
from knee.commands.budget.model_family import Family
from knee.commands.budget.scaling_laws import BatchLaw, Law
from knee.commands.budget.throughput import Asked, Rate, Rates
from knee.engine.workload.parameters import parameter_count
from knee.specs.model import Model

# Counts of GPUs that a budget tries: a ladder that does not hang on the limit, and what the limits themselves name.

ODDS = (1, 3)
"""Of the ladder's counts, times doublings of a node: a larger limit only adds to them. Fives and sevens would double
the time of an answer."""


def doublings(node: int, most: int) -> list[int]:
    """From a node to the limit, ascending."""
    least = _least(node, most)
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


def _least(node: int, most: int) -> int:
    return 1 << (min(node, most).bit_length() - 1)


Candidate = tuple[int, Model]
"""GPUs and size."""
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
        """What ``best_at`` asks for first."""
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
