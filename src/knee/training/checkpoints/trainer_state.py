"""Everything a trainer needs to go on as if it had not stopped, as parts of whole tensors.

Nothing in a step draws random numbers: weights and data are functions of the seed and of the step, which are in the
checkpoint's description. So the state is weights, moments, the count of steps, the loss scale and balancing biases.
"""

from __future__ import annotations

from typing import Any

from knee.training.checkpoints.parts import TensorPart, part_of, whole_part
from knee.training.parallelism.trainer import Trainer

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
    """The whole state. Reading into its tensors sets it; afterwards ``share_counts`` is needed."""
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


def share_counts(trainer: Trainer) -> None:
    """Give every tensor's moments the count of steps that was read."""
    _, _, steps = trainer.optimizer.adamw.moments()
    for count in steps[1:]:
        count.copy_(steps[0])


def state_bytes(state: dict[str, TensorPart]) -> int:
    """Bytes of the whole tensors of which this rank has a part."""
    return sum(part.shape.numel() * _width(part) for part in state.values())


def _width(part: TensorPart) -> Any:
    return part.boxes[0].tensor.element_size() if part.boxes else 0
