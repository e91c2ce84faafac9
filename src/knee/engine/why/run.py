"""The chain behind a whole run: goodput, days and dollars with failures, down to rates, times and their sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from knee.base.errors import SpecError
from knee.base.units import DAY_S, amount, dimension, duration, short, show
from knee.engine.reliability.defaults import RATE_ENDS, Conditions, default_of, initialisation_source
from knee.engine.reliability.goodput import Goodput, goodput_of, time_per_work
from knee.engine.why.chain import Chain, WhyLine
from knee.engine.workload.parameters import parameter_count
from knee.specs.catalog import Source
from knee.specs.job import Job
from knee.specs.reliability import CAUSES

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
    c.add(
        0,
        "goodput_frac",
        f"{g.goodput_frac:.2%}",
        "1 / ((1 + evaluation + slow nodes) * stretch * (1 + planned stops)): seconds of steps per second of the run",
    )
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
        near = (
            "" if g.young_s is None or g.daly_s is None else f"; Young {_seconds(g.young_s)}, Daly {_seconds(g.daly_s)}"
        )
        c.add(0, "t, training between checkpoints", duration(g.interval_s), how + near)
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
    c.add(
        1, "interruptions", amount(failed["interruptions"]), "failures and planned stops per day * days with failures"
    )
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
    c.add(
        0,
        "USD with failures",
        amount(failed["cost_usd"]),
        f"GPU-hours * price; without failures {amount(training['cost_usd'])}",
    )
    c.constant(1, "cluster.usd_per_gpu_h", f"{price:g} USD/h")


def _seconds(value: float) -> str:
    return show(value, "s") if value < 60.0 else duration(value)
