"""What ``knee budget`` rests on, for ``knee catalog``: scaling laws, critical batches, families, training runs."""

from __future__ import annotations

from functools import cache
from typing import Any

from knee.specs.catalog import ROOT, read_toml
from knee.units import short

Entry = dict[str, Any]
WORDS = {
    "scaling_laws": "scaling laws",
    "critical_batches": "laws of the critical batch",
    "families": "families of shapes",
    "training_runs": "training runs whose cost was published",
}
SOURCES = {"counts": "counts_source", "params": "range_source", "tokens": "range_source", "flop": "range_source"}
"""Field -> that of its own source, where it has one."""
APART = ("kind", "source", "assumed", "not_published", *SOURCES.values())
LONG = 40
"""Letters of a value that is a sentence."""


@cache
def budget_entries() -> dict[str, dict[str, Entry]]:
    """Kind -> name -> what its file has."""
    laws = read_toml(ROOT / "scaling_laws.toml")
    return {
        "scaling_laws": {name: raw for name, raw in laws.items() if "form" in raw},
        "critical_batches": laws["critical_batch"],
        "families": read_toml(ROOT / "families.toml"),
        "training_runs": read_toml(ROOT / "training_runs.toml"),
    }


def entry_line(kind: str, name: str) -> str:
    """One line about an entry."""
    raw = budget_entries()[kind][name]
    if kind == "families":
        return f"{', '.join(raw['members'])}; a vocabulary of {raw['vocab']:,}"
    if kind == "training_runs":
        cost = f"{raw['gpu_hours']:,.0f} GPU hours" if "gpu_hours" in raw else f"{short(raw['flop'])} FLOP"
        return f"{short(raw['tokens'])} tokens, {cost}"
    return str(raw["source"])


def entry_values(kind: str, name: str) -> list[dict[str, Any]]:
    """Every value of an entry with the kind of its source and the source itself."""
    raw = budget_entries()[kind][name]
    return [_row(field, value, raw) for field, value in raw.items() if field not in APART]


def _row(field: str, value: Any, raw: Entry) -> dict[str, Any]:
    row = {"field": field, "value": value, "shown": _shown(value), "kind": raw["kind"]}
    if field in raw.get("not_published", ()):
        return row | {"kind": "assumed", "source": raw["assumed"]}
    if isinstance(value, str) and len(value) > LONG:
        return row | {"shown": "", "source": value}
    return row | {"source": raw.get(SOURCES.get(field, "")) or raw["source"]}


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return (" to " if isinstance(value[0], int | float) else ", ").join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
