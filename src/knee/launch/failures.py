"""Why a run ended: read from its record, its heartbeats, its logs and the exit codes of what was started."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from knee.launch.folder import ENVIRONMENT, read_record
from knee.launch.status import Cause, State
from knee.train.record import HEARTBEATS, LOGS, read_pieces

Ended = Literal["", "hang", "time", "cancel", "signal"]
"""Why its keeper ended a run; empty where it ended by itself."""

TAIL_BYTES = 65_536
ALL_TAILS_BYTES = 32 << 20
SILENT_S = 5.0
"""A rank whose last heartbeat is so much older than the newest has stopped before the others."""
STUCK = re.compile(r"no step has ended for (\d+) s")
SLURM: tuple[tuple[str, State, Cause, str], ...] = (
    (r"CANCELLED AT \S+ DUE TO NODE FAIL|[Nn]ode failure", "failed", "lost_node", "a node failed, says Slurm"),
    (r"CANCELLED AT \S+ DUE TO PREEMPTION", "pending", "preempted", "preempted by Slurm"),
    (r"CANCELLED AT \S+ DUE TO JOB REQUEUE", "pending", "preempted", "Slurm has put it back into the queue"),
    (r"CANCELLED AT \S+ DUE TO TIME LIMIT", "timeout", "time_limit", "Slurm's time limit was over"),
)
"""What slurmstepd says of a job that Slurm ended -> state, cause, words."""
SCANCEL = re.compile(r"(JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ \*\*\*")
"""It says so too of a step that srun ends because one of its tasks failed."""
SIGNS: tuple[tuple[Cause, str], ...] = (
    ("memory", r"out of memory|OutOfMemoryError|can't allocate memory|[Cc]annot allocate memory|MemoryError|"
               r"oom.kill|std::bad_alloc|not enough memory"),
    ("bad_node", r"uncorrectable ECC|fallen off the bus|\bXid\b|CUDA error: (unknown error|initialization error|"
                 r"unspecified launch failure|hardware)|No CUDA GPUs are available|no CUDA-capable device|"
                 r"Driver/library version mismatch|Unable to determine the device handle|busy or unavailable|"
                 r"Remote I/O error|Stale file handle|Input/output error"),
    ("disk", r"No space left on device|Disk quota exceeded"),
    ("port", r"[Aa]ddress already in use|EADDRINUSE"),
    ("software", r"ModuleNotFoundError|No module named|command not found|ImportError|undefined symbol|"
                 r"driver version is insufficient|No such file or directory: '[^']*(python|srun|torchrun)[^']*'"),
    ("comm_timeout", r"Watchdog caught collective operation timeout|collective operation timeout|"
                     r"NCCL (error|WARN).*(timeout|timed out)|Timed out waiting \d+ms|"
                     r"DistStoreError|RendezvousTimeout|wait timeout after \d+ms"),
)
"""Words of logs -> cause, the first that matches."""
STATE_OF: dict[Cause, State] = {"memory": "oom", "comm_timeout": "timeout", "hang": "timeout"}
REFUSED = re.compile(r"^error: (.+)$", re.MULTILINE)
ERROR_LINE = re.compile(r"^(?:\[rank\d+\]: )?([A-Za-z_.]*(?:Error|Exception|Interrupt)\b.*)$", re.MULTILINE)
NOISE = re.compile(r"^\s|^$|^Traceback|Warning|^\[[WIE]\d+|^E\d{4}|^W\d{4}|^={3,}|^-{3,}|^rank \d+: |exitcode|"
                   r"traceback :")
LABEL = re.compile(r"^\d+: ", re.MULTILINE)
"""What srun --label puts before a line."""
KILLED = re.compile(r"exitcode\s*:\s*(-?\d+)|Signal (\d+) \(SIG\w+\) received")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a run ended."""

    state: State
    cause: Cause = ""
    words: str = ""
    node: str = ""
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a run left behind."""

    record: dict[str, Any]
    pieces: list[dict[str, Any]]
    beats: dict[int, tuple[int, float]]
    """Rank -> step and time of its last heartbeat."""
    nodes: dict[int, str]
    """Rank -> node."""
    logs: dict[str, str]
    """Name -> its last part; those of ranks first."""

    @classmethod
    def of(cls, run: Path) -> Evidence:
        """Read the run's folder."""
        return cls(record=read_record(run), pieces=read_pieces(run), beats=_beats(run), nodes=_nodes(run),
                   logs=_tails(run / LOGS))

    @property
    def silent(self) -> list[int]:
        """Ranks that stopped beating before the others did."""
        if not self.beats:
            return []
        newest = max(time_s for _, time_s in self.beats.values())
        return sorted(rank for rank, (_, time_s) in self.beats.items() if newest - time_s > SILENT_S)

    @property
    def waited(self) -> set[int]:
        """Ranks that said themselves that they waited for others: they are not the ones at fault."""
        found = {int(piece["rank"]) for piece in self.pieces if STUCK.search(str(piece.get("error") or ""))}
        named = ((re.fullmatch(r"rank(\d+)\.log", name), text) for name, text in self.logs.items())
        return found | {int(name[1]) for name, text in named if name and STUCK.search(text)}

    @property
    def stuck_s(self) -> int | None:
        """How long ranks have waited for a step, where they say that they did."""
        said = [str(piece.get("error") or "") for piece in self.pieces] + list(self.logs.values())
        waits = [int(found[1]) for text in said for found in STUCK.finditer(text)]
        return max(waits, default=None)


