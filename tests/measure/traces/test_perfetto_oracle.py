"""The paper's own method on the same traces: PerfettoSQL agrees to the nanosecond wherever it keeps all kernels.

Its importer drops events that overlap on their track; the audit counts those, so that it is known where it does.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from headless_perfetto import ask

from knee.measure.traces import analyse
from small_traces import job

TRACES = Path(__file__).parents[4] / "shared" / "traces"
DROPPED = "slice_drop_overlapping_complete_event"
RECORDED = ("hta_a100_2rank_rank0_nccl_args.json.gz", "tracelens_b200_8rank_rank0.json.gz")
"""One whose kernels follow each other on every stream, and one whose kernels overlap there."""
QUERY = f"""
with kernels as (
  select ts, ts + dur as ends, lower(name) glob '*nccl*' as comm from slice where category = 'kernel'
), reach as (
  select *, max(ends) over (
    partition by comm order by ts, ends rows between unbounded preceding and 1 preceding) as before from kernels
)
select comm, count(*), sum(ends - ts), sum(case when before is null or ts >= before then ends - ts
  when ends > before then ends - before else 0 end), (select sum(value) from stats where name = '{DROPPED}')
from reach group by comm order by comm
"""


@pytest.mark.slow
@pytest.mark.parametrize("overlapping", [False, True])
def test_perfetto_agrees_on_our_own(tmp_path: Path, overlapping: bool) -> None:
    check(job(tmp_path / "t.json", gather_stream=7 if overlapping else 20), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_perfetto_agrees_or_drops_what_the_audit_counts(name: str, tmp_path: Path) -> None:
    path = TRACES / name
    if not path.exists():
        pytest.skip("traces that others recorded are not here: put them into ../shared/traces")
    check(path, tmp_path)


def check(path: Path, folder: Path) -> None:
    rows = ask(path, QUERY, folder)
    (rank,) = analyse(path, cache=False).ranks
    comm, times = rank.trace.classified.is_comm, rank.times
    theirs = {int(row[0]): tuple(map(int, row[1:4])) for row in rows}
    ours = {
        0: (rank.audit.kernels - int(comm.sum()), round(times.compute_load_s * 1e9), round(times.compute_s * 1e9)),
        1: (int(comm.sum()), round(times.comm_load_s * 1e9), round(times.comm_s * 1e9)),
    }
    overlaps = rank.audit.same_stream_overlaps
    if not overlaps:
        assert theirs == ours
        return
    lost = ours[0][0] + ours[1][0] - theirs[0][0] - theirs[1][0]
    assert 0 < lost <= overlaps
    assert int(rows[0][4]) >= lost  # it also drops operators of the host
    assert theirs[0][2] + theirs[1][2] < ours[0][2] + ours[1][2]
