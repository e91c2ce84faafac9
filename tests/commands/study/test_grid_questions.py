"""Grids as questions: products, names of series, batches, picks."""

from __future__ import annotations

from typing import Any

import pytest

from knee.base.errors import InputError
from knee.commands.study.questions import StudyPoint, points_of
from knee.commands.study.study_file import Study, StudyGrid, load_study


def study(*grids: StudyGrid) -> Study:
    return Study(name="mine", title="t", kind="beyond", question="q", finding="f", grid=grids)


def grid(**given: Any) -> StudyGrid:
    base: dict[str, Any] = {"series": "s", "model": "llama-1b", "cluster": "dgx-h100", "profile": "eager", "gpus": 8}
    batch = {} if "global_batch" in given else {"local_batch": 1}
    return StudyGrid(**base | batch | given)


def points(changes: dict[str, Any] | None = None, **given: Any) -> list[StudyPoint]:
    return points_of(study(grid(**given)), changes)


def test_everything_that_is_a_list_is_an_axis() -> None:
    found = points(model=("llama-1b", "llama2-7b"), gpus=(8, 16), seq_len=(1024, 2048), plan={"tp": (1, 2), "pp": 1})
    assert len(found) == 16
    assert len({point.question for point in found}) == 16
    first = found[0].question
    assert (first.model, first.gpus, first.seq_len, first.plans) == ("llama-1b", 8, 1024, ((("pp", 1), ("tp", 1)),))


def test_batches() -> None:
    assert [p.question.global_batch for p in points(gpus=(8, 16), local_batch=2)] == [16, 32]
    assert [p.question.global_batch for p in points(gpus=(8, 16), local_batch=0.5)] == [4, 8]
    assert [p.question.global_batch for p in points(gpus=(8, 16), global_batch=32)] == [32, 32]
    assert [p.question.global_batch for p in points(gpus=8, global_batch=(8, 16))] == [8, 16]
    with pytest.raises(InputError, match="not a whole number of sequences"):
        points(gpus=8, local_batch=0.3)


@pytest.mark.parametrize(("template", "given", "names"), [
    ("FSDP", {}, ["FSDP"]),
    ("TP {tp}, PP {pp}", {"plan": {"tp": (1, 2), "pp": 4}}, ["TP 1, PP 4", "TP 2, PP 4"]),
    ("{model} on {gpus:,}", {"gpus": 2048}, ["llama-1b on 2,048"]),
    ("{nic_bytes_per_s}", {"set": {"fabric.nic_bytes_per_s": ("200 Gbit/s", "400 Gbit/s")}},
     ["200 Gbit/s", "400 Gbit/s"]),
    ("{local_batch} a GPU", {"local_batch": (0.5, 2)}, ["0.5 a GPU", "2 a GPU"]),
    ("{global_batch}", {"global_batch": 32}, ["32"]),
])  # fmt: skip
def test_series_are_named_by_their_axes(template: str, given: dict[str, Any], names: list[str]) -> None:
    assert [point.series for point in points(series=template, **given)] == names


@pytest.mark.parametrize("template", ["{tp}", "{0}", "{", "}", "{gpus.x}", "{gpus:zz}", "{gpus!q}", "{gpus[a]}"])
def test_a_name_that_cannot_be_filled_in(template: str) -> None:
    with pytest.raises(InputError, match="series") as caught:
        points(series=template)
    assert "model, cluster, profile, gpus, seq_len, local_batch" in str(caught.value.hint)


def test_a_pick_is_one_question_about_all_plans() -> None:
    found = points(gpus=(8, 16), plan={"tp": (1, 2), "pp": (1, 2)}, pick="fastest", tune=True)
    assert [point.question.gpus for point in found] == [8, 16]
    assert len(found[0].question.plans) == 4
    assert (found[0].question.pick, found[0].question.tune) == ("fastest", True)


def test_the_same_point_twice_is_one() -> None:
    same = grid(gpus=(8, 8))
    assert len(points_of(study(same, same))) == 1
    assert len(points_of(study(same, grid(series="other")))) == 2  # the same question in two series


def test_sets_are_kept_apart() -> None:
    found = points(set={"fabric.nic_bytes_per_s": ("200 Gbit/s", "400 Gbit/s")})
    assert [point.question.sets for point in found] == [
        (("fabric.nic_bytes_per_s", "200 Gbit/s"),),
        (("fabric.nic_bytes_per_s", "400 Gbit/s"),),
    ]


def test_changes_replace_what_the_grid_says() -> None:
    given: dict[str, Any] = {"gpus": (8, 16), "local_batch": 2, "plan": {"tp": (1, 2)}}
    found = points({"gpus": (4,), "model": ("llama-tiny",), "seq_len": (64,)}, **given)
    assert [(p.question.gpus, p.question.model, p.question.seq_len, p.question.global_batch) for p in found] == [
        (4, "llama-tiny", 64, 8)
    ] * 2
    assert {p.question.global_batch for p in points({"global_batch": (64,)}, **given)} == {64}
    assert {p.question.global_batch for p in points({"local_batch": (1,)}, **given)} == {8, 16}
    assert {p.question.global_batch for p in points({"local_batch": (1,)}, global_batch=64)} == {8}


def test_a_grid_that_would_never_end_is_refused() -> None:
    with pytest.raises(InputError, match="1,000,000 plans"):
        points(gpus=tuple(range(1, 1001)), seq_len=tuple(range(1, 1001)))
    with pytest.raises(InputError, match="plans"):
        points(gpus=tuple(range(1, 1001)), plan={"tp": tuple(range(1, 1001))}, pick="fastest")


def test_every_point_has_a_name_for_people() -> None:
    assert points()[0].name == "mine: s, llama-1b on 8 x dgx-h100"


@pytest.mark.parametrize(("name", "count"), [
    ("fig1", 9), ("fig2a", 0), ("fig3", 27), ("fig5", 6), ("fig6", 25), ("fig7", 50), ("fig8", 12), ("fig9", 4),
    ("fig10", 50), ("fig11", 6), ("fig12", 9), ("fig13", 25), ("fig14", 9), ("table1", 0),
])  # fmt: skip
def test_the_paper_s_grids(name: str, count: int) -> None:
    assert len(points_of(load_study(name))) == count
