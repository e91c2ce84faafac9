"""This process among the others of a torchrun job: meeting, agreeing, and stopping together.

Every decision about what is measured next has to fall alike on all ranks, or they wait for each other for ever. Control
messages go over a gloo group of their own, so that they work while NCCL is what is measured.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from knee.base.errors import InputError, RunFailed
from knee.base.signals import catch_signals

HOW = "torchrun --nproc-per-node 8 -m knee probe collectives --out mine.toml"
"""The command for a node of eight GPUs."""
MEETING_S = 300
"""How long ranks wait for each other."""
_UNTIL_THE_END = ExitStack()
"""Signals are caught as long as the process lives: torchrun sends more of them while a rank says how far it came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunLaunch:
    """What torchrun tells a process in its environment."""

    rank: int
    world: int
    local_rank: int
    per_node: int
    """Processes on this node."""


def read_launch() -> TorchrunLaunch:
    """This process' place, or words about how to start several."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if missing := [name for name in names if name not in os.environ]:
        raise InputError(
            f"collectives are measured between processes, but {missing[0]} is not set; start "
            "this command with torchrun",
            hint=f"`{HOW}`",
            code="missing-argument",
            field=missing[0],
        )
    try:
        rank, world, local_rank, per_node = (int(os.environ[name]) for name in names)
    except ValueError:
        raise InputError(f"{', '.join(names)} should be whole numbers", hint=f"`{HOW}`", code="not-a-number") from None
    if world < 2:
        text = "a collective needs at least two processes, but only one was started"
        raise InputError(text, hint=f"`{HOW}`", code="too-few-gpus", field="WORLD_SIZE")
    if world % per_node:
        raise InputError(
            f"{world} processes do not fill nodes of {per_node}",
            hint="start the same number of processes on every node",
            code="does-not-divide",
            field="WORLD_SIZE",
        )
    return TorchrunLaunch(rank=rank, world=world, local_rank=local_rank, per_node=per_node)


class Ranks:
    """The job's ranks, met."""

    def __init__(self, launch: TorchrunLaunch, device: str) -> None:
        import torch
        import torch.distributed as dist

        self.launch, self.kind = launch, device
        self.device = torch.device(device, launch.local_rank) if device == "cuda" else torch.device("cpu")
        if device == "cuda":
            torch.cuda.set_device(self.device)
        wait = timedelta(seconds=MEETING_S)
        with self.together():
            dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=wait)
            self.control = dist.new_group(backend="gloo", timeout=wait)
        self.stop = _UNTIL_THE_END.enter_context(catch_signals(second_ends=True))

    @contextmanager
    def together(self) -> Iterator[None]:
        """What all ranks do at once: it fails when one of them is gone."""
        try:
            yield
        except RuntimeError as error:
            first = str(error).strip().splitlines()[0][:160]
            raise RunFailed(
                f"rank {self.launch.rank} lost contact with the other ranks: {first}",
                hint="the readings are saved; find out why the other rank stopped, then run the same command again",
            ) from None

    def slowest(self, values: Sequence[float]) -> list[float]:
        """The largest of all ranks' values, one by one."""
        import torch
        import torch.distributed as dist

        column = torch.tensor(list(values), dtype=torch.float64)
        with self.together():
            dist.all_reduce(column, op=dist.ReduceOp.MAX, group=self.control)
        return [float(value) for value in column]

    def any(self, flag: bool) -> bool:
        """Whether it holds on some rank."""
        return self.slowest([float(flag)])[0] > 0

    def stopped(self) -> bool:
        """Whether some rank was asked to stop."""
        return self.any(self.stop.signal is not None)

    def barrier(self) -> None:
        """All ranks are here, and their devices have nothing left to do."""
        import torch.distributed as dist

        self.synchronize()
        with self.together():
            dist.barrier(group=self.control)

    def synchronize(self) -> None:
        """The device has done what was asked of it."""
        if self.kind == "cuda":
            import torch

            torch.cuda.synchronize()

    def share(self, value: Any) -> Any:
        """Rank 0's value, on all."""
        import torch.distributed as dist

        box = [value]
        with self.together():
            dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def first_error(self, words: str | None) -> str | None:
        """The first rank's error, on all; None where none had any."""
        import torch.distributed as dist

        # strings are gathered only when there is one: most points have none
        if not self.any(words is not None):
            return None
        all_words: list[str | None] = [None] * self.launch.world
        with self.together():
            dist.all_gather_object(all_words, words, group=self.control)
        told = {rank: text for rank, text in enumerate(all_words) if text}
        first = min(told)
        alike = len(told) == self.launch.world and len(set(told.values())) == 1
        return told[first] if alike else f"rank {first}: {told[first]}"

    def group(self, members: list[int]) -> Any:
        """A process group of those ranks, of which this is one; other ranks make theirs at the same time."""
        import torch.distributed as dist

        if len(members) == self.launch.world:
            return dist.group.WORLD
        with self.together():
            return dist.new_group(members, use_local_synchronization=True)

    def leave(self, group: Any) -> None:
        """Give a group's connections and buffers back."""
        import torch.distributed as dist

        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)

    def free_bytes(self) -> float:
        """Memory that the fullest rank may use for messages."""
        return -self.slowest([-self._free_bytes()])[0]

    def _free_bytes(self) -> float:
        import torch

        if self.kind == "cuda":
            return 0.8 * float(torch.cuda.mem_get_info()[0])
        # processes of a node share its memory, and gloo keeps copies of what it sends
        pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return 0.4 * pages / self.launch.per_node

    def close(self) -> None:
        """Leave the process group of torch.distributed."""
        import torch.distributed as dist

        dist.destroy_process_group()
