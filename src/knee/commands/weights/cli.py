"""``knee weights``: the weights of a run for other programs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from knee.commands.options.sections import PATH, Word, option


@click.command("weights")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@option("--out DIR", PATH, "Folder to write. It must not exist.", required=True)
@option("--dtype", Word(("fp32", "bf16", "fp16")), "Data type of the weights; default: that of the checkpoint.")
def command(checkpoint: Path, out: Path, dtype: str | None) -> None:
    """Write the weights of a checkpoint as a Hugging Face folder.

    CHECKPOINT is the folder of a run of `knee train --checkpoint-every N`, whose newest checkpoint is taken, or one
    checkpoint of it. The new folder has safetensors, their index and config.json, so that transformers, vLLM and
    `knee train --weights DIR` read it. Models with the blocks of Llama, Qwen2, Qwen3, Qwen2-MoE, Qwen3-MoE, Mixtral and
    DeepSeek-V3 can be written.

    \b
        knee weights run --out hf
        knee weights run/checkpoints/step-00001000 --out hf --dtype bf16
    """
    from knee.commands.weights.api import write_weights

    for path in write_weights(checkpoint, out, dtype=dtype, say=partial(click.echo, err=True)):
        click.echo(str(path))
