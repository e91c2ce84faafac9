"""Text files into shards: tokenised once, whole or not at all, going on where an earlier call was interrupted.

Shards are finished one after another, and a journal says after each how far it went; the index is written last and
takes the journal's place. What a shard holds depends on the files, the tokenizer and the options, and not on how many
processes made it or how often it was interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from itertools import accumulate, islice, takewhile
from pathlib import Path
from typing import Any

from knee.base.errors import InputError, argument
from knee.base.files import cannot_read, cannot_write, make_folder, write_text
from knee.specs.defaults import MAX_BAD_FRAC, SHARD_TOKENS
from knee.training.datasets import shard_index
from knee.training.datasets.documents import Split, TextBlock, blocks, find_files
from knee.training.datasets.shard_index import INDEX, TOKENIZER, Index, Shard, ShardRequest, SkippedFile, TextSource
from knee.training.datasets.tokenize import FIRST_BAD, Encoded, Encoding, describe_tokenizer, encode_all

JOURNAL = "unfinished.jsonl"
LOCK = ".lock"
PART = ".part"
EARLY_RECORDS = 10_000
"""A file this far into which too much is bad is not read to its end first."""
GOES_ON = "finished shards are kept, and the same command continues from them"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardProgress:
    """How far a preparation is."""

    done_bytes: int
    """Of the files, as they lie on disk."""
    total_bytes: int
    tokens: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The index of the shards, and how many of them this call made."""

    index: Index
    made: int
    """Shards that this call made; the others were there."""


