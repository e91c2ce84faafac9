"""``knee validate``: published runs and measured collectives against predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from knee.results.validate_result import Validation

MANY = 2_000
"""Rows and runs above which a bar is shown."""


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
@click.option(
    "--unseen",
    is_flag=True,
    help="Predict every published source as if it had never been seen: without what was fitted on or learned from it.",
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
def command(
    file: Path | None, profile: str | None, cluster: str | None, unseen: bool, as_json: bool, rows_path: Path | None
) -> None:
    """Predict what others measured, in a CSV FILE (- is standard input), and say how far off knee is. Without a file:
    what knee carries, several hundred published runs and bandwidths with their sources, and the claims of the paper.
    Or what you measured: FILE may be the folder of a `knee sweep` or a `knee train`, or JSON of knee's own records.

    Training runs, one a row. Needed are the columns layers, hidden, heads, gpu, n_gpus, seq_len and global_batch, and
    one of tokens_per_s_per_gpu, step_time_s, memory_gib and status (ok, oom or failed). What else is known of a run is
    used: ffn, kv_heads, vocab, mlp, tied_embeddings, gpus_per_node, node_gbit_per_s, micro_batch, tp, pp, cp, dp,
    virtual_pp, shard_group, sharding, sequence_parallel, recompute, precision, compile, attention, kernel, async_tp,
    stack, software, fabric, reduce_dtype, tp_overlap, dp_overlap, cuda_graphs, sharp, fp8_recipe, source, model, note.
    Batches are in sequences.

    What is not given is assumed, and said: tp, pp, cp and virtual_pp 1, dp all other GPUs, micro_batch all of a rank's
    sequences, sharding fsdp, hsdp inside a node, recompute none, precision bf16 (fp16 on a GPU without), no
    torch.compile, flash attention, mlp swiglu, ffn 4 x hidden (8/3 for swiglu), vocab 32,000, nodes and network rate of
    the GPU's usual server. The software stack is the one that the column stack names; where that is empty or unknown, a
    generic profile stands for it: Transformer Engine's where kernel says so, compiled or eager PyTorch else. Words of
    kernel and attention (flash-1, flash-2, RMS kernel, unfused) select kernels.

    Or bandwidths of collectives as nccl-tests prints them, one message size a row: told apart by the column
    collective (all_reduce, all_gather, reduce_scatter, sendrecv). Needed are gpu, n_gpus, collective and bytes, and one
    of busbw_GBps, algbw_GBps and time_us; used are nodes, gpus_per_node, node_gbit_per_s, fabric (efa, roce,
    slingshot, tcpxo; else InfiniBand), algorithm (ring, tree, nvls; else the fastest), source and note. Links are idle.

    Repeats of one setting count once, by their median. Regret is how much slower the plan that knee ranks first ran
    than the fastest, among runs that differ only in the plan.
    """
    from knee.api.validate import validate
    from knee.cli.render.progress import Bars
    from knee.results.validate_result import refuse_overwriting

    if rows_path is not None and file is not None:
        refuse_overwriting(rows_path, file)
    with Bars(least=0 if file is None else MANY) as bars:
        answer = validate(file, profile=profile, cluster=cluster, unseen=unseen, progress=bars)
    for written in () if rows_path is None else answer.write_rows(rows_path):
        click.echo(f"wrote {written}", err=True)
    if answer.used and answer.ignored_columns:
        click.echo(f"ignored columns: {', '.join(answer.ignored_columns)}", err=True)
    if as_json:
        click.echo(json.dumps(answer.to_dict(), indent=2, allow_nan=False))
    answer.check_used()
    if not as_json:
        _print(answer)


def _print(answer: Validation) -> None:
    from knee.cli.render.validate_bandwidths import print_bandwidths
    from knee.cli.render.validate_carried import print_own
    from knee.cli.render.validate_runs import print_runs
    from knee.results.validate_result import BandwidthsValidation, RunsValidation

    if isinstance(answer, RunsValidation):
        print_runs(answer.found)
    elif isinstance(answer, BandwidthsValidation):
        print_bandwidths(answer.found)
    else:
        print_own(answer)
