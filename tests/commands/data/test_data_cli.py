"""``knee data``: from text files to a folder that training reads, and what it says when it cannot."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from knee.commands.data.api import prepare_shards, read_shards
from knee.commands.main import main
from knee.training.datasets.token_batches import Shards, Share
from refusals import ended, numbers, refused

needs_tokenizers = pytest.mark.skipif(find_spec("tokenizers") is None, reason="tokenizers is not installed")
TEXTS = ["The first document says hello.", "Ein zweites: schöne Grüße, 世界.", "A third."] * 10


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"text": text, "body": text.upper()}) for text in TEXTS]
    Path("corpus.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def tokenizer() -> str:
    """A small byte-level BPE."""
    library = pytest.importorskip("tokenizers")
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = library.Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=["</s>"],
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    made.save("tokenizer.json")
    return "tokenizer.json"


def ask(*words: str) -> Result:
    return CliRunner().invoke(main, ["data", *words])


PREPARE = ("data", "prepare", "corpus.jsonl", "--tokenizer", "tokenizer.json", "--out", "out", "--jobs", "1")


def prepare(*words: str) -> Result:
    return ask(*PREPARE[1:], *words)


def test_prepare_show_and_train_on_it(tokenizer: str) -> None:
    made = prepare()
    assert made.exit_code == 0, made.output
    shown = ask("show", "out", "--verify")
    assert shown.exit_code == 0, shown.output
    for words in ("30", "(uint16)", "</s> (0)", "hello.</s>Ein zweites: schöne Grüße, 世界.</s>", "corpus.jsonl"):
        assert words in shown.stdout, words
    assert Shards(Path("out"), Share(seq_len=16, global_batch=2), vocab_size=300).batch(0).shape == (2, 17)
    assert json.loads(prepare("--json").stdout)["made"] == 0
    assert Path(tokenizer).read_bytes() == Path("out/tokenizer.json").read_bytes()


@pytest.mark.usefixtures("tokenizer")
def test_json_has_everything() -> None:
    made, shown = json.loads(prepare("--json").stdout), json.loads(ask("show", "out", "--json").stdout)
    assert made["made"] == 1
    for name in ("tokens", "documents", "sha256", "asked", "shards", "left_out", "first_tokens", "first_text"):
        assert made[name] == shown[name]
    assert shown["documents"] == 30


@pytest.mark.usefixtures("tokenizer")
def test_a_script_gets_what_json_has() -> None:
    seen: list[tuple[int, int]] = []
    made = prepare_shards(
        "corpus.jsonl",
        tokenizer="tokenizer.json",
        out="out",
        jobs=1,
        progress=lambda now: seen.append((now.done_bytes, now.total_bytes)),
    )
    assert seen[-1] == (Path("corpus.jsonl").stat().st_size,) * 2
    assert (made.made, made.made_tokens) == (1, made.index.tokens)
    again = prepare_shards(["corpus.jsonl"], tokenizer="tokenizer.json", out="out")
    assert (again.made, again.made_tokens) == (0, 0)
    assert json.loads(json.dumps(again.to_dict())) == json.loads(prepare("--json").stdout)
    shown = read_shards("out", verify=True)
    assert json.loads(json.dumps(shown.to_dict())) == json.loads(ask("show", "out", "--verify", "--json").stdout)
    assert [row["documents"] for row in shown.rows()] == [30]


@pytest.mark.usefixtures("tokenizer")
def test_another_field_needs_another_folder() -> None:
    prepare()
    assert "--fresh" in str(refused(*PREPARE, "--field", "body").hint)
    assert prepare("--field", "body", "--fresh").exit_code == 0
    assert "THE FIRST DOCUMENT" in ask("show", "out").stdout


@pytest.mark.usefixtures("tokenizer")
def test_bad_lines_are_named() -> None:
    with Path("corpus.jsonl").open("a", encoding="utf-8") as file:
        file.write("oops\n")
    error = refused(*PREPARE)
    assert numbers(error.message)[:2] == [1, 31]
    assert "--max-bad" in str(error.hint)
    allowed = prepare("--max-bad", "0.1", "--json")
    assert allowed.exit_code == 0, allowed.output
    assert json.loads(allowed.stdout)["documents"] == 30


@pytest.mark.usefixtures("tokenizer")
def test_what_is_wrong_is_said_in_words() -> None:
    prepare()
    Path("out/shard-00000.bin").write_bytes(b"\0\0")
    for words in (("show", "out"), ("prepare", "corpus.jsonl", "--tokenizer", "tokenizer.json", "--out", "out")):
        error = refused("data", *words)
        assert "out/shard-00000.bin" in error.message
        assert "--fresh" in str(error.hint)
    for words, named in (
        (("show", "nowhere"), "nowhere"),
        (("prepare", "none.txt", "--tokenizer", "tokenizer.json", "--out", "o"), "none.txt"),
        (("prepare", "corpus.jsonl", "--tokenizer", "corpus.jsonl", "--out", "o"), "corpus.jsonl"),
        (("prepare", "corpus.jsonl", "--out", "o"), "--tokenizer"),
        (("prepare", "corpus.jsonl", "--tokenizer", "tokenizer.json", "--out", "corpus.jsonl"), "corpus.jsonl"),
    ):
        assert named in refused("data", *words).message


@pytest.mark.usefixtures("tokenizer")
def test_without_tokenizers_show_has_numbers_and_prepare_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    shown = ask("show", "out")
    assert shown.exit_code == 0
    assert "hello" not in shown.stdout
    _, error = ended("data", "prepare", "corpus.jsonl", "--tokenizer", "tokenizer.json", "--out", "other")
    assert (error.code, error.hint) == ("missing-extra", "pip install 'knee[data]'")


@needs_tokenizers
def test_help_is_shown_without_a_subcommand() -> None:
    assert "prepare" in ask().stdout
