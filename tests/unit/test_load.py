"""Specs from names, files and options; what is said when they are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from knee.errors import InputError, SpecError
from knee.specs import Job
from knee.specs.load import load_cluster, load_job, load_model, load_profile, make_job, split_overrides


def write(folder: Path, text: str, name: str = "job.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def job(
    gpus: int = 8, cluster: str = "dgx-h100", profile: str = "eager", model: str = "llama2-7b", **sizes: Any
) -> tuple[Job, tuple[str, ...]]:
    specs = load_model(model).spec, load_cluster(cluster).spec, load_profile(profile).spec
    return make_job(*specs, gpus=gpus, **sizes)


# Names.


def test_a_name() -> None:
    assert load_model("llama2-7b").spec.layers == 32


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(InputError, match="no model named 'lama2-7b'") as caught:
        load_model("lama2-7b")
    assert caught.value.hint == "did you mean llama2-7b? `knee catalog` lists all"


@pytest.mark.parametrize("name", ["", "  "])
def test_no_name(name: str) -> None:
    with pytest.raises(InputError, match=r"^no model was named$"):
        load_model(name)


def test_a_name_like_no_other() -> None:
    with pytest.raises(InputError) as caught:
        load_cluster("zzzzzz")
    assert caught.value.hint == "`knee catalog` lists all"


# Files.

TINY = """
layers = 2
hidden = 64
ffn = 128
heads = 4
kv_heads = 4
vocab = 100
"""


def test_a_model_file(tmp_path: Path) -> None:
    loaded = load_model(str(write(tmp_path, TINY, "mine.toml")))
    assert loaded.spec.name == "mine"
    assert loaded.sources["layers"].kind == "user"
    assert loaded.sources["layers"].text == "mine.toml"


def test_a_file_that_inherits(tmp_path: Path) -> None:
    text = 'base = "dgx-h100"\n[fabric]\nnic_bytes_per_s = "200 Gbit/s"\n[gpu]\ngemm_frac = "60%"\n'
    loaded = load_cluster(str(write(tmp_path, text, "slow.toml")))
    assert loaded.spec.fabric.nic_bytes_per_s == 25e9
    assert loaded.spec.gpu.gemm_frac == pytest.approx(0.6)
    assert loaded.spec.gpu.sms == 132
    assert loaded.sources["fabric.nic_bytes_per_s"].kind == "user"
    assert loaded.sources["fabric.hop_s"].kind == "published"


def test_a_file_may_name_its_sources(tmp_path: Path) -> None:
    text = TINY.replace("layers = 2", 'layers = { value = 2, kind = "published", source = "a paper" }')
    source = load_model(str(write(tmp_path, text, "m.toml"))).sources["layers"]
    assert (source.kind, source.text, source.value) == ("published", "a paper", 2)


def test_broken_toml_names_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"m\.toml is not valid TOML: .*line 2"):
        load_model(str(write(tmp_path, "layers = 2\nhidden = \n", "m.toml")))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"there is no file 'nowhere\.toml'"):
        load_model("nowhere.toml")


def test_a_base_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no cluster named 'dgx-h10'") as caught:
        load_cluster(str(write(tmp_path, 'base = "dgx-h10"', "c.toml")))
    assert "did you mean dgx-h100?" in str(caught.value.hint)


def test_all_mistakes_at_once_with_their_places(tmp_path: Path) -> None:
    text = """
