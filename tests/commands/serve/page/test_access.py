"""The page for everyone: by keyboard alone, with a screen reader, on a small screen, in the dark, without motion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lanes import with_nightly

from .conftest import DESK, PHONE

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from .conftest import Open

STATES = with_nightly(
    ["?pp=2&tokens=1000000000000", "?view=plan&gpus=8"],
    ["?view=scale&curves=|cluster=dgx-a100", "?view=budget&gpus=8&days=2&usd=500", "?compare=tp%3D2"],
)
WIDER = "document.documentElement.scrollWidth - innerWidth"
FOCUS = """() => {
  const one = document.activeElement, style = getComputedStyle(one);
  const named = one.labels?.[0]?.textContent || one.getAttribute("aria-label") || one.textContent;
  return [one.id || one.getAttribute("data-view") || named.trim().slice(0, 40),
    one === document.body || (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2)
      || one.matches(".segments input")];
}"""
MOVING = """() => [...document.querySelectorAll("*")]
  .filter((one) => parseFloat(getComputedStyle(one).transitionDuration) > 0).length + document.getAnimations().length"""


def violations(page: Page, context: str = "body", *, contrast: bool | None = None) -> list[Any]:
    """What axe finds; ``contrast`` alone, or without it, because it takes most of the time."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if contrast is not None:
        options |= {"runOnly": ["color-contrast"]} if contrast else {"rules": {"color-contrast": {"enabled": False}}}
    found = axe.run(page, context=context, options=options).response["violations"]
    return [(one["id"], [node["target"] for node in one["nodes"]]) for one in found]


@pytest.mark.parametrize("state", STATES)
def test_axe_finds_nothing_and_360_pixels_are_enough(explorer: Open, state: str) -> None:
    found = explorer(state, reduced_motion="reduce")
    page = found.page
    page.locator("main details summary").first.click()
    page.locator("main figure details summary").first.click()
    assert violations(page, contrast=None if "compare" not in state else False) == []
    if "pp=2" in state:  # all views have their colours from the same few names
        page.emulate_media(color_scheme="dark", reduced_motion="reduce")
        assert violations(page, contrast=True) == []
    assert page.evaluate(MOVING) == 0
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.locator("#question-fold:not([open])").wait_for(state="attached")
    assert page.evaluate(WIDER) <= 0
    page.locator("#question-fold > summary").click()
    assert page.evaluate(WIDER) <= 0


def test_the_keyboard_alone_is_enough(explorer: Open) -> None:
    found = explorer("", viewport=DESK)
    page = found.page
    stops = []
    for _ in range(200):
        page.keyboard.press("Tab")
        stop = page.evaluate(FOCUS)
        stops.append(stop)
        if stop[0] == "panel":
            break
    assert all(seen for _, seen in stops), [name for name, seen in stops if not seen]
    reached = [name for name, _ in stops]
    assert reached[0] == "Skip to the answer"
    wanted = {"presets", "pin", "open-files", "open-share", "control-model", "control-gpus", "control-tp", "tab-step"}
    assert wanted <= set(reached)
    assert "tab-scale" not in reached  # arrows move between tabs
    page.locator("#tab-step").focus()
    for key, view in (("ArrowRight", "scale"), ("End", "budget"), ("ArrowRight", "step"), ("ArrowRight", "scale")):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.id") == f"tab-{view}"
        assert page.locator("[role=tab][aria-selected=true]").get_attribute("data-view") == view
    found.settled()
    page.keyboard.press("Tab")
    page.locator("#said").filter(has_text="doubling").wait_for(state="attached")  # what a screen reader says
    page.get_by_role("radio", name="tokens/s per GPU").focus()
    page.keyboard.press("ArrowRight")
    found.settled()
    assert found.state()["metric"] == "mfu_frac"
    page.locator("#open-share").press("Enter")
    assert page.evaluate("document.activeElement.closest('dialog') !== null")
    assert violations(page, "#share") == []
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "open-share"
