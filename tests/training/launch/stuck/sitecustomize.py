"""On the path of a run's ranks: the run STUCK_RUN gets stuck after its first step.

Its rank STUCK_RANK, where there is one, stops itself then, as a process does that hangs. Where there is none, all
ranks wait for the test to cut what joins them. The file ``stuck`` in the run's folder tells that it is so, and from
then on ranks have little patience with each other. So the timeout of a sweep can be long: one that is reached because
the machine is slow would end what does not hang.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_FRAC = 0.005
"""Of the timeout, 600 s: how long ranks wait for each other once they are stuck."""
run = next((Path(word) for word in sys.orig_argv if f"/runs/{os.environ.get('STUCK_RUN')}-" in word), None)
rank = os.environ.get("RANK")


def get_stuck(run: Path) -> None:
    from knee.training.run import watchdog as watch

    begin, check = watch.Watch.__init__, watch.Watch.check
    stuck = run / "stuck"

    def impatient(self: watch.Watch, *, progress: Callable[[], Any], **more: Any) -> None:
        def seen() -> Any:
            if stuck.exists():
                watch.EARLY_FRAC = PATIENCE_FRAC
            return progress(), watch.EARLY_FRAC

        begin(self, progress=seen, **more)

    def stops(self: watch.Watch) -> None:
        check(self)
        if self.step() == 1 and rank == os.environ.get("STUCK_RANK"):
            self._beat()
            stuck.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.step() == 1 and "STUCK_RANK" not in os.environ:
            (run / f"trains{rank}").touch()
            while not stuck.exists():
                time.sleep(0.05)

    watch.Watch.__init__, watch.Watch.check = impatient, stops  # type: ignore[method-assign]


if run is not None and rank is not None:
    get_stuck(run)
