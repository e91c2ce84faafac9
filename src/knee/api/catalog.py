"""``knee.catalog_entries`` and ``knee.catalog_entry``: what is known, and from where."""

from __future__ import annotations

from typing import Any

from knee.errors import InputError
from knee.inputs.argument_types import checked_arguments
from knee.results.catalog_result import CONSTANTS, CatalogEntries, CatalogEntry, budget_tables
from knee.specs.catalog import KINDS, entry_names


@checked_arguments
def catalog_entries() -> CatalogEntries:
    """List what knee knows: models, GPUs, clusters, software profiles, and the data of ``knee.budget``.

    >>> import knee
    >>> "llama2-7b" in knee.catalog_entries().to_dict()["models"]
    True
    """
    names: dict[str, list[str]] = {kind: entry_names(kind) for kind in KINDS}
    names |= {kind: list(tables) for kind, tables in budget_tables().items()} | {CONSTANTS: [CONSTANTS]}
    return CatalogEntries(
        entries=tuple(CatalogEntry(kind=kind, name=name) for kind, known in names.items() for name in known)
    )


@checked_arguments
def catalog_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of file: cluster, gpu, model, profile, study or site.

    >>> import knee
    >>> knee.catalog_schema("gpu")["properties"]["tdp_w"]["x-unit"]
    'w'
    """
    from knee.results.file_schema import FILE_KINDS, file_schema  # by pydantic, which the other questions do not need

    for known in FILE_KINDS:
        if kind == known:
            return file_schema(known)
    hint = f"use one of {', '.join(FILE_KINDS)}"
    raise InputError(f"{kind!r} is not a kind of file", hint=hint, code="unknown-choice", field="kind")


@checked_arguments
def catalog_entry(name: str, *, kind: str | None = None) -> CatalogEntry:
    """Show every value of one entry or file, with its source and the kind of source.

    ``kind`` selects between entries of the same name. ``to_toml()`` returns a complete file that knee can load.

    >>> import knee
    >>> {value.field: value.shown for value in knee.catalog_entry("h100-sxm").values}["hbm_bytes_per_s"]
    '3.35 TB/s'
    >>> knee.catalog_entry("mixtral-8x7b").parameters["active"]
    12879925248
    """
    found = [entry for entry in catalog_entries().named(name) if kind in (None, entry.kind)]
    if len(found) != 1:
        kinds = ", ".join(entry.kind for entry in catalog_entries().named(name))
        raise InputError(
            f"{name} is the name of several entries: {kinds}",
            hint="give one of these kinds as `kind`",
            code="unknown-choice",
            field="kind",
        )
    return found[0]
