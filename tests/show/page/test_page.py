"""The page: self-contained, escaped, and saying what the records say."""

from __future__ import annotations

import itertools
import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from markupsafe import escape

from knee.base.errors import InputError, NotWritten
from knee.base.files import csv_text, make_folder, write_text
from knee.commands.study.claims import Verdict
from knee.commands.study.page import drawn_of, study_page, write_page
from knee.commands.study.run_study import Ran
from knee.commands.study.step_timeline import joined, outside, step_timelines, timeline_of
from knee.commands.study.study_file import uncounted
from knee.commands.study.summary_section import MARKS, anchor
from knee.engine.events import EventLog, RankGroup
from knee.show.page.page import Bullets, Chart, Fold, Key, Page, Section, render, render_page
from knee.show.page.tables import kind_table, record_table
from knee.trust.validation.bundled_runs import CarriedFidelity, SourceFidelity
from shared_studies import ran_once

pytestmark = pytest.mark.slow

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="4" height="2" viewBox="0 0 4 2"><g><text>8</text></g></svg>'
NASTY = '<script>alert("1 & 2")</script>'


def _page(word: str = "plain") -> str:
    records = [{"plan": word, "gpus": 8, "step_s": 0.12345678901234, "idle_s": None}]
    chart = Chart(id="c", title=word, caption=word, svg=SVG, tables=(record_table(word, records),))
    named = kind_table(word, {word: "name"}, [(word,)])
    blocks = (Fold(summary=word, about=word, blocks=(named,)), Bullets(title=word, sentences=(word,)))
    return render_page(
        Page(
            title=word,
            question=word,
            command=f"knee study --out {word}",
            keys=(Key(value=word, says=word),),
            found=(word,),
            sections=(Section(id="s", title=word, says=word, charts=(chart,), blocks=blocks),),
            assumptions=(word,),
            sources=((word, "https://example.org/paper"),),
        )
    )


