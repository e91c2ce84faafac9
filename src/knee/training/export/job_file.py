"""A job as a file that knee's own commands take; nothing in it is left to a default."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import tomli_w

import knee
from knee.specs.catalog import Kind, entry_names
from knee.specs.fields import unit_of
from knee.specs.job import Job
from knee.specs.load import load_cluster, load_model, load_profile
from knee.training.export.command_line import about

LOADERS: tuple[tuple[Kind, Any], ...] = (("model", load_model), ("cluster", load_cluster), ("profile", load_profile))


def job_file(job: Job) -> str:
    """The file's text. What the catalogue has is named; what differs from it is written beside its name."""
    head = (
        f"# knee {knee.__version__}: {' '.join(about(job).split())}; for `knee simulate` and `knee train`\n"
        f"# start `knee train` with --nproc {job.gpus} on one host, or with torchrun on several\n"
    )
    document: dict[str, Any] = {}
    for kind, load in LOADERS:
        spec = getattr(job, kind)
        base = load(spec.name).spec if spec.name in entry_names(kind) else None
        document[kind] = spec.name if spec == base else _table(spec, base)
    document |= {name: getattr(job, name) for name in ("gpus", "global_batch", "seq_len")}
    return head + tomli_w.dumps(document | {"plan": _plain(job.plan)})


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
