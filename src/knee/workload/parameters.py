"""How many parameters a model has, and what FSDP2 really moves for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from knee.arrays import Floats, Ints, equal_rows
from knee.specs.model import Model
from knee.specs.plan_table import PlanTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A weight: rows (its dimension 0, the one FSDP2 cuts), columns, and how TP cuts it."""

    name: str
    rows: int
    cols: int
    tp: str
    """"rows", "cols" or "none" (replicated)."""
    least_rows: int = 1
    """Rows that a tensor-parallel rank keeps at least: a whole head, replicated where tp exceeds the heads."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.rows * self.cols


@lru_cache(maxsize=1024)
def layer_tensors(model: Model) -> tuple[Tensor, ...]:
    """The weights of one decoder layer, as torch stores them (out_features first)."""
    h, f = model.hidden, model.ffn
    tensors = [
        Tensor(name="wq", rows=model.q_width, cols=h, tp="rows"),
        Tensor(name="wk", rows=model.kv_width, cols=h, tp="rows", least_rows=model.head_dim),
        Tensor(name="wv", rows=model.kv_width, cols=h, tp="rows", least_rows=model.head_dim),
        Tensor(name="wo", rows=h, cols=model.q_width, tp="cols"),
        *(Tensor(name=n, rows=f, cols=h, tp="rows") for n in (("w1", "w3") if model.gated else ("w1",))),
        Tensor(name="w2", rows=h, cols=f, tp="cols"),
        *(Tensor(name=f"{n}_norm", rows=h, cols=1, tp="none") for n in _norm_names(model)),
        *_qk_norms(model),
        *_biases(model),
    ]
    return tuple(tensors)


def _norm_names(model: Model) -> tuple[str, ...]:
    """Names of the norms of the residual stream."""
    more = tuple(f"post_{i}" for i in range(1, model.layer_norms - 1))
    return ("attention", "mlp", *more)[: model.layer_norms]


def _qk_norms(model: Model) -> list[Tensor]:
    """The weights of the norms of queries and keys: one head's, or all heads'."""
    if model.qk_norm == "none":
        return []
    cut = "rows" if model.qk_norm == "full" else "none"
    q, k = (model.q_width, model.kv_width) if model.qk_norm == "full" else (model.head_dim, model.head_dim)
    return [Tensor(name="q_norm", rows=q, cols=1, tp=cut), Tensor(name="k_norm", rows=k, cols=1, tp=cut)]


def _biases(model: Model) -> list[Tensor]:
    """The biases of linear layers, and of norms where everything has one."""
    h, f, every = model.hidden, model.ffn, model.biases
    rows: list[tuple[str, int, str]] = []
    if every or model.qkv_bias:
        rows += [("bq", model.q_width, "rows"), ("bk", model.kv_width, "rows"), ("bv", model.kv_width, "rows")]
    if every or model.attention_output_bias:
        rows += [("bo", h, "none")]
    if every or model.mlp_bias:
        rows += [*((name, f, "rows") for name in (("b1", "b3") if model.gated else ("b1",))), ("b2", h, "none")]
    if every:
        rows += [(f"{name}_norm_bias", h, "none") for name in _norm_names(model)]
    return [Tensor(name=name, rows=size, cols=1, tp=tp) for name, size, tp in rows]


def head_layers(model: Model) -> float:
    """The output projection's products in layers' products."""
    layer = sum(t.size for t in layer_tensors(model) if t.cols > 1)
    return model.vocab * model.hidden / layer


def embedding_tensors(model: Model) -> tuple[Tensor, ...]:
    """What stands before the first layer."""
    tensors = [Tensor(name="embedding", rows=model.vocab, cols=model.hidden, tp="rows")]
    if model.positions == "learned":
        tensors.append(Tensor(name="positions", rows=model.max_seq_len, cols=model.hidden, tp="none"))
    return tuple(tensors)


def head_tensors(model: Model) -> tuple[Tensor, ...]:
    """What stands after the last layer. A tied output projection is counted with the embedding."""
    tensors = [Tensor(name="norm", rows=model.hidden, cols=1, tp="none")]
    if model.biases:
        tensors.append(Tensor(name="norm_bias", rows=model.hidden, cols=1, tp="none"))
    if not model.tied_embeddings:
        tensors.append(Tensor(name="output", rows=model.vocab, cols=model.hidden, tp="rows"))
    return tuple(tensors)


@lru_cache(maxsize=1024)
def parameter_count(model: Model) -> int:
    """Parameters of the whole model, as torch counts them."""
    layer = sum(t.size for t in layer_tensors(model))
    ends = sum(t.size for t in embedding_tensors(model) + head_tensors(model))
    return model.layers * layer + ends


FEW_ROWS = 4096
"""Rows that are quicker computed than compared."""


def shard_elements(tensors: tuple[Tensor, ...], tp: Ints) -> Floats:
    """Elements of these tensors on one tensor-parallel rank."""
    first, kind = equal_rows(tp, few=FEW_ROWS)
    tp, total = tp[first], np.zeros(len(first))
    for t in tensors:
        rows = np.maximum(t.rows / tp, float(t.least_rows)) if t.tp == "rows" else float(t.rows)
        total += rows * (t.cols / tp if t.tp == "cols" else float(t.cols))
    return total[kind]


def gathered_elements(tensors: tuple[Tensor, ...], tp: Ints, ranks: Ints) -> Floats:
    """Elements one all-gather of these tensors moves under FSDP2, padding included.

    Formula: sum over tensors of ranks * ceil(rows / ranks) * cols
    Where:   rows, cols are the tensor-parallel rank's part; FSDP2 cuts dimension 0 and pads it
    Source:  torch.distributed.fsdp.fully_shard, dim-0 sharding (torch 2.3 and later)
    Valid:   any group size; beyond the rows of a tensor every extra rank only adds padding
    """
    first, kind = equal_rows(tp, ranks, few=FEW_ROWS)
    tp, ranks, total = tp[first], ranks[first], np.zeros(len(first))
    for t in tensors:
        rows = np.ceil(np.maximum(t.rows / tp, float(t.least_rows))) if t.tp == "rows" else float(t.rows)
        cols = t.cols / tp if t.tp == "cols" else float(t.cols)
        total += ranks * np.ceil(rows / ranks) * cols
    return total[kind]


def stage_elements(model: Model, table: PlanTable, layer: Floats, embedding: Floats, head: Floats) -> Floats:
    """Elements of the fullest stage's model shard: a stage's layers and one end of the model."""
    layers = np.ceil(model.layers / table.pp)
    return layers * layer + np.where(table.pp > 1, np.maximum(embedding, head), embedding + head)
