"""The page of the study: the weak scaling and the claims, in words, charts and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import knee
from knee.fidelity.carried_set import CarriedFidelity
from knee.figures import weak_scaling as drawn
from knee.figures.vega import to_svg
from knee.report.html import Markup, table
from knee.report.page import Chart, Key, Page, Section, render
from knee.study.verdict import Tally, Verdict
from knee.study.weak_scaling import LARGE, LARGEST, PAYS_FRAC, Findings, PaperPoint, Row

PAPER = (
    "Hardware Scaling Trends and Diminishing Returns in Large-Scale Distributed Training, arXiv 2411.13055",
    "https://arxiv.org/abs/2411.13055",
)


def study_page(
    rows: Sequence[Row],
    points: Sequence[PaperPoint],
    found: Findings,
    verdicts: Sequence[Verdict],
    fidelity: CarriedFidelity,
    *,
    assumptions: Sequence[str],
    command: str,
) -> str:
    """The study as one HTML file."""
    return render(
        Page(
            title="How far does FSDP scale? The paper's study on the simulator",
            question="Llama-2-7B on 8 to 2,048 H100s, simulated and held against the claims of arXiv 2411.13055.",
            command=command,
            keys=_keys(found, Tally.of(verdicts)),
            found=sentences(found),
            tables=(_doublings(found),),
            verdicts=tuple(verdicts),
            sections=(_weak_scaling(rows, points), _fidelity(fidelity)),
            assumptions=tuple(assumptions),
            sources=(PAPER,),
            version=knee.__version__,
        )
    )


def _keys(found: Findings, tally: Tally) -> tuple[Key, ...]:
    return (
        Key(
            value=f"{100 * found.large_change_frac:+.1f}%",
            paper="-37.22%",
            says=f"tokens/s per GPU under FSDP, {LARGE:,} to {LARGEST:,} GPUs",
        ),
        Key(
            value=f"{found.doublings[-1].speedup:.2f}x",
            says=f"from the last doubling, {found.doublings[-1].from_gpus:,} to {found.doublings[-1].to_gpus:,} GPUs; "
            "2x is ideal",
        ),
        Key(
            value=f"{100 * found.best_tp_gain_frac:+.1f}%",
            paper="+52.60%",
            says=f"tokens/s from {found.best_tp} over FSDP on {LARGEST:,} GPUs",
        ),
        Key(
            value=f"{100 * found.power_change_frac:+.1f}%",
            paper="-5.87%",
            says=f"power per GPU under FSDP, {LARGE:,} to {LARGEST:,} GPUs",
        ),
        Key(
            value=f"{100 * found.tokens_per_j_change_frac:+.1f}%",
            paper="more than 30% lost",
            says=f"tokens per joule under FSDP, {LARGE:,} to {LARGEST:,} GPUs",
        ),
        Key(
            value=f"{tally.reproduced} of {tally.reproduced + tally.failed}",
            says=f"testable claims reproduced; {tally.failed} failed, {tally.not_testable} not testable",
        ),
    )


def sentences(found: Findings) -> tuple[str, ...]:
    """The findings in words."""
    small, large = f"{100 * found.small_change_frac:+.1f}%", f"{100 * found.large_change_frac:+.1f}%"
    before, after = f"{100 * found.exposed_large_frac:.1f}%", f"{100 * found.exposed_largest_frac:.1f}%"
    return (
        f"From 8 to {LARGE:,} GPUs throughput per GPU changes by {small}, from {LARGE:,} to {LARGEST:,} by {large}: "
        f"exposed communication goes from {before} to {after} of the step.",
        f"Up to {found.pays_until_gpus:,} GPUs every doubling buys at least {2 * PAYS_FRAC:.1f}x; the next buys less.",
        f"On {LARGEST:,} GPUs {found.best_tp} is {100 * found.best_tp_gain_frac:.1f}% faster than FSDP alone and draws "
        f"{found.best_tp_extra_w:.0f} W more per GPU.",
        f"A GPU draws {found.power_large_w:.0f} W at {LARGE:,} GPUs and {found.power_largest_w:.0f} W at "
        f"{LARGEST:,}, and tokens per joule change by {100 * found.tokens_per_j_change_frac:+.1f}%.",
    )


def _doublings(found: Findings) -> Markup:
    records = [
        {"from_gpus": d.from_gpus, "to_gpus": d.to_gpus, "speedup": d.speedup, "of_ideal_frac": d.speedup / 2.0}
        for d in found.doublings
    ]
    return table("What each doubling of the GPUs buys under FSDP; 2 is ideal", tuple(records[0]), records)


def _weak_scaling(rows: Sequence[Row], points: Sequence[PaperPoint]) -> Section:
    return Section(
        id="weak-scaling",
        title="Weak scaling",
        says="Two sequences of 4,096 tokens per GPU and step, under FSDP alone and with tensor parallelism of 2 and 4. "
        "Lines are simulated, hollow diamonds are the paper's.",
        charts=tuple(_chart(figure, rows, points) for figure in drawn.figures(rows, points)),
    )


def _fidelity(found: CarriedFidelity) -> Section:
    """Published runs and bandwidths that knee carries, against its predictions."""
    out = [f"{100 * x:.1f}%" if x is not None else "unknown" for x in (found.size_out_frac, found.source_out_frac)]
    bandwidths = [
        {"collective": name, **asdict(r)}
        for name, r in (("all-reduce", found.all_reduce), ("all-gather", found.all_gather))
        if r is not None
    ]
    runs = [{k: "" if v is None else v for k, v in asdict(s).items()} for s in found.sources]
    columns = tuple(name for name in runs[0] if name != "reference")
    return Section(
        id="fidelity",
        title="How far it can be trusted",
        says=f"Published training runs of {len(found.sources)} sources, predicted: tokens/s per GPU is off by "
        f"{100 * found.headline_frac:.1f}%, by {out[0]} where the model size was left out of the fit, and by {out[1]} "
        "where the source was (medians over sources of each one's median).",
        charts=(),
        tables=(
            table("Published runs against predictions; memory where it was read", columns, runs),
            table("Bus bandwidth on idle links, messages of 16 MiB and up", tuple(bandwidths[0]), bandwidths),
            table("Where the runs were published", ("source", "reference"), runs),
        ),
    )


def _chart(figure: drawn.Figure, rows: Sequence[Row], points: Sequence[PaperPoint]) -> Chart:
    tables = [table(f"{figure.title}: simulated", figure.columns, [asdict(row) for row in rows])]
    published = [
        {"plan": p.plan, "gpus": p.gpus, p.metric: p.value, "how": p.how} for p in points if p.metric in figure.columns
    ]
    if published:
        tables.append(table(f"{figure.title}: the paper", tuple(published[0]), published))
    return Chart(
        id=figure.id, title=figure.title, caption=figure.caption, svg=to_svg(figure.spec), tables=tuple(tables)
    )
