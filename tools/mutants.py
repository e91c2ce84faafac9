"""How many random faults of the source do the fast tests notice?

A mutant is the package with one expression changed: an operator swapped, a comparison negated or shifted, a condition
inverted, a constant changed, a return value dropped. Only tests that reach the changed statement run, fastest first,
until one fails. Which tests those are is recorded once (``out/mutants``), and again for test files that changed. All
tests are collected once; each mutant is a forked process that takes over the changed code, so that it costs no more
than its tests. Nothing is written into the working tree.

    python tools/mutants.py [--mutants 200] [--seed 0] [--jobs 2] [--only search/,trust/bands.py] [--again]

Mutants that no test can notice are named with a reason in ``tools/mutants_equivalent.toml``.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import hashlib
import importlib
import json
import os
import random
import resource
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
from functools import _lru_cache_wrapper, cache, partial
from itertools import accumulate
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
RECORD = ROOT / "out" / "mutants"
EQUIVALENT = ROOT / "tools" / "mutants_equivalent.toml"
PACKAGES = ("engine/cost", "engine/timeline", "engine/workload", "search", "trust", "measure/traces")
"""Packages of ``knee`` that mutants are drawn from."""
TESTS_S = 60.0
"""Of tests, as recorded, that run for one mutant."""
MEMORY_BYTES = 6 << 30
PYTEST = ("-q", "-s", "-m", "not slow", "-p", "no:cacheprovider", "--tb=short")

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
    names: tuple[str, ...]
    """What the changed statement assigns, where it is one of the module."""

    def key(self) -> tuple[str, str, str]:
        return self.statement, self.before, self.after

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


def assigned_names(statement: ast.stmt | None) -> tuple[str, ...]:
    """Names that an assignment binds."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    nodes = [node for target in targets if target is not None for node in ast.walk(target)]
    return tuple(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))


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
                    names=() if place.functions else assigned_names(place.statement),
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
        """Tests that reach a mutant, fastest first, as many as there is time for. What runs at import is reached by all
        tests of the file. What was changed after the record is looked for in other files, its function, its file."""
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
                ordered = sorted(tests, key=self.seconds.__getitem__)
                until_s = accumulate(self.seconds[test] for test in ordered)
                return [t for t, total_s in zip(ordered, until_s, strict=True) if total_s <= TESTS_S] or ordered[:1]
        return []


class Recorder:
    """A plugin of pytest that tells coverage which test runs."""

    def __init__(self, coverage: Any) -> None:
        self.coverage, self.seconds, self.failed = coverage, Counter[str](), set[str]()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Any:
        clear_caches()  # what an earlier test left in a cache, this one would not reach
        # Fixtures are often made once per file: what they reach counts for all tests of the file.
        self.coverage.switch_context(item.nodeid.partition("::")[0])
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        self.coverage.switch_context(item.nodeid)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        start = time.process_time()  # a busy machine changes nothing
        found = yield
        self.seconds[item.nodeid] = time.process_time() - start
        return found

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)


def clear_caches() -> None:
    """Forget what functions of the package have returned."""
    for one in package_caches():
        one.cache_clear()


@cache
def package_caches() -> list[Any]:
    return [one for one in all_objects(_lru_cache_wrapper) if str(one.__module__).startswith("knee.")]


def all_objects(kind: type) -> list[Any]:
    """Every object of a type, also of those that the tests have frozen for the collector."""
    gc.unfreeze()
    return [o for o in gc.get_objects() if type(o) is kind]


def record_tests(files: list[Path]) -> None:
    """Run test files under coverage, and write for each file what its tests reach. Tests that fail are left out."""
    from coverage import Coverage

    coverage = Coverage(data_file=None, config_file=False, include=[str(path) for path in source_files()])
    recorder = Recorder(coverage)
    coverage.start()
    pytest.main([*PYTEST, "--continue-on-collection-errors", *map(str, files)], plugins=[recorder])
    coverage.stop()
    reached = defaultdict[str, set[str]](set)
    for path in source_files():
        keys = Source(path).keys_of_lines()
        for line, contexts in coverage.get_data().contexts_by_lineno(str(path)).items():
            for context in contexts:
                reached[context].add(keys.get(line, ""))
    for file in files:
        name = file.relative_to(ROOT).as_posix()
        if name in recorder.failed:
            continue
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


