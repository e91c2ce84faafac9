"""The shape of a decoder, dense or with experts, and the rules that its values keep."""

from __future__ import annotations

import math
from dataclasses import dataclass, is_dataclass
from typing import Literal

from knee.base.errors import SpecError, out_of_range
from knee.specs.hardware import Strict

MOST = 2**24
"""Beyond any model anyone trains; larger sizes are typing mistakes."""
MOST_LAYERS = 10_000
"""The same of layers, which a step is walked through one by one."""
MOST_NORMS = 8
"""The same of the norms of a block."""
MOST_MTP = 64
"""The same of layers that predict further tokens."""
LETTERS = "sf"


def check_sizes(where: str, spec: object, least: int, *names: str) -> None:
    """Refuse fields of a part of a model that are below ``least`` or beyond any model."""
    for name in names:
        if not least <= getattr(spec, name) <= MOST:
            raise out_of_range(f"{where}.{name}", getattr(spec, name), f"it must be between {least} and {MOST:,}")


def check_numbers(model: Model) -> None:
    """Refuse sizes that no model has."""
    for field in ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "max_seq_len"):
        if getattr(model, field) < 1:
            raise out_of_range(f"model.{field}", getattr(model, field), "it must be at least 1")
        most = MOST_LAYERS if field == "layers" else MOST
        if getattr(model, field) > most:
            raise out_of_range(f"model.{field}", getattr(model, field), f"more than {most:,} is not supported")
    if not 0 < model.norm_eps < 1:
        raise out_of_range("model.norm_eps", f"{model.norm_eps:g}", "it must be between 0 and 1")
    if not 1 < model.rope_base < math.inf:
        raise out_of_range("model.rope_base", f"{model.rope_base:g}", "it must be more than 1")
    if not 0 < model.rope_frac <= 1:
        raise out_of_range("model.rope_frac", f"{model.rope_frac:g}", "it must be more than 0 and at most 1")
    for field in ("attention_soft_cap", "final_soft_cap"):
        if not 0 <= getattr(model, field) < math.inf:
            raise out_of_range(f"model.{field}", f"{getattr(model, field):g}", "it must be positive, or 0 for no cap")


def check_attention(model: Model) -> None:
    """Refuse heads that do not fit together."""
    if not 0 <= model.head_size <= MOST:
        raise out_of_range("model.head_size", model.head_size, f"it must be between 0 (hidden / heads) and {MOST:,}")
    if model.head_size == 0 and model.latent_attention is None and model.hidden % model.heads:
        text = f"model.hidden {model.hidden} is not divisible by model.heads {model.heads}"
        hint = "give head_size explicitly, or correct one of them"
        raise SpecError(text, hint=hint, code="does-not-divide", field="model.hidden")
    if model.heads % model.kv_heads:
        text = f"model.heads {model.heads} is not a multiple of model.kv_heads {model.kv_heads}"
        hint = f"use a number of kv_heads that divides {model.heads}"
        raise SpecError(text, hint=hint, code="does-not-divide", field="model.heads")


def check_windows(model: Model) -> None:
    """Refuse a window without layers, layers without a window, and patterns that are none."""
    pattern, field = model.layer_pattern, "model.layer_pattern"
    if not 0 <= model.window <= MOST:
        rule = f"it must be between 1 and {MOST:,}, or 0 for full attention"
        raise out_of_range("model.window", model.window, rule)
    if not pattern or set(pattern) - set(LETTERS):
        text = f"model.layer_pattern is {pattern[:80]!r}; its letters must be s (sliding window) or f (full attention)"
        hint = "write a letter per layer, or a shorter pattern that repeats, such as sssssf"
        raise SpecError(text, hint=hint, code="unknown-choice", field=field)
    if len(pattern) > model.layers:
        text = f"model.layer_pattern has {len(pattern):,} letters, but the model has {model.layers:,} layers"
        hint = "write a letter per layer, or a shorter pattern that repeats"
        raise SpecError(text, hint=hint, code="out-of-range", field=field)
    if model.window_kind == "chunked" and not model.window:
        text = "model.window_kind is chunked, but model.window is 0"
        hint = "give the size of a chunk as window"
        raise SpecError(text, hint=hint, code="contradiction", field="model.window_kind")
    if ("s" in pattern) != (model.window > 0) and (model.window or pattern != "s"):
        text = f"model.layer_pattern {pattern[:80]!r} has layers with a sliding window, but model.window is 0"
        if model.window:
            text = f"model.window is {model.window:,}, but no layer of model.layer_pattern {pattern[:80]!r} has it"
        hint = 'give the size of the window and mark its layers with s; for full attention, layer_pattern is "f"'
        raise SpecError(text, hint=hint, code="contradiction", field=field)


