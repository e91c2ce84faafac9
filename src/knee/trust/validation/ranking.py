"""Whether the plan that knee would choose is the one that was fastest."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from knee.base.arrays import Bools, Floats
from knee.trust.validation.published_runs import Setting

FEWEST = 3
"""Plans below which a rank correlation says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """Plans that were measured of one job."""

    source: str
    plans: int
    regret_frac: float
    """How much slower the plan that knee ranks first ran than the fastest one."""
    spearman: float | None
    """Rank correlation of predicted and measured throughput; None with fewer than three plans, or all alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Groups in sum."""

    groups: int
    plans: int
    median_regret_frac: float
    mean_regret_frac: float
    worst_regret_frac: float
    best_chosen_frac: float
    """Share of groups in which knee chooses the fastest plan itself."""
    median_spearman: float | None

    @classmethod
    def of(cls, groups: Sequence[Cohort]) -> Ranking | None:
        """None where no job was measured under two plans."""
        if not groups:
            return None
        regrets = np.array([group.regret_frac for group in groups])
        orders = [group.spearman for group in groups if group.spearman is not None]
        return cls(
            groups=len(groups),
            plans=sum(group.plans for group in groups),
            median_regret_frac=float(np.median(regrets)),
            mean_regret_frac=float(np.mean(regrets)),
            worst_regret_frac=float(np.max(regrets)),
            best_chosen_frac=float(np.mean(regrets == 0.0)),
            median_spearman=float(np.median(orders)) if orders else None,
        )


def job_key(s: Setting) -> Hashable:
    """What two runs share that differ only in the plan."""
    model = (s.model, s.layers, s.hidden, s.ffn, s.heads, s.kv_heads, s.vocab, s.mlp, s.tied_embeddings)
    where = (s.gpu, s.gpus_per_node, s.node_bytes_per_s, s.n_gpus)
    return (s.source, *model, *where, s.global_batch, s.seq_len, s.precision, s.compile, s.attention, s.kernel)


def rank_group(source: str, predicted: Floats, measured: Floats, fits: Bools) -> Cohort:
    """Knee chooses the fastest plan that it expects to fit, and the fastest of all where it expects none to."""
    candidates = np.flatnonzero(fits) if fits.any() else np.arange(len(fits))
    chosen = candidates[np.argmax(predicted[candidates])]
    return Cohort(
        source=source,
        plans=len(measured),
        regret_frac=float(1.0 - measured[chosen] / measured.max()),
        spearman=spearman(predicted, measured) if len(measured) >= FEWEST else None,
    )


def spearman(a: Floats, b: Floats) -> float | None:
    """Correlation of ranks; None where one side has no order."""
    # scipy.stats has it, but scipy is the extra `fit`, and `knee validate` works without extras
    ranks_a, ranks_b = _ranks(a), _ranks(b)
    spread = ranks_a.std() * ranks_b.std()
    if spread == 0.0:
        return None
    return float(np.mean((ranks_a - ranks_a.mean()) * (ranks_b - ranks_b.mean())) / spread)


def _ranks(values: Floats) -> Floats:
    """Ranks from 0; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2)[inverse], dtype=np.float64)
