"""``knee plan``: the best parallel plan of a job, out of all there are."""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from knee.cli.options import Sectioned, Word
from knee.cli.plan_options import option
from knee.errors import DoesNotFit, InputError
from knee.specs.plan import PRECISIONS, RECOMPUTES, REDUCE_DTYPES, SCHEDULES, SHARDINGS, STATE_DTYPES
from knee.units import show

if TYPE_CHECKING:
    from knee.fidelity.trust import Trust
    from knee.search.best import Found
    from knee.search.front import Baseline
    from knee.search.robust import Robust
    from knee.search.sensitivity import Bar
    from knee.specs import Job

OBJECTIVES = ("tokens_per_s", "tokens_per_j", "usd_per_mtoken")
TOOLS = ("knee", "torchtitan", "megatron")
SHOWN_FRONT = 8
TRIED = 500
"""Plans of the ranking that are tried where a tool cannot run the recommended one."""
PATIENCE_S = 1.0
"""Searches that take longer say how far they are."""
BAR_WIDTH = 24


@click.command("plan", cls=Sectioned)
@click.argument("model")
@option("--cluster", section="What", required=True, metavar="NAME",
        help="Cluster: a name of `knee catalog`, or a TOML file.")
@option("--gpus", section="What", type=int, required=True, metavar="N", help="GPUs in all.")
@option("--global-batch", section="What", type=int, metavar="G", help="Sequences a step over all GPUs.")
@option("--local-batch", section="What", type=float, metavar="B", help="The same divided by all GPUs.")
@option("--seq-len", section="What", type=int, metavar="S",
        help="Tokens a sequence; 4,096 or the model's longest if left out.")
@option("--profile", section="What", metavar="NAME",
        help="Software profile: a name of `knee catalog`, or a TOML file; `eager` if left out.")
@option("--set", "sets", section="What", multiple=True, metavar="KEY=VALUE",
        help="Change one value of the model, cluster or profile. May be repeated.")
@option("--precision", section="What", type=Word(PRECISIONS), default="bf16", show_default=True,
        help="Type of the matrix products.")
@option("--reduce-dtype", section="What", type=Word(REDUCE_DTYPES), default="fp32", show_default=True,
        help="Type in which gradients are reduced.")
@option("--state-dtype", section="What", type=Word(STATE_DTYPES), default="fp32", show_default=True,
        help="Type of the parameters and moments that the optimizer updates.")
@option("--max-tp", section="Limits", type=int, metavar="N", help="Largest tensor-parallel degree.")
@option("--max-pp", section="Limits", type=int, metavar="N", help="Most pipeline stages.")
@option("--max-cp", section="Limits", type=int, metavar="N", help="Largest context-parallel degree.")
@option("--sharding", section="Limits", type=Word(SHARDINGS), multiple=True, help="Only this; may be repeated.")
@option("--schedule", section="Limits", type=Word(SCHEDULES), multiple=True, help="Only this; may be repeated.")
@option("--recompute", section="Limits", type=Word(RECOMPUTES), multiple=True, help="Only this; may be repeated.")
@option("--micro-batch", section="Limits", type=int, multiple=True, metavar="M", help="Only this; may be repeated.")
@option("--only", section="Limits", metavar="CONDITION",
        help="Only plans that meet it, for example \"pp == 1 and tp <= 8\" or \"sharding != 'zero1'\".")
@option("--objective", section="Output", type=Word(OBJECTIVES), default="tokens_per_s", show_default=True,
        help="What is best: speed, tokens per joule, or dollars per million tokens.")
@option("--top", section="Output", type=int, default=10, show_default=True, metavar="K", help="Plans to list.")
@option("--export", "export_to", section="Output", type=Word(TOOLS),
        help="Print the recommended plan for this tool instead (a knee job file, or launch flags), or the first of the "
             "ranking that it can run.")
