"""Rows: a study's points as flat labels and metrics, the same for simulated and measured records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from knee.base.errors import InputError
from knee.base.units import parse, show
from knee.commands.study.quantities import Row
from knee.commands.study.questions import SPECS, StudyPoint
from knee.commands.study.study_file import Bandwidths
from knee.engine.cost.collective_cost import idle_s
from knee.engine.cost.placement import GroupPlacement
from knee.measure.hardware_fit.links import bus_factor
from knee.specs.fields import split_overrides
from knee.specs.hardware import Cluster
from knee.specs.load import kept_for_a_question, load_cluster, load_model
from knee.specs.metrics import DERIVED, STEP
from knee.specs.plan import KNOBS, Knob, Plan, plan_words
from knee.trust.validation.bandwidth_errors import LARGE_BYTES, carried_bandwidths

MAY_DIFFER = (
    *("capacity_factor", "placement", "prefetch", "recompute_modules", "reduce_dtype", "sequence_parallel"),
    *("state_dtype", "tp_overlap_frac"),
)
"""Fields of a plan in which records of one point may differ."""
IDENTITY = (
    *("model", "cluster", "gpus", "global_batch", "seq_len"),
    *(name for name in KNOBS if name not in MAY_DIFFER),
    "set",
)
"""Columns in which a measured run and a simulated one agree where they are of the same point."""


def step_row(record: Mapping[str, Any], *, study: str, series: str) -> dict[str, Any]:
    """A training step: what was asked, then what came of it."""
    plan = Plan(**record["plan"] | {"placement": tuple(record["plan"]["placement"])})
    cluster = record.get("cluster")
    given = record.get("set") or (record.get("question") or {}).get("sets", ())
    sets = [(str(key), str(value)) for key, value in given]
    row: dict[str, Any] = {
        "study": study,
        "series": series,
        "kind": record.get("kind", "measured"),
        "model": record["model"],
        "cluster": cluster,
        "profile": record.get("profile"),
        "gpus": record["gpus"],
        "nodes": None,
        "global_batch": record["global_batch"],
        "local_batch": record["global_batch"] / record["gpus"],
        "seq_len": record["seq_len"],
        "set": ", ".join(f"{key}={value}" for key, value in sets),
        "plan": plan_words(plan),
    }
    row |= {name: _plan_cell(knob, getattr(plan, name)) for name, knob in KNOBS.items()}
    row["degree"] = plan.tp * plan.pp * plan.cp
    row |= {name: record.get(name) for name in STEP}
    trust = record.get("trust") or {}
    row |= {"trust": trust.get("label"), "low_frac": trust.get("low_frac"), "high_frac": trust.get("high_frac")}
    row |= _derived(row, record)
    row["experts"] = _expert_count(str(record["model"]), tuple(sets))
    if isinstance(cluster, str):
        row |= _of_cluster(cluster, record, sets)
    return row


def _plan_cell(knob: Knob, value: Any) -> Any:
    return knob.joint.join(value) if knob.many else value


def _derived(row: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    exposed, bubble = row["exposed_comm_s"], row["bubble_s"]
    sharded = [load for load in record.get("comm_loads") or () if load["group"] == "dp_shard"]
    gathers = [load for load in sharded if load["collective"] == "all_gather"]
    reduces = [load for load in sharded if load["collective"] == "reduce_scatter"]
    exchange = sum(load["load_s"] for load in record.get("comm_loads") or () if load["group"] == "ep")
    traced = row["comm_load_s"] is not None  # a run without a trace does not tell what it sent
    power = row["power_w_per_gpu"]
    found = {
        # in a trace a stage in a bubble sits in a receive kernel, which is how the paper measured it
        "exposed_s": None if exposed is None else exposed + (bubble or 0.0),
        "transfer_load_s": row["comm_load_s"] - (row["straggler_s"] or 0.0) if traced else None,
        "all_gather_s": sum(load["load_s"] for load in gathers) if traced else None,
        "reduce_scatter_s": sum(load["load_s"] for load in reduces) if traced else None,
        # the message of a layer, beside the root group's, which is sent once
        "gather_bytes": max(gathers, key=lambda load: load["calls"])["message_bytes"] if gathers else None,
        "exchange_s": exchange if traced else None,
        "fsdp_ranks": max((load["group_size"] for load in sharded), default=None),
        "total_power_w": None if power is None else power * row["gpus"],
    }
    # shares of a traced step are of that step's own length
    values = {**row, **found, "step_s": record.get("traced_step_s") or row["step_s"]}
    return {name: metric.of(values) for name, metric in DERIVED.items()}


def _of_cluster(name: str, record: Mapping[str, Any], sets: Sequence[tuple[str, str]]) -> dict[str, Any]:
    try:
        cluster = _cluster(name, tuple(sets))
    except InputError:  # a machine that the catalogue does not have
        return {}
    return {
        "gpu": cluster.gpu.name,
        "node_gpus": cluster.node.gpus,
        "nodes": -(-record["gpus"] // cluster.node.gpus),
        "nic_bytes_per_s": cluster.fabric.nic_bytes_per_s,
        "memory_frac": record["memory_bytes"] / cluster.gpu.hbm_bytes if record.get("memory_bytes") else None,
    }


@kept_for_a_question
def _cluster(name: str, sets: tuple[tuple[str, str], ...]) -> Cluster:
    """Loaded once for all rows that name it."""
    return load_cluster(name, split_overrides(sets)[1]).spec


@kept_for_a_question
def _expert_count(name: str, sets: tuple[tuple[str, str], ...]) -> int | None:
    """Experts of a layer; None for a dense model, and for one that the catalogue does not have."""
    try:
        experts = load_model(name, split_overrides(sets)[0]).spec.experts
    except InputError:
        return None
    return experts.count if experts else None


def identity(row: Row) -> tuple[Any, ...]:
    """What makes two records records of the same point."""
    return tuple(row.get(name) for name in IDENTITY)


def preferred(rows: Sequence[Row]) -> list[Row]:
    """For charts: the measured row of a point where there is one, in the simulated one's place; of several the last."""
    measured = {_point(row): row for row in rows if row["kind"] == "measured"}
    shown = (measured.get(_point(row), row) for row in rows)
    return list({id(row): row for row in shown}.values())


