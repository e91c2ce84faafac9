"""One simulated step: what ``knee.simulate`` returns, with its power, energy and cost, and a plan that would fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knee.base.arrays import extreme_values
from knee.base.errors import DoesNotFit, InputError, KneeError, argument
from knee.base.limits import LONGEST_TRACE_NS
from knee.base.units import HOUR_S, show
from knee.commands.job_request import Request
from knee.engine.measurement import Measurement
from knee.engine.one_job import events_of
from knee.engine.one_job import simulate as simulate_job
from knee.engine.simulator import EvaluatedStep
from knee.show.result import Result, plain_data
from knee.specs import Job
from knee.specs.argument_types import checked_arguments
from knee.specs.plan import RECOMPUTES
from knee.trust.trust import Trust, record_of

if TYPE_CHECKING:
    from knee.engine.why import WhyLine


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
        from knee.engine.one_job import lanes_of

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
            text = f"{argument('trace')}: a step of {self.step_s / 86_400:,.0f} days is too long for a trace file"
            hint = "events in a trace file can last at most 52 days"
            raise InputError(text, hint=hint, code="too-large", field="trace")
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
