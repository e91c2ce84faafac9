"""What crosses the network: groups that straddle nodes, channels that share NICs, tiers, sends by distance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from knee.engine.cost.compute_costs import shapes_of
from knee.engine.cost.placement import place
from knee.engine.events import COLLECTIVES
from knee.engine.one_job import events_of
from knee.engine.simulator import evaluate
from knee.engine.timeline.step_parts import copies_on_one_gpu
from knee.engine.workload import operations as op
from knee.specs import Job, Tier
from knee.specs.load import load_cluster, load_model, load_profile, make_job
from knee.specs.plan_table import table_of
from knee.specs.profile import Kernels


def job(
    cluster: str = "dgx-h100",
    profile: str = "eager",
    model: str = "llama2-7b",
    *,
    gpus: int,
    batch: int,
    **plan: object,
) -> Job:
    parts = load_model(model).spec, load_cluster(cluster).spec, load_profile(profile).spec
    return make_job(*parts, gpus=gpus, global_batch=batch, seq_len=4096, plan_options=plan)[0]


def step_s(j: Job) -> float:
    return float(evaluate(j.model, j.cluster, j.profile, table_of([j])).results.step_s[0])


@pytest.mark.parametrize(("gpus", "tp", "nodes"), [(1152, 16, 2), (1152, 8, 1), (1152, 32, 2), (64, 16, 1)])
def test_groups_that_do_not_divide_a_node_straddle_two(gpus: int, tp: int, nodes: int) -> None:
    table = table_of([job("gb200-nvl72", gpus=gpus, batch=gpus, tp=tp)])
    assert place(table, 72, "tp").nodes[0] == nodes


@pytest.mark.parametrize(
    ("kernels", "dispatcher", "launched"),
    [
        ("fused", "alltoall", 31),
        ("fused", "deepep", 17),
        ("fused", "hybridep", 17),
        ("fused_eager_router", "alltoall", 72),
        ("fused_eager_latent", "deepep", 58),
    ],
)
def test_kernels_of_the_router_are_those_that_were_published(kernels: Kernels, dispatcher: str, launched: int) -> None:
    """NVIDIA/Megatron-LM docs/discussions/deepseek-v3-gb200-optimization, sections 2.1.4 and 2.2.1."""
    j = job(profile="fused", model="qwen3-30b-a3b", gpus=16, batch=16, sharding="zero1", ep=8, dispatcher=dispatcher)
    s = shapes_of(j.model, table_of([j]))
    streams = [*op.layer_forward(j.model, s, kernels), *op.layer_backward_input(j.model, s, kernels)]
    of_router = [one.kernels for one in streams if isinstance(one, op.MemoryBound) and one.name == "router"]
    assert sum(np.ravel(count)[0] for count in of_router) == launched


def test_hsdp_that_crosses_nodes_twice_pays_for_both() -> None:
    """No latencies, slow NICs: the step cannot be shorter than what one GPU's NIC has to carry."""
    j = job(gpus=64, batch=128, sharding="hsdp", dp_replicate=4)
    fabric = replace(j.cluster.fabric, nic_bytes_per_s=2e9, nic_frac=1.0, hop_s=0.0, tree_level_s=0.0, tiers=())
    slow = replace(j, cluster=replace(j.cluster, fabric=fabric), profile=replace(j.profile, bandwidth_scale_frac=1.0))
    w = evaluate(slow.model, slow.cluster, slow.profile, table_of([slow]))
    carried = w.step.gather_load_s[0] + w.step.reduce_load_s[0] + w.step.replicate_load_s[0]
    assert w.results.step_s[0] >= carried


def test_a_tier_slows_rings_once_its_uplinks_run_out() -> None:
    j = job(gpus=512, batch=1024)

    def with_tier(oversubscription: float) -> float:
        tier = Tier(name="spine", nodes=4, hop_s=0.0, oversubscription=oversubscription)
        return step_s(replace(j, cluster=replace(j.cluster, fabric=replace(j.cluster.fabric, tiers=(tier,)))))

    assert with_tier(4.0) == pytest.approx(with_tier(1.0))
    assert with_tier(100.0) > 2 * with_tier(1.0)


