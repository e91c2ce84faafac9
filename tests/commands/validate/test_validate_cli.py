"""``knee validate`` as a stranger uses it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import refusals
from knee.base.errors import InputError
from knee.commands.main import main
from knee.commands.validate import api as validate
from refusals import kind, numbers

HEADER = "id,source,layers,hidden,heads,gpu,n_gpus,seq_len,global_batch,tp,tokens_per_s_per_gpu,memory_gib,status"
ROWS = (
    "a1,A,16,2048,32,h100-80gb,8,4096,64,1,30000,40,ok",
    "a2,A,16,2048,32,h100-80gb,8,4096,64,2,25000,30,ok",
    "a3,A,16,2048,32,h100-80gb,8,4096,64,4,15000,,ok",
    "b1,B,32,4096,32,a100-80gb,64,2048,256,1,3000,,ok",
    "b2,B,32,4096,32,a100-40gb,8,8192,256,1,,,oom",
    "c1,C,32,4096,32,tpu-v9,8,8192,256,1,100,,ok",
)


def knee(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["validate", *(str(arg) for arg in args)])


def refused(*args: str | Path) -> InputError:
    return refusals.refused("validate", *args)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    path.write_text("\n".join((HEADER, *ROWS)) + "\n", encoding="utf-8")
    return path


def test_tables(runs: Path) -> None:
    result = knee(runs)
    assert result.exit_code == 0
    assert result.stderr == ""
    for words in (
        "median error of tokens/s per GPU: ",
        "median over the medians of 2 sources",
        "error of memory",
        "regret",
        "all rows",
        "C: the GPU 'tpu-v9' is unknown",
        "sharding defaulted to fsdp",
        "stacks: PyTorch 5 rows",
        "defaults for missing columns: pp 1, cp 1",
    ):
        assert words in result.stdout


def test_json(runs: Path) -> None:
    data = json.loads(knee(runs, "--json").stdout)
    assert data.keys() == {"median_of_sources_frac", "all", "sources", "stacks", "assumptions", "ignored_columns"}
    assert data["stacks"] == {"PyTorch": 5}
    score = data["all"]
    assert (score["rows"], score["rows_used"], score["runs"]) == (6, 5, 5)
    assert score["throughput"]["points"] == 4
    assert score["memory"]["points"] == 2
    assert score["fitting"]["oom"] == {"fits": 0, "does_not": 1}
    assert score["ranking"]["groups"] == 1
    assert list(data["sources"]) == ["A", "B", "C"]
    assert data["sources"]["C"]["throughput"] is None


def test_rows(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    result = knee(runs, "--rows", out)
    assert result.exit_code == 0
    assert "wrote" in result.stderr
    with out.open(encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["a1", "a2", "a3", "b1", "b2", "c1"]
    first = rows["a1"]
    expected = float(first["predicted_tokens_per_s_per_gpu"]) / 30000 - 1
    assert float(first["error_frac"]) == pytest.approx(expected)
    assert rows["b2"]["error_frac"] == ""
    assert rows["b2"]["fits"] == "False"
    assert "tpu-v9" in rows["c1"]["skipped"]
    assert first["skipped"] == ""


def test_unknown_columns_are_ignored_with_a_word(runs: Path) -> None:
    lines = runs.read_text().splitlines()
    runs.write_text("\n".join([lines[0] + ",weather", *(line + ",fair" for line in lines[1:])]))
    result = knee(runs, "--json")
    assert result.stderr == "ignored columns: weather\n"
    assert json.loads(result.stdout)["ignored_columns"] == ["weather"]


def test_only_status(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text("layers,hidden,heads,gpu,n_gpus,seq_len,global_batch,status\n16,2048,32,h100-80gb,8,4096,64,ok\n")
    result = knee(path)
    assert result.exit_code == 0, result.stderr
    assert "whether knee predicts that they fit in memory" in result.stdout
    assert "error of" not in result.stdout
    assert json.loads(knee(path, "--json").stdout)["median_of_sources_frac"] is None


@pytest.mark.slow
def test_no_file_is_knee_s_own_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate, "study_names", lambda _kind=None: ["table1", "fig12"])
    real, done = validate.validate_runs, {}
    monkeypatch.setattr(
        validate, "validate_runs", lambda file: done.get(file.rows) or done.setdefault(file.rows, real(file))
    )
    result = knee("--json", "--rows", str(tmp_path / "rows.csv"))
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["headline_frac"] < 0.06
    assert found["unseen_frac"] < 0.1
    assert found["all_reduce"]["median_frac"] < 0.1
    assert found["all_gather"]["median_frac"] < 0.1
    assert all(source["reference"] for source in found["sources"])
    assert sum(found["claims"]["tally"].values()) == 3
    assert [claim["id"] for claim in found["claims"]["verdicts"]] == ["T49", "T50", "T63"]
    assert len((tmp_path / "rows.csv").read_text().splitlines()) > 300
    assert len((tmp_path / "rows.bandwidths.csv").read_text().splitlines()) > 250
    assert found["carried_runs"]["all"]["fitting"]["ok"]["fits"] > 300
    assert found["carried_runs"]["all"]["ranking"]["groups"] > 20
    assert found["carried_runs"]["stacks"]["nanotron"] > 50
    assert found["carried_bandwidths"]["all"]["rows"] > 250
    said = knee()
    assert "claims of the paper" in said.stderr
    text = said.stdout
    for words in (
        "for unseen sources",
        "rows (repeated measurements count as one run)",
        "whether knee predicts that they fit in memory",
        "regret: measured slowdown",
        "rank correlation",
        "error of memory",
        "stacks: ",
        "rows of bandwidths",
        "Each source counts once",
    ):
        assert words in text
    assert "arxiv 2411.13055" in text.lower()
    assert "arXiv 2205.05198" in text
    assert kind(refused("--profile", "eager")) == ("missing-argument", "file")


def test_files_that_are_none(tmp_path: Path) -> None:
    assert refused(tmp_path / "nowhere.csv").code == "unreadable"
    assert refused(tmp_path).code == "nothing-usable"
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    assert refused(empty).code == "empty"
    empty.write_text(HEADER + "\n")
    assert refused(empty).code == "empty"
    empty.write_bytes(b"\x80\x81\x82")
    assert refused(empty).code == "not-utf8"


def test_missing_columns(runs: Path) -> None:
    runs.write_text(runs.read_text().replace("n_gpus", "gpus_n").replace("heads", "h"))
    assert kind(refused(runs)) == ("missing-field", "heads")


def test_no_row_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("\n".join((HEADER, ROWS[-1], ROWS[-1].replace("100,", "200,"))))
    error = refused(path)
    assert (error.code, numbers(error.message)[:1]) == ("nothing-usable", [2])
    path.write_text("\n".join((HEADER, *(ROWS[0].replace("h100-80gb", f"chip{i}") for i in range(9)), ROWS[-1] + ",x")))
    assert {10.0, 9.0, 8.0, 1.0} <= {*numbers(refused(path).message)}  # rows, of each kind, and more of the first
    result = knee(path, "--json")
    assert result.exit_code == 2
    assert sum(json.loads(result.stdout)["all"]["skipped"].values()) == 10


@pytest.mark.slow
def test_standard_input_is_read_once(runs: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "knee", "validate", "-", "--json"],
        input=runs.read_bytes(),
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout)["all"] == json.loads(knee(runs, "--json").stdout)["all"]


def test_a_bar_for_many_models(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knee.commands.validate.cli.MANY", 1)
    assert "predicting" in knee(runs).stderr


def test_one_run(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("\n".join((HEADER, ROWS[0])))
    assert "over its only run" in knee(path).stdout


def test_rows_that_cannot_be_written(runs: Path, tmp_path: Path) -> None:
    assert kind(refused(runs, "--rows", runs)) == ("would-overwrite", "rows")
    assert refused(runs, "--rows", tmp_path / "no" / "such" / "folder.csv").code == "not-writable"


def test_many_different_reasons_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    bad = [ROWS[0].replace("h100-80gb", f"chip{i}") for i in range(40)]
    path.write_text("\n".join((HEADER, *ROWS, *bad)))
    result = knee(path)
    assert "40 rows: A: the GPU 'chip0' is unknown; known:" in result.stdout
    assert "(and 39 more of this kind)" in result.stdout
    assert len(json.loads(knee(path, "--json").stdout)["all"]["skipped"]) == 41


# bandwidths of collectives

BANDWIDTHS = (
    "source,gpu,nodes,n_gpus,collective,bytes,algbw_GBps,busbw_GBps,algorithm,note",
    "A,H100-80GB,1,8,all_reduce,1073741824,,466,NVLS,",
    "A,H100-80GB,1,8,all_reduce,1048576,,67,,",
    "A,H100-80GB,1,8,alltoall,1073741824,,330,,",
    "B,H100-80GB,4,32,all_gather,1073741824,,360,,8x400G InfiniBand",
    "B,H100-80GB,2,16,all_gather,268435456,,100,,MISCONFIGURED system",
    "B,TPU-v9,2,16,all_gather,268435456,,100,,",
)


@pytest.fixture
def bandwidths(tmp_path: Path) -> Path:
    path = tmp_path / "collectives.csv"
    path.write_text("\n".join(BANDWIDTHS) + "\n", encoding="utf-8")
    return path


def test_bandwidths(bandwidths: Path) -> None:
    result = knee(bandwidths)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    for words in (
        "error of bus bandwidth, messages of 16 MiB and more: ",
        "largest error a factor of ",
        "all_gather on 4 nodes",
        "all_reduce on 1 node ",
        "all_reduce, 1 to 16 MiB",
        "all rows",
        "A: alltoall is not modelled",
        "B: the source says that its system is misconfigured",
        "B: the GPU 'tpu-v9' is unknown",
    ):
        assert words in result.stdout


def test_bandwidths_as_json(bandwidths: Path) -> None:
    data = json.loads(knee(bandwidths, "--json").stdout)
    assert data.keys() == {
        "large_bytes",
        "headline",
        "all",
        "sources",
        "operations",
        "nodes",
        "sizes",
        "assumptions",
        "ignored_columns",
    }
    assert (data["all"]["rows"], data["all"]["rows_used"], data["all"]["tests"]) == (6, 3, 3)
    assert data["headline"]["all_gather"]["points"] == 1
    assert data["headline"]["all_gather"]["median_frac"] < 0.1
    assert data["operations"]["alltoall"]["errors"] is None
    assert list(data["nodes"]["all_gather"]) == ["4"]


def test_rows_of_bandwidths(bandwidths: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    assert knee(bandwidths, "--rows", out).exit_code == 0
    with out.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    expected = float(rows[0]["predicted_bus_bytes_per_s"]) / 466e9 - 1
    assert float(rows[0]["error_frac"]) == pytest.approx(expected)
    assert rows[2]["skipped"] == "alltoall is not modelled"
    assert rows[3]["nodes"] == "4"


def test_bandwidths_that_cannot_be_used(bandwidths: Path) -> None:
    bandwidths.write_text("\n".join(BANDWIDTHS).replace("n_gpus", "ngpus"))
    assert kind(refused(bandwidths)) == ("missing-field", "n_gpus")
    bandwidths.write_text("\n".join(BANDWIDTHS).replace("gpu,", "gpu,weather,").replace("GB,", "GB,fair,"))
    assert "ignored columns: weather" in knee(bandwidths).stderr
    bandwidths.write_text(BANDWIDTHS[0] + "\n")
    assert refused(bandwidths).code == "empty"
    bandwidths.write_text("\n".join((BANDWIDTHS[0], BANDWIDTHS[3], BANDWIDTHS[6])))
    error = refused(bandwidths)
    assert (error.code, numbers(error.message)[:1]) == ("nothing-usable", [2])


@pytest.mark.parametrize(
    "text",
    [
        "collective\n",
        "busbw_GBps\n1\n",
        "\x00collective,bytes\n",
        'collective,gpu\n"open',
        "collective,collective\n1,2\n",
    ],
)
def test_hostile_headers(tmp_path: Path, text: str) -> None:
    path = tmp_path / "h.csv"
    path.write_text(text)
    assert refused(path).code


def test_hostile_cells(bandwidths: Path) -> None:
    """Anything in a cell is a reason, never a crash."""
    cells = BANDWIDTHS[1].split(",")
    odd = ("", "-1", "nan", "inf", "1e400", "9" * 400, "0x10", "\u0663", "=1+1", "[bold]", "1e308", "1e-300", "(", "*")
    rows = [",".join((*cells[:i], word, *cells[i + 1 :])) for i in range(len(cells)) for word in odd]
    bandwidths.write_text("\n".join((*BANDWIDTHS, *rows)) + "\n", encoding="utf-8")
    result = knee(bandwidths, "--json")
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert json.loads(result.stdout)["all"]["rows"] == 6 + len(rows)
    assert knee(bandwidths).exit_code == 0


def test_a_profile_and_a_cluster_in_place_of_what_the_rows_tell(runs: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('base = "eager"\nstream_scale = 2.0\n', encoding="utf-8")
    before, after = (json.loads(knee(runs, *more, "--json").stdout)["all"] for more in ((), ("--profile", mine)))
    assert after["throughput"]["bias_frac"] < before["throughput"]["bias_frac"]
    other = json.loads(knee(runs, "--cluster", "dgx-a100", "--json").stdout)["all"]
    assert other["rows_used"] == 2  # a GPU that knee does not know is taken as the cluster's
    assert any("the GPU is h100-80gb" in reason for reason in other["skipped"])
    table = tmp_path / "bandwidths.csv"
    table.write_text("gpu,n_gpus,collective,bytes,busbw_GBps\nh100-80gb,8,all_reduce,1e9,400\n", encoding="utf-8")
    assert kind(refused(table, "--profile", mine)) == ("contradiction", "profile")
