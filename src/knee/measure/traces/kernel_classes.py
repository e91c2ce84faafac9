"""Which kernels communicate, and what the others are: a table of patterns, with the user's before knee's own."""

from __future__ import annotations

import importlib
import re
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from pkgutil import get_data
from typing import Any, NamedTuple, Protocol

import numpy as np

from knee.base.arrays import Bools, ByValue
from knee.base.errors import InputError, MissingExtra, argument
from knee.measure.kineto.event_columns import KERNEL, Int64, RankTrace

# What a kernel's name says by itself: its function's own words, apart from template arguments and argument types.
# ``void vllm::rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, ...)`` says ``rms_norm_kernel`` in the scope
# ``vllm``; what stands between brackets are the types that it was made for, and those name half of every library.

BRACKETS = re.compile(r"[<>()]")
NAMELESS = re.compile(r"\((?:anonymous namespace|anonymous)\)|<unnamed>|\{anonymous\}")
CLONE, OBJECT = " [clone ", ".kd"
"""What ROCm puts behind a name."""
WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Where a word begins inside of one that is written in camel case."""
MANGLED = re.compile(r"_ZN?K?(?=\d)")
MANGLED_PART = re.compile(r"\d{1,4}")
WRAPPER = re.compile(r"(?:device_|global_|trampoline_)?kernel\d?|kentry\d?|run_global|entry")
"""Functions that only call what their first template argument names: CUTLASS's, Composable Kernel's, rocPRIM's."""
INDUCTOR = re.compile(r"triton_(?:poi|red|per|tem|for|mix|split_scan|unk)_fused")


class KernelName(NamedTuple):
    """A kernel's name in parts, all of them words in lower case with ``_`` between them."""

    function: str
    scope: str
    """Its namespaces, each with ``::`` behind it."""
    target: str = ""
    """Of a function that calls what it is made for: that one's own name, and its scope."""
    target_scope: str = ""
    fused: str = ""
    """Of a kernel that Inductor wrote: all of its name, which lists the operators of the graph around it."""


def kernel_name(name: str) -> KernelName:
    """The parts of one name, in time linear in it."""
    plain = name.partition(CLONE)[0].removesuffix(OBJECT)
    if INDUCTOR.match(plain):
        return KernelName(function="", scope="", fused=plain.lower())
    mangled = MANGLED.match(plain)
    own, arguments = _demangled(plain, mangled.end()) if mangled else _own(plain)
    scope, function = _split(own)
    if not arguments or not WRAPPER.fullmatch(function):
        return KernelName(function=function, scope=scope)
    target_scope, target = _split(arguments)
    return KernelName(function=function, scope=scope, target=target, target_scope=target_scope)


def _own(name: str) -> tuple[str, str]:
    """The function's qualified name, and the first of its template arguments that is a name."""
    text = NAMELESS.sub("", name)
    if "<" not in text and "(" not in text:
        return text.removeprefix("void "), ""
    open_brackets: list[str] = []
    kept: list[str] = []
    begin = first_argument = 0
    named = False
    for found in BRACKETS.finditer(text):
        bracket = found[0]
        if bracket in "<(":
            if not open_brackets:
                kept.append(text[begin : found.start()])
                named = named or bool(kept[-1].strip(" :"))
                if bracket == "(" and named:  # what follows are arguments
                    break
                first_argument = found.end()
            open_brackets.append(bracket)
        elif open_brackets and open_brackets[-1] + bracket in ("<>", "()"):  # an operator > stands in parentheses
            open_brackets.pop()
        begin = found.end()
    else:
        if not open_brackets:
            kept.append(text[begin:])
    # a return type stands before the name
    own = "".join(kept).rstrip().rpartition(" ")[2]
    return own, _first_name(text, first_argument)


def _first_name(text: str, begin: int) -> str:
    """The first template argument that is no number, up to its own arguments."""
    if not begin:
        return ""
    end = BRACKETS.search(text, begin)
    names = (part.strip() for part in text[begin : end.start() if end else len(text)].split(","))
    return next((part for part in names if part and not part[0].isdigit()), "")


def _demangled(name: str, begin: int) -> tuple[str, str]:
    """The same of a name as the linker has it: a part is its length and its letters, ``I`` begins the arguments."""
    own, at = _mangled_parts(name, begin)
    if name[at : at + 1] != "I":
        return own, ""
    digit = MANGLED_PART.search(name, at)
    return own, _mangled_parts(name, digit.start())[0] if digit else ""


def _mangled_parts(name: str, at: int) -> tuple[str, int]:
    parts = []
    while found := MANGLED_PART.match(name, at):
        at = found.end() + int(found[0])
        parts.append(name[found.end() : at])
    return "::".join(parts), at


def _split(qualified: str) -> tuple[str, str]:
    """Scope and function, as words."""
    parts = [WORDS.sub("_", part.strip()).lower() for part in qualified.split("::") if part]
    return "".join(f"{part}::" for part in parts[:-1]), parts[-1] if parts else ""


# Users' patterns in time linear in the names that they are tried on. ``re`` backtracks: a name that says ``nccl`` a
# thousand times keeps ``nccl.*reduce.*f32`` busy for hours. RE2 does not, and refuses what only backtracking can
# match. Plain words and choices between them are linear in ``re`` too, and need no extra; choices in groups are not,
# as ``(aa|aa)(aa|aa)`` and so on doubles the ways with every group.

TRIED_AGAIN = frozenset("*+?{(")
"""Letters of patterns that ``re`` may try in many ways."""
SHOWN_LETTERS = 100
"""Of a pattern in a message."""


class Pattern(Protocol):
    """What is looked for in names, case ignored."""

    def search(self, text: str, /) -> Any:
        """Something true where it is found."""


def user_pattern(pattern: str, where: str) -> Pattern:
    """A pattern that is linear in the names; InputError, with ``where`` it stands, for one that cannot be."""
    shown = pattern if len(pattern) < SHOWN_LETTERS else f"{pattern[:SHOWN_LETTERS]}..."
    try:
        if TRIED_AGAIN.isdisjoint(pattern):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # about what a bracket may mean one day
                return re.compile(pattern, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"{where}: {shown!r} is not a regular expression: {error}") from None
    return _Linear(pattern, where, shown)


class _Linear:
    """A pattern in RE2."""

    def __init__(self, pattern: str, where: str, shown: str) -> None:
        try:
            re2 = importlib.import_module("re2")
        except ImportError:
            hint = "pip install 'knee[trace]', or give a plain part of the names"
            raise MissingExtra(
                f"{where}: {shown!r} has repeats or groups, which need the package RE2", hint=hint
            ) from None
        options = re2.Options()
        options.case_sensitive, options.log_errors = False, False
        try:
            self.compiled = re2.compile(_as_utf8(pattern), options)
        except re2.error as error:
            why = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else error.args[0]
            hint = "use RE2 syntax, which has no look-around and no back-references"
            raise InputError(f"{where}: {shown!r} is not a regular expression for RE2: {why}", hint=hint) from None

    def search(self, text: str, /) -> Any:
        """Something true where it is found."""
        return self.compiled.search(_as_utf8(text))


def _as_utf8(text: str) -> str:
    """The same without halves of letters, which JSON may hold and UTF-8 may not."""
    return text.encode("utf-8", "replace").decode("utf-8")


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
