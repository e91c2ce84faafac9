"""Traces of torch.profiler: plain, packed, cut off, of GPUs and of processors, of one rank and of several."""

from __future__ import annotations

import gzip
from random import Random
from typing import Any

from fuzz import mutate, values
from fuzz.case import Case, Kind
from fuzz.documents import encoded, json_text, toml_text
from fuzz.values import Raw

BASE_NS = 1_669_783_687_389_324_000
"""A real trace's first time: as float64 its nanoseconds are not exact."""
GROUP = {
    "Collective name": "allreduce",
    "In msg nelems": 64,
    "Out msg nelems": 64,
    "Group size": 2,
    "dtype": "BFloat16",
    "Process Group Name": "0",
    "Process Group Description": "default_pg",
    "Process Group Ranks": "[0, 1]",
    "Seq": 3,
}
CLASSES = {
    "mine": {"pattern": "gemm|nvjet", "communication": False, "source": "mine"},
    "theirs": {"pattern": "all_?reduce(_sum)?", "communication": True, "streams": "side", "source": "theirs"},
}
QUERIES = (
    "select name, sum(exposed_ns) from kernels group by 1 order by 2 desc limit 5",
    "select * from steps",
    "select 1",
    "select count(*) from collectives",
    "select * from ranks",
    "select * from nowhere",
    "select",
    "",
    "drop table kernels",
    "select 1/0",
    "select 'nan'::double, 'inf'::double",
    "select 1; select 2",
    "select * from kernels where name = '\ud800'",
    "select [1, 2], {'a': date '2024-01-01'}",
    "copy kernels to 'x.csv'",
    "select * from read_csv('t.json')",
    "select interval 1 day, 10::hugeint * 10000000000000000000, x'00'::blob, uuid()",
    "pragma version",
    "attach 'x.db'",
)


def time_of(rng: Random, nanoseconds: int, style: int) -> Any:
    """A time in microseconds, as one program or another writes it."""
    whole, part = divmod(nanoseconds, 1000)
    match style if style < 9 else rng.randrange(9):
        case 0 | 1:
            return Raw(f"{whole}.{part:03}")
        case 2:
            return Raw(f"{whole}.{part:03}".rstrip("0").rstrip("."))
        case 3:
            return whole
        case 4:
            return Raw(f"{whole}.{part:03}000")
        case 5:
            return f"{whole}.{part:03}"
        case 6:
            return Raw(f"{nanoseconds / 1000:e}")
        case 7:
            return nanoseconds / 1000
        case _:
            return Raw(f"{whole}.{part // 10:02}")


def events_of(rng: Random, count: int, style: int) -> list[dict[str, Any]]:
    """Kernels with their launches, collectives, copies and steps."""
    base = rng.choice((BASE_NS, BASE_NS, 0, 4_458_676_416_788_066))
    made: list[dict[str, Any]] = []

    def add(name: str, category: str, tid: int, start: int, length: int, **args: Any) -> None:
        times = {"ts": time_of(rng, base + start, style), "dur": time_of(rng, length, style)}
        made.append({"ph": "X", "cat": category, "name": name, "pid": 0, "tid": tid, **times, "args": args})

    for number in range(count):
        at, length = number * 10_000 + rng.randrange(9000), rng.randrange(12_000)
        shared = {"device": 0, "correlation": number}
        add("cudaLaunchKernel", "cuda_runtime", 9, at, 1000, correlation=number)
        if number % 3 == 2:
            add(
                "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                "kernel",
                20,
                at + 2000,
                length,
                stream=20,
                **shared,
                **GROUP,
            )
        elif number % 7 == 6:
            add("Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", 7, at + 2000, length, stream=7, **shared)
        else:
            add(rng.choice(("sm90_xmma_gemm_bf16", "add")), "kernel", 7, at + 2000, length, stream=7, **shared)
    for number in range(rng.choice((0, 1, 2, 3))):
        add(f"ProfilerStep#{number + 5}", "user_annotation", 9, number * 40_000, 40_000)
    return made


def host_events(rng: Random, style: int) -> list[dict[str, Any]]:
    """A processor's: gloo's collectives beside operators."""
    sizes = {"Input Dims": [[64], [32]], "Input type": ["float", "float"]}
    rows = (
        ("ProfilerStep#1", "user_annotation", 0, 900, {}),
        ("c10d::_allgather_base_", "cpu_op", 10, 20, sizes),
        ("gloo:all_gather", "user_annotation", 15, 200, {"Input Dims": [[32]], "Input type": ["float"]}),
        ("aten::mm", "cpu_op", 50, 100, {}),
        ("gloo:send", "user_annotation", 302, 30, {"Input Dims": [[3]]}),
        ("c10d::send", "cpu_op", 300, 5, {"Input Dims": [[[3]]], "Input type": ["TensorList"]}),
    )
    return [
        {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": 1,
            "tid": i % 2,
            "args": dict(args),
            "ts": time_of(rng, BASE_NS + start * 1000, style),
            "dur": time_of(rng, length * 1000, style),
        }
        for i, (name, category, start, length, args) in enumerate(rows)
    ]


