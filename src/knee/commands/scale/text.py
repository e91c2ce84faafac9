"""Scaling curves on the screen."""

from __future__ import annotations

import sys
from typing import Any

from knee.base.units import DAY_S, amount, short
from knee.commands.scale.result import Scaling, ScalingCurve, assumptions, listed, sentence, weak_words
from knee.commands.simulate.text import PRICE, between
from knee.engine.reliability.whole_run import WholeRun
from knee.search.knee import GOALS, Knee
from knee.show.terminal.table import print_columns, print_heading, print_rows
from knee.specs.metrics import METRICS, VIEWS, values_of
from knee.specs.plan import plan_words
from knee.trust.trust import DoublingBand


def print_answer(answer: Scaling) -> None:
    """Tables, knees, assumptions, and a sentence to remember for each curve."""
    for one in answer.curves:
        print_heading(_question(one, answer))
        _print_points(one)
        if answer.tokens is not None and one.bills:
            print_heading(
                f"training on {short(answer.tokens)} tokens (PUE {answer.pue:g}, grid {answer.grid.name}: "
                f"{answer.grid.g_per_kwh:.0f} g CO2e/kWh)"
            )
            _print_bills(one)
        if one.knees:
            print_heading("the knee")
            _print_knees(one)
    if len(answer.curves) > 1:
        _print_comparison(answer)
    print_heading("assumptions:")
    for line in assumptions(answer):
        sys.stdout.write(f"  - {line}\n")
    for one in answer.curves:
        said = sentence(one, answer)
        if said:
            print_heading(f"{one.name}: {said}" if len(answer.curves) > 1 else said)


def _question(one: ScalingCurve, answer: Scaling) -> str:
    if answer.local_batch is not None:
        many = "" if answer.local_batch == 1 else "s"
        how = f"weak scaling, {answer.local_batch:g} sequence{many} per GPU and step"
    else:
        many = "" if answer.global_batch == 1 else "s"
        how = f"strong scaling, {answer.global_batch:,} sequence{many} per step"
    what = f", {one.job.seq_len:,} tokens per sequence, profile {one.job.profile.name}" if one.job else ""
    best = f", the plan with the best {METRICS[answer.objective].heading} at every GPU count" if one.best else ""
    return f"{one.name}: {how}{what}{best}"


def _print_points(one: ScalingCurve) -> None:
    returns = {r.to_gpus: r for r in one.curve.returns()}
    rows: list[dict[str, Any]] = []
    for point in one.curve.points:
        m, job = point.measured, point.job
        if m is None or job is None or not m.fits:
            plan = f" ({plan_words(job.plan)})" if job else ""
            rows.append({"GPUs": f"{point.gpus:,}", "trust": "", "plan": f"{point.reason}{plan}"})
            continue
        gained = returns.get(point.gpus)
        rows.append(
            values_of(m, "scaling")
            | {
                "GPUs": f"{point.gpus:,}",
                "speed-up per doubling": f"{gained.per_doubling:.2f}x" if gained else "",
                "gain per added GPU": f"{gained.added_frac:.0%}" if gained else "",
                "trust": one.trusts[point.gpus].label,
                "plan": plan_words(job.plan),
            }
        )
    print_columns(
        ("GPUs", *VIEWS["scaling"], "speed-up per doubling", "gain per added GPU", "trust", "plan"),
        rows,
        left=("plan",),
        dim=("trust",),
        optional=(
            *("usd_per_mtoken", "tokens_per_j", "power_w_per_gpu", "trust", "bubble_frac"),
            *("gain per added GPU", "exposed_comm_frac", "tokens_per_s_per_gpu", "mfu_frac"),
        ),
    )


def _print_bills(one: ScalingCurve) -> None:
    costs = ["days", "expected range (days)", "MWh", "USD", "kg CO2e"]
    rows = [["GPUs", *costs, "goodput", "days with failures", "USD with failures"]]
    for gpus, bill in one.bills.items():
        ends = "unknown"
        if bill.low_time_s is not None and bill.high_time_s is not None:
            ends = f"{bill.low_time_s / DAY_S:,.1f} to {bill.high_time_s / DAY_S:,.1f}"
        rows.append(
            [
                f"{gpus:,}",
                f"{bill.days:,.1f}",
                ends,
                *(_amount(value) for value in (bill.energy_mwh, bill.cost_usd, bill.co2e_kg)),
                *_failed(one.runs.get(gpus), bill.cost_usd),
            ]
        )
    print_rows(rows, right=range(9), optional=(5, 3))


