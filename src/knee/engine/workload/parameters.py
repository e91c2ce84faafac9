"""The weights of a decoder, as torch stores them (out_features first), and how parallelism cuts them; how many
parameters a model has, what FSDP2 moves for them, and model FLOP per token under the conventions people use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from knee.base.arrays import Floats, Ints, equal_rows
from knee.base.errors import InputError
from knee.specs.model import LatentAttention, Model
from knee.specs.plan_table import PlanTable, has_columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A weight: rows (its dimension 0, the one FSDP2 cuts), columns, and how TP cuts it."""

    name: str
    rows: int
    cols: int
    tp: str
    """"rows", "cols" or "none" (replicated). Of a routed expert's weight, how expert tensor parallelism cuts it."""
    least_rows: int = 1
    """Rows that a tensor-parallel rank keeps at least: a whole head, replicated where tp exceeds the heads."""
    experts: int = 0
    """Routed experts that have a weight of this shape each; expert parallelism deals them to ranks. 0: the weight is
    not a routed expert's, and tensor parallelism cuts it."""

    @property
    def size(self) -> int:
        """Number of elements, over all routed experts."""
        return self.rows * self.cols * (self.experts or 1)


def layer_tensors(model: Model, *, experts: bool = False) -> tuple[Tensor, ...]:
    """The weights of one decoder layer: one with a dense MLP, or one with experts."""
    mlp = expert_tensors(model) if experts else mlp_tensors(model)
    mlp_biases = () if experts else _mlp_biases(model, model.ffn)
    return (
        *attention_tensors(model),
        *mlp,
        *_norms(model),
        *_qk_norms(model),
        *_attention_biases(model),
        *mlp_biases,
        *_norm_biases(model),
    )


def attention_tensors(model: Model) -> tuple[Tensor, ...]:
    """The projections of attention, norms inside latent attention, and sinks."""
    latent, h = model.latent_attention, model.hidden
    sinks = (Tensor(name="sinks", rows=model.heads, cols=1, tp="rows"),) if model.attention_sinks else ()
    if latent is not None:
        return (*_latent_tensors(model, latent), *sinks)
    return (
        Tensor(name="wq", rows=model.q_width, cols=h, tp="rows"),
        Tensor(name="wk", rows=model.kv_width, cols=h, tp="rows", least_rows=model.head_dim),
        Tensor(name="wv", rows=model.kv_width, cols=h, tp="rows", least_rows=model.head_dim),
        Tensor(name="wo", rows=h, cols=model.q_width, tp="cols"),
        *sinks,
    )


def _latent_tensors(model: Model, latent: LatentAttention) -> tuple[Tensor, ...]:
    """Projections to the narrow vectors are replicated, because all heads read the whole vectors."""
    h, rank, heads = model.hidden, latent.q_rank, model.heads
    queries = (
        (
            Tensor(name="wq_a", rows=rank, cols=h, tp="none"),
            Tensor(name="q_a_norm", rows=rank, cols=1, tp="none"),
            Tensor(name="wq_b", rows=model.q_width, cols=rank, tp="rows"),
        )
        if rank
        else (Tensor(name="wq", rows=model.q_width, cols=h, tp="rows"),)
    )
    return (
        *queries,
        # the keys of all heads share their rotated part, which is not made from the narrow vector
        Tensor(name="wkv_a", rows=latent.kv_rank + latent.rope_size, cols=h, tp="none"),
        Tensor(name="kv_a_norm", rows=latent.kv_rank, cols=1, tp="none"),
        Tensor(name="wkv_b", rows=heads * (latent.nope_size + latent.value_size), cols=latent.kv_rank, tp="rows"),
        Tensor(name="wo", rows=h, cols=heads * latent.value_size, tp="cols"),
    )


def mlp_tensors(model: Model) -> tuple[Tensor, ...]:
    """The matrices of a dense MLP."""
    return _matrices(model, model.ffn)


def expert_tensors(model: Model) -> tuple[Tensor, ...]:
    """What a layer with experts has in place of the MLP: router, routed experts, shared experts and their gate."""
    return (*router_tensors(model), *routed_tensors(model), *shared_tensors(model))


def routed_tensors(model: Model) -> tuple[Tensor, ...]:
    """The matrices and biases of the routed experts."""
    assert model.experts is not None
    count, ffn = model.experts.count, model.experts.ffn
    return (*_matrices(model, ffn, count), *_mlp_biases(model, ffn, count))


