"""A plan in words."""

from __future__ import annotations

from collections.abc import Collection

from knee.base.errors import argument
from knee.specs.knobs import Knob
from knee.specs.legality import PlanRule
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


def only_simulated(text: str, hint: str, *, code: str = "contradiction") -> tuple[PlanRule, ...]:
    """Rules for a trainer or an export: one for each field of a plan that only the simulator has.

    ``{words}`` in the text is the value in words; ``{argument}`` in the hint is the field as the reader writes it, and
    ``{option}`` as the command line does.
    """
    return tuple(_only_simulated(knob, text, hint, code) for knob in KNOBS.values() if knob.simulated_only)


def _only_simulated(knob: Knob, text: str, hint: str, code: str) -> PlanRule:
    return PlanRule(
        f"plan.{knob.name}",
        lambda job: getattr(job.plan, knob.name) != knob.default,
        lambda job: text.format(words=knob.describe(getattr(job.plan, knob.name))),
        lambda _: hint.format(argument=argument(knob.name), option=f"--{knob.name.replace('_', '-')}"),
        code,
    )
