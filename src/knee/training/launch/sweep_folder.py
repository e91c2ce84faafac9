"""A sweep's folder: what was asked, and a folder a run. There is no other state."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from knee.base.errors import InputError
from knee.base.files import cannot_read, make_folder, read_text, write_text
from knee.specs.check import build_spec
from knee.specs.choices import LAUNCHERS
from knee.training.launch.run_status import Status, is_number, read_status
from knee.training.run.run_record import HEARTBEATS, LOGS, PIECES, RECORD, TRACES, read_object

SWEEP = "sweep.json"
RUNS = "runs"
LOCK = "lock"
CANCEL = "cancel"
JOB_FILE = "job.toml"
ENVIRONMENT = "environment"
ATTEMPTS = "attempts"
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """One run of the sweep, as it was planned."""

    id: str
    name: str
    series: str
    """Runs of one series differ in their GPUs, and in what follows from that."""
    gpus: int
    nodes: int
    per_node: int
    """Processes on each of its nodes."""
    seconds: float | None = None
    """Estimated wall clock; None where nothing can be estimated."""
    gpu_h: float | None = None
    energy_j: float | None = None
    cost_usd: float | None = None
    failed_s: float | None = None
    """Estimated wall clock with failures, after which the run starts again; None where it would hardly ever end."""
    tokens: int = 0
    """A step's."""
    refused: str = ""
    """Why it is not started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The content of ``sweep.json``."""

    folder: Path
    name: str
    entries: tuple[SweepRun, ...]
    launcher: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """How runs are started: site, hosts, limits."""
    made: str = ""
    command: tuple[str, ...] = ()

    def run(self, entry: SweepRun | str) -> Path:
        """Return a run's folder."""
        return self.folder / RUNS / (entry if isinstance(entry, str) else entry.id)

    def statuses(self) -> dict[str, Status]:
        """Return the status of each run by its id, in order."""
        return {entry.id: read_status(self.run(entry)) for entry in self.entries}

    def write(self) -> None:
        """Replace the file."""
        plain = {"schema_version": SCHEMA, **{f.name: getattr(self, f.name) for f in fields(self)}}
        plain |= {"entries": [asdict(entry) for entry in self.entries]}
        del plain["folder"]
        write_text(self.folder / SWEEP, json.dumps(plain, indent=1) + "\n")


def read_sweep(folder: Path) -> Sweep:
    """Read the sweep of a folder; InputError where it has none that can be read."""
    path = folder / SWEEP
    try:
        plain = json.loads(read_text(path))
    except (FileNotFoundError, NotADirectoryError):
        text, hint = (
            f"{folder} has no {SWEEP}: it is not the folder of a sweep",
            "`knee sweep STUDY --out DIR` creates one",
        )
        raise InputError(text, hint=hint, code="no-file", field="folder") from None
    except (OSError, UnicodeDecodeError) as error:
        raise cannot_read(path, error, field="folder") from None
    except InputError:
        raise
    except (ValueError, RecursionError):
        raise InputError(f"{path} cannot be read: it is not JSON", code="not-json", field="folder") from None
    version = plain.get("schema_version") if isinstance(plain, dict) else None
    if isinstance(version, int) and version > SCHEMA:
        raise InputError(
            f"{path} has version {version}, but this knee reads versions up to {SCHEMA}",
            hint="use the version of knee that wrote it, or a newer one",
            code="other-version",
            field="folder",
        )
    try:
        return _sweep(folder, plain)
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError):
        hint = "another version of knee may have written it"
        text = f"{path} is not a valid file of a sweep"
        raise InputError(text, hint=hint, code="other-document", field="folder") from None


