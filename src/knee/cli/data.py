"""``knee data``: text files into shards of tokens for ``knee train``, and what lies in a folder of them."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from knee import units

if TYPE_CHECKING:
    from knee.datasets.shard_index import Index
    from knee.datasets.write_shards import Prepared, ShardProgress

FIRST_TOKENS = 64


@click.group("data", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Prepare text for `knee train`, which otherwise trains on synthetic tokens."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("prepare")
@click.argument("files", nargs=-1, required=True)
@click.option(
    "--tokenizer",
    "tokenizer_file",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="The model's tokenizer.json (Hugging Face tokenizers).",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Folder of the shards.",
)
@click.option("--field", default="text", show_default=True, help="Field or column of the text (JSON lines, Parquet).")
@click.option(
    "--split",
    type=click.Choice(["file", "block"]),
    default="file",
    show_default=True,
    help="A document of plain text is a file, or a block of lines between blank lines.",
)
@click.option("--eos", metavar="TOKEN", help="Token that ends a document; by default the one tokenizers in use have.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes; as many as there are CPUs.")
@click.option(
    "--shard-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    default=1 << 26,
    show_default=True,
    help="Tokens of a shard, about.",
)
@click.option(
    "--max-bad",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    metavar="FRAC",
    help="Share of a file's lines that may be left out because they cannot be used.",
)
@click.option("--fresh", is_flag=True, help="Remove the shards that are in the folder first.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def prepare(files: tuple[str, ...], **given: Any) -> None:
    """Make tokens of text files, once, as shards that training maps into memory.

    FILES are plain text (.txt), JSON lines (.jsonl, .jsonl.gz) or Parquet (.parquet), folders of them, or globs. Every
    document gets the tokenizer's end-of-text token behind it; no other special token is added. Shards are finished one
    by one: an interrupted call goes on where it was, and one that changes nothing does nothing. The shards do not
    depend on --jobs.

    \b
        knee data prepare corpus/ --tokenizer tokenizer.json --out shards
    """
    from knee.datasets.documents import find_files
    from knee.datasets.write_shards import write_shards

    as_json, jobs = given.pop("as_json"), given.pop("jobs") or _cpus()
    max_bad = given.pop("max_bad")
    total = sum(path.stat().st_size for path in find_files(files))
    with _Progress(total) as progress:
        try:
            done = write_shards(files, jobs=jobs, max_bad_frac=max_bad, tell=progress.tell, **given)
        except KeyboardInterrupt:
            click.echo("stopped: finished shards are kept, and the same command goes on", err=True)
            raise
    _say(done, progress)
    _print(given["out"], done.index, as_json, made=done.made)


@command.command("show")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--verify", is_flag=True, help="Read all shards and hold them against their checksums.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(folder: Path, verify: bool, as_json: bool) -> None:
    """Show what lies in a folder of shards: tokens, documents, tokenizer, and how it begins.

    Refuses a folder in which a shard is missing or cut off; --verify finds changed bytes too.
    """
    from knee.datasets.shard_index import read_index

    index = read_index(folder)
    index.check_sizes(folder)
    if verify:
        index.check_content(folder)
    _print(folder, index, as_json, verified=verify)


def _print(folder: Path, index: Index, as_json: bool, **more: Any) -> None:
    tokens, text = _beginning(folder, index)
    if as_json:
        answer = {
            "folder": str(folder),
            "tokens": index.tokens,
            "documents": index.documents,
            "sha256": index.identity,
            **more,
            **asdict(index),
            "first_tokens": tokens,
            "first_text": text,
        }
        click.echo(json.dumps(answer, indent=2))
        return
    from knee.cli.render.table import print_heading, print_rows

    tokenizer, sources = index.asked.tokenizer, index.asked.sources
    size = sum(source.size_bytes for source in sources)
    per_token = index.text_bytes / index.tokens if index.tokens else 0
    rows = [
        ["tokens", f"{index.tokens:,} ({index.dtype}), {per_token:.2f} bytes of text each"],
        ["documents", f"{index.documents:,}"],
        ["shards", f"{len(index.shards):,}" + (", all as they were written" if more.get("verified") else "")],
        [
            "tokenizer",
            f"{tokenizer.path}: {tokenizer.vocab_size:,} tokens, {tokenizer.eos} ({tokenizer.eos_id}) ends a "
            f"document, sha256 {tokenizer.sha256[:12]}",
        ],
        ["files", f"{len(sources):,} ({units.show(size, 'bytes')}): {_few([source.path for source in sources])}"],
        ["left out", f"{index.left_out.records:,} bad records, {index.left_out.empty:,} empty documents"],
        ["begins", json.dumps(text, ensure_ascii=False) if text is not None else " ".join(map(str, tokens[:16]))],
    ]
    print_heading(str(folder))
    print_rows(rows)
    for place in index.left_out.first:
        click.echo(f"left out: {place}", err=True)


def _beginning(folder: Path, index: Index) -> tuple[list[int], str | None]:
    """The first tokens, and what they say where tokenizers is installed."""
    import numpy as np

    from knee.datasets.shard_index import TOKENIZER
    from knee.datasets.tokenize import load_tokenizer
    from knee.errors import KneeError

    dtype = np.dtype(index.dtype).newbyteorder("<")
    tokens = [int(token) for token in np.fromfile(folder / index.shards[0].file, dtype, count=FIRST_TOKENS)]
    try:
        return tokens, load_tokenizer(folder / TOKENIZER).decode(tokens, skip_special_tokens=False)
    except KneeError:
        return tokens, None


def _cpus() -> int:
    """That this process may use; not every system says."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _few(paths: list[str]) -> str:
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3:,} more" if len(paths) > 3 else "")


def _say(done: Prepared, progress: _Progress) -> None:
    if done.made == 0:
        click.echo("nothing has changed: the shards are there already", err=True)
        return
    kept = len(done.index.shards) - done.made
    made = f"{done.made:,} shard{'' if done.made == 1 else 's'} made"
    earlier = f", {kept:,} kept of an earlier call" if kept else ""
    click.echo(f"{made}{earlier}: {progress.rate()}", err=True)


class _Progress:
    """A live bar on a terminal, or a line on stderr per tenth."""

    def __init__(self, total_bytes: int) -> None:
        self.total, self.tenth, self.began = max(1, total_bytes), 0, time.perf_counter()
        self.tokens = 0
        """Made by this call."""
        self.bar: Any = None
        self.task: Any = None

    def __enter__(self) -> _Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress as Bar

            self.bar = Bar(console=Console(stderr=True), transient=True)
            self.bar.start()
            self.task = self.bar.add_task("making tokens", total=self.total)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def tell(self, told: ShardProgress) -> None:
        """A block is done."""
        self.tokens = told.made_tokens
        if self.bar is not None:
            self.bar.update(
                self.task, completed=told.done_bytes, description=f"{Path(told.path).name[:40]}: {told.tokens:,} tokens"
            )
        elif (tenth := told.done_bytes * 10 // self.total) > self.tenth:
            self.tenth = tenth
            click.echo(f"{tenth * 10}% of the files, {told.tokens:,} tokens", err=True)

    def rate(self) -> str:
        """In words."""
        seconds = time.perf_counter() - self.began
        return f"{self.tokens / seconds:,.0f} tokens/s, in {units.show(seconds, 's')}"
