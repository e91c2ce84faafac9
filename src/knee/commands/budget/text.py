"""Budgets on the screen."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from knee.base.units import amount, counted, short
from knee.commands.budget import result as budget
from knee.commands.budget.frontier import KNEE_WORDS, Frontier, IsoLoss
from knee.commands.budget.search import BudgetLimits, BudgetRun
from knee.commands.simulate.text import failure_words
from knee.show.terminal.table import print_columns, print_heading, print_rows, print_table
from knee.specs.metrics import METRICS
from knee.specs.plan import plan_words

if TYPE_CHECKING:
    from knee.commands.budget.result import Budget


def print_checked(check: budget.BudgetCheck) -> None:
    """Published against predicted, the worst last in words."""
    rows = [
        {
            "run": run.name,
            "GPUs": "-" if run.gpus is None else f"{run.gpus:,}",
            "cluster": run.cluster or "TPUs",
            "tokens": short(run.tokens),
            "published cost": _cost(run.gpu_hours, run.flop),
            "predicted cost": _cost(run.predicted_gpu_hours, run.predicted_flop),
            "error": "unknown" if run.error_frac is None else f"{run.error_frac:+.1%}",
            "error with failures": "-" if run.failed_error_frac is None else f"{run.failed_error_frac:+.1%}",
            "plan": budget.plan_of(run),
        }
        for run in check.runs
    ]
    print_heading("training runs whose cost was published, predicted with the best plan that knee finds")
    print_columns(list(rows[0]), rows, left=("run", "cluster"), dim=("plan",))
    rows = [
        {
            "run": run.name,
            "GPUs": f"{run.gpus:,}",
            "days": f"{run.days:g}",
            "published": f"{run.least}" if run.least == run.most else f"{run.least} to {run.most}",
            "predicted": f"{run.predicted:.0f}",
            "expected range": f"{run.low} to {run.high}",
            "goodput": f"{run.goodput_frac:.1%}",
            "published goodput": "unknown" if run.effective_frac is None else f"above {run.effective_frac:.0%}",
            "agrees": ("yes" if run.agrees else "no") + (", rates fitted to it" if run.fitted else ""),
        }
        for run in check.interrupted
    ]
    print_heading("interruptions that were published, and those that the default failure rates predict")
    print_columns(list(rows[0]), rows, left=("run", "agrees"))
    print_heading("assumptions:")
    said = [(run.name, run.assumed, run.source) for run in check.runs]
    said += [(run.name, run.assumed, run.source) for run in check.interrupted]
    for name, assumed, source in said:
        sys.stdout.write(f"  - {name}: {assumed}. {source}\n")
    print_heading(check.sentence)


def _cost(gpu_hours: float | None, flop: float | None) -> str:
    if gpu_hours is not None:
        return f"{gpu_hours:,.0f} GPU-hours"
    return "no plan" if flop is None else f"{short(flop)} FLOP"


_SIDES = {
    "parameters": "params",
    "tokens": "tokens",
    "tokens per parameter": "tokens_per_param",
    "loss": "loss",
    "GPUs": "gpus",
    "days": "days",
    "GPU-hours": "gpu_hours",
    "USD": "cost_usd",
    "MWh": "energy_mwh",
    "kg CO2e": "co2e_kg",
    "MFU (6ND convention)": "mfu_6nd_frac",
}


def print_answer(answer: Budget) -> None:
    """The sentences to remember, then tables, then what was assumed."""
    problem, best = answer.problem, answer.best
    for line in budget.sentences(answer):
        print_heading(line)
    sys.stdout.write("\n")
    print_heading(
        f"{budget.limits_words(answer.limits)} on {problem.rates.cluster.name}; profile {problem.rates.profile.name}, "
        f"{problem.rates.seq_len:,} tokens per sequence, scaling law {problem.law.name}"
    )
    _print_sides(answer)
    failed = budget.best_with_failures(answer)
    print_rows([[f"goodput of the best run: {failed['goodput_frac']:.1%}; {failure_words(failed)}"]])
    _print_runs("the best run at each GPU count", answer.by_count.values())
    if len(answer.sizes) > 1:
        _print_runs(f"other sizes on {counted(best.gpus, 'GPU')}", answer.sizes)
    print_heading("change of the loss per additional unit")
    print_rows(
        [
            [
                f"+1 {one.what}" if one.what != "thousand USD" else "+1,000 USD",
                f"{one.loss:+.2e} loss",
                one.how,
                "" if one.binds else "another limit stops this run, so raising this one alone does not help",
            ]
            for one in answer.marginals
        ],
        dim=(2, 3),
    )
    print_heading("uncertainty of the loss")
    print_rows(budget.sure_rows(answer))
    for frontier in answer.frontiers:
        _print_frontier(answer.limits, frontier)
    if answer.frontiers:
        sys.stdout.write(f"  The knee is {KNEE_WORDS}; {budget.FRONTIER_SIZES}.\n")
    if answer.iso:
        _print_iso(answer.iso)
    print_heading("assumptions:")
    for line in budget.assumptions(answer):
        sys.stdout.write(f"  - {line}\n")


def _print_runs(title: str, runs: Iterable[BudgetRun]) -> None:
    speed, exposed = METRICS["tokens_per_s"].label, METRICS["exposed_comm_s"].label
    rows = [
        {
            "GPUs": f"{run.gpus:,}",
            "parameters": short(run.params),
            "tokens": short(run.tokens),
            "tokens per parameter": amount(run.tokens_per_param),
            "loss": f"{run.loss:.4f}",
            "days": amount(run.days),
            speed: short(run.rate.tokens_per_s),
            "MFU (PaLM)": f"{run.rate.mfu_frac:.1%}",
            exposed: f"{run.rate.exposed_frac:.1%}",
            "batch (tokens)": short(run.batch_tokens),
            "plan": plan_words(run.rate.plan),
        }
        for run in runs
    ]
    print_heading(title)
    optional = (exposed, "batch (tokens)", "MFU (PaLM)", "tokens per parameter", speed)
    print_columns(list(rows[0]), rows, left=("plan",), optional=optional)


def _side(key: str, value: float | None) -> str:
    if value is None:
        return "unknown"
    if key in ("params", "tokens"):
        return short(value)
    texts = {"loss": f"{value:.4f}", "gpus": f"{value:,}", "mfu_6nd_frac": f"{value:.1%}"}
    return texts.get(key) or amount(value)


def side_rows(answer: Budget) -> list[list[str]]:
    """The best run, what FLOP counting promises, and what becomes of that; sizes with all parameters."""
    flop = budget.flop_data(answer)
    flop |= {"params": flop["all_params"], "tokens_per_param": flop["tokens"] / flop["all_params"]}
    really = flop["really"]
    sides = (budget.run_data(answer, answer.best), flop, really or {})
    rows = [[name, *(_side(key, side[key]) if side else "-" for side in sides)] for name, key in _SIDES.items()]
    if not really:
        rows[0][-1] = "no plan"
    estimate = f"FLOP-only estimate ({100 * answer.flop.mfu_frac:.3g}% MFU)"
    return [["", "best run", estimate, "that estimate's size on this cluster"], *rows]


def _print_sides(answer: Budget) -> None:
    best, shape = answer.best, answer.best.model
    print_rows(side_rows(answer), right=(1, 2, 3))
    print_rows(
        [
            [
                "shape",
                f"{shape.name}: {counted(shape.layers, 'layer')}, hidden size {shape.hidden:,}, MLP {shape.ffn:,}, "
                f"{counted(shape.heads, 'head')} ({shape.kv_heads} key-value heads), vocabulary {shape.vocab:,}",
            ],
            ["plan", plan_words(best.rate.plan)],
            ["batch", budget.batch_words(answer)],
            ["limited by", budget.LIMIT_WORDS[best.binding]],
        ]
    )


def _print_frontier(limits: BudgetLimits, one: Frontier) -> None:
    unit = budget.AXIS_WORDS[one.axis]
    at = "" if one.knee is None else f"knee at {amount(one.knee)} {unit}{' or more' if one.open else ''}"
    knee = at or "no doubling pays off"
    head = (unit, "loss", "gain of the last doubling", "GPUs", "parameters", "tokens", "limited by")
    rows = [
        [amount(value), "nothing can be trained"]
        if run is None
        else [
            amount(value),
            f"{run.loss:.4f}",
            "" if worth is None else f"{worth:.0%} of the law's prediction",
            f"{run.gpus:,}",
            short(run.params),
            short(run.tokens),
            budget.LIMIT_WORDS[run.binding],
        ]
        for value, run, worth in zip(one.values, one.runs, one.worth, strict=True)
    ]
    print_table(f"loss against {unit}: {knee}", head, rows, right=range(6))
    for remark in budget.frontier_words(limits, one)[1:]:
        sys.stdout.write(f"  {remark[:1].upper()}{remark[1:]}.\n")


def _print_iso(iso: Sequence[IsoLoss]) -> None:
    losses = sorted({one.loss for one in iso})
    sizes = {(one.gpus, one.loss): f"{short(one.low_params)} to {short(one.high_params)}" for one in iso}
    rows = [
        [f"{gpus:,}", *(sizes.get((gpus, loss), "-") for loss in losses)] for gpus in sorted({one.gpus for one in iso})
    ]
    title = "model sizes that reach the same loss, by number of GPUs (columns: loss)"
    print_table(title, ["GPUs", *(f"{loss:.4f}" for loss in losses)], rows, right=range(len(losses) + 1))
