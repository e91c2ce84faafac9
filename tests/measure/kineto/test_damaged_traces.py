"""Whatever the bytes are, there is an answer or one sentence: no other exception, and no waiting."""

from __future__ import annotations

import gzip
import json
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knee.base.errors import InputError, KneeError
from knee.measure.kineto import blocks as blocks_module
from knee.measure.kineto import event_stream as stream_module
from knee.measure.traces import Analysis, analyse
from knee.measure.traces.plain_data import as_json
from trace_made import comm, document, dumps, event, launch, step, write

LIMIT_S = 20
"""Of the processor, so that it does not matter what else the machine does: a case takes milliseconds."""


@contextmanager
def limited() -> Iterator[None]:
    """A case may take so long and no longer."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"more than {LIMIT_S} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def tried(path: Path) -> Analysis | None:
    """The answer, which is a whole one; None for a refusal in words."""
    with limited():
        try:
            found = analyse(path, cache=False)
        except KneeError as error:
            if path.name not in error.message:
                raise
            return None
        json.dumps(as_json(found))
        for rank in found.ranks:
            rank.audit.sentences()
            assert rank.times.window_s >= 0
        return found


def device_trace() -> str:
    group = {
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
    events = [
        step(0, 0, 1000),
        step(1, 1000, 1000),
        launch(10, 1),
        launch(20, 2),
        launch(1100, 3),
        launch(1200, 4),
        event(100, 300, correlation=1),
        comm(350, 200, correlation=2, **group),
        event(1150, 400, correlation=3),
        comm(1300, 700, correlation=4, **group),
        event(1600, 50, category="gpu_memcpy", correlation=9),
    ]
    return document(
        events,
        distributedInfo={
            "rank": 0,
            "world_size": 2,
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}],
        },
        deviceProperties=[{"name": "H100"}],
    )


def host_trace() -> str:
    sizes = {"Input Dims": [[64], [32]], "Input type": ["float", "float"]}
    kinds = [
        ("ProfilerStep#1", "user_annotation", 0, 900, {}),
        ("c10d::_allgather_base_", "cpu_op", 10, 20, sizes),
        ("gloo:all_gather", "user_annotation", 15, 200, {"Input Dims": [[32]], "Input type": ["float"]}),
        ("aten::mm", "cpu_op", 50, 100, {}),
        ("c10d::send", "cpu_op", 300, 5, {"Input Dims": [[[3]]], "Input type": ["TensorList"]}),
        ("gloo:send", "user_annotation", 302, 30, {"Input Dims": [[3]], "Input type": ["float"]}),
    ]
    events = [
        event(start, length, name=name, category=kind, stream=i % 2) | {"args": args}
        for i, (name, kind, start, length, args) in enumerate(kinds)
    ]
    return document(events, distributedInfo={"rank": 1, "world_size": 2, "backend": "gloo"})


WHOLE = {"device": device_trace(), "host": host_trace()}
EMPTY = gzip.compress(b"", mtime=0)  # no time in it: the names of tests are made from it


@pytest.mark.parametrize("content", [
    b"", b" \n", b"{", b"[", b"]", b"}", b"{}", b"[]", b"null", b"3", b'"text"', b"\x00" * 100, b"PK\x03\x04", b"[[[[",
    b"[" * 100_000, b'{"a":' * 50_000, b'[{"args":' + b"[" * 50_000, b'{"traceEvents": {}}', b'{"traceEvents": null}',
    b'{"traceEvents": [1, 2]}', b'{"x": [{"traceEvents": []}]}', b'{"loss": [1, 2, 3]}', b"a,b,c\n1,2,3\n", b"\x1f\x8b",
    b"\x1f\x8b\x08\x00", EMPTY, EMPTY[:-4], gzip.compress(b"{}", mtime=0), gzip.compress(b"[", mtime=0)[:-8],
    gzip.compress(b"not json" * 1000, mtime=0), b'[{"ph": "X"}]', b'[{"ph": "X", "cat": "cpu_op", "ts": 1, "dur": 1}]',
    b'[{"ph": "X", "cat": "kernel"}]', b'[{"ph":"X","cat":"kernel","name":"a","ts":1e400,"dur":1}]', b"\xff\xfe[\x00",
    b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": ' + b"1" * 5000 + b', "dur": 1}]', b"[,,,]", b"[{},{},{}",
    b'{"traceEvents": [], "distributedInfo": 3}', b'[{"cat": "kernel", "cat": 3}]', b'{"traceEvents":[{"ts":{}}]}',
])  # fmt: skip
def test_no_trace_is_refused_in_words(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    assert tried(path) is None


@pytest.mark.parametrize("kind", WHOLE)
def test_json_cut_anywhere_says_so(tmp_path: Path, kind: str) -> None:
    """What was readable is reported: never more kernels than are whole, and never as a whole file."""
    content = WHOLE[kind].encode()
    path = tmp_path / "t.json"
    full = tried(write(path, content))
    assert full is not None
    assert full.is_whole
    answered, most = 0, 0
    for end in sorted({*range(0, len(content), 23), *range(len(content) - 50, len(content))}):
        found = tried(write(path, content[:end]))
        if found is not None:
            assert not found.is_whole
            assert any("incomplete" in sentence for sentence in found.ranks[0].audit.sentences())
            count = len(found.ranks[0].trace.columns)
            assert kind == "host" or count == max(count, most)
            answered, most = answered + 1, count
    assert answered > 20
    assert most == len(full.ranks[0].trace.columns)


def test_gzip_cut_anywhere_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 512)
    rng = random.Random(1)
    events = [event(i * 100, rng.randrange(90), name=f"k{rng.random()}") for i in range(60)]
    packed = gzip.compress(document(events).encode())
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed)
    full = tried(path)
    assert full is not None
    assert full.is_whole
    answered = 0
    for end in [*range(0, len(packed), 29), *range(len(packed) - 12, len(packed))]:
        path.write_bytes(packed[:end])
        found = tried(path)
        if found is not None:
            assert not found.is_whole
            answered += 1
    assert answered > 20


def test_packed_in_parts_and_padded(tmp_path: Path) -> None:
    """Several members of gzip are one file; zeros after them are nothing, other bytes are damage."""
    content = WHOLE["device"].encode()
    members = b"".join(gzip.compress(content[i : i + 700]) for i in range(0, len(content), 700))
    path = tmp_path / "t.json.gz"
    for tail, whole in ((b"", True), (b"\0" * 5000, True), (b"garbage", False)):
        path.write_bytes(members + tail)
        found = tried(path)
        assert found is not None
        assert found.is_whole == whole
        assert found.ranks[0].audit.kernels == 4


VALUES = (
    None,
    True,
    -1,
    0,
    3,
    2**31,
    2**63,
    2**64,
    10**30,
    1.5,
    -0.0,
    1e-300,
    "",
    "x",
    "7",
    "nan",
    "\ud800",
    [],
    [1],
    ["a"],
    [[]],
    [None],
    {},
    {"a": 1},
    {"stream": 3},
    [{"ranks": [1]}],
    "[0, 1]",
    "ProfilerStep#5",
    "kernel",
    "X",
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield from places(one, (*path, key))


@pytest.mark.slow
@pytest.mark.parametrize("kind", WHOLE)
def test_a_field_of_another_type(tmp_path: Path, kind: str) -> None:
    """Every place of the document in turn is something else, or is not there."""
    rng = random.Random(7)
    where = list(places(json.loads(WHOLE[kind])))
    answers = []
    for place in where:
        for value in (rng.choice(VALUES), KeyError):
            document_ = json.loads(WHOLE[kind])
            inner = document_
            for key in place[:-1]:
                inner = inner[key]
            if value is KeyError:
                del inner[place[-1]]
            else:
                inner[place[-1]] = value
            answers.append(tried(write(tmp_path / "t.json", json.dumps(document_))))
    # most strange fields cost an event or a name, not the answer
    assert len(answers) == 2 * len(where)
    assert sum(answer is not None for answer in answers) > len(answers) / 2


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(sorted(WHOLE)),
    st.randoms(use_true_random=False),
    st.booleans(),
    st.sampled_from([64, 1000, 1 << 18]),
)
def test_damaged_bytes(tmp_path: Path, kind: str, rng: random.Random, packed: bool, size: int) -> None:
    data = bytearray(WHOLE[kind].encode())
    if packed and rng.random() < 0.5:
        data = bytearray(gzip.compress(bytes(data)))
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data))
        what = rng.randrange(4)
        if what == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            data.insert(at, rng.choice(b'"{}[],:\\\x00\xff9e-'))
        elif what == 2:
            del data[at : at + rng.randrange(1, 40)]
        else:
            start = rng.randrange(len(data))
            data[at:at] = data[start : start + rng.randrange(200)]
    path = tmp_path / "t.json"
    path.write_bytes(gzip.compress(bytes(data), 1) if packed else bytes(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "BLOCK_BYTES", size)
        tried(path)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=300),
    st.sampled_from([b"", b"[", b'{"traceEvents": [', b"\x1f\x8b\x08\x00", b'[{"cat":"kernel",']),
)
def test_random_bytes(tmp_path: Path, data: bytes, start: bytes) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(start + data)
    assert tried(path) is None or b"kernel" in start + data


def test_bombs_are_refused_in_little_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Much text without an event, before and among events, is not kept."""
    monkeypatch.setattr(stream_module, "LONGEST_HEAD_BYTES", 1 << 20)
    monkeypatch.setattr(stream_module, "LONGEST_EVENT_BYTES", 1 << 19)
    for content in (
        b" " * (1 << 23),
        b'{"a": "' + b"x" * (1 << 22),
        b"[" + b" " * (1 << 22),
        b'["' + b"y" * (1 << 21),
        b"[" + b"1," * (1 << 17),
        b"[{" + b'"a":{},' * (1 << 17),
    ):
        assert tried(write(tmp_path / "bomb.json.gz", content)) is None


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no \.json"):
        analyse(tmp_path)
    with pytest.raises(InputError, match="no trace is given"):
        analyse([])
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    write(tmp_path / "deep" / "deeper" / "rank0.json", WHOLE["device"])
    with pytest.raises(InputError, match=r"folders directly below it contain no \.json"):
        analyse(tmp_path)
    write(tmp_path / "deep" / "trace.json", WHOLE["device"])
    assert len(analyse(tmp_path, cache=False).ranks) == 1


