"""Folders of tokenised shards, and text with its tokenizer that shards are made of."""

from __future__ import annotations

import gzip
import hashlib
import struct
from random import Random
from typing import Any

from fuzz import mutate, values
from fuzz.case import Case, Kind
from fuzz.documents import encoded, json_text

WORDS = ("a", "b", "training", "GPUs", "<|end_of_text|>", "<unk>")
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "normalizer": None,
    "post_processor": None,
    "decoder": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "added_tokens": [
        {
            "id": 4,
            "content": "<|end_of_text|>",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
    ],
    "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(WORDS)}, "unk_token": "<unk>"},
}
TOKENS, ENDS = struct.pack("<8H", 0, 1, 4, 2, 3, 0, 1, 4), struct.pack("<2Q", 3, 8)


def index() -> dict[str, Any]:
    """Of a folder with one shard of eight tokens and two documents."""
    shard = {
        "file": "shard-00000.bin",
        "tokens": 8,
        "sha256": hashlib.sha256(TOKENS).hexdigest(),
        "documents": 2,
        "ends_file": "shard-00000.ends",
        "ends_sha256": hashlib.sha256(ENDS).hexdigest(),
    }
    tokenizer = {"path": "tokenizer.json", "sha256": "0" * 64, "vocab_size": 6, "eos": "<|end_of_text|>", "eos_id": 4}
    asked = {
        "tokenizer": tokenizer,
        "sources": [{"path": "a.txt", "size_bytes": 40, "mtime_ns": 5}],
        "field": "text",
        "split": "file",
        "shard_tokens": 8,
        "tokenizers": "0.21.0",
    }
    left = {"records": 1, "empty": 0, "first": ["a.txt, line 3: it is empty"]}
    return {"asked": asked, "dtype": "uint16", "shards": [shard], "left_out": left, "text_bytes": 40, "version": 1}


def shown(rng: Random) -> Case:
    """A folder of shards, by `knee data show` or as the data of a job."""
    tree = mutate.change_tree(rng, index()) if rng.random() < 0.9 else index()
    files = {"d/index.json": encoded(rng, json_text(tree)), "d/shard-00000.bin": TOKENS, "d/shard-00000.ends": ENDS}
    if rng.random() < 0.7:
        files["d/tokenizer.json"] = _tokenizer(rng, 0.3)
    for name in ("d/shard-00000.bin", "d/shard-00000.ends"):
        if rng.random() < 0.1:
            files[name] = mutate.change_bytes(rng, files[name])
    if rng.random() < 0.3:
        return Case(
            words=("train", "llama-tiny", "--device", "cpu", "--data", "d", "--seq-len", "4", "--job", "j.json"),
            files=files,
        )
    flags = [flag for flag in ("--json", "--verify") if rng.random() < 0.5]
    return Case(words=("data", "show", "d", *flags), files=files)


def _tokenizer(rng: Random, often: float) -> bytes:
    tree = mutate.copied(TOKENIZER)
    return encoded(rng, json_text(mutate.change_tree(rng, tree) if rng.random() < often else tree), damage=0.05)


def prepared(rng: Random) -> Case:
    """Text of every form, made into shards in this process."""
    text = " ".join(rng.choice((*WORDS, values.text(rng))) for _ in range(rng.randrange(12)))
    rows = [{"text": text}, {"text": "a b"}, {"other": 1}][: rng.randrange(4)]
    if rng.random() < 0.5:
        mutate.change_tree(rng, rows)
    name = rng.choice(("a.txt", "a.jsonl", "a.jsonl", "a.jsonl.gz", "a.parquet", "a"))
    body = text if name == "a.txt" else "\n".join(map(json_text, rows)) + "\n"
    data = encoded(rng, body)
    if name.endswith(".gz"):
        data = mutate.change_packed(rng, data) if rng.random() < 0.5 else gzip.compress(data, mtime=0)
    words = ["data", "prepare", f"t/{name}", "--tokenizer", "k.json", "--out", "o", "--jobs", "1"]
    words += ["--shard-tokens", str(rng.choice((1, 2, 1000)))] if rng.random() < 0.5 else []
    words += ["--max-bad", str(rng.choice((0, 0.5, 1)))] if rng.random() < 0.5 else []
    words += ["--split", "block"] if rng.random() < 0.3 else []
    words += ["--eos", rng.choice(("a", "x", "<|end_of_text|>"))] if rng.random() < 0.2 else []
    words += ["--json"] if rng.random() < 0.5 else []
    return Case(words=tuple(words), files={f"t/{name}": data, "k.json": _tokenizer(rng, 0.2)})


KINDS = (
    Kind(name="shards", weight=11, make=shown),
    Kind(name="text", weight=4, make=prepared),
)
