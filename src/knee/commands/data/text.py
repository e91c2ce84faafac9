"""A folder of shards on the screen, and how far its making is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from knee.base.units import show
from knee.show.terminal.table import print_heading, print_rows

if TYPE_CHECKING:
    from knee.commands.data.api import ShardFolder
    from knee.training.datasets.write_shards import ShardProgress


def print_folder(answer: ShardFolder) -> None:
    """The folder as a table; what is not in it on stderr."""
    index = answer.index
    tokenizer, sources = index.asked.tokenizer, index.asked.sources
    size = sum(source.size_bytes for source in sources)
    per_token = index.text_bytes / index.tokens if index.tokens else 0
    begins = json.dumps(answer.first_text, ensure_ascii=False)
    if answer.first_text is None:
        begins = " ".join(map(str, answer.first_tokens[:16]))
    print_heading(str(answer.folder))
    print_rows(
        [
            ["tokens", f"{index.tokens:,} ({index.dtype}), {per_token:.2f} bytes of text per token"],
            ["documents", f"{index.documents:,}"],
            ["shards", f"{len(index.shards):,}" + (", all checksums correct" if answer.verified else "")],
            [
                "tokenizer",
                f"{tokenizer.path}: {tokenizer.vocab_size:,} tokens, {tokenizer.eos} ({tokenizer.eos_id}) ends a "
                f"document, sha256 {tokenizer.sha256[:12]}",
            ],
            ["files", f"{len(sources):,} ({show(size, 'bytes')}): {_few([source.path for source in sources])}"],
            ["skipped", f"{index.left_out.records:,} invalid records, {index.left_out.empty:,} empty documents"],
            ["first text", begins],
        ]
    )
    for place in index.left_out.first:
        click.echo(f"skipped: {place}", err=True)


def _few(paths: list[str]) -> str:
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3:,} more" if len(paths) > 3 else "")


def say_made(answer: ShardFolder) -> None:
    """What this call has made, on stderr."""
    if not answer.made:
        click.echo("nothing to do: the shards already exist", err=True)
        return
    kept = len(answer.index.shards) - answer.made
    made = f"{answer.made:,} shard{'' if answer.made == 1 else 's'} written"
    earlier = f", {kept:,} kept from an earlier run" if kept else ""
    rate = f"{answer.made_tokens / answer.made_s:,.0f} tokens/s, in {show(answer.made_s, 's')}"
    click.echo(f"{made}{earlier}: {rate}", err=True)


class PreparationProgress:
    """A live bar on a terminal, or a line on stderr per tenth; an interruption is said."""

    def __init__(self) -> None:
        self.tenth = 0
        self.bar: Any = None
        self.task: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self.bar = Progress(console=Console(stderr=True), transient=True)
            self.bar.start()
            self.task = self.bar.add_task("tokenizing", total=None)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            click.echo("stopped: finished shards are kept, and the same command continues", err=True)

    def __call__(self, told: ShardProgress) -> None:
        """A block is done."""
        total = max(1, told.total_bytes)
        if self.bar is not None:
            name = Path(told.path).name[:40]
            self.bar.update(
                self.task, total=total, completed=told.done_bytes, description=f"{name}: {told.tokens:,} tokens"
            )
        elif (tenth := told.done_bytes * 10 // total) > self.tenth:
            self.tenth = tenth
            click.echo(f"{tenth * 10}% of the files, {told.tokens:,} tokens", err=True)
