"""What the file of a cluster or a GPU leaves out, from the nearest entry of the catalogue.

A data sheet has rates, memory, power and links. How much of a rate kernels reach, how long a hop takes and what a board
draws when it idles are measured, and stand in no data sheet. The rule, for a GPU:

1. GPUs of the catalogue some of whose matrix products were measured, published or fitted;
2. of these the same vendor first, then the same generation (``arch``);
3. then the nearest ratio of the 16-bit rate to the memory's, as a factor.

Fractions and latencies are copied, the number of SMs is scaled by the rate, powers by the board's limit and energies by
what the limit leaves for an operation. A node takes what it lacks from a node with the same kind of link, a fabric from
one of the same kind, each with the nearest rate.
"""

from __future__ import annotations

import math
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from knee.base import units
from knee.specs.catalog import KINDS, Kind, Leaf, Source, Tree, entry_names, is_path, read_entry, read_toml, walk
from knee.specs.check import LARGEST, SMALLEST, Mistake, missing_field
from knee.specs.fields import unit_of
from knee.specs.hardware import Cluster, Fabric, Gpu, Node
from knee.specs.model import Model
from knee.specs.notes import Note

REPLACES = {"nic_bytes_per_s": "nic_rate", "nic_rate": "nic_bytes_per_s", "nics_per_node": "nic_bytes_per_s"}
"""A value that is given -> the one that says the same in another way."""
GENERATIONS = {
    "volta": "7",
    "turing": "7",
    "ampere": "8",
    "ada": "8",
    "hopper": "9",
    "blackwell": "10",
    "cdna3": "gfx9",
}
"""Word of a data sheet -> what ``arch`` begins with, where the catalogue has its architecture's number."""
PEAKS = {"fp8": "fp8_flop_per_s", "fp8_block": "fp8_flop_per_s", "nvfp4": "fp4_flop_per_s"}
PAIRS = ("p2p_frac", "p2p_bytes_per_s")
"""What was measured of a network's pairs, and has a default."""
BY_POWER = ("idle_w", "comm_w", "gemm_cap_w")
NEAREST_GPU, NEAREST_NODE, NEAREST_FABRIC = "nearest-gpu", "nearest-node", "nearest-fabric"
TELLING: dict[Kind, frozenset[str]] = {
    "cluster": frozenset(("gpu", *(one.name for one in fields(Cluster) if one.name != "name"))),
    "gpu": frozenset(one.name for one in fields(Gpu) if one.name not in ("name", "attention")),
    "model": frozenset(one.name for one in fields(Model) if one.name != "name"),
}
"""Kind -> keys that only its files have."""
NEEDED: dict[type, tuple[str, ...]] = {
    Gpu: ("name", "hbm_bytes", "hbm_bytes_per_s", "tdp_w"),
    Node: ("gpus", "link", "link_bytes_per_s"),
    Fabric: ("kind", "nic_bytes_per_s"),
}
"""What a file has to say of each; of a GPU also its fp16 or bf16 rate."""
MEASURED = {
    spec: [one.name for one in fields(spec) if one.default is MISSING and one.name not in needed]
    for spec, needed in NEEDED.items()
}
"""What may be left out although it has no default."""


def complete(kind: str, tree: Tree, mistakes: list[Mistake], prefix: str = "") -> tuple[str, ...]:
    """Fill a tree in place; sentences about what was taken from where."""
    if kind == "gpu":
        return _complete_gpu(tree)
    if kind != "cluster":
        return ()
    _share_nics(tree, mistakes, prefix)
    notes = [*_complete_gpu(gpu)] if isinstance(gpu := tree.get("gpu"), dict) else []
    notes += _complete_part(tree, "node", "link", "link_bytes_per_s", NEAREST_NODE)
    notes += _complete_part(tree, "fabric", "kind", "nic_bytes_per_s", NEAREST_FABRIC)
    return tuple(notes)


# NICs of a node.


