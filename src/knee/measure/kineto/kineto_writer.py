"""Writes events as a Kineto trace, so that Perfetto and trace tools open a simulated step like a real one.

The file follows the dialect of ``torch.profiler`` with NCCL, with what readers are known to depend on:

* Times are decimal text made from whole nanoseconds; no float is ever multiplied after the base is added.
* Every kernel has a launch (``cudaLaunchKernel``, same correlation id) within its ProfilerStep: tools drop
  kernels without one.
* An empty ProfilerStep follows the step, because HolisticTraceAnalysis drops the last one.
* Correlation ids need 32 bits, because HolisticTraceAnalysis stores row numbers in the type of the ids.
* The header has a line of its own with ``"rank": N``, which HolisticTraceAnalysis looks for by line.
* Kernels that follow each other on a stream never overlap by a rounding error: Perfetto drops those.
* The head says when the step begins and ends on the device. Kernels do not: a pipeline stage waits for its first, and a
  device for its host after the last. In a job's trace the next step's first kernel ends a step, and here none follows.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from knee.base.arrays import Ints
from knee.base.errors import InputError
from knee.base.files import write_bytes
from knee.engine.events import COLLECTIVES, DTYPE_BYTES, Events, RankGroup
from knee.measure.kineto.process_groups import TORCH_DTYPES

BASE_NS = 10**12
"""Time 0 of the step, after ``baseTimeNanoseconds``: at 1e9 µs a float64 still resolves 0.12 ps."""
EPOCH_NS = 1_700_000_000 * 10**9
"""``baseTimeNanoseconds``, a fixed date: the same events give the same file."""
FIRST_CORRELATION = 2**16
LAUNCH_NS = 2_000
LAUNCH_PITCH_NS = 3_000
"""From one launch to the next where kernels follow each other faster than the CPU launches them."""
LAUNCH_LEAD_NS = 3_000
"""From the end of a launch to the start of its kernel, at least."""
STEP_MARGIN_NS = 10_000
"""From the start of a ProfilerStep to its first launch."""
SHOWN_RANKS = 30
"""PyTorch lists this many ranks of a group and writes ``...`` for the others."""
GPU, CONTEXT, CPU_PID = 0, 1, 1000
SUFFIXES = (".json.gz", ".json")

_ARGS_TYPE = "(ncclDevKernelArgsStorage<4096ul>)"
_NCCL_KERNEL = {
    "all_gather": "ncclDevKernel_AllGather_RING_LL",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_{dtype}_RING_LL",
    "all_reduce": "ncclDevKernel_AllReduce_Sum_{dtype}_RING_LL",
    "send_recv": "ncclDevKernel_SendRecv",
    "broadcast": "ncclDevKernel_Broadcast_RING_LL",
    "all_to_all": "ncclDevKernel_SendRecv",  # NCCL sends and receives pairwise
}
_NCCL_DTYPE = {"fp32": "f32", "bf16": "bf16", "fp16": "f16", "fp8": "f8e4m3", "uint8": "u8", "int64": "i64"}
_TORCH_COLLECTIVE = {
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_reduce": "allreduce",
    "send_recv": "send",
    "broadcast": "broadcast",
    "all_to_all": "all_to_all",
}


def nccl_kernel(collective: str, dtype: str) -> str:
    """The name under which NCCL's kernel for this collective appears in a trace."""
    return _NCCL_KERNEL[collective].format(dtype=_NCCL_DTYPE[dtype]) + _ARGS_TYPE


def write_kineto(events_per_stage: Sequence[Events], path: str | Path, *, device: str = "simulated GPU") -> list[Path]:
    """Write one trace per pipeline stage; the files written.

    One stage is written to ``path`` itself, several to ``stem_rank0.json``, ``stem_rank8.json`` and so on
    beside it. A path that ends in ``.json.gz`` is compressed. Each file appears whole or not at all.
    """
    if not events_per_stage:
        raise InputError("there are no events to write to a trace", code="empty")
    path = Path(path)
    suffix = next((s for s in SUFFIXES if path.name.endswith(s)), None)
    if suffix is None:
        text = f"{path}: the name of a trace file must end in .json or .json.gz"
        raise InputError(text, hint=f"write to {path}.json", code="unknown-choice", field="trace")
    if len(events_per_stage) == 1:
        paths = [path]
    else:
        stem = path.name.removesuffix(suffix)
        paths = [path.with_name(f"{stem}_rank{events.rank}{suffix}") for events in events_per_stage]
        if len(set(paths)) < len(paths):
            raise ValueError("two stages have the same rank, but each rank has only one trace")
    for target, events in zip(paths, events_per_stage, strict=True):
        if not target.parent.is_dir():
            text = f"{target}: the folder {target.parent} does not exist"
            raise InputError(text, hint=f"mkdir -p {target.parent}", code="not-writable", field="trace")
        write_bytes(target, packed("".join(_lines(events, target.name, device)), target))
    return paths


def packed(text: str, path: Path) -> bytes:
    """Return the content of a trace file, compressed where its name ends in .gz."""
    data = text.encode()
    return gzip.compress(data, compresslevel=6, mtime=0) if path.name.endswith(".gz") else data


