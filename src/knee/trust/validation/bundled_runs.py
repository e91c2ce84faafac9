"""knee's own validation set: published runs and bandwidths that it carries, and how well they are predicted."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files

import numpy as np

from knee.measure.hardware_fit.residuals import Residuals
from knee.trust.validation.bandwidth_errors import BandwidthValidation, carried_bandwidths, validate_bandwidths
from knee.trust.validation.published_runs import RunFile, read_runs
from knee.trust.validation.run_errors import Validation, validate

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
