"""Fit the rates of matrix products on published tables (data/gemm) and on an H200's readings (data/h200).

    python tools/fit_gemm.py            # prints the table of errors
    python tools/fit_gemm.py --write    # and writes the rates into src/knee/catalog/gpus

Each GPU and type of operands has four parameters: peak_frac, sustained_frac, half_k, half_intensity. Two more belong to
a table and not to the GPU: the start of its kernels, and the casts of activations. Three in ten weight shapes (n, k)
are left out whole and predicted; the catalogue's values are fitted on all.

- Hopper, bf16: half_k and half_intensity are those probed on an H200, and sustained_frac is
  chosen so that peak_frac x sustained_frac is the rate measured there.
- Hopper, fp8: sustained_frac is what an H200's 23 probed products say; the rest is the table's.
- fp8_block and nvfp4 have fp8's sustained_frac: their slow products are the largest, not the longest.
- A100's table starts its kernels in 10 us, with an older collector: kernel_s is not taken from it.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from expert_tables import ProductTable, TableFit, fit_table, read_tables

from knee.measure.hardware_fit.kernel_constants import Gemms, fit_gemms, gemms_of
from knee.measure.hardware_fit.residuals import Residuals, distance, held_back, minimum
from knee.measure.machine.readings import read_readings
from knee.specs.hardware import GemmRate, GemmType, Gpu
from knee.specs.load import load_cluster

ROOT = Path(__file__).parents[1]
GPUS = ROOT / "src" / "knee" / "catalog" / "gpus"
TABLES = ROOT / "data" / "gemm" / "products.csv.gz"
READINGS = ROOT / "data" / "h200" / "kernels.jsonl"
CLUSTERS = {
    "a100-sxm-80": ("dgx-a100", "ampere"),
    "h100-sxm": ("dgx-h100", "hopper"),
    "h200-sxm": ("dgx-h200", "hopper"),
    "b200-sxm": ("dgx-b200", "blackwell"),
    "gb200": ("gb200-nvl72", "blackwell"),
}
PROBED = "knee probe kernels on one H200 SXM, 700 W cap, torch 2.11, driver 580, 2026-11-15 (data/h200)"
LIBRARY = "TensorRT-LLM 1.3.0rc20"
OLD_LIBRARY = "TensorRT-LLM 1.0.0"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One GPU and type: its fit and the errors on shapes that a fit did not see."""

    gpu: str
    kind: GemmType
    fit: TableFit
    products: int
    unseen: Residuals
    unseen_large: Residuals
    """Of 100 GFLOP and more, which most products of training are."""

    @property
    def words(self) -> str:
        """Where the rate comes from."""
        e = self.unseen
        return (
            f"tools/fit_gemm.py on {self.products:,} products (data/gemm, ai-dynamo/aiconfigurator); on weight "
            f"shapes left out of the fit: error median {e.median_frac:.1%}, p90 {e.p90_frac:.1%}"
        )


def fit_row(gpu: Gpu, table: ProductTable, sustained_frac: float | None) -> Row:
    """Fit on all, and judge a fit on seven tenths of the shapes by the others."""
    away = held_back(table.weights)
    trial, unseen = fit_table(gpu, table.kept(~away), sustained_frac=sustained_frac), table.kept(away)
    predicted = trial.predict(gpu, unseen)
    large = 2.0 * unseen.m * unseen.n * unseen.k >= 1e11
    return Row(
        gpu=table.gpu,
        kind=table.kind,
        fit=fit_table(gpu, table, sustained_frac=sustained_frac),
        products=len(table.m),
        unseen=Residuals.of(predicted, unseen.measured_s),
        unseen_large=Residuals.of(predicted[large], unseen.measured_s[large]),
    )


def all_rows() -> list[Row]:
    """Every table; block fp8 and NVFP4 come after fp8, whose sustained rate they have."""
    rows: list[Row] = []
    sustained: dict[str, float] = {}
    for (name, kind), table in read_tables(TABLES).items():
        given = sustained.get(name) if kind in ("fp8_block", "nvfp4") else None
        row = fit_row(load_cluster(CLUSTERS[name][0]).spec.gpu, table, given)
        if kind == "fp8":
            sustained[name] = row.fit.rate.sustained_frac
        rows.append(row)
        e, large, fit, rate = row.unseen, row.unseen_large, row.fit, row.fit.rate
        print(
            f"{name:12} {kind:10} {row.products:6,} {e.points:5} {e.median_frac:7.1%} {e.p90_frac:6.1%} "
            f"{large.median_frac:7.1%} {large.p90_frac:6.1%}   {rate.peak_frac:.3f} {rate.sustained_frac:.3f} "
            f"{rate.half_k:5.0f} {rate.half_intensity:5.2f} {fit.start_s * 1e6:6.2f} us {fit.cast_bytes:5.2f} B",
            flush=True,
        )
    return rows