def rank(path: Path, number: int | None, world: int | None, steps: int = 0) -> Path:
    info = {key: value for key, value in (("rank", number), ("world_size", world)) if value is not None}
    events = [step(steps, 0, 1000), launch(1, 1), event(10, 100, correlation=1), comm(50, 100)]
    return write(path, document(events, distributedInfo=info))


def test_ranks_of_different_jobs_are_refused(tmp_path: Path) -> None:
    one, two = rank(tmp_path / "a.json", 0, 2), rank(tmp_path / "b.json", 1, 2)
    assert [r.rank for r in analyse([two, one], cache=False).ranks] == [0, 1]
    with pytest.raises(InputError, match="to a job with 2 ranks"):
        analyse([one, rank(tmp_path / "c.json", 1, 4)], cache=False)
    with pytest.raises(InputError, match="rank 0 is both in"):
        analyse([one, rank(tmp_path / "d.json", 0, 2)], cache=False)
    unnamed = analyse([rank(tmp_path / "x.json", None, None), rank(tmp_path / "y.json", None, None)], cache=False)
    assert [r.rank for r in unnamed.ranks] == [0, 1]
    assert "y.json does not state its rank; it is counted as rank 1" in unnamed.ranks[1].audit.sentences()[-1]
    with pytest.raises(InputError, match="no profiler step in common"):
        analyse([one, rank(tmp_path / "e.json", 1, 2, steps=9)], cache=False)
    with pytest.raises(InputError, match="some from CPUs"):
        analyse(
            [one, write(tmp_path / "f.json", WHOLE["host"].replace("ProfilerStep#1", "ProfilerStep#0"))], cache=False
        )
    assert len(analyse([one, one], cache=False).ranks) == 1


def test_one_bad_rank_among_good_ones_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read one after the other, and at the same time."""
    files = [rank(tmp_path / "a_rank0.json", 0, 2), write(tmp_path / "b_rank1.json", dumps({"loss": [1]}))]
    for size in (1 << 40, 0):
        monkeypatch.setattr(sys.modules["knee.measure.traces.analyse"], "PARALLEL_BYTES", size)
        found = analyse(files, cache=False)
        assert [r.rank for r in found.ranks] == [0]
        assert not found.is_whole
        assert "b_rank1.json is not a Kineto trace" in found.left_out[0].why
        assert found.across.missing == (1,)
    with pytest.raises(InputError, match=r"b_rank1\.json"):
        analyse(files[1:], cache=False)
