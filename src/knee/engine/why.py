"""Why a number is what it is: the chain of formulas, constants and sources behind one simulated step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from knee.base.arrays import Floats
from knee.base.errors import SpecError
from knee.base.units import DAY_S, amount, dimension, duration, short, show
from knee.engine.cost.collective_cost import Links, gather_s, ring_bandwidth, ring_turn_s
from knee.engine.cost.compute_costs import product_column, shapes_of
from knee.engine.cost.kernel_cost import GEMM_TYPES, operation_s
from knee.engine.reliability.goodput import (
    RATE_ENDS,
    Conditions,
    Goodput,
    default_of,
    goodput_of,
    initialisation_source,
    time_per_work,
)
from knee.engine.simulator import EvaluatedStep, evaluate
from knee.engine.workload import operations as op
from knee.engine.workload.parameters import model_flop_per_token, parameter_count
from knee.engine.workload.tp_messages import layer_backward, layer_forward
from knee.engine.workload.traffic import PARAMETER_BYTES
from knee.specs.catalog import Source
from knee.specs.constants import constant_rows, pass_rows
from knee.specs.defaults import DEFAULT_CONVENTION
from knee.specs.hardware import CAUSES
from knee.specs.job import Job
from knee.specs.metrics import METRICS, VIEWS
from knee.specs.model import Model
from knee.specs.plan_table import table_of


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyLine:
    """One step of the chain; deeper lines explain the one above them."""

    name: str
    value: str
    formula: str = ""
    source: str = ""
    depth: int = 0


class Chain:
    """Collects lines and looks sources up."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self.lines: list[WhyLine] = []
        self.sources = sources

    def add(self, depth: int, name: str, value: str, formula: str = "", source: str = "") -> None:
        self.lines.append(WhyLine(name=name, value=value, formula=formula, source=source, depth=depth))

    def constant(self, depth: int, key: str, value: str) -> None:
        """A value of the catalogue, with where it came from."""
        found = next((s for k, s in self.sources.items() if k == key or k.endswith("." + key)), None)
        self.add(depth, key, value, source=f"{found.kind}: {found.text}" if found is not None else "")


PARTS = VIEWS["parts of a step"]
SPELLED = ("no", "one", "two", "three", "four", "five", "six")


def explain(
    job: Job, sources: Mapping[str, Source], *, convention: str = DEFAULT_CONVENTION, step: EvaluatedStep | None = None
) -> list[WhyLine]:
    """The whole chain, from tokens per second down to constants, of a step that may have been evaluated already."""
    w = step or evaluate(job.model, job.cluster, job.profile, table_of([job]), convention=convention)
    chain = Chain(sources)
    _throughput(chain, job, w, convention)
    _compute(chain, job, w)
    _communication(chain, job, w)
    _timeline(chain, job, w)
    _memory(chain, job, w)
    _power(chain, job, w)
    _price(chain, job, w)
    chain.add(0, "constants", f"{len(constant_rows())} that do not belong to a GPU, fabric or software stack")
    for name, value, kind, source in constant_rows():
        chain.add(1, name, value, source=f"{kind}: {source}")
    return chain.lines


def _throughput(c: Chain, job: Job, w: EvaluatedStep, convention: str) -> None:
    r = w.results
    tokens = f"global_batch({job.global_batch:,}) * seq_len({job.seq_len:,})"
    c.add(0, "tokens_per_s", f"{r.tokens_per_s[0]:,.0f}", f"{tokens} / step_s")
    parts = " + ".join(METRICS[name].label for name in PARTS)
    c.add(0, "step_s", show(r.step_s[0], "s", 4), f"{parts}, mean over GPUs")
    for name in PARTS:
        value = float(getattr(r, name)[0])
        c.add(1, name, f"{show(value, 's')} ({value / r.step_s[0]:.1%})")
    flop = float(model_flop_per_token(job.model, np.array([job.seq_len]), convention)[0])
    peak = job.cluster.gpu.peak_flop_per_s(job.plan.precision)
    formula = f"{flop / 1e9:.2f} GFLOP/token ({convention}) * tokens/s/GPU / {show(peak, 'flop_per_s')}"
    c.add(0, "mfu_frac", f"{r.mfu_frac[0]:.2%}", formula)
    c.add(1, "parameters", f"{parameter_count(job.model):,}", "embeddings included")


