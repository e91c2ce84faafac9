"""Files that people write: data sheets, NICs of a node, bases and paths, units, byte order marks."""

from __future__ import annotations

import json
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import knee
from knee.base.errors import InputError, SpecError
from knee.specs.catalog import read_table
from knee.specs.check import SeveralMistakes
from knee.specs.data_sheets import measured_gpus, nearest_gpu
from knee.specs.load import load_cluster, load_job, load_model, load_profile
from knee.specs.notes import code_of

L40S = """
vendor = "NVIDIA"
arch = "Ada Lovelace"
bf16_flop_per_s = "362 TFLOP/s"
hbm_bytes = "48 GB"
hbm_bytes_per_s = "864 GB/s"
tdp_w = "350 W"
source = "https://www.nvidia.com/en-us/data-center/l40s/"
kind = "vendor"
"""
BOX = """
gpu = "gpus/l40s.toml"
[node]
gpus = 8
link = "pcie"
link_bytes_per_s = "32 GB/s"
[fabric]
kind = "roce"
nics_per_node = 4
nic_rate = "400 Gbit/s"
"""
RTX = """
[gpu]
name = "rtx-4090"
fp16_flop_per_s = "165 TFLOP/s"
hbm_bytes = "24 GB"
hbm_bytes_per_s = "1008 GB/s"
tdp_w = "450 W"
[node]
gpus = 4
link = "pcie"
link_bytes_per_s = "32 GB/s"
[fabric]
kind = "ethernet"
nic_bytes_per_s = "10 Gbit/s"
"""


def write(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture
def box(tmp_path: Path) -> str:
    write(tmp_path / "gpus" / "l40s.toml", L40S)
    return write(tmp_path / "box.toml", BOX)


def test_a_box_from_its_data_sheets(box: str) -> None:
    loaded = load_cluster(box)
    gpu, near = loaded.spec.gpu, load_cluster("dgx-a100-40").spec.gpu
    assert gpu.name == "l40s"
    assert gpu.fp16_flop_per_s == gpu.bf16_flop_per_s == 362e12
    assert gpu.gemm["bf16"] == near.gemm["bf16"]
    assert gpu.idle_w == pytest.approx(near.idle_w * 350 / 400, rel=1e-3)
    assert gpu.sms == round(near.sms * 362 / 312)
    assert loaded.spec.node.pair_bytes_per_s == 32e9
    assert loaded.spec.fabric.nic_bytes_per_s == pytest.approx(25e9)
    assert [code_of(note) for note in loaded.assumptions] == ["nearest-gpu", "nearest-node", "nearest-fabric"]
    assert loaded.sources["gpu.hbm_frac"].kind == "assumed"
    assert "a100-sxm-40" in loaded.sources["gpu.hbm_frac"].text
    assert loaded.sources["gpu.tdp_w"].kind == "vendor"


def test_a_gpu_in_the_cluster_s_file_and_no_vendor(tmp_path: Path) -> None:
    loaded = load_cluster(write(tmp_path / "rtx.toml", RTX))
    assert loaded.spec.gpu.vendor == "NVIDIA"
    assert loaded.spec.fabric.nic_bytes_per_s == 1.25e9


def test_an_answer_names_what_it_took_and_is_less_sure(box: str) -> None:
    ask: Any = {"gpus": 16, "local_batch": 1, "sharding": "fsdp"}
    mine = knee.simulate("llama2-7b", cluster=box, **ask).to_dict()
    known = knee.simulate("llama2-7b", cluster="dgx-h100", **ask).to_dict()
    assert any("a100-sxm-40" in text for text in mine["assumptions"])
    low, high = (answer["trust"]["low_frac"] for answer in (mine, known))
    assert low < high


@pytest.mark.parametrize(
    ("vendor", "arch", "rate", "nearest"),
    [
        ("NVIDIA", "sm89", "362 TFLOP/s", "a100-sxm-40"),
        ("NVIDIA", "Hopper", "989 TFLOP/s", "h100-sxm"),
        ("NVIDIA", "sm120", "500 TFLOP/s", "b200-sxm"),
        ("AMD", "CDNA4", "2300 TFLOP/s", "mi300x"),
    ],
)
def test_the_nearest_is_of_the_vendor_then_of_the_generation(vendor: str, arch: str, rate: str, nearest: str) -> None:
    raw = {"vendor": vendor, "arch": arch, "fp16_flop_per_s": rate, "hbm_bytes_per_s": "1.2 TB/s"}
    found = nearest_gpu(read_table("gpu", raw, where="mine.toml"))
    assert found == nearest or (nearest == "b200-sxm" and found == "gb200")
    assert {"processor", "v100-sxm2-32"}.isdisjoint(measured_gpus())


def test_only_what_no_entry_can_give_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "box.toml", '[gpu]\nname = "x"\n[node]\ngpus = 8\n[fabric]\nkind = "roce"\n')
    with pytest.raises(SeveralMistakes) as refused:
        load_cluster(path)
    missing = {mistake.place for mistake in refused.value.mistakes}
    assert missing == {
        *(f"gpu.{name}" for name in ("fp16_flop_per_s", "hbm_bytes", "hbm_bytes_per_s", "tdp_w")),
        *("node.link", "node.link_bytes_per_s", "fabric.nic_bytes_per_s"),
    }


