"""What FSDP copies beside its collectives: parameters behind a gather, gradients in front of a reduction.

A mesh of one has no collectives, and FSDP2 copies all the same: every parameter when it would be gathered, every
gradient into the buffer that would be reduced, from there into one for the result, and that one into the states' type.
Source: torch.distributed.fsdp, _fsdp_param_group.py (wait_for_unshard) and _fsdp_collectives.py (foreach_reduce)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from knee.base.arrays import Floats
from knee.engine.workload.operations import MemoryBound
from knee.engine.workload.shapes import BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpCopies:
    """Of some weights, in one pass."""

    out: tuple[MemoryBound, ...]
    """Behind a gather."""
    back: tuple[MemoryBound, ...]
    """Before a reduction, with the cast to its type."""

    def moved_bytes(self) -> tuple[Floats, Floats]:
        """HBM traffic of both."""
        out, back = (np.sum([one.moved_bytes for one in some], axis=0) for some in (self.out, self.back))
        return out, back


def copies_of_group(gathered_bytes: Floats, elements: Floats, reduce_bytes: Floats) -> FsdpCopies:
    """In a group of several ranks."""
    out = MemoryBound(name="copy_out", moved_bytes=2.0 * gathered_bytes, kernels=1, rate="copy_out")
    back = MemoryBound(name="copy_in", moved_bytes=(BYTES + reduce_bytes) * elements, kernels=1, rate="copy_in")
    return FsdpCopies(out=(out,), back=(back,))


def copies_on_one_gpu(
    gathered_bytes: Floats, elements: Floats, in_fp8: Floats | float, reduce_bytes: Floats, state_bytes: Floats
) -> FsdpCopies:
    """On a mesh of one; ``in_fp8`` of the elements are gathered in fp8, and were cast once for all passes."""
    cast = np.where(state_bytes > BYTES, (state_bytes + BYTES) * (elements - in_fp8), 0.0)
    returned = np.where(reduce_bytes != state_bytes, (reduce_bytes + state_bytes) * elements, 0.0)
    return FsdpCopies(
        out=(
            MemoryBound(name="copy_out", moved_bytes=cast, kernels=0),
            MemoryBound(name="copy_out", moved_bytes=2.0 * gathered_bytes, kernels=1, rate="copy_alone"),
        ),
        back=(
            MemoryBound(name="copy_in", moved_bytes=(BYTES + reduce_bytes) * elements, kernels=1, rate="copy_in_alone"),
            MemoryBound(name="copy_in", moved_bytes=2.0 * reduce_bytes * elements, kernels=1, rate="copy_alone"),
            MemoryBound(name="copy_in", moved_bytes=returned, kernels=1),
        ),
    )
