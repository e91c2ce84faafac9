"""Each view used as a person would use it; what it shows is what ``import knee`` answers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import knee

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Route

    from .conftest import Explorer, Open

ASKED = {"cluster": "dgx-h100", "local_batch": 2}


def slider(found: Explorer, name: str) -> Locator:
    return found.page.locator(f"#control-{name} ~ input[type=range]")


def figure(found: Explorer, title: str) -> Locator:
    return found.page.locator("figure").filter(has=found.page.get_by_role("heading", name=title, exact=True))


def test_a_step_follows_its_controls(explorer: Open) -> None:
    found = explorer()
    page = found.page

    def shown(**asked: object) -> None:
        found.settled()
        step = knee.simulate("llama2-7b", **(ASKED | asked))  # type: ignore[arg-type]
        assert found.tile("tokens/s per GPU") == f"{step.tokens_per_s_per_gpu:,.0f}"
        assert found.tile("MFU") == f"{100 * step.mfu_frac:.1f}".removesuffix(".0") + "%"

    shown(gpus=256)
    page.fill("#control-gpus", "512")
    shown(gpus=512)
    slider(found, "gpus").press("ArrowLeft")
    slider(found, "gpus").press("ArrowLeft")
    shown(gpus=128)
    slider(found, "tp").press("ArrowRight")
    shown(gpus=128, tp=2)
    page.select_option("#control-cluster", "dgx-a100")
    shown(gpus=128, tp=2, cluster="dgx-a100")
    assert found.state() == {"gpus": "128", "tp": "2", "cluster": "dgx-a100"}

    page.get_by_label("per step (strong)").check()  # the same batch in other words
    shown(gpus=128, tp=2, cluster="dgx-a100")
    assert found.state()["global_batch"] == "256"
    page.go_back()
    page.go_back()
    shown(gpus=128, tp=2)
    page.go_back()
    shown(gpus=128)
    page.go_forward()
    shown(gpus=128, tp=2)
    assert page.locator("#control-tp").input_value() == "2"
    page.get_by_role("button", name="Tensor parallelism (tp): let knee choose").click()
    shown(gpus=128)

    box = slider(found, "gpus").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.42 * box["width"], box["y"] + box["height"] / 2)
    page.mouse.down()
    for share in (0.5, 0.6, 0.7, 0.8, 0.7, 0.6):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
    dragged = int(page.locator("#control-gpus").input_value())
    shown(gpus=dragged)  # while the slider is still held, and only the newest question counts
    page.mouse.up()
    page.go_back()
    shown(gpus=128)  # a drag is one entry of the history

    page.fill("#control-gpus", "0")
    found.settled()
    assert "gpus" in page.get_by_role("alert").inner_text().lower()
    assert page.locator("#control-gpus").get_attribute("aria-invalid") == "true"
    page.fill("#control-gpus", "64")
    shown(gpus=64)
    assert page.get_by_role("alert").inner_text() == ""
    page.select_option("#control-sharding", "ddp")
    found.settled()
    assert "does not fit" in page.locator(".tile.bad").inner_text()


def test_a_step_explains_itself(explorer: Open) -> None:
    found = explorer("?pp=2&tokens=1000000000000")
    page = found.page
    step = knee.simulate("llama2-7b", gpus=256, pp=2, tokens=1e12, **ASKED)  # type: ignore[arg-type]
    assert float(found.tile("days for 1T tokens")) == float(f"{step.training['days']:.3g}")  # type: ignore[index]

    tile = page.locator(".tile").filter(has_text="memory per GPU")
    tile.click()
    dialog = page.get_by_role("dialog")
    dialog.locator(".chain li").first.wait_for()
    assert "Why memory per GPU" in dialog.inner_text()
    page.keyboard.press("Escape")
    assert tile.evaluate("tile => tile === document.activeElement")
    page.locator(".tile").filter(has_text="MFU").press("Enter")
    dialog.locator(".formula").first.wait_for()
    assert "FLOP/token" in dialog.inner_text()
    dialog.get_by_role("button", name="Close").click()
    page.locator(".tile").filter(has_text="exposed").click()
    dialog.locator(".source").first.wait_for()
    assert "vendor" in dialog.inner_text()  # a constant with its kind
    page.keyboard.press("Escape")

    timeline = figure(found, "Timeline of one step")
    lanes = timeline.locator(".lane")
    assert lanes.count() == 4  # compute and communication of both stages
    timeline.get_by_role("button", name="Each collective").click()
    assert lanes.count() > 4
    timeline.get_by_role("button", name="Each collective").click()
    timeline.locator(".timeline-plot").press("+")
    assert found.state()["zoom"] == "0.250000-0.750000"
    timeline.locator(".timeline-plot").press("n")
    assert re.search(r"exposed|without compute", timeline.locator("output").inner_text())
    timeline.get_by_role("button", name="Whole step").click()
    assert "zoom" not in found.state()
    timeline.scroll_into_view_if_needed()
    box = timeline.locator("svg.lanes").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 40, steps=3)
    page.mouse.up()
    start, end = map(float, found.state()["zoom"].split("-"))
    assert 0.05 < end - start < 0.2
    figure(found, "Memory of the GPU that needs the most").get_by_text("Values as a table").click()
    assert "activations" in figure(found, "Memory of the GPU that needs the most").get_by_role("table").inner_text()


def test_the_timeline_can_be_used_before_its_first_answer(explorer: Open) -> None:
    found = explorer()
    held: list[Route] = []
    found.page.route("**/api/views/step", lambda route: held.append(route))  # Playwright cannot wrap held.append
    found.page.goto(found.address)
    found.page.get_by_role("button", name="Next longest exposed communication").click()
    found.page.locator(".timeline-plot").press("+")
    assert found.page.locator(".timeline-said").inner_text() == "No communication is exposed."
    for route in held:
        route.continue_()
    found.settled()  # and no error was told, which the fixture checks


def test_scaling_shows_the_knee(explorer: Open) -> None:
    found = explorer("?view=scale&profile=paper")
    page = found.page
    answer = knee.scale("llama2-7b", gpus="8..2048", profile="paper", **ASKED).to_dict()["curves"][0]  # type: ignore[arg-type]
    assert answer["sentence"] in found.words()
    chart = figure(found, "Scaling")
    label = chart.get_by_role("img").get_attribute("aria-label") or ""
    assert all(f"{p['gpus']:,} GPUs {p['tokens_per_s_per_gpu']:,.0f}" in label for p in answer["points"])
    assert f"knee: {answer['knees']['throughput']['gpus']:,} GPUs" in chart.get_by_role("img").text_content()  # type: ignore[operator]
    assert "published runs" in chart.inner_text()
    for name in ("MFU", "exposed share of the step", "power per GPU", "cost per million tokens", "tokens/s"):
        page.get_by_role("radio", name=name, exact=True).check()
        found.settled()
        assert (chart.get_by_role("img").get_attribute("aria-label") or "").startswith(name)
    page.get_by_label("Field that the new curve changes").select_option("tp")
    page.get_by_label("Its value in the new curve").select_option("4")
    page.get_by_role("button", name="Add curve").click()
    page.get_by_label("Field that the new curve changes").select_option("cluster")
    page.get_by_label("Its value in the new curve").select_option("dgx-a100")
    page.get_by_role("button", name="Add curve").click()
    found.settled()
    assert found.state()["curves"] == "|tp=4|cluster=dgx-a100"
    assert page.get_by_role("list", name="Curves").get_by_role("listitem").count() == 3
    page.get_by_role("button", name="Remove the curve tp 4").click()
    found.settled()
    assert found.state()["curves"] == "|cluster=dgx-a100"
    page.get_by_label("GPU counts").fill("16,64,256")
    page.get_by_label("GPU counts").press("Enter")
    found.settled()
    chart.get_by_text("Values as a table").click()
    assert chart.get_by_role("row").count() == 7  # a heading, and three counts of two curves
    box = chart.get_by_role("img").bounding_box()
    assert box is not None
    chart.get_by_role("img").click(position={"x": 0.5 * box["width"], "y": 0.6 * box["height"]})
    assert found.state()["gpus"] == "64"  # the point in the middle is the count of all views


def test_a_search_is_watched_and_cancelled_and_its_plan_is_used(explorer: Open) -> None:
    found = explorer("?gpus=2048&model=llama3-70b&cluster=dgx-h100")
    page = found.page
    page.get_by_role("tab", name="Plan").click()
    page.get_by_role("progressbar").wait_for()
    page.get_by_role("button", name="Cancel").click()
    found.settled()
    assert "The search was cancelled." in found.words()
    found.go("?view=plan&gpus=16")
    answer = knee.plan("llama2-7b", gpus=16, **ASKED)  # type: ignore[arg-type]
    rows = page.locator(".ranking tbody tr")
    assert rows.count() == len(answer.plans)
    assert f"{answer.best.tokens_per_s_per_gpu:,.0f} tokens/s per GPU" in page.locator(".best").inner_text()
    page.get_by_role("button", name="memory per GPU", exact=True).click()
    memory = [row.memory_bytes for row in sorted(answer.plans, key=lambda row: row.memory_bytes)]
    assert f"{memory[0] / 2**30:.3g} GiB" in rows.first.inner_text()
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("memory")
    asked = len([url for url in found.requests if url.endswith("/api/searches")])
    rows.first.get_by_role("button").click()
    found.settled()
    assert len([url for url in found.requests if url.endswith("/api/searches")]) == asked  # it is not searched again
    assert rows.first.get_attribute("aria-current") == "true"
    plan = min(answer.plans, key=lambda row: row.memory_bytes)
    page.get_by_role("tab", name="Step").click()
    found.settled()
    assert found.tile("tokens/s per GPU") == f"{plan.tokens_per_s_per_gpu:,.0f}"
    page.go_back()
    found.settled()
    assert figure(found, "Speed against memory").get_by_role("img").count() == 1
    assert re.search(
        r"tp 1 pp 1 [\d,]+",
        figure(found, "Tensor against pipeline parallelism").get_by_role("img").get_attribute("aria-label") or "",
    )


def test_a_budgets_lines_are_moved(explorer: Open) -> None:
    found = explorer("?view=budget&gpus=8&days=2")
    page = found.page
    best = knee.budget(cluster="dgx-h100", gpus=8, days=2).to_dict()["best"]
    assert float(found.tile("loss")) == float(f"{best['loss']:.4g}")
    assert "FLOP" in found.words()
    handle = page.get_by_role("slider", name="Limit: days")
    handle.press("ArrowUp")
    assert found.state()["days"] == "2.1"
    found.settled()
    assert handle.get_attribute("aria-valuetext") == "2.1 days"
    box = handle.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] - 30, steps=4)
    page.mouse.up()
    found.settled()
    days = float(found.state()["days"])
    assert days > 2.3
    assert float(found.tile("days")) <= days * 1.001
    page.get_by_label("USD at most").fill("500")
    page.get_by_label("USD at most").press("Enter")
    found.settled()
    assert page.get_by_role("slider", name="Limit: dollars").count() == 1
    assert found.tile("cost") == "$500"
    page.go_back()
    found.settled()
    assert page.get_by_role("slider", name="Limit: dollars").count() == 0
