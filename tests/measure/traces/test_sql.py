"""Queries see the analysis as tables, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from knee.base.errors import InputError, MissingExtra
from knee.measure.traces import Analysis, analyse
from knee.measure.traces.plain_data import json_value
from knee.measure.traces.sql import TABLES, _unique, query

pytest.importorskip("duckdb")
from small_traces import GATHER, GEMM, job

TRACES = Path(__file__).parents[4] / "shared" / "traces"


@pytest.fixture
def two(tmp_path: Path) -> Analysis:
    return analyse([job(tmp_path / f"rank{i}.json", rank=i) for i in range(2)], cache=False)


def test_columns_are_as_promised(two: Analysis) -> None:
    for table, columns in TABLES.items():
        assert query(two, f"select * from {table} limit 0") == (list(columns), [])


def test_names_that_repeat_are_told_apart(two: Analysis) -> None:
    names, rows = query(two, "select 1 a, 2 a, 'nan'::double a_2, [1.5, 'inf'::double] b")
    assert names == ["a", "a_3", "a_2", "b"]
    assert [json_value(value) for value in rows[0]] == [1, 2, None, [1.5, None]]


def test_kernels(two: Analysis) -> None:
    _, rows = query(two, "select * from kernels where rank = 1 and step = 6 order by start_ns limit 2")
    start = 2_010_000
    end = start + 200_003
    # times count from the first event, which is step 5's annotation
    assert rows == [
        (1, 6, start, end, 200_003, GEMM, "gemm", "kernel", False, 7, 0, start - 2000, None, None, None, None, None),
        (
            1,
            6,
            start + 100_000,
            start + 400_001,
            300_001,
            GATHER,
            "nccl",
            "kernel",
            True,
            20,
            0,
            start + 98_000,
            "all_gather",
            "dp_shard",
            2,
            4000.0,
            start + 400_001 - end,
        ),
    ]
    _, kinds = query(two, "select kind, class, count(*) from kernels where kind <> 'kernel' group by all")
    assert kinds == [("memcpy", None, 6)]


def test_sums_are_those_of_the_analysis(two: Analysis) -> None:
    _, rows = query(
        two,
        """select r.rank, r.exposed_comm_s, sum(s.exposed_comm_s),
                            (select sum(exposed_ns) / 1e9 from kernels k where k.rank = r.rank),
                            (select sum(exposed_s) from collectives c where c.rank = r.rank)
                            from ranks r join steps s using (rank) group by all order by 1""",
    )
    for row, rank in zip(rows, two.ranks, strict=True):
        assert row == (rank.rank, *[pytest.approx(rank.times.exposed_comm_s)] * 4)


def test_a_chosen_window_has_its_kernels_only(tmp_path: Path) -> None:
    one = analyse(job(tmp_path / "t.json"), skip=1, steps=1, cache=False)
    assert query(one, "select distinct step from kernels")[1] == [(6,)]
    assert query(one, "select count(*) from kernels")[1] == [(25,)]


@pytest.mark.parametrize(("sql", "said"), [
    ("select durr from kernels", "durr"),
    ("selec 1", "selec"),
    ("", "query is empty"),
    ("-- nothing", "query is empty"),
    ("select 1 / 'x' from kernels", "convert"),
])  # fmt: skip
def test_errors_are_one_sentence_with_the_tables(two: Analysis, sql: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        query(two, sql)
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert "kernels (rank, step, start_ns" in str(caught.value.hint)


@pytest.mark.slow
@pytest.mark.parametrize("sql", [
    "select * from read_text('{file}')", "select * from '{file}'", "copy kernels to '{new}'", "attach '{new}'",
    "export database '{new}'", "install httpfs", "set enable_external_access = true", "set threads = 1",
    "select * from read_csv('https://example.org/x.csv')", "copy kernels from '{file}'", "select * from glob('/*')",
    "reset lock_configuration",
])  # fmt: skip
def test_a_query_reaches_no_file(two: Analysis, tmp_path: Path, sql: str) -> None:
    file, new = tmp_path / "secret.csv", tmp_path / "new.csv"
    file.write_text("a\n1\n")
    with pytest.raises(InputError):
        query(two, sql.format(file=file, new=new))
    assert not new.exists()


def test_python_is_not_reached(two: Analysis) -> None:
    secret = {"a": [1]}  # DuckDB looks for a table among the caller's variables
    with pytest.raises(InputError):
        query(two, "select * from secret")
    assert secret


def test_a_missing_extra_is_said(two: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtra) as caught:
        query(two, "select 1")
    assert "knee[trace]" in str(caught.value.hint)


def test_pandas_and_pyarrow_are_not_needed(two: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pandas", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    assert query(two, "select count(*) from kernels")[1] == [(150,)]


def test_a_recorded_trace() -> None:
    path = TRACES / "hta_128rank_sampled_rank0.json.gz"
    if not path.exists():
        pytest.skip("traces that others recorded are not here: put them into ../shared/traces")
    _, rows = query(analyse(path), "select sum(dur_ns), sum(exposed_ns) from kernels where is_comm")
    assert rows == [(396_199_000, 336_983_000)]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["a", "a", "a"], ["a", "a_2", "a_3"]),
        (["a", "a_2", "a", "a"], ["a", "a_2", "a_3", "a_4"]),
        (["a", "b"], ["a", "b"]),
        ([], []),
    ],
)
def test_repeats_are_numbered_from_two(names: list[str], found: list[str]) -> None:
    assert _unique(names) == found
