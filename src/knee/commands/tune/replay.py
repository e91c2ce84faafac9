"""``knee.replay_tuning``: the loop of ``knee.tune`` on sweeps that were published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import combinations
from math import expm1, log, log2, sqrt
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from knee.base.arrays import Floats, extreme_values
from knee.base.errors import InputError, MissingExtra, argument
from knee.base.progress import Progress, watched
from knee.commands.tune.loop import SHORT, standing
from knee.commands.tune.posterior import Beliefs, Candidates, End, Outcome, candidates_of, carried_spreads
from knee.engine.simulator import simulate_table
from knee.show.result import Result
from knee.specs.argument_types import checked_arguments, not_in_range
from knee.specs.defaults import WITHIN_FRAC
from knee.specs.job import Job
from knee.specs.load import forget_files
from knee.specs.plan import Plan, plan_words
from knee.specs.plan_table import PlanTable, table_of
from knee.trust.validation.bundled_runs import carried_runs
from knee.trust.validation.csv_cells import by_kind
from knee.trust.validation.published_runs import PublishedRun, Setting, read_runs
from knee.trust.validation.run_errors import job_key, unread_bytes
from knee.trust.validation.run_to_job import RunJob, left_out_profiles, unseen_job_of

# Sweeps that were published: jobs that were measured under several plans, each plan as if it were a run to be made.

LEAST_PLANS = 8
STEPS = 40
"""Steps of a short run, between 20 and 60."""
Pair = tuple[PublishedRun, RunJob]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedJob:
    """One job, every plan of it that was run, and what each gave."""

    source: str
    name: str
    job: Job
    """Of one of the plans."""
    table: PlanTable
    plans: tuple[str, ...]
    candidates: Candidates
    outcomes: tuple[Outcome, ...]
    """Of each plan, in order."""

    @property
    def without(self) -> str | None:
        """The source, where something of it was fitted on."""
        return self.source if self.source in left_out_profiles() else None

    @property
    def best_tokens_per_s_per_gpu(self) -> float:
        """Of the fastest plan that was measured."""
        return max(o.tokens_per_s_per_gpu or 0.0 for o in self.outcomes)


def published_jobs(
    runs: Iterable[PublishedRun], *, least_plans: int = LEAST_PLANS, without: str | None = None
) -> list[PublishedJob]:
    """Jobs with at least so many measured plans, predicted as if nothing of their source were known.

    ``without``: leave out the jobs of a source.
    """
    groups: dict[Hashable, list[PublishedRun]] = {}
    for run in runs:
        if run.setting.source != without:
            groups.setdefault(job_key(run.setting), []).append(run)
    found = []
    for members in groups.values():
        plans = _by_plan(members) if len(members) >= least_plans else {}
        if sum(run.tokens_per_s_per_gpu is not None for run, _ in plans.values()) >= least_plans:
            found.append(_job(list(plans.values())))
    return found


def _by_plan(runs: Sequence[PublishedRun]) -> dict[Plan, Pair]:
    """One run a plan, all on the cluster and the stack of the first that was measured. What ran once fits, so a crash
    of a plan that was also measured says nothing."""
    pairs: list[Pair] = []
    for run in sorted(runs, key=lambda run: run.tokens_per_s_per_gpu is None):
        try:
            asked = unseen_job_of(run.setting)
            first = pairs[0][1].job if pairs else asked.job
            job = replace(asked.job, model=first.model, cluster=first.cluster, profile=first.profile)
        except InputError:
            continue
        pairs.append((run, replace(asked, job=job)))
    found: dict[Plan, list[Pair]] = {}
    for run, asked in pairs:
        found.setdefault(asked.job.plan, []).append((run, asked))
    return {plan: _median(some) for plan, some in found.items() if some[0][0].status != "ok" or _measured(some)}


def _measured(pairs: Sequence[Pair]) -> list[float]:
    return [run.tokens_per_s_per_gpu for run, _ in pairs if run.tokens_per_s_per_gpu is not None]


def _median(pairs: Sequence[Pair]) -> Pair:
    run, asked = pairs[0]
    if (rates := _measured(pairs)) and len(rates) > 1:
        run = replace(run, tokens_per_s_per_gpu=float(np.median(rates)))
    return run, asked


def _job(pairs: Sequence[Pair]) -> PublishedJob:
    setting, first = pairs[0][0].setting, pairs[0][1].job
    # in an order that tells nothing: authors list the best plans first
    order = np.random.default_rng(0).permutation(len(pairs))
    mixed = [pairs[at] for at in order]
    table = table_of([asked.job for _, asked in mixed])
    source = setting.source
    known = source if source in left_out_profiles() else None
    return PublishedJob(
        source=source,
        name=f"{setting.model}, {setting.n_gpus:,} {setting.gpu}, batch {setting.global_batch:,} x {setting.seq_len:,}"
        + (f", {setting.kernel}" if setting.kernel else ""),
        job=first,
        table=table,
        plans=tuple(plan_words(asked.job.plan) for _, asked in mixed),
        candidates=candidates_of(first.model, first.cluster, first.profile, table, steps=STEPS, without=known),
        outcomes=tuple(_outcome(at, run, asked) for at, (run, asked) in enumerate(mixed)),
    )


def _outcome(plan: int, run: PublishedRun, asked: RunJob) -> Outcome:
    end: End = "ok" if run.tokens_per_s_per_gpu is not None else "oom" if run.status == "oom" else "failed"
    unread = unread_bytes(run, asked, asked.job.profile)
    return Outcome(
        plan=plan,
        end=end,
        tokens_per_s_per_gpu=run.tokens_per_s_per_gpu,
        memory_bytes=None if run.memory_bytes is None or end != "ok" else run.memory_bytes + unread,
    )


# Pairs of published runs of one plan that differ in their GPUs or their layers: how wrong a transfer from the smaller
# run to the larger one is.

What = Literal["gpus", "layers"]
"""What a smaller run has less of."""
WHATS: tuple[What, ...] = get_args(What)
NORMAL = 1.645
"""Standard deviations to the end of a band of 90%."""
MOST_PAIRS = 10
"""A cohort counts as no more pairs than these."""
OTHERWISE: dict[What, tuple[str, ...]] = {
    "gpus": ("n_gpus", "dp", "shard_group", "global_batch", "note"),
    "layers": ("layers", "model", "note"),
}
"""Columns in which the runs of a pair may differ; those with fewer GPUs have the same batch per GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPair:
    """Two runs of one plan."""

    source: str
    cohort: str
    """What is left out of the fit by which the pair is judged: its source; of layers, of which one source has nearly
    all pairs, its source and the width of the model."""
    small: int
    large: int
    error: float
    """Logarithm of measured over predicted gain in tokens/s per GPU."""

    @property
    def doublings(self) -> float:
        return log2(self.large / self.small)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferErrors:
    """How wrong transfers from smaller runs are, and whether their band holds."""

    what: What
    pairs: int
    sources: int
    median_error_frac: float
    p90_error_frac: float
    band_holds_frac: float | None
    """Share of pairs within the 90% band that is fitted without their cohort; None where there is one cohort."""


