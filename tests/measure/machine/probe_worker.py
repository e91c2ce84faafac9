"""``knee probe collectives`` as a rank runs it, with the fewest samples: how long a message takes is not tested.

With HELD in the environment, rank 0 stops at its first reading until it is asked to end, so that a signal surely finds
it in the middle.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from knee.base.signals import StopSignal, catch_signals
from knee.commands.main import main
from knee.measure.machine import collective_timing as collectives
from knee.measure.machine import collective_timing as ranks
from knee.measure.machine.readings import ReadingsFile
from waiting import POLL_S

made: list[StopSignal] = []


@contextmanager
def watched(**how: Any) -> Iterator[StopSignal]:
    """Catch signals, and keep what was caught where a reading can see it."""
    with catch_signals(**how) as stop:
        made.append(stop)
        yield stop


def held(add: Any) -> Any:
    """Keep a reading, and wait."""

    def add_and_wait(*reading: Any) -> None:
        add(*reading)
        while made[0].signal is None:
            time.sleep(POLL_S)

    return add_and_wait


if __name__ == "__main__":
    collectives.QUICK["cpu"] = collectives.Effort(longest_s=3600.0, rounds=1, round_s=0.0)
    if "HELD" in os.environ:
        ranks.catch_signals = watched
        ReadingsFile.add = held(ReadingsFile.add)  # type: ignore[method-assign]
    sys.exit(main(["probe", "collectives", "--backend", "gloo", "--quick", *sys.argv[1:]]))
