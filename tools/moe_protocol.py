"""Write what the carried runs of mixtures of experts say: errors by source, real routing, steps of tuning, memory.

    python tools/moe_protocol.py [--write]

Run it after ``tools/fit_moe_runs.py --write``. --write puts the table into data/moe/protocol.csv.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from knee.commands.study.moe_protocol import moe_checks, rows_of
from knee.trust.validation.bundled_runs import moe_fidelity

OUT = Path(__file__).parent.parent / "data/moe/protocol.csv"


def main(arguments: Sequence[str]) -> None:
    """Print, and write."""
    found = moe_fidelity()
    for s in found.sources:
        print(f"{s.source:40}{s.runs:5}{s.median_frac:9.1%}{s.p90_frac:9.1%}{s.unseen_frac or 0:9.1%}")
    print(f"as shipped {found.headline_frac:.1%}, unseen {found.unseen_frac:.1%} (medians over sources)")
    rows = rows_of(moe_checks())
    for row in rows:
        print(row)
    if "--write" in arguments:
        with OUT.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
