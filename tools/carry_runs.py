"""Choose the runs that knee carries from a larger file of published ones: small sources whole, large ones in part.

    python tools/carry_runs.py published_runs.csv

Every n-th row of a large source is taken, in the order of the file, so that nobody chooses by how well a row is
predicted; the rest is left for testing. Notes are cut to the words that tell a stack or a fabric.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from pathlib import Path

OUT = Path(__file__).parent.parent / "src/knee/catalog/validation/runs.csv"
EVERY = {"bloom_prequel": 2, "mosaicml_llm_foundry": 3, "vtrain_single": 4, "hf_ultrascale": 4}
FAILED_EVERY = 8
DROPPED = ("fabric_stated", "step_time_s", "async_tp")
WORDS = ("EFA", "RoCE", "MP mode PURE", "NeMo", "MaxText", "Paxml")


def main(path: Path) -> None:
    """Write the carried file."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    seen: Counter[tuple[str, str]] = Counter()
    kept = []
    for row in rows:
        source, failed = row["source"], row["status"] == "failed"
        seen[source, row["status"]] += 1
        every = FAILED_EVERY if failed else EVERY.get(source, 1)
        if (seen[source, row["status"]] - 1) % every == 0:
            note = "; ".join(w for w in WORDS if re.search(rf"\b{w}\b", row["note"], flags=re.IGNORECASE))
            kept.append({k: v for k, v in row.items() if k not in DROPPED} | {"note": note})
    with OUT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(kept[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)
    print(f"{len(kept)} of {len(rows)} rows -> {OUT.name}: {dict(Counter(row['source'] for row in kept))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
