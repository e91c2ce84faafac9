"""What lies in a folder of shards: one JSON file, written last. Without it there are no shards.

A shard is nothing but tokens, one after another, in little-endian words; documents follow each other, each with the
tokenizer's end-of-text token behind it. Beside it lies a file with the place after each document that ends in it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from knee.base.errors import InputError
from knee.base.files import cannot_read, is_deep

INDEX = "index.json"
TOKENIZER = "tokenizer.json"
VERSION = 1
WIDTH = {"uint16": 2, "uint32": 4}
END_BYTES = 8
"""A document's end is a little-endian uint64: tokens of the shard up to and with its end-of-text token."""
ANEW = "`knee data prepare ... --fresh` creates the shards again"

Dtype = Literal["uint16", "uint32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file of tokens, and the one with the ends of its documents."""

    file: str
    tokens: int
    sha256: str
    ends_file: str
    documents: int
    """Documents that end in this shard; the last may go on in the next."""
    ends_sha256: str

    def __post_init__(self) -> None:
        for name in (self.file, self.ends_file):
            if Path(name).name != name or not _is_file_name(name):
                raise ValueError(f"{name!r} is not the name of a file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """What made tokens of the text."""

    path: str
    """Where its file was; a copy lies beside the shards."""
    sha256: str
    vocab_size: int
    """The largest token and one."""
    eos: str
    eos_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSource:
    """A file of text, as it was."""

    path: str
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRequest:
    """All that the tokens depend on: the same question has the same shards."""

    tokenizer: Tokenizer
    sources: tuple[TextSource, ...]
    field: str
    split: Literal["file", "block"]
    shard_tokens: int
    tokenizers: str
    """Version of the library."""

    def differs_from(self, other: ShardRequest) -> str | None:
        """The first thing in which two questions differ, in words; None where they are one."""
        mine, others = {s.path: s for s in self.sources}, {s.path: s for s in other.sources}
        same = {
            "the tokenizer": self.tokenizer.sha256 == other.tokenizer.sha256,
            "the end-of-text token": self.tokenizer.eos_id == other.tokenizer.eos_id,
            "the list of files": list(mine) == list(others),
            "--field": self.field == other.field,
            "--split": self.split == other.split,
            "--shard-tokens": self.shard_tokens == other.shard_tokens,
            "the version of tokenizers": self.tokenizers == other.tokenizers,
        }
        changed = next((f"the file {path}" for path, one in mine.items() if others.get(path, one) != one), None)
        return next((what for what, is_same in same.items() if not is_same), changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedFile:
    """What of the text is not in the shards."""

    records: int = 0
    """Lines or rows that could not be used."""
    empty: int = 0
    """Documents without text."""
    first: tuple[str, ...] = ()
    """The first bad ones: place and reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Everything that lies in a folder of shards."""

    asked: ShardRequest
    dtype: Dtype
    shards: tuple[Shard, ...]
    left_out: SkippedFile
    text_bytes: int
    """Bytes of UTF-8 text that the tokens stand for."""
    version: int = VERSION

    @property
    def tokens(self) -> int:
        """Tokens of all shards."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def documents(self) -> int:
        """Documents that end in any shard."""
        return sum(shard.documents for shard in self.shards)

    @property
    def identity(self) -> str:
        """One word for the content of all shards, in their order."""
        return hashlib.sha256("".join(shard.sha256 for shard in self.shards).encode()).hexdigest()

    def as_text(self) -> str:
        """Return the index as the text of its file."""
        return json.dumps(asdict(self), indent=1) + "\n"

    def check_sizes(self, folder: Path) -> None:
        """Refuse shards that are missing or not of their length: quick, and enough against what was cut off."""
        for shard in self.shards:
            for name, size in (
                (shard.file, shard.tokens * WIDTH[self.dtype]),
                (shard.ends_file, shard.documents * END_BYTES),
            ):
                check_size(folder / name, size)

    def check_content(self, folder: Path) -> None:
        """Refuse shards whose bytes are not those that were written; all of them are read."""
        self.check_sizes(folder)
        for shard in self.shards:
            for name, digest in ((shard.file, shard.sha256), (shard.ends_file, shard.ends_sha256)):
                if sha256_of(folder / name) != digest:
                    text = f"{folder / name} is corrupt: its checksum has changed since it was written"
                    raise InputError(text, hint=ANEW, code="damaged", field="folder")


def read_index(folder: Path) -> Index:
    """What lies in a folder, or one sentence about what is wrong with it."""
    path = folder / INDEX
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_float=_finite, parse_constant=_finite)
        if is_deep(data):
            raise RecursionError
    except FileNotFoundError:
        raise InputError(
            f"{folder} has no shards: {INDEX} is missing",
            hint="`knee data prepare` creates them; if it was interrupted, run it again first",
            code="no-file",
            field="folder",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise cannot_read(path, error, field="folder") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not JSON", hint=ANEW, code="not-json", field="folder") from None
    if isinstance(data, dict) and data.get("version") != VERSION and isinstance(data.get("version"), int):
        text = f"{path} has version {data['version']}, but this knee reads version {VERSION}"
        raise InputError(text, hint=ANEW, code="other-version", field="folder")
    try:
        found: Index = from_json(Index, data, "the index")
        if not found.shards:
            raise ValueError("it lists no shards")
    except (TypeError, ValueError) as error:
        text = f"{path} is not a valid index of shards: {str(error).splitlines()[0]}"
        raise InputError(text, hint=ANEW, code="other-document", field="folder") from None
    return found


def from_json(kind: Any, value: Any, name: str) -> Any:
    """A value of a type, from JSON.

    Raise TypeError or ValueError where it is none: the file may have been edited, or be another program's.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        types = get_type_hints(kind)
        if not isinstance(value, dict) or types.keys() != value.keys():
            raise ValueError(f"{name} should have the fields {', '.join(types)}")
        return kind(**{field: from_json(types[field], one, field) for field, one in value.items()})
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(from_json(get_args(kind)[0], one, name) for one in value)
    if kind is int:  # a count, or a time, which may lie before 1970
        good = type(value) is int and abs(value) < 2**63 and (value >= 0 or name == "mtime_ns")
    elif kind is str:
        good = isinstance(value, str) and (value.isascii() or not name.endswith("sha256"))
    else:
        good = get_origin(kind) is Literal and value in get_args(kind)
    if not good:
        raise ValueError(f"{name} is {value!r:.80}")
    return value


def check_size(path: Path, size: int) -> None:
    """Refuse a file that is missing or not as long as it was written."""
    try:
        found = path.stat().st_size
    except OSError as error:
        raise cannot_read(path, error, hint=ANEW, field="folder") from None
    if found != size:
        what, code = ("cut off", "cut-off") if found < size else ("too long", "damaged")
        text = f"{path} is {what}: it has {found:,} bytes, but {size:,} bytes were written"
        raise InputError(text, hint=ANEW, code=code, field="folder")


def sha256_of(path: Path) -> str:
    """Checksum of a file's content."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise cannot_read(path, error) from None


def _is_file_name(name: str) -> bool:
    """Whether a system can have a file of that name."""
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        return False


def _finite(text: str) -> float:
    """JSON has no number without an end, and Python reads 1e999 as one."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value
