"""What counting FLOP would choose for a budget, and what becomes of that choice on a real cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass

from knee.base.units import DAY_S, HOUR_S
from knee.commands.budget.budget_run import J_PER_MWH, BudgetLimits, BudgetRun
from knee.commands.budget.budget_search import Problem
from knee.commands.budget.scaling_laws import FLOP_PER_PARAM_TOKEN, Law
from knee.engine.workload.parameters import parameter_count
from knee.specs.hardware import Cluster
from knee.specs.model import Model


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
    """GPU seconds that each limit on compute allows, at the boards' power; limits that are not given are left out."""
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
