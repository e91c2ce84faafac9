"""Specs from names, files and options, and which of their values are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from knee.base.errors import SpecError
from knee.specs import Job
from knee.specs.check import SeveralMistakes
from knee.specs.fields import split_overrides
from knee.specs.load import load_cluster, load_job, load_model, load_profile, make_job
from knee.specs.notes import code_of
from refusals import caught, kind


def write(folder: Path, text: str, name: str = "job.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def job(
    gpus: int = 8, cluster: str = "dgx-h100", profile: str = "eager", model: str = "llama2-7b", **sizes: Any
) -> tuple[Job, tuple[str, ...]]:
    specs = load_model(model).spec, load_cluster(cluster).spec, load_profile(profile).spec
    return make_job(*specs, gpus=gpus, **sizes)


def mistakes(error: Exception) -> set[tuple[str, str]]:
    """Code and place of every mistake of a file."""
    assert isinstance(error, SeveralMistakes)
    assert len(error.message.splitlines()) == 1 + len(error.mistakes)
    return {(one.code, one.place) for one in error.mistakes}


# Names.


def test_a_name() -> None:
    assert load_model("llama2-7b").spec.layers == 32


def test_an_unknown_name_gets_the_nearest() -> None:
    error = caught(lambda: load_model("lama2-7b"))
    assert kind(error) == ("unknown-name", "model")
    assert "llama2-7b?" in str(error.hint)
    error = caught(lambda: load_cluster("zzzzzz"))
    assert kind(error) == ("unknown-name", "cluster")
    assert "?" not in str(error.hint)


@pytest.mark.parametrize("name", ["", "  "])
def test_no_name(name: str) -> None:
    assert kind(caught(lambda: load_model(name))) == ("missing-argument", "model")


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
    text = 'base = "dgx-h100"\n[fabric]\nnic_bytes_per_s = "200 Gbit/s"\n[gpu]\nhbm_frac = "60%"\n'
    loaded = load_cluster(str(write(tmp_path, text, "slow.toml")))
    assert loaded.spec.fabric.nic_bytes_per_s == 25e9
    assert loaded.spec.gpu.hbm_frac == pytest.approx(0.6)
    assert loaded.spec.gpu.sms == 132
    assert loaded.sources["fabric.nic_bytes_per_s"].kind == "user"
    assert loaded.sources["fabric.hop_s"].kind == "fitted"


def test_a_file_may_name_its_sources(tmp_path: Path) -> None:
    text = TINY.replace("layers = 2", 'layers = { value = 2, kind = "published", source = "a paper" }')
    source = load_model(str(write(tmp_path, text, "m.toml"))).sources["layers"]
    assert (source.kind, source.text, source.value) == ("published", "a paper", 2)


def test_broken_toml_names_file_and_line(tmp_path: Path) -> None:
    error = caught(lambda: load_model(str(write(tmp_path, "layers = 2\nhidden = \n", "m.toml"))))
    assert error.code == "not-toml"
    assert "m.toml" in error.message
    assert "line 2" in error.message


def test_what_is_not_there(tmp_path: Path) -> None:
    assert caught(lambda: load_model("nowhere.toml")).code == "no-file"
    error = caught(lambda: load_cluster(str(write(tmp_path, 'base = "dgx-h10"', "c.toml"))))
    assert kind(error) == ("unknown-name", "cluster")
    assert "dgx-h100?" in str(error.hint)


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
hbm_frac = true
[gpu.attention.flash4]
forward_frac = 0.7
backward_frac = 0.6
"""
    error = caught(lambda: load_cluster(str(write(tmp_path, text, "c.toml"))))
    assert mistakes(error) == {
        ("not-an-amount", "usd_per_gpu_h"),
        ("not-an-amount", "fabric.nic_bytes_per_s"),
        ("unknown-field", "fabric.nic_fraction"),
        ("unknown-choice", "fabric.kind"),
        ("not-a-number", "node.gpus"),
        ("wrong-type", "gpu.hbm_frac"),
        ("unknown-choice", "gpu.attention.flash4"),
    }
    assert "nic_frac?" in error.message


