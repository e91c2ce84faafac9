"""What a budget can train, and the same as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from knee.arrays import ByValue
from knee.budgets.budget_run import J_PER_MWH, BudgetLimits, BudgetRun
from knee.budgets.budget_search import Problem
from knee.budgets.equal_loss import EVEN_LOSS
from knee.budgets.flop_counting import FlopChoice
from knee.budgets.frontier import KNEE_WORDS, Bands, Frontier, IsoLoss, Lost, Marginal
from knee.budgets.model_family import STEPS_PER_DOUBLING
from knee.budgets.rare_exchange import RareExchange
from knee.budgets.scaling_laws import BAND_FRAC, FLOP_PER_PARAM_TOKEN
from knee.energy.carbon import CarbonGrid
from knee.errors import InputError, argument
from knee.inputs.argument_types import checked_arguments
from knee.record.plan_words import plan_words
from knee.reliability.drawn_month import month_of_job
from knee.reliability.whole_run import run_with_failures
from knee.results.budget_words import assumptions, frontier_words, sentences
from knee.results.result import Result, flat
from knee.specs.catalog import Source
from knee.specs.model import Model
from knee.trust.trust import Trust
from knee.units import DAY_S, HOUR_S
from knee.workload.flop import model_flop_per_token
from knee.workload.parameters import parameter_count

OFF_RATIO = 2.0 ** (0.5 / STEPS_PER_DOUBLING)
"""Half of a step of the ladder."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # its frontiers are arrays
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``knee budget --json`` prints it."""
        rare = self.rare_exchange
        return as_data(self) | ({} if rare is None else {"rare_exchange": asdict(rare)})

    def rows(self) -> list[dict[str, Any]]:
        """The best run at every GPU count."""
        return [flat(run_data(self, run)) for run in self.by_count.values()]

    @checked_arguments
    def plot(self, path: str | Path) -> None:
        """Draw a chart into a .svg, .png, .html or .json (Vega-Lite) file; with ``frontier``, it shows the loss against
        each limit."""
        from knee.figures.budget_charts import budget_figures
        from knee.figures.vega import check_picture
        from knee.report.plot_file import write_budget_plot

        check_picture(str(path))
        data = self.to_dict()
        if not any(figure.spec for figure in budget_figures(data)):
            raise InputError(
                "one model size on one GPU count gives no chart",
                hint=f"add {argument('frontier')}",
                code="missing-argument",
                field="frontier",
            )
        write_budget_plot(data, str(path))

    @checked_arguments
    def write_page(self, out: str | Path, *, command: str = "") -> None:
        """Write one HTML file that needs no network, with every chart and its values; the page shows ``command`` as the
        command that created it."""
        from knee.files import write_text
        from knee.report.budget_page import budget_page

        best, cluster, days = self.best, self.problem.rates.cluster, best_with_failures(self)["days"]
        month = month_of_job(best.model, cluster, best.gpus, step_s=best.step_s, days=days)
        write_text(Path(out), budget_page(self.to_dict(), command=command, month=month))


# ---- data ------------------------------------------------------------------------------------------------------------


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
            "name": law.name,
            "source": law.source,
            "counts": law.counts,
            "loss_of": law.loss_of,
            "values": law.values,
            "standard_errors": law.errors,
            "fitted_params": law.params,
            "fitted_tokens": law.tokens,
            "fitted_flop": law.flop,
            "extrapolated": answer.extrapolated,
        },
        "batch_law": {
            "name": problem.batch_law.name,
            "source": problem.batch_law.source,
            "formula": problem.batch_law.formula,
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
        "flop_counting": _flop_data(answer),
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


def _flop_data(answer: Budget) -> dict[str, Any]:
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
        "gpus": run.gpus,
        "tokens": run.tokens,
        "tokens_per_param": run.tokens_per_param,
        "loss": run.loss,
        "binding": run.binding,
        "days": run.days,
        "gpu_hours": run.gpu_hours,
        "cost_usd": run.cost_usd,
        "energy_j": run.energy_j,
        "energy_mwh": run.mwh,
        "co2e_kg": run.energy_j * answer.grid.kg_co2e_per_j,
        "tokens_per_s": rate.tokens_per_s,
        "tokens_per_j": rate.tokens_per_j,
        "mfu_frac": rate.mfu_frac,
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