@option("--json", "as_json", section="Output", is_flag=True, help="Print JSON; every key carries its unit.")
def command(model: str, as_json: bool, top: int, export_to: str | None, **options: Any) -> None:
    """Find the best parallel plan of MODEL on so many GPUs: every one is considered.

    All splits into dp_replicate x dp_shard x tp x pp x cp, with every sharding, schedule, micro-batch, sequence
    parallelism and recomputation that the model and the batch allow, and virtual stages that cut the model evenly.
    Plans that do not fit in memory are counted by what fills it; of the others a bound shows which cannot come near the
    best, and the rest is simulated.

    \b
        knee plan llama2-7b --cluster dgx-h100 --gpus 256 --global-batch 512

    The ranking is drawn anew many times from the spread of what is fitted: the recommended plan is the one that is
    within 2% of the best most often. Below it stands what a quarter more of each part of the hardware would bring.

    Exit code 3: no plan fits; the answer then says what is closest.
    """
    if top < 1:
        raise InputError(f"--top is {top}; it must be at least 1")
    if export_to is not None and as_json:
        raise InputError("--export and --json are two forms of one answer", hint="give one of them")
    found = _search(model, options)
    from knee.search.front import baseline, job_of, pareto, why
    from knee.search.robust import robust
    from knee.search.sensitivity import sensitivity
    from knee.single import simulate

    drawn = robust(found)
    job = job_of(found, drawn.recommended)
    if export_to is not None:
        click.echo(_exported(found, drawn.recommended, export_to))
        return
    from knee.fidelity.trust import trust_of

    plain, result = baseline(found), simulate(job)
    base = None if isinstance(plain, str) else plain
    sentence = plain if isinstance(plain, str) else why(job, result, plain)
    bars = sensitivity(found)
    front = pareto(found.results, found.cluster.gpu.hbm_bytes).tolist()
    trust = trust_of(job)
    if as_json:
        click.echo(json.dumps(_data(found, drawn, base, sentence, bars, front, trust, top), indent=1, allow_nan=False))
    else:
        _print(found, drawn, base, sentence, bars, front, trust, top, job)


def _exported(found: Found, recommended: int, to: str) -> str:
    """The recommended plan for a tool, or the first of the ranking that it can run."""
    from knee.search.export import export
    from knee.search.front import job_of

    refused: InputError | None = None
    for row in dict.fromkeys((recommended, *range(min(TRIED, len(found))))):
        try:
            text = export(job_of(found, row), to).rstrip()
        except InputError as error:
            refused = refused or error
            continue
        if refused is not None:
            slower = 1 - float(found.scores[row] / found.scores[recommended])
            click.echo(f"{refused.message}; this is plan {row + 1}, {abs(slower):.1%} behind by {found.objective}",
                       err=True)
        return text
    assert refused is not None
    raise refused


def _search(model: str, options: dict[str, Any]) -> Found:
    from dataclasses import replace

    from knee.cli.job import parse_sets
    from knee.search.best import search
    from knee.search.closest import no_plan, nothing_fits
    from knee.search.space import Space
    from knee.specs.load import DEFAULT_PROFILE, load_cluster, load_model, load_profile, split_overrides
    from knee.specs.plan import Plan

    for_model, for_cluster, for_profile, for_plan = split_overrides(parse_sets(options["sets"]))
    if for_plan:
        raise InputError(f"--set {for_plan[0][0]}: plans are what is searched", hint="limit them with --only")
    shape = load_model(_model_ref(model), for_model).spec
    cluster = load_cluster(options["cluster"], for_cluster).spec
    profile = load_profile(options["profile"] or DEFAULT_PROFILE, for_profile).spec
    gpus = options["gpus"]
    seq_len = options["seq_len"] if options["seq_len"] is not None else min(4096, shape.max_seq_len)
    space = Space(
        model=shape,
        gpus=gpus,
        global_batch=_batch(options, gpus),
        seq_len=seq_len,
        fixed=Plan(precision=options["precision"], reduce_dtype=options["reduce_dtype"],
                   state_dtype=options["state_dtype"]),
        max_tp=options["max_tp"],
        max_pp=options["max_pp"],
        max_cp=options["max_cp"],
        shardings=options["sharding"],
        schedules=options["schedule"],
        recomputes=options["recompute"],
        micro_batches=options["micro_batch"],
        selective=profile.attention == "unfused",
    )
    cluster.gpu.peak_flop_per_s(space.fixed.precision)
    found = search(space, cluster, profile, objective=options["objective"], only=options["only"], progress=_Bar())
    if len(found):
        return found
    if found.plans:
        words, hint = nothing_fits(found)
        raise DoesNotFit(words, hint=hint)
    whole = replace(space, max_tp=None, max_pp=None, max_cp=None, shardings=(), schedules=(), recomputes=(),
                    micro_batches=())
    limited = whole != space or options["only"] is not None
    count = _count(whole)
    if limited and count:
        raise DoesNotFit(f"the limits leave none of {count:,} plans", hint=_values(whole, options["only"]))
    words, hint = no_plan(whole)
    raise DoesNotFit(words, hint=hint)


