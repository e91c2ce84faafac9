"""Columns of rows as people read them: names, units, a value in words. The same on axes, in tables and in tooltips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from knee.base.units import all_digits, scaled_to_unit, short

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
    "message_bytes": "message",
    "tp": "tensor-parallel degree",
    "pp": "pipeline-parallel degree",
    "cp": "context-parallel degree",
    "ep": "expert-parallel degree",
    "degree": "total degree of model parallelism",
    "experts": "experts per layer",
    "tokens_per_s": "tokens/s",
    "tokens_per_s_per_gpu": "tokens/s per GPU",
    "tokens_per_j": "tokens per joule",
    "usd_per_mtoken": "US$ per million tokens",
    "mfu_frac": "MFU",
    "exposed_frac": "exposed share of the step",
    "compute_frac": "compute share of the step",
    "bubble_frac": "bubble share of the step",
    "memory_frac": "share of the GPU's memory",
    "error_frac": "error",
    "of_first_frac": "of the smallest count",
    "published_frac": "published, of the smallest count",
    "predicted_frac": "predicted, of the smallest count",
    "low_frac": "real throughput from",
    "high_frac": "to",
    "power_w_per_gpu": "power per GPU",
    "total_power_w": "power of all GPUs",
    "tdp_w": "power limit",
    "memory_bytes": "memory per GPU",
    "step_s": "step",
    "compute_s": "compute",
    "exposed_s": "exposed, bubble counted",
    "exposed_comm_s": "exposed communication",
    "overlapped_comm_s": "overlapped communication",
    "comm_s": "communication",
    "comm_load_s": "communication load",
    "compute_load_s": "compute load",
    "transfer_load_s": "communication load without waiting",
    "bubble_s": "bubble",
    "idle_s": "idle",
    "straggler_s": "waiting for stragglers",
    "all_gather_s": "all-gathers",
    "reduce_scatter_s": "reduce-scatters",
    "exchange_s": "sending tokens to experts and back",
    "exchange_frac": "exchange share of the step",
    "fsdp_ranks": "ranks of FSDP's group",
    "time_s": "time",
    "bus_bytes_per_s": "bus bandwidth",
    "published_bus_bytes_per_s": "published bus bandwidth",
    "peak_flop_per_s": "tensor cores",
    "hbm_bytes": "memory",
    "hbm_bytes_per_s": "memory bandwidth",
    "link_bytes_per_s": "NVLink",
    "nic_bytes_per_s": "network per GPU",
    "node_nic_bytes_per_s": "network per node",
    "flop_convention": "FLOP convention",
    "off_by_frac": "off by",
    "memory_off_by_frac": "memory off by",
    "power_off_by_frac": "power off by",
    "loss": "loss",
    "counted_loss": "loss by counting FLOP",
    "params": "parameters",
    "tokens": "tokens",
    "days": "days",
    "usd": "US$",
    "mwh": "MWh",
    "co2e_kg": "kg CO2e",
    "law_low": "loss at least, by the law",
    "law_high": "loss at most, by the law",
    "ends_by": "ends by",
    "worth_frac": "of what the law promises for a doubling",
    "span": "what",
    "cause": "cause",
    "from_day": "from day",
    "to_day": "to day",
    "run_days": "days of the run",
    "goodput_frac": "goodput",
    "interruptions": "interruptions",
    "cause_frac": "share of the time",
    "utilisation_frac": "utilisation",
    "gbit_per_s": "bandwidth in Gbit/s",
    "published_gbit_per_s": "published bandwidth in Gbit/s",
    "grid_steps": "steps of the grid apart",
    "run_flop": "FLOP of the run",
    "knee_flop": "FLOP at 80% utilisation",
    "wall_flop": "largest FLOP",
    "lost_frac": "budget lost by counting FLOP",
    "size_ratio": "size over that of counting FLOP",
    "reached_frac": "share of the planned work",
    "least_params": "parameters that lose least",
    "flop_params": "parameters by counting FLOP",
    "low_params": "parameters from",
    "high_params": "parameters to",
    "from_gpus": "from GPUs",
    "to_gpus": "to GPUs",
}
"""Names without their units."""

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
ENDINGS: dict[str, tuple[Unit, ...]] = {
    "nic_bytes_per_s": (Unit(factor=8e-9, word="Gbit/s"),),
    "_bytes_per_s": (Unit(factor=1e-9, word="GB/s"),),
    "_flop_per_s": (Unit(factor=1e-12, word="TFLOP/s"),),
    "_bytes": BYTES,
    "_frac": (Unit(factor=100.0, word="%", decimals=1),),
    "_w_per_gpu": (Unit(factor=1.0, word="W", decimals=0),),
    "_w": WATTS,
    "_per_s": (PLAIN,),
    "_s_per_gpu": (PLAIN,),
    "_per_j": (PLAIN,),
    "_s": SECONDS,
}
"""Ending of a column -> its units, the largest first. Tables take the first that is not a multiple of the base."""


def units_of(column: str) -> tuple[Unit, ...]:
    """The units that a column may be shown in."""
    return next((units for ending, units in ENDINGS.items() if column.endswith(ending)), (PLAIN,))


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
    ending = next((ending for ending in ENDINGS if ending.startswith("_") and column.endswith(ending)), "")
    return column.removesuffix(ending).replace("_", " ")


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
        return format_count(value)
    unit = unit or table_unit(column)
    return _number(value * unit.factor if unit.factor != 1.0 else value, unit.decimals)


def _number(value: float, decimals: int | None) -> str:
    if decimals is not None:
        return f"{value:,.{decimals}f}"
    if isinstance(value, int) or abs(value) >= 1000 or float(value).is_integer():
        return all_digits(value)
    return f"{value:#.4g}".rstrip(".")


COUNTS = (
    "params",
    "least_params",
    "flop_params",
    "low_params",
    "high_params",
    "tokens",
    "days",
    "usd",
    "mwh",
    "co2e_kg",
)
"""Columns of numbers so large that their letter says more: 7B, 1.5T."""


def format_count(value: float) -> str:
    """``6.74B``."""
    return short(value) if value >= 999.5 else f"{value:.3g}"


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
