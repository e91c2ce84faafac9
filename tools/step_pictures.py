"""Pictures of simulated steps for the page on how a step is simulated: ``python tools/step_pictures.py [FOLDER]``.

Every bar is a kernel of ``knee.events_of``, which ``knee simulate --trace`` writes. Models are cut to a
few layers, so that single kernels can be seen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import knee
from knee.commands.study.step_timeline import outside
from knee.engine.events import COLLECTIVES, Events
from knee.show.figures.palette import INK, MUTED, PARTS

WIDTH, LEFT, ROW, GAP = 760, 130, 18, 6
SHORT_PX = 0.6
"""Kernels closer than this are drawn as one."""
LANES = {"all_gather": "all-gather", "reduce_scatter": "reduce-scatter"}


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One step, or the beginning of one."""

    title: str
    stages: Sequence[Events]
    from_s: float = 0.0
    to_s: float


Bar = tuple[float, float, str]
"""From, to, and the part of a step whose colour it has."""


def step(*, overrides: dict[str, str] | None = None, layers: int = 8, **options: Any) -> list[Events]:
    """The kernels of one GPU of each stage."""
    changes = {"model.layers": str(layers), **(overrides or {})}
    options = {"cluster": "dgx-h100", "profile": "paper", "local_batch": 2} | options
    return knee.events_of(knee.simulate("llama2-7b", overrides=changes, **options).job)


def lanes(events: Events, *, pipeline: bool) -> dict[str, list[Bar]]:
    """Compute, then communication by collective; its exposed parts are marked."""
    comm = events.is_comm
    compute = (events.start_s[~comm], events.end_s[~comm])
    found = {"compute": [(a, b, "compute") for a, b in zip(*compute, strict=True)]}
    if pipeline:
        waits = outside((np.array([0.0]), np.array([events.step_s])), (events.start_s, events.end_s))
        found["compute"] += [(a, b, "bubble") for a, b in zip(*waits, strict=True)]
        return found
    kinds = np.array([COLLECTIVES[i] if i >= 0 else "" for i in events.collective])
    for kind, lane in LANES.items():
        which = comm & (kinds == kind)
        spans = (events.start_s[which], events.end_s[which])
        found[lane] = [(a, b, "overlapped") for a, b in zip(*spans, strict=True)]
        found[lane] += [(a, b, "exposed") for a, b in zip(*outside(spans, compute), strict=True)]
    return {lane: bars for lane, bars in found.items() if bars}


def drawn(bars: Sequence[Bar], panel: Panel) -> Iterator[tuple[float, float, str]]:
    """Pixels; neighbours of one part that touch are one."""
    scale = (WIDTH - LEFT) / (panel.to_s - panel.from_s)
    for part in PARTS:
        last: list[float] | None = None
        for a, b, _ in sorted(bar for bar in bars if bar[2] == part):
            left = LEFT + max(0.0, a - panel.from_s) * scale
            right = LEFT + min(panel.to_s - panel.from_s, b - panel.from_s) * scale
            if right <= LEFT or left >= WIDTH or right - left < 0.05:
                continue
            if last is not None and left - last[1] < SHORT_PX and part != "overlapped":
                last[1] = max(last[1], right)
            else:
                if last is not None:
                    yield last[0], last[1], part
                last = [left, right]
        if last is not None:
            yield last[0], last[1], part


