"""``--only "tp <= 8 and sharding == 'fsdp'"``: a condition on plans, evaluated on columns.

Only names of columns, numbers, words, comparisons, arithmetic and and/or/not are read; nothing is run.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from knee.base.arrays import Bools
from knee.base.errors import InputError
from knee.specs.plan import KNOBS
from knee.specs.plan_table import SIZES, PlanTable

WORDS = {name: knob.choices for name, knob in KNOBS.items() if knob.choices and not (knob.optional or knob.many)}
"""Column -> its words."""
NUMBERS = (*SIZES, *(name for name, knob in KNOBS.items() if not (knob.choices or knob.optional)), "dp", "microbatches")
BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
HINT = f'for example "pp == 1 and tp <= 8"; the columns are {", ".join((*NUMBERS, *WORDS))}'


def matching(table: PlanTable, condition: str) -> Bools:
    """Whether each plan meets the condition."""
    try:
        tree = ast.parse(condition.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _refused(condition, " is not a condition") from None
    try:
        with np.errstate(all="raise"):
            found = np.asarray(_value(tree.body, table, condition))
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise _refused(condition, " cannot be evaluated") from None
    if found.dtype != np.bool_:
        raise _refused(condition, " is a number, not a condition")
    return np.broadcast_to(found, len(table))


def _value(node: ast.expr, table: PlanTable, condition: str) -> Any:
    def of(inner: ast.expr) -> Any:
        return _value(inner, table, condition)

    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return np.logical_and.reduce([np.broadcast_to(_truth(of(v), condition), len(table)) for v in values])
        case ast.BoolOp(op=ast.Or(), values=values):
            return np.logical_or.reduce([np.broadcast_to(_truth(of(v), condition), len(table)) for v in values])
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return np.logical_not(_truth(of(inner), condition))
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -of(inner)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return BINARY[type(op)](_number(of(left), condition), _number(of(right), condition))
        case ast.Compare(left=left, ops=ops, comparators=others):
            found, before = np.ones(len(table), dtype=np.bool_), left
            for how, after in zip(ops, others, strict=True):
                if type(how) not in BINARY:
                    raise _unread(how, condition)
                found &= _compared(BINARY[type(how)], before, after, of, condition)
                before = after
            return found
        case ast.Name(id=name) if name in NUMBERS:
            return getattr(table, name)
        case ast.Name(id=name) if name in WORDS:
            return np.array(WORDS[name])[getattr(table, name)]
        case ast.Name(id=name):
            raise _refused(condition, f": plans have no {name!r}", "unknown-field")
        case ast.Constant(value=int() | float() | str() | bool() as value):
            return value
    raise _unread(node, condition)


def _compared(
    how: Callable[[Any, Any], Any], before: ast.expr, after: ast.expr, of: Callable[[ast.expr], Any], condition: str
) -> Any:
    a, b = of(before), of(after)
    words = [isinstance(x, str) or (isinstance(x, np.ndarray) and x.dtype.kind == "U") for x in (a, b)]
    if words[0] != words[1] or (words[0] and how not in (operator.eq, operator.ne)):
        raise _refused(condition, " compares a word with a number, or orders words by size")
    for one, other in ((before, b), (after, a)):
        if isinstance(one, ast.Name) and one.id in WORDS and isinstance(other, str) and other not in WORDS[one.id]:
            text = f"--only {condition!r}: {one.id} has no value {other!r}"
            hint = f"{one.id} is one of {', '.join(WORDS[one.id])}"
            raise InputError(text, hint=hint, code="unknown-choice", field="only")
    return how(a, b)


def _truth(value: Any, condition: str) -> Any:
    if np.asarray(value).dtype != np.bool_:
        raise _refused(condition, " has a number instead of a condition")
    return value


def _number(value: Any, condition: str) -> Any:
    if np.asarray(value).dtype.kind not in "biuf":
        raise _refused(condition, " does arithmetic with a word")
    return value


def _unread(node: ast.AST, condition: str) -> InputError:
    return _refused(condition, f": {type(node).__name__} is not supported")


def _refused(condition: str, why: str, code: str = "not-a-condition") -> InputError:
    return InputError(f"--only {condition!r}{why}", hint=HINT, code=code, field="only")
