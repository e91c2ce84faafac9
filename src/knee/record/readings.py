"""What a probe reads: points, and a file of readings that can be gone on with and replayed.

A file is JSON lines. The first says where, when and with what it was measured (``Machine``); every other is one point
with its reading, or with the error that it ended in. Lines are only ever appended, so an interrupted probe leaves a
valid file; a last line that was cut off is dropped when the file is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from knee.errors import InputError
from knee.record.points import KINDS, Record, point_of

Probe = Literal["kernels", "power", "collectives", "steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where and with what readings were taken."""

    probe: Probe
    date: str
    device: str
    """The GPU's name, or the processor's."""
    kind: Literal["cuda", "cpu"]
    devices: int
    """GPUs in this node; processes in a node for collectives."""
    sms: int
    """Streaming multiprocessors, or cores."""
    memory_bytes: float
    power_limit_w: float | None
    host: str
    knee: str
    python: str
    torch: str
    cuda: str | None
    driver: str | None
    nccl: str | None

    def same_as(self, other: Machine) -> list[str]:
        """Fields that must agree before readings go into one file, and do not."""
        names = ("probe", "device", "kind", "devices", "torch", "driver", "nccl", "power_limit_w")
        return [name for name in names if getattr(self, name) != getattr(other, name)]

    @property
    def software(self) -> str:
        """Versions in one line, for sources."""
        parts = [f"torch {self.torch}", self.driver and f"driver {self.driver}", self.nccl and f"NCCL {self.nccl}"]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Readings:
    """A file's content."""

    machine: Machine
    records: tuple[Record, ...]

    def good(self, kind: str) -> Iterator[tuple[Any, Record]]:
        """Points of a kind that were measured, with what was read."""
        return ((point_of(r), r) for r in self.records if r["kind"] == kind and "error" not in r)

    @property
    def failed(self) -> list[Record]:
        """Points that ended in an error."""
        return [r for r in self.records if "error" in r]


def read_readings(path: Path) -> Readings:
    """Everything in a file, or one sentence about what is wrong with it and where."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} cannot be read: it is not UTF-8 text") from None
    parsed = list(_parsed(path, lines))
    if not parsed or "probe" not in parsed[0]:
        raise InputError(f"{path} has no readings", hint="its first line should say what was measured, and where")
    try:
        machine = Machine(**parsed[0])
    except TypeError:
        raise InputError(f"{path}, line 1: it does not describe a machine as `knee probe` does") from None
    if trouble := _untyped(Machine, parsed[0]) or (None if machine.kind in ("cuda", "cpu") else "kind"):
        raise InputError(f"{path}, line 1: {trouble} of the machine is {parsed[0].get(trouble)!r}", hint=WRITTEN)
    for number, record in enumerate(parsed[1:], start=2):
        if trouble := _wrong(record):
            raise InputError(f"{path}, line {number}: {trouble}", hint=WRITTEN)
    return Readings(machine, tuple(parsed[1:]))


WRITTEN = "files of readings are written by `knee probe`, and are not meant to be edited"
NUMBERS = {
    "gemm": ("median_s", "spread_frac"),
    "attention": ("median_s", "spread_frac"),
    "stream": ("median_s", "spread_frac"),
    "host": ("median_s", "spread_frac"),
    "step": ("step_s",),
    "power": ("power_w", "window_s", "calls", "flop_per_call", "bytes_per_call"),
}
"""What a reading of a kind must have. Collectives have other numbers alone than beside products."""
BESIDE = {"nothing": ("time_s", "spread_frac"), "gemm": ("gemm_s", "gemm_beside_s", "gather_s", "gather_beside_s")}
MAY_BE_ZERO = ("spread_frac", "calls", "flop_per_call", "bytes_per_call")


def _wrong(record: Record) -> str | None:
    """What is wrong with a line; None where it is a reading."""
    kind = record.get("kind")
    if kind not in KINDS or not isinstance(record.get("key"), str):
        return "it is not a reading that `knee probe` writes"
    if trouble := _untyped(KINDS[kind], record):
        return f"{trouble} is {record.get(trouble)!r}"
    if "error" in record:
        return None
    for name in BESIDE.get(record["beside"], ()) if kind == "collective" else NUMBERS[kind]:
        value: Any = record.get(name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value < 0 or (value == 0 and name not in MAY_BE_ZERO):
            return f"{name} is {value!r}; it must be a positive number"
    if kind == "collective" and record["group"] < 2:
        return f"group is {record['group']}; a collective has at least two ranks"
    return None


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "None": (type(None),),
    "Layout": (str,),
    "Probe": (str,),
    "Literal": (str,),
}


def _untyped(cls: type, record: Record) -> str | None:
    """The first field that is missing without a default, or of another type than the dataclass says."""
    for field in fields(cls):
        value = record.get(field.name, field.default)
        words = [word.strip().split("[")[0] for word in str(field.type).split("|")]
        allowed = tuple(t for word in words for t in _TYPES[word])
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            return field.name
    return None


def _parsed(path: Path, lines: list[str]) -> Iterator[Record]:
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            if number == len(lines):  # cut off while it was written
                return
            raise InputError(f"{path}, line {number}: it is not JSON") from None
        if not isinstance(value, dict):
            raise InputError(f"{path}, line {number}: it is not a JSON object")
        yield value


class ReadingsFile:
    """A file that readings are added to."""

    def __init__(self, path: Path, machine: Machine, *, fresh: bool = False) -> None:
        self.path = path
        self.done: set[str] = set()
        if path.exists() and not fresh:
            before = read_readings(path)
            if differ := before.machine.same_as(machine):
                name = differ[0]
                raise InputError(
                    f"{path} has readings with {name} {getattr(before.machine, name)}, and here it is "
                    f"{getattr(machine, name)}",
                    hint="give another --out, or --fresh to measure anew",
                )
            # drops a line that was cut off, and what failed: it is tried again
            kept = [r for r in before.records if "error" not in r]
            self._write([asdict(before.machine), *kept])
            self.done = {r["key"] for r in kept}
        else:
            self._write([asdict(machine)])

    def _write(self, records: list[Record]) -> None:
        whole = self.path.with_name(self.path.name + ".new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            whole.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
            whole.replace(self.path)
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror}") from None

    def add(self, key: str, record: Record) -> None:
        """One more line, on disk when this returns."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key} | record) + "\n")
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror}", hint="what is in it is kept") from None
        self.done.add(key)
