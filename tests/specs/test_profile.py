"""What software stacks do differently: dealing layers, issuing collectives, sends, recomputing a part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from knee import simulate
from knee.base.errors import SpecError
from knee.engine.simulator import evaluate
from knee.engine.timeline.pipelines.chunks import layout_of
from knee.engine.workload.layers_per_stage import ModelLayers, chunk_layers
from knee.engine.workload.parameters import head_layers
from knee.engine.workload.traffic import Modes, traffic_of
from knee.specs.job import Job
from knee.specs.load import load_cluster, load_model, load_profile, make_job
from knee.specs.plan import Plan
from knee.specs.plan_table import table_of


def job(*, profile: str = "eager", cluster: str = "dgx-h100", gpus: int = 16, batch: int = 64, **plan: object) -> Job:
    return make_job(
        load_model("llama2-7b").spec,
        load_cluster(cluster).spec,
        load_profile(profile).spec,
        gpus=gpus,
        global_batch=batch,
        plan_options=plan,
    )[0]


def with_profile(j: Job, **changes: object) -> Job:
    return replace(j, profile=replace(j.profile, **changes))


def test_layers_dealt_by_cost_leave_room_for_the_head() -> None:
    assert chunk_layers(16, 2, 4.0) == (10, 6)
    assert chunk_layers(16, 4, 4.0) == (5, 5, 5, 1)
    assert chunk_layers(16, 8, 4.0)[-1] == 0
    for chunks in (1, 2, 3, 5, 8, 16, 20):
        assert sum(chunk_layers(28, chunks, 3.3)) == 28
    assert chunk_layers(16, 4, 0.0) == (4, 4, 4, 4)


@given(layers=st.integers(1, 130), ranks=st.integers(1, 40), virtual=st.integers(1, 4), head=st.floats(0.0, 30.0))
def test_no_layer_is_lost_whichever_way_they_are_dealt(layers: int, ranks: int, virtual: int, head: float) -> None:
    assume(ranks * virtual <= layers + 2)
    layout = layout_of(ModelLayers(count=layers, head_layers=head), ranks, virtual)
    assert sum(layout.layers[kind] * count for kind, count in layout.counts.items()) == layers
    assert [layout.layers[kind] for kind in layout.kinds] == list(chunk_layers(layers, ranks * virtual, head))


def test_inputs_that_stay_gathered_are_not_gathered_again() -> None:
    keeps, cuts = (with_profile(job(tp=8, gpus=8, batch=16), keeps_gathered=k) for k in (True, False))
    calls = [
        sum(c.calls for c in simulate(j).comm_loads if (c.collective, c.group) == ("all_gather", "tp"))
        for j in (keeps, cuts)
    ]
    layers = keeps.model.layers * keeps.microbatches
    assert calls[1] - calls[0] == pytest.approx(2 * layers)
    assert simulate(keeps).step_s < simulate(cuts).step_s
    assert simulate(keeps).memory_bytes > simulate(cuts).memory_bytes


def test_a_stage_without_layers_only_passes_on() -> None:
    j = job(pp=16, gpus=16, batch=64, sharding="ddp")
    big = replace(j, model=replace(j.model, layers=16, vocab=1_048_576))
    assert head_layers(big.model) > 16
    dealt = chunk_layers(16, 16, head_layers(big.model))
    assert 0 in dealt
    balanced = with_profile(big, deals_by_cost=True)
    assert simulate(balanced).step_s < 1.05 * simulate(big).step_s
    recorded = evaluate(balanced.model, balanced.cluster, balanced.profile, table_of([balanced]))
    assert np.isfinite(recorded.results.step_s).all()


def test_issuing_collectives_is_a_floor_that_pipelines_between_nodes_raise() -> None:
    small = {"tp": 8, "micro_batch": 1, "sharding": "ddp"}
    one, two = job(gpus=8, batch=8, **small), job(gpus=16, batch=8, pp=2, **small)
    slow = {"crowded_issue_s": 1e-3}
    assert simulate(with_profile(one, **slow)).step_s == simulate(one).step_s
    assert simulate(with_profile(two, **slow)).step_s > 2 * simulate(two).step_s
    assert simulate(with_profile(one, issue_s=1e-3)).step_s > 1.5 * simulate(one).step_s
    # a floor hides behind compute that is longer
    large = job(gpus=8, batch=64, micro_batch=64, tp=8, sharding="ddp")
    assert simulate(with_profile(large, issue_s=1e-4)).step_s == pytest.approx(simulate(large).step_s, rel=1e-9)
    no_tp = job(gpus=8, batch=8, sharding="ddp")
    assert simulate(with_profile(no_tp, issue_s=1e-3)).step_s == simulate(no_tp).step_s


def test_slow_networks_slow_compute_less() -> None:
    j = job(gpus=64, batch=128)
    slow = replace(j, cluster=replace(j.cluster, fabric=replace(j.cluster.fabric, nic_bytes_per_s=6.25e9)))

    def kappa(of: Job) -> float:
        return float(evaluate(of.model, of.cluster, of.profile, table_of([of])).parts.kappa[0])

    # what is moved in a second, latency and waiting included
    assert 0.3 < kappa(j) / j.profile.compute_slowdown_frac < 1.0
    assert kappa(j) / 8 < kappa(slow) < kappa(j) / 4
    one_node = job(gpus=8, batch=16)
    assert kappa(one_node) == j.profile.compute_slowdown_frac
    hides = job(gpus=64, batch=128, tp=2, tp_overlap_frac=0.5)
    assert kappa(replace(hides, cluster=slow.cluster)) == j.profile.compute_slowdown_frac


def test_sends_between_stages_may_be_cut_without_sequence_parallelism() -> None:
    table = table_of([job(tp=8, pp=2, sequence_parallel=False)])
    model, modes = job().model, Modes.of(table)
    whole, cut = traffic_of(model, table, modes), traffic_of(model, table, modes, scatters_sends=True)
    assert cut.pp_bytes[0] == whole.pp_bytes[0] / 8


def test_recomputing_a_share_lies_between_none_and_all() -> None:
    none, half, full = (
        job(recompute=r, recompute_frac=f, sharding="fsdp") for r, f in (("none", 1.0), ("blocks", 0.5), ("full", 1.0))
    )
    steps = [simulate(j).step_s for j in (none, half, full)]
    assert steps[1] == pytest.approx((steps[0] + steps[2]) / 2, rel=0.02)
    memory = [simulate(j).memory_bytes for j in (none, half, full)]
    assert memory[2] < memory[1] < memory[0]
    with pytest.raises(SpecError, match="recompute_frac"):
        Plan(recompute="attention", recompute_frac=0.5)
    with pytest.raises(SpecError, match="above 0"):
        Plan(recompute="full", recompute_frac=0.0)


def test_heads_that_tensor_cores_cannot_load_whole_are_slow_unfused() -> None:
    j = job(profile="megatron-2021", cluster="dgx-a100", gpus=8, batch=16)
    odd, even = (replace(j, model=replace(j.model, head_size=h)) for h in (150, 152))
    assert simulate(odd).step_s > 1.1 * simulate(even).step_s


def test_in_training_losses_are_the_network_s_not_nvlink_s() -> None:
    inside, outside = job(gpus=8, batch=16, tp=8), job(gpus=64, batch=64, sharding="fsdp")
    half = {"bandwidth_scale_frac": 0.4}
    assert simulate(with_profile(inside, **half)).step_s == simulate(inside).step_s
    assert simulate(with_profile(outside, **half)).step_s > simulate(outside).step_s


def test_memory_bound_kernels_may_be_a_stack_s_own() -> None:
    j = job()
    assert simulate(with_profile(j, stream_scale=0.5)).step_s < simulate(j).step_s
    with pytest.raises(SpecError, match="stream_scale"):
        with_profile(j, stream_scale=0.0)


def test_the_40_gb_board_is_in_the_catalogue() -> None:
    assert load_cluster("dgx-a100-40").spec.gpu.hbm_bytes == 40960 * 2**20
