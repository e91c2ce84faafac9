"""knee's own validation set: published runs and bandwidths that it carries, and how well they are predicted.

Errors by number of GPUs are of predictions as if a source had never been seen: labels and bands of a source are from
the errors of the other sources. tools/band_coverage.py counts what they hold.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from knee.base.errors import InputError
from knee.measure.hardware_fit.residuals import Residuals
from knee.specs.job import Job
from knee.trust.bands import CONSTANTS, Constants, Quantity, Scores, carried_constants, unseen
from knee.trust.error_table import EXPERTS, Errors, error_rows, read_errors
from knee.trust.similarity import likeness_of
from knee.trust.trust import label_of
from knee.trust.validation.bandwidth_errors import BandwidthValidation, carried_bandwidths, validate_bandwidths
from knee.trust.validation.published_runs import RunFile, read_runs
from knee.trust.validation.run_errors import Validation, validate
from knee.trust.validation.run_to_job import job_of, unseen_job_of

FOLDER = files("knee") / "catalog" / "validation"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFidelity:
    """One source of runs."""

    source: str
    stacks: str
    gpus: str
    """Their kinds, and how many at most."""
    runs: int
    median_frac: float
    p90_frac: float
    bias_frac: float
    unseen_frac: float | None
    """Median error where nothing of the source was fitted on or learned from."""
    unseen_p90_frac: float | None
    memory_median_frac: float | None
    reference: str
    form_from: str | None
    """What of the model's form was chosen by looking at this source, so that "unseen" is not all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedFidelity:
    """The table that the study shows."""

    sources: tuple[SourceFidelity, ...]
    unseen_frac: float | None
    """Median over sources of their medians, each source predicted as if it had never been seen."""
    unseen_p90_frac: float | None
    """90th percentile over all runs, in the same way."""
    headline_frac: float
    """Median over sources of their medians, as shipped."""
    all_reduce: Residuals | None
    """Of bus bandwidth, messages of 16 MiB and up."""
    all_gather: Residuals | None


@cache
def carried_runs() -> RunFile:
    """The published runs that knee carries."""
    with as_file(FOLDER / "runs.csv") as path:
        return read_runs(path)


def carried_moe_runs() -> RunFile:
    """The published runs of mixtures of experts that knee carries, apart from those of dense models."""
    with as_file(FOLDER / "moe_runs.csv") as path:
        return read_runs(path)


def references(name: str = "sources.toml") -> dict[str, dict[str, str]]:
    """Source -> where it was published, and what of the model's form was chosen by looking at it."""
    return tomllib.loads((FOLDER / name).read_text(encoding="utf-8"))


def carried_fidelity(found: Validation | None = None, links: BandwidthValidation | None = None) -> CarriedFidelity:
    """Predict the carried runs and bandwidths; errors of runs left out are those of the last fit."""
    found = found or validate(carried_runs())
    bandwidths = (links or validate_bandwidths(carried_bandwidths())).headline
    return _fidelity(found, "errors.csv", references(), bandwidths)


def moe_fidelity(found: Validation | None = None) -> CarriedFidelity:
    """The same of mixtures of experts, which have no bandwidths of their own."""
    return _fidelity(found or validate(carried_moe_runs()), "moe_errors.csv", references("moe_sources.toml"), {})


