"""A model in the names of Hugging Face's folders, its weights and its ``config.json``: Llama, Qwen, Mixtral, DeepSeek.

A tile is a tensor of the folder; the tiles of one of knee's weights follow each other as its rows. Needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from knee.base.errors import InputError
from knee.specs.model import Experts, Model

ENDS = {"embedding": "model.embed_tokens.weight", "norm": "model.norm.weight", "output": "lm_head.weight"}
ATTENTION = {
    "attention_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "wq": "self_attn.q_proj.weight",
    "wk": "self_attn.k_proj.weight",
    "wv": "self_attn.v_proj.weight",
    "wo": "self_attn.o_proj.weight",
    "bq": "self_attn.q_proj.bias",
    "bk": "self_attn.k_proj.bias",
    "bv": "self_attn.v_proj.bias",
    "bo": "self_attn.o_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "latent.wq": "self_attn.q_proj.weight",
    "latent.wq_a": "self_attn.q_a_proj.weight",
    "latent.q_a_norm": "self_attn.q_a_layernorm.weight",
    "latent.wq_b": "self_attn.q_b_proj.weight",
    "latent.wkv_a": "self_attn.kv_a_proj_with_mqa.weight",
    "latent.kv_a_norm": "self_attn.kv_a_layernorm.weight",
    "latent.wkv_b": "self_attn.kv_b_proj.weight",
}
MLP = {
    "w1": "mlp.gate_proj.weight",
    "w3": "mlp.up_proj.weight",
    "w2": "mlp.down_proj.weight",
    "b1": "mlp.gate_proj.bias",
    "b3": "mlp.up_proj.bias",
    "b2": "mlp.down_proj.bias",
    "moe.router": "mlp.gate.weight",
    "moe.balance_bias": "mlp.gate.e_score_correction_bias",
    "moe.shared_w1": "mlp.shared_experts.gate_proj.weight",
    "moe.shared_w3": "mlp.shared_experts.up_proj.weight",
    "moe.shared_w2": "mlp.shared_experts.down_proj.weight",
}
QWEN2_MOE = {
    "moe.shared_w1": "mlp.shared_expert.gate_proj.weight",
    "moe.shared_w3": "mlp.shared_expert.up_proj.weight",
    "moe.shared_w2": "mlp.shared_expert.down_proj.weight",
    "moe.shared_gate": "mlp.shared_expert_gate.weight",
}
MIXTRAL = {"moe.router": "block_sparse_moe.gate.weight"}
EXPERT = {"gate": "mlp.experts.{}.gate_proj.weight", "up": "mlp.experts.{}.up_proj.weight"}
EXPERT |= {"down": "mlp.experts.{}.down_proj.weight"}
MIXTRAL_EXPERT = {"gate": "block_sparse_moe.experts.{}.w1.weight", "up": "block_sparse_moe.experts.{}.w3.weight"}
MIXTRAL_EXPERT |= {"down": "block_sparse_moe.experts.{}.w2.weight"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A tensor of a folder, and how many rows of a weight it is."""

    name: str
    rows: int


def family_of(model: Model) -> str:
    """The ``model_type`` whose block this model has; InputError if there is none among those known here."""
    experts = model.experts
    if model.latent_attention is not None:
        known = experts is not None and experts.scores == "sigmoid" and experts.router_bias
        family = "deepseek_v3" if known else ""
    elif experts is not None:
        family = _family_with_experts(model, experts)
    elif model.qk_norm == "head":
        family = "" if model.qkv_bias != model.attention_output_bias or model.mlp_bias else "qwen3"
    elif model.qkv_bias and not model.attention_output_bias:
        family = "" if model.mlp_bias else "qwen2"
    else:
        family = "" if model.qkv_bias != model.attention_output_bias else "llama"
    if not family:
        raise InputError(
            f"{model.name} has the block of no Hugging Face model that is known here",
            hint="Llama, Qwen2, Qwen3, Qwen2-MoE, Qwen3-MoE, Mixtral and DeepSeek-V3 are known",
            code="not-modelled",
            field="model",
        )
    return family


def _family_with_experts(model: Model, experts: Experts) -> str:
    if experts.scores != "softmax" or experts.router_bias or experts.groups > 1 or experts.weight_scale != 1:
        return ""
    if experts.shared_ffn:
        return "qwen2_moe" if experts.shared_gate and model.qkv_bias and model.qk_norm == "none" else ""
    if model.qk_norm == "head":
        return "qwen3_moe"
    plain = experts.normalised_weights and not experts.dense_layers and experts.every == 1 and not model.qkv_bias
    return "mixtral" if plain else ""


