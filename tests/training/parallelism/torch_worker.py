"""All layouts that tests run on torch, after one import of it: real gloo ranks, and fake ranks.

    python torch_worker.py WORK.json FOLDER

WORK.json has "cases" (world size -> layouts that real ranks train), "traces" (name -> job, traced on fake ranks),
"without_values" (the same, on tensors that hold nothing) and "commands" (name -> words of ``knee dryrun``). Each is
forked, because importing torch takes longer than most cases, and leaves JSON files in the folder.

Fake ranks of ``knee dryrun`` have tensors that hold nothing; each operation on them takes a millisecond. Tensors with
values are ten times as quick for a model as small; the tests hold one against the other.
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
import warnings
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from batches import local_tokens
from click.testing import CliRunner

from knee.commands.main import main as knee
from knee.engine.events import StageWork
from knee.training.checkpoints.folder import find_checkpoint, read_state
from knee.training.checkpoints.save_and_resume import CheckpointSaver, host_group, load_state
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
from knee.training.run import fake_ranks
from waiting import LIMIT_S

WAIT = timedelta(seconds=LIMIT_S)
WORKERS = 2
"""Processes for fake ranks."""


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
        tracer = stack.enter_context(torch.profiler.profile()) if case.get("trace") and model.mesh.rank == 0 else None
        if case.get("resume"):
            found = find_checkpoint(folder / case["resume"])
            load_state(model, found, read_state(found)["step"], host_group(WAIT))
        saver = CheckpointSaver(model, folder / case["name"], host_group(WAIT), {}) if case.get("save") else None
        results = []
        for i in range(model.steps_done, job.steps):
            if saver and i == case["save"]:
                saver.begin(i)  # the next step runs beside it
            if case.get("log") and i == 1:
                log = fake_ranks.Log(fake_ranks.group_names(model.mesh), job.model)
                results.append(fake_ranks.logged_step(model, log, local_tokens(job, model.mesh, i)))
            else:
                results.append(model.step(local_tokens(job, model.mesh, i)))
        if saver:
            saver.finish()
            saver.check()
        # a forward without gradients would be compiled anew
        valid = (
            None
            if job.compile or case.get("trace")
            else float(model.evaluate(local_tokens(job, model.mesh, job.steps)))
        )
    events = collections.Counter(e.name for e in tracer.events()) if tracer else {}
    return {
        "losses": [float(r.loss_tensor) for r in results],
        "valid": valid,
        "norms": [float(r.norm_tensor) for r in results],
        "seconds": time.process_time() - began,
        "work": _work(model, log) if case.get("log") else None,
        "events": {name: count for name, count in events.items() if "FSDP::" in name or "c10d::" in name},
    }


def _work(model: trainer.Trainer, log: fake_ranks.Log) -> dict:
    """What this rank issued in a step."""
    return StageWork(
        stage=model.mesh.index("pp"),
        rank=model.mesh.rank,
        product_flop=log.product_flop,
        attention_flop=log.attention_flop,
        collectives=dict(log.collectives),
    ).as_json()


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


def traced(jobs: dict[str, dict], folder: Path, *, values: bool, part: int) -> bool:
    """Every second trace of all stages on fake ranks."""
    kind = "traces" if values else "without_values"
    todo = [(name, TrainJob.from_json(job)) for name, job in jobs.items()]
    stages = [(name, job, stage) for name, job in todo for stage in range(job.plan.pp)]
    with mock.patch.object(fake_ranks, "fake_tensors", nullcontext) if values else nullcontext():
        found = {
            f"{name}/{stage}": fake_ranks.trace_stage(job, stage).as_json()
            for name, job, stage in stages[part::WORKERS]
        }
    (folder / f"{kind}.{part}.json").write_text(json.dumps(found))
    return True


def commands(asked: dict[str, str], folder: Path, *, part: int) -> bool:
    """What ``knee dryrun`` says."""
    told = {}
    for name in list(asked)[part::WORKERS]:
        result = CliRunner().invoke(knee, ["dryrun", *asked[name].split(), "--json"])
        told[name] = {"code": result.exit_code, "stdout": result.stdout, "stderr": result.stderr}
    (folder / f"commands.{part}.json").write_text(json.dumps(told))
    return True


def main(work: str, folder: str) -> None:
    """Real ranks, one world size after the other, then fake ones. What each would do again is done before they fork."""
    given, out = json.loads(Path(work).read_text()), Path(folder)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Slicing a flattened dim")
    if given["cases"]:
        captured(warm_up)(torch.ones(2, requires_grad=True)).backward()  # torch.compile imports for seconds
    gc.freeze()  # else each case's collection looks at all of torch, and copies its pages into every rank
    for ranks, some in given["cases"].items():
        together([partial(rank_main, rank, int(ranks), some, out) for rank in range(int(ranks))])
    parts = range(WORKERS)
    for kind, values in (("traces", True), ("without_values", False)):
        if given[kind]:
            together([partial(traced, given[kind], out, values=values, part=part) for part in parts])
    if given["commands"]:
        together([partial(commands, given["commands"], out, part=part) for part in parts])


def together(work: list[Callable[[], bool]]) -> None:
    """Each work in a process of its own; where one fails, the others, which would wait for it, are ended."""
    children = [forked(one) for one in work]
    while children:
        ended, status = os.wait()
        children.remove(ended)
        if status:
            for child in children:
                os.kill(child, signal.SIGKILL)


def forked(work: Callable[[], bool]) -> int:
    if child := os.fork():
        return child
    whole = False
    try:
        whole = work()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0 if whole else 1)  # groups of many cases are not torn down in order


if __name__ == "__main__":
    main(*sys.argv[1:])
