"""Why runs ended: from what they left in their folders."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from knee.launch.failures import last_words, verdict


def left(run: Path, *, logs: dict[str, str] | None = None, record: dict[str, Any] | None = None,
         beats: dict[int, tuple[int, float]] | None = None, nodes: dict[int, str] | None = None) -> Path:
    """A run's folder."""
    for name in ("logs", "heartbeats", "environment"):
        (run / name).mkdir(parents=True)
    for name, text in (logs or {}).items():
        (run / "logs" / name).write_text(text, encoding="utf-8")
    for rank, (step, ago_s) in (beats or {}).items():
        plain = {"step": step, "time_s": time.time() - ago_s, "pid": 1}
        (run / "heartbeats" / f"rank{rank}.json").write_text(json.dumps(plain), encoding="utf-8")
    for rank, node in (nodes or {}).items():
        (run / "environment" / f"rank{rank}.json").write_text(json.dumps({"node": node}), encoding="utf-8")
    if record is not None:
        (run / "record.json").write_text(json.dumps(record), encoding="utf-8")
    return run


@pytest.mark.parametrize(("log", "state", "cause"), [
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "oom", "memory"),
    ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0.", "oom", "memory"),
    ("MemoryError", "oom", "memory"),
    ("terminate called after throwing an instance of 'std::bad_alloc'", "oom", "memory"),
    ("[rank3]:[E1 ProcessGroupNCCL.cpp:616] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)",
     "timeout", "comm_timeout"),
    ("RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 30000ms for recv operation to complete",
     "timeout", "comm_timeout"),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "failed", "bad_node"),
    ("RuntimeError: No CUDA GPUs are available", "failed", "bad_node"),
    ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", "failed", "bad_node"),
    ("OSError: [Errno 28] No space left on device", "failed", "disk"),
    ("RuntimeError: The server socket has failed to listen. port: 29500, address already in use", "failed", "port"),
    ("ModuleNotFoundError: No module named 'torch'", "failed", "software"),
    ("error: llama-tiny has 8 heads, which tp 3 does not divide\nhint: use a tp that divides 8", "failed", "spec"),
    ("Traceback (most recent call last):\n  File x\nValueError: nothing like it", "failed", "error"),
])
def test_a_log_tells_the_cause(log: str, state: str, cause: str, tmp_path: Path) -> None:
    run = left(tmp_path / "run", logs={"rank3.log": f"step 1\n{log}\n", "start0.log": "exitcode : 1"},
               nodes={3: "node7"})
    found = verdict(run, (1,))
    assert (found.state, found.cause) == (state, cause)
    assert (found.rank, found.node) == (3, "node7")
    assert found.words


@pytest.mark.parametrize(("log", "state", "cause"), [
    ("slurmstepd: error: *** STEP 5.0 ON n3 CANCELLED AT 2026-11-15T15:01:08 DUE TO TIME LIMIT ***", "timeout",
     "time_limit"),
    ("slurmstepd: error: *** STEP 5.0 ON n3 CANCELLED AT 2026-11-15T15:01:08 DUE TO PREEMPTION ***", "pending",
     "preempted"),
    ("slurmstepd: error: *** STEP 5.0 ON n3 CANCELLED AT 2026-11-15T15:01:08 DUE TO JOB REQUEUE ***", "pending",
     "preempted"),
    ("srun: error: Node failure on n3", "failed", "lost_node"),
])
def test_slurm_has_its_own_words(log: str, state: str, cause: str, tmp_path: Path) -> None:
    found = verdict(left(tmp_path / "run", logs={"start0.log": log}), (1,))
    assert (found.state, found.cause) == (state, cause)
    assert found.node == ("n3" if cause == "lost_node" else "")


def test_a_step_that_srun_ends_was_not_cancelled_by_anyone(tmp_path: Path) -> None:
    words = "0: slurmstepd-n0: error: *** STEP 2.0 ON n0 CANCELLED AT 2026-11-15T15:16:59 ***"
    run = left(tmp_path / "run", logs={"start0.log": words, "rank1.log": "ValueError: wrong"})
    assert verdict(run, (1,)).words == "ValueError: wrong"
    assert verdict(run, (1,), ended="signal").cause == "cancelled"


def test_the_record_goes_before_the_logs(tmp_path: Path) -> None:
    done = left(tmp_path / "a", record={"status": "done"}, logs={"rank0.log": "CUDA out of memory"})
    assert verdict(done, (0,)).state == "done"
    oom = left(tmp_path / "b", record={"status": "oom", "error": "out of memory: 2 GiB", "failed_rank": 1},
               nodes={1: "n1"})
    found = verdict(oom, (1,))
    assert (found.state, found.words, found.rank, found.node) == ("oom", "out of memory: 2 GiB", 1, "n1")
    assert verdict(left(tmp_path / "c"), (-9,), killed_for_memory=True).state == "oom"


def test_what_is_ended_from_outside_is_started_again(tmp_path: Path) -> None:
    run = left(tmp_path / "run", record={"status": "terminated", "error": "ended by SIGTERM", "failed_rank": 1},
               nodes={1: "n1"})
    found = verdict(run, (1,))
    assert (found.state, found.cause) == ("failed", "preempted")
    assert "rank 1 on n1" in found.words


STUCK = "rank 0: no step has ended for 27 s: another rank is gone or stuck\n"


def test_who_stopped_first_hangs_and_its_node_is_named(tmp_path: Path) -> None:
    for name, ago_s in (("a", 27), ("b", -30)):  # what was stopped may beat again when it is told to end
        run = left(tmp_path / name, logs={"rank0.log": STUCK}, nodes={0: "n0", 1: "n1"},
                   beats={0: (9, 0), 1: (7, ago_s)})
        found = verdict(run, (1,))
        assert (found.state, found.cause, found.rank, found.node) == ("timeout", "hang", 1, "n1")
        assert "since step 7" in found.words


def test_nodes_that_all_wait_do_not_hear_each_other(tmp_path: Path) -> None:
    run = left(tmp_path / "run", logs={"rank0.log": STUCK, "rank1.log": STUCK}, nodes={0: "n0", 1: "n1"},
               beats={0: (9, 0), 1: (9, 1)})
    found = verdict(run, (1, 1))
    assert (found.state, found.cause) == ("timeout", "comm_timeout")
    assert "n0 and n1" in found.words
    lost = verdict(run, (1, 1), lost=["n1"])
    assert (lost.state, lost.cause, lost.node) == ("failed", "lost_node", "n1")
    assert "step 9" in lost.words


def test_nothing_at_all_is_a_cause_too(tmp_path: Path) -> None:
    run = left(tmp_path / "run")
    assert "code 7" in verdict(run, (7,)).words
    assert "no rank ever reported" in verdict(run, (None,), ended="hang", waited_s=40).words
    assert verdict(run, (0,)).state == "failed"  # without a record nothing was measured
    assert verdict(run, (), ended="cancel").state == "cancelled"
    assert verdict(run, (), ended="time").cause == "time_limit"


def test_the_last_meaningful_line() -> None:
    log = "0: begun\n0: Traceback (most recent call last):\n0:   File x\n0: ValueError: wrong\n0: ===\n0:  exitcode : 1"
    assert last_words(log) == "ValueError: wrong"
    assert last_words("UserWarning: old\nbash: torchrn: not here\n") == "bash: torchrn: not here"
    assert last_words("") == ""