_EVERY_MODEL = ("residual", "loss", "clip", "adamw")
_FP8 = ("fp8_shared_casts", "fp8_gathers", "fp8_smallest", "fp8_forward_scale")
_FP8_KERNELS = ("fp8_cast", "fp8_largest", "fp8_largest_columns", "fp8_weights", "fp8_shards", "fp8_shards_largest")


def _compute(c: Chain, job: Job, w: EvaluatedStep) -> None:
    one, gpu = w.table, job.cluster.gpu
    s, types, kernels = shapes_of(job.model, one, job.profile), product_column(one), job.profile.kernels
    backward = w.compute.layer_backward_input.time_s[0] + w.compute.layer_backward_weight.time_s[0]
    both = f"{show(float(w.compute.layer_forward.time_s[0]), 's')} forward, {show(float(backward), 's')} backward"
    c.add(0, "compute of one layer", both, "sum of its kernels for one microbatch, without overlapping communication")
    clock = float(w.compute.clock_frac[0])
    limit = f"clock of matrix products and attention under the power limit of {show(gpu.tdp_w, 'w')}"
    highest = "the highest clock, or the clock at which gemm_frac was measured"
    c.add(1, "clock", f"{clock:.1%}", limit if clock < 1 else highest)
    for o in op.layer_forward(job.model, s, kernels):
        seconds = float(operation_s(gpu, job.profile, types, o, clock)[0])
        c.add(1, o.name, show(seconds, "s"), _formula(job.model, o, seconds))
    kernel = f"gpu.attention.{job.profile.attention}"
    kind = GEMM_TYPES[types[0]]
    product = f"gpu.gemm.{kind if kind in gpu.gemm else 'bf16'}"
    _constants(
        c,
        job,
        f"{product}.peak_frac {product}.sustained_frac {product}.half_k {product}.library gpu.gemm_clock_frac "
        f"gpu.gemm_cap_w gpu.kernel_s gpu.hbm_bytes_per_s gpu.hbm_frac {kernel}.forward_frac "
        f"{kernel}.backward_frac {kernel}.half_seq_len {kernel}.half_rows gemm_scale attention_scale launch_s "
        "node.launch_scale step_overhead_s copy_frac reduce_copy_frac",
    )
    if job.plan.precision == "fp4":
        c.constant(1, "bf16_layers_frac", f"{job.profile.bf16_layers_frac:g}")
    for name in _FP8 if job.plan.precision == "fp8" else ():
        c.constant(1, name, f"{getattr(job.profile, name)}")
    for name, passes, kind, source in pass_rows(kernels):
        some = ("outer",) * (job.plan.sync_every > 1) + ("soft_cap",) * (job.model.final_soft_cap > 0)
        some += _FP8_KERNELS * (job.plan.precision == "fp8" and job.profile.fp8_shared_casts)
        if name in (job.model.norm, job.model.positions, job.model.mlp, *_EVERY_MODEL, *some):
            c.add(1, f"{kernels}.{name}", passes, source=f"{kind}: {source}")


def _spelled(count: float) -> str:
    """A number of messages in words; with a fraction where only some layers have one."""
    return SPELLED[int(count)] if count == int(count) else f"{count:.2f}"


