"""Plans that no other beats in speed, energy and free memory at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from knee.base.arrays import Bools, Floats, Ints
from knee.engine.simulator import Results

FRONT_STEP = 1.15
"""Over the fastest step: a plan that is slower than that is no choice, whatever memory it leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merits:
    """What plans are compared by, rounded: those within a thousandth, or a hundredth of the memory, count as equal,
    because a front of hundreds that differ by nothing helps nobody. More is better."""

    speed: Floats
    thrift: Floats
    room: Floats

    @classmethod
    def of(cls, *, step_s: Floats, energy_j: Floats, memory_bytes: Floats, hbm_bytes: float) -> Merits:
        """Merits of steps with equally many tokens."""
        with np.errstate(divide="ignore"):
            speed, thrift = (np.round(-np.log(value) / 1e-3) for value in (step_s, energy_j))
        return cls(speed=speed, thrift=thrift, room=np.floor((hbm_bytes - memory_bytes) / (0.01 * hbm_bytes)))

    @classmethod
    def of_results(cls, results: Results, hbm_bytes: float) -> Merits:
        """Merits of simulated plans."""
        energy = results.power_w_per_gpu * results.step_s
        return cls.of(step_s=results.step_s, energy_j=energy, memory_bytes=results.memory_bytes, hbm_bytes=hbm_bytes)

    def rows(self, index: Ints) -> Merits:
        """The merits of the plans at these places."""
        return Merits(speed=self.speed[index], thrift=self.thrift[index], room=self.room[index])

    def matched_by(self, others: Merits) -> Bools:
        """Whether one of the others is at least as good in all three."""
        found = np.zeros(len(self.speed), dtype=np.bool_)
        for speed, thrift, room in zip(others.speed, others.thrift, others.room, strict=True):
            found |= (speed >= self.speed) & (thrift >= self.thrift) & (room >= self.room)
        return found


def pareto(results: Results, hbm_bytes: float) -> Ints:
    """Rows that no other row beats in tokens/s, tokens/J and free memory at once, the fastest first."""
    merits = Merits.of_results(results, hbm_bytes)
    near = np.flatnonzero(results.step_s <= FRONT_STEP * results.step_s.min(initial=np.inf))
    order = near[np.lexsort((-merits.room[near], -merits.thrift[near], -merits.speed[near]))]
    front: list[int] = []
    kept = np.empty((0, 2))
    for row in order.tolist():
        # rows before this one are at least as fast
        if not len(kept) or not np.any((kept[:, 0] >= merits.thrift[row]) & (kept[:, 1] >= merits.room[row])):
            front.append(row)
            kept = np.vstack((kept, (merits.thrift[row], merits.room[row])))
    return np.array(front, dtype=np.int64)
