"""Counts by kind, and what was found: one file for each place, with how to repeat it."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.fleet import Told
from fuzz.kinds import KINDS
from fuzz.run import STARTED

VERDICTS = ("crash", "hang", "memory", "code", "words", "json", "warning", "outside")
SAY_S = 30.0


@dataclass(slots=True)
class Tally:
    """Of one kind."""

    cases: int = 0
    answered: int = 0
    refused: int = 0
    cpu_s: float = 0.0
    slowest_s: float = 0.0
    found: Counter[str] = field(default_factory=Counter)

    @property
    def row(self) -> list[str]:
        """Its numbers in the table."""
        rate = self.cases / self.cpu_s if self.cpu_s else 0.0
        numbers = [self.cases, self.answered, self.refused, *(self.found[verdict] for verdict in VERDICTS)]
        return [*(f"{number:,}" for number in numbers), f"{rate:,.0f}", f"{self.slowest_s:.2f}"]


class Summary:
    """All that the workers told."""

    def __init__(self, *, seed: int, out: Path, of: int) -> None:
        self.seed, self.out, self.of = seed, out, of
        self.tallies: dict[str, Tally] = defaultdict(Tally)
        self.findings: dict[tuple[str, str], Path] = {}
        self.began_s = self.said_s = time.monotonic()
        self.cases = 0

    def add(self, told: Told) -> None:
        """One case."""
        tally, code = self.tallies[told.kind], told.line["code"]
        tally.cases += 1
        tally.answered += code in (0, 3, 5, STARTED)
        tally.refused += code in (2, 4)
        tally.cpu_s += told.line["cpu_s"]
        tally.slowest_s = max(tally.slowest_s, told.line["cpu_s"])
        for finding in told.line.get("findings", ()):
            tally.found[finding["verdict"]] += 1
            self._keep(told, finding)
        self.cases += 1
        self._say()

    def _keep(self, told: Told, finding: dict[str, Any]) -> None:
        key = finding["verdict"], finding["place"]
        if key in self.findings:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / f"{self.seed}-{told.kind}-{told.number}.json"
        self.findings[key] = path
        case = next(kind for kind in KINDS if kind.name == told.kind).case(self.seed, told.number)
        path.write_text(json.dumps({"finding": finding, **case.plain()}, indent=1) + "\n", encoding="utf-8")
        print(f"FOUND {finding['verdict']}: {finding['place']}", file=sys.stderr)
        print(
            f"      make fuzz CASE={self.seed}/{told.kind}/{told.number}   (kept as {path})",
            file=sys.stderr,
            flush=True,
        )

    def _say(self) -> None:
        now = time.monotonic()
        if now - self.said_s > SAY_S:
            self.said_s = now
            rate = self.cases / (now - self.began_s)
            print(
                f"{self.cases:,} of {self.of:,} cases, {rate:,.0f}/s, {len(self.findings)} findings",
                file=sys.stderr,
                flush=True,
            )

    def print(self) -> None:
        """The table, and where to look."""
        whole = Tally()
        for tally in self.tallies.values():
            whole.cases += tally.cases
            whole.answered += tally.answered
            whole.refused += tally.refused
            whole.cpu_s += tally.cpu_s
            whole.slowest_s = max(whole.slowest_s, tally.slowest_s)
            whole.found.update(tally.found)
        head = ["kind", "cases", "answered", "refused", *VERDICTS, "cases/CPU-s", "slowest s"]
        rows = [head, *([name, *tally.row] for name, tally in self.tallies.items()), ["all", *whole.row]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print(
                "  ".join(
                    cell.rjust(width) if i else cell.ljust(width)
                    for i, (cell, width) in enumerate(zip(row, widths, strict=True))
                )
            )
        print(f"seed {self.seed}: {len(self.findings)} findings in {time.monotonic() - self.began_s:,.0f} s")
        for (verdict, place), path in self.findings.items():
            print(f"  {verdict}: {place}   make fuzz CASE={path}")
