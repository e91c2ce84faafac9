"""One rank of a run: what it measures, and the record it leaves however it ends."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from knee.base.errors import ExitCode
from knee.measure.machine.gpus import nvml_library
from knee.specs.load import load_model
from knee.specs.plan import Plan
from knee.training.launch.start_ranks import write_job
from knee.training.parallelism.trainer_job import TrainJob
from knee.training.run.run_record import compose, compose_from_files, verdict, write_piece
from knee.trust.validation.user_records import read_records
from refusals import caught, kind, numbers
from waiting import LIMIT_S

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


def a_job(out: Path, **changes: Any) -> TrainJob:
    settings: dict[str, Any] = {
        "gpus": 1,
        "global_batch": 2,
        "seq_len": 16,
        "steps": 6,
        "warmup": 2,
        "timeout_s": LIMIT_S,
    }
    settings |= changes
    plan = Plan(dp_shard=settings["gpus"], micro_batch=settings["global_batch"] // settings["gpus"])
    return TrainJob(model=load_model("llama-tiny").spec, plan=plan, out=str(out), **settings)


class Stub:
    """A trainer whose step does what the test wants."""

    def __init__(self, act: Any = None) -> None:
        self.steps, self.act = 0, act

    def step(self, tokens: Any) -> Any:
        import torch

        assert tokens.shape[1] == 17
        self.steps += 1
        if self.act is not None:
            self.act(self.steps)
        return SimpleNamespace(loss_tensor=torch.tensor(float(self.steps)), norm_tensor=torch.tensor(1.0))


def work(job: TrainJob, monkeypatch: pytest.MonkeyPatch, act: Any = None) -> int:
    from knee.training.run import worker
    from knee.training.run.rank_state import Place

    monkeypatch.delenv("KNEE_LAUNCHED", raising=False)
    monkeypatch.setattr(worker, "build", lambda _: Stub(act))
    return worker.work(job, Place())


def record_of(out: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((out / "record.json").read_text(encoding="utf-8"))
    return record


class Clock:
    """Stands still until it is moved."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def move(self, seconds: float) -> None:
        self.now_s += seconds


def test_the_window_is_the_steps_after_the_warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from knee.training.datasets import token_batches as tokens
    from knee.training.run import timed_steps as measure
    from knee.training.run import worker

    clock, slow = Clock(), {1: 0.2, 2: 0.3}  # the warm-up
    for module in (measure, tokens, worker):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=clock))
    assert work(a_job(tmp_path), monkeypatch, lambda step: clock.move(slow.get(step, 0.01 * step))) == 0
    record = record_of(tmp_path)
    assert record["status"] == "done"
    assert record["window_steps"] == 4
    assert record["losses"] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert record["step_times_s"] == pytest.approx([0.2, 0.3, 0.03, 0.04, 0.05, 0.06])
    assert record["window_s"] == pytest.approx(0.18)
    assert record["step_s"] == pytest.approx(0.045)
    assert record["tokens_per_s"] == pytest.approx(32 / 0.045)
    assert [record[f"step_p{q}_s"] for q in (10, 50, 90)] == pytest.approx([0.033, 0.045, 0.057])
    assert record["data_wait_s"] == 0


def test_what_cannot_be_known_is_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert work(a_job(tmp_path), monkeypatch) == 0
    record = record_of(tmp_path)
    for key in ("mfu_frac", "power_w_per_gpu", "energy_j_per_gpu", "memory_bytes", "memory", "exposed_comm_s"):
        assert record[key] is None, key
    assert record["peak_rss_bytes"] > 0
    assert record["versions"]["torch"]
    assert record["hosts"][0]["inventory"]["cpu"]["cpus"]


def test_knee_calibrate_reads_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert work(a_job(tmp_path), monkeypatch) == 0
    path = tmp_path / "record.json"
    (found,) = read_records(path, path.read_text(encoding="utf-8"), None, None)
    assert found.reason is None
    assert found.pair is not None
    assert found.pair[0].tokens_per_s_per_gpu == pytest.approx(record_of(tmp_path)["tokens_per_s_per_gpu"])