def _sweep(folder: Path, plain: Any) -> Sweep:
    """TypeError, KeyError, AttributeError or ValueError where it is not as ``Sweep.write`` writes it."""
    known = {f.name for f in fields(Sweep)} - {"folder", "entries"}
    entries = tuple(build_spec(SweepRun, entry) for entry in plain["entries"])
    rest = {key: value for key, value in plain.items() if key in known}
    found = Sweep(folder=folder, entries=entries, **{**rest, "command": tuple(rest.get("command", ()))})
    options = found.options
    sizes = [size for entry in entries for size in (entry.gpus, entry.nodes, entry.per_node, entry.tokens)]
    right = (
        all(isinstance(size, int) and abs(size) < 2**63 for size in (*sizes, options["pack"]))
        and all(is_number(cost) for entry in entries for cost in asdict(entry).values() if isinstance(cost, float))
        and all(isinstance(text, str) for text in (found.name, *found.command, *options["program"]))
        and is_number(options["timeout_s"])
        and isinstance(options["until_knee"], bool)
        and isinstance(options.get("site", {}), dict)
        and found.launcher in LAUNCHERS
    )
    if not right or any(not e.id.isprintable() or "/" in e.id or e.id in ("", ".", "..") for e in entries):
        raise ValueError(plain)
    if any(min(entry.gpus, entry.nodes, entry.per_node) < 1 for entry in entries if not entry.refused):
        raise ValueError(plain)
    return found


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """This process alone starts runs of the folder; the lock goes with the process, however it ends."""
    make_folder(folder)
    path = folder / LOCK
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise InputError(f"{path} cannot be opened: {error.strerror}", code="not-writable", field="folder") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.read(handle, 200).decode(errors="replace").strip()
            raise InputError(
                f"another `knee sweep` is working on {folder}" + (f": {other}" if other else ""),
                hint=f"`knee sweep status {folder}` shows it; `knee sweep cancel {folder}` stops it",
                code="folder-in-use",
                field="folder",
            ) from None
        except OSError as error:  # a file system without locks
            text = f"warning: {path} cannot be locked ({error.strerror}); start no other `knee sweep` in this folder"
            print(text, file=sys.stderr)
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        os.close(handle)


def is_locked(folder: Path) -> bool:
    """Whether some process holds the folder's lock."""
    try:
        with (folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def new_attempt(run: Path, attempts: int) -> None:
    """Move aside what an earlier attempt left."""
    left = [name for name in (RECORD, LOGS, PIECES, HEARTBEATS, TRACES, ENVIRONMENT) if (run / name).exists()]
    if left:
        known = [int(path.name) for path in (run / ATTEMPTS).glob("*") if path.name.isdigit()]
        aside = run / ATTEMPTS / str(max([attempts, *(number + 1 for number in known)]))
        aside.mkdir(parents=True)
        for name in left:
            os.replace(run / name, aside / name)
    (run / LOGS).mkdir(parents=True, exist_ok=True)


def is_cancel_requested(run: Path) -> bool:
    """Whether `knee sweep cancel` has asked this run to end."""
    return (run / CANCEL).exists()


def read_record(run: Path) -> dict[str, Any]:
    """Return the trainer's record of a run; empty where there is none that can be read."""
    return read_object(run / RECORD)


def with_usage(status: Status, entry: SweepRun, run: Path, *, ended_s: float | None = None) -> Status:
    """The status with the GPU-hours and the energy of its last attempt added.

    Energy is the draw of the measured window over the whole attempt, of all GPUs. Without a moment of its end, the
    attempt ended at its last sign of life.
    """
    ended_s = last_sign_s(run) if ended_s is None else ended_s
    if status.started_s is None or ended_s is None:
        return status
    elapsed_s = max(0.0, ended_s - status.started_s)
    watts = read_record(run).get("power_w_per_gpu")
    energy_j = status.energy_j
    if isinstance(watts, (int, float)):
        energy_j = (energy_j or 0.0) + watts * entry.gpus * elapsed_s
    return replace(status, ended_s=ended_s, gpu_h=status.gpu_h + entry.gpus * elapsed_s / 3600, energy_j=energy_j)


def last_sign_s(run: Path) -> float | None:
    """When a run last wrote anything, in seconds since 1970; None where it never did."""
    times = []
    for path in (run / RECORD, *(file for name in (HEARTBEATS, LOGS, PIECES) for file in (run / name).glob("*"))):
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times, default=None)
