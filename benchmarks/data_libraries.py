"""knee's own shards beside the libraries that could take their place: Hugging Face datasets and mosaicml-streaming.

    pip install datasets mosaicml-streaming
    python benchmarks/data_libraries.py

A library that is not installed is left out. Every case runs in a process of its own. Seconds are CPU seconds, because
other work on the machine changes those least. Text, tokenizer and sequences are those of ``data.py``. Every tool reads
100 steps from the first on, and again from step 50 on; on one rank, and on two, whose batches should be those of one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from data import ROWS, SEQ_LEN, STEPS, VOCAB, make_text

RESUMED = 50
"""The step at which reading goes on."""
Rows = Iterator[np.ndarray]


def knee_prepare(folder: Path, corpus: Path, tokenizer: Path) -> int:
    """Tokens that were written."""
    from knee.training.datasets.write_shards import write_shards

    return write_shards([corpus], tokenizer, folder / "knee", shard_tokens=2_000_000).index.tokens


def knee_read(folder: Path, step: int, rank: int, ranks: int) -> Rows:
    """One rank's rows from a step on."""
    from knee.training.datasets.token_batches import Shards, Share

    share = Share(seq_len=SEQ_LEN, global_batch=ROWS, dp_rank=rank, dp_size=ranks)
    source = Shards(folder / "knee", share, vocab_size=VOCAB)
    return (source.batch(n) for n in range(step, 1 << 30))


def _sequences(corpus: Path, tokenizer: Path) -> Any:
    """The corpus as a dataset of packed sequences: a map for tokens, and one for packing."""
    import datasets
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(tokenizer))
    eos = library.token_to_id("</s>")

    def encode(texts: dict[str, list[str]]) -> dict[str, Any]:
        found = library.encode_batch_fast(texts["text"], add_special_tokens=False)
        return {"tokens": [np.array([*one.ids, eos], np.uint16) for one in found]}

    def pack(some: dict[str, list[Any]]) -> dict[str, Any]:
        tokens = np.fromiter(chain.from_iterable(some["tokens"]), np.uint16)
        count = (len(tokens) - 1) // SEQ_LEN
        return {"tokens": [tokens[n * SEQ_LEN : (n + 1) * SEQ_LEN + 1] for n in range(count)]}

    text = datasets.load_dataset("json", data_files=str(corpus), split="train", cache_dir=str(corpus.parent / "cache"))
    encoded = text.map(encode, batched=True, remove_columns=text.column_names)
    return encoded.map(pack, batched=True, batch_size=1000)


def datasets_prepare(folder: Path, corpus: Path, tokenizer: Path) -> int:
    found = _sequences(corpus, tokenizer)
    found.save_to_disk(str(folder / "datasets"), num_shards=8)
    return len(found) * SEQ_LEN


def datasets_read(folder: Path, step: int, rank: int, ranks: int) -> Rows:
    """By index, in an order of NumPy's: the library's own sampler knows neither steps nor ranks."""
    import datasets

    source = datasets.load_from_disk(str(folder / "datasets")).with_format("numpy")
    order, own = np.random.default_rng(0).permutation(len(source)), ROWS // ranks
    for n in range(step, 1 << 30):
        places = (np.arange(own) + n * ROWS + rank * own) % len(order)
        yield np.asarray(source[order[places]]["tokens"]).astype(np.int64)


def datasets_stream_read(folder: Path, step: int, rank: int, ranks: int) -> Rows:
    """As a stream, shuffled in a buffer, split among ranks by the library."""
    import datasets
    from datasets.distributed import split_dataset_by_node

    source = datasets.load_from_disk(str(folder / "datasets")).to_iterable_dataset(num_shards=8)
    source = source.shuffle(seed=0, buffer_size=256).with_format("numpy")
    own = ROWS // ranks
    for epoch in range(1 << 30):
        source.set_epoch(epoch)
        mine = split_dataset_by_node(source, rank=rank, world_size=ranks)
        whole = (one for one in mine.iter(batch_size=own) if len(one["tokens"]) == own)
        for one in islice(whole, step if epoch == 0 else 0, None):
            yield np.asarray(one["tokens"]).astype(np.int64)


def streaming_prepare(folder: Path, corpus: Path, tokenizer: Path) -> int:
    from streaming import MDSWriter
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(tokenizer))
    eos, left, written = library.token_to_id("</s>"), np.empty(0, np.uint16), 0
    lines = iter(corpus.open(encoding="utf-8"))
    with MDSWriter(out=str(folder / "streaming"), columns={"tokens": f"ndarray:uint16:{SEQ_LEN + 1}"}) as out:
        while some := [json.loads(line)["text"] for line in islice(lines, 500)]:
            found = library.encode_batch_fast(some, add_special_tokens=False)
            left = np.concatenate([left, *(np.array([*one.ids, eos], np.uint16) for one in found)])
            while len(left) > SEQ_LEN:
                out.write({"tokens": left[: SEQ_LEN + 1]})
                left, written = left[SEQ_LEN:], written + SEQ_LEN
    return written


