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
ADDED = ("window", "layer_pattern", "mlp_bias", "deals_by_cost", "router_fusion", "rope_fusion")
BRIDGE, GUIDE = "nvidia_megatron_bridge_perf_summary", "megatron_lm_dsv3_gb200_guide"
SIMUMAX, ZOO, DGXC, SKILLS = (
    "simumax_b200_v1.2",
    "megatron_moe_modelzoo",
    "nvidia_dgxc_benchmarking",
    "megatron_bridge_skills",
)
OLD_RELEASES = ("25.09", "25.11")
"""Releases whose recipes the file does not quote."""


def carried(row: Mapping[str, str]) -> dict[str, str]:
    """A row in the form of the carried file."""
    kept = {name: value for name, value in row.items() if name not in DROPPED} | dict.fromkeys(ADDED, "")
    if kept["tokens_per_s_per_gpu"]:
        kept["step_time_s"] = ""  # the same fact twice
    if "GPT OSS" in row["model"]:
        kept |= {"window": "128", "layer_pattern": "sf", "mlp_bias": "1"}
    facts = {BRIDGE: _recipe, GUIDE: _guide, SIMUMAX: _simumax, ZOO: _zoo, DGXC: _dgxc, SKILLS: _skills}
    return kept | facts[row["source"]](row)


def _guide(row: Mapping[str, str]) -> dict[str, str]:
    """Each row is a step of tuning, and has those before it."""
    # it began with Megatron Core 0.13 (section 1)
    step = re.findall(r"cumulative step: ([^;(]+)", row["note"])[0].strip()
    # two steps have the same words
    again = ", again" if "HybridEP" in row["note"] and "CPU-side" in row["note"] else ""
    return {
        "software": f"0.13, {step}{again}",
        "deals_by_cost": "1",  # its layout has the loss in a stage of its own: Et|(tt|)*30L
        "router_fusion": "0" if step.startswith(("Baseline", "Fuse torch.zeros")) else "1",
        # section 2.2.2: "--recompute-modules mlp moe_act" once the up projection is kept
        "recompute": "mlp+moe_act" if row["recompute"] == "mlp" else row["recompute"],
    }


def _simumax(row: Mapping[str, str]) -> dict[str, str]:  # noqa: ARG001 - as the others
    """simu_tools/megatron_scripts/scripts/run_pretrain_deepseekv2.sh: neither --overlap-grad-reduce nor
    --overlap-param-gather, nor --moe-router-fusion."""
    return {"dp_overlap": "0", "router_fusion": "0", "cuda_graphs": "0"}


def _zoo(row: Mapping[str, str]) -> dict[str, str]:  # noqa: ARG001 - as the others
    """model_configs/benchmarking/Qwen3-235B-A22B.yaml: --moe-router-fusion."""
    return {"router_fusion": "1"}


def _dgxc(row: Mapping[str, str]) -> dict[str, str]:
    """What the recipes of a release set: of this repository grok1/grok1_314b.yaml up to 25.04, and of NVIDIA/NeMo
    scripts/performance after that (llm/pretrain_grok1_314b.py, llm/pretrain_deepseek_v3.py, recommended_model_configs).
    Tokens are dropped, which keeps shapes; the exchange of tensor parallelism overlaps from 25.05 on."""
    if row["model"].startswith("Grok"):
        early = row["software"] < "v25.05"
        facts = {"tp_overlap": "0" if early else "1", "cuda_graphs": "0"} | ({"recompute": "none"} if early else {})
        return facts | {"routing": "drop", "dispatcher": "alltoall"}
    if row["model"].startswith("Deepseek"):
        modules = "selective" if row["gpu"].startswith("gb200") else "mla_up_proj"
        facts = {"routing": "drop", "dispatcher": "alltoall", "recompute": modules, "cuda_graphs": "0"}
        return facts | {"rope_fusion": "0"}  # Megatron Core fuses that of latent attention from 0.13 on
    return {"cuda_graphs": "1" if row["gpu"].startswith("h100") else "0"}


def _skills(row: Mapping[str, str]) -> dict[str, str]:
    """recipes/moonlight/moonlight_16b.py and models/deepseek/deepseek_v3_bridge.py: the library's recipe, which is not
    tuned."""
    if not row["model"].startswith("Moonlight"):
        return {}
    facts = {"dispatcher": "alltoall", "tp_overlap": "0", "routing": "dropless", "cuda_graphs": "0"}
    return facts | {"router_fusion": "0", "rope_fusion": "0"}


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
