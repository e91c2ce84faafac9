"""A study's grid as questions, and their answers by the simulator: one step each, or the best of several plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise, product
from math import prod
from typing import Any

from knee.base.arrays import Bools, Floats, extreme_values
from knee.base.errors import InputError, SpecError
from knee.base.limits import MOST_POINTS
from knee.commands.study.study_file import Pick, Study, StudyGrid
from knee.engine.one_job import measurement_of
from knee.engine.simulator import EvaluatedStep, Results, evaluate
from knee.specs.fields import split_overrides
from knee.specs.hardware import Cluster
from knee.specs.job import Job
from knee.specs.load import (
    Loaded,
    global_batch_of,
    kept_for_a_question,
    load_cluster,
    load_model,
    load_profile,
    make_job,
)
from knee.specs.model import Model
from knee.specs.plan_table import PlanTable, table_of
from knee.specs.profile import Profile
from knee.specs.schedules import INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE
from knee.trust.trust import record_of, trust_of

SPECS = ("model", "cluster", "profile")
Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of the simulator or of a real run. Equal questions have one answer, whichever study asks."""

    model: str
    cluster: str
    profile: str
    gpus: int
    global_batch: int
    seq_len: int
    plans: tuple[Options, ...]
    """One plan, or several of which one is picked."""
    sets: Options = ()
    tune: bool = False
    pick: Pick = "each"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPoint:
    """A question and where it stands in its study."""

    study: str
    series: str
    question: Question

    @property
    def name(self) -> str:
        """The point's name in messages."""
        q = self.question
        return f"{self.study}: {self.series}, {q.model} on {q.gpus:,} x {q.cluster}"


def check_count(studies: Iterable[Study], changes: Mapping[str, Any] | None = None, *, most: int | None = None) -> None:
    """Refuse grids with more plans than ``most`` in all, by the lengths of their lists."""
    most = MOST_POINTS if most is None else most
    studies = list(studies)
    count = 0
    for grid in (grid for study in studies for grid in study.grid):
        axes, plan = _axes(grid, changes or {})
        count += prod(map(len, axes.values())) * (1 if grid.pick == "each" else prod(map(len, plan.values())))
    if count > most:
        names = ", ".join(f"study {study.name}" for study in studies if study.grid)
        hint = f"at most {most:,} can run at once; leave some out"
        raise InputError(f"{names}: {count:,} plans in all", hint=hint, code="too-many")


def points_of(study: Study, changes: Mapping[str, Any] | None = None) -> list[StudyPoint]:
    """Every point of a study's grids; ``changes`` replace what the grids say (``model``, ``gpus``, ...)."""
    return list(dict.fromkeys(all_points(study, changes)))


def all_points(study: Study, changes: Mapping[str, Any] | None = None) -> Iterator[StudyPoint]:
    """The same, and what is asked twice twice."""
    check_count([study], changes)
    for grid in study.grid:
        yield from _points(study.name, grid, changes or {})


def _axes(grid: StudyGrid, changes: Mapping[str, Any]) -> tuple[dict[str, tuple[Any, ...]], dict[str, tuple[Any, ...]]]:
    """What is multiplied: the axes of its points, and those of the plans."""
    axes = {name: _many(changes.get(name, getattr(grid, name))) for name in (*SPECS, "gpus", "seq_len")}
    asked = [name for name in ("global_batch", "local_batch") if name in changes]
    batch = asked[0] if asked else "global_batch" if grid.local_batch is None else "local_batch"
    axes[batch] = _many(changes.get(batch, getattr(grid, batch)))
    axes |= {f"set {key}": _many(value) for key, value in grid.set.items()}
    plan = {name: _many(value) for name, value in grid.plan.items()}
    if grid.pick == "each":
        axes |= {f"plan {name}": values for name, values in plan.items()}
    return axes, plan


def _points(study: str, grid: StudyGrid, changes: Mapping[str, Any]) -> Iterator[StudyPoint]:
    axes, plan = _axes(grid, changes)
    alternatives = tuple(_options(dict(zip(plan, values, strict=True))) for values in product(*plan.values()))
    for values in product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        sets = {key.removeprefix("set "): value for key, value in chosen.items() if key.startswith("set ")}
        own = {key.removeprefix("plan "): value for key, value in chosen.items() if key.startswith("plan ")}
        question = Question(
            **{name: str(chosen[name]) for name in SPECS},
            gpus=int(chosen["gpus"]),
            global_batch=_global_batch(chosen, study),
            seq_len=int(chosen["seq_len"]),
            plans=(_options(own),) if grid.pick == "each" else alternatives,
            sets=tuple((key, str(value)) for key, value in sets.items()),
            tune=grid.tune,
            pick=grid.pick,
        )
        yield StudyPoint(study=study, series=_series(grid.series, chosen, sets, own, study), question=question)


