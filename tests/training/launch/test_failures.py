"""Why runs ended: from what they left in their folders."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from knee.training.launch.failures import diagnose
from knee.training.launch.log_patterns import last_error_line
from knee.training.launch.run_status import Status


def left(
    run: Path,
    *,
    logs: dict[str, str] | None = None,
    record: dict[str, Any] | None = None,
    beats: dict[int, tuple[int, float]] | None = None,
    nodes: dict[int, str] | None = None,
    pieces: dict[int, dict[str, Any]] | None = None,
    stalled_s: dict[int, int] | None = None,
    refused: dict[int, str] | None = None,
) -> Path:
    """A run's folder."""
    for rank, piece in (pieces or {}).items():
        (run / "ranks").mkdir(parents=True, exist_ok=True)
        (run / "ranks" / f"rank{rank}.json").write_text(json.dumps({"rank": rank, **piece}), encoding="utf-8")
    for name in ("logs", "heartbeats", "environment"):
        (run / name).mkdir(parents=True)
    for name, text in (logs or {}).items():
        (run / "logs" / name).write_text(text, encoding="utf-8")
    for rank, (step, ago_s) in (beats or {}).items():
        plain: dict[str, Any] = {"step": step, "time_s": time.time() - ago_s, "pid": 1}
        plain |= {"stalled_s": (stalled_s or {})[rank]} if rank in (stalled_s or {}) else {}
        (run / "heartbeats" / f"rank{rank}.json").write_text(json.dumps(plain), encoding="utf-8")
    for rank, node in (nodes or {}).items():
        (run / "environment" / f"rank{rank}.json").write_text(
            json.dumps({"node": node, "pid": 900 + rank}), encoding="utf-8"
        )
    for rank, why in (refused or {}).items():
        (run / "environment" / f"rank{rank}.json").write_text(json.dumps({"refused": why}), encoding="utf-8")
    if record is not None:
        (run / "record.json").write_text(json.dumps(record), encoding="utf-8")
    return run


@pytest.mark.parametrize(
    ("log", "state", "cause"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "oom", "memory"),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0.", "oom", "memory"),
        ("MemoryError", "oom", "memory"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "oom", "memory"),
        (
            "[rank3]:[E1 ProcessGroupNCCL.cpp:616] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)",
            "timeout",
            "comm_timeout",
        ),
        (
            "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 30000ms for recv operation to complete",
            "timeout",
            "comm_timeout",
        ),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "failed", "bad_node"),
        ("RuntimeError: No CUDA GPUs are available", "failed", "bad_node"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", "failed", "bad_node"),
        ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", "failed", "bad_node"),
        ("RuntimeError: CUDA error: system not yet initialized", "failed", "bad_node"),
        (
            "/x/torch/cuda/__init__.py:174: UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did "
            "you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 802: "
            "system not yet initialized (Triggered internally at /pytorch/c10/cuda/CUDAFunctions.cpp:109.)\nRuntimeError: no "
            "GPU",
            "failed",
            "bad_node",
        ),
        (
            "n7:31:88 [3] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
            "failed",
            "bad_node",
        ),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "oom", "memory"),
        ("RuntimeError: unable to write to file </torch_412_3184>: No space left on device (28)", "oom", "memory"),
        (
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
            "oom",
            "memory",
        ),
        (
            "/x/allocator.py:9: UserWarning: this may end out of memory: CUDA out of memory has been seen\n"
            '  warnings.warn("CUDA out of memory")\nImportError: cannot import name x',
            "failed",
            "software",
        ),
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to "
            "(10.0.0.1, 29500).",
            "timeout",
            "comm_timeout",
        ),
        (
            "[rank3]:[E115 10:31:07.123456789 ProcessGroupNCCL.cpp:1684] [PG ID 0 PG GUID 0(default_pg) Rank 3] "
            "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued "
            "collectives.",
            "timeout",
            "comm_timeout",
        ),
        (
            "[rank3]:[E115 10:31:07.123456789 ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0(default_pg) Rank 3] Received a "
            "dump signal due to a collective timeout from rank 5 and we will try our best to dump the debug info.",
            "timeout",
            "comm_timeout",
        ),
        ("OSError: [Errno 28] No space left on device", "failed", "disk"),
        ("RuntimeError: The server socket has failed to listen. port: 29500, address already in use", "failed", "port"),
        ("ModuleNotFoundError: No module named 'torch'", "failed", "software"),
        ("Traceback (most recent call last):\n  File x\nValueError: nothing like it", "failed", "error"),
    ],
)
def test_a_log_tells_the_cause(log: str, state: str, cause: str, tmp_path: Path) -> None:
    run = left(
        tmp_path / "run", logs={"rank3.log": f"step 1\n{log}\n", "start0.log": "exitcode : 1"}, nodes={3: "node7"}
    )
    found = diagnose(run, (1,))
    assert (found.state, found.cause) == (state, cause)
    assert (found.rank, found.node) == (3, "node7")
    assert found.words


