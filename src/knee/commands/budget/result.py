"""What a budget can train, and the same as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from knee.base.arrays import ByValue
from knee.base.errors import InputError, argument
from knee.base.units import DAY_S, HOUR_S, amount, counted, short
from knee.commands.budget.frontier import COARSE, KNEE_WORDS, Bands, Frontier, IsoLoss, Lost, Marginal
from knee.commands.budget.model_family import STEPS_PER_DOUBLING
from knee.commands.budget.published_budgets import WITHIN_FRAC, PublishedTraining
from knee.commands.budget.scaling_laws import BAND_FRAC, DRAWS, FLOP_PER_PARAM_TOKEN, assumed_mfu
from knee.commands.budget.search import EVEN_LOSS, J_PER_MWH, BudgetLimits, BudgetRun, FlopChoice, Problem, RareExchange
from knee.engine.cost.outer_sync import DEFAULT_OUTER_LAW
from knee.engine.energy import CarbonGrid
from knee.engine.one_job import ASSUMPTIONS
from knee.engine.reliability.whole_run import InterruptedRun, month_of_job, run_with_failures
from knee.engine.workload.parameters import model_flop_per_token, parameter_count
from knee.show.result import Result, flat
from knee.specs.argument_types import checked_arguments
from knee.specs.catalog import Source
from knee.specs.model import Model
from knee.specs.plan import plan_words
from knee.trust.trust import Trust

CHECKED = (
    *("name", "cluster", "profile", "gpus", "tokens", "gpu_hours", "predicted_gpu_hours", "flop", "predicted_flop"),
    *("error_frac", "goodput_frac", "failed_gpu_hours", "failed_error_frac", "plan", "assumed", "source"),
)
"""Columns of a published training run beside its prediction."""
RUN = ("gpus", "tokens", "tokens_per_param", "loss", "binding", "days", "gpu_hours", "cost_usd", "energy_j")
RATE = ("tokens_per_s", "tokens_per_j", "mfu_frac")
"""What plain data has of a run and of its rate."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BudgetCheck(Result):
    """Published and predicted costs, each with the best plan that knee finds."""

    runs: tuple[PublishedTraining, ...]
    interrupted: tuple[InterruptedRun, ...] = ()
    """Published interruptions beside those that the default failure rates predict."""

    @property
    def sentence(self) -> str:
        """One sentence: the number of runs within the target error, and the largest error."""
        worst = max(self.runs, key=lambda run: abs(run.error_frac or 0.0))
        within = sum(run.error_frac is not None and abs(run.error_frac) <= WITHIN_FRAC for run in self.runs)
        error = 0.0 if worst.error_frac is None else worst.error_frac
        hours = sum(run.gpu_hours is not None for run in self.runs)
        return (
            f"{within} of {len(self.runs)} runs are within {WITHIN_FRAC:.0%}; {hours} runs are compared in GPU-hours, "
            f"the others in FLOP. The largest error, of {worst.name}, is {error:+.1%}."
        )

    def _data(self) -> dict[str, Any]:
        return {"kind": "budget_check", "runs": self.rows(), "within_frac": WITHIN_FRAC, "sentence": self.sentence} | {
            "interrupted": [asdict(run) | {"agrees": run.agrees} for run in self.interrupted]
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per run."""
        return [
            {name: plan_of(run) or None if name == "plan" else getattr(run, name) for name in CHECKED}
            for run in self.runs
        ]


def plan_of(run: PublishedTraining) -> str:
    """The plan that a run is predicted under, in words; empty where none is."""
    return "" if run.rate is None else plan_words(run.rate.plan)


# What `knee budget` says in sentences: the answer, how sure it is, and what was assumed.

LIMIT_WORDS = {
    "days": "the number of days",
    "usd": "the dollars",
    "mwh": "the energy",
    "tokens_max": "the data",
    "tokens_per_param": "the given tokens per parameter",
}
AXIS_WORDS = {"days": "days", "usd": "USD", "mwh": "MWh", "co2e_kg": "kg CO2e"}
FRONTIER_SIZES = (
    f"for these tables, only every {COARSE}th size of the family is tried (about a factor of two apart), "
    "in addition to the sizes of the tables above"
)
USED_UP_FRAC = 0.999
"""Of a limit: what two limits allow exactly differs by rounding."""


def sentences(answer: Budget) -> list[str]:
    """What a manager reads."""
    best, (low, high) = answer.best, answer.even
    most = answer.limits.gpus
    with_ = counted(best.gpus, "GPU") if best.gpus == most else f"{best.gpus:,} of {counted(most, 'GPU')}"
    found = [
        f"Train a model with {short(best.params)} parameters on {short(best.tokens)} tokens with {with_}. "
        f"After {counted(best.days, 'day')}, the predicted loss is {best.loss:.3f} ({_band_words(answer)})."
    ]
    found.append(_counting(answer))
    if low < high:
        found.append(f"Models with {short(low)} to {short(high)} parameters have at most {EVEN_LOSS:g} more loss.")
    ladder = answer.problem.ladder()
    if len(ladder) > 1 and best.model in (ladder[0], ladder[-1]):
        end, other = ("smallest", "smaller") if best.model == ladder[0] else ("largest", "larger")
        found.append(f"This is the {end} model that was tried; a {other} one might reach a lower loss.")
    if answer.extrapolated:
        found.append(f"The scaling law is extrapolated: {'; '.join(answer.extrapolated)}.")
    if answer.batch_extrapolated:
        found.append(f"The law of the critical batch size is extrapolated: {answer.batch_extrapolated}.")
    return found + ([_rare_words(answer)] if answer.sync_every > 1 else [])


def _rare_words(answer: Budget) -> str:
    rare, every = answer.rare_exchange, f"With an exchange of replicas every {answer.sync_every:,} steps"
    if rare is None:
        return f"{every}, no plan within the limits has replicas."
    better = f"{abs(rare.gained):.4f} {'lower' if rare.gained > 0 else 'higher'}"
    text = (
        f"{every}, the best run has a loss of {rare.loss:.4f}, {better}: {short(rare.params)} parameters, "
        f"{short(rare.tokens)} tokens and {rare.replicas:,} replicas on {rare.gpus:,} GPUs ({plan_words(rare.plan)}). "
        f"Replicas change the loss by {rare.loss_ratio - 1.0:+.2%} by the law {DEFAULT_OUTER_LAW}"
    )
    return f"{text}; this is extrapolated: {', and '.join(rare.extrapolated)}." if rare.extrapolated else f"{text}."


def _band_words(answer: Budget) -> str:
    bands = answer.bands
    if bands.both is not None:
        return f"expected range {_ends(bands.both, 2)}"
    if bands.law is not None:
        return f"expected range {_ends(bands.law, 2)} from the scaling law alone; the simulator's error is unknown here"
    if bands.engine is not None:
        ends = _ends(bands.engine, 2)
        return f"expected range {ends} from the simulator alone; no errors were published for the scaling law"
    return "uncertainty unknown"


def _counting(answer: Budget) -> str:
    flop, run = answer.flop, answer.flop.run
    chose = (
        f"A FLOP-only estimate at {100 * flop.mfu_frac:.3g}% MFU would choose {short(answer.counted_params)} "
        f"parameters and {short(flop.tokens)} tokens"
    )
    if run is None or answer.lost is None:
        return f"{chose}, {flop.why_not}."
    if answer.off_ladder:
        way = "smaller" if answer.off_ladder == "smallest" else "larger"
        what = f"This is {way} than the {answer.off_ladder} model that was tried, {short(run.params)}, which"
    else:
        what = f"On this cluster, a run of that size completes {flop.reached_frac:.0%} of the estimated FLOP and"
    return f"{chose}, and predict a loss of {flop.loss:.3f}. {what} reaches {run.loss:.3f}{_against_best(answer, run)}."


def _against_best(answer: Budget, run: BudgetRun) -> str:
    """What the FLOP-only run costs against the best: in loss, and in the limits' own units."""
    lost, limits = answer.lost, answer.limits
    if lost is None or lost.loss <= 0:
        return ", the same as the best run"
    words, frac = f", {lost.loss:.2g} above the best run", lost.budget_frac
    if frac <= 0:
        return words
    amounts = [counted(frac * run.days, "day")] if limits.days is not None and run.binding == "days" else []
    amounts += [f"{amount(frac * run.cost_usd)} USD"] if run.cost_usd is not None else []
    less = f"{100 * frac:.3g}% less of the budget" + (f" ({' or '.join(amounts)})" if amounts else "")
    return f"{words}. Another model size reaches that loss with {less}"


def limits_words(limits: BudgetLimits) -> str:
    """The question."""
    words = [f"up to {counted(limits.gpus, 'GPU')}"]
    words += [counted(limits.days, "day")] if limits.days is not None else []
    words += [f"{amount(limits.usd)} USD"] if limits.usd is not None else []
    words += [f"{amount(limits.mwh)} MWh"] if limits.mwh is not None else []
    words += [f"{short(limits.tokens_max)} tokens of data"] if limits.tokens_max is not None else []
    return ", ".join(words)


def sure_rows(answer: Budget) -> list[list[str]]:
    """Bands of the loss, each with the share that it holds."""
    bands, trust = answer.bands, answer.trust
    speed, both = "unknown: no published run used a GPU of this vendor", "unknown"
    if bands.engine is not None and trust.low_frac is not None and trust.high_frac is not None:
        speed = (
            f"{_ends(bands.engine)}: measured throughput differs from the prediction by {trust.low_frac:+.1%} "
            f"to {trust.high_frac:+.1%} with {trust.covered_frac:.0%} probability (trust: {trust.label})"
        )
    law = (
        answer.problem.law.spread
        if bands.law is None
        else f"{_ends(bands.law)}: {BAND_FRAC:.0%} of {DRAWS} random draws of the law's coefficients"
    )
    if bands.both is not None:
        both = (
            f"{_ends(bands.both)}: the law's {BAND_FRAC:.0%} range and the simulator's {trust.covered_frac:.0%} "
            "range, combined as independent errors (root of the sum of squares)"
        )
    elif bands.law is None:
        both = "unknown: no errors were published for the scaling law"
    return [["from the scaling law", law], ["from the simulator", speed], ["from both", both]]


def _ends(ends: tuple[float, float], digits: int = 4) -> str:
    return f"{ends[0]:.{digits}f} to {ends[1]:.{digits}f}"


def batch_words(answer: Budget) -> str:
    """The batch of the best run, against the critical one."""
    best, factor = answer.best, answer.batch_factor
    words = (
        f"{short(best.batch_tokens)} tokens per step ({counted(best.rate.global_batch, 'sequence')}); the "
        f"critical batch size at this loss is {short(best.critical_batch_tokens)} tokens"
    )
    if factor is None:
        return words
    return (
        f"{words}; by Kaplan's rule, this batch needs up to {factor:.2f} times the tokens that small batches need, "
        "which the loss does not include"
    )


def frontier_words(limits: BudgetLimits, one: Frontier) -> list[str]:
    """What to know of a frontier beside its knee: of all, and of this one where another limit is used up."""
    said = [FRONTIER_SIZES]
    unit, places = AXIS_WORDS[one.axis], []
    others = [_used_up(limits, run, one.axis) for run in one.runs]
    for place in reversed(range(len(others))):
        if not others[place]:
            break
        places.append(place)
    if not places:
        return said
    first = places[-1]
    names = " and ".join(LIMIT_WORDS[name] for name in others[first])
    # a limit that ends what a doubling buys shows at its last paying value, or at the one after
    at_knee = one.knee in one.values[max(first - 1, 0) : first + 1] and not one.open
    means = (
        f"the knee is caused by that limit, not by {unit} alone"
        if at_knee
        else f"more {unit} only allow larger models"
        if others[first] == ["tokens_max"]
        else f"with more {unit}, a run only spends that limit differently"
    )
    return [*said, f"from {amount(one.values[first])} {unit} on, a run also uses up {names}: {means}"]


def _used_up(limits: BudgetLimits, run: BudgetRun | None, axis: str) -> list[str]:
    """Limits other than the axis of which a run takes all."""
    if run is None:
        return []
    own = "mwh" if axis == "co2e_kg" else axis
    used = {"days": run.days, "usd": run.cost_usd, "mwh": run.mwh, "tokens_max": run.tokens}
    limited = {name: getattr(limits, name) for name in used if name != own and getattr(limits, name) is not None}
    return [name for name, most in limited.items() if (used[name] or 0.0) >= USED_UP_FRAC * most]


def assumptions(answer: Budget) -> list[str]:
    """Each sentence once."""
    problem, law = answer.problem, answer.problem.law
    all_counted = law.counts == "all"
    count = "all parameters" if all_counted else "parameters without embeddings, while sizes are shown with embeddings"
    lines = [
        *answer.notes,
        f"loss is {law.loss_of}; the law's N counts {count} ({law.source})",
        f"errors of the scaling law: {law.spread}",
        *_batch_lines(answer),
        _flop_line(answer),
        *(
            ()
            if all_counted
            else ("the FLOP-only size is shown with the embeddings of the nearest model that was tried",)
        ),
        f"the models are of the family {problem.family.name}{_ladder_words(answer)}: {problem.family.source}",
        f"the search tried a reduced set of {problem.rates.plans:,} plans; `knee plan` searches all plans of one "
        "model and GPU count",
        "no token is repeated, and learning rates are tuned",
        "days and dollars of runs leave out failures and restarts; with_failures has the same tokens with them",
        *_site_lines(answer),
        *ASSUMPTIONS,
    ]
    return list(dict.fromkeys(lines))


def _batch_lines(answer: Budget) -> list[str]:
    problem, batch = answer.problem, answer.problem.batch_law
    most = problem.batch_max_tokens
    rule = (
        f"a step has at most {short(most)} tokens, as given by the user"
        if most is not None
        else f"a step has at most the critical batch size of {batch.name}, {batch.formula} ({batch.source})"
    )
    charge = "the predicted loss does not depend on the batch size, and applies to the data of the scaling law"
    if batch.form == "loss":
        charge += (
            "; by Kaplan's definition, a run at the critical batch size needs up to twice the tokens of a run with "
            "small batches, so the predicted loss is too low for large batches; --batch-max sets a smaller batch"
        )
    return [rule, charge]


def _flop_line(answer: Budget) -> str:
    flop, seq_len = answer.flop, answer.problem.rates.seq_len
    also = "" if answer.problem.law.counts == "all" else ", and those of the output layer"
    source = argument("mfu") if answer.mfu_given else assumed_mfu()[1]
    return (
        f"the FLOP-only estimate assumes {100 * flop.mfu_frac:.3g}% of the peak ({source}) and 6 x N x D FLOP; "
        f"this leaves out the FLOP of attention, {answer.attention_frac:.1%} of all FLOP of "
        f"{answer.best.model.name} at {seq_len:,} tokens per sequence{also}, so a cluster completes a smaller "
        "share of the estimated FLOP; the MFU of single runs uses the PaLM convention, which counts attention "
        "without the causal mask"
    )


def _ladder_words(answer: Budget) -> str:
    sizes = [parameter_count(model) for model in answer.problem.ladder()]
    if len(sizes) < 2:
        return ""
    steps = [b / a - 1.0 for a, b in pairwise(sizes)]
    return (
        f", {short(sizes[0])} to {short(sizes[-1])}, each {min(steps):.0%} to {max(steps):.0%} larger than the one "
        "before (published models of the family replace the nearest size)"
    )


def _site_lines(answer: Budget) -> list[str]:
    price, pue, grid = answer.problem.rates.cluster.usd_per_gpu_h, answer.pue, answer.grid
    rent = "the rent per GPU is unknown"
    if price is not None and answer.price is not None:
        rent = f"the rent per GPU is {price:g} USD/h ({answer.price.kind}): {answer.price.text}"
    return [
        rent,
        "energy and CO2e cover the GPUs and the site's overhead (PUE), but not hosts, switches and storage",
        f"PUE is {answer.problem.pue:g} ({pue.kind}): {pue.text}",
        f"{'' if grid.kind == 'user' else f'grid {grid.name}: '}{grid.g_per_kwh:.4g} g CO2e/kWh ({grid.kind}): "
        f"{grid.source}",
    ]


OFF_RATIO = 2.0 ** (0.5 / STEPS_PER_DOUBLING)
"""Half of a step of the ladder."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)  # its frontiers are arrays
class Budget(ByValue, Result):
    """The best run within the limits, other runs around it, and the choice of a FLOP-only estimate."""

    mfu_given: bool
    """Whether the share of the peak that counting FLOP assumes was given."""
    limits: BudgetLimits
    problem: Problem
    grid: CarbonGrid
    best: BudgetRun
    by_count: dict[int, BudgetRun]
    sizes: tuple[BudgetRun, ...]
    between: float
    """Parameters at which the loss is least between shapes."""
    even: tuple[int, int]
    """Parameters of the smallest and the largest shape that lose about the same."""
    flop: FlopChoice
    lost: Lost | None
    marginals: tuple[Marginal, ...]
    trust: Trust
    bands: Bands
    frontiers: tuple[Frontier, ...]
    cells: dict[tuple[int, Model], BudgetRun | None]
    iso: tuple[IsoLoss, ...]
    notes: list[str]
    price: Source | None
    """Where the price comes from; None where there is none."""
    pue: Source
    sync_every: int = 1
    """Steps between exchanges of replicas that are weighed beside the best run; 1 weighs none."""
    rare_exchange: RareExchange | None = None
    """The best run with replicas that exchange only every ``sync_every`` steps; None if it is not asked for, or no plan
    has replicas."""

    def afforded_tokens(self) -> dict[str, list[list[float]]]:
        """Return [parameters, tokens] that each limit affords, with the GPUs and the plan of each size's best run."""
        runs = sorted({run.counted: run for run in (*self.sizes, self.best)}.values(), key=lambda run: run.counted)
        limits, pue, price = self.limits, self.problem.pue, self.problem.rates.cluster.usd_per_gpu_h
        found: dict[str, list[list[float]]] = {"all": [[run.counted, run.tokens] for run in runs]}
        if limits.days is not None:
            found["days"] = [[run.counted, run.rate.tokens_per_s * limits.days * DAY_S] for run in runs]
        if limits.usd is not None and price:
            hours = limits.usd / price
            found["usd"] = [[run.counted, run.rate.tokens_per_s * hours * HOUR_S / run.gpus] for run in runs]
        if limits.mwh is not None:
            found["mwh"] = [[run.counted, run.rate.tokens_per_j * limits.mwh * J_PER_MWH / pue] for run in runs]
        if limits.tokens_max is not None:
            found["tokens_max"] = [[run.counted, limits.tokens_max] for run in runs]
        return found

    @property
    def extrapolated(self) -> list[str]:
        """The quantities of the best run that are outside the runs of the scaling law, as sentences."""
        return self.problem.law.outside(self.best.counted, self.best.tokens)

    @property
    def batch_extrapolated(self) -> str:
        """A sentence if the batch is outside the range of the law of the critical batch size; else empty."""
        problem = self.problem
        return problem.batch_law.outside(self.best.batch_tokens) if problem.batch_max_tokens is None else ""

    @property
    def batch_factor(self) -> float | None:
        """Tokens that the best run needs, relative to a run with small batches; None if the batch law has no such rule.

        Formula: 1 + B / B_crit
        Source:  Kaplan et al. 2020, arXiv 2001.08361, section 5.1
        """
        best = self.best
        kaplan = self.problem.batch_law.form == "loss"
        return 1.0 + best.batch_tokens / best.critical_batch_tokens if kaplan else None

    @property
    def counted_near(self) -> Model:
        """The model shape nearest to the size that the FLOP-only estimate chooses."""
        counted, wanted = self.problem.law.counted, self.flop.params
        return min(self.problem.ladder(), key=lambda model: abs(np.log(counted(model) / wanted)))

    @property
    def counted_params(self) -> float:
        """The size that the FLOP-only estimate chooses, with all parameters.

        If the law does not count embeddings, those of the nearest shape are added.
        """
        near = self.counted_near
        return self.flop.params + parameter_count(near) - self.problem.law.counted(near)

    @property
    def off_ladder(self) -> str:
        """``smallest`` or ``largest`` if the FLOP-only size is outside the sizes that were tried; else empty."""
        ladder, law = self.problem.ladder(), self.problem.law
        if self.problem.model is not None:
            return ""
        # half a rung beyond an end is still nearest to that end
        below = self.flop.params < law.counted(ladder[0]) / OFF_RATIO
        return "smallest" if below else "largest" if self.flop.params > law.counted(ladder[-1]) * OFF_RATIO else ""

    @property
    def attention_frac(self) -> float:
        """Share of attention in the FLOP of the best shape, with the causal mask; 6 N does not count it."""
        seq_len = np.array([self.problem.rates.seq_len])
        plain, whole = (float(model_flop_per_token(self.best.model, seq_len, name)[0]) for name in ("6n", "causal"))
        return 1.0 - plain / whole

    def mfu_6nd_frac(self, run: BudgetRun) -> float:
        """MFU with 6 N FLOP per token.

        Formula: 6 N tokens/s / (GPUs * peak)
        Where:   N parameters as the law counts them
        """
        peak = self.problem.rates.cluster.gpu.peak_flop_per_s(run.rate.plan.precision)
        return FLOP_PER_PARAM_TOKEN * run.counted * run.rate.tokens_per_s / (run.gpus * peak)

    def _data(self) -> dict[str, Any]:
        rare = self.rare_exchange
        return as_data(self) | ({} if rare is None else {"rare_exchange": rare})

    def rows(self) -> list[dict[str, Any]]:
        """The best run at every GPU count."""
        return [flat(run_data(self, run)) for run in self.by_count.values()]

    @checked_arguments
    def plot(self, path: str | Path) -> None:
        """Draw a chart into a .svg, .png, .html or .json (Vega-Lite) file; with ``frontier``, it shows the loss against
        each limit."""
        from knee.commands.budget.charts import budget_figures, concatenated
        from knee.show.figures.vega import check_picture, standalone
        from knee.show.page.page import write_plot

        check_picture(str(path))
        data = self.to_dict()
        figures = budget_figures(data)
        if not any(figure.spec for figure in figures):
            text = "one model size on one GPU count gives no chart"
            raise InputError(text, hint=f"add {argument('frontier')}", code="missing-argument", field="frontier")
        spec = standalone(concatenated(figures))
        write_plot(Path(path), spec, title="knee budget", sentences=data["sentences"])

    @checked_arguments
    def write_page(self, out: str | Path, *, command: str = "") -> None:
        """Write one HTML file that needs no network, with every chart and its values; the page shows ``command`` as the
        command that created it."""
        from knee.base.files import write_text
        from knee.commands.budget.page import budget_page

        best, cluster, days = self.best, self.problem.rates.cluster, best_with_failures(self)["days"]
        month = month_of_job(best.model, cluster, best.gpus, step_s=best.step_s, days=days)
        write_text(Path(out), budget_page(self.to_dict(), command=command, month=month))


def as_data(answer: Budget) -> dict[str, Any]:
    """The answer for ``--json``; pictures and pages are made of it."""
    problem, law = answer.problem, answer.problem.law
    return {
        "kind": "budget",
        "cluster": problem.rates.cluster.name,
        "profile": problem.rates.profile.name,
        "family": problem.family.name,
        "seq_len": problem.rates.seq_len,
        "limits": asdict(answer.limits) | {"batch_max_tokens": problem.batch_max_tokens},
        "law": {
            **{name: getattr(law, name) for name in ("name", "source", "counts", "loss_of", "values")},
            "standard_errors": law.errors,
            "fitted_params": law.params,
            "fitted_tokens": law.tokens,
            "fitted_flop": law.flop,
            "extrapolated": answer.extrapolated,
        },
        "batch_law": {
            **{name: getattr(problem.batch_law, name) for name in ("name", "source", "formula")},
            "extrapolated": answer.batch_extrapolated,
            "tokens_over_small_batches": answer.batch_factor,
        },
        "best": run_data(answer, answer.best)
        | {
            "between_params": answer.between,
            "even_params": answer.even,
            "even_loss": EVEN_LOSS,
            "trust": answer.trust.as_json(),
            "with_failures": best_with_failures(answer),
            "bands": asdict(answer.bands)
            | {"law_covers_frac": BAND_FRAC, "engine_covers_frac": answer.trust.covered_frac},
        },
        "by_gpus": [run_data(answer, one) for one in answer.by_count.values()],
        "by_size": [
            run_data(answer, one) | {"counted_loss": answer.flop.loss_of(law, one.counted)} for one in answer.sizes
        ],
        "flop_counting": flop_data(answer),
        "marginal": [asdict(one) for one in answer.marginals],
        "frontiers": [frontier_data(answer, one) for one in answer.frontiers],
        "grid": [
            {"gpus": gpus, "params": parameter_count(model), "loss": run.loss if run else None}
            for (gpus, model), run in answer.cells.items()
        ],
        "iso_loss": [asdict(one) for one in answer.iso],
        "site": {
            "pue": problem.pue,
            "pue_source": answer.pue.text,
            "pue_kind": answer.pue.kind,
            "usd_per_gpu_h": problem.rates.cluster.usd_per_gpu_h,
            "usd_source": answer.price.text if answer.price else None,
            "usd_kind": answer.price.kind if answer.price else None,
            "grid": asdict(answer.grid) | {"g_co2e_per_kwh": answer.grid.g_per_kwh},
        },
        "plans": problem.rates.plans,
        "sentences": sentences(answer),
        "assumptions": assumptions(answer),
    }


def flop_data(answer: Budget) -> dict[str, Any]:
    """The choice of a FLOP-only estimate as plain data."""
    flop, kg = answer.flop, answer.grid.kg_co2e_per_j
    return {
        "mfu_frac": flop.mfu_frac,
        "mfu_6nd_frac": flop.mfu_frac,
        "flop": flop.flop,
        "params": flop.params,
        "all_params": answer.counted_params,
        "off_ladder": answer.off_ladder,
        "tokens": flop.tokens,
        "loss": flop.loss,
        "gpus": flop.gpus,
        "days": flop.time_s / DAY_S,
        "gpu_hours": flop.time_s / HOUR_S * flop.gpus,
        "cost_usd": flop.cost_usd,
        "energy_j": flop.energy_j,
        "energy_mwh": flop.energy_j / J_PER_MWH,
        "co2e_kg": flop.energy_j * kg,
        "reached_frac": flop.reached_frac,
        "full_time_s": flop.full_time_s,
        "attention_frac": answer.attention_frac,
        "really": run_data(answer, flop.run) if flop.run else None,
        "lost": asdict(answer.lost) if answer.lost else None,
    }


def run_data(answer: Budget, run: BudgetRun) -> dict[str, Any]:
    """A run as plain data."""
    model, rate = run.model, run.rate
    shape = {name: getattr(model, name) for name in ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab")}
    return {
        "model": model.name,
        "params": run.params,
        "counted_params": run.counted,
        **shape,
        **{name: getattr(run, name) for name in RUN},
        "energy_mwh": run.mwh,
        "co2e_kg": run.energy_j * answer.grid.kg_co2e_per_j,
        **{name: getattr(rate, name) for name in RATE},
        "mfu_6nd_frac": answer.mfu_6nd_frac(run),
        "exposed_frac": rate.exposed_frac,
        "global_batch": rate.global_batch,
        "batch_tokens": run.batch_tokens,
        "critical_batch_tokens": run.critical_batch_tokens,
        "plan": asdict(rate.plan),
        "plan_words": plan_words(rate.plan),
    }


def best_with_failures(answer: Budget) -> dict[str, Any]:
    """The best run on the same tokens, with failures and restarts."""
    best, cluster = answer.best, answer.problem.rates.cluster
    return run_with_failures(best.model, cluster, best.gpus, best.time_s, step_s=best.step_s, cost_usd=best.cost_usd)


def frontier_data(answer: Budget, one: Frontier) -> dict[str, Any]:
    """A frontier as plain data."""
    law = answer.problem.law
    points = [
        {
            "value": value,
            "worth_frac": worth,
            "run": run_data(answer, run) if run else None,
            "law_band": law.band(run.counted, run.tokens) if run else None,
        }
        for value, run, worth in zip(one.values, one.runs, one.worth, strict=True)
    ]
    return {
        "axis": one.axis,
        "knee": one.knee,
        "open": one.open,
        "words": KNEE_WORDS,
        "remarks": frontier_words(answer.limits, one),
        "points": points,
    }
