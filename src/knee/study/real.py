"""Points trained for real on this machine, each in a folder of its own; what is done stays done."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from knee.errors import SpecError
from knee.files import make_folder, write_text
from knee.launch.machine import Machine
from knee.search.export_file import job_file
from knee.study.answers import job_of, loaded
from knee.study.questions import Point
from knee.study.store import key_of


def refused(machine: Machine, point: Point) -> str | None:
    """Why a point cannot be trained here, if it cannot."""
    return machine.refuses(loaded(point.question)[1].spec, point.question.gpus)


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
