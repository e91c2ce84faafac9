"""What studies found, on the screen."""

from __future__ import annotations

import click

from knee.api.study import Studies
from knee.cli.render.table import print_heading, print_rows
from knee.cli.render.validate_carried import print_fidelity
from knee.studies.claims import Tally, Verdict

MOST = 90
"""Characters of a finding's numbers in a cell; all of them are on the page and in claims.csv."""


def print_answer(answer: Studies, *, whole: bool) -> None:
    """Study by study: what was found, and every claim; then why claims failed, and how far all is to be trusted."""
    for one in answer.ran:
        print_heading(f"{one.study.name}: {one.study.title}" + (f" ({one.study.place})" if one.study.place else ""))
        click.echo(f"  {one.finding}" + (f" [{one.trust}]" if one.trust else ""))
        if one.verdicts:
            print_rows([["", "verdict", "fitted", "claim", "paper", "found"], *map(_cells, one.verdicts)])
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
        fitted, free = ([v for v in verdicts if bool(v.fitted) is of] for of in (True, False))
        print_rows([["claims fitted on", str(Tally.of(fitted))], ["claims not fitted on", str(Tally.of(free))]])


def _cells(v: Verdict) -> list[str]:
    found = v.found if len(v.found) <= MOST else f"{v.found[:MOST].rstrip(', ')} ..."
    return [v.id, v.off or v.verdict, "yes" if v.fitted else "no", v.says, v.paper, found]
