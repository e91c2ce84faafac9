"""Budgets on the screen, in words, and as plain data."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from knee.cli.table import print_heading, print_rows
from knee.energy.grid import Grid
from knee.fidelity.trust import Trust
from knee.search.budget import HOUR_S, J_PER_MWH, Limits, Problem, Run
from knee.search.flop_counting import FlopChoice
from knee.search.frontier import KNEE_WORDS, Bands, Frontier, IsoLoss, Lost, Marginal
from knee.search.laws import BAND_FRAC, DRAWS
from knee.search.training_bill import DAY_S
from knee.single import ASSUMPTIONS
from knee.specs.model import Model
from knee.specs.plan import plan_words
from knee.units import short
from knee.workload.parameters import parameter_count

LIMIT_WORDS = {"days": "the days", "usd": "the dollars", "mwh": "the energy", "tokens_max": "the data",
               "tokens_per_param": "the tokens a parameter that were asked for"}
_HEAD = ["GPUs", "parameters", "tokens", "a parameter", "loss", "days", "MFU", "exposed", "batch", "plan"]
AXIS_WORDS = {"days": "days", "usd": "USD", "mwh": "MWh", "co2e_kg": "kg CO2e"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Everything that was asked and found."""

    options: dict[str, Any]
    limits: Limits
    problem: Problem
    grid: Grid
    best: Run
    by_count: dict[int, Run]
    sizes: tuple[Run, ...]
    between: float
    """Parameters at which the loss is least between shapes."""
    flop: FlopChoice
    lost: Lost | None
    marginals: tuple[Marginal, ...]
    trust: Trust
    bands: Bands
    frontiers: tuple[Frontier, ...]
    cells: dict[tuple[int, Model], Run | None]
    iso: tuple[IsoLoss, ...]
    notes: list[str]

    @property
    def extrapolated(self) -> list[str]:
        """What of the best run lies beyond the law's runs."""
        return self.problem.law.outside(self.best.counted, self.best.tokens)

    @property
    def batch_extrapolated(self) -> str:
        """Whether its batch lies beyond those that the law of the critical batch was measured at."""
        problem = self.problem
        return problem.batch_law.outside(self.best.batch_tokens) if problem.batch_max_tokens is None else ""


# ---- data ------------------------------------------------------------------------------------------------------------


def as_data(answer: Answer) -> dict[str, Any]:
    """The answer for ``--json``; pictures and pages are made of it."""
    problem, law = answer.problem, answer.problem.law
    kg = answer.grid.kg_co2e_per_j
    flop, run = answer.flop, answer.flop.run
    return {
        "kind": "budget",
        "cluster": problem.rates.cluster.name,
        "profile": problem.rates.profile.name,
        "family": problem.family.name,
        "seq_len": problem.rates.seq_len,
        "limits": asdict(answer.limits) | {"batch_max_tokens": problem.batch_max_tokens},
        "law": {"name": law.name, "source": law.source, "counts": law.counts, "loss_of": law.loss_of,
                "values": law.values, "standard_errors": law.errors, "fitted_params": law.params,
                "fitted_tokens": law.tokens, "fitted_flop": law.flop, "extrapolated": answer.extrapolated},
        "batch_law": {"name": problem.batch_law.name, "source": problem.batch_law.source,
                      "formula": problem.batch_law.formula, "extrapolated": answer.batch_extrapolated},
        "best": run_data(answer.best, kg) | {"between_params": answer.between, "trust": answer.trust.as_json(),
                                             "bands": asdict(answer.bands)},
        "by_gpus": [run_data(one, kg) for one in answer.by_count.values()],
        "by_size": [run_data(one, kg) | {"counted_loss": flop.loss_of(law, one.counted)} for one in answer.sizes],
        "flop_counting": {
            "mfu_frac": flop.mfu_frac, "flop": flop.flop, "params": flop.params, "tokens": flop.tokens,
            "loss": flop.loss, "gpus": flop.gpus, "days": flop.time_s / DAY_S,
            "gpu_hours": flop.time_s / HOUR_S * flop.gpus, "cost_usd": flop.cost_usd, "energy_j": flop.energy_j,
            "energy_mwh": flop.energy_j / J_PER_MWH, "co2e_kg": flop.energy_j * kg,
            "reached_frac": flop.reached_frac, "full_time_s": flop.full_time_s,
            "really": run_data(run, kg) if run else None,
            "lost": asdict(answer.lost) if answer.lost else None,
        },
        "marginal": [asdict(one) for one in answer.marginals],
        "frontiers": [frontier_data(one, kg) for one in answer.frontiers],
        "grid": [{"gpus": gpus, "params": parameter_count(model), "loss": run.loss if run else None}
                 for (gpus, model), run in answer.cells.items()],
        "iso_loss": [asdict(one) for one in answer.iso],
        "site": {"pue": problem.pue, "grid": asdict(answer.grid)},
        "plans": problem.rates.plans,
        "sentences": sentences(answer),
        "assumptions": assumptions(answer),
    }  # fmt: skip


