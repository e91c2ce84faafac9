"""``knee study``: the paper's experiments on the simulator, held against its claims."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from knee.study.runs import Bench
    from knee.study.verdict import Verdict
    from knee.study.weak_scaling import Row

DEFAULT_OUT = "out"


@click.command("study")
@click.option(
    "--out",
    metavar="DIR",
    default=DEFAULT_OUT,
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder for the page and the tables.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; every key carries its unit.")
def study(out: Path, as_json: bool) -> None:
    """Run the paper's weak scaling and test its claims, on the simulator, and say how far it can be trusted.

    Writes DIR/index.html, a page that needs no network, and DIR/weak_scaling.csv, DIR/claims.csv and DIR/fidelity.csv.
    """
    from knee.cli.progress import progress
    from knee.cli.validate_carried import print_fidelity
    from knee.fidelity.carried_set import carried_fidelity
    from knee.files import csv_text, make_folder, write_text
    from knee.study.paper import CLAIMS, EXPLAINED
    from knee.study.runs import Bench
    from knee.study.verdict import Tally, judge
    from knee.study.weak_scaling import GPUS, PLANS, findings, paper_points, weak_scaling

    make_folder(out)
    bench = Bench()
    rows = list(progress(weak_scaling(bench), "weak scaling", len(GPUS) * len(PLANS)))
    verdicts = list(progress(judge(CLAIMS, bench, EXPLAINED), "claims", len(CLAIMS)))
    found, points, said = findings(rows), paper_points(rows), _assumptions(bench)
    fidelity = carried_fidelity()
    write_text(out / "weak_scaling.csv", csv_text([asdict(row) for row in rows]))
    write_text(out / "claims.csv", csv_text([asdict(v) for v in verdicts]))
    write_text(out / "fidelity.csv", csv_text([asdict(s) for s in fidelity.sources]))
    tally = Tally.of(verdicts)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "weak_scaling": [asdict(row) for row in rows],
                    "published": [asdict(p) for p in points],
                    "findings": asdict(found),
                    "claims": [asdict(v) for v in verdicts],
                    "tally": asdict(tally),
                    "fidelity": asdict(fidelity),
                    "assumptions": list(said),
                },
                indent=2,
                allow_nan=False,
            )
        )
    else:
        _print_weak_scaling(rows)
        _print_claims(verdicts)
        _print_failures(verdicts)
        print_fidelity(fidelity)
        _print_assumptions(said)
    click.echo(f"claims: {tally}", err=as_json)

    # last, because the tables need nothing that may be missing
    from knee.report.study import study_page

    page = study_page(rows, points, found, verdicts, fidelity, assumptions=said, command=_command(out))
    write_text(out / "index.html", page)
    click.echo(f"wrote {out / 'index.html'}", err=True)


command = study


def _assumptions(bench: Bench) -> tuple[str, ...]:
    """Of the weak scaling, of the claims and of the simulator."""
    from knee.study import paper
    from knee.study.weak_scaling import ASSUMPTIONS, GPUS

    return (*ASSUMPTIONS, *paper.ASSUMPTIONS, *bench.weak(GPUS[0]).result.assumptions)


def _command(out: Path) -> str:
    return "knee study" if str(out) == DEFAULT_OUT else f"knee study --out {shlex.quote(str(out))}"


def _print_weak_scaling(rows: Sequence[Row]) -> None:
    from knee import units
    from knee.cli.table import print_heading, print_rows

    first = rows[0]
    print_heading(
        f"weak scaling: {first.model} on {first.cluster}, profile {first.profile}, "
        f"{first.global_batch // first.gpus} sequences of {first.seq_len:,} tokens per GPU"
    )
    cells = [["plan", "GPUs", "step", "tokens/s", "per GPU", "MFU", "exposed", "power", "tokens/J"]]
    cells += [
        [
            row.plan,
            f"{row.gpus:,}",
            units.show(row.step_s, "s"),
            f"{row.tokens_per_s:,.0f}",
            f"{row.tokens_per_s_per_gpu:,.0f}",
            f"{row.mfu_frac:.1%}",
            f"{row.exposed_frac:.1%}",
            units.show(row.power_w_per_gpu, "w"),
            f"{row.tokens_per_j:.2f}",
        ]
        for row in rows
    ]
    print_rows(cells, right=range(1, 9))


def _print_claims(verdicts: Sequence[Verdict]) -> None:
    from knee.cli.table import print_heading, print_rows

    print_heading("claims of arXiv 2411.13055")
    cells = [["id", "verdict", "fitted", "statement", "paper", "bar", "simulated"]]
    cells += [
        [v.id, v.verdict, "yes" if v.fitted else "no", v.statement, v.paper, v.bar, v.simulated] for v in verdicts
    ]
    print_rows(cells)


def _print_failures(verdicts: Sequence[Verdict]) -> None:
    from knee.cli.table import print_heading

    print_heading("why claims failed:")
    for v in verdicts:
        if v.note:
            click.echo(f"  - {v.id}: {v.note}")


def _print_assumptions(said: Sequence[str]) -> None:
    from knee.cli.table import print_heading

    print_heading("assumptions:")
    for sentence in said:
        click.echo(f"  - {sentence}")