def recorded_moe_fidelity() -> CarriedFidelity:
    """The same without a simulation: the errors of the last fit, for pages."""
    rows = list(csv.DictReader((FOLDER / "moe_errors.csv").read_text(encoding="utf-8").splitlines()))
    where, sources = references("moe_sources.toml"), []
    for name in dict.fromkeys(row["source"] for row in rows):
        mine = [row for row in rows if row["source"] == name]
        shipped, unseen, memory = (
            [float(row[column]) for row in mine if row[column]]
            for column in ("error_frac", "unseen_error_frac", "memory_error_frac")
        )
        sources.append(
            SourceFidelity(
                source=name,
                stacks=", ".join(sorted({row["stack"] for row in mine})),
                gpus=_gpu_words((row["gpu"], int(row["n_gpus"])) for row in mine),
                runs=len(shipped),
                median_frac=float(np.median(np.abs(shipped))),
                p90_frac=float(np.quantile(np.abs(shipped), 0.9)),
                bias_frac=float(np.median(shipped)),
                unseen_frac=_quantile(np.abs(unseen).tolist(), 0.5),
                unseen_p90_frac=_quantile(np.abs(unseen).tolist(), 0.9),
                memory_median_frac=_quantile(np.abs(memory).tolist(), 0.5),
                reference=where[name]["reference"],
                form_from=where[name].get("form_from"),
            )
        )
    return _over_sources(sources, [abs(error) for _, error in _unseen_errors("moe_errors.csv")], {})


def _fidelity(
    found: Validation,
    errors_file: str,
    where: Mapping[str, Mapping[str, str]],
    bandwidths: Mapping[str, Residuals | None],
) -> CarriedFidelity:
    errors = _unseen_errors(errors_file)
    unseen: dict[str, list[float]] = {}
    for source, error in errors:
        unseen.setdefault(source, []).append(abs(error))
    sources = []
    for name, score in found.sources.items():
        if score.throughput is None:
            continue
        mine = [p for p in found.predictions.values() if p.run.setting.source == name]
        sources.append(
            SourceFidelity(
                source=name,
                stacks=", ".join(sorted({p.stack for p in mine})),
                gpus=_gpu_words((p.run.setting.gpu, p.run.setting.n_gpus) for p in mine),
                runs=score.throughput.points,
                median_frac=score.throughput.median_frac,
                p90_frac=score.throughput.p90_frac,
                bias_frac=score.throughput.bias_frac,
                unseen_frac=_quantile(unseen.get(name, []), 0.5),
                unseen_p90_frac=_quantile(unseen.get(name, []), 0.9),
                memory_median_frac=score.memory.median_frac if score.memory else None,
                reference=where[name]["reference"],
                form_from=where[name].get("form_from"),
            )
        )
    return _over_sources(sources, [abs(error) for _, error in errors], bandwidths)


def _gpu_words(runs: Iterable[tuple[str, int]]) -> str:
    """Kinds of GPUs and the most of them, of runs with a name and a number of GPUs each."""
    names, counts = zip(*runs, strict=True)
    return f"{', '.join(sorted({name.partition('-')[0].upper() for name in names}))}, up to {max(counts):,}"


def _over_sources(
    sources: Sequence[SourceFidelity], unseen: Sequence[float], bandwidths: Mapping[str, Residuals | None]
) -> CarriedFidelity:
    """``unseen`` has the size of the error of each run."""
    return CarriedFidelity(
        sources=tuple(sources),
        unseen_frac=_quantile([s.unseen_frac for s in sources if s.unseen_frac is not None], 0.5),
        unseen_p90_frac=_quantile(unseen, 0.9),
        headline_frac=float(np.median([s.median_frac for s in sources])),
        all_reduce=bandwidths.get("all_reduce"),
        all_gather=bandwidths.get("all_gather"),
    )


def _unseen_errors(name: str) -> list[tuple[str, float]]:
    """Source and error of each carried run, predicted as if its source had never been seen."""
    rows = csv.DictReader((FOLDER / name).read_text(encoding="utf-8").splitlines())
    return [(row["source"], float(row["unseen_error_frac"])) for row in rows if row["unseen_error_frac"]]


def _quantile(values: Sequence[float], share: float) -> float | None:
    return float(np.quantile(values, share)) if len(values) else None


PROMISED = (0.8, 0.9)
SAME_WORDS = ("source", "gpu", "sharding", "schedule", "precision", "recompute")
SAME_NUMBERS = ("n_gpus", "layers", "hidden", "tp", "pp", "cp", "dp", "seq_len", "micro_tokens", "tokens_per_gpu")
"""What tells the job of a row of errors."""