def streaming_read(folder: Path, step: int, rank: int, ranks: int) -> Rows:
    here = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ |= {name: str(value) for name, value in here.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    import torch.distributed as dist
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    if ranks > 1:
        dist.init_process_group("gloo")
    own = ROWS // ranks
    source = StreamingDataset(
        local=str(folder / "streaming"), shuffle=True, shuffle_seed=0, batch_size=own, num_canonical_nodes=1
    )
    source.load_state_dict(
        {
            "epoch": 0,
            "sample_in_epoch": step * ROWS,
            "num_canonical_nodes": 1,
            "shuffle_seed": 0,
            "initial_physical_nodes": 1,
        }
    )
    while True:
        for one in DataLoader(source, batch_size=own, drop_last=True):
            yield one["tokens"].numpy().astype(np.int64)


TOOLS: dict[str, tuple[str, Callable[..., int] | None, Callable[..., Rows]]] = {
    "knee": ("knee.training.datasets.token_batches", knee_prepare, knee_read),
    "datasets": ("datasets", datasets_prepare, datasets_read),
    "datasets, streamed": ("datasets", None, datasets_stream_read),
    "mosaicml-streaming": ("streaming", streaming_prepare, streaming_read),
}


def run(tool: str, task: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """One case in this process: what it cost. The rows that it read are left in a file."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    module, prepare, read = TOOLS[tool]
    start = time.process_time()
    importlib.import_module(module)
    found: dict[str, Any] = {"import_s": time.process_time() - start}
    start = time.process_time()
    if task == "prepare" and prepare is not None:
        count = prepare(folder, folder / "corpus.jsonl", folder / "tokenizer.json")
        return found | {"tokens_per_s": count / (time.process_time() - start)}
    step, rank, ranks = map(int, arguments)
    source = read(folder, step, rank, ranks)
    rows = [next(source)]
    found["first_batch_s"] = time.process_time() - start
    start = time.process_time()
    rows += islice(source, STEPS - 1)
    found["tokens_per_s"] = (STEPS - 1) * rows[0].size / (time.process_time() - start)
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    np.save(_rows_file(folder, step, rank, ranks), np.array(rows[:RESUMED]))
    return found


def _rows_file(folder: Path, step: int, rank: int, ranks: int) -> Path:
    return folder / f"rows-{step}-{rank}-{ranks}.npy"


def in_process(tool: str, task: str, folder: Path, *arguments: int) -> subprocess.Popen[str]:
    """The same in a new process."""
    command = [sys.executable, __file__, tool, task, str(folder), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What it found; a case that fails ends the benchmark."""
    out, error = process.communicate()
    if process.returncode:
        raise SystemExit(error)
    found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return found


def compared(tool: str, folder: Path, step: int) -> str:
    """How the batches of two ranks differ from those of one, from a step on."""
    for process in [in_process(tool, "read", folder, step, rank, 2) for rank in range(2)]:
        result(process)
    one = np.load(_rows_file(folder, step, 0, 1))
    two = np.concatenate([np.load(_rows_file(folder, step, rank, 2)) for rank in range(2)], axis=1)
    if np.array_equal(one, two):
        return "equal"
    same_rows = all(set(map(bytes, a)) == set(map(bytes, b)) for a, b in zip(one, two, strict=True))
    return "rows in another order" if same_rows else "other rows"


def main() -> None:
    """Print a line for each tool."""
    columns = ("import", "prepare", "first batch", "read", "memory", "two ranks", "resumed by two ranks")
    print(f"{'':<20}" + "".join(f"{name:>23}" for name in columns))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_text(folder)
        for tool, (module, prepare, _) in TOOLS.items():
            if importlib.util.find_spec(module.partition(".")[0]) is None:
                print(f"{tool}: not installed")
                continue
            made = result(in_process(tool, "prepare", folder)) if prepare is not None else None
            read = result(in_process(tool, "read", folder, 0, 0, 1))
            result(in_process(tool, "read", folder, RESUMED, 0, 1))
            cells = [
                f"{read['import_s']:.2f} s",
                f"{made['tokens_per_s'] / 1e6:.2f} Mtokens/s" if made else "",
                f"{read['first_batch_s']:.2f} s",
                f"{read['tokens_per_s'] / 1e6:.0f} Mtokens/s",
                f"{read['peak_mb']:.0f} MB",
                *(compared(tool, folder, step) for step in (0, RESUMED)),
            ]
            print(f"{tool:<20}" + "".join(f"{cell:>23}" for cell in cells))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(run(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])))
    else:
        main()