def test_negative_numbers_are_among_the_mistakes(tmp_path: Path) -> None:
    text = 'layers = "twenty"\nhiden = 4096\nffn = -1\nheads = 24.5\nkv_heads = 0\nhead_size = 0\nvocab = 100\n'
    assert mistakes(caught(lambda: load_model(str(write(tmp_path, text, "m.toml"))))) == {
        ("not-a-number", "layers"),
        ("missing-field", "hidden"),
        ("unknown-field", "hiden"),
        ("out-of-range", "ffn"),
        ("not-a-number", "heads"),
        ("out-of-range", "kv_heads"),
    }
    text = 'base = "dgx-h100"\n[node]\ngpus = "eight"\nhop_s = "-3 us"\n[gpu]\nsms = 0\ntdp_w = "-1 W"\n'
    assert mistakes(caught(lambda: load_cluster(str(write(tmp_path, text, "c.toml"))))) == {
        ("not-a-number", "node.gpus"),
        ("out-of-range", "node.hop_s"),
        ("out-of-range", "gpu.sms"),
        ("out-of-range", "gpu.tdp_w"),
    }


def test_mistakes_inside_a_list(tmp_path: Path) -> None:
    text = 'base = "dgx-h100"\n[[fabric.tiers]]\nname = "spine"\nnodes = true\nhops_s = "1 us"\nhop_s = "1 us"\n'
    error = caught(lambda: load_cluster(str(write(tmp_path, text, "c.toml"))))
    assert mistakes(error) == {("wrong-type", "fabric.tiers.0.nodes"), ("unknown-field", "fabric.tiers.0.hops_s")}
    assert "hop_s?" in error.message


@pytest.mark.parametrize(
    ("old", "new", "code", "field"),
    [
        ("vocab = 100", "", "missing-field", "vocab"),
        ("layers = 2", "layers = 0", "out-of-range", "layers"),
        ("hidden = 64", "hidden = 63", "does-not-divide", "model.hidden"),
        ("vocab = 100", 'vocab = 100\nsource = "me"\nkind = "vender"\n', "unknown-field", "kind"),
    ],
)
def test_one_mistake_is_told_at_its_field(tmp_path: Path, old: str, new: str, code: str, field: str | None) -> None:
    error = caught(lambda: load_model(str(write(tmp_path, TINY.replace(old, new), "m.toml"))))
    assert kind(error) == (code, field)
    assert "m.toml" in error.message
    assert (error.hint is None) == (code != "does-not-divide")  # a complaint about two fields says which to change


@pytest.mark.parametrize("value", ["inf", "nan", "-inf"])
def test_numbers_are_finite(tmp_path: Path, value: str) -> None:
    path = str(write(tmp_path, f'base = "eager"\nhop_scale = {value}', "p.toml"))
    assert kind(caught(lambda: load_profile(path))) == ("not-finite", "hop_scale")


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
    ("change", "code", "field"),
    [
        ({"model_type": "mixtral", "num_local_experts": 8}, "missing-field", "num_experts_per_tok"),
        ({"num_local_experts": 8}, "not-modelled", "num_local_experts"),
        ({"model_type": "rwkv"}, "not-modelled", "model_type"),
        ({"hidden_act": "relu"}, "not-modelled", "hidden_act"),
        ({"num_hidden_layers": "many"}, "not-a-number", "layers"),
    ],
)
def test_configs_that_are_refused(tmp_path: Path, change: dict[str, Any], code: str, field: str) -> None:
    assert kind(caught(lambda: load_model(config(tmp_path, LLAMA | change)))) == (code, field)


def test_a_config_without_a_field(tmp_path: Path) -> None:
    path = config(tmp_path, {key: value for key, value in LLAMA.items() if key != "vocab_size"})
    assert kind(caught(lambda: load_model(path))) == ("missing-field", "vocab_size")


# Overrides.


def test_overrides_by_path_and_by_suffix() -> None:
    loaded = load_cluster(
        "dgx-h100",
        [
            ("fabric.nic_bytes_per_s", "200 Gbit/s"),
            ("hbm_frac", "50%"),
            ("nvls", "false"),
            ("node.gpus", "4"),
            ("usd_per_gpu_h", "2 USD/h"),
        ],
    )
    spec = loaded.spec
    assert (spec.fabric.nic_bytes_per_s, spec.gpu.hbm_frac) == (25e9, 0.5)
    assert (spec.node.nvls, spec.node.gpus) == (False, 4)
    assert spec.usd_per_gpu_h == 2.0
    assert (loaded.sources["gpu.hbm_frac"].kind, loaded.sources["gpu.hbm_frac"].value) == ("user", "50%")


