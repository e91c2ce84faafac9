"""A benchmark's figures: each has the last recorded value and, from the same run, the peer or the floor that it is
compared with.

A script has a function that measures and returns its figures, and calls :func:`main`. It runs alone, or is started by
``bench.py``, which reads the figures from a file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

WORSE_FRAC = 0.2
"""A figure that is worse than its record by more than this fraction is marked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a figure is compared with."""

    name: str
    value: float | None
    """Measured in the same run, in the figure's unit; None if it could not be measured."""
    kind: Literal["peer", "floor"] = "peer"
    """A peer does the same work and is to be beaten; a floor is the least that any program needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number."""

    name: str
    value: float
    unit: str
    more_is_better: bool = False
    aim: float | None = None
    aim_of: Literal["value", "ratio"] = "value"
    compared: Compared | None = None

    @property
    def ratio(self) -> float | None:
        """How many times better than its peer, or how many times its floor; None without a measured one."""
        if self.compared is None or not self.compared.value:
            return None
        over = self.value / self.compared.value
        return over if self.more_is_better or self.compared.kind == "floor" else 1 / over

    @property
    def meets_aim(self) -> bool | None:
        """None if there is no aim, or nothing to hold against it."""
        reached = self.value if self.aim_of == "value" else self.ratio
        if self.aim is None or reached is None:
            return None
        more = self.more_is_better if self.aim_of == "value" else self.compared_is_peer
        return reached >= self.aim if more else reached <= self.aim

    @property
    def compared_is_peer(self) -> bool:
        """Whether a larger ratio is better."""
        return self.compared is not None and self.compared.kind == "peer"

    def is_worse_than(self, recorded: float) -> bool:
        """By more than noise."""
        less, more = sorted((self.value, recorded))
        return more > less * (1 + WORSE_FRAC) and (self.value < recorded) == self.more_is_better


def write(figures: list[Figure], path: Path) -> None:
    """For :func:`read`."""
    path.write_text(json.dumps([asdict(figure) for figure in figures]), encoding="utf-8")


def read(path: Path) -> list[Figure]:
    """What :func:`write` wrote."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    return [Figure(**row | {"compared": row["compared"] and Compared(**row["compared"])}) for row in rows]


def main(
    part: str, description: str | None, measure: Callable[..., list[Figure]], **options: dict[str, object]
) -> None:
    """Measure with the options of the command line, then print the part's table or write its figures to a file.

    ``options`` are those of ``ArgumentParser.add_argument`` by the names of ``measure``'s parameters.
    """
    from table import show

    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE instead of printing them")
    for name, option in options.items():
        parser.add_argument(f"--{name}", **option)  # type: ignore[arg-type]
    given = vars(parser.parse_args())
    path: Path | None = given.pop("json")
    figures = measure(**given)
    if path is not None:
        write(figures, path)
    else:
        show({part: figures})
