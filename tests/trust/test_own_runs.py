"""A profile that was checked on a user's own runs narrows the band; one that was not leaves it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from knee.specs.load import load_cluster, load_model, load_profile, make_job
from knee.trust.trust import narrowed, trust_of


def test_a_band_is_no_wider_than_the_runs_say() -> None:
    profile = replace(load_profile("eager").spec, checked_error_frac=0.1)
    assert narrowed(profile, (-0.3, 0.4), 0.8) == pytest.approx((1 / 1.1 - 1, 1 / 0.9 - 1), abs=1e-4)
    assert narrowed(profile, (-0.05, 0.4), 0.8)[0] == -0.05
    assert narrowed(profile, (-0.3, 0.4), 0.9)[1] > narrowed(profile, (-0.3, 0.4), 0.8)[1]
    assert narrowed(load_profile("eager").spec, (-0.3, 0.4), 0.8) == (-0.3, 0.4)


def test_an_answer_has_the_narrower_band() -> None:
    specs = (load_model("llama2-7b").spec, load_cluster("dgx-h100").spec)
    bands = []
    for checked in (0.0, 0.02):
        profile = replace(load_profile("eager").spec, name="mine", launch_s=20e-6, checked_error_frac=checked)
        job = make_job(*specs, profile, gpus=8, global_batch=16, plan_options={"micro_batch": 2})[0]
        found = trust_of(job)
        assert found.label != "extrapolated"
        assert found.low_frac is not None
        assert found.high_frac is not None
        bands.append(found.high_frac - found.low_frac)
    assert bands[1] < bands[0]
