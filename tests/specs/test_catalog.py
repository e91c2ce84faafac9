"""The catalogue: every entry loads, every value says where it comes from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from knee.specs import Model
from knee.specs.catalog import KINDS, ROOT, SOURCE_KINDS, Kind, _index, _parsed, entry_names, read_entry, walk
from knee.specs.load import describe, load_cluster, load_model, load_profile

ENTRIES = [(kind, name) for kind in KINDS for name in entry_names(kind)]


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_every_value_has_a_source(kind: Kind, name: str) -> None:
    rows = describe(kind, read_entry(kind, name))
    assert len(rows) > 8
    for field, shown, source_kind, text in rows:
        assert shown, field
        assert source_kind in SOURCE_KINDS, field
        assert source_kind != "user", field
        assert len(text) > 10, field


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_no_value_is_left_without_a_source(kind: Kind, name: str) -> None:
    bare = [path for path, leaf in walk(read_entry(kind, name)) if leaf.source.text == "no source given"]
    assert bare == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("*s/*.toml")), ids=lambda path: path.name)
def test_files_name_no_path_of_any_machine(path: Path) -> None:
    assert not re.search(r"(?<![\w.])/(work|home|tmp|root|usr)/|shared/", path.read_text(encoding="utf-8"))


def test_names_are_listed_in_order() -> None:
    names = entry_names("model")
    assert names == sorted(names)
    assert {"gpt3-175b", "llama-1b", "llama3.2-1b", "qwen2.5-7b"} <= set(names)
    assert {"dgx-v100", "dgx-a100", "dgx-h100", "gb200-nvl72", "mi300x-8"} <= set(entry_names("cluster"))
    assert {"eager", "compiled", "fused", "paper", "paper-v100"} <= set(entry_names("profile"))


def parameters(model: Model) -> int:
    """Counted by hand here, so that the catalogue is not checked against the code that uses it."""
    attention = model.hidden * (2 * model.q_width + 2 * model.kv_width)
    mlp = (3 if model.mlp == "swiglu" else 2) * model.hidden * model.ffn
    embeddings = model.vocab * model.hidden * (1 if model.tied_embeddings else 2)
    return model.layers * (attention + mlp + 2 * model.hidden) + model.hidden + embeddings


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("llama2-7b", 6_738_415_616),
        ("llama2-13b", 13_015_864_320),
        ("llama2-70b", 68_976_648_192),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
    ],
)
def test_parameter_counts_of_torch(name: str, count: int) -> None:
    assert parameters(load_model(name).spec) == count


@pytest.mark.parametrize(
    ("name", "billions"),
    [("mpt-125m", 0.125), ("mpt-7b", 6.65), ("mpt-30b", 29.96), ("mpt-70b", 64.9), ("llama-1b", 1.4)],
)
def test_parameter_counts_are_near_their_names(name: str, billions: float) -> None:
    assert parameters(load_model(name).spec) / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(
    ("name", "ring_bytes_per_s"),
    [("dgx-h100", 370.8e9), ("dgx-a100", 240e9), ("dgx-v100", 120e9), ("dgx-b200", 721.8e9)],
)
def test_nvlink_rates_are_those_that_nccl_assumes(name: str, ring_bytes_per_s: float) -> None:
    node = load_cluster(name).spec.node
    assert node.link_bytes_per_s * node.link_frac == pytest.approx(ring_bytes_per_s, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "gpus", "link", "peaks"),
    [
        ("dgx-b300", 8, "nvlink", (2250e12, 4500e12, 13125e12)),
        ("gb300-nvl72", 72, "nvlink", (2500e12, 5000e12, 15000e12)),
        ("h20-8", 8, "nvlink", (148e12, 296e12, None)),
        ("gh200-nvl32", 32, "nvlink", (989e12, 1979e12, None)),
        ("gh200-4-slingshot", 4, "nvlink", (989e12, 1979e12, None)),
        ("mi325x-8", 8, "xgmi", (1307e12, 2614e12, None)),
        ("mi355x-8", 8, "xgmi", (2516e12, 5033e12, 10066e12)),
        ("l40s-8", 8, "pcie", (362e12, 733e12, None)),
        ("rtx-pro-6000-8", 8, "pcie", (503.8e12, 1007.6e12, 2015.2e12)),
    ],
)
def test_hardware_that_nobody_measured_borrows_and_says_so(
    name: str, gpus: int, link: str, peaks: tuple[float | None, ...]
) -> None:
    loaded = load_cluster(name)
    node, gpu = loaded.spec.node, loaded.spec.gpu
    assert (node.gpus, node.link) == (gpus, link)
    assert (gpu.bf16_flop_per_s, gpu.fp8_flop_per_s, gpu.fp4_flop_per_s) == pytest.approx(peaks)
    rates = {path: source for path, source in loaded.sources.items() if path.endswith("peak_frac")}
    # GH200 is an H100 with another memory; of the others no product was measured
    assert gpu.name == "gh200" or {source.kind for source in rates.values()} == {"assumed"}
    assert node.nvls is (link == "nvlink" and name != "gh200-4-slingshot")


def test_a_named_gpu_replaces_the_inherited_one() -> None:
    kernels = load_cluster("dgx-b200").spec.gpu.attention
    assert "flash3" not in kernels
    assert load_cluster("gb200-nvl72").spec.node.gpus == 72


def test_inherited_values_keep_their_own_source() -> None:
    sources = load_cluster("dgx-h200").sources
    assert sources["gpu.gemm_j_per_flop"].kind == "fitted"
    assert "H100" in sources["fabric.nic_bytes_per_s"].text


def test_volta_has_no_bf16_and_no_flash_attention() -> None:
    gpu = load_cluster("dgx-v100").spec.gpu
    assert gpu.bf16_flop_per_s is None
    assert set(gpu.attention) == {"cutlass", "unfused"}


def test_the_papers_stack() -> None:
    profile = load_profile("paper").spec
    assert (profile.kernels, profile.attention) == ("eager", "flash2")
    assert load_profile("paper-v100").spec.attention == "cutlass"


def test_prices_are_dated_and_may_be_unknown() -> None:
    loaded = load_cluster("dgx-h100")
    assert loaded.spec.usd_per_gpu_h == pytest.approx(2.95)
    assert "2026" in loaded.sources["usd_per_gpu_h"].text
    assert load_cluster("gb200-nvl72").spec.usd_per_gpu_h is None
    assert load_cluster("mi300x-8").spec.usd_per_gpu_h is None


def test_values_are_shown_as_people_read_them() -> None:
    rows = {field: shown for field, shown, _, _ in describe("cluster", read_entry("cluster", "dgx-h100"))}
    assert rows["gpu.hbm_bytes_per_s"] == "3.35 TB/s"
    assert rows["node.hop_s"] == "5.00 µs"
    assert rows["node.nvls"] == "true"
    assert rows["fabric.tiers.0.nodes"] == "32"
    assert rows["gpu.hbm_frac"] == f"{load_cluster('dgx-h100').spec.gpu.hbm_frac:g}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_of_an_entry_is_all_that_its_file_says_of_it(kind: Kind) -> None:
    whole = {}
    for folder in ("clusters", "gpus") if kind == "cluster" else (f"{kind}s",):
        for path in sorted((ROOT / folder).glob("*.toml")):
            entries = tomllib.loads(path.read_text(encoding="utf-8"))
            # a file of GPUs may hold clusters with them
            wanted = {name for name, entry in entries.items() if ("gpu" in entry) == (kind == "cluster")}
            whole |= {name: entries[name] for name in (wanted if folder == "gpus" else entries)}
    assert {name: _parsed(kind, name) for name in _index(kind)} == whole
