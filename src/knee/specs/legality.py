"""Rules of legality: where a plan, a job or a program breaks one, and what is said then.

A rule is a row of a table. The table of a plan is in ``specs.plan``, that of the trainer in
``training.parallelism.trainer_job``, those of exports beside each export. Predicates that a search needs for many
plans at once take columns as well as numbers, and stand in ``specs.schedules`` and here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from knee.base.errors import SpecError, argument


class PlanRule(NamedTuple):
    """One rule. ``text`` and ``hint`` are format strings: ``{plan.pp}`` is an attribute of the case, ``{--pp}`` is the
    argument as the reader of the error writes it."""

    field: str | None
    breaks: Callable[[Any], Any]
    """Whether a case (a plan, a job) breaks the rule."""
    text: str | Callable[[Any], str]
    hint: str | Callable[[Any], str]
    code: str = "contradiction"

    def words(self, case: Any) -> tuple[str, str]:
        """The sentence and the hint for a case."""
        text, hint = (w(case) if callable(w) else w.format_map(_Names(case)) for w in (self.text, self.hint))
        return text, hint

    def error(self, case: Any) -> SpecError:
        """The refusal of a case."""
        text, hint = self.words(case)
        return SpecError(text, hint=hint, code=self.code, field=self.field)


class _Names(dict[str, Any]):
    def __init__(self, case: Any) -> None:
        super().__init__()
        self.case = case

    def __missing__(self, name: str) -> Any:
        if name.startswith("--"):
            return argument(name.removeprefix("--").replace("-", "_"))
        return getattr(self.case, name)


def first_broken(rules: Iterable[PlanRule], case: Any) -> PlanRule | None:
    """The first rule of a table that the case breaks."""
    return next((rule for rule in rules if rule.breaks(case)), None)


def check(rules: Iterable[PlanRule], case: Any) -> None:
    """Refuse a case that breaks one of the rules."""
    if (rule := first_broken(rules, case)) is not None:
        raise rule.error(case)


# Predicates of one plan (numbers) or of many (columns).


def interrupts_backward(splits_backward: Any, reduces: Any, pp: Any) -> Any:
    """Whether parameters or gradients would be exchanged between the two halves of a split backward."""
    return splits_backward & reduces & (pp > 1)


def expert_ranks(is_ddp: Any, dp_shard: Any, dp_replicate: Any, cp: Any, tp: Any) -> Any:
    """Ranks of a stage over which experts are laid: those of one replica, or all of them under DDP."""
    return (is_ddp * dp_replicate + (1 - is_ddp) * dp_shard) * cp * tp


def fills_ranks(ranks: Any, ep: Any, etp: Any) -> Any:
    """Whether experts fill the ranks of a stage evenly."""
    return ranks % (ep * etp) == 0
