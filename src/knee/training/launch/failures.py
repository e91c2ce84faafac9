"""Why a run ended: read from its record, its heartbeats, its logs and the exit codes of what was started."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from knee.training.launch.log_patterns import (
    BROKEN,
    DENIED,
    FAULTS,
    MEMORY,
    SCANCEL,
    SLURM,
    SLURM_NODE,
    STARTS,
    STATE_OF,
    TASK_NODE,
    TIMEOUTS,
    Failure,
    LogPattern,
    Memory,
    failures_of,
    last_error_line,
    peer_of,
    signal_words,
)
from knee.training.launch.run_status import CANCELLED, Cause, State, Status, is_number
from knee.training.launch.sweep_folder import ENVIRONMENT, read_record
from knee.training.run.run_record import HEARTBEATS, LOGS, files_of_ranks, read_pieces

# What a run left behind in its folder: its record, the pieces of its ranks, heartbeats, and the ends of its logs.

TAIL_BYTES = 65_536
ALL_TAILS_BYTES = 32 << 20
SILENT_S = 5.0
"""A rank whose last heartbeat is so much older than the newest has stopped before the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a run left behind."""

    record: dict[str, Any]
    pieces: list[dict[str, Any]]
    beats: dict[int, tuple[int, float]]
    """Rank -> step and time of its last heartbeat."""
    nodes: dict[int, str]
    """Rank -> node."""
    stalled_s: dict[int, int]
    """Rank -> how long it waited for a step to end, of those that gave up: they are not the ones at fault."""
    refusals: dict[int, str]
    """Rank -> why it refused its job before it began."""
    pids: dict[int, int]
    """Rank -> its process on its node."""
    logs: dict[str, str]
    """Name -> its last part; those of ranks first."""

    @classmethod
    def of(cls, run: Path) -> Evidence:
        """Read the run's folder."""
        places = dict(files_of_ranks(run / ENVIRONMENT))
        beats = dict(files_of_ranks(run / HEARTBEATS))
        return cls(
            record=read_record(run),
            pieces=read_pieces(run),
            beats={
                rank: (int(plain["step"]), float(plain["time_s"]))
                for rank, plain in beats.items()
                if is_number(plain.get("step")) and is_number(plain.get("time_s"))
            },
            stalled_s={
                rank: waited for rank, plain in beats.items() if isinstance(waited := plain.get("stalled_s"), int)
            },
            refusals={rank: str(plain["refused"]) for rank, plain in places.items() if "refused" in plain},
            logs=_tails(run / LOGS),
            nodes={rank: str(plain.get("node", "")) for rank, plain in places.items()},
            pids={rank: pid for rank, plain in places.items() if isinstance(pid := plain.get("pid"), int)},
        )

    @property
    def errors(self) -> dict[int, str]:
        """Rank -> its error; without those that only lost another rank."""
        return {
            int(piece["rank"]): str(piece.get("error") or "")
            for piece in self.pieces
            if piece.get("status") == "failed" and not piece.get("lost_peer")
        }

    @property
    def lost_peers(self) -> dict[int, str]:
        """Rank -> its error, of those that failed because they lost another rank."""
        return {int(piece["rank"]): str(piece.get("error") or "") for piece in self.pieces if piece.get("lost_peer")}

    @property
    def silent(self) -> list[int]:
        """Ranks that stopped beating before the others did."""
        if not self.beats:
            return []
        newest = max(time_s for _, time_s in self.beats.values())
        return sorted(rank for rank, (_, time_s) in self.beats.items() if newest - time_s > SILENT_S)


def rank_of(log: str) -> int | None:
    """Return the rank whose log has this name; None for other logs."""
    name = re.fullmatch(r"rank(\d+)\.log", log)
    return int(name[1]) if name else None