@pytest.mark.parametrize(
    ("log", "state", "cause"),
    [
        (
            "slurmstepd: error: *** STEP 5.0 ON n3 CANCELLED AT 2026-11-15T15:01:08 DUE TO TIME LIMIT ***",
            "timeout",
            "time_limit",
        ),
        (
            "slurmstepd: error: *** STEP 5.0 ON n3 CANCELLED AT 2026-11-15T15:01:08 DUE TO PREEMPTION ***",
            "pending",
            "preempted",
        ),
        (
            "slurmstepd: error: *** STEP 5.0 ON n3 CANCELLED AT 2026-11-15T15:01:08 DUE TO JOB REQUEUE ***",
            "pending",
            "preempted",
        ),
        ("srun: error: Node failure on n3", "failed", "lost_node"),
        (
            "srun: error: Task launch for StepId=5.0 failed on node n3: Communication connection failure\n"
            "srun: error: Application launch failed: Communication connection failure",
            "failed",
            "lost_node",
        ),
        ("srun: error: Task launch for StepId=5.0 failed on node n3: Invalid job credential", "failed", "bad_node"),
        ("srun: error: Task launch for StepId=5.0 failed on node n3: Job credential revoked", "pending", "interrupted"),
    ],
)
def test_slurm_has_its_own_words(log: str, state: str, cause: str, tmp_path: Path) -> None:
    found = diagnose(left(tmp_path / "run", logs={"start0.log": log}), (1,))
    assert (found.state, found.cause) == (state, cause)
    assert found.node == ("n3" if cause in ("lost_node", "bad_node") else "")


@pytest.mark.parametrize(
    ("log", "node"),
    [
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=5.0. Some of the step tasks have been OOM Killed.\n"
            "srun: error: n3: task 0: Out Of Memory",
            "n3",
        ),
        ("srun: error: n3: task 0: Out Of Memory", "n3"),
        ("0: slurmstepd-n3: error: Exceeded step memory limit at some point.", "n3"),
        ("slurmstepd: error: Exceeded step memory limit at some point.", ""),
        ("slurmstepd: error: Job 42 exceeded memory limit (8392704 > 8388608), being killed", ""),
    ],
)
def test_slurm_tells_who_wanted_more_memory(log: str, node: str, tmp_path: Path) -> None:
    found = diagnose(left(tmp_path / "run", logs={"start0.log": log}), (1,))
    assert (found.state, found.cause, found.memory, found.node) == ("oom", "memory", "host", node)


@pytest.mark.parametrize(
    "log",
    [
        "bash: line 1: exec: /x/python: cannot execute: required file not found",
        "FATAL:   could not open image /x/torch.sif: failed to retrieve path for /x/torch.sif: lstat /x/torch.sif: no such "
        "file or directory",
        "0: slurmstepd: error: pyxis: failed to import docker image",
        "slurmstepd: error: execve(): /x/python: No such file or directory",
        "me@n3: Permission denied (publickey,gssapi-keyex).",
    ],
)
def test_what_cannot_be_started_is_software(log: str, tmp_path: Path) -> None:
    run = left(tmp_path / "run", logs={"start0.log": log})
    found = diagnose(run, (255,))
    assert (found.state, found.cause) == ("failed", "software")
    assert found.words in log


def test_a_host_that_lets_nobody_in_is_not_lost(tmp_path: Path) -> None:
    run = left(tmp_path / "run", logs={"start1.log": "me@n3: Permission denied (publickey)."})
    assert diagnose(run, (None, 255), unreachable=["n3"]).cause == "software"


