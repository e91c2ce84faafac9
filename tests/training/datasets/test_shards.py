"""Text to shards to batches: deterministic, rank-independent, resumable, and never half-read."""

from __future__ import annotations

import errno
import gzip
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.base.errors import InputError, KneeError, MissingExtra, NotWritten, RunFailed
from knee.training.datasets import documents as text_module
from knee.training.datasets import token_batches as tokens_module
from knee.training.datasets import write_shards as shards_module
from knee.training.datasets.documents import blocks, documents, find_files
from knee.training.datasets.permutation import key, permute
from knee.training.datasets.shard_index import INDEX, read_index
from knee.training.datasets.synthetic import best_loss, frequencies, markov_tokens
from knee.training.datasets.token_batches import Prefetcher, Shards, Share, Synthetic, open_data
from knee.training.datasets.write_shards import JOURNAL, write_shards
from refusals import caught, kind, numbers
from waiting import LIMIT_S, until

pytestmark = pytest.mark.slow

needs_tokenizers = pytest.mark.skipif(find_spec("tokenizers") is None, reason="tokenizers is not installed")
needs_pyarrow = pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Größe, naïve café, ελληνικά, 中文 and 🙂 are text too.",
    "Training on many GPUs waits for the network.",
    "A shard is nothing but tokens, one after another.",
]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real byte-level BPE, small, that asks for truncation as files of chat models do."""
    library = pytest.importorskip("tokenizers")
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = library.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(
            vocab_size=320,
            special_tokens=["<|end_of_text|>"],
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    made.enable_truncation(max_length=8)
    made.enable_padding(length=8)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def write_corpus(path: Path) -> Path:
    """200 documents of different length, as JSON lines."""
    lines = [json.dumps({"text": f"{n}: " + " ".join(SENTENCES[n % 4 :] * (1 + n % 5)), "n": n}) for n in range(200)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus.jsonl")


def decoded(folder: Path) -> list[str]:
    """Documents of a folder of shards, read by their boundaries."""
    from knee.training.datasets.tokenize import load_tokenizer

    index, library = read_index(folder), load_tokenizer(folder / "tokenizer.json")
    texts, held = [], []
    for shard in index.shards:
        tokens = np.fromfile(folder / shard.file, np.dtype(index.dtype).newbyteorder("<"))
        begin = 0
        for end in np.fromfile(folder / shard.ends_file, "<u8").tolist():
            assert tokens[end - 1] == index.asked.tokenizer.eos_id
            held += tokens[begin : end - 1].tolist()
            texts.append(library.decode(held, skip_special_tokens=False))
            held, begin = [], end
        held += tokens[begin:].tolist()
    assert not held
    return texts


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name.startswith("shard-")}


# Text files.


def texts_of(path: Path, **options: Any) -> list[str]:
    return [text for block in blocks(path, **options) for text in documents(block, **options).texts]


def test_plain_text_is_a_document_per_file_or_per_block(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\nmore\n\n \n\ntwo ünï\n\n".encode())
    assert texts_of(path) == ["one\nmore\n\n \n\ntwo ünï\n\n"]
    assert texts_of(path, split="block") == ["one\nmore", "two ünï"]


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_blocks_lose_nothing_whatever_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(text_module, "BLOCK_BYTES", size)
    path, text = tmp_path / "a.txt", "eins\nzwei\n\ndrei ü\nvier\n\n\nfünf"
    path.write_text(text, encoding="utf-8")
    assert "".join(texts_of(path)) == text
    assert texts_of(path, split="block") == ["eins\nzwei", "drei ü\nvier", "fünf"]
    pieces = [documents(block) for block in blocks(path)]
    assert [piece.goes_on for piece in pieces] == [True] * (len(pieces) - 1) + [False]


def test_bad_lines_are_named_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'{"text": "good"}\n\nnot json\n[1]\n{"other": 1, "x": 2}\n{"text": null}\n{"text": "\xff"}\n'
        b'{"text": "\\ud83d"}\n{"text": ""}\n{"text": "last"}'
    )
    (block,) = blocks(path)
    found = documents(block)
    assert found.texts == ["good", "last"]
    assert (found.records, found.empty) == (9, 1)
    assert [place.removeprefix(f"{path}, ") for place in found.bad] == [
        "line 3: it is not JSON",
        "line 4: it is not a JSON object",
        "line 5: it has no field 'text', but 'other', 'x'",
        "line 6: 'text' is null, not text",
        "line 7: it is not UTF-8 text",
        "line 8: 'text' contains half of a surrogate pair, which is not valid text",
    ]


def test_text_that_is_not_utf8_is_one_sentence_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"fine\ncaf\xe9\n")
    error = caught(lambda: texts_of(path))
    assert kind(error) == ("not-utf8", "files")
    assert error.message.startswith(f"{path}, ")
    assert numbers(error.message.removeprefix(str(path)))[:2] == [2, 8]  # the line, and the byte


def test_gzip_reads_the_same_and_a_torn_one_is_refused(tmp_path: Path, corpus: Path) -> None:
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(corpus.read_bytes()))
    assert texts_of(packed) == texts_of(corpus)
    packed.write_bytes(packed.read_bytes()[:-40])
    assert kind(caught(lambda: texts_of(packed))) == ("damaged", "files")
    packed.write_bytes(b"plain")
    assert kind(caught(lambda: texts_of(packed))) == ("damaged", "files")


@needs_pyarrow
def test_parquet_reads_the_same(tmp_path: Path, corpus: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    path, texts = tmp_path / "c.parquet", texts_of(corpus)
    parquet.write_table(pa.table({"id": range(len(texts) + 1), "body": [*texts, None]}), path, row_group_size=64)
    assert texts_of(path, field="body") == texts
    bad = [place for block in blocks(path, field="body") for place in documents(block, field="body").bad]
    assert bad == [f"{path}, row 201: 'body' is null, not text"]
    assert kind(caught(lambda: texts_of(path))) == ("unknown-field", "field")
    path.write_bytes(b"PAR1 not really")
    assert kind(caught(lambda: texts_of(path))) == ("not-parquet", "files")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.parquet").touch()
    monkeypatch.setattr(text_module, "find_spec", lambda _: None)
    error = caught(lambda: find_files([tmp_path]))
    assert isinstance(error, MissingExtra)
    assert error.hint == "pip install 'knee[data]'"


def test_folders_globs_and_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a.jsonl", "deep/c.jsonl.gz", ".hidden/d.txt", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    names = [str(path.relative_to(tmp_path)) for path in find_files([tmp_path])]
    assert names == ["a.jsonl", "b.txt", "deep/c.jsonl.gz"]
    assert find_files([tmp_path / "b.txt", f"{tmp_path}/*.txt"]) == [tmp_path / "b.txt"]
    (tmp_path / "empty").mkdir()
    for wrong, code in (
        ("nothing.txt", "no-file"),
        ("README.md", "not-a-text-path"),
        ("deep/../.hidden/*.jsonl", "no-file"),
        ("empty", "nothing-usable"),
    ):
        assert kind(caught(lambda wrong=wrong: find_files([tmp_path / wrong]))) == (code, "files")
    assert kind(caught(lambda: find_files([]))) == ("missing-argument", "files")


# Preparing.


@needs_tokenizers
def test_documents_come_back_as_they_were(tmp_path: Path, corpus: Path, tokenizer: Path) -> None:
    made = write_shards([corpus], tokenizer, tmp_path / "out", shard_tokens=5000)
    index = made.index
    assert made.made == len(index.shards) >= 1
    assert decoded(tmp_path / "out") == texts_of(corpus)
    assert (index.documents, index.dtype) == (200, "uint16")
    assert index.text_bytes == sum(len(text.encode()) for text in texts_of(corpus))
    assert index.asked.tokenizer.eos == "<|end_of_text|>"
    assert read_index(tmp_path / "out") == index
    assert not (tmp_path / "out" / JOURNAL).exists()


@needs_tokenizers
@pytest.mark.parametrize("kind", ["plain", "block"])
def test_plain_text_comes_back_as_it_was(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(text_module, "BLOCK_BYTES", 100)
    path, text = tmp_path / "a.txt", "\n".join(SENTENCES * 10)
    path.write_text(text, encoding="utf-8")
    (tmp_path / "b.txt").write_text("short", encoding="utf-8")
    (tmp_path / "empty.txt").touch()
    made = write_shards(
        [tmp_path / n for n in ("a.txt", "b.txt", "empty.txt")],
        tokenizer,
        tmp_path / "out",
        split="block" if kind == "block" else "file",
        shard_tokens=100,
    )
    assert len(made.index.shards) > (1 if kind == "plain" else 0)
    assert decoded(tmp_path / "out") == [text, "short"]
    assert made.index.left_out.empty == 1


@needs_tokenizers
def test_shards_do_not_depend_on_jobs(
    tmp_path: Path, corpus: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "BLOCK_BYTES", 4096)
    one = write_shards([corpus], tokenizer, tmp_path / "one", shard_tokens=3000)
    two = write_shards([corpus], tokenizer, tmp_path / "two", shard_tokens=3000, jobs=2)
    assert one == two
    assert len(one.index.shards) > 3
    assert content(tmp_path / "one") == content(tmp_path / "two")


@needs_tokenizers
def test_what_is_there_is_not_made_again(tmp_path: Path, corpus: Path, tokenizer: Path) -> None:
    out = tmp_path / "out"
    first = write_shards([corpus], tokenizer, out)
    before = (out / INDEX).stat().st_mtime_ns
    again = write_shards([corpus], tokenizer, out)
    assert (again.made, again.index, (out / INDEX).stat().st_mtime_ns) == (0, first.index, before)
    other = caught(lambda: write_shards([corpus], tokenizer, out, split="block"))
    assert kind(other) == ("already-there", "out")
    corpus.write_text(corpus.read_text(encoding="utf-8") + '{"text": "new"}\n', encoding="utf-8")
    assert kind(caught(lambda: write_shards([corpus], tokenizer, out))) == ("already-there", "out")
    assert write_shards([corpus], tokenizer, out, fresh=True).index.documents == 201


class Interrupted(Exception):
    pass


@needs_tokenizers
@pytest.mark.parametrize("damage", ["none", "torn journal", "damaged shard", "missing shard"])
def test_an_interrupted_preparation_goes_on(
    tmp_path: Path, corpus: Path, tokenizer: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "BLOCK_BYTES", 2048)
    corpus.write_text(corpus.read_text(encoding="utf-8") + "bad\n", encoding="utf-8")
    second = tmp_path / "second.jsonl"
    second.write_bytes(corpus.read_bytes())
    whole = write_shards([corpus, second], tokenizer, tmp_path / "whole", shard_tokens=2500)
    out, seen = tmp_path / "out", []

    def stop(told: Any) -> None:
        seen.append(told)
        if told.tokens > whole.index.tokens * 0.7:
            raise Interrupted

    with pytest.raises(Interrupted):
        write_shards([corpus, second], tokenizer, out, shard_tokens=2500, report_progress=stop)
    assert not list(out.glob("*.part"))
    assert kind(caught(lambda: read_index(out))) == ("no-file", "folder")
    finished = len(list(out.glob("shard-*.bin")))
    match damage:
        case "torn journal":
            (out / JOURNAL).write_bytes((out / JOURNAL).read_bytes()[:-30])
            finished -= 1
        case "damaged shard":
            data = bytearray((out / "shard-00002.bin").read_bytes())
            data[100] ^= 1
            (out / "shard-00002.bin").write_bytes(data)
            finished = 2
        case "missing shard":
            (out / "shard-00000.ends").unlink()
            finished = 0
    again = write_shards([corpus, second], tokenizer, out, shard_tokens=2500)
    assert again.index == whole.index
    assert again.made == len(whole.index.shards) - finished
    assert content(out) == content(tmp_path / "whole")
    assert again.index.left_out.records == 2


HELD = """
import sys
from pathlib import Path
from knee.training.datasets import documents as text
from knee.training.datasets.write_shards import write_shards

