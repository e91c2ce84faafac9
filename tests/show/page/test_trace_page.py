"""The page of a trace: self-contained, escaped, the numbers of the analysis, and what is left out is said."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from knee.commands.trace.page import most_exposed, sentence, timeline_of, trace_page
from knee.measure.traces import Analysis, analyse
from knee.measure.traces.device_time import exposed_intervals

pytest.importorskip("vl_convert")
NASTY = "</script><script>alert('1 & 2')</script><!--"


class Structure(HTMLParser):
    """Elements, and whether all that open also close."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def kernel(name: str, start: float, duration: float, stream: int = 7, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": 1000 + start,
        "dur": duration,
        "args": {"stream": stream, "device": 0, **args},
    }


def sent(start: float, duration: float, **args: Any) -> dict[str, Any]:
    return kernel(
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)",
        start,
        duration,
        20,
        **{
            "Collective name": "allreduce",
            "In msg nelems": 1 << 20,
            "Out msg nelems": 1 << 20,
            "dtype": "BFloat16",
            "Group size": 2,
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": "[0, 1]",
        }
        | args,
    )


def written(folder: Path, rank: int, *events: dict[str, Any], steps: int = 0, name: str = "gpu") -> Path:
    marks = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{i}",
            "pid": 1,
            "tid": 1,
            "ts": 1000 + 100 * i,
            "dur": 100,
        }
        for i in range(steps)
    ]
    path = folder / f"rank{rank}.json"
    path.write_text(
        json.dumps(
            {
                "deviceProperties": [{"name": name}],
                "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
                "traceEvents": [*marks, *events],
            }
        )
    )
    return path


def two_ranks(folder: Path) -> Analysis:
    """Rank 1 comes late: rank 0 waits for it for 30 of 50 µs."""
    mm = "void gemm<float, 4>(int&)"
    paths = [written(folder, 0, kernel(mm, 0, 40), sent(30, 50), kernel(mm, 90, 10)),
             written(folder, 1, kernel(mm, 0, 60), sent(60, 20), kernel(mm, 90, 10))]  # fmt: skip
    return analyse(paths, cache=False)


def test_exposed_stretches_add_up_and_name_what_fills_them(tmp_path: Path) -> None:
    events = [kernel("mm", 0, 10), kernel("ncclA", 5, 10, 20), kernel("ncclB", 12, 8, 21), kernel("mm", 30, 10),
              kernel("ncclA", 25, 20, 20)]  # fmt: skip
    rank = analyse(written(tmp_path, 0, *events), cache=False).ranks[0]
    found = exposed_intervals(rank.trace, rank.window)
    names = [rank.trace.columns.names[rank.trace.columns.name_id[one.row]] for one in found]
    assert [(one.start_ns, one.end_ns) for one in found] == [(10_000, 20_000), (25_000, 30_000), (40_000, 45_000)]
    assert names == ["ncclB", "ncclA", "ncclA"]
    assert sum(one.end_ns - one.start_ns for one in found) / 1e9 == pytest.approx(rank.times.exposed_comm_s, abs=1e-15)


def test_the_page_says_what_the_analysis_found(tmp_path: Path) -> None:
    page = trace_page(two_ranks(tmp_path), command="knee trace x")
    assert "The GPUs computed for 60.0% of the time, stood still for communication for 30.0%" in page
    assert "The others waited most for rank 1: 30.0 µs on average, in 1 call that it entered last" in page
    assert "6 kernels and 0 copies were read, every file to its end; " in page
    assert "All 2 stretches of exposed communication are drawn." in page
    # 2 MiB over two ranks, 50 and 20 µs; the median of both
    assert re.search(r">all_reduce</th><td>world</td>.*2\.00 MiB", page)
    ids = [t[1]["id"] for t in Structure(page).tags if "id" in t[1]]
    assert len(ids) == len(set(ids))
    names = ("summary", "breakdown", "collectives", "waiting", "kernels", "timeline", "audit", "assumptions")
    order = [page.index(f'<section id="{name}"') for name in names]
    assert order == sorted(order)


