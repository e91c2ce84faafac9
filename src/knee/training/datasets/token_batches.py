"""What a training step reads: rows of tokens that depend on the seed, the step and the row, and on nothing else.

A step's global batch is the same rows however many data-parallel ranks share it, and a run that goes on at step n reads
what it would have read had it never stopped. Needs NumPy; the ``Prefetcher`` needs torch too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from knee.base.errors import InputError, KneeError, out_of_range
from knee.base.files import cannot_read
from knee.training.datasets.permutation import key, permute
from knee.training.datasets.shard_index import ANEW, Index, check_size, read_index
from knee.training.datasets.synthetic import best_loss, markov_tokens

Rows = NDArray[np.int64]
SHUFFLED_AT_ONCE = 1024
"""Places of the shuffle that are looked up together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Which rows of a step's global batch a rank reads. Ranks of one dp_rank (tp, pp, cp) read the same."""

    seq_len: int
    global_batch: int
    """Sequences of a step, over all ranks and microbatches."""
    seed: int = 0
    dp_rank: int = 0
    dp_size: int = 1

    def __post_init__(self) -> None:
        if self.seq_len < 1 or self.global_batch < 1:
            field = "seq_len" if self.seq_len < 1 else "global_batch"
            text = f"a batch of {self.global_batch} sequences of {self.seq_len} tokens is empty"
            raise InputError(text, code="out-of-range", field=field)
        if not 0 <= self.dp_rank < self.dp_size:
            text = f"dp_rank is {self.dp_rank}; it should be from 0 to dp_size - 1 = {self.dp_size - 1}"
            raise InputError(text, code="out-of-range", field="dp_rank")
        if self.global_batch % self.dp_size:
            text = f"global_batch {self.global_batch} is not a multiple of dp_size {self.dp_size}"
            raise InputError(text, code="does-not-divide", field="global_batch")

    @property
    def rows(self) -> NDArray[np.uint64]:
        """This rank's rows of the global batch; those of ranks 0, 1, 2 ... follow each other."""
        count = self.global_batch // self.dp_size
        return np.arange(self.dp_rank * count, (self.dp_rank + 1) * count, dtype=np.uint64)


class Batches(Protocol):
    """Where a step's tokens come from."""

    def batch(self, step: int) -> Rows:
        """This rank's rows of a step, ``seq_len + 1`` tokens each: inputs are ``[:, :-1]``, targets ``[:, 1:]``."""

    def describe(self) -> dict[str, Any]:
        """What was read, for the run's record."""


def open_data(data: Mapping[str, Any], share: Share, *, vocab_size: int) -> Batches:
    """The source that a job's ``data`` names: ``{"kind": "synthetic"}`` or ``{"kind": "shards", "path": DIR}``.

    Nothing is synthetic.
    """
    match data or {"kind": "synthetic"}:
        case {"kind": "shards", "path": str(path)}:
            return Shards(Path(path), share, vocab_size=vocab_size)
        case {"kind": "synthetic"}:
            return Synthetic(share, vocab_size=vocab_size)
    hint = 'it should be {"kind": "synthetic"}, or "shards" with a "path"'
    raise InputError(f"data is {dict(data)!r}", hint=hint, code="unknown-choice", field="data")


class Synthetic:
    """Tokens of a chain that a model can learn, for runs that measure: the time of a step does not depend on them."""

    def __init__(self, share: Share, *, vocab_size: int) -> None:
        self.share, self.vocab_size = share, vocab_size

    def batch(self, step: int) -> Rows:
        _check_step(step)
        keys = np.array([key(self.share.seed, step, int(row)) for row in self.share.rows], np.uint64)
        return markov_tokens(keys, self.share.seq_len + 1, self.vocab_size)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "synthetic",
            "seed": self.share.seed,
            "vocab_size": self.vocab_size,
            "best_loss": best_loss(self.vocab_size),
        }


