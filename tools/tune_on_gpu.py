"""Tune a 7B model on one GPU, and hold the answer against every candidate measured once.

    python tools/tune_on_gpu.py FOLDER [--steps N] [--seconds S]

Needs torch with a GPU. FOLDER/tuned is tuned over micro-batch, recomputation, compile and precision. FOLDER/truth then
gets a run of each candidate that the tuning did not run. Prints the runs that were needed, and how far the chosen
settings are from the best ones. No run is started after S seconds; the same command goes on. A run takes about half a
minute on an H200.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

MODEL, BATCH, SEQ_LEN, STATES = "llama2-7b", 4, 4096, "bf16"
JOB = f"""\
model = "{MODEL}"
cluster = "%s"
profile = "knee"
gpus = 1
global_batch = {BATCH}
seq_len = {SEQ_LEN}
[plan]
state_dtype = "{STATES}"
"""
MICRO_BATCHES, RECOMPUTES = (1, 2, 4), ("none", "full")
LIMITS = [
    *("--sharding", "ddp", "--trace-steps", "0", "--knobs", "micro_batch,recompute,compile,precision"),
    *(word for size in MICRO_BATCHES for word in ("--micro-batch", str(size))),
    *(word for name in RECOMPUTES for word in ("--recompute", name)),
]
WARMUP = 3
"""The first step compiles."""


class Setting(NamedTuple):
    """One candidate."""

    micro_batch: int
    recompute: str
    compile: bool
    precision: str

    @property
    def name(self) -> str:
        """Of its folder."""
        how = "compiled" if self.compile else "eager"
        return f"micro-batch-{self.micro_batch}-{self.recompute}-{how}-{self.precision}"


def settings() -> list[Setting]:
    """The fastest expected first. Recomputation is only of use where more sequences would not fit without it, and then
    the compiled runs tell."""
    everything = [Setting(*one) for one in product(MICRO_BATCHES[::-1], RECOMPUTES, (True, False), ("fp8", "bf16"))]
    return [one for one in everything if one.recompute == "none" or (one.micro_batch == 4 and one.compile)]


def measured(run: Path) -> tuple[Setting, float | None] | None:
    """Of a run that has ended: what it is, and tokens/s; None for the latter where it ran out of memory."""
    try:
        job = json.loads((run / "job.json").read_text(encoding="utf-8"))
        record = json.loads((run / "record.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    plan = job["plan"]
    setting = Setting(plan["micro_batch"], plan["recompute"], job["compile"], plan["precision"])
    return setting, record.get("tokens_per_s_per_gpu")


def rates(folder: Path) -> dict[Setting, float | None]:
    """Of all runs below a folder."""
    return dict(found for path in sorted(folder.glob("*")) if (found := measured(path)) is not None)


def tune(folder: Path, cluster: str, steps: int) -> dict[str, Any]:
    """Tune; what it ended with."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.toml").write_text(JOB % cluster, encoding="utf-8")
    out = folder / "tuned"
    words = ["tune", "run", str(folder / "job.toml"), *LIMITS, "--steps", str(steps), "--warmup", str(WARMUP)]
    if subprocess.run([sys.executable, "-m", "knee", *words, "--out", str(out)], check=False).returncode:
        sys.exit("the tuning failed")
    found: dict[str, Any] = json.loads((out / "standing.json").read_text(encoding="utf-8"))
    return found


def measure(folder: Path, cluster: str, one: Setting, steps: int) -> None:
    """One run of the truth."""
    words = ["train", MODEL, "--cluster", cluster, "--local-batch", str(BATCH)]
    words += ["--seq-len", str(SEQ_LEN), "--state-dtype", STATES, "--steps", str(steps), "--warmup", str(WARMUP)]
    words += ["--trace-steps", "0", "--sharding", "ddp", "--micro-batch", str(one.micro_batch)]
    words += ["--recompute", one.recompute, "--precision", one.precision, *(["--compile"] if one.compile else [])]
    words += ["--out", str(folder / "truth" / one.name), "--force"]
    subprocess.run([sys.executable, "-m", "knee", *words], check=False, stdout=subprocess.DEVNULL)


def main() -> None:
    """Tune, measure, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cluster", default="dgx-h200")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=480.0)
    given = parser.parse_args()
    began = time.monotonic()
    state = tune(given.folder, given.cluster, given.steps)
    print(f"tuning: {time.monotonic() - began:,.0f} s", flush=True)
    tuned = rates(given.folder / "tuned" / "runs")
    for one in settings():
        if one in tuned or one in rates(given.folder / "truth") or time.monotonic() - began > given.seconds:
            continue
        start = time.monotonic()
        measure(given.folder, given.cluster, one, given.steps)
        found = rates(given.folder / "truth").get(one)
        print(f"{one.name}: {found or 0:,.0f} tokens/s, {time.monotonic() - start:,.0f} s", flush=True)
    known = rates(given.folder / "truth") | tuned
    ran = {one: rate for one, rate in known.items() if rate}
    best, chosen = max(ran, key=lambda one: ran[one]), max(tuned, key=lambda one: tuned[one] or 0.0)
    left = [one.name for one in settings() if one not in known]
    print(f"{len(known)} candidates measured, {len(known) - len(ran)} of them ran out of memory; not measured: {left}")
    for one in sorted(ran, key=lambda one: -ran[one]):
        print(f"  {one.name}: {ran[one]:,.0f}{' (tuned)' if one in tuned else ''}")
    print(f"tuned in {len(state['runs'])} runs ({state['why']}): {chosen.name}, {ran[chosen]:,.0f} tokens/s")
    print(f"{1 - ran[chosen] / ran[best]:.1%} below the best, {best.name}; stated bound {state['bound_frac']:.1%}")


if __name__ == "__main__":
    main()