def run_data(run: Run, kg_per_j: float) -> dict[str, Any]:
    """A run as plain data."""
    model, rate = run.model, run.rate
    shape = {name: getattr(model, name) for name in ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab")}
    return {
        "model": model.name, "params": run.params, "counted_params": run.counted, **shape, "gpus": run.gpus,
        "tokens": run.tokens, "tokens_per_param": run.tokens_per_param, "loss": run.loss, "binding": run.binding,
        "days": run.days, "gpu_hours": run.gpu_hours, "cost_usd": run.cost_usd, "energy_j": run.energy_j,
        "energy_mwh": run.mwh, "co2e_kg": run.energy_j * kg_per_j, "tokens_per_s": rate.tokens_per_s,
        "tokens_per_j": rate.tokens_per_j, "mfu_frac": rate.mfu_frac, "exposed_frac": rate.exposed_frac,
        "global_batch": rate.global_batch, "batch_tokens": run.batch_tokens,
        "critical_batch_tokens": run.critical_batch_tokens, "plan": asdict(rate.plan),
        "plan_words": plan_words(rate.plan),
    }  # fmt: skip


def frontier_data(one: Frontier, kg_per_j: float) -> dict[str, Any]:
    """A frontier as plain data."""
    points = [
        {"value": value, "worth_frac": worth, "run": run_data(run, kg_per_j) if run else None}
        for value, run, worth in zip(one.values, one.runs, one.worth, strict=True)
    ]
    return {"axis": one.axis, "knee": one.knee, "open": one.open, "words": KNEE_WORDS, "points": points}


# ---- words -----------------------------------------------------------------------------------------------------------


def print_answer(answer: Answer) -> None:
    """Tables, and the sentences to remember at the end."""
    problem, best = answer.problem, answer.best
    print_heading(f"{_limits_words(answer.limits)} of {problem.rates.cluster.name}: {problem.rates.profile.name}, "
                  f"{problem.rates.seq_len:,} tokens a sequence, law {problem.law.name}")
    _print_sides(answer)
    print_heading("fewer GPUs: the best run of each count")
    print_rows([_HEAD, *(_row(run) for run in answer.by_count.values())], right=range(9))
    if len(answer.sizes) > 1:
        print_heading(f"other sizes on {best.gpus:,} GPUs")
        print_rows([_HEAD, *(_row(run) for run in answer.sizes)], right=range(9))
    print_heading("one more unit")
    print_rows([[f"a {one.what}" if one.what != "MWh" else "an MWh", f"{one.loss:+.2e} loss", one.how,
                 "" if one.binds else "not what ends this run: it buys nothing by itself"]
                for one in answer.marginals], dim=(2, 3))  # fmt: skip
    _print_bands(answer)
    for one in answer.frontiers:
        _print_frontier(one)
    if answer.iso:
        _print_iso(answer.iso)
    print_heading("assumptions:")
    for line in assumptions(answer):
        sys.stdout.write(f"  - {line}\n")
    for line in sentences(answer):
        print_heading(line)


def _row(run: Run) -> list[str]:
    return [f"{run.gpus:,}", short(run.params), short(run.tokens), f"{run.tokens_per_param:.3g}", f"{run.loss:.4f}",
            f"{run.days:,.1f}", f"{run.rate.mfu_frac:.1%}", f"{run.rate.exposed_frac:.1%}", short(run.batch_tokens),
            plan_words(run.rate.plan)]  # fmt: skip


def _print_sides(answer: Answer) -> None:
    """The best run, what FLOP counting promises, and what becomes of that."""
    best, flop, really = answer.best, answer.flop, answer.flop.run

    def cells(run: Run | FlopChoice | None) -> list[str]:
        if run is None:
            return ["no plan"] + ["-"] * 9
        return [short(run.params), short(run.tokens), f"{run.tokens / run.params:.3g}", f"{run.loss:.4f}",
                f"{run.gpus:,}", f"{run.time_s / DAY_S:,.1f}", f"{run.time_s / HOUR_S * run.gpus:,.0f}",
                "unknown" if run.cost_usd is None else f"{run.cost_usd:,.0f}", f"{run.energy_j / J_PER_MWH:,.0f}",
                f"{run.energy_j * answer.grid.kg_co2e_per_j:,.0f}"]  # fmt: skip

    names = ["parameters", "tokens", "tokens a parameter", "loss", "GPUs", "days", "GPU hours", "USD", "MWh", "kg CO2e"]
    rows = [["", "with communication", f"counting FLOP ({flop.mfu_frac:.0%} MFU)", "what that really reaches"]]
    rows += [list(row) for row in zip(names, cells(best), cells(flop), cells(really), strict=True)]
    print_rows(rows, right=(1, 2, 3))
    shape = best.model
    print_rows([["shape", f"{shape.name}: {shape.layers} layers, {shape.hidden:,} wide, MLP {shape.ffn:,}, "
                 f"{shape.heads} heads ({shape.kv_heads} of keys), vocabulary {shape.vocab:,}"],
                ["plan", plan_words(best.rate.plan)],
                ["batch", f"{short(best.batch_tokens)} tokens a step ({best.rate.global_batch:,} sequences); critical "
                 f"at this loss: {short(best.critical_batch_tokens)}"],
                ["ends by", LIMIT_WORDS[best.binding]]])  # fmt: skip


def _print_bands(answer: Answer) -> None:
    bands, trust = answer.bands, answer.trust
    print_heading("how sure")
    speed = "unknown: no published run is of this vendor"
    if bands.engine is not None and trust.low_frac is not None and trust.high_frac is not None:
        speed = (f"{_ends(bands.engine)}: throughput {trust.low_frac:+.1%} to {trust.high_frac:+.1%} in "
                 f"{trust.covered_frac:.0%} of the published runs most like it ({trust.label})")
    law = answer.problem.law.spread if bands.law is None else (
        f"{_ends(bands.law)}: {BAND_FRAC:.0%} of {DRAWS} draws of its coefficients")
    print_rows([["loss by the law", law], ["loss by the simulator", speed],
                ["both", _ends(bands.both) if bands.both else "unknown"]])  # fmt: skip


def _ends(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.4f} to {ends[1]:.4f}"


def _print_frontier(one: Frontier) -> None:
    unit = AXIS_WORDS[one.axis]
    knee = "no doubling pays" if one.knee is None else f"{_amount(one.knee)} {unit}{' or more' if one.open else ''}"
    print_heading(f"loss against {unit}: knee at {knee}" if one.knee else f"loss against {unit}: {knee}")
    rows = [[unit, "loss", "the doubling bought", "GPUs", "parameters", "tokens"]]
    for value, run, worth in zip(one.values, one.runs, one.worth, strict=True):
        if run is None:
            rows.append([_amount(value), "nothing can be trained", "", "", "", ""])
            continue
        bought = "" if worth is None else f"{worth:.0%} of what the law promises"
        rows.append([_amount(value), f"{run.loss:.4f}", bought, f"{run.gpus:,}", short(run.params), short(run.tokens)])
    print_rows(rows, right=range(6))


def _print_iso(iso: Sequence[IsoLoss]) -> None:
    print_heading("equal loss: the sizes that reach it, by GPUs")
    losses = sorted({one.loss for one in iso})
    rows = [["GPUs", *(f"{loss:.4f}" for loss in losses)]]
    for gpus in sorted({one.gpus for one in iso}):
        own = {one.loss: one for one in iso if one.gpus == gpus}
        rows.append([f"{gpus:,}", *(f"{short(own[loss].low_params)} to {short(own[loss].high_params)}"
                                    if loss in own else "-" for loss in losses)])  # fmt: skip
    print_rows(rows, right=range(len(losses) + 1))


def sentences(answer: Answer) -> list[str]:
    """What a manager reads."""
    best, flop, lost = answer.best, answer.flop, answer.lost
    band = answer.bands.both or answer.bands.law or answer.bands.engine
    sure = f" ({band[0]:.2f} to {band[1]:.2f})" if band else ""
    fewer = f" of {answer.limits.gpus:,}" if best.gpus < answer.limits.gpus else ""
    with_ = f"{best.gpus:,}{fewer} GPU{'' if answer.limits.gpus == 1 else 's'}"
    found = [f"Train {short(best.params)} parameters on {short(best.tokens)} tokens with {with_}: "
             f"loss {best.loss:.3f}{sure} after {best.days:,.1f} days."]  # fmt: skip
    chose = f"Counting FLOP at {flop.mfu_frac:.0%} MFU chooses {short(flop.params)} on {short(flop.tokens)} tokens"
    if flop.run is None or lost is None:
        found.append(f"{chose}, {flop.why_not}.")
    else:
        run = flop.run
        of_best = (f"{lost.loss:.4f} above the best, which reaches that with {_budget(answer, lost.budget_frac)} less"
                   if lost.loss > 0 else "that is the best run too")  # fmt: skip
        found.append(f"{chose} and promises {flop.loss:.3f}; this cluster gets through {flop.reached_frac:.0%} of that "
                     f"work, to {run.loss:.3f}: {of_best}.")  # fmt: skip
    ladder = answer.problem.ladder()
    if len(ladder) > 1 and best.model in (ladder[0], ladder[-1]):
        end = "smallest" if best.model == ladder[0] else "largest"
        found.append(f"This is the {end} shape that is tried: one beyond it might lose less.")
    if answer.extrapolated:
        found.append(f"The law is extrapolated: {'; '.join(answer.extrapolated)}.")
    if answer.batch_extrapolated:
        found.append(f"So is the critical batch: {answer.batch_extrapolated}.")
    return found


def _budget(answer: Answer, frac: float) -> str:
    """A share of the budget in the limits' own units."""
    best, limits = answer.flop.run or answer.best, answer.limits
    parts = [f"{frac:.1%}"]
    if limits.days is not None and best.binding == "days":
        parts.append(f"{frac * best.days:,.1f} days")
    if best.cost_usd is not None:
        parts.append(f"{frac * best.cost_usd:,.0f} USD")
    return " or ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]


def _limits_words(limits: Limits) -> str:
    words = [f"up to {limits.gpus:,} GPUs"]
    words += [f"{limits.days:g} days"] if limits.days is not None else []
    words += [f"{limits.usd:,.0f} USD"] if limits.usd is not None else []
    words += [f"{limits.mwh:,.4g} MWh"] if limits.mwh is not None else []
    words += [f"{short(limits.tokens_max)} tokens of data"] if limits.tokens_max is not None else []
    return ", ".join(words)


def assumptions(answer: Answer) -> list[str]:
    """Each sentence once."""
    problem, law = answer.problem, answer.problem.law
    batch = problem.batch_law
    rule = (f"a step has at most {short(problem.batch_max_tokens)} tokens, as given"
            if problem.batch_max_tokens is not None else
            f"a step has at most the critical batch by {batch.name}, {batch.formula} ({batch.source}); up to it "
            "a batch adds no loss, and the loss is of the scaling law's data")
    counted = {"all": "all parameters", "non_embedding": "parameters without embeddings"}[law.counts]
    lines = [
        *answer.notes,
        f"loss is {law.loss_of}; N counts {counted} ({law.source})",
        f"the law's errors: {law.spread}",
        rule,
        f"shapes of the family {problem.family.name}: {problem.family.source}",
        f"{problem.rates.plans:,} plans of a lean set; `knee plan` searches all of one size and count",
        "every token is new, learning rates are tuned, and nothing is lost to failures and restarts",
        "energy and CO2e are the GPUs' and the site's share; hosts, switches and storage are left out",
        f"grid {answer.grid.name} ({answer.grid.kind}): {answer.grid.source}",
        *ASSUMPTIONS,
    ]
    return list(dict.fromkeys(lines))


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