def picture(panels: Sequence[Panel], *, pipeline: bool = False) -> str:
    """All panels below each other, on one scale of time each."""
    body, y, used = [], 8, set()
    for panel in panels:
        y += 14
        whole = f"{panel.title}; the step takes {1e3 * panel.stages[0].step_s:.0f} ms"
        body.append(f'<text x="0" y="{y}" class="b">{whole}</text>')
        y += 8
        for number, events in enumerate(panel.stages):
            for lane, bars in lanes(events, pipeline=pipeline).items():
                label = f"stage {number}" if pipeline else lane
                body.append(f'<text x="0" y="{y + 13}">{label}</text>')
                for left, right, part in drawn(bars, panel):
                    used.add(part)
                    wide = f'{right - left:.1f}" height="{ROW - 3}'
                    body.append(f'<rect x="{left:.1f}" y="{y}" width="{wide}" class="{part}"/>')
                y += ROW
        ms = 1e3 * (panel.to_s - panel.from_s)
        body.append(f'<text x="{LEFT}" y="{y + 11}" class="m">{ms:.3g} ms from left to right</text>')
        y += ROW + GAP
    body += _legend([part for part in PARTS if part in used], y)
    rules = [f".{name}{{fill:{style.fill};stroke:{style.light};stroke-width:.5}}" for name, style in PARTS.items()]
    css = f"text{{font:12px sans-serif;fill:{INK.light}}}.b{{font-weight:bold}}.m{{fill:{MUTED.light}}}" + "".join(
        rules
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 24}" role="img"><style>{css}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(body)}</svg>\n'
    )


def _legend(parts: Sequence[str], y: int) -> Iterator[str]:
    words = {"overlapped": "overlapped communication", "exposed": "exposed communication"}
    x = LEFT
    for part in parts:
        yield f'<rect x="{x}" y="{y}" width="14" height="12" class="{part}"/>'
        yield f'<text x="{x + 19}" y="{y + 11}">{words.get(part, part)}</text>'
        x += 200 if part in words else 100


def _pipeline(**options: Any) -> list[Events]:
    """Eight microbatches on four stages; the host's work between steps is left out, because it is no bubble."""
    none = {"profile.step_overhead_s": "0 us"}
    return step(gpus=4, pp=4, local_batch=2, micro_batch=1, layers=16, overrides=none, **options)


def pictures() -> Iterator[tuple[str, str]]:
    """Name and text of each file."""
    few, many = step(gpus=128), step(gpus=2048)
    late = step(gpus=128, prefetch=0)
    to_s = 0.65 * late[0].step_s
    panels = (("without prefetch: a layer is gathered when it is needed", late), ("one layer is gathered ahead", few))
    yield "prefetch", picture([Panel(title=k, stages=v, to_s=to_s) for k, v in panels])
    both = [Panel(title=f"{n:,} GPUs", stages=s, to_s=many[0].step_s) for n, s in ((128, few), (2048, many))]
    yield "exposed", picture(both)
    pipes = {
        "1F1B": _pipeline(schedule="1f1b"),
        "interleaved, 2 chunks per stage": _pipeline(schedule="interleaved", virtual_stages=2),
        "zero bubble": _pipeline(schedule="zero_bubble"),
    }
    longest = max(events.step_s for stages in pipes.values() for events in stages)
    yield "bubbles", picture([Panel(title=k, stages=v, to_s=longest) for k, v in pipes.items()], pipeline=True)
    alone = step(
        gpus=256, profile="fused", overrides={"profile.compute_slowdown_frac": "0", "profile.comm_slowdown": "1"}
    )
    beside = step(gpus=256, profile="fused")
    panels = (
        ("kernels and collectives do not slow each other", alone),
        ("with contention, as it is simulated", beside),
    )
    yield "contention", picture([Panel(title=k, stages=v, to_s=beside[0].step_s) for k, v in panels])
    skewed = {text: step(gpus=256, overrides={"profile.skew_s": text}) for text in ("0 us", "4 ms")}
    longest = max(stages[0].step_s for stages in skewed.values())
    panels = tuple((f"spread of the ranks' arrival: {text}", stages) for text, stages in skewed.items())
    yield "skew", picture([Panel(title=k, stages=v, to_s=longest) for k, v in panels])


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/figures")
    for name, text in pictures():
        (folder / f"step-{name}.svg").write_text(text, encoding="utf-8")
        print(f"wrote {folder / f'step-{name}.svg'}: {len(text):,} bytes", file=sys.stderr)
