"""``knee.catalog_entries`` and ``knee.catalog_entry``: what is known, and from where."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, get_args

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from knee.base.errors import InputError
from knee.commands.catalog.result import CONSTANTS, CatalogEntries, CatalogEntry, budget_tables
from knee.commands.study.study_file import Study
from knee.specs.argument_types import checked_arguments
from knee.specs.catalog import KINDS, SOURCE_KINDS, entry_names
from knee.specs.data_sheets import NEEDED
from knee.specs.fields import SPECS, default_of, descriptions, unit_of, unit_words
from knee.specs.hardware import Fabric, Gpu, NodeNics
from knee.training.launch.site import Site

FileKind = Literal["cluster", "gpu", "model", "profile", "study", "site"]
FILE_KINDS: tuple[FileKind, ...] = get_args(FileKind)
DRAFT = "https://json-schema.org/draft/2020-12/schema"
BASES = {
    "study": "A study of the catalogue, or the path of another study file, whose keys this file overrides.",
    "site": "Path of another site file, whose keys this file overrides.",
}
SOURCE = {
    "source": {"type": "string", "description": "Where the values of this table come from, such as a link."},
    "kind": {"enum": list(SOURCE_KINDS), "description": "What the source is."},
}


def file_schema(kind: FileKind) -> dict[str, Any]:
    """The schema of a kind of file, as plain data."""
    spec: type = {"study": Study, "site": Site}.get(kind) or SPECS[kind]
    schema = TypeAdapter(spec).json_schema(schema_generator=_Entries if kind in KINDS else _Words)
    schema |= {"$schema": DRAFT, "title": f"knee {kind} file"}
    if kind in KINDS:
        return _entry(kind, spec, schema)
    schema["properties"]["base"] = {"type": "string", "description": BASES[kind]}
    return _study(schema) if kind == "study" else schema


class _Words(GenerateJsonSchema):
    """Adds what the declarations say to what pydantic knows of their types."""

    def dataclass_schema(self, schema: Any) -> Any:
        """One table of a file."""
        found = super().dataclass_schema(schema)
        spec = schema["cls"]
        words, defaults = descriptions(spec), {one.name: default_of(one) for one in fields(spec)}
        for name, of_field in found.get("properties", {}).items():
            if name in words:
                of_field["description"] = words[name]
            if defaults[name] is not MISSING and "default" not in of_field and not is_dataclass(defaults[name]):
                of_field["default"] = defaults[name]
        return found


class _Entries(_Words):
    """Entries: quantities have units, and every value may carry its source."""

    def dataclass_schema(self, schema: Any) -> Any:
        """One table of an entry; what is missing in it may come from the base."""
        found = super().dataclass_schema(schema)
        own: dict[str, Any] = found["properties"]
        if schema["cls"] is Fabric:
            words = descriptions(NodeNics)
            types = {"nics_per_node": "integer", "nic_rate": "number"}
            own |= {name: {"type": type_, "description": words[name]} for name, type_ in types.items()}
        found["properties"] = {name: _with_source(_quantity(name, one)) for name, one in own.items()} | {
            key: SOURCE[key] for key in SOURCE if key not in own
        }
        found.pop("required", None)
        return found


def _quantity(name: str, of_field: dict[str, Any]) -> dict[str, Any]:
    """A number with its unit; a bare one where it can be in base SI only."""
    unit = unit_of(name)
    if unit is None:
        return of_field
    kept = {key: of_field[key] for key in ("description", "default") if key in of_field}
    words = f"{kept.get('description', '')} Written as {unit_words(name)}.".strip()
    return kept | {"type": ["string", "number"], "x-unit": unit, "description": words, "examples": [unit_words(name)]}


def _with_source(of_field: dict[str, Any]) -> dict[str, Any]:
    """A value, or ``{ value = ..., kind = ..., source = ... }``; tables carry their source themselves."""
    refs = [of_field, *of_field.get("anyOf", ())]  # a table, or a table or nothing
    if any("$ref" in one for one in refs) or of_field.get("type") in ("object", "array"):
        return of_field
    kept = {key: of_field[key] for key in ("title", "description", "default", "x-unit", "examples") if key in of_field}
    bare = {key: value for key, value in of_field.items() if key not in kept}
    sourced = {
        "type": "object",
        "properties": {"value": bare, **SOURCE},
        "required": ["value"],
        "additionalProperties": False,
    }
    return kept | {"anyOf": [bare, sourced]}


def _entry(kind: str, spec: type, schema: dict[str, Any]) -> dict[str, Any]:
    """The top of an entry's file: its name is the file's, and a base gives what it does not."""
    words = f"A {kind} of the catalogue, or a path relative to this file; keys that are missing here come from it."
    schema["properties"]["base"] = {"type": "string", "description": words}
    if kind == "cluster":
        words = "A GPU of the catalogue, the path of its file, or its table."
        schema["properties"]["gpu"] = {"description": words, "anyOf": [{"type": "string"}, {"$ref": "#/$defs/Gpu"}]}
    if "Gpu" in schema.get("$defs", {}):
        schema["$defs"]["Gpu"]["properties"]["base"] = {"type": "string", "description": "A GPU, by name or path."}
    without_default = [one.name for one in fields(spec) if default_of(one) is MISSING]
    needed = [name for name in NEEDED.get(spec, without_default) if name != "name"]
    whole: dict[str, Any] = {"required": needed}
    if spec is Gpu:
        whole["anyOf"] = [{"required": ["fp16_flop_per_s"]}, {"required": ["bf16_flop_per_s"]}]
    return schema | {"anyOf": [{"required": ["base"]}, whole]}


def _study(schema: dict[str, Any]) -> dict[str, Any]:
    """A user's file may be a grid at its top; ``[common]`` is laid under every grid."""
    grid = schema["$defs"]["StudyGrid"]
    grid.pop("required", None)
    schema["properties"]["common"] = {"$ref": "#/$defs/StudyGrid", "description": "What every grid has."}
    schema["properties"] = grid["properties"] | schema["properties"]
    schema.pop("required", None)
    return schema


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
        text = f"{name} is the name of several entries: {kinds}"
        raise InputError(text, hint="give one of these kinds as `kind`", code="unknown-choice", field="kind")
    return found[0]
