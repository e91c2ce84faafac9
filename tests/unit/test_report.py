"""The page: self-contained, escaped, and saying what the records say."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from knee.errors import InputError
from knee.files import csv_text, make_folder, write_text
from knee.report.html import heading, shown, table, tag
from knee.report.page import Chart, Key, Page, Section, inline_svg, render
from knee.study.verdict import Tally, Verdict

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="4" height="2" viewBox="0 0 4 2"><g><text>8</text></g></svg>'
NASTY = '<script>alert("1 & 2")</script>'


def _verdict(outcome: str = "reproduced", **changes: object) -> Verdict:
    values: dict[str, object] = {"id": "T01", "statement": "falls", "paper": "-1%", "bar": "within 1",
                                 "simulated": "-1.2%", "verdict": outcome, "fitted": False}
    return Verdict(**(values | changes))  # type: ignore[arg-type]


def _page(word: str = "plain") -> str:
    records = [{"plan": word, "gpus": 8, "step_s": 0.12345678901234}]
    chart = Chart(id="c", title=word, caption=word, svg=SVG, tables=(table(word, tuple(records[0]), records),))
    verdicts = (_verdict(statement=word, simulated=word), _verdict("failed", id="T02"),
                _verdict("not testable", id="T03"))
    return render(Page(
        title=word, question=word, command=f"knee study --out {word}", keys=(Key(value=word, says=word, paper=word),),
        found=(word,), verdicts=verdicts, sections=(Section(id="s", title=word, says=word, charts=(chart,)),),
        assumptions=(word,), sources=((word, "https://example.org/paper"),), version="0",
    ))


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
    assert "&lt;script&gt;alert(&quot;1 &amp; 2&quot;)&lt;/script&gt;" in html
    _structure(html)


def test_attributes_are_escaped() -> None:
    assert tag("a", "x", title='"><b>') == '<a title="&quot;&gt;&lt;b&gt;">x</a>'
    assert tag("p", class_="a", hidden=True, id=None, open=False) == '<p class="a" hidden></p>'


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
    places = [html.index(f'id="{name}"') for name in ("summary", "claims", "s", "assumptions")]
    assert places == sorted(places)
    assert html.index('class="skip"') < html.index("<header")
    regions = [t for t in _structure(html).tags if t[1].get("class") == "scroll"]
    assert all(t[1]["tabindex"] == "0" and t[1]["aria-label"] for t in regions)


def test_verdicts_are_words_not_only_colours() -> None:
    html = _page()
    assert "claims: 1 reproduced, 1 failed, 1 not testable" in html
    assert all(f"{mark} {word}" in html for mark, word in (("✓", "reproduced"), ("✗", "failed"), ("–", "not testable")))
    assert str(Tally.of([])) == "0 reproduced, 0 failed, 0 not testable"


def test_every_picture_has_a_label_and_a_dark_side() -> None:
    html = _page()
    assert re.search(r'<svg [^>]*viewBox="0 0 4 2" role="img" aria-label="plain', html)
    assert "prefers-color-scheme: dark" in html
    assert 'svg [fill="#0072b2"]' in html
    assert 'width="4"' not in inline_svg(SVG, "x")


def test_tables_hold_values_in_full() -> None:
    assert '<data value="0.12345678901234">0.1235</data>' in _page()


@pytest.mark.parametrize(("column", "value", "words"), [
    ("mfu_frac", 0.4077, "40.8"), ("memory_bytes", 2.0**30, "1.0"), ("tokens_per_s", 10795934.2, "10,795,934"),
    ("gpus", 2048, "2,048"), ("step_s", 0.96, "0.9600"), ("bubble_s", 0.0, "0"), ("fits", True, "yes"),
    ("plan", "TP 2", "TP 2"),
])
def test_values_as_people_read_them(column: str, value: object, words: str) -> None:
    assert shown(column, value) == words


@pytest.mark.parametrize(("column", "words"), [
    ("gpus", "GPUs"), ("exposed_comm_s", "exposed comm (s)"), ("tokens_per_s_per_gpu", "tokens/s per GPU"),
    ("plan", "plan"),
    ("tokens_per_s", "tokens/s"), ("ideal_tokens_per_s", "ideal tokens/s"), ("power_w_per_gpu", "power (W per GPU)"),
    ("tokens_per_j", "tokens/J"), ("mfu_frac", "MFU (%)"),
])
def test_headings_carry_units(column: str, words: str) -> None:
    assert heading(column) == words


def test_a_file_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="No space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    for name in ("out", "out/deeper"):
        with pytest.raises(InputError, match="a file of that name") as caught:
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