def _formula(model: Model, o: op.Operation, seconds: float) -> str:
    if isinstance(o, op.Gemm):
        m, n, k = (float(np.ravel(x)[0]) for x in (o.m, o.n, o.k))
        return f"GEMM {m:,.0f} x {n:,.0f} x {k:,.0f}: {2 * m * n * k / seconds / 1e12:,.0f} TFLOP/s (tiles, waves, HBM)"
    if isinstance(o, op.GroupedGemm):
        count, m, n, k = (float(np.ravel(x)[0]) for x in (o.experts, o.tokens, o.n, o.k))
        rate = float(o.flop[0]) / seconds / 1e12
        return f"{count:,.0f} GEMMs {m:,.0f} x {n:,.0f} x {k:,.0f} in one kernel: {rate:,.0f} TFLOP/s"
    if isinstance(o, op.Attention):
        window = f"; {model.sliding_layers} of {model.layers} layers have a window of {model.window:,}"
        work = f"{o.flop[0] / 1e9:,.1f} GFLOP at {o.flop[0] / seconds / 1e12:,.0f} TFLOP/s, causal"
        return work + (window if model.window else "")
    return f"{show(float(o.moved_bytes[0]), 'bytes')} moved in {int(np.max(o.kernels))} kernels"


def _communication(c: Chain, job: Job, w: EvaluatedStep) -> None:
    links, shard, plan = Links.in_training(job.cluster, job.profile), w.groups.shard, job.plan
    exposed = show(float(w.results.exposed_comm_s[0]), "s")
    total = f"{show(float(w.results.comm_s[0]), 's')} of the step, {exposed} exposed"
    c.add(0, "communication", total, "ring: base + hops + S (N-1)/N / B")
    ranks = f"{shard.ranks[0]:.0f} ranks on {shard.nodes[0]:.0f} nodes"
    c.add(1, "shard group", ranks, f"dp_shard({plan.dp_shard}) * cp({plan.cp}), {shard.per_node[0]:g} per node")
    turn = show(float(ring_turn_s(links, shard)[0]), "s")
    c.add(1, "ring turn", turn, "hop_scale * ((N - n) node.hop_s + (n - 1) fabric.hop_s + tiers)")
    bandwidth = show(float(ring_bandwidth(links, shard)[0]), "bytes_per_s")
    c.add(1, "ring bandwidth", bandwidth, "min(link, ranks per node * NIC) * bandwidth_scale")
    if job.profile.pat != "off":
        _logarithmic(c, job, w, links)
    _messages(c, job, w)
    _constants(
        c,
        job,
        "hop_scale bandwidth_scale_frac node.hop_s node.link_bytes_per_s node.link_frac fabric.hop_s "
        "fabric.nic_bytes_per_s fabric.nic_frac fabric.tree_level_s fabric.p2p_frac "
        "fabric.p2p_bytes_per_s cp_overlap_frac p2p_overlap_frac",
    )
    for i, tier in enumerate(job.cluster.fabric.tiers):
        c.constant(1, f"fabric.tiers.{i}.hop_s", f"{show(tier.hop_s, 's')} above {tier.nodes} nodes")
    if plan.tp_overlap_frac is not None:
        c.add(1, "tp_overlap_frac", f"{plan.tp_overlap_frac:g}", source="user: the plan's own")
    else:
        c.constant(1, "tp_overlap_frac", f"{job.profile.tp_overlap_frac:g}")


def _logarithmic(c: Chain, job: Job, w: EvaluatedStep, links: Links) -> None:
    """What serves the gather of a layer, where it need not be a ring."""
    message = PARAMETER_BYTES * w.traffic.layer.moved - w.traffic.fp8.saved_bytes
    ring = gather_s(replace(links, pat="off"), w.groups.shard, message)[0]
    chosen = "PAT" if w.comm.gather_layer[0] < ring else "ring"
    formula = "8 us + log2(n) hop / 3.5 + 2.8 us n + (ranks per node - 1) node.hop_s + S (N-1)/N / (0.75 B), if faster"
    c.add(1, "algorithm", chosen, f"{formula}; the ring takes {show(float(ring), 's')}")
    c.constant(1, "pat", job.profile.pat)


