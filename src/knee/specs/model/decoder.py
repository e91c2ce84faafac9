"""The shape of a decoder, dense or with experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from knee.specs.model.experts import Experts
from knee.specs.model.latent_attention import LatentAttention
from knee.specs.model.rules import (
    check_attention,
    check_experts,
    check_latent,
    check_norms,
    check_numbers,
    check_windows,
)

Mlp = Literal["swiglu", "geglu", "gelu", "relu2"]
Norm = Literal["rmsnorm", "layernorm"]
Positions = Literal["rope", "learned", "alibi"]
QkNorm = Literal["none", "head", "full", "unit"]
WindowKind = Literal["sliding", "chunked"]

GATED: tuple[Mlp, ...] = ("swiglu", "geglu")
SLIDING = "s"
"""Letter of a layer with the window, in ``layer_pattern``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder. Sizes are counts, so they carry no unit."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

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
