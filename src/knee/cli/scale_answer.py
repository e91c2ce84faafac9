"""Scaling curves on the screen, in words, and as plain data."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from knee.api.request import Request
from knee.cli.table import print_heading, print_rows
from knee.energy.grid import Grid
from knee.fidelity.doublings import DoublingBand
from knee.fidelity.trust import Trust
from knee.figures.scale import Series
from knee.record.measurement import Measurement
from knee.search.knee import GOALS, Goal, Knee
from knee.search.scale import Curve, Point
from knee.search.training_bill import DAY_S, Bill
from knee.specs import Job
from knee.specs.plan import Plan, plan_words

PRICE = "--set cluster.usd_per_gpu_h='2.5 USD/h'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """One curve with all that is said about it."""

    asked: Request | None
    """Its specs; None for a job file that is valid at no count."""
    curve: Curve
    best: bool
    names: tuple[str, str]
    trusts: dict[int, Trust] = field(default_factory=dict)
    bills: dict[int, Bill] = field(default_factory=dict)
    knees: dict[Goal, Knee] = field(default_factory=dict)
    band: DoublingBand | None = None

    @property
    def name(self) -> str:
        """As curves are told apart."""
        model, cluster = (self.asked.job.model.name, self.asked.job.cluster.name) if self.asked else self.names
        return f"{model} on {cluster}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Everything that was asked and found."""

    scaled: tuple[Scaled, ...]
    options: dict[str, Any]
    tokens: float | None
    grid: Grid
    pue: float


def as_data(answer: Answer) -> dict[str, Any]:
    """The answer for ``--json``."""
    options = answer.options
    weak = options["local_batch"] is not None
    training = None
    if answer.tokens is not None:
        site = asdict(answer.grid) | {"g_co2e_per_kwh": round(answer.grid.g_per_kwh, 6)}
        training = {"tokens": answer.tokens, "pue": answer.pue, "grid": site}
    return {
        "scaling": "weak" if weak else "strong",
        "local_batch": options["local_batch"],
        "global_batch": options["global_batch"],
        "threshold": options["threshold"],
        "keep_frac": options["keep"],
        "training": training,
        "curves": [_curve_data(one, answer) for one in answer.scaled],
        "assumptions": assumptions(answer),
    }


def _curve_data(one: Scaled, answer: Answer) -> dict[str, Any]:
    returns = {r.to_gpus: asdict(r) for r in one.curve.returns()}
    job = one.asked.job if one.asked else None
    return {
        "model": job.model.name if job else one.names[0],
        "cluster": job.cluster.name if job else one.names[1],
        "profile": job.profile.name if job else None,
        "seq_len": job.seq_len if job else None,
        "best": one.best,
        "points": [_point_data(one, point, returns.get(point.gpus)) for point in one.curve.points],
        "knees": {goal: asdict(knee) for goal, knee in one.knees.items()},
        "doubling_band": asdict(one.band) if one.band else None,
        "sentence": sentence(one, answer),
    }


def _point_data(one: Scaled, point: Point, gained: dict[str, Any] | None) -> dict[str, Any]:
    job, trust, bill = point.job, one.trusts.get(point.gpus), one.bills.get(point.gpus)
    measured = {} if point.measured is None else point.measured.as_json()
    measured.pop("assumptions", None)
    more = {} if bill is None else {"days": bill.days, "energy_mwh": bill.energy_mwh}
    return {
        "gpus": point.gpus,
        "usable": point.usable,
        "reason": point.reason,
        "global_batch": job.global_batch if job else None,
        "plan": asdict(job.plan) if job else None,
        **measured,
        "return": gained,
        "training": None if bill is None else asdict(bill) | more,
        "trust": trust.as_json() if trust else None,
    }


def print_answer(answer: Answer) -> None:
    """Tables, knees, assumptions, and a sentence to remember for each curve."""
    for one in answer.scaled:
        print_heading(_question(one, answer))
        _print_points(one)
        if answer.tokens is not None and one.bills:
            print_heading(
                f"to train on {_short(answer.tokens)} tokens (PUE {answer.pue:g}, grid {answer.grid.name}: "
                f"{answer.grid.g_per_kwh:.0f} g CO2e/kWh)"
            )
            _print_bills(one)
        if one.knees:
            print_heading("the knee")
            _print_knees(one)
    if len(answer.scaled) > 1:
        _print_comparison(answer)
    print_heading("assumptions:")
    for line in assumptions(answer):
        sys.stdout.write(f"  - {line}\n")
    for one in answer.scaled:
        said = sentence(one, answer)
        if said:
            print_heading(f"{one.name}: {said}" if len(answer.scaled) > 1 else said)


def _question(one: Scaled, answer: Answer) -> str:
    options, asked = answer.options, one.asked
    if options["local_batch"] is not None:
        many = "" if options["local_batch"] == 1 else "s"
        how = f"weak scaling, {options['local_batch']:g} sequence{many} a GPU and step"
    else:
        many = "" if options["global_batch"] == 1 else "s"
        how = f"strong scaling, {options['global_batch']:,} sequence{many} a step"
    what = f", {asked.job.seq_len:,} tokens a sequence, profile {asked.job.profile.name}" if asked else ""
    best = f", the plan with the best {options['objective']} at every count" if one.best else ""
    return f"{one.name}: {how}{what}{best}"


