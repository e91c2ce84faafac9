"""Metrics: each quantity of an answer is declared once, with its label, its unit and which direction is better.

Tables, charts, pages, CSV and JSON files and the explorer choose metrics by name, and take labels, units and digits
from here. A new metric is one row here and its name in the lists of views below; a share of two other metrics (``part``
and ``whole``) needs no other code. Another one is also a field of the result that has it (``Measurement``,
``RankedPlan``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from knee.base.units import precise, show

ENDINGS = {
    "nic_bytes_per_s": "bits_per_s",
    "_bytes_per_s": "bytes_per_s",
    "_flop_per_s": "flop_per_s",
    "_bytes": "bytes",
    "_frac": "frac",
    "_w_per_gpu": "w_per_gpu",
    "_w": "w",
    "usd_per_mtoken": "usd",
    "_per_s": "",
    "_s_per_gpu": "",
    "_per_j": "",
    "_s": "s",
}
"""How a name ends -> its unit; the first that matches counts. Other names are plain numbers or words."""


def ending_of(name: str) -> str:
    """The ending of a name that says its unit, or an empty text."""
    return next((ending for ending in ENDINGS if name.endswith(ending)), "")


def unit_of(name: str) -> str:
    """The unit of a column by the ending of its name, such as ``s`` or ``bytes``; empty for a plain number."""
    return ENDINGS.get(ending_of(name), "")


@dataclass(frozen=True, slots=True)
class Metric:
    """One quantity of an answer."""

    name: str
    """Its key in JSON and its column in CSV; the ending is the unit."""
    label: str
    """Its name for people, without the unit."""
    better: Literal["more", "less", ""] = ""
    """Which direction is better; empty where neither is."""
    meaning: str = ""
    """One sentence for the reference; empty where the docstring of the result's field says it."""
    _: KW_ONLY
    column: str = ""
    """Heading of its column in a table of the terminal, with the unit of the cells; the label where empty."""
    part: str = ""
    """If the metric is a share: the metric that it is a share of something of,"""
    whole: str = ""
    """and the metric that this is divided by."""

    @property
    def unit(self) -> str:
        """Such as ``s``, ``bytes`` or ``frac``; empty for a plain number."""
        return unit_of(self.name)

    @property
    def heading(self) -> str:
        """Of its column in a table."""
        return self.column or self.label

    def as_json(self) -> dict[str, str]:
        """What the explorer needs to show it."""
        return {name: getattr(self, name) for name in ("label", "heading", "unit", "better")}

    def text(self, value: float | None) -> str:
        """A value with its unit: ``1.25 ms``, ``43.2%``, ``650 W``; ``unknown`` for None."""
        if value is None:
            return "unknown"
        if self.unit in ("", "usd"):
            return precise(value) + (" USD" if self.unit else "")
        return show(value, self.unit.removesuffix("_per_gpu"))

    def cell(self, value: float | None) -> str:
        """A value under the heading of its column."""
        if value is None:
            return "unknown"
        if self.unit == "frac":
            return f"{value:.1%}"
        if self.unit == "w_per_gpu":
            return f"{value:.0f}"
        if self.unit not in ("", "usd"):
            return self.text(value)
        return precise(value) if value >= 1000 else f"{value:#.4g}".rstrip(".")

    def of(self, answer: Any) -> Any:
        """Its value in a result (by attribute) or in a record (by key). A share is computed from its part and whole;
        None where a value is not known."""

        def get(name: str) -> Any:
            return answer.get(name) if isinstance(answer, Mapping) else getattr(answer, name, None)

        if not self.part:
            return get(self.name)
        part, whole = get(self.part), get(self.whole)
        return part / whole if part is not None and whole else None


def values_of(answer: Any, view: str) -> dict[str, Any]:
    """The metrics of a view in a result or a record, by name."""
    return {name: METRICS[name].of(answer) for name in VIEWS[view]}