def _options(plan: Mapping[str, Any]) -> Options:
    return tuple(sorted(plan.items()))


def _many(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _global_batch(chosen: Mapping[str, Any], study: str) -> int:
    batches = {name: chosen.get(name) for name in ("global_batch", "local_batch")}
    try:
        return global_batch_of(int(chosen["gpus"]), **batches)
    except SpecError as error:
        text = f"study {study}: {error.message}"
        raise InputError(text, hint=error.hint, code=error.code, field=error.field) from None


def _series(
    template: str, chosen: Mapping[str, Any], sets: Mapping[str, Any], own: Mapping[str, Any], study: str
) -> str:
    axes = {key: value for key, value in chosen.items() if " " not in key}
    axes |= {key.rpartition(".")[2]: value for key, value in sets.items()} | dict(own)
    try:
        return template.format(**axes)
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        text = f"study {study}: series {template!r} cannot be filled in: {error}"
        hint = f"{{name}} stands for an axis of its grid, which has {', '.join(axes)}"
        raise InputError(text, hint=hint, code="not-a-format", field="series") from None


VIRTUAL = (2, 4, 8)
MICRO = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class QuestionPlans:
    """Questions about one model on one cluster under one profile: all their plans, for one call of the simulator."""

    jobs: tuple[Job, ...]
    table: PlanTable
    rows: Mapping[Question, range]

    @property
    def specs(self) -> tuple[Model, Cluster, Profile]:
        """Model, cluster and profile, which all plans share."""
        return self.jobs[0].model, self.jobs[0].cluster, self.jobs[0].profile

    def meant(self, results: Results) -> dict[Question, int | SpecError]:
        """The row of the plan that each question means, by what each plan takes; an error where it means none."""
        found: dict[Question, int | SpecError] = {}
        for question, rows in self.rows.items():
            own = slice(rows.start, rows.stop)
            try:
                found[question] = rows[picked(question, self.jobs[own], results.fits[own], results.step_s[own])]
            except SpecError as error:
                found[question] = error
        return found


def together(jobs: Mapping[Question, Sequence[Job]]) -> Iterator[QuestionPlans]:
    """The plans of questions, those with the same specs side by side."""
    groups: dict[tuple[object, ...], dict[Question, Sequence[Job]]] = {}
    for q, own in jobs.items():
        groups.setdefault((q.model, q.cluster, q.profile, q.sets, own[0].plan.placement), {})[q] = own
    for group in groups.values():
        every, ends = tuple(chain(*group.values())), accumulate(map(len, group.values()), initial=0)
        rows = {q: range(*ends_of) for q, ends_of in zip(group, pairwise(ends), strict=True)}
        yield QuestionPlans(every, table_of(every), rows)


def answer(question: Question) -> dict[str, Any]:
    """The record of the plan that the question means; SpecError where it means none that can be."""
    found = answers([question])[question]
    if isinstance(found, SpecError):
        raise found
    return found


def answers(questions: Iterable[Question]) -> dict[Question, dict[str, Any] | SpecError]:
    """All of them: one call of the simulator for those about the same specs."""
    found: dict[Question, dict[str, Any] | SpecError] = {}
    jobs: dict[Question, list[Job]] = {}
    for question in questions:
        try:
            jobs[question] = jobs_of(question)
        except SpecError as error:
            found[question] = error
    with extreme_values():  # rates that nothing has, said by whoever changed them
        for plans in together(jobs):
            step = evaluate(*plans.specs, plans.table)
            for question, row in plans.meant(step.results).items():
                found[question] = row if isinstance(row, SpecError) else _record(question, plans.jobs[row], step, row)
    return found


def _record(question: Question, job: Job, step: EvaluatedStep, row: int) -> dict[str, Any]:
    return record_of(job, measurement_of(step, row, job), trust_of(job, _given(question)))


def job_of(question: Question) -> Job:
    """The one plan; of several that fit the fastest, the least model-parallel, or the fastest with more than that."""
    jobs = jobs_of(question)
    if len(jobs) == 1:
        return jobs[0]
    [plans] = together({question: jobs})
    row = plans.meant(evaluate(*plans.specs, plans.table).results)[question]
    if isinstance(row, SpecError):
        raise row
    return jobs[row]


def picked(question: Question, jobs: Sequence[Job], fits: Bools, step_s: Floats) -> int:
    """Which of its plans the question means, by what each takes."""
    if len(jobs) == 1:
        return 0

    def order(i: int, by_degree: bool = False) -> tuple[bool, int, float]:
        return not bool(fits[i]), _degree(jobs[i]) if by_degree else 0, float(step_s[i])

    every: Sequence[int] = range(len(jobs))
    least = min(every, key=lambda i: order(i, by_degree=True))
    if question.pick == "least":
        return least
    if question.pick == "beyond":
        every = [i for i in every if _degree(jobs[i]) > _degree(jobs[least])]
        if not every:
            raise SpecError("every plan that fits has the same degree of model parallelism", code="no-valid-plan")
    return min(every, key=order)


def _degree(job: Job) -> int:
    return job.plan.tp * job.plan.pp * job.plan.cp


@kept_for_a_question
def specs_of(question_specs: tuple[str, str, str], sets: Options) -> tuple[Loaded[Any], Loaded[Any], Loaded[Any]]:
    """Model, cluster and profile with their sources, loaded once."""
    model, cluster, profile = question_specs
    for_model, for_cluster, for_profile, for_plan = split_overrides(sets)
    if for_plan:
        raise SpecError(
            f"set {for_plan[0][0]} is an option of the plan", hint="give it in the table `plan`", code="not-an-override"
        )
    return load_model(model, for_model), load_cluster(cluster, for_cluster), load_profile(profile, for_profile)


def loaded(question: Question) -> tuple[Loaded[Any], Loaded[Any], Loaded[Any]]:
    """The specs that a question names."""
    return specs_of((question.model, question.cluster, question.profile), question.sets)


def _given(question: Question) -> list[str]:
    parts = zip(("model", "cluster", "profile"), loaded(question), strict=True)
    return [f"{kind}.{path}" for kind, part in parts for path, source in part.sources.items() if source.kind == "user"]


def jobs_of(question: Question) -> list[Job]:
    """Every plan that is meant and can be; SpecError where none can."""
    model, cluster, profile = (part.spec for part in loaded(question))
    sizes = {name: getattr(question, name) for name in ("gpus", "global_batch", "seq_len")}
    jobs: list[Job] = []
    reason: SpecError | None = None
    for tuned in (one for options in question.plans for one in _tuned(question, dict(options), model.layers)):
        try:
            jobs.append(make_job(model, cluster, profile, **sizes, plan_options=tuned)[0])
        except SpecError as error:
            reason = reason or error
    if not jobs:
        raise reason or SpecError("no plan was named", code="missing-field", field="plan")
    return jobs


def _tuned(question: Question, options: dict[str, Any], layers: int) -> Iterator[dict[str, Any]]:
    """The plan with every schedule and micro-batch that it leaves open."""
    degrees = prod(int(options.get(axis, 1)) for axis in ("tp", "pp", "cp"))
    ranks = question.gpus // max(1, degrees)  # a degree of 0 is refused with the plan
    if not question.tune or ranks == 0 or degrees == 0 or question.gpus % degrees or question.global_batch % ranks:
        yield options
        return
    per_rank = question.global_batch // ranks
    pp = int(options.get("pp", 1))
    micros = [m for m in MICRO if per_rank % m == 0]
    if "micro_batch" in options:
        micros = [options["micro_batch"]]
    elif pp == 1:
        micros = sorted({*micros, per_rank})
    for micro in micros:
        base = options | {"micro_batch": micro}
        if pp == 1 or "schedule" in options:
            yield base
            continue
        yield base | {"schedule": ONE_F_ONE_B.name}
        yield base | {"schedule": ZERO_BUBBLE.name}
        for virtual in VIRTUAL:
            if pp * virtual <= layers and INTERLEAVED.takes_microbatches(pp, per_rank // micro):
                yield base | {"schedule": INTERLEAVED.name, "virtual_stages": virtual}