def document(rng: Random, rank: int = 0) -> Any:
    """A whole trace, not yet changed."""
    style = rng.randrange(12)
    if rng.random() < 0.2:
        events, backend = host_events(rng, style), "gloo"
    else:
        events, backend = events_of(rng, rng.choice((0, 1, 3, 3, 6, 6, 12, 12, 40)), style), "nccl"
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}]
    head = {"rank": rank, "world_size": 2, "backend": backend, "pg_config": groups}
    if rng.random() < 0.1:
        return events
    return {
        "schemaVersion": 1,
        "distributedInfo": head,
        "deviceProperties": [{"id": 0, "name": "H100"}],
        "traceEvents": events,
    }


def content(rng: Random, rank: int = 0) -> bytes:
    """A trace's bytes, changed in its structure, in its text, or not at all."""
    tree = document(rng, rank)
    if rng.random() < 0.7:
        mutate.change_tree(rng, tree)
    text = json_text(tree, indent=rng.choice((None, None, None, 1)))
    if rng.random() < 0.1:
        text = text.replace(": ", rng.choice((":", " : ", ":\n")))
    return encoded(rng, text, damage=0.25)


def plain(rng: Random) -> Case:
    """One file."""
    data = content(rng)
    if rng.random() < 0.05:
        return Case(words=("trace", "-", *options(rng)), stdin=data)
    return Case(words=("trace", "t.json", *options(rng)), files={"t.json": data})


def packed(rng: Random) -> Case:
    """One packed file, damaged after packing or before."""
    return Case(
        words=("trace", "t.json.gz", *options(rng)), files={"t.json.gz": mutate.change_packed(rng, content(rng))}
    )


def cut(rng: Random) -> Case:
    """A whole trace up to some byte."""
    data = json_text(document(rng)).encode("utf-8", "surrogatepass")
    data = data[: rng.randrange(len(data) + 1)]
    if rng.random() < 0.3:
        data = gzip.compress(data, 1, mtime=0)
        data = data[: rng.randrange(len(data) // 2, len(data) + 1)]
    return Case(words=("trace", "t.json", *options(rng)), files={"t.json": data})


def ranks(rng: Random) -> Case:
    """Several ranks of one job, or two jobs to be told apart."""
    names = [f"d/rank{i}.json" for i in range(rng.choice((1, 2, 2, 3)))]
    files = {name: content(rng, rank) for rank, name in enumerate(names)}
    if rng.random() < 0.3:
        files["e/rank0.json"] = content(rng)
        return Case(words=("trace", "diff", "d", "e", *json_or_not(rng)), files=files)
    return Case(words=("trace", *rng.choice((("d",), names)), *options(rng)), files=files)


def classes(rng: Random) -> Case:
    """A file of classes of kernels, and patterns."""
    tree = mutate.change_tree(rng, mutate.copied(CLASSES))
    if rng.random() < 0.4:
        tree.setdefault("more", {"communication": True})
        if isinstance(tree["more"], dict):
            tree["more"]["pattern"] = rng.choice(
                ("(", "[", "*", "(?P<a>x)(?P<a>y)", "(a+)+$", "a{99999999999}", "\\", "(?i)", "(?<=a*)b", "")
            )
    words = ["trace", "t.json", "--no-cache", "--classes", "c.toml", *json_or_not(rng)]
    if rng.random() < 0.3:
        words += ["--comm-pattern", values.text(rng)]
    trace = json_text(document(rng)).encode("utf-8", "surrogatepass")
    return Case(words=tuple(words), files={"t.json": trace, "c.toml": encoded(rng, toml_text(tree))})


def options(rng: Random) -> list[str]:
    """Of ``knee trace``: pages and SQL seldom, because they take long."""
    words = json_or_not(rng) if rng.random() > 0.003 else ["--html", "page.html"]
    words += ["--no-cache"] if rng.random() < 0.8 else []
    words += ["--skip", str(rng.choice((0, 1, 2, 99)))] if rng.random() < 0.15 else []
    words += ["--steps", str(rng.choice((1, 2, 99)))] if rng.random() < 0.1 else []
    words += ["--comm", rng.choice(("symmetric_memory", "nccl", "x"))] if rng.random() < 0.05 else []
    words += ["--perfetto", rng.choice(("p.json", "p.json.gz"))] if rng.random() < 0.05 else []
    words += ["--sql", rng.choice(QUERIES)] if rng.random() < 0.006 else []
    return words


def json_or_not(rng: Random) -> list[str]:
    """``--json`` more often than not: it is what a program would read."""
    return ["--json"] if rng.random() < 0.7 else []


KINDS = (
    Kind(name="trace", weight=8, make=plain),
    Kind(name="trace-gz", weight=5, make=packed),
    Kind(name="trace-cut", weight=6, make=cut),
    Kind(name="trace-ranks", weight=1, make=ranks),
    Kind(name="classes", weight=5, make=classes),
)
