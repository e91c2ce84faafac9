"""How large a training run can be: data movement and latency against FLOP, in the spirit of Epoch AI's limits.

The model is abstract: a dense decoder, perfect overlap of bandwidth with compute, and every latency in full. It takes
the rates and latencies of a cluster of the catalogue, and searches tensor, pipeline and data parallelism by powers of
2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from knee.base.arrays import Floats
from knee.base.units import DAY_S
from knee.specs.constants import constant
from knee.specs.hardware import Cluster

DAYS = 90.0
TOKENS_PER_PARAM = 20.0
ASPECT = 128.0
"""Hidden size over layers."""
SEQ_LEN = 4096.0
BATCH_TOKENS, BATCH_FLOP, BATCH_EXPONENT = 3.2e6, 3.14e23, 1.0 / 6.0
"""The stated law of the batch: GPT-3's (arXiv 2005.14165, table 2.1) at its FLOP, growing with the cube root of the
model."""
INTERLEAVED = 8.0
"""Most model chunks of a pipeline rank."""
BYTES = 2.0
GEMMS = 4
"""Matrix products of a layer one after another: query-key-value, output, and two of the MLP."""
GOOD_FRAC = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestRun:
    """The best way to do so many FLOP in the time; none if there is no way."""

    flop: float
    params: float
    batch_tokens: float
    utilisation_frac: float | None
    gpus: float | None
    tp: float | None
    pp: float | None
    dp: float | None


def largest_run(
    cluster: Cluster, flop: float, *, days: float = DAYS, batch_tokens: float = BATCH_TOKENS, latency_frac: float = 1.0
) -> LargestRun:
    """The plan with the highest utilisation that ends in time.

    Formula: step = max((m + (p - 1) / chunks) stage, gradients); utilisation = 6 N B / (GPUs peak step)
             stage = max(compute, tp exchange, pp exchange) + latencies of a microbatch, forward and backward
    Where:   N = sqrt(FLOP / 120); B = 3.2e6 (FLOP / 3.14e23)^(1/6) tokens; m microbatches of at least one token a rank;
             a pipeline rank has 1 or 8 chunks; latencies are the catalogue's times ``latency_frac``
    Source:  the question is that of arXiv 2411.01137; the batch law is stated here; rates are the catalogue's
    Valid:   dense models, 20 tokens per parameter; it prices no memory, contention, stragglers or failures
    """
    params = math.sqrt(flop / (6.0 * TOKENS_PER_PARAM))
    batch = batch_tokens * (flop / BATCH_FLOP) ** BATCH_EXPONENT
    layers = (params / (12.0 * ASPECT**2)) ** (1.0 / 3.0)
    tp, pp, dp, m = (column.ravel() for column in np.meshgrid(*_powers(layers, batch), indexing="ij"))
    keep = dp * m <= batch
    tp, pp, dp, m = tp[keep], pp[keep], dp[keep], m[keep]
    step_s = _step_s(cluster, params, layers, batch, tp, pp, dp, m, latency_frac)
    gpus = tp * pp * dp
    used = 6.0 * params * batch / (gpus * cluster.gpu.half_flop_per_s * step_s)
    in_time = TOKENS_PER_PARAM * params / batch * step_s <= days * DAY_S
    if not in_time.any():
        empty = dict.fromkeys(("utilisation_frac", "gpus", "tp", "pp", "dp"))
        return LargestRun(flop=flop, params=params, batch_tokens=batch, **empty)
    best = int(np.argmax(np.where(in_time, used, 0.0)))
    chosen = {"gpus": gpus, "tp": tp, "pp": pp, "dp": dp, "utilisation_frac": used}
    values = {name: float(column[best]) for name, column in chosen.items()}
    return LargestRun(flop=flop, params=params, batch_tokens=batch, **values)


def largest_flop(
    cluster: Cluster,
    utilisation_frac: float,
    *,
    days: float = DAYS,
    batch_tokens: float = BATCH_TOKENS,
    latency_frac: float = 1.0,
) -> float:
    """The most FLOP at this utilisation or better; 0 asks for the wall, beyond which no run ends in time."""
    low, high = 20.0, 36.0
    for _ in range(12):
        middle = 0.5 * (low + high)
        run = largest_run(cluster, 10.0**middle, days=days, batch_tokens=batch_tokens, latency_frac=latency_frac)
        good = run.utilisation_frac is not None and run.utilisation_frac >= utilisation_frac
        low, high = (middle, high) if good else (low, middle)
    return float(10.0**low)


def _powers(layers: float, batch: float) -> list[Floats]:
    """Degrees and microbatches that are tried."""

    def up_to(most: float) -> Floats:
        return np.asarray(2.0 ** np.arange(int(math.log2(max(most, 1.0))) + 1))

    return [up_to(4096.0), up_to(layers), up_to(batch), up_to(65_536.0)]


def _step_s(
    cluster: Cluster,
    params: float,
    layers: float,
    batch: float,
    tp: Floats,
    pp: Floats,
    dp: Floats,
    m: Floats,
    latency_frac: float,
) -> Floats:
    node, fabric, gpu = cluster.node, cluster.fabric, cluster.gpu
    tokens, hidden = batch / dp / m, layers * ASPECT
    per_stage = layers / pp
    compute = 6.0 * params * tokens / (tp * pp * gpu.half_flop_per_s)
    inside = np.minimum(tp, node.gpus)
    outside = tp / inside
    # two collectives of the activations forward and two backward, in levels: inside the node, then between nodes
    message = BYTES * tokens * hidden
    link, nic = node.link_bytes_per_s * node.link_frac, fabric.nic_bytes_per_s * fabric.nic_frac
    wire = 2.0 * (inside - 1.0) / inside * message / link + 2.0 * (outside - 1.0) / outside * message / inside / nic
    exchange = 4.0 * per_stage * wire
    hops = np.where(inside > 1, _inside_latency_s(cluster), 0.0) + 2.0 * np.log2(outside) * fabric.hop_s
    latency = per_stage * (3.0 * GEMMS * gpu.kernel_s + 4.0 * hops)
    gradients = np.where(dp > 1, 2.0 * BYTES * params / (tp * pp) / nic + 2.0 * np.log2(dp) * fabric.hop_s, 0.0)
    steps = []
    for chunks in (1.0, INTERLEAVED):
        # more chunks of a rank shorten the bubble, and send as often
        send = np.where(pp > 1, 2.0 * chunks * message / tp / nic, 0.0)
        waits = latency_frac * (latency + np.where(pp > 1, 2.0 * chunks * fabric.hop_s, 0.0))
        stage = np.maximum(np.maximum(compute, exchange), send) + waits
        steps.append(np.where(layers / pp >= chunks, np.maximum((m + (pp - 1.0) / chunks) * stage, gradients), np.inf))
    return np.minimum(*steps)


def _inside_latency_s(cluster: Cluster) -> float:
    """One all-reduce of little data inside a node."""
    nvls, base = constant("collectives", "nvls_base_s"), constant("collectives", "base_s")
    return nvls if cluster.node.nvls else base + 2.0 * (cluster.node.gpus - 1) * cluster.node.hop_s
