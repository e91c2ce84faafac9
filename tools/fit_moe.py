"""Fit and judge the costs of experts on published tables (data/moe).

    python tools/fit_moe.py            # prints the table of errors
    python tools/fit_moe.py --write    # and writes data/moe/errors.csv and the constants of the catalogue

- Grouped products have the rates of dense products; nothing of them is fitted. A table of fused expert layers has four
  constants of its own (start, sorting, activation, result), fitted on its balanced rows without the model that is
  judged. Rows that a larger layer beats are untuned kernels and judged apart.
- DeepEP's rates are fitted without the GPU, nodes and model that are judged; HybridEP and NCCL's all-to-all have one
  published table each, of which each number of nodes is left out in turn.
- Imbalance of real routing: the variation of the experts' loads that explains how much slower Qwen3-235B trained than
  with forced balance.
- Megatron's MoE layers are predicted with nothing fitted on them.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
from dispatch_tables import (
    CONGESTED_DOMAINS,
    LEAST_TOKENS,
    ExchangeTable,
    fit_deepep,
    fit_wires,
    left_out_deepep_s,
    read_exchanges,
    start_rates,
)
from expert_tables import left_out_s, read_layers
from megatron_layers import read_megatron_layers
from moe_protocol import routing_losses

from knee.base.arrays import Bools, Floats
from knee.engine.cost import expert_dispatch
from knee.engine.cost.collective_cost import Links
from knee.engine.cost.expert_dispatch import BALANCED, SM_RATES, WIRE_RATES, Direction, ExchangeRates
from knee.measure.hardware_fit.residuals import Residuals
from knee.specs.load import load_cluster

ROOT = Path(__file__).parents[1]
DATA = ROOT / "data" / "moe"
CONSTANTS = ROOT / "src" / "knee" / "catalog" / "constants.toml"
CLUSTERS = {
    "a100-sxm-80": "dgx-a100",
    "h100-sxm": "dgx-h100",
    "h200-sxm": "dgx-h200",
    "b200-sxm": "dgx-b200",
    "gb200": "gb200-nvl72",
}
LINKS = {gpu: Links.idle(load_cluster(name).spec) for gpu, name in CLUSTERS.items()}


@dataclass(frozen=True, kw_only=True)
class Row:
    """Errors of one part of the tables."""

    part: str
    what: str
    left_out: str
    errors: Residuals

    @property
    def cells(self) -> list[str]:
        e = self.errors
        values = [f"{value:.3f}" for value in (e.median_frac, e.p90_frac, e.bias_frac)]
        return [self.part, self.what, self.left_out, str(e.points), *values]


def shown(row: Row) -> Row:
    """Print a row."""
    e = row.errors
    print(
        f"{row.part:10} {row.what:44} {e.points:6,} {e.median_frac:7.1%} {e.p90_frac:7.1%} {e.bias_frac:+7.1%}",
        flush=True,
    )
    return row


def layer_rows() -> list[Row]:
    """Errors on expert layers, each model left out in turn."""
    tables = read_layers(DATA / "layers.csv.gz")
    rows = []
    pooled: dict[str, list[tuple[Floats, Floats]]] = {}
    for (gpu_name, kind, routing), table in tables.items():
        fitted_on = tables.get((gpu_name, kind, BALANCED), table)
        predicted = left_out_s(load_cluster(CLUSTERS[gpu_name]).spec.gpu, table, fitted_on)
        untuned, gated = table.untuned(), table.columns["up_projections"] == 2
        for words, which in (
            ("", gated & ~untuned),
            (" without gate", ~gated & ~untuned),
            (" untuned", untuned),
        ):
            if which.any():
                errors = Residuals.of(predicted[which], table.measured_s[which])
                what = f"{gpu_name} {kind} {routing}{words}"
                rows.append(shown(Row(part="layer", what=what, left_out="model", errors=errors)))
        which = gated & ~untuned
        pooled.setdefault(routing, []).append((predicted[which], table.measured_s[which]))
    for routing, pairs in pooled.items():
        errors = Residuals.of(*(np.concatenate(column) for column in zip(*pairs, strict=True)))
        rows.append(shown(Row(part="layer", what=f"all {routing}", left_out="model", errors=errors)))
    return rows


def deepep_rows(table: ExchangeTable, rates: ExchangeRates) -> list[Row]:
    """Errors of DeepEP: each GPU, nodes and model left out in turn, then each GPU."""
    rows = []
    enough = table.columns["tokens"] >= LEAST_TOKENS
    gpus, domains = np.array(table.gpus), table.columns["domains"]
    by_setting = left_out_deepep_s(LINKS, table, [str(setting) for setting in table.settings], rates)
    cases: list[tuple[str, Bools]] = [(f"{gpu}, one node", (gpus == gpu) & (domains == 1)) for gpu in sorted(set(gpus))]
    cases += [(f"h100-sxm, {nodes} nodes", domains == nodes) for nodes in (2, 4, CONGESTED_DOMAINS)]
    cases += [("training's 20 and 24 SMs, 1 to 4 nodes", (table.columns["sms"] >= 20) & (domains < CONGESTED_DOMAINS))]
    for words, which in cases:
        errors = Residuals.of(by_setting[which & enough], table.measured_s[which & enough])
        what = f"deepep {table.direction} {words}"
        rows.append(shown(Row(part="dispatch", what=what, left_out="GPU, nodes and model", errors=errors)))
    by_gpu = left_out_deepep_s(LINKS, table, np.where(domains == 1, gpus, "").tolist(), rates)
    for gpu in sorted(set(gpus)):
        which = enough & (gpus == gpu) & (domains == 1)
        errors = Residuals.of(by_gpu[which], table.measured_s[which])
        what = f"deepep {table.direction} {gpu}, one node"
        rows.append(shown(Row(part="dispatch", what=what, left_out="GPU", errors=errors)))
    return rows


def wire_row(name: str, table: ExchangeTable, start: ExchangeRates) -> Row:
    """Errors of a dispatcher without SMs: each number of nodes left out in turn."""
    seconds = []
    for domains in table.columns["domains"]:
        away = table.columns["domains"] == domains
        # the only row of one node tells NVLink's rate: it cannot be left out, and is not judged
        rates = fit_wires(LINKS, table.kept(~away) if domains > 1 else table, start)
        seconds.append(float(table.kept(away).predict(LINKS, rates)[0]))
    judged = table.columns["domains"] > 1
    errors = Residuals.of(np.array(seconds)[judged], table.measured_s[judged])
    what = f"{name} {table.direction} h100-sxm, 2 to 8 nodes"
    return shown(Row(part="dispatch", what=what, left_out="number of nodes", errors=errors))


def transfer_row(name: str, table: ExchangeTable, rates: ExchangeRates) -> Row:
    """Errors of HybridEP's rates, fitted on H100, on other kernels inside GB200's NVLink domain."""
    errors = Residuals.of(table.predict(LINKS, rates), table.measured_s)
    what = f"{name} {table.direction} gb200, by hybridep"
    return shown(Row(part="dispatch", what=what, left_out="all", errors=errors))


def dispatch_rows() -> tuple[list[Row], dict[str, ExchangeRates]]:
    """Errors of all dispatchers, and their rates by the room of the catalogue."""
    rows: list[Row] = []
    rooms: dict[str, ExchangeRates] = {}
    tables = read_exchanges(DATA / "dispatch.csv.gz")
    directions: tuple[Direction, ...] = ("dispatch", "combine")
    for direction in directions:
        table = tables["deepep", direction]
        rates = fit_deepep(LINKS, table, start_rates("deepep", direction))
        rooms[f"deepep_{direction}"] = rates
        rows += deepep_rows(table, rates)
    for (name, direction), table in tables.items():
        if name in ("alltoall", "hybridep"):
            start = start_rates(table.dispatcher, direction, rooms[f"deepep_{direction}"].base_s)
            rooms[f"{name}_{direction}"] = fit_wires(LINKS, table, start)
            rows.append(wire_row(name, table, start))
    for (name, direction), table in tables.items():
        if name.startswith("nvlink"):
            large = (table.columns["tokens"] >= 2048) & (table.columns["ranks"] >= 4)
            rows.append(transfer_row(name, table.kept(large), rooms[f"hybridep_{direction}"]))
    rooms["alltoall_combine"] = replace(rooms["alltoall_dispatch"], base_s=rooms["deepep_combine"].base_s)
    return rows, rooms


def dropless_variation() -> tuple[float, str]:
    """Coefficient of variation of the experts' loads with which the simulator loses as much to real routing as
    Qwen3-235B did, in the mean over four sequence lengths; and in words how much."""
    low, high = 0.05, 4.0
    for _ in range(8):
        middle = (low + high) / 2
        expert_dispatch._drawn.cache_clear()
        with patch.object(expert_dispatch, "constant", lambda *_, variation=middle: variation):
            losses = routing_losses()
        short = sum(loss.predicted - loss.measured for loss in losses) < 0.0
        low, high = (middle, high) if short else (low, middle)
    pairs = ", ".join(f"{loss.measured:.0%} and {loss.predicted:.0%}" for loss in losses)
    return middle, f"measured and predicted losses {pairs}"


def megatron_rows() -> list[Row]:
    """Errors on whole MoE layers of Megatron-LM, at the clock of products in training and at the highest one."""
    rows = []
    for words, clock_frac in (("", None), (" at full clock", 1.0)):
        layers = read_megatron_layers(DATA / "megatron_layers.csv", LINKS["h100-sxm"], clock_frac=clock_frac)
        for layer in layers:
            f, b = layer.forward_s / layer.measured_forward_s - 1, layer.backward_s / layer.measured_backward_s - 1
            print(
                f"  {layer.words:34} forward {layer.measured_forward_s * 1e3:6.2f} ms {f:+6.1%}   "
                f"backward {layer.measured_backward_s * 1e3:6.2f} ms {b:+6.1%}"
            )
        for kind in ("bf16", "fp8_block"):
            of = [layer for layer in layers if layer.kind == kind]
            for name in ("forward", "backward"):
                predicted = np.array([getattr(layer, f"{name}_s") for layer in of])
                measured = np.array([getattr(layer, f"measured_{name}_s") for layer in of])
                what = f"Megatron-LM, 8 H100, {kind} {name}{words}"
                errors = Residuals.of(predicted, measured)
                rows.append(shown(Row(part="whole layer", what=what, left_out="all", errors=errors)))
    return rows


def write_errors(rows: list[Row]) -> None:
    """The committed table of errors."""
    with (DATA / "errors.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["part", "what", "left_out", "rows", "median_frac", "p90_frac", "bias_frac"])
        writer.writerows(row.cells for row in rows)


def write_constants(rooms: Mapping[str, ExchangeRates], variation: float) -> None:
    """Replace the fitted values of the catalogue; their sources stay."""
    text = CONSTANTS.read_text(encoding="utf-8")
    for room, rates in rooms.items():
        direction: Direction = "dispatch" if room.endswith("dispatch") else "combine"
        names = WIRE_RATES + (SM_RATES[direction] if room.startswith("deepep") else ())
        for name in names:
            text = _replaced(text, room, name, written(name, getattr(rates, name)))
    CONSTANTS.write_text(_replaced(text, "experts", "dropless_variation", f"{variation:.2f}"), encoding="utf-8")


def written(name: str, value: float) -> str:
    """A value as the catalogue has it."""
    if name.endswith("bytes_per_s"):
        return f"{value / 1e9:.3g} GB/s"
    return f"{value * 1e6:.3g} us" if name.endswith("_s") else f"{value:.3f}"


def _replaced(text: str, room: str, name: str, value: str) -> str:
    head, mark, rest = text.partition(f"[{room}]\n")
    pattern = rf'^{name} = {{ value = "[^"]*"'
    changed, times = re.subn(pattern, f'{name} = {{ value = "{value}"', rest, count=1, flags=re.MULTILINE)
    if times != 1:
        raise SystemExit(f"{CONSTANTS} has no {name} in [{room}]")
    return head + mark + changed


def main() -> None:
    """Fit, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="write the errors and the constants")
    arguments = parser.parse_args()
    print(f"{'part':10} {'what':44} {'rows':>6} {'median':>7} {'p90':>7} {'bias':>7}")
    exchanges, rooms = dispatch_rows()
    for room, rates in rooms.items():
        print(f"  {room}: {rates}")
    variation, words = dropless_variation()
    print(f"  dropless: variation {variation:.2f} ({words})")
    if arguments.write:
        write_constants(rooms, variation)
    rows = exchanges + layer_rows() + megatron_rows()
    if arguments.write:
        write_errors(rows)


if __name__ == "__main__":
    main()
