"""``knee data``: text files into shards of tokens for ``knee train``, and what lies in a folder of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from knee.commands.main import CommandGroup
from knee.commands.options.output import print_result
from knee.commands.options.sections import PATH, Word, as_json, option, options
from knee.specs.defaults import MAX_BAD_FRAC, SHARD_TOKENS


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
    from knee.commands.data.text import PreparationProgress, print_folder, say_made

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
    from knee.commands.data.text import print_folder

    print_result(read_shards(folder, verify=verify), as_json, print_folder)
