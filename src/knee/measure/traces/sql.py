"""``--sql``: an analysis as tables of DuckDB, in memory, for questions that nobody thought of before."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from knee.base.errors import InputError, MissingExtra, argument
from knee.measure.kineto.event_columns import COPY, FILL, KERNEL, Int64
from knee.measure.traces.analyse import Analysis, RankAnalysis
from knee.measure.traces.device_time import UNKNOWN, CollectiveLoad, Times, clipped, exposed_ns, rows_inside

INSTALL = "pip install 'knee[trace]'"
KINDS = {KERNEL: "kernel", COPY: "memcpy", FILL: "memset"}
TIMES = ", ".join(f"{f.name} DOUBLE" for f in fields(Times))
LOADS = ", ".join(f"{f.name} DOUBLE" for f in fields(CollectiveLoad) if f.name.endswith("_s"))
CALL = "collective VARCHAR, group_name VARCHAR, group_size BIGINT, message_bytes DOUBLE"
SCHEMA = {
    "kernels": "rank BIGINT, step BIGINT, start_ns BIGINT, end_ns BIGINT, dur_ns BIGINT, name VARCHAR, class VARCHAR, "
    "kind VARCHAR, is_comm BOOLEAN, stream BIGINT, device BIGINT, launched_ns BIGINT, "
    f"{CALL}, exposed_ns BIGINT",
    "steps": f"rank BIGINT, step BIGINT, start_ns BIGINT, end_ns BIGINT, {TIMES}",
    "collectives": f"rank BIGINT, {CALL}, calls BIGINT, {LOADS}",
    "ranks": "rank BIGINT, path VARCHAR, device_name VARCHAR, world_size BIGINT, first_ns BIGINT, start_ns BIGINT, "
    f"end_ns BIGINT, step_s DOUBLE, steps BIGINT, {TIMES}",
}
"""Table -> its columns with their types. Times of a rank count from ``ranks.first_ns`` on; ``exposed_ns`` is of
communication only, and calls that are exposed at the same time each have theirs."""
TABLES = {table: [column.split()[0] for column in columns.split(", ")] for table, columns in SCHEMA.items()}


def query(analysis: Analysis, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Names of the columns, and rows, of what a query answers. It sees the tables and nothing else: no file, no net.

    A second column of a name is called ``name_2``, so that none is lost.
    """
    try:
        duckdb = importlib.import_module("duckdb")
    except ModuleNotFoundError:
        raise MissingExtra(f"{argument('sql')} needs DuckDB", hint=INSTALL, field="sql") from None
    with duckdb.connect(":memory:") as connection:
        try:
            _fill(connection, analysis)
        except (duckdb.Error, ImportError) as error:  # older ones take no arrays without pandas
            raise MissingExtra(
                f"{argument('sql')} needs DuckDB 1.3 or later; this is {duckdb.__version__}",
                hint=f"{INSTALL} --upgrade",
            ) from error
        for setting in ("temp_directory = ''", "enable_external_access = false", "lock_configuration = true"):
            connection.execute(f"SET {setting}")
        try:
            answer = connection.execute(sql)
            if answer is None or answer.description is None:
                raise InputError(
                    f"{argument('sql')}: the query is empty", hint=tables(), code="invalid-query", field="sql"
                )
            return _unique([column[0] for column in answer.description]), answer.fetchall()
        except (duckdb.Error, RuntimeError, UnicodeError) as error:  # what its own code throws is no duckdb.Error
            raise InputError(
                f"{argument('sql')}: {(str(error).splitlines() or [''])[0]}",
                hint=tables(),
                code="invalid-query",
                field="sql",
            ) from None


def _unique(names: list[str]) -> list[str]:
    used, seen, found = set(names), set[str](), []
    numbers = {name: itertools.count(2) for name in names}
    for name in names:
        others = (f"{name}_{number}" for number in numbers[name])  # goes on where it ended
        found.append(name if name not in seen else next(one for one in others if one not in used))
        seen.add(name)
        used.add(found[-1])
    return found


def tables() -> str:
    """The tables and their columns, in words."""
    return "tables are " + "; ".join(f"{table} ({', '.join(columns)})" for table, columns in TABLES.items())


