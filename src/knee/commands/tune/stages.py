"""What is tuned, in two stages: plans of the whole space, then settings changed one at a time around the best run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from math import log2
from typing import Any, Literal, get_args

import numpy as np

from knee.base.arrays import Floats
from knee.base.errors import InputError, SpecError, argument
from knee.commands.tune.loop import Stage
from knee.commands.tune.posterior import (
    Beliefs,
    Candidates,
    SimulatedShares,
    candidates_of,
    carried_spreads,
    carried_transfer,
    simulated_shares,
)
from knee.commands.tune.tuning_folder import plan_key
from knee.engine.simulator import simulate_table
from knee.specs.job import Job
from knee.specs.load import load_profile
from knee.specs.plan import REDUCE_DTYPES, Plan, plan_words
from knee.specs.plan_table import table_of
from knee.specs.profile import Kernels
from knee.training.sweeps.job_for_trainer import STEPS, RunSettings, device_of
from knee.training.sweeps.preflight import PlannedRun, RequestedRun, plan_runs

# Runs that are smaller than the job: fewer replicas, or fewer layers; the same plan otherwise.


@dataclass(frozen=True, slots=True, kw_only=True)
class Smaller:
    """What a run has of the job; None is all of it."""

    gpus: int | None = None
    layers: int | None = None

    def of(self, job: Job) -> Job:
        """The job as it is run; SpecError where its plan cannot be made smaller."""
        if self.layers is not None:
            job = replace(job, model=replace(job.model, layers=self.layers))
        if self.gpus is None:
            return job
        times = job.gpus // self.gpus
        fewer = np.gcd(times, job.plan.dp_replicate)
        shards = times // fewer
        if job.plan.dp_shard % shards or job.global_batch % times:
            text = f"a plan without {times:,} times as many replicas or shards cannot run on {self.gpus:,} GPUs"
            raise SpecError(text, code="does-not-divide", field="smaller")
        plan = replace(
            job.plan, dp_replicate=int(job.plan.dp_replicate // fewer), dp_shard=int(job.plan.dp_shard // shards)
        )
        return replace(job, plan=plan, gpus=self.gpus, global_batch=job.global_batch // times)

    def check(self, *, gpus: int, layers: int) -> None:
        """Refuse what is not smaller than the job."""
        for name, unit, mine, most in (("gpus", "GPUs", self.gpus, gpus), ("layers", "layers", self.layers, layers)):
            if mine is not None and not 1 <= mine <= most:
                text = f"{argument(f'smaller_{name}')} is {mine}, but the job has {most:,} {unit}"
                hint = f"give a number between 1 and {most:,}"
                raise InputError(text, hint=hint, code="out-of-range", field=f"smaller_{name}")
        if self.gpus is not None and gpus % self.gpus:
            text = f"{argument('smaller_gpus')} is {self.gpus}, which does not divide the {gpus:,} GPUs of the job"
            hint = "a smaller run has fewer replicas of the same plan"
            raise InputError(text, hint=hint, code="does-not-divide", field="smaller_gpus")

    def error_frac(self, job: Job) -> float:
        """Standard deviation of a plan's log throughput at full size around what its smaller run tells.

        Formula: sqrt(g^2 log2(N / n) + l^2 log2(L / k))
        Where: N GPUs and L layers of the job, n and k of the run; g and l fitted to pairs of published runs of one plan
        Source: tools/fit_tuning.py (transfer_pairs.py)
        """
        spreads = carried_transfer()
        halvings = log2(job.gpus / (self.gpus or job.gpus))
        cuts = log2(job.model.layers / (self.layers or job.model.layers))
        return float(np.sqrt(spreads["gpus"] ** 2 * halvings + spreads["layers"] ** 2 * cuts))


def transfer_variance(jobs: Sequence[Job], smaller: Smaller) -> Floats:
    """Covariance: none of the runs; the error of the transfer of the plans at full size, each for itself."""
    own = smaller.error_frac(jobs[0]) ** 2
    return np.diag(np.concatenate([np.zeros(len(jobs)), np.full(len(jobs), own)]))


# The first stage: plans of the whole space, each a short run of the job.

Planner = Callable[[Sequence[RequestedRun], int], list[PlannedRun]]
"""Runs that are asked for, and the number of the first -> runs with their folders and estimates."""


def candidates_for(jobs: Sequence[Job], settings: RunSettings) -> Candidates:
    """The jobs of one model, cluster and stack, simulated."""
    first = jobs[0]
    steps = (settings.steps or STEPS[device_of(first, settings)]) + settings.trace_steps
    return candidates_of(first.model, first.cluster, first.profile, table_of(jobs), steps=steps)


def stage_of_plans(jobs: Sequence[Job], settings: RunSettings, planner: Planner, smaller: Smaller) -> Stage:
    """Candidates are jobs that differ in their plan; each is run as it is, or smaller."""
    made = [smaller.of(job) for job in jobs]
    keys = tuple(plan_key(question_of(job)) for job in made)

    def make(rows: Sequence[int], first: int) -> list[PlannedRun]:
        runs = ((made[row], keys[row]) for row in rows)
        return planner([_requested(job, plan_words(job.plan), question_of(job), key) for job, key in runs], first)

    rate, memory = carried_spreads("throughput"), carried_spreads("memory")
    full = candidates_for(jobs, settings)
    shares = shares_of(made, full)
    if smaller == Smaller():
        return Stage(name="plan", keys=keys, beliefs=Beliefs(full, rate, memory, shares=shares), make=make)
    both = candidates_for(made, settings).followed_by(full)
    beliefs = Beliefs(both, rate, memory, more=transfer_variance(jobs, smaller), goal=len(jobs), shares=shares)
    return Stage(name="plan", keys=keys, beliefs=beliefs, make=make)


def shares_of(jobs: Sequence[Job], candidates: Candidates) -> Callable[[int], SimulatedShares]:
    """Exposed communication that is expected of a run, by row; simulated once, where a run has a trace."""
    return cache(lambda row: simulated_shares(jobs[row], candidates))


def question_of(job: Job, **more: Any) -> dict[str, Any]:
    """What makes a run another one."""
    return {
        "model": job.model.name,
        "layers": job.model.layers,
        "gpus": job.gpus,
        "global_batch": job.global_batch,
        "seq_len": job.seq_len,
        "plan": asdict(job.plan),
        **more,
    }


def _requested(job: Job, name: str, question: Mapping[str, Any], key: str) -> RequestedRun:
    return RequestedRun(name=name, series=key, model=job.model.name, gpus=job.gpus, question=question, job=job)


def planner_of(settings: RunSettings, *, gpus_per_node: int | None, command: Sequence[str]) -> Planner:
    """Runs of the trainer; memory is weighed by the choice, so none is refused for it."""

    def plan(requested: Sequence[RequestedRun], first: int) -> list[PlannedRun]:
        return plan_runs(
            requested, settings, gpus_per_node=gpus_per_node, anyway=True, command=list(command), first=first
        )

    return plan


Knob = Literal["micro_batch", "recompute", "prefetch", "compile", "reduce_dtype", "precision", "nccl"]
KNOBS: tuple[Knob, ...] = get_args(Knob)
USUAL: tuple[Knob, ...] = ("micro_batch", "recompute", "prefetch", "compile")
"""Knobs that change neither the numerics of training nor the environment."""
GATHERING = ("fsdp", "hsdp", "fsdp_no_reshard")
"""Shardings that gather parameters, which can be done ahead."""
NCCL = (
    {"NCCL_BUFFSIZE": "8388608"},
    {"NCCL_MIN_NCHANNELS": "16"},
    {"NCCL_NVLS_ENABLE": "0"},
    {"NCCL_IB_QPS_PER_CONNECTION": "4"},
)
"""Settings of NCCL that are tried, each by itself."""
COMPILED: dict[Kernels, tuple[str, str]] = {"eager": ("eager", "compiled"), "native": ("knee", "knee-compiled")}
"""Kernel set -> profiles of the catalogue that differ in torch.compile."""
COMPILE_SPREAD, PRECISION_SPREAD, NCCL_SPREAD = 0.1, 0.1, 0.03
"""Standard deviation of the logarithm of what these change beyond what the simulator predicts (assumed); runs that have
the same setting share it."""
PLAN_VALUES: dict[Knob, Callable[[Plan], list[dict[str, Any]]]] = {
    "micro_batch": lambda plan: [{"micro_batch": 2 * plan.micro_batch}, {"micro_batch": plan.micro_batch // 2}],
    "recompute": lambda _: [
        {"recompute": word, "recompute_frac": 1.0, "recompute_modules": ()} for word in ("none", "attention", "full")
    ],
    "prefetch": lambda plan: [{"prefetch": ahead} for ahead in ((0, 1, 2) if plan.sharding in GATHERING else ())],
    "reduce_dtype": lambda _: [{"reduce_dtype": dtype} for dtype in REDUCE_DTYPES],
    "precision": lambda _: [{"precision": precision} for precision in ("bf16", "fp8")],
}
"""Knob -> fields of the plan that are tried; what is no plan is left out."""
Refused = Callable[[Job], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A job with settings of its run."""

    job: Job
    compile: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def question(self) -> dict[str, Any]:
        """What makes a run another one; the plan alone, if nothing else is set."""
        more: dict[str, Any] = {"compile": True} if self.compile else {}
        return question_of(self.job, **more, **({"environment": dict(self.environment)} if self.environment else {}))

    @property
    def words(self) -> str:
        """The plan and its settings."""
        words = [plan_words(self.job.plan)]
        words += ["compile"] if self.compile else []
        return ", ".join([*words, *(f"{name}={value}" for name, value in self.environment.items())])

    @property
    def train_words(self) -> tuple[str, ...]:
        """Variables before `knee train JOB` and options after it that its job file does not have."""
        variables = (f"{name}={value}" for name, value in self.environment.items())
        return (*variables, *(["--compile"] if self.compile else []))


