"""Everything a trainer needs to go on as if it had not stopped, as parts of whole tensors.

Nothing in a step draws random numbers: weights and data are functions of the seed and of the step, which are in the
checkpoint's description. So the state is weights, moments, the count of steps, the loss scale and balancing biases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from knee.training.parallelism.decoder import full_shape
from knee.training.parallelism.experts import EXPERT_WEIGHTS, expert_shape
from knee.training.parallelism.mesh import Mesh
from knee.training.parallelism.tensor_parallel import CUT_DIM
from knee.training.parallelism.trainer import Trainer
from knee.training.parallelism.trainer_job import TrainJob

# What of a whole tensor lies on a rank, as boxes: so torch.distributed.checkpoint saves and reads any layout. Tensor
# and expert parallelism cut weights into plain tensors, and FSDP2 cuts the rows of those. A box says where a piece
# lies in the whole tensor. The file of a checkpoint then says nothing of the plan that wrote it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A piece of a whole tensor, and where it begins."""

    offsets: tuple[int, ...]
    tensor: Any


class TensorPart:
    """The pieces of one whole tensor that lie on this rank. The two methods with underscores are those that
    torch.distributed.checkpoint asks for."""

    def __init__(self, shape: list[int], boxes: list[Box]) -> None:
        self.shape = torch.Size(shape)
        self.boxes = [box for box in boxes if box.tensor.numel()]

    def size(self) -> torch.Size:
        """The whole tensor's shape."""
        return self.shape

    def mapped(self, function: Callable[[Any], Any]) -> TensorPart:
        """The same pieces with other tensors."""
        made = [Box(offsets=box.offsets, tensor=function(box.tensor)) for box in self.boxes]
        return TensorPart(list(self.shape), made)

    def piece_at(self, offset: Any) -> Any:
        """The piece that begins there."""
        return next(box.tensor for box in self.boxes if box.offsets == tuple(offset))

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(box.offsets), box.tensor.shape) for box in self.boxes]

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk, properties=TensorProperties.create_from_tensor(box.tensor), size=self.shape
                ),
            )
            for chunk, box in zip(self.__create_chunk_list__(), self.boxes, strict=True)
        ]


class PartsSavePlanner(DefaultSavePlanner):
    """Saves ``TensorPart``s. Pieces that several ranks have are written by one of them."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The piece that an item of the plan names."""
        return self.state_dict[index.fqn].piece_at(index.offset)


class PartsLoadPlanner(DefaultLoadPlanner):
    """Reads into ``TensorPart``s."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False) -> None:
        """torch's own would copy what is no tensor."""
        self.state_dict = self.original_state_dict = state_dict
        self.metadata, self.is_coordinator = metadata, is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> Any:
        """The piece that an item of the plan names."""
        return self.state_dict[index.fqn].piece_at(index.offset)


def whole_part(tensor: Any) -> TensorPart:
    """A tensor that every rank has whole."""
    return TensorPart(list(tensor.shape), [Box(offsets=(0,) * tensor.ndim, tensor=tensor)])


def part_of(name: str, shape: torch.Size, local: Any, job: TrainJob, mesh: Mesh) -> TensorPart:
    """What ``local`` is of the weight ``name``, or of a tensor that is cut like it; ``shape`` is before FSDP2 cut."""
    leaf = name.rsplit(".", 1)[-1]
    if leaf in EXPERT_WEIGHTS:
        return _expert_part(leaf, shape, local, job, mesh)
    tp, cut, offsets = mesh.size("tp"), CUT_DIM.get(leaf), [0] * len(shape)
    if cut is not None:
        offsets[cut] = mesh.index("tp") * shape[cut]
    offsets[0] += _first_row(shape[0], mesh.sharded)
    return TensorPart(full_shape(name, shape, tp), [Box(offsets=tuple(offsets), tensor=local)])


def _first_row(rows: int, sharded: Any) -> int:
    """Where FSDP2's part of a weight's rows begins."""
    if sharded is None:
        return 0
    last = sharded.ndim - 1
    return int(sharded.get_local_rank(last)) * -(-rows // int(sharded.size(last)))


def _expert_part(leaf: str, shape: torch.Size, local: Any, job: TrainJob, mesh: Mesh) -> TensorPart:
    """Experts follow each other as rows; ``etp`` takes some rows of each gate and up, or some columns of each down."""
    experts, ep, etp = job.model.experts, mesh.experts.ep, mesh.experts.etp
    assert experts is not None
    whole = expert_shape(leaf, experts, job.model.hidden)
    ep_rank, etp_rank, etp_size = ep.rank if ep else 0, etp.rank if etp else 0, etp.size if etp else 1
    row = _first_row(shape[0], mesh.experts.sharded)
    if leaf == "expert_out" or etp_size == 1:
        column = etp_rank * shape[1] if leaf == "expert_out" else 0
        return TensorPart(whole, [Box(offsets=(ep_rank * shape[0] + row, column), tensor=local)])
    boxes, ffn, done = [], experts.ffn // etp_size, 0
    while done < len(local):
        half, inside = divmod(row + done, ffn)  # a half is an expert's gate or up
        length = min(ffn - inside, len(local) - done)
        first = (ep_rank * (shape[0] // ffn) + half) * experts.ffn + etp_rank * ffn + inside
        boxes.append(Box(offsets=(first, 0), tensor=local[done : done + length]))
        done += length
    return TensorPart(whole, boxes)


MODEL = "model."


def weight_parts(trainer: Trainer) -> dict[str, TensorPart]:
    """The weights, and the biases that balance experts."""
    optimizer, job, mesh = trainer.optimizer, trainer.job, trainer.mesh
    named = zip(optimizer.names, optimizer.parameters, optimizer.locals, strict=True)
    state = {MODEL + name: part_of(name, p.shape, local, job, mesh) for name, p, local in named}
    for decoder in trainer.decoders:
        state |= {MODEL + n: whole_part(b) for n, b in decoder.named_buffers() if n.endswith("balance_bias")}
    return state


def state_parts(trainer: Trainer) -> dict[str, TensorPart]:
    """The whole state. Reading into its tensors sets it, but for the counts of steps, of which one is read."""
    optimizer, job, mesh = trainer.optimizer, trainer.job, trainer.mesh
    state = weight_parts(trainer)
    first, second, steps = optimizer.adamw.moments()
    for index, m, v in zip(optimizer.full, first, second, strict=True):
        name, shape = optimizer.names[index], optimizer.parameters[index].shape
        state |= {f"{kind}.{name}": part_of(name, shape, x, job, mesh) for kind, x in (("first", m), ("second", v))}
    state["optimizer_steps"] = whole_part(steps[0])
    if trainer.scale is not None:
        state |= {"loss_scale": whole_part(trainer.scale.value), "loss_scale_steps": whole_part(trainer.scale.good)}
    return state


def state_bytes(state: dict[str, TensorPart]) -> int:
    """Bytes of the whole tensors of which this rank has a part."""
    return sum(part.shape.numel() * part.boxes[0].tensor.element_size() for part in state.values() if part.boxes)
