"""The weights of a run as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

from knee.base.errors import InputError, argument, either
from knee.commands.train.request import Say
from knee.measure.machine.machine_facts import need_torch
from knee.training.checkpoints.folder import find_checkpoint


def write_weights(
    checkpoint: str | Path, out: str | Path, *, dtype: str | None = None, say: Say = lambda _: None
) -> list[Path]:
    """Write the weights of a checkpoint, or of a run's newest, as safetensors with a ``config.json``; the files.

    ``dtype`` (fp32, bf16 or fp16) is that of the checkpoint if left out.

    >>> from knee.commands.weights.api import write_weights
    >>> write_weights("run", "hf", dtype="bf16")  # doctest: +SKIP
    """
    need_torch(either("knee.commands.weights.api", "knee weights"))
    from knee.training.checkpoints.huggingface import write_huggingface

    if Path(out).exists():
        hint = f"give another {argument('out')}"
        raise InputError(f"{out} already exists", hint=hint, code="already-there", field="out")
    return write_huggingface(find_checkpoint(Path(checkpoint)), Path(out), dtype, say)