def report(progress):
    if progress.tokens > 5000:  # two shards are finished, and the third is begun
        print("in the middle", flush=True)
        sys.stdin.read()

if __name__ == "__main__":
    text.BLOCK_BYTES = 1024
    write_shards([sys.argv[1]], Path(sys.argv[2]), Path(sys.argv[3]), jobs=2, shard_tokens=2000, report_progress=report)
"""


@needs_tokenizers
def test_a_killed_preparation_leaves_nothing_half_read_and_no_processes(
    tmp_path: Path, corpus: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "BLOCK_BYTES", 1024)
    script, out = tmp_path / "go.py", tmp_path / "out"
    script.write_text(HELD, encoding="utf-8")
    command = [sys.executable, script, corpus, tokenizer, out]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in the middle\n"
        children = [int(pid) for pid in _children(process.pid)]
        assert len(children) >= 2
        process.kill()
    assert not (out / INDEX).exists()
    again = write_shards([corpus], tokenizer, out, shard_tokens=2000)
    assert again.made == len(again.index.shards) - 2
    assert again.index.documents == 200
    again.index.check_content(out)
    assert not list(out.glob("*.part"))
    until(lambda: not any(map(_runs, children)))


@needs_tokenizers
def test_a_killed_process_of_the_pool_is_said_and_what_is_finished_stays(
    tmp_path: Path, corpus: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "BLOCK_BYTES", 1024)
    killed: list[int] = []
    others = {child.pid for child in multiprocessing.active_children()}  # of other tests' pools

    def kill_one(_: Any) -> None:
        if not killed and (tmp_path / "out" / "shard-00000.bin").exists():
            killed.extend(child.pid or 0 for child in multiprocessing.active_children() if child.pid not in others)
            os.kill(killed[0], signal.SIGKILL)

    with pytest.raises(RunFailed) as killed_one:
        write_shards([corpus], tokenizer, tmp_path / "out", shard_tokens=500, jobs=2, report_progress=kill_one)
    assert killed_one.value.code == "run-failed"
    again = write_shards([corpus], tokenizer, tmp_path / "out", shard_tokens=500)
    assert 0 < again.made < len(again.index.shards)
    assert again.index.documents == 200


def _children(pid: int) -> list[str]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@needs_tokenizers
def test_two_preparations_do_not_mix(tmp_path: Path, corpus: Path, tokenizer: Path) -> None:
    def at_the_same_time(_: Any) -> None:
        assert kind(caught(lambda: write_shards([corpus], tokenizer, tmp_path / "out"))) == ("folder-in-use", "out")

    write_shards([corpus], tokenizer, tmp_path / "out", report_progress=at_the_same_time)


@needs_tokenizers
def test_a_full_disk_is_one_sentence_and_what_is_finished_stays(
    tmp_path: Path, corpus: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "BLOCK_BYTES", 2048)
    out, real, calls = tmp_path / "out", os.fsync, []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 5:  # two files a shard: in the third
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(shards_module.os, "fsync", full)
    error = caught(lambda: write_shards([corpus], tokenizer, out, shard_tokens=2500))
    assert isinstance(error, NotWritten)
    assert "shard-00002" in error.message
    assert not list(out.glob("*.part"))
    again = write_shards([corpus], tokenizer, out, shard_tokens=2500)
    assert again.made == len(again.index.shards) - 2


@needs_tokenizers
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_really_is_full(
    tmp_path: Path, corpus: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open
    monkeypatch.setattr(
        Path,
        "open",
        lambda self, *a, **k: (
            open("/dev/full", *a, **k)  # noqa: SIM115
            if self.name.endswith(".bin.part")
            else real(self, *a, **k)
        ),
    )
    monkeypatch.setattr(shards_module.os, "unlink", lambda _: None)
    with pytest.raises(NotWritten, match="shard-00000"):
        write_shards([corpus], tokenizer, tmp_path / "out")
    assert not (tmp_path / "out" / INDEX).exists()


@needs_tokenizers
def test_too_many_bad_lines_are_refused_and_few_are_counted(tmp_path: Path, corpus: Path, tokenizer: Path) -> None:
    corpus.write_text(corpus.read_text(encoding="utf-8") + "not json\n" * 3, encoding="utf-8")
    error = caught(lambda: write_shards([corpus], tokenizer, tmp_path / "out"))
    assert kind(error) == ("too-many-bad", "max_bad_frac")
    assert numbers(error.message)[:2] == [3, 203]
    made = write_shards([corpus], tokenizer, tmp_path / "out", max_bad_frac=0.02)
    assert made.index.left_out.records == 3
    assert made.index.left_out.first[0].endswith("corpus.jsonl, line 201: it is not JSON")


@needs_tokenizers
def test_a_large_good_file_does_not_hide_a_small_bad_one(tmp_path: Path, tokenizer: Path) -> None:
    good, bad = tmp_path / "0.jsonl", tmp_path / "1.jsonl"
    good.write_text('{"text": "a"}\n' * 10_000, encoding="utf-8")
    bad.write_text('{"text": "a"}\n' * 3 + '{"body": "a"}\n' * 200, encoding="utf-8")
    for files in ([good, bad], [bad, good]):
        out = tmp_path / f"out-{files[0].stem}"
        error = caught(lambda files=files, out=out: write_shards(files, tokenizer, out, max_bad_frac=0.5))
        assert kind(error) == ("too-many-bad", "max_bad_frac")
        assert numbers(error.message)[:2] == [200, 203]


@needs_tokenizers
def test_tokenizers_that_cannot_be_used(tmp_path: Path, corpus: Path, tokenizer: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{}", encoding="utf-8")
    for path, code in ((broken, "not-a-tokenizer"), (tmp_path / "none.json", "no-file"), (tmp_path, "not-a-file")):
        error = caught(lambda path=path: write_shards([corpus], path, tmp_path / "out"))
        assert kind(error) == (code, "tokenizer")
    error = caught(lambda: write_shards([corpus], tokenizer, tmp_path / "out", eos="</s>"))
    assert kind(error) == ("unknown-choice", "eos")
    assert "<|end_of_text|>" in str(error.hint)
    assert not (tmp_path / "out").exists()


@needs_tokenizers
def test_files_without_text_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    for name in ("a.txt", "b.jsonl"):
        (tmp_path / name).touch()
    files = [tmp_path / "a.txt", tmp_path / "b.jsonl"]
    assert kind(caught(lambda: write_shards(files, tokenizer, tmp_path / "out"))) == ("nothing-usable", "files")


def test_without_tokenizers_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").touch()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    error = caught(lambda: write_shards([tmp_path / "a.txt"], tmp_path / "tokenizer.json", tmp_path / "out"))
    assert isinstance(error, MissingExtra)
    assert error.hint == "pip install 'knee[data]'"


# Reading.


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    """Several shards, so that sequences reach from one into the next."""
    base = tmp_path_factory.mktemp("prepared")
    with mock.patch.object(text_module, "BLOCK_BYTES", 2048):
        made = write_shards([write_corpus(base / "corpus.jsonl")], tokenizer, base / "folder", shard_tokens=2500)
    assert len(made.index.shards) > 4
    return base / "folder"


@pytest.fixture
def folder(tmp_path: Path, prepared: Path) -> Path:
    """A copy, as some tests damage it."""
    return shutil.copytree(prepared, tmp_path / "folder")


KNOWN_ORDER = [9, 0, 7, 1, 6, 5, 3, 8, 4, 2]
KNOWN_TOKENS = [[11026, 5855, 8738, 11653, 27945]]
SHARE = Share(seq_len=64, global_batch=8, seed=3)


def shards(folder: Path, share: Share = SHARE, vocab_size: int = 320) -> Shards:
    return Shards(folder, share, vocab_size=vocab_size)


def test_an_epoch_reads_every_sequence_once(folder: Path) -> None:
    data = shards(folder, replace(SHARE, global_batch=1))
    stream = np.concatenate([np.fromfile(folder / s.file, "<u2") for s in data.index.shards]).astype(np.int64)
    assert data.sequences == (len(stream) - 1) // 64 > 100
    expected = {tuple(stream[64 * n : 64 * n + 65]) for n in range(data.sequences)}
    epochs = [
        [tuple(data.batch(step)[0]) for step in range(n * data.sequences, (n + 1) * data.sequences)] for n in (0, 1)
    ]
    for epoch in epochs:
        assert set(epoch) == expected
    assert epochs[0] != epochs[1]
    assert epochs[0] != sorted(epochs[0])


@pytest.mark.parametrize("kind", ["shards", "synthetic"])
def test_the_global_batch_does_not_depend_on_the_ranks(folder: Path, kind: str) -> None:
    source = {"kind": kind} | ({"path": str(folder)} if kind == "shards" else {})
    for step in (0, 1, 17, 1000):
        shares = [[replace(SHARE, dp_rank=rank, dp_size=size) for rank in range(size)] for size in (1, 2, 4, 8)]
        batches = [
            np.concatenate([open_data(source, share, vocab_size=320).batch(step) for share in ranks])
            for ranks in shares
        ]
        assert batches[0].shape == (8, 65)
        assert batches[0].dtype == np.int64
        for batch in batches[1:]:
            np.testing.assert_array_equal(batch, batches[0])


@pytest.mark.parametrize("kind", ["shards", "synthetic"])
def test_a_run_that_goes_on_reads_what_it_would_have_read(folder: Path, kind: str) -> None:
    source = {"kind": kind} | ({"path": str(folder)} if kind == "shards" else {})
    first = open_data(source, SHARE, vocab_size=320)
    run = [first.batch(step) for step in range(60)]
    second = open_data(source, SHARE, vocab_size=320)
    np.testing.assert_array_equal(second.batch(59), run[59])
    assert len({batch.tobytes() for batch in run}) == 60
    other = open_data(source, replace(SHARE, seed=4), vocab_size=320)
    assert not np.array_equal(other.batch(0), run[0])


def test_kngiven_values_never_change() -> None:
    """A run must be repeatable with later versions too."""
    assert permute(np.arange(10, dtype=np.uint64), 10, 7, 0).tolist() == KNOWN_ORDER
    assert Synthetic(Share(seq_len=4, global_batch=1, seed=1), vocab_size=32_000).batch(5).tolist() == KNOWN_TOKENS


@given(n=st.integers(1, 5000), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 1000))
def test_a_shuffle_is_a_permutation(n: int, seed: int, epoch: int) -> None:
    found = permute(np.arange(n, dtype=np.uint64), n, seed, epoch)
    assert sorted(found.tolist()) == list(range(n))


def test_a_shuffle_of_huge_data_takes_no_memory() -> None:
    n = 10**15
    found = permute(np.arange(n - 1000, n, dtype=np.uint64), n, 1, 2)
    assert len(set(found.tolist())) == 1000
    assert found.max() < n
    # uniform: the mean of 1000 places lies within 4 standard errors of the middle
    assert abs(found.mean() / n - 0.5) < 4 / np.sqrt(12 * 1000)
    near = permute(np.arange(10_000, dtype=np.uint64), 10_000, 1, 2).astype(float)
    assert abs(np.corrcoef(near[:-1], near[1:])[0, 1]) < 0.05


@pytest.mark.parametrize("vocab_size", [1, 2, 5, 320, 32_000])
def test_synthetic_tokens_have_the_entropy_that_is_stated(vocab_size: int) -> None:
    """Priced as by a model that has learned the chain: frequencies by rank, and the next rank half of the time."""
    rows = markov_tokens(np.array([key(1, 2, row) for row in range(64)], np.uint64), 2049, vocab_size)
    by_rank = permute(np.arange(vocab_size, dtype=np.uint64), vocab_size, 0, 0).astype(np.int64)
    rank, drawn = np.argsort(by_rank)[rows], frequencies(vocab_size)
    assert drawn.sum() == pytest.approx(1)
    assert (np.diff(drawn) <= 0).all()
    follows = rank[:, 1:] == (rank[:, :-1] + 1) % vocab_size
    losses = -np.log(drawn[rank[:, 1:]] / 2 + follows / 2).mean(axis=1)
    assert losses.mean() == pytest.approx(best_loss(vocab_size), abs=4 * losses.std() / 8 + 1e-9)
    if vocab_size > 5:
        unigram = -(drawn * np.log(drawn)).sum()
        assert best_loss(vocab_size) < 0.65 * unigram < 0.9 * np.log(vocab_size)


def test_a_vocabulary_larger_than_the_models_is_refused(folder: Path) -> None:
    used = read_index(folder).asked.tokenizer.vocab_size
    shards(folder, vocab_size=used)
    error = caught(lambda: shards(folder, vocab_size=used - 1))
    assert kind(error) == ("out-of-range", "vocab_size")
    assert numbers(error.message)[-2:] == [used, used - 1]


def test_shards_that_are_not_whole_are_refused_by_name(folder: Path) -> None:
    path = folder / "shard-00001.bin"
    data = path.read_bytes()
    path.write_bytes(data[:-2])

    def refused(code: str, ask: Callable[[], object], *sizes: int) -> None:
        error = caught(ask)
        assert kind(error) == (code, "folder")
        assert str(path) in error.message
        assert numbers(error.message.replace(str(path), "")) == [*sizes]

    refused("cut-off", lambda: shards(folder), len(data) - 2, len(data))
    other = shards(folder, replace(SHARE, dp_rank=1, dp_size=2))
    refused("cut-off", lambda: [other.batch(step) for step in range(30)], len(data) - 2, len(data))
    path.write_bytes(data + b"\0\0")
    refused("damaged", lambda: shards(folder), len(data) + 2, len(data))
    path.unlink()
    refused("no-file", lambda: shards(folder))


def test_changed_bytes_are_found_by_the_checksums(folder: Path) -> None:
    path = folder / "shard-00002.bin"
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    opened = shards(folder)
    error = caught(opened.verify)
    assert kind(error) == ("damaged", "folder")
    assert str(path) in error.message


def test_a_token_beyond_the_vocabulary_is_an_error_and_not_a_crash(folder: Path) -> None:
    for shard in read_index(folder).shards:
        (folder / shard.file).write_bytes(b"\xff" * shard.tokens * 2)
    error = caught(lambda: shards(folder).batch(0))
    assert kind(error) == ("damaged", "folder")
    assert numbers(error.message)[-2:] == [65_535, 320]


@pytest.mark.parametrize(("text", "code"), [
    ("not json", "not-json"), ("[]", "other-document"), ("{}", "other-document"),
    ('{"version": 99}', "other-version"), ("[" * 100_000, "not-json"),
])  # fmt: skip
def test_an_index_that_is_none(folder: Path, text: str, code: str) -> None:
    (folder / INDEX).write_text(text, encoding="utf-8")
    assert kind(caught(lambda: shards(folder))) == (code, "folder")


@pytest.mark.parametrize(("field", "value"), [("tokens", -1), ("tokens", "x"), ("file", "../a"), ("sha256", None)])
def test_an_index_that_was_edited(folder: Path, field: str, value: object) -> None:
    data = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    data["shards"][0][field] = value
    (folder / INDEX).write_text(json.dumps(data), encoding="utf-8")
    assert kind(caught(lambda: shards(folder))) == ("other-document", "folder")


def test_what_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    short = caught(lambda: shards(folder, replace(SHARE, seq_len=1_000_000)))
    assert numbers(short.message)[-1] == 1_000_001
    for error, code, field in (
        (caught(lambda: shards(tmp_path)), "no-file", "folder"),
        (short, "out-of-range", "seq_len"),
        (caught(lambda: replace(SHARE, seq_len=0)), "out-of-range", "seq_len"),
        (caught(lambda: replace(SHARE, global_batch=0)), "out-of-range", "global_batch"),
        (caught(lambda: replace(SHARE, dp_size=3)), "does-not-divide", "global_batch"),
        (caught(lambda: replace(SHARE, dp_rank=2, dp_size=2)), "out-of-range", "dp_rank"),
        (caught(lambda: open_data({"kind": "shard"}, SHARE, vocab_size=1)), "unknown-choice", "data"),
        (caught(lambda: shards(folder).batch(-1)), "out-of-range", "step"),
    ):
        assert kind(error) == (code, field)
    assert isinstance(open_data({}, SHARE, vocab_size=10), Synthetic)


def test_what_was_read_is_described(folder: Path) -> None:
    described = shards(folder).describe()
    assert described["kind"] == "shards"
    assert described["sha256"] == read_index(folder).identity
    json.dumps(described)
    assert Synthetic(SHARE, vocab_size=5).describe() == {
        "kind": "synthetic", "seed": 3, "vocab_size": 5, "best_loss": pytest.approx(1.15153, abs=1e-5),
    }  # fmt: skip


def test_training_reads_without_the_extras(folder: Path) -> None:
    """Workers have torch and NumPy, and nothing that prepared the text."""
    code = (
        "import sys\nfor name in ('tokenizers', 'pyarrow', 'click', 'pydantic', 'rich'): sys.modules[name] = None\n"
        "from pathlib import Path\nfrom knee.training.datasets.token_batches import *\n"
        f"print(Shards(Path({str(folder)!r}), Share(seq_len=8, global_batch=2), vocab_size=320).batch(0).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "(2, 9)\n", done.stderr


# Reading ahead.


class Source:
    """Batches that count, take a turn at each, or fail."""

    def __init__(self, fails_at: int | None = None, turn: Callable[[], object] = lambda: None) -> None:
        self.fails_at, self.turn, self.read = fails_at, turn, 0

    def batch(self, step: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        self.turn()
        if step == self.fails_at:
            raise InputError("the shard is gone", code="no-file")
        self.read += 1
        return np.full((2, 3), step)

    def describe(self) -> dict[str, Any]:
        return {}


@needs_torch
def test_steps_come_in_order_and_from_where_it_is_told() -> None:
    with Prefetcher(Source(), start=5, stop=9, ahead=3) as batches:
        got = [batches.next() for _ in range(4)]
        assert [int(tokens[0, 0]) for tokens in got] == [5, 6, 7, 8]
        assert got[0].shape == (2, 3)
        assert batches.step == 9
        with pytest.raises(KneeError, match=r"step 9"):
            batches.next()


class Clock:
    """Moves by 50 ms whenever a batch is read, which it lets happen while a step waits, if it is told to."""

    def __init__(self, *, while_waiting: bool) -> None:
        self.now_s, self.while_waiting, self.looks, self.may_read = 0.0, while_waiting, 0, threading.Semaphore(0)

    def perf_counter(self) -> float:
        self.looks += 1
        if self.while_waiting and self.looks % 2:  # the first of a step's two: it waits from here on
            now_s = self.now_s
            self.may_read.release()
            return now_s
        return self.now_s

    def turn(self) -> None:
        assert self.may_read.acquire(timeout=LIMIT_S)
        self.now_s += 0.05


@needs_torch
def test_time_spent_waiting_is_told_and_is_none_where_reading_is_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(while_waiting=True)
    monkeypatch.setattr(tokens_module, "time", clock)
    with Prefetcher(Source(turn=clock.turn), stop=4) as batches:
        waits = [(batches.next(), batches.waited_s)[1] for _ in range(4)]
    assert waits == pytest.approx([0.05, 0.1, 0.15, 0.2])
    clock = Clock(while_waiting=False)
    monkeypatch.setattr(tokens_module, "time", clock)
    with Prefetcher(source := Source(turn=clock.turn), stop=4) as batches:
        for done in range(1, 5):
            clock.may_read.release()
            until(lambda done=done: source.read == done)  # during the step before
            batches.next()
        assert batches.waited_s == 0.0


@needs_torch
def test_it_reads_no_further_ahead_than_told() -> None:
    with Prefetcher(source := Source(), ahead=3):
        until(lambda: source.read == 3)
    assert source.read == 3


@needs_torch
def test_what_goes_wrong_in_the_thread_is_raised_at_its_step() -> None:
    with Prefetcher(Source(fails_at=2), ahead=4) as batches:
        assert [int(batches.next()[0, 0]) for _ in range(2)] == [0, 1]
        for _ in range(2):
            assert caught(batches.next).code == "no-file"


@needs_torch
def test_it_stops_wherever_it_is() -> None:
    for ahead, taken in ((1, 0), (2, 1), (4, 3)):
        batches = Prefetcher(Source(), ahead=ahead)
        for _ in range(taken):
            batches.next()
        batches.close()
        batches.close()
        assert not any(thread.is_alive() for thread in batches._thread._threads)
        with pytest.raises(KneeError, match="closed"):
            batches.next()
    failed = Prefetcher(Source(fails_at=0))
    failed.close()
