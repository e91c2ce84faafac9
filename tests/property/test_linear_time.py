"""What is read from outside takes time linear in its size: every pattern of src on texts made against it, and readers
on more of what they read.

Patterns are found in the code itself, so that a new one is tested without anybody thinking of it. What counts is CPU
time, the least of a few tries, over that for a tenth of the text: some 10 where it is linear, 100 where it is not.
"""

from __future__ import annotations

import ast
import gc
import random
import re
import signal
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from re import _compiler, _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple, cast

import pytest

from knee.base.errors import InputError
from knee.measure.kineto.column_cache import NumberText, nanosecond_column
from knee.measure.kineto.decode import nanoseconds, repaired
from knee.measure.traces import analyse
from knee.measure.traces.analyse import Analysis
from knee.measure.traces.kernel_classes import classes_of, kernel_name, user_pattern
from knee.measure.traces.perfetto import write_small
from knee.specs.catalog import did_you_mean
from knee.training.launch.log_patterns import MEMORY, SLURM
from lanes import NIGHTLY

SRC = Path(__file__).parents[2] / "src" / "knee"
SIZE = 30_000
FLOOR_S = 0.1
"""What takes less for a whole text is not measured again: the square of it would take longer."""
RATIO = 30.0
PARTS = 8
"""Of all patterns, which are looked for when tests run and not by every process that collects tests."""
STOP_S = 3.0
"""Of CPU time for one text: a pattern that never ends fails here."""
CALLS = ("compile", "match", "search", "fullmatch", "sub", "subn", "findall", "finditer", "split")
ELSEWHERE = {
    ("measure/traces/kernel_classes.py", "pattern"),
    ("measure/traces/kernel_classes.py", "pattern"),
    ("training/launch/failures.py", "pattern"),
}
"""Calls of ``re`` whose pattern is no literal: of kernel_classes.toml, of users and plain, of ``SLURM``."""
LETTERS = ' \n0a_.,:"\\-'
"""Of every kind: of those that a repeat takes, each is tried."""
NAME_PARTS = ("<", "(", "()", "a<", "a(", "<)", "aB", "::", " [clone ", "9", "(anonymous namespace)")
"""Of kernels' names, over and over."""
ENDS = ("!", " x y\n\x00")
"""What follows, so that a match that came far fails."""


class Pattern(NamedTuple):
    """One of src, and how it is used."""

    where: str
    text: str | bytes
    flags: int
    methods: frozenset[str]


@cache
def found_patterns() -> list[Pattern]:
    calls = re.compile(rf"\.(?:{'|'.join(CALLS)})\b")  # most files have none, and need not be parsed
    texts = {str(path.relative_to(SRC)): path.read_text() for path in sorted(SRC.rglob("*.py"))}
    modules = {name: list(ast.walk(ast.parse(text))) for name, text in texts.items() if calls.search(text)}
    uses = uses_of([node for nodes in modules.values() for node in nodes])
    return [*(p for name, nodes in modules.items() for p in patterns_of(name, nodes, uses)), *patterns_of_tables()]


def uses_of(nodes: Iterable[ast.AST]) -> dict[str, set[str]]:
    """Name -> methods of patterns that are called on anything of this name."""
    found: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in CALLS and isinstance(node.value, ast.Name):
            found.setdefault(node.value.id, set()).add(node.attr)
    return found


def patterns_of(name: str, nodes: list[ast.AST], uses: dict[str, set[str]]) -> Iterator[Pattern]:
    names = {id(node.value): ast.unparse(node.targets[0]) for node in nodes if isinstance(node, ast.Assign)}
    for node in nodes:
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in CALLS
            and ast.unparse(node.func.value) == "re"
        ):
            continue
        method, pattern = node.func.attr, node.args[0]
        if not isinstance(pattern, ast.Constant):
            assert (name, ast.unparse(pattern)) in ELSEWHERE, f"{name}:{node.lineno}: test this pattern too"
            continue
        # one that has no name is handed on, and may be looked for anywhere
        methods = {method} if method != "compile" else uses.get(names.get(id(node), ""), {"finditer"})
        yield Pattern(f"{name}:{node.lineno}", pattern.value, flags_of(node), frozenset(methods))


def flags_of(call: ast.Call) -> int:
    given = [
        getattr(re, node.attr)
        for node in ast.walk(call)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "re"
    ]
    return sum({int(flag) for flag in given if isinstance(flag, re.RegexFlag)})


