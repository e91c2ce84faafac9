"""Arguments that every question shares: which are needed, which exclude each other, and which a plan has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from knee.base.errors import InputError, argument
from knee.specs import Plan
from knee.specs.catalog import did_you_mean

SIZES = ("gpus", "global_batch", "local_batch", "seq_len")
BATCHES = ("local_batch", "global_batch")


def require(given: Mapping[str, Any], needed: Sequence[str], hint: str) -> None:
    """Refuse a question that lacks an argument. ``local_batch`` stands for exactly one of both batches."""
    batches = [name for name in BATCHES if given.get(name) is not None]
    missing = [name for name in needed if given.get(name) is None and not (name in BATCHES and batches)]
    if missing:
        either_batch = f"{argument('local_batch')} (or {argument('global_batch')})"
        words = [either_batch if name == "local_batch" else argument(name) for name in missing]
        raise InputError(f"missing: {', '.join(words)}", hint=hint, code="missing-argument", field=missing[0])
    if len(batches) == 2:
        raise both_given(
            *BATCHES, hint="give only one of them; the global batch is the local batch times the number of GPUs"
        )


def both_given(first: str, second: str, *, hint: str) -> InputError:
    """The error for two arguments of which one is enough."""
    return InputError(
        f"{argument(first)} and {argument(second)} are both given", hint=hint, code="contradiction", field=first
    )


def not_in_range(name: str, value: str, rule: str, *, hint: str | None = None) -> InputError:
    """The error of an argument whose value breaks a rule."""
    return InputError(f"{argument(name)} is {value}; {rule}", hint=hint, code="out-of-range", field=name)


def checked_plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments that are fields of a plan; others are refused with the nearest."""
    known = [field.name for field in fields(Plan)]
    for name in plan:
        if name not in known:
            # Python's overrides are the command line's --set
            close = "overrides" if name == "set" else did_you_mean(name, [*known, *SIZES, "profile", "cluster"])
            text = f"{name} is neither an argument of this function nor a field of a plan"
            hint = f"did you mean {close}?" if close else f"a plan has {', '.join(known)}"
            raise InputError(text, hint=hint, code="unknown-argument", field=name)
    return dict(plan)
