"""TOML files of models, clusters, profiles and jobs, and Hugging Face's config.json."""

from __future__ import annotations

import tomllib
from functools import cache
from random import Random
from typing import Any

from fuzz import mutate
from fuzz.case import Case, Kind
from fuzz.documents import encoded, json_text, toml_text
from knee.specs.catalog import ROOT

TINY = {
    "layers": 2,
    "hidden": 64,
    "ffn": 192,
    "heads": 8,
    "kv_heads": 8,
    "vocab": 512,
    "max_seq_len": 256,
    "mlp": "swiglu",
    "norm": "rmsnorm",
    "positions": "rope",
    "rope_base": 10000,
    "tied_embeddings": False,
    "biases": False,
}
LINK = {
    "gpus": 8,
    "link": "nvlink",
    "link_bytes_per_s": "450 GB/s",
    "link_frac": 0.8,
    "pair_bytes_per_s": "450 GB/s",
    "hop_s": {"value": "3.4 us", "kind": "assumed", "source": "me"},
    "nvls": True,
}
CLUSTERS: tuple[dict[str, Any], ...] = (
    {"base": "dgx-h100", "source": "mine", "kind": "measured", "usd_per_gpu_h": "3 USD/h", "node": {"gpus": 4}},
    {
        "source": "mine",
        "kind": "vendor",
        "gpu": "h100-sxm",
        "usd_per_gpu_h": "none",
        "node": LINK,
        "fabric": {
            "kind": "infiniband",
            "nic_bytes_per_s": "400 Gbit/s",
            "nic_frac": 0.85,
            "hop_s": "14 us",
            "tree_level_s": "46 us",
            "p2p_frac": 0.4,
            "topology_aware": True,
            "tiers": [
                {
                    "name": "spine",
                    "nodes": 32,
                    "hop_s": "1 us",
                    "oversubscription": 1.0,
                    "kind": "assumed",
                    "source": "x",
                }
            ],
        },
    },
    {"base": "cpu", "source": "mine", "kind": "assumed", "fabric": {"nic_frac": 0.5}},
)
PLAN: dict[str, Any] = {
    "dp_shard": 2,
    "tp": 2,
    "pp": 2,
    "cp": 1,
    "sharding": "fsdp",
    "schedule": "1f1b",
    "virtual_stages": 1,
    "micro_batch": 1,
    "recompute": "none",
    "recompute_frac": 1.0,
    "precision": "bf16",
    "fp8_recipe": "tensorwise",
    "prefetch": 1,
    "reduce_dtype": "fp32",
    "state_dtype": "fp32",
    "sync_every": 1,
    "sequence_parallel": True,
    "cp_method": "allgather",
    "placement": ["tp", "cp", "dp_shard", "dp_replicate", "pp"],
}
JOBS: tuple[dict[str, Any], ...] = (
    {
        "model": "llama-tiny",
        "cluster": "dgx-h100",
        "profile": "eager",
        "gpus": 8,
        "local_batch": 2,
        "seq_len": 64,
        "plan": PLAN,
    },
    {"model": TINY | {"name": "x"}, "cluster": "cpu", "gpus": 2, "global_batch": 4, "seq_len": 32, "plan": {"tp": 2}},
    {
        "model": "llama-tiny",
        "cluster": {"base": "dgx-a100", "node": {"gpus": 2}},
        "profile": {"base": "eager", "launch_s": "5 us"},
        "gpus": 4,
        "global_batch": 8,
    },
)
CONFIGS: tuple[dict[str, Any], ...] = (
    {
        "_name_or_path": "a/b",
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 512,
        "max_position_embeddings": 256,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
        "sliding_window": None,
    },
    {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 64,
            "intermediate_size": 192,
            "num_hidden_layers": 2,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 16,
            "vocab_size": 512,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}},
            "final_logit_softcapping": None,
        },
        "vision_config": {"hidden_size": 8},
    },
    {
        "model_type": "qwen3",
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "vocab_size": 512,
        "attention_bias": False,
        "max_window_layers": 1,
        "sliding_window": 16,
        "use_sliding_window": True,
        "tie_word_embeddings": True,
    },
    {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 8,
        "n_positions": 256,
        "vocab_size": 512,
        "n_inner": None,
        "activation_function": "gelu_new",
        "tie_word_embeddings": True,
    },
    {
        "model_type": "mpt",
        "d_model": 64,
        "n_layers": 2,
        "n_heads": 8,
        "expansion_ratio": 4,
        "vocab_size": 512,
        "max_seq_len": 256,
        "no_bias": True,
        "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 4, "alibi": True},
        "ffn_config": {"ffn_type": "mptmlp"},
    },
)
ASKED = ("--gpus", "8", "--local-batch", "1", "--seq-len", "64")