def patterns_of_tables() -> Iterator[Pattern]:
    classes = tomllib.loads((SRC / "catalog" / "kernel_classes.toml").read_text())
    for name, entry in classes.items():
        for key in ("pattern", "fused"):
            if key in entry:
                yield Pattern(f"kernel_classes.toml:{name}.{key}", entry[key], 0, frozenset({"search"}))
    for i, entry in enumerate(SLURM):
        yield Pattern(f"SLURM:{i}", entry[0], 0, frozenset({"search"}))


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
    again = {*LETTERS, '\\"', sample(tree, 1)[:-1], *(part for pump in pumps for part in (pump[0], "".join(pump)))}
    return sorted(found | {Adversary("", part, "") for part in again if part})


def repeats(tree: Iterable[Any], before: str, flags: int) -> Iterator[tuple[str, str]]:
    """Every repeat of a pattern: a text that leads up to it, and one that it takes."""
    for op, value in tree:
        name = str(op)
        inside = {
            "SUBPATTERN": lambda v: [v[3]],
            "ATOMIC_GROUP": lambda v: [v],
            "BRANCH": lambda v: v[1],
            "ASSERT": lambda v: [v[1]],
            "ASSERT_NOT": lambda v: [v[1]],
        }.get(name)
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
def stopped(after_s: float, what: object) -> Iterator[None]:
    """``re`` looks for signals while it tries, so that it can be ended."""

    def stop(*_: object) -> None:
        raise NeverEnds(what)

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def cpu_s(work: Callable[[int], object], size: int, tries: int = 1) -> float:
    best = float("inf")
    gc.disable()  # looking for garbage takes as long as all that other tests keep is large
    try:
        for _ in range(tries):
            start = time.process_time()
            work(size)
            best = min(best, time.process_time() - start)
    finally:
        gc.enable()
    return best


