"""Translates comparisons of rows, ``(a, b) = (1, 2)``, to comparisons of their fields.

Comes in: the fields of two row constructors. Goes out: one condition. Called by
``expressions``.

Source: PostgreSQL manual 9.25.5 (Row Constructor Comparison); make_row_comparison_op.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from wal2lake.errors import UsageError
from wal2lake.sql.query.values import casts
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.types import Operand

_OPERATORS: Final[dict[str, type[exp.Binary]]] = {
    "=": exp.EQ,
    "<>": exp.NEQ,
    "<": exp.LT,
    "<=": exp.LTE,
    ">": exp.GT,
    ">=": exp.GTE,
    "IS NOT DISTINCT FROM": exp.NullSafeEQ,
}


def is_row(node: exp.Expression) -> bool:
    """Whether a node is a row constructor."""
    return isinstance(node, exp.Tuple) or (
        isinstance(node, exp.Anonymous) and node.name.lower() == "row"
    )


def compared(
    name: str, left: Sequence[Operand], right: Sequence[Operand], zone: str
) -> exp.Expression:
    """The condition ``left name right`` of two rows."""
    if len(left) != len(right):
        raise UsageError(
            "unequal number of entries in row expressions", sqlstate="42601"
        )
    if not left:
        raise t.refuse("a comparison of empty rows")
    pairs = list(zip(left, right, strict=True))
    if name in ("=", "IS NOT DISTINCT FROM"):
        return _connected(
            exp.and_, [_field_comparison(name, a, b, zone) for a, b in pairs]
        )
    if name == "<>":
        return _connected(
            exp.or_, [_field_comparison(name, a, b, zone) for a, b in pairs]
        )
    if name == "IS DISTINCT FROM":
        equalities = [
            _field_comparison("IS NOT DISTINCT FROM", a, b, zone) for a, b in pairs
        ]
        return exp.Not(this=exp.Paren(this=_connected(exp.and_, equalities)))
    # The first pair of different fields decides.
    strict_operator = name.rstrip("=")
    condition = _field_comparison(name, *pairs[-1], zone)
    for a, b in reversed(pairs[:-1]):
        equal_and_later = exp.and_(
            _field_comparison("=", a, b, zone), condition, copy=False
        )
        condition = exp.or_(
            _field_comparison(strict_operator, a, b, zone), equal_and_later, copy=False
        )
    return exp.Paren(this=condition)


def _connected(connect: object, tests: list[exp.Expression]) -> exp.Expression:
    assert callable(connect)
    return exp.Paren(this=connect(*tests, copy=False))


def _field_comparison(
    name: str, left: Operand, right: Operand, zone: str
) -> exp.Expression:
    a, b = casts.comparable(left, name, right, zone)
    return _OPERATORS[name](this=a.copy(), expression=b.copy())
