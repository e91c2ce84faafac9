"""What is read from outside takes time linear in its size: every pattern of src on texts made against it, and readers
on more of what they read.

Patterns are found in the code itself, so that a new one is tested without anybody thinking of it. What counts is CPU
time, the least of a few tries, over that for a tenth of the text: some 10 where it is linear, 100 where it is not.
"""

from __future__ import annotations

import ast
import re
import signal
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from re import _compiler, _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

import pytest

from knee.launch.signs import SLURM

SRC = Path(__file__).parents[2] / "src" / "knee"
SIZE = 100_000
FLOOR_S = 0.25
"""What takes less for a whole text is not measured again: the square of it would take seconds."""
RATIO = 30.0
STOP_S = 3.0
"""Of CPU time for one text: a pattern that never ends fails here."""
CALLS = ("compile", "match", "search", "fullmatch", "sub", "subn", "findall", "finditer", "split")
ELSEWHERE = {("trace/classes.py", "entry.pattern"), ("launch/failures.py", "pattern")}
"""Calls of ``re`` whose pattern is no literal: it is of kernel_classes.toml, and of ``SLURM``."""
LETTERS = ' \n0a_.,:"\\-'
"""Of every kind: of those that a repeat takes, each is tried."""
ENDS = ("!", " x y\n\x00")
"""What follows, so that a match that came far fails."""


class Pattern(NamedTuple):
    """One of src, and how it is used."""

    where: str
    text: str | bytes
    flags: int
    methods: frozenset[str]


def found_patterns() -> list[Pattern]:
    modules = {str(path.relative_to(SRC)): ast.parse(path.read_text()) for path in sorted(SRC.rglob("*.py"))}
    uses = uses_of([node for tree in modules.values() for node in ast.walk(tree)])
    return [*(p for name, tree in modules.items() for p in patterns_of(name, tree, uses)), *patterns_of_tables()]


def uses_of(nodes: Iterable[ast.AST]) -> dict[str, set[str]]:
    """Name -> methods of patterns that are called on anything of this name."""
    found: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in CALLS and isinstance(node.value, ast.Name):
            found.setdefault(node.value.id, set()).add(node.attr)
    return found


def patterns_of(name: str, tree: ast.Module, uses: dict[str, set[str]]) -> Iterator[Pattern]:
    nodes = list(ast.walk(tree))
    names = {id(node.value): ast.unparse(node.targets[0]) for node in nodes if isinstance(node, ast.Assign)}
    for node in nodes:
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) in {f"re.{call}" for call in CALLS}):
            continue
        method, pattern = ast.unparse(node.func).removeprefix("re."), node.args[0]
        if not isinstance(pattern, ast.Constant):
            assert (name, ast.unparse(pattern)) in ELSEWHERE, f"{name}:{node.lineno}: test this pattern too"
            continue
        # one that has no name is handed on, and may be looked for anywhere
        methods = {method} if method != "compile" else uses.get(names.get(id(node), ""), {"finditer"})
        yield Pattern(f"{name}:{node.lineno}", pattern.value, flags_of(node), frozenset(methods))


def flags_of(call: ast.Call) -> int:
    given = [getattr(re, node.attr) for node in ast.walk(call) if isinstance(node, ast.Attribute)
             and ast.unparse(node.value) == "re"]  # fmt: skip
    return sum({int(flag) for flag in given if isinstance(flag, re.RegexFlag)})


def patterns_of_tables() -> Iterator[Pattern]:
    classes = tomllib.loads((SRC / "catalog" / "kernel_classes.toml").read_text())
    for name, entry in classes.items():
        yield Pattern(f"kernel_classes.toml:{name}", entry["pattern"], int(re.IGNORECASE), frozenset({"search"}))
    for i, entry in enumerate(SLURM):
        yield Pattern(f"SLURM:{i}", entry[0], 0, frozenset({"search"}))


PATTERNS = found_patterns()