def test_files() -> list[Path]:
    return [file for file in sorted((ROOT / "tests").rglob("test_*.py")) if not starts_browser(file)]


def recorded_reach(jobs: int, again: bool) -> Reach:
    """The record, made anew for test files that changed."""
    files = test_files()
    RECORD.mkdir(parents=True, exist_ok=True)
    missing = [file for file in files if again or not record_of(file).exists()]
    if missing:
        print(f"recording what {len(missing)} test files reach", flush=True)
        groups = [missing[start::jobs] for start in range(jobs) if missing[start::jobs]]
        pids = [
            forked(lambda group=group: record_tests(group), RECORD / f"record{i}.log")  # type: ignore[misc]
            for i, group in enumerate(groups)
        ]
        for pid in pids:
            os.waitpid(pid, 0)
    reach = Reach()
    for file in files:
        if not record_of(file).exists():
            print(f"could not be recorded, see {RECORD}/*.log: {file}")
            continue
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


def take_over(mutant: Mutant) -> None:
    """Change the imported module into the mutant: functions get the mutant's code and defaults, classes its plain
    attributes, and every module that has imported what the changed statement assigns gets the new value."""
    name = "knee." + mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    path = SOURCE / "knee" / mutant.file
    source, module, fresh = path.read_bytes(), importlib.import_module(name), ModuleType(name)
    first, last = mutant.span
    code = compile(source[:first] + mutant.after.encode() + source[last:], str(path), "exec")
    vars(fresh).update({key: vars(module)[key] for key in ("__file__", "__package__", "__spec__", "__loader__")})
    exec(code, vars(fresh))
    functions = all_objects(FunctionType)
    changed = {f.__qualname__: f for f in functions if f.__globals__ is vars(fresh)}
    for function in functions:
        if function.__globals__ is vars(module) and function.__qualname__ in changed:
            copy_function(changed[function.__qualname__], function)
    for key, value in list(vars(fresh).items()):
        old = vars(module).get(key)
        if isinstance(value, type) and isinstance(old, type) and value.__module__ == name:
            copy_attributes(value, old)
        elif key in mutant.names:
            for other in list(sys.modules.values()):
                if vars(other).get(key, fresh) is old if isinstance(other, ModuleType) else False:
                    setattr(other, key, value)


def copy_function(new: FunctionType, old: FunctionType) -> None:
    """Code is taken over where it is of the source, not made by a decorator with variables of its own."""
    if len(new.__code__.co_freevars) == len(old.__code__.co_freevars):
        old.__code__ = new.__code__
    old.__defaults__, old.__kwdefaults__ = new.__defaults__, new.__kwdefaults__


def copy_attributes(new: type, old: type) -> None:
    """Defaults of fields, and what else a class body assigns."""
    for key, value in vars(new).items():
        before = vars(old).get(key)
        if isinstance(value, bool | int | float | str | tuple) and not key.startswith("__"):
            setattr(old, key, value)
        elif key == "__init__" and isinstance(value, FunctionType) and isinstance(before, FunctionType):
            before.__defaults__, before.__kwdefaults__ = value.__defaults__, value.__kwdefaults__