base = "dgx-h100"
usd_per_gpu_h = "cheap"
[fabric]
nic_bytes_per_s = "400 GB"
nic_fraction = 0.9
kind = "infinband"
[node]
gpus = "eight"
[gpu]
gemm_frac = true
[gpu.attention.flash4]
forward_frac = 0.7
backward_frac = 0.6
"""
    with pytest.raises(SpecError) as caught:
        load_cluster(str(write(tmp_path, text, "c.toml")))
    first, *lines = caught.value.message.splitlines()
    assert first.endswith(f"c.toml has {len(lines)} mistakes:")
    places = {line.strip().partition(": ")[0] for line in lines}
    assert places == {
        "usd_per_gpu_h",
        "fabric.nic_bytes_per_s",
        "fabric.nic_fraction",
        "fabric.kind",
        "node.gpus",
        "gpu.gemm_frac",
        "gpu.attention.flash4",
    }
    assert "  fabric.nic_fraction: is not a field; did you mean nic_frac?" in lines
    assert "  node.gpus: should be a whole number, not 'eight'" in lines


def test_negative_numbers_are_among_the_mistakes(tmp_path: Path) -> None:
    text = 'layers = "twenty"\nhiden = 4096\nffn = -1\nheads = 24.5\nkv_heads = 0\nhead_size = 0\nvocab = 100\n'
    with pytest.raises(SpecError, match="6 mistakes") as caught:
        load_model(str(write(tmp_path, text, "m.toml")))
    lines = [line.strip() for line in caught.value.message.splitlines()]
    assert {line.partition(":")[0] for line in lines[1:]} == {"layers", "hidden", "hiden", "ffn", "heads", "kv_heads"}
    assert "ffn: is -1; it must be at least 1" in lines


def test_negative_quantities_are_among_the_mistakes(tmp_path: Path) -> None:
    text = 'base = "dgx-h100"\n[node]\ngpus = "eight"\nhop_s = "-3 us"\n[gpu]\nsms = 0\ntdp_w = "-1 W"\n'
    with pytest.raises(SpecError, match="4 mistakes") as caught:
        load_cluster(str(write(tmp_path, text, "c.toml")))
    for words in ("node.hop_s: is -3e-06; it cannot be negative", "gpu.sms: is 0", "gpu.tdp_w: is -1.0", "node.gpus:"):
        assert words in caught.value.message


def test_mistakes_inside_a_list(tmp_path: Path) -> None:
    text = 'base = "dgx-h100"\n[[fabric.tiers]]\nname = "spine"\nnodes = true\nhops_s = "1 us"\nhop_s = "1 us"\n'
    with pytest.raises(SpecError, match="2 mistakes") as caught:
        load_cluster(str(write(tmp_path, text, "c.toml")))
    assert "fabric.tiers.0.nodes: should not be true" in caught.value.message
    assert "fabric.tiers.0.hops_s: is not a field; did you mean hop_s?" in caught.value.message


def test_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="vocab is missing"):
        load_model(str(write(tmp_path, TINY.replace("vocab = 100", ""), "m.toml")))


def test_a_value_that_cannot_be_is_told_at_its_field(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"m\.toml: layers is 0; it must be at least 1"):
        load_model(str(write(tmp_path, TINY.replace("layers = 2", "layers = 0"), "m.toml")))


def test_a_complaint_about_two_fields_keeps_its_hint(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="hidden 63 is not divisible") as caught:
        load_model(str(write(tmp_path, TINY.replace("64", "63"), "m.toml")))
    assert caught.value.hint is not None


@pytest.mark.parametrize("value", ["inf", "nan", "-inf"])
def test_numbers_are_finite(tmp_path: Path, value: str) -> None:
    with pytest.raises(SpecError, match="not a finite number"):
        load_profile(str(write(tmp_path, f'base = "eager"\nhop_scale = {value}', "p.toml")))


def test_a_misspelt_kind_of_source(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="kinds of source"):
        load_model(str(write(tmp_path, TINY + 'source = "me"\nkind = "vender"\n', "m.toml")))


# Hugging Face configs.

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
MPT = {
    "model_type": "mpt",
    "d_model": 4096,
    "n_heads": 32,
    "n_layers": 32,
    "expansion_ratio": 4,
    "no_bias": True,
    "vocab_size": 50432,
    "max_seq_len": 2048,
    "attn_config": {"alibi": True},
}


def config(folder: Path, values: dict[str, Any]) -> str:
    return str(write(folder, json.dumps(values), "config.json"))


def test_a_llama_config_equals_the_catalogue(tmp_path: Path) -> None:
    read, known = load_model(config(tmp_path, LLAMA)).spec, load_model("llama3-8b").spec
    assert (read.layers, read.hidden, read.ffn, read.kv_heads) == (known.layers, known.hidden, known.ffn, 8)
    assert (read.vocab, read.mlp, read.norm, read.biases) == (known.vocab, "swiglu", "rmsnorm", False)


def test_a_folder_with_a_config(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    config(folder, LLAMA)
    assert load_model(str(folder)).spec.name == "my-llama"


def test_gpt2_and_mpt_configs(tmp_path: Path) -> None:
    gpt2 = load_model(config(tmp_path, GPT2)).spec
    assert (gpt2.ffn, gpt2.positions, gpt2.biases, gpt2.tied_embeddings) == (3072, "learned", True, True)
    mpt = load_model(config(tmp_path, MPT)).spec
    assert (mpt.ffn, mpt.positions, mpt.biases, mpt.norm) == (16384, "alibi", False, "layernorm")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "mixtral", "num_local_experts": 8}, "mixture-of-experts"),
        ({"model_type": "rwkv"}, "not one that knee can read"),
        ({"attention_bias": True}, "biases or none"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding_window 4096: sliding windows are not modelled"),
        ({"sliding_window": 4096, "use_sliding_window": True}, "sliding windows are not modelled"),
        ({"num_hidden_layers": "many"}, "layers: should be a whole number"),
    ],
)
def test_configs_that_are_refused_in_words(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_model(config(tmp_path, LLAMA | change))


def test_the_way_out_of_a_sliding_window(tmp_path: Path) -> None:
    mistral = LLAMA | {"model_type": "mistral", "sliding_window": 4096}
    with pytest.raises(InputError) as caught:
        load_model(config(tmp_path, mistral))
    assert caught.value.hint == "set sliding_window to null to price full attention"
    for full in ({"sliding_window": None}, {"use_sliding_window": False}):
        assert load_model(config(tmp_path, mistral | full)).spec.layers == 32


def test_a_config_without_a_field(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="vocab_size is missing"):
        load_model(config(tmp_path, {key: value for key, value in LLAMA.items() if key != "vocab_size"}))


# Overrides.


def test_overrides_by_path_and_by_suffix() -> None:
    loaded = load_cluster(
        "dgx-h100",
        [
            ("fabric.nic_bytes_per_s", "200 Gbit/s"),
            ("gemm_frac", "50%"),
            ("nvls", "false"),
            ("node.gpus", "4"),
            ("usd_per_gpu_h", "2 USD/h"),
        ],
    )
    spec = loaded.spec
    assert (spec.fabric.nic_bytes_per_s, spec.gpu.gemm_frac) == (25e9, 0.5)
    assert (spec.node.nvls, spec.node.gpus) == (False, 4)
    assert spec.usd_per_gpu_h == 2.0
    assert (loaded.sources["gpu.gemm_frac"].kind, loaded.sources["gpu.gemm_frac"].value) == ("user", "50%")


@pytest.mark.parametrize("key", ["fabric.tiers.0.oversubscription", "tiers.0.oversubscription"])
def test_an_override_inside_a_list(key: str) -> None:
    loaded = load_cluster("dgx-h100", [(key, "4")])
    assert loaded.spec.fabric.tiers[0].oversubscription == 4.0
    assert loaded.sources["fabric.tiers.0.oversubscription"].text == "--set"
    assert load_cluster("dgx-h100").spec.fabric.tiers[0].oversubscription == 1.0
    assert split_overrides([(key, "4")])[1] == (("fabric.tiers.0.oversubscription", "4"),)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("fabric.tiers.7.hop_s", r"there is no number 7 among \d, counted from 0"),
        ("fabric.tiers.0.hops", "no such field"),
        ("fabric.tiers.*.hop_s", "no such field"),
        ("oversubscription", "no such field"),
        ("fabric.tiers.-1.hop_s", "no such field"),
        ("fabric.0.tiers", "no such field"),
    ],
)
def test_overrides_inside_a_list_that_are_refused(key: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        load_cluster("dgx-h100", [(key, "4")])
    assert caught.value.hint is not None


def test_a_list_that_is_not_there_has_no_items(tmp_path: Path) -> None:
    path = str(write(tmp_path, 'base = "dgx-h100"\n[fabric]\ntiers = []\n', "flat.toml"))
    assert load_cluster(path).spec.fabric.tiers == ()
    with pytest.raises(InputError, match="no number 0 among 0"):
        load_cluster(path, [("tiers.0.nodes", "4")])


def test_none_unsets_what_may_be_unset() -> None:
    assert load_cluster("dgx-h100", [("usd_per_gpu_h", "none")]).spec.usd_per_gpu_h is None
    with pytest.raises(SpecError, match=r"--set gpu\.sms"):
        load_cluster("dgx-h100", [("sms", "none")])


def test_an_override_does_not_stay() -> None:
    load_profile("eager", [("hop_scale", "9")])
    assert load_profile("eager").spec.hop_scale != 9


def test_overrides_that_are_refused() -> None:
    with pytest.raises(InputError, match=r"could mean node\.hop_s, fabric\.hop_s"):
        load_cluster("dgx-h100", [("hop_s", "3 us")])
    with pytest.raises(InputError, match="no such field") as caught:
        load_cluster("dgx-h100", [("fabric.nic_byte_per_s", "3")])
    assert caught.value.hint == "did you mean fabric.nic_bytes_per_s?"
    with pytest.raises(SpecError, match=r"--set gpu\.gemm_frac is 1\.5"):
        load_cluster("dgx-h100", [("gemm_frac", "1.5")])
    with pytest.raises(InputError, match="list of tables"):
        load_cluster("dgx-h100", [("tiers", "none")])


def test_split_overrides() -> None:
    model, cluster, profile, plan = split_overrides(
        [
            ("layers", "3"),
            ("gpu.gemm_frac", "0.5"),
            ("profile.hop_scale", "2"),
            ("plan.tp_overlap_frac", "0.1"),
            ("tp", "2"),
        ]
    )
    assert model == (("layers", "3"),)
    assert cluster == (("gpu.gemm_frac", "0.5"),)
    assert profile == (("hop_scale", "2"),)
    assert plan == (("tp_overlap_frac", "0.1"), ("tp", "2"))


def test_split_overrides_refuses_what_fits_two_specs() -> None:
    with pytest.raises(InputError, match=r"profile\.tp_overlap_frac, plan\.tp_overlap_frac"):
        split_overrides([("tp_overlap_frac", "1")])
    with pytest.raises(InputError, match="no such field") as caught:
        split_overrides([("hop_scal", "1")])
    assert caught.value.hint == "did you mean profile.hop_scale?"


# Jobs.


def test_defaults_fill_the_gpus_and_say_so() -> None:
    made, notes = job(gpus=64, local_batch=2, plan_options={"tp": 2, "sharding": None})
    assert (made.plan.dp_shard, made.plan.micro_batch, made.global_batch, made.seq_len) == (32, 4, 128, 4096)
    assert [note.split()[0] for note in notes] == ["seq_len", "dp_shard", "micro_batch"]


def test_nothing_is_noted_that_was_given() -> None:
    options = {"dp_shard": 8, "micro_batch": 2}
    assert job(global_batch=16, seq_len=2048, plan_options=options)[1] == ()


def test_seq_len_is_capped_by_the_model() -> None:
    assert job(global_batch=8, model="llama-tiny")[0].seq_len == 256


def test_ddp_replicates() -> None:
    plan = job(global_batch=16, plan_options={"sharding": "ddp"})[0].plan
    assert (plan.dp_replicate, plan.dp_shard) == (8, 1)


def test_hsdp_with_either_size() -> None:
    for options in ({"dp_shard": 8}, {"dp_replicate": 4}):
        plan = job(gpus=32, global_batch=32, plan_options={"sharding": "hsdp", **options})[0].plan
        assert (plan.dp_replicate, plan.dp_shard) == (4, 8)


def test_a_pipeline_runs_single_sequences() -> None:
    made = job(global_batch=32, plan_options={"pp": 4})[0]
    assert (made.plan.micro_batch, made.microbatches) == (1, 16)


def test_volta_falls_back_to_fp16_and_says_so() -> None:
    made, notes = job(cluster="dgx-v100", profile="paper-v100", global_batch=8)
    assert made.plan.precision == "fp16"
    assert "no bf16 tensor cores" in notes[-1]


def test_placement_in_one_word() -> None:
    options = {"placement": "tp-dp_shard-cp-dp_replicate-pp"}
    assert job(global_batch=8, plan_options=options)[0].plan.placement[1] == "dp_shard"


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (
            {"global_batch": 16, "plan_options": {"tp": 3}},
            r"dp_replicate\(1\) \* tp\(3\) \* pp\(1\) \* cp\(1\) does not divide gpus\(8\)",
        ),
        ({"local_batch": 0.3}, "= 2.4 is not a whole number"),
        ({"local_batch": float("nan")}, "local_batch is nan"),
        ({"local_batch": -1}, "local_batch is -1; it must be above 0"),
        ({"local_batch": 1e30}, "^local_batch is 1e"),
        ({"local_batch": 4_000_000}, r"^local_batch\(4e\+06\) \* gpus\(8\) = 32,000,000 sequences"),
        ({"global_batch": 2**24 + 8}, "^global_batch is 16777224; more than 16,777,216"),
        ({"gpus": 10**26, "global_batch": 16}, "^gpus is 100,000,000,.* dgx-h100 is described up to 1,000,000"),
        ({"global_batch": 16, "plan_options": {"micro_batch": 0}}, r"^plan\.micro_batch is 0; it must be at least 1"),
        ({"global_batch": 16, "plan_options": {"placement": "tp-pp"}}, r"^plan\.placement tp-pp must name each"),
        ({"global_batch": 16, "plan_options": {"sharding": "hsdp"}}, "^plan: hsdp needs"),
        ({}, "batch is missing"),
        ({"local_batch": 2, "global_batch": 16}, "both given"),
        ({"global_batch": 16, "plan_options": {"tp": 0}}, "at least 1"),
        ({"global_batch": 16, "plan_options": {"tp": "two"}}, "whole number"),
        ({"global_batch": 16, "plan_options": {"sharding": "fsdpp"}}, "not one of ddp, zero1"),
        ({"global_batch": 16, "plan_options": {"shardin": "fsdp"}}, "did you mean sharding"),
        ({"gpus": 0, "global_batch": 16}, "gpus is 0"),
    ],
)
def test_jobs_that_are_refused(sizes: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        job(**sizes)


def test_a_job_file(tmp_path: Path) -> None:
    write(tmp_path, TINY, "mine.toml")
    path = write(
        tmp_path,
        """
