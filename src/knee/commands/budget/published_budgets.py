"""Published training runs against what knee predicts for them: GPU hours of the model, tokens, batch and GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from knee.base.units import HOUR_S
from knee.commands.budget.scaling_laws import FLOP_PER_PARAM_TOKEN
from knee.commands.budget.throughput import Rate, Rates
from knee.engine.reliability.goodput import goodput_of
from knee.engine.workload.parameters import parameter_count
from knee.specs.catalog import ROOT, read_toml
from knee.specs.load import load_cluster, load_model, load_profile

WITHIN_FRAC = 0.25
"""Of the published hours: what a prediction is to come within."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTraining:
    """One run and what is predicted for it. None: not published, or not to be predicted."""

    name: str
    cluster: str | None = None
    profile: str | None = None
    gpus: int | None = None
    tokens: float
    gpu_hours: float | None = None
    predicted_gpu_hours: float | None = None
    failed_gpu_hours: float | None = None
    """Predicted with failures, by the default rates of ``[reliability]``."""
    goodput_frac: float | None = None
    flop: float | None = None
    predicted_flop: float | None = None
    rate: Rate | None = None
    assumed: str
    source: str

    @property
    def error_frac(self) -> float | None:
        """Predicted over published less one: of hours, or of FLOP where those are all there is."""
        if self.gpu_hours is not None and self.predicted_gpu_hours is not None:
            return self.predicted_gpu_hours / self.gpu_hours - 1.0
        return None if self.flop is None or self.predicted_flop is None else self.predicted_flop / self.flop - 1.0

    @property
    def failed_error_frac(self) -> float | None:
        """The same of the hours with failures."""
        if self.gpu_hours is None or self.failed_gpu_hours is None:
            return None
        return self.failed_gpu_hours / self.gpu_hours - 1.0


def published_runs() -> list[PublishedTraining]:
    """All of ``catalog/training_runs.toml``, each under the best plan of the lean set."""
    found = []
    for name, raw in read_toml(ROOT / "training_runs.toml").items():
        tokens = float(raw["tokens"])
        common = {"name": name, "tokens": tokens, "assumed": raw["assumed"], "source": raw["source"]}
        if "gpu_hours" not in raw:
            flop = FLOP_PER_PARAM_TOKEN * float(raw["params"]) * tokens
            found.append(PublishedTraining(**common, flop=float(raw["flop"]), predicted_flop=flop))
            continue
        hours, rate = predicted_gpu_hours(raw)
        left = None
        if rate is not None:
            params, cluster = parameter_count(load_model(raw["model"]).spec), load_cluster(raw["cluster"]).spec
            step_s = int(raw["global_batch"]) * int(raw["seq_len"]) / rate.tokens_per_s
            left = goodput_of(params, cluster, rate.gpus, step_s=step_s).goodput_frac
        found.append(
            PublishedTraining(
                **common,
                cluster=raw["cluster"],
                profile=raw["profile"],
                gpus=int(raw["gpus"]),
                rate=rate,
                gpu_hours=float(raw["gpu_hours"]),
                predicted_gpu_hours=hours,
                failed_gpu_hours=None if hours is None or left is None else hours / left,
                goodput_frac=left,
            )
        )
    return found


def predicted_gpu_hours(raw: Mapping[str, Any]) -> tuple[float | None, Rate | None]:
    """Of one run of the file, and the plan they are of; None where no plan fits."""
    rates = Rates(
        cluster=load_cluster(raw["cluster"]).spec,
        profile=load_profile(raw["profile"]).spec,
        seq_len=int(raw["seq_len"]),
    )
    key = int(raw["gpus"]), int(raw["global_batch"])
    rate = rates.of(load_model(raw["model"]).spec, [key])[key]
    return (None if rate is None else float(raw["tokens"]) / rate.tokens_per_s * rate.gpus / HOUR_S), rate