def verdict(
    run: Path, codes: Sequence[int | None], *, ended: Ended = "", killed_for_memory: bool = False,
    lost: Iterable[str] = (), waited_s: float = 0.0,
) -> Verdict:  # fmt: skip
    """How it ended. ``lost``: nodes that do not answer. ``waited_s``: how long its keeper saw nothing move."""
    found = Evidence.of(run)
    if found.record.get("status") == "done":
        return Verdict(state="done")
    if ended == "cancel":
        return Verdict(state="cancelled", cause="cancelled", words="cancelled by `knee sweep cancel`")
    if ended == "time":
        return Verdict(state="timeout", cause="time_limit", words="its time was over")
    gone = sorted(set(lost))
    by_slurm = _by_slurm(found, gone, told=ended == "signal")
    if by_slurm is not None:
        return by_slurm
    if ended == "signal":
        return Verdict(state="pending", cause="interrupted", words="what had started it was told to end")
    if gone:
        return Verdict(state="failed", cause="lost_node", node=gone[0], words=f"{' and '.join(gone)} "
                       f"{'does' if len(gone) == 1 else 'do'} not answer any more{_last_heard(found, gone)}")
    memory = _memory(found, killed_for_memory)
    if memory is not None:
        return memory
    if found.stuck_s is not None or ended == "hang":
        return _stuck(found, found.stuck_s if found.stuck_s is not None else round(waited_s))
    return _told(found, codes)


def _by_slurm(found: Evidence, lost: Sequence[str], *, told: bool) -> Verdict | None:
    text = "\n".join(log for name, log in found.logs.items() if not name.startswith("rank"))
    for pattern, state, cause, words in SLURM:
        if re.search(pattern, text):
            node = re.search(r"[Nn]ode failure on (\S+)", text)
            name = node[1] if node else next(iter(lost), "")
            return Verdict(state=state, cause=cause, node=name if cause == "lost_node" else "",
                           words=words.replace("a node", name) if name and cause == "lost_node" else words)
    if told and SCANCEL.search(text):
        return Verdict(state="cancelled", cause="cancelled", words="cancelled by scancel")
    return None


def _memory(found: Evidence, killed: bool) -> Verdict | None:
    """By the trainer's own word, a log's, or the kernel's."""
    record = found.record
    if record.get("status") == "oom":
        rank = record.get("failed_rank")
        return Verdict(state="oom", cause="memory", words=str(record.get("error") or "out of memory"), rank=rank,
                       node=found.nodes.get(rank, "") if rank is not None else "")
    pattern = dict(SIGNS)["memory"]
    for name, log in found.logs.items():
        line = _line_with(pattern, log)
        if line is not None:
            return Verdict(state="oom", cause="memory", words=f"out of memory: {line}", **_place(name, found))
    if killed:
        return Verdict(state="oom", cause="memory", words="the kernel killed it for want of memory")
    return None


def _stuck(found: Evidence, waited_s: int) -> Verdict:
    """Nothing moved: a rank that hangs, or nodes that no longer hear each other."""
    waited = found.waited
    # one that was stopped may beat again once it is told to end, so the word of those that waited goes first
    silent = [rank for rank in found.beats if rank not in waited] if waited else found.silent
    nodes = sorted(set(found.nodes.values()))
    if silent and len(silent) < len(found.beats):
        first = min(silent, key=lambda rank: found.beats[rank])
        node = found.nodes.get(first, "")
        where = f" on {node}" if node else ""
        others = f", nor have {len(silent) - 1} others" if len(silent) > 1 else ""
        return Verdict(state="timeout", cause="hang", node=node, rank=first,
                       words=f"rank {first}{where} has not moved since step {found.beats[first][0]}{others}; the rest "
                             f"waited for {waited_s} s")  # fmt: skip
    if len(nodes) > 1:
        steps = sorted({step for step, _ in found.beats.values()})
        return Verdict(state="timeout", cause="comm_timeout", words=f"ranks on {' and '.join(nodes[:4])}"
                       f"{' and others' if len(nodes) > 4 else ''} waited for each other for {waited_s} s at step "
                       f"{steps[0] if steps else 0}: the network between them does not carry any more, or collectives "
                       "do not match")
    began = "" if found.beats else ": no rank ever reported"
    return Verdict(state="timeout", cause="hang", words=f"nothing moved for {waited_s} s{began}")


