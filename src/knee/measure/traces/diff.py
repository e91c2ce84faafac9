"""``knee trace diff A B``: what changed in a step from one trace to another, and what explains most of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from math import sqrt
from statistics import fmean, variance
from typing import Any, TypeVar

from knee.base.units import show
from knee.measure.traces.analyse import Analysis, RankAnalysis
from knee.measure.traces.device_time import (
    UNKNOWN,
    CollectiveLoad,
    KernelLoad,
    class_loads,
    collective_loads,
    kernel_loads,
)
from knee.specs.metrics import METRICS

C = TypeVar("C", bound="CollectiveChange | KernelChange")
SCHEMA_VERSION = 1
LONGEST = 30
"""Kernels that an answer names, those that changed most."""
PARTS = ("compute_s", "exposed_comm_s", "exposed_copies_s", "idle_s")
"""What a step consists of."""
WORTH_SAYING = 0.1
"""Share of all change from which a part is named."""
SURE = 2.0
"""Standard errors from which a change is more than the scatter of steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One number in A and in B: seconds or calls of a step, mean over steps and ranks."""

    a: float
    b: float

    @property
    def change(self) -> float:
        """B less A."""
        return self.b - self.a

    @property
    def relative_frac(self) -> float | None:
        """The change as a share of A; None where A has none of it."""
        return self.change / self.a if self.a else None

    def as_json(self) -> dict[str, float | None]:
        """Return plain data, with both changes."""
        return {"a": self.a, "b": self.b, "change": self.change, "relative_frac": self.relative_frac}


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveChange:
    """Calls of one collective in one group with one size of message."""

    collective: str
    group: str
    message_bytes: float | None
    calls: Change
    load_s: Change
    exposed_s: Change


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChange:
    """Kernels of one name, or of one class."""

    name: str
    kernel_class: str
    communication: bool
    calls: Change
    load_s: Change

    @property
    def status(self) -> str:
        """``appeared``, ``vanished`` or ``changed``."""
        if not self.calls.a:
            return "appeared"
        return "changed" if self.calls.b else "vanished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """B against A; lists begin with what changed most."""

    times: dict[str, Change]
    """``step_s = compute_s + exposed_comm_s + exposed_copies_s + idle_s``, and others; as ``Times`` has them."""
    collectives: tuple[CollectiveChange, ...]
    classes: tuple[KernelChange, ...]
    kernels: tuple[KernelChange, ...]
    within_scatter: bool | None
    """Whether the steps of each trace differ among themselves so much that the change says nothing; None where a trace
    has too few of them to tell."""
    finding: str
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain data; of kernels those that changed most."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "trace_diff",
            "finding": self.finding,
            "within_scatter": self.within_scatter,
            "times": {name: change.as_json() for name, change in self.times.items()},
            "collectives": [_json(one, [f.name for f in fields(one)]) for one in self.collectives],
            "classes": [_json(one, KERNEL_KEYS) for one in self.classes],
            "kernels": [_json(one, KERNEL_KEYS) for one in self.kernels[:LONGEST]],
            "notes": list(self.notes),
        }


KERNEL_KEYS = ("name", "kernel_class", "communication", "status", "calls", "load_s")


def _json(one: CollectiveChange | KernelChange, names: Iterable[str]) -> dict[str, Any]:
    values = {name.removeprefix("kernel_"): getattr(one, name) for name in names}
    return {name: value.as_json() if isinstance(value, Change) else value for name, value in values.items()}


def diff(a: Analysis, b: Analysis) -> Diff:
    """Hold two jobs against each other, whatever their numbers of ranks and steps."""
    one, two = _Mean(a), _Mean(b)
    times = {name: Change(a=one.times[name], b=two.times[name]) for name in one.times}
    collectives = _changes(CollectiveChange, one.collectives, two.collectives)
    classes = _changes(KernelChange, one.classes, two.classes)
    within = _within_scatter(one, two, times["step_s"].change)
    return Diff(
        times=times,
        collectives=collectives,
        classes=classes,
        kernels=_changes(KernelChange, one.kernels, two.kernels),
        within_scatter=within,
        finding=_finding(times, collectives, classes, within),
        notes=(*_notes("A", a), *_notes("B", b)),
    )


class _Mean:
    """One job's step, mean over steps and ranks."""

    def __init__(self, analysis: Analysis) -> None:
        ranks = [_of_rank(rank) for rank in analysis.ranks]
        self.times = {name: fmean(rank[0][name] for rank in ranks) for name in ranks[0][0]}
        self.collectives = _mean_loads(CollectiveChange, [(count, loads) for _, count, loads, _ in ranks])
        self.kernels = _mean_loads(KernelChange, [(count, kernels) for _, count, _, kernels in ranks])
        self.classes = _mean_loads(KernelChange, [(count, class_loads(kernels)) for _, count, _, kernels in ranks])
        of_steps = [[part.times.window_s for part in rank.steps if part.step is not None] for rank in analysis.ranks]
        self.steps_s = [fmean(step) for step in zip(*of_steps, strict=False)]


