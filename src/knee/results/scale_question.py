"""A question about scale: one plan, or the best plan, of a model on a cluster at every count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from knee.errors import InputError, SpecError, argument, example
from knee.inputs.arguments import require
from knee.inputs.request import ClusterLike, ModelLike, Pairs, ProfileLike, Request, is_job_file, request
from knee.progress import Progress
from knee.results.scale_result import ScalingCurve
from knee.search.scaling_curve import Curve, ScalePoint, best_point, curve_of, refused_point
from knee.search.space import Space
from knee.specs import Job
from knee.specs.choices import Objective
from knee.specs.load import make_job, split_overrides
from knee.specs.make import global_batch_of
from knee.specs.model.split_rules import check_searched_exchanges
from knee.specs.plan import DATA_TYPES, EXCHANGES, ROUTED

SEARCHED_EVERYWHERE = (*DATA_TYPES, "prefetch", "tp_overlap_frac", "placement", *ROUTED, *EXCHANGES)
"""Options that all plans of a search have; the others limit it."""


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
            raise InputError(
                f"{argument('overrides')} {key} is also an option of the plan",
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
                f"{argument('best')} searches for a plan, but {model} is a job file that already has one",
                hint="give the names of its model and cluster instead",
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
    every = {name: plan[name] for name in SEARCHED_EVERYWHERE if name in plan and name not in EXCHANGES}
    fixed = make_job(
        job.model, job.cluster, job.profile, gpus=1, global_batch=1, seq_len=job.seq_len, plan_options=every
    )[0].plan
    # of replicas, which one GPU has none of
    fixed = replace(fixed, **{name: plan[name] for name in EXCHANGES if name in plan})
    check_searched_exchanges(fixed, plan.get("sync_every", 1))
    words = {"cp_method": "cp == 1 or cp_method == {!r}", "sequence_parallel": "tp == 1 or sequence_parallel == {:d}"}
    numbers = ("tp", "pp", "cp", "ep", "etp", "dp_shard", "dp_replicate", "virtual_stages")
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
        max_ep=plan.get("ep"),
        modules=plan.get("recompute_modules", ()),
        shardings=limit("sharding"),
        schedules=limit("schedule"),
        recomputes=limit("recompute"),
        micro_batches=limit("micro_batch"),
        sync_every=plan.get("sync_every", 1),
        attention_again=job.profile.attention == "unfused" or plan.get("recompute") == "attention",
    )
    return space, " and ".join(only) or None


def shown() -> str:
    """How it is asked."""
    return example(
        'knee.scale("llama2-7b", cluster="dgx-h100", gpus="8..2048", local_batch=2)',
        "knee scale llama2-7b --cluster dgx-h100 --gpus 8..2048 --local-batch 2",
    )
