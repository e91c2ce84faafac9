"""How many parameters a model has, how many a token uses, and what FSDP2 really moves for them."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np

from knee.base.arrays import Floats, Ints, equal_rows
from knee.engine.workload.layer_weights import Tensor, layer_tensors, routed_tensors
from knee.specs.model import Model
from knee.specs.plan_table import PlanTable
from knee.specs.variants import has_columns


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