def check_norms(model: Model) -> None:
    """Refuse a number of norms that no block has."""
    if not 1 <= model.layer_norms <= MOST_NORMS:
        raise out_of_range("model.layer_norms", model.layer_norms, f"it must be between 1 and {MOST_NORMS}")
    if model.layer_norms == 1 and not model.parallel_residual:
        text = "model.layer_norms is 1, but attention and the MLP share a norm only with model.parallel_residual"
        hint = "give layer_norms 2, or parallel_residual = true"
        raise SpecError(text, hint=hint, code="contradiction", field="model.layer_norms")


def check_experts(model: Model) -> None:
    """Refuse a mixture of experts without a layer that has them."""
    experts = model.experts
    if not 0 <= model.mtp_layers <= MOST_MTP:
        raise out_of_range("model.mtp_layers", model.mtp_layers, f"it must be between 0 and {MOST_MTP}")
    if experts is not None and not experts.layers_with_experts(model.layers):
        text = f"no layer has experts: of {model.layers} layers {experts.dense_layers} are dense, and one in "
        text += f"{experts.every} of the others has experts"
        hint = "lower dense_layers or every"
        raise SpecError(text, hint=hint, code="contradiction", field="model.experts.dense_layers")


def check_latent(model: Model) -> None:
    """Refuse what latent attention has no place for."""
    if model.latent_attention is None:
        return
    if model.kv_heads != model.heads:
        text = f"model.kv_heads is {model.kv_heads}, but latent attention has keys and values for each of the "
        text += f"{model.heads} heads"
        hint = f"give kv_heads = {model.heads}"
        raise SpecError(text, hint=hint, code="contradiction", field="model.kv_heads")
    if model.head_size:
        text = "model.head_size has no meaning with latent attention, whose heads have nope_size + rope_size"
        raise SpecError(text, hint="leave head_size out", code="contradiction", field="model.head_size")
    if model.qk_norm != "none":
        text = f"model.qk_norm is {model.qk_norm}, but latent attention has norms of its narrow vectors"
        raise SpecError(text, hint='leave qk_norm out, or give "none"', code="contradiction", field="model.qk_norm")
    for field in ("biases", "qkv_bias"):
        if getattr(model, field):
            text = f"model.{field} is true, but biases of latent attention are not modelled"
            raise SpecError(text, hint=f"leave {field} out", code="contradiction", field=f"model.{field}")


