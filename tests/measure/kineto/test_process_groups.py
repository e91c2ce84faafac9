"""Ranks, groups and steps of a job: what the traces do not tell is not made up, and strangers are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from knee.measure.traces import Analysis, analyse
from knee.measure.traces.kernel_classes import classes_of
from knee.measure.traces.plain_data import record
from knee.specs.notes import code_of
from refusals import caught, kind, numbers
from trace_made import document, event, launch, step, write


def call(
    start: int,
    length: int,
    collective: str = "allreduce",
    *,
    stream: int = 20,
    ranks: str | None = "[0, 1]",
    name: str | None = "0",
    size: int = 2,
    elements: int = 1000,
    **args: Any,
) -> dict[str, Any]:
    kernel = "ncclDevKernel_SendRecv" if collective.startswith(("send", "all_to_all")) else "ncclDevKernel_Generic"
    told = {
        "Process Group Name": name,
        "Process Group Description": "default_pg" if name else None,
        "Process Group Ranks": ranks,
    }
    return event(
        start,
        length,
        name=kernel,
        stream=stream,
        **{
            "Collective name": collective,
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "dtype": "BFloat16",
            "Group size": size,
            **{key: value for key, value in told.items() if value is not None},
            **args,
        },
    )


def trace(
    path: Path, rank: int, world: int, *events: dict[str, Any], device: str = "H100", ranks: list[int] | None = None
) -> Path:
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": ranks}] if ranks is not None else []
    return write(
        path,
        document(
            [event(0, 100), *events],
            deviceProperties=[{"name": device}],
            distributedInfo={"rank": rank, "world_size": world, "pg_config": groups},
        ),
    )


def job(folder: Path, *of_ranks: list[dict[str, Any]], world: int | None = None) -> Analysis:
    return analyse(
        [trace(folder / f"rank{i}.json", i, world or len(of_ranks), *events) for i, events in enumerate(of_ranks)],
        cache=False,
    )


def test_ranks_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    one = trace(tmp_path / "a.json", 0, 2, ranks=[0, 1])
    assert len(analyse([one, trace(tmp_path / "b.json", 1, 2, ranks=[0, 1])], cache=False).ranks) == 2
    for field, other in (
        ("device", trace(tmp_path / "c.json", 1, 2, device="A100")),
        ("ranks", trace(tmp_path / "d.json", 1, 2, ranks=[1, 3])),
        ("world_size", trace(tmp_path / "e.json", 1, 4)),
        ("rank", trace(tmp_path / "f.json", 0, 2)),
    ):
        error = caught(lambda other=other: analyse([one, other], cache=False))
        assert kind(error) == ("several-jobs", field)
        assert str(one) in error.message
        assert str(other) in error.message


def test_steps_on_one_rank_alone_need_a_time_in_common(tmp_path: Path) -> None:
    with_steps = [step(0, 0, 1000)]
    assert len(job(tmp_path, with_steps, [event(500, 10)]).ranks) == 2
    later = document([event(10**12, 10)], distributedInfo={"rank": 1, "world_size": 2})
    paths = [tmp_path / "rank0.json", write(tmp_path / "late.json", later)]
    assert kind(caught(lambda: analyse(paths, cache=False))) == ("several-jobs", "time")


def test_groups_without_ranks_are_not_made_up(tmp_path: Path) -> None:
    """Two groups of two ranks each, as torch 2.2 writes them: nothing says who is with whom."""
    found = job(tmp_path, *([call(200, 10 * (i + 1), name=None, ranks=None)] for i in range(4)))
    assert [rank.matched for rank in found.across.ranks] == [0] * 4
    assert found.across.missing == ()
    assert code_of(found.across.notes[0]) == "ranks-not-told"
    assert numbers(found.across.notes[0]) == [4]
    (load,) = found.ranks[0].collectives
    assert (load.group, load.group_size, load.bus_bytes_per_s is not None) == ("unknown (size 2)", 2, True)
    named = job(tmp_path, [call(200, 10, name="3", ranks=None)], world=8)
    assert named.across.missing == ()
    # a group as large as the job has all of its ranks
    whole = job(tmp_path, *([call(200, 10 * (i + 1), name=None, ranks=None)] for i in range(2)))
    assert [rank.matched for rank in whole.across.ranks] == [1, 1]
    assert whole.ranks[0].collectives[0].group == "world"


def test_sizes_of_an_all_to_all_differ_by_rank(tmp_path: Path) -> None:
    found = job(tmp_path, *([call(200, 100 + 50 * i, "all_to_allv", elements=1000 + i)] for i in range(2)))
    assert [(rank.matched, round(rank.waiting_s * 1e9)) for rank in found.across.ranks] == [(1, 0), (1, 50)]
    assert [(rank.last_arrivals, round(rank.waited_for_s * 1e9)) for rank in found.across.ranks] == [(1, 50), (0, 0)]


def test_calls_of_one_number_are_told_apart_by_order(tmp_path: Path) -> None:
    found = job(
        tmp_path,
        *(
            [call(200 * k, 100 + 50 * i, "allgather_into_tensor_coalesced", Seq=7) for k in range(1, 4)]
            for i in range(2)
        ),
    )
    assert [(rank.matched, round(rank.waiting_s * 1e9)) for rank in found.across.ranks] == [(3, 0), (3, 150)]


def test_a_bubble_is_a_union(tmp_path: Path) -> None:
    """Three transfers wait at the same time, on streams of their own."""
    sends = [
        call(at, length, "send", stream=stream)
        for at, length, stream in ((100, 10, 20), (200, 500, 20), (200, 500, 21), (200, 500, 22))
    ]
    found = job(tmp_path, sends, world=2)
    times = found.ranks[0].times
    assert (round(times.exposed_comm_s * 1e9), round((times.bubble_s or 0) * 1e9)) == (510, 490)
    assert record(found)["exposed_comm_s"] == pytest.approx(20e-9)


def steps_from(first: int) -> list[dict[str, Any]]:
    """Steps up to 7; the gemm of step n lasts 10 n."""
    return [
        one
        for n in range(first, 8)
        for one in (step(n, 1000 * n, 1000), launch(1000 * n + 10, n), event(1000 * n + 20, 10 * n, correlation=n))
    ]


def test_steps_are_chosen_by_their_numbers(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"rank{i}.json", document(steps_from(5 + i))) for i in range(2)]
    found = analyse(paths, skip=1, steps=1, cache=False)
    assert [[part.step for part in rank.steps] for rank in found.ranks] == [[7], [7]]
    assert code_of(found.across.notes[-1]) == "steps-differ"
    assert numbers(found.across.notes[-1]) == [0, 5, 6, 7, 1, 6, 7]
    error = caught(lambda: analyse(paths, steps=3, cache=False))
    assert kind(error) == ("no-steps", "steps")
    assert numbers(error.message)[0] == 2  # that every rank has
    assert [rank.steps[0].step for rank in analyse(paths, cache=False).ranks] == [5, 6]


def test_overlaps_count_against_all_before(tmp_path: Path) -> None:
    """One long kernel, three short ones inside it, and another stream."""
    events = [event(0, 100, stream=3), *(event(20 * i, 10, stream=3) for i in range(1, 4)), event(50, 10, stream=4)]
    rank = analyse(write(tmp_path / "t.json", document(events)), cache=False).ranks[0]
    assert rank.audit.same_stream_overlaps == 3


def test_collectives_are_named(tmp_path: Path) -> None:
    names = ("reduce", "gather", "scatter", "barrier", "_reduce_oop", "reduce_scatter_tensor_coalesced")
    found = job(tmp_path, [call(100 * i, 10, name) for i, name in enumerate(names, 1)], world=2)
    assert {load.collective for load in found.ranks[0].collectives} == {
        "reduce",
        "gather",
        "scatter",
        "barrier",
        "reduce_scatter",
    }
    gathers = call(200, 10, "coalesced") | {"name": "ncclDevKernel_AllGather_RING_LL"}
    assert job(tmp_path, [gathers], world=2).ranks[0].collectives[0].collective == "all_gather"


def test_loud_kernels_that_sound_like_collectives_are_named(tmp_path: Path) -> None:
    events = [
        event(0, 100),
        event(200, 50, name="flux::cutlass_allgather_gemm", stream=30),
        event(300, 50, name="quickreduce::allreduce_prototype_twoshot", stream=31),
        event(400, 50, name="oneccl_allreduce", stream=7),
    ]
    trace, file = write(tmp_path / "t.json", document(events)), tmp_path / "classes.toml"
    both = analyse(trace, cache=False).ranks[0]
    assert [(load.collective, load.calls) for load in both.collectives] == [("all_reduce", 2)]  # on every stream
    file.write_text("[intel]\npattern = 'oneccl'\ncommunication = true\nstreams = 'side'\n")
    rank = analyse(trace, classes=classes_of(file=file), cache=False).ranks[0]
    assert [(load.collective, load.calls) for load in rank.collectives] == [("all_reduce", 1)]
    names = [name for name, _ in rank.audit.sounds_like_communication]
    assert names == ["flux::cutlass_allgather_gemm"]
    assert rank.audit.sounds_like_communication[0][1] == pytest.approx(0.2)
    assert (rank.audit.communication_as_compute, rank.audit.communication_classes) == (1, ("intel",))
    assert "--comm intel" in " ".join(rank.audit.sentences())


@pytest.mark.parametrize(("name", "rank"), [("worker2_rank5.json", 5), ("node-rank1_worker3.json", 3),
                                            ("noderank1_x.json", 0), ("rank-12.json", 12)])  # fmt: skip
def test_the_rank_in_a_files_name(tmp_path: Path, name: str, rank: int) -> None:
    assert analyse(write(tmp_path / name, document([event(0, 10)])), cache=False).ranks[0].rank == rank
