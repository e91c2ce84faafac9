"""``knee sweep`` as a stranger uses it: what is refused, what is estimated, what is interrupted, odd names."""

from __future__ import annotations

import json
import shlex
import signal
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from knee.base.errors import InputError
from knee.commands.main import main
from knee.training.launch import supervisor as supervisor
from knee.training.launch.rank import interface_towards
from knee.training.launch.run_status import Status, write_status
from knee.training.launch.sweep_folder import locked
from knee.training.sweeps.stop_rule import MeasuredRate, poor_doublings, rate_of, start_order
from lanes import nightly
from refusals import kind, numbers

from .sweeps import (
    KNEE,
    NEVER,
    TINY,
    an_entry,
    ask,
    ended,
    program,
    refused,
    run_folder,
    running,
    start,
    states,
    status,
    sweep,
    until,
)

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


def test_a_dry_run_checks_and_estimates_and_writes_nothing(grid: Path, tmp_path: Path) -> None:
    result = ask(grid, "--out", tmp_path / "out", "--dry-run", "--json", "--steps", "20")
    data = json.loads(result.stdout)
    assert not (tmp_path / "out").exists()
    assert (data["runs_to_start"], data["runs_refused"]) == (3, 1)
    assert data["gpu_h"] == pytest.approx(sum(run["gpu_h"] for run in data["runs"] if not run["refused"]))
    assert data["cost_usd"] is None  # a processor has no price
    tokens = [run["id"] for run in data["runs"]]
    assert tokens[3].startswith("0004-llama-tiny-g2-tp2-")
    again = json.loads(ask(grid, "--out", tmp_path / "b", "--dry-run", "--json", "--steps", "20").stdout)
    assert [run["id"] for run in again["runs"]] == tokens


def test_what_does_not_fit_or_fill_nodes_is_not_started(tmp_path: Path) -> None:
    path = tmp_path / "big.toml"
    path.write_text(
        'model = "llama2-7b"\ncluster = "dgx-h100"\nprofile = "knee"\ngpus = [1, 12, 512]\nlocal_batch = 1\n',
        encoding="utf-8",
    )
    data = json.loads(ask(path, "--out", tmp_path / "o", "--launcher", "slurm", "--dry-run", "--json").stdout)
    why = [run["refused"] for run in data["runs"]]
    assert "it does not fit" in why[0]
    assert "12 GPUs do not fill whole nodes of 8" in why[1]
    assert not why[2]
    assert data["cost_usd"] > 0
    assert data["runs"][2]["nodes"] == 64
    anyway = json.loads(
        ask(path, "--out", tmp_path / "o", "--launcher", "slurm", "--dry-run", "--json", "--anyway").stdout
    )
    assert [bool(run["refused"]) for run in anyway["runs"]] == [False, True, False]
    error = refused(path, "--out", tmp_path / "o", "--launcher", "slurm", "--dry-run", "--max-gpu-hours", "1")
    assert kind(error) == ("too-many-gpu-hours", "max_gpu_hours")
    assert numbers(error.message)[-1] == 1