def test_out_of_memory_is_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def act(step: int) -> None:
        if step == 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has a total of ...")

    assert work(a_job(tmp_path), monkeypatch, act) == 3
    record = record_of(tmp_path)
    assert (record["status"], record["failed_rank"], record["steps_done"]) == ("oom", 0, 4)
    assert record["fits"] is False
    assert record["error"] == "out of memory: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert record["window_steps"] == 2  # what was measured until then
    assert record["losses"] == [1.0, 2.0, 3.0, 4.0]


def test_a_failure_is_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def act(step: int) -> None:
        raise ValueError(f"no luck at {step}\nmore")

    assert work(a_job(tmp_path), monkeypatch, act) == ExitCode.FAILED
    record = record_of(tmp_path)
    assert (record["status"], record["error"]) == ("failed", "ValueError: no luck at 1")
    assert record["tokens_per_s"] is None
    assert "rank 0: ValueError: no luck at 1" in capsys.readouterr().err


def test_a_full_disk_is_said_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from knee.base import files
    from knee.training.run import worker

    monkeypatch.setattr(worker, "SETTLE_S", 0.0)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    assert work(a_job(tmp_path), monkeypatch) == ExitCode.FAILED
    said = capsys.readouterr().err
    assert "No space left on device" in said
    assert "Traceback" not in said
    assert not (tmp_path / "record.json").exists()


