"""The conditions of a run: what a cluster file says of reliability, and the catalogue's default for the rest."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np

from knee.base import units
from knee.base.arrays import normal_deviations
from knee.specs.catalog import Source, catalog_file
from knee.specs.fields import unit_of
from knee.specs.hardware import Cluster
from knee.specs.reliability import CAUSES, Cause, CheckpointMethod, Reliability, Startup

NO_DEFAULT = ("initialisation_s", "checkpoint_interval_s", "spare_nodes")
"""Fields whose absence means something else than a number."""
RATE_ENDS = ("rate_low_frac", "rate_high_frac")
"""Failure rates of clusters over the default: the 10th and the 90th percentile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Every value of ``Reliability``, given or default."""

    failures_per_gpu_h: dict[Cause, float]
    planned_stops_per_gpu_h: float
    detection_s: float
    scheduling_s: float
    initialisation_s: float | None
    startup: Startup
    warmup_s: float
    checkpoint: CheckpointMethod
    checkpoint_interval_s: float | None
    storage_bytes_per_s: float
    host_copy_bytes_per_s: float
    evaluation_s: float
    evaluation_interval_s: float
    spare_nodes: int | None
    repair_s: float
    slow_nodes_per_gpu_h: float
    slow_frac: float
    slow_detection_s: float
    defaults: tuple[str, ...]
    """Fields that have their default."""

    @property
    def rate_spread(self) -> float:
        """Standard deviation of the logarithm of the failure rate: between clusters where no rate is given, else 0."""
        if any(field not in self.defaults for field in CAUSES.values()):
            return 0.0
        low, high = (default_of("run", name)[0] for name in RATE_ENDS)
        return math.log(high / low) / (2.0 * normal_deviations(0.8))


DEFAULTS = "reliability.toml"
"""The catalogue's file of failure rates and restart times."""


@cache
def default_of(table: str, name: str) -> tuple[Any, Source]:
    """A value of catalog/reliability.toml in base SI, and its source."""
    entry = catalog_file(DEFAULTS)[table][name]
    unit = unit_of(name)
    value = units.parse(entry["value"], unit or "frac") if unit or table == "run" else entry["value"]
    return value, Source(value=entry["value"], kind=entry["kind"], text=entry["source"])


def conditions_of(cluster: Cluster) -> Conditions:
    """What is known of a cluster, with the defaults named."""
    given = cluster.reliability or Reliability()
    values: dict[str, Any] = {}
    defaults = []
    for field in fields(Reliability):
        value = getattr(given, field.name)
        if value is None and field.name not in NO_DEFAULT:
            value, _ = default_of("defaults", field.name)
            defaults.append(field.name)
        values[field.name] = value
    rates = {cause: values.pop(name) for cause, name in CAUSES.items()}
    return Conditions(failures_per_gpu_h=rates, defaults=tuple(defaults), **values)


def rate_words(defaults: Collection[str]) -> str:
    """Whose failure rates a run has, by the fields that have their default."""
    own = [name for name in CAUSES.values() if name not in defaults]
    if not own:
        return "default failure rates"
    return "the cluster's failure rates" if len(own) == len(CAUSES) else "failure rates of the cluster and defaults"


def initialisation_source(startup: Startup) -> Source:
    """Where the initialisation times of a communication library come from."""
    points = catalog_file(DEFAULTS)["initialisation"][startup]
    return Source(value=points["time_s"], kind=points["kind"], text=points["source"])


def initialisation_time_s(startup: Startup, gpus: int) -> float:
    """Time until every rank can communicate.

    Formula: a straight line between published points in the logarithms of GPUs and seconds, with its slope beyond the
             last point, and in proportion to the GPUs below the first
    Source:  arXiv 2510.20171, in catalog/reliability.toml
    Valid:   8,192 to 98,304 GPUs
    """
    points = catalog_file(DEFAULTS)["initialisation"][startup]
    counts, times = np.log(points["gpus"]), np.log(points["time_s"])
    wanted = math.log(gpus)
    if wanted <= counts[0]:
        return float(points["time_s"][0] * gpus / points["gpus"][0])
    slope = (times[-1] - times[-2]) / (counts[-1] - counts[-2])
    beyond = max(wanted - counts[-1], 0.0) * slope
    return float(np.exp(np.interp(wanted, counts, times) + beyond))
