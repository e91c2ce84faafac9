"""Which published runs are like a job, from the most alike to all of them, and what of the job no run had."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from knee.columns import Bools
from knee.fidelity.error_table import Errors
from knee.specs.catalog import entry_names
from knee.specs.job import Job

FAMILIES = {"ddp": "DDP", "zero1": "ZeRO-1", "fsdp": "FSDP", "fsdp_no_reshard": "FSDP", "hsdp": "FSDP"}
"""Shardings that communicate alike."""
ENOUGH = 8
"""Runs that a band is taken from; where there are fewer, runs that are less alike join."""
CLOSE = 4.0
"""Runs on up to so many times more or fewer GPUs are like the job in scale."""
FAR = 2.0
"""Beyond so many times the most GPUs of any run, nothing is near."""
GATHERED_GPUS = 1024
"""The largest all-gather of ``catalog/validation/collectives.csv``."""
VENDOR = "NVIDIA"
"""Of the GPUs of all published runs."""
RATINGS = ("arch", "sms", "fp16_flop_per_s", "bf16_flop_per_s", "fp8_flop_per_s", "hbm_bytes_per_s")
"""What makes it another GPU where it is changed."""
NO_MATTER = ("name", "max_gpus", "usd_per_gpu_h", "tdp_w", "idle_w", "comm_w", "cap_sharpness", "j_per_flop",
             "j_per_byte", "gemm_j_per_flop", "hbm_j_per_byte")
"""Last words of paths that change neither time nor memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Runs that have some things in common with a job."""

    like: str
    chosen: Bools
    of_stack: bool
    """They are of the job's own stack, and its profile was fitted on others of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """A job's place among the published runs."""

    rungs: tuple[Rung, ...]
    """The most alike first; the last has all runs."""
    absent: tuple[str, ...]
    """What no published run has."""
    doubts: tuple[str, ...]
    """What published runs have, but not together, or not of this cluster or profile."""


def likeness_of(job: Job, given: Iterable[str], errors: Errors) -> Likeness:
    """Compare a job with every run; ``given`` are paths of values that are not the catalogue's."""
    paths = [path for path in given if path.rpartition(".")[2] not in NO_MATTER]
    rungs = _rungs(job, errors)
    absent = (*_absent(job, errors), *_another_gpu(paths))
    # that no run is like it needs no saying where what none has is named
    apart = () if absent else _apart(job, errors, rungs[0])
    return Likeness(rungs=rungs, absent=absent, doubts=(*_own(job, paths), *_not_together(job, errors), *apart))


def kind_words(job: Job) -> str:
    """The parallelism that is at work: ``FSDP + TP``."""
    plan = job.plan
    words = [FAMILIES[plan.sharding]] if plan.dp > 1 else []
    words += [axis.upper() for axis in ("tp", "pp", "cp") if getattr(plan, axis) > 1]
    return " + ".join(words) or "one GPU alone"


def _rungs(job: Job, errors: Errors) -> tuple[Rung, ...]:
    gpu, kernels = job.cluster.gpu.name, f"{job.profile.kernels} kernels"
    own, alike = errors.is_("profile", job.profile.name), errors.is_("kernels", job.profile.kernels)
    on_gpu, kind, every = errors.is_("gpu", gpu), _of_kind(job, errors), np.ones(len(errors), dtype=np.bool_)
    n_gpus = errors.numbers["n_gpus"]
    close = (n_gpus >= job.gpus / CLOSE) & (n_gpus <= job.gpus * CLOSE)
    words = kind_words(job)
    steps: list[tuple[bool, Bools, tuple[str, ...]]] = []
    if own.any():
        steps += [
            (True, own & on_gpu & kind & close, (gpu, job.profile.name, words)),
            (True, own & on_gpu & kind, (gpu, job.profile.name, words)),
            (True, own & kind, (job.profile.name, words)),
            (True, own & on_gpu, (gpu, job.profile.name)),
            (True, own, (job.profile.name,)),
        ]
    steps += [
        (False, alike & on_gpu & kind & close, (gpu, kernels, words)),
        (False, alike & on_gpu & kind, (gpu, kernels, words)),
        (False, on_gpu & kind, (gpu, words)),
        (False, alike & kind, (kernels, words)),
        (False, kind, (words,)),
        (False, alike, (kernels,)),
        (False, every, ()),
    ]
    return tuple(Rung(like=", ".join(words), chosen=chosen, of_stack=own) for own, chosen, words in steps)


