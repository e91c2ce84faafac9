"""``knee.simulate``: one training step, answered and explained."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knee.base.arrays import extreme_values
from knee.base.errors import DoesNotFit, InputError, KneeError, argument
from knee.base.limits import LONGEST_TRACE_NS
from knee.base.units import HOUR_S, show
from knee.commands.amounts import Amount, training_of
from knee.commands.job_request import ClusterLike, ModelLike, Overrides, ProfileLike, Request, pairs_of, request
from knee.engine.measurement import Measurement
from knee.engine.one_job import evaluated, events_of, measurement_of
from knee.engine.one_job import simulate as simulate_job
from knee.engine.simulator import EvaluatedStep
from knee.show.result import Result, plain_data
from knee.specs import Job
from knee.specs.argument_types import checked_arguments
from knee.specs.arguments import checked_plan
from knee.specs.defaults import DEFAULT_CONVENTION, DEFAULT_GRID
from knee.specs.plan import RECOMPUTES
from knee.trust.answer_record import record_of
from knee.trust.trust import Trust, trust_of

if TYPE_CHECKING:
    from knee.engine.why import WhyLine


# Changes of a plan that make it fit in memory.


def fitting_change(asked: Request) -> dict[str, Any] | None:
    """The fastest of the simplest changes of the plan that fit; None where none does."""
    for group in _memory_saving_changes(asked.job):
        fitting: list[tuple[float, dict[str, Any]]] = []
        for changes in group:
            with suppress(KneeError):
                found = simulate_job(asked.with_options(**changes))
                if found.fits:
                    fitting.append((found.tokens_per_s, changes))
        if fitting:
            return max(fitting, key=lambda pair: pair[0])[1]
    return None


def _memory_saving_changes(job: Job) -> Iterator[list[dict[str, Any]]]:
    """Changes of the plan that save memory: first within its degrees, then with more tp, then with more pp."""
    plan = job.plan
    micro: list[dict[str, Any]] = [{}, {"micro_batch": 1}] if plan.micro_batch > 1 else [{}]
    again: list[dict[str, Any]] = [{}, *({"recompute": r} for r in RECOMPUTES[RECOMPUTES.index(plan.recompute) + 1 :])]
    shard: list[dict[str, Any]] = [{}, {"sharding": "fsdp"}] if plan.sharding != "fsdp" else [{}]
    within = [{**a, **b, **c} for a in shard for b in micro for c in again]
    yield within[1:]
    for tp in (2, 4, 8):
        if plan.tp < tp <= job.cluster.node.gpus:
            yield [{"tp": tp, **changes} for changes in within]
    for pp in (2, 4, 8, 16):
        if plan.pp < pp:
            yield [{"tp": max(plan.tp, 8), "pp": pp, **changes} for changes in within]


TRACED_PASSES = 2**16
"""Most layers times microbatches of a trace: already gigabytes with eager kernels."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Simulation(Result, Measurement):
    """One simulated step: every field of ``Measurement``, the job, and how far the prediction can be trusted."""

    job: Job
    trust: Trust
    request: Request
    overrides: tuple[tuple[str, str], ...] = ()
    training: dict[str, Any] | None = None
    """What training on ``tokens`` takes: days, GPU-hours, dollars, MWh and CO2e; None where no tokens were given."""
    evaluated: EvaluatedStep = field(compare=False)
    """Everything on the way to the answer: what ``why`` and drawings are made from."""

    def to_dict(self, *, why: bool = False) -> dict[str, Any]:
        """Plain data, as ``knee simulate --json`` prints it; with ``why``, it includes the lines of ``why()``."""
        data: dict[str, Any] = plain_data(record_of(self.job, self.measurement, self.trust))
        if self.training is not None:
            data["training"] = self.training
        if self.overrides:
            data["set"] = [list(pair) for pair in self.overrides]
        if why:
            keys = ("name", "value", "formula", "source", "depth")
            data["why"] = [{key: getattr(line, key) for key in keys} for line in self.why()]
        return data

    @property
    def measurement(self) -> Measurement:
        """Only the step, without job and trust."""
        return Measurement(**{one.name: getattr(self, one.name) for one in fields(Measurement)})

    @property
    def power_w(self) -> float | None:
        """Mean power of all GPUs in watts."""
        return None if self.power_w_per_gpu is None else self.power_w_per_gpu * self.job.gpus

    @property
    def energy_j_per_step(self) -> float | None:
        """Energy of all GPUs in one step."""
        return None if self.power_w is None else self.power_w * self.step_s

    @property
    def usd_per_h(self) -> float | None:
        """Rental price of all GPUs per hour; None where the price is unknown."""
        price = self.job.cluster.usd_per_gpu_h
        return None if price is None else price * self.job.gpus

    @property
    def usd_per_step(self) -> float | None:
        """Rental price of all GPUs for one step; None where the price is unknown."""
        return None if self.usd_per_h is None else self.usd_per_h * self.step_s / HOUR_S

    @extreme_values()
    def why(self) -> list[WhyLine]:
        """The formulas, constants and sources behind the answer, one line each; ``depth`` is the indentation."""
        from knee.engine.why import explain, explain_run

        lines = explain(self.job, self.request.sources, convention=self.flop_convention, step=self.evaluated)
        if self.training is not None:
            lines += explain_run(self.job, self.request.sources, self.training, step_s=self.step_s)
        return lines

    def lanes(self) -> dict[str, Any]:
        """The step's kernels in lanes, for one GPU of every pipeline stage, as ``lanes_of`` describes them."""
        from knee.engine.step_lanes import lanes_of

        return lanes_of(self.evaluated)

    @checked_arguments
    def write_trace(self, path: str | Path) -> list[Path]:
        """Write the step as Kineto traces (.json or .json.gz), one per pipeline stage, and return the files."""
        from knee.measure.kineto.kineto_writer import write_kineto

        job = self.job
        if job.microbatches * job.model.layers > TRACED_PASSES:
            raise InputError(
                f"{argument('trace')}: {job.microbatches:,} microbatches of {job.model.layers} layers make a trace "
                "that is too large for any viewer",
                hint="trace a smaller batch; microbatches in the middle of a step are all alike",
                code="too-large",
                field="trace",
            )
        if self.step_s * 1e9 >= LONGEST_TRACE_NS:
            raise InputError(
                f"{argument('trace')}: a step of {self.step_s / 86_400:,.0f} days is too long for a trace file",
                hint="events in a trace file can last at most 52 days",
                code="too-large",
                field="trace",
            )
        return [Path(written) for written in write_kineto(events_of(job), str(path), device=job.cluster.gpu.name)]

    def check_fits(self) -> None:
        """Raise ``DoesNotFit`` if the plan needs more memory than a GPU has; the hint names a plan that fits."""
        if self.fits:
            return
        gpu = self.job.cluster.gpu
        changes = fitting_change(self.request)
        words = " ".join(f"{argument(name)} {value}" for name, value in (changes or {}).items())
        raise DoesNotFit(
            f"the plan does not fit: it needs {show(self.memory_bytes, 'bytes')} per GPU, and {gpu.name} has "
            f"{show(gpu.hbm_bytes, 'bytes')}",
            hint=f"the job would fit with {words}" if words else "use more GPUs, a smaller model, or shorter sequences",
        )


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
        raise InputError(
            "a size or rate is so unrealistic that the step time is not finite",
            hint=f"check the values in {argument('overrides')}, in your files and in the options",
            code="not-finite",
        )
    return found, step


def _is_finite(data: Any) -> bool:
    """Whether all numbers of plain data are."""
    if isinstance(data, dict):
        return all(map(_is_finite, data.values()))
    if isinstance(data, (list, tuple)):
        return all(map(_is_finite, data))
    return not isinstance(data, float) or math.isfinite(data)
