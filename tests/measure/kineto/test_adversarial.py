"""Traces as nobody should write them: the answer stays exact, wherever a block is cut and whoever decodes it."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knee.measure.kineto import blocks as blocks_module
from knee.measure.kineto import decode as decode_module
from knee.measure.kineto import event_stream as stream_module
from knee.measure.kineto.column_cache import read_columns
from knee.measure.kineto.decode import nanoseconds
from knee.measure.kineto.event_columns import RankTrace
from knee.measure.traces import analyse
from knee.measure.traces.analyse import RankAnalysis
from trace_made import (
    BASE_US,
    Number,
    comm,
    document,
    dumps,
    event,
    launch,
    slow_times,
    step,
    write,
)

NAMES = (
    "window_s",
    "compute_load_s",
    "comm_load_s",
    "copy_load_s",
    "compute_s",
    "comm_s",
    "exposed_comm_s",
    "overlapped_comm_s",
    "exposed_copies_s",
    "idle_s",
)


def ns(times: Any) -> dict[str, int]:
    return {name: round(getattr(times, name) * 1e9) for name in NAMES}


def one(path: Path) -> RankAnalysis:
    (rank,) = analyse(path, cache=False).ranks
    return rank


def columns_equal(a: RankTrace, b: RankTrace) -> None:
    for field in fields(RankTrace):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, np.ndarray):
            assert np.array_equal(x, y), field.name
        elif field.name not in ("path", "counts"):
            assert x == y, field.name
    assert (a.counts.events, a.counts.without_duration, a.counts.clock_anomalies) == (
        b.counts.events,
        b.counts.without_duration,
        b.counts.clock_anomalies,
    )


ODD = {
    "nested": ([(0, 100), (10, 20), (30, 40)], [(5, 50)], []),
    "identical": ([(0, 10), (0, 10), (0, 10)], [(0, 10), (0, 10)], []),
    "zero": ([(0, 0), (5, 5), (10, 20), (20, 20)], [(10, 10), (20, 25), (7, 7)], [(5, 5)]),
    "negative gaps": ([(0, 10), (9, 20), (19, 30)], [(25, 35), (34, 50)], []),
    "touching": ([(0, 10), (10, 20)], [(20, 30)], [(30, 40)]),
    "out of order": ([(90, 100), (0, 10), (50, 60)], [(55, 95), (5, 8)], [(70, 120)]),
    "one": ([(0, 1)], [], []),
    "communication alone": ([], [(3, 9), (4, 12)], []),
    "copies alone": ([], [], [(3, 9), (4, 12)]),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
@pytest.mark.parametrize("scale", [1, 1000])
def test_odd_intervals(tmp_path: Path, kind: str, name: str, scale: int) -> None:
    compute, communication, copies = ([(a * scale, b * scale) for a, b in some] for some in ODD[kind])
    events = [event(a, b - a) for a, b in compute] + [comm(a, b - a) for a, b in communication]
    events += [event(a, b - a, category="gpu_memcpy", stream=9) for a, b in copies]
    if scale == 1000:  # the old schema: whole microseconds
        for e in events:
            e["ts"], e["dur"] = (Number(e[key].removesuffix(".000")) for key in ("ts", "dur"))
    rank = one(write(tmp_path / name, document(events)))
    both = [*compute, *communication, *copies]
    window = (min(a for a, _ in both), max(b for _, b in both))
    assert ns(rank.times) == slow_times(compute, communication, copies, window)


@pytest.mark.parametrize(
    "base_us", [0, 2**53 - 1, 2**53, 2**53 + 1, 9_007_199_254_740_993, 10**16, 2**63, 10**21, -5, BASE_US]
)
def test_any_epoch_is_exact(tmp_path: Path, base_us: int) -> None:
    events = [event(1, 7, base=base_us * 1000), event(1003, 9, base=base_us * 1000), comm(5, 1001, base=base_us * 1000)]
    rank = one(write(tmp_path / "t.json", document(events)))
    assert ns(rank.times) == slow_times([(1, 8), (1003, 1012)], [(5, 1006)], [], (1, 1012))
    assert rank.trace.columns.first_ns == base_us * 1000 + 1


@pytest.mark.parametrize(("text", "expected"), [
    ("1.234e3", 1_234_000), ("1.6697836873893245e15", 1_669_783_687_389_324_500), ("1.234e-05", 0), ("2E0", 2000),
    ('"12.5"', 12_500), ("-0.5", -500), ("-3", -3000), ("0.9999", 999), ("1e400", None), ("1e-400", 0), ("null", None),
    ("[1]", None), ("true", None), ("{}", None), ("9" * 5000, None), ("1e999999999", None), ("1e-999999999", 0),
])  # fmt: skip
def test_times_as_they_may_be_written(text: str, expected: int | None) -> None:
    """The decoders agree, and an exponent after three decimals is not lost."""
    msgspec = pytest.importorskip("msgspec")
    assert nanoseconds(msgspec.Raw(text.encode())) == expected
    if len(text) < 4000:  # the standard library refuses such a number earlier
        assert nanoseconds(json.loads(text, parse_float=str)) == expected


@pytest.mark.parametrize("value", [[1], ["a"], {"a": 1}, [300], [49], True, None])
def test_a_time_that_is_no_number(value: Any) -> None:
    assert nanoseconds(value) is None


def test_events_without_duration_are_counted_and_left_out(tmp_path: Path) -> None:
    bad = [event(5, None), event(5, 3) | {"ts": None}, event(0, 1) | {"dur": "x"}, event(1, 2) | {"dur": [1]}]
    broken = [event(7, 1) | {"dur": -1}, event(7, 1) | {"ts": Number("1e30")}, event(7, 1) | {"dur": Number("1e25")}]
    rank = one(write(tmp_path / "t.json", document([*bad, event(0, 10), *broken, event(20, 10)])))
    assert (rank.audit.without_duration, rank.audit.clock_anomalies) == (4, 3)
    assert ns(rank.times)["compute_load_s"] == 20
    assert ns(rank.times)["window_s"] == 30


@pytest.mark.parametrize(
    "args",
    [
        [],
        [{"stream": 1}],
        "text",
        None,
        3,
        {},
        {"stream": None},
        {"stream": "7"},
        {"stream": 7.0},
        {"stream": [7]},
        {"device": {"a": [{}]}, "stream": 2**70},
        {"correlation": -1},
        {"correlation": 2**63},
        {"Collective name": 3},
        {"Collective name": "x", "Group size": 1 << 60, "dtype": []},
        {"Collective name": "x", "Process Group Ranks": "{[]: 1}", "Group size": "two"},
        {"Collective name": "x", "Process Group Ranks": "[0, ...", "Seq": "\\d"},
    ],
)
def test_strange_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: Any) -> None:
    path = write(tmp_path / "t.json", document([event(0, 10), event(10, 10) | {"args": args}, event(20, 10)]))
    rank = one(path)
    assert ns(rank.times)["window_s"] == 30
    assert ns(rank.times)["compute_load_s"] + ns(rank.times)["comm_load_s"] == 30
    found = read_columns(path)
    monkeypatch.setattr(decode_module, "msgspec", None)
    columns_equal(found, read_columns(path))


HARD_NAMES = [
    "}, {",
    '"},{"',
    "\\",
    '\\"',
    "[{",
    "]}",
    "a::nan, b",
    "x: inf}",
    "gemm<at::Nan, 3>",
    "ü" * 40,
    "核" * 30,
    "😀😀😀",
    "\u2028",
    "a\tb\nc",
    '{"traceEvents": [',
    "",
    "nccl},{",
]


def hard_events(seed: int = 0) -> list[dict[str, Any]]:
    """Events in every order of keys, with names and arguments that look like the borders of events."""
    rng = random.Random(seed)
    found: list[dict[str, Any]] = [step(3, 0, 4000), step(4, 4001, 3000)]
    for i, name in enumerate(HARD_NAMES * 2):
        nested = {"list": [{"a": 1}, {"b": [{"c": "},{"}, {}]}], "text": name, "n": None, "correlation": i}
        length = rng.randrange(400)
        found.append(launch(i * 200 + rng.randrange(50), i))
        found.append(event(i * 211, length, name=name, **(nested if i % 2 else {"correlation": i})))
        found.append(
            {"ph": "i", "cat": name, "name": name, "args": [nested]}
            if i % 5 == 0
            else event(i * 200, 3, name=name, category="cpu_op", **nested)
        )
    found.append({"ph": "M", "name": "process_name", "args": {"name": "}, {"}})
    shuffled = []
    for e in found:
        items = list(e.items())
        rng.shuffle(items)
        shuffled.append(dict(items))
    rng.shuffle(shuffled)
    return shuffled


LAYOUTS = {
    "one line": lambda events: document(events, deviceProperties=[{"name": "H100"}, {"name": "}, {"}]),
    "compact": lambda events: '{"traceEvents":[' + ",".join(dumps(e, ":") for e in events) + "]}",
    "indented": lambda events: '{\r\n"a" : 1 ,\n "traceEvents" :\n[\n' + "\n , \n".join(map(dumps, events)) + "\n]}\n",
    "a list": lambda events: "[" + ",\n".join(map(dumps, events)) + "]",
    "head last": lambda events: (
        '{"traceEvents": ['
        + ", ".join(map(dumps, events))
        + '], "deviceProperties": ['
        + ", ".join(['{"name": "H100"}'] * 30)
        + '], "distributedInfo": {"rank": 5}}'
    ),
    "nan": lambda events: document(
        [
            *events,
            {
                "ph": "X",
                "cat": "cpu_op",
                "args": {"x": Number("nan"), "y": [Number("-inf"), Number("Infinity"), Number("-nan(ind)")]},
            },
            *events,
        ]
    ),
}


def reference(events: list[dict[str, Any]]) -> tuple[list[str], list[int], list[int]]:
    """Names, starts and ends of the kernels, in the order of the columns."""
    found = [
        (nanoseconds(str(e["ts"])), nanoseconds(str(e["dur"])), e["name"]) for e in events if e.get("cat") == "kernel"
    ]
    rows = sorted(
        (start, start + length, name) for start, length, name in found if start is not None and length is not None
    )
    return [name for *_, name in rows], [start for start, *_ in rows], [end for _, end, _ in rows]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_cut_and_both_decoders_give_the_same_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    events = hard_events()
    content = LAYOUTS[layout](events)
    path, packed = write(tmp_path / "t.json", content), write(tmp_path / "t.json.gz", content)
    whole = read_columns(path)
    names, starts, ends = reference(events * (2 if layout == "nan" else 1))
    assert sorted(whole.names[i] for i in whole.name_id) == sorted(names)
    assert (whole.start_ns + whole.first_ns).tolist() == starts
    assert sorted((whole.end_ns + whole.first_ns).tolist()) == sorted(ends)
    assert whole.cut is None
    assert whole.counts.events == len(events) * (2 if layout == "nan" else 1) + (layout == "nan")
    assert (whole.counts.repairs > 0) == (layout == "nan")
    if layout == "head last":
        assert (whole.rank, whole.device_name) == (5, "H100")
    for library in (decode_module.msgspec, None):
        monkeypatch.setattr(decode_module, "msgspec", library)
        for size in (64, 65, 100, 127, 256, 1000, 1021, 4096, 1 << 18):
            monkeypatch.setattr(blocks_module, "BLOCK_BYTES", size)
            columns_equal(whole, read_columns(path))
        columns_equal(whole, read_columns(packed))


def test_every_single_place_of_a_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks, with the border at each byte in turn, through letters of several bytes too."""
    events = [event(0, 10, name="核},{"), event(20, 10, name='"ü'), comm(15, 10)]
    content = document(events, a="ü", b=[{"traceEvents": []}]).encode()
    path = write(tmp_path / "t.json", content)
    whole = read_columns(path)
    assert whole.names == ("核},{", '"ü', events[2]["name"])
    for at in range(1, len(content)):
        parts = (content[:at], content[at:])
        monkeypatch.setattr(stream_module, "blocks", lambda *_, parts=parts, **__: (part for part in parts))
        columns_equal(whole, read_columns(path))


