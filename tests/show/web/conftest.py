"""Real pages in a real browser: Debian's Chromium, driven by Playwright, with the network and all names cut off.

Playwright, because its wheel brings its own driver for either architecture and no browser, and because contexts that
are offline, dark, small, without scripts or printed are one argument each. Where it or Chromium is missing, tests skip.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from knee.commands.main import main
from knee.commands.study.study_file import study_names
from lanes import NIGHTLY
from shared_studies import alone, ran_once

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = (
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no name is known, so that nothing can be reached
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--disable-gpu",
    "--no-first-run",
)
LIMIT_S = 1200.0
"""Against a browser that never answers, and nothing else."""
NAMES = ("study", "report", "trace")
"""Kinds of pages."""
FEW = ("fig1", "fig3", "fig6", "fig7", "table1")
STUDIES = [name for name in study_names() if NIGHTLY or name in FEW]
"""On the page of studies: a few that have every kind of chart, table and claim, or nightly all there are."""
REDUCED = {
    "Collective name": "allreduce",
    "In msg nelems": 1 << 20,
    "Out msg nelems": 1 << 20,
    "dtype": "BFloat16",
    "Group size": 2,
    "Process Group Name": "0",
    "Process Group Description": "default_pg",
    "Process Group Ranks": "[0, 1]",
}
"""What the profiler says of a reduction of 2 MiB."""
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


@dataclass(frozen=True, kw_only=True)
class Made:
    """What the commands wrote and said."""

    folder: Path
    last_line: str
    """Of ``knee study``."""

    def page(self, name: str) -> Path:
        return self.folder / name / "index.html"


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A page, and what it did while it was open."""

    page: Page
    requests: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    """Messages of the console, and errors."""


Open = Callable[..., Opened]


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's program; without it there is nothing to test."""
    pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'knee[dev]'")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    pytest.importorskip("vl_convert", reason="pages need knee[report]")
    return found


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Browser]:
    """One for all files of this folder: Playwright's event loop must not outlive them, others may have their own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium, args=list(FLAGS), timeout=0)
        yield opened
        opened.close()


@pytest.fixture(scope="package")
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens a file offline, as some device shows it, for a test that changes it or asks for another device."""
    contexts = []

    def opened(path: Path, **device: Any) -> Opened:
        context = browser.new_context(**{"offline": True, "viewport": DESK} | device)
        context.set_default_timeout(LIMIT_S * 1e3)
        contexts.append(context)
        found = Opened(page=context.new_page())
        context.on("request", lambda request: found.requests.append(request.url))
        found.page.on("console", lambda message: found.said.append(message.text))
        found.page.on("pageerror", lambda error: found.said.append(str(error)))
        found.page.goto(path.as_uri())
        return found

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture(scope="package")
def shown(made: Made, open_page: Open) -> Callable[[str], Page]:
    """A kind's page on a desk, opened once for all tests that only look at it."""
    return cache(lambda name: open_page(made.page(name)).page)


@pytest.fixture(scope="session")
def made(chromium: str, studied: Path) -> Made:  # noqa: ARG001
    """One page of each kind, made once, by whichever of pytest's processes comes first."""
    folder = studied.with_name("web")
    said = folder / "said.txt"
    with alone(folder):
        if not said.exists():
            last_line = _studies(folder / "study", studied)
            _report(folder / "report")
            _trace(folder / "trace")
            said.write_text(last_line, encoding="utf-8")
    return Made(folder=folder, last_line=said.read_text(encoding="utf-8"))


def _knee(*args: str | Path) -> str:
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def _studies(out: Path, studied: Path) -> str:
    """Simulations that other tests have made are used again, as ``knee study`` would."""
    ran_once(STUDIES, studied)
    for kept in ("records", ".kept"):
        if (studied / kept).exists():
            shutil.copytree(studied / kept, out / kept)
    return _knee("study", "run", *STUDIES, "--out", out).splitlines()[-1]


def _report(folder: Path) -> None:
    """Two simulations, and two runs that were a fifth slower."""
    folder.mkdir()
    ask = ("simulate", "llama2-7b", "--cluster", "dgx-h100", "--profile", "paper", "--local-batch", "2", "--json")
    for gpus in (8, 16):
        simulated = json.loads(_knee(*ask, "--gpus", str(gpus)))
        measured = {key: value for key, value in simulated.items() if key != "trust"} | {
            "kind": "measured",
            "status": "done",
            "step_s": simulated["step_s"] / 0.8,
            "memory_bytes": None,
            "tokens_per_s": 0.8 * simulated["tokens_per_s"],
            "tokens_per_s_per_gpu": 0.8 * simulated["tokens_per_s_per_gpu"],
        }
        (folder / f"simulated-{gpus}.json").write_text(json.dumps(simulated), encoding="utf-8")
        (folder / f"measured-{gpus}.json").write_text(json.dumps(measured), encoding="utf-8")
    records = sorted(folder.glob("*.json"))
    (folder / "rows.txt").write_text(_knee("report", *records, "--json"), encoding="utf-8")
    _knee("report", *records, "-o", folder / "index.html", "--title", "Our <cluster>")


def _trace(folder: Path) -> None:
    """Two ranks of three steps: a product, a reduction half behind it, on rank 0 longer than on rank 1."""
    folder.mkdir()
    for rank in (0, 1):
        events = []
        for step in range(3):
            at = 1000 + 1000 * step
            events += [_event(f"ProfilerStep#{step}", at, 1000, "user_annotation"),
                       _event("void gemm<float, 4>(int&)", at + 10, 400 + 100 * rank),
                       _event("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", at + 300 + 300 * rank, 600 - 300 * rank,
                              stream=20, **REDUCED)]  # fmt: skip
        (folder / f"rank{rank}.json").write_text(
            json.dumps(
                {
                    "deviceProperties": [{"name": "gpu"}],
                    "traceEvents": events,
                    "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
                }
            ),
            encoding="utf-8",
        )
    ranks = [folder / "rank0.json", folder / "rank1.json"]
    (folder / "answer.txt").write_text(_knee("trace", *ranks, "--json"), encoding="utf-8")
    _knee("trace", *ranks, "--html", folder / "index.html")


def _event(
    name: str, start: float, duration: float, kind: str = "kernel", stream: int = 7, **args: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": kind,
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": start,
        "dur": duration,
        "args": {"stream": stream, "device": 0, **args} if kind == "kernel" else {},
    }
