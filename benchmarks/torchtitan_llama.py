"""The reference of a real step: torchtitan's own trainer on one GPU, with torchao's float8 and without.

    bash tools/carry_torchtitan.sh                         # once, on a machine with a network
    PYTHONPATH=out/peers python benchmarks/torchtitan_llama.py llama2-7b [--float8] [--out FILE.json]
    PYTHONPATH=out/peers python benchmarks/torchtitan_llama.py llama3-8b --layers 16 [--float8] [--out FILE.json]

The program is ``torchtitan.train.Trainer`` with torchtitan's own options, which the record lists: its Llama,
its torch.compile of every block and of the loss, its float8 converter, its fused AdamW and its clipping. Only the data
differ: random tokens instead of C4. torchtitan imports ``datasets`` and ``tensorboard``, which nothing here uses. Empty
modules replace them if they are not installed.

torchtitan does not apply FSDP on one GPU. With fp32 states it computes under torch.autocast, and embeddings and
residuals stay fp32. With bf16 states everything is bf16. ``--sharding fsdp`` applies torchtitan's FSDP2 on a mesh of
one GPU, which casts to bf16 what autocast leaves in fp32. Options that this program does not know are given to
torchtitan.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from types import ModuleType
from typing import Any

STATE_DTYPE = {"llama2-7b": "bf16", "llama3-8b": "fp32"}
"""What fits on one GPU of 141 GB: 32 layers with bf16 states, 16 layers with fp32 states."""
TORCHTITAN_DTYPE = {"bf16": "bfloat16", "fp32": "float32"}


def stand_in(name: str, **members: object) -> None:
    """Put a module with these members in the place of one that is imported and not used."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(members)
    sys.modules[name] = module


def stand_in_for_missing() -> None:
    """The packages that only torchtitan's own data and logs need."""
    if importlib.util.find_spec("datasets") is None:
        stand_in("datasets", Dataset=None, load_dataset=None)
        stand_in("datasets.distributed", split_dataset_by_node=None)
    if importlib.util.find_spec("tensorboard") is None:
        stand_in("torch.utils.tensorboard", SummaryWriter=None)


def set_environment() -> None:
    """What torchtitan's run_train.sh and torchrun set: torchtitan makes a process group of one GPU, too."""
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    of_one = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(of_one)


def flags(given: argparse.Namespace, dump: str) -> list[str]:
    """torchtitan's own options."""
    found = [
        "--model.name=knee_llama",
        f"--model.flavor={given.model}",
        f"--training.local_batch_size={given.local_batch}",
        f"--training.seq_len={given.seq_len}",
        f"--training.steps={given.steps}",
        f"--training.dtype={TORCHTITAN_DTYPE[given.state_dtype]}",
        "--training.mixed_precision_param=bfloat16",
        "--training.max_norm=1.0",
        "--optimizer.name=AdamW",
        "--optimizer.implementation=fused",
        "--optimizer.lr=3e-4",
        "--lr_scheduler.warmup_steps=0",
        f"--activation_checkpoint.mode={given.recompute}",
        "--metrics.log_freq=10",
        "--metrics.disable_color_printing",
        "--debug.seed=0",
        f"--job.dump_folder={dump}",
    ]
    if not given.eager:
        found += ["--compile.enable", "--compile.components=model,loss"]
    if given.float8:
        found += ["--model.converters=quantize.linear.float8", "--quantize.linear.float8.filter_fqns=output"]
    if given.float8 == "rowwise":
        found += ["--quantize.linear.float8.recipe_name=rowwise"]
    return found + given.others


def register_model(given: argparse.Namespace) -> None:
    """torchtitan's training specification of Llama with this shape and random tokens."""
    from torchtitan.models.llama3 import TransformerModelArgs, get_train_spec, llama3_args
    from torchtitan.protocols.train_spec import register_train_spec

    shapes = {
        "llama2-7b": TransformerModelArgs(dim=4096, n_layers=32, n_heads=32, vocab_size=32000, rope_theta=10000),
        "llama3-8b": replace(llama3_args["8B"]),
        "debugmodel": replace(llama3_args["debugmodel"]),
    }
    shape = shapes[given.model]
    if given.layers:
        shape.n_layers = given.layers
    spec = replace(
        get_train_spec(),
        model_args={given.model: shape},
        build_tokenizer_fn=None,
        build_dataloader_fn=lambda **_: random_batches(shape.vocab_size, given.local_batch, given.seq_len),
        build_validator_fn=None,
        state_dict_adapter=None,
    )
    register_train_spec("knee_llama", spec)


