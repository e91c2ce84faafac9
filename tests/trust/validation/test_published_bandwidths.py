"""Bandwidths of collectives: reading a file, what each row is asked of knee, and how it is scored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from knee.base.errors import InputError
from knee.specs.catalog import fabric_aliases
from knee.specs.load import load_cluster
from knee.trust.validation.bandwidth_errors import (
    BANDS,
    FORM,
    BandwidthFile,
    BandwidthSetting,
    carried_bandwidths,
    cluster_of,
    is_bandwidths,
    predict,
    read_bandwidths,
    validate_bandwidths,
)

ROW: dict[str, Any] = {
    "source": "A",
    "gpu": "H100-80GB",
    "nodes": 1,
    "n_gpus": 8,
    "collective": "all_reduce",
    "bytes": 2**30,
    "busbw_GBps": 470,
}
MIB = 2**20


def write(path: Path, *rows: dict[str, Any]) -> Path:
    """A CSV whose columns are all that any row has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(columns)] + [",".join(str(row.get(name, "")) for name in columns) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read(folder: Path, *rows: dict[str, Any]) -> BandwidthFile:
    return read_bandwidths(write(folder / "b.csv", *rows))


def one(folder: Path, **values: Any) -> BandwidthSetting:
    row = read(folder, {**ROW, **values}).rows[0]
    assert row.setting is not None, row.reason
    return row.setting


def reason(folder: Path, **values: Any) -> str:
    row = read(folder, {**ROW, **values}).rows[0]
    assert row.setting is None
    assert row.reason is not None
    return row.reason


# reading


def test_a_row(tmp_path: Path) -> None:
    row = read(tmp_path, ROW).rows[0]
    assert row.bus_bytes_per_s == 470e9
    assert row.operation == "all_reduce"
    assert row.setting == BandwidthSetting(
        source="A",
        gpu="h100-80gb",
        nodes=1,
        n_gpus=8,
        operation="all_reduce",
        message_bytes=2.0**30,
        algorithm=None,
        gpus_per_node=None,
        node_bytes_per_s=None,
        fabric=None,
    )


@pytest.mark.parametrize("word", ["all_reduce", "AllReduce", "all-reduce", "all_reduce_perf", "ALLREDUCE"])
def test_words_for_an_operation(tmp_path: Path, word: str) -> None:
    assert one(tmp_path, collective=word).operation == "all_reduce"


def test_algorithm_bandwidth_or_time_stand_for_bus_bandwidth(tmp_path: Path) -> None:
    bare = {name: value for name, value in ROW.items() if name != "busbw_GBps"}
    algorithm, time = (
        read(tmp_path, {**bare, **x}).rows[0].bus_bytes_per_s
        for x in ({"algbw_GBps": 100}, {"time_us": 2**30 / 100e9 * 1e6})
    )
    assert algorithm == pytest.approx(175e9)
    assert time == pytest.approx(175e9)


@pytest.mark.parametrize("note", ["8x200G; TCPXO", "4x HDR200 per node", "no EFA here: InfiniBand"])
def test_a_note_does_not_change_the_network(tmp_path: Path, note: str) -> None:
    assert one(tmp_path, note=f'"{note}"') == one(tmp_path)


@pytest.mark.parametrize(
    ("text", "fabric"), [("GPUDirect-TCPXO", "tcpxo"), ("HPE Slingshot 11", "slingshot"), ("EFA", "efa"), ("", None)]
)
def test_words_for_networks(tmp_path: Path, text: str, fabric: str | None) -> None:
    assert one(tmp_path, fabric=text).fabric == fabric


def test_what_is_assumed_is_said(tmp_path: Path) -> None:
    found = validate_bandwidths(read(tmp_path, ROW | {"algorithm": "PAT"}))
    first, second = found.assumptions
    assert first.startswith("defaults for missing columns: gpus_per_node")
    assert second == "algorithm pat is not modelled; the fastest modelled algorithm is used"
    assert one(tmp_path, fabric="NDR InfiniBand").fabric is None


@pytest.mark.parametrize(
    ("text", "algorithm"),
    [("Ring (page text)", "ring"), ("NVLS", "nvls"), ("NVLSTree", "tree"), ("tree", "tree"), ("PAT", None), ("", None)],
)
def test_algorithms(tmp_path: Path, text: str, algorithm: str | None) -> None:
    assert one(tmp_path, algorithm=text).algorithm == algorithm
    assert one(tmp_path, algorithm=text, collective="all_gather").algorithm is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"collective": "alltoall"}, "alltoall is not modelled"),
        ({"collective": ""}, "collective is empty"),
        ({"gpu": ""}, "gpu is empty"),
        ({"n_gpus": "eight"}, "not a number"),
        ({"n_gpus": 8.5}, "whole number"),
        ({"n_gpus": 1}, "a single GPU"),
        ({"nodes": 16}, "more nodes than GPUs"),
        ({"nodes": -1}, "at least 1"),
        ({"bytes": 0}, "positive"),
        ({"bytes": "nan"}, "finite"),
        ({"bytes": 1e300}, "which is not realistic"),
        ({"busbw_GBps": 0.0}, "positive"),
        ({"busbw_GBps": "inf"}, "finite"),
        ({"busbw_GBps": ""}, "nothing was measured"),
        ({"note": "MISCONFIGURED system"}, "misconfigured"),
        ({"node_gbit_per_s": -4}, "positive"),
        ({"bytes": 1024.5}, "whole number of bytes"),
        ({"bytes": "1_024"}, "not a number"),
        ({"fabric": "slingshto"}, "fabric is 'slingshto'; did you mean slingshot?"),
        ({"fabric": "pigeons"}, "known: roce, efa, tcpxo, slingshot, infiniband"),
        ({"algorithm": "rign"}, "algorithm is 'rign'; did you mean ring?"),
    ],
)
def test_rows_that_cannot_be_used_say_why(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    assert words in reason(tmp_path, **values)


def test_a_row_of_another_length(tmp_path: Path) -> None:
    path = write(tmp_path / "b.csv", ROW)
    path.write_text(path.read_text() + "A,H100-80GB,1\n")
    assert read_bandwidths(path).rows[1].reason == "the row has more or fewer cells than the header"


@pytest.mark.parametrize("column", FORM.required)
def test_missing_columns(tmp_path: Path, column: str) -> None:
    with pytest.raises(InputError, match=f"has no column {column}"):
        read(tmp_path, {name: value for name, value in ROW.items() if name != column})


def test_nothing_measured_and_no_rows(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no measured value"):
        read(tmp_path, {name: value for name, value in ROW.items() if name not in FORM.measured})
    path = tmp_path / "none.csv"
    path.write_text(",".join(ROW) + "\n")
    with pytest.raises(InputError, match="no rows"):
        read_bandwidths(path)


def test_headers_tell_files_apart() -> None:
    assert is_bandwidths([*FORM.required, "busbw_GBps"])
    assert is_bandwidths(["busbw_GBps"])
    assert not is_bandwidths(["layers", "hidden", "gpu", "n_gpus"])


def test_repeats_are_one_test(tmp_path: Path) -> None:
    file = read(tmp_path, ROW, {**ROW, "busbw_GBps": 480, "note": "again"}, {**ROW, "busbw_GBps": 100})
    (reading,) = file.readings
    assert reading.lines == (2, 3, 4)
    assert reading.bus_bytes_per_s == 470e9


# what is asked


@pytest.mark.parametrize(
    ("gpu", "same"),
    [
        ("H100", "dgx-h100"),
        ("h100-80gb (4/node)", "dgx-h100"),
        ("GB200", "gb200-nvl72"),
        ("MI300X", "mi300x-8"),
        ("A100-40GB", "dgx-a100"),
        ("B200", "dgx-b200"),
        ("NVIDIA H100 80GB HBM3", "dgx-h100"),
        ("RTX-Pro", "rtx-pro-6000-8"),  # the beginning of one name only
    ],
)
def test_gpus(tmp_path: Path, gpu: str, same: str) -> None:
    assert cluster_of(one(tmp_path, gpu=gpu)).node == load_cluster(same).spec.node


def test_networks(tmp_path: Path) -> None:
    for word in ("tcpxo", "slingshot", "efa", "roce"):
        name = fabric_aliases()[word]
        assert name is not None
        found, expected = cluster_of(one(tmp_path, fabric=word)), load_cluster(name).spec
        assert found.fabric.hop_s == expected.fabric.hop_s
        assert found.fabric.nic_bytes_per_s == expected.fabric.nic_bytes_per_s
        assert found.node.gpus == expected.node.gpus


def test_a_network_does_not_change_the_gpu(tmp_path: Path) -> None:
    a100 = cluster_of(one(tmp_path, gpu="A100-80GB", fabric="slingshot"))
    assert a100.gpu.name == load_cluster("dgx-a100").spec.gpu.name
    assert a100.fabric.kind == "slingshot"
    assert a100.fabric.nic_bytes_per_s == load_cluster("dgx-a100").spec.fabric.nic_bytes_per_s


def test_nodes_that_are_not_given_are_as_few_as_fit(tmp_path: Path) -> None:
    found, _ = predict(read(tmp_path, {**ROW, "nodes": "", "n_gpus": 24}).readings)
    assert found[0].nodes == 3


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gpu": "tpu-v9"}, "is unknown"),
        ({"n_gpus": 9}, "do not fit into 1 nodes of 8"),
        ({"gpus_per_node": 16}, "gpus_per_node is 16"),
    ],
)
def test_tests_that_cannot_be_asked(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    found, refused = predict(read(tmp_path, {**ROW, **values}).readings)
    assert found == []
    assert words in refused[0][1]


def test_an_algorithm_that_was_told_is_used(tmp_path: Path) -> None:
    rows = [{**ROW, "algorithm": word, "source": word} for word in ("ring", "nvls", "")]
    found, _ = predict(read(tmp_path, *rows).readings)
    ring, nvls, free = (p.bus_bytes_per_s for p in found)
    assert ring < 371e9 < nvls
    assert free == nvls


# scores


def test_scores(tmp_path: Path) -> None:
    rows = [
        ROW,
        {**ROW, "bytes": MIB},
        {**ROW, "source": "B", "collective": "all_gather", "nodes": 4, "n_gpus": 32, "busbw_GBps": 330},
        {**ROW, "source": "B", "collective": "alltoall"},
    ]
    found = validate_bandwidths(read(tmp_path, *rows))
    assert (found.all.rows, found.all.rows_used, found.all.tests) == (4, 3, 3)
    assert found.sources["B"].skipped == {"alltoall is not modelled": 1}
    assert found.operations["alltoall"].errors is None
    assert set(found.headline) == {"all_reduce", "all_gather", "reduce_scatter", "send_receive"}
    assert found.headline["all_reduce"] is not None
    assert found.headline["all_reduce"].points == 1
    assert list(found.nodes) == ["all_reduce", "all_gather"]
    assert list(found.nodes["all_gather"]) == ["4"]
    assert list(found.sizes["all_reduce"]) == [BANDS[1][0], BANDS[-1][0]]
    assert found.reasons == {5: "alltoall is not modelled"}


def test_a_cell_that_overflows_is_a_reason(tmp_path: Path) -> None:
    found = validate_bandwidths(read(tmp_path, {**ROW, "n_gpus": 10**15, "nodes": 10**15}, ROW))
    assert found.all.rows_used >= 1
    assert np.isfinite([p.error_frac for p in found.predictions.values()]).all()


# what knee carries


def test_carried_bandwidths_have_no_row_to_spare() -> None:
    file = carried_bandwidths()
    assert file.ignored == ()
    assert not [row for row in file.rows if row.reason is not None]
    assert len(file.readings) == len(file.rows)
    assert {row.operation for row in file.rows} == {"all_reduce", "all_gather", "reduce_scatter", "send_receive"}


def test_a_file_is_scored_the_same_in_any_order() -> None:
    file = carried_bandwidths()
    turned = validate_bandwidths(replace(file, rows=file.rows[::-1]))
    assert turned.headline == validate_bandwidths(file).headline