def _print_points(one: Scaled) -> None:
    returns = {r.to_gpus: r for r in one.curve.returns()}
    rows = [["GPUs", "tokens/s", "per GPU", "MFU", "exposed", "bubble", "W/GPU", "tokens/J", "$/Mtoken",
             "doubling buys", "added GPU", "trust", "plan"]]  # fmt: skip
    for point in one.curve.points:
        m, job = point.measured, point.job
        if m is None or job is None or not m.fits:
            plan = f" ({plan_words(job.plan)})" if job else ""
            rows.append([f"{point.gpus:,}", *["-"] * 10, "", f"{point.reason}{plan}"])
            continue
        gained = returns.get(point.gpus)
        rows.append([
            f"{point.gpus:,}", _number(m.tokens_per_s), _number(m.tokens_per_s_per_gpu), f"{m.mfu_frac:.1%}",
            f"{m.exposed_comm_s / m.step_s:.1%}", f"{m.bubble_s / m.step_s:.1%}", _or(m.power_w_per_gpu, ".0f"),
            _or(m.tokens_per_j, ".4g"), _or(m.usd_per_mtoken, ".4g"),
            f"{gained.per_doubling:.2f}x" if gained else "", f"{gained.added_frac:.0%}" if gained else "",
            one.trusts[point.gpus].label, plan_words(job.plan),
        ])  # fmt: skip
    print_rows(rows, right=range(11), dim=(11,))


def _print_bills(one: Scaled) -> None:
    rows = [["GPUs", "days", "true within", "MWh", "USD", "kg CO2e"]]
    for gpus, bill in one.bills.items():
        ends = "unknown"
        if bill.low_time_s is not None and bill.high_time_s is not None:
            ends = f"{bill.low_time_s / DAY_S:,.1f} to {bill.high_time_s / DAY_S:,.1f}"
        rows.append([f"{gpus:,}", f"{bill.days:,.1f}", ends,
                     *(_amount(value) for value in (bill.energy_mwh, bill.cost_usd, bill.co2e_kg))])  # fmt: skip
    print_rows(rows, right=range(6))


def _print_knees(one: Scaled) -> None:
    rows = []
    for goal, knee in one.knees.items():
        rows.append([goal, _knee_words(knee), _band_words(knee, one.band), knee.words])
        rows += [["", "", "", f"though {_weak_words(knee)}"]] if knee.weak else []
    if "cost" not in one.knees:
        rows.append(["cost", "unknown", "", f"the price is not known: {PRICE}"])
    print_rows(rows, dim=(3,))
    if one.band is not None:
        ends = f"{one.band.low_frac:+.1%} to {one.band.high_frac:+.1%}"
        pairs = f"{one.band.pairs} pairs of published runs that are alike but for GPUs and batch"
        print_rows([[f"ranges: a doubling was {ends} from what is predicted in 9 of 10 of {pairs}, to "
                     f"{one.band.largest_gpus:,} GPUs{_beyond(one)}"]])  # fmt: skip


def _beyond(one: Scaled) -> str:
    """Which counts no run is like."""
    far = [gpus for gpus, _ in one.curve.usable if one.trusts[gpus].label == "extrapolated"]
    if not far:
        return ""
    counts = [gpus for gpus, _ in one.curve.usable]
    if far == counts:
        which = "at all counts"
    elif far == counts[-len(far) :]:
        which = f"from {far[0]:,} GPUs on"
    else:
        which = f"at {_and([f'{gpus:,}' for gpus in far])} GPUs"
    return f"; answers {which} are extrapolated, and may be further off"


def _knee_words(knee: Knee) -> str:
    return f"{knee.gpus:,} GPUs or more" if knee.open else f"{knee.gpus:,} GPUs"


def _weak_words(knee: Knee) -> str:
    """Steps below the knee that did not pay."""
    return _and([f"{r.from_gpus:,} to {r.to_gpus:,} buys {r.per_doubling:.2f}x" for r in knee.weak])