def _model_ref(model: str) -> str:
    return model if model.strip() else "?"


def _batch(options: dict[str, Any], gpus: int) -> int:
    both = options["global_batch"], options["local_batch"]
    if both == (None, None):
        raise InputError("missing: --global-batch (or --local-batch)",
                         hint="for example knee plan llama2-7b --cluster dgx-h100 --gpus 256 --global-batch 512")
    if None not in both:
        raise InputError("--global-batch and --local-batch are both given", hint="give one of them")
    if both[0] is not None:
        return int(both[0])
    batch = both[1] * gpus
    if not math.isfinite(batch) or batch != int(batch) or batch < 1:
        raise InputError(f"--local-batch {both[1]:g} times {gpus} GPUs is {batch:g} sequences, not a whole number")
    return int(batch)


def _count(space: Any) -> int:
    from knee.search.space import whole_table

    return len(whole_table(space))


def _values(space: Any, only: str | None) -> str:
    """What the columns of a condition can be."""
    import numpy as np

    from knee.search.only import NUMBERS, WORDS
    from knee.search.space import whole_table

    table = whole_table(space)
    said_words = set(re.findall(r"[a-z_]+", only or ""))
    named = [name for name in (*NUMBERS, *WORDS) if name in said_words]
    said = []
    for name in named or ["tp", "pp", "cp", "sharding"]:
        values = np.unique(getattr(table, name)).tolist()
        words = [WORDS[name][v] if name in WORDS else f"{int(v):,}" for v in values]
        said.append(f"{name} is one of {', '.join(words[:16])}{', ...' if len(words) > 16 else ''}")
    return "; ".join(said)


