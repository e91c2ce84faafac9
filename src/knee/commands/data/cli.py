"""``knee data``: text files into shards of tokens for ``knee train``, and what lies in a folder of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from knee.base.units import show as in_words
from knee.commands.main import CommandGroup
from knee.commands.options.output import print_result, say
from knee.commands.options.sections import PATH, Word, as_json, option, options
from knee.show.terminal.progress_bar import TenthsBar
from knee.show.terminal.table import print_heading, print_rows
from knee.specs.defaults import MAX_BAD_FRAC, SHARD_TOKENS

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
            ["files", f"{len(sources):,} ({in_words(size, 'bytes')}): {few}"],
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
    rate = f"{answer.made_tokens / answer.made_s:,.0f} tokens/s, in {in_words(answer.made_s, 's')}"
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
        done, total = block.done_bytes, max(1, block.total_bytes)
        label = f"{Path(block.path).name[:40]}: {block.tokens:,} tokens"
        self.bar.show(
            done, total, label=label, line=f"{done * 10 // total * 10}% of the files, {block.tokens:,} tokens"
        )


@click.group("data", cls=CommandGroup, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Prepare text for `knee train`, which otherwise trains on synthetic tokens."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("prepare")
@click.argument("files", nargs=-1, required=True)
@options(
    "Options",
    {
        ("--tokenizer FILE", PATH, ...): "The model's tokenizer.json (Hugging Face format).",
        ("--out DIR", click.Path(file_okay=False, path_type=Path), ...): "Folder to write the shards to.",
        ("--field", str, "text"): "Name of the field or column that contains the text (JSON lines, Parquet).",
        ("--split", Word(("file", "block")), "file"): "What counts as one document in plain text: the whole file, or "
        "each block of lines between blank lines.",
        ("--eos TOKEN", str): "Token that ends a document; default: the usual end-of-text token of the tokenizer.",
        ("--jobs N", click.IntRange(min=1)): "Number of processes; default: the number of CPUs.",
        ("--shard-tokens N", click.IntRange(min=1), SHARD_TOKENS): "Approximate number of tokens per shard.",
        ("--max-bad FRAC", click.FloatRange(0, 1), MAX_BAD_FRAC): "Maximum share of a file's lines that may be "
        "skipped because they are invalid.",
        ("--fresh", bool): "Delete existing shards in the folder first.",
        ("--json as_json", bool): "Print JSON.",
    },
)
def prepare(files: tuple[str, ...], tokenizer: Path, max_bad: float, as_json: bool, **options: Any) -> None:
    """Tokenize text files once, into shards that training reads through memory mapping.

    FILES are plain text (.txt), JSON lines (.jsonl, .jsonl.gz) or Parquet (.parquet) files, folders of such files, or
    globs. The tokenizer's end-of-text token is added after every document; no other special token is added. Shards are
    completed one by one. An interrupted command continues where it stopped, and a command whose shards already exist
    does nothing. The shards do not depend on --jobs.

    \b
        knee data prepare corpus/ --tokenizer tokenizer.json --out shards
    """
    from knee.commands.data.api import prepare_shards

    with PreparationProgress() as progress:
        answer = prepare_shards(files, tokenizer=tokenizer, max_bad_frac=max_bad, progress=progress, **options)
    say_made(answer)
    print_result(answer, as_json, print_folder)


@command.command("show")
@click.argument("folder", type=click.Path(path_type=Path))
@option("--verify", bool, "Read all shards and verify their checksums.")
@as_json("Print JSON.")
def show(folder: Path, verify: bool, as_json: bool) -> None:
    """Show a folder of shards: tokens, documents, tokenizer and the first text.

    knee refuses a folder in which a shard is missing or truncated; --verify also detects changed bytes.
    """
    from knee.commands.data.api import read_shards

    print_result(read_shards(folder, verify=verify), as_json, print_folder)
