"""What studies ask, and what they found, on the screen."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from knee.commands.study.api import Studies, StudyDescription, StudySummary
from knee.commands.study.claims import Tally, Verdict
from knee.commands.study.run_study import Ran
from knee.commands.validate.text import print_fidelity
from knee.show.terminal.table import print_columns, print_heading, print_rows, print_table

MOST = 90
"""Characters of a finding's numbers in a cell; all of them are on the page and in claims.csv."""
BEYOND = "beyond the paper"


def print_studies(found: Sequence[StudySummary]) -> None:
    """One line a study."""
    rows = [[s.name, s.place or BEYOND, s.title, str(s.points or ""), str(len(s.claims) or "")] for s in found]
    print_rows([["study", "where", "about", "runs", "claims"], *rows], right=(3, 4))


def print_description(found: StudyDescription) -> None:
    """The question, the runs of the grid, the claims and the assumptions."""
    study = found.study
    print_heading(f"{study.name}: {study.title}")
    print_rows(
        [
            ["where", study.place or BEYOND],
            ["question", study.question],
            *([["paper", study.paper]] if study.paper else []),
            ["charts", "; ".join(draw.title for draw in study.draw)],
            ["run it", f"knee study run {shlex.quote(found.asked)}"],
        ]
    )
    if found.points:
        head = ["series", "model", "cluster", "profile", "GPUs", "batch", "tokens", "plan"]
        rows = [[f"{v:,}" if isinstance(v, int) else v for v in row.values()] for row in found.rows()]
        print_table(f"{len(found.points)} runs", head, rows, right=(4, 5, 6))
    if study.claim:
        head = ["id", "says", "paper", "reproduced if", "role", "why"]
        roles = {c.id: " by ".join(filter(None, (c.role, ", ".join(c.by)))) for c in study.claim}
        rows = [[c.id, c.says, c.paper, c.bar, roles[c.id], c.because] for c in study.claim]
        print_table(f"{len(study.claim)} claims", head, rows, right=())
    if study.assumptions:
        print_heading("assumptions:")
        for sentence in study.assumptions:
            click.echo(f"  - {sentence}")


def print_answer(answer: Studies) -> None:
    """Study by study: what was found, and every claim; then why claims failed, and how far all is to be trusted."""
    whole = len(answer.ran) > 1
    for one in answer.ran:
        print_heading(f"{one.study.name}: {one.study.title}" + (f" ({one.study.place})" if one.study.place else ""))
        if one.finding:
            click.echo(f"  {one.finding}" + (f" [{one.trust}]" if one.trust else ""))
        else:
            _print_runs(one)
        if one.verdicts:
            print_rows([["", "verdict", "role", "claim", "paper", "found"], *map(_cells, one.verdicts)])
        if not whole:
            for sentence in one.study.assumptions:
                click.echo(f"  - {sentence}")
    verdicts = answer.verdicts
    failed = [verdict for verdict in verdicts if verdict.failed]
    if failed:
        print_heading("why claims failed:")
        for v in failed:
            click.echo(f"  - {v.id}: {v.why or v.found}")
    if whole:
        print_fidelity(answer.fidelity)
    if verdicts:
        print_heading("claims by role:")
        print_rows([[role, str(tally)] for role, tally in Tally.by_role(verdicts).items()])


def _print_runs(one: Ran) -> None:
    names = ("tokens_per_s_per_gpu", "tokens_per_s", "mfu_frac", "exposed_frac", "memory_bytes")
    labels = ("trust", "model", "cluster")
    rows = [
        {name: row[name] for name in names}
        | {"series": str(row["series"]), "GPUs": f"{row['gpus']:,}", "fits": "yes" if row["fits"] else "no"}
        | {name: str(row.get(name) or "") for name in labels}
        for row in one.rows
        if "plan" in row
    ]
    if rows:
        print_columns(
            ("series", "GPUs", *names, "fits", *labels),
            rows,
            left=("series", "fits", *labels),
            optional=("model", "trust", "tokens_per_s", "fits"),
        )
    for row in one.impossible:
        click.echo(f"  {row['series']}, {row['gpus']:,} GPUs is not possible: {row['why']}")


def _cells(v: Verdict) -> list[str]:
    found = v.found if len(v.found) <= MOST else f"{v.found[:MOST].rstrip(', ')} ..."
    return [v.id, v.off or v.verdict, v.role, v.says, v.paper, found]
