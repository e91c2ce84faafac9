"""Text files into shards of tokens that training reads, and what lies in a folder of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from knee.base.errors import KneeError
from knee.base.processes import core_count
from knee.show.result import Result
from knee.specs.argument_types import checked_arguments
from knee.specs.defaults import MAX_BAD_FRAC, SHARD_TOKENS
from knee.training.datasets.documents import Split
from knee.training.datasets.shard_index import TOKENIZER, Index, read_index
from knee.training.datasets.tokenize import load_tokenizer
from knee.training.datasets.write_shards import ShardProgress, write_shards


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShardFolder(Result):
    """A folder of shards: its index, and how its text begins."""

    folder: Path
    index: Index
    first_tokens: tuple[int, ...]
    first_text: str | None
    """What the first tokens say; None where tokenizers is not installed."""
    made: int | None = None
    """Shards that were made by this call; None where they were only read."""
    made_s: float = 0.0
    """How long this call took to make them."""
    verified: bool = False
    """Whether the bytes of all shards were held against their checksums."""

    @property
    def made_tokens(self) -> int:
        """Tokens of the shards that were made by this call, which come after those that were there."""
        shards = self.index.shards
        return sum(shard.tokens for shard in shards[len(shards) - (self.made or 0) :])

    def _data(self) -> dict[str, Any]:
        return {
            "folder": self.folder,
            "tokens": self.index.tokens,
            "documents": self.index.documents,
            "sha256": self.index.identity,
            **({"verified": self.verified} if self.made is None else {"made": self.made}),
            **asdict(self.index),
            "first_tokens": self.first_tokens,
            "first_text": self.first_text,
        }

    def rows(self) -> list[dict[str, Any]]:
        """The shards, one a row."""
        return [asdict(shard) for shard in self.index.shards]


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

    >>> from knee.commands.data.api import prepare_shards
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
        jobs=core_count() if jobs is None else jobs,
        shard_tokens=shard_tokens,
        max_bad_frac=max_bad_frac,
        fresh=fresh,
        report_progress=progress or (lambda _: None),
    )
    return _shard_folder(Path(out), done.index, made=done.made, made_s=time.perf_counter() - began_s)


@checked_arguments
def read_shards(folder: str | Path, *, verify: bool = False) -> ShardFolder:
    """What lies in a folder of shards.

    A folder in which a shard is missing or cut off is refused; ``verify`` reads all shards and finds changed bytes too.

    >>> from knee.commands.data.api import read_shards
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
    tokens = [int(token) for token in np.fromfile(folder / index.shards[0].file, dtype, count=64)]
    try:
        text = load_tokenizer(folder / TOKENIZER).decode(tokens, skip_special_tokens=False)
    except KneeError:
        text = None
    return ShardFolder(folder=folder, index=index, first_tokens=tuple(tokens), first_text=text, **more)