def transfer_errors(runs: Iterable[PublishedRun]) -> list[TransferErrors]:
    """Of runs with fewer GPUs and of runs with fewer layers, as far as there are any."""
    runs = list(runs)
    found = [(what, pairs) for what in WHATS if (pairs := transfer_pairs(runs, what))]
    return [
        TransferErrors(
            what=what,
            pairs=len(pairs),
            sources=len({pair.source for pair in pairs}),
            median_error_frac=float(np.median([abs(expm1(pair.error)) for pair in pairs])),
            p90_error_frac=float(np.quantile([abs(expm1(pair.error)) for pair in pairs], 0.9)),
            band_holds_frac=covered_frac(pairs),
        )
        for what, pairs in found
    ]


def transfer_pairs(runs: Iterable[PublishedRun], what: What) -> list[TransferPair]:
    """All pairs, each predicted as if nothing of its source were known; of runs that are alike, the median counts."""
    groups: dict[Hashable, dict[int, list[PublishedRun]]] = {}
    for run in runs:
        if run.tokens_per_s_per_gpu is not None:
            size = run.setting.n_gpus if what == "gpus" else run.setting.layers
            groups.setdefault(_alike(run.setting, what), {}).setdefault(size, []).append(run)
    found = []
    for sizes in (some for some in groups.values() if len(some) > 1):
        errors = {size: error for size, some in sizes.items() if (error := _error(some)) is not None}
        one = next(iter(sizes.values()))[0].setting
        cohort = one.source if what == "gpus" else f"{one.source}, hidden {one.hidden}"
        found += [
            TransferPair(
                source=one.source, cohort=cohort, small=small, large=large, error=errors[large] - errors[small]
            )
            for small, large in combinations(sorted(errors), 2)
        ]
    return found


