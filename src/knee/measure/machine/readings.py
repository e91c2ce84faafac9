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
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from knee.base.errors import InputError, argument
from knee.base.files import cannot_read, cannot_write, read_text, write_text

# What a probe measures: a point for each reading, told apart by its key.

Layout = Literal["forward", "dgrad", "wgrad"]
StreamName = Literal["rmsnorm", "rope", "swiglu", "residual", "loss", "adamw", "copy"]
Beside = Literal["nothing", "gemm"]
Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmPoint:
    """A product as the cost model describes it: (m x k)(k x n), and which of a linear map's three it is."""

    kind: str = "gemm"
    m: int
    n: int
    k: int
    layout: Layout
    dtype: str = "bf16"

    @property
    def weight(self) -> tuple[int, int]:
        """Shape of the weight matrix: what a held-out set leaves out whole."""
        return {"forward": (self.n, self.k), "dgrad": (self.k, self.n), "wgrad": (self.m, self.n)}[self.layout]

    @property
    def flop(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.m * self.n * self.k


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedPoint:
    """The products of experts as one: each of ``experts`` groups of rows with a weight of its own, (n x k)."""

    kind: str = "grouped"
    rows: int
    """Of all experts together."""
    experts: int
    n: int
    k: int
    layout: Layout
    even: bool = True
    """Whether experts have equally many rows; else one of them has half of what is left, and so on."""
    dtype: str = "bf16"

    @property
    def flop(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.rows * self.n * self.k

    @property
    def counts(self) -> list[int]:
        """Rows of each expert."""
        if self.even:
            return [(i + 1) * self.rows // self.experts - i * self.rows // self.experts for i in range(self.experts)]
        left, counts = self.rows, []
        for _ in range(self.experts - 1):
            counts.append((left + 1) // 2)
            left -= counts[-1]
        return [*counts, left]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPoint:
    """An attention kernel on (batch, heads, seq_len, head_dim)."""

    kind: str = "attention"
    kernel: str
    batch: int
    heads: int
    seq_len: int
    head_dim: int
    forward: bool
    causal: bool = True
    dtype: str = "bf16"

    @property
    def flop(self) -> float:
        """Work done, mask respected; the backward pass has five products for the forward's two."""
        square = 4.0 * self.batch * self.heads * float(self.seq_len) ** 2 * self.head_dim
        return square * (0.5 if self.causal else 1.0) * (1.0 if self.forward else 2.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPoint:
    """A memory-bound operation of a layer, eager or compiled, forward or backward."""

    kind: str = "stream"
    operation: StreamName
    tokens: int
    width: int
    forward: bool
    compiled: bool

    @property
    def tensor_bytes(self) -> float:
        """One 16-bit tensor of that shape."""
        return 2.0 * self.tokens * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPoint:
    """A training step so small that the host's launches are all it takes."""

    kind: str = "host"
    compiled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """A whole training step of a Llama-family model on one device."""

    kind: str = "step"
    model: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    seq_len: int
    micro_batch: int
    compiled: bool
    master: str = "fp32"
    """Type of the parameters and moments: fp32 with 16-bit compute, or bf16 throughout."""
    attention: str = "flash2"


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerPoint:
    """A load at a nominal duty."""

    kind: str = "power"
    load: str
    duty_frac: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePoint:
    """A collective of so many bytes over a group of ranks."""

    kind: str = "collective"
    collective: str
    size_bytes: int
    """As nccl-tests count: the whole buffer, all ranks' parts together."""
    axis: str
    """How the group's ranks lie: "world", "node", or strided as an axis of a plan ("tp", "dp", "cp", "pp") has them."""
    group: int
    """Ranks in the group."""
    stride: int
    """Distance between neighbours in the group."""
    groups: int = 1
    """Groups of that axis, which all run the collective at the same time, as in training."""
    nodes: int = 1
    """Nodes that one group reaches over."""
    beside: Beside = "nothing"
    """What runs at the same time: "nothing" or "gemm"."""


Point = GemmPoint | GroupedPoint | AttentionPoint | StreamPoint | HostPoint | StepPoint | PowerPoint | CollectivePoint

KINDS: dict[str, type[Point]] = {str(fields(point)[0].default): point for point in get_args(Point)}
"""By their ``kind``, which is the first field of each."""


def key_of(point: Point) -> str:
    """A name that tells points apart in a file."""
    return "/".join(f"{value}" for value in asdict(point).values())


def point_of(record: Record) -> Point:
    """The point that a record was made from."""
    kind = KINDS[record["kind"]]
    return kind(**{field.name: record[field.name] for field in fields(kind) if field.name in record})


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

    def differs_from(self, other: Machine) -> list[str]:
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
    """The content of a file of readings."""

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
        lines = read_text(path).rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise cannot_read(path, error) from None
    parsed = list(_parsed(path, lines))
    if not parsed or "probe" not in parsed[0]:
        hint = "its first line must describe the measurement and the machine"
        raise InputError(f"{path} has no readings", hint=hint, code="empty")
    try:
        machine = Machine(**parsed[0])
    except TypeError:
        raise _not_a_reading(
            path, 1, "it does not describe a machine in the format of `knee probe`", hint=None
        ) from None
    if trouble := _odd_field(Machine, parsed[0]):
        raise _not_a_reading(path, 1, f"{trouble} of the machine is {parsed[0].get(trouble)!r}")
    for name in ("memory_bytes", "power_limit_w"):
        if getattr(machine, name) == 0:
            raise _not_a_reading(path, 1, f"{name} of the machine is 0")
    for number, record in enumerate(parsed[1:], start=2):
        if trouble := _wrong(record):
            raise _not_a_reading(path, number, trouble)
    return Readings(machine, tuple(parsed[1:]))


WRITTEN = "files of readings are written by `knee probe` and must not be edited"


def _not_a_reading(path: Path, line: int, why: str, hint: str | None = WRITTEN) -> InputError:
    return InputError(f"{path}, line {line}: {why}", hint=hint, code="not-a-reading", field=f"line {line}")


NUMBERS = dict.fromkeys(("gemm", "grouped", "attention", "stream", "host"), ("median_s", "spread_frac")) | {
    "step": ("step_s",),
    "power": ("power_w", "window_s", "calls", "flop_per_call", "bytes_per_call"),
}
"""What a reading of a kind must have. Collectives have other numbers alone than beside products."""
BESIDE = {
    "nothing": ("time_s", "spread_frac"),
    "gemm": ("gemm_s", "gemm_beside_s", "gather_s", "gather_beside_s", "spread_frac"),
}
OPTIONAL = ("power_w", "peak_bytes", "busy_s", "instant_w", "sm_hz", "uncertainty_frac")
"""What a reading may have, or say that it is not known."""
SMALLEST, LARGEST = 1e-30, 1e30
"""Less and more than any measurement: a number beyond them is refused, unless it is 0."""
MAY_BE_ZERO = ("spread_frac", "calls", "flop_per_call", "bytes_per_call")


def _wrong(record: Record) -> str | None:
    """What is wrong with a line; None where it is a reading."""
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in KINDS or not isinstance(record.get("key"), str):
        return "it is not a reading of `knee probe`"
    if trouble := _odd_field(KINDS[kind], record):
        return f"{trouble} is {record.get(trouble)!r}"
    if "error" in record:
        return None if isinstance(record["error"], str) else f"error is {record['error']!r}"
    for name in BESIDE[record.get("beside", "nothing")] if kind == "collective" else NUMBERS[kind]:
        value: Any = record.get(name)
        if not _is_number(value) or value < 0 or (value == 0 and name not in MAY_BE_ZERO):
            return f"{name} is {value!r}; it must be a positive number"
    for name in OPTIONAL:
        value = record.get(name)
        if value is not None and not (_is_number(value) and value >= 0):
            return f"{name} is {value!r}; it must be a number"
    if not _is_of(str, record.get("by", "")):
        return f"by is {record['by']!r}"
    if kind == "collective" and record["group"] < 2:
        return f"group is {record['group']}; a collective has at least two ranks"
    return None


def _is_number(value: Any) -> bool:
    """A finite number of a size that a measurement can have."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return value == 0 or SMALLEST < abs(value) < LARGEST


_type_hints = cache(get_type_hints)


def _odd_field(cls: type, record: Record) -> str | None:
    """The first field that is missing without a default, or that no probe would have written there."""
    hints = _type_hints(cls)
    for field in fields(cls):
        if not _is_of(hints[field.name], record.get(field.name, field.default)):
            return field.name
    return None


def _is_of(hint: Any, value: Any) -> bool:
    """Whether a value is of a type: counts are positive, numbers finite, words printable."""
    if get_origin(hint) in (Union, UnionType):
        return any(_is_of(one, value) for one in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is int:
        return isinstance(value, int) and _is_number(value) and value >= 1
    if hint is float:
        return _is_number(value) and value >= 0
    if hint is str:
        return isinstance(value, str) and value.isprintable()
    return isinstance(value, hint)


def _parsed(path: Path, lines: list[str]) -> Iterator[Record]:
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line, parse_float=_finite, parse_constant=_finite)
        except (ValueError, RecursionError):
            if number == len(lines):  # cut off while it was written
                return
            raise _not_a_reading(path, number, "it is not JSON", hint=None) from None
        except OverflowError as error:
            raise _not_a_reading(path, number, f"{error} is not a number that was measured", hint=None) from None
        if not isinstance(value, dict):
            raise _not_a_reading(path, number, "it is not a JSON object", hint=None)
        yield value


def _finite(text: str) -> float:
    """JSON has no number that is none, and Python reads 1e999 as one."""
    value = float(text)
    if not math.isfinite(value):
        raise OverflowError(text)
    return value


def write_readings(path: Path, readings: Readings) -> None:
    """A whole file at once: the old one stays until the new one is there."""
    lines = [json.dumps(record) + "\n" for record in (asdict(readings.machine), *readings.records)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from None
    write_text(path, "".join(lines))


class ReadingsFile:
    """A file that readings are added to."""

    def __init__(self, path: Path, machine: Machine, *, fresh: bool = False) -> None:
        self.path = path
        self.done: set[str] = set()
        self.failed: set[str] = set()
        """What failed in an earlier call, to be tried again once all else is measured."""
        if path.exists() and not fresh:
            before = read_readings(path)
            if differ := before.machine.differs_from(machine):
                name = differ[0]
                raise InputError(
                    f"{path} has readings with {name} {getattr(before.machine, name)}, but this machine has "
                    f"{getattr(machine, name)}",
                    hint=f"give another {argument('out')}, or {argument('fresh')} to measure again",
                    code="other-machine",
                    field=name,
                )
            # drops a line that was cut off, and what failed: it is tried again
            kept = [r for r in before.records if "error" not in r]
            write_readings(path, Readings(before.machine, tuple(kept)))
            self.done = {r["key"] for r in kept}
            self.failed = {r["key"] for r in before.failed}
        else:
            write_readings(path, Readings(machine, ()))

    def add(self, key: str, record: Record) -> None:
        """One more line, on disk when this returns."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key} | record) + "\n")
        except OSError as error:
            raise cannot_write(self.path, error, hint="its contents are kept") from None
        self.done.add(key)
