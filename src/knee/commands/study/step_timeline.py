"""A simulated step to look into: its kernels in lanes, those too short to see joined with their neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from knee.base.units import show
from knee.commands.study.quantities import Where
from knee.commands.study.questions import StudyPoint, job_of, points_of
from knee.commands.study.run_study import Ran
from knee.engine.events import COLLECTIVES, Events, outside
from knee.engine.one_job import events_of
from knee.show.figures.labels import format_bytes, label
from knee.show.page.lanes import Lanes, LaneSpan, LaneStyle

TICK_NS = 100
FINEST = 2_000
"""A kernel shorter than this part of the step is drawn with its neighbour."""
MOST_SPANS = 1_000
"""Of one drawing; beyond, what counts as short grows until there are no more."""
MOST_STAGES = 4
"""Pipeline stages that are drawn: the first and the last."""
NAMED = 4
"""Kernels of a joined span that are named."""
STYLES = (
    LaneStyle(name="window", inset=1),
    LaneStyle(name="compute", inset=2),
    LaneStyle(name="compute-2", inset=2),
    LaneStyle(name="comm", inset=2),
    LaneStyle(name="comm-2", inset=2),
    LaneStyle(name="span", inset=2),
)
COMPUTE, COMM, EXPOSED = (1, 2), (3, 4), (5, 5)
"""Looks of neighbours, in turn, so that one can tell them apart."""
ALONE = "communication without compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """One step of a study."""

    id: str
    title: str
    says: str
    """What is drawn, and what is joined."""
    lanes: Lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelInterval:
    """Some kernels one after another in a lane."""

    start_s: float
    end_s: float
    words: tuple[str, ...]


def step_timelines(ran: Ran) -> Iterator[StepTimeline]:
    """The steps that a study's file names, simulated again with every kernel kept."""
    for number, where in enumerate(ran.study.timeline, start=1):
        point = _point(ran, where)
        if point is None:  # a changed grid may not have it
            continue
        yield timeline_of(
            events_of(job_of(point.question)),
            id=f"{ran.study.name}-step-{number}",
            title=f"{point.series} on {label('gpus', point.question.gpus)}",
        )


def _point(ran: Ran, where: Where) -> StudyPoint | None:
    wanted = {key: value if isinstance(value, tuple) else (value,) for key, value in where.items()}
    for point in points_of(ran.study):
        q = point.question
        names = {"series": point.series, "model": q.model, "cluster": q.cluster, "gpus": q.gpus, "seq_len": q.seq_len}
        plan = dict(q.plans[0]) if len(q.plans) == 1 else {}
        if all((names | plan).get(key) in values for key, values in wanted.items()) and any(
            all(row.get(key) == value for key, value in names.items()) for row in ran.rows
        ):
            return point
    return None