def is_linear(work: Callable[[int], object], size: int = SIZE, ratio: float = RATIO) -> bool:
    """Whether ten times the size takes about ten times as long, or next to nothing; a machine that is busy with other
    things gets further chances, with more tries."""
    if cpu_s(work, size) < FLOOR_S:
        return True
    return any(cpu_s(work, size, tries) < ratio * cpu_s(work, size // 10, tries + 2) for tries in (1, 3, 3))


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
    found = {pattern.text for pattern in found_patterns()}
    assert len(found) > 100
    assert {r"ProfilerStep#(\d{1,18})", rb"\}\s*+,\s*+\{", "nccl|rccl|msccl(?!pp)"} <= found


def check(pattern: Pattern, stop_s: float) -> None:
    one = re.compile(pattern.text, pattern.flags)
    for adversary in adversaries(pattern):
        with stopped(stop_s, pattern):
            grows = is_linear(lambda size, adversary=adversary: use(one, pattern.methods, adversary.text(size)))
        assert grows, f"{pattern.where} takes more than {RATIO:.0f} times as long for ten times the text: {adversary}"


@pytest.mark.parametrize("part", range(PARTS))
def test_every_pattern_is_linear(part: int) -> None:
    for pattern in found_patterns()[part::PARTS]:
        check(pattern, STOP_S)


@pytest.mark.parametrize("bad", [r"(\d+)+x", r"^\d+\d*x", r"\d+x", r"a.*b", r"\s*time", rb"(?:[0-8]?\d{1,15},?)*x"])
def test_bad_patterns_are_caught(bad: str | bytes) -> None:
    with pytest.raises((NeverEnds, AssertionError)):
        check(Pattern("here", bad, 0, frozenset({"search"})), 0.3)


def trace(folder: Path, events: Iterable[str], head: str = "") -> object:
    path = folder / "rank0.json"
    path.write_text(f'{{{head}"traceEvents": [' + ",".join(events) + "]}")
    return analyse(path, cache=False)


def kernel(start: object, length: object, *, stream: int = 7, name: str = "gemm") -> str:
    return (
        f'{{"ph": "X", "cat": "kernel", "name": "{name}", "ts": {start}, "dur": {length}, "args": {{"stream": '
        f"{stream}}}}}"
    )


def span(name: str, start: int, length: int, category: str = "cpu_op", args: str = "{}") -> str:
    return (
        f'{{"ph": "X", "cat": "{category}", "name": "{name}", "pid": 1, "tid": 1, "ts": {start}, "dur": {length}, '
        f'"args": {args}}}'
    )


def decimals(i: int) -> str:
    """Many with three, and then others, as where a writer drops trailing zeros."""
    return (
        f"{i}.125"
        if i % 300 < 200
        else (f"{i}", f"{i}.5", f"{i}.25", f"{i}.125", f"{i}.125000", f'"{i}.125"', f"{i}125e-3")[i % 7]
    )


def mixed(folder: Path, size: int) -> None:
    trace(folder, (kernel(decimals(1_700_000_000_000_100 + 3 * i), decimals(i % 300)) for i in range(size)))


def fake_heads(folder: Path, size: int) -> None:
    trace(folder, [kernel(1, 1)], '"a": [' + ",".join(['{"traceEvents": []}'] * size) + "],")


def many_steps(folder: Path, size: int) -> None:
    """And a kernel that lasts through all of them."""
    steps = (span(f"ProfilerStep#{i}", 10 * i, 9, "user_annotation") for i in range(size))
    trace(folder, [kernel(0, 10 * size, stream=20, name="nccl"), *steps, *(kernel(10 * i, 5) for i in range(size))])


def overlapping(folder: Path, size: int) -> None:
    """Kernels of which each begins before the others end, and as many stretches that are exposed, as Perfetto's."""
    names = ("gemm", "nccl")
    found = [kernel(10 * i, 10 * size if i % 2 else 3, stream=20 + i % 2, name=names[i % 2]) for i in range(size)]
    write_small(cast(Analysis, trace(folder, found)), folder / "small.json")


def deep(folder: Path, size: int) -> None:
    """Operators inside each other, and calls of gloo that none of them issued."""
    inner = (span("aten::mm" if i % 2 else "c10d::send", i, 4 * size - 2 * i) for i in range(size))
    calls = (span("gloo:all_reduce", i, 1, "user_annotation") for i in range(size))
    trace(folder, [*inner, *calls])


def large_groups(folder: Path, size: int) -> None:
    args = '{"stream": 20, "Collective name": "allreduce", "Group size": 1000000, "Global rank start": 0}'
    trace(folder, (span("nccl", 10 * i, 5, "kernel", args) for i in range(size)))


def long_line(_: Path, size: int) -> None:
    MEMORY[3].line("WARNING " + "MemoryError Error: " * size)


def long_names(_: Path, size: int) -> None:
    pytest.importorskip("re2")
    for pattern in ("(a+)+$", "nccl.*reduce.*f32", "(a|b)*a(a|b){20}c", "(aa|aa)" * 30 + "b", "aa|ncclreduceac"):
        user_pattern(pattern, "here").search("ncclreduceab" * (size // 12) + "aa" * 100)


READERS: dict[Callable[[Path, int], None], int] = {
    mixed: 20_000,
    fake_heads: 50_000,
    many_steps: 5_000,
    overlapping: 6_000,
    deep: 6_000,
    large_groups: 3_000,
    long_line: 50_000,
    long_names: 100_000,
    lambda _, size: repaired(b'nan "' + b'\\"' * size): 500_000,
    **{lambda _, size, part=part: kernel_name(part * size): 100_000 for part in NAME_PARTS},
    lambda _, size: did_you_mean("a" * size, ["b" * size, "c" * size]): 100_000,
}  # fmt: skip


RARE = (many_steps, overlapping, large_groups, *list(READERS)[8:])
"""Those of which another reader has the loops; nightly."""
TRIED = [one for one in READERS if NIGHTLY or one not in RARE]


@pytest.mark.parametrize("read", TRIED, ids=lambda read: getattr(read, "__name__", ""))
def test_reading_is_linear(read: Callable[[Path, int], None], tmp_path: Path) -> None:
    with stopped(20.0, read):
        assert is_linear(lambda size: read(tmp_path, size), READERS[read])


def test_a_column_of_mixed_times_is_exact() -> None:
    """Also with one that is no time in its middle, and however large."""
    rng = random.Random(1)
    shapes = ("{}", "{}.5", "{}.25", "{}.125", "{}.1259999", '"{}.5"', "{}e-3", "-{}.5", "null", ".{}", "{}.", "1.{}.2")
    for _ in range(300):
        texts = [rng.choice(shapes).format(rng.randrange(10 ** rng.randrange(1, 22))) for _ in range(40)]
        column, others = nanosecond_column(NumberText([text.encode() for text in texts]))
        left = set(others.tolist())
        assert [column[i] for i in range(40) if i not in left] == [
            nanoseconds(text) for i, text in enumerate(texts) if i not in left
        ]
        assert not any(re.fullmatch(r"\d{1,15}(\.\d+)?", texts[i]) for i in left)


@pytest.mark.parametrize("pattern", [r"(?=a)b", r"(a)\1", r"(?<!a)b", r"(?>a)", "a{5000}", "((a{99}){99}){99}"])
def test_patterns_that_may_never_end_are_refused(pattern: str) -> None:
    pytest.importorskip("re2")
    with pytest.raises(InputError) as refused:
        classes_of(patterns=[pattern])
    assert refused.value.hint