def _fill(connection: Any, analysis: Analysis) -> None:
    for table, columns in SCHEMA.items():
        connection.execute(f"CREATE TABLE {table} ({columns})")
    for rank in analysis.ranks:
        _insert_kernels(connection, rank)
    steps = [
        {"rank": rank.rank, "step": part.step, **asdict(part.window), **asdict(part.times)}
        for rank in analysis.ranks
        for part in rank.steps
    ]
    collectives = [
        {"rank": rank.rank, "group_name": load.group, **asdict(load)}
        for rank in analysis.ranks
        for load in rank.collectives
    ]
    ranks = [
        {
            "rank": rank.rank,
            "path": str(rank.path),
            "device_name": rank.trace.columns.device_name,
            "world_size": rank.trace.columns.world_size,
            "first_ns": rank.trace.columns.first_ns,
            "step_s": rank.step_s,
            "steps": sum(part.step is not None for part in rank.steps),
            **asdict(rank.window),
            **asdict(rank.times),
        }
        for rank in analysis.ranks
    ]
    for table, rows in (("steps", steps), ("collectives", collectives), ("ranks", ranks)):
        if rows:
            connection.register("few", {name: _objects([row[name] for row in rows]) for name in TABLES[table]})
            connection.execute(f"INSERT INTO {table} SELECT * FROM few")
            connection.unregister("few")


def _objects(values: Sequence[Any]) -> npt.NDArray[np.object_]:
    # DuckDB refuses what is no Unicode, which a damaged file may have
    return np.array([v.encode("utf-8", "replace").decode() if isinstance(v, str) else v for v in values], dtype=object)


def _insert_kernels(connection: Any, rank: RankAnalysis) -> None:
    """One rank's rows. Words go in once each, and DuckDB puts them beside the numbers."""
    trace = rank.trace
    c, of = trace.columns, trace.classified
    start, end = clipped(trace, rank.window)
    inside = rows_inside(trace, rank.window)
    call_id, calls = _calls(rank)
    comm = np.flatnonzero(of.is_comm)
    exposed = np.full(len(c), -1)
    exposed[comm] = exposed_ns(start[comm], end[comm], (start[of.is_compute], end[of.is_compute]))
    numbers = {
        "step": _steps(rank),
        "start_ns": c.start_ns,
        "end_ns": c.end_ns,
        "name": c.name_id,
        "class": np.where(c.kind == KERNEL, of.class_id, -1),
        "kind": c.kind,
        "is_comm": of.is_comm,
        "stream": c.stream,
        "device": c.device,
        "launched_ns": trace.launched_ns,
        "call": call_id,
        "exposed_ns": exposed,
    }
    views = {
        "k": {name: np.ascontiguousarray(column[inside]) for name, column in numbers.items()},
        "names": _numbered(c.names),
        "classes": _numbered(of.names),
        "kinds": _numbered([KINDS[i] for i in range(len(KINDS))]),
        "calls": calls,
    }
    for name, view in views.items():
        connection.register(name, view)
    connection.execute(
        f"""
        INSERT INTO kernels
        SELECT {rank.rank}, nullif(step, -1), start_ns, end_ns, end_ns - start_ns, names.word, classes.word, kinds.word,
               is_comm, stream, device, nullif(launched_ns, -1), nullif(calls.collective, ''), nullif(calls.name, ''),
               nullif(calls.size, -1), nullif(calls.message_bytes, 0), nullif(exposed_ns, -1)
        FROM k JOIN names ON k.name = names.id LEFT JOIN classes ON k.class = classes.id
               JOIN kinds ON k.kind = kinds.id LEFT JOIN calls ON k.call = calls.id
        ORDER BY start_ns, end_ns
        """
    )
    for name in views:
        connection.unregister(name)


def _numbered(words: Sequence[str]) -> dict[str, Any]:
    return {"id": np.arange(len(words)), "word": _objects(words)}


def _steps(rank: RankAnalysis) -> Int64:
    """The profiler's number of the step in which each row begins on the device; -1 before the first."""
    trace = rank.trace
    if not trace.steps:
        return np.full(len(trace.columns), -1)
    at = np.searchsorted(trace.border_ns[:-1], trace.columns.start_ns, side="right") - 1
    return np.where(at >= 0, np.array([step.number for step in trace.steps])[at], -1)


def _calls(rank: RankAnalysis) -> tuple[Int64, dict[str, Any]]:
    """For each row its kind of call, -1 for none; and the kinds."""
    call_id = np.full(len(rank.trace.columns), -1)
    kinds: dict[tuple[str, str, int, float], int] = {}
    for row, call in rank.trace.calls.items():
        group = (call.group.name, call.group.size) if call.group is not None else (UNKNOWN, -1)
        call_id[row] = kinds.setdefault((call.collective or UNKNOWN, *group, call.message_bytes), len(kinds))
    found = list(kinds)
    return call_id, {
        "id": np.arange(len(found)),
        "collective": _objects([kind[0] for kind in found]),
        "name": _objects([kind[1] for kind in found]),
        "size": np.array([kind[2] for kind in found], dtype=np.int64),
        "message_bytes": np.array([kind[3] for kind in found], dtype=np.float64),
    }