def _messages(c: Chain, job: Job, w: EvaluatedStep) -> None:
    """What each message takes alone on the wire, and how large it is."""
    plan, comm, t = job.plan, w.comm, w.traffic
    layer, ring, sp = float(t.layer.moved[0]), plan.cp_method == "ring", plan.sequence_parallel

    def message(name: str, seconds: Floats, size: float, note: str) -> None:
        c.add(1, name, show(float(seconds[0]), "s"), f"{show(size, 'bytes')} {note}")

    reduced, gathered = float(t.reduce_bytes[0]) * layer, PARAMETER_BYTES * layer - float(t.fp8.saved_bytes[0])
    message("gather of a layer", comm.gather_layer, gathered, "with FSDP2's padding")
    message("reduction of a layer", comm.reduce_layer + comm.replicate_layer, reduced, f"in {plan.reduce_dtype}")
    if plan.tp > 1:
        both = layer_forward(job.model), layer_backward(job.model, job.profile)
        there, back = (of.collectives if sp else of.all_reduces for of in both)
        often = f"{_spelled(there)}{'' if sp else ' all-reduces'} per layer"
        often += " and direction" if back == there else f", {_spelled(back)} backward"
        note = f"over tp {plan.tp}; {often}"
        message("tp communication", comm.tp_gather if sp else comm.tp_all_reduce, float(t.tp_bytes[0]), note)
    if job.model.experts is not None and plan.ep > 1:
        note = f"by {plan.dispatcher} over ep {plan.ep}, on the busiest rank"
        message("tokens to their experts", comm.dispatch, float(t.routed_bytes[0]), note)
        message("tokens back", comm.combine, float(t.routed_bytes[0]), note)
    if plan.cp > 1:
        note = f"of keys and values, {plan.cp_method} over cp {plan.cp}"
        message("cp transfer", comm.cp_send if ring else comm.cp_gather, float(t.cp_bytes[0]), note)
    if plan.sync_every > 1:
        note = f"in {plan.reduce_dtype}, parameters' difference over {plan.dp_replicate:,} replicas, blocking"
        message("outer sync of replicas", w.outer_sync.all_reduce_s, float(w.outer_sync.message_bytes[0]), note)
    if plan.pp > 1:
        message("pp transfer", comm.pp_send, float(t.pp_bytes[0]), "to the next stage")


def _constants(c: Chain, job: Job, keys: str) -> None:
    """Catalogue values by their dotted names, shown in the unit that the name carries."""
    for key in keys.split():
        holder: Any = job.cluster if key.partition(".")[0] in ("gpu", "node", "fabric") else job.profile
        for part in key.split("."):
            holder = holder[part] if isinstance(holder, dict) else getattr(holder, part)
        if holder is None:  # no such limit
            continue
        unit = dimension(key.rpartition(".")[2])
        if isinstance(holder, str):
            c.constant(1, key, holder or "not stated")
            continue
        c.constant(1, key, f"{holder:g}" if unit in (None, "frac") else show(float(holder), unit or ""))


def _timeline(c: Chain, job: Job, w: EvaluatedStep) -> None:
    formula = "o = min(c (1 + kappa), q gamma), elapsed o + c - o / (1 + kappa)"
    overlapped = show(float(w.results.overlapped_comm_s[0]), "s")
    c.add(0, "overlap", overlapped, f"compute c while a communication backlog q runs: {formula}")
    c.constant(1, "compute_slowdown_frac", f"{job.profile.compute_slowdown_frac:g}")
    c.constant(1, "comm_slowdown", f"{job.profile.comm_slowdown:g}")
    waits = show(float(w.results.straggler_s[0]), "s")
    c.add(1, "straggler", waits, "straggler_frac * E[max of N normals] * compute_s")
    c.constant(1, "straggler_frac", f"{job.profile.straggler_frac:g}")
    if job.plan.sync_every > 1:
        e, often = w.outer_sync, f"1 / sync_every({job.plan.sync_every:,})"
        c.add(1, "outer sync, share per step", show(float(e.comm_s[0]), "s"), f"all-reduce over the replicas * {often}")
        c.add(1, "outer optimizer, share per step", show(float(e.compute_s[0]), "s"), f"Nesterov's momentum * {often}")
    if job.plan.pp > 1:
        shape = (
            f"{job.plan.schedule}, {job.plan.pp} stages x {job.plan.virtual_stages}, {job.microbatches} microbatches"
        )
        rule = "an action starts when its rank is free and its input has arrived"
        c.add(1, "pipeline", show(float(w.step.pipeline_s[0]), "s"), f"{shape}; {rule}")