def _lines(events: Events, name: str, device: str) -> Iterator[str]:
    """The file's text: a header, then one event per line."""
    step_ns = [BASE_NS, BASE_NS + round(events.step_s * 1e9)]
    yield f'{{\n"schemaVersion": 1,\n"knee": {json.dumps({"simulated": True, "step_ns": step_ns})},\n'
    yield f'"deviceProperties": {json.dumps([{"id": GPU, "name": device}])},\n'
    yield f'"distributedInfo": {json.dumps(_distributed_info(events))},\n'
    yield f'"displayTimeUnit": "ms",\n"baseTimeNanoseconds": {EPOCH_NS},\n'
    yield f'"traceName": {json.dumps(name)},\n"traceEvents": [\n'
    yield ",\n".join(_trace_events(events))
    yield "\n]\n}\n"


def _distributed_info(events: Events) -> dict[str, object]:
    return {
        "backend": "nccl",
        "rank": events.rank,
        "world_size": events.world_size,
        "pg_count": len(events.groups),
        "pg_config": [
            {
                "pg_name": _group_name(i),
                "pg_desc": group.name,
                "backend_config": "cuda:nccl",
                "pg_size": group.size,
                "ranks": list(group.ranks),
            }
            for i, group in enumerate(events.groups)
        ],
    }


def _group_name(group_id: int) -> str:
    return str(group_id + 1)  # "0" is the default group of all ranks


def _trace_events(events: Events) -> Iterator[str]:
    """Metadata, the two ProfilerSteps, then launch, kernel and the arrow between them for every kernel."""
    order = np.argsort(events.start_s, kind="stable")
    start_ns, end_ns = _nanoseconds(events, order)
    duration_ns = round(events.step_s * 1e9)
    launch_ns, step_ns, next_step_ns = _launches(start_ns, duration_ns)
    yield from _metadata(events, step_ns)
    yield _profiler_step(1, step_ns, duration_ns)
    yield _profiler_step(2, next_step_ns, STEP_MARGIN_NS)
    rows = zip(launch_ns.tolist(), start_ns.tolist(), end_ns.tolist(), _kernels(events, order), strict=True)
    for correlation, (launch, start, end, (name, stream, args)) in enumerate(rows, FIRST_CORRELATION):
        link = f'"External id": {correlation}, "correlation": {correlation}'
        flow = f'"cat": "ac2g", "name": "ac2g", "id": {correlation}'
        cpu = f'"pid": {CPU_PID}, "tid": {CPU_PID}, "ts": {microseconds(launch)}'
        gpu = f'"pid": {GPU}, "tid": {stream}, "ts": {microseconds(start)}'
        yield (
            f'{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", {cpu}, '
            f'"dur": {microseconds(LAUNCH_NS)}, "args": {{{link}, "cbid": 211}}}}'
        )
        yield (
            f'{{"ph": "X", "cat": "kernel", "name": {name}, {gpu}, "dur": {microseconds(end - start)}, "args": '
            f'{{{link}, "queued": 0, "device": {GPU}, "context": {CONTEXT}, "stream": {stream}{args}}}}}'
        )
        yield f'{{"ph": "s", {flow}, {cpu}}}'
        yield f'{{"ph": "f", {flow}, {gpu}, "bp": "e"}}'


def microseconds(time_ns: int) -> str:
    """Write nanoseconds as microseconds with three decimals, exactly."""
    return f"{'-' if time_ns < 0 else ''}{abs(time_ns) // 1000}.{abs(time_ns) % 1000:03d}"


def _nanoseconds(events: Events, order: Ints) -> tuple[Ints, Ints]:
    """Start and end of the kernels in whole nanoseconds after ``baseTimeNanoseconds``."""
    start_ns = BASE_NS + np.rint(events.start_s[order] * 1e9).astype(np.int64)
    end_ns = BASE_NS + np.rint(events.end_s[order] * 1e9).astype(np.int64)
    end_ns = np.maximum(start_ns, end_ns)
    stream = events.stream[order]
    for number in np.unique(stream):
        rows = np.flatnonzero(stream == number)
        before, after = rows[:-1], start_ns[rows[1:]]
        # The end of one kernel and the start of the next are one time that rounded two ways.
        touching = (end_ns[before] == after + 1) & (start_ns[before] <= after)
        end_ns[before[touching]] = after[touching]
    return start_ns, end_ns


def _launches(start_ns: Ints, duration_ns: int) -> tuple[Ints, int, int]:
    """Start of every launch, of the ProfilerStep around them, and of the empty one that follows.

    Launches are as late as the lead allows and follow one another. Where kernels start in a burst they
    reach back before time 0; the annotation then starts early too, keeps its length, and the last
    launches happen earlier to stay within it.
    """
    deadline_ns = start_ns - LAUNCH_LEAD_NS - LAUNCH_NS
    launch_ns = _as_late_as_possible(deadline_ns)
    step_ns = int(min(launch_ns[:1], default=BASE_NS)) - STEP_MARGIN_NS
    launch_ns = _as_late_as_possible(np.minimum(deadline_ns, step_ns + duration_ns - LAUNCH_PITCH_NS))
    # Only a step with more launches than fit into its length still starts before the annotation.
    step_ns = min(step_ns, int(min(launch_ns[:1], default=BASE_NS)) - LAUNCH_PITCH_NS)
    next_step_ns = max(step_ns + duration_ns, int(max(launch_ns[-1:], default=0)) + LAUNCH_PITCH_NS)
    return launch_ns, step_ns, next_step_ns


