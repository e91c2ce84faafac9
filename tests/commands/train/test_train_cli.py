"""``knee train`` as a stranger uses it: real runs of one and two processes, ended in every way, and bad input."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from knee.base.errors import DoesNotFit, ExitCode, InputError, NotWritten, RunFailed
from knee.commands.main import main
from knee.commands.train.api import TrainedRun, train, write_train_job
from lanes import nightly
from waiting import LIMIT_S, until

HAS_TORCH = find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
SOURCES = Path(__file__).parents[3] / "src"
SMALL = ("llama-tiny", "--device", "cpu", "--seq-len", "32", "--global-batch", "4", "--micro-batch", "2")
SIZES: dict[str, Any] = {"seq_len": 32, "global_batch": 4, "micro_batch": 2, "steps": 6}
"""The same for a script."""
ENDLESS = ("--steps", "100000", "--timeout", f"{LIMIT_S:.0f}", "--out", "run")


def start(folder: Path, *options: str, module: tuple[str, ...] = ("-m", "knee")) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        environment.pop(name, None)
    return subprocess.Popen(
        [sys.executable, *module, "train", *SMALL, *options],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    with start(folder, *options, "--json") as process:
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    record: dict[str, Any] = json.loads(out)
    return record, err


def until_step(out: Path, rank: int, process: subprocess.Popen[str]) -> int:
    """Wait until a rank trains; its process id."""
    path = out / "heartbeats" / f"rank{rank}.json"

    def trains() -> int | None:
        beat = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"step": 0}
        return int(beat["pid"]) if beat["step"] >= 2 else None

    return until(trains, of=process)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, whoever should have waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def record_of(out: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((out / "record.json").read_text(encoding="utf-8"))
    return record


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    return finish(tmp_path_factory.mktemp("one"), "--steps", "6", "--trace-steps", "1")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainedRun, list[str], str]:
    """A script's run, what it was told and what was logged."""
    out, said, log = tmp_path_factory.mktemp("two") / "run", [], io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SOURCES))
        patch.setenv("OMP_NUM_THREADS", "1")
        run = train("llama-tiny", device="cpu", out=out, say=said.append, log=log, nproc=2, trace_steps=1, **SIZES)
    return run, said, log.getvalue()


@needs_torch
def test_one_process_needs_no_option(one: tuple[dict[str, Any], str]) -> None:
    record, err = one
    assert (record["kind"], record["status"], record["gpus"], record["dtype"]) == ("measured", "done", 1, "fp32")
    assert record["window_steps"] == 5
    assert len(record["losses"]) == len(record["grad_norms"]) == 6
    assert record["compute_load_s"] > 0
    assert record["comm_load_s"] == 0
    assert record["flop_convention"] == "palm"
    assert (record["mfu_frac"], record["power_w_per_gpu"]) == (None, None)
    assert record["profile"] == "eager"
    assert record["cluster"] == "cpu"
    assert "loss" in err
    assert "tokens/s" in err
    assert "Traceback" not in err


@needs_torch
def test_a_script_trains_on_two_processes_as_the_command_does_on_one(
    one: tuple[dict[str, Any], str], two: tuple[TrainedRun, list[str], str]
) -> None:
    run, said, log = two
    run.check_written()
    run.check_done()
    assert run.to_dict() == record_of(run.out)
    assert (run.signal, run.rank_code) == (None, None)
    assert run.record["losses"] == pytest.approx(one[0]["losses"], rel=1e-5)
    assert run.record["grad_norms"] == pytest.approx(one[0]["grad_norms"], rel=1e-4)
    assert [row["status"] for row in run.record["ranks"]] == ["done", "done"]
    assert len(said) == 3
    assert "tokens/s" in log
    with pytest.raises(InputError) as refused:
        train("llama-tiny", device="cpu", out=run.out, **SIZES)
    assert (refused.value.code, refused.value.field) == ("already-there", "out")