@pytest.mark.parametrize(
    ("line", "node"),
    [
        (
            "n7:31:95 [3] misc/socket.cc:484 NCCL WARN socketProgress: Connection closed by remote peer node2<387>",
            "node2",
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or there was "
            "a network error, NCCL version 2.27.5\nncclRemoteError: A call failed possibly due to a network error or a remote "
            "process exiting prematurely.\nLast error:\nConnection closed by remote peer node2.cluster.local<38752>",
            "node2",
        ),
        (
            "n7:31:95 [3] transport/net_ib.cc:2210 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<41234> with status=12 "
            "opcode=32600 len=0 vendor err 129 (Send) localGid fe80::1 remoteGids fe80::2 hca mlx5_0",
            "",
        ),
        (
            "n7:31:95 [3] misc/socket.cc:58 NCCL WARN socketStartConnect: Connect to 10.0.0.2<47731> failed : Connection "
            "refused",
            "",
        ),
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer "
            "[10.0.0.2]:4711",
            "",
        ),
    ],
)
def test_a_broken_connection_names_its_other_end(line: str, node: str, tmp_path: Path) -> None:
    run = left(tmp_path / "run", logs={"rank3.log": f"step 1\n{line}\n"}, nodes={3: "node7", 5: "node2"})
    found = diagnose(run, (1,))
    assert (found.state, found.cause, found.node, found.rank) == ("failed", "comm", node, None)
    assert found.words.startswith("rank 3 on node7: ")
    assert Status(state=found.state, cause=found.cause).missing  # it lies outside of the run


CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:4711"


def test_the_rank_that_failed_first_wins_over_those_that_lost_it(tmp_path: Path) -> None:
    lost = {"status": "failed", "error": CLOSED, "lost_peer": True}
    own = {"status": "failed", "error": "AssertionError: the loss is negative", "lost_peer": False}
    logs = {"rank0.log": f"rank 0: {CLOSED}\n", "rank1.log": "CUDA out of memory was caught, going on\n"}
    found = diagnose(left(tmp_path / "a", logs=logs, pieces={0: lost, 1: own}, nodes={0: "n0", 1: "n1"}), (1, 1))
    assert (found.cause, found.words, found.rank, found.node) == ("error", own["error"], 1, "n1")
    ecc = {**own, "error": "RuntimeError: CUDA error: uncorrectable ECC error encountered"}
    found = diagnose(left(tmp_path / "b", logs=logs, pieces={0: lost, 1: ecc}, nodes={0: "n0", 1: "n1"}), (1, 1))
    assert (found.cause, found.node) == ("bad_node", "n1")
    record = {
        "status": "failed",
        "error": "rank 1 exited; its last report was at step 4",
        "failed_rank": 1,
        "failed_silently": True,
    }
    found = diagnose(
        left(tmp_path / "c", logs={"rank0.log": CLOSED}, pieces={0: lost}, record=record, nodes={1: "n1"}), (1,)
    )
    assert (found.cause, found.words, found.node) == ("error", record["error"], "n1")
    found = diagnose(left(tmp_path / "d", logs={"rank0.log": CLOSED}, pieces={0: lost}), (1,))
    assert found.cause == "comm"


def test_shared_memory_is_not_a_disk(tmp_path: Path) -> None:
    line = "RuntimeError: unable to write to file </torch_412_3184>: No space left on device (28)"
    found = diagnose(left(tmp_path / "run", logs={"rank0.log": line}), (1,))
    assert found.words == f"shared memory (/dev/shm) is full: {line}"
    assert found.memory == "limit"


def test_only_what_a_rank_reports_is_a_refusal(tmp_path: Path) -> None:
    gcc = "error: command '/usr/bin/gcc' failed with exit code 1\n"
    run = left(tmp_path / "a", logs={"rank0.log": f"{gcc}RuntimeError: CUDA error: uncorrectable ECC error"})
    assert diagnose(run, (1,)).cause == "bad_node"
    run = left(tmp_path / "b", logs={"rank0.log": f"{gcc}step 1\nValueError: wrong"})
    assert diagnose(run, (1,)).words == "ValueError: wrong"
    run = left(tmp_path / "c", logs={"rank0.log": gcc}, beats={0: (3, 0)})  # a rank that trains has refused nothing
    assert diagnose(run, (1,)).cause == "error"
    found = diagnose(left(tmp_path / "d", logs={"rank0.log": "begun\n"}, refused={0: "two mistakes"}), (2,))
    assert (found.cause, found.words, found.rank) == ("spec", "two mistakes", 0)


