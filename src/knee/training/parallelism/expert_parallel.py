"""Expert parallelism: rows travel to the ranks of their experts and back, by all-to-alls.

A pipeline stage's ranks are folded a second time for its experts: dp * cp * tp = edp * ep * etp. Every rank of the
stage has tokens of its own. A rank of the ``ep`` group holds some of the experts; a rank of the ``etp`` group holds
some columns of them, so the group's ranks share their rows.
"""

from __future__ import annotations

from typing import Any

import torch

from knee.training.parallelism.experts import ExpertWeights, Rows, offsets_of
from knee.training.parallelism.torch_internals import NamedGroup, all_gather, all_to_all, exchange, reduce_scatter


class Here:
    """All experts are on this rank: rows stay."""

    ep, etp = 1, 1

    def __call__(self, experts: ExpertWeights, rows: Any, of: Rows) -> Any:
        """Rows sorted by expert, in and out."""
        return experts(rows, of.weights, offsets_of(of.counts))


class TokenExchange(Here):
    """Experts on several ranks."""

    def __init__(self, ep: NamedGroup | None, etp: NamedGroup | None) -> None:
        self.ep_group, self.etp_group = ep, etp
        self.ep, self.etp = ep.size if ep else 1, etp.size if etp else 1

    def __call__(self, experts: ExpertWeights, rows: Any, of: Rows) -> Any:
        """As ``Here``. Sizes of messages that the host must read from the device cannot be compiled."""
        if of.each is not None:
            table = torch.full((self.etp, self.ep, experts.count), of.each, device=rows.device)
            each = [of.each * experts.count] * self.ep
            return self._exchanged(experts, rows, of.weights, table, each, [each] * self.etp)
        return self._counted(experts, rows, of)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _counted(self, experts: ExpertWeights, rows: Any, of: Rows) -> Any:
        """Counts travel first, and the host waits for them."""
        table = of.counts.view(self.ep, experts.count)
        if self.ep_group:
            table = all_to_all(table, self.ep_group)
        table = table.view(1, self.ep, experts.count)
        if self.etp_group:
            table = all_gather(table, self.etp_group)
        sent = of.counts.view(1, self.ep, experts.count)
        sizes = torch.cat((sent, table)).sum(-1).tolist()
        return self._exchanged(experts, rows, of.weights, table, sizes[0], sizes[1:])

    def _exchanged(
        self, experts: ExpertWeights, rows: Any, weights: Any, table: Any, sent: list[int], got: list[list[int]]
    ) -> Any:
        """``table`` (etp, ep, experts): rows of each expert here, by the ranks they come from; ``sent`` and ``got`` are
        rows by rank of the ``ep`` group, the latter of every rank of the ``etp`` group."""
        weights = weights.unsqueeze(-1)
        if self.ep_group:
            here = got[self.etp_group.rank if self.etp_group else 0]
            rows, weights = (_AllToAll.apply(x, self.ep_group, sent, here) for x in (rows, weights))
        own = rows.shape[0]
        lengths = [sum(of_rank) for of_rank in got]
        if self.etp_group:
            rows, weights = (_GatherRows.apply(x, lengths, self.etp_group) for x in (rows, weights))
        order, place = _by_expert(table.flatten(0, 1), sum(lengths))
        rows, weights = (_Reorder.apply(x, order, place) for x in (rows, weights))
        done = experts(rows, weights.squeeze(-1), offsets_of(table.sum((0, 1))))
        done = _Reorder.apply(done, place, order)
        if self.etp_group:
            done = _ScatterRows.apply(done, lengths, self.etp_group)[:own]
        return _AllToAll.apply(done, self.ep_group, here, sent) if self.ep_group else done


def _by_expert(table: Any, rows: int) -> tuple[Any, Any]:
    """Order that sorts rows by expert, and its inverse. Rows come rank by rank, and sorted from each."""
    ranks, experts = table.shape
    numbers = torch.arange(experts, device=table.device).repeat(ranks)
    expert = numbers.repeat_interleave(table.flatten(), output_size=rows)
    order = expert.argsort(stable=True)
    return order, torch.empty_like(order).scatter(0, order, torch.arange(rows, device=order.device))


def _gather_rows(x: Any, lengths: list[int], group: NamedGroup) -> Any:
    """Rows of all ranks, one rank after the other. Ranks have unequal numbers of rows: all send as many as the most."""
    most = max(lengths)
    parts = all_gather(_padded(x, most), group).split(most) if most else (x,) * group.size
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])


def _scatter_rows(x: Any, lengths: list[int], group: NamedGroup) -> Any:
    """This rank's rows of the sum over ranks."""
    most = max(lengths)
    if not most:
        return x
    padded = torch.cat([_padded(part, most) for part in x.split(lengths)])
    return reduce_scatter(padded, group)[: lengths[group.rank]]


def _padded(x: Any, rows: int) -> Any:
    return x if x.shape[0] == rows else torch.cat((x, x.new_zeros(rows - x.shape[0], *x.shape[1:])))


_Reorder = exchange(lambda x, order, _: x.index_select(0, order), lambda grad, _, place: grad.index_select(0, place))
_AllToAll = exchange(
    lambda x, group, sent, got: all_to_all(x, group, sent, got),
    lambda grad, group, sent, got: all_to_all(grad, group, got, sent),
)
_GatherRows, _ScatterRows = exchange(_gather_rows, _scatter_rows), exchange(_scatter_rows, _gather_rows)
