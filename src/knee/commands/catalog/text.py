"""The catalogue on the screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from knee.base.units import short, show
from knee.commands.catalog.result import CONSTANTS, CatalogEntries, CatalogEntry
from knee.engine.workload.parameters import active_parameter_count, parameter_count
from knee.show.terminal.table import print_heading, print_rows
from knee.specs.hardware import Cluster, Gpu
from knee.specs.model import Model

WORDS = {
    "scaling_laws": "scaling laws",
    "critical_batches": "laws of the critical batch size",
    "families": "model families",
    "training_runs": "training runs whose cost was published",
    CONSTANTS: CONSTANTS,
}


def print_entries(known: CatalogEntries) -> None:
    """One line about each entry, by kind."""
    for kind, entries in groupby(known.entries, key=lambda entry: entry.kind):
        print_heading(WORDS.get(kind) or f"{kind}s")
        print_rows([[entry.name, LINES[kind](entry.spec)] for entry in entries], dim=(1,))


def print_values(found: Sequence[CatalogEntry]) -> None:
    """Every value of some entries, with its source."""
    for entry in found:
        print_heading(_heading(entry))
        print_rows([[value.field, value.shown, value.kind, value.source] for value in entry.values], dim=(3,))


def _heading(entry: CatalogEntry) -> str:
    if entry.kind == CONSTANTS:
        return "constants of the cost model"
    if entry.kind in WORDS:
        return f"{entry.name} ({WORDS[entry.kind]})"
    return f"{entry.kind} {entry.name}: {LINES[entry.kind](entry.spec)}"


def _model(model: Model) -> str:
    experts, active, some = model.experts, "", ""
    if experts is not None:
        active = f", {_size(active_parameter_count(model))} active"
        some = f" ({model.expert_layers} with {experts.count} experts)"
    return (
        f"{_size(parameter_count(model))} parameters{active}: {model.layers} layers{some}, hidden size "
        f"{model.hidden:,}, {model.heads} heads, vocabulary {model.vocab:,}"
    )


def _size(count: int) -> str:
    letters = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"), (1, ""))
    factor, letter = next((f, x) for f, x in letters if count >= f)
    return f"{count / factor:.3g} {letter}"


def _gpu(gpu: Gpu) -> str:
    name, peak = ("bf16", gpu.bf16_flop_per_s) if gpu.bf16_flop_per_s else ("fp16", gpu.fp16_flop_per_s)
    return (
        f"{gpu.vendor} {gpu.arch}, {show(peak, 'flop_per_s')} {name}, {show(gpu.hbm_bytes, 'bytes')} at "
        f"{show(gpu.hbm_bytes_per_s, 'bytes_per_s')}, {show(gpu.tdp_w, 'w')}"
    )


def _cluster(cluster: Cluster) -> str:
    node, fabric = cluster.node, cluster.fabric
    return (
        f"nodes of {node.gpus} x {cluster.gpu.name}, {node.link} {show(node.link_bytes_per_s, 'bytes_per_s')}, "
        f"{fabric.kind} {show(fabric.nic_bytes_per_s, 'bytes_per_s')} per GPU"
    )


def _training_run(raw: dict[str, Any]) -> str:
    cost = f"{raw['gpu_hours']:,.0f} GPU hours" if "gpu_hours" in raw else f"{short(raw['flop'])} FLOP"
    return f"{short(raw['tokens'])} tokens, {cost}"


LINES: dict[str, Callable[[Any], str]] = {
    "model": _model,
    "gpu": _gpu,
    "cluster": _cluster,
    "profile": lambda profile: f"{profile.kernels} kernels, {profile.attention} attention",
    "scaling_laws": lambda raw: str(raw["source"]),
    "critical_batches": lambda raw: str(raw["source"]),
    "families": lambda raw: f"{', '.join(raw['members'])}; vocabulary {raw['vocab']:,}",
    "training_runs": _training_run,
    CONSTANTS: lambda raw: f"{len(raw)} values of the cost model that belong to no entry above",
}
"""Kind -> one line about an entry of it."""
