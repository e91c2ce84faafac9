"""A file that a person gave: records, runs, a job or a trace, each held beside its simulation.

The names in a file are names of the catalogue, or nothing is simulated: no path that a file mentions is opened.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import knee
from knee.base.errors import InputError, KneeError
from knee.base.limits import MOST_TOML_BYTES
from knee.commands.report.record_files import FoundRecord, gather
from knee.commands.serve.answers.questions import KINDS, arguments_of, check_name, query_of
from knee.specs.metrics import values_of
from knee.specs.plan import Plan

SIZES = ("gpus", "global_batch", "local_batch", "seq_len")
MOST_ROWS = 500
"""Of one file that are shown."""
PEEK_BYTES = 1 << 20


def read(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says. ``path`` is the server's own, ``name`` what the person called it."""
    path, name = Path(str(body["path"])), str(body["name"])
    reader = {".toml": _job, ".csv": _runs}.get(path.suffix) or (_trace if _is_trace(path) else _records)
    try:
        return reader(path, name)
    except InputError as error:  # about the server's copy
        text = error.message.replace(str(path), name)
        raise InputError(text, hint=error.hint, code=error.code, field=error.field) from None


def _is_trace(path: Path) -> bool:
    if path.suffix == ".gz":
        return True
    with path.open("rb") as file:
        head = file.read(PEEK_BYTES)
    return b'"traceEvents"' in head or (b'"ph"' in head and b'"ts"' in head)


def _trace(path: Path, name: str) -> dict[str, Any]:
    found = knee.read_traces(path, cache=False)
    record, times = found.record(), asdict(found.times)
    steps = {key: value for key, value in values_of(record, "dropped file").items() if value is not None}
    device = found.ranks[0].trace.columns.device_name
    summary = {"device": device, "ranks": len(found.ranks), "steps": found.steps, **(steps or times)}
    return {"kind": "trace", "name": name, "summary": summary, "trace": _without_paths(found.to_dict()), "rows": []}


def _without_paths(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _without_paths(value) for key, value in data.items() if key != "path"}
    return [_without_paths(one) for one in data] if isinstance(data, list) else data


def _records(path: Path, name: str) -> dict[str, Any]:
    found = gather([path])
    rows = [_record_row(one, path, name) for one in found.found[:MOST_ROWS]]
    notes = [str(note).replace(str(path), name) for note in found.skipped]
    left = len(found.found) - len(rows)
    notes += [f"{left:,} more records are not shown"] if left else []
    return {"kind": "records", "name": name, "rows": rows, "notes": notes}


def _record_row(one: FoundRecord, path: Path, name: str) -> dict[str, Any]:
    record = one.record
    own = values_of(record, "dropped file")
    kind = record.get("kind", "measured")
    row: dict[str, Any] = {
        "name": one.name.replace(str(path), name),
        "measured": None if kind == "simulated" else own,
        "simulated": own if kind == "simulated" else None,
        "kind": kind,
        "error_frac": None,
        "state": None,
        "note": None,
        **{key: record.get(key) for key in (*KINDS, *SIZES)},
    }
    return row | _beside(row, dict(_question(record)))


def _question(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What was asked or run, as a state has it."""
    for key in (*KINDS, *SIZES):
        if record.get(key) is not None:
            yield key, record[key]
    plan = record.get("plan")
    for key, default in asdict(Plan()).items():
        if isinstance(plan, Mapping) and plan.get(key) is not None and plan[key] not in (default, list_of(default)):
            yield key, plan[key]


def list_of(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _beside(row: Mapping[str, Any], question: Mapping[str, Any]) -> dict[str, Any]:
    """The simulation of a row, and how far it is from what was measured; a note where there is none."""
    try:
        for kind in KINDS:
            check_name(kind, question.get(kind))
        answer = knee.simulate(**arguments_of(question, "simulate"))
    except KneeError as refused:
        return {"note": refused.message}
    simulated = values_of(answer, "dropped file")
    measured, error = (row["measured"] or {}).get("tokens_per_s_per_gpu"), None
    if measured:
        error = answer.tokens_per_s_per_gpu / measured - 1.0
    state = query_of({"view": "step", **question})
    return {"simulated": simulated, "error_frac": error, "state": state, "trust": answer.trust.as_json()}


def _runs(path: Path, name: str) -> dict[str, Any]:
    found = knee.validate(path)
    rows = []
    for row in found.rows()[:MOST_ROWS]:
        sides = {
            side: {key: row.get(f"{word}_{key}") for key in ("tokens_per_s_per_gpu", "memory_bytes")}
            for side, word in (("measured", "published"), ("simulated", "predicted"))
        }
        said = {"error_frac": row.get("error_frac"), "state": None, "note": row.get("skipped")}
        rows.append({"name": f"{name}, line {row.get('line')}", **sides, **said})
    return {"kind": "runs", "name": name, "rows": rows, "summary": found.to_dict(), "notes": []}


def _job(path: Path, name: str) -> dict[str, Any]:
    if path.stat().st_size > MOST_TOML_BYTES:
        raise InputError(f"{name} is too large for a job file", code="too-large", field="name")
    try:
        job = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{name} is not TOML: {error}", code="not-toml", field="name") from None
    if any(not isinstance(job.get(kind), (str, type(None))) for kind in KINDS) or "base" in job:
        text = f"{name} has tables of its own, which the page does not read"
        raise InputError(text, hint="`knee simulate FILE.toml` does", code="not-modelled", field="name")
    question = dict(_question(job))
    row: dict[str, Any] = {"name": name, "measured": None, "simulated": None, "error_frac": None, "note": None}
    beside = _beside(row, question | {"profile": question.get("profile", "eager")})
    if beside.get("note"):
        raise InputError(f"{name}: {beside['note']}", code="invalid-spec", field="name")
    return {"kind": "job", "name": name, "rows": [row | beside], "notes": []}
