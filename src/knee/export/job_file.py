"""A job as a file that knee's own commands take; nothing in it is left to a default."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

import knee
from knee.export.command_line import about
from knee.specs.catalog import Kind
from knee.specs.fields import unit_of
from knee.specs.job import Job
from knee.specs.load import catalog_entries, load_cluster, load_model, load_profile

LOADERS: tuple[tuple[Kind, Any], ...] = (("model", load_model), ("cluster", load_cluster), ("profile", load_profile))


def job_file(job: Job) -> str:
    """The file's text. What the catalogue has is named; what differs from it is written beside its name."""
    head = [
        f"# knee {knee.__version__}: {' '.join(about(job).split())}; for knee simulate, and for knee train",
        f"# knee train runs as many processes as it is told: --nproc {job.gpus} on one host, or torchrun",
    ]
    tables: list[tuple[str, dict[str, Any]]] = []
    for kind, load in LOADERS:
        spec = getattr(job, kind)
        base = load(spec.name).spec if spec.name in catalog_entries(kind) else None
        if spec == base:
            head.append(f"{kind} = {_value(spec.name)}")
        else:
            tables.append((kind, _table(spec, base)))
    head += [f"{name} = {getattr(job, name)}" for name in ("gpus", "global_batch", "seq_len")]
    plan = {f.name: getattr(job.plan, f.name) for f in fields(job.plan)}
    tables.append(("plan", {name: value for name, value in plan.items() if value is not None}))
    return "\n".join(head) + "\n" + "".join(_written(name, table) for name, table in tables)


def _table(spec: Any, base: Any) -> dict[str, Any]:
    """A spec that is not the catalogue's: what it changes there, or all of it."""
    changed = _changes(spec, base) if base is not None else None
    if changed is not None:
        return {"base": spec.name, "name": spec.name, **changed}
    whole = _plain(spec)
    assert isinstance(whole, dict)
    return whole


def _changes(spec: Any, base: Any) -> dict[str, Any] | None:
    """Fields whose values differ, tables inside tables; None where something is taken away, for which TOML has no
    word."""
    changed: dict[str, Any] = {}
    for f in fields(spec):
        new, old = getattr(spec, f.name), getattr(base, f.name)
        if new == old:
            continue
        if is_dataclass(new) and is_dataclass(old):
            inner = _changes(new, old)
            if inner is None:
                return None
            changed[f.name] = inner
        elif isinstance(new, dict):
            if not set(old) <= set(new):
                return None
            # an entry that is written is written whole
            changed[f.name] = {key: _plain(value) for key, value in new.items() if value != old.get(key)}
        elif new is None:
            if unit_of(f.name) is None:
                return None
            changed[f.name] = "none"
        else:
            changed[f.name] = _plain(new)
    return changed


def _plain(value: Any) -> Any:
    """A spec as tables, lists and values; what is None is what the field's default is."""
    if is_dataclass(value):
        pairs = ((f.name, getattr(value, f.name)) for f in fields(value))
        return {name: _plain(item) for name, item in pairs if item is not None}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _written(name: str, table: dict[str, Any]) -> str:
    """A table and the tables in it; lists of tables stand on one line."""
    flat = {key: value for key, value in table.items() if not isinstance(value, dict)}
    inner = {key: value for key, value in table.items() if isinstance(value, dict)}
    lines = "".join(f"{key} = {_value(value)}\n" for key, value in flat.items())
    own = f"\n[{name}]\n{lines}" if flat or not inner else ""
    return own + "".join(_written(f"{name}.{key}", value) for key, value in inner.items())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # a JSON string is a TOML string, but for one character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return repr(value)
