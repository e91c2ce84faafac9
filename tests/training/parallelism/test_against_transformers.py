"""The same weights give the same losses and gradients in transformers' models, which others wrote."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from knee.specs.load import load_model
from knee.specs.model import Experts, LatentAttention, Model
from knee.specs.plan import Plan
from knee.training.parallelism.trainer_job import TrainJob

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from knee.training.checkpoints.huggingface import read_huggingface, write_huggingface  # noqa: E402
from knee.training.checkpoints.save_and_resume import CheckpointSaver  # noqa: E402
from knee.training.parallelism.decoder import Decoder, Parts  # noqa: E402 - they import torch
from knee.training.parallelism.layer_functions import rope_table  # noqa: E402
from knee.training.parallelism.mesh import local_device, make_mesh  # noqa: E402
from knee.training.parallelism.trainer import Trainer  # noqa: E402

SIZES = {"layers": 3, "hidden": 32, "ffn": 48, "heads": 4, "vocab": 64}
THEIR_SIZES = {
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "vocab_size": 64,
    "moe_intermediate_size": 16,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attn_implementation": "eager",
}
QWEN = Model(name="qwen", kv_heads=2, head_size=8, qk_norm="head", experts=Experts(count=8, top_k=2, ffn=16), **SIZES)
DEEPSEEK = Model(
    name="deepseek",
    kv_heads=4,
    experts=Experts(
        count=8,
        top_k=2,
        ffn=16,
        shared_ffn=16,
        dense_layers=1,
        scores="sigmoid",
        router_bias=True,
        groups=4,
        top_groups=2,
        weight_scale=2.5,
    ),
    latent_attention=LatentAttention(kv_rank=16, q_rank=12, nope_size=8, rope_size=4, value_size=8),
    **SIZES,
)
NAMES = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj",
    "wv": "self_attn.v_proj",
    "wo": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "latent.wq_a": "self_attn.q_a_proj",
    "latent.q_a_norm": "self_attn.q_a_layernorm",
    "latent.wq_b": "self_attn.q_b_proj",
    "latent.wkv_a": "self_attn.kv_a_proj_with_mqa",
    "latent.kv_a_norm": "self_attn.kv_a_layernorm",
    "latent.wkv_b": "self_attn.kv_b_proj",
    "w1": "mlp.gate_proj",
    "w3": "mlp.up_proj",
    "w2": "mlp.down_proj",
    "moe.router": "mlp.gate",
    "moe.shared_w1": "mlp.shared_experts.gate_proj",
    "moe.shared_w3": "mlp.shared_experts.up_proj",
    "moe.shared_w2": "mlp.shared_experts.down_proj",
    "moe.experts.expert_in": "mlp.experts.gate_up_proj",
    "moe.experts.expert_out": "mlp.experts.down_proj",
}
ENDS = {"embedding": "model.embed_tokens.weight", "norm": "model.norm.weight", "output": "lm_head.weight"}


def their_model(model: Model) -> Any:
    if model is QWEN:
        config = transformers.Qwen3MoeConfig(**THEIR_SIZES, num_key_value_heads=2, head_dim=8, num_experts=8)
        return transformers.Qwen3MoeForCausalLM(config)
    return transformers.DeepseekV3ForCausalLM(
        transformers.DeepseekV3Config(
            **THEIR_SIZES,
            num_key_value_heads=4,
            n_routed_experts=8,
            n_shared_experts=1,
            n_group=4,
            topk_group=2,
            routed_scaling_factor=2.5,
            first_k_dense_replace=1,
            kv_lora_rank=16,
            q_lora_rank=12,
            qk_rope_head_dim=4,
            qk_nope_head_dim=8,
            v_head_dim=8,
            rope_interleave=False,
        )
    )


def theirs(name: str) -> str:
    if name in ENDS:
        return ENDS[name]
    _, layer, rest = name.split(".", 2)
    suffix = "" if "expert_" in rest else ".weight"
    return f"model.layers.{layer}.{NAMES[rest]}{suffix}"


@pytest.mark.parametrize("model", [QWEN, DEEPSEEK], ids=lambda model: model.name)
def test_losses_and_gradients_are_those_of_transformers(model: Model) -> None:
    torch.manual_seed(0)
    other = their_model(model)
    other.config.rope_theta = model.rope_base
    weights = dict(other.named_parameters())
    ours = Decoder(model, layers=range(model.layers), parts=Parts())
    ours.turn = rope_table(torch.arange(16), model, "cpu", torch.float32)
    with torch.no_grad():
        for weight in weights.values():
            weight.copy_(torch.randn_like(weight) * 0.3 + (1.0 if weight.ndim == 1 else 0.0))
        for name, weight in ours.named_parameters():
            weight.copy_(weights[theirs(name)].view_as(weight))
        for layer, block in ours.blocks.items():
            if model is DEEPSEEK and block.moe is not None:
                bias = torch.linspace(0.3, 0.0, 8)
                block.moe.balance_bias.copy_(bias)
                other.model.layers[int(layer)].mlp.gate.e_score_correction_bias.copy_(bias)
    tokens = torch.randint(64, (3, 17))
    loss = ours(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    logits = other(input_ids=tokens[:, :-1], use_cache=False).logits
    reference = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    reference.backward()
    assert loss.item() == pytest.approx(reference.item(), rel=1e-5)
    for name, weight in ours.named_parameters():
        expected = weights[theirs(name)].grad.view_as(weight)
        assert (weight.grad - expected).norm() < 1e-4 * expected.norm(), name


ATTENTION = {"num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6, "rope_theta": 50_000.0}
ROUTED = {"moe_intermediate_size": 16, "num_experts_per_tok": 2, "norm_topk_prob": True}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
GROUPS = {"n_routed_experts": 8, "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {**ATTENTION, "attention_bias": True, "mlp_bias": True},
    "Qwen2": {**ATTENTION, "tie_word_embeddings": True, "head_dim": 8},
    "Qwen3": {**ATTENTION},
    "Qwen3Moe": {**ATTENTION, **ROUTED, "num_experts": 8},
    "Mixtral": {**ATTENTION, "num_local_experts": 4, "num_experts_per_tok": 2},
    "DeepseekV3": {
        **ROUTED,
        **LATENT,
        **GROUPS,
        "num_key_value_heads": 4,
        "routed_scaling_factor": 2.5,
        "rms_norm_eps": 1e-6,
    },
}


def a_trainer(model: Model) -> Trainer:
    job = TrainJob(model=model, plan=Plan(micro_batch=3), gpus=1, global_batch=3, seq_len=16, steps=2, warmup=0, keep=1)
    return Trainer(job, make_mesh(job.plan, local_device("cpu")))


def logits_of(trainer: Trainer, tokens: Any) -> Any:
    (decoder,) = trainer.decoders
    decoder.loss = lambda logits, *_: logits
    with torch.no_grad():
        return decoder(tokens)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_read_and_written(family: str, tmp_path: Path) -> None:
    """A folder of transformers, read, saved as a checkpoint, and written, gives the same logits at every place."""
    torch.manual_seed(0)
    sizes = {name: value for name, value in THEIR_SIZES.items() if name not in ROUTED}
    config = getattr(transformers, f"{family}Config")(**{**sizes, **FAMILIES[family]})
    other = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, weight in [*other.named_parameters(), *other.named_buffers()]:
            if "inv_freq" not in name:
                weight.copy_(torch.randn_like(weight) * 0.3 + (1.0 if "norm" in name else 0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.save_pretrained(tmp_path / "theirs")
    tokens = torch.randint(64, (3, 16))
    with torch.no_grad():
        expected = other(input_ids=tokens, use_cache=False).logits
    trainer = a_trainer(replace(load_model(str(tmp_path / "theirs")).spec, mtp_layers=0))
    read_huggingface(trainer, tmp_path / "theirs")
    assert torch.allclose(logits_of(trainer, tokens), expected, rtol=1e-5, atol=1e-5)
    saver = CheckpointSaver(trainer, tmp_path, None, {})
    saver.begin(1)
    saver.finish()
    saver.check()
    write_huggingface(tmp_path / "checkpoints" / "step-00000001", tmp_path / "ours")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = getattr(transformers, f"{family}ForCausalLM").from_pretrained(
            tmp_path / "ours", attn_implementation="eager", dtype=torch.float32
        )
    with torch.no_grad():
        assert torch.allclose(again.eval()(input_ids=tokens, use_cache=False).logits, expected, rtol=1e-5, atol=1e-5)
