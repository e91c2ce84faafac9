"""Write the published runs of mixtures of experts that knee carries: every row of a file of them, in one form.

    python tools/carry_moe_runs.py moe_runs.csv

Nobody chooses rows. What the sources state elsewhere than in a row becomes a column: the window and the biases of
GPT-OSS (its config.json), the steps of a tuning guide, and what a release's recipes set where the page does not say it
(github.com/NVIDIA-NeMo/Megatron-Bridge, scripts/performance/configs at 27dfb3df and 0fa501ac for 25.09 and 25.11;
recipes/deepseek/deepseek_v3.py for the layout of pipeline stages). Those files are near the releases, and not proven to
be what was run. Kimi K2 is taken to have DeepSeek's layout, and all steps of the guide the version that it began with.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

OUT = Path(__file__).parent.parent / "src/knee/catalog/validation/moe_runs.csv"
DROPPED = ("fabric_stated", "note", "mla", "total_params_b", "active_params_b", "tflops_per_gpu")
ADDED = ("window", "layer_pattern", "mlp_bias", "deals_by_cost")
BRIDGE, GUIDE = "nvidia_megatron_bridge_perf_summary", "megatron_lm_dsv3_gb200_guide"
OLD_RELEASES = ("25.09", "25.11")
"""Releases whose recipes the file does not quote."""


def carried(row: Mapping[str, str]) -> dict[str, str]:
    """A row in the form of the carried file."""
    kept = {name: value for name, value in row.items() if name not in DROPPED} | dict.fromkeys(ADDED, "")
    if kept["tokens_per_s_per_gpu"]:
        kept["step_time_s"] = ""  # the same fact twice
    if "GPT OSS" in row["model"]:
        kept |= {"window": "128", "layer_pattern": "sf", "mlp_bias": "1"}
    if row["source"] == GUIDE:
        # it began with Megatron Core 0.13 (section 1)
        kept["software"] = "0.13, " + re.findall(r"cumulative step: ([^;(]+)", row["note"])[0].strip()
        # two steps have the same words
        kept["deals_by_cost"] = "1"  # its layout has the loss in a stage of its own: Et|(tt|)*30L
        kept["software"] += ", again" if "HybridEP" in row["note"] and "CPU-side" in row["note"] else ""
    return kept | (_recipe(row) if row["source"] == BRIDGE else {})


def _recipe(row: Mapping[str, str]) -> dict[str, str]:
    """What the recipes of the row's release set and the row leaves out."""
    deepseek, qwen = row["model"].startswith(("DeepSeek", "Kimi")), row["model"].startswith("Qwen3")
    gpu = row["gpu"].partition("-")[0]
    facts = {"deals_by_cost": "1"} if deepseek else {}
    if row["software"] not in OLD_RELEASES:
        stated = "recipe" in row["note"]
        return facts | ({"cuda_graphs": "0"} if stated and not row["cuda_graphs"] else {})
    if deepseek and gpu == "h100":
        facts |= {"dispatcher": "deepep", "ep_overlap": "1", "recompute": "mla_up_proj+mlp", "cuda_graphs": "0"}
    elif deepseek and gpu in ("b200", "gb200"):
        facts |= {"recompute": "mla_up_proj"}
    if qwen:
        graphs = gpu in ("gb200", "gb300") or (gpu == "b200" and "30B" in row["model"])
        facts |= {"recompute": "none", "cuda_graphs": "1" if graphs else "0"}
    return facts


def main(path: Path) -> None:
    """Write the carried file."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [carried(row) for row in csv.DictReader(file)]
    with OUT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} rows -> {OUT.name}: {dict(Counter(row['source'] for row in rows))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