def _metrics(*rows: Metric) -> dict[str, Metric]:
    return {row.name: row for row in rows}


STEP = _metrics(
    Metric("step_s", "step time", "less", "Seconds of one optimizer step."),
    Metric("tokens_per_s", "tokens/s", "more", "Tokens per second over all GPUs."),
    Metric("tokens_per_s_per_gpu", "tokens/s per GPU", "more", "Tokens per second per GPU.", column="tokens/s/GPU"),
    Metric("mfu_frac", "MFU", "more", "Model FLOP utilisation: the model's FLOP per second divided by the dense peak."),
    Metric("flop_convention", "FLOP convention", "", "How model FLOP are counted: `palm` by default."),
    Metric("compute_s", "compute"),
    Metric("compute_load_s", "compute load"),
    Metric("comm_s", "communication", "less"),
    Metric("comm_load_s", "communication load", "less"),
    Metric("exposed_comm_s", "exposed communication", "less"),
    Metric("overlapped_comm_s", "overlapped communication", "less"),
    Metric("bubble_s", "bubble", "less"),
    Metric("idle_s", "idle", "less"),
    Metric("straggler_s", "waiting for stragglers", "less"),
    Metric("memory_bytes", "memory per GPU", "less"),
    Metric("fits", "fits", "", "Whether the plan fits in the memory of a GPU."),
    Metric("power_w_per_gpu", "power per GPU", "less", "Mean power per GPU in watts.", column="W/GPU"),
    Metric("tokens_per_j", "tokens per joule", "more", "Tokens per joule of GPU energy.", column="tokens/J"),
    Metric(
        "usd_per_mtoken",
        "cost per million tokens",
        "less",
        "Dollars per million tokens at the cluster's rental price.",
        column="$/Mtoken",
    ),
)
"""Of one training step: fields of ``Measurement`` that tables have a column for."""

DERIVED = _metrics(
    Metric("exposed_s", "exposed time with bubble", "less", "Exposed communication and bubbles, in seconds per step."),
    Metric(
        "exposed_frac",
        "exposed share of the step",
        "less",
        "Exposed communication and bubbles as a share of the step.",
        column="exposed",
        part="exposed_s",
        whole="step_s",
    ),
    Metric(
        "compute_frac",
        "compute share of the step",
        "",
        "Compute as a share of the step.",
        part="compute_s",
        whole="step_s",
    ),
    Metric(
        "bubble_frac",
        "bubble share of the step",
        "less",
        "Bubbles as a share of the step.",
        column="bubble",
        part="bubble_s",
        whole="step_s",
    ),
    Metric(
        "transfer_load_s",
        "communication load without waiting",
        "less",
        "Summed time of communication kernels, without waiting for stragglers.",
    ),
    Metric("all_gather_s", "all-gathers", "less", "Summed time of all-gathers of the sharded group."),
    Metric("reduce_scatter_s", "reduce-scatters", "less", "Summed time of reduce-scatters of the sharded group."),
    Metric("gather_bytes", "gather", "", "Bytes of the all-gather that is called most often."),
    Metric(
        "exchange_s", "sending tokens to experts and back", "less", "Summed time of sending tokens to experts and back."
    ),
    Metric(
        "exchange_frac",
        "exchange share of the step",
        "less",
        "The same as a share of the step.",
        part="exchange_s",
        whole="step_s",
    ),
    Metric("fsdp_ranks", "ranks of FSDP's group", "", "GPUs of the sharded group."),
    Metric("total_power_w", "power of all GPUs", "less", "Power of all GPUs in watts."),
    Metric(
        "overlapped_frac",
        "overlapped share of communication",
        "more",
        "Share of the communication time in which compute runs too.",
        column="overlapped",
        part="overlapped_comm_s",
        whole="comm_s",
    ),
)
"""Of one training step: what rows of a study have besides."""