def last_of_each(rows: Sequence[Row]) -> list[Row]:
    """One row a point: of repeats the last."""
    return list({_point(row): row for row in rows}.values())


def _point(row: Row) -> tuple[Any, ...]:
    return (row["study"], row["series"], *identity(row))


def impossible_row(point: StudyPoint, reason: str) -> dict[str, Any]:
    """A point that cannot be: its labels and why."""
    question = point.question
    row: dict[str, Any] = {"study": point.study, "series": point.series, "kind": "impossible", "why": reason}
    row |= {name: getattr(question, name) for name in (*SPECS, "gpus", "global_batch", "seq_len")}
    return row | (dict(question.plans[0]) if len(question.plans) == 1 else {})


# ---- collectives and data sheets -----------------------------------------------------------------------------------


def bandwidth_rows(study: str, grid: Bandwidths) -> Iterator[dict[str, Any]]:
    """Bus bandwidth of a collective on idle links, with published readings beside it where there are any."""
    cluster = load_cluster(grid.cluster).spec
    nodes = np.array(grid.nodes, dtype=np.float64)
    per_node = cluster.node.gpus
    read = (
        {
            (reading.setting.nodes, reading.setting.message_bytes): reading.bus_bytes_per_s
            for reading in carried_bandwidths().readings
            if reading.setting.source == grid.published and reading.setting.operation == grid.collective
        }
        if grid.published
        else {}
    )
    for text in grid.message:
        size = parse(text, "bytes")
        group = GroupPlacement(ranks=nodes * per_node, nodes=nodes, per_node=np.full_like(nodes, per_node), span=nodes)
        seconds = idle_s(cluster, group, grid.collective, np.full(len(nodes), size))
        for n, time_s in zip(grid.nodes, seconds, strict=True):
            ranks = n * per_node
            bus, reading = size * bus_factor(grid.collective, ranks) / float(time_s), read.get((n, size))
            yield {
                "study": study,
                "series": grid.series.format(nodes=n, message=text),
                "kind": "simulated",
                "cluster": grid.cluster,
                "collective": grid.collective,
                "nodes": n,
                "gpus": ranks,
                "message_bytes": size,
                "message": show(size, "bytes"),
                "time_s": float(time_s),
                "bus_bytes_per_s": bus,
                "published_bus_bytes_per_s": reading,
                "compared": reading is not None and size >= LARGE_BYTES,
                "error_frac": abs(bus / reading - 1.0) if reading else None,
            }


def hardware_row(study: str, name: str) -> dict[str, Any]:
    """Return the row of a cluster's data sheet."""
    cluster = load_cluster(name).spec
    gpu, node, fabric = cluster.gpu, cluster.node, cluster.fabric
    return {
        "study": study,
        "series": gpu.name,
        "kind": "catalogue",
        "cluster": name,
        "gpu": gpu.name,
        "peak_flop_per_s": gpu.bf16_flop_per_s or gpu.fp16_flop_per_s,
        "hbm_bytes": gpu.hbm_bytes,
        "hbm_bytes_per_s": gpu.hbm_bytes_per_s,
        "link_bytes_per_s": node.link_bytes_per_s,
        "nic_bytes_per_s": fabric.nic_bytes_per_s,
        "node_nic_bytes_per_s": fabric.nic_bytes_per_s * node.gpus,
        "node_gpus": node.gpus,
        "tdp_w": gpu.tdp_w,
    }