def _memory(c: Chain, job: Job, w: EvaluatedStep) -> None:
    verdict = "fits" if w.results.fits[0] else "does not fit"
    limit = show(job.cluster.gpu.hbm_bytes, "bytes")
    needs = show(float(w.results.memory_bytes[0]), "bytes")
    c.add(0, "memory_bytes", needs, f"of {limit} on the GPU that needs the most: {verdict}")
    notes = {"gradients": "at the memory peak: allocated as activations are freed, unless they are kept"}
    if job.plan.sync_every > 1:
        outer = "the outer optimizer's momentum and the parameters of the last outer sync"
        notes["optimizer"] = f"includes {outer}, both in fp32"
    for part in ("weights", "gradients", "optimizer", "activations", "logits", "comm_buffers", "context"):
        c.add(1, part, show(float(getattr(w.memory, part + "_bytes")[0]), "bytes"), notes.get(part, ""))
    _constants(c, job, "context_bytes allocator_frac reduces_in_flight")


def _power(c: Chain, job: Job, w: EvaluatedStep) -> None:
    formula = "idle + (flop J/FLOP + bytes J/B + comm_s W) / step_s, smoothly limited by the power limit"
    c.add(0, "power_w_per_gpu", show(float(w.results.power_w_per_gpu[0]), "w"), formula)
    c.add(1, "tensor-core work", f"{w.flop[0] / 1e12:,.1f} TFLOP per GPU and step")
    c.add(1, "HBM traffic", show(float(w.moved_bytes[0]), "bytes") + " per GPU and step")
    energies = "gpu.idle_w gpu.gemm_j_per_flop gpu.hbm_j_per_byte gpu.comm_w"
    _constants(c, job, f"{energies} gpu.tdp_w gpu.cap_sharpness")


def _price(c: Chain, job: Job, w: EvaluatedStep) -> None:
    """What the cost of a token follows from; nothing where the price is unknown."""
    price = job.cluster.usd_per_gpu_h
    if price is None:
        return
    cost, rate = float(w.results.usd_per_mtoken[0]), float(w.results.tokens_per_s_per_gpu[0])
    c.add(0, "usd_per_mtoken", f"{cost:.3g} USD", "usd_per_gpu_h * 1e6 / (3,600 * tokens_per_s_per_gpu)")
    c.add(1, "tokens_per_s_per_gpu", f"{rate:,.0f}")
    c.constant(1, "usd_per_gpu_h", show(price, "usd_per_h"))


DALY = "Daly 2006, with the downtime of Bougeret et al., SC 2011"


def explain_run(
    job: Job, sources: Mapping[str, Source], training: Mapping[str, Any], *, step_s: float
) -> list[WhyLine]:
    """The chain of a run on so many tokens; ``training`` is its answer."""
    chain, failed = Chain(sources), training["with_failures"]
    try:
        goodput = goodput_of(parameter_count(job.model), job.cluster, job.gpus, step_s=step_s)
    except SpecError as error:
        chain.add(0, "goodput_frac", "0%", error.message)
        return chain.lines
    _goodput(chain, goodput)
    _failures(chain, goodput)
    _checkpoint(chain, goodput, parameter_count(job.model))
    _restart(chain, goodput)
    _other_parts(chain, goodput)
    _days(chain, goodput, training, failed)
    _dollars(chain, job, goodput, training, failed)
    return chain.lines