def shared_tensors(model: Model) -> tuple[Tensor, ...]:
    """The shared experts as one MLP, and the gate of their output."""
    assert model.experts is not None
    ffn = model.experts.shared_ffn
    if not ffn:
        return ()
    gate = (Tensor(name="shared_gate", rows=1, cols=model.hidden, tp="none"),) if model.experts.shared_gate else ()
    return (*_matrices(model, ffn, name="shared_"), *_mlp_biases(model, ffn, name="shared_"), *gate)


def router_tensors(model: Model) -> tuple[Tensor, ...]:
    """The router: a score of each expert, and a bias of each."""
    assert model.experts is not None
    count = model.experts.count
    bias = (Tensor(name="router_bias", rows=count, cols=1, tp="none"),) if model.experts.router_bias else ()
    return (Tensor(name="router", rows=count, cols=model.hidden, tp="none"), *bias)


def _matrices(model: Model, ffn: int, experts: int = 0, *, name: str = "") -> tuple[Tensor, ...]:
    h = model.hidden
    return (
        *(
            Tensor(name=f"{name}{n}", rows=ffn, cols=h, tp="rows", experts=experts)
            for n in (("w1", "w3") if model.gated else ("w1",))
        ),
        Tensor(name=f"{name}w2", rows=h, cols=ffn, tp="cols", experts=experts),
    )


def _norm_names(model: Model) -> tuple[str, ...]:
    more = tuple(f"post_{i}" for i in range(1, model.layer_norms - 1))
    return ("attention", "mlp", *more)[: model.layer_norms]


def _norms(model: Model) -> list[Tensor]:
    return [Tensor(name=f"{name}_norm", rows=model.hidden, cols=1, tp="none") for name in _norm_names(model)]


def _qk_norms(model: Model) -> list[Tensor]:
    """The weights of the norms of queries and keys: one head's, or all heads'."""
    if model.qk_norm in ("none", "unit"):
        return []
    cut = "rows" if model.qk_norm == "full" else "none"
    q, k = (model.q_width, model.kv_width) if model.qk_norm == "full" else (model.head_dim, model.head_dim)
    return [Tensor(name="q_norm", rows=q, cols=1, tp=cut), Tensor(name="k_norm", rows=k, cols=1, tp=cut)]


def _attention_biases(model: Model) -> list[Tensor]:
    rows: list[tuple[str, int, str]] = []
    if model.biases or model.qkv_bias:
        rows += [("bq", model.q_width, "rows"), ("bk", model.kv_width, "rows"), ("bv", model.kv_width, "rows")]
    if model.biases or model.attention_output_bias:
        rows += [("bo", model.hidden, "none")]
    return [Tensor(name=name, rows=size, cols=1, tp=tp) for name, size, tp in rows]


def _mlp_biases(model: Model, ffn: int, experts: int = 0, *, name: str = "") -> list[Tensor]:
    if not (model.biases or model.mlp_bias):
        return []
    rows = [*((n, ffn, "rows") for n in (("b1", "b3") if model.gated else ("b1",))), ("b2", model.hidden, "none")]
    return [Tensor(name=f"{name}{n}", rows=size, cols=1, tp=tp, experts=experts) for n, size, tp in rows]


def _norm_biases(model: Model) -> list[Tensor]:
    if not (model.biases or model.norm_bias):
        return []
    return [Tensor(name=f"{name}_norm_bias", rows=model.hidden, cols=1, tp="none") for name in _norm_names(model)]


def head_layers(model: Model) -> float:
    """The output projection's products in layers' products: those of the mean layer, where layers are not alike."""
    dense = sum(t.size for t in layer_tensors(model) if np.any(t.cols > 1))
    if model.experts is None:
        return model.vocab * model.hidden / dense
    used = Fraction(model.experts.top_k, model.experts.count)
    sparse = sum((used if t.experts else 1) * t.size for t in layer_tensors(model, experts=True) if t.cols > 1)
    with_experts = model.expert_layers + model.mtp_layers
    total = with_experts * sparse + (model.layers - model.expert_layers) * dense
    heads = 1 + model.mtp_layers  # each layer of multi-token prediction has one more
    return float(heads * model.vocab * model.hidden * model.walked_layers / total)


def embedding_tensors(model: Model) -> tuple[Tensor, ...]:
    """What stands before the first layer."""
    tensors = [Tensor(name="embedding", rows=model.vocab, cols=model.hidden, tp="rows")]
    if model.positions == "learned":
        tensors.append(Tensor(name="positions", rows=model.max_seq_len, cols=model.hidden, tp="none"))
    return tuple(tensors)


