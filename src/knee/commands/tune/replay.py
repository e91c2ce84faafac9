"""The loop on sweeps that were published: how many runs it would have needed, beside other ways to choose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import numpy as np

from knee.base.arrays import Floats
from knee.base.errors import MissingExtra
from knee.commands.tune.next_run import SHORT, standing
from knee.commands.tune.plan_covariance import carried_spreads
from knee.commands.tune.posterior import Beliefs, Outcome
from knee.commands.tune.published_jobs import PublishedJob

GOOD = 0.98
"""Within 2% of the best measured plan."""
RANDOM_ORDERS = 100
SEEDS = 10
"""Of ways to choose that draw."""
MOST_SUGGESTIONS = 400
TPE_SEEDS = 3
GRID = ("tp", "pp", "cp", "ep", "sharding", "dp_shard", "micro_batch", "recompute", "sequence_parallel")
Order = Callable[[PublishedJob], Iterator[list[int]]]
"""Ways through the plans of a job, one or several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedJob:
    """The loop on one job."""

    source: str
    name: str
    plans: int
    measured_plans: int
    tried: tuple[str, ...]
    """Plans in the order in which they were run, until it stopped."""
    ends: tuple[str, ...]
    trials_to_good: int
    """Runs until the best plan so far was within 2% of the best of all."""
    trials_to_stop: int
    bound_frac: float
    """Stated when it stopped."""
    missed_frac: float
    """How much faster the best plan of all ran than the one that was found."""
    gpu_h: float
    """Of the runs until it stopped, by the simulator."""
    sweep_gpu_h: float
    """Of running every plan."""

    @property
    def bound_holds(self) -> bool:
        """Whether no plan was faster than the bound says."""
        return self.missed_frac <= self.bound_frac + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCounts:
    """How many runs one way to choose needs until it has a plan within 2% of the best."""

    method: str
    jobs: int
    median: float
    p90: float
    mean: float


def beliefs_of(job: PublishedJob) -> Beliefs:
    """What is believed before the first run, where nothing of the source was fitted on."""
    rate, memory = (carried_spreads(quantity, without=job.without) for quantity in ("throughput", "memory"))
    return Beliefs(job.candidates, rate, memory)


def replay_job(job: PublishedJob, *, within_frac: float, seed: int = 0) -> ReplayedJob:
    """Play the loop until it stops, and further until it has found a good plan."""
    beliefs = beliefs_of(job)
    told: list[Outcome] = []
    best = job.best_tokens_per_s_per_gpu
    stopped: tuple[int, float, float] | None = None
    good: int | None = None
    while stopped is None or good is None:
        now = standing(beliefs, told, seed=seed)
        rate = now.best_tokens_per_s_per_gpu or 0.0
        if good is None and rate >= GOOD * best:
            good = len(told)
        if stopped is None and (now.enough(within_frac) or now.next is None):
            stopped = len(told), now.bound_frac or 0.0, best / rate - 1.0 if rate else np.inf
        if now.next is not None:
            told.append(job.outcomes[now.next])
    trials, bound_frac, missed_frac = stopped
    made = told[:trials]
    return ReplayedJob(
        source=job.source,
        name=job.name,
        plans=len(job.plans),
        measured_plans=sum(o.tokens_per_s_per_gpu is not None for o in job.outcomes),
        tried=tuple(job.plans[o.plan] for o in made),
        ends=tuple(o.end for o in made),
        trials_to_good=good,
        trials_to_stop=trials,
        bound_frac=bound_frac,
        missed_frac=missed_frac,
        gpu_h=_gpu_h(job, made),
        sweep_gpu_h=_gpu_h(job, job.outcomes),
    )


def _gpu_h(job: PublishedJob, outcomes: Sequence[Outcome]) -> float:
    return float(sum(job.candidates.gpu_h[o.plan] * (1.0 if o.end == "ok" else SHORT) for o in outcomes))


def trial_counts(method: str, jobs: Sequence[PublishedJob], order: Order) -> TrialCounts:
    """Over all jobs, each order of a job counting alike."""
    found = [float(np.median([_first_good(job, rows) for rows in order(job)])) for job in jobs]
    return counts_of(method, found)


def counts_of(method: str, trials: Sequence[float]) -> TrialCounts:
    """Median, 90th percentile and mean over jobs."""
    return TrialCounts(
        method=method,
        jobs=len(trials),
        median=float(np.median(trials)),
        p90=float(np.quantile(trials, 0.9)),
        mean=float(np.mean(trials)),
    )


def _first_good(job: PublishedJob, order: Sequence[int]) -> int:
    enough = GOOD * job.best_tokens_per_s_per_gpu
    return 1 + next(at for at, row in enumerate(order) if (job.outcomes[row].tokens_per_s_per_gpu or 0.0) >= enough)


def random_orders(job: PublishedJob) -> Iterator[list[int]]:
    """Plans in any order."""
    random = np.random.default_rng(0)
    for _ in range(RANDOM_ORDERS):
        yield random.permutation(len(job.plans)).tolist()


def grid_order(job: PublishedJob) -> Iterator[list[int]]:
    """Plans by their sizes, as a grid file lists them."""
    columns = [np.asarray(getattr(job.table, name)) for name in GRID]
    yield np.lexsort(columns[::-1]).tolist()


def simulator_order(job: PublishedJob) -> Iterator[list[int]]:
    """The simulator's ranking without learning: what it expects to fit first."""
    fits = job.candidates.memory_bytes <= job.candidates.hbm_bytes
    yield np.lexsort((-job.candidates.tokens_per_s_per_gpu, ~fits)).tolist()


def thompson_orders(job: PublishedJob) -> Iterator[list[int]]:
    """The best untried plan of one draw of the posterior, again and again."""
    beliefs = beliefs_of(job)
    for seed in range(SEEDS):
        told: list[Outcome] = []
        left = list(range(len(job.plans)))
        while left:
            usable, _ = beliefs.after(told).draws(1, seed * 1_000 + len(told))
            row = max(left, key=lambda row: (usable[0, row], job.candidates.tokens_per_s_per_gpu[row]))
            left.remove(row)
            told.append(job.outcomes[row])
            if (told[-1].tokens_per_s_per_gpu or 0.0) >= GOOD * job.best_tokens_per_s_per_gpu:
                break
        yield [*(o.plan for o in told), *left]


def tpe_orders(job: PublishedJob) -> Iterator[list[int]]:
    """Optuna's TPE over the plan's dimensions; what it suggests that was not run, or was tried, is no trial."""
    if find_spec("optuna") is None:
        raise MissingExtra("TPE needs optuna", hint="pip install optuna")
    optuna = import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    columns = {name: np.asarray(getattr(job.table, name)).tolist() for name in GRID}
    rows = {tuple(values): row for row, values in enumerate(zip(*columns.values(), strict=True))}
    for seed in range(TPE_SEEDS):
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        order: list[int] = []
        for _ in range(MOST_SUGGESTIONS):
            trial = study.ask()
            values = tuple(trial.suggest_categorical(name, sorted(set(column))) for name, column in columns.items())
            row = rows.get(values)
            if row is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                continue
            rate = job.outcomes[row].tokens_per_s_per_gpu or 0.0
            study.tell(trial, rate)
            if row not in order:
                order.append(row)
            if rate >= GOOD * job.best_tokens_per_s_per_gpu:
                break
        rest: Floats = np.setdiff1d(np.arange(len(job.plans)), order)
        yield [*order, *(int(row) for row in rest)]
