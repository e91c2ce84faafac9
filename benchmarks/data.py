"""How fast text becomes tokens, and how fast training reads them beside a plain copy from a memory map.

python benchmarks/data.py
"""

from __future__ import annotations

import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

WORDS, DOCUMENTS, DOCUMENT_WORDS = 5_000, 8_000, 300
SEQ_LEN, ROWS, STEPS, RUNS = 4096, 8, 100, 7
VOCAB = 32_000


def make_text(folder: Path) -> tuple[Path, Path]:
    """Made-up words as often as Zipf says, and a byte-level BPE of 32,000 tokens trained on them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    rng = random.Random(0)
    words = ["".join(rng.choices("etaoinshrdlucmfwyp", k=rng.randint(2, 11))) for _ in range(WORDS)]
    weights = [1 / (rank + 1) for rank in range(WORDS)]
    texts = [" ".join(rng.choices(words, weights, k=DOCUMENT_WORDS)) for _ in range(DOCUMENTS)]
    corpus, tokenizer_file = folder / "corpus.jsonl", folder / "tokenizer.json"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator(
        texts[:2000], trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=["</s>"], show_progress=False)
    )
    tokenizer.save(str(tokenizer_file))
    return corpus, tokenizer_file


def seconds(work: Callable[[], object]) -> float:
    """The median of seven, after one to warm caches."""
    times = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def prepare(folder: Path, corpus: Path, tokenizer_file: Path) -> Path:
    """Print the speed of preparing, for one process and for all CPUs."""
    from tokenizers import Tokenizer

    from knee.training.datasets.write_shards import write_shards

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    texts = [json.loads(line)["text"] for line in corpus.read_text(encoding="utf-8").splitlines()]
    parts = [texts[n : n + 500] for n in range(0, len(texts), 500)]
    library, start = Tokenizer.from_file(str(tokenizer_file)), time.perf_counter()
    count = sum(len(one.ids) for part in parts for one in library.encode_batch_fast(part))
    rate = count / (time.perf_counter() - start)
    print(f"{'tokenizers alone, 1 thread':<28}{rate / 1e6:>10.2f} Mtokens/s")
    for jobs in dict.fromkeys((1, os.cpu_count() or 1)):
        start = time.perf_counter()
        index = write_shards([corpus], tokenizer_file, folder / f"jobs{jobs}", jobs=jobs, shard_tokens=2_000_000).index
        rate = index.tokens / (time.perf_counter() - start)
        text = index.text_bytes / index.tokens * rate / 1e6
        print(f"{f'prepare, {jobs} jobs':<28}{rate / 1e6:>10.2f} Mtokens/s {text:>8.1f} MB/s of text")
    return folder / "jobs1"


def read(folder: Path) -> None:
    """Print the speed of reading batches, and of copying as many tokens from one memory map."""
    from knee.training.datasets.token_batches import Shards, Share, Synthetic

    data = Shards(folder, Share(seq_len=SEQ_LEN, global_batch=ROWS), vocab_size=VOCAB)
    flat = folder / "flat.bin"
    flat.write_bytes(b"".join((folder / shard.file).read_bytes() for shard in data.index.shards))
    mapped = np.asarray(np.memmap(flat, "<u2", mode="r"))
    starts = [sequence * SEQ_LEN for step in range(STEPS) for sequence in data.sequences_of(step)]
    synthetic = Synthetic(data.share, vocab_size=VOCAB)
    tokens = STEPS * ROWS * (SEQ_LEN + 1)
    works: dict[str, Callable[[], object]] = {
        "copy from a memory map": lambda: [mapped[s : s + SEQ_LEN + 1].astype(np.int64) for s in starts],
        "Shards.batch": lambda: [data.batch(step) for step in range(STEPS)],
        "Synthetic.batch": lambda: [synthetic.batch(step) for step in range(STEPS)],
    }
    times = {name: seconds(work) for name, work in works.items()}
    for name, taken in times.items():
        ratio = taken / times["copy from a memory map"]
        print(
            f"{name:<28}{tokens / taken / 1e6:>10.0f} Mtokens/s {1e3 * taken / STEPS:>8.3f} ms a step of "
            f"{ROWS} x {SEQ_LEN} {ratio:>7.2f} x a copy's time"
        )


def main() -> None:
    """Print the table."""
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        print("tokenizers is not installed: nothing to prepare")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        read(prepare(folder, *make_text(folder)))


if __name__ == "__main__":
    main()