@pytest.mark.parametrize("key", ["fabric.tiers.0.oversubscription", "tiers.0.oversubscription"])
def test_an_override_inside_a_list(key: str) -> None:
    loaded = load_cluster("dgx-h100", [(key, "4")])
    assert loaded.spec.fabric.tiers[0].oversubscription == 4.0
    assert loaded.sources["fabric.tiers.0.oversubscription"].text == "--set"
    assert load_cluster("dgx-h100").spec.fabric.tiers[0].oversubscription == 1.0
    assert split_overrides([(key, "4")])[1] == (("fabric.tiers.0.oversubscription", "4"),)


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("fabric.tiers.7.hop_s", "out-of-range"),
        ("fabric.tiers.0.hops", "unknown-field"),
        ("fabric.tiers.*.hop_s", "unknown-field"),
        ("oversubscription", "unknown-field"),
        ("fabric.tiers.-1.hop_s", "unknown-field"),
        ("fabric.0.tiers", "unknown-field"),
    ],
)
def test_overrides_inside_a_list_that_are_refused(key: str, code: str) -> None:
    error = caught(lambda: load_cluster("dgx-h100", [(key, "4")]))
    assert kind(error) == (code, key)
    assert error.hint is not None


def test_a_list_that_is_not_there_has_no_items(tmp_path: Path) -> None:
    path = str(write(tmp_path, 'base = "dgx-h100"\n[fabric]\ntiers = []\n', "flat.toml"))
    assert load_cluster(path).spec.fabric.tiers == ()
    error = caught(lambda: load_cluster(path, [("tiers.0.nodes", "4")]))
    assert kind(error) == ("out-of-range", "fabric.tiers.0.nodes")


def test_none_unsets_what_may_be_unset() -> None:
    assert load_cluster("dgx-h100", [("usd_per_gpu_h", "none")]).spec.usd_per_gpu_h is None
    assert kind(caught(lambda: load_cluster("dgx-h100", [("sms", "none")]))) == ("not-a-number", "gpu.sms")


def test_an_override_does_not_stay() -> None:
    load_profile("eager", [("hop_scale", "9")])
    assert load_profile("eager").spec.hop_scale != 9


@pytest.mark.parametrize(
    ("key", "value", "code", "field"),
    [
        ("hop_s", "3 us", "ambiguous-field", "hop_s"),
        ("fabric.nic_byte_per_s", "3", "unknown-field", "fabric.nic_byte_per_s"),
        ("hbm_frac", "1.5", "out-of-range", "gpu.hbm_frac"),
        ("tiers", "none", "not-an-override", "fabric.tiers"),
    ],
)
def test_overrides_that_are_refused(key: str, value: str, code: str, field: str) -> None:
    error = caught(lambda: load_cluster("dgx-h100", [(key, value)]))
    assert kind(error) == (code, field)
    assert ("fabric.nic_bytes_per_s?" in str(error.hint)) == (key == "fabric.nic_byte_per_s")


def test_split_overrides() -> None:
    model, cluster, profile, plan = split_overrides(
        [
            ("layers", "3"),
            ("gpu.hbm_frac", "0.5"),
            ("profile.hop_scale", "2"),
            ("plan.tp_overlap_frac", "0.1"),
            ("tp", "2"),
        ]
    )
    assert model == (("layers", "3"),)
    assert cluster == (("gpu.hbm_frac", "0.5"),)
    assert profile == (("hop_scale", "2"),)
    assert plan == (("tp_overlap_frac", "0.1"), ("tp", "2"))


def test_split_overrides_refuses_what_fits_two_specs() -> None:
    error = caught(lambda: split_overrides([("tp_overlap_frac", "1")]))
    assert kind(error) == ("ambiguous-field", "tp_overlap_frac")
    assert "profile.tp_overlap_frac, plan.tp_overlap_frac" in error.message
    error = caught(lambda: split_overrides([("hop_scal", "1")]))
    assert kind(error) == ("unknown-field", "hop_scal")
    assert "profile.hop_scale?" in str(error.hint)


# Jobs.


def test_defaults_fill_the_gpus_and_say_so() -> None:
    made, notes = job(gpus=64, local_batch=2, plan_options={"tp": 2, "sharding": None})
    assert (made.plan.dp_shard, made.plan.micro_batch, made.global_batch, made.seq_len) == (32, 4, 128, 4096)
    assert [code_of(note) for note in notes] == ["default-seq-len", "default-degree", "default-micro-batch"]


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
    assert code_of(notes[-1]) == "default-precision"