def variants(base: Variant, knobs: Sequence[Knob], refused: Refused) -> list[Variant]:
    """The base first, then what one change makes of it, as far as it can be run. Precision is also changed together
    with compile: casts to fp8 are cheap only if they are fused."""
    changed = [one for knob in knobs for one in _changes(base, knob)]
    if {"compile", "precision"} <= set(knobs):
        changed += _changes(replace(base, compile=not base.compile), "precision")
    found = {plan_key(base.question): base}
    for one in changed:
        if refused(one.job) is None:
            found.setdefault(plan_key(one.question), one)
    return list(found.values())


def _changes(base: Variant, knob: Knob) -> Iterator[Variant]:
    if knob == "compile":
        yield replace(base, compile=not base.compile)
    elif knob == "nccl":
        for setting in NCCL:
            yield replace(base, environment={**base.environment, **setting})
    else:
        for fields in PLAN_VALUES[knob](base.job.plan):
            try:
                yield replace(base, job=replace(base.job, plan=replace(base.job.plan, **fields)))
            except SpecError:
                continue


def candidates_for_variants(found: Sequence[Variant], settings: RunSettings) -> Candidates:
    """The variants simulated; those that are compiled have what torch.compile gains and saves in the catalogue."""
    jobs = [one.job for one in found]
    plain, first = candidates_for(jobs, settings), jobs[0]
    compiled = np.array([one.compile for one in found])
    pair = COMPILED.get(first.profile.kernels)
    if pair is None or not compiled.any():
        return plain
    stacks = [replace(load_profile(name).spec, attention=first.profile.attention) for name in pair]
    before, after = (simulate_table(first.model, first.cluster, stack, table_of(jobs)) for stack in stacks)
    rate = np.where(compiled, after.tokens_per_s_per_gpu / before.tokens_per_s_per_gpu, 1.0)
    memory = np.where(compiled, after.memory_bytes / before.memory_bytes, 1.0)
    return replace(
        plain,
        tokens_per_s_per_gpu=plain.tokens_per_s_per_gpu * rate,
        memory_bytes=plain.memory_bytes * memory,
        log_rate_draws=plain.log_rate_draws + np.log(rate),
        log_memory_draws=plain.log_memory_draws + np.log(memory),
    )


