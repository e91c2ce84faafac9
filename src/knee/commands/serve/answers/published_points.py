"""Published runs of the same kind as a question: its generation of GPU, and models of about its size."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from knee.base.errors import SpecError
from knee.engine.workload.parameters import active_parameter_count
from knee.specs.job import Job
from knee.specs.plan import plan_words
from knee.trust.error_table import EXPERTS, OWN, read_errors
from knee.trust.validation.bundled_runs import carried_moe_runs, carried_runs, references
from knee.trust.validation.published_runs import PublishedRun
from knee.trust.validation.run_to_job import job_of

ALIKE = 1.6
"""Models with up to so many times more or less active parameters are of the same size."""
MOST = 400
"""Points of one answer."""


@cache
def _runs(experts: bool) -> tuple[tuple[PublishedRun, Job, int], ...]:
    found = []
    for run in (carried_moe_runs() if experts else carried_runs()).runs:
        if run.tokens_per_s_per_gpu is None:
            continue
        try:
            job = job_of(run.setting).job
        except SpecError:
            continue
        found.append((run, job, active_parameter_count(job.model)))
    return tuple(found)


@cache
def _references() -> dict[str, str]:
    found = {**references("sources.toml"), **references("moe_sources.toml")}
    return {name: table.get("reference", name) for name, table in found.items()}


def sources_of_bands() -> dict[str, list[dict[str, Any]]]:
    """Where the runs behind the bands of dense models and of experts were published, most runs first."""
    return {kind: _counted(path) for kind, path in (("dense", OWN), ("experts", EXPERTS))}


def _counted(path: Path) -> list[dict[str, Any]]:
    errors = read_errors(path)
    known = errors.of("source", np.isfinite(errors.numbers["unseen_error_frac"]))
    return [
        {"source": name, "reference": _references().get(name, name), "runs": runs}
        for name, runs in Counter(known).most_common()
    ]


def points_like(job: Job) -> list[dict[str, Any]]:
    """Runs with the job's GPU and a model of about its size."""
    params = active_parameter_count(job.model)
    found = [
        (run, other)
        for run, other, size in _runs(job.model.experts is not None)
        if other.cluster.gpu.name == job.cluster.gpu.name and 1 / ALIKE <= size / params <= ALIKE
    ]
    every = -(-len(found) // MOST)
    return [_point(run, other) for run, other in found[:: every or 1]]


def _point(run: PublishedRun, job: Job) -> dict[str, Any]:
    return {
        "source": run.setting.source,
        "reference": _references().get(run.setting.source, run.setting.source),
        "model": run.setting.model,
        "gpus": job.gpus,
        "tokens_per_s_per_gpu": run.tokens_per_s_per_gpu,
        "memory_bytes": run.memory_bytes,
        "seq_len": job.seq_len,
        "global_batch": job.global_batch,
        "profile": job.profile.name,
        "words": plan_words(job.plan),
    }
