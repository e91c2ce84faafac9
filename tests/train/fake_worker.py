"""Traces of many jobs on fake ranks, and of some on two real gloo ranks; torch is imported once and forked.

    python fake_worker.py JOBS.json FOLDER

JOBS.json: {"fake": {name: job}, "small": {name: job}, "real": {name: job}, "knee": {name: words}}. Writes KIND.N.json
for each kind of trace, and knee.N.json with what ``knee dryrun`` said. Fake ranks of kind "fake" have tensors that hold
nothing, as those of ``knee dryrun``; each operation on them takes a millisecond. Those of kind "small" have tensors
with values, which is ten times as quick for a model as small; the tests hold one against the other.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from batches import local_tokens
from click.testing import CliRunner

from knee.commands.main import main as knee
from knee.engine.issued_messages import StageWork
from knee.training.parallelism import pipeline_parallel  # noqa: F401 - imported once for all
from knee.training.parallelism.mesh import local_device, make_mesh
from knee.training.parallelism.trainer import Trainer
from knee.training.parallelism.trainer_job import TrainJob
from knee.training.run import fake_ranks
from knee.training.run.fake_ranks import Log, group_names, logged_step, trace_stage
from waiting import LIMIT_S

WORKERS = 2


def traced(kind: str, jobs: dict[str, dict], part: int, folder: Path) -> None:
    """Every second trace of all stages."""
    todo = [(name, TrainJob.from_json(job)) for name, job in jobs.items()]
    stages = [(name, job, stage) for name, job in todo for stage in range(job.plan.pp)]
    with mock.patch.object(fake_ranks, "fake_tensors", nullcontext) if kind == "small" else nullcontext():
        found = {f"{name}/{stage}": trace_stage(job, stage).as_json() for name, job, stage in stages[part::WORKERS]}
    (folder / f"{kind}.{part}.json").write_text(json.dumps(found))


def real(jobs: dict[str, dict], rank: int, folder: Path) -> None:
    """The same log over real ranks."""
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(folder / "store"), WORKERS),
        rank=rank,
        world_size=WORKERS,
        timeout=timedelta(seconds=LIMIT_S),
    )
    found = {}
    for name, plain in jobs.items():
        job = TrainJob.from_json(plain)
        mesh = make_mesh(job.plan, local_device("cpu"))
        trainer, log = Trainer(job, mesh), Log(group_names(mesh), job.model)
        trainer.step(local_tokens(job, mesh, 0))
        logged_step(trainer, log, local_tokens(job, mesh, 1))
        found[name] = StageWork(
            stage=mesh.index("pp"),
            rank=rank,
            product_flop=log.product_flop,
            attention_flop=log.attention_flop,
            collectives=dict(log.collectives),
        ).as_json()
    (folder / f"real.{rank}.json").write_text(json.dumps(found))


def said(asked: dict[str, str], part: int, folder: Path) -> None:
    """What the command says."""
    told = {}
    for name in list(asked)[part::WORKERS]:
        result = CliRunner().invoke(knee, ["dryrun", *asked[name].split(), "--json"])
        told[name] = {"code": result.exit_code, "stdout": result.stdout, "stderr": result.stderr}
    (folder / f"knee.{part}.json").write_text(json.dumps(told))


def forked(work: Callable[..., None], given: Any, folder: Path) -> None:
    """The work in two processes."""
    children = []
    for part in range(WORKERS):
        if not (child := os.fork()):
            try:
                work(given, part, folder)
            except Exception:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def main(jobs: str, folder: str) -> None:
    """Fake ranks, then real ones."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Slicing a flattened dim")
    given = json.loads(Path(jobs).read_text())
    gc.freeze()
    for kind in ("fake", "small"):
        forked(partial(traced, kind), given[kind], Path(folder))
    forked(real, given["real"], Path(folder))
    forked(said, given["knee"], Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
