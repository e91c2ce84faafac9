"""The registry of metrics: complete for results and views, and the only place of labels for the explorer."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import knee
from knee.engine.simulator import Results
from knee.specs.metrics import DERIVED, METRICS, STEP, VIEWS, unit_of, values_of

PAGE = Path(knee.__file__).parent / "commands" / "serve" / "page"


def test_every_column_of_the_simulator_is_a_metric() -> None:
    assert {column.name for column in fields(Results)} <= set(STEP)


def test_views_and_shares_name_metrics() -> None:
    named = {name for names in VIEWS.values() for name in names}
    shares = [metric for metric in METRICS.values() if metric.part or metric.whole]
    assert named <= set(METRICS)
    assert all({share.part, share.whole} <= set(METRICS) and share.unit == "frac" for share in shares)


def test_the_explorer_names_metrics_of_the_registry() -> None:
    used = set()
    for path in PAGE.glob("*.js"):
        used |= set(re.findall(r"""\b(?:label|named|pair|column)\("(\w+)"\)""", path.read_text("utf-8")))
    chart = re.findall(r'^ +(?:\{ )?name: "(\w+)"', (PAGE / "scale_chart.js").read_text("utf-8"), re.MULTILINE)
    assert tuple(chart) == VIEWS["scaling chart"]
    assert len(used) > 10
    assert used <= set(METRICS)


@pytest.mark.parametrize(
    ("name", "value", "text", "cell"),
    [
        ("step_s", 0.00125, "1.25 ms", "1.25 ms"),
        ("step_s", 0.0, "0 s", "0 s"),
        ("mfu_frac", 0.4321, "43.2%", "43.2%"),
        ("power_w_per_gpu", 651.2, "651 W", "651"),
        ("tokens_per_s", 12345.6, "12,346", "12,346"),
        ("tokens_per_j", 13.0, "13", "13.00"),
        ("usd_per_mtoken", 0.1, "0.1 USD", "0.1000"),
        ("memory_bytes", 2.0**30, "1.00 GiB", "1.00 GiB"),
        ("tokens_per_j", None, "unknown", "unknown"),
    ],
)
def test_a_value_has_the_unit_that_its_name_ends_in(name: str, value: float | None, text: str, cell: str) -> None:
    assert (METRICS[name].text(value), METRICS[name].cell(value)) == (text, cell)


def test_units_follow_from_endings() -> None:
    names = ("tokens_per_s", "tokens_per_s_per_gpu", "step_s", "nic_bytes_per_s", "hbm_bytes_per_s", "total_power_w")
    assert [unit_of(name) for name in names] == ["", "", "s", "bits_per_s", "bytes_per_s", "w"]


def test_a_share_is_computed_from_a_result_or_a_record() -> None:
    step = knee.simulate("llama2-7b", cluster="dgx-h100", gpus=64, local_batch=2)
    for answer in (step, step.to_dict()):
        found = values_of(answer, "scaling")
        assert found["exposed_comm_frac"] == step.exposed_comm_s / step.step_s
        assert found["tokens_per_j"] == step.tokens_per_j
    assert METRICS["exposed_comm_frac"].of({"exposed_comm_s": 1.0, "step_s": None}) is None
    assert DERIVED["bubble_frac"].of({"bubble_s": 0.0, "step_s": 2.0}) == 0.0


def test_the_overlapped_share_of_communication_is_compared() -> None:
    steps = [knee.simulate("llama2-7b", cluster="dgx-h100", gpus=n, local_batch=2) for n in (64, 256)]
    row = next(row for row in knee.compare(*steps).to_dict()["rows"] if row["share_of"] == "comm_s")
    assert row["values"] == [step.overlapped_comm_s / step.comm_s for step in steps]
    assert row["name"] == METRICS["overlapped_frac"].label
