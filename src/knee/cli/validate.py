"""``knee validate``: published runs and measured collectives against predictions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from knee.errors import InputError

if TYPE_CHECKING:
    from knee.fidelity.csv_cells import Lines
    from knee.fidelity.runs import PublishedRun

MANY = 2_000
"""Rows and runs above which a bar is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a file of either kind comes to."""

    data: dict[str, Any]
    count: int
    """Rows of the file."""
    rows: Callable[[], Iterator[dict[str, Any]]]
    used: bool
    """Whether any row could be predicted."""
    skipped: dict[str, int]
    ignored: tuple[str, ...]
    show: Callable[[], None]


@click.command("validate")
@click.argument("file", required=False, type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--profile",
    metavar="NAME",
    help="Software profile of all training runs, in place of what the rows tell: a name of `knee catalog` "
    "or a TOML file, such as one of `knee calibrate`.",
)
@click.option(
    "--cluster",
    metavar="NAME",
    help="Cluster of all training runs, in place of what the rows tell: a name of `knee catalog` or a TOML "
    "file, such as one of `knee probe`. Nodes and rates that a row states stay its own.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; every key carries its unit.")
@click.option(
    "--rows",
    "rows_path",
    metavar="OUT.csv",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write published, predicted and error of each row, or why it was skipped; without a file, "
    "those of bandwidths go to OUT.bandwidths.csv.",
)
def command(file: Path | None, profile: str | None, cluster: str | None, as_json: bool, rows_path: Path | None) -> None:
    """Predict what others measured, in a CSV FILE (- is standard input), and say how far off knee is. Without a file:
    what knee carries, several hundred published runs and bandwidths with their sources, and the claims of the paper.
    Or what you measured: FILE may be the folder of a `knee sweep` or a `knee train`, or JSON of knee's own records.

    Training runs, one a row. Needed are the columns layers, hidden, heads, gpu, n_gpus, seq_len and global_batch, and
    one of tokens_per_s_per_gpu, step_time_s, memory_gib and status (ok, oom or failed). What else is known of a run is
    used: ffn, kv_heads, vocab, mlp, tied_embeddings, gpus_per_node, node_gbit_per_s, micro_batch, tp, pp, cp, dp,
    virtual_pp, shard_group, sharding, sequence_parallel, recompute, precision, compile, attention, kernel, async_tp,
    source, model, note. Batches are in sequences.

    What is not given is assumed, and said: tp, pp, cp and virtual_pp 1, dp all other GPUs, micro_batch all of a rank's
    sequences, sharding fsdp, hsdp inside a node, recompute none, precision bf16 (fp16 on a GPU without), no
    torch.compile, flash attention, mlp swiglu, ffn 4 x hidden (8/3 for swiglu), vocab 32,000, nodes and network rate of
    the GPU's usual server. The software stack is told by words of kernel, source and note, and is plain PyTorch where
    none is known.

    Or bandwidths of collectives as nccl-tests prints them, one message size a row: told apart by the column
    collective (all_reduce, all_gather, reduce_scatter, sendrecv). Needed are gpu, n_gpus, collective and bytes, and one
    of busbw_GBps, algbw_GBps and time_us; used are nodes, gpus_per_node, node_gbit_per_s, fabric (efa, roce,
    slingshot, tcpxo; else InfiniBand), algorithm (ring, tree, nvls; else the fastest), source and note. Links are idle.

    Repeats of one setting count once, by their median. Regret is how much slower the plan that knee ranks first ran
    than the fastest, among runs that differ only in the plan.
    """
    from knee.fidelity.bandwidths import is_bandwidths
    from knee.fidelity.csv_cells import read_table, text_of
    from knee.fidelity.runs import REQUIRED
    from knee.fidelity.user_records import is_json

    if file is None:
        if profile or cluster:
            raise InputError("--profile and --cluster need a file of runs", hint="knee validate runs.csv --profile ...")
        _own(as_json, rows_path)
        return
    if rows_path is not None and rows_path.resolve() == file.resolve():
        raise InputError(f"--rows would overwrite {file}, which is read", hint="name another file")
    text = None if file.is_dir() else text_of(file)  # once: it may be a pipe
    if text is None or is_json(text):
        answer = _runs(file, text, profile, cluster, records=True)
    else:
        header, _ = read_table(file, REQUIRED, text)
        if is_bandwidths(header) and (profile or cluster):
            raise InputError(
                f"{file} has bandwidths of collectives; --profile and --cluster are for training runs",
                hint="leave them out",
            )
        answer = _bandwidths(file, text) if is_bandwidths(header) else _runs(file, text, profile, cluster)
    if rows_path is not None:
        _write_rows(rows_path, answer.rows())
    if not answer.used:
        from knee.cli.validate_tables import none_used

        if as_json:
            click.echo(json.dumps(answer.data, indent=2, allow_nan=False))
        raise InputError(none_used(f"none of the {answer.count:,} rows of {file} can be predicted", answer.skipped))
    if answer.ignored:
        click.echo(f"ignored columns: {', '.join(answer.ignored)}", err=True)
    if as_json:
        click.echo(json.dumps(answer.data, indent=2, allow_nan=False))
    else:
        answer.show()


def _own(as_json: bool, rows_path: Path | None) -> None:
    """The validation set that knee carries."""
    from knee.cli import validate_bandwidths as of_bandwidths
    from knee.cli import validate_runs as of_runs
    from knee.cli.progress import progress
    from knee.cli.validate_carried import as_data, print_own
    from knee.fidelity.bandwidth_errors import validate_bandwidths
    from knee.fidelity.bandwidths import carried_bandwidths
    from knee.fidelity.carried_set import carried_fidelity, carried_runs
    from knee.fidelity.validation import validate
    from knee.study.files import study_names
    from knee.study.run import points_to_run, recorded, results
    from knee.study.store import Store

    file, other = carried_runs(), carried_bandwidths()
    runs, links = validate(file), validate_bandwidths(other)
    found = carried_fidelity(runs, links)
    if rows_path is not None:
        _write_rows(rows_path, of_runs.rows(file, runs))
        _write_rows(
            rows_path.with_name(f"{rows_path.stem}.bandwidths{rows_path.suffix}"), of_bandwidths.rows(other, links)
        )
    names = study_names("paper")
    points = points_to_run(names)
    answered = list(progress(recorded(points, Store().record), "claims of the paper", len(points)))
    verdicts = [verdict for one in results(names, answered) for verdict in one.verdicts]
    if as_json:
        data = as_data(found, verdicts) | {
            "carried_runs": of_runs.as_data(file, runs),
            "carried_bandwidths": of_bandwidths.as_data(other, links),
        }
        click.echo(json.dumps(data, indent=2, allow_nan=False))
    else:
        print_own(found, runs, links, verdicts)


def _runs(path: Path, text: str | None, profile: str | None, cluster: str | None, *, records: bool = False) -> Answer:
    from knee.cli.progress import progress
    from knee.cli.validate_records import records_of
    from knee.cli.validate_runs import as_data, print_runs, rows
    from knee.fidelity.jobs_of_runs import job_of
    from knee.fidelity.runs import read_runs
    from knee.fidelity.validation import validate
    from knee.specs.load import load_cluster, load_profile

    stack = None if profile is None else load_profile(profile).spec
    where = None if cluster is None else load_cluster(cluster).spec
    file, ask = (
        records_of(path, text, stack, where)
        if records
        else (read_runs(path, text, watch=_reading(text)), partial(job_of, profile=stack, cluster=where))
    )

    def watch(runs: Sequence[PublishedRun]) -> Iterable[PublishedRun]:
        return progress(runs, "predicting", len(runs)) if len(runs) > MANY else runs

    found = validate(file, ask, watch)
    return Answer(
        data=as_data(file, found),
        count=len(file.rows),
        rows=lambda: rows(file, found),
        used=bool(found.predictions),
        skipped=found.all.skipped,
        ignored=file.ignored,
        show=lambda: print_runs(found),
    )


def _bandwidths(path: Path, text: str) -> Answer:
    from knee.cli.validate_bandwidths import as_data, print_bandwidths, rows
    from knee.fidelity.bandwidth_errors import validate_bandwidths
    from knee.fidelity.bandwidths import read_bandwidths

    file = read_bandwidths(path, text, watch=_reading(text))
    found = validate_bandwidths(file)
    return Answer(
        data=as_data(file, found),
        count=len(file.rows),
        rows=lambda: rows(file, found),
        used=bool(found.predictions),
        skipped=found.all.skipped,
        ignored=file.ignored,
        show=lambda: print_bandwidths(found),
    )


def _reading(text: str | None) -> Callable[[Lines], Lines]:
    """What shows the lines of a large table pass."""
    from knee.cli.progress import progress

    count = (text or "").count("\n")
    return lambda lines: progress(lines, "reading", count) if count > MANY else lines


def _write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    from knee.files import csv_text, write_text

    write_text(path, csv_text(rows))
    click.echo(f"wrote {path}", err=True)
