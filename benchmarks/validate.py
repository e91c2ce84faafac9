"""How fast a file of published runs is predicted: rows per second, reading and scoring included.

    python benchmarks/validate.py [FILE.csv]

Without a file: the gathered runs where they lie beside the checkout, and made-up ones otherwise.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from pathlib import Path

from knee.fidelity.runs import read_runs
from knee.fidelity.validation import validate

GATHERED = Path(__file__).parents[2] / "shared" / "data" / "published_runs.csv"
COLUMNS = "layers,hidden,heads,gpu,n_gpus,seq_len,global_batch,micro_batch,tp,pp,sharding,tokens_per_s_per_gpu"


def made_up(path: Path) -> Path:
    """A sweep of two models on two kinds of GPUs, about as many rows as the gathered file."""
    axes = itertools.product(((16, 2048, 32), (32, 4096, 32)), ("h100-80gb", "a100-80gb"), (8, 16, 32), (1, 2, 4, 8),
                             (1, 2, 4), (1, 2, 4, 8), ("fsdp", "zero1"))
    lines = [",".join(map(str, (*model, gpu, n_gpus, 4096, 256, micro, tp, pp, sharding, 1000)))
             for model, gpu, n_gpus, tp, pp, micro, sharding in axes]
    path.write_text("\n".join((COLUMNS, *lines)), encoding="utf-8")
    return path


def main() -> None:
    """Print the rate, the best of three."""
    with tempfile.TemporaryDirectory() as folder:
        given = Path(sys.argv[1]) if len(sys.argv) > 1 else GATHERED
        path = given if given.exists() or len(sys.argv) > 1 else made_up(Path(folder) / "runs.csv")
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            found = validate(read_runs(path))
            best = min(best, time.perf_counter() - start)
    print(f"{path.name}: {found.all.rows:,} rows in {best:.2f} s, {found.all.rows / best:,.0f} rows a second")


if __name__ == "__main__":
    main()