def stage_of_knobs(found: Sequence[Variant], settings: RunSettings, planner: Planner, name: str) -> Stage:
    """Candidates are variants of one plan."""
    keys = tuple(plan_key(one.question) for one in found)

    def make(rows: Sequence[int], first: int) -> list[PlannedRun]:
        some = ((found[row], keys[row]) for row in rows)
        planned = planner([_requested(one.job, one.words, one.question, key) for one, key in some], first)
        return [
            one if one.train is None or not found[row].compile else replace(one, train=replace(one.train, compile=True))
            for row, one in zip(rows, planned, strict=True)
        ]

    rate, memory = carried_spreads("throughput"), carried_spreads("memory")
    candidates = candidates_for_variants(found, settings)
    shares = shares_of([one.job for one in found], candidates)
    beliefs = Beliefs(candidates, rate, memory, more=shared_errors(found), shares=shares)
    return Stage(name=name, keys=keys, beliefs=beliefs, make=make)


def shared_errors(found: Sequence[Variant]) -> Floats:
    """Covariance of log throughput of variants by the settings that they share."""
    columns = (
        (COMPILE_SPREAD, [one.compile for one in found]),
        (PRECISION_SPREAD, [one.job.plan.precision for one in found]),
        (NCCL_SPREAD, [str(sorted(one.environment.items())) for one in found]),
    )
    total: Floats = np.zeros((len(found), len(found)))
    for spread, values in columns:
        settings = np.array(values)
        total += spread**2 * (settings[:, None] == settings[None, :])
    return total
