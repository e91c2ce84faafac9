"""``knee.dryrun``: the trainer itself on fake ranks, without hardware, held against the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from knee.base.errors import RunFailed, either
from knee.commands.job_request import ModelLike, Overrides, ProfileLike, is_job_file
from knee.commands.train.request import Say, completed_request, ranks_of
from knee.engine.events import StageWork
from knee.measure.machine.machine_facts import need_torch
from knee.show.result import Result
from knee.specs import Job
from knee.specs.argument_types import checked_arguments, checked_plan
from knee.specs.load import load_profile
from knee.training.parallelism.trainer_job import TrainJob, activation_dtype
from knee.trust.validation.program_messages import Difference, as_trained, differences, simulated_work

# A simulated job as the trainer runs it on fake ranks.


def with_own_fp8(job: Job) -> Job:
    """The job with the trainer's own fp8 layers, whatever the profile's stack does."""
    if job.plan.precision != "fp8":
        return job
    own = load_profile("knee").spec
    facts = {name: getattr(own, name) for name in ("fp8_shared_casts", "fp8_gathers", "fp8_smallest")}
    return replace(job, profile=replace(job.profile, **facts))


def traced_job(job: Job) -> TrainJob:
    """The same job for the trainer; types as on GPUs."""
    return TrainJob(
        model=job.model,
        plan=job.plan,
        gpus=job.gpus,
        global_batch=job.global_batch,
        seq_len=job.seq_len,
        steps=2,
        warmup=0,
        dtype=activation_dtype(job.plan.precision, "cuda"),
        routing="balanced" if job.model.experts else "learned",  # fake tokens choose nothing
        fp8_smallest=job.profile.fp8_smallest,
    )


PLACEHOLDER = "dgx-h100"
"""A cluster that completes a job where none is named: nothing that is counted depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DryRun(Result):
    """One step of one rank of every pipeline stage, as the trainer runs it and as the simulator models it."""

    job: Job
    program: tuple[StageWork, ...]
    """The trainer's, traced on fake ranks; one a pipeline stage."""
    simulated: tuple[StageWork, ...]
    justified: tuple[str, ...]
    """Why the trainer differs from the simulator where it is known to."""
    differences: tuple[Difference, ...]
    """Where they differ and no rule says why: one of them is wrong."""

    def __repr__(self) -> str:
        return f"DryRun({self.job.model.name!r}, gpus={self.job.gpus}, differences={len(self.differences)})"

    def _data(self) -> dict[str, Any]:
        job = self.job
        both = zip(self.program, self.simulated, strict=True)
        return {
            "model": job.model.name,
            "gpus": job.gpus,
            "global_batch": job.global_batch,
            "seq_len": job.seq_len,
            "plan": job.plan,
            "stages": [{**program.as_json(), "simulated": work.as_json()} for program, work in both],
            "justified": self.justified,
            "differences": self.differences,
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per pipeline stage and collective, with the calls of the trainer and of the simulator."""
        return [
            {
                "stage": program.stage,
                "rank": program.rank,
                **collective._asdict(),
                "calls": program.collectives.get(collective, 0),
                "simulated_calls": simulated.collectives.get(collective, 0),
            }
            for program, simulated in zip(self.program, self.simulated, strict=True)
            for collective in dict.fromkeys((*program.collectives, *simulated.collectives))
        ]

    def equal_stages(self) -> list[list[int]]:
        """Groups of pipeline stages that do the same work."""
        groups: dict[Any, list[int]] = {}
        for work in self.program:
            key = (work.product_flop, work.attention_flop, frozenset(work.collectives.items()))
            groups.setdefault(key, []).append(work.stage)
        return list(groups.values())

    def check_equal(self) -> None:
        """Raise ``RunFailed`` if the trainer and the simulator differ for no known reason."""
        if self.differences:
            text = f"the trainer and the simulator disagree in {len(self.differences)} lines for no known reason"
            raise RunFailed(text, code="unexplained-differences")


@checked_arguments
def dryrun(
    model: ModelLike,
    *,
    gpus: int | None = None,
    local_batch: float | None = None,
    global_batch: int | None = None,
    seq_len: int | None = None,
    profile: ProfileLike | None = None,
    overrides: Overrides = (),
    say: Say = lambda _: None,
    progress: Callable[[int, int], None] | None = None,
    **plan: Any,
) -> DryRun:
    """Trace one step of the trainer on fake ranks, without any GPU, and compare it with the simulator.

    ``model`` and ``plan`` are the same as for ``knee.simulate``. ``gpus`` is the total number of ranks; by default, as
    many as the plan needs. The default batch is 2 sequences per rank. ``profile`` is the profile of the simulation.

    ``say`` is called with each assumption as a sentence, ``progress`` with the number of pipeline stages that are
    traced and their total. Tracing needs torch: ``pip install 'knee[train]'``.

    >>> import knee
    >>> step = knee.dryrun("llama2-7b", gpus=2048, tp=2)  # doctest: +SKIP
    >>> step.differences  # doctest: +SKIP
    ()
    """
    need_torch(either("knee.dryrun", "knee dryrun"))
    in_file, plan = is_job_file(model), checked_plan(plan)
    gpus = ranks_of(plan) if gpus is None and not in_file else gpus
    job = completed_request(
        model,
        cluster=None if in_file else PLACEHOLDER,
        profile=profile,
        sizes={"gpus": gpus, "global_batch": global_batch, "local_batch": local_batch, "seq_len": seq_len},
        plan=plan,
        overrides=overrides,
        say=say,
    ).job
    job = with_own_fp8(job)
    simulated = simulated_work(job)
    from knee.training.run.fake_ranks import trace  # imports torch

    program = trace(traced_job(job), progress)
    expected = [as_trained(job, work) for work in simulated]
    return DryRun(
        job=job,
        program=tuple(program),
        simulated=tuple(simulated),
        justified=tuple(dict.fromkeys(why for _, reasons in expected for why in reasons)),
        differences=tuple(
            difference
            for traced, (work, _) in zip(program, expected, strict=True)
            for difference in differences(traced, work)
        ),
    )
