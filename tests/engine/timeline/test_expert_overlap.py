"""Tokens travel to experts beside another microbatch, if there is one."""

from __future__ import annotations

import pytest

import knee

ASK = {"cluster": "dgx-h200", "gpus": 64, "ep": 8, "sharding": "zero1", "micro_batch": 1, "profile": "fused"}
ASK |= {"overrides": {"profile.expert_host_s": 0.0}}  # a host that is slower than the tokens would hide them all


@pytest.mark.parametrize(("batch", "hides"), [(64, False), (256, True)])
def test_one_microbatch_hides_no_tokens(batch: int, hides: bool) -> None:
    alone, beside = (
        knee.simulate("qwen3-30b-a3b", **ASK, global_batch=batch, ep_overlap=overlap).step_s
        for overlap in (False, True)
    )
    assert (beside < alone) is hides
