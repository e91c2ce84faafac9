"""Files that are dropped onto the page are held beside their simulation, and lead nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

import knee
from knee.base.errors import InputError
from knee.commands.serve.answers.dropped import read
from knee.commands.serve.answers.views import toml_file
from knee.commands.serve.files import add_links, policy_of
from serve.served import STEP, Served
from serve.test_answers import QUESTIONS

RECORD = knee.simulate(**QUESTIONS[0]).to_dict()


def dropped(folder: Path, name: str, text: str | bytes) -> dict[str, Any]:
    path = folder / f"dropped{name[name.index('.') :]}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read({"path": str(path), "name": name})


def test_a_measured_record_stands_beside_its_simulation(tmp_path: Path) -> None:
    measured = RECORD | {"kind": "measured", "tokens_per_s_per_gpu": RECORD["tokens_per_s_per_gpu"] * 0.8}
    found = dropped(tmp_path, "run.json", json.dumps([measured, RECORD]))
    first, second = found["rows"]
    assert found["kind"] == "records"
    assert first["error_frac"] == pytest.approx(0.25)
    assert first["measured"]["tokens_per_s_per_gpu"] == measured["tokens_per_s_per_gpu"]
    assert first["simulated"]["step_s"] == pytest.approx(RECORD["step_s"])
    assert second["measured"] is None
    state = dict(parse_qsl(first["state"]))
    assert (state["view"], state["model"], state["tp"]) == ("step", "llama2-7b", "2")
    assert str(tmp_path) not in json.dumps(found)


@pytest.mark.parametrize(
    "change", [{"model": "../x.toml"}, {"cluster": "/etc/x.toml"}, {"profile": "x.json"}, {"plan": {"tp": 3}}]
)
def test_names_in_a_record_open_nothing(tmp_path: Path, change: dict[str, Any]) -> None:
    (row,) = dropped(tmp_path, "run.json", json.dumps(RECORD | {"kind": "measured"} | change))["rows"]
    assert row["simulated"] is None
    assert row["note"]


def test_runs_jobs_and_traces_are_read(tmp_path: Path) -> None:
    header = "layers,hidden,heads,gpu,n_gpus,seq_len,global_batch,tokens_per_s_per_gpu\n"
    found = dropped(tmp_path, "runs.csv", header + "32,4096,32,h100,64,4096,128,9000\n")
    (row,) = found["rows"]
    assert row["simulated"]["tokens_per_s_per_gpu"] > 0
    assert row["error_frac"] is not None
    (row,) = dropped(tmp_path, "job.toml", toml_file(STEP))["rows"]
    assert row["simulated"]["step_s"] == pytest.approx(knee.simulate(**STEP).step_s)
    (trace,) = knee.simulate(**STEP).write_trace(tmp_path / "trace.json")
    found = dropped(tmp_path, "trace.json", trace.read_bytes())
    assert found["kind"] == "trace"
    assert found["summary"]["step_s"] > 0
    assert str(tmp_path) not in json.dumps(found)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "{"),
        ("a.json", "[]"),
        ("a.csv", "x"),
        ("a.toml", "x"),
        ("a.toml", 'base = "/etc/x.toml"'),
        ("a.toml", "[model]\nbase = '/etc/x.toml'"),
        ("a.json.gz", "no gzip"),
        ("a.json", '{"traceEvents": 1}'),
    ],
)
def test_damaged_files_are_told_by_their_name(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(InputError) as error:
        dropped(tmp_path, name, text)
    assert str(tmp_path) not in error.value.message


@pytest.mark.slow
def test_files_are_sent_and_listed(server: Served) -> None:
    kind = {"Content-Type": "application/octet-stream"}
    sent = server.send("POST", "/api/read?name=sub/run.json", json.dumps(RECORD).encode(), kind)
    assert sent.data["rows"][0]["name"] == "sub/run.json"
    assert server.send("POST", "/api/read?name=run.exe", b"", kind).error["code"] == "unknown-file"
    assert server.send("POST", "/api/read", b"", kind).status == 422
    listed = server.get("/api/records").data
    assert {"deep/run.json", "<script>alert(1)<.json"} <= {one["name"] for one in listed["records"]}
    assert not any("secret" in one["name"] or "link" in one["name"] for one in listed["records"])
    (row,) = server.get("/api/records/deep/run.json").data["rows"]
    assert row["simulated"]["tokens_per_s_per_gpu"] > 0


def test_figures_of_a_study_lead_into_the_explorer() -> None:
    page = '<article id="fig3"><figure id="fig3-1-a" class="b"><svg></svg></figure><figure id="other-1-a"></figure>'
    found = add_links(page, {"fig3": ["/?view=scale&a=%22"]})
    assert '<a href="../?view=scale&amp;a=%22">' in found
    assert found.count("<a ") == 1
    assert "'sha256-" in policy_of(b"<script>a</script>")
    assert "script-src 'none'" in policy_of(b'<script type="application/json">{}</script>')
