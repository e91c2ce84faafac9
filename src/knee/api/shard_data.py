"""Text files into shards of tokens that training reads, and what lies in a folder of them.

from knee.api.shard_data import prepare_shards, read_shards
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from knee.datasets.documents import Split
from knee.datasets.shard_index import TOKENIZER, Index, read_index
from knee.datasets.tokenize import load_tokenizer
from knee.datasets.write_shards import ShardProgress, write_shards
from knee.errors import KneeError
from knee.inputs.argument_types import checked_arguments
from knee.results.shard_folder import ShardFolder
from knee.specs.defaults import MAX_BAD_FRAC, SHARD_TOKENS

FIRST_TOKENS = 64


@checked_arguments
def prepare_shards(
    files: str | Path | Iterable[str | Path],
    *,
    tokenizer: str | Path,
    out: str | Path,
    field: str = "text",
    split: Split = "file",
    eos: str | None = None,
    jobs: int | None = None,
    shard_tokens: int = SHARD_TOKENS,
    max_bad_frac: float = MAX_BAD_FRAC,
    fresh: bool = False,
    progress: Callable[[ShardProgress], None] | None = None,
) -> ShardFolder:
    """Make tokens of text files, once, as shards that training maps into memory.

    ``files`` are plain text (.txt), JSON lines (.jsonl, .jsonl.gz) or Parquet (.parquet), folders of them, or globs;
    ``field`` is the field or column of the text. A document of plain text is a file, or with ``split="block"`` a block
    of lines between blank lines. ``tokenizer`` is a model's tokenizer.json, and ``eos`` the token that ends a document.
    ``max_bad_frac`` is the share of a file's lines that may be left out because they cannot be used. ``jobs`` processes
    work, as many as there are CPUs if left out. Shards of an earlier, interrupted call are kept unless ``fresh``.

    ``progress`` is called after every block of text. It needs tokenizers: ``pip install 'knee[data]'``.

    >>> from knee.api.shard_data import prepare_shards
    >>> made = prepare_shards("corpus", tokenizer="tokenizer.json", out="shards")  # doctest: +SKIP
    >>> made.index.tokens  # doctest: +SKIP
    104857600
    """
    began_s = time.perf_counter()
    done = write_shards(
        [files] if isinstance(files, (str, Path)) else list(files),
        Path(tokenizer),
        Path(out),
        field=field,
        split=split,
        eos=eos,
        jobs=_cpus() if jobs is None else jobs,
        shard_tokens=shard_tokens,
        max_bad_frac=max_bad_frac,
        fresh=fresh,
        report_progress=progress or _silent,
    )
    return _shard_folder(Path(out), done.index, made=done.made, made_s=time.perf_counter() - began_s)


@checked_arguments
def read_shards(folder: str | Path, *, verify: bool = False) -> ShardFolder:
    """What lies in a folder of shards.

    A folder in which a shard is missing or cut off is refused; ``verify`` reads all shards and finds changed bytes too.

    >>> from knee.api.shard_data import read_shards
    >>> read_shards("shards").index.documents  # doctest: +SKIP
    81234
    """
    folder = Path(folder)
    index = read_index(folder)
    index.check_sizes(folder)
    if verify:
        index.check_content(folder)
    return _shard_folder(folder, index, verified=verify)


def _shard_folder(folder: Path, index: Index, **more: Any) -> ShardFolder:
    """With the first tokens, and what they say where tokenizers is installed."""
    dtype = np.dtype(index.dtype).newbyteorder("<")
    tokens = [int(token) for token in np.fromfile(folder / index.shards[0].file, dtype, count=FIRST_TOKENS)]
    try:
        text = load_tokenizer(folder / TOKENIZER).decode(tokens, skip_special_tokens=False)
    except KneeError:
        text = None
    return ShardFolder(folder=folder, index=index, first_tokens=tuple(tokens), first_text=text, **more)


def _cpus() -> int:
    """That this process may use; not every system says."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _silent(_: ShardProgress) -> None:
    """Progress that nobody asked for."""
