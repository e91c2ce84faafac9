"""How a run stands: one small file, replaced whole at every change, so that it can be read while it is written."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from knee.base.files import read_text, write_text
from knee.specs.check import build_spec
from knee.training.run.run_record import LOGS, RECORD, read_object

State = Literal["pending", "running", "done", "oom", "failed", "timeout", "cancelled"]
STATES: tuple[State, ...] = get_args(State)
Cause = Literal[
    "",
    "spec",  # what was asked cannot be
    "memory",  # of the device or the host, or a limit on it
    "hang",  # a rank stopped moving
    "comm_timeout",  # ranks on several nodes waited for each other
    "comm",  # a connection between ranks broke or was not made, and no rank had failed before
    "time_limit",
    "lost_node",
    "bad_node",  # a node whose device or driver is at fault
    "preempted",
    "cancelled",
    "interrupted",  # whoever started it was ended
    "knee",  # more GPUs do not pay: it was not started
    "port",
    "disk",
    "software",  # a module or a command is not there
    "error",
]
AGAIN: frozenset[Cause] = frozenset(("lost_node", "comm", "preempted", "cancelled", "interrupted", "knee", "port"))
"""Causes that lie outside of the run: the next `knee sweep` starts it again."""
STATUS = "status.json"
ENDED: dict[str, State] = {"done": "done", "oom": "oom", "failed": "failed"}
"""Status of a record -> state of its run."""
CANCELLED = "cancelled by `knee sweep cancel`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """All that is known of a run's execution."""

    state: State = "pending"
    cause: Cause = ""
    words: str = ""
    """One sentence: why it ended as it did, or what it waits for."""
    node: str = ""
    """The node at fault, where one is."""
    nodes: tuple[str, ...] = ()
    """The nodes that it runs or ran on."""
    rank: int | None = None
    codes: tuple[int | None, ...] = ()
    """Exit codes of what was started, one a node or one for all."""
    attempts: int = 0
    started_s: float | None = None
    """Seconds since 1970, of the last attempt."""
    ended_s: float | None = None
    gpu_h: float = 0.0
    """GPU-hours of all attempts."""
    energy_j: float | None = None
    """Of all GPUs and attempts that measured their draw; None where none did."""
    put_back_s: float | None = None
    """When it was last made pending again by hand or by a sweep that goes on; what was submitted before is over."""
    job: str = ""
    """Slurm's id of the job or array task that it is part of."""
    host: str = ""
    pids: tuple[tuple[int, int], ...] = ()
    """On that host: processes of the run and when each began, in the kernel's ticks."""
    command: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.state not in ("pending", "running")

    @property
    def missing(self) -> bool:
        """Whether a sweep that continues has to start it."""
        return self.state == "pending" or (self.over and self.cause in AGAIN)

    def elapsed_s(self) -> float | None:
        """Wall clock of the last attempt so far; None where there was none."""
        if self.started_s is None:
            return None
        return (time.time() if self.ended_s is None else self.ended_s) - self.started_s


def read_status(folder: Path) -> Status:
    """The run's status; a new one's where there is none. Where it cannot be read, it is made from what the run left."""
    try:
        return _status(json.loads(read_text(folder / STATUS)))
    except FileNotFoundError:
        return Status()
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return _by_record(folder)


def _by_record(folder: Path) -> Status:
    """Of a run whose status is damaged: a run that its record has an end of is not to be run again."""
    words = "its status could not be read"
    # earlier attempts are in folders of their own, and the last one has made its logs' folder
    attempts = sum(path.is_dir() for path in (folder / "attempts").glob("*")) + (folder / LOGS).is_dir()
    state = ENDED.get(str(read_object(folder / RECORD).get("status")))
    if state is None:
        return Status(words=words, attempts=attempts)
    cause: Cause = {"oom": "memory", "failed": "error"}.get(state, "")  # type: ignore[assignment]
    return Status(state=state, cause=cause, attempts=max(1, attempts), words=f"{words}; its record says {state}")


def cancelled(status: Status) -> Status:
    """The status of a run that `knee sweep cancel` has ended before it was started."""
    return replace(status, state="cancelled", cause="cancelled", words=CANCELLED)


def left_out(status: Status, why: str) -> Status:
    """The status of a run that is not started, because more GPUs do not pay."""
    return replace(status, state="cancelled", cause="knee", words=f"not started: {why}")


def write_status(folder: Path, status: Status) -> Status:
    """Replace the run's status file; returns the status."""
    write_text(folder / STATUS, json.dumps(asdict(status), indent=1) + "\n")
    return status


def _status(plain: Any) -> Status:
    """Return the status from JSON; ValueError or TypeError where it is not as ``write_status`` writes it."""
    known = {f.name for f in fields(Status)}
    found: Status = build_spec(Status, {key: value for key, value in plain.items() if key in known})
    if not all(map(math.isfinite, (one for one in asdict(found).values() if isinstance(one, float)))):
        raise ValueError(found)
    return found


def is_number(value: object) -> bool:
    """Whether it is a number that a float holds."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
