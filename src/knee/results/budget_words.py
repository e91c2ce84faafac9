"""What `knee budget` says in sentences: the answer, how sure it is, and what was assumed."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from knee.budgets.equal_loss import EVEN_LOSS
from knee.budgets.frontier import COARSE, Frontier
from knee.budgets.scaling_laws import BAND_FRAC, DRAWS, assumed_mfu
from knee.errors import argument
from knee.record.plan_words import plan_words
from knee.single import ASSUMPTIONS
from knee.units import amount, counted, short
from knee.workload.outer_sync_loss import DEFAULT_OUTER_LAW
from knee.workload.parameters import parameter_count

if TYPE_CHECKING:
    from knee.budgets.budget_run import BudgetLimits, BudgetRun
    from knee.results.budget_result import Budget

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


# ---- the answer ------------------------------------------------------------------------------------------------------


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
    """What an exchange every few steps would bring."""
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
    """The band of the loss, and of what it is where it is not of everything."""
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
    """What a FLOP-only estimate chooses, and what becomes of it."""
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


# ---- how sure --------------------------------------------------------------------------------------------------------


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
    return [
        name
        for name, taken in used.items()
        if name != own
        and taken is not None
        and (most := getattr(limits, name)) is not None
        and taken >= USED_UP_FRAC * most
    ]


# ---- what was assumed ------------------------------------------------------------------------------------------------


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
            []
            if all_counted
            else ["the FLOP-only size is shown with the embeddings of the nearest model that was tried"]
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
    """Which FLOP are counted."""
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
    rent = (
        "the rent per GPU is unknown"
        if price is None or answer.price is None
        else f"the rent per GPU is {price:g} USD/h ({answer.price.kind}): {answer.price.text}"
    )
    return [
        rent,
        "energy and CO2e cover the GPUs and the site's overhead (PUE), but not hosts, switches and storage",
        f"PUE is {answer.problem.pue:g} ({pue.kind}): {pue.text}",
        f"{'' if grid.kind == 'user' else f'grid {grid.name}: '}{grid.g_per_kwh:.4g} g CO2e/kWh ({grid.kind}): "
        f"{grid.source}",
    ]