def fitted_spread(pairs: Sequence[TransferPair], *, without: str | None = None) -> float | None:
    """Standard deviation of the error that each doubling adds, by the pairs of other cohorts; None without any.

    Formula: sqrt(sum_s w_s mean_s(e^2 / d) / sum_s w_s), w_s = min(pairs of cohort s, MOST_PAIRS)
    Where: e the error of a pair, d its doublings
    """
    cohorts: dict[str, list[float]] = {}
    for pair in pairs:
        if pair.cohort != without:
            cohorts.setdefault(pair.cohort, []).append(pair.error**2 / pair.doublings)
    if not cohorts:
        return None
    weights = [min(len(some), MOST_PAIRS) for some in cohorts.values()]
    return sqrt(float(np.average([np.mean(some) for some in cohorts.values()], weights=weights)))


def covered_frac(pairs: Sequence[TransferPair]) -> float | None:
    """Share of the pairs whose error is within the 90% band that the other cohorts give; None if there are none."""
    spreads = {cohort: fitted_spread(pairs, without=cohort) for cohort in {pair.cohort for pair in pairs}}
    judged = [(pair, spread) for pair in pairs if (spread := spreads[pair.cohort]) is not None]
    if not judged:
        return None
    return float(np.mean([abs(pair.error) <= NORMAL * spread * sqrt(pair.doublings) for pair, spread in judged]))


def _alike(s: Setting, what: What) -> Hashable:
    same = tuple(str(getattr(s, f.name)) for f in fields(s) if f.name not in OTHERWISE[what])
    return (*same, s.global_batch / s.n_gpus if what == "gpus" else None)


def _error(runs: Sequence[PublishedRun]) -> float | None:
    """Logarithm of measured over predicted; None where the run cannot be simulated."""
    try:
        job = unseen_job_of(runs[0].setting).job
        with extreme_values():
            now = simulate_table(job.model, job.cluster, job.profile, table_of([job]))
    except InputError:
        return None
    measured = float(np.median([run.tokens_per_s_per_gpu for run in runs if run.tokens_per_s_per_gpu is not None]))
    return log(measured / float(now.tokens_per_s_per_gpu[0]))


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


FEW_TRIALS = 6
"""Runs within which the loop should stop by itself."""


@dataclass(frozen=True, kw_only=True, repr=False)
class TuneReplay(Result):
    """How the loop does on jobs that were published, each predicted as if nothing of its source were known."""

    file: str
    within_frac: float
    jobs: tuple[ReplayedJob, ...]
    methods: tuple[TrialCounts, ...]
    """Runs until a plan within 2% of the best is found: the loop first, then other ways to choose."""
    small_jobs: int
    """Jobs with fewer measured plans, which are not played."""
    transfers: tuple[TransferErrors, ...] = ()
    """How wrong predictions from runs with fewer GPUs or layers are, where the file has such runs."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Why rows of the file cannot be used -> how many."""

    @property
    def few_trials_frac(self) -> float:
        """Share of jobs in which the loop stops within six runs."""
        return float(np.mean([job.trials_to_stop <= FEW_TRIALS for job in self.jobs]))

    @property
    def bound_holds_frac(self) -> float:
        """Share of jobs in which the bound that is stated at the end holds."""
        return float(np.mean([job.bound_holds for job in self.jobs]))

    @property
    def gpu_h_frac(self) -> float:
        """GPU-hours of the loop over those of running every plan, all jobs together."""
        return sum(job.gpu_h for job in self.jobs) / sum(job.sweep_gpu_h for job in self.jobs)

    def _data(self) -> dict[str, Any]:
        stops = [job.trials_to_stop for job in self.jobs]
        names = ("file", "within_frac", "jobs", "small_jobs", "methods")
        shares = ("few_trials_frac", "bound_holds_frac", "gpu_h_frac", "transfers", "skipped")
        return {
            **{name: getattr(self, name) for name in names},
            "median_trials_to_stop": float(np.median(stops)),
            "p90_trials_to_stop": float(np.quantile(stops, 0.9)),
            "few_trials": FEW_TRIALS,
            **{name: getattr(self, name) for name in shares},
        }

    def rows(self) -> list[dict[str, Any]]:
        """The jobs, one per row."""
        return [asdict(job) for job in self.jobs]


