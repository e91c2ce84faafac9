"""Tensor parallelism, written out: weights are plain local parts, collectives are ours.

A rank holds whole heads and some columns of the MLP, as its own small weights; FSDP2 shards those like any others.
Where a block's inner part begins and ends, activations cross the group: with sequence parallelism a part of every
sequence comes in (all-gather) and goes out (reduce-scatter), without it a copy does (all-reduce). DTensor would do the
same; written out, it is four functions, compiles, and costs the host nothing.
"""

from __future__ import annotations

from typing import Any

from torch.nn import functional

from knee.training.parallelism.torch_internals import NamedGroup, all_gather, all_reduce, exchange, reduce_scatter

CUT_DIM = {"wq": 0, "wk": 0, "wv": 0, "wo": 1, "w1": 0, "w3": 0, "w2": 1, "embedding": 0, "output": 0}
CUT_DIM |= {"wq_b": 0, "wkv_b": 0, "shared_w1": 0, "shared_w3": 0, "shared_w2": 1}
CUT_DIM |= {"bq": 0, "bk": 0, "bv": 0, "b1": 0, "b3": 0}
"""Which dim of a weight the group cuts, by its name; the others (norms, routers) are whole on every rank."""
OF_HEADS = ("q_norm", "k_norm")
"""Whole weights of which a rank sees only its heads."""


class Whole:
    """One rank: nothing crosses anything."""

    size, rank, splits_sequence = 1, 0, False
    vocabulary: NamedGroup | None = None
    """The group on whose parts of the vocabulary the loss is computed (loss parallel)."""
    gathers_sequence: NamedGroup | None = None
    """The group whose ranks have parts of each sequence outside a block's inner parts (sequence parallelism)."""

    def enter(self, x: Any) -> Any:
        """Bring activations into a block's inner part."""
        return x

    def leave(self, x: Any) -> Any:
        """Bring activations out of a block's inner part."""
        return x

    def lookup(self, tokens: Any, table: Any) -> Any:
        """Return the tokens' rows of the embedding."""
        return functional.embedding(tokens, table)


class Split(Whole):
    """A tensor-parallel group."""

    def __init__(self, group: NamedGroup, *, sequence_parallel: bool) -> None:
        self.group, self.size, self.rank = group, group.size, group.rank
        self.splits_sequence, self.vocabulary = sequence_parallel, group
        self.gathers_sequence = group if sequence_parallel else None

    def enter(self, x: Any) -> Any:
        """A part of the sequence becomes the whole; its gradient is summed."""
        return _Gather.apply(x, self.group) if self.splits_sequence else _Copy.apply(x, self.group)

    def leave(self, x: Any) -> Any:
        """Partial results are summed, and cut along the sequence."""
        return _Scatter.apply(x, self.group) if self.splits_sequence else _Sum.apply(x, self.group)

    def lookup(self, tokens: Any, table: Any) -> Any:
        """Every rank has some rows of the table; those it lacks are zero in its part of the sum."""
        local = tokens - self.rank * table.shape[0]
        absent = (local < 0) | (local >= table.shape[0])
        rows = functional.embedding(local.masked_fill(absent, 0), table)
        return rows.masked_fill(absent.unsqueeze(-1), 0)


def gather_sequence(x: Any, group: NamedGroup) -> Any:
    """Parts (batch, sequence, ...) of all ranks as one, along the sequence."""
    whole = all_gather(x, group).view(group.size, *x.shape)
    return whole.movedim(0, 1).reshape(x.shape[0], group.size * x.shape[1], *x.shape[2:])


def scatter_sequence(x: Any, group: NamedGroup) -> Any:
    """This rank's part, along the sequence, of the sum over ranks."""
    parts = x.view(x.shape[0], group.size, x.shape[1] // group.size, *x.shape[2:]).movedim(1, 0)
    return reduce_scatter(parts, group).view(x.shape[0], x.shape[1] // group.size, *x.shape[2:])


_Gather, _Scatter = exchange(gather_sequence, scatter_sequence), exchange(scatter_sequence, gather_sequence)
_Copy = exchange(lambda x, _: x.view_as(x), lambda grad, group: all_reduce(grad, group))
_Sum = exchange(lambda x, group: all_reduce(x, group), lambda grad, _: grad)