def _told(found: Evidence, codes: Sequence[int | None]) -> Verdict:
    """By what logs say."""
    for name, log in found.logs.items():
        refused = REFUSED.search(log)
        if refused:
            return Verdict(state="failed", cause="spec", words=refused[1], **_place(name, found))
    for cause, pattern in SIGNS:
        for name, log in found.logs.items():
            line = _line_with(pattern, log)
            if line is not None:
                return Verdict(state=STATE_OF.get(cause, "failed"), cause=cause, words=line, **_place(name, found))
    error, rank = found.record.get("error"), found.record.get("failed_rank")
    if found.record.get("status") == "terminated":  # not by its keeper: by Slurm, a batch system's epilogue, a person
        where = found.nodes.get(rank, "") if rank is not None else ""
        return Verdict(state="failed", cause="preempted", rank=rank,
                       words=f"rank {rank}{f' on {where}' if where else ''} was told to end from outside: {error}")
    if error:
        words = f"{error}{_killed_by(found)}" if "without a word" in str(error) else str(error)
        return Verdict(state="failed", cause="error", words=words, rank=rank,
                       node=found.nodes.get(rank, "") if rank is not None else "")
    for name, log in found.logs.items():
        line = last_words(log)
        if line:
            return Verdict(state="failed", cause="error", words=line, **_place(name, found))
    told = ", ".join("?" if code is None else str(code) for code in codes)
    if all(code == 0 for code in codes) and codes:
        return Verdict(state="failed", cause="error", words="it ended well and left no record of a finished run")
    return Verdict(state="failed", cause="error", words=f"it ended with code {told or '?'} and said nothing")


def last_words(log: str) -> str:
    """The last line that says something: an error, or else what is no warning, no rule and no stack."""
    text = LABEL.sub("", log)
    errors = ERROR_LINE.findall(text)
    if errors:
        return str(errors[-1]).strip()[:300]
    lines = [line for line in text.splitlines() if not NOISE.search(line)]
    return lines[-1].strip()[:300] if lines else ""


def _line_with(pattern: str, log: str) -> str | None:
    """The first line that matches, without what loggers put before it."""
    found = re.search(rf"^.*(?:{pattern}).*$", log, re.MULTILINE)
    return None if found is None else LABEL.sub("", found[0]).strip()[:300]


def _killed_by(found: Evidence) -> str:
    """What torchrun says of a rank that could not say anything itself."""
    for log in found.logs.values():
        for match in KILLED.finditer(log):
            number = -int(match[1]) if match[1] else int(match[2])
            if number == 9:
                return ": it was killed (SIGKILL), by hand or for want of the host's memory"
    return ""


def _last_heard(found: Evidence, gone: Sequence[str]) -> str:
    steps = [found.beats[rank][0] for rank, node in found.nodes.items() if node in gone and rank in found.beats]
    return f"; last heard of at step {max(steps)}" if steps else ""


def _place(log: str, found: Evidence) -> dict[str, Any]:
    """The rank whose log it is, and its node."""
    name = re.fullmatch(r"rank(\d+)\.log", log)
    rank = int(name[1]) if name else None
    return {"rank": rank, "node": found.nodes.get(rank, "") if rank is not None else ""}


def _beats(run: Path) -> dict[int, tuple[int, float]]:
    found = {}
    for rank, plain in files_of_ranks(run / HEARTBEATS):
        try:
            found[rank] = int(plain["step"]), float(plain["time_s"])
        except (KeyError, TypeError, ValueError):
            continue
    return found


def _nodes(run: Path) -> dict[int, str]:
    return {rank: str(plain.get("node", "")) for rank, plain in files_of_ranks(run / ENVIRONMENT)}


def files_of_ranks(folder: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    """The files of ranks that can be read."""
    for path in folder.glob("rank*.json"):
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            yield int(path.stem.removeprefix("rank")), plain if isinstance(plain, dict) else {}
        except (OSError, ValueError):
            continue


def _tails(folder: Path) -> dict[str, str]:
    """The ends of all logs, ranks' first and by their number."""
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
