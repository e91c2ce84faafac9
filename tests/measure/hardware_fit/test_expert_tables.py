"""Published tables of expert layers and exchanges: the recorded errors come out again, on models left out."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from dispatch_tables import LEAST_TOKENS, left_out_deepep_s, read_exchanges
from expert_tables import LayerTable, left_out_s, read_layers
from megatron_layers import read_megatron_layers

from knee.engine.cost.collective_cost import Links
from knee.engine.cost.expert_dispatch import Direction, ExchangeRates
from knee.measure.hardware_fit.residuals import Residuals
from knee.specs.hardware import GemmType
from knee.specs.load import load_cluster

DATA = Path(__file__).parents[3] / "data" / "moe"
LAYERS, EXCHANGES = read_layers(DATA / "layers.csv.gz"), read_exchanges(DATA / "dispatch.csv.gz")
CLUSTERS = {"h100-sxm": "dgx-h100", "h200-sxm": "dgx-h200", "b200-sxm": "dgx-b200", "gb200": "gb200-nvl72"}
LINKS = {gpu: Links.idle(load_cluster(name).spec) for gpu, name in CLUSTERS.items()}
with (DATA / "errors.csv").open(encoding="utf-8", newline="") as file:
    RECORDED = {(row["what"], row["left_out"]): row for row in csv.DictReader(file)}


def recorded(what: str, left_out: str) -> tuple[float, float]:
    row = RECORDED[what, left_out]
    return float(row["median_frac"]), float(row["p90_frac"])


def judged(table: LayerTable) -> LayerTable:
    """Tuned layers with gates."""
    return table.kept(~table.untuned() & (table.columns["up_projections"] == 2))


def test_the_tables_are_whole() -> None:
    assert sum(len(table.measured_s) for table in LAYERS.values()) == 38_928
    assert sum(len(table.measured_s) for table in EXCHANGES.values()) == 9_344


@pytest.mark.slow
@pytest.mark.parametrize("routing", ["balanced", "power_law:1.2"])
@pytest.mark.parametrize("kind", ["bf16", "fp8_block"])
def test_layers_of_models_left_out(kind: GemmType, routing: str) -> None:
    table, fitted_on = judged(LAYERS["h100-sxm", kind, routing]), LAYERS["h100-sxm", kind, "balanced"]
    some = sorted(set(table.shapes))[::4]
    sample = table.kept(np.array([shape in some for shape in table.shapes]))
    errors = Residuals.of(left_out_s(LINKS["h100-sxm"].cluster.gpu, sample, fitted_on), sample.measured_s)
    median, p90 = recorded(f"h100-sxm {kind} {routing}", "model")
    assert median < 0.1
    assert p90 < 0.25
    assert errors.median_frac == pytest.approx(median, abs=0.03)
    assert errors.p90_frac == pytest.approx(p90, abs=0.08)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["dispatch", "combine"])
def test_exchanges_of_settings_left_out(direction: Direction) -> None:
    table = EXCHANGES["deepep", direction]
    settings = [str(setting) for setting in table.settings]
    gpus = np.array(table.gpus)
    which = (gpus == "h100-sxm") & (table.columns["domains"] == 1) & (table.columns["tokens"] >= LEAST_TOKENS)
    some = sorted({settings[i] for i in np.flatnonzero(which)})[::6]
    keys = [setting if setting in some else "" for setting in settings]
    seconds = left_out_deepep_s(LINKS, table, keys, ExchangeRates.of("deepep", direction))
    judged = np.array([bool(key) for key in keys]) & which
    errors = Residuals.of(seconds[judged], table.measured_s[judged])
    median, p90 = recorded(f"deepep {direction} h100-sxm, one node", "GPU, nodes and model")
    assert median < 0.12
    assert errors.median_frac == pytest.approx(median, abs=0.03)
    assert errors.p90_frac == pytest.approx(p90, abs=0.06)


def test_whole_layers_of_megatron() -> None:
    layers = read_megatron_layers(DATA / "megatron_layers.csv", LINKS["h100-sxm"])
    assert len(layers) == 12
    for kind in ("bf16", "fp8_block"):
        for name in ("forward", "backward"):
            of = [layer for layer in layers if layer.kind == kind]
            predicted = np.array([getattr(layer, f"{name}_s") for layer in of])
            measured = np.array([getattr(layer, f"measured_{name}_s") for layer in of])
            errors = Residuals.of(predicted, measured)
            assert errors.median_frac == pytest.approx(
                recorded(f"Megatron-LM, 8 H100, {kind} {name}", "all")[0], abs=0.01
            )
