"""Text to tokens with a Hugging Face ``tokenizer.json``, in several processes, in the order of the text."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knee.base.errors import InputError, MissingExtra, RunFailed, argument
from knee.base.files import check_readable
from knee.base.processes import process_pool
from knee.training.datasets.documents import DATA, Split, TextBlock, documents
from knee.training.datasets.shard_index import Dtype, Tokenizer, sha256_of

EOS_NAMES = ("<|end_of_text|>", "</s>", "<|endoftext|>", "<eos>", "<|eos|>", "<EOS>", "[EOS]", "<|im_end|>")
"""How tokenizers in use call the token that ends a text; the file itself does not say which it is."""
AHEAD = 4
"""Blocks per process that wait to be tokenised: enough to keep all busy, and a few megabytes."""
FIRST_BAD = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """All that a process needs to make tokens of a block."""

    tokenizer: Tokenizer
    field: str
    split: Split

    @property
    def dtype(self) -> Dtype:
        """The smallest that holds every token."""
        return "uint16" if self.tokenizer.vocab_size <= 2**16 else "uint32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """The tokens of a block."""

    tokens: NDArray[Any]
    ends: NDArray[np.uint64]
    """Tokens of the block up to and with each document's end-of-text token."""
    text_bytes: int
    records: int
    bad: int
    first_bad: list[str]
    empty: int


def load_tokenizer(path: Path) -> Any:
    """The library's tokenizer, with nothing cut off and nothing filled up: files may ask for either."""
    try:
        from tokenizers import Tokenizer as Library
    except ImportError:
        raise MissingExtra("tokenizing text needs the package tokenizers", hint=DATA) from None
    hint = "download the model's tokenizer.json, for example from Hugging Face"
    check_readable(path, "tokenizer", hint=hint)
    try:
        found = Library.from_file(str(path))
    except Exception as error:  # the library raises nothing finer
        raise InputError(
            f"{path} is not a tokenizer: {str(error).splitlines()[0]}",
            hint="a tokenizer.json of Hugging Face's tokenizers library is needed",
            code="not-a-tokenizer",
            field="tokenizer",
        ) from None
    found.no_truncation()
    found.no_padding()
    return found


def describe_tokenizer(path: Path, eos: str | None = None) -> Tokenizer:
    """What the index says of a tokenizer; ``eos`` where its end-of-text token has a name of its own."""
    library = load_tokenizer(path)
    vocab: dict[str, int] = library.get_vocab(with_added_tokens=True)
    if not vocab:
        raise InputError(f"{path} has an empty vocabulary", code="not-a-tokenizer", field="tokenizer")
    name = eos or next((known for known in EOS_NAMES if known in vocab), None)
    if name is None or name not in vocab:
        special = [t.content for t in library.get_added_tokens_decoder().values() if t.special]
        missing = f"has no token {name!r}" if name else "does not state which token ends a text"
        raise InputError(
            f"{path} {missing}",
            hint=f"{argument('eos')} selects it; the special tokens are {', '.join(special[:12]) or 'none'}",
            code="unknown-choice" if name else "missing-argument",
            field="eos",
        )
    return Tokenizer(
        path=str(path), sha256=sha256_of(path), vocab_size=max(vocab.values()) + 1, eos=name, eos_id=vocab[name]
    )


class Encoder:
    """Makes tokens of blocks in one process."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.library = load_tokenizer(Path(encoding.tokenizer.path))

    def __call__(self, block: TextBlock) -> Encoded:
        """Documents with an end-of-text token behind each; no other special token is added."""
        found = documents(block, field=self.encoding.field, split=self.encoding.split)
        eos, dtype = [self.encoding.tokenizer.eos_id], np.dtype(self.encoding.dtype).newbyteorder("<")
        pieces, ends, count = [np.empty(0, dtype)], [], 0
        for number, text in enumerate(self._encoded(found.texts)):
            whole = not (found.goes_on and number == len(found.texts) - 1)
            pieces.append(np.array(text.ids + eos if whole else text.ids, dtype))
            count += len(pieces[-1])
            if whole:
                ends.append(count)
        return Encoded(
            tokens=np.concatenate(pieces),
            ends=np.array(ends, "<u8"),
            text_bytes=sum(len(text.encode()) for text in found.texts),
            records=found.records,
            bad=len(found.bad),
            first_bad=found.bad[:FIRST_BAD],
            empty=found.empty,
        )

    def _encoded(self, texts: Sequence[str]) -> list[Any]:
        try:
            encoded: list[Any] = self.library.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:  # what the library throws has no type of its own
            raise InputError(
                f"{self.encoding.tokenizer.path} cannot tokenize the text: {error}",
                hint="check that this is the model's own tokenizer.json",
                code="not-a-tokenizer",
                field="tokenizer",
            ) from None
        return encoded


def encode_all(encoding: Encoding, blocks: Iterable[TextBlock], jobs: int) -> Iterator[tuple[TextBlock, Encoded]]:
    """Blocks with their tokens, in order. One job is this process; its threads are the library's own."""
    if jobs == 1:
        encoder = Encoder(encoding)
        for block in blocks:
            yield block, encoder(block)
        return
    waiting: deque[tuple[TextBlock, Future[Encoded]]] = deque()
    try:
        with process_pool(jobs, _load_encoder, encoding) as pool:
            for block in blocks:
                waiting.append((block, pool.submit(_encode, block)))
                if len(waiting) >= AHEAD * jobs:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
    except BrokenProcessPool:
        raise RunFailed(
            "a tokenizing process was killed, perhaps because it ran out of memory",
            hint=f"the same command continues from the finished shards; use fewer {argument('jobs')} to save memory",
        ) from None


_encoder: Encoder


def _load_encoder(encoding: Encoding) -> None:
    global _encoder  # a pool's process has no other place for it
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _encoder = Encoder(encoding)


def _encode(block: TextBlock) -> Encoded:
    return _encoder(block)