def _of_kind(job: Job, errors: Errors) -> Bools:
    """Runs that use the same kinds of parallelism, whatever their degrees."""
    plan = job.plan
    chosen = _of_family(job, errors) if plan.dp > 1 else np.ones(len(errors), dtype=np.bool_)
    for axis in ("dp", "tp", "pp", "cp"):
        chosen &= (errors.numbers[axis] > 1) == (getattr(plan, axis) > 1)
    return chosen


def _of_family(job: Job, errors: Errors) -> Bools:
    family = FAMILIES[job.plan.sharding]
    return errors.is_("sharding", *(name for name, other in FAMILIES.items() if other == family))


def _absent(job: Job, errors: Errors) -> Iterator[str]:
    plan, gpu = job.plan, job.cluster.gpu
    if gpu.name not in errors.words["gpu"]:
        yield f"no published run used {gpu.name}"
    if plan.precision not in errors.words["precision"]:
        yield f"no published run computed in {plan.precision}"
    if plan.pp > 1 and not (errors.is_("schedule", plan.schedule) & (errors.numbers["pp"] > 1)).any():
        yield f"no published run had the {plan.schedule} schedule"
    if plan.cp > 1 and not (errors.numbers["cp"] > 1).any():
        yield "no published run had context parallelism"
    yield from _too_many(job, errors)


def _too_many(job: Job, errors: Errors) -> Iterator[str]:
    """Scale beyond all runs: GPUs, and data-parallel ranks."""
    most = errors.numbers["n_gpus"].max(initial=0)
    if job.gpus > FAR * most:
        yield f"no published run had more than {most:,.0f} GPUs"
    family = _of_family(job, errors)
    ranks = errors.numbers["dp"][family].max(initial=0)
    if job.plan.dp > FAR * max(ranks, 1):
        yield f"no published run had {FAMILIES[job.plan.sharding]} over more than {ranks:,.0f} data-parallel ranks"
    if job.plan.dp_shard > GATHERED_GPUS:
        yield f"no all-gather over more than {GATHERED_GPUS:,} GPUs was measured: its latency is extrapolated"


def _another_gpu(paths: Iterable[str]) -> Iterator[str]:
    changed = [path for path in paths if path.startswith("cluster.gpu.") and path.rpartition(".")[2] in RATINGS]
    if changed:
        yield f"a GPU of your own: {_listed(changed)}"


def _own(job: Job, paths: Iterable[str]) -> Iterator[str]:
    """Clusters and profiles that are not the catalogue's."""
    for kind, spec in (("cluster", job.cluster), ("profile", job.profile)):
        if spec.name not in entry_names("cluster" if kind == "cluster" else "profile"):
            yield f"a {kind} of your own, {spec.name}: no published run was predicted with it"
        else:
            changed = [path for path in paths if path.startswith(f"{kind}.")]
            if changed:
                yield f"values of your own: {_listed(changed)}"


def _listed(paths: list[str]) -> str:
    names = [path.partition(".")[2] for path in paths]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _not_together(job: Job, errors: Errors) -> Iterator[str]:
    """Parts that published runs do not have, but whose cost is known from elsewhere."""
    profile, kernels, fabric = job.profile.name, job.profile.kernels, job.cluster.fabric.kind
    if profile != kernels and profile in entry_names("profile") and profile not in errors.words["profile"]:
        yield f"no published run of the stack of {profile}: runs of others with {kernels} kernels stand for it"
    if job.gpus > job.cluster.node.gpus and fabric not in errors.words["fabric"]:
        yield f"no published run was over {fabric}"


def _apart(job: Job, errors: Errors, first: Rung) -> Iterator[str]:
    """What the runs that are most alike are not."""
    runs = int(np.count_nonzero(first.chosen))
    n_gpus = errors.numbers["n_gpus"][first.chosen]
    if runs < ENOUGH:
        few = f"only {runs} published runs are" if runs > 1 else f"{'one' if runs else 'no'} published run is"
        at = f"{max(1.0, job.gpus / CLOSE):,.0f} to {job.gpus * CLOSE:,.0f} GPUs"
        yield f"{few} like it: {first.like}, {at}"
    elif job.gpus > n_gpus.max():
        yield f"the largest run like it had {n_gpus.max():,.0f} GPUs"
    stacks = set(errors.of("profile", first.chosen))
    if not first.of_stack and len(stacks) == 1:
        yield f"all runs like it are of one stack, {stacks.pop()}"