def timeline_of(stages: Sequence[Events], *, id: str, title: str) -> StepTimeline:
    """The kernels of a step in lanes, at most so many."""
    numbers = list(range(len(stages)))
    if len(stages) > MOST_STAGES:
        numbers = [*numbers[: MOST_STAGES // 2], *numbers[-MOST_STAGES // 2 :]]
    drawn = [stages[number] for number in numbers]
    step_s = drawn[0].step_s
    short_s = step_s / FINEST
    while True:
        found = [_lanes(events, short_s) for events in drawn]
        if sum(len(lane) for stage in found for lane in stage.values()) <= MOST_SPANS:
            break
        short_s *= 1.5
    kernels = sum(map(len, drawn))
    of = "one GPU" if len(stages) == 1 else f"one GPU of each of {len(stages)} stages"
    if len(drawn) < len(stages):
        of += f"; the first and last {MOST_STAGES // 2} are drawn"
    says = (
        f"A simulated step of {show(step_s, 's')}: {kernels:,} kernels of {of}. Kernels shorter than "
        f"{show(short_s, 's')} are drawn as one with their neighbours."
    )
    names = [f"stage {number + 1}: " if len(stages) > 1 else "" for number in numbers]
    return StepTimeline(id=id, title=title, says=says, lanes=_drawing(found, names, step_s, f"{title}. {says}"))


def _drawing(
    stages: Sequence[dict[str, list[KernelInterval]]], names: Sequence[str], step_s: float, label: str
) -> Lanes:
    rows: list[str] = []
    spans: list[LaneSpan] = []
    words: dict[str, int] = {}
    ticks = 1e9 / TICK_NS
    for name, stage in zip(names, stages, strict=True):
        for lane, stretches in stage.items():
            if not stretches and lane != "exposed":
                continue
            row = len(rows)
            rows.append(f"{name}{lane}")
            spans.append(LaneSpan(row=row, start=0, length=round(step_s * ticks), style=0))
            looks = {"compute": COMPUTE, "exposed": EXPOSED}.get(lane, COMM)
            spans += [
                LaneSpan(
                    row=row,
                    start=round(s.start_s * ticks),
                    length=max(1, round((s.end_s - s.start_s) * ticks)),
                    style=looks[i % 2],
                    kind=words.setdefault(_named(s.words), len(words)),
                )
                for i, s in enumerate(stretches)
            ]
    exposed = [i for i, span in enumerate(spans) if span.style in EXPOSED]
    return Lanes(
        rows=tuple(rows),
        total=round(step_s * ticks),
        tick_ns=TICK_NS,
        styles=STYLES,
        spans=tuple(spans),
        words=tuple(words),
        order=tuple(sorted(exposed, key=lambda i: -spans[i].length)),
        verb="",
        row_height=20,
        label=label,
        hint="Point at a stretch to read what runs in it; Next longest stretch goes through exposed communication.",
    )


def _named(words: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(words))
    if distinct == [ALONE]:
        return ALONE if len(words) == 1 else f"{ALONE}, {len(words)} stretches as one"
    more = f" and {len(distinct) - NAMED} more kinds" if len(distinct) > NAMED else ""
    count = f"{len(words)} kernels: " if len(words) > 1 else ""
    return f"{count}{', '.join(distinct[:NAMED])}{more}"


def _lanes(events: Events, short_s: float) -> dict[str, list[KernelInterval]]:
    kinds = np.array([COLLECTIVES[i] if i >= 0 else "" for i in events.collective])
    sharded = np.array([i >= 0 and events.groups[i].name == "dp_shard" for i in events.group_id])
    gather, reduce = sharded & (kinds == "all_gather"), sharded & (kinds == "reduce_scatter")
    rows = {
        "compute": ~events.is_comm,
        "all-gather": gather,
        "reduce-scatter": reduce,
        "other communication": events.is_comm & ~gather & ~reduce,
    }
    found = {
        lane: joined([_kernel(events, int(i)) for i in np.flatnonzero(which)], short_s) for lane, which in rows.items()
    }
    comm, end_s = events.is_comm, events.end_s
    begins, ends = outside((events.start_s[comm], end_s[comm]), (events.start_s[~comm], end_s[~comm]))
    exposed = [
        KernelInterval(start_s=float(a), end_s=float(b), words=(ALONE,)) for a, b in zip(begins, ends, strict=True)
    ]
    return found | {"exposed": joined(exposed, short_s)}


def _kernel(events: Events, i: int) -> KernelInterval:
    name = events.names[int(events.name_id[i])].replace("_", " ")
    if events.is_comm[i] and events.group_id[i] >= 0:
        group = events.groups[int(events.group_id[i])]
        name = f"{name} of {group.size:,} ranks ({group.name}), {format_bytes(float(events.message_bytes[i]))}"
    return KernelInterval(start_s=float(events.start_s[i]), end_s=float(events.end_s[i]), words=(name,))


def joined(stretches: Sequence[KernelInterval], short_s: float) -> list[KernelInterval]:
    """Neighbours as one where either is short and so is the gap between them."""
    found: list[KernelInterval] = []
    for s in sorted(stretches, key=lambda s: s.start_s):
        last = found[-1] if found else None
        if (
            last is not None
            and s.start_s - last.end_s < short_s
            and (s.end_s - s.start_s < short_s or last.end_s - last.start_s < short_s)
        ):
            found[-1] = KernelInterval(
                start_s=last.start_s, end_s=max(last.end_s, s.end_s), words=(*last.words, *s.words)
            )
        else:
            found.append(s)
    return found
