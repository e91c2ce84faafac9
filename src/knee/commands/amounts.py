"""Amounts as people write them: ``15T`` tokens, ``8B`` parameters, ``2M`` dollars, or plain numbers."""

from __future__ import annotations

from contextlib import suppress

from knee.base.errors import InputError, argument
from knee.engine.energy import grid as grid_of
from knee.engine.training_cost import TrainingQuestion, checked_pue, parse_tokens

Amount = str | float


def count_of(name: str, given: Amount | None) -> float | None:
    """Tokens or parameters: ``15T``, ``300B``, ``1.4e12``."""
    if given is None:
        return None
    try:
        return parse_tokens(str(given))
    except InputError:
        text = f"{argument(name)} {given!r} is not a number from 1 to 1e18"
        raise InputError(text, hint="for example 8B, 350M, 1.5T or 1.4e12", code="not-an-amount", field=name) from None


def training_of(tokens: Amount | None, grid: str, pue: float | None) -> TrainingQuestion | None:
    """What is asked of a whole run; None where no tokens are given."""
    wanted, site, factor = count_of("tokens", tokens), grid_of(grid), checked_pue(pue)
    return None if wanted is None else TrainingQuestion(tokens=wanted, grid=site, pue=factor)


def amount_of(name: str, given: Amount | None) -> float | None:
    """Dollars or MWh: a number, or one with k, M, B or T behind it; whether it can be a limit is asked later."""
    if given is None:
        return None
    with suppress(ValueError):
        return float(given)
    try:
        return parse_tokens(str(given))
    except InputError:
        text = f"{argument(name)} {given!r} is not a number"
        hint = "for example 500k, 2M, 2e6 or 1,000,000; k, M, B and T stand for 1e3, 1e6, 1e9 and 1e12"
        raise InputError(text, hint=hint, code="not-an-amount", field=name) from None
