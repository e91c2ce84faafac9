"""Documents of text files: plain text, JSON lines (gzipped or not) and Parquet.

Files are read in order, in blocks of about a megabyte that are cheap to cut (``blocks``); what is in a block is found
out where it is tokenised, in another process (``documents``). Blocks depend on the files alone, so that a preparation
can go on after any of them.
"""

from __future__ import annotations

import glob
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Literal

from knee.base.errors import InputError, MissingExtra, argument
from knee.base.files import cannot_read

BLOCK_BYTES = 1 << 20
PARQUET_ROWS = 1024
Split = Literal["file", "block"]
Kind = Literal["plain", "jsonl", "parquet"]
KINDS: dict[str, Kind] = {".txt": "plain", ".jsonl": "jsonl", ".jsonl.gz": "jsonl", ".parquet": "parquet"}
ENDS = f"files end in {', '.join(KINDS)}"
DATA = "pip install 'knee[data]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBlock:
    """A piece of a file, not yet looked into."""

    path: str
    kind: Kind
    first: int
    """Number of its first line or row, from 1."""
    offset: int
    """Byte at which its text begins (plain text)."""
    content: Any
    """Whole lines as bytes, or rows of a Parquet file."""
    read_bytes: int = 0
    """Of the file, as it lies on disk, up to the end of this block."""
    ends: bool = False
    """Whether a document of plain text ends with this block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """What was in a block."""

    texts: list[str]
    records: int
    """Lines or rows looked at, bad ones included."""
    bad: list[str]
    """Place and reason of each that could not be used."""
    empty: int
    """Documents without text, which are left out."""
    goes_on: bool
    """Whether the last text is but a part of a document that the next block goes on with."""


def find_files(given: Sequence[str | Path]) -> list[Path]:
    """Files, folders (all that lies in them, by name) and globs -> files, in order; each once."""
    found: dict[Path, None] = {}
    for name in given:
        path = Path(name)
        if path.is_dir():
            shown = (p for p in path.rglob("*") if "/." not in f"/{p.relative_to(path)}")
            inside = sorted(p for p in shown if p.is_file() and kind_of(p))
            if not inside:
                raise InputError(f"{path} has no text files", hint=ENDS, code="nothing-usable", field="files")
            found |= dict.fromkeys(inside)
        elif path.is_file():
            found[path] = None
        else:
            matches = [Path(match) for match in sorted(glob.glob(str(name), recursive=True))]
            if not matches:
                text = f"{name}: no file has this name or matches this pattern"
                raise InputError(text, code="no-file", field="files")
            found |= dict.fromkeys(match for match in matches if match.is_file())
    for path in found:
        if kind_of(path) is None:
            text = f"{path} is not a text file that knee can read"
            raise InputError(text, hint=ENDS, code="not-a-text-path", field="files")
    if not found:
        hint = "name text files, folders of them or globs"
        raise InputError("no file is given", hint=hint, code="missing-argument", field="files")
    if find_spec("pyarrow") is None and (table := next((p for p in found if kind_of(p) == "parquet"), None)):
        raise MissingExtra(f"{table} is a Parquet file, which needs pyarrow", hint=DATA)
    return list(found)


def kind_of(path: Path) -> Kind | None:
    """By the end of its name; None where it is none of ours."""
    return next((kind for end, kind in KINDS.items() if path.name.lower().endswith(end)), None)


def blocks(path: Path, *, field: str = "text", split: Split = "file") -> Iterator[TextBlock]:
    """The pieces of a file, in order.

    A plain text file is one document, or one per block of lines between blank lines (``split``). A long one is cut
    after lines, and what a tokenizer would have merged across the cut is not.
    """
    kind = kind_of(path)
    try:
        if kind == "parquet":
            yield from _parquet_blocks(path, field)
            return
        with path.open("rb") as file:
            if kind == "plain":
                yield from _plain_blocks(path, file, split)
            elif path.name.lower().endswith(".gz"):
                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield from _line_blocks(path, file, unpacked)
            else:
                yield from _line_blocks(path, file, file)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        text, hint = f"{path} is corrupt: {str(error).rstrip('.')}", "download or compress the file again"
        raise InputError(text, hint=hint, code="damaged", field="files") from None
    except OSError as error:
        raise cannot_read(path, error, field="files") from None


def documents(block: TextBlock, *, field: str = "text", split: Split = "file") -> Documents:
    """What is in a block. Bad lines are returned with their place; text that is not UTF-8 is refused."""
    if block.kind == "plain":
        return _plain_documents(block, split)
    lines = block.kind == "jsonl"
    texts, bad, count, empty = [], [], 0, 0
    for number, value in enumerate(block.content.split(b"\n") if lines else block.content, start=block.first):
        if lines and not value.strip():
            continue
        text, trouble = _json_text(value, field) if lines else _usable(value, field)
        count += 1
        if trouble is not None:
            bad.append(f"{block.path}, {'line' if lines else 'row'} {number}: {trouble}")
        elif text:
            texts.append(text)
        else:
            empty += 1
    return Documents(texts=texts, records=count, bad=bad, empty=empty, goes_on=False)


# Plain text.


def _plain_blocks(path: Path, file: IO[bytes], split: Split) -> Iterator[TextBlock]:
    """Whole lines; where blank lines end documents, whole documents, however long they are."""
    first, offset = 1, 0
    lines = file.readlines(BLOCK_BYTES) or [b""]  # an empty file is an empty document
    while lines:
        while split == "block" and lines[-1].strip() and (line := file.readline()):
            lines.append(line)
        following = file.readlines(BLOCK_BYTES)
        content = b"".join(lines)
        after = offset + len(content)
        yield TextBlock(
            path=str(path),
            kind="plain",
            first=first,
            offset=offset,
            content=content,
            read_bytes=after,
            ends=not following,
        )
        first, offset = first + len(lines), after
        lines = following


def _plain_documents(block: TextBlock, split: Split) -> Documents:
    try:
        text = block.content.decode("utf-8-sig" if block.offset == 0 else "utf-8")
    except UnicodeDecodeError as error:
        place = block.offset + error.start
        line = block.first + block.content.count(b"\n", 0, error.start)
        raise InputError(
            f"{block.path}, line {line} (byte {place:,}) is not UTF-8 text",
            hint="convert the file (for example with `iconv -f latin1 -t utf-8`), or leave it out",
            code="not-utf8",
            field="files",
        ) from None
    if split == "block":
        texts = list(_between_blank_lines(text.split("\n")))
        empty = block.ends and block.offset == 0 and not texts
        return Documents(texts=texts, records=len(texts), bad=[], empty=int(empty), goes_on=False)
    # a file without a word is an empty document; white space between pieces of a long one is part of it
    empty = block.offset == 0 and block.ends and not text.strip()
    return Documents(
        texts=[] if empty else [text], records=int(block.ends), bad=[], empty=int(empty), goes_on=not block.ends
    )


def _between_blank_lines(lines: Iterable[str]) -> Iterator[str]:
    held: list[str] = []
    for line in lines:
        if line.strip():
            held.append(line)
        elif held:
            yield "\n".join(held)
            held = []
    if held:
        yield "\n".join(held)


# JSON lines.


def _line_blocks(path: Path, file: IO[bytes], text: IO[bytes] | gzip.GzipFile) -> Iterator[TextBlock]:
    first = 1
    while lines := text.readlines(BLOCK_BYTES):
        yield TextBlock(
            path=str(path), kind="jsonl", first=first, offset=0, content=b"".join(lines), read_bytes=file.tell()
        )
        first += len(lines)


def _json_text(line: bytes, field: str) -> tuple[str, str | None]:
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return "", "it is not UTF-8 text"
    except (ValueError, RecursionError):
        return "", "it is not JSON"
    if not isinstance(record, dict):
        return "", "it is not a JSON object"
    if field not in record:
        return "", f"it has no field {field!r}, but {', '.join(map(repr, list(record)[:5])) or 'none'}"
    return _usable(record[field], field)


def _usable(text: Any, field: str) -> tuple[str, str | None]:
    if not isinstance(text, str):
        return "", f"{field!r} is {'null' if text is None else type(text).__name__}, not text"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "", f"{field!r} contains half of a surrogate pair, which is not valid text"
    return text, None


# Parquet.


def _parquet_blocks(path: Path, field: str) -> Iterator[TextBlock]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path, memory_map=True) as file:
            names = file.schema_arrow.names
            if field not in names:
                raise InputError(
                    f"{path} has no column {field!r}, but {', '.join(map(repr, names[:5]))}",
                    hint=f"{argument('field')} selects the column that contains the text",
                    code="unknown-field",
                    field="field",
                )
            first = 1
            for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=[field]):
                rows = batch.column(0).to_pylist()
                share = (first - 1 + len(rows)) / file.metadata.num_rows
                yield TextBlock(
                    path=str(path),
                    kind="parquet",
                    first=first,
                    offset=0,
                    content=rows,
                    read_bytes=int(share * path.stat().st_size),
                )
                first += len(rows)
    except UnicodeDecodeError:
        raise InputError(f"{path}: column {field!r} is not UTF-8 text", code="not-utf8", field="files") from None
    except ArrowException as error:
        text = f"{path} is not a readable Parquet file: {str(error).splitlines()[0]}"
        raise InputError(text, code="not-parquet", field="files") from None
