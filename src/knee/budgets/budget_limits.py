"""Limits that cannot be, and why a budget trains nothing, in words."""

from __future__ import annotations

from collections.abc import Sequence

from knee.budgets.budget_run import BudgetLimits
from knee.budgets.budget_search import Problem
from knee.budgets.scaling_laws import assumed_mfu
from knee.errors import DoesNotFit, InputError, argument
from knee.specs.model import Model
from knee.units import short
from knee.workload.parameters import parameter_count


def check_dense(model: Model, law: str) -> None:
    """Refuse a mixture of experts: no law here says its loss, and that of a dense model of its size is another one."""
    if model.experts is not None:
        raise InputError(
            f"{model.name} is a mixture of experts, and {law} predicts the loss of dense models only",
            hint="a budget takes dense models; `knee simulate` and `knee plan` with --tokens give its days, "
            "cost and energy without a loss",
            code="not-modelled",
            field="model.experts",
        )


def checked_mfu(given: float | None) -> float:
    """The share of the peak that counting FLOP assumes: given, or the catalogue's."""
    mfu = given if given is not None else assumed_mfu()[0]
    if not 0 < mfu <= 1:
        raise InputError(
            f"{argument('mfu')} is {mfu:g}; it must be above 0 and at most 1",
            hint="for example 0.4",
            code="out-of-range",
            field="mfu",
        )
    return mfu


def check_tokens_per_param(given: float | None) -> None:
    """Refuse a ratio that no run has."""
    # also false for nan
    if given is not None and not 0 < given < 1e9:
        raise InputError(
            f"{argument('tokens_per_param')} is {given:g}; it must be above 0 and below 1e9",
            hint="Chinchilla used 20",
            code="out-of-range",
            field="tokens_per_param",
        )


def check_limits(limits: BudgetLimits, *, priced: bool, max_gpus: int, cluster: str) -> None:
    """Refuse what bounds nothing, or cannot be."""
    for name in ("days", "usd", "mwh", "tokens_max"):
        value = getattr(limits, name)
        # also false for nan
        if value is not None and not 0 < value < 1e30:
            raise InputError(
                f"{argument(name)} is {value:g}; it must be a finite number above 0",
                hint="leave it out if there is no limit",
                code="out-of-range",
                field=name,
            )
    if limits.gpus < 1:
        raise InputError(
            f"{argument('gpus')} is {limits.gpus}; it must be at least 1",
            hint=f"for example {argument('gpus')} 2048",
            code="out-of-range",
            field="gpus",
        )
    if limits.gpus > max_gpus:
        raise InputError(
            f"{argument('gpus')} is {limits.gpus:,}; {cluster} is described only up to {max_gpus:,}",
            hint="use fewer",
            code="out-of-range",
            field="gpus",
        )
    if limits.days is None and limits.usd is None and limits.mwh is None:
        only = f" ({argument('tokens_max')} limits the data, not the compute)" if limits.tokens_max is not None else ""
        raise InputError(
            f"no compute limit is given, so any model could be trained forever{only}",
            hint=f"give {argument('days')}, {argument('usd')} or {argument('mwh')}, or several",
            code="missing-argument",
            field="days",
        )
    if limits.usd is not None and not priced:
        raise InputError(
            f"{argument('usd')} is given, but the price of {cluster} is unknown",
            hint=f"give {argument('overrides')} cluster.usd_per_gpu_h='2.5 USD/h'",
            code="no-rate",
            field="usd",
        )


def refuse_nothing(problem: Problem, limits: BudgetLimits, counts: Sequence[int]) -> None:
    """Why there is no run at all."""
    ladder = problem.ladder()
    least = ladder[0]
    name = f"{least.name} ({short(parameter_count(least))} parameters)"
    what = name if problem.model is not None else f"the smallest shape of the family, {name}"
    affordable = max(problem.most_tokens(limits, least, gpus) for gpus in counts)
    priced = [rate for (model, _), rate in problem.rates.known.items() if model == least]
    if problem.tokens_per_param is not None and (affordable == 0.0 or any(priced)):
        raise DoesNotFit(
            f"{what} on {problem.tokens_per_param:g} tokens per parameter needs more than these limits allow",
            hint=f"raise a limit, or lower {argument('tokens_per_param')}",
            field="tokens_per_param",
        )
    if priced and all(rate is None for rate in priced):
        gib = problem.rates.cluster.gpu.hbm_bytes / 2**30
        raise DoesNotFit(
            f"{what} does not fit under any plan on up to {limits.gpus:,} GPUs with {gib:.0f} GiB",
            hint=f"give more {argument('gpus')}, or a smaller {argument('params')}",
            code="no-plan-fits",
            field="gpus",
        )
    seq_len = problem.rates.seq_len
    afford = f"these limits allow {what} at most {short(affordable)} tokens"
    if affordable < seq_len:
        raise DoesNotFit(
            f"{afford}, which is less than one sequence of {seq_len:,} tokens",
            hint=f"raise a limit, or give a shorter {argument('seq_len')}",
            field="seq_len",
        )
    allowed = problem.allowed_batch_tokens(problem.least_loss(limits, least, max(counts)))
    raise DoesNotFit(
        f"{afford}, and a step may have at most {short(allowed)} tokens, less than one sequence of {seq_len:,} tokens",
        hint=f"raise a limit, give {argument('batch_max')}, or a shorter {argument('seq_len')}",
    )
