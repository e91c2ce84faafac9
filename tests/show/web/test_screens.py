"""Phones, tablets and desks, in the light and in the dark: nothing is cut, nothing too small to tap or too pale."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from knee.show.figures.palette import dark_of
from lanes import with_nightly

from .conftest import NAMES

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from .conftest import Made, Open

CUT = """() => {
  const root = document.documentElement, found = [];
  if (root.scrollWidth > root.clientWidth) found.push(`the page: ${root.scrollWidth} of ${root.clientWidth}`);
  for (const one of document.querySelectorAll("body *")) {
    if (!one.checkVisibility() || one.closest("svg, .plot, .hidden, .skip")) continue;
    const style = getComputedStyle(one), box = one.getBoundingClientRect(), scrolls = one.matches(".scroll, .contents");
    if (!one.closest(".scroll table") && (box.right > root.clientWidth + 1 || box.left < -1))
      found.push(`outside: ${one.outerHTML.slice(0, 80)}`);
    if (!scrolls && style.overflowX !== "visible" && one.scrollWidth > one.clientWidth + 1)
      found.push(`cut: ${one.outerHTML.slice(0, 80)}`);
    if (scrolls && one.scrollWidth > one.clientWidth && style.overflowX !== "auto")
      found.push(`does not scroll: ${one.outerHTML.slice(0, 80)}`);
  }
  return found;
}"""
TEXT_IN_PICTURES = """[...document.querySelectorAll("figure svg")].flatMap((svg) => {
  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  return [...svg.querySelectorAll("text")].map((text) => scale * parseFloat(getComputedStyle(text).fontSize));
})"""
DRAWN = """(width) => new Promise((done) => {
  const next = () => requestAnimationFrame(innerWidth === width ? () => requestAnimationFrame(done) : next);
  next();
})"""
"""Drawings follow a resize event, which comes with the next frame."""
TICKS = """[...document.querySelectorAll(".axis")].map((axis) => {
  const boxes = [...axis.children].map((tick) => tick.getBoundingClientRect()), room = axis.getBoundingClientRect();
  return boxes.length > 0 && boxes.every((box, i) => box.right <= room.right + 1 && box.left >= room.left - 1
    && (!i || box.left >= boxes[i - 1].right));
})"""
SMALL = """[...document.querySelectorAll("button, summary, nav a")].filter((one) => one.checkVisibility())
  .map((one) => [one.getBoundingClientRect(), one.textContent]).filter(([box]) => box.height < 24 || box.width < 24)
  .map(([box, words]) => `${words}: ${box.width} x ${box.height}`)"""
COLOURS = """() => {
  const pairs = new Map(), ground = (one) => {
    for (; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (!/rgba\\(.*, 0\\)|transparent/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || one.closest("script, style, svg, title")) continue;
    const key = `${getComputedStyle(one).color} on ${ground(one)}`;
    if (!pairs.has(key)) pairs.set(key, one.outerHTML.slice(0, 80));
  }
  const paper = ground(document.body);
  for (const svg of document.querySelectorAll("figure svg")) {
    const cells = [...svg.querySelectorAll("path, rect")].map((cell) => [cell, cell.getBoundingClientRect()])
      .filter(([cell, box]) => box.width > 12 && box.height > 12 && getComputedStyle(cell).fill !== "none"
        && Number(getComputedStyle(cell).fillOpacity) > 0.5);
    for (const text of svg.querySelectorAll("text")) {
      const box = text.getBoundingClientRect(), x = box.left + box.width / 2, y = box.top + box.height / 2;
      const under = cells.filter(([, at]) => at.left < x && x < at.right && at.top < y && y < at.bottom).at(-1);
      const key = `${getComputedStyle(text).fill} on ${under ? getComputedStyle(under[0]).fill : paper}`;
      if (text.textContent.trim() && !pairs.has(key)) pairs.set(key, `${text.textContent} in a chart`);
    }
  }
  return [...pairs];
}"""


@pytest.fixture(scope="module", params=NAMES)
def page(request: pytest.FixtureRequest, made: Made, open_page: Open) -> Page:
    return open_page(made.page(request.param)).page


@pytest.mark.parametrize("width", with_nightly([320, 1440], [360, 768]))
def test_nothing_is_cut_or_leaves_the_screen(width: int, page: Page) -> None:
    page.set_viewport_size({"width": width, "height": 740})
    page.evaluate(DRAWN, width)
    assert page.evaluate(CUT) == []
    assert all(page.evaluate(TICKS))
    if width == 360:
        page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        assert page.evaluate(CUT) == []  # wide tables scroll in their place
        page.evaluate("for (const d of document.querySelectorAll('details')) d.open = false")
        assert page.evaluate(SMALL) == []
        sizes = page.evaluate(TEXT_IN_PICTURES)
        assert min(sizes) > 8
        assert sorted(sizes)[len(sizes) // 2] > 9


def luminance(colour: tuple[float, ...]) -> float:
    parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def rgb(colour: str) -> tuple[float, ...]:
    found = tuple(float(part) for part in re.findall(r"[\d.]+", colour))
    assert len(found) == 3 or found[3] == 1, colour
    return found[:3]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(rgb(a)), luminance(rgb(b))))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out(scheme: Any, page: Page) -> None:
    page.emulate_media(color_scheme=scheme)
    pairs = page.evaluate(COLOURS)
    pale = {pair: where for pair, where in pairs if contrast(*pair.split(" on ")) < 4.5}
    assert pale == {}
    assert len(pairs) > 4
    paper = luminance(rgb(page.evaluate("getComputedStyle(document.body).backgroundColor")))
    assert paper < 0.02 if scheme == "dark" else paper > 0.9


def test_the_dark_has_its_own_colours_in_charts(page: Page) -> None:
    """Every colour of a picture is one of the palette's, and gives way to its counterpart."""
    page.emulate_media(color_scheme="dark")
    shown = page.evaluate("""[...new Set([...document.querySelectorAll("figure svg *")].flatMap((one) =>
        ["fill", "stroke"].filter((part) => one.hasAttribute(part)
            && !(part === "stroke" && getComputedStyle(one).strokeWidth === "0px")).map((part) =>
            `${one.getAttribute(part)} ${getComputedStyle(one)[part]}`)))].map((pair) => pair.split(/ (.*)/))""")
    assert len(shown) > 4
    for light, now, *_ in shown:
        if light in ("none", "transparent"):
            continue
        dark = dark_of()[light]
        assert rgb(now) == tuple(int(dark[i : i + 2], 16) for i in (1, 3, 5))
