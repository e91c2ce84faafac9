"""Budgets on the screen."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from knee.base.units import DAY_S, HOUR_S, amount, counted, short
from knee.commands.budget.frontier import KNEE_WORDS, Frontier, IsoLoss
from knee.commands.budget.result import (
    AXIS_WORDS,
    FRONTIER_SIZES,
    LIMIT_WORDS,
    BudgetCheck,
    assumptions,
    batch_words,
    best_with_failures,
    frontier_words,
    limits_words,
    plan_of,
    sentences,
    sure_rows,
)
from knee.commands.budget.search import J_PER_MWH, BudgetLimits, BudgetRun
from knee.commands.simulate.text import failure_words
from knee.engine.reliability.whole_run import InterruptedRun
from knee.show.terminal.table import print_heading, print_rows
from knee.specs.metrics import METRICS
from knee.specs.plan_words import plan_words

if TYPE_CHECKING:
    from knee.commands.budget.result import Budget


# Published training runs against predictions, on the screen.


def print_checked(check: BudgetCheck) -> None:
    """Published against predicted, the worst last in words."""
    print_heading("training runs whose cost was published, predicted with the best plan that knee finds")
    rows = [
        ["run", "GPUs", "cluster", "tokens", "published cost", "predicted cost", "error", "error with failures", "plan"]
    ]
    for run in check.runs:
        hours = run.gpu_hours is not None
        published, predicted = (run.gpu_hours, run.predicted_gpu_hours) if hours else (run.flop, run.predicted_flop)
        unit = "h" if hours else "FLOP"
        rows.append(
            [
                run.name,
                "-" if run.gpus is None else f"{run.gpus:,}",
                run.cluster or "TPUs",
                short(run.tokens),
                _with_unit(published, unit),
                _with_unit(predicted, unit),
                "unknown" if run.error_frac is None else f"{run.error_frac:+.1%}",
                "-" if run.failed_error_frac is None else f"{run.failed_error_frac:+.1%}",
                plan_of(run),
            ]
        )
    print_rows(rows, right=(1, 3, 4, 5, 6, 7), dim=(8,))
    print_heading("interruptions that were published, and those that the default failure rates predict")
    print_rows(
        [
            [
                "run",
                "GPUs",
                "days",
                "published",
                "predicted",
                "expected range",
                "goodput",
                "published goodput",
                "agrees",
            ],
            *(_interrupted(run) for run in check.interrupted),
        ],
        right=range(1, 8),
    )
    print_heading("assumptions:")
    said = [(run.name, run.assumed, run.source) for run in check.runs]
    said += [(run.name, run.assumed, run.source) for run in check.interrupted]
    for name, assumed, source in said:
        sys.stdout.write(f"  - {name}: {assumed}. {source}\n")
    print_heading(check.sentence)


def _interrupted(run: InterruptedRun) -> list[str]:
    return [
        run.name,
        f"{run.gpus:,}",
        f"{run.days:g}",
        f"{run.least}" if run.least == run.most else f"{run.least} to {run.most}",
        f"{run.predicted:.0f}",
        f"{run.low} to {run.high}",
        f"{run.goodput_frac:.1%}",
        "unknown" if run.effective_frac is None else f"above {run.effective_frac:.0%}",
        ("yes" if run.agrees else "no") + (", rates fitted to it" if run.fitted else ""),
    ]


def _with_unit(value: float | None, unit: str) -> str:
    return "no plan" if value is None else f"{value:,.0f} GPU-hours" if unit == "h" else f"{short(value)} FLOP"


_HEAD = [
    "GPUs",
    "parameters",
    "tokens",
    "tokens per parameter",
    "loss",
    "days",
    METRICS["tokens_per_s"].label,
    "MFU (PaLM)",
    METRICS["exposed_comm_s"].label,
    "batch (tokens)",
    "plan",
]
_SIDES = [
    "parameters",
    "tokens",
    "tokens per parameter",
    "loss",
    "GPUs",
    "days",
    "GPU-hours",
    "USD",
    "MWh",
    "kg CO2e",
    "MFU (6ND convention)",
]


def print_answer(answer: Budget) -> None:
    """The sentences to remember, then tables, then what was assumed."""
    problem, best = answer.problem, answer.best
    for line in sentences(answer):
        print_heading(line)
    sys.stdout.write("\n")
    print_heading(
        f"{limits_words(answer.limits)} on {problem.rates.cluster.name}; profile {problem.rates.profile.name}, "
        f"{problem.rates.seq_len:,} tokens per sequence, scaling law {problem.law.name}"
    )
    _print_sides(answer)
    failed = best_with_failures(answer)
    print_rows([[f"goodput of the best run: {failed['goodput_frac']:.1%}; {failure_words(failed)}"]])
    print_heading("the best run at each GPU count")
    print_rows([_HEAD, *(_row(run) for run in answer.by_count.values())], right=range(10), optional=(8, 9, 7, 3, 6))
    if len(answer.sizes) > 1:
        print_heading(f"other sizes on {counted(best.gpus, 'GPU')}")
        print_rows([_HEAD, *(_row(run) for run in answer.sizes)], right=range(10), optional=(8, 9, 7, 3, 6))
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
    print_rows(sure_rows(answer))
    for frontier in answer.frontiers:
        _print_frontier(answer.limits, frontier)
    if answer.frontiers:
        sys.stdout.write(f"  The knee is {KNEE_WORDS}; {FRONTIER_SIZES}.\n")
    if answer.iso:
        _print_iso(answer.iso)
    print_heading("assumptions:")
    for line in assumptions(answer):
        sys.stdout.write(f"  - {line}\n")


def _row(run: BudgetRun) -> list[str]:
    return [
        f"{run.gpus:,}",
        short(run.params),
        short(run.tokens),
        amount(run.tokens_per_param),
        f"{run.loss:.4f}",
        amount(run.days),
        short(run.rate.tokens_per_s),
        f"{run.rate.mfu_frac:.1%}",
        f"{run.rate.exposed_frac:.1%}",
        short(run.batch_tokens),
        plan_words(run.rate.plan),
    ]


def side_rows(answer: Budget) -> list[list[str]]:
    """The best run, what FLOP counting promises, and what becomes of that; sizes with all parameters."""
    best, flop, really = answer.best, answer.flop, answer.flop.run

    def bill(gpus: int, time_s: float, cost_usd: float | None, energy_j: float) -> list[str]:
        return [
            f"{gpus:,}",
            amount(time_s / DAY_S),
            amount(time_s / HOUR_S * gpus),
            "unknown" if cost_usd is None else amount(cost_usd),
            amount(energy_j / J_PER_MWH),
            amount(energy_j * answer.grid.kg_co2e_per_j),
        ]

    def size(params: float, tokens: float, loss: float) -> list[str]:
        return [short(params), short(tokens), amount(tokens / params), f"{loss:.4f}"]

    def cells(run: BudgetRun | None) -> list[str]:
        if run is None:
            return ["no plan"] + ["-"] * (len(_SIDES) - 1)
        return [
            *size(run.params, run.tokens, run.loss),
            *bill(run.gpus, run.time_s, run.cost_usd, run.energy_j),
            f"{answer.mfu_6nd_frac(run):.1%}",
        ]

    counting = [
        *size(answer.counted_params, flop.tokens, flop.loss),
        *bill(flop.gpus, flop.time_s, flop.cost_usd, flop.energy_j),
        f"{flop.mfu_frac:.1%}",
    ]
    head = [
        "",
        "best run",
        f"FLOP-only estimate ({100 * flop.mfu_frac:.3g}% MFU)",
        "that estimate's size on this cluster",
    ]
    return [head, *(list(row) for row in zip(_SIDES, cells(best), counting, cells(really), strict=True))]


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
            ["batch", batch_words(answer)],
            ["limited by", LIMIT_WORDS[best.binding]],
        ]
    )


def _print_frontier(limits: BudgetLimits, one: Frontier) -> None:
    unit = AXIS_WORDS[one.axis]
    knee = (
        "no doubling pays off"
        if one.knee is None
        else (f"knee at {amount(one.knee)} {unit}{' or more' if one.open else ''}")
    )
    print_heading(f"loss against {unit}: {knee}")
    rows = [[unit, "loss", "gain of the last doubling", "GPUs", "parameters", "tokens", "limited by"]]
    for value, run, worth in zip(one.values, one.runs, one.worth, strict=True):
        if run is None:
            rows.append([amount(value), "nothing can be trained", "", "", "", "", ""])
            continue
        bought = "" if worth is None else f"{worth:.0%} of the law's prediction"
        rows.append(
            [
                amount(value),
                f"{run.loss:.4f}",
                bought,
                f"{run.gpus:,}",
                short(run.params),
                short(run.tokens),
                LIMIT_WORDS[run.binding],
            ]
        )
    print_rows(rows, right=range(6))
    for remark in frontier_words(limits, one)[1:]:
        sys.stdout.write(f"  {remark[:1].upper()}{remark[1:]}.\n")


def _print_iso(iso: Sequence[IsoLoss]) -> None:
    print_heading("model sizes that reach the same loss, by number of GPUs (columns: loss)")
    losses = sorted({one.loss for one in iso})
    rows = [["GPUs", *(f"{loss:.4f}" for loss in losses)]]
    for gpus in sorted({one.gpus for one in iso}):
        own = {one.loss: one for one in iso if one.gpus == gpus}
        rows.append(
            [
                f"{gpus:,}",
                *(
                    f"{short(own[loss].low_params)} to {short(own[loss].high_params)}" if loss in own else "-"
                    for loss in losses
                ),
            ]
        )
    print_rows(rows, right=range(len(losses) + 1))
