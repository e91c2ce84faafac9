"""Columns of rows as people read them: names, units, a value in words. The same on axes, in tables and in tooltips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from knee.base.units import all_digits, scaled_to_unit, short
from knee.specs.metrics import METRICS, ending_of, unit_of

NAMES: dict[str, str] = {
    "series": "series",
    "gpus": "GPUs",
    "gpu": "GPU",
    "nodes": "nodes",
    "node_gpus": "GPUs per node",
    "seq_len": "tokens per sequence",
    "global_batch": "sequences per step",
    "local_batch": "sequences per GPU",
    "micro_batch": "micro-batch",
    "virtual_stages": "chunks per stage",
    "message": "message",
    "tp": "tensor-parallel degree",
    "pp": "pipeline-parallel degree",
    "cp": "context-parallel degree",
    "ep": "expert-parallel degree",
    "degree": "total degree of model parallelism",
    "experts": "experts per layer",
    "span": "what",
    "cause": "cause",
    "from_gpus": "from GPUs",
    "to_gpus": "to GPUs",
} | {name: metric.label for name, metric in METRICS.items()}
"""Names without their units: of labels of a row, and of metrics."""

SHORT = {
    "gpus": "{} GPUs",
    "nodes": "{} nodes",
    "seq_len": "{} tokens",
    "tp": "TP {}",
    "pp": "PP {}",
    "cp": "CP {}",
    "ep": "EP {}",
    "experts": "{} experts",
    "degree": "degree {}",
    "global_batch": "{} sequences",
    "local_batch": "{} a GPU",
}
"""A label of these in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What a stored value is multiplied by, and the unit it then has."""

    factor: float
    word: str
    decimals: int | None = None
    """Always so many; None: by the size of the value."""


PLAIN = Unit(factor=1.0, word="")
SECONDS = (Unit(factor=1.0, word="s"), Unit(factor=1e3, word="ms"), Unit(factor=1e6, word="µs"))
WATTS = (Unit(factor=1e-6, word="MW"), Unit(factor=1e-3, word="kW"), Unit(factor=1.0, word="W"))
BYTES = (Unit(factor=2.0**-30, word="GiB", decimals=1), Unit(factor=2.0**-20, word="MiB"))
UNITS: dict[str, tuple[Unit, ...]] = {
    "bits_per_s": (Unit(factor=8e-9, word="Gbit/s"),),
    "bytes_per_s": (Unit(factor=1e-9, word="GB/s"),),
    "flop_per_s": (Unit(factor=1e-12, word="TFLOP/s"),),
    "bytes": BYTES,
    "frac": (Unit(factor=100.0, word="%", decimals=1),),
    "w_per_gpu": (Unit(factor=1.0, word="W", decimals=0),),
    "w": WATTS,
    "usd": (Unit(factor=1.0, word="USD"),),
    "s": SECONDS,
}
"""Unit of a column -> the units it is shown in, the largest first. Tables take the first that is not a multiple of the
base."""


def units_of(column: str) -> tuple[Unit, ...]:
    """The units that a column may be shown in."""
    return UNITS.get(unit_of(column), (PLAIN,))


def table_unit(column: str) -> Unit:
    """The one unit of a column in tables: seconds, watts, GiB."""
    units = units_of(column)
    return units[-1] if units is WATTS else units[0]


def axis_unit(column: str, most: float) -> Unit:
    """The unit in which the largest value is at least 1."""
    units = units_of(column)
    return next((unit for unit in units if most * unit.factor >= 1), units[-1])


def name_of(column: str) -> str:
    """A column's name without its unit."""
    if column in NAMES:
        return NAMES[column]
    ending = ending_of(column)
    return column.removesuffix(ending if ending.startswith("_") else "").replace("_", " ")


def heading(column: str, unit: Unit | None = None) -> str:
    """A column's name with its unit: ``exposed_comm_s`` is ``exposed communication (s)``."""
    if column == "message_bytes":  # each size carries its own
        return name_of(column)
    word = (unit or table_unit(column)).word
    return f"{name_of(column)} ({word})" if word else name_of(column)


def format_value(column: str, value: Any, unit: Unit | None = None) -> str:
    """A value without its unit, which the heading has."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return str(value)
    if column == "message_bytes":
        return format_bytes(value)
    if column in COUNTS:
        return short(value) if value >= 999.5 else f"{value:.3g}"
    unit = unit or table_unit(column)
    return _number(value * unit.factor if unit.factor != 1.0 else value, unit.decimals)


def _number(value: float, decimals: int | None) -> str:
    if decimals is not None:
        return f"{value:,.{decimals}f}"
    if isinstance(value, int) or abs(value) >= 1000 or float(value).is_integer():
        return all_digits(value)
    return f"{value:#.4g}".rstrip(".")


COUNTS = (
    *("params", "least_params", "flop_params", "low_params", "high_params", "tokens", "days", "usd", "mwh", "co2e_kg"),
)
"""Columns of numbers so large that their letter says more: 7B, 1.5T."""


def format_bytes(value: float) -> str:
    """Bytes of a message, without empty decimals: ``64 MiB``."""
    number, word = scaled_to_unit(value, "bytes")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {word}"


def value_with_name(column: str, value: Any) -> str:
    """A value in a sentence, with its unit: ``5,140 tokens/s per GPU``, ``34.4% exposed share of the step``."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return f"{name_of(column)} {format_value(column, value)}"
    unit = axis_unit(column, abs(value))
    number = format_value(column, value, unit)
    if column == "message_bytes":
        return number
    if not unit.word:
        return f"{number} {name_of(column)}"
    return f"{name_of(column)} {number}{'' if unit.word == '%' else ' '}{unit.word}"


def label(column: str, value: Any) -> str:
    """A label in a sentence or a legend: ``2,048 GPUs``, ``TP 4``, ``64 MiB``."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return str(value)
    if column in SHORT:
        return SHORT[column].format(format_value(column, value))
    unit = axis_unit(column, abs(value))
    return format_value(column, value, unit) + (f" {unit.word}" if unit.word and column != "message_bytes" else "")