def probed(rate: GemmRate, kind: GemmType) -> tuple[GemmRate, str]:
    """A Hopper rate as its table has it, with what a settled H200 says of it, and the words for its source."""
    readings, gpu = read_readings(READINGS), load_cluster("dgx-h200").spec.gpu
    gpu = replace(gpu, gemm={**gpu.gemm, kind: replace(rate, sustained_frac=1.0)})
    products = gemms_of(readings, kind)
    if kind == "bf16":
        found = fit_gemms(products, gpu, kind).gemm[kind]
        rate = replace(rate, half_k=found.half_k, half_intensity=found.half_intensity)
        settled = found.peak_frac
    else:
        settled = rate.peak_frac * _clock(products, gpu, kind)
    words = (
        f"sustained_frac is chosen so that peak_frac x sustained_frac is {settled:.3f}, "
        f"the rate of {len(products.m)} matrix products measured by {PROBED}"
    )
    return replace(rate, sustained_frac=settled / rate.peak_frac), words


def _clock(products: Gemms, gpu: Gpu, kind: GemmType) -> float:
    def loss(x: np.ndarray) -> float:
        rate = replace(gpu.gemm[kind], sustained_frac=float(x[0]))
        return distance(products.predict(replace(gpu, gemm={**gpu.gemm, kind: rate}), kind), products.measured_s)

    return float(minimum(loss, [0.8], low=(0.2,), high=(1.0,))[0])


def catalogue_lines(rows: list[Row]) -> dict[tuple[str, GemmType], str]:
    """The line of each rate in its GPU's file."""
    lines = {}
    settled: dict[str, float] = {}
    for row in rows:
        rate, words = row.fit.rate, row.words
        library = OLD_LIBRARY if row.gpu.startswith("a100") else LIBRARY
        if CLUSTERS[row.gpu][1] == "hopper" and row.kind in ("bf16", "fp8"):
            rate, more = probed(rate, row.kind)
            words = f"{words}; {more}"
            library = f"{library}, torch 2.11 with CUDA 13.0"
        if row.kind == "fp8":
            settled[row.gpu] = rate.sustained_frac
        elif row.kind != "bf16":
            rate = replace(rate, sustained_frac=settled[row.gpu])
            words = f"{words}; sustained_frac is that of fp8"
        if row.kind == "fp8_block" and CLUSTERS[row.gpu][1] == "blackwell":
            library = f"DeepGEMM in {library}"
        values = {
            "peak_frac": round(rate.peak_frac, 3),
            "sustained_frac": round(rate.sustained_frac, 3),
            "tile_m": rate.tile_m,
            "tile_n": rate.tile_n,
            "half_k": round(rate.half_k),
            "half_intensity": round(rate.half_intensity, 2),
            "library": library,
            "kind": "fitted",
            "source": words,
        }
        inner = ", ".join(f"{key} = {json.dumps(value)}" for key, value in values.items())
        lines[row.gpu, row.kind] = f"{row.kind} = {{ {inner} }}"
    return lines


def write(rows: list[Row]) -> None:
    """Replace the lines of the catalogue."""
    for (gpu, kind), line in catalogue_lines(rows).items():
        path = GPUS / f"{CLUSTERS[gpu][1]}.toml"
        head, mark, rest = path.read_text(encoding="utf-8").partition(f"[{gpu}.gemm]\n")
        changed, times = re.subn(rf"^{kind} = .*$", line.replace("\\", r"\\"), rest, count=1, flags=re.MULTILINE)
        if times != 1:
            raise SystemExit(f"{path} has no line {kind} in [{gpu}.gemm]")
        path.write_text(head + mark + changed, encoding="utf-8")


def main() -> None:
    """Fit, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="write the rates into the catalogue")
    arguments = parser.parse_args()
    print("                              left out: all        of 100 GFLOP+   rate")
    print(
        "gpu          type     products shapes median    p90  median    p90   peak  sust. half_k  int.  start     casts"
    )
    rows = all_rows()
    if arguments.write:
        write(rows)


if __name__ == "__main__":
    main()
