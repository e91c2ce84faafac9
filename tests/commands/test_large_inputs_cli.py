"""Inputs beyond a limit, or that never end, are refused early in a sentence; long work says how far it is."""

from __future__ import annotations

import json
import os
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from knee.commands.main import main
from knee.commands.study.record_store import Store
from knee.measure.kineto.column_cache import read_columns
from knee.show.terminal import progress_bar
from knee.trust.validation.run_errors import PIECE
from refusals import numbers, refused

GRID = 'model = "llama-tiny"\ncluster = "dgx-h100"\nprofile = "knee"\ngpus = [8, 16]\nlocal_batch = [1, 2]\n'
ROW = "32,4096,32,h100,8,4096,64,9000\n"
RUNS = "layers,hidden,heads,gpu,n_gpus,seq_len,global_batch,tokens_per_s_per_gpu\n"
BANDWIDTHS = "gpu,n_gpus,collective,bytes,busbw_GBps\n"
READERS = {
    "simulate": ("job.toml", []),
    "study run": ("mine.toml", ["--no-page", "--out", "out"]),
    "sweep run": ("grid.toml", ["--dry-run", "--out", "out"]),
    "validate": ("runs.csv", []),
    "calibrate": ("runs.csv", []),
    "compare": ("a.json", ["a.json"]),
    "trace": ("trace.json", []),
}
"""Command -> the file that it is given, and what else."""
CODES = {
    "zeros": ("not-utf8", "not-json"),
    "pipe": ("unreadable",),
    "folder": ("unreadable", "not-a-file", "no-file", "nothing-usable"),
    "endless": ("too-large",),
}


def knee(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], prog_name="knee")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("knee.base.files.WRITER_S", 0.0)


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("kind", ["zeros", "pipe", "folder", "endless"])
def test_what_never_ends_is_refused(command: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, more = READERS[command]
    if kind == "zeros":
        os.symlink("/dev/zero", name)
    elif kind == "pipe":
        os.mkfifo(name)
    elif kind == "folder":
        Path(name).mkdir()
    else:  # a plain file of one byte beyond the limit
        for limit in (
            "specs.catalog.MOST_TOML_BYTES",
            "trust.validation.csv_cells.MOST_CSV_BYTES",
            "measure.kineto.blocks.MOST_TRACE_BYTES",
        ):
            monkeypatch.setattr(f"knee.{limit}", 9)
        monkeypatch.setattr("knee.base.files.read_text.__kwdefaults__", {"most": 9, "encoding": "utf-8"})
        Path(name).write_text(" " * 10)
    error = refused(*command.split(), name, *more)
    assert error.code in CODES[kind]


def test_a_pipe_with_a_writer_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo("runs.csv")
    monkeypatch.setattr("knee.base.files.WRITER_S", 600.0)  # it ends as soon as something is written
    writer = threading.Thread(target=Path("runs.csv").write_text, args=(RUNS + ROW,))
    writer.start()
    assert knee("validate", "runs.csv").exit_code == 0
    writer.join()


def test_too_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knee.trust.validation.csv_cells.MOST_ROWS", 2)
    monkeypatch.setattr("knee.trust.validation.user_records.MOST_FITTED_ROWS", 1)
    Path("two.csv").write_text(RUNS + ROW * 2 + "\n\n")
    Path("three.csv").write_text(RUNS + ROW * 3)
    Path("links.csv").write_text(BANDWIDTHS + "h100,8,all_reduce,1048576,100\n" * 3)
    assert knee("validate", "two.csv").exit_code == 0
    for words, rows in (("validate three.csv", 3), ("validate links.csv", 3), ("calibrate two.csv", 2)):
        error = refused(*words.split())
        assert (error.code, numbers(error.message)) == ("too-many", [rows, rows - 1])


@pytest.mark.parametrize(
    ("words", "limit"),
    [
        (("study", "run", "mine.toml", "--no-page", "--out", "out"), "commands.study.questions.MOST_POINTS"),
        (("study", "show", "mine.toml"), "commands.study.questions.MOST_POINTS"),
        (("sweep", "mine.toml", "--out", "out", "--dry-run"), "commands.sweep.api.MOST_RUNS"),
    ],
)
def test_too_large_grids_are_not_expanded(words: tuple[str, ...], limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.toml").write_text(GRID)
    monkeypatch.setattr(f"knee.{limit}", 3)
    monkeypatch.setattr("knee.commands.study.questions.product", None)  # which would expand them
    error = refused(*words)
    assert (error.code, numbers(error.message)[0]) == ("too-many", 4)


def test_grids_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        Path(f"{name}.toml").write_text(GRID)
    monkeypatch.setattr("knee.commands.study.questions.MOST_POINTS", 7)
    error = refused("study", "run", "one.toml", "two.toml", "--no-page", "--out", "out")
    assert (error.code, numbers(error.message)[0]) == ("too-many", 8)


def trace(kernels: int, *, rank: int = 0, host: int = 0) -> str:
    """Kernels among events of the host."""
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.5, "dur": 1}] * host
    events += [
        {
            "ph": "X",
            "cat": "kernel",
            "name": "gemm",
            "pid": 0,
            "tid": 7,
            "ts": float(i),
            "dur": 0.5,
            "args": {"stream": 7, "correlation": i},
        }
        for i in range(kernels)
    ]
    return json.dumps({"distributedInfo": {"rank": rank, "world_size": 3}, "traceEvents": events})


