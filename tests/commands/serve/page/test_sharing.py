"""How a state leaves the page and comes back: addresses, commands, Python, files, comparisons, presets."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

import knee
from knee.commands.main import main

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from .conftest import Explorer, Open

QUESTION = "?gpus=64&tp=2&pp=2&micro_batch=1&set.fabric.nic_bytes_per_s=200+Gbit/s&zoom=0.250000-0.500000"
DROP = """([name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name));
  for (const kind of ["dragenter", "dragover", "drop"])
    dispatchEvent(new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
}"""


def saved(found: Explorer, name: str, folder: Path) -> Path:
    """A file that the dialog offers."""
    with found.page.expect_download() as download:
        found.page.get_by_role("dialog").get_by_role("button", name=name).click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def copied(found: Explorer, name: str) -> str:
    found.page.get_by_role("dialog").get_by_role("button", name=name).click()
    found.page.get_by_text("was copied").first.wait_for()
    return str(found.page.evaluate("navigator.clipboard.readText()"))


def test_a_state_leaves_the_page_in_every_form(explorer: Open, browser: Browser, tmp_path: Path) -> None:
    found = explorer(QUESTION)
    shown = found.tile("tokens/s per GPU")
    found.page.get_by_role("button", name="Share").click()

    again = explorer(copied(found, "Copy address").removeprefix(found.address))
    assert again.words() == found.words()
    assert again.page.url == found.page.url
    assert again.page.locator("#question").evaluate(FORM) == found.page.locator("#question").evaluate(FORM)
    drawn = [one.page.locator(".lanes path").evaluate_all(PATHS) for one in (found, again)]
    assert drawn[0] == drawn[1]

    command = shlex.split(copied(found, "Copy as command"))
    ran = CliRunner().invoke(main, [*command[1:], "--json"])
    assert f"{json.loads(ran.stdout)['tokens_per_s_per_gpu']:,.0f}" == shown
    names: dict[str, object] = {}
    exec(copied(found, "Copy as Python"), names)
    assert f"{names['answer'].tokens_per_s_per_gpu:,.0f}" == shown  # type: ignore[attr-defined]

    job = saved(found, "Job file (TOML)", tmp_path)
    assert f"{knee.simulate(job).tokens_per_s_per_gpu:,.0f}" == shown
    rows = list(csv.DictReader(saved(found, "Values (CSV)", tmp_path).read_text(encoding="utf-8").splitlines()))
    step = knee.simulate(job)
    assert sum(float(row["seconds"]) for row in rows) == pytest.approx(step.step_s)
    picture = ElementTree.parse(saved(found, "Chart (SVG)", tmp_path)).getroot()
    assert "Where the time of a step goes" in "".join(picture.itertext())
    assert "var(" not in ElementTree.tostring(picture, encoding="unicode")

    alone = saved(found, "Page (HTML)", tmp_path)
    context = browser.new_context(offline=True, java_script_enabled=False)
    page = context.new_page()
    requests: list[str] = []
    context.on("request", lambda request: requests.append(request.url))
    page.goto(alone.as_uri())
    assert requests == [alone.as_uri()]
    assert shown in page.locator(".tile").first.inner_text()
    assert page.locator("svg.lanes path").count() >= 3
    assert page.get_by_role("table").count() >= 3
    assert shlex.join(command) in page.inner_text("footer")
    context.close()


FORM = "form => [...form.querySelectorAll('input, select')].map((one) => [one.name, one.value, one.checked])"
PATHS = "paths => paths.map((path) => path.getAttribute('d'))"


def test_states_are_compared_and_presets_opened(explorer: Open) -> None:
    found = explorer("?gpus=64")
    page = found.page
    before = found.tile("tokens/s per GPU")
    page.get_by_role("button", name="Compare").click()
    found.settled()
    page.fill("#control-gpus", "1024")
    found.settled()
    assert page.get_by_role("region", name="State A").locator(".tile strong").first.inner_text() == before
    own = page.get_by_role("region", name="State B").locator(".tile").first.inner_text()
    assert "from A" in own
    assert before not in own
    again = explorer("?" + page.evaluate("knee_app.state.query()"))
    assert again.words() == found.words()
    page.get_by_role("tab", name="Scale").click()
    found.settled()
    assert page.locator(".pane .plot").count() == 2
    page.get_by_role("button", name="Stop comparing").click()
    found.settled()
    assert page.locator(".pane").count() == 0
    page.select_option("#presets", "fig3")
    found.settled()
    assert page.get_by_role("list", name="Curves").get_by_role("listitem").count() == 3
    assert found.state()["profile"] == "paper"
    page.go_back()
    found.settled()
    assert page.get_by_role("list", name="Curves").count() == 0


def test_files_are_shown_beside_their_simulation(explorer: Open, records: Path, tmp_path: Path) -> None:
    found = explorer()
    page = found.page
    (record,) = records.iterdir()
    page.evaluate(DROP, [record.name, record.read_text(encoding="utf-8")])
    files = page.get_by_role("region", name="Your files")
    files.get_by_role("table").wait_for()
    assert "+25%" in files.inner_text()  # 1 / 0.8: the run was slower
    assert page.locator("b").count() == 0  # a name is never HTML
    files.get_by_role("button", name="as a question").click()
    found.settled()
    assert found.state()["profile"] == "paper"
    page.evaluate(DROP, ["notes.json", "{"])
    files.get_by_text("notes.json").first.wait_for()
    files.get_by_role("button", name="Close").click()
    assert not files.is_visible()
    page.get_by_role("button", name="Open files").click()
    files.get_by_role("button", name=record.name).click()
    files.get_by_role("table").wait_for()
    assert "+25%" in files.inner_text()
    step = knee.simulate("llama-tiny", cluster="dgx-h100", gpus=8, local_batch=1, seq_len=64)
    (trace,) = step.write_trace(tmp_path / "trace.json")
    page.evaluate(DROP, [trace.name, trace.read_text(encoding="utf-8")])
    files.get_by_text("traced").wait_for()
    assert "exposed communication" in files.inner_text()
