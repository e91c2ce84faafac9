"""Points trained for real on this machine, each in a folder of its own; what is done stays done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knee.errors import SpecError
from knee.files import make_folder, write_text
from knee.probe.inventory import read_inventory
from knee.search.export_file import job_file
from knee.specs.hardware import Cluster
from knee.study.answers import job_of, loaded
from knee.study.questions import Point
from knee.study.store import key_of

PROCESSES_PER_CORE = 4
"""On a processor ranks wait for each other, not for their core alone; more than this only measures the scheduler."""
PROCESSOR = "generic"
"""Vendor of the catalogue's stand-in for a processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What can be trained here."""

    gpus: int
    """GPUs that torch can use."""
    cores: int

    @classmethod
    def here(cls) -> Machine:
        """This machine."""
        found = read_inventory()
        usable = (found.software.torch_build or "").startswith(("CUDA", "ROCm"))
        return cls(gpus=len(found.gpus) if usable else 0, cores=os.cpu_count() or 1)

    def refuses(self, point: Point) -> str | None:
        """Why a point cannot be trained here, if it cannot."""
        cluster: Cluster = loaded(point.question)[1].spec
        ranks = point.question.gpus
        if cluster.gpu.vendor == PROCESSOR:
            most = PROCESSES_PER_CORE * self.cores
            return None if ranks <= most else f"{ranks:,} processes on {self.cores} cores"
        if not self.gpus:
            return f"{cluster.gpu.name} is asked for, and no GPU can be used here"
        return None if ranks <= self.gpus else f"{ranks:,} GPUs are asked for, and {self.gpus} are here"


def trained(
    points: Sequence[Point], folder: Path, *, steps: int | None, warn: Callable[[str], None]
) -> Iterator[tuple[Point, Mapping[str, Any] | None]]:
    """Train the points one after another; None for one that did not end well, of which the user hears."""
    for point in points:
        try:
            record = _train(point, folder / key_of(point.question), steps)
        except SpecError:  # the simulator says of it that it cannot be, and so does the page
            yield point, None
            continue
        if record.get("status") != "done":
            warn(f"{point.name}: the run {record.get('status', 'left no record')}"
                 + (f": {record['error']}" if record.get("error") else ""))  # fmt: skip
            yield point, None
            continue
        yield point, record


def _train(point: Point, folder: Path, steps: int | None) -> Mapping[str, Any]:
    """The record of a finished run of the same job and length, or a new one."""
    job, out = job_of(point.question), folder / "run"
    text = job_file(job) + (f"# {steps} steps\n" if steps else "")
    before = folder / "job.toml"
    if before.exists() and before.read_text(encoding="utf-8") == text:
        record = _read(out)
        if record.get("status") == "done":
            return record
    make_folder(folder)
    write_text(before, text)
    command = [sys.executable, "-m", "knee", "train", str(before), "--nproc", str(job.gpus), "--out", str(out)]
    command += ["--force"] if steps is None else ["--force", "--steps", str(steps)]
    with (folder / "train.log").open("wb") as log:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False)
    return _read(out)


def _read(out: Path) -> Mapping[str, Any]:
    try:
        record = json.loads((out / "record.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
