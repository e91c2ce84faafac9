"""A folder of shards on the screen, and how far its making is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Self

from knee.base.units import show
from knee.commands.options.output import say
from knee.show.terminal.progress_bar import TenthsBar
from knee.show.terminal.table import print_heading, print_rows

if TYPE_CHECKING:
    from knee.commands.data.api import ShardFolder
    from knee.training.datasets.write_shards import ShardProgress


def print_folder(answer: ShardFolder) -> None:
    """The folder as a table; what is not in it on stderr."""
    index = answer.index
    tokenizer, sources = index.asked.tokenizer, index.asked.sources
    size = sum(source.size_bytes for source in sources)
    few = ", ".join(source.path for source in sources[:3]) + (f" and {len(sources) - 3:,} more" if sources[3:] else "")
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
            ["files", f"{len(sources):,} ({show(size, 'bytes')}): {few}"],
            ["skipped", f"{index.left_out.records:,} invalid records, {index.left_out.empty:,} empty documents"],
            ["first text", begins],
        ]
    )
    for place in index.left_out.first:
        say(f"skipped: {place}")


def say_made(answer: ShardFolder) -> None:
    """What this call has made, on stderr."""
    if not answer.made:
        say("nothing to do: the shards already exist")
        return
    kept = len(answer.index.shards) - answer.made
    made = f"{answer.made:,} shard{'' if answer.made == 1 else 's'} written"
    earlier = f", {kept:,} kept from an earlier run" if kept else ""
    rate = f"{answer.made_tokens / answer.made_s:,.0f} tokens/s, in {show(answer.made_s, 's')}"
    say(f"{made}{earlier}: {rate}")


class PreparationProgress:
    """How far the shards are, on stderr; an interruption is said."""

    def __enter__(self) -> Self:
        self.bar = TenthsBar("tokenizing")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.bar.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            say("stopped: finished shards are kept, and the same command continues")

    def __call__(self, block: ShardProgress) -> None:
        """A block is done."""
        done, total = block.done_bytes, max(1, block.total_bytes)
        label = f"{Path(block.path).name[:40]}: {block.tokens:,} tokens"
        self.bar.show(
            done, total, label=label, line=f"{done * 10 // total * 10}% of the files, {block.tokens:,} tokens"
        )