OTHERS = _metrics(
    Metric(
        "memory_frac",
        "share of the GPU's memory",
        "less",
        "Memory that the plan needs, divided by the memory of a GPU.",
    ),
    Metric("message_bytes", "message", "", "Bytes of the message."),
    Metric("time_s", "time", "less", "Seconds of one operation on idle links."),
    Metric("bus_bytes_per_s", "bus bandwidth", "more", "Bus bandwidth, as nccl-tests defines it."),
    Metric("published_bus_bytes_per_s", "published bus bandwidth", "more", "Published bus bandwidth."),
    Metric("error_frac", "error", "less", "Difference to the published bandwidth, as a share of it."),
    Metric("nic_bytes_per_s", "network per GPU", "more", "Network rate per GPU and direction."),
    Metric("peak_flop_per_s", "tensor cores", "more", "Dense peak rate of the GPU."),
    Metric("hbm_bytes", "memory", "more", "Memory of the GPU."),
    Metric("hbm_bytes_per_s", "memory bandwidth", "more", "Memory bandwidth of the GPU."),
    Metric("link_bytes_per_s", "NVLink", "more", "Rate inside the node per GPU and direction."),
    Metric("node_nic_bytes_per_s", "network per node", "more", "Network rate per node and direction."),
    Metric("tdp_w", "power limit", "", "Board power limit in watts."),
    Metric("days", "days", "", "Days of training."),
    Metric("params", "parameters", "", "Parameters of the best model."),
    Metric(
        "least_params",
        "parameters that lose least",
        "",
        "Number of parameters with the lowest loss, interpolated between the sizes that were tried.",
    ),
    Metric("tokens", "tokens", "", "Tokens that the model is trained on."),
    Metric("tokens_per_param", "tokens per param", "", "Tokens per parameter."),
    Metric("loss", "loss", "less", "Loss by the scaling law."),
    Metric("flop_params", "parameters by counting FLOP", "", "Parameters of the model that counting FLOP chooses."),
    Metric("size_ratio", "size over that of counting FLOP", "", "`least_params` divided by `flop_params`."),
    Metric("flop_loss", "flop loss", "less", "Loss that counting FLOP predicts."),
    Metric("really_loss", "really loss", "less", "Loss that this choice really reaches on the cluster."),
    Metric(
        "reached_frac", "share of the planned work", "more", "Share of the planned FLOP that the cluster completes."
    ),
    Metric("lost_frac", "budget lost by counting FLOP", "less", "Share of the budget that this choice wastes."),
    Metric("run_days", "days of the run", "", "Days of a whole run."),
    Metric("goodput_frac", "goodput", "more", "Share of the run's time in which it makes steps that count."),
    Metric("interruptions", "interruptions", "", "Interruptions of the run, mean."),
    Metric("cause_frac", "share of the time", "", "Share of the run's time that this cause takes."),
    Metric("from_day", "from day", "", "Day on which a stretch begins."),
    Metric("to_day", "to day", "", "Day on which a stretch ends."),
    Metric("utilisation_frac", "utilisation", "more", "Share of the time in which GPUs compute."),
    Metric(
        "gbit_per_s", "bandwidth in Gbit/s", "", "Bandwidth between sites that reaches this utilisation, in Gbit/s."
    ),
    Metric("published_gbit_per_s", "published bandwidth in Gbit/s", "", "The same as published."),
    Metric("grid_steps", "steps of the grid apart", "", "Distance of the two in steps of the published grid."),
    Metric("within_frac", "within", "more", "Share of the cells that are within one step of the grid."),
    Metric("run_flop", "FLOP of the run", "", "FLOP of the whole run."),
    Metric("knee_flop", "FLOP at 80% utilisation", "", "Largest run at 80% of the utilisation of small runs, in FLOP."),
    Metric("wall_flop", "largest FLOP", "", "Largest run that ends in the given time, in FLOP."),
)
"""Of collectives, data sheets, budgets and whole runs: what other rows of a study have."""

