"""How many random faults of the source do the fast tests notice?

A mutant is the package with one expression changed: an operator swapped, a comparison negated or shifted, a condition
inverted, a constant changed, a return value dropped. Only tests that reach the changed statement run, fastest first,
until one fails. Which tests those are is recorded once (``out/mutants``), and again for test files that changed. Each
mutant runs in a forked process on a copy of ``src``; the working tree is never written.

    python tools/mutants.py [--mutants 200] [--seed 0] [--jobs 2] [--only search/,trust/bands.py] [--again]

Mutants that no test can notice are named with a reason in ``tools/mutants_equivalent.toml``.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import hashlib
import importlib.util
import json
import multiprocessing
import os
import py_compile
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import _lru_cache_wrapper
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
RECORD = ROOT / "out" / "mutants"
EQUIVALENT = ROOT / "tools" / "mutants_equivalent.toml"
PACKAGES = ("engine/cost", "engine/timeline", "engine/workload", "search", "trust", "measure/traces")
"""Packages of ``knee`` that mutants are drawn from."""
WARM = ("numpy", "hypothesis.strategies", "pydantic", "click", "rich.console", "msgspec", "scipy.optimize", "altair")
"""Imported before mutants are forked; ``knee`` is not, because each mutant has its own."""
BATCHES = ((4.0, 8), (15.0, 30), (45.0, 200))
"""Seconds and files of tests that run in one process. Most mutants do not survive the first."""
MEMORY_BYTES = 6 << 30
PYTEST = ("-q", "-m", "not slow", "-p", "no:cacheprovider", "--tb=short")
PYTEST += ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # hypothesis is imported before pytest starts

SWAPS: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitAnd: (ast.BitOr,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Lt: (ast.GtE, ast.LtE),
    ast.LtE: (ast.Gt, ast.Lt),
    ast.Gt: (ast.LtE, ast.GtE),
    ast.GtE: (ast.Lt, ast.Gt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
"""What an operator may become."""


# Mutants of a file


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    file: str
    """Under ``src/knee``."""
    line: int
    function: str
    statement: str
    """Key of the changed statement; tests are found by it."""
    before: str
    after: str
    span: tuple[int, int]
    """Bytes of the file that ``after`` takes the place of."""

    def key(self) -> tuple[str, str, str]:
        return f"{self.file}:{self.function}", self.before, self.after

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.before}  ->  {self.after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a node of a syntax tree stands."""

    functions: tuple[str, ...] = ()
    statement: ast.stmt | None = None
    is_condition: bool = False


def nodes_of(node: ast.AST, place: Place) -> Iterator[tuple[ast.AST, Place]]:
    """Nodes that may be changed, outer ones first. Annotations, decorators, docstrings, ``strict=`` and what stands in
    f-strings are left out."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            match child:
                case ast.JoinedStr() | ast.Expr(value=ast.Constant()) | ast.keyword(arg="strict"):
                    continue
                case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                    continue
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    inside = Place(functions=(*place.functions, child.name), statement=child)
                case ast.stmt():
                    inside = Place(functions=place.functions, statement=child)
                case ast.AST():
                    is_condition = name == "ifs" or (name == "test" and not isinstance(node, ast.Assert))
                    inside = replace(place, is_condition=is_condition)
                case _:
                    continue
            yield child, inside
            yield from nodes_of(child, inside)


def changes_of(node: ast.AST, is_condition: bool) -> Iterator[ast.AST]:
    """Nodes that may take the place of one."""

    def changed(**fields: Any) -> ast.AST:
        other = copy.deepcopy(node)
        for name, value in fields.items():
            setattr(other, name, value)
        return other

    match node:
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op):
            yield from (changed(op=other()) for other in SWAPS.get(type(op), ()))
        case ast.Compare(ops=[op]):
            yield from (changed(ops=[other()]) for other in SWAPS[type(op)])
        case ast.Constant(value=bool(value)):
            yield changed(value=not value)
        case ast.Constant(value=int(value)):
            yield changed(value=value + 1)
        case ast.Constant(value=float(value)):
            yield changed(value=value * 2 if value else 1.0)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield changed(value=ast.Constant(value=None))
    if is_condition and not isinstance(node, ast.UnaryOp | ast.Compare):
        yield ast.UnaryOp(op=ast.Not(), operand=node)


class Source:
    """A file of the package. A statement's key (file, function, first line) survives edits elsewhere in the file."""

    def __init__(self, path: Path) -> None:
        self.file, self.text = path.relative_to(SOURCE / "knee").as_posix(), path.read_bytes()
        self.lines, self.nodes = self.text.decode().splitlines(), list(nodes_of(ast.parse(self.text), Place()))

    def key(self, place: Place) -> str:
        assert place.statement is not None
        return f"{self.file}:{'.'.join(place.functions)}:{self.lines[place.statement.lineno - 1].strip()}"

    def keys_of_lines(self) -> dict[int, str]:
        """Each line with the key of its innermost statement."""
        keys: dict[int, str] = {}
        for node, place in self.nodes:
            if isinstance(node, ast.stmt) and node.end_lineno:
                keys |= dict.fromkeys(range(node.lineno, node.end_lineno + 1), self.key(place))
        return keys

    def mutants(self) -> Iterator[Mutant]:
        starts = [0]
        for line in self.text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        for node, place in self.nodes:
            for other in changes_of(node, place.is_condition):
                assert isinstance(node, ast.expr | ast.stmt)
                assert node.end_lineno is not None
                assert node.end_col_offset is not None
                text = ast.unparse(other)
                yield Mutant(
                    file=self.file,
                    line=node.lineno,
                    function=".".join(place.functions),
                    statement=self.key(place),
                    before=ast.unparse(node),
                    after=text if isinstance(node, ast.stmt) else f"({text})",
                    span=(starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset),
                )