@dataclass(slots=True, kw_only=True)
class _State:
    """How far it is."""

    source: int = 0
    block: int = 0
    """The next block of that source."""
    records: int = 0
    """Of that source, so far."""
    bad: int = 0
    first_bad: tuple[str, ...] = ()
    """The first places of that source that could not be used, with the reason."""
    left_out: SkippedFile = field(default_factory=SkippedFile)
    text_bytes: int = 0

    def take(self, source: int, encoded: Encoded) -> None:
        """Count a block."""
        if source != self.source:
            self.source, self.block, self.records, self.bad, self.first_bad = source, 0, 0, 0, ()
        self.block += 1
        self.records += encoded.records
        self.bad += encoded.bad
        self.first_bad = (*self.first_bad, *encoded.first_bad)[:FIRST_BAD]
        self.text_bytes += encoded.text_bytes
        before = self.left_out
        self.left_out = SkippedFile(
            records=before.records + encoded.bad,
            empty=before.empty + encoded.empty,
            first=(before.first + tuple(encoded.first_bad))[:FIRST_BAD],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finished:
    """A line of the journal: a shard that is whole, and how far the text was read for it."""

    shard: Shard
    state: _State


def write_shards(
    given: Sequence[str | Path],
    tokenizer_file: Path,
    out: Path,
    *,
    field: str = "text",
    split: Split = "file",
    eos: str | None = None,
    jobs: int = 1,
    shard_tokens: int = SHARD_TOKENS,
    max_bad_frac: float = MAX_BAD_FRAC,
    fresh: bool = False,
    report_progress: Callable[[ShardProgress], None] = lambda _: None,
) -> Prepared:
    """Make shards of text files in a folder, or find that they are there already.

    Refuses a folder with shards of something else unless ``fresh``, and a file with a larger share of bad lines than
    ``max_bad_frac``; bad lines below it are left out, counted and the first named.
    """
    for name, value in (("shard_tokens", shard_tokens), ("jobs", jobs)):
        if value < 1:
            raise InputError(f"{argument(name)} is {value}; it must be at least 1", code="out-of-range", field=name)
    files = find_files(given)
    asked = ShardRequest(
        tokenizer=describe_tokenizer(tokenizer_file, eos),
        sources=tuple(_source(path) for path in files),
        field=field,
        split=split,
        shard_tokens=shard_tokens,
        tokenizers=metadata.version("tokenizers"),
    )
    make_folder(out)
    with _locked(out):
        if fresh:
            _remove_all(out)
        if (out / INDEX).exists():
            index = shard_index.read_index(out)
            _refuse_other(out, index.asked, asked)
            index.check_sizes(out)
            return Prepared(index=index, made=0)
        steps = _journal(out, asked)
        index = _Preparation(out, asked, steps, max_bad_frac, report_progress).run(jobs)
        return Prepared(index=index, made=len(index.shards) - len(steps))


def _source(path: Path) -> TextSource:
    try:
        status = path.stat()
    except OSError as error:
        raise cannot_read(path, error, field="files") from None
    return TextSource(path=str(path.resolve()), size_bytes=status.st_size, mtime_ns=status.st_mtime_ns)


# What is there already.


def _journal(out: Path, asked: ShardRequest) -> list[_Finished]:
    """Where an earlier call was after each of its shards.

    A last line that was cut off is dropped, and so is a shard that is not as it was written, with all after it.
    """
    path = out / JOURNAL
    if not path.exists():
        return []
    try:
        first, *lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        before = shard_index.from_json(ShardRequest, json.loads(first), "the request")
        steps = [shard_index.from_json(_Finished, json.loads(line), "a line") for line in lines]
    except OSError as error:
        raise cannot_read(path, error, field="out") from None
    except (TypeError, ValueError):
        text, hint = f"{path} is not a journal of `knee data prepare`", f"{argument('fresh')} starts again"
        raise InputError(text, hint=hint, code="other-document", field="out") from None
    _refuse_other(out, before, asked)

    def is_whole(step: _Finished) -> bool:
        shard = step.shard
        pairs = ((shard.file, shard.sha256), (shard.ends_file, shard.ends_sha256))
        return all((out / name).is_file() and shard_index.sha256_of(out / name) == digest for name, digest in pairs)

    return list(takewhile(is_whole, steps))


def _refuse_other(out: Path, before: ShardRequest, asked: ShardRequest) -> None:
    if what := asked.differs_from(before):
        raise InputError(
            f"{out} already has shards with other settings: {what} differs",
            hint=f"give another {argument('out')}, or {argument('fresh')} to create them again",
            code="already-there",
            field="out",
        )


def _remove_all(out: Path) -> None:
    """The index first: shards are gone as soon as it is."""
    names = [INDEX, JOURNAL, TOKENIZER, *(p.name for end in ("bin", "ends") for p in out.glob(f"shard-*.{end}"))]
    for name in names:
        (out / name).unlink(missing_ok=True)


NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""What file systems without locks say; there nothing keeps two preparations apart."""


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """One preparation at a time in a folder."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        yield
        return
    with (out / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text, hint = f"{out} is in use by another `knee data prepare`", f"wait, or give another {argument('out')}"
            raise InputError(text, hint=hint, code="folder-in-use", field="out") from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                text, hint = f"{out} cannot be locked: {error.strerror}", f"give another {argument('out')}"
                raise InputError(text, hint=hint, code="not-writable", field="out") from None
        yield


# What is made.


class _Preparation:
    """Goes through what is left of the text, and writes shards and the journal."""

    def __init__(
        self,
        out: Path,
        asked: ShardRequest,
        steps: Sequence[_Finished],
        max_bad_frac: float,
        report_progress: Callable[[ShardProgress], None],
    ) -> None:
        self.out, self.asked, self.max_bad_frac, self.report_progress = out, asked, max_bad_frac, report_progress
        self.encoding = Encoding(tokenizer=asked.tokenizer, field=asked.field, split=asked.split)
        self.state = steps[-1].state if steps else _State()
        self.shards = [step.shard for step in steps]
        self.number = {source.path: number for number, source in enumerate(asked.sources)}
        self.before = [0, *accumulate(source.size_bytes for source in asked.sources)]
        lines = [asdict(asked), *map(asdict, steps)]
        write_text(out / JOURNAL, "".join(json.dumps(line) + "\n" for line in lines))

    def run(self, jobs: int) -> Index:
        """To the end, and the index."""
        for part in self.out.glob(f"*{PART}"):  # of a call that was killed
            part.unlink()
        with _Writer(self.out, len(self.shards)) as writer:
            for block, encoded in encode_all(self.encoding, self._blocks(), jobs):
                number = self.number[block.path]
                if number != self.state.source:
                    self._refuse_bad()
                self.state.take(number, encoded)
                if self.state.records >= EARLY_RECORDS:
                    self._refuse_bad()
                writer.add(encoded)
                if writer.tokens >= self.asked.shard_tokens:
                    self._keep(writer.finish())
                done_bytes = self.before[number] + block.read_bytes
                tokens = sum(shard.tokens for shard in self.shards) + writer.tokens
                self.report_progress(
                    ShardProgress(done_bytes=done_bytes, total_bytes=self.before[-1], tokens=tokens, path=block.path)
                )
            self._refuse_bad()
            if writer.tokens:
                self._keep(writer.finish())
        if not self.shards:
            paths = [source.path for source in self.asked.sources]
            more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
            raise InputError(f"no text was found in {', '.join(paths[:3])}{more}", code="nothing-usable", field="files")
        return self._finish()

    def _blocks(self) -> Iterator[TextBlock]:
        """All that is left to do. Read again, but not tokenised again, is what of the current file is done."""
        begin, skip = self.state.source, self.state.block  # before the state moves on
        for number, source in enumerate(self.asked.sources[begin:], start=begin):
            path = Path(source.path)
            every = blocks(path, field=self.asked.field, split=self.asked.split)
            yield from islice(every, skip if number == begin else 0, None)
            if _source(path) != source:
                raise InputError(
                    f"{path} changed while knee read it",
                    hint=f"start again with {argument('fresh')} once the file no longer changes",
                    code="changed",
                    field="files",
                )

    def _keep(self, shard: Shard) -> None:
        """Note a shard in the journal; from then on an interruption leaves it."""
        self.shards.append(shard)
        line = json.dumps(asdict(_Finished(shard=shard, state=self.state))) + "\n"
        with _write_errors(self.out / JOURNAL), (self.out / JOURNAL).open("a", encoding="utf-8") as file:
            file.write(line)

    def _refuse_bad(self) -> None:
        """A file in which too much cannot be used was probably not meant."""
        state = self.state
        if state.bad <= self.max_bad_frac * state.records:
            return
        path = self.asked.sources[state.source].path
        raise InputError(
            f"{state.bad:,} of {state.records:,} records of {path} are invalid, which is more than "
            f"{self.max_bad_frac:.3g} of them; {'; '.join(state.first_bad[:3])}",
            hint=f"{argument('field')} selects the field that contains the text; "
            f"{argument('max_bad_frac')} sets the share of records that may be skipped",
            code="too-many-bad",
            field="max_bad_frac",
        )

    def _finish(self) -> Index:
        """Write the index, and the tokenizer beside it, so that the shards can be read back as text anywhere."""
        path = Path(self.asked.tokenizer.path)
        write_text(self.out / TOKENIZER, path.read_bytes().decode())
        if shard_index.sha256_of(self.out / TOKENIZER) != self.asked.tokenizer.sha256:
            hint = f"start again with {argument('fresh')}"
            raise InputError(f"{path} changed while knee used it", hint=hint, code="changed", field="tokenizer")
        index = Index(
            asked=self.asked,
            dtype=self.encoding.dtype,
            shards=tuple(self.shards),
            left_out=self.state.left_out,
            text_bytes=self.state.text_bytes,
        )
        write_text(self.out / INDEX, index.as_text())
        (self.out / JOURNAL).unlink()
        return index


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    """Turn what the system says of a file that cannot be written into one sentence."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error, hint=f"{GOES_ON} once the folder is writable") from None


class _Writer:
    """Writes one shard after another, each under another name until it is whole."""

    def __init__(self, out: Path, number: int) -> None:
        self.out, self.number = out, number
        self._begin()

    def _begin(self) -> None:
        self.tokens = self.documents = 0
        self.name = f"shard-{self.number:05d}"
        self.digests = {"bin": hashlib.sha256(), "ends": hashlib.sha256()}
        self.files: dict[str, Any] = {}

    def add(self, encoded: Encoded) -> None:
        """The tokens and ends of a block."""
        self._write("bin", encoded.tokens.tobytes())
        self._write("ends", (encoded.ends + self.tokens).astype("<u8").tobytes())
        self.tokens += len(encoded.tokens)
        self.documents += len(encoded.ends)

    def finish(self) -> Shard:
        """The shard under its own name, on disk."""
        with _write_errors(self.out / self.name):
            for end, file in self.files.items():
                file.flush()
                os.fsync(file.fileno())
                file.close()
                os.replace(file.name, self.out / f"{self.name}.{end}")
        shard = Shard(
            file=f"{self.name}.bin",
            tokens=self.tokens,
            sha256=self.digests["bin"].hexdigest(),
            ends_file=f"{self.name}.ends",
            documents=self.documents,
            ends_sha256=self.digests["ends"].hexdigest(),
        )
        self.number += 1
        self._begin()
        return shard

    def _write(self, end: str, data: bytes) -> None:
        with _write_errors(self.out / self.name):
            if end not in self.files:
                self.files[end] = (self.out / f"{self.name}.{end}{PART}").open("wb")
            self.files[end].write(data)
        self.digests[end].update(data)

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing half-written stays, full disk or not."""
        for file in self.files.values():
            with contextlib.suppress(OSError):
                file.close()
            with contextlib.suppress(OSError):
                os.unlink(file.name)