class Adversary(NamedTuple):
    """A text that makes a pattern try again and again."""

    before: str
    body: str
    end: str

    def text(self, size: int) -> str:
        return self.before + (self.body * (size // len(self.body) + 1))[:size] + self.end


def adversaries(pattern: Pattern) -> list[Adversary]:
    """What its repeats take, after what leads up to them; that again and again; and ends that fail."""
    tree = _parser.parse(pattern.text, pattern.flags)
    pumps = set(repeats(tree, "", tree.state.flags))
    found = {Adversary(before, body, end) for before, body in pumps if body for end in ENDS}
    again = {*LETTERS, sample(tree, 1)[:-1], *(part for pump in pumps for part in (pump[0], "".join(pump)))}
    return sorted(found | {Adversary("", part, "") for part in again if part})


def repeats(tree: Iterable[Any], before: str, flags: int) -> Iterator[tuple[str, str]]:
    """Every repeat of a pattern: a text that leads up to it, and one that it takes."""
    for op, value in tree:
        name = str(op)
        inside = {"SUBPATTERN": lambda v: [v[3]], "ATOMIC_GROUP": lambda v: [v], "BRANCH": lambda v: v[1],
                  "ASSERT": lambda v: [v[1]], "ASSERT_NOT": lambda v: [v[1]]}.get(name)  # fmt: skip
        if "REPEAT" in name:
            yield from repeats(value[2], before, flags)
            if value[1] > 1:
                fits = _compiler.compile(value[2], flags)
                yield from ((before, letter) for letter in LETTERS if fits.fullmatch(letter))
                yield before, sample(value[2], 1)
        for part in inside(value) if inside else ():
            yield from repeats(part, before, flags)
        before += sample([(op, value)], 0)


def sample(tree: Iterable[Any], least: int) -> str:
    """A text that a part of a pattern takes, with repeats as short as they can be, or ``least``."""
    return "".join(sample_of(str(op), op, value, least) for op, value in tree)


def sample_of(name: str, op: Any, value: Any, least: int) -> str:
    if name == "LITERAL":
        return chr(value)
    if name in ("ANY", "NOT_LITERAL", "IN"):
        state = _parser.State()
        fits = _compiler.compile(_parser.SubPattern(state, [(op, value)]), 0)
        return next((letter for letter in ("0a" + LETTERS + "zZ1b") if fits.fullmatch(letter)), "")
    if "REPEAT" in name:
        return sample(value[2], least) * max(value[0], least)
    parts = {"SUBPATTERN": lambda: value[3], "ATOMIC_GROUP": lambda: value, "BRANCH": lambda: value[1][0]}
    return sample(parts[name](), least) if name in parts else ""


class NeverEnds(Exception):
    """It took more CPU time than any linear one."""


@contextmanager
def stopped(after_s: float) -> Iterator[None]:
    """``re`` looks for signals while it tries, so that it can be ended."""

    def stop(*_: object) -> None:
        raise NeverEnds

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def cpu_s(work: Callable[[int], object], size: int, tries: int = 1) -> float:
    best = float("inf")
    for _ in range(tries):
        start = time.process_time()
        work(size)
        best = min(best, time.process_time() - start)
    return best


def is_linear(work: Callable[[int], object], size: int = SIZE, ratio: float = RATIO) -> bool:
    """Whether ten times the size takes about ten times as long, or next to nothing; a machine that is busy with other
    things gets a second chance."""
    if cpu_s(work, size) < FLOOR_S:
        return True
    return any(cpu_s(work, size, 3) < ratio * cpu_s(work, size // 10, 5) for _ in range(3))


def use(one: re.Pattern[Any], methods: Iterable[str], text: str) -> None:
    """As src does: all methods that are called on it."""
    given: Any = text.encode() if isinstance(one.pattern, bytes) else text
    for method in methods:
        if method in ("sub", "subn"):
            one.sub(given[:0], given)
        elif method == "finditer":
            for _ in one.finditer(given):
                pass
        else:
            getattr(one, "search" if method == "compile" else method)(given)


def test_the_patterns_are_found() -> None:
    found = {pattern.text for pattern in PATTERNS}
    assert len(found) > 100
    assert {r"ProfilerStep#(\d{1,18})", rb"\}\s*+,\s*+\{", "nccl|rccl"} <= found


def check(pattern: Pattern, stop_s: float) -> None:
    one = re.compile(pattern.text, pattern.flags)
    for adversary in adversaries(pattern):
        with stopped(stop_s):
            grows = is_linear(lambda size, adversary=adversary: use(one, pattern.methods, adversary.text(size)))
        assert grows, f"{pattern.where} takes more than {RATIO:.0f} times as long for ten times the text: {adversary}"


@pytest.mark.parametrize("pattern", PATTERNS, ids=[pattern.where for pattern in PATTERNS])
def test_every_pattern_is_linear(pattern: Pattern) -> None:
    check(pattern, STOP_S)


@pytest.mark.parametrize("bad", [r"(\d+)+x", r"^\d+\d*x", r"\d+x", r"a.*b", r"\s*time", rb"(?:[0-8]?\d{1,15},?)*x"])
def test_bad_patterns_are_caught(bad: str | bytes) -> None:
    with pytest.raises((NeverEnds, AssertionError)):
        check(Pattern("here", bad, 0, frozenset({"search"})), 0.3)
