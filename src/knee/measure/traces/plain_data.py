"""An analysis as plain data: for ``--json``, and as the record of a step that simulations are held against."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from knee.measure.traces.analyse import Analysis, RankAnalysis
from knee.measure.traces.device_time import CollectiveLoad, class_loads, collective_loads, kernel_loads
from knee.specs.metrics import STEP, VIEWS

SCHEMA_VERSION = 1
LONGEST = 30
"""Kernels that an answer names, those that took most."""


def as_json(analysis: Analysis) -> dict[str, Any]:
    """Everything that was found; times at the top are of the whole window, mean over ranks."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "trace",
        **asdict(analysis.times),
        "steps": analysis.steps,
        "whole": analysis.is_whole,
        "left_out": [{"path": str(one.path), "why": one.why, "is_trace": one.is_trace} for one in analysis.left_out],
        "ranks": [_rank(rank) for rank in analysis.ranks],
        "across_ranks": {
            "ranks": [asdict(rank) for rank in analysis.across.ranks],
            "straggler": None if analysis.across.straggler is None else analysis.across.straggler.rank,
            "missing": list(analysis.across.missing),
            "notes": list(analysis.across.notes),
        },
        "record": record(analysis),
    }


def _rank(rank: RankAnalysis) -> dict[str, Any]:
    classes = class_loads(list(rank.kernels))
    return {
        "rank": rank.rank,
        "path": str(rank.path),
        "device": rank.trace.columns.device_name,
        "world_size": rank.trace.columns.world_size,
        **asdict(rank.times),
        "step_s": rank.step_s,
        "steps": [
            {"step": part.step, "start_s": part.window.start_ns / 1e9, **asdict(part.times)} for part in rank.steps
        ],
        "collectives": [asdict(load) for load in rank.collectives],
        "classes": [asdict(load) for load in classes],
        "kernels": [asdict(load) for load in rank.kernels[:LONGEST]],
        "audit": asdict(rank.audit) | {"sentences": rank.audit.sentences()},
    }


def record(analysis: Analysis) -> dict[str, Any]:
    """One step, mean over steps and ranks, with the keys of every other record; what a trace does not tell is None."""
    ranks = [step_of(rank) for rank in analysis.ranks]
    first = analysis.ranks[0].trace.columns
    job = ("model", "cluster", "profile", "global_batch", "seq_len", "plan")
    unknown = (*job, *(name for name in STEP if name not in TIMES), "memory")
    times = {name: _mean([rank[name] for rank in ranks]) for name in TIMES}
    waiting = [rank.waiting_s for rank in analysis.across.ranks if rank.matched]
    steps = max(analysis.steps, 1)
    errors = [rank.audit.cut for rank in analysis.ranks if rank.audit.cut]
    errors += [one.why for one in analysis.left_out if one.is_trace]
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "simulated" if first.is_simulated else "measured",
        "status": "done" if analysis.is_whole else "cut off",
        "error": errors[0] if errors else None,
        **dict.fromkeys(unknown),
        "gpus": first.world_size or len(analysis.ranks),
        **times,
        "straggler_s": sum(waiting) / len(waiting) / steps if waiting else None,
        "comm_loads": mean_loads([rank["comm_loads"] for rank in ranks]),
        "device": {"name": first.device_name},
        "trace": {
            "ranks": len(ranks),
            "steps": analysis.steps,
            "kernels": ranks[0]["kernels"],
            "notes": sorted({note for rank in ranks for note in rank["notes"]}),
        },
        "assumptions": [],
    }


TIMES = ("step_s", *VIEWS["times of a trace"], "copies_s")


def step_of(rank: RankAnalysis) -> dict[str, Any]:
    """One rank's mean step: of its steps where it has any, else of all of it.

    As in simulated steps, waiting for another pipeline stage is a bubble and not exposed communication, and copies are
    in no load.
    """
    window, count = rank.step_window
    times = rank.step_times
    return {
        "steps": count,
        "step_s": rank.step_s,
        **{name: getattr(times, name) for name in VIEWS["times of a trace"]},
        "exposed_comm_s": times.exposed_comm_s - (times.bubble_s or 0.0),
        "idle_s": max(0.0, rank.step_s - times.compute_s - times.exposed_comm_s),
        "copies_s": times.copy_load_s + times.fill_load_s,
        "comm_loads": _loads(collective_loads(rank.trace, window), count),
        "kernels": [
            {"name": load.name, "calls": load.calls / count, "load_s": load.load_s / count}
            for load in kernel_loads(rank.trace, window)[:LONGEST]
        ],
        "notes": rank.audit.sentences(),
    }


def _loads(loads: Sequence[CollectiveLoad], steps: int) -> list[dict[str, Any]]:
    """By collective and group; sizes become their mean."""
    kinds: dict[tuple[str, str], list[CollectiveLoad]] = {}
    for load in loads:
        kinds.setdefault((load.collective, load.group), []).append(load)
    found = []
    for (collective, group), some in kinds.items():
        calls, moved = sum(load.calls for load in some), sum((load.message_bytes or 0.0) * load.calls for load in some)
        found.append(
            {
                "collective": collective,
                "group": group,
                "group_size": max((load.group_size for load in some if load.group_size), default=None),
                "calls": calls / steps,
                "message_bytes": moved / calls if moved else None,
                "load_s": sum(load.load_s for load in some) / steps,
                "exposed_s": sum(load.exposed_s for load in some) / steps,
            }
        )
    return found


def mean_loads(of_ranks: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Each collective in each group, mean over ranks."""
    kinds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for loads in of_ranks:
        for load in loads:
            kinds.setdefault((load["collective"], load["group"]), []).append(load)
    ranks, found = len(of_ranks), []
    for some in kinds.values():
        calls = sum(load["calls"] for load in some)
        sized = [load for load in some if load["message_bytes"] is not None]
        moved = sum(load["message_bytes"] * load["calls"] for load in sized)
        found.append(
            {
                **{name: some[0][name] for name in ("collective", "group", "group_size")},
                "calls": calls / ranks,
                "message_bytes": moved / sum(load["calls"] for load in sized) if moved else None,
                "load_s": sum(load["load_s"] for load in some) / ranks,
                "exposed_s": sum(load["exposed_s"] for load in some) / ranks,
            }
        )
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def json_value(value: Any) -> Any:
    """The same where JSON has it; None for numbers that it does not have."""
    if isinstance(value, Mapping):
        return {str(key): json_value(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
