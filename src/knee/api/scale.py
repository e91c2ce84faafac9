"""``knee.scale``: what more GPUs buy, and where adding them stops paying off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from knee.api.request import (
    ClusterLike,
    ModelLike,
    Overrides,
    Pairs,
    ProfileLike,
    Request,
    checked_plan,
    is_job_file,
    pairs_of,
    request,
)
from knee.api.result import Result, flat
from knee.energy.grid import Grid, grid
from knee.errors import DoesNotFit, InputError, SpecError, argument, example
from knee.fidelity.doublings import DoublingBand, doubling_band
from knee.fidelity.trust import Trust, trust_of
from knee.search.best import OBJECTIVES, Objective, Progress
from knee.search.knee import KEEP_FRAC, THRESHOLD, Goal, Knee, knees_of
from knee.search.scale import (
    NOT_WHOLE,
    Curve,
    Point,
    best_point,
    check_batch,
    checked_counts,
    curve_of,
    global_batch_of,
    parse_counts,
    refused_point,
)
from knee.search.space import Space
from knee.search.training_bill import Bill, bill_of, checked_pue, parse_tokens
from knee.specs import Job
from knee.specs.load import make_job, split_overrides
from knee.specs.plan import Plan
from knee.workload.flop import DEFAULT_CONVENTION

if TYPE_CHECKING:
    from pathlib import Path

    from knee.figures.scale import Series

SEARCHED_EVERYWHERE = ("precision", "prefetch", "reduce_dtype", "state_dtype", "tp_overlap_frac", "placement")
"""Options that all plans of a search have; the others limit it."""
FREED = ("tp", "pp", "cp", "dp_shard", "dp_replicate", "virtual_stages", "micro_batch", "recompute_frac")
"""Options that a hint at a plan that fits may change: the sizes, not the kinds."""


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
    """What was asked, and a curve for each model on each cluster."""

    curves: tuple[ScalingCurve, ...]
    local_batch: float | None
    global_batch: int | None
    threshold: float
    keep_frac: float
    objective: Objective
    tokens: float | None
    grid: Grid
    pue: float
    question: _Question

    @property
    def knee(self) -> Knee | None:
        """Where throughput stops paying off, of the only curve; None where no count is usable."""
        return self.only.knees.get("throughput")

    @property
    def knees(self) -> dict[Goal, Knee]:
        """Of throughput, energy and cost, of the only curve."""
        return self.only.knees

    @property
    def only(self) -> ScalingCurve:
        """The curve, where one model was asked about on one cluster."""
        if len(self.curves) != 1:
            raise InputError(
                f"there are {len(self.curves)} curves", hint="use curves[0].knees, ...", code="several-curves"
            )
        return self.curves[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``knee scale --json`` prints it."""
        from knee.api.scale_words import assumptions

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
        """A row for each count of each curve."""
        return [
            {"model": curve["model"], "cluster": curve["cluster"]} | flat(_without_lists(point))
            for curve in self.to_dict()["curves"]
            for point in curve["points"]
        ]

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw it into a file .svg, .png, .html or .json; without one, the Vega-Lite chart, which a notebook shows."""
        from knee.figures.scale import chart_of, write

        if path is None:
            return chart_of(self.series())
        write(self.series(), str(path))
        return None

    def series(self) -> list[Series]:
        """What is drawn."""
        from knee.figures.scale import Series

        found = []
        for one in self.curves:
            usable, knee = one.curve.usable, one.knees.get("throughput")
            if knee is not None:
                found.append(
                    Series(
                        name=one.name,
                        gpus=tuple(n for n, _ in usable),
                        knee_gpus=knee.gpus,
                        open=knee.open,
                        tokens_per_s=tuple(m.tokens_per_s for _, m in usable),
                        tokens_per_j=tuple(m.tokens_per_j for _, m in usable),
                    )
                )
        return found

    def check_usable(self) -> None:
        """``DoesNotFit`` where no count is of use: with what would be, another plan or more GPUs."""
        if not any(one.curve.usable for one in self.curves):
            raise _nothing_fits(self)

    def _chart_svg(self) -> str:
        from knee.errors import MissingExtra
        from knee.figures.scale import svg_of

        series = self.series()
        try:
            return svg_of(series) if series else ""
        except MissingExtra:
            return ""


def _without_lists(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if not isinstance(value, (list, tuple))}


def _curve_data(one: ScalingCurve, answer: Scaling) -> dict[str, Any]:
    from knee.api.scale_words import sentence

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
        "doubling_band": asdict(one.band) if one.band else None,
        "sentence": sentence(one, answer),
    }


def _point_data(one: ScalingCurve, point: Point, gained: dict[str, Any] | None) -> dict[str, Any]:
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


# ---- the question ----------------------------------------------------------------------------------------------------


@np.errstate(all="ignore")  # rates that nothing has are said by their answer
def scale(
    model: ModelLike | Sequence[ModelLike],
    *,
    cluster: ClusterLike | Sequence[ClusterLike] | None = None,
    gpus: str | Sequence[int] | None = None,
    local_batch: float | None = None,
    global_batch: int | None = None,
    seq_len: int | None = None,
    profile: ProfileLike | None = None,
    overrides: Overrides = (),
    best: bool = False,
    objective: Objective = "tokens_per_s",
    threshold: float = THRESHOLD,
    keep: float = KEEP_FRAC,
    tokens: str | float | None = None,
    grid: str = "world",
    pue: float | None = None,
    flop_convention: str = DEFAULT_CONVENTION,
    progress: Callable[[str, float], None] | None = None,
    **plan: Any,
) -> Scaling:
    """Say what more GPUs buy, and where adding them stops paying off.

    ``gpus`` is a list of counts, or text such as ``"8..2048"`` (doublings). With ``local_batch`` the batch grows with
    the GPUs (weak scaling), with ``global_batch`` it stays (strong scaling). One plan is asked about at every count,
    its data-parallel ranks filling the GPUs; ``best`` takes the best of all plans at every count instead, within what
    is given of the plan. Several models or clusters give several curves. Counts that are of no use say why in
    ``curves[i].curve.points``; ``check_usable`` raises where none is of use.

    >>> import knee
    >>> s = knee.scale("llama2-7b", cluster="dgx-h100", gpus=[8, 64, 512], local_batch=2)
    >>> [point.gpus for point in s.only.curve.points]
    [8, 64, 512]
    """
    counts = _checked(gpus, local_batch, global_batch, threshold, keep)
    plan = checked_plan({name: value for name, value in plan.items() if value is not None})
    if not best and objective != OBJECTIVES[0]:
        raise InputError(
            f"{argument('objective')} is for the best plan",
            hint=f"add {argument('best')}",
            code="contradiction",
            field="objective",
        )
    if best and "recompute_frac" in plan:
        raise InputError(
            f"{argument('recompute_frac')} is no part of the searched space",
            hint=f"leave it out, or leave {argument('best')} out",
            code="contradiction",
            field="recompute_frac",
        )
    asked = _Question(
        counts=counts,
        best=best,
        objective=objective,
        plan=plan,
        sizes={"local_batch": local_batch, "global_batch": global_batch, "seq_len": seq_len},
        profile=profile,
        overrides=pairs_of(overrides),
        convention=flop_convention,
        progress=progress or (lambda *_: None),
    )
    # a job file names its own cluster
    places = _several(cluster) or [None]
    curves = [asked.curve(one, place) for one in _several(model) for place in places]
    wanted = None if tokens is None else parse_tokens(tokens) if isinstance(tokens, str) else float(tokens)
    return _answer(curves, asked, threshold=threshold, keep=keep, tokens=wanted, grid_name=grid, pue=pue)


def _several(value: Any) -> list[Any]:
    """One name or a list of them, each once."""
    if value is None:
        return []
    if isinstance(value, str) or not isinstance(value, Sequence):
        return [value]
    return list(dict.fromkeys(value))


def _checked(
    gpus: str | Sequence[int] | None,
    local_batch: float | None,
    global_batch: int | None,
    threshold: float,
    keep: float,
) -> list[int]:
    """The counts, once all that can be said without a model is right."""
    if local_batch is not None and global_batch is not None:
        local, whole = argument("local_batch"), argument("global_batch")
        raise InputError(
            f"{local} and {whole} are both given",
            hint=f"{local} grows the batch with the GPUs, {whole} keeps it: give one",
            code="contradiction",
            field="local_batch",
        )
    batch = local_batch is not None or global_batch is not None
    if gpus is None or not batch:
        words = [] if gpus is not None else [argument("gpus")]
        words += [] if batch else [f"{argument('local_batch')} (or {argument('global_batch')})"]
        raise InputError(
            f"missing: {', '.join(words)}",
            hint=_shown(),
            code="missing-argument",
            field="gpus" if gpus is None else "local_batch",
        )
    if not 1 < threshold <= 2:
        raise InputError(
            f"{argument('threshold')} is {threshold:g}; a doubling buys more than 1 and at most 2",
            hint="1.5 asks each added GPU for half of a first one's work, 1.9 for nine tenths",
            code="out-of-range",
            field="threshold",
        )
    if not 0 < keep <= 1:
        raise InputError(
            f"{argument('keep')} is {keep:g}; it is a share above 0, at most 1",
            hint="for example 0.9",
            code="out-of-range",
            field="keep",
        )
    counts = parse_counts(gpus) if isinstance(gpus, str) else checked_counts(gpus)
    check_batch(local_batch, global_batch, counts[-1])
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
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
        if cluster is None:
            raise InputError(f"missing: {argument('cluster')}", hint=_shown(), code="missing-argument", field="cluster")
        for_plan = split_overrides(self.overrides)[3]
        twice = [key for key, _ in for_plan if key in self.plan]
        if twice or (self.best and for_plan):
            key = (twice or [key for key, _ in for_plan])[0]
            raise InputError(
                f"{argument('overrides')} {key} is an option of the plan",
                hint="give it once, as that option",
                code="contradiction",
                field=key,
            )
        # a job that every model has, to load and check the specs once
        base = request(
            model,
            cluster=cluster,
            profile=self.profile,
            sizes={"gpus": 1, "global_batch": 1, "seq_len": self.sizes["seq_len"]},
            plan={},
            overrides=[pair for pair in self.overrides if pair not in for_plan],
        )
        spec, options = base.job, self.plan | dict(for_plan)

        def of_names(gpus: int) -> Job:
            return make_job(
                spec.model,
                spec.cluster,
                spec.profile,
                gpus=gpus,
                **(self.sizes | {"seq_len": spec.seq_len}),
                plan_options=options,
            )[0]

        cut = "micro_batch" not in options
        curve = (
            self._best_curve(base)
            if self.best
            else curve_of(self.counts, of_names, cut=cut, convention=self.convention)
        )
        return ScalingCurve(request=base, curve=curve, best=self.best, names=(spec.model.name, spec.cluster.name))

    def _of_file(self, model: ModelLike, cluster: ClusterLike | None) -> ScalingCurve:
        if self.best:
            raise InputError(
                f"{argument('best')} searches plans, and {model} is a job with one",
                hint="name its model and cluster",
                code="contradiction",
                field="best",
            )
        asked: dict[int, Request] = {}

        def of_file(gpus: int) -> Job:
            asked[gpus] = request(
                model,
                cluster=cluster,
                profile=self.profile,
                sizes=self.sizes | {"gpus": gpus},
                plan=self.plan,
                overrides=self.overrides,
            )
            return asked[gpus].job

        curve = curve_of(self.counts, of_file, convention=self.convention)
        first = next(iter(asked.values()), None)
        return ScalingCurve(request=first, curve=curve, best=False, names=(str(model), str(cluster or "")))

    def _best_curve(self, base: Request) -> Curve:
        points: list[Point] = []
        for gpus in self.counts:
            try:
                batch = global_batch_of(gpus, self.sizes["local_batch"], self.sizes["global_batch"])
                space, only = space_within(base.job, gpus, batch, self.plan)
            except SpecError as error:
                points.append(refused_point(gpus, error))
                continue
            points.append(self.best_of(base.job, space, only, self.objective))
        return Curve(points=tuple(points))

    def best_of(self, job: Job, space: Space, only: str | None, objective: Objective) -> Point:
        """The best plan of a count."""

        def progress(what: str, done_frac: float) -> None:
            self.progress(f"{space.gpus:,} GPUs: {what}", done_frac)

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
    every = {name: plan[name] for name in SEARCHED_EVERYWHERE if name in plan}
    fixed = make_job(
        job.model, job.cluster, job.profile, gpus=1, global_batch=1, seq_len=job.seq_len, plan_options=every
    )[0].plan
    words = {"cp_method": "cp == 1 or cp_method == {!r}", "sequence_parallel": "tp == 1 or sequence_parallel == {:d}"}
    numbers = ("tp", "pp", "cp", "dp_shard", "dp_replicate", "virtual_stages")
    only = [f"({name} == {plan[name]})" for name in numbers if name in plan]
    only += [f"({text.format(plan[name])})" for name, text in words.items() if name in plan]

    def limit(name: str) -> tuple[Any, ...]:
        return (plan[name],) if name in plan else ()

    space = Space(
        model=job.model,
        gpus=gpus,
        global_batch=batch,
        seq_len=job.seq_len,
        fixed=fixed,
        max_tp=plan.get("tp"),
        max_pp=plan.get("pp"),
        max_cp=plan.get("cp"),
        shardings=limit("sharding"),
        schedules=limit("schedule"),
        recomputes=limit("recompute"),
        micro_batches=limit("micro_batch"),
        sync_every=plan.get("sync_every", 1),
        selective=job.profile.attention == "unfused" or plan.get("recompute") == "selective",
    )
    return space, " and ".join(only) or None


def _answer(
    curves: Sequence[ScalingCurve],
    asked: _Question,
    *,
    threshold: float,
    keep: float,
    tokens: float | None,
    grid_name: str,
    pue: float | None,
) -> Scaling:
    """Bands, knees and bills."""
    site, site_pue, band = grid(grid_name), checked_pue(pue), doubling_band()
    done = []
    for one in curves:
        given = one.request.given if one.request else []
        trusts = {p.gpus: trust_of(p.job, given) for p in one.curve.points if p.job is not None}
        known = all(trust.low_frac is not None for trust in trusts.values())
        bills = {}
        for gpus, measured in one.curve.usable if tokens is not None else []:
            low, high = trusts[gpus].low_frac, trusts[gpus].high_frac
            ends = None if low is None or high is None else (low, high)
            bills[gpus] = bill_of(measured, tokens or 0.0, grid=site, pue=site_pue, band=ends)
        knees = knees_of(one.curve, threshold=threshold, keep_frac=keep, band=band if known else None)
        done.append(replace(one, trusts=trusts, bills=bills, knees=knees, band=band if known else None))
    found = Scaling(
        curves=tuple(done),
        local_batch=asked.sizes["local_batch"],
        global_batch=asked.sizes["global_batch"],
        threshold=threshold,
        keep_frac=keep,
        objective=asked.objective,
        tokens=tokens,
        grid=site,
        pue=site_pue,
        question=asked,
    )
    points = [point for one in found.curves for point in one.curve.points]
    if all(point.job is None for point in points):
        _refuse_what_never_is(points)
    return found


def _refuse_what_never_is(points: Sequence[Point]) -> None:
    """The same mistake at every count is one of the question, not of a count."""
    if len(points) > 1 and len({point.reason for point in points}) == 1:
        raise InputError(str(points[0].reason), hint=points[0].hint or _shown(), code=points[0].code)


def _nothing_fits(answer: Scaling) -> DoesNotFit:
    """With what would: another plan, or more GPUs."""
    asked, local_batch = answer.question, answer.local_batch
    kept = {name: value for name, value in asked.plan.items() if name not in FREED}
    points = [point for one in answer.curves for point in one.curve.points]
    hints = [point.hint for point in points if point.hint]
    if asked.best:
        if local_batch is not None and all(point.code == NOT_WHOLE for point in points):
            hints.append(_whole_batch(local_batch))
        hint = hints[-1] if hints else "use more GPUs, or shorter sequences"
        return DoesNotFit("no plan fits at any of these counts", hint=hint, code="no-plan-fits")
    for one in answer.curves:
        for point in reversed(one.curve.points):
            if one.job is None:
                continue
            try:
                batch = global_batch_of(point.gpus, local_batch, answer.global_batch)
            except SpecError:
                hints.append(_whole_batch(local_batch or 0.0))
                continue
            space, only = space_within(one.job, point.gpus, batch, kept)
            found = asked.best_of(one.job, space, only, OBJECTIVES[0])
            if found.usable and found.job is not None:
                return DoesNotFit(
                    "the plan is of no use at any of these counts",
                    hint=f"on {point.gpus:,} GPUs it would be with {_plan_arguments(found.job.plan)}; "
                    f"{argument('best')} finds the best plan at every count",
                    code="no-count-usable",
                )
            hints += [found.hint] if found.hint else []
            break
    return DoesNotFit(
        "the plan is of no use at any of these counts",
        hint=hints[-1] if hints else "use more GPUs, or shorter sequences",
        code="no-count-usable",
    )


def _whole_batch(local_batch: float) -> str:
    """A batch and counts of whole sequences."""
    fewest = next((n for n in range(1, 1025) if n * local_batch >= 1 and (n * local_batch).is_integer()), None)
    count = f", or a multiple of {fewest:,} GPUs" if fewest else ""
    return f"use {argument('local_batch')} {max(1, round(local_batch))}{count}"


def _plan_arguments(plan: Plan) -> str:
    """The arguments that ask for a plan."""
    plain = Plan()
    names = ("tp", "pp", "cp", "dp_replicate", "sharding", "schedule", "virtual_stages", "recompute",
             "recompute_frac", "precision", "sync_every")  # fmt: skip
    changed = [name for name in names if getattr(plan, name) != getattr(plain, name)]
    words = [f"{argument(name)} {getattr(plan, name)}" for name in changed]
    return " ".join([*words, f"{argument('micro_batch')} {plan.micro_batch}"])


def _shown() -> str:
    return example(
        'knee.scale("llama2-7b", cluster="dgx-h100", gpus="8..2048", local_batch=2)',
        "knee scale llama2-7b --cluster dgx-h100 --gpus 8..2048 --local-batch 2",
    )
