"""Points trained for real on this machine, each in a folder of its own; what is done stays done."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from knee.errors import SpecError
from knee.export.job_file import job_file
from knee.files import make_folder, write_text
from knee.specs.fields import split_overrides
from knee.specs.job import Job
from knee.studies.answers import job_of, loaded
from knee.studies.questions import StudyPoint
from knee.studies.record_store import digest
from knee.sweeps.job_for_trainer import PROCESSOR
from knee.sweeps.local_devices import LocalDevices

RUN, LOG = "run", "train.log"


def refused(machine: LocalDevices, point: StudyPoint) -> str | None:
    """Why a point cannot be trained here, if it cannot."""
    _, for_cluster, for_profile, _ = split_overrides(point.question.sets)
    if for_cluster or for_profile:
        return f"{(*for_cluster, *for_profile)[0][0]} can be changed in a simulation only"
    return machine.refuses(loaded(point.question)[1].spec, point.question.gpus)


def trained(
    points: Sequence[StudyPoint], folder: Path, *, steps: int | None, warn: Callable[[str], None]
) -> Iterator[tuple[StudyPoint, Mapping[str, Any] | None]]:
    """Train the points one after another; None for one that did not end well, of which the user hears."""
    for point in points:
        try:
            job = job_of(point.question)
        except SpecError:  # the simulator says of it that it cannot be, and so does the page
            yield point, None
            continue
        own = folder / _name_of(job, steps)
        record = _read(own)
        if record.get("status") != "done":
            record = _train(job, own, steps)
        if record.get("status") == "done":
            yield point, record
            continue
        how, said = record.get("status") or "left no record", record.get("error") or _last_error(own)
        warn(f"{point.name}: the run {how}{f': {said}' if said else ''} (its output is in {own / LOG})")
        yield point, None


def _train(job: Job, own: Path, steps: int | None) -> Mapping[str, Any]:
    """A new run's record, whatever came of it."""
    make_folder(own)
    write_text(own / "job.toml", job_file(job))
    device = "cpu" if job.cluster.gpu.vendor == PROCESSOR else "cuda"
    command = [sys.executable, "-m", "knee", "train", str(own / "job.toml"), "--nproc", str(job.gpus)]
    command += ["--device", device, "--out", str(own / RUN), "--force"]
    command += [] if steps is None else ["--steps", str(steps)]
    with (own / LOG).open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            process.wait()
        except KeyboardInterrupt:  # it ends its ranks, and leaves a record
            process.terminate()
            process.wait()
            raise
    return _read(own)


def _last_error(own: Path) -> str:
    """What a run said before it ended without a record."""
    lines = (own / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), "")


def _name_of(job: Job, steps: int | None) -> str:
    """A digest of the job and its length, and of nothing that only the simulator knows: what was measured stays so."""
    asked: list[Any] = [asdict(job.model), asdict(job.plan), job.cluster.name, job.profile.name]
    asked += [job.gpus, job.global_batch, job.seq_len, steps]
    return digest(asked)[:24]


def _read(own: Path) -> Mapping[str, Any]:
    try:
        record = json.loads((own / RUN / "record.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