def test_an_event_larger_than_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huge = event(0, 10, name="gemm", stack=[{"frame": "},{" * 50} for _ in range(500)])
    path = write(tmp_path / "t.json", document([event(5, 5), huge, event(20, 10), huge]))
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 4096)
    rank = one(path)
    assert rank.audit.kernels == 4
    assert rank.audit.cut is None


def test_blocks_that_cannot_be_cut_are_read_event_by_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Letters stay whole, and the end of the events is seen, also where no cut is ever proven."""
    monkeypatch.setattr(stream_module, "LONGEST_EVENT_BYTES", 600)
    monkeypatch.setattr(stream_module, "GUESSES", 0)
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 101)
    events = hard_events()
    for layout in ("one line", "a list", "head last"):
        found = read_columns(write(tmp_path / "t.json", LAYOUTS[layout](events)))
        assert found.cut is None
        assert sorted(found.names[i] for i in found.name_id) == sorted(reference(events)[0])
    numbers = "[" + "1, " * 5000 + dumps(event(0, 10)) + "]"
    assert len(read_columns(write(tmp_path / "n.json", numbers))) == 1


def test_things_that_are_no_events(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.json",
        document(
            [
                1,
                "a",
                None,
                [],
                [[{}]],
                {},
                event(0, 10),
                {"cat": ["kernel"]},
                {"cat": {"a": 1}},
                {"cat": 3, "ph": "X"},
                event(10, 5),
            ]
        ),
    )
    assert ns(one(path).times)["compute_load_s"] == 15


def test_a_byte_order_mark_and_space_before(tmp_path: Path) -> None:
    for start in (b"\xef\xbb\xbf", b"  \r\n\t", b"\xef\xbb\xbf \n"):
        for content in (document([event(0, 10)]), dumps([event(0, 10)])):
            assert one(write(tmp_path / "t.json", start + content.encode())).audit.cut is None


def test_names_that_are_no_text(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", document([event(0, 5) | {"name": name} for name in ("a", None, 3, ["x"], {})]))
    assert sum(kernel.calls for kernel in one(path).kernels) == 5


def test_bytes_that_are_no_utf8_lose_no_event(tmp_path: Path) -> None:
    content = document([event(0, 5), event(5, 5, name="QQ"), event(10, 5)]).encode().replace(b"QQ", b"\xff\xfe")
    rank = one(write(tmp_path / "t.json", content))
    assert (rank.audit.kernels, rank.audit.cut) == (3, None)


def test_steps_that_launch_nothing_and_steps_that_touch(tmp_path: Path) -> None:
    """Whole microseconds let a step begin before the last one ends; that is no repetition."""
    events = [
        step(0, 0, 1000),
        step(1, 999, 1001),
        step(2, 2000, 500),
        step(2, 2003, 500),
        step(3, 2600, 50),
        launch(100, 1),
        launch(1500, 2),
        launch(2100, 3),
        event(300, 1500, correlation=1),
        event(1800, 600, correlation=2),
        comm(2300, 900, correlation=3),
    ]
    rank = one(write(tmp_path / "t.json", document(events)))
    assert [part.step for part in rank.steps] == [0, 1, 2]
    assert rank.audit.empty_steps == (3,)
    assert [(p.window.start_ns, p.window.end_ns) for p in rank.steps] == [(300, 1800), (1800, 2300), (2300, 3200)]
    for name in NAMES:
        assert sum(ns(p.times)[name] for p in rank.steps) == ns(rank.times)[name]


def test_a_launch_before_everything_else_is_a_launch(tmp_path: Path) -> None:
    rank = one(write(tmp_path / "t.json", document([launch(-500, 1), event(0, 10, correlation=1), event(20, 5)])))
    assert rank.audit.without_launch == 1
    assert rank.audit.without_launch_s == pytest.approx(5e-9)
    assert rank.audit.clock_anomalies == 0


def test_steps_without_launches_begin_by_the_hosts_clock(tmp_path: Path) -> None:
    events = [step(0, 0, 100), step(1, 100, 100), event(10, 50), event(90, 30), event(130, 200)]
    rank = one(write(tmp_path / "t.json", document(events)))
    assert [(p.window.start_ns, p.window.end_ns) for p in rank.steps] == [(0, 100), (100, 330)]
    for name in NAMES:
        assert sum(ns(p.times)[name] for p in rank.steps) == ns(rank.times)[name]


spans = st.lists(st.tuples(st.integers(0, 160), st.integers(0, 60)).map(lambda p: (p[0], p[0] + p[1])), max_size=9)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    compute=spans,
    communication=spans,
    copies=spans,
    borders=st.lists(st.integers(0, 250), max_size=4, unique=True),
    launches=st.booleans(),
    whole_us=st.booleans(),
    seed=st.integers(0, 9),
)
def test_every_nanosecond_counts_once(
    tmp_path: Path, compute: Any, communication: Any, copies: Any, borders: list[int], launches: bool, whole_us: bool,
    seed: int,
) -> None:  # fmt: skip
    """Against the set of all nanoseconds: of the whole, and of each step; and the steps add up."""
    if not compute + communication + copies:
        compute = [(3, 9)]
    k = 1000 if whole_us else 1
    rows = [("gemm", "kernel", 7, x) for x in compute] + [("nccl", "kernel", 20, x) for x in communication]
    rows += [("copy", "gpu_memcpy", 9, x) for x in copies]
    events = [
        event(a * k, (b - a) * k, name=name, category=kind, stream=stream, correlation=i)
        for i, (name, kind, stream, (a, b)) in enumerate(rows)
    ]
    if launches:
        events += [launch(max(0, a - i % 7) * k, i) for i, (*_, (a, _)) in enumerate(rows)]
    for number, (a, b) in enumerate(itertools.pairwise([*sorted(borders), 251])):
        events.append(step(number, a * k, (b - a) * k))
    if whole_us:
        for e in events:
            e["ts"], e["dur"] = (Number(e[key].removesuffix(".000")) for key in ("ts", "dur"))
    random.Random(seed).shuffle(events)
    rank = one(write(tmp_path / "t.json", document(events)))
    first = rank.trace.columns.first_ns - BASE_US * 1000
    for window, times in [(rank.window, rank.times), *((part.window, part.times) for part in rank.steps)]:
        low, high = (window.start_ns + first) // k, (window.end_ns + first) // k
        expected = slow_times(compute, communication, copies, (low, high))
        assert ns(times) == {name: value * k for name, value in expected.items()}
    if rank.steps:
        assert rank.steps[0].window.start_ns == rank.window.start_ns
        assert rank.steps[-1].window.end_ns == rank.window.end_ns
        for name in NAMES:
            assert sum(ns(part.times)[name] for part in rank.steps) == ns(rank.times)[name]