def test_nothing_is_fetched_and_every_picture_has_words(tmp_path: Path) -> None:
    page = trace_page(two_ranks(tmp_path))
    tags = Structure(page).tags
    assert not [t for t in tags if t[0] in ("img", "iframe", "object", "embed", "image", "use")]
    assert not [t for t in tags if "src" in t[1]]
    assert [t[1]["href"] for t in tags if t[0] == "link"] == ["data:,"]
    assert "url(" not in page
    assert all(t[1]["role"] == "img" and t[1]["aria-label"] for t in tags if t[0] == "svg")
    assert all(t[1]["tabindex"] == "0" for t in tags if t[1].get("class") == "scroll")
    assert "Command:" not in page


def test_a_hostile_trace_stays_text(tmp_path: Path) -> None:
    events = [
        kernel(f"{NASTY}gemm", 0, 10),
        sent(10, 10, **{"Process Group Description": NASTY}),
        kernel(f"nccl{NASTY}\ud800", 30, 10, 20),
    ]
    page = trace_page(analyse(written(tmp_path, 0, *events, name=NASTY), cache=False), title=NASTY, command=NASTY)
    plain = trace_page(two_ranks(tmp_path))
    assert "<script>alert" not in page
    assert "<!--" not in page
    assert page.count("<script") == plain.count("<script") == 3
    assert page.count("</script") == 3
    assert page.encode()
    Structure(page)


def test_json_cannot_leave_its_element(tmp_path: Path) -> None:
    name = f"nccl{NASTY}\u2028"
    page = trace_page(analyse(written(tmp_path, 0, kernel(name, 0, 10, 20)), cache=False))
    inlined = page.partition('<script type="application/json">')[2].partition("</script>")[0]
    assert not set("<>&") & set(inlined)
    assert name in json.loads(inlined)["kinds"][0]


def test_what_is_not_known_is_unknown(tmp_path: Path) -> None:
    path = written(tmp_path, 0, kernel("gemm", 0, 10), kernel("ncclKernel_Odd(x)", 10, 10, 20))
    page = trace_page(analyse(path, cache=False))
    row = re.search(r"<tbody><tr><th.*?</tr>", page[page.index('<section id="collectives"') :])
    assert row is not None
    assert row[0].count(">unknown</span>") == 5
    assert "The trace has no profiler steps." in page
    assert 'id="by-step"' not in page
    assert "The trace is of one rank only" in page
    assert '<section id="waiting"' not in page


def test_without_communication_or_time(tmp_path: Path) -> None:
    page = trace_page(analyse(written(tmp_path, 0, kernel("gemm", 0, 10)), cache=False))
    assert "No communication was found." in page
    assert "there is nothing to draw" in page
    Structure(trace_page(analyse(written(tmp_path, 0, kernel("gemm", 0, 0)), cache=False)))


def test_steps_are_drawn_and_tabled(tmp_path: Path) -> None:
    events = [kernel("gemm", 110 * i, 50) for i in range(3)]
    page = trace_page(analyse(written(tmp_path, 0, *events, steps=3), cache=False))
    assert 'id="by-step"' in page
    assert "Times of each rank&#39;s steps" in page


def test_a_drawing_says_what_it_leaves_out(tmp_path: Path) -> None:
    events = [kernel("nccl", 20 * i, 1 + i, 20) for i in range(5)]
    ranks = analyse(written(tmp_path, 0, *events), cache=False).ranks
    drawn = timeline_of(ranks, ranks, most=2)
    assert [span.length_ns for span in drawn.spans] == [5_000, 4_000]
    said = sentence(drawn)
    assert "The 2 longest of 5 stretches of exposed communication are drawn: 60.0% of the exposed time." in said


def test_more_ranks_than_a_chart_has_room_for(tmp_path: Path) -> None:
    analysis = two_ranks(tmp_path)
    ranks = tuple(replace(analysis.ranks[i % 2], rank=i) for i in range(150))
    assert {rank.rank % 2 for rank in most_exposed(ranks)} == {0}
    page = trace_page(replace(analysis, ranks=ranks))
    assert "Drawn are 64 of 150 ranks, the most exposed" in page
    assert "The 64 longest of 150 stretches" in page
    assert len(page) < 1_000_000
