"""What more GPUs buy: curves with their knees, bands and bills, and the same as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knee.base.errors import DoesNotFit, InputError, SpecError, argument, either, example
from knee.base.progress import Progress
from knee.base.units import DAY_S
from knee.commands.job_request import ClusterLike, ModelLike, Pairs, ProfileLike, Request, is_job_file, request
from knee.commands.plan.request import SearchedParts
from knee.engine.energy import CarbonGrid
from knee.engine.measurement import Measurement
from knee.engine.reliability.goodput import Goodput
from knee.engine.reliability.whole_run import WholeRun
from knee.engine.training_cost import Bill
from knee.search.knee import Curve, Goal, Knee, ScalePoint, best_point, curve_of, refused_point
from knee.search.space import Space
from knee.show.result import Result, flat
from knee.specs import Job
from knee.specs.argument_types import checked_arguments, require
from knee.specs.choices import OBJECTIVES, Objective
from knee.specs.fields import split_overrides
from knee.specs.load import NOT_WHOLE, global_batch_of, make_job
from knee.specs.model.split_rules import check_searched_exchanges
from knee.specs.notes import code_of
from knee.specs.plan import COUNTS, FIXED, GIVEN, KNOBS, Knob, Plan, names_of
from knee.trust.trust import DoublingBand, Trust

if TYPE_CHECKING:
    from knee.commands.scale.chart import ScaleSeries


# A question about scale: one plan, or the best plan, of a model on a cluster at every count.

EXCHANGES = ("collectives", "sync_fragments", "sync_dtype")
"""Fields that a plan of one GPU cannot have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleQuestion:
    """What is the same for every curve."""

    counts: list[int]
    best: bool
    objective: Objective
    plan: dict[str, Any]
    sizes: dict[str, Any]
    profile: ProfileLike | None
    overrides: Pairs
    convention: str
    progress: Progress

    def curve(self, model: ModelLike, cluster: ClusterLike | None) -> ScalingCurve:
        """One model on one cluster."""
        if is_job_file(model):
            return self._of_file(model, cluster)
        require({"cluster": cluster}, ("cluster",), shown())
        for_plan = split_overrides(self.overrides)[3]
        twice = [key for key, _ in for_plan if key in self.plan]
        if twice or (self.best and for_plan):
            key = (twice or [key for key, _ in for_plan])[0]
            text = f"{argument('overrides')} {key} is also an option of the plan"
            raise InputError(text, hint="give it once, as that option", code="contradiction", field=key)
        # a job that every model has, to load and check the specs once
        sizes = {"gpus": 1, "global_batch": 1, "seq_len": self.sizes["seq_len"]}
        others = [pair for pair in self.overrides if pair not in for_plan]
        base = request(model, cluster=cluster, profile=self.profile, sizes=sizes, plan={}, overrides=others)
        spec, options = base.job, self.plan | dict(for_plan)

        def of_names(gpus: int) -> Job:
            sizes = self.sizes | {"gpus": gpus, "seq_len": spec.seq_len}
            return make_job(spec.model, spec.cluster, spec.profile, **sizes, plan_options=options)[0]

        if self.best:
            curve = self._best_curve(base)
        else:
            curve = curve_of(self.counts, of_names, cut="micro_batch" not in options, convention=self.convention)
        return ScalingCurve(request=base, curve=curve, best=self.best, names=(spec.model.name, spec.cluster.name))

    def _of_file(self, model: ModelLike, cluster: ClusterLike | None) -> ScalingCurve:
        if self.best:
            text = f"{argument('best')} searches for a plan, but {model} is a job file that already has one"
            hint = "give the names of its model and cluster instead"
            raise InputError(text, hint=hint, code="contradiction", field="best")
        asked: dict[int, Request] = {}
        ask = partial(request, model, cluster=cluster, profile=self.profile)

        def of_file(gpus: int) -> Job:
            asked[gpus] = ask(sizes=self.sizes | {"gpus": gpus}, plan=self.plan, overrides=self.overrides)
            return asked[gpus].job

        curve = curve_of(self.counts, of_file, convention=self.convention)
        first = next(iter(asked.values()), None)
        return ScalingCurve(request=first, curve=curve, best=False, names=(str(model), str(cluster or "")))

    def _best_curve(self, base: Request) -> Curve:
        points: list[ScalePoint] = []
        for gpus in self.counts:
            try:
                batch = self.global_batch(gpus)
                space, only = space_within(base.job, gpus, batch, self.plan)
            except SpecError as error:
                points.append(refused_point(gpus, error))
                continue
            points.append(self.best_of(base.job, space, only, self.objective))
        return Curve(points=tuple(points))

    def global_batch(self, gpus: int) -> int:
        """Sequences of a step at this count."""
        return global_batch_of(gpus, global_batch=self.sizes["global_batch"], local_batch=self.sizes["local_batch"])

    def best_of(self, job: Job, space: Space, only: str | None, objective: Objective) -> ScalePoint:
        """The best plan of a count."""

        def progress(what: str, done: int, total: int) -> None:
            self.progress(f"{space.gpus:,} GPUs: {what}", done, total)

        return best_point(
            space,
            job.cluster,
            job.profile,
            objective=objective,
            only=only,
            convention=self.convention,
            progress=progress,
            grows=self.sizes["global_batch"] is None,
        )