@pytest.mark.parametrize(("status", "error"), [("oom", DoesNotFit), ("failed", RunFailed), ("terminated", RunFailed)])
def test_a_run_that_ends_early_is_raised_when_asked(tmp_path: Path, status: str, error: type[Exception]) -> None:
    record = {"status": status, "error": "it broke", "failed_rank": 1, "steps_done": 3}
    run = TrainedRun(record=record, out=tmp_path)
    with pytest.raises(error, match="it broke"):
        run.check_done()
    with pytest.raises(NotWritten):
        run.check_written()


@needs_torch
def test_communication_is_read_from_the_traces(two: tuple[TrainedRun, list[str], str]) -> None:
    record = two[0].record
    loads = {(load["collective"], load["group"]): load for load in record["comm_loads"]}
    # without resharding every block is gathered once a step, and so is the root: 4 + 1
    assert loads["all_gather", "dp_shard"]["calls"] == 5
    assert loads["reduce_scatter", "dp_shard"]["calls"] == 5
    assert loads["all_gather", "dp_shard"]["group_size"] == 2
    assert record["comm_s"] == pytest.approx(record["exposed_comm_s"] + record["overlapped_comm_s"])
    assert record["trace"]["ranks"] == 2


@needs_torch
def test_a_rank_that_is_killed_ends_the_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with start(tmp_path, "--nproc", "2", *ENDLESS) as process:
        os.kill(until_step(out, 1, process), signal.SIGKILL)
        _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == ExitCode.FAILED
    assert err.count("error:") == 1
    assert "rank 1 was killed by SIGKILL" in err
    record = record_of(out)
    assert (record["status"], record["failed_rank"]) == ("failed", 1)
    assert record["steps_done"] >= 2
    assert len(record["losses"]) >= 2


