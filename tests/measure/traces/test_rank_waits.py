"""Calls that several ranks have in common: transfer and waiting, counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from knee.measure.traces import Analysis, analyse
from knee.specs.notes import code_of
from small_traces import ADD, GATHER, GEMM, REDUCE, write

NS = 1e-9


def ranks(folder: Path, *gathers: int, reduces: tuple[int, ...] = (), steps: tuple[int, ...] = ()) -> Analysis:
    """A rank for each gather of so many nanoseconds, with a reduction behind it where one is given."""
    paths = []
    for rank, lasts in enumerate(gathers):
        kernels = [(GEMM, 7, 10_000, 5_000), (GATHER, 20, 20_000, lasts), (ADD, 7, 900_000, 1_000)]
        kernels += [(REDUCE, 20, 500_000, reduces[rank])] if rank < len(reduces) else []
        marks = [(i, i * 1_000_000, 999_000) for i in range(steps[rank])] if steps else []
        kernels += [(GEMM, 7, start + 950_000, 1_000) for _, start, _ in marks]
        path = folder / f"rank{rank}.json"
        paths.append(write(path, kernels, rank=rank, group_size=len(gathers), steps=marks))
    return analyse(paths, cache=False)


def test_the_shortest_call_is_the_transfer_and_the_rest_is_waiting(tmp_path: Path) -> None:
    """Rank 1 is last in the gather, for which the others wait 200 and 100 us; rank 2 in the reduction."""
    found = ranks(tmp_path, 300_000, 100_000, 200_000, reduces=(50_000, 90_000, 10_000)).across
    assert [rank.rank for rank in found.ranks] == [0, 1, 2]
    assert [(rank.matched, rank.unmatched, rank.unnamed) for rank in found.ranks] == [(2, 0, 0)] * 3
    assert [rank.transfer_s for rank in found.ranks] == pytest.approx([110_000 * NS] * 3)
    assert [rank.waiting_s for rank in found.ranks] == pytest.approx([240_000 * NS, 80_000 * NS, 100_000 * NS])
    assert [rank.waited_for_s for rank in found.ranks] == pytest.approx([0.0, 150_000 * NS, 60_000 * NS])
    assert [rank.last_arrivals for rank in found.ranks] == [0, 1, 1]
    assert found.straggler is not None
    assert found.straggler.rank == 1
    assert (found.missing, found.notes) == ((), ())


def test_nobody_waits_where_all_calls_last_equally_long(tmp_path: Path) -> None:
    found = ranks(tmp_path, 100_000, 100_000).across
    assert found.straggler is None
    assert [(rank.matched, rank.last_arrivals, rank.waiting_s) for rank in found.ranks] == [(1, 0, 0.0)] * 2


def test_a_call_of_one_rank_is_no_waiting(tmp_path: Path) -> None:
    found = ranks(tmp_path, 300_000, 100_000, reduces=(50_000,)).across
    assert [(rank.matched, rank.unmatched) for rank in found.ranks] == [(1, 1), (1, 0)]
    assert [rank.transfer_s for rank in found.ranks] == pytest.approx([100_000 * NS] * 2)
    assert list(map(code_of, found.notes)) == ["calls-of-one-rank"]
    assert str(found.notes[0]).startswith("1 collective call")


def test_ranks_without_a_trace_are_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "rank1.json", [(GATHER, 20, 10_000, 1_000)], rank=1, group_size=4)
    found = analyse(path, cache=False).across
    assert found.missing == (0, 2, 3)
    assert [(rank.matched, rank.unmatched, rank.transfer_s) for rank in found.ranks] == [(0, 1, 0.0)]
    assert found.notes == ()


def test_different_steps_are_named_all_or_the_first_three_and_the_last(tmp_path: Path) -> None:
    found = ranks(tmp_path, 1_000, 1_000, steps=(6, 7)).across
    (note,) = (note for note in found.notes if code_of(note) == "steps-differ")
    named = "(rank 0 has 0, 1, 2, 3, 4, 5, rank 1 has 0, 1, 2, ..., 6)"
    assert str(note).startswith(f"ranks have different steps {named}; ")
