"""The answer of ``prepare_shards`` and ``read_shards``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from knee.datasets.shard_index import Index
from knee.results.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
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

    def __repr__(self) -> str:
        return f"ShardFolder({str(self.folder)!r}, tokens={self.index.tokens}, documents={self.index.documents})"

    @property
    def made_tokens(self) -> int:
        """Tokens of the shards that were made by this call, which come after those that were there."""
        shards = self.index.shards
        return sum(shard.tokens for shard in shards[len(shards) - (self.made or 0) :])

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``knee data prepare --json`` and ``knee data show --json`` print it."""
        return {
            "folder": str(self.folder),
            "tokens": self.index.tokens,
            "documents": self.index.documents,
            "sha256": self.index.identity,
            **({"verified": self.verified} if self.made is None else {"made": self.made}),
            **asdict(self.index),
            "first_tokens": list(self.first_tokens),
            "first_text": self.first_text,
        }

    def rows(self) -> list[dict[str, Any]]:
        """The shards, one a row."""
        return [asdict(shard) for shard in self.index.shards]
