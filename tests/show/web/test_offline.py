"""A page is one file: it asks for nothing else, says nothing to the console, and is whole without scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from knee.commands.study.study_file import load_study

from .conftest import NAMES, PHONE, STUDIES

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from .conftest import Made, Open

MOST_BYTES = 4_000_000
STEPS = sum(len(load_study(name).timeline) for name in STUDIES)
BLOCKED = """async () => {
  const blocked = [], both = new Promise((done) => document.addEventListener("securitypolicyviolation",
    (event) => blocked.push(event.effectiveDirective) === 2 && done()));
  const image = new Image();
  image.src = "https://example.org/a.png";
  document.body.append(image);
  const fetched = await fetch("https://example.org/").then(() => true, () => false);
  await both;
  return [fetched, blocked.sort()];
}"""
WORDS = """() => {
  const main = document.querySelector("main").cloneNode(true);
  for (const moved of main.querySelectorAll(".axis, output, script")) moved.remove();
  return main.textContent;
}"""


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_small(name: str, made: Made) -> None:
    assert made.page(name).stat().st_size < MOST_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_it_asks_for_nothing_says_nothing_and_lets_nothing_out(name: str, made: Made, open_page: Open) -> None:
    opened = open_page(made.page(name), offline=False)
    page = opened.page
    page.mouse.wheel(0, 5000)
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    page.set_viewport_size(PHONE)  # drawings follow their place
    page.emulate_media(color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.requests == [made.page(name).as_uri()]
    assert opened.said == []
    ended: list[str | None] = []
    page.on("requestfinished", lambda request: ended.append(request.url))
    page.on("requestfailed", lambda request: ended.append(request.failure))
    policy = page.get_attribute('meta[http-equiv="Content-Security-Policy"]', "content")
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert page.evaluate(BLOCKED) == [False, ["connect-src", "img-src"]]
    assert set(ended) == {"csp"}  # held back by the policy, before the network was asked


@pytest.mark.parametrize("name", NAMES)
def test_without_scripts_all_is_there(name: str, made: Made, open_page: Open, shown: Callable[[str], Page]) -> None:
    with_them = shown(name)
    without = open_page(made.page(name), java_script_enabled=False).page
    assert without.evaluate(WORDS) == with_them.evaluate(WORDS)
    for page in (with_them, without):
        drawn = page.evaluate("""[...document.querySelectorAll(".timeline svg")].map(
            (svg) => [...svg.querySelectorAll("path:not(.chosen)")].some((path) => path.getBBox().width > 900))""")
        assert all(drawn)
        assert len(drawn) == {"study": STEPS, "report": 0, "trace": 1}[name]
    assert without.locator(".tools:visible").count() == 0  # buttons that would do nothing
    assert with_them.locator(".tools:visible").count() == len(drawn)
    closed = without.locator("details").first
    closed.locator("summary").click()  # folds need no script
    assert closed.get_attribute("open") is not None