def source_files() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((SOURCE / "knee" / package).rglob("*.py"))]


# Which test reaches which statement


@dataclass(slots=True)
class Reach:
    """Seconds of each fast test, and the tests that reach a statement."""

    seconds: dict[str, float] = field(default_factory=dict)
    tests: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def of(self, mutant: Mutant) -> list[str]:
        """Tests that reach a mutant, fastest first. What runs at import is reached by every test of the file. What was
        changed after the record is looked for in other files, in its function, and in its file."""
        elsewhere = mutant.statement.removeprefix(mutant.file)
        lookups = (
            lambda key: key == mutant.statement,
            lambda key: mutant.function and key.endswith(elsewhere),
            lambda key: key.startswith(f"{mutant.file}:{mutant.function}:"),
            lambda key: key.startswith(f"{mutant.file}:"),
        )
        for is_meant in lookups:
            tests = {test for key, found in self.tests.items() if is_meant(key) for test in found}
            if tests:
                return sorted(tests, key=self.seconds.__getitem__)
        return []


class Recorder:
    """A plugin of pytest that tells coverage which test runs."""

    def __init__(self, coverage: Any) -> None:
        self.coverage, self.seconds, self.failed, self.caches = coverage, Counter[str](), set[str](), list[Any]()

    def pytest_collection_finish(self) -> None:
        caches = [o for o in gc.get_objects() if type(o) is _lru_cache_wrapper]
        self.caches = [cache for cache in caches if str(cache.__module__).startswith("knee.")]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Any:
        for cache in self.caches:  # what an earlier test left in a cache, this one would not reach
            cache.cache_clear()
        # Fixtures are often made once per file: what they reach counts for all tests of the file.
        self.coverage.switch_context(item.nodeid.partition("::")[0])
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        self.coverage.switch_context(item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)


def record_tests(files: list[Path]) -> None:
    """Run test files under coverage, and write for each file what its tests reach. Tests that fail are left out."""
    from coverage import Coverage

    use_source(SOURCE)
    coverage = Coverage(data_file=None, config_file=False, include=[str(path) for path in source_files()])
    recorder = Recorder(coverage)
    coverage.start()
    status = pytest.main([*PYTEST, *map(str, files)], plugins=[recorder])
    coverage.stop()
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"the tests could not be run: pytest ended with {status}")
    reached = defaultdict[str, set[str]](set)
    for path in source_files():
        keys = Source(path).keys_of_lines()
        for line, contexts in coverage.get_data().contexts_by_lineno(str(path)).items():
            for context in contexts:
                reached[context].add(keys.get(line, ""))
    for file in files:
        name = file.relative_to(ROOT).as_posix()
        tests = [t for t in recorder.seconds if t.partition("::")[0] == name and t not in recorder.failed]
        places = {key: place for place, key in enumerate(sorted(set().union(*(reached[t] for t in (name, *tests)))))}
        of_tests = {
            t.removeprefix(name): (round(recorder.seconds[t], 4), sorted(places[k] for k in reached[name] | reached[t]))
            for t in tests
        }
        record_of(file).write_text(json.dumps({"keys": list(places), "tests": of_tests}))