def _as_late_as_possible(deadline_ns: Ints) -> Ints:
    """The latest starts in order, at least a pitch apart, none after its deadline."""
    pitch_ns = LAUNCH_PITCH_NS * np.arange(len(deadline_ns), dtype=np.int64)
    latest_ns: Ints = np.minimum.accumulate((deadline_ns - pitch_ns)[::-1])[::-1] + pitch_ns
    return latest_ns


def _metadata(events: Events, time_ns: int) -> Iterator[str]:
    """Names of the processes (CPU, GPU) and threads (streams)."""
    tracks: list[tuple[str, int, int, dict[str, object]]] = []
    for pid, label in ((CPU_PID, "CPU"), (GPU, f"GPU {GPU}")):
        tracks.append(("process_name", pid, 0, {"name": "python"}))
        tracks.append(("process_labels", pid, 0, {"labels": label}))
        # Traces show the CPU above the GPUs.
        tracks.append(("process_sort_index", pid, 0, {"sort_index": 0 if pid == CPU_PID else 5_000_000}))
    tracks.append(("thread_name", CPU_PID, CPU_PID, {"name": f"thread {CPU_PID} (python)"}))
    for stream in np.unique(events.stream).tolist():
        tracks.append(("thread_name", GPU, stream, {"name": f"stream {stream}"}))
        tracks.append(("thread_sort_index", GPU, stream, {"sort_index": stream}))
    for name, pid, tid, args in tracks:
        yield (
            f'{{"ph": "M", "name": "{name}", "pid": {pid}, "tid": {tid}, "ts": {microseconds(time_ns)}, '
            f'"args": {json.dumps(args)}}}'
        )


def _profiler_step(number: int, start_ns: int, duration_ns: int) -> str:
    return (
        f'{{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{number}", "pid": {CPU_PID}, '
        f'"tid": {CPU_PID}, "ts": {microseconds(start_ns)}, "dur": {microseconds(duration_ns)}, '
        f'"args": {{"Ev Idx": {number}}}}}'
    )


def _kernels(events: Events, order: Ints) -> Iterator[tuple[str, int, str]]:
    """Name (as JSON), stream and further arguments (as JSON, with a leading comma) of every kernel."""
    names = [json.dumps(name) for name in events.names]
    calls: Counter[int] = Counter()

    @cache
    def comm(collective: int, group_id: int, dtype_id: int, message_bytes: float) -> tuple[str, str]:
        kind, dtype = COLLECTIVES[collective], events.dtypes[dtype_id]
        args = _comm_args(kind, group_id, events.groups[group_id], dtype, message_bytes, events.rank)
        return json.dumps(nccl_kernel(kind, dtype)), ", " + json.dumps(args)[1:-1]

    columns = (events.name_id, events.stream, events.collective, events.group_id, events.dtype_id, events.message_bytes)
    for name_id, stream, *call in zip(*(column[order].tolist() for column in columns), strict=True):
        if min(call) < 0:  # compute, or a kernel of which only the name is known
            yield names[name_id], stream, ""
            continue
        name, args = comm(*call)
        calls[call[1]] += 1
        yield name, stream, f'{args}, "Seq": {calls[call[1]]}'


def _comm_args(
    collective: str, group_id: int, group: RankGroup, dtype: str, message_bytes: float, rank: int
) -> dict[str, object]:
    """What PyTorch attaches to a NCCL kernel, except the sequence number."""
    full = round(message_bytes / DTYPE_BYTES[dtype])
    shard = round(message_bytes / DTYPE_BYTES[dtype] / group.size)
    shown = ", ".join(map(str, group.ranks[:SHOWN_RANKS]))
    args: dict[str, object] = {
        "Collective name": _TORCH_COLLECTIVE[collective],
        "In msg nelems": shard if collective == "all_gather" else full,
        "Out msg nelems": shard if collective == "reduce_scatter" else full,
        "Group size": group.size,
        "dtype": TORCH_DTYPES[dtype],
        "In split size": "[]",
        "Out split size": "[]",
        "Global rank start": group.first_rank,
        "Global rank stride": group.stride,
        "Process Group Name": _group_name(group_id),
        "Process Group Description": group.name,
        "Process Group Ranks": f"[{shown}, ...]" if group.size > SHOWN_RANKS else f"[{shown}]",
        "Rank": rank,
        "Input Tensors start": "[]",
        "Output Tensors start": "[]",
        "Is asynchronized op": True,
        "Comms Id": group_id + 1,
    }
    if collective == "send_recv":
        args |= {"Src Rank": -1, "Dst Rank": -1}  # events do not say which neighbour
    return args
