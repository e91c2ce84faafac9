"""Write the published runs that knee carries from files of them: every row, in one form.

    python tools/carry_runs.py published_runs.csv runs.csv ...

Nobody chooses rows. Facts that a file has in its notes become columns (the fabric, the type that gradients are reduced
in), its stack is a column too, and the notes themselves are left out.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

OUT = Path(__file__).parent.parent / "src/knee/catalog/validation/runs.csv"
DROPPED = ("fabric_stated", "note")
ADDED = (
    "stack",
    "software",
    "fabric",
    "reduce_dtype",
    "tp_overlap",
    "dp_overlap",
    "cuda_graphs",
    "sharp",
    "fp8_recipe",
)
STACKS = {
    "bloom_prequel": "Megatron-DeepSpeed",
    "hf_ultrascale": "nanotron",
    "ibm_fms_fsdp_readme": "fms-fsdp",
    "ibm_fms_fsdp_readme_head": "fms-fsdp",
    "ibm_fsdp_blog1": "fms-fsdp",
    "internevo": "InternEvo",
    "korthikanti2022": "Megatron-LM",
    "mosaicml_llm_foundry": "llm-foundry",
    "vtrain_single": "Megatron-DeepSpeed",
}
"""Software of sources whose file has no such column: each is one stack."""
NAMED_IN_NOTES = ("NeMo", "MaxText", "Paxml")
FABRICS = ("efa", "roce")


def carried(row: Mapping[str, str]) -> dict[str, str]:
    """A row in the form of the carried file."""
    words = re.findall(r"\w+", row["note"].lower())
    stack = row.get("stack") or STACKS.get(row["source"])
    stack = stack or next((name for name in NAMED_IN_NOTES if name.lower() in words), "")
    # llm-foundry's "PURE" keeps parameters, reductions and buffers in 16 bit
    added = {
        "stack": stack,
        "fabric": next((word for word in FABRICS if word in words), ""),
        "reduce_dtype": "bf16" if re.search(r"\bMP mode PURE\b", row["note"]) else "",
    }
    kept = {name: value for name, value in row.items() if name not in DROPPED}
    if kept["tokens_per_s_per_gpu"]:
        kept["step_time_s"] = ""  # the same fact twice
    return kept | {name: added.get(name) or row.get(name, "") for name in ADDED}


def main(paths: list[Path]) -> None:
    """Write the carried file."""
    rows = []
    for path in paths:
        with path.open(encoding="utf-8", newline="") as file:
            rows += [carried(row) for row in csv.DictReader(file)]
    with OUT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} rows -> {OUT.name}: {dict(Counter(row['source'] for row in rows))}")


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
