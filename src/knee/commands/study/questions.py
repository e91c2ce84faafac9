"""A study's grid as questions: one training step each, or the best of several plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from knee.base.errors import InputError, SpecError
from knee.base.limits import MOST_POINTS
from knee.commands.study.study_file import Pick, Study, StudyGrid
from knee.specs.make import global_batch_of

SPECS = ("model", "cluster", "profile")
Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of the simulator or of a real run. Equal questions have one answer, whichever study asks."""

    model: str
    cluster: str
    profile: str
    gpus: int
    global_batch: int
    seq_len: int
    plans: tuple[Options, ...]
    """One plan, or several of which one is picked."""
    sets: Options = ()
    tune: bool = False
    pick: Pick = "each"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPoint:
    """A question and where it stands in its study."""

    study: str
    series: str
    question: Question

    @property
    def name(self) -> str:
        """The point's name in messages."""
        q = self.question
        return f"{self.study}: {self.series}, {q.model} on {q.gpus:,} x {q.cluster}"


def check_count(studies: Iterable[Study], changes: Mapping[str, Any] | None = None, *, most: int | None = None) -> None:
    """Refuse grids with more plans than ``most`` in all, by the lengths of their lists."""
    most = MOST_POINTS if most is None else most
    studies = list(studies)
    count = sum(_count(grid, changes or {}) for study in studies for grid in study.grid)
    if count > most:
        names = ", ".join(f"study {study.name}" for study in studies if study.grid)
        hint = f"at most {most:,} can run at once; leave some out"
        raise InputError(f"{names}: {count:,} plans in all", hint=hint, code="too-many")


def _count(grid: StudyGrid, changes: Mapping[str, Any]) -> int:
    axes, plan = _axes(grid, changes)
    return prod(map(len, axes.values())) * (1 if grid.pick == "each" else prod(map(len, plan.values())))


def points_of(study: Study, changes: Mapping[str, Any] | None = None) -> list[StudyPoint]:
    """Every point of a study's grids; ``changes`` replace what the grids say (``model``, ``gpus``, ...)."""
    return list(dict.fromkeys(all_points(study, changes)))


def all_points(study: Study, changes: Mapping[str, Any] | None = None) -> Iterator[StudyPoint]:
    """The same, and what is asked twice twice."""
    check_count([study], changes)
    for grid in study.grid:
        yield from _points(study.name, grid, changes or {})


def _axes(grid: StudyGrid, changes: Mapping[str, Any]) -> tuple[dict[str, tuple[Any, ...]], dict[str, tuple[Any, ...]]]:
    """What is multiplied: the axes of its points, and those of the plans."""
    axes = {name: _many(changes.get(name, getattr(grid, name))) for name in (*SPECS, "gpus", "seq_len")}
    asked = [name for name in ("global_batch", "local_batch") if name in changes]
    batch = asked[0] if asked else "global_batch" if grid.local_batch is None else "local_batch"
    axes[batch] = _many(changes.get(batch, getattr(grid, batch)))
    axes |= {f"set {key}": _many(value) for key, value in grid.set.items()}
    plan = {name: _many(value) for name, value in grid.plan.items()}
    if grid.pick == "each":
        axes |= {f"plan {name}": values for name, values in plan.items()}
    return axes, plan


def _points(study: str, grid: StudyGrid, changes: Mapping[str, Any]) -> Iterator[StudyPoint]:
    axes, plan = _axes(grid, changes)
    alternatives = tuple(_options(dict(zip(plan, values, strict=True))) for values in product(*plan.values()))
    for values in product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        sets = {key.removeprefix("set "): value for key, value in chosen.items() if key.startswith("set ")}
        own = {key.removeprefix("plan "): value for key, value in chosen.items() if key.startswith("plan ")}
        question = Question(
            **{name: str(chosen[name]) for name in SPECS},
            gpus=int(chosen["gpus"]),
            global_batch=_global_batch(chosen, study),
            seq_len=int(chosen["seq_len"]),
            plans=(_options(own),) if grid.pick == "each" else alternatives,
            sets=tuple((key, str(value)) for key, value in sets.items()),
            tune=grid.tune,
            pick=grid.pick,
        )
        yield StudyPoint(study=study, series=_series(grid.series, chosen, sets, own, study), question=question)


def _options(plan: Mapping[str, Any]) -> Options:
    return tuple(sorted(plan.items()))


def _many(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _global_batch(chosen: Mapping[str, Any], study: str) -> int:
    batches = {name: chosen.get(name) for name in ("global_batch", "local_batch")}
    try:
        return global_batch_of(int(chosen["gpus"]), **batches)
    except SpecError as error:
        text = f"study {study}: {error.message}"
        raise InputError(text, hint=error.hint, code=error.code, field=error.field) from None


def _series(
    template: str, chosen: Mapping[str, Any], sets: Mapping[str, Any], own: Mapping[str, Any], study: str
) -> str:
    axes = {key: value for key, value in chosen.items() if " " not in key}
    axes |= {key.rpartition(".")[2]: value for key, value in sets.items()} | dict(own)
    try:
        return template.format(**axes)
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        raise InputError(
            f"study {study}: series {template!r} cannot be filled in: {error}",
            hint=f"{{name}} stands for an axis of its grid, which has {', '.join(axes)}",
            code="not-a-format",
            field="series",
        ) from None
