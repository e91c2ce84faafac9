"""Where launches take longer than kernels, a step is their number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from knee.engine.one_job import evaluated
from knee.specs.load import load_model
from tables import EAGER, job

LAUNCH_S = 1e-3
TINY = load_model("llama-tiny").spec


@pytest.mark.parametrize("recompute", ["full", "ops"])
@pytest.mark.parametrize("microbatches", [1, 3])
def test_recomputation_launches_the_kernels_of_forward_again(recompute: str, microbatches: int) -> None:
    slow = replace(EAGER, launch_s=LAUNCH_S)
    none, again = (
        evaluated(job(model=TINY, profile=slow, seq_len=256, recompute=name, microbatches=microbatches))
        for name in ("none", recompute)
    )
    forward = float(none.parts.compute.layer_forward.kernels[0])
    more = (float(again.results.step_s[0]) - float(none.results.step_s[0])) / (microbatches * TINY.layers * LAUNCH_S)
    assert more == pytest.approx(round(more), abs=0.05)
    launched = {"full": round(forward), "ops": round(float(again.parts.compute.ops_again.kernels[0]))}
    assert round(more) == launched[recompute]
    assert 1 < launched["full"] == forward