def random_batches(vocab: int, batch: int, seq_len: int) -> Iterator[tuple[dict[str, Any], Any]]:
    """Batches on the CPU, as torchtitan's loader yields them."""
    import torch

    random = torch.Generator().manual_seed(0)
    while True:
        tokens = torch.randint(vocab, (batch, seq_len + 1), generator=random)
        yield {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()


def shard_on_one_gpu() -> None:
    """Let torchtitan apply FSDP2 on a mesh of one GPU; it does so from two GPUs on."""
    from torchtitan.distributed import ParallelDims

    exists = ParallelDims._mesh_exist
    ParallelDims._mesh_exist = lambda self, name, degree: name == "fsdp" or exists(self, name, degree)
    ParallelDims.fsdp_enabled = property(lambda _: True)


class Readings:
    """Times, peaks and losses, read around the trainer's own functions.

    Nothing here waits for the GPU between the first and the last measured step.
    """

    def __init__(self, steps: int, warmup: int) -> None:
        from torchtitan.tools.utils import device_module

        self.steps, self.warmup, self.device = steps, warmup, device_module
        self.first_step_s = self.window_s = self.start = 0.0
        self.allocated = self.reserved = 0
        self.losses: dict[int, float] = {}

    def now(self) -> float:
        """The time when the GPU is done."""
        self.device.synchronize()
        return time.perf_counter()

    def peaks(self) -> None:
        """The largest use so far: torchtitan resets the peaks whenever it logs."""
        self.allocated = max(self.allocated, self.device.max_memory_allocated())
        self.reserved = max(self.reserved, self.device.max_memory_reserved())

    def around_step(self, trainer: Any, step: Callable[[Any], None]) -> Callable[[Any], None]:
        """A step that starts and stops the clocks."""

        def timed(batches: Any) -> None:
            if trainer.step in (1, self.warmup + 1):
                self.start = self.now()
            step(batches)
            if trainer.step == 1:
                self.first_step_s = self.now() - self.start
            if trainer.step == self.steps:
                self.window_s = self.now() - self.start
                self.peaks()

        return timed

    def around_log(self, log: Callable[..., None]) -> Callable[..., None]:
        """A log that keeps the loss."""

        def kept(step: int, loss: float, *rest: Any, **named: Any) -> None:
            self.losses[step] = loss
            self.peaks()
            log(step, loss, *rest, **named)

        return kept


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Train, and return the record."""
    stand_in_for_missing()
    import torch
    from torchtitan.config import ConfigManager
    from torchtitan.tools.logging import init_logger
    from torchtitan.train import Trainer

    init_logger()
    register_model(given)
    if given.sharding == "fsdp":
        shard_on_one_gpu()
    with tempfile.TemporaryDirectory() as dump:
        options = flags(given, dump)
        trainer = Trainer(ConfigManager().parse_args(options))
        readings = Readings(given.steps, given.warmup)
        trainer.train_step = readings.around_step(trainer, trainer.train_step)
        trainer.metrics_processor.log = readings.around_log(trainer.metrics_processor.log)
        trainer.train()
        trainer.close()
        torch.distributed.destroy_process_group()
    return record(given, options, readings, sum(p.numel() for p in trainer.model_parts[0].parameters()))


def record(given: argparse.Namespace, options: list[str], readings: Readings, parameters: int) -> dict[str, Any]:
    """What the file contains."""
    import torch

    measured = given.steps - given.warmup
    packages = ["triton", "torchtitan", *(["torchao"] if given.float8 else [])]
    return {
        "trainer": "torchtitan",
        "tokens_per_s": given.local_batch * given.seq_len * measured / readings.window_s,
        "step_s": readings.window_s / measured,
        "first_step_s": readings.first_step_s,
        "peak_allocated_bytes": readings.allocated,
        "peak_reserved_bytes": readings.reserved,
        "losses": readings.losses,
        "model": given.model,
        "layers": given.layers,
        "parameters": parameters,
        "local_batch": given.local_batch,
        "seq_len": given.seq_len,
        "steps": given.steps,
        "warmup": given.warmup,
        "state_dtype": given.state_dtype,
        "float8": given.float8,
        "sharding": given.sharding,
        "flags": [flag for flag in options if "dump_folder" not in flag],
        "allocator": os.environ.get("PYTORCH_ALLOC_CONF"),
        "versions": {"torch": torch.__version__, **{name: version(name) for name in packages}},
        "gpu": readings.device.get_device_name(),
    }


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("model", choices=("llama2-7b", "llama3-8b", "debugmodel"))
    parser.add_argument("--layers", type=int, help="default: all")
    parser.add_argument("--state-dtype", choices=("bf16", "fp32"), help="default: bf16 for llama2-7b, else fp32")
    parser.add_argument("--local-batch", type=int, default=2)
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=10, help="first steps that are not measured, at least 1")
    parser.add_argument("--float8", nargs="?", const="tensorwise", choices=("tensorwise", "rowwise"))
    parser.add_argument("--sharding", default="none", choices=("none", "fsdp"))
    parser.add_argument("--recompute", default="none", choices=("none", "selective", "full"))
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--out", metavar="FILE.json")
    given, others = parser.parse_known_args()
    if not 1 <= given.warmup < given.steps:
        parser.error("--warmup must be at least 1 and less than --steps")
    given.others = others
    given.state_dtype = given.state_dtype or STATE_DTYPE.get(given.model, "fp32")
    return given


def main() -> None:
    """Print, and write where asked."""
    given = arguments()
    set_environment()
    for name in ("torch", "torchtitan"):
        if importlib.util.find_spec(name) is None:
            print(f"skipped: {name} is not installed")
            return
    import torch

    if not torch.cuda.is_available():
        print("skipped: no GPU")
        return
    found = run(given)
    how = f"{given.model}, {given.float8 + ' float8' if given.float8 else 'bf16'}"
    rate, memory, first = found["tokens_per_s"], found["peak_allocated_bytes"] / 2**30, found["first_step_s"]
    print(f"torchtitan {how}: {rate:,.0f} tokens/s, {memory:.1f} GiB, first step {first:.0f} s", flush=True)
    if given.out:
        with open(given.out, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    main()
