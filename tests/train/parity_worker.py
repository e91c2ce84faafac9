"""The parity pool: for each world size, forked ranks run all its cases on one process group, and say what they saw.

    python parity_worker.py CASES.json FOLDER

Ranks are forked because importing torch takes longer than most cases.
"""

from __future__ import annotations

import collections
import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from batches import local_tokens

from knee.training.checkpoints.folder import find_checkpoint, read_state
from knee.training.checkpoints.resume import load_state
from knee.training.checkpoints.save import CheckpointSaver, host_group
from knee.training.parallelism import (
    context_parallel,
    ddp,
    decoder,
    expert_parallel,
    optimizer,
    tensor_parallel,
    trainer,
)
from knee.training.parallelism.mesh import local_device, make_mesh
from knee.training.parallelism.trainer_job import TrainJob
from waiting import LIMIT_S

WAIT = timedelta(seconds=LIMIT_S)


def other_rows(x: torch.Tensor, got: list[int] | None = None) -> torch.Tensor:
    """As many rows as should come, all of them this rank's own."""
    return x if got is None else x[torch.arange(sum(got)) % max(1, len(x))]


BREAKS = {
    "tp reduce_scatter": (tensor_parallel, "reduce_scatter", lambda x, group: x[group.rank].contiguous()),
    "tp all_reduce": (tensor_parallel, "all_reduce", lambda x, _: x),
    "tp norms": (optimizer, "all_reduce", lambda x, _: x),
    "cp reduce_scatter": (
        context_parallel,
        "reduce_scatter",
        lambda x, group: x.chunk(group.size)[group.rank].contiguous(),
    ),
    "ep all_to_all": (expert_parallel, "all_to_all", lambda x, _, *splits: other_rows(x, *splits[1:])),
    "experts' gradients": (optimizer, "expert_gradient_scale", lambda _: 1.0),
    "ddp all_reduce": (ddp, "dist", mock.Mock(get_world_size=lambda _: 2)),
}
"""Collectives that do not communicate."""


def captured(function: Callable) -> Callable:
    """Inductor takes half a minute to start on a CPU: what is held here is that code is captured and differentiated."""
    differentiates = function.__module__ != optimizer.__name__
    return torch.compile(function, backend="aot_eager" if differentiates else "eager", dynamic=False)


def warm_up(x: torch.Tensor) -> torch.Tensor:
    """Something to capture."""
    return (2 * x).sum()


def run(case: dict, folder: Path) -> dict:
    """Losses and gradient norms of a case's steps: all of them, or those after the checkpoint of another case."""
    job = TrainJob.from_json(case["job"])
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(trainer, "compiled", captured))
        stack.enter_context(mock.patch.object(decoder, "STD", case.get("std", decoder.STD)))
        began = time.process_time()
        model = trainer.Trainer(job, make_mesh(job.plan, local_device("cpu")))
        if case.get("skew"):
            skew(model)
        if case.get("break"):
            stack.enter_context(mock.patch.object(*BREAKS[case["break"]]))
        tracer = stack.enter_context(torch.profiler.profile()) if case.get("trace") else None
        if case.get("resume"):
            found = find_checkpoint(folder / case["resume"])
            load_state(model, found, read_state(found)["step"], host_group(WAIT))
        saver = CheckpointSaver(model, folder / case["name"], host_group(WAIT), {}) if case.get("save") else None
        results = []
        for i in range(model.steps_done, job.steps):
            if saver and i == case["save"]:
                saver.begin(i)  # the next step runs beside it
            results.append(model.step(local_tokens(job, model.mesh, i)))
        if saver:
            saver.finish()
            saver.check()
        # a forward without gradients would be compiled anew
        valid = None if job.compile or tracer else float(model.evaluate(local_tokens(job, model.mesh, job.steps)))
    # rank 0's are looked at
    events = collections.Counter(e.name for e in tracer.events()) if tracer and model.mesh.rank == 0 else {}
    return {
        "losses": [float(r.loss_tensor) for r in results],
        "valid": valid,
        "norms": [float(r.norm_tensor) for r in results],
        "seconds": time.process_time() - began,
        "events": {name: count for name, count in events.items() if "FSDP::" in name or "c10d::" in name},
    }


def skew(model: trainer.Trainer) -> None:
    """Routers that send nearly all tokens to the first experts: a bias is the same for every layout."""
    for one in model.decoders:
        for block in one.blocks.values():
            if block.moe is not None:
                count = block.moe.spec.count
                block.moe.balance_bias, block.moe.moves_bias = torch.linspace(1.0, 0.0, count), True
                block.moe.load = torch.zeros(count)


def rank_main(rank: int, ranks: int, cases: list[dict], folder: Path) -> bool:
    """Every case in turn; one that fails ends the rank, as its group may be left in the middle of something."""
    torch.set_num_threads(1)
    if ranks > 1:
        store = dist.FileStore(str(folder / f"{ranks}.store"), ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=WAIT)
    found = {}
    for case in cases:
        try:
            found[case["name"]] = run(case, folder)
        except Exception:
            found[case["name"]] = {"error": traceback.format_exc()}
        gc.collect()
        if "error" in found[case["name"]]:
            break
    (folder / f"{ranks}.{rank}.json").write_text(json.dumps(found))
    return all("error" not in one for one in found.values())


def main(cases: str, folder: str) -> None:
    """World sizes one after the other. What ranks would each do again is done before they are forked."""
    captured(warm_up)(torch.ones(2, requires_grad=True)).backward()  # torch.compile imports for seconds
    gc.freeze()  # else each case's collection looks at all of torch, and copies its pages into every rank
    for ranks, some in json.loads(Path(cases).read_text()).items():
        children = [forked(rank, int(ranks), some, Path(folder)) for rank in range(int(ranks))]
        while children:
            ended, status = os.wait()
            children.remove(ended)
            if status:  # the others would wait for it
                for child in children:
                    os.kill(child, signal.SIGKILL)


def forked(rank: int, ranks: int, cases: list[dict], folder: Path) -> int:
    """The process of a rank."""
    if child := os.fork():
        return child
    whole = False
    try:
        whole = rank_main(rank, ranks, cases, folder)
    finally:
        os._exit(0 if whole else 1)  # groups of many cases are not torn down in order


if __name__ == "__main__":
    main(*sys.argv[1:])
