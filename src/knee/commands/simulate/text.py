"""One measurement on the screen, and as plain data."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from knee.base import units
from knee.engine.measurement import Measurement
from knee.engine.reliability.goodput import rate_words
from knee.show.terminal.table import print_heading, print_rows
from knee.specs import Job
from knee.specs.metrics import METRICS, values_of
from knee.specs.plan import plan_words

if TYPE_CHECKING:
    from knee.commands.simulate.result import Simulation
    from knee.engine.why import WhyLine
    from knee.trust.trust import Trust

UNKNOWN = "unknown"
LABEL_WORDS = {
    "validated": "validated (very similar runs were published)",
    "near": "near (similar runs were published)",
    "extrapolated": "extrapolated (no similar run was published)",
}
PRICE = "the price is unknown; give it with --set cluster.usd_per_gpu_h='2.5 USD/h'"


def print_answer(answer: Simulation, why: Sequence[WhyLine] = ()) -> None:
    """The answer as tables, its explanation if asked for, and its assumptions last."""
    _print_question(answer.job, answer.trust)
    print_heading("throughput")
    rows = [_row(answer, name) for name in ("step_s", "tokens_per_s", "tokens_per_s_per_gpu")]
    print_rows([*rows, _row(answer, "mfu_frac", f" ({answer.flop_convention} FLOP convention)")])
    _print_time(answer)
    _print_communication(answer)
    _print_memory(answer.job, answer, answer.trust)
    print_heading("power and cost")
    print_rows([_row(answer, name) for name in ("power_w_per_gpu", "tokens_per_j", "usd_per_mtoken")])
    print_training(answer.training)
    if why:
        print_heading("why (formulas, constants and sources)")
        said = ["; ".join(filter(None, (line.formula, line.source))) for line in why]
        rows = [["  " * line.depth + line.name, line.value, text] for line, text in zip(why, said, strict=True)]
        print_rows(rows, right=(1,), dim=(2,))
    print_heading("assumptions:")
    for sentence in answer.assumptions or ("none",):
        sys.stdout.write(f"  - {sentence}\n")


def _print_question(job: Job, trust: Trust) -> None:
    plan = job.plan
    print_heading(
        f"{job.model.name} on {job.gpus:,} x {job.cluster.gpu.name} ({job.cluster.name}), profile {job.profile.name}"
    )
    said = ["recompute", "precision"] + (["fp8_recipe"] if plan.precision == "fp8" else [])
    said += ["dispatcher", "routing"] if job.model.experts is not None else []
    words = plan_words(plan, also=said, without=["micro_batch"])
    batch = (
        f"{job.global_batch:,} sequences of {job.seq_len:,} tokens per step, {job.local_batch:g} per GPU; "
        f"microbatches per data-parallel rank: {job.microbatches:,} of {units.counted(plan.micro_batch, 'sequence')}"
    )
    reasons = [["", reason] for reason in trust.reasons]
    print_rows([["plan", words], ["batch", batch], ["trust", trust_words(trust)], *reasons])


def trust_words(trust: Trust) -> str:
    """In one line: the label, the range of the measured throughput, and the runs behind it."""
    if trust.low_frac is None or trust.high_frac is None:
        return f"{LABEL_WORDS[trust.label]}: the error is unknown"
    sources = "one source" if trust.sources == 1 else f"{trust.sources} sources"
    runs = "published runs" if trust.like == "all" else f"published runs of {trust.like}"
    like = f"; {trust.runs:,} of the runs are similar to this job in every size" if trust.label == "validated" else ""
    return (
        f"{LABEL_WORDS[trust.label]}: with {trust.covered_frac:.0%} probability, the measured throughput is between "
        f"{between(trust.low_frac, trust.high_frac)} this prediction; this range comes from the prediction errors on "
        f"{trust.basis_runs:,} {runs} from {sources}, none of them used for fitting{like}"
    )


def between(low_frac: float, high_frac: float, digits: int = 0) -> str:
    """A range around a prediction: ``20% below and 4% above``."""
    return " and ".join(f"{abs(end):.{digits}%} {'below' if end < 0 else 'above'}" for end in (low_frac, high_frac))


def _print_time(m: Measurement) -> None:
    waiting = METRICS["straggler_s"]
    notes = {
        "compute_s": f"sum of kernel times: {_time(m.compute_load_s)}",
        "exposed_comm_s": f"includes {_time(m.straggler_s)} of {waiting.label}" if m.straggler_s else "",
        "bubble_s": "waiting for another pipeline stage",
        "idle_s": "waiting for the host",
        "comm_s": f"sum of kernel times: {_time(m.comm_load_s)}",
        "overlapped_comm_s": "runs during compute, so its time is part of compute",
    }
    print_heading("time (mean over GPUs, and share of the step)")
    print_rows(
        [
            [METRICS[name].label, _time(time_s), f"{time_s / m.step_s:.1%}", notes[name]]
            for name, time_s in values_of(m, "times of a step").items()
        ],
        right=(1, 2),
        dim=(3,),
    )


def _print_communication(m: Measurement) -> None:
    print_heading("communication (per step, mean over GPUs)")
    if not m.comm_loads:
        print_rows([["none"]])
        return
    rows = [["collective", "group", "GPUs in group", "calls", "message size", "kernel time"]]
    rows += [
        [
            load.collective,
            load.group,
            f"{load.group_size:,}",
            f"{load.calls:,.6g}",
            units.show(load.message_bytes, "bytes"),
            _time(load.load_s),
        ]
        for load in m.comm_loads
    ]
    print_rows(rows, right=(2, 3, 4, 5))


def _print_memory(job: Job, m: Measurement, trust: Trust) -> None:
    print_heading("memory (on the GPU that needs the most)")
    rows = []
    if m.memory is not None:
        for field in fields(m.memory):
            name = (
                field.name.removesuffix("_bytes")
                .replace("comm_buffers", "communication buffers")
                .replace("context", "CUDA context, fragmentation")
            )
            size = getattr(m.memory, field.name)
            # at the worst moment, which is before they are there
            none = "allocated as activations are freed" if name == "gradients" and not size else ""
            rows.append([name, units.show(size, "bytes") if size else "0 B", none])
    has = units.show(job.cluster.gpu.hbm_bytes, "bytes")
    verdict = "fits" if m.fits else "does NOT fit"
    if trust.fits(m.memory_bytes, job.cluster.gpu.hbm_bytes) == "unsure":
        low, high = trust.memory_low_frac or 0.0, trust.memory_high_frac or 0.0
        verdict += (
            f", but the margin is within the error of the memory model: measured memory is between "
            f"{between(low, high)} the prediction with {trust.covered_frac:.0%} probability "
            f"({trust.memory_runs:,} published measurements)"
        )
    rows.append(["total", units.show(m.memory_bytes, "bytes"), f"of {has}: {verdict}"])
    print_rows(rows, right=(1,))


def _row(m: Measurement, name: str, more: str = "") -> list[str]:
    metric = METRICS[name]
    return [metric.label, metric.text(metric.of(m)) + more]


def print_training(run: Mapping[str, Any] | None) -> None:
    """What a whole run takes, with the parts of its energy."""
    if run is None:
        return
    print_heading(
        f"training on {units.short(run['tokens'])} tokens (PUE {run['pue']:g}, grid {run['grid']}: "
        f"{run['g_co2e_per_kwh']:.0f} g CO2e/kWh)"
    )
    failed = run["with_failures"]
    worded = ("grid", "with_failures")
    shown = {key: UNKNOWN if value is None else units.amount(value) for key, value in run.items() if key not in worded}
    band = (
        ""
        if run["low_days"] is None
        else f"{shown['low_days']} to {shown['high_days']} days for the throughput range above"
    )
    price = "rent at the cluster's price" if run["cost_usd"] is not None else PRICE
    parts = (
        f"GPUs {shown['gpu_mwh']}, hosts {shown['host_mwh']}, network {shown['network_mwh']}, "
        f"cooling and power supply of the site {shown['site_mwh']}"
    )
    print_rows(
        [
            ["days", shown["days"], band],
            ["GPU-hours", shown["gpu_hours"], ""],
            ["USD", shown["cost_usd"], price],
            ["MWh", shown["energy_mwh"], parts],
            ["t CO2e", UNKNOWN if run["co2e_kg"] is None else units.amount(run["co2e_kg"] / 1e3), ""],
            ["goodput", units.show(failed["goodput_frac"], "frac"), failure_words(failed)],
        ],
        right=(1,),
        dim=(2,),
    )


def failure_words(run: Mapping[str, Any]) -> str:
    """What failures make of a run, in one line."""
    if run["days"] is None:
        return str(run["reason"])
    spares = f" with {run['spare_nodes']:,} spare nodes" if run["spare_nodes"] else ""
    cost = "" if run["cost_usd"] is None else f", {units.amount(run['cost_usd'])} USD{spares}"
    interval = run["checkpoint_interval_s"]
    often = "" if interval is None else f"; a checkpoint every {units.duration(interval)}"
    low, middle, high = (units.amount(run[f"p{end}_days"]) for end in (10, 50, 90))
    return (
        f"with failures {units.amount(run['days'])} days (p10 {low}, p50 {middle}, p90 {high}){cost}; "
        f"{units.amount(run['interruptions'])} interruptions by {rate_words(run['defaults'])}{often}"
    )


def _time(time_s: float) -> str:
    return units.show(time_s, "s") if time_s else "0 s"
