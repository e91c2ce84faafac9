"""The weights of a decoder layer, as torch stores them (out_features first), and how parallelism cuts them."""

from __future__ import annotations

from dataclasses import dataclass

from knee.specs.model import LatentAttention, Model


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
    """Names of the norms of the residual stream."""
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