def _failed(run: WholeRun | None, cost_usd: float | None) -> list[str]:
    if run is None:
        return ["0%", "no progress", "-"]
    low, high = run.p10_s / DAY_S, run.p90_s / DAY_S
    cost = None if cost_usd is None else cost_usd * run.goodput.cost_factor
    return [f"{run.goodput.goodput_frac:.1%}", f"{run.mean_s / DAY_S:,.1f} ({low:,.1f} to {high:,.1f})", _amount(cost)]


def _print_knees(one: ScalingCurve) -> None:
    rows = []
    for goal, knee in one.knees.items():
        rows.append([goal, _knee_words(knee), _band_words(knee, one.band), knee.words])
        rows += [["", "", "", f"although {weak_words(knee)}"]] if knee.weak else []
    if "cost" not in one.knees:
        rows.append(["cost", "unknown", "", PRICE])
    print_rows(rows, dim=(3,))
    found = one.knees_with_failures
    counts = ", ".join(f"{goal} {_knee_words(found[goal])}" for goal in GOALS if goal in found)
    left = [one.goodputs[gpus].goodput_frac if gpus in one.goodputs else 0.0 for gpus, _ in one.curve.usable]
    shares = f"{left[0]:.1%}" if len(left) == 1 else f"{left[0]:.1%} at the fewest GPUs, {left[-1]:.1%} at the most"
    print_rows([[f"with failures: {counts}; goodput {shares}"]])
    if one.band is not None:
        ends = between(one.band.low_frac, one.band.high_frac, digits=1)
        print_rows(
            [
                [
                    f"ranges of the knees: in 90% of {one.band.pairs} pairs of published runs that differ "
                    "only in GPUs and batch, "
                    f"up to {one.band.largest_gpus:,} GPUs, the measured gain of a doubling was between {ends} "
                    "the prediction"
                    f"{_beyond(one)}"
                ]
            ]
        )


def _beyond(one: ScalingCurve) -> str:
    """Which counts no run is like."""
    far = [gpus for gpus, _ in one.curve.usable if one.trusts[gpus].label == "extrapolated"]
    if not far:
        return ""
    counts = [gpus for gpus, _ in one.curve.usable]
    if far == counts:
        which = "at all GPU counts"
    elif far == counts[-len(far) :]:
        which = f"from {far[0]:,} GPUs on"
    else:
        which = f"at {listed([f'{gpus:,}' for gpus in far])} GPUs"
    return f"; predictions {which} are extrapolated, so their error may be larger"


def _knee_words(knee: Knee) -> str:
    return f"{knee.gpus:,} GPUs or more" if knee.open else f"{knee.gpus:,} GPUs"


def _band_words(knee: Knee, band: DoublingBand | None) -> str:
    if band is None:
        return "range unknown: no similar published runs"
    if knee.low_gpus == knee.high_gpus:
        return "" if knee.high_open else "the same within this error"
    return f"from {knee.low_gpus:,} to {knee.high_gpus:,}{' or more' if knee.high_open else ''}"


def _print_comparison(answer: Scaling) -> None:
    print_heading("comparison at the largest GPU count of each")
    goals = ("knee", "energy knee", "cost knee")
    rows: list[dict[str, Any]] = []
    for one in answer.curves:
        usable = one.curve.usable
        if not usable:
            rows.append({"": one.name})
            continue
        (_, first), (gpus, last) = usable[0], usable[-1]
        knees = [_knee_words(one.knees[goal]) if goal in one.knees else "unknown" for goal in GOALS]
        rows.append(
            values_of(last, "scaling")
            | dict(zip(goals, knees, strict=True))
            | {
                "": one.name,
                "GPUs": f"{gpus:,}",
                "vs. fewest GPUs": f"{last.tokens_per_s_per_gpu / first.tokens_per_s_per_gpu:.0%}",
            }
        )
    speed, rest = ("tokens_per_s", "tokens_per_s_per_gpu"), ("exposed_comm_frac", "tokens_per_j", "usd_per_mtoken")
    print_columns(
        ("", *goals, "GPUs", *speed, "vs. fewest GPUs", *rest),
        rows,
        left=("", *goals),
        optional=(*reversed(rest), "tokens_per_s_per_gpu", "vs. fewest GPUs", "cost knee", "energy knee"),
    )


def _amount(value: float | None) -> str:
    return "unknown" if value is None else amount(value)