class _Bar:
    """A line on stderr once a search takes longer."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()

    def __call__(self, what: str, share: float) -> None:
        if time.monotonic() - self.began_s > PATIENCE_S:
            click.echo(f"{what}: {share:.0%}" if share else what, err=True)


def plan_words(job_or_plan: Any) -> str:
    """A plan in one line."""
    p = job_or_plan
    degrees = [f"{axis} {getattr(p, axis):,}" for axis in ("dp_replicate", "dp_shard", "tp", "pp", "cp")
               if getattr(p, axis) > 1]
    words = [p.sharding, *degrees]
    if p.pp > 1:
        words.append(p.schedule + (f" x{p.virtual_stages}" if p.virtual_stages > 1 else ""))
    if p.tp > 1 and not p.sequence_parallel:
        words.append("no sp")
    if p.cp > 1 and p.cp_method != "allgather":
        words.append(p.cp_method)
    words.append(f"micro-batch {p.micro_batch}")
    if p.recompute != "none":
        words.append(f"recompute {p.recompute}" + (f" ({p.recompute_frac:.0%} of the layers)" if p.recompute_frac < 1
                                                   else ""))
    return ", ".join(words)


METRICS = ("tokens_per_s", "tokens_per_s_per_gpu", "mfu_frac", "step_s", "compute_s", "exposed_comm_s",
           "overlapped_comm_s", "bubble_s", "memory_bytes", "power_w_per_gpu", "tokens_per_j", "usd_per_mtoken")


def _row_data(found: Found, row: int, drawn: Robust) -> dict[str, Any]:
    from math import isfinite

    values = {name: float(getattr(found.results, name)[row]) for name in METRICS}
    hbm = found.cluster.gpu.hbm_bytes
    known = row < len(drawn.good_frac)
    return {
        "rank": row + 1,
        "plan": asdict(found.table.plan(row)),
        **{name: value if isfinite(value) else None for name, value in values.items()},
        "exposed_frac": values["exposed_comm_s"] / values["step_s"],
        "bubble_frac": values["bubble_s"] / values["step_s"],
        "headroom_bytes": hbm - values["memory_bytes"],
        "good_frac": float(drawn.good_frac[row]) if known else None,
        "fits_frac": float(drawn.fits_frac[row]) if known else None,
        "worst_frac": float(drawn.worst_frac[row]) if known else None,
    }


def _baseline_data(found: Found, base: Baseline, drawn: Robust) -> dict[str, Any]:
    if base.row is not None:
        return _row_data(found, base.row, drawn)
    r = base.result
    return {
        "rank": None,
        "plan": asdict(base.job.plan),
        **{name: getattr(r, name) for name in METRICS},
        "exposed_frac": r.exposed_comm_s / r.step_s,
        "bubble_frac": r.bubble_s / r.step_s,
        "headroom_bytes": found.cluster.gpu.hbm_bytes - r.memory_bytes,
        "good_frac": None,
        "fits_frac": None,
        "worst_frac": None,
    }


def _data(found: Found, drawn: Robust, base: Baseline | None, sentence: str, bars: list[Bar], front: list[int],
          trust: Trust, top: int) -> dict[str, Any]:
    space = found.space
    rows = list(range(min(top, len(found))))
    return {
        "schema_version": 1,
        "model": space.model.name,
        "cluster": found.cluster.name,
        "profile": found.profile.name,
        "gpus": space.gpus,
        "global_batch": space.global_batch,
        "seq_len": space.seq_len,
        "objective": found.objective,
        "counts": {"plans": found.plans, "too_large": found.too_large, "bounded": found.bounded,
                   "simulated": len(found)},
        "plans": [_row_data(found, row, drawn) for row in rows],
        "recommended": _row_data(found, drawn.recommended, drawn),
        "alike": [row + 1 for row in drawn.alike],
        "why": sentence,
        "baseline": None if base is None else _baseline_data(found, base, drawn),
        "front": [_row_data(found, row, drawn) for row in front],
        "robustness": {"draws": drawn.draws, "within_frac": 0.02,
                       "parameters": [{"path": p.path, "spread": p.spread, "share": p.is_share, "meaning": p.meaning}
                                      for p in drawn.parameters]},
        "sensitivity": [asdict(bar) for bar in bars],
        "trust": trust.as_json(),
    }


def _print(found: Found, drawn: Robust, base: Baseline | None, sentence: str, bars: list[Bar], front: list[int],
           trust: Trust, top: int, job: Job) -> None:
    from knee.cli.answer import trust_words
    from knee.cli.table import print_heading, print_rows

    space = found.space
    print_heading(f"{space.model.name} on {space.gpus:,} x {found.cluster.gpu.name} ({found.cluster.name}), profile "
                  f"{found.profile.name}, {space.global_batch:,} sequences of {space.seq_len:,} tokens a step")
    large = ", ".join(f"{n:,} by {part}" for part, n in sorted(found.too_large.items(), key=lambda one: -one[1]))
    too_large = sum(found.too_large.values())
    click.echo(f"  {found.plans:,} plans: {too_large:,} do not fit" + (f" ({large})" if large else "")
               + f", {found.bounded:,} cannot come within an eighth of the best, {len(found):,} simulated")
    click.echo(f"  recommended  {plan_words(job.plan)}")
    click.echo(f"  why          {sentence}")
    _print_robustness(found, drawn)
    click.echo(f"  trust        {trust_words(trust)}")
    rows = list(range(min(top, len(found))))
    extra = [row for row in ([drawn.recommended] + ([base.row] if base is not None and base.row is not None else []))
             if row not in rows]
    print_heading(f"best plans by {found.objective}")
    print_rows(_plan_rows(found, [*rows, *sorted(extra)], drawn, base), right=tuple(range(11)))
    if len(front) > 1:
        print_heading("on the front of tokens/s, tokens/J and free memory, of the simulated plans")
        print_rows(_plan_rows(found, _spread(front), drawn, base), right=tuple(range(11)))
    print_heading("a quarter more of it, the plan chosen anew (and a quarter less)")
    print_rows(_bar_rows(bars), right=(1, 3))


def _spread(front: list[int]) -> list[int]:
    """A few of the front, from its fastest end to its roomiest."""
    if len(front) <= SHOWN_FRONT:
        return front
    step = (len(front) - 1) / (SHOWN_FRONT - 1)
    return list(dict.fromkeys(front[round(i * step)] for i in range(SHOWN_FRONT)))


def _print_robustness(found: Found, drawn: Robust) -> None:
    good = drawn.good_frac[drawn.recommended]
    said = f"within 2% of the best in {good:.0%} of {drawn.draws} draws of what is fitted"
    if drawn.recommended:
        said += f"; the plan that is first by the fitted values is in {drawn.good_frac[0]:.0%}"
        if drawn.fits_frac[0] < drawn.fits_frac[drawn.recommended]:
            said += f", and does not fit in {1 - drawn.fits_frac[0]:.0%}"
    click.echo(f"  robustness   {said}")
    alike = [row + 1 for row in drawn.alike if row < 10]
    if alike:
        click.echo(f"               plans {', '.join(map(str, alike))} cannot be told from it")
    del found


def _plan_rows(found: Found, rows: list[int], drawn: Robust, base: Baseline | None) -> list[list[str]]:
    r, hbm = found.results, found.cluster.gpu.hbm_bytes
    table = [["#", "tokens/s", "per GPU", "MFU", "exposed", "bubble", "free", "W/GPU", "tokens/J", "$/Mtoken", "robust",
              "plan"]]
    for row in rows:
        price = float(r.usd_per_mtoken[row])
        words = plan_words(found.table.plan(row))
        marks = [word for word, is_it in (("recommended", row == drawn.recommended),
                                          ("plain FSDP", base is not None and row == base.row)) if is_it]
        table.append([
            f"{row + 1:,}", f"{r.tokens_per_s[row]:,.0f}", f"{r.tokens_per_s_per_gpu[row]:,.0f}",
            f"{r.mfu_frac[row]:.1%}", f"{r.exposed_comm_s[row] / r.step_s[row]:.1%}",
            f"{r.bubble_s[row] / r.step_s[row]:.1%}", show(hbm - float(r.memory_bytes[row]), "bytes"),
            f"{r.power_w_per_gpu[row]:.0f}", f"{r.tokens_per_j[row]:.2f}", "?" if price != price else f"{price:.3f}",
            f"{drawn.good_frac[row]:.0%}" if row < len(drawn.good_frac) else "",
            words + (f"  <- {', '.join(marks)}" if marks else ""),
        ])
    if base is not None and base.row is None:
        m = base.result
        table.append([
            "", f"{m.tokens_per_s:,.0f}", f"{m.tokens_per_s_per_gpu:,.0f}", f"{m.mfu_frac:.1%}",
            f"{m.exposed_comm_s / m.step_s:.1%}", f"{m.bubble_s / m.step_s:.1%}", show(hbm - m.memory_bytes, "bytes"),
            f"{m.power_w_per_gpu:.0f}", f"{m.tokens_per_j:.2f}", "?" if m.usd_per_mtoken is None else
            f"{m.usd_per_mtoken:.3f}", "", f"{plan_words(base.job.plan)}  <- plain FSDP",
        ])
    return table


def _bar_rows(bars: list[Bar]) -> list[list[str]]:
    most = max((abs(bar.better_frac) for bar in bars), default=0.0) or 1.0
    return [[bar.title, f"{bar.better_frac:+.1%}", "#" * round(BAR_WIDTH * max(0.0, bar.better_frac) / most),
             f"({bar.worse_frac:+.1%})"] for bar in bars]


