"""``knee probe collectives`` as a rank runs it, with the fewest samples: how long a message takes is not tested.

With HELD in the environment, rank 0 stops at its first reading until it is asked to end, so that a signal surely finds
it in the middle.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from knee.commands.main import main
from knee.measure.machine import collective_timing as collectives
from knee.measure.machine import torchrun_ranks as ranks
from knee.measure.machine.readings import ReadingsFile
from waiting import POLL_S

made: list[ranks.Stop] = []


class Stop(ranks.Stop):
    """One that can be looked at from outside."""

    def __init__(self) -> None:
        super().__init__()
        made.append(self)


def held(add: Any) -> Any:
    """Keep a reading, and wait."""

    def add_and_wait(*reading: Any) -> None:
        add(*reading)
        while made[0].number is None:
            time.sleep(POLL_S)

    return add_and_wait


if __name__ == "__main__":
    collectives.QUICK["cpu"] = collectives.Effort(longest_s=3600.0, rounds=1, round_s=0.0)
    if "HELD" in os.environ:
        ranks.Stop = Stop  # type: ignore[misc]
        ReadingsFile.add = held(ReadingsFile.add)  # type: ignore[method-assign]
    sys.exit(main(["probe", "collectives", "--backend", "gloo", "--quick", *sys.argv[1:]]))