def test_a_rank_reports_the_job_that_it_refuses(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "job.json").write_text("[]", encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "knee.training.launch.rank", str(run)], check=False)
    found = diagnose(run, (done.returncode,))
    assert (done.returncode, found.cause, found.words) == (2, "spec", f"{run / 'job.json'} is not a job")


def test_a_step_that_srun_ends_was_not_cancelled_by_anyone(tmp_path: Path) -> None:
    words = "0: slurmstepd-n0: error: *** STEP 2.0 ON n0 CANCELLED AT 2026-11-15T15:16:59 ***"
    run = left(tmp_path / "run", logs={"start0.log": words, "rank1.log": "ValueError: wrong"})
    assert diagnose(run, (1,)).words == "ValueError: wrong"
    assert diagnose(run, (1,), stop_reason="signal").cause == "cancelled"


def test_the_record_goes_before_the_logs(tmp_path: Path) -> None:
    done = left(tmp_path / "a", record={"status": "done"}, logs={"rank0.log": "CUDA out of memory"})
    assert diagnose(done, (0,)).state == "done"
    oom = left(
        tmp_path / "b", record={"status": "oom", "error": "out of memory: 2 GiB", "failed_rank": 1}, nodes={1: "n1"}
    )
    found = diagnose(oom, (1,))
    assert (found.state, found.words, found.rank, found.node) == ("oom", "out of memory: 2 GiB", 1, "n1")
    assert diagnose(left(tmp_path / "c"), (-9,), killed_for_memory=True).state == "oom"


def test_what_is_ended_from_outside_is_started_again(tmp_path: Path) -> None:
    run = left(
        tmp_path / "run",
        record={"status": "terminated", "error": "ended by SIGTERM", "failed_rank": 1},
        nodes={1: "n1"},
    )
    found = diagnose(run, (1,))
    assert (found.state, found.cause) == ("failed", "preempted")
    assert "rank 1 on n1" in found.words


def test_who_stopped_first_hangs_and_its_node_is_named(tmp_path: Path) -> None:
    for name, ago_s in (("a", 27), ("b", -30)):  # what was stopped may beat again when it is told to end
        run = left(tmp_path / name, stalled_s={0: 27}, nodes={0: "n0", 1: "n1"}, beats={0: (9, 0), 1: (7, ago_s)})
        found = diagnose(run, (1,))
        assert (found.state, found.cause, found.rank, found.node) == ("timeout", "hang", 1, "n1")
        assert "since step 7; the other ranks waited for 27 s" in found.words


def test_nodes_that_all_wait_do_not_hear_each_other(tmp_path: Path) -> None:
    run = left(
        tmp_path / "run",
        stalled_s={0: 27, 1: 26},
        nodes={0: "n0", 1: "n1"},
        beats={0: (9, 0), 1: (9, 1)},
    )
    found = diagnose(run, (1, 1))
    assert (found.state, found.cause) == ("timeout", "comm_timeout")
    assert "n0 and n1" in found.words
    lost = diagnose(run, (1, 1), unreachable=["n1"])
    assert (lost.state, lost.cause, lost.node) == ("failed", "lost_node", "n1")
    assert "step 9" in lost.words


def test_nothing_at_all_is_a_cause_too(tmp_path: Path) -> None:
    run = left(tmp_path / "run")
    assert "code 7" in diagnose(run, (7,)).words
    assert "no rank ever reported" in diagnose(run, (None,), stop_reason="hang", waited_s=40).words
    assert diagnose(run, (0,)).state == "failed"  # without a record nothing was measured
    assert diagnose(run, (), stop_reason="cancel").state == "cancelled"
    assert diagnose(run, (), stop_reason="time").cause == "time_limit"


def test_the_last_meaningful_line() -> None:
    log = "0: begun\n0: Traceback (most recent call last):\n0:   File x\n0: ValueError: wrong\n0: ===\n0:  exitcode : 1"
    assert last_error_line(log) == "ValueError: wrong"
    assert last_error_line("UserWarning: old\nbash: torchrn: not here\n") == "bash: torchrn: not here"
    assert last_error_line("") == ""
