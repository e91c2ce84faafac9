"""``knee.simulate``: one training step, answered and explained."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from knee.base.arrays import extreme_values
from knee.base.errors import InputError, argument
from knee.commands.job_request import (
    Amount,
    ClusterLike,
    ModelLike,
    Overrides,
    ProfileLike,
    Request,
    pairs_of,
    request,
    training_of,
)
from knee.commands.simulate.result import Simulation
from knee.engine.measurement import Measurement
from knee.engine.one_job import evaluated, measurement_of
from knee.engine.simulator import EvaluatedStep
from knee.specs import Job
from knee.specs.argument_types import checked_arguments, checked_plan
from knee.specs.defaults import DEFAULT_CONVENTION, DEFAULT_GRID
from knee.trust.trust import trust_of


@checked_arguments
def simulate(
    model: ModelLike | Job,
    *,
    cluster: ClusterLike | None = None,
    gpus: int | None = None,
    local_batch: float | None = None,
    global_batch: int | None = None,
    seq_len: int | None = None,
    profile: ProfileLike | None = None,
    overrides: Overrides = (),
    flop_convention: str = DEFAULT_CONVENTION,
    tokens: Amount | None = None,
    grid: str = DEFAULT_GRID,
    pue: float | None = None,
    **plan: Any,
) -> Simulation:
    """Simulate one training step.

    ``model`` is a name of the catalogue, a model's TOML file, a Hugging Face ``config.json`` or its folder, a job file,
    a ``Model`` or a complete ``Job``. ``plan`` takes the fields of ``knee.Plan``: ``tp``, ``pp``, ``cp``,
    ``sharding``, ``micro_batch``, ... Missing fields get defaults, which ``assumptions`` lists.

    If ``tokens`` is given (``2e12`` or ``"2T"``), ``training`` has the days, GPU-hours, dollars, MWh and CO2e of the
    whole run, at a site with this ``pue`` on this ``grid``.

    If the plan does not fit in memory, the result is complete, and ``fits`` is False.

    >>> import knee
    >>> step = knee.simulate("llama2-7b", cluster="dgx-h100", gpus=64, local_batch=2, tp=2)
    >>> step.fits, step.job.plan.dp_shard
    (True, 32)
    """
    whole_run = training_of(tokens, grid, pue)
    sizes = {"gpus": gpus, "global_batch": global_batch, "local_batch": local_batch, "seq_len": seq_len}
    pairs = pairs_of(overrides)
    asked = request(model, cluster=cluster, profile=profile, sizes=sizes, plan=checked_plan(plan), overrides=pairs)
    found, step = _finite(asked, flop_convention)
    values = {one.name: getattr(found, one.name) for one in fields(Measurement)}
    trust, job = trust_of(asked.job, asked.given), asked.job
    training = None if whole_run is None else whole_run.answer(found, job.model, job.cluster, job.gpus, trust.band)
    return Simulation(
        **values, job=job, trust=trust, request=asked, overrides=tuple(pairs), training=training, evaluated=step
    )


def _finite(asked: Request, convention: str) -> tuple[Measurement, EvaluatedStep]:
    """The answer; values that no computer can multiply are refused in words."""
    try:
        with extreme_values():
            step = evaluated(asked.job, convention)
            found = measurement_of(step, 0, asked.job, convention=convention, assumptions=asked.assumptions)
        finite = found.step_s > 0 and _is_finite(found.as_json())
    except OverflowError:
        finite = False
    if not finite:
        text = "a size or rate is so unrealistic that the step time is not finite"
        hint = f"check the values in {argument('overrides')}, in your files and in the options"
        raise InputError(text, hint=hint, code="not-finite")
    return found, step


def _is_finite(data: Any) -> bool:
    if isinstance(data, dict):
        return all(map(_is_finite, data.values()))
    if isinstance(data, (list, tuple)):
        return all(map(_is_finite, data))
    return not isinstance(data, float) or math.isfinite(data)
