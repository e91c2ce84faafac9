"""Points trained for real on this machine, each in a folder of its own; what is done stays done."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from knee.base.errors import KneeError, SpecError
from knee.base.files import digest, make_folder, write_text
from knee.commands.study.questions import StudyPoint, job_of, loaded
from knee.commands.train.api import train
from knee.specs.fields import split_overrides
from knee.specs.job import Job
from knee.training.export.job_file import job_file
from knee.training.run.run_record import read_object
from knee.training.sweeps.checks import LocalDevices
from knee.training.sweeps.job_for_trainer import PROCESSOR

RUN, LOG = "run", "train.log"
RECORD = Path(RUN, "record.json")


def refused(machine: LocalDevices, point: StudyPoint) -> str | None:
    """Why a point cannot be trained here, if it cannot."""
    _, for_cluster, for_profile, _ = split_overrides(point.question.sets)
    if for_cluster or for_profile:
        return f"{(*for_cluster, *for_profile)[0][0]} can be changed only in a simulation"
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
        record = read_object(own / RECORD)
        if record.get("status") != "done":
            record = _train(job, own, steps)
        if record.get("status") == "done":
            yield point, record
            continue
        how, said = record.get("status") or "wrote no record", record.get("error")
        warn(f"{point.name}: the run {how}{f': {said}' if said else ''} (its output is in {own / LOG})")
        yield point, None


def _train(job: Job, own: Path, steps: int | None) -> dict[str, Any]:
    """A new run's record, whatever came of it; only the error of one that could not be started."""
    make_folder(own)
    write_text(own / "job.toml", job_file(job))
    settings: dict[str, Any] = {"nproc": job.gpus, "device": "cpu" if job.cluster.gpu.vendor == PROCESSOR else "cuda"}
    settings |= {} if steps is None else {"steps": steps}
    options = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    command = ["knee", "train", str(own / "job.toml"), *options, "--out", str(own / RUN), "--force"]
    with (own / LOG).open("w", encoding="utf-8", buffering=1) as log:
        say = partial(print, file=log)
        try:
            run = train(own / "job.toml", out=own / RUN, force=True, say=say, log=log, command=command, **settings)
        except KneeError as error:
            say(f"error: {error.message}")
            return {"error": error.message.partition("\n")[0]}  # the log has the list of mistakes that may follow
    if run.signal is not None:  # the ranks have ended, and left a record: now this process ends
        signal.raise_signal(run.signal)
    return run.record


def _name_of(job: Job, steps: int | None) -> str:
    """A digest of the job and its length, and of nothing that only the simulator knows: what was measured stays so."""
    asked: list[Any] = [asdict(job.model), asdict(job.plan), job.cluster.name, job.profile.name]
    asked += [job.gpus, job.global_batch, job.seq_len, steps]
    return digest(asked)[:24]