def test_a_gpu_is_no_cluster(box: str) -> None:
    with pytest.raises(InputError) as refused:
        load_cluster(str(Path(box).parent / "gpus" / "l40s.toml"))
    assert (refused.value.code, refused.value.field) == ("other-document", "cluster")


def test_a_file_of_one_kind_is_told_from_another(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('base = "dgx-h100"\n')
    for load, kind in ((load_model, "model"), (load_profile, "profile")):
        with pytest.raises(InputError) as refused:
            load(str(tmp_path / "mine.toml"))
        assert (refused.value.code, refused.value.field) == ("other-document", kind)
        assert refused.value.hint == "give it as the cluster"


def test_the_hint_names_what_an_unknown_name_may_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "four-nics.toml").write_text('base = "dgx-h100"\n')
    monkeypatch.chdir(tmp_path)
    hints = {"gh200": ("gh200-nvl32", "gh200-4-slingshot"), "eager": ("profile",), "four-nics": ("four-nics.toml",)}
    for name, words in hints.items():
        with pytest.raises(InputError) as refused:
            load_cluster(name)
        assert refused.value.code == "unknown-name"
        assert all(word in str(refused.value.hint) for word in words)


def test_a_model_of_a_hub_is_not_downloaded() -> None:
    with pytest.raises(InputError) as refused:
        load_model("meta-llama/Llama-3.1-8B")
    assert (refused.value.code, refused.value.field) == ("no-file", "model")
    assert "config.json" in str(refused.value.hint)


