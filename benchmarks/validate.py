"""How fast files of published runs and of collectives are predicted: rows per second, reading and scoring included.

    python benchmarks/validate.py [FILE.csv]

Without a file: the gathered runs where they lie beside the checkout, and made-up ones otherwise. Collectives are those
that knee carries.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from knee.trust.validation.bandwidth_errors import carried_bandwidths, validate_bandwidths
from knee.trust.validation.published_runs import read_runs
from knee.trust.validation.run_errors import validate

GATHERED = Path(__file__).parents[2] / "shared" / "data" / "published_runs.csv"
COLUMNS = "layers,hidden,heads,gpu,n_gpus,seq_len,global_batch,micro_batch,tp,pp,sharding,tokens_per_s_per_gpu"


def made_up(path: Path) -> Path:
    """A sweep of two models on two kinds of GPUs, about as many rows as the gathered file."""
    axes = itertools.product(
        ((16, 2048, 32), (32, 4096, 32)),
        ("h100-80gb", "a100-80gb"),
        (8, 16, 32),
        (1, 2, 4, 8),
        (1, 2, 4),
        (1, 2, 4, 8),
        ("fsdp", "zero1"),
    )
    lines = [
        ",".join(map(str, (*model, gpu, n_gpus, 4096, 256, micro, tp, pp, sharding, 1000)))
        for model, gpu, n_gpus, tp, pp, micro, sharding in axes
    ]
    path.write_text("\n".join((COLUMNS, *lines)), encoding="utf-8")
    return path


def best_of_three(run: Callable[[], int]) -> tuple[int, float]:
    """Rows, and the fewest seconds they took."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        rows = run()
        times.append(time.perf_counter() - start)
    return rows, min(times)


def main() -> None:
    """Print the rates, the best of three."""
    with tempfile.TemporaryDirectory() as folder:
        given = Path(sys.argv[1]) if len(sys.argv) > 1 else GATHERED
        path = given if given.exists() or len(sys.argv) > 1 else made_up(Path(folder) / "runs.csv")
        runs = best_of_three(lambda: validate(read_runs(path)).all.rows)
    collectives = best_of_three(lambda: validate_bandwidths(carried_bandwidths()).all.rows)
    for name, (rows, seconds) in ((path.name, runs), ("collectives.csv", collectives)):
        print(f"{name}: {rows:,} rows in {seconds:.2f} s, {rows / seconds:,.0f} rows a second")


if __name__ == "__main__":
    main()