class Shards:
    """Sequences of the shards in a folder, shuffled; every epoch another way.

    All shards are one row of tokens; sequence i has the tokens from ``i * seq_len`` to ``(i + 1) * seq_len``, both
    included, so that each is predicted once. What is left at the end and fills no sequence is not read.
    """

    def __init__(self, folder: Path, share: Share, *, vocab_size: int) -> None:
        """Refuse a folder that is not whole, or not for this model.

        The first rank looks at the length of every shard; thousands of ranks that all did would stall a shared file
        system, so that the others look at those they open. ``verify`` reads everything.
        """
        self.folder, self.share = folder, share
        self.index: Index = read_index(folder)
        if share.dp_rank == 0:
            self.index.check_sizes(folder)
        used = self.index.asked.tokenizer.vocab_size
        if used > vocab_size:
            raise InputError(
                f"{folder} uses a vocabulary of {used:,} tokens, but the model has {vocab_size:,}",
                hint="prepare the text with the model's own tokenizer, or use a model with a larger vocabulary",
                code="out-of-range",
                field="vocab_size",
            )
        self.sequences = max(0, self.index.tokens - 1) // share.seq_len
        if not self.sequences:
            raise InputError(
                f"{folder} has {self.index.tokens:,} tokens, but one sequence needs {share.seq_len + 1:,}",
                hint="prepare more text, or use a smaller seq_len",
                code="out-of-range",
                field="seq_len",
            )
        self._starts = np.cumsum([0, *(shard.tokens for shard in self.index.shards)])
        self._open: dict[int, NDArray[Any]] = {}
        self._shuffled: tuple[int, NDArray[np.uint64]] = -1, np.empty((0, 0), np.uint64)

    def batch(self, step: int) -> Rows:
        _check_step(step)
        length = self.share.seq_len + 1
        rows = np.empty((self.share.global_batch // self.share.dp_size, length), np.int64)
        for row, sequence in zip(rows, self.sequences_of(step), strict=True):
            self._read(sequence * self.share.seq_len, row)
        return rows

    def sequences_of(self, step: int) -> list[int]:
        """Which sequences a step reads on this rank."""
        at_once = max(1, SHUFFLED_AT_ONCE // len(self.share.rows))
        number, within = divmod(step, at_once)
        if self._shuffled[0] != number:  # a shuffle of a few places costs as much as one of a thousand
            self._shuffled = number, self._shuffle(range(number * at_once, (number + 1) * at_once))
        found: list[int] = self._shuffled[1][within].tolist()
        return found

    def _shuffle(self, steps: range) -> NDArray[np.uint64]:
        """The sequences of each step, a row for each."""
        before = np.array([step * self.share.global_batch for step in steps], np.uint64)
        epochs, places = np.divmod(before[:, None] + self.share.rows, np.uint64(self.sequences))
        for epoch in np.unique(epochs):
            places[epochs == epoch] = permute(places[epochs == epoch], self.sequences, self.share.seed, int(epoch))
        return places

    def verify(self) -> None:
        """Read everything and hold it against the checksums."""
        self.index.check_content(self.folder)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "shards",
            "path": str(self.folder),
            "seed": self.share.seed,
            "tokens": self.index.tokens,
            "documents": self.index.documents,
            "sequences": self.sequences,
            "sha256": self.index.identity,
            "vocab_size": self.index.asked.tokenizer.vocab_size,
            "tokenizer_sha256": self.index.asked.tokenizer.sha256,
        }

    def _read(self, start: int, row: Rows) -> None:
        """Fill a row with the tokens from ``start`` on, across shards where need be."""
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        done = 0
        while done < len(row):
            offset = start + done - int(self._starts[number])
            piece = self._shard(number)[offset : offset + len(row) - done]
            row[done : done + len(piece)] = piece  # NumPy lets other threads run while it copies
            self._check_tokens(number, piece)
            done, number = done + len(piece), number + 1

    def _check_tokens(self, number: int, piece: NDArray[Any]) -> None:
        """A token beyond the vocabulary would end a GPU's program without a word about why."""
        if piece.size and int(piece.max()) >= self.index.asked.tokenizer.vocab_size:
            raise InputError(
                f"{self.folder / self.index.shards[number].file} is corrupt: token {int(piece.max()):,} "
                f"is outside its vocabulary of {self.index.asked.tokenizer.vocab_size:,}",
                hint=ANEW,
                code="damaged",
                field="folder",
            )

    def _shard(self, number: int) -> NDArray[Any]:
        if number not in self._open:
            shard = self.index.shards[number]
            dtype = np.dtype(self.index.dtype).newbyteorder("<")
            if shard.tokens == 0:  # nothing to map
                self._open[number] = np.empty(0, dtype)
                return self._open[number]
            check_size(self.folder / shard.file, shard.tokens * dtype.itemsize)
            try:
                # as a plain array: slices of a memmap are slow to make
                mapped = np.memmap(self.folder / shard.file, dtype, mode="r", shape=(shard.tokens,))
                self._open[number] = np.asarray(mapped)
            except OSError as error:
                raise cannot_read(self.folder / shard.file, error, hint=ANEW, field="folder") from None
            except ValueError as error:  # it was cut off since its size was looked at
                text = f"{self.folder / shard.file} cannot be read: {error}"
                raise InputError(text, hint=ANEW, code="cut-off", field="folder") from None
        return self._open[number]


class Prefetcher:
    """Reads steps ahead in a thread, as tensors; says how long the step waited for them.

    with Prefetcher(source, start=step, stop=steps, pin=True) as batches:
        tokens = batches.next().to(device, non_blocking=True)
    """

    def __init__(
        self, source: Batches, *, start: int = 0, stop: int | None = None, ahead: int = 2, pin: bool = False
    ) -> None:
        """From step ``start`` up to ``stop``, at most ``ahead`` steps early; ``pin`` for copies that need not wait."""
        if ahead < 1:
            raise out_of_range("ahead", ahead, "a prefetcher reads at least one step early")
        import torch

        self.waited_s = 0.0
        """Seconds that ``next`` has waited so far. A step's share is the difference to the step before."""
        self.step = start
        """The step that ``next`` returns next."""
        self._source, self._pin, self._closed = source, pin, False
        # the current device is a thread's own: without it, the thread would pin through GPU 0
        set_device = partial(torch.cuda.set_device, torch.cuda.current_device()) if pin else None
        self._thread = ThreadPoolExecutor(1, "knee-prefetch", initializer=set_device)
        self._steps: Iterator[int] = count(start) if stop is None else iter(range(start, stop))
        self._ahead = deque(self._thread.submit(self._read, step) for step in islice(self._steps, ahead))

    def next(self) -> Any:
        """The next step's tokens (``torch.Tensor``, int64); what went wrong in the thread is raised here."""
        if self._closed or not self._ahead:
            raise KneeError(f"step {self.step} is not read: the prefetcher is {'closed' if self._closed else 'done'}")
        began = time.perf_counter()
        tokens = self._ahead[0].result()
        self.waited_s += time.perf_counter() - began
        self._ahead.popleft()
        self._ahead.extend(self._thread.submit(self._read, step) for step in islice(self._steps, 1))
        self.step += 1
        return tokens

    def _read(self, step: int) -> Any:
        import torch

        rows = torch.from_numpy(self._source.batch(step))
        return rows.pin_memory() if self._pin else rows

    def close(self) -> None:
        """Stop reading, and wait until the thread has."""
        self._closed = True
        self._thread.shutdown(cancel_futures=True)

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_step(step: int) -> None:
    if step < 0:
        raise out_of_range("step", step, "steps count from 0")
