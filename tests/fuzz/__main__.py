"""``python -m fuzz``: cases of every kind in a few processes; what was found is kept, and printed by kind."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from fuzz import fleet
from fuzz.case import Case, read_case
from fuzz.kinds import KINDS
from fuzz.run import CPU_S
from fuzz.summary import Summary


def main() -> int:
    """1 where anything was found."""
    given = _arguments()
    kinds = [kind for kind in KINDS if not given.kinds or kind.name in given.kinds.split(",")]
    unknown = set(filter(None, given.kinds.split(","))) - {kind.name for kind in kinds}
    if unknown or not kinds:
        print(f"error: no kind {', '.join(sorted(unknown))}; there are {', '.join(kind.name for kind in KINDS)}")
        return 2
    memory = Path("/dev/shm")  # a case makes and removes a few files, which takes a disk a quarter of the time
    root = Path(tempfile.mkdtemp(prefix="knee-fuzz-", dir=memory if os.access(memory, os.W_OK) else None))
    try:
        if given.case:
            return _repeat(_case(given.case), root)
        weights = sum(kind.weight for kind in kinds)
        shares = {kind.name: max(1, round(given.cases * kind.weight / weights)) for kind in kinds}
        summary = Summary(seed=given.seed, out=Path(given.out), of=sum(shares.values()))
        todo = list(fleet.batches(shares, given.start))
        for told in fleet.run(todo, root, jobs=given.jobs, seed=given.seed, cpu_s=given.cpu):
            summary.add(told)
        summary.print()
        return 1 if summary.findings else 0
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--start", type=int, default=0, help="the first case's number, of every kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kinds", default="", help="some, by commas")
    parser.add_argument("--cpu", type=float, default=CPU_S, help="seconds of CPU time that a case may take")
    parser.add_argument("--out", default="out/fuzz", help="folder of what was found")
    parser.add_argument("--case", default="", help="repeat one: SEED/KIND/NUMBER, or the file of one that was kept")
    return parser.parse_args()


def _case(name: str) -> Case:
    if Path(name).is_file():
        return read_case(Path(name))
    seed, kind, number = name.split("/")
    return next(one for one in KINDS if one.name == kind).case(int(seed), int(number))


def _repeat(case: Case, root: Path) -> int:
    """Run one in this process and print all of it."""
    from fuzz.oracle import judge
    from fuzz.run import run_case

    here = Path.cwd()
    sys.dont_write_bytecode = True  # as in a worker: it would be a file outside the case's folder
    began = time.process_time()
    outcome = run_case(case, root / "case")
    for name, data in case.files.items():
        print(f"--- {name}, {len(data):,} bytes: {data[:2000]!r}")
    print(f"--- knee {json.dumps(case.words)}\n--- stdout\n{outcome.out[:4000]!a}\n--- stderr\n{outcome.err[:4000]}")
    print(f"--- exit code {outcome.code}, {time.process_time() - began:.2f} s of CPU time, imports included")
    print(outcome.trace)
    found = judge(case.words, outcome)
    for finding in found:
        print(f"FOUND {finding.verdict}: {finding.place}")
    import os

    os.chdir(here)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