def _tails(folder: Path) -> dict[str, str]:
    """Return the ends of all logs; those of ranks come first, by their number."""
    paths = sorted(folder.glob("*.log"), key=lambda p: (not p.stem.startswith("rank"), len(p.stem), p.stem))
    size = min(TAIL_BYTES, ALL_TAILS_BYTES // max(1, len(paths)))
    found = {}
    for path in paths:
        try:
            with path.open("rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - size))
                found[path.name] = file.read(size).decode(errors="replace")
        except OSError:
            continue
    return found


StopReason = Literal["", "hang", "time", "cancel", "signal"]
"""Why its supervisor stopped a run; empty where it ended by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """How a run ended."""

    state: State
    cause: Cause = ""
    words: str = ""
    log_line: str = ""
    """The line of a log that says so, where one does."""
    node: str = ""
    rank: int | None = None
    memory: Memory = ""
    """Whose memory was too small, where that is the cause and is known."""


def _of_rank(
    found: Evidence, rank: int | None, words: str, *, cause: Cause = "error", node: str = "", memory: Memory = ""
) -> Diagnosis:
    """A failure of one rank, on the node where the rank was, or ``node`` where that is not known."""
    state, where = STATE_OF.get(cause, "failed"), "" if rank is None else found.nodes.get(rank, "")
    return Diagnosis(state=state, cause=cause, words=words, rank=rank, node=where or node, memory=memory)


def diagnose(
    run: Path,
    codes: Sequence[int | None],
    *,
    stop_reason: StopReason = "",
    killed_for_memory: bool = False,
    unreachable: Iterable[str] = (),
    waited_s: float = 0.0,
) -> Diagnosis:
    """Find out how a run ended, from its folder. ``waited_s`` is how long its supervisor saw no progress."""
    found = Evidence.of(run)
    if found.record.get("status") == "done":
        return Diagnosis(state="done")
    if stop_reason == "cancel":
        return Diagnosis(state="cancelled", cause="cancelled", words=CANCELLED)
    if stop_reason == "time":
        return Diagnosis(state="timeout", cause="time_limit", words="it reached its time limit")
    gone = sorted(set(unreachable))
    by_slurm = _by_slurm(found, gone, stopped=stop_reason == "signal")
    if by_slurm is not None:
        return by_slurm
    if stop_reason == "signal":
        return Diagnosis(state="pending", cause="interrupted", words="the process that started it was told to stop")
    if gone:
        # a host that lets nobody in does not answer either
        return _by_patterns(found, (DENIED,), found.logs) or Diagnosis(
            state="failed",
            cause="lost_node",
            node=gone[0],
            words=f"{' and '.join(gone)} "
            f"{'does' if len(gone) == 1 else 'do'} not respond any more{_last_step(found, gone)}",
        )
    failures = failures_of(found.logs, codes, found.pids)
    by_fault = _memory(found, failures, killed_for_memory) or _fault(found)
    if by_fault is not None:
        return by_fault
    # a signal that nobody sends: torchrun kills what hangs, and NCCL's watchdog aborts what waits
    crashed = [one for one in failures if one.signal and one.signal not in (signal.SIGKILL, signal.SIGABRT)]
    if crashed:
        return _killed(found, crashed[0])
    if found.stalled_s or stop_reason == "hang":
        return _stalled(found, max(found.stalled_s.values(), default=round(waited_s)))
    return _by_logs(found, failures) or _by_last_line(found, failures, codes)


def with_diagnosis(status: Status, found: Diagnosis) -> Status:
    """Return the status of a run after it ended as diagnosed."""
    ended = {name: getattr(found, name) for name in ("state", "cause", "words", "node", "rank")}
    return replace(status, **ended, pids=())


def _by_slurm(found: Evidence, gone: Sequence[str], *, stopped: bool) -> Diagnosis | None:
    text = "\n".join(log for name, log in found.logs.items() if not name.startswith("rank"))
    for pattern, state, cause, words in SLURM:
        if re.search(pattern, text):
            node = SLURM_NODE.search(text)
            name = (node[1] or node[2]) if node else next(iter(gone), "")
            if cause not in ("lost_node", "bad_node"):
                name = ""
            return Diagnosis(state=state, cause=cause, node=name, words=words.format(node=name or "a node"))
    if stopped and SCANCEL.search(text):
        return Diagnosis(state="cancelled", cause="cancelled", words="cancelled by scancel")
    return None


def _by_patterns(found: Evidence, patterns: Sequence[LogPattern], logs: Mapping[str, str]) -> Diagnosis | None:
    """The first pattern that a log has."""
    for pattern in patterns:
        for name, log in logs.items():
            line = pattern.line(log)
            if line is not None:
                words, memory = pattern.prefix + line, pattern.memory
                return replace(_of_rank(found, rank_of(name), words, cause=pattern.cause, memory=memory), log_line=line)
    return None


def _memory(found: Evidence, failures: Sequence[Failure], killed: bool) -> Diagnosis | None:
    """Diagnose a lack of memory, by the trainer's record, a log, or the kernel's count."""
    record = found.record
    if record.get("status") == "oom":
        words = str(record.get("error") or "out of memory")
        return _of_rank(found, record.get("failed_rank"), words, cause="memory", memory="device")
    # what a rank reports of its end is believed: what else is in its log was not the end
    by_log = _by_patterns(found, MEMORY, {**found.logs, **_as_logs(found.errors)})
    if by_log is not None:
        named = next((match for log in found.logs.values() if (match := TASK_NODE.search(log))), None)
        if named and not by_log.node and by_log.memory == "host":
            return replace(by_log, node=named[1] or named[2])
        return by_log
    # another program may share the control group: it counts only where a rank was killed
    dead = next((failure for failure in failures if failure.signal == signal.SIGKILL), None)
    if killed and dead is not None:
        words = "the kernel killed it because the host ran out of memory"
        return _of_rank(found, dead.rank, words, cause="memory", node=dead.node, memory="host")
    return None


def _fault(found: Evidence) -> Diagnosis | None:
    """A device, a driver, a limit; or a rank that failed by itself. What others say then is a consequence."""
    errors = _as_logs(found.errors)
    by_pattern = (
        _by_patterns(found, FAULTS, errors)
        or _by_patterns(found, FAULTS, found.logs)
        or _by_patterns(found, STARTS, errors)
    )
    if by_pattern is not None:
        return by_pattern
    if found.errors:
        first = found.record.get("failed_rank")
        rank = first if first in found.errors else min(found.errors)
        return _of_rank(found, rank, found.errors[rank])
    reported = set(found.beats) | {int(piece["rank"]) for piece in found.pieces}
    silent = {name: log for name, log in found.logs.items() if rank_of(name) not in {None, *reported}}
    by_pattern = _by_patterns(found, STARTS, silent)
    if by_pattern is not None:
        return by_pattern
    if found.refusals:
        rank = min(found.refusals)
        return _of_rank(found, rank, found.refusals[rank], cause="spec")
    return None


def _as_logs(errors: Mapping[int, str]) -> dict[str, str]:
    """What ranks reported, under the names of their logs."""
    return {f"rank{rank}.log": error for rank, error in errors.items()}


def _killed(found: Evidence, failure: Failure) -> Diagnosis:
    """Diagnose a rank that a signal ended."""
    rank = failure.rank
    node = ("" if rank is None else found.nodes.get(rank, "")) or failure.node
    who = f"rank {rank}" if rank is not None else "a process" if node else "it"
    step = f"; its last report was at step {found.beats[rank][0]}" if rank is not None and rank in found.beats else ""
    words = f"{who}{f' on {node}' if node else ''} {signal_words(failure.signal)}{step}"
    return _of_rank(found, rank, words, node=node)


def _stalled(found: Evidence, waited_s: int) -> Diagnosis:
    """No progress: a rank that hangs, or nodes that no longer reach each other."""
    waited = found.stalled_s
    # a rank that hangs may beat again once it is asked to end, so the report of those that waited goes first
    silent = [rank for rank in found.beats if rank not in waited] if waited else found.silent
    nodes = sorted(set(found.nodes.values()))
    if silent and len(silent) < len(found.beats):
        first = min(silent, key=lambda rank: found.beats[rank])
        node = found.nodes.get(first, "")
        where = f" on {node}" if node else ""
        others = f", nor have {len(silent) - 1} others" if len(silent) > 1 else ""
        words = f"rank {first}{where} has made no progress since step {found.beats[first][0]}{others}; the other ranks "
        return _of_rank(found, first, f"{words}waited for {waited_s} s", cause="hang")
    if len(nodes) > 1:
        steps = sorted({step for step, _ in found.beats.values()})
        return Diagnosis(
            state="timeout",
            cause="comm_timeout",
            words=f"ranks on {' and '.join(nodes[:4])}"
            f"{' and others' if len(nodes) > 4 else ''} waited for each other for {waited_s} s at step "
            f"{steps[0] if steps else 0}: the network between them may be down, or their collectives "
            "do not match",
        )
    if not found.beats:
        return Diagnosis(state="timeout", cause="hang", words=f"no progress for {waited_s} s: no rank ever reported")
    steps = sorted({step for step, _ in found.beats.values()})
    alone = len(found.beats) == 1
    who = f"rank {next(iter(found.beats))}" if alone else f"none of {len(found.beats)} ranks"
    return Diagnosis(
        state="timeout",
        cause="hang",
        node=nodes[0] if alone and nodes else "",
        rank=next(iter(found.beats)) if alone else None,
        words=f"{who} has made {'no ' if alone else ''}progress for {waited_s} s, since step {steps[0]}",
    )


def _by_logs(found: Evidence, failures: Sequence[Failure]) -> Diagnosis | None:
    """By the logs of ranks, torchrun and srun; the first failure before its consequences."""
    starts = _by_patterns(found, STARTS, found.logs)
    if starts is not None:
        return starts
    if failures and failures[0].signal == signal.SIGKILL:
        return _killed(found, failures[0])
    logs = {**_as_logs(found.lost_peers), **found.logs}
    timeout = _by_patterns(found, TIMEOUTS, logs)
    if timeout is not None:
        return timeout
    dead = next((failure for failure in failures if failure.signal), None)
    if dead is not None:
        return _killed(found, dead)
    error, rank = str(found.record.get("error") or ""), found.record.get("failed_rank")
    if found.record.get("failed_silently"):
        return _of_rank(found, rank, error)
    broken = _by_patterns(found, BROKEN, logs)
    if broken is not None:  # the node that says it has only noticed
        node = peer_of(broken.log_line, found.nodes.values())
        where = "" if broken.rank is None else f"rank {broken.rank}{f' on {broken.node}' if broken.node else ''}: "
        broken = replace(broken, node=node, rank=None, words=f"{where}{broken.words}")
    # not by its supervisor: by Slurm, a batch system's epilogue, a person
    if found.record.get("status") == "terminated":
        first = failures[0].rank if failures else None
        if broken is not None and first in found.lost_peers:
            return broken  # torchrun has ended the rest because of it
        where = "" if rank is None else found.nodes.get(rank, "")
        words = f"rank {rank}{f' on {where}' if where else ''} was stopped from outside: {error}"
        return Diagnosis(state="failed", cause="preempted", rank=rank, words=words)
    return broken


def _by_last_line(found: Evidence, failures: Sequence[Failure], codes: Sequence[int | None]) -> Diagnosis:
    """Diagnose by the last line of a log, or the exit codes."""
    error, rank = found.record.get("error"), found.record.get("failed_rank")
    if error:
        return _of_rank(found, rank, str(error))
    for name, log in found.logs.items():
        line = last_error_line(log)
        if line:
            return _of_rank(found, rank_of(name), line)
    if all(code == 0 for code in codes) and codes:
        return _of_rank(found, None, "it exited with code 0 but left no record of a finished run")
    first = next((failure for failure in failures if failure.rank is not None), None)
    if first is not None:
        words = f"rank {first.rank} ended with code {first.code} and no error message"
        return _of_rank(found, first.rank, words, node=first.node)
    listed = ", ".join("?" if code is None else str(code) for code in codes)
    return _of_rank(found, None, f"it ended with code {listed or '?'} and no error message")


def _last_step(found: Evidence, gone: Sequence[str]) -> str:
    steps = [found.beats[rank][0] for rank, node in found.nodes.items() if node in gone and rank in found.beats]
    return f"; its last report was at step {max(steps)}" if steps else ""