def _constant(c: Chain, depth: int, given: Conditions, name: str, value: str) -> None:
    """A value of the reliability part: the user's, or the catalogue's default."""
    if name not in given.defaults:
        c.constant(depth, f"reliability.{name}", value)
        return
    found = default_of("defaults", name)[1]
    c.add(depth, f"reliability.{name}", value, source=f"default, {found.kind}: {found.text}")


def _goodput(c: Chain, g: Goodput) -> None:
    formula = "1 / ((1 + evaluation + slow nodes) * stretch * (1 + planned stops))"
    c.add(0, "goodput_frac", f"{g.goodput_frac:.2%}", f"{formula}: seconds of steps per second of the run")
    for name, share in g.parts.items():
        if share > 0:
            c.add(1, name, f"{share:.2%}", "of the run's time")
    if g.mean_s is not None and g.interval_s is not None:
        saved, detection = g.checkpoint, g.conditions.detection_s
        stretch = time_per_work(g.interval_s, saved.wait_s, detection, g.restart.failed_s + saved.write_s, g.mean_s)
        c.add(1, "stretch", f"{stretch:.5f}", "(M + D) exp(R / M) (exp((t + C) / M) - 1) / t", f"published: {DALY}")


def _failures(c: Chain, g: Goodput) -> None:
    given, rates = g.conditions, sum(g.conditions.failures_per_gpu_h.values())
    mean = "none" if g.mean_s is None else duration(g.mean_s)
    c.add(0, "M, time between failures", mean, f"1 h / ({rates:.4g} failures per GPU-hour * {g.gpus:,} GPUs)")
    for cause, name in CAUSES.items():
        _constant(c, 1, given, name, f"{given.failures_per_gpu_h[cause]:.4g}")
    _constant(c, 0, given, "detection_s", _seconds(given.detection_s))


def _checkpoint(c: Chain, g: Goodput, params: float) -> None:
    given, saved = g.conditions, g.checkpoint
    per_param, source = default_of("run", "checkpoint_bytes_per_param")
    if g.interval_s is not None:
        how = "given" if given.checkpoint_interval_s is not None else "the root of 1 - t/M = exp(-(t + C) / M)"
        if g.young_s is not None and g.daly_s is not None:
            how += f"; Young {_seconds(g.young_s)}, Daly {_seconds(g.daly_s)}"
        c.add(0, "t, training between checkpoints", duration(g.interval_s), how)
    rate = "storage_bytes_per_s" if given.checkpoint == "blocking" else "host_copy_bytes_per_s"
    c.add(0, "C, training waits for a checkpoint", _seconds(saved.wait_s), f"bytes / (GPUs({g.gpus:,}) * {rate})")
    size = f"{per_param:g} bytes * {params:,.0f} parameters"
    c.add(1, "bytes", show(saved.total_bytes, "bytes"), size, f"{source.kind}: {source.text}")
    if saved.write_s:
        c.add(1, "until it can be used", _seconds(saved.write_s), "written while training goes on")
    _constant(c, 1, given, "checkpoint", given.checkpoint)
    for name in ("storage_bytes_per_s", "host_copy_bytes_per_s"):
        _constant(c, 1, given, name, show(getattr(given, name), "bytes_per_s"))


def _restart(c: Chain, g: Goodput) -> None:
    given, restart = g.conditions, g.restart
    parts = "scheduling + wait for a node + initialisation + reading of the checkpoint + warm-up"
    c.add(0, "R, restart", _seconds(restart.failed_s), parts)
    _constant(c, 1, given, "scheduling_s", _seconds(restart.scheduling_s))
    if given.spare_nodes is not None:
        wait = "P(more nodes in repair than spares) * repair_s / (spares + 1), for failures that take a node out"
        c.add(1, "wait for a node", _seconds(restart.node_wait_s), wait)
        c.constant(2, "reliability.spare_nodes", f"{given.spare_nodes:,}")
        _constant(c, 2, given, "repair_s", _seconds(given.repair_s))
    if given.initialisation_s is not None:
        c.constant(1, "reliability.initialisation_s", _seconds(restart.initialisation_s))
    else:
        published = initialisation_source(given.startup)
        how = f"{given.startup}, {g.gpus:,} GPUs: between published points in logarithms, below them as the GPUs"
        c.add(1, "initialisation", _seconds(restart.initialisation_s), how, f"{published.kind}: {published.text}")
    c.add(1, "reading of the checkpoint", _seconds(restart.read_s), "from the storage, or from another node's memory")
    _constant(c, 1, given, "warmup_s", _seconds(restart.warmup_s))