def _share_nics(tree: Tree, mistakes: list[Mistake], prefix: str) -> None:
    """``nics_per_node`` x ``nic_rate`` over a node's GPUs, as ``nic_bytes_per_s``; one without the other is told."""
    fabric, node = tree.get("fabric"), tree.get("node")
    if not isinstance(fabric, dict) or not fabric.keys() & {"nics_per_node", "nic_rate"}:
        return
    lacking = [name for name in ("nics_per_node", "nic_rate") if name not in fabric]
    count, rate = (_amount(fabric, name) for name in ("nics_per_node", "nic_rate"))
    gpus = _amount(node, "gpus")
    if lacking:
        mistakes.append(missing_field(f"{prefix}fabric.{lacking[0]}"))
    elif not (count and rate and gpus) or (units.is_bare(_written(fabric, "nic_rate")) and rate < 1e6):
        bad = "nic_rate" if count else "nics_per_node"
        text = f"is {_written(fabric, bad)!r}; give a whole number of NICs and a rate such as '400 Gbit/s'"
        mistakes.append(Mistake(code="not-an-amount", place=f"{prefix}fabric.{bad}", text=text, predicate=True))
    else:
        each, given = count * rate / gpus, _amount(fabric, "nic_bytes_per_s")
        if given is not None and not math.isclose(given, each, rel_tol=1e-6):
            nics, one, said = (_written(fabric, name) for name in ("nics_per_node", "nic_rate", "nic_bytes_per_s"))
            shown = units.show(each, "bytes_per_s")
            text = f"is {said}, but {nics} NICs of {one} for {gpus:g} GPUs are {shown} per GPU"
            place, hint = f"{prefix}fabric.nic_bytes_per_s", "give one of the two"
            mistakes.append(Mistake(code="contradiction", place=place, text=text, hint=hint, predicate=True))
        leaf = fabric["nic_rate"]
        assert isinstance(leaf, Leaf)
        shown = f"{count:g} x {leaf.value} for {gpus:g} GPUs"
        source = Source(value=shown, kind=leaf.source.kind, text=leaf.source.text)
        fabric["nic_bytes_per_s"] = Leaf(each, source)
    fabric.pop("nics_per_node", None)
    fabric.pop("nic_rate", None)
    if "nic_bytes_per_s" not in fabric:
        fabric["nic_bytes_per_s"] = _leaf(1e9, "told as a mistake already")


# The nearest GPU, node and fabric.


def _complete_gpu(tree: Tree) -> tuple[str, ...]:
    if not any(name not in tree for name in MEASURED[Gpu]):
        return ()
    if "fp16_flop_per_s" not in tree and isinstance(bf16 := tree.get("bf16_flop_per_s"), Leaf):
        tree["fp16_flop_per_s"] = bf16
    name = nearest_gpu(tree)
    near = read_entry("gpu", name)
    why = f"as {name}, the most similar measured GPU, because the data sheet does not state it"
    scale = _scales(tree, near)
    taken = []
    for key, node in near.items():
        if key in tree or key in NEEDED[Gpu] or (key.endswith("_flop_per_s") and key[0] == "f"):
            continue
        taken.append(key)
        tree[key] = _copied(node, key, why, scale)
    if (
        "bf16_flop_per_s" not in tree
        and "bf16_flop_per_s" in near
        and isinstance(fp16 := tree.get("fp16_flop_per_s"), Leaf)
    ):
        tree["bf16_flop_per_s"] = Leaf(
            fp16.value, Source(value=fp16.value, kind="assumed", text=f"the same as fp16, as on {name}")
        )
        taken.append("bf16_flop_per_s")
    if isinstance(gemm := tree.get("gemm"), dict) and "gemm" in taken:
        for kind in [kind for kind in gemm if kind in PEAKS and PEAKS[kind] not in tree]:
            gemm.pop(kind)
    text = f"{units.list_words(taken)} are missing and are copied from {name}, the most similar measured GPU"
    return (Note(NEAREST_GPU, f"{_written(tree, 'name')}: {text}", "cluster.gpu"),)


def nearest_gpu(tree: Tree) -> str:
    """The measured GPU of the catalogue that a described one is most like."""
    return min(measured_gpus(), key=lambda name: _distance(tree, read_entry("gpu", name)))


def measured_gpus() -> list[str]:
    """Those some of whose products somebody measured: the rest is assumed itself."""
    kinds = {
        name: {leaf.source.kind for path, leaf in walk(read_entry("gpu", name)) if path.startswith("gemm.")}
        for name in entry_names("gpu")
    }
    return [name for name, found in kinds.items() if found & {"measured", "published", "fitted"}]


def _distance(mine: Tree, other: Tree) -> tuple[bool, bool, float]:
    """Another vendor, another generation, and the factor between the FLOP per byte of memory traffic."""
    vendor, arch = (_word(mine, key) for key in ("vendor", "arch"))
    return (
        bool(vendor) and vendor != _word(other, "vendor"),
        bool(arch) and _generation(arch) != _generation(_word(other, "arch")),
        abs(math.log(_intensity(mine) / _intensity(other))),
    )


def _intensity(gpu: Tree) -> float:
    rate, memory = _amount(gpu, "fp16_flop_per_s"), _amount(gpu, "hbm_bytes_per_s")
    return rate / memory if rate and memory and rate > 0 and memory > 0 else 1.0


