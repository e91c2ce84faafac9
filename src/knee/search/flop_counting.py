"""What counting FLOP would choose for a budget, and what becomes of that choice on a real cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from knee.search.budget import HOUR_S, J_PER_MWH, Limits, Problem, Run
from knee.search.laws import FLOP_PER_PARAM_TOKEN, Law
from knee.search.training_bill import DAY_S
from knee.workload.parameters import parameter_count


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
    run: Run | None
    """The nearest shape on the GPUs it counted, as far as the limits really let it train; None where it has no plan."""

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


def flop_choice(problem: Problem, limits: Limits, mfu_frac: float) -> FlopChoice:
    """What the closed form chooses for GPUs x peak x an assumed MFU x time, and what that reaches here.

    Formula: C = GPUs * peak * MFU * min(days, USD / (price * GPUs), energy / (PUE * board power * GPUs))
    Where:   the law's own split of C, within the data, the size or the ratio that is asked for
    """
    gpu, gpus = problem.rates.cluster.gpu, limits.gpus
    flop_per_s = gpus * gpu.peak_flop_per_s(problem.rates.fixed.precision) * mfu_frac
    site_w = gpus * gpu.tdp_w * problem.pue
    no_data = replace(limits, tokens_max=None)
    price = problem.rates.cluster.usd_per_gpu_h
    times = [
        *([no_data.days * DAY_S] if no_data.days is not None else []),
        *([no_data.usd / (price * gpus) * HOUR_S] if no_data.usd is not None and price else []),
        *([no_data.mwh * J_PER_MWH / site_w] if no_data.mwh is not None else []),
    ]
    flop = flop_per_s * min(times)
    params, tokens = _counted_split(problem, limits, flop)
    ladder = problem.ladder()
    near = min(ladder, key=lambda model: abs(math.log(problem.law.counted(model) / params)))
    run = None
    for count in reversed(problem.counts(limits)):
        run = problem.best_at(limits, near, count)
        if run is not None:
            break
    loss = float(problem.law.loss(params, tokens))
    time_s = FLOP_PER_PARAM_TOKEN * params * tokens / flop_per_s
    return FlopChoice(mfu_frac=mfu_frac, flop=flop, params=params, tokens=tokens, loss=loss, run=run, gpus=gpus,
                      time_s=time_s, energy_j=time_s * site_w,
                      cost_usd=None if price is None else time_s / HOUR_S * gpus * price)  # fmt: skip


def _counted_split(problem: Problem, limits: Limits, flop: float) -> tuple[float, float]:
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
        params = params if problem.model is not None else work / tokens
    return params, tokens