Sums = dict[Any, tuple[float, ...]]


def _of_rank(rank: RankAnalysis) -> tuple[dict[str, float], int, list[CollectiveLoad], list[KernelLoad]]:
    """Times of its mean step, its number of steps, and loads of all of them together."""
    window, count = rank.step_window
    t = rank.step_times
    times = {
        "step_s": rank.step_s,
        "compute_s": t.compute_s,
        "exposed_comm_s": t.exposed_comm_s,
        "exposed_copies_s": t.exposed_copies_s,
        # the host's step may be longer than the device's: there, too, the device has nothing to do
        "idle_s": rank.step_s - t.compute_s - t.exposed_comm_s - t.exposed_copies_s,
        "comm_s": t.comm_s,
        "overlapped_comm_s": t.overlapped_comm_s,
        "compute_load_s": t.compute_load_s,
        "comm_load_s": t.comm_load_s,
        "copies_load_s": t.copy_load_s + t.fill_load_s,
    }
    return times, count, collective_loads(rank.trace, window), kernel_loads(rank.trace, window)


def _mean_loads(change: type, ranks: Sequence[tuple[int, Sequence[CollectiveLoad | KernelLoad]]]) -> Sums:
    """Values of each key (the first three fields of ``change``), mean over the steps of each rank and over ranks."""
    names = [f.name for f in fields(change)]
    sums: Sums = {}
    for count, loads in ranks:
        for load in loads:
            every = [getattr(load, name) for name in names]
            key, values = tuple(every[:3]), every[3:]
            before = sums.get(key, (0.0,) * len(values))
            sums[key] = tuple(x + y / count for x, y in zip(before, values, strict=True))
    return {key: tuple(value / len(ranks) for value in values) for key, values in sums.items()}


def _changes(made: type[C], a: Sums, b: Sums) -> tuple[C, ...]:
    """Each key of A or B as a change, its three parts before the changes of its values; the largest load first."""
    names = [f.name for f in fields(made)]
    none = (0.0,) * (len(names) - 3)
    found: list[C] = []
    for key in dict.fromkeys((*a, *b)):
        pairs = zip(a.get(key, none), b.get(key, none), strict=True)
        values: list[Any] = [*key, *(Change(a=x, b=y) for x, y in pairs)]
        found.append(made(**dict(zip(names, values, strict=True))))
    return tuple(sorted(found, key=lambda one: -abs(one.load_s.change)))


def _within_scatter(a: _Mean, b: _Mean, change: float) -> bool | None:
    if min(len(a.steps_s), len(b.steps_s)) < 3:
        return None
    error = sqrt(sum(variance(steps) / len(steps) for steps in (a.steps_s, b.steps_s)))
    return abs(change) <= SURE * error


def _finding(
    times: dict[str, Change],
    collectives: Sequence[CollectiveChange],
    classes: Sequence[KernelChange],
    within: bool | None,
) -> str:
    """Say in one sentence what changed, and what explains most of it."""
    step = times["step_s"]
    relative = f" ({step.relative_frac:+.1%})" if step.relative_frac is not None else ""
    said = f"step {_signed(step.change)}{relative}"
    if within:
        return f"{said}, which is within the variation between steps of one trace"
    parts = sorted(PARTS, key=lambda name: -abs(times[name].change))
    total = sum(abs(times[name].change) for name in parts)
    named = [name for name in parts if total and abs(times[name].change) >= WORTH_SAYING * total]
    if not named:
        return "nothing changed"
    reasons = {
        "exposed_comm_s": _mostly(collectives, _call, lambda c: c.exposed_s),
        "compute_s": _mostly([c for c in classes if not c.communication], lambda c: c.name, lambda c: c.load_s),
    }
    changes = []
    for name in named:
        change = times[name].change
        reason = reasons[name](change) if name in reasons else None
        changes.append(f"{METRICS[name].label} {_signed(change)}" + (f", mostly {reason}" if reason else ""))
    return f"{said}: {'; '.join(changes)}"


def _call(one: CollectiveChange) -> str:
    return one.collective if one.group == UNKNOWN else f"{one.collective} over {one.group}"


def _mostly(
    changes: Sequence[Any], label: Callable[[Any], str], value: Callable[[Any], Change]
) -> Callable[[float], str | None]:
    """What of ``changes`` makes up at least half of a change; None where nothing does."""
    ordered = sorted(changes, key=label)
    by_label = {name: sum(value(one).change for one in some) for name, some in groupby(ordered, key=label)}

    def most(change: float) -> str | None:
        name = max(by_label, key=lambda n: by_label[n] * change, default=None)
        return name if name is not None and by_label[name] / change >= 0.5 else None

    return most


def _signed(seconds: float) -> str:
    return ("+" if seconds >= 0 else "-") + show(abs(seconds), "s")


def _notes(which: str, analysis: Analysis) -> Iterable[str]:
    if not analysis.steps:
        yield f"{which} has no profiler steps, so the whole trace counts as one step"
    if not analysis.is_whole:
        yield f"{which} is incomplete; only the part that could be read is compared"