def record_of(file: Path) -> Path:
    """Where the record of a test file lies, as the file is now, wherever that is."""
    return RECORD / f"{file.stem}.{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}.json"


def starts_browser(file: Path) -> bool:
    """Whether a test file, or what it shares with its folder, starts a browser: that takes longer than a mutant may."""
    shared = [folder / "conftest.py" for folder in file.parents if folder.is_relative_to(ROOT / "tests")]
    return any("playwright" in path.read_text("utf-8") for path in (file, *shared) if path.exists())


def recorded_reach(jobs: int, again: bool) -> Reach:
    """The record, made anew for test files that changed."""
    files = [file for file in sorted((ROOT / "tests").rglob("test_*.py")) if not starts_browser(file)]
    RECORD.mkdir(parents=True, exist_ok=True)
    missing = [file for file in files if again or not record_of(file).exists()]
    if missing:
        print(f"recording what {len(missing)} test files reach", flush=True)
        groups = [missing[start::jobs] for start in range(jobs) if missing[start::jobs]]
        pids = [
            forked(lambda group=group: record_tests(group), RECORD / f"record{i}.log")  # type: ignore[misc]
            for i, group in enumerate(groups)
        ]
        statuses = [os.waitpid(pid, 0)[1] for pid in pids]
        if any(statuses):
            sys.exit(f"recording failed, see {RECORD}/*.log")
    reach = Reach()
    for file in files:
        document = json.loads(record_of(file).read_text())
        for name, (seconds, places) in document["tests"].items():
            test = file.relative_to(ROOT).as_posix() + name
            reach.seconds[test] = seconds
            for place in places:
                reach.tests[document["keys"][place]].add(test)
    return reach


# Running a mutant


@dataclass(slots=True)
class Outcome:
    mutant: Mutant
    state: str
    """killed, timed out, survived, unreached or equivalent."""
    by: str = ""
    """The test that failed."""
    tests: int = 0
    seconds: float = 0.0


class Chosen:
    """A plugin of pytest that runs chosen tests in order, limits the CPU time of each, and notes failures."""

    def __init__(self, tests: list[str], seconds: dict[str, float], failures: Path) -> None:
        self.places, self.seconds, self.failures = {t: i for i, t in enumerate(tests)}, seconds, failures

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.places), key=lambda item: self.places[item.nodeid])

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit_s = used.ru_utime + used.ru_stime + 10 + 10 * self.seconds[item.nodeid]
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s), resource.RLIM_INFINITY))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self.failures.open("a") as file:
                print(report.nodeid, file=file)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failures.write_text(f"import of {report.nodeid}")


def use_source(folder: Path) -> None:
    """Import ``knee`` from a folder, here and in what tests start."""
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    os.chdir(ROOT)


def forked(work: Callable[[], int | None], log: Path) -> int:
    """Start ``work`` in a forked process that leads a session; its id."""
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        status = int(work() or 0)
    except BaseException:  # also SystemExit: this process must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def exit_status(pid: int, limit_s: float) -> int | None:
    """The exit status of a process, or nothing where it was killed after ``limit_s``. What it started is killed."""
    deadline, status = time.monotonic() + limit_s, None
    while status is None and time.monotonic() < deadline:
        done, raw = os.waitpid(pid, os.WNOHANG)
        status = os.waitstatus_to_exitcode(raw) if done else None
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if status is None:
        os.waitpid(pid, 0)
    return status


def run_tests(tests: list[str], seconds: dict[str, float], folder: Path, *options: str) -> tuple[int | None, list[str]]:
    """The exit status of tests on the source in a folder, and which failed."""
    failures = folder / "failures"
    failures.write_text("")

    def work() -> int:
        use_source(folder / "src")
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        chosen = Chosen(tests, seconds, failures)
        return pytest.main([*PYTEST, *options, f"--basetemp={folder / 'tmp'}", *files], plugins=[chosen])

    status = exit_status(forked(work, folder / "log"), 120 + 20 * sum(seconds[test] for test in tests))
    return status, failures.read_text().splitlines()