@needs_torch
def test_a_launcher_that_is_killed_leaves_a_record(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with start(tmp_path, *ENDLESS) as process:
        pids = [until_step(out, 0, process)]
        process.kill()
        process.communicate(timeout=LIMIT_S)
    until(lambda: all(map(has_ended, pids)))
    record = record_of(out)
    assert (record["status"], record["error"]) == ("terminated", "the process that started it has ended")
    assert record["steps_done"] >= 2


@needs_torch
def test_a_run_that_is_told_to_end_leaves_a_record(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with start(tmp_path, "--warmup", "1", *ENDLESS) as process:
        until_step(out, 0, process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert "ended by SIGTERM" in err
    record = record_of(out)
    assert (record["status"], record["fits"]) == ("terminated", None)
    assert record["tokens_per_s"] > 0
    assert record["window_steps"] >= 1


@nightly
@needs_torch
def test_torchrun_starts_the_same_run(tmp_path: Path, two: tuple[TrainedRun, list[str], str]) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "knee")
    with start(tmp_path, "--steps", "6", "--trace-steps", "0", "--out", "run", module=torchrun) as process:
        _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    record = record_of(tmp_path / "run")
    assert record["status"] == "done"
    assert record["losses"] == pytest.approx(two[0].record["losses"], rel=1e-6)


def refused(*args: str, code: int = 2) -> str:
    result: Result = CliRunner().invoke(main, ["train", *args])
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    assert result.stdout == ""
    assert result.stderr.count("error:") == 1
    assert "Traceback" not in result.stderr
    return result.stderr


@needs_torch
def test_a_plan_that_does_not_fill_the_processes(tmp_path: Path) -> None:
    assert "tp(4)" in refused(*SMALL, "--nproc", "2", "--tp", "4", "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@needs_torch
def test_a_record_is_not_replaced_unasked(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text("{}", encoding="utf-8")
    assert "--force" in refused(*SMALL, "--out", str(tmp_path))


@needs_torch
def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert "cannot be created" in refused(*SMALL, "--out", str(tmp_path / "file"))


@needs_torch
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--steps", "5", "--warmup", "5"), "has only 5 steps"),
        (("--nproc", "0"), "--nproc is 0"),
        (("--dtype", "bf16", "--precision", "fp16"), "contradict"),
        (("--sharding", "zero1"), "simulated but not trained"),
        (
            ("--nproc", "2", "--sharding", "ddp", "--dp-replicate", "2", "--sync-every", "5"),
            "every 5 steps can be simulated",
        ),
        (("--dtype", "fp32", "--precision", "fp16"), "contradict"),
        (("--dtype", "int4"), "is not one of"),
        (("--lr", "nan"), "lr is nan"),
        (("--seed", "9999999999"), "seed is 9999999999"),
        (("--timeout", "inf"), "timeout_s is inf"),
        (("--attention", "cudnn"), "a kernel for GPUs"),
        (("--flop-convention", "mine"), "no FLOP convention"),
        (("--profile", "nobody"), "nobody"),
    ],
)
def test_bad_input_is_refused_in_words(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    assert words in refused(*SMALL, *options, "--out", str(tmp_path / "run"))


@needs_torch
def test_torchruns_ranks_agree_on_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert "--out is missing" in refused(*SMALL)
    assert "leave --nproc out" in refused(*SMALL, "--nproc", "2", "--out", "x")


def test_a_job_for_another_machine(tmp_path: Path) -> None:
    """Neither torch nor a GPU is needed to write one."""
    from knee.training.parallelism.trainer_job import TrainJob

    path = tmp_path / "job.json"
    result = CliRunner().invoke(
        main, ["train", "llama-1b", "--device", "cuda", "--nproc", "8", "--tp", "2", "--out", "run", "--job", str(path)]
    )
    assert result.exit_code == 0, result.stderr
    assert "torchrun --nproc-per-node 8 -m knee.training.run.worker" in result.stderr
    job = TrainJob.from_json(json.loads(path.read_text(encoding="utf-8")))
    assert (job.device, job.dtype, job.steps, job.warmup, job.plan.dp_shard) == ("cuda", "bf16", 60, 10, 4)
    assert any(gpu["gpu"] == "h200-sxm" for gpu in job.facts["gpus_known"])
    written = write_train_job("llama-1b", path, device="cuda", nproc=8, tp=2, out="run")
    assert written.to_dict() == {"job": str(path), "record": "run"}
    assert written.command == f"torchrun --nproc-per-node 8 -m knee.training.run.worker {path}"
    assert TrainJob.from_json(json.loads(path.read_text(encoding="utf-8"))) == written.job


@pytest.mark.parametrize(
    ("settings", "code", "field"),
    [
        ({"nproc": 0}, "out-of-range", "nproc"),
        ({"device": "tpu"}, "unknown-choice", "device"),
        ({"dtype": "bf16", "precision": "fp16"}, "contradiction", "dtype"),
        ({"local_batch": 1, "global_batch": 1}, "contradiction", "local_batch"),
        ({"step": 6}, "unknown-argument", "step"),
    ],
)
def test_functions_refuse_with_codes(tmp_path: Path, settings: dict[str, Any], code: str, field: str) -> None:
    with pytest.raises(InputError) as refused:
        write_train_job("llama-tiny", tmp_path / "job.json", **settings)
    assert (refused.value.code, refused.value.field) == (code, field)
    assert "--" not in refused.value.message
    assert not (tmp_path / "job.json").exists()


@needs_torch
def test_data_that_is_not_there(tmp_path: Path) -> None:
    assert "none" in refused(*SMALL, "--data", str(tmp_path / "none"), "--out", str(tmp_path / "run"))


def test_without_torch_the_install_command_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from knee.measure.machine import machine_facts as machine

    monkeypatch.setattr(machine, "find_spec", lambda _: None)
    assert "pip install 'knee[train]'" in refused(*SMALL, code=4)


def test_a_model_that_is_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    from knee.measure.machine import machine_facts as machine

    monkeypatch.setattr(machine, "find_spec", lambda _: object())
    assert "Llama decoders" in refused("gpt3-175b", "--device", "cpu")
