"""``knee study``, run as people run it."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from knee.cli.study import study
from knee.errors import InputError, MissingExtra, SpecError
from knee.figures import vega
from knee.study import paper
from knee.study.runs import Bench
from knee.study.verdict import judge

LAST_LINE = r"claims: (\d+) reproduced, (\d+) failed, (\d+) not testable"


def _run(args: Sequence[str]) -> Result:
    return CliRunner().invoke(study, list(args), catch_exceptions=False)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The whole study, once."""
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    out = tmp_path_factory.mktemp("study") / "new" / "folder"
    return out, _run(["--out", str(out)])


@pytest.fixture
def few_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only claims that are quick to test."""
    monkeypatch.setattr(paper, "CLAIMS", tuple(c for c in paper.CLAIMS if c.id in ("T01", "T49")))


def _records(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_writes_the_page_and_the_tables(done: tuple[Path, Result]) -> None:
    out, result = done
    assert result.exit_code == 0
    assert sorted(p.name for p in out.iterdir()) == ["claims.csv", "fidelity.csv", "index.html", "weak_scaling.csv"]
    assert f"wrote {out / 'index.html'}" in result.stderr
    assert len(_records(out / "weak_scaling.csv")) == 27
    assert (out / "index.html").stat().st_size < 4e6


def test_the_last_line_counts_the_claims(done: tuple[Path, Result]) -> None:
    out, result = done
    found = re.fullmatch(LAST_LINE, result.stdout.splitlines()[-1])
    assert found
    verdicts = [record["verdict"] for record in _records(out / "claims.csv")]
    words = ("reproduced", "failed", "not testable")
    assert [int(n) for n in found.groups()] == [verdicts.count(word) for word in words]
    assert len(verdicts) == len(paper.CLAIMS)


def test_stdout_has_every_row_and_claim(done: tuple[Path, Result]) -> None:
    _, result = done
    first_words = [line.split()[0] for line in result.stdout.splitlines() if line.split()]
    assert {claim.id for claim in paper.CLAIMS} <= set(first_words)
    assert first_words.count("FSDP") == 9
    assert "assumptions:" in result.stdout


def test_the_page_needs_no_network(done: tuple[Path, Result]) -> None:
    html = (done[0] / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"""\ssrc\s*=""", html)
    assert "@import" not in html
    assert "url(" not in html
    # an address is a link that one may follow, or the name of SVG's own namespace
    for match in re.finditer(r"https?://", html):
        before = html[:match.start()]
        assert before.endswith(('<a href="', 'xmlns="', 'xmlns:xlink="'))


def test_values_on_the_page_are_the_records(done: tuple[Path, Result]) -> None:
    html = (done[0] / "index.html").read_text(encoding="utf-8")
    shown = {float(value) for value in re.findall(r'<data value="([^"]+)">', html)}
    columns = ("tokens_per_s", "tokens_per_s_per_gpu", "step_s", "compute_s", "exposed_comm_s", "overlapped_comm_s",
               "idle_s", "power_w_per_gpu", "tokens_per_j", "mfu_frac")
    rows = _records(done[0] / "weak_scaling.csv")
    assert {float(row[column]) for row in rows for column in columns} <= shown
    per_gpu = {int(row["gpus"]): float(row["tokens_per_s_per_gpu"]) for row in rows if row["plan"] == "FSDP"}
    assert f"<strong>{100 * (per_gpu[2048] / per_gpu[128] - 1):+.1f}%</strong>" in html


def test_the_page_has_every_chart_and_claim(done: tuple[Path, Result]) -> None:
    html = (done[0] / "index.html").read_text(encoding="utf-8")
    assert html.count("<figure") == html.count("<svg ") == html.count("<details") == 5
    assert all(f'id="claim-{claim.id.lower()}"' in html for claim in paper.CLAIMS)
    assert re.search(LAST_LINE, html)


@pytest.mark.usefixtures("few_claims")
def test_json_is_one_document(tmp_path: Path) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    result = _run(["--out", str(tmp_path), "--json"])
    data = json.loads(result.stdout)
    assert [claim["id"] for claim in data["claims"]] == ["T01", "T49"]
    assert len(data["weak_scaling"]) == 27
    assert data["tally"]["reproduced"] + data["tally"]["failed"] + data["tally"]["not_testable"] == 2
    assert re.search(LAST_LINE, result.stderr)


@pytest.mark.usefixtures("few_claims")
def test_without_the_extra_the_tables_are_still_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = vega.importlib.import_module

    def missing(name: str) -> object:
        if name == "knee":  # its own files
            return real(name)
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(vega.importlib, "import_module", missing)
    with pytest.raises(MissingExtra, match="pip install"):
        _run(["--out", str(tmp_path)])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["claims.csv", "fidelity.csv", "weak_scaling.csv"]


def test_a_file_in_the_way_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError) as caught:
        _run(["--out", str(tmp_path / "out")])
    assert caught.value.hint
    assert (tmp_path / "out").read_text() == "mine"


def test_a_claim_whose_run_cannot_be_is_not_testable() -> None:
    def impossible(_: Bench) -> paper.Finding:
        raise SpecError("the plan does not fill the GPUs")

    claim = paper.Claim(id="X", statement="s", paper="p", bar="b", test=impossible)
    [verdict] = judge([claim], Bench(), {})
    assert (verdict.verdict, verdict.simulated) == ("not testable", "the plan does not fill the GPUs")


def test_is_a_command() -> None:
    assert isinstance(study, click.Command)
    assert study.name == "study"