# ---- NICs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "field"),
    [
        ('nics_per_node = 4\nnic_rate = "400 Gbit/s"\nnic_bytes_per_s = "50 GB/s"', "contradiction", "nic_bytes_per_s"),
        ("nics_per_node = 4", "missing-field", "nic_rate"),
        ('nic_rate = "400 Gbit/s"', "missing-field", "nics_per_node"),
        ("nics_per_node = 4\nnic_rate = 400", "not-an-amount", "nic_rate"),
        ('nics_per_node = 0\nnic_rate = "400 Gbit/s"', "not-an-amount", "nics_per_node"),
    ],
)
def test_nics_that_cannot_be(text: str, code: str, field: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as refused:
        load_cluster(write(tmp_path / "mine.toml", f'base = "dgx-h100"\n[fabric]\n{text}\n'))
    assert (refused.value.code, refused.value.field) == (code, f"fabric.{field}")


def test_nics_replace_an_inherited_rate_and_agree_with_an_equal_one(tmp_path: Path) -> None:
    base = write(tmp_path / "four.toml", 'base = "dgx-h100"\n[fabric]\nnics_per_node = 4\nnic_rate = "400 Gbit/s"\n')
    assert load_cluster(base).spec.fabric.nic_bytes_per_s == 25e9
    more = write(tmp_path / "more.toml", 'base = "four.toml"\n[node]\ngpus = 4\n')
    assert load_cluster(more).spec.fabric.nic_bytes_per_s == 50e9
    own = write(tmp_path / "own.toml", 'base = "four.toml"\n[fabric]\nnic_bytes_per_s = "10 GB/s"\n')
    assert load_cluster(own).spec.fabric.nic_bytes_per_s == 10e9
    changes = [("fabric.nics_per_node", "8"), ("fabric.nic_rate", "200 Gbit/s")]
    assert load_cluster("dgx-h100", changes).spec.fabric.nic_bytes_per_s == 25e9


# ---- units ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fabric.nic_bytes_per_s", "200"),
        ("gpu.hbm_bytes", "48"),
        ("gpu.bf16_flop_per_s", "989"),
        ("fabric.hop_s", "8"),
        ("gpu.gemm_j_per_flop", "1.1"),
    ],
)
def test_a_bare_number_that_could_mean_anything(key: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as refused:
        load_cluster("dgx-h100", [(key, value)])
    assert (refused.value.code, refused.value.field) == ("missing-unit", key)
    table, _, name = key.partition(".")
    with pytest.raises(SpecError) as refused:
        load_cluster(write(tmp_path / "mine.toml", f'base = "dgx-h100"\n[{table}]\n{name} = {value}\n'))
    assert (refused.value.code, refused.value.field) == ("missing-unit", key)


@pytest.mark.parametrize(
    ("key", "value"),
    [("fabric.nic_bytes_per_s", "50e9"), ("fabric.hop_s", "8e-6"), ("gpu.tdp_w", "650"), ("usd_per_gpu_h", "2")],
)
def test_a_bare_number_that_means_one_thing(key: str, value: str) -> None:
    assert attrgetter(key)(load_cluster("dgx-h100", [(key, value)]).spec) == float(value)


def test_bare_seconds_and_bytes_of_a_profile() -> None:
    spec = load_profile("eager", [("logit_bytes", "4"), ("step_overhead_s", "0.02"), ("skew_s", "0")]).spec
    assert (spec.logit_bytes, spec.step_overhead_s, spec.skew_s) == (4.0, 0.02, 0.0)


# ---- bases and paths -----------------------------------------------------------------------------------------------


def test_a_base_is_relative_to_its_file(tmp_path: Path) -> None:
    write(tmp_path / "below" / "model.toml", 'base = "llama2-7b"\nlayers = 4\n')
    write(tmp_path / "below" / "middle.toml", 'base = "model.toml"\nvocab = 1000\n')
    loaded = load_model(write(tmp_path / "mine.toml", 'base = "below/middle.toml"\nhidden = 2048\nffn = 5504\n'))
    spec = loaded.spec
    assert (spec.name, spec.layers, spec.vocab, spec.hidden) == ("mine", 4, 1000, 2048)
    assert loaded.sources["layers"].text == "model.toml"


def test_a_model_s_config_is_a_base(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128,
        "num_attention_heads": 4, "vocab_size": 100,
    }  # fmt: skip
    (tmp_path / "config.json").write_text("\ufeff" + json.dumps(config), encoding="utf-8")
    assert load_model(write(tmp_path / "mine.toml", 'base = "config.json"\nlayers = 3\n')).spec.layers == 3


def test_a_base_that_comes_back_to_itself(tmp_path: Path) -> None:
    write(tmp_path / "a.toml", 'base = "b.toml"\n')
    with pytest.raises(InputError) as refused:
        load_profile(write(tmp_path / "b.toml", 'base = "a.toml"\n'))
    assert (refused.value.code, refused.value.field) == ("contradiction", "base")


@pytest.mark.usefixtures("box")
def test_a_job_over_another(tmp_path: Path) -> None:
    write(
        tmp_path / "job.toml",
        'model = "llama2-7b"\ncluster = "box.toml"\ngpus = 16\nlocal_batch = 1\n[plan]\nsharding = "fsdp"\n',
    )
    (tmp_path / "jobs").mkdir()
    loaded = load_job(write(tmp_path / "jobs" / "more.toml", 'base = "../job.toml"\ngpus = 32\n[plan]\ntp = 2\n'))
    assert (loaded.spec.gpus, loaded.spec.plan.tp, loaded.spec.plan.sharding) == (32, 2, "fsdp")
    assert loaded.spec.cluster.gpu.name == "l40s"
    assert "nearest-gpu" in map(code_of, loaded.assumptions)
    asked = knee.simulate(tmp_path / "jobs" / "more.toml")
    assert asked.to_dict()


def test_a_byte_order_mark(tmp_path: Path) -> None:
    assert load_profile(write(tmp_path / "mine.toml", '\ufeffbase = "eager"\n')).spec.kernels == "eager"
