"""A model as the ``config.json`` of its Hugging Face family. Needs no torch."""

from __future__ import annotations

from typing import Any

from knee.checkpoints.huggingface_names import family_of
from knee.specs.model import Model

CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}


def config_of(model: Model, dtype: str) -> dict[str, Any]:
    """The config that ``transformers`` reads; ``dtype`` is torch's word for the type of the weights."""
    family = family_of(model)
    common = {
        "architectures": [CLASSES[family]],
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