model = "mine.toml"
cluster = { base = "dgx-h100", fabric = { nic_bytes_per_s = "100 Gbit/s" } }
profile = "paper"
gpus = 16
local_batch = 0.5
[plan]
tp = 2
""",
    )
    loaded = load_job(path, [("hop_scale", "3"), ("plan.recompute", "full")])
    made = loaded.spec
    assert (made.model.layers, made.profile.hop_scale) == (2, 3.0)
    assert made.cluster.fabric.nic_bytes_per_s == 12.5e9
    assert (made.global_batch, made.plan.dp_shard, made.plan.recompute) == (8, 8, "full")
    assert loaded.sources["profile.hop_scale"].text == "--set"
    assert loaded.sources["plan.tp"].text == "job.toml"
    assert loaded.sources["plan.recompute"].text == "--set"
    assert loaded.sources["cluster.gpu.sms"].kind == "vendor"
    assert len(loaded.assumptions) == 3


def test_a_job_file_with_many_mistakes(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
model = "llama2-8b"
gpus = "x"
seqlen = 5
tp = 2
[cluster]
base = "dgx-h100"
fabric.nic_bytes_per_s = "400 GB"
[plan]
tp = "q"
""",
    )
    with pytest.raises(SpecError) as caught:
        load_job(path)
    first, *lines = caught.value.message.splitlines()
    assert first == "job.toml has 6 mistakes:"
    assert [line.strip().partition(":")[0] for line in lines] == [
        "seqlen",
        "tp",
        "model",
        "cluster.fabric.nic_bytes_per_s",
        "gpus",
        "plan.tp",
    ]
    assert "did you mean plan.tp?" in lines[1]
    assert "did you mean llama" in lines[2]


def test_what_is_given_besides_completes_a_job_file(tmp_path: Path) -> None:
    path = write(tmp_path, 'model = "llama2-7b"\ncluster = "dgx-h10"\nglobal_batch = 5\n[plan]\ntp = 2\n')
    given = {"cluster": "dgx-h100", "gpus": 16, "local_batch": 2, "plan": {"recompute": "full"}}
    made = load_job(path, given=given).spec
    assert (made.gpus, made.global_batch, made.plan.tp, made.plan.recompute) == (16, 32, 2, "full")
    with pytest.raises(SpecError, match=r"^job\.toml with the options given: gpus is missing"):
        load_job(path, given={"cluster": "dgx-h100"})


def test_an_empty_job_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="3 mistakes") as caught:
        load_job(write(tmp_path, ""))
    assert caught.value.message.count("is missing") == 3


def test_a_job_that_cannot_be_names_its_file(tmp_path: Path) -> None:
    path = write(tmp_path, 'model = "llama2-7b"\ncluster = "dgx-h100"\ngpus = 8\nglobal_batch = 12\n')
    with pytest.raises(SpecError, match=r"job\.toml: global_batch 12 does not split over 8"):
        load_job(path)
