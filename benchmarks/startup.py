"""How long a command takes to answer: ``knee --help`` and one ``knee simulate``, whole processes.

python benchmarks/startup.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

COMMANDS = {
    "knee --help": ["--help"],
    "knee simulate": ["simulate", "llama2-7b", "--cluster", "dgx-h100", "--gpus", "256", "--local-batch", "2"],
    "python -c pass": None,
}
RUNS = 7


def wall_ms(arguments: list[str] | None) -> float:
    """Milliseconds from start to exit, the median of seven after one to warm the disk's cache."""
    command = [sys.executable, "-m", "knee.cli", *arguments] if arguments else [sys.executable, "-c", "pass"]
    times = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[1:])


def main() -> None:
    """Print the table."""
    for name, arguments in COMMANDS.items():
        print(f"{name:<16}{wall_ms(arguments):>8.0f} ms")


if __name__ == "__main__":
    main()
