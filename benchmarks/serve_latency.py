"""From a change of one control to new charts on the screen, in a real Chromium; first paint and weight of the page.

    python benchmarks/serve_latency.py [--changes 60]

The page measures itself (``window.knee_timings``): from the event of the control until the frame with the new charts is
handed to the screen. The machine should be idle, because the server and the browser share it. The floor is the same
chart drawn again from an answer that the page already has.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from statistics import median, quantiles
from typing import Any

from figures import Compared, Figure, main

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
P50_MS, P95_MS, PAINT_MS, WEIGHT_MB = 80.0, 200.0, 1000.0, 1.5
CHANGED = ("gpus", "tp", "local_batch", "seq_len")
"""Sliders that are moved to the right and back, in turn."""
WARM = 12
"""Changes that are not counted: every process of the server answers its first question of a kind."""
LIMIT_S = 60.0


def figures(changes: int = 60) -> list[Figure]:
    """Milliseconds of the Step and the Scale view, first paint, megabytes."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with served() as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=list(FLAGS))
        weight, paint = _weight_and_paint(browser, address)
        found = []
        for view, title in (("step", "Step"), ("scale", "Scale, 9 GPU counts")):
            floor, times = _latencies(browser, f"{address}?view={view}", changes, view == "scale")
            p95 = quantiles(times, n=20)[-1]
            compared = None if floor is None else Compared(name="drawing alone", value=floor, kind="floor")
            found += [
                Figure(
                    name=f"{title}: change to charts, p50",
                    value=median(times),
                    unit="ms",
                    aim=P50_MS,
                    compared=compared,
                ),
                Figure(name=f"{title}: change to charts, p95", value=p95, unit="ms", aim=P95_MS),
            ]
        browser.close()
    return [
        *found,
        Figure(name="first paint", value=paint, unit="ms", aim=PAINT_MS),
        Figure(name="weight of the page", value=weight / 1e6, unit="MB", aim=WEIGHT_MB),
    ]


@contextmanager
def served() -> Iterator[str]:
    """A server of its own."""
    command = [sys.executable, "-m", "knee", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def _weight_and_paint(browser: Any, address: str) -> tuple[float, float]:
    """Bytes of all that the page loads but its answers, and its first paint after a first visit."""
    page = browser.new_page()
    sizes: list[int] = []
    page.on("response", lambda response: "/api/" in response.url or sizes.append(len(response.body())))
    page.goto(address)
    page.locator("#panel[aria-busy=false]").wait_for(state="attached")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page.close()
    return float(sum(sizes)), float(paint)


def _latencies(browser: Any, address: str, changes: int, redraws: bool) -> tuple[float | None, list[float]]:
    """Of many changes, one after the other; and of drawing alone, where a control asks nothing."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    page.locator("#panel[aria-busy=false]").wait_for(state="attached")
    times = [_timed(page, name, key) for name, key in islice(_moves(), changes + WARM)][WARM:]
    floor = None
    if redraws:
        page.get_by_role("radio", name="MFU").focus()
        floor = median(_pressed(page, key) for key in ("ArrowRight", "ArrowLeft") * 8)
    page.close()
    return floor, times


def _moves() -> Iterator[tuple[str, str]]:
    while True:
        for name in CHANGED:
            yield name, "ArrowRight"
            yield name, "ArrowLeft"


def _timed(page: Any, name: str, key: str) -> float:
    page.locator(f"#control-{name} ~ input[type=range]").focus()
    return _pressed(page, key)


def _pressed(page: Any, key: str) -> float:
    """Milliseconds of one change, as the page saw it."""
    before = page.evaluate("knee_timings.length")
    page.keyboard.press(key)
    ends = time.monotonic() + LIMIT_S
    while page.evaluate("knee_timings.length") == before:
        assert time.monotonic() < ends, "the page does not answer"
        time.sleep(0.01)
    return float(page.evaluate("knee_timings.at(-1).ms"))


if __name__ == "__main__":
    main("serve_latency", __doc__, figures, changes={"type": int, "default": 60, "help": "changes of each view"})
