"""Settings that are tuned after the plan: one of them changed at a time, around the best run so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from knee.base.arrays import Floats
from knee.base.errors import SpecError
from knee.commands.tune.candidates import Candidates
from knee.commands.tune.loop import Stage
from knee.commands.tune.plan_covariance import carried_spreads
from knee.commands.tune.plan_stage import Planner, candidates_for, question_of, shares_of
from knee.commands.tune.posterior import Beliefs
from knee.commands.tune.tuning_folder import plan_key
from knee.engine.simulator import simulate_table
from knee.specs.job import Job
from knee.specs.load import load_profile
from knee.specs.plan import REDUCE_DTYPES, Plan
from knee.specs.plan_table import table_of
from knee.specs.plan_words import plan_words
from knee.specs.profile import Kernels
from knee.training.sweeps.job_for_trainer import RunSettings
from knee.training.sweeps.preflight import PlannedRun, RequestedRun

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
        return (
            *(f"{name}={value}" for name, value in self.environment.items()),
            *(["--compile"] if self.compile else []),
        )


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
        asked = [
            RequestedRun(
                name=found[row].words,
                series=keys[row],
                model=found[row].job.model.name,
                gpus=found[row].job.gpus,
                question=found[row].question,
                job=found[row].job,
            )
            for row in rows
        ]
        planned = planner(asked, first)
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
