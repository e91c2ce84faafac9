"""The kernel that fills most of a stretch, against every kernel tried."""

from __future__ import annotations

import numpy as np
import pytest

from knee.measure.traces.device_time import _fills_most


@pytest.mark.parametrize("seed", range(30))
def test_the_kernel_that_fills_most_of_a_stretch(seed: int) -> None:
    """Of equals the longer one."""
    draw = np.random.default_rng(seed)
    borders = np.sort(draw.choice(200, 2 * int(draw.integers(1, 12)), replace=False))
    begin, finish = borders[::2], borders[1::2]
    whole = np.array([[0, 200]]) if seed % 2 else np.stack((begin, finish), axis=1)  # some kernel fills each
    start = np.concatenate((whole[:, 0], draw.integers(0, 150, 10)))
    end = np.concatenate((whole[:, 1], start[len(whole) :] + draw.integers(1, 120, 10)))
    order = draw.permutation(len(start))
    start, end = start[order], end[order]
    inside = np.minimum(end[:, None], finish) - np.maximum(start[:, None], begin)
    found = _fills_most(start, end, begin, finish)
    for stretch, kernel in enumerate(found.tolist()):
        most = inside[:, stretch].max()
        assert inside[kernel, stretch] == most
        assert (end - start)[kernel] == (end - start)[inside[:, stretch] == most].max()
