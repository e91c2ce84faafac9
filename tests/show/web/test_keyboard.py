"""By keyboard alone: a way past everything, every control reached and seen, folds and drawings worked, no trap."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from .conftest import NAMES

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from .conftest import Made, Open

WATCH = """() => {
  window.stops = [];
  document.addEventListener("focusin", ({ target }) => {
    const style = getComputedStyle(target), box = target.getBoundingClientRect();
    window.stops.push([target.tagName, target.className, (target.textContent || "").trim().slice(0, 40),
      style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 && box.width > 0 && box.height > 0
      && box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth]);
  });
}"""
STOPS = "a[href], button, summary, [tabindex='0']"


@pytest.fixture(scope="module")
def study(made: Made, open_page: Open) -> Page:
    """Shared by tests each of which has a part of the page for itself."""
    return open_page(made.page("study")).page


def at_focus(page: Page) -> str:
    return str(page.evaluate("document.activeElement.textContent.trim()"))


def test_the_first_stop_leads_past_everything(made: Made, open_page: Open) -> None:
    study = open_page(made.page("study")).page
    skip = study.locator(".skip").first
    assert skip.bounding_box()["x"] < 0  # type: ignore[index]
    study.keyboard.press("Tab")
    assert at_focus(study) == "Skip to the summary"
    assert skip.bounding_box()["x"] > 0  # type: ignore[index]
    study.keyboard.press("Tab")
    assert at_focus(study) == "Skip to the contents"
    study.keyboard.press("Enter")
    assert study.url.endswith("#contents")
    study.keyboard.press("Tab")  # the first link of the contents
    assert study.evaluate("document.activeElement.closest('nav') !== null")
    assert at_focus(study) == "What knee found"
    study.keyboard.press("Tab")
    study.keyboard.press("Tab")
    assert at_focus(study).startswith("Figure 1")
    study.keyboard.press("Enter")
    assert study.url.endswith("#fig1")
    assert study.locator("#fig1").bounding_box()["y"] < 100  # type: ignore[index]


@pytest.mark.parametrize("name", NAMES)
def test_tab_goes_through_all_and_out_again(name: str, made: Made, open_page: Open) -> None:
    page = open_page(made.page(name)).page
    expected = page.locator(STOPS).evaluate_all("""(all) => all.filter((one) => one.checkVisibility()
        && !one.closest("details:not([open]) > :not(summary)")).length""")
    page.evaluate(WATCH)
    for _ in range(expected):
        page.keyboard.press("Tab")
    stops = page.evaluate("stops")
    assert len(stops) == expected > 5
    assert [stop for stop in stops if not stop[3]] == []
    page.keyboard.press("Tab")  # behind the last: out of the page
    assert page.evaluate("document.activeElement === document.body || stops.length === 1 + " + str(expected))
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("stops.length") > expected  # and back


def test_folds_open_and_close(study: Page) -> None:
    fold = study.locator("#fig6 figure details").first
    table = fold.locator("table")
    fold.locator("summary").focus()
    assert not table.is_visible()
    study.keyboard.press("Enter")
    assert table.is_visible()
    study.keyboard.press("Tab")  # its table scrolls by keyboard
    assert study.evaluate("document.activeElement.className") == "scroll"
    study.keyboard.press("Shift+Tab")
    study.keyboard.press("Space")
    assert not table.is_visible()


def ticks(drawing: Locator) -> list[str]:
    return drawing.locator(".axis span").all_text_contents()


def test_a_step_zooms_by_its_buttons(study: Page) -> None:
    drawing = study.locator("#fig3 .timeline").first
    drawn = drawing.locator("path.compute")
    whole, first = drawn.get_attribute("d"), ticks(drawing)
    zoom_in = drawing.get_by_role("button", name="Zoom in")
    zoom_in.focus()
    study.keyboard.press("Enter")
    assert drawn.get_attribute("d") != whole
    assert ticks(drawing) != first
    drawing.get_by_role("button", name="Zoom out").focus()
    study.keyboard.press("Space")
    assert drawn.get_attribute("d") == whole
    for name in ("Zoom in", "Later →", "Next longest stretch"):
        before = ticks(drawing)
        drawing.get_by_role("button", name=name).press("Enter")
        assert ticks(drawing) != before
    drawing.get_by_role("button", name="All", exact=True).press("Enter")
    assert ticks(drawing) == first


def test_a_step_is_looked_into_by_keys(study: Page) -> None:
    drawing = study.locator("#fig3 .timeline").nth(1)
    plot, said = drawing.locator(".plot"), drawing.locator("output")
    drawn = drawing.locator("path.compute")
    plot.focus()
    whole, first = drawn.get_attribute("d"), ticks(drawing)
    seen = [whole]
    for key in ("+", "+", "ArrowRight", "ArrowLeft", "-"):
        study.keyboard.press(key)
        seen.append(drawn.get_attribute("d"))
        assert seen[-1] != seen[-2], key
    study.keyboard.press("0")
    assert (drawn.get_attribute("d"), ticks(drawing)) == (whole, first)
    study.keyboard.press("n")
    longest = re.fullmatch(
        r"1 of (\d+): exposed, ([\d.]+) ms at ([\d.,]+) ms\. communication without compute.*", said.text_content() or ""
    )
    assert longest is not None
    assert drawing.locator("path.chosen").get_attribute("d")
    study.keyboard.press("n")
    assert (said.text_content() or "").startswith(f"2 of {longest[1]}: ")
    study.keyboard.press("p")
    assert said.text_content() == longest[0]
    study.keyboard.press("Escape")
    assert ticks(drawing) == first
    study.keyboard.press("Tab")  # no trap
    assert not plot.evaluate("(one) => one === document.activeElement")


def test_a_step_answers_the_mouse(study: Page) -> None:
    drawing = study.locator("#fig3 .timeline").nth(2)
    plot = drawing.locator(".plot")
    plot.scroll_into_view_if_needed()
    first, box = ticks(drawing), plot.bounding_box()
    assert box is not None
    study.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 10)
    assert "ms at" in (drawing.locator("output").text_content() or "")
    study.mouse.down()
    study.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 10)
    study.mouse.up()
    assert ticks(drawing) != first


def test_the_longest_stretch_of_a_trace_is_named(made: Made, open_page: Open) -> None:
    page = open_page(made.page("trace")).page
    plot = page.locator(".plot")
    plot.focus()
    for key in ("n", "n", "ArrowRight", "-", "0", "p", "+"):
        page.keyboard.press(key)
    words = page.locator("output").text_content() or ""
    assert re.match(
        r"1 of 6: rank 0, 0\.490 ms exposed at [\d.]+ ms\. all_reduce, group world of 2 ranks, 2\.00 MiB, "
        r"kernel ncclDevKernel_AllReduce_Sum_bf16_RING_LL\(x\)",
        words,
    ), words
