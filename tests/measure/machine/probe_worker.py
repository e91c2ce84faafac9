"""``knee probe collectives`` on two ranks, with the fewest samples: how long a message takes is not tested.

The ranks have the environment that torchrun would give them. They are forked, because importing torch takes longer than
all they do.

With HELD in the environment, rank 0 stops at its first reading until it is asked to end, so that a signal surely finds
it in the middle.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed  # noqa: F401  (before the ranks are forked)

from knee.base.signals import StopSignal, catch_signals
from knee.commands.main import main
from knee.measure.machine import collective_timing as collectives
from knee.measure.machine import collective_timing as ranks
from knee.measure.machine.readings import ReadingsFile
from waiting import POLL_S

RANKS = 2
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


def rank(number: int, port: int) -> int:
    """Fork a rank; return its process."""
    if child := os.fork():
        return child
    names = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()} | {"MASTER_ADDR": "127.0.0.1"})
    main(["probe", "collectives", "--backend", "gloo", "--quick", *sys.argv[1:]])
    return 0


if __name__ == "__main__":
    collectives.QUICK["cpu"] = collectives.Effort(longest_s=3600.0, rounds=1, round_s=0.0)
    if "HELD" in os.environ:
        ranks.catch_signals = watched
        ReadingsFile.add = held(ReadingsFile.add)  # type: ignore[method-assign]
    with socket.create_server(("127.0.0.1", 0)) as free:
        found = free.getsockname()[1]
    children = [rank(number, found) for number in range(RANKS)]
    signal.signal(signal.SIGINT, lambda *_: [os.kill(child, signal.SIGINT) for child in children])
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
