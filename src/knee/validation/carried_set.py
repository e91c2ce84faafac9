"""knee's own validation set: published runs and bandwidths that it carries, and how well they are predicted."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files

import numpy as np

from knee.hardware_fit.residuals import Residuals
from knee.validation.bandwidth_errors import BandwidthValidation, validate_bandwidths
from knee.validation.published_bandwidths import carried_bandwidths
from knee.validation.published_runs import RunFile, read_runs
from knee.validation.run_errors import Validation, validate

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
    size_out_frac: float | None
    """Median error where the fit saw no run of that model size."""
    source_out_frac: float | None
    """Median error where the fit saw no run of that source."""
    memory_median_frac: float | None
    reference: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedFidelity:
    """The table that the study shows."""

    sources: tuple[SourceFidelity, ...]
    headline_frac: float
    """Median over sources of their medians, as the next two."""
    size_out_frac: float | None
    source_out_frac: float | None
    all_reduce: Residuals | None
    """Of bus bandwidth, messages of 16 MiB and up."""
    all_gather: Residuals | None
    gathered_runs: int
    """Runs of the table by which an answer says how far it can be trusted; those that are carried are a part."""


def carried_runs() -> RunFile:
    """The published runs that knee carries."""
    with as_file(FOLDER / "runs.csv") as path:
        return read_runs(path)


def references() -> dict[str, str]:
    """Source -> where it was published."""
    text = (FOLDER / "sources.toml").read_text(encoding="utf-8")
    return {name: str(table["reference"]) for name, table in tomllib.loads(text).items()}


def carried_fidelity(found: Validation | None = None, links: BandwidthValidation | None = None) -> CarriedFidelity:
    """Predict the carried runs and bandwidths; errors of runs left out are those of the last fit."""
    found = found or validate(carried_runs())
    left_out = _left_out()
    where = references()
    sources = []
    for name, score in found.sources.items():
        if score.throughput is None:
            continue
        mine = [p for p in found.predictions.values() if p.run.setting.source == name]
        kinds = sorted({p.run.setting.gpu.partition("-")[0].upper() for p in mine})
        sources.append(
            SourceFidelity(
                source=name,
                stacks=", ".join(sorted({p.stack for p in mine})),
                gpus=f"{', '.join(kinds)}, up to {max(p.run.setting.n_gpus for p in mine):,}",
                runs=score.throughput.points,
                median_frac=score.throughput.median_frac,
                p90_frac=score.throughput.p90_frac,
                bias_frac=score.throughput.bias_frac,
                size_out_frac=_median(left_out["error_frac"].get(name, [])),
                source_out_frac=_median(left_out["unseen_error_frac"].get(name, [])),
                memory_median_frac=score.memory.median_frac if score.memory else None,
                reference=where[name],
            )
        )
    bandwidths = (links or validate_bandwidths(carried_bandwidths())).headline
    return CarriedFidelity(
        sources=tuple(sources),
        headline_frac=float(np.median([s.median_frac for s in sources])),
        size_out_frac=_median([s.size_out_frac for s in sources if s.size_out_frac is not None]),
        source_out_frac=_median([s.source_out_frac for s in sources if s.source_out_frac is not None]),
        all_reduce=bandwidths.get("all_reduce"),
        all_gather=bandwidths.get("all_gather"),
        gathered_runs=len(_errors()),
    )


def _left_out() -> Mapping[str, Mapping[str, list[float]]]:
    """Sizes of the errors of carried runs that a fit did not see, by source (``tools/fit_published.py``)."""
    found: dict[str, dict[str, list[float]]] = {"error_frac": {}, "unseen_error_frac": {}}
    for row in _errors():
        for name, by_source in found.items():
            if row[name] and row.get("carried", "1") == "1":
                by_source.setdefault(row["source"], []).append(abs(float(row[name])))
    return found


def _errors() -> list[dict[str, str]]:
    text = (FOLDER / "errors.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _median(values: list[float]) -> float | None:
    return float(np.median(values)) if values else None