@cache
def profiles() -> tuple[dict[str, Any], ...]:
    """The catalogue's profiles, as files of one's own."""
    found = [tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "profiles").glob("*.toml"))]
    return tuple(entry for entries in found for entry in entries.values() if isinstance(entry, dict))


def changed(rng: Random, tree: dict[str, Any]) -> bytes:
    """A table as TOML, changed."""
    tree = mutate.copied(tree)
    if rng.random() < 0.9:
        mutate.change_tree(rng, tree)
    return encoded(rng, toml_text(tree))


def model(rng: Random) -> Case:
    """A model's file, by the command that asks least of it."""
    name = rng.choice(("m.toml",) * 9 + ("Ü b.toml",))
    files = {name: changed(rng, TINY | {"name": "mine"} if rng.random() < 0.5 else {"base": "llama-tiny", "layers": 2})}
    return Case(words=_model_words(rng, f"./{name}"), files=files)


def huggingface(rng: Random) -> Case:
    """A config.json, or the folder that holds it."""
    tree = mutate.copied(rng.choice(CONFIGS))
    if rng.random() < 0.9:
        mutate.change_tree(rng, tree)
    data = encoded(rng, json_text(tree, indent=2))
    return Case(words=_model_words(rng, rng.choice(("hf", "hf/config.json"))), files={"hf/config.json": data})


def _model_words(rng: Random, ref: str) -> tuple[str, ...]:
    chance = rng.random()
    if chance < 0.45:
        return ("train", ref, "--device", "cpu", "--seq-len", "32", "--job", "job.json", "--force")
    if chance < 0.9:
        return ("simulate", ref, "--cluster", "dgx-h100", *ASKED, "--json")
    if chance < 0.97:
        return (
            "scale",
            ref,
            "--cluster",
            "dgx-h100",
            "--gpus",
            "8,16",
            "--local-batch",
            "1",
            "--seq-len",
            "64",
            "--json",
        )
    return ("simulate", ref, "--cluster", "dgx-h100", *ASKED, "--why")


def cluster(rng: Random) -> Case:
    """A cluster's file."""
    words = [
        "simulate",
        "llama-tiny",
        "--cluster",
        "c.toml",
        *ASKED,
        rng.choice(("--json", "--json", "--json", "--why")),
    ]
    if rng.random() < 0.2:
        words += ["--pp", "2"]
    return Case(words=tuple(words), files={"c.toml": changed(rng, rng.choice(CLUSTERS))})


def profile(rng: Random) -> Case:
    """A profile's file: all values given, or a few over another."""
    small = {
        "base": "eager",
        "source": "mine",
        "kind": "fitted",
        "launch_s": "7 us",
        "hop_scale": 1.2,
        "allocator_frac": 0.05,
    }
    tree = small if rng.random() < 0.6 else rng.choice(profiles())
    words = ("simulate", "llama-tiny", "--cluster", "dgx-h100", "--profile", "p.toml", *ASKED, "--json")
    return Case(words=words, files={"p.toml": changed(rng, tree)})


def job(rng: Random) -> Case:
    """A whole job, to be simulated or written down for the trainer."""
    files = {"j.toml": changed(rng, rng.choice(JOBS))}
    if rng.random() < 0.3:
        return Case(words=("train", "j.toml", "--device", "cpu", "--job", "job.json"), files=files)
    return Case(words=("simulate", "j.toml", *(("--json",) if rng.random() < 0.8 else ("--why",))), files=files)


KINDS = (
    Kind(name="model", weight=4, make=model),
    Kind(name="huggingface", weight=3, make=huggingface),
    Kind(name="cluster", weight=1, make=cluster),
    Kind(name="profile", weight=1, make=profile),
    Kind(name="job", weight=1.5, make=job),
)