def space_within(job: Job, gpus: int, batch: int, plan: Mapping[str, Any]) -> tuple[Space, str | None]:
    """All plans of a count within what is given of the plan, and the condition that given degrees make."""
    # exchanges are of replicas, which one GPU has none of
    every = {name: plan[name] for name in (*GIVEN, *FIXED) if name in plan and name not in EXCHANGES}
    fixed = make_job(
        job.model, job.cluster, job.profile, gpus=1, global_batch=1, seq_len=job.seq_len, plan_options=every
    )[0].plan
    fixed = replace(fixed, **{name: plan[name] for name in EXCHANGES if name in plan})
    check_searched_exchanges(fixed, plan.get("sync_every", 1))
    only = [_condition(KNOBS[name], plan[name]) for name in names_of(KNOBS, "varied", "limited") if name in plan]

    sizes = {"gpus": gpus, "global_batch": batch, "seq_len": job.seq_len}
    parts = SearchedParts(model=job.model, cluster=job.cluster, profile=job.profile, types={}, **sizes)
    given: dict[str, Any] = {f"max_{name}": plan.get(name) for name in names_of(KNOBS, "limited")}
    given |= {name: (plan[name],) for name in names_of(KNOBS, "listed") if name in plan}
    given["recompute_modules"] = plan.get("recompute_modules")
    space = replace(parts.space(given, sync_every=plan.get("sync_every", 1)), fixed=fixed)
    return space, " and ".join(only) or None


def _condition(knob: Knob, value: Any) -> str:
    means_nothing = f"{knob.needs} == 1 or " if knob.needs in ("tp", "cp") else ""
    return f"({means_nothing}{knob.name} == {value!r})"


def shown() -> str:
    """How it is asked."""
    return example(
        'knee.scale("llama2-7b", cluster="dgx-h100", gpus="8..2048", local_batch=2)',
        "knee scale llama2-7b --cluster dgx-h100 --gpus 8..2048 --local-batch 2",
    )


# What would make a count of GPUs usable where none is: another plan, another batch, or more GPUs.

FREED = (*(knob.name for knob in COUNTS if knob.search not in ("kept", "fixed")), "recompute_frac")
"""Options that a hint at a plan that fits may change: the sizes, not the kinds."""


def nothing_fits(answer: Scaling) -> DoesNotFit:
    """With what would: another plan, or more GPUs."""
    asked, local_batch = answer.question, answer.local_batch
    kept = {name: value for name, value in asked.plan.items() if name not in FREED}
    points = [point for one in answer.curves for point in one.curve.points]
    hints = [point.hint for point in points if point.hint]
    if asked.best:
        if local_batch is not None and all(point.code == NOT_WHOLE for point in points):
            hints.append(_whole_batch(local_batch))
        hint = hints[-1] if hints else "use more GPUs, or shorter sequences"
        return DoesNotFit("no plan fits at any of these GPU counts", hint=hint, code="no-plan-fits")
    for one in answer.curves:
        for point in reversed(one.curve.points):
            if one.job is None:
                continue
            try:
                batch = asked.global_batch(point.gpus)
            except SpecError:
                hints.append(_whole_batch(local_batch or 0.0))
                continue
            space, only = space_within(one.job, point.gpus, batch, kept)
            found = asked.best_of(one.job, space, only, OBJECTIVES[0])
            if found.usable and found.job is not None:
                return DoesNotFit(
                    "the plan does not work at any of these GPU counts",
                    hint=f"on {point.gpus:,} GPUs, a plan that works is {_plan_arguments(found.job.plan)}; "
                    f"{argument('best')} finds the best plan at every count",
                    code="no-count-usable",
                )
            hints += [found.hint] if found.hint else []
            break
    text = "the plan does not work at any of these GPU counts"
    return DoesNotFit(text, hint=hints[-1] if hints else "use more GPUs, or shorter sequences", code="no-count-usable")


def _whole_batch(local_batch: float) -> str:
    fewest = next((n for n in range(1, 1025) if n * local_batch >= 1 and (n * local_batch).is_integer()), None)
    count = f", or a multiple of {fewest:,} GPUs" if fewest else ""
    return f"use {argument('local_batch')} {max(1, round(local_batch))}{count}"


def _plan_arguments(plan: Plan) -> str:
    plain = Plan()
    names = [name for name in KNOBS if name not in ("dp_shard", "micro_batch", "placement")]
    changed = [name for name in names if getattr(plan, name) != getattr(plain, name)]
    words = [_plan_argument(KNOBS[name], getattr(plan, name)) for name in changed]
    return " ".join([*words, f"{argument('micro_batch')} {plan.micro_batch}"])


def _plan_argument(knob: Knob, value: Any) -> str:
    if knob.kind is bool:
        return either(f"{knob.name} {value}", argument(knob.name if value else f"no_{knob.name}"))
    return f"{argument(knob.name)} {knob.joint.join(value) if knob.many else value}"


