"""Argument vectors of every command, made from click's own declarations.

A vector is one that works, with options of the command's own added, given other values, or damaged as words. What would
take minutes by design is kept from it: all studies at once, and a status that is watched until the runs have ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from random import Random

import click

from fuzz import mutate, values
from fuzz.case import Case, Kind
from fuzz.documents import csv_text, json_text, toml_text
from fuzz.kinds import readings, records, shards, specs, studies, sweeps, tables, traces

TINY = ("llama-tiny", "--cluster", "dgx-h100", "--gpus", "8", "--local-batch", "1", "--seq-len", "64")
BASES: dict[str, tuple[tuple[str, ...], ...]] = {
    "simulate": (TINY, ("j.toml",), ("m.toml", *TINY[1:])),
    "plan": (
        (
            "llama-tiny",
            "--cluster",
            "dgx-h100",
            "--gpus",
            "1",
            "--global-batch",
            "1",
            "--seq-len",
            "64",
            "--sharding",
            "ddp",
        ),
    ),
    "scale": (("llama-tiny", "--cluster", "dgx-h100", "--gpus", "8,16", "--local-batch", "1", "--seq-len", "64"),),
    "budget": (("--cluster", "dgx-h100", "--gpus", "8", "--days", "1", "--params", "100M"),),
    "train": (
        ("llama-tiny", "--device", "cpu", "--job", "job.json", "--seq-len", "32"),
        ("j.toml", "--job", "job.json"),
    ),
    "sweep run": (("g.toml", "--out", "o", "--dry-run"),),
    "sweep status": (("s",),),
    "sweep cancel": (("s",),),
    "sweep retry": (("s", "--status", "oom"),),
    "tune run": (("llama-tiny", "--cluster", "cpu", "--gpus", "2", "--out", "o", "--max-gpu-hours", "1e-9"),),
    "tune status": (("s",),),
    "weights": (("r", "--out", "w"),),
    "dryrun": (("llama-tiny", "--gpus", "2", "--local-batch", "1", "--seq-len", "32"),),
    "compare": (("a.json", "b.json"),),
    "trace": (("t.json", "--no-cache"), ("diff", "t.json", "t.json")),
    "report": (("a.json", "b.json", "--json"),),
    "study list": ((),),
    "study run": (("s.toml", "--no-page", "--out", "o"),),
    "study show": (("fig4",), ("s.toml",)),
    "validate": (("r.csv",), ("a.json",)),
    "calibrate": (("a.json",),),
    "probe kernels": (("--replay", "kernels.jsonl"),),
    "probe collectives": (("--replay", "collectives.jsonl"),),
    "probe power": (("--replay", "power.jsonl"),),
    "probe steps": (("--replay", "steps.jsonl"),),
    "data prepare": (("a.txt", "--tokenizer", "k.json", "--out", "o", "--jobs", "1"),),
    "data show": (("d",),),
    "catalog": (("llama2-7b",), ("dgx-h100",), ("eager",)),
    "serve": (("--port", "0", "--records", "nothing"),),
    "doctor": ((),),
}
OFTEN = {
    "serve": 0,  # it would serve; tests/commands/serve has its own fuzzer of requests
    "tune run": 0,  # it would train
    "simulate": 8,
    "train": 16,
    "sweep run": 3,
    "sweep status": 6,
    "sweep retry": 4,
    "sweep cancel": 3,
    "compare": 7,
    "trace": 5,
    "catalog": 5,
    "dryrun": 1,
    "study show": 2,
    "study run": 0.2,
    "study list": 0.1,
    "data show": 7,
    "data prepare": 5,
    "report": 1,
    "scale": 0.7,
    "validate": 2,
    "plan": 0.1,
    "budget": 0.3,
    "doctor": 0.1,
    "calibrate": 0.2,
    "probe kernels": 0.3,
    "probe power": 0.3,
    "probe steps": 0.3,
    "probe collectives": 0.3,
}
"""How often a command is asked, 1 if not here: what takes long seldom."""
KNOWN: dict[str, tuple[str, ...]] = {
    "cluster": ("dgx-h100", "dgx-a100", "cpu", "c.toml", "dgx-h100,dgx-a100"),
    "profile": ("eager", "compiled", "knee", "p.toml"),
    "model": ("llama-tiny", "m.toml", "j.toml", "hf"),
    "overrides": (
        "fabric.nic_bytes_per_s=200Gbit/s",
        "tp=2",
        "layers=2",
        "hop_s=5us",
        "gpus=8",
        "model=llama-tiny",
        "launch_s=1us",
        "node.gpus=4",
        "gpu.hbm_bytes=1GB",
        "fabric.tiers.0.nodes=4",
        "local_batch=1",
    ),
    "only": (
        "pp == 1 and tp <= 8",
        "sharding != 'zero1'",
        "tp",
        "tp == 1 or",
        "__import__('os')",
        "tp ** 9 ** 9 ** 9",
        "gemm_scale",
    ),
    "placement": ("tp-cp-dp_shard-dp_replicate-pp", "pp-tp"),
    "flop_convention": ("palm", "6n", "causal", "torchtitan"),
    "tokens": ("2T", "300B", "1.4e12"),
    "grid": ("world", "france", "400", "g.toml", "fig4"),
    "gpus": ("8", "8..32", "8,16,24", "8..16,24"),
    "usd": ("1M", "1000"),
    "mwh": ("5", "1k"),
    "tokens_max": ("1T",),
    "batch_max": ("1M",),
    "family": ("llama",),
    "params": ("100M", "1B"),
    "law": ("besiroglu-2024", "x"),
    "batch_law": ("x",),
    "collectives": ("all_reduce", "all_gather,all_reduce"),
    "max_size": ("1MB", "1 GiB"),
    "base": ("dgx-h200", "cpu"),
    "time": ("30", "1:00:00", "2-12"),
    "hosts": ("a,b", "10.0.0.1"),
    "via": ("ssh {host}",),
    "env": ("A=1",),
    "states": ("failed", "failed,oom", "pending"),
    "ids": ("0001-llama-1b-g1-4e18ebcd",),
    "sql": ("select 1", "select * from ranks"),
    "comm": ("nccl", "symmetric_memory"),
    "comm_patterns": ("gemm", "("),
    "by": ("profile", "model"),
    "fixed": ("hop_scale=1",),
    "records": ("a.json", "b.json"),
    "paths": ("t.json",),
    "names": ("fig4", "s.toml"),
    "name": ("fig4", "llama2-7b", "dgx-h100"),
    "classes_file": ("k.toml",),
    "site_file": ("site.toml",),
    "plot": ("p.svg", "p.png"),
    "html": ("p.html",),
    "tp_overlap_frac": ("0.5", "none"),
}
ODD = (
    "0",
    "-1",
    "1",
    "3",
    "7",
    "4096",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "1" + "0" * 400,
    "1e308",
    "1e400",
    "nan",
    "inf",
    "-inf",
    "1e-320",
    "0.5",
    "1.5",
    "1_0",
    "０",
    "5e",
    "0x8",
    " 8",
    "8 ",
    "",
    "true",
    "--json",
    "-h",
    "é",
    "\udcff",
)
NEVER = ("help", "version", "watch", "expose_value")
"""Options that end everything before it begins, or that wait by design."""


LONG = (
    ("report", "out"),
    ("report", "predict"),
    ("study run", "out"),
    ("study run", "no_page"),
    ("scale", "plot"),
    ("scale", "best"),
    ("budget", "plot"),
    ("budget", "html"),
    ("trace", "html"),
)
"""Options that make an answer take long, which are seldom given."""


@cache
def commands() -> dict[str, click.Command]:
    """Words of a command -> the command, of all there are."""
    from knee.commands.main import main

    return dict(_walk(main, ()))


@cache
def taking_values() -> frozenset[str]:
    """Options of all commands behind which a value stands."""
    options = [param for command in commands().values() for param in command.params if isinstance(param, click.Option)]
    return frozenset(name for option in options if not option.is_flag for name in option.opts)


def _walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from _walk(inner, (*path, name))


@cache
def files() -> dict[str, bytes]:
    """What arguments can name: one whole file of every kind."""
    calm = Random(5)
    record = [json_text(one).encode() for one in records.simulated()]
    probes = {f"{name}.jsonl": "\n".join(map(json_text, readings.lines(name))).encode() for name in readings.FILES}
    shard = {
        "d/index.json": json_text(shards.index()).encode(),
        "d/shard-00000.bin": shards.TOKENS,
        "d/shard-00000.ends": shards.ENDS,
    }
    sweep, status, _ = sweeps.state()
    runs = {f"s/runs/{entry['id']}/status.json": json_text(status).encode() for entry in sweep["entries"]}
    return {
        "j.toml": toml_text(specs.JOBS[0]).encode(),
        "m.toml": toml_text(specs.TINY).encode(),
        "c.toml": toml_text(specs.CLUSTERS[0]).encode(),
        "p.toml": toml_text({"base": "eager", "hop_scale": 1.2}).encode(),
        "g.toml": toml_text(studies.ONE).encode(),
        "s.toml": toml_text(studies.STUDY).encode(),
        "site.toml": toml_text({"time": "30"}).encode(),
        "k.toml": toml_text(traces.CLASSES).encode(),
        "hf/config.json": json_text(specs.CONFIGS[0]).encode(),
        "r.csv": csv_text([tables.RUN]).encode(),
        "a.json": record[0],
        "b.json": record[1],
        "t.json": json_text(traces.document(calm)).encode(),
        "a.txt": b"a b training",
        "k.json": json_text(shards.TOKENIZER).encode(),
        "s/sweep.json": json_text(sweep).encode(),
        **runs,
        **probes,
        **shard,
    }


def value_of(rng: Random, param: click.Parameter) -> str:
    """A value that the declaration allows, or one that it may not."""
    if rng.random() < 0.3:
        return rng.choice(ODD) if rng.random() < 0.6 else values.text(rng)
    known = KNOWN.get(param.name or "")
    if isinstance(param.type, click.Choice):
        return str(rng.choice([*map(str, param.type.choices)]))
    if isinstance(param.type, click.types.IntParamType):
        return str(rng.choice((1, 2, 4, 8, 16)))
    if isinstance(param.type, click.types.FloatParamType):
        return str(rng.choice((0.5, 1, 2, 1.5, 0.25, 1000)))
    if known:
        return rng.choice(known)
    if isinstance(param.type, click.Path):
        return rng.choice(("new", "new/x", "a.json", "d", "/proc/nope/x", "j.toml", "."))
    return values.text(rng)


def given(rng: Random, param: click.Parameter) -> list[str]:
    """An option or an argument as words."""
    if isinstance(param, click.Argument):
        return [value_of(rng, param)]
    assert isinstance(param, click.Option)
    name = rng.choice([*param.opts, *param.secondary_opts])
    if param.is_flag or param.count:
        return [name]
    value = value_of(rng, param)
    return [f"{name}={value}"] if rng.random() < 0.2 and name.startswith("--") else [name, value]


def arguments(rng: Random) -> Case:
    """A vector of some command."""
    paths = list(commands())
    path = rng.choices(paths, [OFTEN.get(one, 1) for one in paths])[0]
    words = list(rng.choice(BASES.get(path, ((),))))
    able = [param for param in commands()[path].params if param.name not in NEVER]
    if rng.random() < 0.9:  # a page is drawn, or what is kept in a study's folder is not found
        able = [param for param in able if (path, param.name) not in LONG]
    for param in rng.choices(able, k=rng.choice((0, 1, 1, 2, 2, 3, 6))) if able else ():
        words += given(rng, param)
    if rng.random() < 0.25:
        words = damaged(rng, words)
    if rng.random() < 0.4 and "--json" not in words and any("--json" in param.opts for param in able):
        words.append("--json")
    words = [*path.split(), *words]
    if rng.random() < 0.03:
        words = damaged(rng, words)
    return Case(words=tuple(bounded(words)), files=_named(words))


def damaged(rng: Random, words: list[str]) -> list[str]:
    """Words dropped, doubled, exchanged, changed, or put in."""
    words = list(words)
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(words) + 1)
        match rng.randrange(7):
            case 0:
                del words[at : at + 1]
            case 1:
                words[at:at] = words[at : at + 1]
            case 2:
                words[at:at] = [
                    rng.choice(("--nope", "-x", "--", "-h", "--jso", "--json=1", "-", "--set", "--no-json", "--gpus="))
                ]
            case 3 if at < len(words):
                words[at] = mutate.change_text(rng, words[at])
            case 4:
                words[at:at] = [values.text(rng)]
            case 5:
                rng.shuffle(words)
            case _:
                words = words[:at]
    return words


def bounded(words: list[str]) -> list[str]:
    """Without what takes minutes by design: all studies at once, all published runs, and watching."""
    words = [word for word in words if word != "--watch"]
    takes = taking_values()
    named = [word for before, word in pairwise(words) if not word.startswith("-") and before not in takes]
    everything = (
        (words[:1] == ["study"] and named[:1] not in (["list"], ["show"]) and "s.toml" not in named)
        or (words[:1] == ["validate"] and not {"r.csv", "a.json"} & set(named))
        or (words[:1] == ["budget"] and "--params" not in words and "--model" not in words)
    )
    return [*words, "--nope"] if everything else words


def _named(words: list[str]) -> dict[str, bytes]:
    """Files that some word may mean."""
    text = "\n".join(words)
    kept = {"o/.kept/fidelity.json": studies.kept()} if words[:2] == ["study", "run"] else {}
    return {name: data for name, data in files().items() if name.split("/")[0] in words or name in text} | kept


KINDS = (Kind(name="arguments", weight=9, make=arguments),)
