"""How errors of predictions go together: plans that share a mechanism err alike, so one run tells about all of them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np

from knee.base.arrays import Floats, Ints
from knee.specs.plan_table import PlanTable

Quantity = Literal["throughput", "memory"]
SPREADS = files("knee") / "catalog" / "validation" / "tuning.toml"
TERMS = (
    "stack",  # the fitted parameters of the software stack: covariance of draws, and this is a factor of their spread
    "job",  # all plans of the job alike
    "tp",
    "pp",
    "micro_batch",
    "recompute",
    "sharding",
    "sequence_parallel",
    "tp_with_pp",
    "layout",  # only plans that are alike in everything
    "run",  # this plan alone, and the noise between two runs of it
)
DOUBLINGS = 2.0
"""Doublings of a degree over which a correlation falls to 1/e (assumed)."""
OTHER_SCHEDULE, OTHER_RECOMPUTE, OTHER_SHARDING = 0.7, 0.3, 0.5
"""Correlation left between plans that differ in it (assumed)."""

Spreads = Mapping[str, float]
"""Term -> standard deviation of the logarithm; of ``stack``, over that of the draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanisms:
    """What plans share or not, as columns."""

    tp: Floats
    """Doublings of what splits a layer: tensor, context and expert parallelism together."""
    pp: Floats
    micro_batch: Floats
    schedule: Ints
    recompute: Ints
    sharding: Ints
    sequence_parallel: Ints

    @classmethod
    def of(cls, table: PlanTable) -> Mechanisms:
        """Of every plan of a table."""
        return cls(
            tp=np.column_stack([np.log2(table.tp), np.log2(table.cp), np.log2(table.ep)]),
            pp=np.log2(table.pp)[:, None],
            micro_batch=np.log2(table.micro_batch)[:, None],
            schedule=table.schedule * 1000 + table.virtual_stages,
            recompute=_codes(table.recompute, np.round(table.recompute_frac, 2), table.recompute_modules),
            sharding=table.sharding,
            sequence_parallel=(table.sequence_parallel & (table.tp > 1)).astype(np.int64),
        )


def covariance(mechanisms: Mechanisms, log_draws: Floats, spreads: Spreads) -> Floats:
    """Covariance of the errors of log predictions between plans.

    Formula: sum over terms of spread^2 k; k = exp(-|doublings apart| / DOUBLINGS) of degrees, 1 or less of choices
    Where: ``stack`` has the covariance of predictions under draws of the fitted parameters; ``run`` is diagonal
    Source: spreads are fitted to the errors of published runs (tools/fit_tuning.py), the source that is predicted left
        out
    """
    parts = kernels(mechanisms, log_draws)
    total: Floats = np.zeros_like(parts["job"])
    for term in TERMS:
        total += spreads[term] ** 2 * parts[term]
    return total


def kernels(m: Mechanisms, log_draws: Floats) -> dict[str, Floats]:
    """Of each term, the correlation between any two plans."""
    around = log_draws - log_draws.mean(axis=0)
    plans = log_draws.shape[1]
    tp, pp, micro_batch = _near(m.tp), _near(m.pp), _near(m.micro_batch)
    pp = pp * np.where(_same(m.schedule), 1.0, OTHER_SCHEDULE)
    recompute, sharding = _same(m.recompute), _same(m.sharding)
    alike = np.where(recompute, 1.0, OTHER_RECOMPUTE) * np.where(sharding, 1.0, OTHER_SHARDING)
    return {
        "stack": around.T @ around / max(1, len(log_draws) - 1),
        "job": np.ones((plans, plans)),
        "tp": tp,
        "pp": pp,
        "micro_batch": micro_batch,
        "recompute": recompute.astype(np.float64),
        "sharding": sharding.astype(np.float64),
        "sequence_parallel": _same(m.sequence_parallel).astype(np.float64),
        "tp_with_pp": tp * pp,
        "layout": tp * pp * micro_batch * alike,
        "run": np.eye(plans),
    }


def carried_spreads(quantity: Quantity, *, without: str | None = None) -> Spreads:
    """Those of the catalogue; ``without``: as fitted without a source, where it was one of those fitted on."""
    tables = _tables()
    left_out = tables["left_out"].get(without, {}) if without is not None else {}
    table = left_out.get(quantity, tables[quantity])
    return {term: float(value["value"] if isinstance(value, dict) else value) for term, value in table.items()}


def carried_transfer() -> dict[str, float]:
    """Standard deviation of the logarithm that each doubling of ``gpus`` or ``layers`` adds to a transfer."""
    return {what: float(value["value"]) for what, value in _tables()["transfer"].items()}


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(SPREADS.read_text(encoding="utf-8"))


def _near(degrees: Floats) -> Floats:
    apart = np.abs(degrees[:, None, :] - degrees[None, :, :]).sum(axis=-1)
    return np.asarray(np.exp(-apart / DOUBLINGS), dtype=np.float64)


def _same(codes: Ints) -> Any:
    return codes[:, None] == codes[None, :]


def _codes(*columns: Any) -> Ints:
    """One number for each combination."""
    _, code = np.unique(np.column_stack(columns), axis=0, return_inverse=True)
    return np.asarray(code, dtype=np.int64).ravel()
