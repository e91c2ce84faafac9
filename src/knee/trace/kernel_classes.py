"""Which kernels communicate, and what the others are: a table of patterns, with the user's before knee's own."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from pkgutil import get_data
from typing import Any

import numpy as np

from knee.arrays import Bools, ByValue
from knee.errors import InputError, argument
from knee.kineto.event_columns import KERNEL, Int64, RankTrace
from knee.trace.kernel_names import KernelName, kernel_name
from knee.trace.user_patterns import user_pattern

OTHER = "other"
BETWEEN_EXPERTS = "deepep"
"""The class of dispatch and combine: together an all-to-all."""
FIELDS = {"pattern": str, "communication": bool, "streams": str, "source": str}
OWN_FIELDS = FIELDS | {"fused": str}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelClass:
    """An entry of the table."""

    name: str
    pattern: str
    communication: bool = False
    side_only: bool = False
    """Communication only on streams that nothing else computes on."""
    fused: str = ""
    """Of knee's own table: what is found in names that Inductor gave."""
    source: str = ""
    own: bool = False
    """Whether it is of knee's own table, whose patterns are asked of a name's parts; a user's are of all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """The table, in the order in which it is asked."""

    entries: tuple[KernelClass, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of every class, ``other`` last."""
        return (*(entry.name for entry in self.entries), OTHER)

    def of_names(self, names: Sequence[str]) -> Int64:
        """Index of each name's class; the last one is ``other``."""
        users = [(i, user_pattern(e.pattern, e.source)) for i, e in enumerate(self.entries) if not e.own]
        own = [(i, e) for i, e in enumerate(self.entries) if e.own]
        found = []
        for name in names:
            first = next((i for i, pattern in users if pattern.search(name)), None)
            if first is None:
                first = next(_by_parts(kernel_name(name), own), len(self.entries))
            found.append(first)
        return np.array(found, dtype=np.int64)


def _by_parts(name: KernelName, entries: Sequence[tuple[int, KernelClass]]) -> Iterator[int]:
    """Classes that a name has by knee's table, the surest first.

    A library that communicates does so under its scope, whatever its functions are called; of others the function's own
    words come first, and a scope says something only where those say nothing.
    """
    if name.fused:
        yield from (i for i, e in entries if e.fused and _compiled(e.fused).search(name.fused))
        return
    whole = name.scope + name.function
    yield from (i for i, e in entries if e.communication and _compiled(e.pattern).search(whole))
    for part in (name.function, name.target, name.target_scope, name.scope):
        if part:
            yield from (i for i, e in entries if not e.communication and _compiled(e.pattern).search(part))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """One of knee's own, which are tested to be linear."""
    return re.compile(pattern)


@cache
def known_classes() -> Classes:
    """Return knee's own table."""
    # importlib.resources takes longer to import than the table to read
    text = get_data("knee", "catalog/kernel_classes.toml") or b""
    return Classes(entries=tuple(_entries(tomllib.loads(text.decode()), "kernel_classes.toml", own=True)))


def classes_of(*, patterns: Iterable[str] = (), file: Path | None = None, comm: Iterable[str] = ()) -> Classes:
    """knee's table behind the user's: ``patterns`` of communication, a ``file`` of entries, and ``comm``: names of
    classes that communicate on every stream."""
    own = list(known_classes().entries)
    first: list[KernelClass] = []
    for pattern in patterns:
        option = argument("comm_pattern")
        if user_pattern(pattern, option).search(""):
            raise InputError(
                f"{option} {pattern!r} matches every kernel name, so all kernels would be communication",
                hint="give a part of the names of the communication kernels",
                code="too-general",
                field="comm_pattern",
            )
        first.append(KernelClass(name="user", pattern=pattern, communication=True, source="the command line"))
    if file is not None:
        from knee.specs.catalog import read_toml  # and with it all specs

        first += _entries(read_toml(file, field="classes"), str(file))
    always = set(comm)
    entries = [*first, *own]
    if unknown := always - {entry.name for entry in entries}:
        raise InputError(
            f"{argument('comm')} {min(unknown)}: there is no such class of kernels",
            hint=f"classes are {', '.join(entry.name for entry in entries)}",
            code="unknown-choice",
            field="comm",
        )
    return Classes(
        entries=tuple(replace(e, communication=True, side_only=False) if e.name in always else e for e in entries)
    )


def _entries(table: dict[str, Any], where: str, *, own: bool = False) -> list[KernelClass]:
    found, known = [], OWN_FIELDS if own else FIELDS
    for name, entry in table.items():
        if not isinstance(entry, dict) or "pattern" not in entry:
            hint = "write an entry as [name] with pattern = 'regular expression'"
            raise InputError(
                f"{where}: [{name}] has no pattern", hint=hint, code="missing-field", field=f"{name}.pattern"
            )
        for key, value in entry.items():
            if key not in known:
                text, hint = f"{where}: [{name}] has an unknown key {key!r}", f"keys are {', '.join(known)}"
                raise InputError(text, hint=hint, code="unknown-field", field=f"{name}.{key}")
            if not isinstance(value, known[key]):
                text = f"{where}: [{name}] {key} is {value!r}; it must be a {known[key].__name__}"
                raise InputError(text, code="wrong-type", field=f"{name}.{key}")
        if entry.get("streams", "all") not in ("all", "side"):
            text = f"{where}: [{name}] streams is {entry['streams']!r}; it should be 'all' or 'side'"
            raise InputError(text, code="unknown-choice", field=f"{name}.streams")
        if not own:
            user_pattern(entry["pattern"], f"{where}: [{name}]")
        found.append(
            KernelClass(
                name=name,
                pattern=entry["pattern"],
                communication=entry.get("communication", False),
                side_only=entry.get("streams") == "side",
                fused=entry.get("fused", ""),
                source=entry.get("source", ""),
                own=own,
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classified(ByValue):
    """The rows of a trace by class."""

    names: tuple[str, ...]
    class_id: Int64
    """Index into ``names``; meaningless for copies and fills."""
    is_comm: Bools
    is_compute: Bools
    counted_as_compute: Bools
    """Kernels that communicate on a stream that computes."""


def classify(trace: RankTrace, classes: Classes, calls: Iterable[int] = ()) -> Classified:
    """Communication and compute among a trace's kernels. ``calls`` are rows that name their collective."""
    kernels = trace.kind == KERNEL
    class_id = classes.of_names(trace.names)[trace.name_id] if len(trace) else trace.name_id
    communicates = np.array([*(entry.communication for entry in classes.entries), False])
    side_only = np.array([*(entry.side_only for entry in classes.entries), False])
    has_args = np.zeros(len(trace), dtype=np.bool_)
    has_args[list(calls)] = True
    maybe = kernels & (communicates[class_id] | has_args)
    sided = maybe & side_only[class_id] & ~has_args
    kept = sided & np.isin(trace.stream, trace.stream[kernels & ~maybe]) if sided.any() else sided
    is_comm = maybe & ~kept
    return Classified(
        names=classes.names,
        class_id=class_id,
        is_comm=is_comm,
        is_compute=kernels & ~is_comm,
        counted_as_compute=kept,
    )