@pytest.mark.parametrize(
    ("words", "code", "field"),
    [
        (("figg6", "--out", "o"), "unknown-name", "study"),
        (("statu", "--out", "o"), "unknown-command", None),
        (("fig6",), "missing-argument", "out"),
        (("fig6", "--out", "o", "--launcher", "slrum"), "unknown-choice", "launcher"),
        (("fig6", "--out", "o", "--set", "gpu=4"), "not-an-override", "gpu"),
        (("fig6", "--out", "o", "--steps", "0"), "out-of-range", "steps"),
        (("fig6", "--out", "o", "--timeout", "0"), "out-of-range", "timeout_s"),
        (("fig6", "--out", "o", "--env", "A"), "not-key-value", "env"),
        (("fig6", "--out", "o", "--env", "A B=1", "--dry-run"), "not-a-name", "env"),
        (("fig6", "--out", "o", "--partition", "gpu"), "contradiction", "partition"),
        (
            ("fig6", "--out", "o", "--launcher", "slurm", "--partition", "a\n#SBATCH --x", "--dry-run"),
            "invalid-value",
            "partition",
        ),
        (("fig6", "--out", "o", "--launcher", "slurm", "--time", "soon", "--dry-run"), "invalid-value", "time"),
        (("fig6", "--out", "o", "--launcher", "torchrun"), "missing-argument", "hosts"),
        (("fig6", "--out", "o\nrm", "--dry-run"), "not-a-folder-name", "out"),
        (("fig6", "--out", "o", "--program", "it's"), "invalid-value", "program"),
        (("fig6", "--out", "o", "--program", " "), "missing-argument", "program"),
        (("fig6", "--out", "o", "--program", "/no/such"), "missing-command", "program"),
        (("fig6", "--out", "o", "--python", "./no-python"), "missing-command", "python"),
        (
            ("fig6", "--out", "o", "--launcher", "torchrun", "--hosts", "a", "--via", "ssh {host.x}"),
            "not-a-format",
            "via",
        ),
        (("fig6", "--out", "o", "--launcher", "torchrun", "--hosts", "-oProxyCommand=touch /x"), "not-a-name", "hosts"),
        (
            ("fig6", "--out", "o", "--container", "i", "--container-runtime", "pyxis"),
            "contradiction",
            "container_runtime",
        ),
        (
            ("fig6", "--out", "o", "--launcher", "torchrun", "--container-runtime", "pyxis"),
            "contradiction",
            "container_runtime",
        ),
        (("fig6", "--out", "o", "--exclude", "n1"), "contradiction", "exclude"),
        (("fig6", "--out", "o", "--pack", "2"), "contradiction", "pack"),
        (("fig6", "--out", "o", "--launcher", "torchrun", "--hosts", "a", "--wait"), "contradiction", "wait"),
        (("fig6", "--out", "o", "--max-queued", "2"), "contradiction", "max_queued"),
        (("fig6", "--out", "o", "--max-running", "2"), "contradiction", "max_running"),
        (("fig6", "--out", "o", "--cpus-per-node", "2"), "contradiction", "cpus_per_node"),
        (("fig6", "--out", "o", "--gpus-per-node", "2"), "contradiction", "gpus_per_node"),
        (("fig6", "--out", "o", "--hosts", "a"), "contradiction", "hosts"),
        (("fig6", "--out", "o", "--launcher", "slurm", "--via", "ssh {host}"), "contradiction", "via"),
        (("fig6", "--out", "o", "--time", "0"), "out-of-range", "time"),
        (("fig6", "--out", "o", "--max-gpu-hours", "nan"), "out-of-range", "max_gpu_hours"),
        (("fig6", "--out", "o", "--max-gpu-hours", "-1"), "out-of-range", "max_gpu_hours"),
        (("fig6", "--out", "o", "--setup", "none.sh", "--dry-run"), "no-file", "setup"),
        (("table1", "--out", "o"), "no-grid", "grid"),
        (("status", "nowhere"), "no-file", "folder"),
        (("retry", "nowhere"), "no-file", "folder"),
        (("cancel", "nowhere"), "no-file", "folder"),
        (("fig6", "--out", "o", "--stpes", "3"), "unknown-option", "--stpes"),
    ],
)
def test_mistakes_are_refused_by_code_and_option(
    words: tuple[str, ...], code: str, field: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert kind(refused(*words)) == (code, field)


def test_cheap_runs_first_and_few_gpus_first_until_the_knee() -> None:
    entries = [an_entry(id="1", gpus=8, gpu_h=1.0), an_entry(id="2", gpus=1, gpu_h=2.0), an_entry(id="3", gpu_h=None)]
    assert [entry.id for entry in start_order(entries)] == ["1", "2", "3"]
    assert [entry.id for entry in start_order(entries, until_knee=True)] == ["2", "3", "1"]


def test_a_doubling_does_not_pay_once_that_is_sure() -> None:
    def step(rate: float, error: float) -> bool:
        pair = [
            MeasuredRate(gpus=8, tokens_per_s=100.0, error_frac=error),
            MeasuredRate(gpus=16, tokens_per_s=rate, error_frac=error),
        ]
        return not list(poor_doublings(pair))

    assert step(150.0, 0.001)
    assert not step(140.0, 0.01)
    assert step(140.0, 0.05)  # 1.4x, but it may be 1.57x
    few, many = (
        MeasuredRate(gpus=1, tokens_per_s=1.0, error_frac=0),
        MeasuredRate(gpus=4, tokens_per_s=1.96, error_frac=0),
    )
    ((gpus, why),) = poor_doublings([few, many])
    assert gpus == 4
    assert "1.40" in why
    assert not list(poor_doublings([few, few]))  # two runs of one count
    record = {
        "status": "done",
        "gpus": 2,
        "tokens_per_s": 10.0,
        "window_steps": 4,
        "step_times_s": [9.0, 1.0, 1.1, 0.9, 1.0],
    }
    rate = rate_of(record)
    assert rate is not None
    assert rate.error_frac == pytest.approx(0.0408, abs=1e-3)
    assert rate_of(record | {"status": "failed"}) is None


def test_a_series_ends_at_its_knee(tmp_path: Path) -> None:
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(
        TINY.replace("global_batch = 4", "local_batch = 2") + "[[grid]]\ngpus = [1, 2, 4, 8]\n"
        "plan = { recompute = ['none', 'full'] }\n",
        encoding="utf-8",
    )
    words = (grid, "--out", out, "--program", program(tmp_path / "knee.sh", KNEE))
    sweep(*words, "--until-knee")
    found = status(out)
    assert [one["state"] for one in found.values()] == ["done"] * 4 + ["cancelled"] * 4
    assert "from 1 to 2 GPUs, a doubling gave 1.00x" in found["0008"]["words"]
    sweep(*words)  # without it, the rest is run as well
    assert set(states(out).values()) == {"done"}


def test_interrupted_cancelled_and_two_at_once(grid: Path, tmp_path: Path, stub: str) -> None:
    out = tmp_path / 'o\'s "ut" $x'
    words = (grid, "--out", out, "--program", stub)
    with start(*words, "--env", NEVER) as first:
        until(lambda: running(out), "a run runs", by=first)
        assert kind(refused(*words)) == ("folder-in-use", "folder")
        first.send_signal(signal.SIGINT)
        ended(first, code=130)
    found = status(out)
    assert (found["0001"]["state"], found["0001"]["cause"]) == ("pending", "interrupted")
    with start(*words, "--env", NEVER) as second:
        until(lambda: running(out), "a run runs again", by=second)
        sweep("cancel", out)
        ended(second, code=5)
    assert states(out) == dict.fromkeys(("0001", "0003", "0004"), "cancelled") | {"0002": "failed"}
    sweep(*words)
    assert states(out) == dict.fromkeys(("0001", "0003", "0004"), "done") | {"0002": "failed"}
    assert kind(refused(*words, "--set", "gpus=1")) == ("another-sweep", "out")
    table, _ = sweep("status", out)
    assert "4 runs: 3 done, 1 failed" in table


def test_what_does_not_move_is_ended(grid: Path, tmp_path: Path, stub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stub never ends, so that it hangs however short the timeout is, on any machine."""
    monkeypatch.setattr(supervisor, "TIMEOUT_MARGIN_S", 0.0)
    monkeypatch.setattr(supervisor, "HEARTBEAT_POLL_S", 0.1)
    out = tmp_path / "out"
    sweep(grid, "--out", out, "--program", stub, "--set", "gpus=1", "--env", NEVER, "--timeout", "0.2", codes=(5,))
    hung = status(out)["0001"]
    assert (hung["state"], hung["cause"]) == ("timeout", "hang")
    sweep("retry", out, "--status", "timeout", codes=(5,))
    assert status(out)["0001"]["attempts"] == 2


def test_a_program_is_looked_up_where_the_command_is_given(
    grid: Path, tmp_path: Path, stub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(shlex.split(stub)[0]).rename(tmp_path / "stub.sh")
    for number, words in enumerate(("./stub.sh", "bash stub.sh")):
        sweep(grid, "--out", tmp_path / f"out{number}", "--program", words, "--set", "gpus=1")
        assert status(tmp_path / f"out{number}")["0001"]["state"] == "done"
    (tmp_path / "stub.sh").chmod(0o644)
    error = refused(grid, "--out", tmp_path / "b", "--program", "./stub.sh", "--set", "gpus=1")
    assert kind(error) == ("missing-command", "program")
    assert not (tmp_path / "b").exists()


def test_only_what_is_still_to_be_started_counts(grid: Path, tmp_path: Path, stub: str) -> None:
    words = (grid, "--out", tmp_path / "out", "--program", stub, "--set", "gpus=1")
    assert kind(refused(*words, "--max-gpu-hours", "0")) == ("too-many-gpu-hours", "max_gpu_hours")
    sweep(*words)
    sweep(*words, "--max-gpu-hours", "0")


def test_the_same_grid_under_another_name_is_the_same_sweep(grid: Path, tmp_path: Path, stub: str) -> None:
    out = tmp_path / "out"
    sweep(grid, "--out", out, "--program", stub, "--set", "gpus=1")
    sweep(grid.rename(tmp_path / "renamed.toml"), "--out", out, "--program", stub, "--set", "gpus=1")
    assert status(out)["0001"]["attempts"] == 1
    facts = json.loads((run_folder(out, "0001") / "job.json").read_text(encoding="utf-8"))["facts"]
    # a record's profile is that of the program that ran; what the grid asked for stands beside it
    assert (facts["profile"], facts["profile_asked"]) == (None, "eager")
    error = refused(tmp_path / "renamed.toml", "--out", out, "--program", stub, "--dry-run")
    assert kind(error) == ("another-sweep", "out")


def test_points_that_are_the_same_run_are_told(grid: Path, tmp_path: Path) -> None:
    result = ask(grid, "--out", tmp_path / "o", "--dry-run", "--set", "gpus=1,1,1")
    assert "4 points repeat another run" in result.stderr


FAILS = """#!/bin/bash
[ -e "$1/../../mended" ] && echo '{"status": "done"}' > "$1/record.json"
"""


def test_retry_starts_what_is_named_and_nothing_else(tmp_path: Path) -> None:
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(TINY + "[[grid]]\ngpus = 1\nseq_len = [32, 36, 40]\n", encoding="utf-8")
    _, err = sweep(grid, "--out", out, "--program", program(tmp_path / "fails.sh", FAILS), codes=(5,))
    assert f"`knee sweep retry {out} --status failed` starts them again" in err
    write_status(run_folder(out, "0003"), Status())
    (out / "mended").touch()
    sweep("retry", out, "--run", run_folder(out, "0002").name, codes=(5,))
    assert list(states(out).values()) == ["failed", "done", "pending"]
    for state in ("pending", "running"):
        assert refused("retry", out, "--status", state).code == "not-ended"
    assert refused("status", out, "--watch", "--json").code == "contradiction"


def test_what_may_change_from_call_to_call(tmp_path: Path, stub: str) -> None:
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(TINY + "[[grid]]\ngpus = 2\nglobal_batch = [4, 65536]\nseq_len = 256\n", encoding="utf-8")
    sweep(grid, "--out", out, "--program", stub)
    found = status(out)
    assert [one["state"] for one in found.values()] == ["done", "failed"]
    assert "it does not fit" in found["0002"]["words"]
    out = out.rename(tmp_path / "moved")
    sweep(grid, "--out", out, "--program", stub, "--anyway", "--timeout", "77")
    assert {one["state"] for one in status(out).values()} == {"done"}
    job = json.loads((run_folder(out, "0002") / "job.json").read_text(encoding="utf-8"))
    assert (job["out"], job["timeout_s"]) == (str(run_folder(out, "0002")), 77.0)


def test_the_lock_goes_with_its_process(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(InputError) as error, locked(tmp_path):
        pass
    assert error.value.code == "folder-in-use"
    with locked(tmp_path):
        pass


def test_the_way_to_a_host() -> None:
    assert interface_towards("127.0.0.1") == "lo"
    assert interface_towards("no such host") is None


@nightly
@needs_torch
def test_a_run_for_real_stands_beside_its_simulation(tmp_path: Path) -> None:
    """The paper's figure at a tiny size: what fits no two processes is refused, and one plan is trained."""
    grid, out, page = tmp_path / "grid.toml", tmp_path / "sweep", tmp_path / "page.html"
    grid.write_text(TINY + "[[grid]]\ngpus = 2\nseq_len = 64\nplan = { tp = [1, 4] }\n", encoding="utf-8")
    sweep(grid, "--out", out, "--steps", "4", "--warmup", "1", "--trace-steps", "1")
    assert [(one["state"], one["cause"]) for one in status(out).values()] == [("done", ""), ("failed", "spec")]
    _, err = knee("study", "run", grid, "--records", out, "--no-page", "--json", "--out", tmp_path / "study")
    assert "1 measured" in err
    rows = json.loads(knee("report", out, "--simulate", "--json", "-o", page)[0])["rows"]
    assert Counter(row["kind"] for row in rows) == {"measured": 1, "simulated": 1}
    assert all(row["tokens_per_s"] > 0 and row["exposed_frac"] > 0 for row in rows)
    assert "1 measured and 1 simulated step" in page.read_text(encoding="utf-8")
    if find_spec("scipy") is not None:
        assert json.loads(knee("calibrate", out, "--json")[0])["runs"] == 1


def knee(*words: str | Path) -> tuple[str, str]:
    result = CliRunner().invoke(main, list(map(str, words)))
    assert result.exit_code in (0, 5), result.output
    return result.stdout, result.stderr
