"""Tables of a study file about months of training: runs with failures, replicas on slow links, the largest run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field, StrictFloat

from knee.errors import SpecError

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[StrictFloat | int, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRun:
    """A training run of some tokens on several numbers of GPUs, with failures and without."""

    series: str
    """Name of the curves."""
    model: str
    """Model, by name or path."""
    cluster: str
    """Cluster, by name or path."""
    profile: str
    """Software profile, by name or path."""
    gpus: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Numbers of GPUs."""
    global_batch: Count
    """Sequences per step."""
    seq_len: Count
    """Tokens per sequence."""
    tokens: str
    """Tokens of the run, such as 15T."""
    plan: Mapping[str, int | str] = field(default_factory=dict)
    """Fields of the plan; data parallelism fills the GPUs."""
    set: Mapping[str, str] = field(default_factory=dict)
    """As ``--set``, for the cluster and the profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaExchange:
    """Replicas on slow links: bandwidth that they need, beside a table that was published."""

    series: str
    """Name of the row of the table."""
    params: Positive
    """Parameters."""
    step_s: Positive
    """Time of a step without exchange, in seconds."""
    every: Count = 1
    """Steps between two exchanges; 1 is data parallelism."""
    utilisation: Annotated[tuple[Positive, ...], Field(min_length=1)]
    """Shares of the time in which replicas compute."""
    gbit_per_s: tuple[Positive, ...]
    """Published bandwidths in Gbit/s, one for each share; more than 1,000 is written as 1001."""

    def __post_init__(self) -> None:
        if len(self.gbit_per_s) != len(self.utilisation):
            text = "gbit_per_s needs one value for each value of utilisation"
            raise SpecError(text, code="contradiction", field="gbit_per_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wall:
    """The utilisation of the largest runs against their FLOP, with the cluster's data rates and latencies."""

    series: str
    """Name of the curve."""
    cluster: str
    """Cluster, by name or path."""
    flop: tuple[Positive, ...] = ()
    """FLOP of the runs."""
    days: Positive = 90.0
    """Days of training."""
    batch_tokens: Positive = 3.2e6
    """Tokens per step at the FLOP of GPT-3; the batch grows with the cube root of the model."""
    latency_frac: Positive = 1.0
    """Latencies divided by those of the cluster."""
