"""Each thing that the fuzzer has found, as small as it gets: none may come back."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from fuzz.case import Case
from fuzz.documents import json_text, toml_text
from fuzz.kinds import readings, records, shards, specs, studies, sweeps
from fuzz.oracle import judge
from fuzz.run import run_case
from fuzz.values import Raw

LONG = Raw("9" * 5000)
DEEP = Raw("[" * 30_000 + "]" * 30_000)
ENDLESS = Raw("1e999")
ASKED = ("--cluster", "dgx-h100", *specs.ASKED, "--json")
MPT = next(config for config in specs.CONFIGS if "expansion_ratio" in config)
DRY = ("sweep", "g.toml", "--out", "o", "--dry-run")
GRID = toml_text(studies.ONE)


def with_(tree: Any, path: str, value: Any) -> Any:
    """A copy with one value changed, by keys and numbers with slashes between."""
    whole = deepcopy(tree)
    *tables, last = path.split("/")
    node = whole
    for key in tables:
        node = node[int(key)] if isinstance(node, list) else node[key]
    node[int(last) if isinstance(node, list) else last] = value
    return whole


def record(path: str, value: Any) -> str:
    return json_text(with_(records.simulated()[0], path, value))


def lines(probe: str, path: str, value: Any) -> str:
    return "\n".join(map(json_text, with_(list(readings.lines(probe)), path, value)))


def without(probe: str, name: str, **of: str) -> str:
    """Readings without one value of those that have these."""
    found = list(readings.lines(probe))
    changed = [
        {k: v for k, v in one.items() if k != name or any(one.get(key) != of[key] for key in of)} for one in found
    ]
    assert changed != found
    return "\n".join(map(json_text, changed))


def shown(path: str, value: Any) -> dict[str, str | bytes]:
    index = json_text(with_(shards.index(), path, value))
    return {"d/index.json": index, "d/shard-00000.bin": shards.TOKENS, "d/shard-00000.ends": shards.ENDS}


def swept(sweep: Any = None, status: Any = None) -> dict[str, str]:
    whole, one, _ = sweeps.state()
    run = f"s/runs/{whole['entries'][0]['id']}/status.json"
    return {"s/sweep.json": json_text(sweep or whole), run: json_text(status or one)}


CASES: dict[str, tuple[tuple[str, ...], Mapping[str, str | bytes], int]] = {
    "a number of 5,000 digits in TOML": (
        ("simulate", "j.toml"),
        {"j.toml": toml_text(with_(specs.JOBS[1], "gpus", LONG))},
        2,
    ),
    "a number of 5,000 digits in a config": (
        ("simulate", "c.json", *ASKED),
        {"c.json": json_text(with_(specs.CONFIGS[0], "vocab_size", LONG))},
        2,
    ),
    "a word as often as a model is wide": (
        ("simulate", "c.json", *ASKED),
        {"c.json": json_text(with_(with_(MPT, "expansion_ratio", "%s"), "d_model", 64 * 10**9))},
        2,
    ),
    "more layers than any model has": (
        ("simulate", "c.json", *ASKED),
        {"c.json": json_text(with_(specs.CONFIGS[0], "num_hidden_layers", 313_313))},
        2,
    ),
    "batches both given, one of 400 digits": (
        ("simulate", "llama-tiny", *ASKED, "--global-batch", "9" * 400),
        {},
        2,
    ),
    "a rate too small to divide by": (
        ("simulate", "llama-tiny", *ASKED, "--set", "fabric.nic_bytes_per_s=5e-324"),
        {},
        2,
    ),
    "a word times a ratio": (
        ("simulate", "c.json", *ASKED),
        {"c.json": json_text(with_(with_(MPT, "expansion_ratio", 4 * 10**9), "d_model", "64"))},
        2,
    ),
    "an index of half a letter": (("data", "show", "d"), shown("shards/0/sha256", "\ud800"), 2),
    "a sweep of more GPUs than digits": (
        ("sweep", "status", "s"),
        swept(sweep=with_(sweeps.state()[0], "entries/0/gpus", 10**400)),
        2,
    ),
    "a pattern of brackets": (
        ("trace", "t.json", "--classes", "c.toml"),
        {"t.json": "[]", "c.toml": f'[a]\npattern = "{"[" * 300}"\n'},
        2,
    ),
    "a slowdown without end": (
        ("simulate", "llama-tiny", *ASKED, "--set", "profile.compute_slowdown_frac=1e400"),
        {},
        2,
    ),
    "a config nested too deep": (
        ("simulate", "c.json", *ASKED),
        {"c.json": json_text(with_(specs.CONFIGS[0], "vocab_size", DEEP))},
        2,
    ),
    "a config's ratio without end": (
        ("simulate", "c.json", *ASKED),
        {"c.json": json_text(with_(MPT, "expansion_ratio", ENDLESS))},
        2,
    ),
    "a number of 5,000 digits among classes": (
        ("trace", "t.json", "--classes", "c.toml"),
        {"t.json": "[]", "c.toml": f"[a]\npattern = {LONG}\n"},
        2,
    ),
    "a line break in a key": (
        ("sweep", "g.toml", "--out", "o", "--dry-run"),
        {"g.toml": GRID + '"a\\nb" = 1\n'},
        2,
    ),
    "a name too long for the system": (("report", "a" * 300, "--json"), {}, 2),
    "a site's file with a name too long": (
        (*DRY, "--site", "s.toml"),
        {"g.toml": GRID, "s.toml": f'setup = "{"a" * 300}"\n'},
        2,
    ),
    "a site's interpreter with a name too long": (
        (*DRY, "--site", "s.toml"),
        {"g.toml": GRID, "s.toml": f'python = "a/{"a" * 300}"\n'},
        0,
    ),
    "a table where a study changes values by a dotted name": (
        ("study", "show", "./s.toml"),
        {"s.toml": toml_text(with_(studies.STUDY, "grid/1/set", {"fabric.nic_bytes_per_s": {"a": 1}}))},
        2,
    ),
    "a degree of 0 in a grid that is tuned": (
        DRY,
        {"g.toml": toml_text(studies.ONE | {"tune": True, "plan": {"tp": 0}})},
        0,
    ),
    "steps without end": ((*DRY, "--steps", "1" + "0" * 400), {"g.toml": GRID}, 0),
    "an index without shards": (("data", "show", "d"), shown("shards", []), 2),
    "an index that counts in words": (("data", "show", "d"), shown("left_out/records", "x"), 2),
    "an index of more text than there is": (("data", "show", "d"), shown("text_bytes", 10**400), 2),
    "an index of a name that no system has": (("data", "show", "d"), shown("shards/0/file", "\ud800"), 2),
    "an index with a number without end where any is": (
        ("data", "show", "d", "--json"),
        shown("asked/sources/0/mtime_ns", Raw("1e999")),
        2,
    ),
    "a study with a number that is none": (
        ("study", "show", "./s.toml", "--json"),
        {"s.toml": GRID + "[[value]]\nx = nan\n"},
        2,
    ),
    "a study with a text that becomes infinite": (
        ("study", "show", "./s.toml", "--json"),
        {"s.toml": GRID + '[[published]]\nseries = "s"\nmetric = "mfu_frac"\nx = 16\nvalue = "1e400"\n'},
        2,
    ),
    "tables nested too deep without a bracket": (
        ("simulate", "llama-tiny", "--cluster", "c.toml", *specs.ASKED),
        {"c.toml": f"[{'.'.join('a' * 5000)}]\n"},
        2,
    ),
    "a job with a byte order mark": (("simulate", "j.toml"), {"j.toml": "\ufeff" + toml_text(specs.JOBS[1])}, 0),
    "no trace's name": (("trace", ""), {}, 2),
    "a step too long for a trace": (
        (
            "simulate",
            "llama-tiny",
            *ASKED,
            "--set",
            "node.gpus=4",
            "--set",
            "fabric.nic_bytes_per_s=0.001",
            "--trace",
            "t.json",
        ),
        {},
        2,
    ),
    "an index of a file that no system has": (("data", "show", "d"), shown("shards/0/file", "a\0b"), 2),
    "an index with a number without end": (("data", "show", "d", "--json"), shown("asked/shard_tokens", ENDLESS), 2),
    "a tokenizer that does not know a word": (
        ("data", "prepare", "a.txt", "--tokenizer", "k.json", "--out", "o", "--jobs", "1"),
        {"a.txt": "unheard", "k.json": json_text(with_(shards.TOKENIZER, "model/unk_token", "nowhere"))},
        2,
    ),
    "a job that is written down, as JSON": (
        ("train", "llama-tiny", "--device", "cpu", "--seq-len", "32", "--job", "j.json", "--json"),
        {},
        0,
    ),
    "a record whose plan is a list": (
        ("compare", "a.json", "b.json"),
        {"a.json": record("plan", []), "b.json": record("gpus", 8)},
        0,
    ),
    "a record's speed without end": (
        ("compare", "a.json", "b.json", "--json"),
        {"a.json": record("step_s", 5e-324), "b.json": record("step_s", Raw(LONG[:400]))},
        0,
    ),
    "a record's size without end": (
        ("compare", "a.json", "b.json", "--json"),
        {"a.json": record("seq_len", ENDLESS), "b.json": record("gpus", 8)},
        0,
    ),
    "a report of a bubble without end": (("report", "a.json", "--json"), {"a.json": record("bubble_s", ENDLESS)}, 0),
    "a report of a model that is a table": (
        ("report", "a.json", "b.json", "--json"),
        {"a.json": record("model", {}), "b.json": record("gpus", 8)},
        0,
    ),
    "a report of sizes in words": (
        ("report", "a.json", "b.json", "--json"),
        {"a.json": record("seq_len", "x"), "b.json": record("seq_len", 8)},
        0,
    ),
    "a reading without end": (
        ("probe", "collectives", "--replay", "r.jsonl", "--json"),
        {"r.jsonl": lines("collectives", "1/median_s", ENDLESS)},
        2,
    ),
    "a power reading by half of a letter": (
        ("probe", "power", "--replay", "r.jsonl"),
        {"r.jsonl": lines("power", "1/by", "\ud800")},
        2,
    ),
    "a reading too small to divide by": (
        ("probe", "power", "--replay", "r.jsonl", "--json"),
        {"r.jsonl": lines("power", "1/window_s", 1e-320)},
        2,
    ),
    "a reading beside products without its spread": (
        ("probe", "collectives", "--replay", "r.jsonl", "--json"),
        {"r.jsonl": without("collectives", "spread_frac", beside="gemm")},
        2,
    ),
    "a reading that does not say what ran beside it": (
        ("probe", "collectives", "--replay", "r.jsonl", "--json"),
        {"r.jsonl": without("collectives", "beside", beside="nothing")},
        0,
    ),
    "a power reading's odd note": (
        ("probe", "power", "--replay", "r.jsonl", "--json"),
        {"r.jsonl": lines("power", "1/hot_frac", {})},
        0,
    ),
    "a sweep's cost without end": (
        ("sweep", "status", "s", "--json"),
        swept(sweep=with_(sweeps.state()[0], "entries/0/cost_usd", Raw("-1e999"))),
        2,
    ),
    "nothing to start again": (
        ("sweep", "retry", "s", "--status", "done", "--json"),
        swept(sweep=with_(sweeps.state()[0], "options/site/env", [])),
        0,
    ),
    "a sweep on hosts that names none": (
        ("sweep", "retry", "s", "--status", "oom"),
        swept(
            sweep=with_(with_(sweeps.state()[0], "options/site", {}), "launcher", "torchrun"),
            status=with_(sweeps.state()[1], "state", "oom"),
        ),
        2,
    ),
    "a sweep of a run without nodes": (
        ("sweep", "status", "s"),
        swept(sweep=with_(sweeps.state()[0], "entries/0/nodes", 0)),
        2,
    ),
    "a sweep of a run that no system has": (
        ("sweep", "cancel", "s"),
        swept(sweep=with_(sweeps.state()[0], "entries/0/id", "a\0b")),
        2,
    ),
    "half of a letter in an option": (
        ("simulate", "llama-tiny", *ASKED, "--placement", "\udcff"),
        {},
        2,
    ),
    "a sweep nested too deep": (("sweep", "status", "s"), swept(sweep=with_(sweeps.state()[0], "entries", DEEP)), 2),
    "a process without end": (
        ("sweep", "status", "s", "--json"),
        swept(status=with_(sweeps.state()[1], "pids", [[ENDLESS, 1]])),
        0,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_was_found_ends_as_it_must(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words, files, code = CASES[name]
    monkeypatch.chdir(tmp_path)
    for variable in ("HOME", "XDG_CACHE_HOME", "TMPDIR", "COLUMNS", "KNEE_TRACEBACK"):
        monkeypatch.setenv(variable, "")  # a case sets them: they are as they were afterwards
    data = {key: text if isinstance(text, bytes) else text.encode() for key, text in files.items()}
    outcome = run_case(Case(words=words, files=data), tmp_path / "case")
    assert [finding.detail for finding in judge(words, outcome)] == []
    assert outcome.code == code, outcome.err
