"""Numbers with units, in and out."""

import pytest

from knee.base import units


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("3.35 TB/s", "bytes_per_s", 3.35e12),
        ("400 Gbit/s", "bytes_per_s", 50e9),
        ("400Gbps", "bytes_per_s", 50e9),
        ("80 GiB", "bytes", 80 * 2**30),
        ("81559 MiB", "bytes", 81559 * 2**20),
        ("80 GB", "bytes", 80e9),
        ("989 TFLOP/s", "flop_per_s", 989e12),
        ("14 us", "s", 14e-6),
        ("14 µs", "s", 14e-6),
        ("85%", "frac", 0.85),
        ("0.85", "frac", 0.85),
        ("1.16 pJ/FLOP", "j_per_flop", 1.16e-12),
        ("70 pJ/B", "j_per_byte", 70e-12),
        ("2.95 USD/h", "usd_per_h", 2.95),
        ("-1e3 W", "w", -1000.0),
        (2, "s", 2.0),
    ],
)
def test_parse(text: str | float, unit: str, value: float) -> None:
    assert units.parse(text, unit) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(("text", "unit"), [("80 GB/s", "bytes"), ("fast", "bytes_per_s"), ("", "s"), ("1 2 s", "s")])
def test_parse_refuses_and_shows_an_example(text: str, unit: str) -> None:
    with pytest.raises(ValueError, match="for example"):
        units.parse(text, unit)


@pytest.mark.parametrize(
    ("field", "dimension"),
    [
        ("hbm_bytes_per_s", "bytes_per_s"),
        ("hbm_bytes", "bytes"),
        ("hop_s", "s"),
        ("fp16_flop_per_s", "flop_per_s"),
        ("gemm_j_per_flop", "j_per_flop"),
        ("idle_w", "w"),
        ("nic_frac", "frac"),
        ("sms", None),
        ("layers", None),
        ("hop_scale", None),
    ],
)
def test_dimension_is_the_suffix(field: str, dimension: str | None) -> None:
    assert units.dimension(field) == dimension


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.00125, "s", "1.25 ms"),
        (3.35e12, "bytes_per_s", "3.35 TB/s"),
        (80 * 2.0**30, "bytes", "80.0 GiB"),
        (0.4077, "frac", "40.8%"),
        (658.0, "w", "658 W"),
        (0.0, "s", "0 s"),
    ],
)
def test_show(value: float, unit: str, text: str) -> None:
    assert units.show(value, unit) == text


@pytest.mark.parametrize("unit", ["s", "bytes", "bytes_per_s", "flop_per_s", "w", "j_per_byte", "usd_per_h"])
def test_an_example_of_each_dimension_parses(unit: str) -> None:
    assert units.parse(units.example(unit).split(" or ")[0], unit) > 0
