"""How long ``knee study`` takes into an empty folder: every figure and claim of the paper, from the shell.

    python benchmarks/study.py

The floor is the same command again: all records are kept, so that it only judges claims and draws the page. Both run
once, because they take a minute.
"""

from __future__ import annotations

import tempfile

from figures import Compared, Figure, main
from processes import cost, fresh_environment, knee

AIM_S = 20.0


def figures() -> list[Figure]:
    """Seconds, first and again."""
    with fresh_environment() as env, tempfile.TemporaryDirectory() as folder:
        first, again = (cost(knee("study", "--out", folder), env) for _ in range(2))
    return [
        Figure(
            name="study, empty folder: wall", value=first.wall_s, unit="s", aim=AIM_S, compared=_floor(again.wall_s)
        ),
        Figure(name="study, empty folder: CPU", value=first.cpu_s, unit="s", compared=_floor(again.cpu_s)),
    ]


def _floor(again_s: float) -> Compared:
    return Compared(name="the same again", value=again_s, kind="floor")


if __name__ == "__main__":
    main("study", __doc__, figures)
