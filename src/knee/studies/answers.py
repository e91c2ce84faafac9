"""A question answered by the simulator: the plan it leaves open is chosen, and simulated in full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from knee.arrays import Bools, Floats
from knee.errors import SpecError
from knee.simulator import evaluate
from knee.single import simulate
from knee.specs.job import Job
from knee.specs.kept_files import kept_for_a_question
from knee.specs.load import Loaded, load_cluster, load_model, load_profile, make_job, split_overrides
from knee.specs.plan_table import table_of
from knee.studies.questions import Options, Question
from knee.trust.answer_record import record_of
from knee.trust.trust import trust_of

VIRTUAL = (2, 4, 8)
MICRO = (1, 2, 4, 8, 16, 32)


def answer(question: Question) -> dict[str, Any]:
    """The record of the plan that the question means; SpecError where it means none that can be."""
    job = job_of(question)
    with np.errstate(all="ignore"):  # rates that nothing has, said by whoever changed them
        return record_of(job, simulate(job), trust_of(job, _given(question)))


def job_of(question: Question) -> Job:
    """The one plan; of several that fit the fastest, the least model-parallel, or the fastest with more than that."""
    jobs = jobs_of(question)
    if len(jobs) == 1:
        return jobs[0]
    first = jobs[0]
    results = evaluate(first.model, first.cluster, first.profile, table_of(jobs)).results
    return jobs[picked(question, jobs, results.fits, results.step_s)]


def picked(question: Question, jobs: Sequence[Job], fits: Bools, step_s: Floats) -> int:
    """Which of its plans the question means, by what each takes."""

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
    return (
        load_model(model, for_model),
        load_cluster(cluster, for_cluster),
        load_profile(profile, for_profile),
    )


def loaded(question: Question) -> tuple[Loaded[Any], Loaded[Any], Loaded[Any]]:
    """The specs that a question names."""
    return specs_of((question.model, question.cluster, question.profile), question.sets)


def _given(question: Question) -> list[str]:
    """Paths of values that the question changes."""
    parts = zip(("model", "cluster", "profile"), loaded(question), strict=True)
    return [f"{kind}.{path}" for kind, part in parts for path, source in part.sources.items() if source.kind == "user"]


def jobs_of(question: Question) -> list[Job]:
    """Every plan that is meant and can be; SpecError where none can."""
    return list(_jobs(question))


def _jobs(question: Question) -> Iterator[Job]:
    model, cluster, profile = (part.spec for part in loaded(question))
    reason: SpecError | None = None
    found = False
    for options in question.plans:
        for tuned in _tuned(question, dict(options), model.layers):
            try:
                yield make_job(
                    model,
                    cluster,
                    profile,
                    gpus=question.gpus,
                    global_batch=question.global_batch,
                    seq_len=question.seq_len,
                    plan_options=tuned,
                )[0]
                found = True
            except SpecError as error:
                reason = reason or error
    if not found:
        raise reason or SpecError("no plan was named", code="missing-field", field="plan")


def _tuned(question: Question, options: dict[str, Any], layers: int) -> Iterator[dict[str, Any]]:
    """The plan with every schedule and micro-batch that it leaves open."""
    degrees = 1
    for axis in ("tp", "pp", "cp"):
        degrees *= int(options.get(axis, 1))
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
        yield base | {"schedule": "1f1b"}
        yield base | {"schedule": "zero_bubble"}
        for virtual in VIRTUAL:
            if pp * virtual <= layers and per_rank // micro % pp == 0:
                yield base | {"schedule": "interleaved", "virtual_stages": virtual}
