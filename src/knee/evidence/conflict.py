"""Statements of the paper that cannot all be true of one machine: T10 against T09, T12, T17 and T29.

Formula: MFU = u (1 - e)
Where: e is the exposed share of a step and u the MFU of the rest of it, on 16 and on 256 H100s, both with two sequences
    a GPU. Compute time does not depend on the count (T24), and a best plan at 256 computes no better than FSDP at 16:
    u256 <= u16. T12's best plan at 16 is no slower than FSDP there.
Then: (1 - e16) MFU256 <= MFU16 (1 - e256), and T10 gives e256 >= 12.83%, whatever an A100 exposes.
"""

from __future__ import annotations

from dataclasses import dataclass

MFU_256 = 0.4077
"""T09."""
MFU_16, MFU_16_ROUNDING = 0.40, 0.005
"""T12, and half of its last digit."""
GAP = 0.1283
"""T10, as points of the step."""
SMALL = 0.05
"""T17 and T29: our bound for minimal overhead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subset:
    """Statements that can be true together once one is given up."""

    without: str
    """What is given up."""
    keeps: str
    needs: str
    """What must hold in its place."""
    states: str
    """What the paper says, or what we took it to say."""
    apart: str
    """How far the two are from each other."""


def least_exposed_16(mfu_16: float = MFU_16 + MFU_16_ROUNDING, e_256: float = GAP) -> float:
    """The least that 16 GPUs expose, by T09, T10 and T12."""
    return 1.0 - mfu_16 / MFU_256 * (1.0 - e_256)


def most_exposed_256(e_16: float = SMALL, mfu_16: float = MFU_16 + MFU_16_ROUNDING) -> float:
    """The most that 256 GPUs expose, by T09, T12 and a bound on 16."""
    return 1.0 - MFU_256 / mfu_16 * (1.0 - e_16)


def subsets() -> list[Subset]:
    """Each statement given up in turn, with what the others then ask of it, at the kindest rounding of T12."""
    top = MFU_16 + MFU_16_ROUNDING
    needed_16 = MFU_256 * (1.0 - SMALL) / (1.0 - GAP)
    needed_256 = top * (1.0 - GAP) / (1.0 - SMALL)
    faster = needed_16 / top
    exposed, gap = least_exposed_16(), most_exposed_256()
    return [
        Subset(
            without="T17 and T29",
            keeps="T09, T10, T12, T24",
            needs=f"16 GPUs expose at least {exposed:.1%} of a step",
            states=f"minimal overhead, taken as less than {SMALL:.0%}",
            apart=f"{100 * (exposed - SMALL):+.1f} points",
        ),
        Subset(
            without="T12",
            keeps="T09, T10, T17, T24, T29",
            needs=f"MFU on 16 GPUs of at least {needed_16:.1%}",
            states=f"{MFU_16:.0%}",
            apart=f"{100 * (needed_16 - MFU_16):+.1f} points",
        ),
        Subset(
            without="T09",
            keeps="T10, T12, T17, T24, T29",
            needs=f"MFU on 256 H100s of at most {needed_256:.1%}",
            states=f"{MFU_256:.2%}",
            apart=f"{100 * (needed_256 - MFU_256):+.1f} points",
        ),
        Subset(
            without="T10",
            keeps="T09, T12, T17, T24, T29",
            needs=f"H100s expose at most {gap:.1%} of a step at 256, and at most that much more than A100s",
            states=f"{100 * GAP:+.2f} points",
            apart=f"{100 * (gap - GAP):+.1f} points",
        ),
        Subset(
            without="T24",
            keeps="T09, T10, T12, T17, T29",
            needs=f"the best plan on 256 GPUs computes at least {faster - 1:.1%} faster than FSDP on 16",
            states="constant compute time",
            apart=f"{100 * (faster - 1):+.1f}%",
        ),
        Subset(
            without="T10 in points",
            keeps="all, T10 as a relative change",
            needs=f"H100s expose {1 + GAP:.4g} times the A100s' share, and at most {gap:.1%}",
            states=f"{100 * GAP:+.2f}%, without a unit",
            apart="none",
        ),
    ]
