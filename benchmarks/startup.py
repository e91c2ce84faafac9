"""How long a command takes to answer: ``knee --help`` and one ``knee simulate``, whole processes beside a bare Python.

    python benchmarks/startup.py

CPU time counts: a start waits for nothing, and on a busy machine wall time tells of the others.
"""

from __future__ import annotations

import sys

from figures import Compared, Figure, main
from processes import best_cost, fresh_environment, knee

RUNS = 8
"""The first writes bytecode; the best counts."""
AIM_MS = 100.0
SIMULATE = "simulate llama2-7b --cluster dgx-h100 --gpus 256 --local-batch 2"


def figures() -> list[Figure]:
    """CPU milliseconds from start to exit."""
    with fresh_environment() as env:
        help_ms, simulate_ms, bare_ms = (
            1e3 * best_cost(words, env, RUNS).cpu_s
            for words in (knee("--help"), knee(*SIMULATE.split()), [sys.executable, "-c", "pass"])
        )
    floor = Compared(name="python -c pass", value=bare_ms, kind="floor")
    return [
        Figure(name="knee --help: CPU", value=help_ms, unit="ms", aim=AIM_MS, compared=floor),
        Figure(name="knee simulate, 7B on 256 GPUs: CPU", value=simulate_ms, unit="ms", compared=floor),
    ]


if __name__ == "__main__":
    main("startup", __doc__, figures)
