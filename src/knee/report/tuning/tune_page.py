"""The page of a tuning: the best plan, the search in pictures, and every run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from knee.figures.tune_charts import tune_figures
from knee.report.page import Key, Page, Section, chart_of, render_page
from knee.report.tables import Table, record_table
from knee.units import counted, precise

Data = Mapping[str, Any]
RUNS = ("run", "stage", "plan", "status", "cause", "tokens/s per GPU", "GPU-hours", "message")
ASSUMPTIONS = (
    "Errors of predictions go together between plans that share a mechanism, as in published runs "
    "(catalog/validation/tuning.toml).",
    "A run out of memory costs half of a run that completes. A run that loses its node tells nothing about its plan.",
    "The bound covers the candidates: the plans that are best by simulation.",
)


def tune_page(data: Data, *, command: str = "") -> str:
    """One HTML file of ``knee tune --json``'s data."""
    job, best = data["job"], data["best_tokens_per_s_per_gpu"]
    keys = [
        Key(value="-" if best is None else precise(best), says="tokens/s per GPU with the best plan"),
        Key(value=_share(data["bound_frac"]), says="more is possible at most, with 90% probability"),
        Key(value=f"{len(data['runs'])} of {len(data['candidates']):,}", says="candidates run"),
        Key(value=f"{data['gpu_h']:.3g}", says="GPU-hours"),
    ]
    charts = tuple(chart_of(figure) for figure in tune_figures(data))
    page = Page(
        title="The fastest plan on the cluster",
        question=f"{job['model']} on {counted(job['gpus'], 'GPU')} of {job['cluster']}, {job['global_batch']:,} "
        f"sequences of {job['seq_len']:,} tokens per step: which plan is fastest for real?",
        command=command,
        keys=tuple(keys),
        found=(
            "No run has completed." if best is None else f"Best plan: {data['best_plan']}.",
            f"The most promising untried plan is expected to gain {_share(data['expected_gain_frac'])}.",
            *data["notes"],
        ),
        sections=(
            Section(id="search", title="The search", says="What each run has told.", charts=charts),
            Section(id="runs", title="Runs", says="In the order in which they were chosen.", blocks=(_runs(data),)),
        ),
        assumptions=ASSUMPTIONS,
    )
    return render_page(page)


def _runs(data: Data) -> Table:
    rows = [
        dict(
            zip(
                RUNS,
                (
                    run["id"],
                    run["stage"],
                    run["plan"],
                    run["state"],
                    run["cause"],
                    None if run["tokens_per_s_per_gpu"] is None else precise(run["tokens_per_s_per_gpu"]),
                    f"{run['gpu_h']:.4g}",
                    run["words"],
                ),
                strict=True,
            )
        )
        for run in data["runs"]
    ]
    return record_table("Runs", RUNS, rows)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