def _and(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _band_words(knee: Knee, band: DoublingBand | None) -> str:
    if band is None:
        return "no published run says how sure"
    if knee.low_gpus == knee.high_gpus:
        return "" if knee.high_open else "the same throughout"
    return f"from {knee.low_gpus:,} to {knee.high_gpus:,}{' or more' if knee.high_open else ''}"


def _print_comparison(answer: Answer) -> None:
    print_heading("side by side")
    rows = [["", "knee", "energy knee", "cost knee", "GPUs", "tokens/s", "per GPU", "of the first", "exposed",
             "tokens/J", "$/Mtoken"]]  # fmt: skip
    for one in answer.scaled:
        usable = one.curve.usable
        if not usable:
            rows.append([one.name, "-", "-", "-", "-", "-", "-", "-", "-", "-", "-"])
            continue
        (_, first), (gpus, last) = usable[0], usable[-1]
        knees = [_knee_words(one.knees[goal]) if goal in one.knees else "unknown" for goal in GOALS]
        rows.append([
            one.name, *knees, f"{gpus:,}", _number(last.tokens_per_s), _number(last.tokens_per_s_per_gpu),
            f"{last.tokens_per_s_per_gpu / first.tokens_per_s_per_gpu:.0%}", f"{last.exposed_comm_s / last.step_s:.1%}",
            _or(last.tokens_per_j, ".4g"), _or(last.usd_per_mtoken, ".4g"),
        ])  # fmt: skip
    print_rows(rows, right=range(4, 11))


def sentence(one: Scaled, answer: Answer) -> str | None:
    """What a manager reads."""
    usable = dict(one.curve.usable)
    knee = one.knees.get("throughput")
    if knee is None:
        return None
    if len(usable) == 1:
        return f"Only {knee.gpus:,} GPUs are usable: with one count nothing can be said of more."
    last = max(usable)
    least = f"{answer.options['threshold']:g}x"
    returns = one.curve.returns()
    if knee.open:
        latest = f"{returns[-1].per_doubling:.2f}x"
        beyond = f"Up to {last:,} GPUs doublings still buy {least} (the last {latest})"
        if knee.weak:
            beyond = f"The last doubling, to {last:,} GPUs, still buys {least} ({latest}), though {_weak_words(knee)}"
        return f"{beyond}; {_against(one, min(usable), last, usable)}."
    beyond = f"Beyond {knee.gpus:,} GPUs each doubling buys less than {least}"
    return f"{beyond}; {_against(one, knee.gpus, last, usable)}."


def _against(one: Scaled, few: int, many: int, usable: dict[int, Measurement]) -> str:
    """The larger run beside the smaller one."""
    a, b = usable[few], usable[many]
    energy = ""
    if a.tokens_per_j is not None and b.tokens_per_j is not None:
        change = a.tokens_per_j / b.tokens_per_j - 1.0
        more = f"{abs(change):.0%} {'more' if change >= 0 else 'less'} energy"
        energy = f" and costs {f'{change + 1.0:.3g} times the energy' if change >= 1 else more}"
    if few in one.bills and many in one.bills:
        sooner = (one.bills[few].time_s - one.bills[many].time_s) / DAY_S
        when = f"{abs(sooner):,.1f} days {'sooner' if sooner >= 0 else 'later'}"
        return f"the {many:,}-GPU run finishes {when} than the {few:,}-GPU run{energy}"
    times = b.tokens_per_s / a.tokens_per_s
    energy += " a token" if energy else ""
    faster = f"{times:.3g}x as fast as the {few:,}-GPU run with {many / few:.3g}x the GPUs"
    return f"the {many:,}-GPU run is {faster}{energy}"


def assumptions(answer: Answer) -> list[str]:
    """Each sentence once."""
    lines: list[str] = []
    for one in answer.scaled:
        notes = one.asked.assumptions if one.asked else ()
        lines += [note for note in notes if note.startswith(("profile", "seq_len", "precision"))]
        lines += [note for point in one.curve.points if point.measured for note in point.measured.assumptions]
        cut = [point for point in one.curve.points if point.cut]
        lines += ["micro_batch was not given: all sequences of a rank at once, or the most that fit"] if cut else []
    if answer.tokens is not None:
        lines += ["energy and CO2e are the GPUs' and the site's share; hosts, switches and storage are left out",
                  f"grid {answer.grid.name} ({answer.grid.kind}): {answer.grid.source}"]  # fmt: skip
    lines.append("the knee's range is of throughput; power's own error is left out")
    return list(dict.fromkeys(lines))


def series_of(answer: Answer) -> list[Series]:
    """What is drawn."""
    found = []
    for one in answer.scaled:
        usable, knee = one.curve.usable, one.knees.get("throughput")
        if knee is not None:
            found.append(
                Series(name=one.name, gpus=tuple(n for n, _ in usable), knee_gpus=knee.gpus, open=knee.open,
                       tokens_per_s=tuple(m.tokens_per_s for _, m in usable),
                       tokens_per_j=tuple(m.tokens_per_j for _, m in usable))
            )  # fmt: skip
    return found


def options_of(job: Job) -> str:
    """The options that ask for a job's plan."""
    plan, plain = job.plan, Plan()
    names = ("tp", "pp", "cp", "dp_replicate", "sharding", "schedule", "virtual_stages", "recompute",
             "recompute_frac", "precision", "sync_every")  # fmt: skip
    changed = [name for name in names if getattr(plan, name) != getattr(plain, name)]
    words = [f"--{name.replace('_', '-')} {getattr(plan, name)}" for name in changed]
    return " ".join([*words, f"--micro-batch {plan.micro_batch}"])


def _short(tokens: float) -> str:
    for factor, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if tokens >= factor:
            return f"{tokens / factor:,.4g}{letter}"
    return f"{tokens:,.0f}"


def _or(value: float | None, form: str) -> str:
    return "unknown" if value is None else format(value, form)


def _amount(value: float | None) -> str:
    """Whole from a hundred on, three digits below."""
    return "unknown" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