class Structure(HTMLParser):
    """Open elements, ids and references of a page."""

    VOID = ("meta", "link", "br", "hr", "img", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _structure(html: str) -> Structure:
    parser = Structure()
    parser.feed(html)
    assert parser.open == []
    return parser


def test_text_is_escaped_everywhere() -> None:
    html = _page(NASTY)
    assert NASTY not in html
    assert html.count("<script") == 1
    assert "&lt;script&gt;alert(&#34;1 &amp; 2&#34;)&lt;/script&gt;" in html
    _structure(html)


def test_attributes_are_escaped() -> None:
    html = _page('"><b>')
    assert "<b>" not in html
    assert 'aria-label="&#34;&gt;&lt;b&gt;"' in html


def test_a_value_that_is_missing_is_an_error() -> None:
    jinja2 = pytest.importorskip("jinja2")
    with pytest.raises(jinja2.UndefinedError):
        render("plot.html", title="no picture")


def test_nothing_is_fetched() -> None:
    html = _page()
    tags = _structure(html).tags
    assert not [t for t in tags if t[0] in ("img", "iframe", "object", "embed", "audio", "video", "use", "image")]
    assert not [t for t in tags if "src" in t[1] or "srcset" in t[1]]
    assert [t[1]["href"] for t in tags if t[0] == "link"] == ["data:,"]
    assert "@import" not in html
    assert "url(" not in html
    policy = next(t[1]["content"] for t in tags if t[1].get("http-equiv") == "Content-Security-Policy")
    assert (policy or "").startswith("default-src 'none'")


def test_links_within_the_page_lead_somewhere() -> None:
    tags = _structure(_page()).tags
    ids = [t[1]["id"] for t in tags if "id" in t[1]]
    assert len(ids) == len(set(ids))
    links = {t[1]["href"] or "" for t in tags if t[0] == "a"}
    assert {link for link in links if link.startswith("#")} <= {f"#{i}" for i in ids}


def test_the_page_is_ordered_and_usable_by_keyboard() -> None:
    html = _page()
    places = [html.index(f'id="{name}"') for name in ("summary", "s", "assumptions")]
    assert places == sorted(places)
    assert html.index('class="skip"') < html.index("<header")
    regions = [t for t in _structure(html).tags if t[1].get("class") == "scroll"]
    assert all(t[1]["tabindex"] == "0" and t[1]["aria-label"] for t in regions)


def test_every_picture_has_a_label_and_a_dark_side() -> None:
    html = _page()
    assert re.search(r'<svg [^>]*role="img" aria-label="plain[^>]* viewBox="0 0 4 2"', html)
    assert "prefers-color-scheme: dark" in html
    assert 'svg [fill="#0072b2"]' in html
    assert 'width="4"' not in html


def test_tables_hold_values_in_full() -> None:
    assert '<data value="0.12345678901234">0.1235</data>' in _page()
    assert '<span class="unknown">unknown</span>' in _page()


def test_a_file_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(NotWritten, match="No space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    for name in ("out", "out/deeper"):
        with pytest.raises(InputError, match="a file with that name") as caught:
            make_folder(tmp_path / name)
        assert caught.value.hint


def test_csv_quotes_what_it_must() -> None:
    assert csv_text([{"id": "T01", "simulated": 'a, "b"'}]) == 'id,simulated\nT01,"a, ""b"""\n'


def test_a_link_is_followed_and_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    write_text(Path("/dev/null"), "nothing")
    assert not Path("/dev/null").is_file()


# ---- studies ---------------------------------------------------------------------------------------------------------


def source(name: str, median: float) -> SourceFidelity:
    return SourceFidelity(
        source=name,
        stacks="Megatron",
        gpus="A100, up to 8",
        runs=4,
        median_frac=median,
        p90_frac=0.2,
        bias_frac=0.0,
        unseen_frac=median + 0.01,
        unseen_p90_frac=None,
        memory_median_frac=None,
        reference="a paper",
        form_from=None,
    )


FIDELITY = CarriedFidelity(
    sources=(source("good", 0.01), source("bad", 0.09)),
    unseen_frac=0.06,
    unseen_p90_frac=0.2,
    headline_frac=0.05,
    all_reduce=None,
    all_gather=None,
)


def verdict(outcome: str = "reproduced", **changes: object) -> Verdict:
    values: dict[str, object] = {
        "id": "T01",
        "study": "fig3",
        "says": "falls",
        "paper": "-1%",
        "bar": "within 1",
        "found": "-1.2%",
        "verdict": outcome,
        "off": "",
        "kind": "simulated",
        "role": "independent",
        "by": "",
        "because": "",
        "why": "",
    }
    return Verdict(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def ran(studied: Path) -> list[Ran]:
    """Weak scaling with its steps, what needs no simulation, and a heat map."""
    pytest.importorskip("vl_convert")
    return ran_once(["fig1", "fig2b", "fig3", "table1"], studied)


@pytest.fixture(scope="module")
def page(ran: list[Ran]) -> str:
    return study_page(ran, FIDELITY, command="knee study run fig1", beside=["runs.csv", "records"])


def test_the_study_page_is_whole_and_fetches_nothing(page: str) -> None:
    tags = _structure(page).tags
    assert not [t for t in tags if t[0] in ("img", "iframe", "object", "embed", "audio", "video", "use", "image")]
    assert not [t for t in tags if "src" in t[1] or "srcset" in t[1]]
    assert "url(" not in page
    assert "@import" not in page
    ids = [t[1]["id"] for t in tags if "id" in t[1]]
    assert len(ids) == len(set(ids))
    links = {t[1]["href"] or "" for t in tags if t[0] == "a"}
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert {link for link in links if link.startswith("http")} == {"https://arxiv.org/abs/2411.13055"}
    assert len(page.encode()) < 600_000


def test_headings_go_down_one_by_one(page: str) -> None:
    levels = [int(t[0][1]) for t in _structure(page).tags if re.fullmatch(r"h[1-6]", t[0])]
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))


def test_landmarks_and_labels_for_those_who_do_not_see(page: str) -> None:
    tags = _structure(page).tags
    names = [t[0] for t in tags]
    assert [names.count(name) for name in ("main", "nav", "header", "footer")] == [1, 1, 1, 1]
    assert all(t[1]["role"] == "img" and t[1]["aria-label"] for t in tags if t[0] == "svg")
    assert all(t[1]["tabindex"] == "0" and t[1]["aria-label"] for t in tags if t[1].get("class") == "scroll")
    assert page.count("<caption>") == names.count("table")
    assert all("scope" in t[1] for t in tags if t[0] == "th")
    assert page.index('class="skip"') < page.index("<header")


def test_the_summary_comes_first_with_the_knee_and_the_worst_row(page: str) -> None:
    order = [
        page.index(f'id="{name}"')
        for name in ("summary", "paper", "fig1", "fig2b", "fig3", "claims", "fidelity", "about")
    ]
    assert order == sorted(order)
    assert page.index('<section id="summary"') < page.index("<nav")
    first = page[: page.index("<nav")]
    assert re.search(r"<strong>[\d,]+ GPUs</strong>", first)
    assert "The worst source is bad, off by 10.0%" in first
    assert "bad (worst)" in first
    assert first.count("<li>") >= 4
    assert "independent claims are reproduced" in first


def test_values_on_the_page_are_the_rows(ran: list[Ran], page: str) -> None:
    shown = {float(value) for value in re.findall(r'<data value="([^"]+)">', page)}
    columns = (
        "tokens_per_s",
        "tokens_per_s_per_gpu",
        "step_s",
        "compute_s",
        "exposed_comm_s",
        "overlapped_comm_s",
        "power_w_per_gpu",
        "tokens_per_j",
    )
    weak = next(one for one in ran if one.study.name == "fig3")
    assert {row[column] for row in weak.rows for column in columns} <= shown
    sheets = next(one for one in ran if one.study.name == "table1")
    assert {row["link_bytes_per_s"] for row in sheets.rows} <= shown


def test_every_claim_is_there_twice_and_linked_both_ways(ran: list[Ran], page: str) -> None:
    for one in ran:
        for v in one.verdicts:
            assert page.count(f'id="{anchor(v.id)}"') == 1
            assert f'<a href="#{anchor(v.id)}">{v.id}</a>' in page
        assert f'href="#{one.study.name}"' in page
    assert all(why[:20] in page for why in list(uncounted().values())[:3])
    free = [v for one in ran for v in one.verdicts if v.role == "independent"]
    assert f"independent claims: {sum(not v.failed for v in free)} reproduced" in page


def test_each_study_has_paper_finding_trust_command_and_tables(ran: list[Ran], page: str) -> None:
    for one in ran:
        part = page[page.index(f'<article id="{one.study.name}"') :]
        part = part[: part.index("</article>")]
        assert "The paper says" in part
        assert f"<p>{escape(one.finding)}</p>" in part
        assert f"knee study run {one.study.name}" in part
        assert (f"<strong>{one.trust}</strong>" in part) == (one.trust is not None)
        assert part.count("<figure") == len(one.study.draw)
        assert part.count("<summary>Table") == len(one.study.draw)


def test_part_of_the_studies_is_a_page_of_those(ran: list[Ran]) -> None:
    page = study_page(ran[-1:], FIDELITY, command="knee study run table1")
    assert f"<h1>{ran[-1].study.title}</h1>" in page
    assert 'id="fig3"' not in page
    _structure(page)


def test_hostile_text_stays_text(ran: list[Ran]) -> None:
    bad = replace(ran[-1].study, title=NASTY, question=NASTY, paper=NASTY, assumptions=(NASTY,), place=NASTY)
    rows = tuple({**row, "gpu": NASTY} for row in ran[-1].rows)
    hostile = replace(
        ran[-1],
        study=bad,
        rows=rows,
        finding=NASTY,
        verdicts=(
            verdict(
                study="table1", says=NASTY, found=NASTY, why=NASTY, because=NASTY, by=NASTY, verdict="off", off=NASTY
            ),
        ),
    )
    page = study_page([hostile], FIDELITY, command=NASTY, beside=[])
    assert "<script>alert" not in page
    assert page.count("<script") == 1
    _structure(page)


def test_figures_are_files_of_their_own(ran: list[Ran], tmp_path: Path) -> None:
    path = write_page(ran[-1:], FIDELITY, tmp_path, command="knee study run table1")
    assert path == tmp_path / "index.html"
    name = "table1-1-growth-over-v100"
    found = sorted(p.name for p in (tmp_path / "figures").iterdir())
    assert found == [f"{name}.png", f"{name}.svg", f"{name}.vl.json"]
    assert 'href="figures"' in path.read_text(encoding="utf-8")


def test_verdicts_are_words_not_only_colours(ran: list[Ran]) -> None:
    outcomes = ("reproduced", "off", "contradicted", "not testable")
    some = [verdict(outcome, id=f"T{i}", study="table1") for i, outcome in enumerate(outcomes)]
    some.append(verdict(id="T9", study="table1", role="fitted", because="a constant"))
    page = study_page([replace(ran[-1], verdicts=tuple(some))], FIDELITY, command="")
    article, claims = page.split("<article")[1].split("</article>")[0], page.split('<section id="claims"')[1]
    for part in (article, claims):
        assert all(f"{MARKS[v.verdict]} {v.verdict}</span>" in part for v in some)
        assert "a constant" in part
    assert "independent claims: 1 reproduced, 2 failed, 1 not testable" in claims
    assert "Made by <code>" not in page


# ---- steps -----------------------------------------------------------------------------------------------------------


def test_steps_have_lanes_and_exposed_is_what_no_compute_hides() -> None:
    log, group = EventLog(), RankGroup(name="dp_shard", size=8)
    log.comm("all_gather", group, 0.0, 0.2, 2.0**20)
    log.compute("mm", 0.1, 0.4)
    log.comm("reduce_scatter", group, 0.4, 0.3, 2.0**20)
    step = timeline_of([log.freeze(step_s=1.0)], id="a", title="A")
    lanes = step.lanes
    assert lanes.rows == ("compute", "all-gather", "reduce-scatter", "exposed")
    exposed = [(s.start, s.length) for s in lanes.spans if s.style == 5]
    assert exposed == [(0, 1_000_000), (5_000_000, 2_000_000)]
    assert [lanes.spans[i].length for i in lanes.order] == [2_000_000, 1_000_000]
    assert any("all gather of 8 ranks (dp_shard), 1 MiB" in words for words in lanes.words)
    assert "3 kernels of one GPU" in step.says


def test_short_kernels_are_drawn_with_their_neighbours_and_it_is_said() -> None:
    log = EventLog()
    for i in range(20_000):
        log.compute(f"k{i % 7}", i * 5e-5, 4e-5)
    step = timeline_of([log.freeze(step_s=1.0)], id="a", title="A")
    assert len(step.lanes.spans) < 1_100
    assert "are drawn as one with their neighbours" in step.says
    assert any(words.endswith("and 3 more kinds") for words in step.lanes.words)


def test_outside_is_the_difference_of_sets() -> None:
    starts, ends = outside((np.array([0.0, 4.0]), np.array([3.0, 6.0])), (np.array([1.0, 5.0]), np.array([2.0, 9.0])))
    assert list(zip(starts, ends, strict=True)) == [(0.0, 1.0), (2.0, 3.0), (4.0, 5.0)]
    assert joined([], 1.0) == []


def test_the_steps_of_a_study_are_small_enough_to_carry(ran: list[Ran]) -> None:
    weak = next(one for one in ran if one.study.name == "fig3")
    steps = list(step_timelines(weak))
    assert [step.title for step in steps] == ["FSDP on 128 GPUs", "FSDP on 2,048 GPUs", "TP 4 on 2,048 GPUs"]
    assert all(len(json.dumps(step.lanes.data())) + len(str(list(step.lanes.paths()))) < 60_000 for step in steps)
    changed = replace(weak, rows=tuple({**row, "gpus": 3} for row in weak.rows))
    assert list(step_timelines(changed)) == []
    assert drawn_of(changed, steps=False).steps == ()
