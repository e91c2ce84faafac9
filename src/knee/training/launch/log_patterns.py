"""What logs say of a run's end: words of PyTorch, NCCL, CUDA, Slurm, shells and containers, and what they mean."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from knee.training.launch.run_status import Cause, State

Memory = Literal["", "device", "host", "limit"]
"""Whose memory was too small: the GPU's, the host's, or what a limit or /dev/shm leaves of it; empty if not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPattern:
    """A pattern of a log's lines, and the cause that it stands for."""

    cause: Cause
    pattern: re.Pattern[str]
    prefix: str = ""
    """What is written before the line that was found."""
    memory: Memory = ""
    unless: re.Pattern[str] | None = None
    """What else the line must not have."""

    def line(self, log: str) -> str | None:
        """The first line that has it and is not a mere warning, without what loggers put before it."""
        end = 0
        for match in self.pattern.finditer(log):
            if match.start() < end:  # the line was looked at
                continue
            start, end = log.rfind("\n", 0, match.start()) + 1, log.find("\n", match.end())
            end = end if end >= 0 else len(log)
            line = LABEL.sub("", log[start:end])
            if not HARMLESS.search(line) and not (self.unless and self.unless.search(line)):
                return line.strip()[:300]
        return None


LABEL = re.compile(r"^\d+: ", re.MULTILINE)
"""What srun --label puts before a line."""
# a line that begins with blanks is of a stack or of a warning's source; CUDA tells a device that does not start only
# in a warning
HARMLESS = re.compile(
    r"^(?!.*CUDA initialization)(?:(?:\[rank\d+\]: )?\s|.*(?:Warning\b|\bWARNING\b|\bNCCL INFO\b|"
    r"\bINFO\b|\bDEBUG\b|\[W\d+|\bW\d{4} ))"
)
# what may stand between two words is bounded: a line that repeats the first would take the square of its length
MEMORY = (
    LogPattern(
        cause="memory",
        memory="device",
        prefix="out of memory: ",
        pattern=re.compile(
            r"\b(?:CUDA|HIP) out of memory|\b(?:CUDA|HIP)(?: driver)? error:? .{0,20}out of memory|\bOutOfMemoryError|"
            r"[Cc]uda failure.{0,8}'out of memory'|cudaErrorMemoryAllocation|hipErrorOutOfMemory"
        ),
    ),
    LogPattern(
        cause="memory",
        memory="limit",
        prefix="shared memory (/dev/shm) is full: ",
        pattern=re.compile(
            r"</torch_[^\n]{0,300}(?:No space left|Cannot allocate)|insufficient shared memory|"
            r"out of shared memory|failed to extend /dev/shm/|/dev/shm/[^\n]{0,300}No space left|posix_fallocate failed"
        ),
    ),
    LogPattern(
        cause="memory", prefix="out of memory: ", pattern=re.compile(r"CU(?:BLAS|DNN|SPARSE)_STATUS_ALLOC_FAILED")
    ),
    LogPattern(
        cause="memory",
        memory="host",
        prefix="out of memory: ",
        pattern=re.compile(
            r"[Cc]an(?:'t|not) allocate memory|[Nn]ot enough memory|\bMemoryError\b|std::bad_alloc|oom.kill|OOM Killed|"
            r"Out of memory: Killed process|\btasks? \S+: Out Of Memory|[Ee]xceeded (?:step |job )?memory limit|"
            r"Error: [^\n]{0,300}\bout of memory"
        ),
        unless=re.compile(r"\bibv_|\bNCCL\b"),
    ),
)
"""The first that is found counts. Only the first of all is certain to be the device's."""
FAULTS = (
    LogPattern(
        cause="bad_node",
        prefix="the limit on locked memory (ulimit -l) is too low for the network: ",
        pattern=re.compile(r"\bibv_\w+ failed[^\n]{0,300}Cannot allocate memory"),
    ),
    LogPattern(
        cause="bad_node",
        pattern=re.compile(
            r"uncorrectable (?:ECC|NVLink)|fallen off the bus|\bXid\b|"
            r"CUDA error: (?:unknown error|initialization error|unspecified launch failure|hardware)|"
            r"No CUDA GPUs are available|no CUDA-capable device|system not (?:yet )?initialized|"
            r"Driver/library version mismatch|Unable to determine the device handle|busy or unavailable|"
            r"Remote I/O error|Stale file handle|Input/output error"
        ),
    ),
)
DENIED = LogPattern(cause="software", pattern=re.compile(r"Permission denied \(publickey|Host key verification failed"))
STARTS = (
    LogPattern(cause="disk", pattern=re.compile(r"No space left on device|Disk quota exceeded")),
    LogPattern(cause="port", pattern=re.compile(r"[Aa]ddress already in use|EADDRINUSE")),
    DENIED,
    LogPattern(
        cause="software",
        pattern=re.compile(
            r"ModuleNotFoundError|No module named|command not found|ImportError|undefined symbol|"
            r"driver version is insufficient|No such file or directory: '[^'\n]{0,300}(?:python|srun|torchrun)|"
            r"exec: [^\n]{0,300}: not found|: cannot execute|execve\(\): [^\n]{0,300}No such file|could not open image|"
            r"pyxis: (?:failed|couldn't)"
        ),
    ),
)
"""What keeps a rank from its work, and is no fault of the node's."""
TIMEOUTS = (
    LogPattern(
        cause="comm_timeout",
        pattern=re.compile(
            r"collective operation timeout|due to a collective timeout|watchdog got stuck for \d+|"
            r"NCCL (?:error|WARN)[^\n]{0,300}(?:timeout|timed out)|Timed out waiting \d+ms|socket has timed out after|"
            r"DistStoreError|RendezvousTimeout|wait timeout after \d+ms"
        ),
    ),
)
# the line that names the other end goes before those that only say that there was one
BROKEN = (
    LogPattern(
        cause="comm",
        pattern=re.compile(
            r"Connection (?:closed|reset) by (?:remote )?peer|Got completion (?:from peer|with)|\bConnect to \S+ failed"
        ),
    ),
    LogPattern(
        cause="comm",
        pattern=re.compile(
            r"ncclRemoteError|DistNetworkError|remote process exited or there was a network error|"
            r"\b(?:gloo|NCCL|Socket)[^\n]{0,300}(?:Broken pipe|Connection refused|No route to host)"
        ),
    ),
)
PEER = re.compile(r"(?:remote peer|from peer|by peer|Connect to) \[?([^\s<>\[\],]+)")
ADDRESS = re.compile(r"[\d.]++|[^:\n]*+:.*")
STATE_OF: dict[Cause, State] = {"memory": "oom", "comm_timeout": "timeout", "hang": "timeout"}
SLURM: tuple[tuple[str, State, Cause, str], ...] = (
    (r"CANCELLED AT \S+ DUE TO NODE FAIL|[Nn]ode failure", "failed", "lost_node", "{node} failed, according to Slurm"),
    (
        r"Task launch for \S+ failed on node \S+: (?:Communication|Socket|Connection|Zero Bytes|Unable to contact)",
        "failed",
        "lost_node",
        "{node} cannot be reached, according to Slurm",
    ),
    (
        r"Task launch for \S+ failed on node \S+: Job(?: credential revoked|/step already completing)",
        "pending",
        "interrupted",
        "Slurm ended its job while the job was starting",
    ),
    (
        r"Task launch for \S+ failed on node \S+:",
        "failed",
        "bad_node",
        "{node} cannot start processes, according to Slurm",
    ),
    (r"CANCELLED AT \S+ DUE TO PREEMPTION", "pending", "preempted", "preempted by Slurm"),
    (r"CANCELLED AT \S+ DUE TO JOB REQUEUE", "pending", "preempted", "Slurm put it back into the queue"),
    (r"CANCELLED AT \S+ DUE TO TIME LIMIT", "timeout", "time_limit", "it reached Slurm's time limit"),
)
"""What Slurm says of a job that it ended or could not start -> state, cause, and a sentence with the node's name."""
SLURM_NODE = re.compile(r"[Nn]ode failure on (\S+)|Task launch for \S+ failed on node ([^\s:]+)")
SCANCEL = re.compile(r"(JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ \*\*\*")
"""It says so too of a step that srun ends because one of its tasks failed."""
TASK_NODE = re.compile(r"srun: error: (\S+): tasks? \S+: Out Of Memory|slurmstepd-([^\s:]{1,255}): error: ")
ERROR_LINE = re.compile(
    r"^(?:\[rank\d+\]: )?((?!torch\.distributed\.elastic)[A-Za-z_.]*(?:Error|Exception|Interrupt)\b"
    r".*)$",
    re.MULTILINE,
)
NOISE = re.compile(
    r"^\s|^$|^Traceback|Warning|^\[[WIE]\d+|^E\d{4}|^W\d{4}|^={3,}|^-{3,}|^rank \d+: |exitcode|"
    r"traceback :|^torch\.distributed\.elastic|^Failures:|^Root Cause|^\[\d+\]:|FAILED$"
)
FAILURE = re.compile(
    r"(Root Cause[^\n]{0,300}\n\[\d+\]:\n\s*+)?time\s*+: (\S++)\n\s*+host\s*+: (\S++)\n"
    r"\s*+rank\s*+: (\d{1,9}) [^\n]*+\n\s*+exitcode\s*+: (-?\d{1,9})"
)
"""How torchrun lists a rank that failed."""
RECEIVED = re.compile(r"Signal (\d{1,9}) \(SIG\w{1,20}\) received by PID (\d{1,9})")
TASK_ENDED = re.compile(r"srun: error: (\S+): tasks? \S+: (Killed|Segmentation fault|Bus error|Aborted)")
SRUN_SIGNALS = {
    "Killed": signal.SIGKILL,
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
    "Aborted": signal.SIGABRT,
}
BY_SHELL = 128
"""A shell adds it to the number of the signal that ended its command."""
FATAL = (signal.SIGKILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A rank that did not end well, as reported by what started it."""

    code: int
    """As the operating system has it: a signal's number is negative."""
    rank: int | None = None
    node: str = ""

    @property
    def signal(self) -> int:
        """What ended it; 0 where it ended by itself, or was only asked to."""
        return -self.code if -self.code in FATAL else 0


def failures_of(logs: Mapping[str, str], codes: Sequence[int | None], pids: Mapping[int, int]) -> list[Failure]:
    """Ranks that failed, the first one first: by torchrun, srun, or the exit codes of what was started."""
    texts = [text for log in logs.values() for text in _by_task(log)]
    blocks = [
        (match[2], match[1] is None, Failure(rank=int(match[4]), code=int(match[5]), node=_short(match[3])))
        for text in texts
        for match in FAILURE.finditer(text)
    ]
    if blocks:
        return [failure for *_, failure in sorted(blocks, key=lambda block: block[:2])]
    ranks = {pid: rank for rank, pid in pids.items()}
    received = [
        Failure(code=-int(match[1]), rank=ranks.get(int(match[2])))
        for text in texts
        for match in RECEIVED.finditer(text)
    ]
    if received:
        return received
    if not any("Exited with exit code" in text for text in texts):  # else srun itself has killed the others
        tasks = [
            Failure(code=-SRUN_SIGNALS[match[2]], node=match[1])
            for text in texts
            for match in TASK_ENDED.finditer(text)
        ]
        if tasks:
            return tasks
    own = [BY_SHELL - code if code - BY_SHELL in FATAL else code for code in codes if code]
    return [Failure(code=code) for code in sorted(own, reverse=True)]  # what ended by itself was first


def _by_task(log: str) -> Iterator[str]:
    """The lines of a log by the task that wrote them: srun mixes them."""
    if "exitcode" not in log and "SIG" not in log and "srun: error" not in log:
        return
    lines: dict[str, list[str]] = {}
    for line in log.splitlines():
        label = LABEL.match(line)
        lines.setdefault(label[0] if label else "", []).append(line[label.end() :] if label else line)
    yield from ("\n".join(some) for some in lines.values())


def _short(host: str) -> str:
    """Nodes go by the first part of a host's full name."""
    return host if ADDRESS.fullmatch(host) else host.partition(".")[0]


def signal_words(number: int) -> str:
    """What ended a rank, and what that often means."""
    often = {
        signal.SIGKILL: " (killed by a person, or because the host ran out of memory)",
        signal.SIGBUS: " (often because the shared memory /dev/shm is full)",
    }
    return f"was killed by {signal.Signals(number).name}{often.get(signal.Signals(number), '')}"


def peer_of(line: str, known: Iterable[str]) -> str:
    """The node at the other end of a connection, where the line names one; an address only if nodes go by it."""
    found = PEER.search(line)
    if found is None:
        return ""
    name = found[1]
    same = [node for node in known if node == name or (_short(node) == _short(name) and not ADDRESS.fullmatch(name))]
    return same[0] if same else "" if ADDRESS.fullmatch(name) else name


def last_error_line(log: str) -> str:
    """The last line that says something: an error, or else what is no warning, no rule and no stack."""
    text = LABEL.sub("", log)
    errors = ERROR_LINE.findall(text)
    if errors:
        return str(errors[-1]).strip()[:300]
    lines = [line for line in text.splitlines() if not NOISE.search(line)]
    return lines[-1].strip()[:300] if lines else ""
