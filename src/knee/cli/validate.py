"""``knee validate``: published runs against predictions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from knee.errors import InputError

if TYPE_CHECKING:
    from knee.fidelity.residuals import Residuals
    from knee.fidelity.runs import RunFile
    from knee.fidelity.validation import Score, Validation

SHOWN = 12
"""Reasons and assumptions that are printed; JSON has all."""
ALL = "all rows"


@click.command("validate")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON; every key carries its unit.")
@click.option("--rows", "rows_path", metavar="OUT.csv", type=click.Path(dir_okay=False, path_type=Path),
              help="Also write published, predicted and error of each row, or why it was skipped.")
def command(file: Path | None, as_json: bool, rows_path: Path | None) -> None:
    """Predict the published runs of a CSV FILE and say how far off knee is.

    One training run a row. Needed are the columns layers, hidden, heads, gpu, n_gpus, seq_len and global_batch, and
    one of tokens_per_s_per_gpu, step_time_s, memory_gib and status (ok, oom or failed). What else is known of a run is
    used: ffn, kv_heads, vocab, mlp, tied_embeddings, gpus_per_node, node_gbit_per_s, micro_batch, tp, pp, cp, dp,
    virtual_pp, shard_group, sharding, sequence_parallel, recompute, precision, compile, attention, kernel, async_tp,
    source, model, note. Batches are in sequences.

    Repeats of one setting count once, by their median. Regret is how much slower the plan that knee ranks first ran
    than the fastest, among runs that differ only in the plan.
    """
    from knee.fidelity.runs import read_runs
    from knee.fidelity.validation import validate

    if file is None:
        raise InputError("a file of published runs is needed", hint="knee validate runs.csv; --help names its columns")
    if rows_path is not None and rows_path.resolve() == file.resolve():
        raise InputError(f"--rows would overwrite {file}, which is read", hint="name another file")
    runs = read_runs(file)
    found = validate(runs)
    if rows_path is not None:
        _write_rows(rows_path, runs, found)
    if not found.predictions:
        reason, rows = next(iter(found.all.skipped.items()))
        raise InputError(f"none of the {len(runs.rows):,} rows of {file} can be predicted; {rows:,} of them: {reason}")
    if runs.ignored:
        click.echo(f"ignored columns: {', '.join(runs.ignored)}", err=True)
    if as_json:
        click.echo(json.dumps(_as_data(runs, found), indent=2, allow_nan=False))
    else:
        _print(found)


def _as_data(runs: RunFile, found: Validation) -> dict[str, Any]:
    return {
        "median_of_sources_frac": found.headline_frac,
        "all": asdict(found.all),
        "sources": {name: asdict(score) for name, score in found.sources.items()},
        "assumptions": found.notes,
        "ignored_columns": list(runs.ignored),
    }


def _write_rows(path: Path, runs: RunFile, found: Validation) -> None:
    from knee.report.files import csv_text, write_text

    records = []
    for row in runs.rows:
        p = found.predictions.get(row.line)
        records.append({
            "line": row.line,
            "id": row.id,
            "source": row.source,
            "status": row.status,
            "skipped": found.reasons.get(row.line),
            "stack": p and p.stack,
            "published_tokens_per_s_per_gpu": row.tokens_per_s_per_gpu,
            "median_tokens_per_s_per_gpu": p and p.run.tokens_per_s_per_gpu,
            "predicted_tokens_per_s_per_gpu": p and p.tokens_per_s_per_gpu,
            "error_frac": p and p.error_frac,
            "published_memory_bytes": row.memory_bytes,
            "median_memory_bytes": p and p.run.memory_bytes,
            "predicted_memory_bytes": p and p.memory_bytes,
            "memory_error_frac": p and p.memory_error_frac,
            "fits": p and p.fits,
            "assumptions": p and "; ".join(p.notes),
        })
    write_text(path, csv_text(records))
    click.echo(f"wrote {path}", err=True)


def _print(found: Validation) -> None:
    from knee.cli.table import print_heading

    scores = {**found.sources, ALL: found.all} if len(found.sources) > 1 else found.sources
    if found.headline_frac is not None and found.all.throughput is not None:
        print_heading(f"tokens/s per GPU: error {found.headline_frac:.1%} (median over {_counted(found)} of each one's "
                      f"median), {found.all.throughput.median_frac:.1%} over all {found.all.throughput.points:,} runs")
    _print_used(scores)
    _print_errors("error of tokens/s per GPU", {name: score.throughput for name, score in scores.items()})
    _print_errors("error of memory", {name: score.memory for name, score in scores.items()})
    _print_fitting(scores)
    _print_ranking(scores)
    _print_counts("skipped", {f"{name}: {reason}": rows for name, score in found.sources.items()
                              for reason, rows in score.skipped.items()})
    _print_counts("assumptions", found.notes)


def _counted(found: Validation) -> str:
    count = sum(score.throughput is not None for score in found.sources.values())
    return "one source" if count == 1 else f"{count} sources"


def _print_table(title: str, cells: Sequence[Sequence[str]]) -> None:
    """Nothing where there is a header only."""
    from knee.cli.table import print_heading, print_rows

    if len(cells) > 1:
        print_heading(title)
        print_rows(cells, right=range(1, len(cells[0])))


def _print_used(scores: Mapping[str, Score]) -> None:
    cells = [["source", "rows", "used", "skipped", "runs"]]
    cells += [[name, f"{s.rows:,}", f"{s.rows_used:,}", f"{s.rows - s.rows_used:,}", f"{s.runs:,}"]
              for name, s in scores.items()]
    _print_table("rows (repeats are one run)", cells)


def _print_errors(title: str, residuals: Mapping[str, Residuals | None]) -> None:
    cells = [["source", "runs", "median", "p90", "bias"]]
    cells += [[name, f"{r.points:,}", f"{r.median_frac:.1%}", f"{r.p90_frac:.1%}", f"{r.bias_frac:+.1%}"]
              for name, r in residuals.items() if r is not None]
    _print_table(title, cells)


def _print_fitting(scores: Mapping[str, Score]) -> None:
    from knee.fidelity.runs import STATUSES

    cells = [["source", *(f"{status}: {word}" for status in STATUSES for word in ("fits", "does not"))]]
    cells += [[name, *(f"{count:,}" for f in s.fitting.values() for count in (f.fits, f.does_not))]
              for name, s in scores.items() if s.runs]
    _print_table("runs by status: does knee expect them to fit?", cells)


def _print_ranking(scores: Mapping[str, Score]) -> None:
    cells = [["source", "groups", "plans", "median", "mean", "worst", "best chosen", "rank correlation"]]
    for name, score in scores.items():
        if (r := score.ranking) is not None:
            order = "" if r.median_spearman is None else f"{r.median_spearman:.2f}"
            cells.append([name, f"{r.groups:,}", f"{r.plans:,}", f"{r.median_regret_frac:.1%}",
                          f"{r.mean_regret_frac:.1%}", f"{r.worst_regret_frac:.1%}", f"{r.best_chosen_frac:.0%}",
                          order])
    _print_table("regret of the plan that knee ranks first", cells)


def _print_counts(title: str, counts: Mapping[str, int]) -> None:
    from knee.cli.table import print_heading

    if not counts:
        return
    print_heading(f"{title}:")
    for sentence, rows in sorted(counts.items(), key=lambda item: -item[1])[:SHOWN]:
        click.echo(f"  - {rows:,} row{'s' if rows > 1 else ''}: {sentence}")
    if len(counts) > SHOWN:
        click.echo(f"  - and {len(counts) - SHOWN:,} more; --json has all, --rows has them by row")