SHOWN_ONLY = _metrics(
    Metric(
        "exposed_comm_frac",
        "exposed share of the step",
        "less",
        column="exposed comm",
        part="exposed_comm_s",
        whole="step_s",
    ),
    Metric("headroom_bytes", "free memory", "more"),
    Metric("good_frac", "draws within 2%", "more"),
    Metric("exposed_copies_s", "exposed copies and fills", "less"),
    Metric("power_w", "power of all GPUs", "less"),
    Metric("energy_j_per_step", "energy of a step", "less"),
    Metric("usd_per_h", "cost of an hour", "less"),
    Metric("usd_per_step", "cost of a step", "less"),
    Metric("of_first_frac", "of the smallest count"),
    Metric("published_frac", "published, of the smallest count"),
    Metric("predicted_frac", "predicted, of the smallest count"),
    Metric("low_frac", "real throughput from"),
    Metric("high_frac", "to"),
    Metric("off_by_frac", "off by", "less"),
    Metric("memory_off_by_frac", "memory off by", "less"),
    Metric("power_off_by_frac", "power off by", "less"),
    Metric("counted_loss", "loss by counting FLOP", "less"),
    Metric("usd", "US$", "less"),
    Metric("mwh", "MWh", "less"),
    Metric("co2e_kg", "kg CO2e", "less"),
    Metric("law_low", "loss at least, by the law"),
    Metric("law_high", "loss at most, by the law"),
    Metric("ends_by", "ends by"),
    Metric("worth_frac", "of what the law promises for a doubling"),
    Metric("low_params", "parameters from"),
    Metric("high_params", "parameters to"),
)
"""In tables and charts only."""

METRICS: dict[str, Metric] = STEP | DERIVED | OTHERS | SHOWN_ONLY
"""All metrics by name."""

SPEED = ("tokens_per_s", "tokens_per_s_per_gpu")
PARTS = ("compute_s", "exposed_comm_s", "bubble_s", "idle_s")
SHARES = ("mfu_frac", "exposed_comm_frac", "bubble_frac")
LOADS = ("compute_load_s", "comm_load_s")
ENERGY = ("power_w_per_gpu", "tokens_per_j")
VIEWS: dict[str, tuple[str, ...]] = {
    "parts of a step": PARTS,
    "times of a step": (*PARTS, "comm_s", "overlapped_comm_s"),
    "ranking of plans": (*SPEED, *SHARES, "headroom_bytes", *ENERGY, "usd_per_mtoken"),
    "scaling": (*SPEED, *SHARES, *ENERGY, "usd_per_mtoken"),
    "scaling chart": (
        *("tokens_per_s_per_gpu", "mfu_frac", "exposed_frac"),
        *(*ENERGY, "usd_per_mtoken", "tokens_per_s"),
    ),
    "comparison of records": (
        *(*SPEED, "step_s", "mfu_frac", *LOADS),
        *("exposed_comm_s", "exposed_comm_frac", "overlapped_comm_s", "overlapped_frac"),
        *("memory_bytes", *ENERGY),
    ),
    "list of records": ("tokens_per_s_per_gpu", "step_s", "mfu_frac", "exposed_frac", "memory_bytes", *ENERGY),
    "dropped file": (
        *("step_s", "compute_s", "exposed_comm_s", "overlapped_comm_s", "bubble_s", "idle_s"),
        *(*SPEED, "mfu_frac", "memory_bytes", *ENERGY),
    ),
    "times of a trace": (
        *(*LOADS, "compute_s", "comm_s"),
        *("exposed_comm_s", "overlapped_comm_s", "bubble_s", "idle_s"),
    ),
    "change of a trace": (
        *("step_s", "compute_s", "exposed_comm_s", "exposed_copies_s"),
        *("idle_s", "comm_s", "overlapped_comm_s"),
    ),
}
"""Where several metrics are shown together -> their names, in the order of its rows or columns."""
