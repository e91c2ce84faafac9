"""How tests wait: for what is to happen, however long a busy machine takes, and not on a process that is gone."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

LIMIT_S = 1200.0
"""Against waiting for ever, and nothing else: no test passes or fails by how long something takes."""
POLL_S = 0.05

Found = TypeVar("Found")


def until(look: Callable[[], Found | None], *, of: subprocess.Popen[str] | None = None) -> Found:
    """What ``look`` finds, once it finds something; fails at once if the process ``of`` has ended without it."""
    ends = time.monotonic() + LIMIT_S
    while True:
        over = of is not None and of.poll() is not None
        if found := look():  # after the poll: a process may do it and end
            return found
        assert of is None or not over, f"it ended first, with {of.returncode}:\n{''.join(of.communicate())}"
        assert time.monotonic() < ends, f"not within {LIMIT_S:.0f} s"
        time.sleep(POLL_S)
