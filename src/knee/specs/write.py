"""A cluster or a profile as a TOML file: a base entry of the catalogue and values over it, each with its source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from knee.specs.catalog import SourceKind

Scalar = str | float | int | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value as it is written, with its unit, and where it comes from."""

    value: Scalar
    kind: SourceKind
    source: str


def four_digits(value: float) -> float:
    """A value as it is written: no reading has more digits."""
    return float(f"{value:.4g}")


def spec_toml(base: str | None, values: Mapping[str, Value], *, comments: tuple[str, ...] = ()) -> str:
    """The file's text; keys of ``values`` are dotted field paths, such as ``gpu.hbm_frac`` or ``launch_s``. Without a
    base they are all there is."""
    # tomli-w would give every value a table of its own; here it stands on one line with its kind and its source
    tables: dict[str, list[str]] = {"": [] if base is None else [f"base = {_scalar(base)}"]}
    for path, value in values.items():
        table, _, name = path.rpartition(".")
        line = f"{name} = {{ value = {_scalar(value.value)}, kind = {_scalar(value.kind)}"
        tables.setdefault(table, []).append(f"{line}, source = {_scalar(value.source)} }}")
    # what stands in a comment ends with its line
    head = [f"# {' '.join(comment.splitlines())}" for comment in comments]
    blocks = ["\n".join([*head, *tables.pop("")])]
    blocks += ["\n".join([f"[{table}]", *lines]) for table, lines in tables.items()]
    return "\n\n".join(blocks) + "\n"


def _scalar(value: Scalar) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    # a JSON string is a TOML string
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
