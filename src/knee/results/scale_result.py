"""What more GPUs buy: curves with their knees, bands and bills, and the same as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knee.budgets.training_cost import Bill
from knee.energy.carbon import CarbonGrid
from knee.errors import InputError
from knee.inputs.argument_types import checked_arguments
from knee.inputs.request import Request
from knee.reliability.goodput import Goodput
from knee.reliability.whole_run import WholeRun
from knee.results.result import Result, flat
from knee.search.knee import Goal, Knee
from knee.search.scaling_curve import Curve, ScalePoint
from knee.specs import Job
from knee.specs.choices import Objective
from knee.trust.doubling_errors import DoublingBand
from knee.trust.trust import Trust

if TYPE_CHECKING:
    from knee.figures.scale_chart import ScaleSeries
    from knee.results.scale_question import ScaleQuestion


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingCurve:
    """One model on one cluster at every count, with all that is said about it."""

    request: Request | None
    """Its specs; None for a job file that is valid at no count."""
    curve: Curve
    best: bool
    """Whether the plan is the best one at every count."""
    names: tuple[str, str]
    trusts: dict[int, Trust] = field(default_factory=dict)
    """By count, of the plans that are there."""
    bills: dict[int, Bill] = field(default_factory=dict)
    """By count: what training on the tokens takes."""
    knees: dict[Goal, Knee] = field(default_factory=dict)
    goodputs: dict[int, Goodput] = field(default_factory=dict)
    """By count: what failures leave of a long run's time."""
    runs: dict[int, WholeRun] = field(default_factory=dict)
    """By count: the run on the tokens, with failures."""
    knees_with_failures: dict[Goal, Knee] = field(default_factory=dict)
    band: DoublingBand | None = None
    """How far doublings were from their prediction in published runs."""

    @property
    def job(self) -> Job | None:
        """A job with its model, cluster and profile."""
        return self.request.job if self.request else None

    @property
    def name(self) -> str:
        """As curves are told apart."""
        model, cluster = (self.job.model.name, self.job.cluster.name) if self.job else self.names
        return f"{model} on {cluster}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling(Result):
    """One scaling curve for each model on each cluster, and the question."""

    curves: tuple[ScalingCurve, ...]
    local_batch: float | None
    global_batch: int | None
    threshold: float
    keep_frac: float
    objective: Objective
    tokens: float | None
    grid: CarbonGrid
    pue: float
    question: ScaleQuestion

    @property
    def knee(self) -> Knee | None:
        """The throughput knee of the only curve; None if no GPU count is usable."""
        return self.only.knees.get("throughput")

    @property
    def knees(self) -> dict[Goal, Knee]:
        """The throughput, energy and cost knees of the only curve."""
        return self.only.knees

    @property
    def only(self) -> ScalingCurve:
        """The only curve; an error if there are several."""
        if len(self.curves) != 1:
            text = f"this result has {len(self.curves)} curves, each with its own knees"
            raise InputError(text, hint="use curves[0].knees, ...", code="several-curves")
        return self.curves[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``knee scale --json`` prints it."""
        from knee.results.scale_words import assumptions

        training = None
        if self.tokens is not None:
            site = asdict(self.grid) | {"g_co2e_per_kwh": round(self.grid.g_per_kwh, 6)}
            training = {"tokens": self.tokens, "pue": self.pue, "grid": site}
        return {
            "scaling": "weak" if self.local_batch is not None else "strong",
            "local_batch": self.local_batch,
            "global_batch": self.global_batch,
            "threshold": self.threshold,
            "keep_frac": self.keep_frac,
            "training": training,
            "curves": [_curve_data(one, self) for one in self.curves],
            "assumptions": assumptions(self),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per curve and GPU count."""
        return [
            {"model": curve["model"], "cluster": curve["cluster"]} | flat(_without_lists(point))
            for curve in self.to_dict()["curves"]
            for point in curve["points"]
        ]

    @checked_arguments
    def plot(self, path: str | Path | None = None) -> Any:
        """Draw a chart into a .svg, .png, .html or .json file; without a file, return the Vega-Lite chart."""
        from knee.figures.scale_chart import chart_of
        from knee.figures.vega import check_picture
        from knee.report.plot_file import write_scale_plot

        if path is None:
            return chart_of(self.series())
        check_picture(str(path))
        write_scale_plot(self.series(), str(path))
        return None

    def series(self) -> list[ScaleSeries]:
        """What is drawn."""
        from knee.figures.scale_chart import ScaleSeries

        found = []
        for one in self.curves:
            usable, knee = one.curve.usable, one.knees.get("throughput")
            if knee is not None:
                found.append(
                    ScaleSeries(
                        name=one.name,
                        gpus=tuple(n for n, _ in usable),
                        knee_gpus=knee.gpus,
                        open=knee.open,
                        low_gpus=None if one.band is None else knee.low_gpus,
                        high_gpus=None if one.band is None else knee.high_gpus,
                        tokens_per_s=tuple(m.tokens_per_s for _, m in usable),
                        tokens_per_j=tuple(m.tokens_per_j for _, m in usable),
                    )
                )
        return found

    def check_usable(self) -> None:
        """Raise ``DoesNotFit`` if no GPU count is usable; the hint names a plan or a GPU count that would work."""
        if not any(one.curve.usable for one in self.curves):
            from knee.results.scale_hints import nothing_fits

            raise nothing_fits(self)

    def _chart_svg(self) -> str:
        from knee.errors import MissingExtra
        from knee.figures.scale_chart import svg_of

        series = self.series()
        try:
            return svg_of(series) if series else ""
        except MissingExtra:
            return ""


def _without_lists(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if not isinstance(value, (list, tuple))}


def _curve_data(one: ScalingCurve, answer: Scaling) -> dict[str, Any]:
    from knee.results.scale_words import sentence

    returns = {r.to_gpus: asdict(r) for r in one.curve.returns()}
    job = one.job
    return {
        "model": job.model.name if job else one.names[0],
        "cluster": job.cluster.name if job else one.names[1],
        "profile": job.profile.name if job else None,
        "seq_len": job.seq_len if job else None,
        "best": one.best,
        "points": [_point_data(one, point, returns.get(point.gpus)) for point in one.curve.points],
        "knees": {goal: asdict(knee) for goal, knee in one.knees.items()},
        "knees_with_failures": {goal: asdict(knee) for goal, knee in one.knees_with_failures.items()},
        "doubling_band": asdict(one.band) if one.band else None,
        "sentence": sentence(one, answer),
    }


def _point_data(one: ScalingCurve, point: ScalePoint, gained: dict[str, Any] | None) -> dict[str, Any]:
    job, trust, bill = point.job, one.trusts.get(point.gpus), one.bills.get(point.gpus)
    measured = {} if point.measured is None else point.measured.as_json()
    measured.pop("assumptions", None)
    goodput, run = one.goodputs.get(point.gpus), one.runs.get(point.gpus)
    failed = goodput and goodput.as_json()
    if run is not None and bill is not None:
        failed = run.as_json(cost_usd=bill.cost_usd)
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
        "with_failures": failed,
        "trust": trust.as_json() if trust else None,
    }
