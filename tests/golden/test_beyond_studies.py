"""Studies beyond the paper: each runs whole, says one sentence, and no result turns physics around."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from knee.commands.study.quantities import Row, chosen
from knee.commands.study.questions import points_of
from knee.commands.study.rows import identity
from knee.commands.study.run_study import LABELS, Ran
from knee.commands.study.study_file import Draw, load_study, study_names
from knee.commands.study.trained_points import refused
from knee.specs.load import load_cluster, load_model
from knee.training.sweeps.checks import LocalDevices
from shared_studies import ran_once

pytestmark = pytest.mark.slow

NAMES = study_names("beyond")
MONTHS = ("failures", "slow-links", "walls")
"""Studies of months of training: their rows are no steps."""
POINTS = 60
"""Of one study, so that all of them stay a matter of seconds."""
NOISE = 0.02
"""A faster wire takes more from the compute beside it, and may lose this where all communication hides."""
H100 = load_cluster("dgx-h100").spec


@pytest.fixture(scope="module")
def ran(studied: Path) -> dict[str, Ran]:
    return {one.study.name: one for one in ran_once(NAMES, studied)}


def the(study: Ran, series: str, gpus: int, metric: str = "tokens_per_s", **where: float) -> float:
    """A metric of one run."""
    (row,) = chosen({study.study.name: study.rows}, study.study.name, {"series": series, "gpus": gpus, **where})
    return float(row[metric])


def counts(study: Ran, *series: str) -> list[int]:
    """GPUs that all of these have."""
    return sorted(set.intersection(*({row["gpus"] for row in study.rows if row["series"] == one} for one in series)))


def by_series(study: Ran, metric: str) -> Callable[[str, int], float]:
    return lambda series, gpus: the(study, series, gpus, metric)


# what each is made of


def test_all_are_there() -> None:
    assert NAMES == [
        "collectives",
        "fabric",
        "failures",
        "generations",
        "hsdp",
        "knees",
        "local-sgd",
        "moe-dense",
        "moe-experts",
        "moe-ranks",
        "moe-routing",
        "precision",
        "recompute",
        "scaling-laws",
        "slow-links",
        "walls",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_complete_and_small(name: str) -> None:
    study = load_study(name)
    assert study.kind == "beyond"
    assert study.question.endswith("?")
    assert len(study.assumptions) >= 4
    assert 1 <= len(study.draw) <= 4
    assert len(points_of(study)) <= POINTS
    # what others published about months of training is tested as claims
    assert bool(study.claim) is (name in MONTHS)


@pytest.mark.parametrize("name", NAMES)
def test_prose_holds_whatever_the_numbers_are(name: str) -> None:
    study = load_study(name)
    assert set(re.findall(r"{(\w+)}", study.finding)) == set(study.value)
    for text in (study.title, study.finding):
        assert "%" not in text, text


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_says_what_it_found(name: str, ran: dict[str, Ran]) -> None:
    one = ran[name]
    assert not one.impossible
    assert one.rows
    assert not re.search(r"[{}]|\bnan\b|Not said", one.finding)
    assert one.finding.endswith(".")
    assert one.trust in LABELS


@pytest.mark.parametrize("name", NAMES)
def test_what_is_drawn_is_there(name: str, ran: dict[str, Ran]) -> None:
    for draw in ran[name].study.draw:
        rows = chosen({name: ran[name].rows}, name, draw.at)
        assert all(row.get(column) is not None for row in rows for column in columns(draw))
        wanted = draw.at.get("series", ())
        assert {row["series"] for row in rows} >= set(wanted if isinstance(wanted, tuple) else (wanted,))


def columns(draw: Draw) -> list[str]:
    return [column for column in (draw.x, draw.y, draw.color) if column]


def test_what_a_study_recommends_fits(ran: dict[str, Ran]) -> None:
    moe = [name for name in NAMES if name.startswith("moe-")]
    for name in ("fabric", "generations", "hsdp", "local-sgd", "precision", "recompute", *moe):
        assert all(row["fits"] for row in ran[name].rows), name


def test_no_measured_run_stands_in_for_a_what_if(ran: dict[str, Ran]) -> None:
    def same(study: str, *series: str, gpus: int = 2048) -> bool:
        rows = [row for row in ran[study].rows if row["series"] in series and row["gpus"] == gpus]
        return len({identity(row) for row in rows}) < len(rows)

    assert not same("fabric", "200 Gbit/s", "400 Gbit/s", "half latency")
    assert not same("precision", "H100, bf16", "H100, fp8")
    assert not same("local-sgd", "H = 1", "H = 10", "10 Gbit/s, H = 1")
    assert not same("collectives", "FSDP, ring", "FSDP, logarithmic")
    assert not same("moe-ranks", "H100, alltoall", "H100, deepep", "H100, overlapped", gpus=1024)
    assert not same("moe-routing", "balanced", "dropless", "imbalance 1.5", gpus=256)


def test_a_what_if_is_not_trained(ran: dict[str, Ran]) -> None:
    every = [point for name in ran for point in points_of(load_study(name))]
    # another model can be trained; another machine or another stack cannot
    changed = [point for point in every if any(not key.startswith("model.") for key, _ in point.question.sets)]
    here = LocalDevices(gpus=("NVIDIA H100",) * 9, cores=1)
    assert changed
    assert all("only in a simulation" in (refused(here, point) or "") for point in changed)


# physics


def assert_never_slower(study: Ran, order: Sequence[str], noise: float = 1e-9) -> None:
    """Along the order no run is slower than the one before, at any count that both have."""
    for worse, better in pairwise(order):
        both = counts(study, worse, better)
        assert both, (worse, better)
        for gpus in both:
            assert the(study, better, gpus) >= the(study, worse, gpus) * (1 - noise), (worse, better, gpus)


def test_half_is_half_of_what_the_catalogue_has() -> None:
    grids = {grid.series: grid for grid in load_study("fabric").grid}
    halved, wide = grids["half latency"].set, grids["1600, NVLink x 2"].set
    assert halved == {
        "fabric.hop_s": f"{H100.fabric.hop_s * 5e5:g} us",
        "node.hop_s": f"{H100.node.hop_s * 5e5:g} us",
        "fabric.tree_level_s": f"{H100.fabric.tree_level_s * 5e5:g} us",
    }
    assert wide["node.link_bytes_per_s"] == f"{H100.node.link_bytes_per_s * 2e-9:g} GB/s"
    assert H100.fabric.nic_bytes_per_s == 400e9 / 8


def test_a_faster_fabric_is_not_slower(ran: dict[str, Ran]) -> None:
    rates = ("200 Gbit/s", "400 Gbit/s", "800 Gbit/s", "1600 Gbit/s", "1600, NVLink x 2")
    assert_never_slower(ran["fabric"], rates, NOISE)
    assert_never_slower(ran["fabric"], ("400 Gbit/s", "half network latency", "half latency"))
    assert_never_slower(ran["fabric"], ("RoCE", "400 Gbit/s"))
    assert_never_slower(ran["fabric"], ("400 Gbit/s", "400 Gbit/s, TP"))


def test_more_network_alone_meets_nvlink(ran: dict[str, Ran]) -> None:
    """The caption leaves two lines out, because they lie on a third."""
    rate = by_series(ran["fabric"], "tokens_per_s")
    for gpus in counts(ran["fabric"], "400 Gbit/s"):
        assert rate("800 Gbit/s", gpus) == rate("1600 Gbit/s", gpus)
        assert rate("800 Gbit/s", gpus) == pytest.approx(rate("400 Gbit/s", gpus), rel=0.01)


def test_latency_is_worth_more_than_bandwidth_where_rings_are_long(ran: dict[str, Ran]) -> None:
    rate = by_series(ran["fabric"], "tokens_per_s")
    assert rate("half latency", 2048) > 1.2 * rate("1600, NVLink x 2", 2048)


def test_newer_gpus_are_faster_and_expose_more(ran: dict[str, Ran]) -> None:
    assert_never_slower(ran["generations"], ("A100", "H100", "H200", "B200", "GB200 NVL72"))
    for name in ("A100", "H100", "H200", "B200", "GB200 NVL72", "MI300X"):
        assert_never_slower(ran["generations"], (name, f"{name}, TP"))
    exposed = by_series(ran["generations"], "exposed_frac")
    assert exposed("A100", 2048) < exposed("H100", 2048) < exposed("B200", 2048)
    assert exposed("GB200 NVL72", 2048) < exposed("B200", 2048)


def test_the_knee_comes_no_later_with_faster_gpus(ran: dict[str, Ran]) -> None:
    rows = {"knees": ran["knees"].rows}
    knee = {name: quantity.of(rows, "knees") for name, quantity in ran["knees"].study.value.items()}
    assert knee["a100"] >= knee["h100"] >= knee["h200"] >= knee["b200"]
    assert knee["gb200"] >= knee["b200"]
    largest = max(row["gpus"] for row in ran["knees"].rows)
    assert all(8 < at < largest for at in knee.values())


def test_smaller_groups_cost_memory_and_save_time_at_scale(ran: dict[str, Ran]) -> None:
    order = ("FSDP", "HSDP, 32 nodes", "HSDP, 4 nodes", "HSDP, 1 node")
    memory = by_series(ran["hsdp"], "memory_bytes")
    for larger, smaller in pairwise(order):
        assert memory(smaller, 512) >= memory(larger, 512)
    for gpus in (2048, 4096, 8192):
        assert the(ran["hsdp"], "HSDP, 4 nodes", gpus) > the(ran["hsdp"], "FSDP", gpus)


def test_recomputing_less_is_not_slower(ran: dict[str, Ran]) -> None:
    study = ran["recompute"]
    for batch in (4, 8, 16):
        needed, every = (the(study, name, 2048, local_batch=batch) for name in ("recompute as needed", "recompute all"))
        assert needed >= every
    assert the(study, "FSDP", 2048, local_batch=2) >= the(study, "recompute all", 2048, local_batch=2)
    kept = the(study, "FSDP", 2048, "memory_bytes", local_batch=2)
    assert the(study, "recompute all", 2048, "memory_bytes", local_batch=2) < kept
    assert the(study, "attention", 2048, "memory_bytes", local_batch=2) <= kept


def test_fewer_outer_syncs_are_not_slower(ran: dict[str, Ran]) -> None:
    steps = ("H = 1", "H = 10", "H = 100", "H = 500")
    assert_never_slower(ran["local-sgd"], steps)
    assert_never_slower(ran["local-sgd"], tuple(f"10 Gbit/s, {name}" for name in steps))
    for name in steps:
        assert_never_slower(ran["local-sgd"], (f"10 Gbit/s, {name}", name))


def test_logarithmic_gathers_are_not_slower(ran: dict[str, Ran]) -> None:
    study = ran["collectives"]
    gathers = by_series(study, "all_gather_s")
    for gpus in counts(study, "FSDP, ring"):
        assert gathers("FSDP, logarithmic", gpus) <= gathers("FSDP, ring", gpus)
    assert_never_slower(study, ("FSDP, ring", "FSDP, logarithmic"))
    assert_never_slower(study, ("TP, ring", "TP, logarithmic"))


def test_fp8_is_not_slower_and_exposes_more(ran: dict[str, Ran]) -> None:
    study = ran["precision"]
    exposed = by_series(study, "exposed_frac")
    for gpu in ("H100", "B200"):
        assert_never_slower(study, (f"{gpu}, bf16", f"{gpu}, fp8"))
        for gpus in counts(study, f"{gpu}, fp8"):
            assert exposed(f"{gpu}, fp8", gpus) > exposed(f"{gpu}, bf16", gpus)


# experts


def test_with_fsdp_the_sparse_model_has_the_earlier_knee(ran: dict[str, Ran]) -> None:
    study = ran["moe-dense"]
    rows = {"moe-dense": study.rows}
    knee = {name: study.study.value[name].of(rows, "moe-dense") for name in ("knee_dense", "knee_sparse")}
    assert 8 < knee["knee_sparse"] < knee["knee_dense"] < 4096
    rate = by_series(study, "tokens_per_s")
    assert rate("sparse, FSDP", 32) > rate("dense, FSDP", 32)
    assert rate("sparse, FSDP", 4096) < rate("dense, FSDP", 4096)
    for name in ("dense", "sparse"):
        assert_never_slower(study, (f"{name}, FSDP", f"{name}, fastest plan"))
    for gpus in counts(study, "sparse, fastest plan"):
        # the sparse model computes with 1/4.4 of the parameters, and no exchange of tokens makes it faster than that.
        # The host, which has more to launch, brings both together where ranks have few tokens
        assert 0.95 < rate("sparse, fastest plan", gpus) / rate("dense, fastest plan", gpus) < 4.4


def test_finer_experts_have_the_same_parameters() -> None:
    counted = set()
    for grid in load_study("moe-experts").grid:
        model = load_model("mixtral-8x7b", [(key, str(value)) for key, value in _of_model(grid.set)]).spec
        assert model.experts is not None
        share = (model.experts.count * model.experts.ffn, model.experts.top_k * model.experts.ffn)
        counted.add(share)
        assert (grid.plan["ep"] == 8) == grid.series.endswith("1 node")
    assert counted == {(8 * 14336, 2 * 14336)}


def _of_model(sets: Mapping[str, object]) -> list[tuple[str, object]]:
    return [(key.removeprefix("model."), value) for key, value in sets.items()]


def test_finer_experts_cost_more_where_every_expert_gets_a_copy(ran: dict[str, Ran]) -> None:
    study = ran["moe-experts"]

    def share(series: str, experts: int) -> float:
        return the(study, series, 64, "exchange_frac", experts=experts)

    for nodes, finer in (("1 node", (8, 16, 32, 64, 128, 256)), ("4 nodes", (32, 64, 128, 256))):
        for coarse, fine in pairwise(finer):
            assert share(f"alltoall, {nodes}", fine) > share(f"alltoall, {nodes}", coarse)
        assert share(f"deepep, {nodes}", 256) < share(f"alltoall, {nodes}", 256)
    for dispatcher in ("alltoall", "deepep"):
        for experts in (32, 64, 128, 256):
            assert share(f"{dispatcher}, 4 nodes", experts) > share(f"{dispatcher}, 1 node", experts)


def test_a_group_inside_one_nvlink_domain_loses_least(ran: dict[str, Ran]) -> None:
    study = ran["moe-ranks"]

    def rate(gpu: str, how: str, ep: int) -> float:
        return the(study, f"{gpu}, {how}", 1024, ep=ep)

    def kept(gpu: str, how: str) -> float:
        return rate(gpu, how, 64) / rate(gpu, how, 8)

    for how in ("alltoall", "deepep", "overlapped"):
        assert kept("GB200", how) > 0.95
        assert kept("B200", how) < kept("H100", how)  # a faster GPU on the same network
    for gpu in ("H100", "B200", "GB200"):
        assert all(rate(gpu, "overlapped", ep) > rate(gpu, "deepep", ep) for ep in (8, 64))
        # on 256 GB200s, HybridEP was measured to be 14% faster than DeepEP
        assert rate(gpu, "hybridep", 64) == pytest.approx(rate(gpu, "deepep", 64), rel=0.14)
    for gpu in ("H100", "B200"):
        assert all(rate(gpu, "deepep", ep) > rate(gpu, "alltoall", ep) for ep in (8, 16, 32, 64))


def test_uneven_routing_costs_about_what_was_published(ran: dict[str, Ran]) -> None:
    study = ran["moe-routing"]
    lengths = (16384, 32768, 65536, 131072)
    said = {(one.series, one.x): one.value or 0.0 for one in study.study.published}

    def lost(series: str, tokens: int) -> float:
        return 1 - the(study, series, 256, seq_len=tokens) / the(study, "balanced", 256, seq_len=tokens)

    for tokens in lengths:
        published = 1 - said["dropless", tokens] / said["balanced", tokens]
        assert lost("imbalance 1.5", tokens) < published < lost("imbalance 2.0", tokens)
        assert lost("dropless", tokens) == pytest.approx(published, abs=0.05)
        for series in ("balanced", "dropless"):
            simulated = the(study, series, 256, "tokens_per_s_per_gpu", seq_len=tokens)
            assert simulated == pytest.approx(said[series, tokens], rel=0.11)
    for series in ("dropless", "imbalance 1.5", "imbalance 2.0"):
        assert all(lost(series, short) > lost(series, long) for short, long in pairwise(lengths))


def test_rows_have_what_the_page_sorts_by(ran: dict[str, Ran]) -> None:
    def whole(name: str, row: Row) -> bool:
        # a budget is a whole run, and has no step of its own
        if name in MONTHS:
            return row["trust"] in LABELS
        return row["trust"] in LABELS and ("loss" in row or row["step_s"] > 0) and 0 <= row["exposed_frac"] < 1

    assert all(whole(name, row) for name, one in ran.items() for row in one.rows)
