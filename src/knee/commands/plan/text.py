"""A search on the screen."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from knee.commands.plan.result import PlanSearch, RankedPlan
from knee.commands.simulate.text import print_training, trust_words
from knee.search.follow_ups import Bar
from knee.show.terminal.table import print_columns, print_heading, print_rows
from knee.specs.metrics import METRICS, VIEWS, values_of
from knee.specs.plan import plan_words

SHOWN_FRONT = 8
BAR_WIDTH = 24
LEAST_FIRST = (
    *("usd_per_mtoken", "tokens_per_j", "power_w_per_gpu", "tokens_per_s_per_gpu"),
    *("bubble_frac", "good_frac", "headroom_bytes", "exposed_comm_frac"),
)
"""Columns of the ranking that a narrow terminal does without."""


def print_exported(answer: PlanSearch, to: str) -> None:
    """The recommended plan for a tool, or the first of the ranking that it can run, which is said."""
    text, row, refused = answer.export_first(to)
    if refused is not None:
        scores = answer.found.scores
        slower = 1 - float(scores[row] / scores[answer.drawn.recommended])
        click.echo(
            f"{refused.message}; the output is plan {row + 1}, which is {abs(slower):.1%} worse in "
            f"{METRICS[answer.found.objective].heading}",
            err=True,
        )
    click.echo(text.rstrip())


def print_search(answer: PlanSearch) -> None:
    """The answer as tables."""
    found, drawn, space = answer.found, answer.drawn, answer.found.space
    print_heading(
        f"{space.model.name} on {space.gpus:,} x {found.cluster.gpu.name} ({found.cluster.name}), "
        f"profile {found.profile.name}, {space.global_batch:,} sequences of {space.seq_len:,} tokens per "
        "step"
    )
    share = len(found) / found.plans if found.plans else 0.0
    counts = (
        f"{found.plans:,} valid plans; {len(found):,} ({share:.2%}) were simulated, and bounds rule out that another "
        f"is among the best {found.ranked:,}"
    )
    sys.stdout.write(f"  {counts}\n")
    alike = [row + 1 for row in drawn.indistinguishable_rows if row < answer.top]
    print_rows(
        [
            ["recommended", plan_words(found.table.plan(drawn.recommended))],
            ["why", answer.why],
            ["robustness", _robustness(answer)],
            *(
                [["", f"the draws do not distinguish this plan from plans {', '.join(map(str, alike))}"]]
                if alike
                else []
            ),
            ["trust", trust_words(answer.trust)],
        ]
    )
    print_training(answer.training)
    plain = [answer.baseline] if answer.baseline is not None else []
    listed = {plan.rank: plan for plan in (*answer.plans, answer.best, *plain) if plan.rank is not None}
    print_heading(f"best plans, ranked by {METRICS[found.objective].heading}")
    _print_plans(answer, [listed[rank] for rank in sorted(listed)])
    if len(answer.front) > 1:
        print_heading("Pareto front of tokens/s, tokens/J and free memory, among the simulated plans")
        _print_plans(answer, _spread(answer.front))
    print_heading(
        "sensitivity: change of tokens/s with +25% of each resource, plan re-optimised (in parentheses: -25%)"
    )
    print_rows(_bar_rows(answer.sensitivity), right=(1, 3))


def _robustness(answer: PlanSearch) -> str:
    drawn = answer.drawn
    good = drawn.good_frac[drawn.recommended]
    said = f"within 2% of the best in {good:.0%} of {drawn.draws} random draws of the fitted constants"
    if drawn.recommended:
        said += f"; the plan ranked first by the fitted constants is within 2% in {drawn.good_frac[0]:.0%}"
        if drawn.fits_frac[0] < drawn.fits_frac[drawn.recommended]:
            said += f" and does not fit in memory in {1 - drawn.fits_frac[0]:.0%}"
    return said


def _print_plans(answer: PlanSearch, plans: list[RankedPlan]) -> None:
    """Some plans, and plain FSDP below them where the search has left it out."""
    plain = answer.baseline
    rows = []
    for plan in [*plans, *([plain] if plain is not None and plain.rank is None else [])]:
        marks = {
            "recommended": plan.rank is not None and plan.rank == answer.best.rank,
            "plain FSDP": plain is not None and plan.rank == plain.rank,
        }
        said = ", ".join(word for word, holds in marks.items() if holds)
        rows.append(
            values_of(plan, "ranking of plans")
            | {
                "#": "" if plan.rank is None else f"{plan.rank:,}",
                "good_frac": "" if plan.good_frac is None else f"{plan.good_frac:.0%}",
                "plan": plan_words(plan.plan) + (f"  <- {said}" if said else ""),
            }
        )
    print_columns(("#", *VIEWS["ranking of plans"], "good_frac", "plan"), rows, left=("plan",), optional=LEAST_FIRST)


def _spread(front: Sequence[RankedPlan]) -> list[RankedPlan]:
    """A few of the front, from its fastest end to its roomiest."""
    if len(front) <= SHOWN_FRONT:
        return list(front)
    step = (len(front) - 1) / (SHOWN_FRONT - 1)
    return [front[row] for row in dict.fromkeys(round(i * step) for i in range(SHOWN_FRONT))]


def _bar_rows(bars: Sequence[Bar]) -> list[list[str]]:
    most = max((abs(bar.better_frac) for bar in bars), default=0.0) or 1.0
    return [
        [
            bar.title,
            f"{bar.better_frac:+.1%}",
            "#" * round(BAR_WIDTH * max(0.0, bar.better_frac) / most),
            f"({bar.worse_frac:+.1%})",
        ]
        for bar in bars
    ]