# What is said about a scaling curve: a sentence for those who decide, and the assumptions behind it.

SHARED_NOTES = ("default-profile", "default-seq-len", "default-precision")
"""Defaults that are the same at every count."""


def sentence(one: ScalingCurve, answer: Scaling) -> str | None:
    """What a manager reads."""
    usable = dict(one.curve.usable)
    knee = one.knees.get("throughput")
    if knee is None:
        return None
    if len(usable) == 1:
        return f"Only {knee.gpus:,} GPUs are usable. A knee needs at least two GPU counts."
    last = max(usable)
    least = f"{answer.threshold:g}x"
    returns = one.curve.returns()
    if knee.open:
        latest = f"{returns[-1].per_doubling:.2f}x"
        beyond = f"Up to {last:,} GPUs, every doubling gives at least {least} the tokens/s (the last one {latest})"
        if knee.weak:
            beyond = f"The last doubling, to {last:,} GPUs, gives {latest} the tokens/s, although {weak_words(knee)}"
        return f"{beyond}; {against(one, min(usable), last, usable)}."
    beyond = f"Beyond {knee.gpus:,} GPUs, each doubling gives less than {least} the tokens/s"
    return f"{beyond}; {against(one, knee.gpus, last, usable)}."


def against(one: ScalingCurve, few: int, many: int, usable: dict[int, Measurement]) -> str:
    """The larger run beside the smaller one."""
    a, b = usable[few], usable[many]
    energy = ""
    if a.tokens_per_j is not None and b.tokens_per_j is not None:
        change = a.tokens_per_j / b.tokens_per_j - 1.0
        more = f"{abs(change):.0%} {'more' if change >= 0 else 'less'} energy"
        energy = f" and takes {f'{change + 1.0:.3g} times the energy' if change >= 1 else more}"
    if few in one.bills and many in one.bills:
        sooner = (one.bills[few].time_s - one.bills[many].time_s) / DAY_S
        when = f"{abs(sooner):,.1f} days {'sooner' if sooner >= 0 else 'later'}"
        return f"the {many:,}-GPU run finishes {when} than the {few:,}-GPU run{energy}"
    times = b.tokens_per_s / a.tokens_per_s
    energy += " per token" if energy else ""
    faster = f"{times:.3g}x as fast as the {few:,}-GPU run with {many / few:.3g}x the GPUs"
    return f"the {many:,}-GPU run is {faster}{energy}"


def assumptions(answer: Scaling) -> list[str]:
    """Each sentence once."""
    lines: list[str] = []
    for one in answer.curves:
        notes = one.request.assumptions if one.request else ()
        lines += [note for note in notes if code_of(note) in SHARED_NOTES]
        lines += [note for point in one.curve.points if point.measured for note in point.measured.assumptions]
        cut = [point for point in one.curve.points if point.cut]
        lines += ["micro_batch defaulted to all sequences of a rank, or to the most that fit"] if cut else []
    if answer.tokens is not None:
        lines += [
            "energy and CO2e cover the GPUs and the site's overhead (PUE), but not hosts, switches and storage "
            "(`knee simulate --tokens` includes hosts and switches)",
            f"grid {answer.grid.name} ({answer.grid.kind}): {answer.grid.source}",
        ]
    lines.append("the ranges of the knees cover the error of throughput, not the error of power")
    return list(dict.fromkeys(lines))


def weak_words(knee: Knee) -> str:
    """Steps below the knee that did not pay."""
    return listed(
        [f"{r.from_gpus:,} to {r.to_gpus:,} gives only {r.per_doubling:.2f}x per doubling" for r in knee.weak]
    )


def listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
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

    def _data(self) -> dict[str, Any]:
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
            {"model": curve["model"], "cluster": curve["cluster"]}
            | flat({key: value for key, value in point.items() if not isinstance(value, (list, tuple))})
            for curve in self.to_dict()["curves"]
            for point in curve["points"]
        ]

    @checked_arguments
    def plot(self, path: str | Path | None = None) -> Any:
        """Draw a chart into a .svg, .png, .html or .json file; without a file, return the Vega-Lite chart."""
        from knee.commands.scale.chart import chart_of, spec_of, table_of
        from knee.show.figures.vega import check_picture
        from knee.show.page.page import write_plot

        if path is None:
            return chart_of(self.series())
        check_picture(str(path))
        series = self.series()
        write_plot(Path(path), spec_of(series), title="knee scale", rows=table_of(series))
        return None

    def series(self) -> list[ScaleSeries]:
        """What is drawn."""
        from knee.commands.scale.chart import ScaleSeries

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
            raise nothing_fits(self)

    def _chart_svg(self) -> str:
        from knee.base.errors import MissingExtra
        from knee.commands.scale.chart import spec_of
        from knee.show.figures.vega import to_svg

        series = self.series()
        try:
            return to_svg(spec_of(series)) if series else ""
        except MissingExtra:
            return ""


def _curve_data(one: ScalingCurve, answer: Scaling) -> dict[str, Any]:

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