class Mutants:
    """A plugin of pytest that runs mutants instead of tests: each one's tests in a forked process, until one fails."""

    def __init__(self, sample: list[Mutant], reach: Reach, jobs: int, folder: Path) -> None:
        self.sample, self.reach, self.jobs, self.folder = sample, reach, jobs, folder
        self.outcomes, self.failed = list[Outcome](), ""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        waiting, running = list(self.sample), dict[int, tuple[Outcome, float]]()
        while waiting or running:
            while waiting and len(running) < self.jobs:
                mutant = waiting.pop(0)
                chosen = [items[test] for test in self.reach.of(mutant) if test in items]
                outcome = Outcome(mutant, "survived" if chosen else "unreached", tests=len(chosen))
                pid = forked(partial(self.run, mutant, chosen), self.folder / f"{len(waiting)}.log")
                running[pid] = outcome, time.monotonic()
            time.sleep(0.02)
            for pid, (outcome, start) in list(running.items()):
                outcome.seconds = time.monotonic() - start
                done, raw = os.waitpid(pid, os.WNOHANG)
                if done or outcome.seconds > 600.0:
                    del running[pid]
                    self.finish(outcome, pid, os.waitstatus_to_exitcode(raw) if done else None)
        killers = sorted({outcome.by for outcome in self.outcomes} & items.keys())
        self.unsound = self.failures_without_mutant([items[name] for name in killers])
        return True

    def finish(self, outcome: Outcome, pid: int, status: int | None) -> None:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what its tests have started, too
        if status is None:
            os.waitpid(pid, 0)
        told = self.folder / f"{pid}.failed"
        if status is None or status == -signal.SIGXCPU:
            outcome.state = "timed out"
        elif status:
            outcome.state, outcome.by = "killed", told.read_text() if told.exists() else f"exit status {status}"
        self.outcomes.append(outcome)
        print(
            f"{outcome.state} {outcome.seconds:.0f}s {outcome.mutant} [{outcome.by}]", file=sys.__stderr__, flush=True
        )

    def run(self, mutant: Mutant | None, items: list[pytest.Item]) -> int:
        """In the forked process: 1 if a test fails."""
        os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.mkdtemp(dir=self.folder)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        if mutant is not None:
            take_over(mutant)
            clear_caches()
        for item, following in zip(items, [*items[1:], None], strict=True):
            used = resource.getrusage(resource.RUSAGE_SELF)
            limit_s = used.ru_utime + used.ru_stime + 10 + 10 * self.reach.seconds[item.nodeid]
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s), resource.RLIM_INFINITY))
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                (self.folder / f"{os.getpid()}.failed").write_text(self.failed)
                return 1
        return 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid

    def failures_without_mutant(self, items: list[pytest.Item]) -> list[str]:
        """Tests that fail by themselves: what they noticed is no mutant."""
        found = []
        for item in items:
            pid = forked(partial(self.run, None, [item]), self.folder / "log")
            if os.waitpid(pid, 0)[1]:
                found.append(item.nodeid)
        return found


def use_source() -> None:
    """Import ``knee`` from the working tree, and write nothing into it."""
    sys.path.insert(0, str(SOURCE))
    os.environ.update(PYTHONPATH=os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]))
    os.environ.update(PYTHONDONTWRITEBYTECODE="1", OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
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


def named_equivalent() -> dict[tuple[str, str, str], str]:
    """Mutants that no test can notice, with the reason."""
    entries = tomllib.loads(EQUIVALENT.read_text()).get("equivalent", [])
    return {(f"{e['function']}:{e['line']}", e["before"], e["after"]): e["reason"] for e in entries}


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="parts of file:line:, with commas between them")
    parser.add_argument("--again", action="store_true", help="record anew which tests reach what")
    options = parser.parse_args()
    use_source()
    reach = recorded_reach(options.jobs, options.again)
    mutants = [mutant for path in source_files() for mutant in Source(path).mutants()]
    parts = [part for part in options.only.split(",") if part]
    mutants = [m for m in mutants if not parts or any(part in f"{m.file}:{m.line}:" for part in parts)]
    sample = random.Random(options.seed).sample(mutants, min(options.mutants, len(mutants)))
    print(f"{len(sample)} of {len(mutants)} mutants, seed {options.seed}", flush=True)
    known = named_equivalent()
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        found = Mutants([m for m in sample if m.key() not in known], reach, options.jobs, Path(folder))
        files = {test.partition("::")[0] for mutant in found.sample for test in reach.of(mutant)}
        pytest.main([*PYTEST, *sorted(files)], plugins=[found])
    equivalent = [Outcome(m, "equivalent", known[m.key()]) for m in sample if m.key() in known]
    report(equivalent + found.outcomes, found.unsound)


if __name__ == "__main__":
    main()
