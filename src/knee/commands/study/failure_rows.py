"""Months of training as rows of a study: runs with failures, replicas on slow links, and the largest possible run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pydantic import Field, StrictFloat

from knee.base.errors import DoesNotFit, SpecError
from knee.base.units import DAY_S
from knee.engine.energy import grid as grid_of
from knee.engine.one_job import simulate
from knee.engine.reliability.goodput import goodput_of
from knee.engine.reliability.whole_run import month_of, whole_run
from knee.engine.training_cost import bill_of, parse_tokens
from knee.engine.workload.parameters import parameter_count
from knee.specs.constants import constant
from knee.specs.fields import split_overrides
from knee.specs.hardware import Cluster
from knee.specs.load import load_cluster, load_model, load_profile, make_job
from knee.trust.trust import trust_of

# Replicas on links so slow that their bandwidth decides: the share of the time in which they compute. It is the
# abstract model of the papers on DiLoCo, without a network's latencies: to be held against their tables.

BITS = 16.0
"""Of one number that is exchanged: bf16, as in the papers."""
GRID_BITS_PER_S = 1e9 * np.logspace(-1.0, 3.0, 50)
"""Bandwidths that arXiv 2503.09799 tries: 0.1 to 1,000 Gbit/s; each step is 21% more."""


def needed_bits_per_s(
    params: float, step_s: float, utilisation: float, *, every: int = 1, fragments: int = 1, bits: float = BITS
) -> float:
    """Bandwidth at which replicas compute this share of the time.

    Formula: the bandwidth for which H t / max(H t, (H - w) t + E) is the share
    Where:   E = bits * params / bandwidth, every H steps of length t, between two replicas (2 (1 - 1/2) parts each);
             it runs beside w of the steps: the last one, or all of them if fragments are streamed
    Source:  inferred from tables 6 and 7 of arXiv 2503.09799; Streaming DiLoCo, arXiv 2501.18512
    Valid:   without latency; compute is not slowed down
    """
    beside = every if fragments > 1 else 1
    return bits * params / (every * step_s / utilisation - (every - beside) * step_s)


def grid_step(bits_per_s: float) -> int:
    """The nearest bandwidth of the papers' grid, counted from 0."""
    low, high = math.log10(GRID_BITS_PER_S[0]), math.log10(GRID_BITS_PER_S[-1])
    place = (math.log10(bits_per_s) - low) / (high - low) * (len(GRID_BITS_PER_S) - 1)
    return min(max(round(place), 0), len(GRID_BITS_PER_S) - 1)


# How large a training run can be: data movement and latency against FLOP, in the spirit of Epoch AI's limits. The
# model is abstract: a dense decoder, perfect overlap of bandwidth with compute, and every latency in full. It takes
# the rates and latencies of a cluster of the catalogue, and searches tensor, pipeline and data parallelism by powers
# of 2.

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


def largest_run(
    cluster: Cluster, flop: float, *, days: float = DAYS, batch_tokens: float = BATCH_TOKENS, latency_frac: float = 1.0
) -> dict[str, float | None]:
    """The plan with the highest utilisation that ends in time, as columns of a row; None where no plan does.

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
    limits = (4096.0, layers, batch, 65_536.0)
    powers = [2.0 ** np.arange(int(math.log2(max(most, 1.0))) + 1) for most in limits]
    tp, pp, dp, m = (column.ravel() for column in np.meshgrid(*powers, indexing="ij"))
    keep = dp * m <= batch
    tp, pp, dp, m = tp[keep], pp[keep], dp[keep], m[keep]
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
    step_s, gpus = np.minimum(*steps), tp * pp * dp
    used = 6.0 * params * batch / (gpus * cluster.gpu.half_flop_per_s * step_s)
    in_time = TOKENS_PER_PARAM * params / batch * step_s <= days * DAY_S
    best = int(np.argmax(np.where(in_time, used, 0.0))) if in_time.any() else None
    chosen = {"utilisation_frac": used, "gpus": gpus, "tp": tp, "pp": pp, "dp": dp}
    return {"params": params} | {name: None if best is None else float(chosen[name][best]) for name in chosen}


def largest_flop(cluster: Cluster, utilisation_frac: float, **given: float) -> float:
    """The most FLOP at this utilisation or better; 0 asks for the wall, beyond which no run ends in time. The other
    arguments are those of ``largest_run``."""
    low, high = 20.0, 36.0
    for _ in range(12):
        middle = 0.5 * (low + high)
        used = largest_run(cluster, 10.0**middle, **given)["utilisation_frac"]
        good = used is not None and used >= utilisation_frac
        low, high = (middle, high) if good else (low, middle)
    return float(10.0**low)


def _inside_latency_s(cluster: Cluster) -> float:
    """One all-reduce of little data inside a node."""
    nvls, base = constant("collectives", "nvls_base_s"), constant("collectives", "base_s")
    return nvls if cluster.node.nvls else base + 2.0 * (cluster.node.gpus - 1) * cluster.node.hop_s


# Tables of a study file about months of training: runs with failures, replicas on slow links, the largest run.

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


BEYOND_GRID = 1000.0
"""Gbit/s: the largest bandwidth of the papers' grid, and what stands for more than that."""
ABSTRACT = {"kind": "simulated", "trust": "extrapolated"}
"""Of rows that an abstract model gives, which no run was compared with."""