def head_tensors(model: Model) -> tuple[Tensor, ...]:
    """What stands after the last layer. A tied output projection is counted with the embedding."""
    tensors = [Tensor(name="norm", rows=model.hidden, cols=1, tp="none")]
    if model.biases or model.norm_bias:
        tensors.append(Tensor(name="norm_bias", rows=model.hidden, cols=1, tp="none"))
    if not model.tied_embeddings:
        tensors.append(Tensor(name="output", rows=model.vocab, cols=model.hidden, tp="rows"))
    if model.output_bias:
        tensors.append(Tensor(name="output_bias", rows=model.vocab, cols=1, tp="rows"))
    return tuple(tensors)


def parameter_count(model: Model) -> int:
    """Parameters of the whole model, as torch counts them, without the layers of multi-token prediction."""
    return _counted.__wrapped__(model) if has_columns(model) else _counted(model)


@lru_cache(maxsize=1024)
def _counted(model: Model) -> int:
    layers = (model.layers - model.expert_layers) * _elements(layer_tensors(model))
    if model.experts is not None:
        layers += model.expert_layers * _elements(layer_tensors(model, experts=True))
    return layers + _elements(embedding_tensors(model) + head_tensors(model))


def routed_parameter_count(model: Model) -> int:
    """Parameters of all routed experts."""
    return 0 if model.experts is None else model.expert_layers * _elements(routed_tensors(model))


def active_parameter_count(model: Model) -> int:
    """Parameters that one token uses: all but those of the routed experts that it is not sent to.

    Both embeddings count, as in ``parameter_count``, so a dense model has as many active parameters as parameters.
    Some authors leave out the input embedding, which is a lookup (GPT-OSS), or both (Moonlight).
    """
    if model.experts is None:
        return parameter_count(model)
    unused = 1 - Fraction(model.experts.top_k, model.experts.count)
    return parameter_count(model) - int(routed_parameter_count(model) * unused)


def mtp_parameter_count(model: Model) -> int:
    """Parameters of the layers that predict further tokens, which ``parameter_count`` leaves out.

    Where:   each is a layer as the model's last, a projection of two vectors to one, a norm of each and one before
             the output projection. Embedding and output projection are the model's own, and not counted again
    Source:  DeepSeek-V3, arXiv 2412.19437, section 2.2; README_WEIGHTS.md of deepseek-ai/DeepSeek-V3
    """
    h = model.hidden
    layer = _elements(layer_tensors(model, experts=model.experts is not None))
    return model.mtp_layers * (layer + 2 * h * h + 3 * h)


def _elements(tensors: tuple[Tensor, ...]) -> int:
    return sum(tensor.size for tensor in tensors)


FEW_ROWS = 4096
"""Rows that are quicker computed than compared."""


def local_sides(t: Tensor, tp: Ints) -> tuple[Floats, Floats]:
    """Rows and columns of a weight on one tensor-parallel rank."""
    one = np.ones(len(tp))
    rows = np.maximum(t.rows / tp, t.least_rows * one) if t.tp == "rows" else t.rows * one
    return rows, t.cols / tp if t.tp == "cols" else t.cols * one


def _kinds(tensors: tuple[Tensor, ...], *columns: Ints) -> tuple[Ints, Ints]:
    """Rows that differ. All may, where the tensors are of several models, and so columns themselves."""
    several = any(isinstance(size, np.ndarray) for t in tensors for size in (t.rows, t.cols))
    return equal_rows(*columns, few=len(columns[0]) if several else FEW_ROWS)


def shard_elements(tensors: tuple[Tensor, ...], tp: Ints) -> Floats:
    """Elements of these tensors, which are not routed experts', on one tensor-parallel rank."""
    first, kind = _kinds(tensors, tp)
    tp, total = tp[first], np.zeros(len(first))
    for t in tensors:
        rows = np.maximum(t.rows / tp, t.least_rows) if t.tp == "rows" else 1.0 * t.rows
        total += rows * (t.cols / tp if t.tp == "cols" else 1.0 * t.cols)
    return total[kind]


def gathered_elements(tensors: tuple[Tensor, ...], tp: Ints, ranks: Ints) -> Floats:
    """Elements one all-gather of these tensors moves under FSDP2, padding included.

    Formula: sum over tensors of ranks * ceil(rows / ranks) * cols
    Where:   rows, cols are the tensor-parallel rank's part; FSDP2 cuts dimension 0 and pads it
    Source:  torch.distributed.fsdp.fully_shard, dim-0 sharding (torch 2.3 and later)
    Valid:   any group size; beyond the rows of a tensor every extra rank only adds padding
    """
    first, kind = _kinds(tensors, tp, ranks)
    tp, ranks, total = tp[first], ranks[first], np.zeros(len(first))
    for t in tensors:
        rows = np.ceil(np.maximum(t.rows / tp, t.least_rows)) if t.tp == "rows" else 1.0 * t.rows
        cols = t.cols / tp if t.tp == "cols" else 1.0 * t.cols
        total += ranks * np.ceil(rows / ranks) * cols
    return total[kind]


