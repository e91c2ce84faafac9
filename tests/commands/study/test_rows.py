"""Rows: what a record becomes, simulated or measured, and which of two stands for a point."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from knee.commands.study.questions import Question, StudyPoint, answer
from knee.commands.study.rows import (
    IDENTITY,
    bandwidth_rows,
    hardware_row,
    identity,
    impossible_row,
    preferred,
    step_row,
)
from knee.commands.study.study_file import Bandwidths
from knee.measure.hardware_fit.links import bus_factor

NIC = "fabric.nic_bytes_per_s"


@cache
def _answer(**given: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "model": "llama-1b",
        "cluster": "dgx-h100",
        "profile": "eager",
        "gpus": 16,
        "global_batch": 32,
        "seq_len": 1024,
        "plans": ((("pp", 2),),),
    }
    return answer(Question(**base | given))


def record(**given: Any) -> dict[str, Any]:
    return dict(_answer(**given))


def row_of(found: dict[str, Any], **more: Any) -> dict[str, Any]:
    return step_row(found | more, study="mine", series="s")


def measured(**more: Any) -> dict[str, Any]:
    """As the trainer leaves one: no question, no trust; without a trace no times either."""
    untraced = dict.fromkeys(
        (
            "compute_s",
            "compute_load_s",
            "comm_s",
            "comm_load_s",
            "exposed_comm_s",
            "overlapped_comm_s",
            "bubble_s",
            "idle_s",
            "straggler_s",
        )
    )
    return record() | {"kind": "measured", "trust": None, "comm_loads": [], "step_s": 2.0} | untraced | more


def test_labels_and_metrics() -> None:
    found, row = record(), row_of(record())
    assert (row["study"], row["series"], row["kind"], row["model"]) == ("mine", "s", "simulated", "llama-1b")
    assert (row["gpus"], row["nodes"], row["node_gpus"], row["gpu"]) == (16, 2, 8, "h100-sxm")
    assert (row["local_batch"], row["pp"], row["degree"], row["dp_shard"]) == (2.0, 2, 2, 8)
    assert row["plan"]
    assert row["step_s"] == found["step_s"]
    assert row["memory_frac"] == pytest.approx(found["memory_bytes"] / 80e9, rel=0.1)
    assert row["trust"] == found["trust"]["label"]
    assert row["set"] == ""


def test_experts_and_the_exchange_of_tokens() -> None:
    plan = (("dispatcher", "deepep"), ("ep", 8))
    fewer = (("model.experts.count", "32"),)
    found = record(model="olmoe-1b-7b", plans=(plan,), sets=fewer)
    row, dense = row_of(found, set=fewer), row_of(record())
    assert (row["experts"], row["ep"], row["dispatcher"]) == (32, 8, "deepep")
    assert (row["routing"], row["imbalance"]) == ("balanced", None)
    assert 0 < row["exchange_s"] < found["comm_load_s"]
    assert row["exchange_frac"] == pytest.approx(row["exchange_s"] / found["step_s"])
    assert (dense["experts"], dense["ep"], dense["exchange_s"], dense["exchange_frac"]) == (None, 1, 0, 0)
    unknown = row_of(found, model="a model of mine")
    assert unknown["experts"] is None
    untraced = row_of(measured())
    assert (untraced["exchange_s"], untraced["exchange_frac"]) == (None, None)


def test_what_the_paper_s_figures_show() -> None:
    found, row = record(), row_of(record())
    assert found["bubble_s"] > 0
    assert row["exposed_s"] == found["exposed_comm_s"] + found["bubble_s"]  # as a trace shows it
    assert row["exposed_frac"] == pytest.approx(row["exposed_s"] / row["step_s"])
    assert row["compute_frac"] == pytest.approx(found["compute_s"] / found["step_s"])
    assert row["bubble_frac"] == pytest.approx(found["bubble_s"] / found["step_s"])
    assert row["transfer_load_s"] == pytest.approx(found["comm_load_s"] - found["straggler_s"])
    assert row["total_power_w"] == pytest.approx(16 * found["power_w_per_gpu"])
    assert row["fsdp_ranks"] == 8
    loads = [load for load in found["comm_loads"] if load["group"] == "dp_shard"]
    assert row["all_gather_s"] + row["reduce_scatter_s"] == pytest.approx(sum(load["load_s"] for load in loads))
    most = max((load for load in loads if load["collective"] == "all_gather"), key=lambda load: load["calls"])
    assert row["gather_bytes"] == most["message_bytes"]


def test_one_gpu_sends_nothing() -> None:
    row = row_of(record(gpus=1, global_batch=2, plans=((),)))
    assert (row["all_gather_s"], row["reduce_scatter_s"], row["exposed_s"]) == (0, 0, 0)
    assert (row["gather_bytes"], row["fsdp_ranks"]) == (None, None)


def test_a_run_without_a_trace_does_not_say_what_it_sent() -> None:
    row = row_of(measured())
    assert (row["kind"], row["step_s"]) == ("measured", 2.0)
    for name in (
        "exposed_s",
        "exposed_frac",
        "compute_frac",
        "bubble_frac",
        "transfer_load_s",
        "all_gather_s",
        "reduce_scatter_s",
        "gather_bytes",
        "trust",
    ):
        assert row[name] is None, name


def test_shares_are_of_the_traced_step() -> None:
    row = row_of(measured(step_s=2.0, traced_step_s=4.0, exposed_comm_s=1.0, compute_s=2.0, comm_load_s=1.0))
    assert (row["exposed_frac"], row["compute_frac"]) == (0.25, 0.5)


def test_a_machine_that_the_catalogue_does_not_have() -> None:
    for cluster in ("somewhere", None):
        row = row_of(measured(cluster=cluster))
        assert row["nodes"] is None
        assert "nic_bytes_per_s" not in row


def test_changed_values_are_told() -> None:
    slow = record(sets=((NIC, "10 Gbit/s"),))
    row = row_of(slow, question={"sets": [[NIC, "10 Gbit/s"]]})
    assert row["set"] == f"{NIC}=10 Gbit/s"
    assert row["nic_bytes_per_s"] == pytest.approx(1.25e9)
    assert identity(row) != identity(row_of(record()))


def test_identity_is_what_both_kinds_of_records_say() -> None:
    assert identity(row_of(record())) == identity(row_of(measured()))
    other = {"model": "llama2-7b", "cluster": "dgx-a100", "gpus": 8, "global_batch": 16, "seq_len": 64}
    for name, value in other.items():
        assert identity(row_of(measured(**{name: value}))) != identity(row_of(record())), name
    for name in set(IDENTITY) - other.keys() - {"set"}:
        plan = dict(record()["plan"])
        plan |= {name: {"schedule": "gpipe", "sharding": "fsdp", "cp_method": "ring", "recompute": "full"}.get(name, 7)}
        row = row_of(record())
        assert identity(row | {name: plan[name]}) != identity(row), name


def test_the_measured_row_stands_for_its_point() -> None:
    simulated, real = row_of(record()), row_of(measured())
    other = row_of(record(gpus=8, global_batch=16))
    assert preferred([simulated, other, real]) == [real, other]  # in the place of the simulated one
    assert preferred([real, simulated]) == [real]
    assert preferred([simulated, other]) == [simulated, other]
    again = row_of(measured(step_s=3.0))
    assert preferred([simulated, real, again]) == [again]
    elsewhere = real | {"series": "t"}
    assert preferred([simulated, elsewhere]) == [simulated, elsewhere]


def test_rows_that_differ_in_a_changed_value_only_all_stay() -> None:
    rows = [row_of(record(sets=((NIC, text),)), question={"sets": [[NIC, text]]}) for text in ("1 GB/s", "2 GB/s")]
    assert preferred(rows) == rows
    profiles = [row_of(record(profile=name)) for name in ("eager", "compiled")]
    assert preferred(profiles) == profiles


def test_what_cannot_be_keeps_its_labels() -> None:
    question = Question(
        model="llama-1b", cluster="dgx-h100", profile="eager", gpus=8, global_batch=8, seq_len=64, plans=((("tp", 3),),)
    )
    row = impossible_row(StudyPoint(study="mine", series="TP 3", question=question), "because")
    assert (row["kind"], row["why"], row["tp"], row["series"]) == ("impossible", "because", 3, "TP 3")


# ---- collectives and data sheets -----------------------------------------------------------------------------------


def test_bandwidths_and_readings_beside_them() -> None:
    grid = Bandwidths(
        series="{nodes} nodes, {message}",
        cluster="dgx-h100",
        collective="all_reduce",
        nodes=(4, 512),
        message=("1 MiB", "1 GiB"),
        published="paper_figure_2a",
    )
    rows = list(bandwidth_rows("mine", grid))
    assert [row["series"] for row in rows] == [
        "4 nodes, 1 MiB",
        "512 nodes, 1 MiB",
        "4 nodes, 1 GiB",
        "512 nodes, 1 GiB",
    ]
    for row in rows:
        assert row["gpus"] == 8 * row["nodes"]
        factor = bus_factor("all_reduce", row["gpus"])
        assert row["bus_bytes_per_s"] == pytest.approx(row["message_bytes"] * factor / row["time_s"])
    large = [row for row in rows if row["message_bytes"] == 2**30]
    assert all(row["compared"] and row["published_bus_bytes_per_s"] for row in large)
    assert all(
        row["error_frac"] == pytest.approx(abs(row["bus_bytes_per_s"] / row["published_bus_bytes_per_s"] - 1))
        for row in large
    )
    assert not any(row["compared"] for row in rows[:2])  # small messages are shown, not counted
    plain = Bandwidths(series="s", cluster="dgx-h100", collective="all_gather", nodes=(4,), message=("1 GiB",))
    [row] = bandwidth_rows("mine", plain)
    assert (row["published_bus_bytes_per_s"], row["compared"]) == (None, False)


def test_a_data_sheet() -> None:
    row = hardware_row("mine", "dgx-h100")
    assert (row["series"], row["kind"], row["gpu"]) == ("h100-sxm", "catalogue", "h100-sxm")
    assert row["peak_flop_per_s"] == pytest.approx(989e12, rel=0.01)
    assert row["node_nic_bytes_per_s"] == 8 * row["nic_bytes_per_s"]
    assert hardware_row("mine", "dgx-v100")["peak_flop_per_s"] == pytest.approx(125e12, rel=0.01)  # has no bf16


@pytest.mark.slow
def test_the_columns_that_files_may_name_are_those_of_rows() -> None:
    from knee.commands.study.budget_rows import budget_rows
    from knee.commands.study.record_store import Store
    from knee.commands.study.run_study import points_to_run, recorded, results
    from knee.commands.study.study_file import COLUMNS, Budgets

    names = ["fig1", "fig2a", "table1", "failures", "slow-links", "walls"]
    ran = results(names, list(recorded(points_to_run(names), Store().record)))
    small = Budgets(series="", cluster="dgx-h100", profile="eager", gpus=(8,), days=0.5)
    rows = [*(row for one in ran for row in one.rows), *budget_rows("mine", small)]
    assert set(COLUMNS) == {column for row in rows for column in row}