def batches_of(tests: list[str], seconds: dict[str, float]) -> Iterator[list[str]]:
    for limit_s, most_files in BATCHES:
        batch, files, total_s = list[str](), set[str](), 0.0
        for test in tests:
            file = test.partition("::")[0]
            if total_s + seconds[test] <= limit_s and (file in files or len(files) < most_files):
                batch.append(test)
                files.add(file)
                total_s += seconds[test]
        left = set(tests).difference(batch)
        tests = [test for test in tests if test in left]
        if batch:
            yield batch


def run_mutant(mutant: Mutant, reach: Reach, folder: Path) -> Outcome:
    """Put a mutant into the copy of the source in a folder, and run the tests that reach it."""
    start, tests = time.monotonic(), reach.of(mutant)
    outcome = Outcome(mutant, "survived" if tests else "unreached")
    path = folder / "src" / "knee" / mutant.file
    source = path.read_bytes()
    path.write_bytes(source[: mutant.span[0]] + mutant.after.encode() + source[mutant.span[1] :])
    Path(importlib.util.cache_from_source(str(path))).unlink()
    for batch in batches_of(tests, reach.seconds):
        status, failures = run_tests(batch, reach.seconds, folder, "-x")
        outcome.tests += len(batch)
        if status is None or status == -signal.SIGXCPU:
            outcome.state = "timed out"
        elif status:
            outcome.state, outcome.by = "killed", failures[0] if failures else f"exit status {status}"
        if outcome.state != "survived":
            break
    path.write_bytes(source)
    py_compile.compile(str(path))
    outcome.seconds = time.monotonic() - start
    return outcome


FOLDER, REACH = Path(), Reach()  # what the processes that run mutants inherit


def run_in_own_copy(mutant: Mutant) -> Outcome:
    folder = FOLDER / str(os.getpid())
    if not folder.exists():
        shutil.copytree(FOLDER / "src", folder / "src")
    return run_mutant(mutant, REACH, folder)


def named_equivalent() -> dict[tuple[str, str, str], str]:
    """Mutants that no test can notice, with the reason."""
    entries = tomllib.loads(EQUIVALENT.read_text()).get("equivalent", [])
    return {(e["function"], e["before"], e["after"]): e["reason"] for e in entries}


def report(outcomes: list[Outcome], unsound: list[str]) -> None:
    states = Counter(outcome.state for outcome in outcomes)
    print("\n" + ", ".join(f"{count} {state}" for state, count in states.most_common()))
    for outcome in sorted(outcomes, key=lambda o: (o.state, o.mutant.file, o.mutant.line)):
        if outcome.state in ("survived", "unreached"):
            print(f"{outcome.state} ({outcome.tests} tests) {outcome.mutant}")
    noticed, all_but_equivalent = states["killed"] + states["timed out"], len(outcomes) - states["equivalent"]
    print(f"noticed: {noticed} of {all_but_equivalent} ({noticed / max(all_but_equivalent, 1):.1%})")
    for test in unsound:
        print(f"not sound: {test} fails without a mutant too")


def main() -> None:
    global FOLDER, REACH
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="parts of file:line, with commas between them")
    parser.add_argument("--again", action="store_true", help="record anew which tests reach what")
    options = parser.parse_args()
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    for name in WARM:
        importlib.import_module(name)
    REACH = recorded_reach(options.jobs, options.again)
    mutants = [mutant for path in source_files() for mutant in Source(path).mutants()]
    parts = [part for part in options.only.split(",") if part]
    mutants = [m for m in mutants if not parts or any(part in f"{m.file}:{m.line}:" for part in parts)]
    sample = random.Random(options.seed).sample(mutants, min(options.mutants, len(mutants)))
    print(f"{len(sample)} of {len(mutants)} mutants, seed {options.seed}", flush=True)
    known = named_equivalent()
    outcomes = [Outcome(m, "equivalent", known[m.key()]) for m in sample if m.key() in known]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        FOLDER = Path(folder)
        shutil.copytree(SOURCE, FOLDER / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for path in (FOLDER / "src").rglob("*.py"):
            py_compile.compile(str(path))
        with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
            for outcome in pool.imap_unordered(run_in_own_copy, [m for m in sample if m.key() not in known]):
                outcomes.append(outcome)
                print(f"{outcome.state} {outcome.seconds:.0f}s {outcome.mutant} [{outcome.by}]", flush=True)
        killers = sorted({outcome.by for outcome in outcomes if outcome.by in REACH.seconds})
        unsound = run_tests(killers, REACH.seconds, FOLDER)[1] if killers else []
    report(outcomes, unsound)


if __name__ == "__main__":
    main()