def tiles_of(name: str, rows: int, model: Model, family: str) -> list[Tile]:
    """The tiles of one weight; ``rows`` are those of the whole weight."""
    if name in ENDS:
        return [Tile(name=ENDS[name], rows=rows)]
    _, layer, rest = name.split(".", 2)
    before = f"model.layers.{layer}."
    leaf = rest.rsplit(".", 1)[-1]
    if leaf in ("expert_in", "expert_out"):
        assert model.experts is not None
        of_expert = MIXTRAL_EXPERT if family == "mixtral" else EXPERT
        parts = ("gate", "up") if leaf == "expert_in" else ("down",)
        each = rows // (model.experts.count * len(parts))
        numbers = range(model.experts.count)
        return [Tile(name=before + of_expert[part].format(e), rows=each) for e in numbers for part in parts]
    special = {"qwen2_moe": QWEN2_MOE, "mixtral": MIXTRAL}.get(family, {})
    return [Tile(name=before + (ATTENTION | MLP | special)[rest], rows=rows)]


def order_of(name: str, model: Model) -> list[int] | None:
    """Which row of DeepSeek's tensor each row of a weight is; None where they are the same.

    DeepSeek's rotary embedding turns neighbouring features, knee's turns features that are half a width apart. Its
    query heads and its shared key end with the turned features.
    """
    latent, leaf = model.latent_attention, name.rsplit(".", 1)[-1]
    if latent is None or leaf not in ("wq", "wq_b", "wkv_a"):
        return None
    plain, turned = latent.nope_size if leaf != "wkv_a" else latent.kv_rank, latent.rope_size
    heads = model.heads if leaf != "wkv_a" else 1
    half = [*range(0, turned, 2), *range(1, turned, 2)]
    head = [*range(plain), *(plain + i for i in half)]
    return [h * (plain + turned) + i for h in range(heads) for i in head]


def config_of(model: Model, dtype: str) -> dict[str, Any]:
    """The config that ``transformers`` reads; ``dtype`` is torch's word for the type of the weights."""
    family = family_of(model)
    common = {
        "architectures": [f"{family.title().replace('_', '')}ForCausalLM"],
        "model_type": family,
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "vocab_size": model.vocab,
        "max_position_embeddings": model.max_seq_len,
        "tie_word_embeddings": model.tied_embeddings,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_base},
        "torch_dtype": dtype,
        "use_cache": True,
    }
    if family != "deepseek_v3":
        common["head_dim"] = model.head_dim
    if family in ("llama", "qwen3", "qwen3_moe"):
        common["attention_bias"] = model.qkv_bias
    if family == "llama":
        common["mlp_bias"] = model.mlp_bias
    return common | (_experts(model, family) if model.experts is not None else {})


def _experts(model: Model, family: str) -> dict[str, Any]:
    experts = model.experts
    assert experts is not None
    common: dict[str, Any]
    if family == "mixtral":
        common = {"num_local_experts": experts.count, "num_experts_per_tok": experts.top_k}
        return common | {"intermediate_size": experts.ffn}
    common = {
        "num_experts_per_tok": experts.top_k,
        "moe_intermediate_size": experts.ffn,
        "norm_topk_prob": experts.normalised_weights,
    }
    if family == "deepseek_v3":
        return common | _deepseek(model)
    dense = [layer for layer in range(model.layers) if not experts.has_experts(layer)]
    common |= {"num_experts": experts.count, "decoder_sparse_step": 1, "mlp_only_layers": dense}
    return common | ({"shared_expert_intermediate_size": experts.shared_ffn} if experts.shared_ffn else {})


def _deepseek(model: Model) -> dict[str, Any]:
    experts, latent = model.experts, model.latent_attention
    assert experts is not None
    assert latent is not None
    return {
        "n_routed_experts": experts.count,
        "n_shared_experts": experts.shared_ffn // experts.ffn,
        "n_group": experts.groups,
        "topk_group": experts.top_groups,
        "routed_scaling_factor": experts.weight_scale,
        "first_k_dense_replace": experts.dense_layers,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "kv_lora_rank": latent.kv_rank,
        "q_lora_rank": latent.q_rank or None,
        "qk_rope_head_dim": latent.rope_size,
        "qk_nope_head_dim": latent.nope_size,
        "v_head_dim": latent.value_size,
        "num_nextn_predict_layers": 0,
    }
