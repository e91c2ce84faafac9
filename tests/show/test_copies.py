"""A result equals its copies, also where it holds columns, and no other result."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

import knee
from knee.engine.one_job import events_of
from knee.measure.kineto.kineto_writer import write_kineto

JOB: dict[str, Any] = {"cluster": "dgx-h100", "gpus": 8, "local_batch": 2}


def trace_of(folder: Path, gpus: int) -> knee.TraceAnalysis:
    job = knee.simulate("llama-1b", **JOB | {"gpus": gpus}).job
    return knee.read_traces(write_kineto(events_of(job), folder / f"{gpus}.json")[0], cache=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plan", "trace", "budget"])
def test_a_copy_is_equal_and_another_is_not(kind: str, tmp_path: Path) -> None:
    one, other = {
        "plan": lambda: (knee.plan("llama-1b", **JOB), knee.plan("llama-1b", **JOB | {"gpus": 16})),
        "trace": lambda: (trace_of(tmp_path, 8), trace_of(tmp_path, 16)),
        "budget": lambda: (knee.budget(cluster="dgx-h100", gpus=8, days=n, frontier=False) for n in (1, 2)),
    }[kind]()
    copies = copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))
    assert [(each == one, hash(each) == hash(one)) for each in copies] == [(True, True)] * 3
    assert one != other
    assert one != one.to_dict()
