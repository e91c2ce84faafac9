"""A process that runs many cases: a line in for each batch, a line out for each case.

In: ``{"kind": ..., "start": ..., "count": ..., "seed": ...}``. Out: a line of JSON a case. The parent watches how much
CPU time has gone since the last line, for what no Python signal handler can interrupt.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fuzz.case import Case
from fuzz.kinds import KINDS
from fuzz.oracle import judge
from fuzz.run import CPU_S, limit_memory, run_case


def told(case: Case, folder: Path, cpu_s: float) -> dict[str, Any]:
    """The line of a case."""
    outcome = run_case(case, folder, cpu_s=cpu_s)
    line: dict[str, Any] = {"code": outcome.code, "cpu_s": round(outcome.cpu_s, 5)}
    found = judge(case.words, outcome)
    if found:
        line["findings"] = [asdict(one) for one in found]
    return line


def serve(folder: Path, cpu_s: float) -> None:
    """Batches until there are no more."""
    orders, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)  # a case that reads or writes there meets nobody
    os.dup2(nothing, 1)
    faulthandler.enable(2)
    faulthandler.register(signal.SIGUSR1, 2, all_threads=True)
    sys.dont_write_bytecode = True
    run_case(Case(words=("catalog", "llama-tiny")), folder)  # imports are nobody's CPU time
    limit_memory()
    kinds = {kind.name: kind for kind in KINDS}
    for order in map(json.loads, orders):
        kind = kinds[order["kind"]]
        gc.freeze()  # what was imported since, and is no garbage, is not looked through again and again
        for number in range(order["start"], order["start"] + order["count"]):
            line = told(kind.case(order["seed"], number), folder, cpu_s)
            os.write(answers, json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    serve(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else CPU_S)