def stage_elements(model: Model, table: PlanTable, layer: Floats, embedding: Floats, head: Floats) -> Floats:
    """Elements of the fullest stage's model shard: a stage's layers and one end of the model."""
    layers = np.ceil(model.walked_layers / table.pp)
    return layers * layer + np.where(table.pp > 1, np.maximum(embedding, head), embedding + head)


def most_keys(model: Model, seq_len: Floats) -> Floats:
    """Keys that a query sees if the causal mask is not counted, mean over layers: the sequence, or the window."""
    sliding = model.sliding_layers / model.layers
    return (1.0 - sliding) * seq_len + sliding * np.minimum(model.window, seq_len)


def causal_keys(model: Model, seq_len: Floats) -> Floats:
    """Keys that a query attends to, mean over queries and layers: s / 2 in layers with full attention."""
    sliding = model.sliding_layers / model.layers
    return (1.0 - sliding) * seq_len / 2.0 + sliding * window_keys(model, seq_len)


def window_keys(model: Model, seq_len: Floats) -> Floats:
    """Keys that a query of a layer with the window attends to, mean over queries.

    Formula: a sliding window w - w^2 / (2 s); chunks (n w^2 + r^2) / (2 s)
    Where:   w is at most s; the first w queries see fewer keys than a sliding window has. A sequence has n whole
             chunks and a rest of r tokens, each with full attention inside
    """
    window: Floats = np.minimum(model.window, seq_len)
    if model.window_kind == "chunked":
        whole = np.floor(seq_len / window)
        rest = seq_len - whole * window
        return (whole * window**2 + rest**2) / (2.0 * seq_len)
    return window - window**2 / (2.0 * seq_len)


def kernel_keys(model: Model, seq_len: Floats, kv_block: Floats) -> Floats:
    """The length that gives a kernel with full attention the rate of the mean layer's: a kernel's time is
    flop (1 + half / length), so it is the harmonic mean over layers, weighted by FLOP."""
    sliding, window = model.sliding_layers / model.layers, np.minimum(model.window, seq_len)
    full = (1.0 - sliding) * seq_len / 2.0
    band = sliding * window_keys(model, seq_len)
    return (full + band) / (full / kv_block + band / np.minimum(window, kv_block))


def _attention(
    model: Model, seq_len: NDArray[np.int64], keys: Callable[[Model, Floats], Floats] = most_keys
) -> NDArray[np.float64]:
    """L * d * s: one multiply-add column of attention over all layers. The width d is that of all heads; of queries and
    values the mean, where latent attention has two sizes."""
    width: float = model.q_width
    if model.latent_attention is not None:
        width = (model.q_width + model.heads * model.latent_attention.value_size) / 2.0
    return model.layers * width * keys(model, seq_len.astype(np.float64))


# Each is FLOP per trained token, forward and backward; recomputation never counts. Of experts those count that a token
# uses, and layers for multi-token prediction do not.
CONVENTIONS: dict[str, Callable[[Model, NDArray[np.int64]], NDArray[np.float64]]] = {
    # PaLM, appendix B (arXiv 2204.02311): 6N + 12 L d s, attention in full although the mask halves it
    "palm": lambda m, s: 6.0 * active_parameter_count(m) + 12.0 * _attention(m, s),
    # Kaplan et al. 2020: parameters only
    "6n": lambda m, s: np.full(len(s), 6.0 * active_parameter_count(m)),
    # as PaLM, with the causal half of the square
    "causal": lambda m, s: 6.0 * active_parameter_count(m) + 12.0 * _attention(m, s, causal_keys),
    # torchtitan: the input embedding is a lookup, not a product
    "torchtitan": lambda m, s: 6.0 * (active_parameter_count(m) - m.vocab * m.hidden) + 12.0 * _attention(m, s),
}


def model_flop_per_token(model: Model, seq_len: NDArray[np.int64], convention: str) -> NDArray[np.float64]:
    """FLOP that training on one token takes, by a named convention."""
    if convention not in CONVENTIONS:
        hint = f"use one of {', '.join(CONVENTIONS)}"
        text = f"no FLOP convention named {convention!r}"
        raise InputError(text, hint=hint, code="unknown-choice", field="flop_convention")
    return CONVENTIONS[convention](model, seq_len)
