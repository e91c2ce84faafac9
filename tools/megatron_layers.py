"""Megatron-LM's measured MoE layers and what the cost model says of them; nothing is fitted on them."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from expert_tables import experts_backward_s, experts_forward_s

from knee.base.arrays import Floats
from knee.engine.cost.collective_cost import Links
from knee.engine.cost.expert_dispatch import BALANCED, Exchange, combine_s, dispatch_s, permutation_bytes, rank_loads
from knee.engine.workload.projections import BYTES
from knee.specs.hardware import GemmType
from knee.specs.plan import Dispatcher

_KERNELS = 12
"""Memory-bound kernels in one direction: router, sorting, activation, casts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronLayer:
    """One layer: predicted and measured."""

    words: str
    kind: GemmType
    forward_s: float
    backward_s: float
    measured_forward_s: float
    measured_backward_s: float


def read_megatron_layers(path: Path, links: Links, *, clock_frac: float | None = None) -> list[MegatronLayer]:
    """The layers of a file, predicted on a cluster; the clock is that of products in training unless given."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_layer(row, links, clock_frac) for row in csv.DictReader(file)]


def _layer(row: dict[str, str], links: Links, clock_frac: float | None) -> MegatronLayer:
    names = ("hidden", "ffn", "experts", "top_k", "tokens", "ep")
    column: dict[str, Floats] = {name: np.array([float(row[name])]) for name in names}
    kind: GemmType = row["kind"]  # type: ignore[assignment]
    dispatcher: Dispatcher = row["dispatcher"]  # type: ignore[assignment]
    gpu = links.cluster.gpu
    loads = rank_loads(BALANCED, column["tokens"] * column["ep"], column["top_k"], column["experts"], column["ep"])
    exchange = Exchange(
        tokens=column["tokens"],
        hidden=column["hidden"],
        top_k=column["top_k"],
        experts=column["experts"],
        ranks=column["ep"],
        per_domain=column["ep"],
    )
    # the gradient of a dispatch is a combine without weights, and the reverse
    both = dispatch_s(links, dispatcher, exchange) + combine_s(links, dispatcher, exchange)
    rows, hidden, ffn = loads.rows, column["hidden"], column["ffn"]
    sorting = permutation_bytes(dispatcher, exchange, rows)
    # SwiGLU reads gate and up and writes one; its gradient reads three and writes two
    forward_bytes = sorting + 3.0 * BYTES * rows * ffn
    backward_bytes = sorting + 5.0 * BYTES * rows * ffn
    if kind != "bf16":
        # operands are read in 16 bit and written in 8, as they are and transposed for the weight gradient
        forward_bytes = forward_bytes + (BYTES + 2.0) * rows * (hidden + ffn)
        backward_bytes = backward_bytes + (BYTES + 2.0) * rows * (hidden + 2.0 * ffn)
    hbm = gpu.hbm_bytes_per_s * gpu.hbm_frac
    start = _KERNELS * gpu.kernel_s
    forward = experts_forward_s(gpu, kind, loads, hidden, ffn, clock_frac=clock_frac)
    forward = forward + both + forward_bytes / hbm + start
    # gradients are added to fp32
    backward = experts_backward_s(gpu, kind, loads, hidden, ffn, gradient_bytes=8.0, clock_frac=clock_frac)
    backward = backward + both + backward_bytes / hbm + start
    return MegatronLayer(
        words=f"{row['hidden']}/{row['ffn']}, {dispatcher}, {kind}",
        kind=kind,
        forward_s=float(forward[0]),
        backward_s=float(backward[0]),
        measured_forward_s=float(row["forward_ms"]) * 1e-3,
        measured_backward_s=float(row["backward_ms"]) * 1e-3,
    )
