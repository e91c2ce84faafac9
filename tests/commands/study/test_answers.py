"""Questions answered: the plan that is meant, held against every plan tried one by one."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import pytest

from knee.base.errors import InputError, SpecError
from knee.commands.study.questions import Options, Question, answer, answers, job_of
from knee.engine.measurement import Measurement
from knee.engine.one_job import simulate
from knee.specs.job import Job
from knee.specs.load import load_cluster, load_model, load_profile, make_job

TP, PP = (1, 2, 4), (1, 2, 4)
PLANS: tuple[Options, ...] = tuple((("pp", pp), ("tp", tp)) for tp, pp in product(TP, PP))
SIZES = {"gpus": 8, "global_batch": 32, "seq_len": 2048}


def question(**given: Any) -> Question:
    base: dict[str, Any] = {"model": "llama2-7b", "cluster": "dgx-h100", "profile": "eager", "plans": PLANS}
    return Question(**base | SIZES | given)


@cache
def every(model: str = "llama2-7b") -> tuple[tuple[Job, Measurement], ...]:
    """Every TP x PP plan with every schedule, chunk count and power-of-two micro-batch that can be."""
    specs = (load_model(model).spec, load_cluster("dgx-h100").spec, load_profile("eager").spec)
    found = []
    for tp, pp, micro in product(TP, PP, (1, 2, 4, 8, 16, 32)):
        schedules: list[dict[str, Any]] = [{}] if pp == 1 else [{"schedule": "1f1b"}, {"schedule": "zero_bubble"}]
        schedules += [{"schedule": "interleaved", "virtual_stages": v} for v in (2, 4, 8)] if pp > 1 else []
        for schedule in schedules:
            options = {"tp": tp, "pp": pp, "micro_batch": micro} | schedule
            try:
                job = make_job(*specs, **SIZES, plan_options=options)[0]
            except SpecError:
                continue
            found.append((job, simulate(job)))
    return tuple(found)


def degree(job: Job) -> int:
    return job.plan.tp * job.plan.pp


def fastest(found: list[tuple[Job, Measurement]]) -> Job:
    return min(found, key=lambda pair: pair[1].step_s)[0]


def fitting() -> list[tuple[Job, Measurement]]:
    some = [(job, m) for job, m in every() if m.fits]
    assert 0 < len(some) < len(every())  # memory decides
    return some


@pytest.mark.slow
def test_the_fastest_that_fits() -> None:
    assert job_of(question(tune=True, pick="fastest")).plan == fastest(fitting()).plan


@pytest.mark.slow
def test_the_least_model_parallelism_that_fits() -> None:
    least = min(degree(job) for job, _ in fitting())
    want = fastest([(job, m) for job, m in fitting() if degree(job) == least])
    assert job_of(question(tune=True, pick="least")).plan == want.plan


@pytest.mark.slow
def test_the_fastest_beyond_that() -> None:
    least = min(degree(job) for job, _ in fitting())
    want = fastest([(job, m) for job, m in fitting() if degree(job) > least])
    assert job_of(question(tune=True, pick="beyond")).plan == want.plan
    with pytest.raises(SpecError, match="the same degree of model parallelism"):
        job_of(question(plans=PLANS[:1], tune=True, pick="beyond"))


def test_answers_together_are_those_of_questions_alone() -> None:
    impossible = question(plans=((("tp", 3),),))
    some = [
        question(pick="fastest"),
        question(gpus=16, plans=PLANS[3:4]),
        question(model="llama2-13b", plans=PLANS[1:3], pick="least"),
        question(sets=(("cluster.gpu.hbm_bytes", "40 GB"),), plans=PLANS[:4], pick="least"),
    ]
    found = answers([impossible, *some])
    assert found.keys() == {impossible, *some}
    assert isinstance(found[impossible], SpecError)
    for one in some:
        assert flattened(found[one]) == flattened(answer(one))


def flattened(found: Any, name: str = "") -> dict[str, Any]:
    """Each value of a record by its path, numbers to eleven places."""
    if not isinstance(found, (dict, tuple, list)):
        return {name: f"{found:.11g}" if isinstance(found, float) else found}
    items = found.items() if isinstance(found, dict) else enumerate(found)
    return {path: value for key, one in items for path, value in flattened(one, f"{name}/{key}").items()}


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 4), (4, 2)])
def test_tuning_fills_in_what_a_plan_leaves_open(tp: int, pp: int) -> None:
    own = [(job, m) for job, m in fitting() if (job.plan.tp, job.plan.pp) == (tp, pp)]
    assert job_of(question(plans=((("pp", pp), ("tp", tp)),), tune=True)).plan == fastest(own).plan


def test_a_plan_that_does_not_fit_at_once_accumulates() -> None:
    """All eight sequences of a GPU at once need more than there is; so tuning goes through them in parts."""
    whole, tuned = (job_of(question(global_batch=64, plans=((),), tune=tune)) for tune in (False, True))
    assert whole.plan.micro_batch == 8
    assert not simulate(whole).fits
    assert tuned.plan.micro_batch < 8
    assert simulate(tuned).fits


def test_what_a_plan_says_is_not_tuned() -> None:
    options: Options = (("micro_batch", 2), ("pp", 4), ("schedule", "gpipe"))
    plan = job_of(question(plans=(options,), tune=True)).plan
    assert (plan.micro_batch, plan.schedule, plan.pp) == (2, "gpipe", 4)


def test_where_nothing_fits_the_answer_says_so() -> None:
    found = answer(question(model="llama2-70b", plans=PLANS[:2], tune=True, pick="fastest"))
    assert found["fits"] is False


def test_the_record_is_the_simulator_s_own() -> None:
    asked = question(plans=((("tp", 2),),))
    found, job = answer(asked), job_of(asked)
    assert found["step_s"] == simulate(job).step_s
    assert (found["kind"], found["plan"]["tp"], found["global_batch"]) == ("simulated", 2, 32)
    assert found["trust"]["label"] in ("validated", "near", "extrapolated")


@pytest.mark.parametrize(("given", "words"), [
    ({"plans": ((("tp", 3),),)}, "3"),
    ({"plans": ((("tp", 16),),)}, "16"),
    ({"plans": ((("pp", 16),),), "tune": True}, "16"),
    ({"global_batch": 3}, "batch"),
    ({"gpus": 10**9, "global_batch": 10**9}, "1,000,000,000"),
    ({"plans": ()}, "no plan was named"),
])  # fmt: skip
def test_a_plan_that_cannot_be_has_a_reason(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as caught:
        job_of(question(**{"plans": ((),)} | given))
    assert words in caught.value.message


def test_of_several_plans_those_that_can_be_count() -> None:
    assert job_of(question(plans=((("tp", 3),), (("tp", 2),)), pick="fastest")).plan.tp == 2


def test_changed_values_reach_the_simulator() -> None:
    slow = question(gpus=64, global_batch=64, plans=((),), sets=(("fabric.nic_bytes_per_s", "10 Gbit/s"),))
    fast = question(gpus=64, global_batch=64, plans=((),))
    assert answer(slow)["step_s"] > 1.5 * answer(fast)["step_s"]
    with pytest.raises(SpecError, match="option of the plan"):
        answer(question(sets=(("plan.tp", "2"),)))
    with pytest.raises(InputError, match="there is no such field"):
        answer(question(sets=(("fabric.colour", "red"),)))
    with pytest.raises(InputError, match="no model named"):
        answer(question(model="llama-9b"))