@lru_cache(maxsize=2)
def jobs_of(errors: Errors) -> tuple[Job | None, ...]:
    """For each row, the job as knee would be asked for it if its source were unknown; None: its run is not carried."""
    jobs: dict[tuple[object, ...], Job] = {}
    carried = carried_moe_runs() if errors is read_errors(EXPERTS) else carried_runs()
    for run in carried.runs:
        if run.status != "ok":
            continue
        try:
            own, job = job_of(run.setting), unseen_job_of(run.setting).job
        except InputError:
            continue
        (row,) = error_rows([(run, own, (0.0, None), (None, None))])
        # its own nodes and rates make a cluster of its own; its label is that of the catalogue's
        cluster = replace(job.cluster, name=job.cluster.name.partition(" (")[0])
        jobs.setdefault(tuple(row[name] for name in (*SAME_WORDS, *SAME_NUMBERS)), replace(job, cluster=cluster))
    words, numbers = (errors.words[name] for name in SAME_WORDS), (errors.numbers[name] for name in SAME_NUMBERS)
    return tuple(jobs.get(key) for key in zip(*words, *numbers, strict=True))


Ends = Mapping[str, tuple[Constants, Mapping[float, tuple[float, float]]]]
"""Source -> constants, and promised share -> ends at no distance, both without it."""


def ends_without(
    errors: Errors, quantity: Quantity, by: Mapping[str, Mapping[Quantity, Constants]], shipped: Path = CONSTANTS
) -> Ends:
    """Source -> the band's constants and its ends at no distance, from the errors of the other sources.

    ``by`` has constants that were fitted without a source; else those of the catalogue's file ``shipped``.
    """
    found = {}
    for source in dict.fromkeys(errors.words["source"]):
        constants = by.get(source, carried_constants(shipped))[quantity]
        scores = Scores(errors.where(~errors.is_("source", source)), quantity, constants)
        found[source] = (constants, {promised: scores.ends(promised) for promised in PROMISED})
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCountError:
    """The middle one of the runs of a source on one number of GPUs, predicted as if the source had never been seen."""

    source: str
    n_gpus: int
    runs: int
    error_frac: float
    """Predicted over measured less one."""
    low_frac: float
    """The band of 90% that the other sources promise for it, of the same ratio."""
    high_frac: float


def errors_by_gpus(errors: Errors | None = None) -> list[GpuCountError]:
    """Throughput of every source at every number of GPUs that it has."""
    errors = read_errors() if errors is None else errors
    jobs, error = jobs_of(errors), unseen(errors, "throughput")
    found: list[GpuCountError] = []
    ends = ends_without(errors, "throughput", {})
    for source, (constants, at) in ends.items():
        mine = errors.is_("source", source)
        rest = errors.where(~mine)
        scores = Scores(rest, "throughput", constants)
        for n_gpus in np.unique(errors.numbers["n_gpus"][mine]).tolist():
            some = np.flatnonzero(mine & (errors.numbers["n_gpus"] == n_gpus) & np.isfinite(error))
            some = np.array([i for i in some[np.argsort(error[some])].tolist() if jobs[i] is not None], dtype=np.int64)
            if not len(some):
                continue
            middle = int(some[len(some) // 2])
            job = jobs[middle]
            assert job is not None
            like = likeness_of(job, (), rest)
            away = scores.measured.of_job(job, like.gpu, like.stack)
            scale = float(constants.scale(np.array([away]).T)[0]) * constants.labels[label_of(like)]
            low, high = (scale * end for end in at[PROMISED[-1]])
            found.append(
                GpuCountError(
                    source=source,
                    n_gpus=int(n_gpus),
                    runs=len(some),
                    error_frac=float(error[middle]),
                    low_frac=float(np.exp(-high) - 1.0),
                    high_frac=float(np.exp(-low) - 1.0),
                )
            )
    return found
