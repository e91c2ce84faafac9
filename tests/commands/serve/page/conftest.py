"""The explorer in a real browser: Debian's Chromium against a real server here, with all other hosts cut off.

Where Playwright, Chromium or the extra ``serve`` is missing, tests skip.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

import knee
from waiting import LIMIT_S, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = (
    "--no-sandbox",  # as root of a container there is none; the page is ours
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-gpu",
    "--no-first-run",
)
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


@dataclass(frozen=True, kw_only=True)
class Explorer:
    """An open page, and what it did while it was open."""

    page: Page
    address: str
    """Of the server."""
    requests: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    """Messages of the console, and errors."""

    def go(self, query: str) -> None:
        """Open a state, and wait for its answer."""
        self.page.goto(self.address + query)
        self.settled()

    def settled(self) -> None:
        """Wait until the newest question is answered and drawn."""
        self.page.locator("#panel[aria-busy=false]").wait_for(state="attached")

    def tile(self, name: str) -> str:
        """The number of a tile of the page's own state."""
        own = self.page.locator(".view").last.locator(".tile").filter(has_text=name)
        return own.first.locator("strong").inner_text()

    def state(self) -> dict[str, str]:
        """The state in the address, once it is there."""
        self.page.evaluate("knee_app.state.flush()")
        text: str = self.page.evaluate("JSON.stringify(Object.fromEntries(new URLSearchParams(location.search)))")
        found: dict[str, str] = json.loads(text)
        return found

    def words(self) -> str:
        """All that the answer says."""
        return self.page.locator("main").inner_text()

    def check(self) -> None:
        """Nothing went wrong, and nothing left this machine."""
        assert [words for words in self.said if "status of 422" not in words] == []  # Chromium tells of wrong input
        assert {urlsplit(url).netloc for url in self.requests if not url.startswith(("data:", "blob:"))} <= {
            urlsplit(self.address).netloc
        }


Open = Callable[..., Explorer]


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's program; without it there is nothing to test."""
    pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'knee[dev]'")
    for name in ("starlette", "uvicorn"):
        pytest.importorskip(name, reason="needs knee[serve]")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    return found


@pytest.fixture(scope="package")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was a fifth slower than its simulation."""
    folder = tmp_path_factory.mktemp("records")
    step = knee.simulate("llama2-7b", cluster="dgx-h100", gpus=16, local_batch=2, profile="paper").to_dict()
    del step["trust"]
    slower = {name: 0.8 * step[name] for name in ("tokens_per_s", "tokens_per_s_per_gpu")}
    run = step | slower | {"kind": "measured", "status": "done", "step_s": step["step_s"] / 0.8, "memory_bytes": None}
    (folder / "run-<b>16.json").write_text(json.dumps(run, default=str), encoding="utf-8")
    return folder


@pytest.fixture(scope="package")
def served(chromium: str, records: Path) -> Iterator[str]:  # noqa: ARG001
    """The address of a server that runs for all tests of this folder."""
    command = [sys.executable, "-m", "knee", "serve", "--port", "0", "--records", str(records)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            yield until(process.stdout.readline, of=process).strip()
        finally:
            process.terminate()


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Browser]:
    """One for all files of this folder."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium, args=list(FLAGS), timeout=0)
        yield opened
        opened.close()


@pytest.fixture
def explorer(browser: Browser, served: str) -> Iterator[Open]:
    """Opens the explorer in a state, as some device shows it; at the end, every page must have behaved."""
    opened: list[Explorer] = []

    def new(query: str = "", **device: Any) -> Explorer:
        context = browser.new_context(
            **{"viewport": DESK, "permissions": ["clipboard-read", "clipboard-write"]} | device
        )
        context.set_default_timeout(LIMIT_S * 1e3)
        found = Explorer(page=context.new_page(), address=served)
        context.on("request", lambda request: found.requests.append(request.url))
        found.page.on("console", lambda message: found.said.append(message.text))
        found.page.on("pageerror", lambda error: found.said.append(str(error)))
        opened.append(found)
        found.go(query)
        return found

    yield new
    for one in opened:
        one.check()
        one.page.context.close()
