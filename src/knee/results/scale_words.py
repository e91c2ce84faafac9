"""What is said about a scaling curve: a sentence for those who decide, and the assumptions behind it."""

from __future__ import annotations

from knee.record.measurement import Measurement
from knee.results.scale_result import Scaling, ScalingCurve
from knee.search.knee import Knee
from knee.specs.notes import code_of
from knee.units import DAY_S

SHARED_NOTES = ("default-profile", "default-seq-len", "default-precision")
"""Defaults that are the same at every count."""


def sentence(one: ScalingCurve, answer: Scaling) -> str | None:
    """What a manager reads."""
    usable = dict(one.curve.usable)
    knee = one.knees.get("throughput")
    if knee is None:
        return None
    if len(usable) == 1:
        return f"Only {knee.gpus:,} GPUs are usable. A knee needs at least two GPU counts."
    last = max(usable)
    least = f"{answer.threshold:g}x"
    returns = one.curve.returns()
    if knee.open:
        latest = f"{returns[-1].per_doubling:.2f}x"
        beyond = f"Up to {last:,} GPUs, every doubling gives at least {least} the tokens/s (the last one {latest})"
        if knee.weak:
            beyond = f"The last doubling, to {last:,} GPUs, gives {latest} the tokens/s, although {weak_words(knee)}"
        return f"{beyond}; {against(one, min(usable), last, usable)}."
    beyond = f"Beyond {knee.gpus:,} GPUs, each doubling gives less than {least} the tokens/s"
    return f"{beyond}; {against(one, knee.gpus, last, usable)}."


def against(one: ScalingCurve, few: int, many: int, usable: dict[int, Measurement]) -> str:
    """The larger run beside the smaller one."""
    a, b = usable[few], usable[many]
    energy = ""
    if a.tokens_per_j is not None and b.tokens_per_j is not None:
        change = a.tokens_per_j / b.tokens_per_j - 1.0
        more = f"{abs(change):.0%} {'more' if change >= 0 else 'less'} energy"
        energy = f" and takes {f'{change + 1.0:.3g} times the energy' if change >= 1 else more}"
    if few in one.bills and many in one.bills:
        sooner = (one.bills[few].time_s - one.bills[many].time_s) / DAY_S
        when = f"{abs(sooner):,.1f} days {'sooner' if sooner >= 0 else 'later'}"
        return f"the {many:,}-GPU run finishes {when} than the {few:,}-GPU run{energy}"
    times = b.tokens_per_s / a.tokens_per_s
    energy += " per token" if energy else ""
    faster = f"{times:.3g}x as fast as the {few:,}-GPU run with {many / few:.3g}x the GPUs"
    return f"the {many:,}-GPU run is {faster}{energy}"


def assumptions(answer: Scaling) -> list[str]:
    """Each sentence once."""
    lines: list[str] = []
    for one in answer.curves:
        notes = one.request.assumptions if one.request else ()
        lines += [note for note in notes if code_of(note) in SHARED_NOTES]
        lines += [note for point in one.curve.points if point.measured for note in point.measured.assumptions]
        cut = [point for point in one.curve.points if point.cut]
        lines += ["micro_batch defaulted to all sequences of a rank, or to the most that fit"] if cut else []
    if answer.tokens is not None:
        lines += [
            "energy and CO2e cover the GPUs and the site's overhead (PUE), but not hosts, switches and storage "
            "(`knee simulate --tokens` includes hosts and switches)",
            f"grid {answer.grid.name} ({answer.grid.kind}): {answer.grid.source}",
        ]
    lines.append("the ranges of the knees cover the error of throughput, not the error of power")
    return list(dict.fromkeys(lines))


def weak_words(knee: Knee) -> str:
    """Steps below the knee that did not pay."""
    return listed(
        [f"{r.from_gpus:,} to {r.to_gpus:,} gives only {r.per_doubling:.2f}x per doubling" for r in knee.weak]
    )


def listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