def test_too_many_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("traces").mkdir()
    for rank in range(3):
        Path(f"traces/rank{rank}.json").write_text(trace(4, rank=rank))
    assert knee("trace", "traces").exit_code == 0
    monkeypatch.setattr("knee.measure.kineto.event_columns.MOST_KERNELS", 11)
    assert (refused("trace", "traces").code, 11 in numbers(refused("trace", "traces").message)) == ("too-large", True)
    monkeypatch.setattr(sys.modules["knee.measure.traces.analyse"], "MOST_TRACE_BYTES", 400)
    assert refused("trace", "traces").code == "too-large"
    monkeypatch.setattr("knee.measure.kineto.trace_files.MOST_TRACES", 2)
    monkeypatch.setattr("knee.measure.kineto.trace_files._start", None)  # which would open them
    error = refused("trace", "traces")
    assert (error.code, 3 in numbers(error.message)) == ("too-many", True)


def test_events_of_the_host_take_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knee.measure.kineto.blocks.BLOCK_BYTES", 1 << 12)
    peaks = []
    for host in (4_000, 16_000):
        path = tmp_path / "trace.json"
        path.write_text(trace(100, host=host))
        tracemalloc.start()
        assert len(read_columns(path)) == 100
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_records_with_a_folder_are_not_remembered(tmp_path: Path) -> None:
    from knee.commands.study.run_study import points_to_run, recorded

    Path("mine.toml").write_text(GRID)
    points = points_to_run(["mine.toml"])
    store = Store(tmp_path / "records")
    first, again = list(recorded(points, store.record)), list(recorded(points, store.record))
    assert first == again
    assert (store.made, store.reused, store._remembered) == (4, 0, {})


def test_runs_are_predicted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"32,4096,32,h100,8,4096,{64 * n},9000\n" for n in range(1, 8))
    Path("runs.csv").write_text(RUNS + rows)
    whole = knee("validate", "runs.csv", "--json")
    assert PIECE > 7
    monkeypatch.setattr("knee.trust.validation.run_errors.PIECE", 2)
    assert knee("validate", "runs.csv", "--json").stdout == whole.stdout


def test_logs_say_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "LINES_S", 0.0)
    Path("mine.toml").write_text(GRID)
    monkeypatch.setattr("knee.commands.sweep.cli.MANY", 1)
    said = knee("sweep", "mine.toml", "--out", "sweep", "--dry-run").stderr
    assert "checking: 3 of 4" in said
    monkeypatch.setattr("knee.commands.validate.cli.MANY", 1)
    Path("runs.csv").write_text(RUNS + ROW + ROW.replace("64", "128"))
    said = knee("validate", "runs.csv").stderr
    assert ("reading: 1 of 3" in said, "predicting: 1 of 2" in said) == (True, True)
    Path("links.csv").write_text(BANDWIDTHS + "h100,8,all_reduce,1048576,100\n" * 2)
    assert "reading: 1 of 3" in knee("validate", "links.csv").stderr
    monkeypatch.setattr("knee.commands.trace.cli.LARGE_BYTES", 1)
    Path("trace.json").write_text(trace(3))
    assert "read 0 of 1 trace, 0.0 GB" in knee("trace", "trace.json").stderr


def test_tables_of_many_sources_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knee.commands.validate.text.MOST_NAMED", 2)
    rows = "".join(f"s{n},{ROW}" for n in range(5))
    Path("runs.csv").write_text(f"source,{RUNS}{rows}")
    said = knee("validate", "runs.csv").stdout
    assert ("s1 " in said, "s2 " in said, "and 3 more; --json lists all" in said, "all rows" in said) == (
        True,
        False,
        True,
        True,
    )
