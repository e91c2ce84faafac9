"""All benchmarks in one table: today's figures beside the last recorded ones, so that a regression shows.

    python benchmarks/bench.py [--only engine,search,trace,startup,study] [--record [--note TEXT]] [--trace FILE]

Each script runs in a process of its own, because the peak memory of a process is passed on to those that it starts.
``WORSE`` marks a figure that is more than 20% worse than recorded. ``--record`` writes ``recorded.toml``; record on an
idle machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import peers
import recorded
from figures import Figure, read
from table import show

PARTS = ("engine", "search", "trace", "startup", "study")


def figures_of(part: str, options: list[str]) -> list[Figure]:
    """Run one script."""
    print(f"== {part}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        script = Path(__file__).with_name(f"{part}.py")
        subprocess.run([sys.executable, script, "--json", path, *options], check=True)
        return read(path)


def main() -> None:
    """Run the scripts and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), metavar="NAMES", help="scripts to run, separated by commas")
    parser.add_argument("--record", action="store_true", help="write the figures to recorded.toml")
    parser.add_argument("--note", default="", help="what the record says of its circumstances")
    parser.add_argument("--trace", metavar="FILE", help="the trace to read, a .json.gz of torch.profiler")
    asked = parser.parse_args()
    chosen = asked.only.split(",")
    if unknown := sorted(set(chosen) - set(PARTS)):
        parser.error(f"--only {','.join(unknown)}: the scripts are {', '.join(PARTS)}")
    parts = {
        part: figures_of(part, ["--trace", asked.trace] if part == "trace" and asked.trace else []) for part in chosen
    }
    show(parts)
    print(peers.LEFT_OUT)
    if asked.record:
        recorded.save(parts, asked.note)
        print(f"wrote {recorded.PATH}")


if __name__ == "__main__":
    main()
