"""What one rank of each pipeline stage issues in a step: the same record for the real program and the simulator."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class Collective(NamedTuple):
    """A message as one rank issues it."""

    collective: str
    """all_gather, reduce_scatter, all_reduce, all_to_all, send or recv."""
    group: str
    """The mesh axes it runs over: dp_shard (with cp), dp_replicate, tp, cp, pp or world; of experts ep, etp, edp and
    edp_replicate."""
    group_size: int
    message_bytes: int
    """Of one full (gathered or unreduced) message, or all that a rank sends in an all-to-all."""
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """One step of one rank."""

    stage: int
    rank: int
    product_flop: int
    """Matrix products of the linear maps."""
    attention_flop: int
    """Attention, the causal mask respected; its backward with the scores it computes again."""
    collectives: dict[Collective, int]
    """Calls of each, in the order of their first."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        collectives = [{**c._asdict(), "calls": n} for c, n in self.collectives.items()]
        return asdict(self) | {"collectives": collectives}
