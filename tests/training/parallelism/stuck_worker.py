"""A rank whose fourth step never ends, on a clock that runs an hour at every look from then on: nothing waits for it.

    python stuck_worker.py JOB.json

It may import nothing but torch, NumPy and the standard library, as workers on other machines.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

for name in ("click", "pydantic", "rich", "scipy", "pandas", "tokenizers", "pyarrow"):
    sys.modules[name] = None  # type: ignore[assignment] # an import of it fails

import torch  # noqa: E402

from knee.training.parallelism import mesh, trainer  # noqa: E402, F401 - all that a worker imports on its way
from knee.training.run import watchdog, worker  # noqa: E402

stuck, hours = threading.Event(), itertools.count()


class Trainer:
    """Has none of a model."""

    steps = 0

    def step(self, _: Any) -> Any:
        """The main thread sits in a call that no signal and no exception reaches."""
        self.steps += 1
        if self.steps == 4:
            stuck.set()
            time.sleep(1e6)
        return SimpleNamespace(loss_tensor=torch.tensor(1.0), norm_tensor=torch.tensor(1.0))


def now() -> float:
    """Seconds."""
    return time.monotonic() + (3600.0 * next(hours) if stuck.is_set() else 0.0)


if __name__ == "__main__":
    watchdog.time = SimpleNamespace(monotonic=now, time=time.time)  # type: ignore[assignment]
    worker.build = lambda _: Trainer()
    sys.exit(worker.main(sys.argv[1:]))