PUBLISHED = "published"
"""The runs that knee ships, in place of a file's name."""
FEWER = 4
"""Measured plans of a job that is still worth playing."""


@checked_arguments
def replay_tuning(
    file: str | Path = PUBLISHED,
    *,
    within: float = WITHIN_FRAC,
    least_plans: int = LEAST_PLANS,
    progress: Progress | None = None,
) -> TuneReplay:
    """Play the loop of ``knee.tune`` on measured runs, as if each plan were a run that has to be made.

    ``file`` is a CSV file of training runs as for ``knee.validate``, or ``"published"`` for the runs that knee ships.
    Every job with at least ``least_plans`` measured plans is played. Runs of a published source are predicted with
    constants that were fitted without that source. The loop stops when no untried plan is expected to be faster by more
    than the share ``within``. Optuna's TPE is one of the other ways to choose if optuna is installed.

    >>> import knee
    >>> found = knee.replay_tuning("published", least_plans=8)  # doctest: +SKIP
    >>> found.methods[0].median  # doctest: +SKIP
    1.0
    """
    check_within(within)
    if least_plans < 2:
        raise not_in_range("least_plans", str(least_plans), "it must be at least 2")
    forget_files()
    found = carried_runs() if str(file) == PUBLISHED else read_runs(Path(file))
    jobs = published_jobs(found.runs, least_plans=least_plans)
    skipped = Counter(row.reason for row in found.rows if row.reason)
    if not jobs:
        raise _no_job(str(file), least_plans, skipped)
    played = tuple(replay_job(job, within_frac=within) for job in watched(jobs, "replaying", len(jobs), progress))
    orders = [
        ("expected improvement (knee tune)", None),
        ("Thompson sampling", thompson_orders),
        ("simulator alone", simulator_order),
        ("grid order", grid_order),
        ("random order", random_orders),
        *([("Optuna TPE", tpe_orders)] if find_spec("optuna") else []),
    ]
    methods = tuple(
        counts_of(name, [job.trials_to_good for job in played]) if order is None else trial_counts(name, jobs, order)
        for name, order in watched(orders, "comparing", len(orders), progress)
    )
    every = len({job_key(run.setting) for run in found.runs})
    return TuneReplay(
        file=str(file),
        within_frac=within,
        jobs=played,
        methods=methods,
        small_jobs=max(0, every - len(jobs)),
        transfers=tuple(transfer_errors(found.runs)),
        skipped=by_kind(skipped),
    )


def _no_job(file: str, least_plans: int, skipped: Mapping[str, int]) -> InputError:
    """The error of a file without a sweep; rows that could not be read may be why."""
    why = f"; rows that cannot be used: {sum(skipped.values()):,} ({next(iter(by_kind(skipped)))})" if skipped else ""
    return InputError(
        f"{file} has no job with {least_plans} measured plans; runs belong to one job if they differ only in the "
        f"plan{why}",
        hint=f"{argument('least_plans')} {FEWER} also plays smaller jobs" if least_plans > FEWER else None,
        code="nothing-usable",
        field="replay",
    )


def check_within(within: float) -> None:
    """Refuse what is no share."""
    if not 0 <= within < 1:
        hint = f"for example {argument('within')} 2%"
        raise not_in_range("within", f"{within:g}", "it must be at least 0 and below 1", hint=hint)