def test_near_stages_do_not_pay_for_a_tier() -> None:
    options = {"gpus": 6144, "batch": 1536, "model": "llama2-70b", "tp": 8, "pp": 8, "micro_batch": 1}
    near = job("dgx-h100-roce", placement="tp-pp-cp-dp_shard-dp_replicate", **options)
    far = job("dgx-h100-roce", **options)
    sends = [evaluate(j.model, j.cluster, j.profile, table_of([j])).comm.pp_send[0] for j in (near, far)]
    assert sends[0] < sends[1]


@pytest.mark.parametrize("sharding", ["zero1", "fsdp_no_reshard"])
def test_virtual_stages_reduce_every_gradient_once(sharding: str) -> None:
    """The same bytes whatever the cut into chunks; a chunk more has only a latency more."""
    loads = []
    for virtual in (1, 2, 3, 5):
        plan = {"schedule": "interleaved", "virtual_stages": virtual} if virtual > 1 else {}
        j = job(
            profile="fused",
            model="llama2-70b",
            gpus=1024,
            batch=512,
            tp=8,
            pp=8,
            micro_batch=1,
            sharding=sharding,
            **plan,
        )
        w = evaluate(j.model, j.cluster, j.profile, table_of([j]))
        per_layer = float(w.comm.reduce_layer[0]) * 80 / 8
        loads.append(float(w.step.reduce_load_s[0]) / per_layer)
    assert np.ptp(loads) < 0.02 * loads[0]


def test_traces_name_the_ranks_of_their_groups() -> None:
    [events] = events_of(job(gpus=64, batch=128, sharding="hsdp", dp_replicate=8))
    groups = {g.name: g for g in events.groups}
    assert list(groups["dp_shard"].ranks) == list(range(8))
    assert list(groups["dp_replicate"].ranks) == list(range(0, 64, 8))


def test_hidden_sends_are_between_neighbouring_stages() -> None:
    stages = events_of(job(profile="fused", gpus=64, batch=64, tp=2, pp=4, micro_batch=1, sharding="zero1"))
    for stage in stages:
        sends = stage.collective == COLLECTIVES.index("send_recv")
        for group in {stage.groups[i] for i in np.unique(stage.group_id[sends])}:
            assert stage.rank in group.ranks


def test_copies_on_one_gpu_by_hand() -> None:
    """100 elements, of which 30 are gathered in fp8: the rest is cast from fp32, and all are copied; gradients are cast
    to fp32, copied, and cast once more where the states have another type."""
    columns = {"gathered_bytes": 170.0, "elements": 100.0, "in_fp8": 30.0, "reduce_bytes": 4.0, "state_bytes": 4.0}

    def moved(**change: float) -> list[float]:
        both = copies_on_one_gpu(**{name: np.array([value]) for name, value in (columns | change).items()})
        return [float(one.moved_bytes[0]) for one in (*both.out, *both.back)]

    assert moved() == [(4 + 2) * 70, 2 * 170, (2 + 4) * 100, 2 * 4 * 100, 0]
    assert moved(state_bytes=2.0) == [0, 2 * 170, (2 + 4) * 100, 2 * 4 * 100, (4 + 2) * 100]
    both = copies_on_one_gpu(**{name: np.array([value]) for name, value in columns.items()})
    assert [float(side[0]) for side in both.moved_bytes()] == [760, 1400]


def test_plans_of_one_table_route_as_if_they_were_alone() -> None:
    base: dict[str, object] = {"gpus": 32, "batch": 32, "model": "qwen3-30b-a3b", "ep": 4, "micro_batch": 1}
    changes: list[dict[str, object]] = [{}, {"tp": 2}, {"ep": 8}, {"tp": 2, "etp": 2}, {"routing": "dropless"}]
    changes += [{"dispatcher": "deepep"}, {"imbalance": 1.5}, {"routing": "dropless", "capacity_factor": 1.0}]
    jobs = [job(**(base | {"sharding": "zero1"} | change)) for change in (*changes, {})]  # type: ignore[arg-type]
    together = shapes_of(jobs[0].model, table_of(jobs))
    for i, one in enumerate(jobs):
        alone = shapes_of(one.model, table_of([one]))
        assert together.busiest[i] == alone.busiest[0], i
        assert together.permuted_rows[i] == alone.permuted_rows[0], i
    assert len(set(together.busiest.tolist())) >= 3
    assert len(set(together.permuted_rows.tolist())) >= 4
