"""The shape of a model as options of Megatron-LM's pretrain_gpt.py."""

from __future__ import annotations

from knee.export.command_line import LaunchCommand, cannot
from knee.export.megatron_experts import add_experts
from knee.specs.job import Job
from knee.specs.model import Model
from knee.specs.model.decoder import SLIDING
from knee.specs.model.departures import departures

TOOL = "megatron"
VOCAB_MULTIPLE = 128
"""Megatron pads the vocabulary to a multiple of this times tp."""
HINT = "simulate it with knee; no option of pretrain_gpt.py describes it"


def refuse_model(job: Job) -> None:
    """Parts of a model for which no option was found."""
    model = job.model
    if model.positions == "alibi":
        raise cannot(
            TOOL, "model.positions", f"{model.name} uses ALiBi positions, which it does not support", "export to knee"
        )
    if model.positions == "rope" and model.rope_base != int(model.rope_base):
        raise cannot(
            TOOL,
            "model.rope_base",
            f"--rotary-base must be a whole number, but {model.name} has {model.rope_base:g}",
            f"the nearest model has --set model.rope_base={model.rope_base:.0f}",
        )
    if model.window_kind == "chunked":
        raise cannot(TOOL, "model.window_kind", f"{model.name} has chunked attention, for which it has no option", HINT)
    every_bias = _every_bias(model)
    runs = {
        "mlp": model.mlp != "geglu",
        "norm": True,
        "positions": True,
        "biases": True,
        "qkv_bias": True,
        "attention_output_bias": every_bias,
        "mlp_bias": every_bias,
        "rope_frac": True,
        "qk_norm": model.qk_norm == "head",
        "window": _full_every(model) is not None,
        "attention_sinks": True,
        "experts": True,
        "latent_attention": True,
        "mtp_layers": True,
    }
    for name, shown in departures(model, job.seq_len).items():
        if not runs.get(name):
            raise cannot(TOOL, f"model.{name}", f"{model.name} has {shown}, for which it has no option", HINT)
    experts = model.experts
    if experts is not None and experts.router_bias and experts.scores == "softmax" and not every_bias:
        raise cannot(
            TOOL,
            "model.experts.router_bias",
            f"{model.name} has a router with a bias, which it has only with sigmoid scores, or if all linear layers "
            "have biases",
            HINT,
        )


def add_model(launch: LaunchCommand, job: Job) -> None:
    """The options that describe the model."""
    model = job.model
    launch.option("--num-layers", model.layers)
    launch.option("--hidden-size", model.hidden)
    launch.option("--ffn-hidden-size", model.ffn)
    _add_attention(launch, job)
    if model.mlp != "gelu":
        launch.option({"swiglu": "--swiglu", "relu2": "--squared-relu"}[model.mlp])
    launch.option("--normalization", {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}[model.norm])
    launch.option("--position-embedding-type", {"rope": "rope", "learned": "learned_absolute"}[model.positions])
    if model.positions == "rope":
        launch.option("--rotary-base", int(model.rope_base))
        if model.rope_frac != 1:
            launch.option("--rotary-percent", model.rope_frac)
    launch.option("--max-position-embeddings", max(model.max_seq_len, job.seq_len))
    if not model.tied_embeddings:
        launch.option("--untie-embeddings-and-output-weights")
    if not _every_bias(model):
        launch.option("--disable-bias-linear")
        if model.qkv_bias:
            launch.option("--add-qkv-bias")
    if model.experts is not None:
        add_experts(launch, model.experts, model.layers)
    if model.mtp_layers:
        launch.option("--mtp-num-layers", model.mtp_layers)
    # Megatron drops out a tenth by default
    launch.option("--attention-dropout", 0.0)
    launch.option("--hidden-dropout", 0.0)
    multiple = VOCAB_MULTIPLE * job.plan.tp
    padded = -(-model.vocab // multiple) * multiple
    words = f", padded to {padded:,}" if padded != model.vocab else ""
    launch.notes.append(f"Megatron takes the vocabulary from the tokenizer; knee assumed {model.vocab:,} tokens{words}")


def _every_bias(model: Model) -> bool:
    """Whether all linear layers of a block have biases, the router's included, as without --disable-bias-linear."""
    by_place = model.qkv_bias and model.attention_output_bias and model.mlp_bias
    router = model.experts is None or model.experts.router_bias
    return model.biases or (by_place and router)


def _full_every(model: Model) -> int | None:
    """One layer of so many has full attention, after those with the window; 0: none, None: another pattern."""
    pattern = model.layer_pattern
    if model.sliding_layers == model.layers:
        return 0
    return len(pattern) if pattern == SLIDING * (len(pattern) - 1) + "f" else None


def _add_attention(launch: LaunchCommand, job: Job) -> None:
    model, latent = job.model, job.model.latent_attention
    launch.option("--num-attention-heads", model.heads)
    if latent is not None:
        launch.option("--multi-latent-attention")
        if latent.q_rank:
            launch.option("--q-lora-rank", latent.q_rank)
        launch.option("--kv-lora-rank", latent.kv_rank)
        launch.option("--qk-head-dim", latent.nope_size)
        launch.option("--qk-pos-emb-head-dim", latent.rope_size)
        launch.option("--v-head-dim", latent.value_size)
        launch.option("--kv-channels", latent.value_size)
    elif model.head_dim * model.heads != model.hidden:
        launch.option("--kv-channels", model.head_dim)
    if model.kv_heads != model.heads:
        launch.option("--group-query-attention")
        launch.option("--num-query-groups", model.kv_heads)
    # with latent attention these are the norms of its narrow vectors
    if model.qk_norm == "head" or latent is not None:
        launch.option("--qk-layernorm")
    if model.slides(job.seq_len):
        # tokens before the query's own, and after it
        launch.option("--window-size", f"{model.window - 1},0")
        if every := _full_every(model):
            launch.option("--window-attn-skip-freq", every)
    if model.attention_sinks:
        launch.option("--softmax-type", "learnable")
