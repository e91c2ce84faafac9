"""How long a whole search takes, from the shell: ``knee plan``, ``knee scale --best`` and ``knee budget``, each in a
fresh process.

    python benchmarks/search.py [--runs 3]

The bars are seconds of wall time on two cores: 4 for 7B on 256 GPUs, 20 for 405B on 16,384 and for a budget.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

COMMANDS = {
    "plan, 7B on 256 GPUs": (4.0, "plan llama2-7b --cluster dgx-h100 --gpus 256 --global-batch 512"),
    "plan, 405B on 16,384 GPUs": (
        20.0,
        "plan llama3-405b --cluster dgx-h100 --gpus 16384 --global-batch 2048 --seq-len 8192 --profile fused",
    ),
    "scale, 7B on 8 to 2,048 GPUs": (None, "scale llama2-7b --cluster dgx-h100 --gpus 8..2048 --local-batch 2"),
    "budget, 2,048 GPUs for 30 days": (20.0, "budget --cluster dgx-h100 --gpus 2048 --days 30"),
    "scale --best, the same": (None, "scale llama2-7b --cluster dgx-h100 --gpus 8..2048 --local-batch 2 --best"),
}


def once(arguments: str) -> tuple[float, float, float, str]:
    """Wall and CPU seconds, peak MB and what was printed."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "knee", *arguments.split(), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{arguments}: exit {process.returncode}")
    return time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, printed


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="of each; the best counts")
    runs = parser.parse_args().runs
    print(f"{'':<32}{'wall s':>8}{'CPU s':>8}{'peak MB':>9}{'plans':>12}{'plans/CPU-s':>13}")
    for name, (bar, arguments) in COMMANDS.items():
        found = [once(arguments) for _ in range(runs)]
        wall, cpu, peak = (min(one[i] for one in found) for i in range(3))
        plans = json.loads(found[0][3]).get("counts", {}).get("plans")
        rate = f"{plans / cpu:>13,.0f}" if plans else f"{'':>13}"
        verdict = "" if bar is None else f"  {'met' if wall <= bar else 'MISSED'}: <= {bar:g} s"
        print(f"{name:<32}{wall:>8.2f}{cpu:>8.2f}{peak:>9.0f}{plans or '':>12}{rate}{verdict}")


if __name__ == "__main__":
    main()