def test_recompute_modules_in_one_word() -> None:
    options = {"recompute": "modules", "recompute_modules": "layernorm+mlp"}
    assert job(global_batch=8, plan_options=options)[0].plan.recompute_modules == ("layernorm", "mlp")
    with pytest.raises(SpecError) as caught:
        job(global_batch=8, plan_options=options | {"recompute_modules": "layernorm,mlp"})
    assert (caught.value.field or "").startswith("plan.recompute_modules")


def test_placement_in_one_word() -> None:
    options = {"placement": "tp-dp_shard-cp-dp_replicate-pp"}
    assert job(global_batch=8, plan_options=options)[0].plan.placement[1] == "dp_shard"


@pytest.mark.parametrize(
    ("sizes", "code", "field"),
    [
        ({"local_batch": 0.3}, "batch-not-whole", "local_batch"),
        ({"local_batch": float("nan")}, "out-of-range", "local_batch"),
        ({"local_batch": -1}, "out-of-range", "local_batch"),
        ({"local_batch": 1e30}, "out-of-range", "local_batch"),
        ({"local_batch": 4_000_000}, "out-of-range", "local_batch"),
        ({"global_batch": 2**24 + 8}, "out-of-range", "global_batch"),
        ({}, "missing-argument", "global_batch"),
        ({"local_batch": 2, "global_batch": 16}, "contradiction", "global_batch"),
        ({"gpus": 0, "global_batch": 16}, "out-of-range", "gpus"),
        ({"gpus": 10**26, "global_batch": 16}, "out-of-range", "gpus"),
    ],
)
def test_sizes_that_are_refused(sizes: dict[str, Any], code: str, field: str) -> None:
    error = caught(lambda: job(**sizes))
    assert isinstance(error, SpecError)
    assert kind(error) == (code, field)


@pytest.mark.parametrize(
    ("option", "code", "field"),
    [
        ({"tp": 3}, "does-not-divide", "gpus"),
        ({"tp": 0}, "out-of-range", "plan.tp"),
        ({"tp": "two"}, "not-a-number", "plan.tp"),
        ({"micro_batch": 0}, "out-of-range", "plan.micro_batch"),
        ({"placement": "tp-pp"}, "not-each-once", "plan.placement"),
        ({"sharding": "hsdp"}, "contradiction", "plan"),
        ({"sharding": "fsdpp"}, "unknown-choice", "plan.sharding"),
        ({"shardin": "fsdp"}, "unknown-field", "plan.shardin"),
    ],
)
def test_plans_that_are_refused(option: dict[str, Any], code: str, field: str) -> None:
    assert kind(caught(lambda: job(global_batch=16, plan_options=option))) == (code, field)


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
    error = caught(lambda: load_job(path))
    assert isinstance(error, SeveralMistakes)
    assert [(one.code, one.place) for one in error.mistakes] == [
        ("unknown-field", "seqlen"),
        ("unknown-field", "tp"),
        ("unknown-name", "model"),
        ("not-an-amount", "cluster.fabric.nic_bytes_per_s"),
        ("not-a-number", "gpus"),
        ("not-a-number", "plan.tp"),
    ]
    assert "plan.tp?" in error.mistakes[1].text
    assert "llama" in str(error.mistakes[2].hint)


def test_what_is_given_besides_completes_a_job_file(tmp_path: Path) -> None:
    path = write(tmp_path, 'model = "llama2-7b"\ncluster = "dgx-h10"\nglobal_batch = 5\n[plan]\ntp = 2\n')
    given = {"cluster": "dgx-h100", "gpus": 16, "local_batch": 2, "plan": {"recompute": "full"}}
    made = load_job(path, given=given).spec
    assert (made.gpus, made.global_batch, made.plan.tp, made.plan.recompute) == (16, 32, 2, "full")
    error = caught(lambda: load_job(path, given={"cluster": "dgx-h100"}))
    assert kind(error) == ("missing-field", "gpus")
    assert error.message.startswith("job.toml with the options given")


def test_an_empty_job_file(tmp_path: Path) -> None:
    missing = {("missing-field", name) for name in ("model", "cluster", "gpus")}
    assert mistakes(caught(lambda: load_job(write(tmp_path, "")))) == missing


def test_a_job_that_cannot_be_names_its_file(tmp_path: Path) -> None:
    path = write(tmp_path, 'model = "llama2-7b"\ncluster = "dgx-h100"\ngpus = 8\nglobal_batch = 12\n')
    error = caught(lambda: load_job(path))
    assert kind(error) == ("does-not-divide", "global_batch")
    assert error.message.startswith("job.toml: ")
