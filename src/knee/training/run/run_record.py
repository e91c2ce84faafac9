"""One JSON document per run: the fields of ``record.Measurement``, the whole job, and everything that was measured.

Each rank makes a piece of it; one process puts the pieces together. A run that ended before its time has a record
too: it says how, on which rank and at which step, and keeps what was measured until then. Needs no torch.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import knee
from knee.base.files import read_text, write_text
from knee.base.processes import output_of
from knee.measure.traces.plain_data import json_value, mean_loads
from knee.specs.metrics import VIEWS
from knee.training.parallelism.trainer_job import TrainJob
from knee.training.run.timed_steps import known_gpu, peak_of, percentiles

SCHEMA = 1
RECORD = "record.json"
JOB = "job.json"
PIECES = "ranks"
HEARTBEATS = "heartbeats"
LOGS = "logs"
TRACES = "traces"

Status = Literal["done", "oom", "failed", "terminated"]
Piece = dict[str, Any]
"""One rank's part of the record: rank, host, status, error, step, times, memory, power, trace."""
TIMES = VIEWS["times of a trace"]
GIT_S = 10.0
NAMED = 8
"""Ranks that a sentence names at most."""
SILENT = "exited without an error message"


def compose(
    job: TrainJob,
    pieces: Sequence[Piece],
    *,
    status: Status | None = None,
    error: str | None = None,
    rank: int | None = None,
    silent: bool = False,
) -> dict[str, Any]:
    """The record of a run. Without ``status``, the pieces say how it ended; a rank without a piece has died.

    ``silent`` says that nothing is known of why the failed rank died.
    """
    pieces = sorted(pieces, key=lambda piece: int(piece["rank"]))
    if status is None:
        status, error, rank = verdict(job, pieces)
        silent = _has_no_piece(rank, pieces)
    whole = [piece for piece in pieces if piece.get("window_steps")]
    first = pieces[0] if pieces else {}
    facts = dict(job.facts)
    device = first.get("device") or {}
    peak = peak_of(device, job.dtype, facts.pop("gpus_known", ()))
    throughput = _throughput(job, whole, peak["peak_flop_per_s"], facts.get("flop_per_token"))
    power = _power(whole, throughput)
    sizes = ("memory_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "peak_rss_bytes")
    held = [piece["memory"] for piece in pieces if piece.get("memory")]
    memory = {name: max((one[name] for one in held if one[name] is not None), default=None) for name in sizes}
    with_losses = next((piece for piece in pieces if piece.get("losses")), {})
    return {
        "schema_version": SCHEMA,
        "kind": "measured",
        "status": status,
        "error": error,
        "failed_rank": rank,
        "failed_silently": silent,
        "steps_done": max((int(piece.get("step") or 0) for piece in pieces), default=0),
        "model": job.model.name,
        "cluster": facts.pop("cluster", None) or _cluster(device, job),
        "profile": facts.pop("profile", None) or _profile(job),
        "gpus": job.gpus,
        "global_batch": job.global_batch,
        "seq_len": job.seq_len,
        "plan": _plain(asdict(job.plan)),
        **throughput,
        "flop_convention": facts.pop("flop_convention", None),
        "flop_per_token": facts.pop("flop_per_token", None),
        **peak,
        **_times(pieces),
        "memory_bytes": memory.pop("memory_bytes"),
        "memory": None,
        **memory,
        "fits": {"done": True, "oom": False}.get(status),
        **power,
        "usd_per_mtoken": None,
        "assumptions": [],
        "warnings": _warnings(with_losses.get("losses", ())),
        **{name: with_losses.get(name, []) for name in ("losses", "grad_norms", "step_times_s")},
        "first_step": with_losses.get("first_step", 0),
        "valid_losses": with_losses.get("valid_losses", []),
        "checkpoint": first.get("checkpoint"),
        "data": first.get("data"),
        "job": _plain({**job.as_json(), "facts": {}}),
        "device": device,
        "dtype": job.dtype,
        "versions": _versions(first),
        "hosts": _hosts(pieces),
        "environment": first.get("environment", {}),
        "facts": facts,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git_commit(),
        "ranks": [_row(piece, first.get("environment") or {}) for piece in pieces],
    }


def _has_no_piece(rank: int | None, pieces: Sequence[Piece]) -> bool:
    """Whether this rank failed before it could write anything."""
    return rank is not None and all(int(piece["rank"]) != rank for piece in pieces)


def _warnings(losses: Sequence[float | None]) -> list[str]:
    """Say what makes the measurement doubtful."""
    bad = next((i for i, loss in enumerate(losses) if loss is None or not math.isfinite(loss)), None)
    return [] if bad is None else [f"the loss is not a number from step {bad + 1} on: the run has diverged"]


def verdict(job: TrainJob, pieces: Sequence[Piece]) -> tuple[Status, str | None, int | None]:
    """Return the status of a run, one sentence about its end, and the rank that ended it."""
    missing = sorted(set(range(job.gpus)) - {int(piece["rank"]) for piece in pieces})
    ended = [piece for piece in pieces if piece["status"] != "done"]
    for status in ("oom", "failed", "terminated"):
        # what a rank says of its lost peers is a consequence, not a cause
        own = [piece for piece in ended if piece["status"] == status and not piece.get("lost_peer")]
        if own and not (missing and status == "terminated"):
            return status, str(own[0]["error"]), int(own[0]["rank"])
    if missing:
        named = ", ".join(map(str, missing[:NAMED])) + (" and others" if len(missing) > NAMED else "")
        word = "rank" if len(missing) == 1 else "ranks"
        return "failed", f"{word} {named} {SILENT}", missing[0]
    if ended:
        return ended[0]["status"], str(ended[0]["error"]), int(ended[0]["rank"])
    return "done", None, None


def _throughput(job: TrainJob, pieces: Sequence[Piece], peak: float | None, flop: float | None) -> dict[str, Any]:
    """Total tokens over total time, by the slowest rank's clock and its own count of steps."""
    names = ("step_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu_frac", "window_s", "window_steps", "data_wait_s")
    if not pieces:
        return dict.fromkeys(names) | percentiles(())
    slowest = max(pieces, key=lambda piece: float(piece["window_s"]) / int(piece["window_steps"]))
    steps, window_s = int(slowest["window_steps"]), float(slowest["window_s"])
    rate = job.tokens * steps / window_s
    waited = max(float(piece.get("data_wait_s") or 0.0) for piece in pieces)
    return {
        "step_s": window_s / steps,
        "tokens_per_s": rate,
        "tokens_per_s_per_gpu": rate / job.gpus,
        "mfu_frac": None if peak is None or flop is None else rate * flop / (peak * job.gpus),
        "window_s": window_s,
        "window_steps": steps,
        "data_wait_s": waited / steps,
        **percentiles(slowest.get("window_times_s") or ()),
    }


def _power(pieces: Sequence[Piece], throughput: Mapping[str, Any]) -> dict[str, Any]:
    """Means over GPUs: the counter's where boards have one, and the draw as papers have it."""
    read = [piece["power"] for piece in pieces if piece.get("power")]
    mean = {name: _mean([power[name] for power in read]) for name in ("counter_w", "draw_w", "energy_j", "sm_hz")}
    watts = mean["counter_w"] if mean["counter_w"] is not None else mean["draw_w"]
    rate = throughput["tokens_per_s_per_gpu"]
    return {
        "power_w_per_gpu": watts,
        "draw_w_per_gpu": mean["draw_w"],
        "energy_j_per_gpu": mean["energy_j"],
        "tokens_per_j": rate / watts if rate and watts else None,
        "power_limit_w": read[0]["power_limit_w"] if read else None,
        "sm_hz": mean["sm_hz"],
        "power_trouble": next((piece["power_trouble"] for piece in pieces if piece.get("power_trouble")), None),
    }


def _times(pieces: Sequence[Piece]) -> dict[str, Any]:
    """Where a step's time went, by the traces: means over the ranks that were traced."""
    traces = [piece["trace"] for piece in pieces if piece.get("trace")]
    trouble = next((piece["trace_trouble"] for piece in pieces if piece.get("trace_trouble")), None)
    if not traces:
        names = (*TIMES, "straggler_s", "traced_step_s", "copies_s", "trace")
        return dict.fromkeys(names) | {"comm_loads": [], "trace_trouble": trouble}
    return {
        **{name: _mean([trace[name] for trace in traces]) for name in TIMES},
        "straggler_s": None,
        "traced_step_s": _mean([trace["step_s"] for trace in traces]),
        "copies_s": _mean([trace["copies_s"] for trace in traces]),
        "comm_loads": mean_loads([trace["comm_loads"] for trace in traces]),
        "trace_trouble": trouble,
        "trace": {
            "ranks": len(traces),
            "steps": traces[0]["steps"],
            "kernels": traces[0].get("kernels", []),
            "notes": sorted({note for trace in traces for note in trace["notes"]}),
        },
    }


def _profile(job: TrainJob) -> str:
    """The catalogue's profile of this very program on GPUs; on a processor that of its kernels."""
    if job.device == "cuda":
        return "knee-compiled" if job.compile else "knee"
    return "compiled" if job.compile else "eager"


def _cluster(device: Mapping[str, Any], job: TrainJob) -> str | None:
    """The catalogue's cluster with this GPU."""
    if job.device == "cpu":
        return "cpu"
    gpu = known_gpu(device, job.facts.get("gpus_known", ()))
    return None if gpu is None else str(gpu["cluster"])


def _hosts(pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    """Every host once, with its ranks and, where a rank looked, its network and links."""
    hosts: dict[str, dict[str, Any]] = {}
    for piece in pieces:
        host = hosts.setdefault(str(piece.get("host")), {"host": piece.get("host"), "ranks": [], "inventory": None})
        host["ranks"].append(piece["rank"])
        host["inventory"] = host["inventory"] or piece.get("inventory")
    return list(hosts.values())


def _versions(piece: Piece) -> dict[str, Any]:
    """What the first rank ran on, and its host's driver."""
    found = piece.get("versions") or {"python": platform.python_version(), "knee": knee.__version__}
    driver = ((piece.get("inventory") or {}).get("software") or {}).get("driver") or {}
    return {**found, "driver": driver.get("version")}


def _row(piece: Piece, first: Mapping[str, str]) -> dict[str, Any]:
    """One rank's line; of its settings those that are not the first rank's, None for what it has not."""
    names = ("rank", "host", "status", "error", "step", "window_s", "window_steps", "data_wait_s", "memory", "power")
    row = {name: piece.get(name) for name in names}
    row["device"] = (piece.get("device") or {}).get("uuid")
    own = piece.get("environment") or {}
    row["environment"] = {key: own.get(key) for key in sorted({*own, *first}) if own.get(key) != first.get(key)}
    row |= percentiles(piece.get("window_times_s") or ())
    return row


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def git_commit() -> str | None:
    """The commit of knee's own sources, with a mark where they were changed; None outside of a checkout."""
    git = ["git", "-C", str(Path(knee.__file__).parent)]
    commit = output_of([*git, "rev-parse", "HEAD"], timeout_s=GIT_S)
    changed = output_of([*git, "status", "--porcelain", "--untracked-files=no", "--", "."], timeout_s=GIT_S)
    return None if commit is None or changed is None else commit.strip() + ("-dirty" if changed.strip() else "")


def write_record(out: Path, record: Mapping[str, Any]) -> Path:
    """Write the record, whole or not at all; returns its path."""
    path = out / RECORD
    write_text(path, json.dumps(json_value(record), indent=1, allow_nan=False) + "\n")
    return path


def piece_path(out: Path, rank: int) -> Path:
    """Return the file into which a rank that ends early writes its part of the record."""
    return out / PIECES / f"rank{rank}.json"


def write_piece(out: Path, piece: Piece) -> None:
    """Write one rank's part of the record to a file."""
    path = piece_path(out, int(piece["rank"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(json_value(piece), allow_nan=False))


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; empty where there is none."""
    try:
        plain = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return plain if isinstance(plain, dict) else {}


def files_of_ranks(folder: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each rank with the JSON object of its file in a folder; files that cannot be read are skipped."""
    for path in sorted(folder.glob("rank*.json")):
        number = path.stem.removeprefix("rank")
        if number.isdecimal() and (plain := read_object(path)):
            yield int(number), plain


def read_pieces(out: Path) -> list[Piece]:
    """Read the parts of the record that ranks have written so far."""
    return [piece for _, piece in files_of_ranks(out / PIECES)]


def compose_from_files(
    out: Path, job: TrainJob, how_ended: Callable[[int], str | None] = lambda _: None
) -> dict[str, Any]:
    """Compose the record of a run whose ranks could not be gathered; ``how_ended`` says it of a rank that died."""
    pieces = read_pieces(out)
    status, error, rank = verdict(job, pieces)
    silent = False
    if rank is not None and _has_no_piece(rank, pieces):
        step, why = read_object(out / HEARTBEATS / f"rank{rank}.json").get("step"), how_ended(rank)
        silent = not why
        error = f"rank {rank} {why or SILENT}"
        error += "" if step is None else f"; its last report was at step {step}"
    return compose(job, pieces, status=status, error=error, rank=rank, silent=silent)