def _other_parts(c: Chain, g: Goodput) -> None:
    given = g.conditions
    c.add(0, "planned stops", f"{g.planned_per_s * DAY_S:.3g} per day", "each takes C + R without a wait for a node")
    _constant(c, 1, given, "planned_stops_per_gpu_h", f"{given.planned_stops_per_gpu_h:.4g}")
    if given.evaluation_s:
        share = given.evaluation_s / given.evaluation_interval_s
        c.add(0, "evaluation", f"{share:.2%}", "evaluation_s / evaluation_interval_s of the time of steps")
        for name in ("evaluation_s", "evaluation_interval_s"):
            _constant(c, 1, given, name, _seconds(getattr(given, name)))
    if given.slow_nodes_per_gpu_h:
        share = g.parts["slow_nodes"] * g.slowdown
        formula = "slow_frac * (1 - exp(-slow_nodes_per_gpu_h * GPUs * slow_detection_s))"
        c.add(0, "slow nodes", f"{share:.2%}", formula)
        for name in ("slow_nodes_per_gpu_h", "slow_frac", "slow_detection_s"):
            value = getattr(given, name)
            _constant(c, 1, given, name, _seconds(value) if dimension(name) == "s" else f"{value:g}")


def _days(c: Chain, g: Goodput, training: Mapping[str, Any], failed: Mapping[str, Any]) -> None:
    c.add(0, "days", amount(training["days"]), f"tokens({short(training['tokens'])}) / tokens_per_s, without failures")
    c.add(0, "days with failures", amount(failed["days"]), "days / goodput_frac")
    ends = ", ".join(f"p{end} {amount(failed[f'p{end}_days'])}" for end in (10, 50, 90))
    c.add(1, "distribution", ends, f"{failed['runs_drawn']:,} runs with failures drawn at random")
    if g.conditions.rate_spread:
        low, high = (default_of("run", name) for name in RATE_ENDS)
        text = "failure rates of the drawn runs differ as those of published clusters do"
        c.add(2, "spread of failure rates", f"{low[0]:g} to {high[0]:g} times", text, f"published: {low[1].text}")
    stops = "failures and planned stops per day * days with failures"
    c.add(1, "interruptions", amount(failed["interruptions"]), stops)
    for cause, share in sorted(g.causes.items(), key=lambda one: -one[1]):
        each = g.interruptions_per_day[cause]
        c.add(2, cause, f"{each:.3g} per day", f"takes {share:.2%} of the run's time")


def _dollars(c: Chain, job: Job, g: Goodput, training: Mapping[str, Any], failed: Mapping[str, Any]) -> None:
    spares = g.conditions.spare_nodes or 0
    paid = f"days with failures * 24 * ({g.gpus:,} GPUs" + (f" + {spares:,} spare nodes)" if spares else ")")
    c.add(0, "GPU-hours with failures", amount(failed["gpu_hours"]), paid)
    price = job.cluster.usd_per_gpu_h
    if price is None or failed["cost_usd"] is None:
        return
    without = amount(training["cost_usd"])
    c.add(0, "USD with failures", amount(failed["cost_usd"]), f"GPU-hours * price; without failures {without}")
    c.constant(1, "cluster.usd_per_gpu_h", f"{price:g} USD/h")


def _seconds(value: float) -> str:
    return show(value, "s") if value < 60.0 else duration(value)
