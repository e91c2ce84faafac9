"""A second process that answers a study's questions from the end, into the folder of the first, until the two meet.

Answers lie in files that are whole or not there, so that neither has to know of the other: each makes what it does not
find. Whatever ends the second process, the first makes the rest and says what is wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

KEPT, RECORDS = ".kept", "records"
"""Below a study's folder: budgets and fidelity, and what was simulated."""
WORTH_IT = 64
"""Answers that are missing, from which a second interpreter pays."""
GRACE_S = 5.0


@contextlib.contextmanager
def second_process(folder: Path, names: Sequence[str], changes: Mapping[str, Any], missing: int) -> Iterator[None]:
    """Run one beside the block, where there is a second core and enough to do."""
    if missing < WORTH_IT or len(_cores()) < 2 or not sys.executable:
        yield
        return
    asked = json.dumps({"folder": str(folder), "names": list(names), "changes": dict(changes)})
    command = [sys.executable, "-m", "knee.studies.second_process", asked]
    quiet = subprocess.DEVNULL
    try:
        helper = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, env=_environment())
    except OSError:  # no more processes, say: the first does all
        yield
        return
    try:
        yield
    finally:
        helper.terminate()
        try:
            helper.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            helper.kill()
            helper.wait()


def _cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _environment() -> dict[str, str]:
    """Modules are found where this process finds them."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def answer_from_the_end(folder: Path, names: Sequence[str], changes: Mapping[str, Any]) -> None:
    """Budgets and fidelity first, which the first process comes to last; then points, last ones first."""
    from knee.studies.budget_rows import budget_rows
    from knee.studies.record_store import Store, cached_fidelity
    from knee.studies.run_study import points_to_run, with_needs

    for study in with_needs(names):
        for budgets in study.budget:
            list(budget_rows(study.name, budgets, folder / KEPT))
    cached_fidelity(folder / KEPT)
    store = Store(folder / RECORDS, lambda _: None)
    for point in reversed(points_to_run(names, changes)):
        store.record(point.question)


def main() -> None:
    """What ``second_process`` starts."""
    asked = json.loads(sys.argv[1])
    answer_from_the_end(Path(asked["folder"]), asked["names"], asked["changes"])


if __name__ == "__main__":
    main()
