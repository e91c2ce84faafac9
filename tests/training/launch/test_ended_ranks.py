"""Ranks that could not say themselves how they ended: what torchrun, srun and the kernel say of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from knee.specs.choices import Device
from knee.specs.load import load_cluster, load_model, load_profile, make_job
from knee.training.launch.failures import diagnose
from knee.training.launch.start_ranks import write_job
from knee.training.launch.supervisor import SupervisedRun, supervise
from knee.training.launch.sweep_folder import SweepRun
from knee.training.sweeps.job_for_trainer import RunSettings, train_job

from .test_failures import left


def torchrun_said(*failures: tuple[int, int], at: str = "10:00:00") -> str:
    """What torchrun prints of ranks and their exit codes, the first failure first."""

    def block(number: int, rank: int, code: int) -> str:
        name = {-9: "SIGKILL", -7: "SIGBUS", -11: "SIGSEGV", -15: "SIGTERM", -6: "SIGABRT"}.get(code)
        why = f"Signal {-code} ({name}) received by PID {900 + rank}" if name else "To enable traceback see: https://x"
        return (
            f"[{number}]:\n  time      : 2026-01-15_{at}\n  host      : n{rank}.cluster\n"
            f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {900 + rank})\n"
            f"  error_file: <N/A>\n  traceback : {why}"
        )

    first, *others = (block(number, *failure) for number, failure in enumerate(failures))
    rule, rest = "-" * 60, "\n".join(others) or "  <NO_OTHER_FAILURES>"
    return (
        "E0115 10:00:00.000000 88 torch/elastic/api.py:984] failed\n"
        f"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n{'=' * 9}\nknee.launch.rank FAILED\n"
        f"{rule}\nFailures:\n{rest}\n{rule}\nRoot Cause (first observed failure):\n{first}\n{'=' * 60}\n"
    )


@pytest.mark.parametrize(("code", "name"), [(-9, "SIGKILL"), (-11, "SIGSEGV"), (-7, "SIGBUS"), (-6, "SIGABRT")])
def test_a_signal_that_only_torchrun_has_seen_is_named(code: int, name: str, tmp_path: Path) -> None:
    log = torchrun_said((1, code), (0, -15))
    labelled = "".join(f"0: {line}\n" for line in log.splitlines())
    for run, text in (("a", log), ("b", labelled)):
        found = diagnose(
            left(
                tmp_path / run,
                logs={"rank0.log": "", "rank1.log": "step 4\n", "start0.log": text},
                nodes={1: "node7"},
                beats={1: (4, 0)},
            ),
            (1,),
        )
        assert (found.state, found.cause, found.rank, found.node) == ("failed", "error", 1, "node7")
        assert found.words.startswith(f"rank 1 on node7 was killed by {name}")
        assert found.words.endswith("; its last report was at step 4")
        assert ("/dev/shm" in found.words) == (name == "SIGBUS")
    alone = left(
        tmp_path / "c",
        logs={"start0.log": f"  traceback : Signal {-code} ({name}) received by PID 901"},
        nodes={1: "node7"},
    )
    assert f"rank 1 on node7 was killed by {name}" in diagnose(alone, (1,)).words
    assert f"it was killed by {name}" in diagnose(left(tmp_path / "d"), (code,)).words
    assert f"it was killed by {name}" in diagnose(left(tmp_path / "e"), (128 - code,)).words


def test_a_rank_that_torchrun_killed_itself_was_not_the_first(tmp_path: Path) -> None:
    watchdog = "[rank0]:[E1 ProcessGroupNCCL.cpp:616] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)"
    run = left(tmp_path / "a", logs={"rank0.log": watchdog, "start0.log": torchrun_said((0, -6), (1, -9))})
    assert diagnose(run, (1,)).cause == "comm_timeout"
    run = left(
        tmp_path / "b",
        logs={
            "rank0.log": watchdog,
            "start0.log": torchrun_said((0, -6), at="10:10:00"),
            "start1.log": torchrun_said((1, -9)),
        },
    )
    assert "rank 1 on n1 was killed by SIGKILL" in diagnose(run, (1, 1)).words
    crashed = left(
        tmp_path / "c",
        logs={"start1.log": torchrun_said((1, -11))},
        stalled_s={0: 27},
        beats={0: (9, 0), 1: (7, 20)},
    )
    assert "rank 1 on n1 was killed by SIGSEGV" in diagnose(crashed, (1, 1)).words
    silent = left(tmp_path / "d", logs={"start0.log": torchrun_said((1, 1), (0, -15))})
    assert diagnose(silent, (1,)).words == "rank 1 ended with code 1 and no error message"


def test_srun_names_the_node_of_a_killed_task(tmp_path: Path) -> None:
    run = left(tmp_path / "a", logs={"start0.log": "srun: error: n3: task 0: Segmentation fault (core dumped)"})
    assert diagnose(run, (139,)).words == "a process on n3 was killed by SIGSEGV"
    # srun kills the rest of a step of which one task has failed
    words = "0: ValueError: wrong\nsrun: error: n2: task 0: Exited with exit code 1\nsrun: error: n3: task 1: Killed"
    assert diagnose(left(tmp_path / "b", logs={"start0.log": words}), (1,)).words == "ValueError: wrong"


def test_a_kill_for_memory_counts_only_where_a_rank_was_killed(tmp_path: Path) -> None:
    run = left(tmp_path / "a", logs={"rank0.log": "ValueError: wrong"})
    assert diagnose(run, (1,), killed_for_memory=True).words == "ValueError: wrong"
    run = left(tmp_path / "b", logs={"start0.log": torchrun_said((1, -9))}, nodes={1: "n1"})
    found = diagnose(run, (1,), killed_for_memory=True)
    assert (found.state, found.memory, found.rank, found.node) == ("oom", "host", 1, "n1")


@pytest.mark.parametrize(
    ("device", "line", "fits"),
    [
        ("cuda", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", False),
        ("cuda", "RuntimeError: HIP out of memory. Tried to allocate 2.00 GiB.", False),
        ("cuda", "slurmstepd: error: Detected 1 oom_kill event in StepId=5.0.", None),
        ("cuda", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", None),
        ("cuda", "RuntimeError: unable to write to file </torch_412_3184>: No space left on device (28)", None),
        (
            "cpu",
            "RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried "
            "to allocate 1073741824 bytes. Error code 12 (Cannot allocate memory)",
            False,
        ),
        ("cpu", "RuntimeError: unable to write to file </torch_412_3184>: No space left on device (28)", None),
    ],
)
def test_only_the_devices_own_memory_is_evidence_against_a_plan(
    device: Device, line: str, fits: bool | None, tmp_path: Path
) -> None:
    job, _ = make_job(
        load_model("llama-tiny").spec,
        load_cluster("dgx-h100").spec,
        load_profile("eager").spec,
        gpus=1,
        global_batch=1,
        seq_len=32,
    )
    run = tmp_path / "runs" / "r"
    run.mkdir(parents=True)
    settings = RunSettings(device=device, checkpoint_every=5)
    made = train_job(job, settings, out=str(run), command=[])
    assert (made.checkpoint_every, made.resume) == (5, "auto")  # so a further attempt goes on
    write_job(run, made)
    entry = SweepRun(id="r", name="r", series="s", gpus=1, nodes=1, per_node=1)
    ended = supervise(SupervisedRun(run=run, entry=entry, commands=[["bash", "-c", 'echo "$0" >&2; exit 1', line]]))
    assert (ended.state, ended.cause) == ("oom", "memory")
    record = json.loads((run / "record.json").read_text(encoding="utf-8"))
    assert record["fits"] is fits
    assert record["status"] == ("oom" if fits is False else "failed")
