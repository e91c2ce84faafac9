"""Until the knee: only like runs are compared, and only what was measured is evidence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from knee.commands.sweep.api import requested_runs
from knee.training.launch.run_status import Cause, State, Status
from knee.training.launch.sweep_folder import Sweep, SweepRun
from knee.training.sweeps.stop_rule import StopRule, rate_of

from .sweeps import TINY

DONE = {"status": "done", "gpus": 2, "tokens_per_s": 10.0, "window_steps": 3, "step_times_s": [9.0, 1.0, 1.001, 0.999]}
WEAK = TINY.replace("global_batch = 4\n", "")


def series_of(tmp_path: Path, text: str, *sets: str) -> list[tuple[int, int, str]]:
    """GPUs, global batch and series of each point of a grid."""
    path = tmp_path / f"grid{len(list(tmp_path.iterdir()))}.toml"  # a study is read once
    path.write_text(text, encoding="utf-8")
    changes = dict(text.split("=") for text in sets)
    return [(one.gpus, one.question["global_batch"], one.series) for one in requested_runs(str(path), changes)]


def test_a_series_keeps_the_batch_that_its_grid_is_given_by(tmp_path: Path) -> None:
    weak = series_of(tmp_path, WEAK + "[[grid]]\ngpus = [1, 2, 4]\nlocal_batch = [4, 8]\n")
    assert len({name for *_, name in weak}) == 2
    assert all(f"batch {total // gpus} per GPU" in name for gpus, total, name in weak)
    strong = series_of(tmp_path, WEAK + "[[grid]]\ngpus = [1, 2, 4]\nglobal_batch = [8, 16]\n")
    assert len({name for *_, name in strong}) == 2
    assert all(f"batch {total} in total" in name for _, total, name in strong)
    # what the command line says goes before the grid
    changed = series_of(tmp_path, WEAK + "[[grid]]\ngpus = [1, 2]\nlocal_batch = 4\n", "global_batch=8")
    assert {name for *_, name in changed} == {changed[0][2]}
    assert "batch 8 in total" in changed[0][2]


def test_another_model_is_another_series(tmp_path: Path) -> None:
    found = series_of(tmp_path, TINY + '[[grid]]\ngpus = [1, 2]\nset = { "model.layers" = [2, 4] }\n')
    assert len({name for *_, name in found}) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"tokens_per_s": 0},
        {"tokens_per_s": float("nan")},
        {"tokens_per_s": float("inf")},
        {"tokens_per_s": "fast"},
        {"tokens_per_s": 10**400},
        {"tokens_per_s": True},
        {"gpus": None},
        {"gpus": 0},
        {"window_steps": "three"},
        {"window_steps": 2},
        {"window_steps": float("nan")},
        {"step_times_s": [0.0, 0.0, 0.0]},
        {"step_times_s": 1.0},
        {"step_times_s": [1.0, float("nan"), 1.0]},
        {"step_times_s": None},
        {"status": "failed"},
    ],
)
def test_what_is_no_measurement_is_no_evidence(change: dict[str, Any]) -> None:
    assert rate_of(DONE) is not None
    assert rate_of(DONE | change) is None
    assert rate_of({name: value for name, value in DONE.items() if name not in change}) is None


def knees(tmp_path: Path, runs: Mapping[str, tuple[int, str, float | None, State, Cause]]) -> str | None:
    """Runs by name (GPUs, series, tokens/s, how each ended) -> why 8 GPUs of series a are not worth it."""
    entries = [
        SweepRun(id=name, name=name, series=series, gpus=gpus, nodes=1, per_node=gpus)
        for name, (gpus, series, *_) in runs.items()
    ]
    made = Sweep(folder=tmp_path, name="s", entries=tuple(entries), launcher="local")
    for name, (gpus, _, rate, *_) in runs.items():
        made.run(name).mkdir(parents=True)
        record = DONE | {"gpus": gpus, "tokens_per_s": rate}
        (made.run(name) / "record.json").write_text(json.dumps(record), encoding="utf-8")
    statuses = {name: Status(state=state, cause=cause) for name, (*_, state, cause) in runs.items()}
    last = SweepRun(id="last", name="last", series="a", gpus=8, nodes=1, per_node=8)
    return StopRule(made).reason_to_stop(last, statuses)


def test_runs_of_another_batch_are_not_compared(tmp_path: Path) -> None:
    """The larger batch is the faster one, and fits on one count only: that is no knee."""
    assert (
        knees(
            tmp_path,
            {
                "1a": (1, "a", 100.0, "done", ""),
                "1b": (1, "b", 400.0, "done", ""),
                "2a": (2, "a", 200.0, "done", ""),
                "2b": (2, "b", None, "oom", "memory"),
            },
        )
        is None
    )


@pytest.mark.parametrize(
    ("state", "cause", "rate", "stops"),
    [
        ("done", "", 100.0, True),
        ("oom", "memory", None, True),  # the plan is none for two GPUs
        ("failed", "bad_node", None, False),  # it may be the fastest
        ("done", "", float("nan"), False),
        ("done", "", 0, False),
    ],
)
def test_a_knee_needs_all_plans_of_a_count(
    state: State, cause: Cause, rate: float | None, stops: bool, tmp_path: Path
) -> None:
    words = knees(
        tmp_path,
        {"1": (1, "a", 100.0, "done", ""), "2": (2, "a", 100.0, "done", ""), "2 again": (2, "a", rate, state, cause)},
    )
    assert (words is not None) == stops
    assert words is None or "from 1 to 2 GPUs, a doubling gave 1.00x" in words