def long_run_rows(study: str, grid: LongRun) -> Iterator[dict[str, Any]]:
    """Rows of days for each number of GPUs, and of causes and of one month for the largest."""
    _, for_cluster, for_profile, _ = split_overrides(grid.set.items())
    model = load_model(grid.model).spec
    cluster, profile = load_cluster(grid.cluster, for_cluster).spec, load_profile(grid.profile, for_profile).spec
    tokens, params = parse_tokens(grid.tokens), parameter_count(model)
    for gpus in grid.gpus:
        sizes = {"gpus": gpus, "global_batch": grid.global_batch, "seq_len": grid.seq_len}
        job, _ = make_job(model, cluster, profile, **sizes, plan_options=dict(grid.plan))
        measured = simulate(job)
        if not measured.fits:
            text = f"{study}: the plan of {grid.series} does not fit on {gpus:,} GPUs"
            raise DoesNotFit(text, hint="change plan in [[long_run]]", field="long_run")
        bill = bill_of(measured, tokens, grid=grid_of("world"), pue=1.0)
        goodput = goodput_of(params, cluster, gpus, step_s=measured.step_s)
        run = whole_run(goodput, bill.time_s)
        common = {"study": study, "kind": "simulated", "model": grid.model, "cluster": grid.cluster, "gpus": gpus}
        common["trust"] = trust_of(job).label
        days = {"no failures": bill.time_s, "mean": run.mean_s, "p10": run.p10_s, "p90": run.p90_s}
        for name, time_s in days.items():
            row = {"goodput_frac": goodput.goodput_frac, "interruptions": run.interruptions}
            yield common | {"series": f"{grid.series}: {name}", "run_days": time_s / DAY_S} | row
        if gpus == grid.gpus[-1]:
            for cause, share in (goodput.causes | {"checkpoints": goodput.parts["checkpoints"]}).items():
                yield common | {"series": f"{grid.series}: {cause.replace('_', ' ')}", "cause_frac": share}
            for event in month_of(goodput):
                yield common | {"series": grid.series, **event}


def exchange_rows(study: str, grids: tuple[ReplicaExchange, ...]) -> Iterator[dict[str, Any]]:
    """A row for each cell of the published tables, and one for all of them."""
    apart = []
    for grid in grids:
        for share, published in zip(grid.utilisation, grid.gbit_per_s, strict=True):
            needed = needed_bits_per_s(float(grid.params), float(grid.step_s), float(share), every=grid.every)
            # more than the grid has is a step beyond its end
            at = grid_step(1e9 * published) + (published > BEYOND_GRID)
            steps = grid_step(needed) - at
            apart.append(abs(steps))
            yield {
                "study": study,
                "series": grid.series,
                **ABSTRACT,
                "params": grid.params,
                "sync_every": grid.every,
                "utilisation_frac": share,
                "gbit_per_s": needed / 1e9,
                "published_gbit_per_s": published,
                "grid_steps": steps,
            }
    if apart:
        within = sum(steps <= 1 for steps in apart) / len(apart)
        yield {"study": study, "series": "all cells", **ABSTRACT, "within_frac": within, "cells": len(apart)}


def wall_rows(study: str, grid: Wall) -> Iterator[dict[str, Any]]:
    """A row for each FLOP, and one with the knee and the wall."""
    cluster = load_cluster(grid.cluster).spec
    given = {name: float(getattr(grid, name)) for name in ("days", "batch_tokens", "latency_frac")}
    common = {"study": study, "series": grid.series, **ABSTRACT, "cluster": grid.cluster}
    for flop in grid.flop:
        run = largest_run(cluster, float(flop), **given)
        degrees = {name: int(value) for name, value in run.items() if name in ("gpus", "tp", "pp", "dp") and value}
        yield common | {"run_flop": flop} | run | degrees
    knee, wall = (largest_flop(cluster, share, **given) for share in (GOOD_FRAC, 0.0))
    yield common | {"series": f"{grid.series}: limits", "knee_flop": knee, "wall_flop": wall}
