"""``knee simulate``: one training step, answered and explained."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from knee.cli.options import Sectioned
from knee.cli.plan_options import option, plan_of, plan_options
from knee.errors import DoesNotFit, InputError, KneeError
from knee.specs.plan import RECOMPUTES

if TYPE_CHECKING:
    from knee.cli.job import Asked
    from knee.record.measurement import Measurement
    from knee.specs import Job
    from knee.why import WhyLine

TRACED_PASSES = 2**16
"""Most layers times microbatches of a trace: already gigabytes with eager kernels."""


@click.command("simulate", cls=Sectioned)
@click.argument("model")
@option("--cluster", section="What", metavar="NAME", help="Cluster: a name of `knee catalog`, or a TOML file.")
@option("--gpus", section="What", type=int, metavar="N", help="GPUs in all.")
@option(
    "--local-batch",
    section="What",
    type=float,
    metavar="B",
    help="Sequences a step over all GPUs, divided by all GPUs (not per data-parallel rank); may be a fraction.",
)
@option("--global-batch", section="What", type=int, metavar="G", help="Sequences a step over all GPUs.")
@option(
    "--seq-len",
    section="What",
    type=int,
    metavar="S",
    help="Tokens a sequence; 4,096 or the model's longest if left out.",
)
@option(
    "--profile",
    section="What",
    metavar="NAME",
    help="Software profile: a name of `knee catalog`, or a TOML file; `eager` if left out.",
)
@option(
    "--set",
    "sets",
    section="What",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one value of the model, cluster, profile or plan, for example "
    "--set fabric.nic_bytes_per_s=200Gbit/s. `knee catalog NAME` lists the keys. May be repeated.",
)
@plan_options
@option(
    "--flop-convention",
    section="Output",
    metavar="NAME",
    default="palm",
    show_default=True,
    help="How the model's FLOP are counted for the MFU: palm, 6n, causal or torchtitan.",
)
@option("--json", "as_json", section="Output", is_flag=True, help="Print JSON; every key carries its unit.")
@option(
    "--trace",
    section="Output",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Also write the step as Kineto traces (.json or .json.gz), one per pipeline stage.",
)
@option("--why", section="Output", is_flag=True, help="Also print the formulas, constants and sources behind it.")
def command(
    model: str,
    cluster: str | None,
    profile: str | None,
    sets: tuple[str, ...],
    flop_convention: str,
    as_json: bool,
    trace: str | None,
    why: bool,
    **options: Any,
) -> None:
    """Simulate one training step of MODEL under a parallel plan.

    MODEL is a name of `knee catalog`, a model's TOML file, a Hugging Face config.json or the folder that holds
    one, or a whole job as a TOML file:

    \b
        model = "llama2-7b"          # a name, a path or a table; so are cluster and profile
        cluster = "dgx-h100"
        gpus = 256
        local_batch = 2              # or global_batch
        [plan]
        tp = 2

    A job file needs no option; an option given besides replaces or completes what the file says.

    Every answer says how far it can be trusted: how many published runs are like it, in what range the truth lay in
    four of five (validated) or nine of ten of them, and what of it no published run had.

    A plan that does not fit in memory is answered in full, says what it needs, and exits with 3.
    """
    from knee.cli.answer import print_answer
    from knee.cli.job import ask, parse_sets
    from knee.fidelity.answered import record_of
    from knee.fidelity.trust import trust_of

    sizes = {name: options[name] for name in ("gpus", "global_batch", "local_batch", "seq_len")}
    asked = ask(model, cluster=cluster, profile=profile, sizes=sizes, plan=plan_of(options), sets=parse_sets(sets))
    job = asked.job
    measurement = _simulate(asked, flop_convention)
    lines = _explain(asked, flop_convention) if why else []
    if trace is not None:
        _write_trace(job, trace, measurement.step_s)
    trust = trust_of(job, asked.given)
    if as_json:
        data = record_of(job, measurement, trust)
        if sets:
            data["set"] = [list(pair) for pair in parse_sets(sets)]
        if why:
            data["why"] = [
                {key: getattr(line, key) for key in ("name", "value", "formula", "source", "depth")} for line in lines
            ]
        click.echo(json.dumps(data, indent=2, allow_nan=False))
    else:
        print_answer(job, measurement, trust, lines)
    if not measurement.fits:
        raise _does_not_fit(asked, measurement)


def _simulate(asked: Asked, convention: str) -> Measurement:
    """The answer; values that no computer can multiply are refused in words."""
    import numpy as np

    from knee.single import simulate

    message = "a size or rate is so far from any real one that the step has no finite answer"
    hint = "look at the values given by --set, in files and as sizes"
    try:
        with np.errstate(all="ignore"):
            measurement = simulate(asked.job, convention=convention, assumptions=asked.assumptions)
    except OverflowError:
        raise InputError(message, hint=hint) from None
    if not (measurement.step_s > 0 and _is_finite(measurement.as_json())):
        raise InputError(message, hint=hint)
    return measurement


def _is_finite(data: Any) -> bool:
    """Whether all numbers of plain data are."""
    if isinstance(data, dict):
        return all(map(_is_finite, data.values()))
    if isinstance(data, (list, tuple)):
        return all(map(_is_finite, data))
    return not isinstance(data, float) or math.isfinite(data)


def _explain(asked: Asked, convention: str) -> list[WhyLine]:
    from knee.why import explain

    return explain(asked.job, asked.sources, convention=convention)


def _write_trace(job: Job, path: str, step_s: float) -> None:
    from knee.limits import LONGEST_TRACE_NS
    from knee.record.kineto import write_kineto
    from knee.single import events_of

    passes = job.microbatches * job.model.layers
    if passes > TRACED_PASSES:
        raise InputError(
            f"--trace: {job.microbatches:,} microbatches of {job.model.layers} layers make a trace that "
            "no viewer opens",
            hint="trace a smaller batch: the microbatches in the middle repeat each other",
        )
    if step_s * 1e9 >= LONGEST_TRACE_NS:
        raise InputError(
            f"--trace: a step of {step_s / 86_400:,.0f} days is longer than a trace can say",
            hint="its times are read up to 52 days",
        )
    for written in write_kineto(events_of(job), path, device=job.cluster.gpu.name):
        click.echo(f"wrote {written}", err=True)


def _does_not_fit(asked: Asked, measurement: Measurement) -> DoesNotFit:
    """What it needs and has, and the fastest change of the plan that fits."""
    from knee.units import show

    has = show(asked.job.cluster.gpu.hbm_bytes, "bytes")
    return DoesNotFit(
        f"the plan does not fit: it needs {show(measurement.memory_bytes, 'bytes')} a GPU, and "
        f"{asked.job.cluster.gpu.name} has {has}",
        hint=_what_would_fit(asked) or "use more GPUs, a smaller model, or shorter sequences",
    )


def _what_would_fit(asked: Asked) -> str | None:
    """The fastest of the simplest changes that fit."""
    from knee.cli.job import flag
    from knee.single import simulate

    for group in _changes(asked.job):
        fitting: dict[str, float] = {}
        for changes in group:
            with suppress(KneeError):
                found = simulate(asked.with_options(**changes))
                if found.fits:
                    words = " ".join(f"{flag(name)} {value}" for name, value in changes.items())
                    fitting[words] = found.tokens_per_s
        if fitting:
            return f"it would fit with {max(fitting, key=lambda words: fitting[words])}"
    return None


def _changes(job: Job) -> Iterator[list[dict[str, Any]]]:
    """Changes of the plan that save memory: first within its degrees, then with more tp, then with more pp."""
    plan = job.plan
    micro: list[dict[str, Any]] = [{}, {"micro_batch": 1}] if plan.micro_batch > 1 else [{}]
    again: list[dict[str, Any]] = [{}, *({"recompute": r} for r in RECOMPUTES[RECOMPUTES.index(plan.recompute) + 1 :])]
    shard: list[dict[str, Any]] = [{}, {"sharding": "fsdp"}] if plan.sharding != "fsdp" else [{}]
    within = [{**a, **b, **c} for a in shard for b in micro for c in again]
    yield within[1:]
    for tp in (2, 4, 8):
        if plan.tp < tp <= job.cluster.node.gpus:
            yield [{"tp": tp, **changes} for changes in within]
    for pp in (2, 4, 8, 16):
        if plan.pp < pp:
            yield [{"tp": max(plan.tp, 8), "pp": pp, **changes} for changes in within]
