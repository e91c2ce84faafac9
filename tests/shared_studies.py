"""Studies that all of pytest's processes share: what one has simulated, another finds."""

from __future__ import annotations

import fcntl
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from knee.commands.study.record_store import Store
from knee.commands.study.run_study import Ran, points_to_run, recorded, results
from knee.trust.validation.bundled_runs import CarriedFidelity


@contextmanager
def alone(studied: Path) -> Iterator[None]:
    """Others wait, so that nobody simulates the same at the same time."""
    with studied.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ran_once(names: list[str], studied: Path) -> list[Ran]:
    """Studies from the records in the folder; what is missing there is simulated and stays."""

    def stop(why: str) -> None:
        raise AssertionError(why)

    points = points_to_run(names)
    with alone(studied):
        store = Store(studied / "records", stop, coming=[point.question for point in points])
        return results(names, list(recorded(points, store.record)), kept=studied / ".kept")


def fidelity(path: Path, make: Callable[[], CarriedFidelity]) -> CarriedFidelity:
    """What lies in the file, or what is made, which then does."""
    with alone(path):
        if not path.exists():
            path.write_bytes(pickle.dumps(make()))
        found: CarriedFidelity = pickle.loads(path.read_bytes())
        return found
