"""Gather the bandwidths that knee carries: every message of 16 MiB and more of files in nccl-tests' words.

    python tools/carry_bandwidths.py collectives.csv more.csv

Repeats are one row, their median. What knee carries of other sources stays, and so do its smaller messages of these.
Nothing is left out for how well it is predicted: only what is not modelled, not stated or called broken by its source.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from knee.trust.validation.bandwidth_errors import LARGE_BYTES, Reading, read_bandwidths

OUT = Path(__file__).parent.parent / "src/knee/catalog/validation/collectives.csv"
COLUMNS = "source,gpu,nodes,n_gpus,gpus_per_node,node_gbit_per_s,fabric,collective,bytes,algorithm,busbw_GBps,reference"
NAMES = {"seed_2411_13055_fig2_allreduce": "paper_figure_2a_again"}
"""A file's source -> another name."""
REFERENCES = {
    "xxrjun_nccl_cluster": "github.com/xxrjun/nccl-tests-cluster, medians of repeats",
    "nrel_kestrel": "github.com/NREL/ESIFHPC4, AI-ML collectives",
    "gcp_a3mega": "github.com/lessizzmore/create-a3mega-ztan-fork, ztan-NCCL-test-result",
    "dgxc_nccl": "github.com/NVIDIA/dgxc-benchmarking, sample output of its NCCL recipe",
    "nccl_issue_1218": "github.com/NVIDIA/nccl/issues/1218, approximate",
    "nccl_issue_119": "github.com/NVIDIA/nccl-tests/issues/119",
    "nebius_h100": "github.com/drmysore/nebius-h100-16gpu-benchmark README",
    "hf_ultrascale": "Hugging Face Ultra-Scale Playbook, medians of many runs on a shared cluster",
    "azure_nd_guide": "github.com/Azure/AI-benchmarking-guide, in-place busbw",
    "nvidia_gtc24_s62129_nvlstree": "NVIDIA GTC24 S62129, read off stas00/ml-engineering network/images, +-3 GB/s",
    "paper_figure_2a_again": "arXiv 2411.13055 figure 2a, read off stas00/ml-engineering a second time, +-3 GB/s",
}


def main(paths: list[Path]) -> None:
    """Write the carried file."""
    found = [reading for path in paths for reading in read_bandwidths(path).readings]
    large = [r for r in found if r.setting.message_bytes >= LARGE_BYTES]
    with OUT.open(encoding="utf-8", newline="") as file:
        kept = list(csv.DictReader(file))
    new = {_name(r) for r in large}
    rows = [row for row in kept if row["source"] not in new or float(row["bytes"]) < LARGE_BYTES]
    rows += [_row(reading) for reading in large]
    rows.sort(key=lambda row: (row["source"], row["gpu"], row["collective"], int(row["n_gpus"]), float(row["bytes"])))
    with OUT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=COLUMNS.split(","), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} rows -> {OUT.name}, {len(large)} of them of {len(new)} sources of these files")


def _name(reading: Reading) -> str:
    return NAMES.get(reading.setting.source, reading.setting.source)


def _row(reading: Reading) -> dict[str, str]:
    setting = reading.setting
    rate = setting.node_bytes_per_s
    return {
        "source": _name(reading),
        "gpu": setting.gpu.upper(),
        "nodes": str(setting.nodes or ""),
        "n_gpus": str(setting.n_gpus),
        "gpus_per_node": str(setting.gpus_per_node or ""),
        "node_gbit_per_s": f"{rate * 8e-9:g}" if rate else "",
        "fabric": setting.fabric or "",
        "collective": setting.operation.replace("send_receive", "sendrecv"),
        "bytes": f"{setting.message_bytes:.0f}",
        "algorithm": setting.algorithm or "",
        "busbw_GBps": f"{reading.bus_bytes_per_s / 1e9:.5g}",
        "reference": REFERENCES[_name(reading)],
    }


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