Scores = Literal["softmax", "sigmoid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(Strict):
    """The experts of a layer, their router, and which layers have them."""

    count: int
    """Routed experts of a layer."""
    top_k: int
    """Routed experts that each token uses."""
    ffn: int
    """Inner width of one routed expert."""
    shared_ffn: int = 0
    """Inner width of all shared experts together, which every token uses; 0 means none."""
    shared_gate: bool = False
    """Whether a gate scales the output of the shared experts (Qwen2-MoE)."""
    dense_layers: int = 0
    """Leading layers with a dense MLP, of the model's ffn (DeepSeek-V3: 3)."""
    every: int = 1
    """Of the layers after them, the last of each so many has experts and the others are dense (Llama 4 Maverick: 2)."""
    scores: Scores = "softmax"
    """How the router turns logits into weights."""
    normalised_weights: bool = True
    """Whether the weights of a token's experts add up to 1. It does not change the simulated time; real training needs
    it."""
    weight_scale: float = 1.0
    """Factor of these weights (DeepSeek-V3: 2.5). It does not change the simulated time; real training needs it."""
    groups: int = 1
    """Groups of experts, of which a token uses a few (DeepSeek-V3: 8), so that it is sent to few nodes."""
    top_groups: int = 1
    """Groups that each token uses (DeepSeek-V3: 4)."""
    router_bias: bool = False
    """Whether the router has a bias: learned (GPT-OSS), or moved to balance the experts (DeepSeek-V3)."""

    def __post_init__(self) -> None:
        check_sizes("model.experts", self, 1, "count", "top_k", "ffn", "every", "groups", "top_groups")
        check_sizes("model.experts", self, 0, "shared_ffn", "dense_layers")
        if not 0 < self.weight_scale <= MOST:
            rule = f"it must be more than 0 and at most {MOST:,}"
            raise out_of_range("model.experts.weight_scale", f"{self.weight_scale:g}", rule)
        if self.top_k > self.count:
            text = f"model.experts.top_k is {self.top_k}, but a layer has {self.count} experts"
            hint = f"use a top_k of at most {self.count}"
            raise SpecError(text, hint=hint, code="out-of-range", field="model.experts.top_k")
        if self.shared_gate and not self.shared_ffn:
            text = "model.experts.shared_gate is true, but there are no shared experts"
            hint = "give shared_ffn, or leave shared_gate out"
            raise SpecError(text, hint=hint, code="contradiction", field="model.experts.shared_gate")
        if self.count % self.groups:
            text = f"{self.count} experts do not divide into {self.groups} groups"
            hint = f"use a number of groups that divides {self.count}"
            raise SpecError(text, hint=hint, code="does-not-divide", field="model.experts.groups")
        if self.top_groups > self.groups:
            text = f"model.experts.top_groups is {self.top_groups}, but there are {self.groups} groups"
            hint = f"use at most {self.groups}"
            raise SpecError(text, hint=hint, code="out-of-range", field="model.experts.top_groups")
        if self.top_k > self.top_groups * (self.count // self.groups):
            raise SpecError(
                f"top_k {self.top_k} is more than the {self.count // self.groups} experts of {self.top_groups} groups",
                hint="raise top_groups, or lower top_k",
                code="out-of-range",
                field="model.experts.top_k",
            )

    def has_experts(self, layer: int) -> bool:
        """Whether a layer, counted from 0, has experts."""
        after = layer - self.dense_layers
        return after >= 0 and after % self.every == self.every - 1

    def layers_with_experts(self, layers: int) -> int:
        """How many of a model's layers have experts."""
        return max(0, layers - self.dense_layers) // self.every


# Multi-head latent attention: keys and values of all heads from one narrow vector per token (DeepSeek-V2 and V3).


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention(Strict):
    """The ranks of its projections and the parts of a head."""

    kv_rank: int
    """Width of the vector from which keys and values are made (kv_lora_rank)."""
    nope_size: int
    """Part of a head's query and key without positions (qk_nope_head_dim)."""
    rope_size: int
    """Part of a head's query and key that the rotary embedding rotates; its keys are shared by all heads
    (qk_rope_head_dim)."""
    value_size: int
    """Width of a head's values (v_head_dim)."""
    q_rank: int = 0
    """Width of the vector from which queries are made (q_lora_rank); 0 means that they are projected directly."""

    def __post_init__(self) -> None:
        check_sizes("model.latent_attention", self, 1, "kv_rank", "nope_size", "rope_size", "value_size")
        check_sizes("model.latent_attention", self, 0, "q_rank")


# What a model has beyond Llama's block, for programs that run Llama's.

PLAIN: dict[str, object] = {
    "mlp": "swiglu",
    "norm": "rmsnorm",
    "positions": "rope",
    "biases": False,
    "qk_norm": "none",
    "layer_norms": 2,
    "rope_frac": 1.0,
    "attention_soft_cap": 0.0,
    "attention_sinks": False,
    "final_soft_cap": 0.0,
    "parallel_residual": False,
    "qkv_bias": False,
    "attention_output_bias": False,
    "mlp_bias": False,
    "norm_bias": False,
    "output_bias": False,
    "experts": None,
    "latent_attention": None,
    "mtp_layers": 0,
}
"""Llama's values of the fields in which decoders differ; a window differs only in sequences that are longer."""


def departures(model: Model, seq_len: int) -> dict[str, str]:
    """Field -> its name and value, of every field in which the model differs from Llama."""
    fields = [name for name, value in PLAIN.items() if getattr(model, name) != value]
    fields += ["window"] if model.slides(seq_len) else []
    return {name: _describe_field(name, getattr(model, name)) for name in fields}


def _describe_field(name: str, value: object) -> str:
    if is_dataclass(value):
        return name.replace("_", " ")
    shown = str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
    return f"{name} {shown}"


Mlp = Literal["swiglu", "geglu", "gelu", "relu2"]
Norm = Literal["rmsnorm", "layernorm"]
Positions = Literal["rope", "learned", "alibi"]
QkNorm = Literal["none", "head", "full", "unit"]
WindowKind = Literal["sliding", "chunked"]

GATED: tuple[Mlp, ...] = ("swiglu", "geglu")
SLIDING = "s"
"""Letter of a layer with the window, in ``layer_pattern``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(Strict):
    """A decoder. Sizes are counts, so they carry no unit."""

    name: str
    """Name of the model. It defaults to the file's name."""
    layers: int
    """Decoder blocks."""
    hidden: int
    """Width of the residual stream."""
    ffn: int
    """Inner width of the MLP; in a mixture of experts that of its dense layers."""
    heads: int
    """Query heads."""
    kv_heads: int
    """Key and value heads; fewer than ``heads`` is grouped-query attention."""
    vocab: int
    """Number of tokens in the vocabulary."""
    head_size: int = 0
    """Width of one head; 0 means hidden / heads."""
    mlp: Mlp = "swiglu"
    """Activation of the MLP. swiglu and geglu are gated and have three weight matrices; the others have two."""
    norm: Norm = "rmsnorm"
    """Kind of normalisation."""
    layer_norms: int = 2
    """Norms of the residual stream in each block: 2 in most models, 4 in Gemma 2 and 3, 1 in GPT-J. Their order does
    not change the simulated time."""
    qk_norm: QkNorm = "none"
    """Norm of queries and keys: head (one weight for all heads: Qwen3, Gemma 3), full (over all heads: OLMo 2) or unit
    (of each head, without weights: Llama 4 Scout)."""
    positions: Positions = "rope"
    """How positions are encoded."""
    rope_base: float = 10_000.0
    """Base of the rotary embedding. It does not change the simulated time; real training needs it."""
    norm_eps: float = 1e-5
    """What norms add to the mean square. It does not change the simulated time; real training needs it."""
    rope_frac: float = 1.0
    """Share of each head that the rotary embedding rotates (GPT-NeoX: 0.25), mean over layers: 0.75 in Llama 4, of
    whose layers every fourth has no rotary embedding."""
    window: int = 0
    """Sliding window: tokens that a query attends to at most, itself included; 0 means full attention."""
    window_kind: WindowKind = "sliding"
    """sliding: the window moves with the query. chunked (Llama 4): the sequence is cut into chunks of so many tokens,
    and a query attends to its own chunk only, which is half of a sliding window on average."""
    layer_pattern: str = SLIDING
    """Which layers have the window: a letter per layer, s (sliding window) or f (full attention). A shorter pattern
    repeats: sf in Gemma 2, sssssf in Gemma 3. By default all layers have the window, if there is one."""
    attention_soft_cap: float = 0.0
    """Soft cap of attention scores (Gemma 2: 50); 0 means none."""
    attention_sinks: bool = False
    """Whether each head has a learned score that takes part in the softmax without a token (GPT-OSS). It is one
    parameter per head, and does not change the simulated time."""
    final_soft_cap: float = 0.0
    """Soft cap of the logits (Gemma 2: 30); 0 means none."""
    parallel_residual: bool = False
    """Whether attention and the MLP of a block read the same input (GPT-J, GPT-NeoX). With layer_norms = 1 they share
    their norm."""
    tied_embeddings: bool = False
    """Whether the output projection shares the weights of the input embedding."""
    biases: bool = False
    """Whether all linear layers and norms have biases (GPT-2 and GPT-3)."""
    qkv_bias: bool = False
    """Whether the projections of queries, keys and values have biases (Qwen2)."""
    attention_output_bias: bool = False
    """Whether the output projection of attention has a bias."""
    mlp_bias: bool = False
    """Whether the linear layers of the MLP have biases, those of experts included."""
    norm_bias: bool = False
    """Whether the norms of the residual stream have biases (Phi-3.5-MoE)."""
    output_bias: bool = False
    """Whether the output projection has a bias (Phi-3.5-MoE)."""
    max_seq_len: int = 4096
    """Longest sequence that the model supports; also the number of learned positions."""
    experts: Experts | None = None
    """The experts of a mixture of experts; none in a dense model."""
    latent_attention: LatentAttention | None = None
    """Latent attention (DeepSeek-V2 and V3) in place of full keys and values."""
    mtp_layers: int = 0
    """Layers that predict further tokens in training (multi-token prediction; DeepSeek-V3: 1). Their parameters are
    counted apart from those of the model."""

    def __post_init__(self) -> None:
        check_numbers(self)
        check_attention(self)
        check_windows(self)
        check_norms(self)
        check_experts(self)
        check_latent(self)

    @property
    def head_dim(self) -> int:
        """Width of one head's queries and keys."""
        if self.latent_attention is not None:
            return self.latent_attention.nope_size + self.latent_attention.rope_size
        return self.head_size or self.hidden // self.heads

    @property
    def q_width(self) -> int:
        """Columns of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the key projection (and of the value projection)."""
        return self.kv_heads * self.head_dim

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate, and so a third weight matrix."""
        return self.mlp in GATED

    @property
    def walked_layers(self) -> int:
        """Layers that a training step goes through: those of multi-token prediction too."""
        return self.layers + self.mtp_layers

    @property
    def expert_layers(self) -> int:
        """Layers with experts; the others have a dense MLP."""
        return 0 if self.experts is None else self.experts.layers_with_experts(self.layers)

    @property
    def sliding_layers(self) -> int:
        """Layers whose attention has the window."""
        if not self.window:
            return 0
        pattern = self.layer_pattern
        whole, rest = divmod(self.layers, len(pattern))
        return whole * pattern.count(SLIDING) + pattern[:rest].count(SLIDING)

    def slides(self, seq_len: int) -> bool:
        """Whether the window leaves out tokens of a sequence of this length."""
        return 0 < self.window < seq_len
