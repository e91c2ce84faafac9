"""A plan in words."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from knee.specs.plan import KNOBS, Plan

ORDER = tuple(dict.fromkeys(("sharding", "dp_replicate", *KNOBS)))


def plan_words(plan: Plan, *, also: Collection[str] = (), without: Collection[str] = ()) -> str:
    """Describe a plan in one line: ``hsdp, dp_replicate 8, dp_shard 8, micro-batch 2``.

    Fields at their default are left out, except those in ``also``; fields in ``without`` are always left out.
    """
    words: list[str] = []
    for name in ORDER:
        knob, value = KNOBS[name], getattr(plan, name)
        means_something = knob.needs is None or getattr(plan, knob.needs) > 1
        if name in without or not (name in also or (means_something and (knob.always or value != knob.default))):
            continue
        text = knob.describe(value)
        if text.startswith(" "):
            words[-1] += text
        else:
            words.append(text)
    return ", ".join(words)


def simulated_only(plan: Plan) -> Iterator[tuple[str, str]]:
    """Name and words of the fields of this plan that neither knee's trainer nor an export has."""
    for name, knob in KNOBS.items():
        if knob.simulated_only and getattr(plan, name) != knob.default:
            yield name, knob.describe(getattr(plan, name))
