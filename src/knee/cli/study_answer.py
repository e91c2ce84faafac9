"""What studies found, on the screen and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from knee.cli.table import print_heading, print_rows
from knee.cli.validate_carried import print_fidelity
from knee.fidelity.carried_set import CarriedFidelity
from knee.study.claims import Tally, Verdict
from knee.study.run import Ran

MOST = 90
"""Characters of a finding's numbers in a cell; all of them are on the page and in claims.csv."""


def as_data(ran: Sequence[Ran], fidelity: CarriedFidelity) -> dict[str, Any]:
    """For ``--json``."""
    verdicts = [verdict for one in ran for verdict in one.verdicts]
    return {
        "studies": [
            {
                "name": one.study.name,
                "title": one.study.title,
                "place": one.study.place,
                "finding": one.finding,
                "trust": one.trust,
                "values": dict(one.values),
                "rows": [dict(row) for row in one.rows],
                "impossible": [dict(row) for row in one.impossible],
                "claims": [asdict(verdict) for verdict in one.verdicts],
                "assumptions": list(one.study.assumptions),
            }
            for one in ran
        ],
        "tally": asdict(Tally.of(verdicts)),
        "tally_fitted": asdict(Tally.of([v for v in verdicts if v.fitted])),
        "tally_not_fitted": asdict(Tally.of([v for v in verdicts if not v.fitted])),
        "fidelity": asdict(fidelity),
    }


def print_answer(ran: Sequence[Ran], fidelity: CarriedFidelity, *, whole: bool) -> None:
    """Study by study: what was found, and every claim; then why claims failed, and how far all is to be trusted."""
    for one in ran:
        print_heading(f"{one.study.name}: {one.study.title}" + (f" ({one.study.place})" if one.study.place else ""))
        click.echo(f"  {one.finding}" + (f" [{one.trust}]" if one.trust else ""))
        if one.verdicts:
            print_rows([["", "verdict", "fitted", "claim", "paper", "found"], *map(_cells, one.verdicts)])
        if not whole:
            for sentence in one.study.assumptions:
                click.echo(f"  - {sentence}")
    verdicts = [verdict for one in ran for verdict in one.verdicts]
    failed = [verdict for verdict in verdicts if verdict.failed]
    if failed:
        print_heading("why claims failed:")
        for v in failed:
            click.echo(f"  - {v.id}: {v.why or v.found}")
    if whole:
        print_fidelity(fidelity)
    if verdicts:
        fitted, free = ([v for v in verdicts if bool(v.fitted) is of] for of in (True, False))
        print_rows([["claims fitted on", str(Tally.of(fitted))], ["claims not fitted on", str(Tally.of(free))]])


def _cells(v: Verdict) -> list[str]:
    found = v.found if len(v.found) <= MOST else f"{v.found[:MOST].rstrip(', ')} ..."
    return [v.id, v.off or v.verdict, "yes" if v.fitted else "no", v.says, v.paper, found]