def test_a_run_that_stops_moving_ends_itself_and_needs_torch_and_numpy_alone(tmp_path: Path) -> None:
    job, worker = write_job(tmp_path, a_job(tmp_path)), Path(__file__).with_name("stuck_worker.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(worker), str(job)]
    done = subprocess.run(command, env=environment, timeout=LIMIT_S, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.FAILED, done.stderr
    record = record_of(tmp_path)
    assert record["status"] == "failed"
    assert "another rank has stopped or is stuck" in record["error"]
    assert record["steps_done"] == 3


def test_a_job_for_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    from knee.training.run.rank_state import Place
    from knee.training.run.worker import work

    error = caught(lambda: work(a_job(tmp_path, gpus=2), Place()))
    assert kind(error) == ("does-not-fill", "WORLD_SIZE")
    assert numbers(error.message) == [2, 1]


def test_the_rank_that_died_is_named(tmp_path: Path) -> None:
    job = a_job(tmp_path, gpus=2)
    lost = {"rank": 0, "host": "a", "status": "failed", "error": "RuntimeError: gloo", "lost_peer": True, "step": 7}
    assert verdict(job, [lost]) == ("failed", "rank 1 exited without an error message", 1)
    write_piece(tmp_path, lost)
    record = compose_from_files(tmp_path, job, lambda _: "was ended by SIGKILL")
    assert record["failed_rank"] == 1
    assert record["error"] == "rank 1 was ended by SIGKILL"
    own = lost | {"rank": 1, "error": "ValueError: mine", "lost_peer": False}
    assert verdict(job, [lost, own]) == ("failed", "ValueError: mine", 1)


def test_means_over_ranks(tmp_path: Path) -> None:
    job = a_job(tmp_path, gpus=2)
    load = {"collective": "all_gather", "group": "dp_shard", "group_size": 2, "calls": 5.0, "message_bytes": 8.0}
    times = dict.fromkeys(
        (
            "compute_load_s",
            "comm_load_s",
            "compute_s",
            "comm_s",
            "exposed_comm_s",
            "overlapped_comm_s",
            "bubble_s",
            "idle_s",
            "copies_s",
        ),
        0.5,
    )
    power = {"counter_w": 100.0, "draw_w": 90.0, "energy_j": 400.0, "sm_hz": None, "power_limit_w": 700.0}
    pieces = [
        {
            "rank": rank,
            "host": "a",
            "status": "done",
            "error": None,
            "step": 6,
            "window_s": 4.0 + rank,
            "window_steps": 4,
            "window_times_s": [1.0] * 4,
            "power": {**power, "counter_w": 100.0 * (rank + 1)},
            "memory": {
                "memory_bytes": 10.0 + rank,
                "peak_allocated_bytes": 1.0,
                "peak_reserved_bytes": 2.0,
                "peak_rss_bytes": 3.0,
            },
            "trace": {
                **times,
                "step_s": 1.0,
                "steps": 3,
                "notes": [],
                "comm_loads": [{**load, "load_s": 0.1 * rank, "exposed_s": 0.04 * rank}],
            },
        }
        for rank in range(2)
    ]
    record = compose(job, pieces)
    assert record["step_s"] == 1.25  # the slowest rank's
    assert record["tokens_per_s"] == 32 / 1.25
    assert record["memory_bytes"] == 11.0
    assert record["power_w_per_gpu"] == 150.0
    assert record["comm_loads"][0]["load_s"] == pytest.approx(0.05)
    assert record["comm_loads"][0]["exposed_s"] == pytest.approx(0.02)
    assert record["idle_s"] == 0.5


def test_the_peak_is_the_catalogues_or_none() -> None:
    from knee.training.run.timed_steps import peak_of
    from knee.training.sweeps.job_for_trainer import gpus_known

    known = gpus_known()
    h200 = {"name": "NVIDIA H200", "sms": 132, "memory_bytes": 143771 * 2.0**20}
    assert peak_of(h200, "bf16", known)["peak_flop_per_s"] == 989e12
    assert "H200" in peak_of(h200, "bf16", known)["peak_source"].upper()
    assert peak_of(h200, "fp32", known)["peak_flop_per_s"] is None
    pcie = {"name": "NVIDIA H100 PCIe", "sms": 114, "memory_bytes": 80e9}
    assert peak_of(pcie, "bf16", known) == {
        "peak_flop_per_s": None,
        "peak_source": "the catalogue does not know NVIDIA H100 PCIe",
    }


class Board:
    """A GPU that draws 300 W, by its counter and by its readings, and is read every 40 ms."""

    has_counter = True

    def __init__(self, clock: Clock) -> None:
        self.clock, self.reads, self.read_often = clock, 0, threading.Event()

    def energy_j(self) -> float:
        self.clock.move(0.04)
        return 300.0 * self.clock.now_s // 3 * 3  # refreshes every 10 ms

    def mean_w(self) -> float:
        return 290.0

    def sm_hz(self) -> float:
        self.reads += 1
        if self.reads == 50:
            self.read_often.set()
        return 1.9e9

    def held_by(self) -> tuple[bool, bool]:
        return True, False

    def limits(self) -> Any:
        return SimpleNamespace(power_limit_w=700.0, driver="580")


def test_power_over_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    from knee.training.run import power_meter as power

    board = Board(Clock())
    monkeypatch.setattr(power, "time", SimpleNamespace(perf_counter=board.clock))
    monkeypatch.setattr(power, "PERIOD_S", 0.0)
    window = power.PowerWindow(board)
    window.start()
    assert board.read_often.wait(LIMIT_S)
    window.stop()
    found = window.result()
    assert found["counter_w"] == pytest.approx(300.0, rel=0.02)
    assert found["energy_j"] == pytest.approx(300.0 * found["window_s"], rel=0.02)
    assert found["samples"] >= 50 - power.BOXCAR_S / 0.04  # in long windows the first second's are left out
    assert found["draw_w"] == 290.0
    assert (found["power_limit_w"], found["power_capped_frac"], found["heat_capped_frac"]) == (700.0, 1.0, 0.0)


@pytest.mark.skipif(nvml_library() is None, reason="there is no NVIDIA driver")
def test_a_gpu_tells_memory_power_and_kernels(tmp_path: Path) -> None:
    import torch

    from knee.training.run.rank_state import Place
    from knee.training.run.worker import work

    if not torch.cuda.is_available():
        pytest.skip("torch cannot use the GPU")
    job = a_job(tmp_path, device="cuda", dtype="bf16", steps=200, warmup=20, trace_steps=2, seq_len=128)
    assert work(job, Place()) == 0
    record = record_of(tmp_path)
    assert record["memory_bytes"] > record["peak_reserved_bytes"] >= record["peak_allocated_bytes"] > 0
    assert 0 < record["power_w_per_gpu"] <= 1.1 * record["power_limit_w"]
    assert 0 < record["compute_s"] <= record["traced_step_s"]
    assert sum(record["step_times_s"][20:]) == pytest.approx(record["window_s"], rel=0.1)
    assert record["trace"]["kernels"][0]["load_s"] > 0
