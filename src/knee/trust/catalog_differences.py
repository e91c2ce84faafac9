"""What of a cluster or a profile is not the catalogue's: values are compared, not who wrote them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, Literal, TypeVar

from knee.specs.catalog import entry_names
from knee.specs.hardware import Cluster
from knee.specs.load import load_cluster, load_profile
from knee.specs.profile import Profile

NO_MATTER = (
    "name",
    "max_gpus",
    "reliability",
    "usd_per_gpu_h",
    "tdp_w",
    "idle_w",
    "comm_w",
    "cap_sharpness",
    "j_per_flop",
    "j_per_byte",
    "gemm_j_per_flop",
    "hbm_j_per_byte",
    "checked_error_frac",
)
"""Last words of paths that change neither time nor memory."""
Spec = TypeVar("Spec", Cluster, Profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Generic[Spec]):
    """The catalogue's entry that a spec is, or is most like."""

    spec: Spec
    changed: tuple[str, ...]
    """Paths of values that are not the entry's, such as ``gpu.hbm_frac``; none: it is the entry, whatever its name."""


def entry_of(kind: Literal["cluster", "profile"], spec: Spec, given: Iterable[str]) -> Entry[Spec]:
    """The entry of its name, else the one with the fewest other values.

    ``given`` are paths such as ``cluster.gpu.hbm_frac`` of values that someone wrote: a spec with a name of the
    catalogue and none of them is the catalogue's.
    """
    names = entry_names(kind)
    if spec.name in names:
        if not any(path.startswith(f"{kind}.") for path in given):
            return Entry(spec=spec, changed=())
        names = [spec.name]
    load: Any = load_cluster if kind == "cluster" else load_profile
    found = (Entry(spec=entry, changed=tuple(_changed(spec, entry))) for entry in (load(name).spec for name in names))
    return min(found, key=lambda entry: len(entry.changed))


def _changed(mine: Any, entry: Any, path: str = "") -> Iterator[str]:
    """Paths of leaves that differ."""
    if is_dataclass(mine) and type(mine) is type(entry):
        pairs = {field.name: (getattr(mine, field.name), getattr(entry, field.name)) for field in fields(mine)}
    elif isinstance(mine, dict) and isinstance(entry, dict):
        pairs = {key: (mine.get(key), entry.get(key)) for key in mine.keys() | entry.keys()}
    elif isinstance(mine, tuple) and isinstance(entry, tuple) and len(mine) == len(entry):
        pairs = {str(i): pair for i, pair in enumerate(zip(mine, entry, strict=True))}
    else:
        if not _same(mine, entry):
            yield path
        return
    for name, (a, b) in pairs.items():
        if name not in NO_MATTER:
            yield from _changed(a, b, f"{path}.{name}" if path else name)


def _same(a: Any, b: Any) -> bool:
    """Units are converted, so that equal rates may differ in the last digit."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9)
    return bool(a == b)
