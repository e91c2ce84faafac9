"""``knee validate``: published runs and measured collectives against predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from knee.commands.options.output import say
from knee.commands.options.sections import FILE, options
from knee.trust.validation.published_runs import DENSE, SPARSE, column_words

if TYPE_CHECKING:
    from knee.commands.validate.result import Validation

MANY = 2_000
"""Rows and runs above which a bar is shown."""


HELP = """Predict measured runs, and show the error of the predictions. FILE is a CSV file (- is standard input), the
folder of a `knee sweep` or `knee train`, or JSON records of knee. Without FILE, knee predicts the published runs
and bandwidths that it ships, and checks the claims of the paper.

A CSV file of training runs has one run per row. Required columns: layers, hidden, heads, gpu, n_gpus, seq_len,
global_batch (in sequences), and at least one of tokens_per_s_per_gpu, step_time_s, memory_gib and status (ok, oom
or failed). Optional columns: {columns}. Rows of mixtures of experts have experts, top_k and expert_ffn;
optional columns are {expert_columns}.

The answer lists the defaults that were used. They are: tp, pp, cp and virtual_pp 1; dp all remaining GPUs;
micro_batch all sequences of a rank; sharding fsdp; hsdp shards within a node; recompute none; precision bf16 (fp16
on GPUs without bf16); no torch.compile; flash attention; mlp swiglu; ffn 4 x hidden (8/3 x hidden for swiglu);
vocab 32,000; node size and network rate of the GPU's usual server. The column stack names the software stack. If
it is empty or unknown, knee uses a generic profile: Transformer Engine if the column kernel names it, else
compiled or eager PyTorch. The columns kernel and attention select kernels (flash-1, flash-2, RMS kernel, unfused).

A CSV file of collective bandwidths, as nccl-tests prints them, has one message size per row. knee recognizes it by
the column collective (all_reduce, all_gather, reduce_scatter, sendrecv). Required columns: gpu, n_gpus,
collective, bytes, and one of busbw_GBps, algbw_GBps and time_us. Optional columns: nodes, gpus_per_node,
node_gbit_per_s, fabric (efa, roce, slingshot, tcpxo; default: InfiniBand), algorithm (ring, tree, nvls; default:
the fastest), source and note. The links are assumed to be otherwise idle.

Repeated measurements of one setting count once, with their median. Regret is the
measured slowdown of the plan that knee ranks first, relative to the fastest plan, among runs that differ only in
the plan.
"""


@click.command("validate", help=HELP.format(columns=column_words(DENSE), expert_columns=column_words(SPARSE)))
@click.argument("file", required=False, type=click.Path(path_type=Path, allow_dash=True))
@options(
    "Options",
    {
        ("--profile NAME", str): "Use this software profile for all training runs instead of what the rows state: a "
        "name from `knee catalog`, or a TOML file such as the output of `knee calibrate`.",
        ("--cluster NAME", str): "Use this cluster for all training runs instead of what the rows state: a name from "
        "`knee catalog`, or a TOML file such as the output of `knee probe`. A row's own node size and network rate "
        "still apply.",
        ("--unseen", bool): "Predict each published source with constants that were fitted without it.",
        ("--json as_json", bool): "Print JSON; the name of each key ends in its unit.",
        ("--rows rows_path OUT.csv", FILE): "Also write the published value, the prediction and the error of each "
        "row, or why the row was skipped. Without FILE, rows of mixtures of experts go to OUT.moe.csv, bandwidths to "
        "OUT.bandwidths.csv.",
    },
)
def command(
    file: Path | None, profile: str | None, cluster: str | None, unseen: bool, as_json: bool, rows_path: Path | None
) -> None:
    """Predict measured runs, and show the error of the predictions."""
    from knee.commands.validate.api import validate
    from knee.commands.validate.result import refuse_overwriting
    from knee.show.terminal.progress_bar import Bars

    if rows_path is not None and file is not None:
        refuse_overwriting(rows_path, file)
    with Bars(least=0 if file is None else MANY) as bars:
        answer = validate(file, profile=profile, cluster=cluster, unseen=unseen, progress=bars)
    for written in () if rows_path is None else answer.write_rows(rows_path):
        say(f"wrote {written}")
    if answer.used and answer.ignored_columns:
        say(f"ignored columns: {', '.join(answer.ignored_columns)}")
    if as_json:
        click.echo(json.dumps(answer.to_dict(), indent=2, allow_nan=False))
    answer.check_used()
    if not as_json:
        _print(answer)


def _print(answer: Validation) -> None:
    from knee.commands.validate.result import BandwidthsValidation, RunsValidation
    from knee.commands.validate.text import print_bandwidths, print_own, print_runs, print_unseen

    if isinstance(answer, RunsValidation) and answer.moe_runs is not None:
        print_unseen(answer.found, answer.moe_runs.found)
    elif isinstance(answer, RunsValidation):
        print_runs(answer.found)
    elif isinstance(answer, BandwidthsValidation):
        print_bandwidths(answer.found)
    else:
        print_own(answer)