def _generation(arch: str) -> str:
    """sm89 -> 8, sm120 -> 12, gfx942 -> gfx9, "Ada Lovelace" -> 8."""
    if found := re.fullmatch(r"sm_?(\d+)\d[a-z]?", arch):
        # consumer Blackwell has the same generation under another number
        return {"12": "10", "11": "10"}.get(found[1], found[1])
    words = [number for word, number in GENERATIONS.items() if arch.replace(" ", "").startswith(word)]
    return words[0] if words else arch[:4]


def _scales(tree: Tree, near: Tree) -> dict[str, float]:
    """Factor on each value that goes with the size of the chip or of the board."""

    def ratio(name: str) -> float:
        mine, other = _amount(tree, name), _amount(near, name)
        return mine / other if mine and other and mine > 0 else 1.0

    power, rate = ratio("tdp_w"), ratio("fp16_flop_per_s")
    scales = dict.fromkeys(BY_POWER, power) | {"sms": rate}
    return scales | {"gemm_j_per_flop": power / rate, "j_per_flop": power / rate}


def _complete_part(tree: Tree, part: str, word: str, rate: str, code: str) -> list[str]:
    """A node or a fabric that says what it is, and not all that was measured of its kind."""
    mine = tree.get(part)
    spec = Node if part == "node" else Fabric
    if not isinstance(mine, dict) or not any(name not in mine for name in MEASURED[spec]):
        return []

    def distance(name: str) -> tuple[bool, float]:
        other: Any = read_entry("cluster", name)[part]
        rates = _amount(mine, rate), _amount(other, rate)
        factor = abs(math.log(rates[0] / rates[1])) if rates[0] and rates[1] and rates[0] > 0 else 0.0
        return _word(mine, word) != _word(other, word), factor

    name = min((name for name in entry_names("cluster") if name != "cpu"), key=distance)
    near: Any = read_entry("cluster", name)[part]
    if part == "node" and "pair_bytes_per_s" not in mine and isinstance(link := mine.get(rate), Leaf):
        text = "a pair of GPUs is assumed to share the full link"
        mine["pair_bytes_per_s"] = Leaf(link.value, Source(value=link.value, kind="assumed", text=text))
    differs = f", which has {_word(near, word)}" if distance(name)[0] else ""
    also = () if differs else PAIRS
    taken = [key for key in near if key not in mine and key in (*MEASURED[spec], *also)]
    for key in taken:
        mine[key] = _copied(
            near[key], key, f"as in {name}, the most similar {part}, because the file does not state it", {}
        )
    text = f"{part}: {units.list_words(taken)} are missing and are copied from {name}, the most similar {part} of the "
    text += f"catalogue{differs}"
    return [Note(code, text, f"cluster.{part}")]


def _copied(node: Any, key: str, why: str, scale: dict[str, float]) -> Any:
    """Values of another entry, scaled, with a source that says so."""
    if isinstance(node, list):
        return [_copied(item, key, why, scale) for item in node]
    if isinstance(node, dict):
        return {name: _copied(value, name, why, scale) for name, value in node.items()}
    if key not in scale:
        return _leaf(node.value, why)
    unit = unit_of(key)
    value = (units.parse(node.value, unit) if unit else node.value) * scale[key]
    by = "the ratio of the rates" if key == "sms" else "the ratio of power limits"
    by = "the ratio of power limits divided by the ratio of rates" if key.endswith("j_per_flop") else by
    value = max(1, round(value)) if key == "sms" else float(f"{value:.4g}")
    return _leaf(value, f"{why}; scaled by {by}")


def _leaf(value: Any, text: str) -> Leaf:
    return Leaf(value, Source(value=value, kind="assumed", text=text))


def _amount(tree: Any, name: str) -> float | None:
    """A positive number in base SI; None where there is none that can be used, which is told elsewhere."""
    leaf = tree.get(name) if isinstance(tree, dict) else None
    if not isinstance(leaf, Leaf) or isinstance(leaf.value, bool):
        return None
    try:
        number = units.parse(leaf.value, unit_of(name) or "frac")
    except (ValueError, OverflowError):
        return None
    return number if SMALLEST < number < LARGEST else None


def _word(tree: Any, name: str) -> str:
    leaf = tree.get(name)
    return str(leaf.value).lower() if isinstance(leaf, Leaf) else ""


def _written(tree: Any, name: str) -> Any:
    leaf = tree.get(name)
    return leaf.source.value if isinstance(leaf, Leaf) else None


def kind_of_file(path: Path) -> Kind:
    """What a file describes: by the keys at its top, and else by its base."""
    raw = read_toml(path, field="name")
    for kind, telling in TELLING.items():
        if raw.keys() & telling:
            return kind
    base = raw.get("base")
    if isinstance(base, str) and is_path(base):
        return kind_of_file(path.parent / base)
    return next((kind for kind in KINDS if base in entry_names(kind)), "profile")
