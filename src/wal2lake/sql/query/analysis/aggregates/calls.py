"""Translates a call of an aggregate or window function with the clauses around it.

Comes in: the outermost node, which is the call itself, or FILTER, OVER or WITHIN GROUP around the
call. Goes out: an operand. Called by ``expressions``, whose visitor translates the operands.

Source: PostgreSQL manual 4.2.7, 4.2.8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from sqlglot import exp

from wal2lake.errors import UsageError
from wal2lake.sql.query.analysis.aggregates import arrange, rules
from wal2lake.sql.query.analysis.scopes import Scope
from wal2lake.sql.query.values import casts
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.types import Operand

_ORDER_TYPE: Final = "wal2lake_order_type"
"""Key in the ``meta`` of an item of a window's ORDER BY: the OID of its type."""


class ExpressionVisitor(Protocol):
    """Translates the expressions inside a call."""

    def visit(self, node: exp.Expression, scope: Scope) -> Operand:
        """Translate one expression."""
        ...

    def at(self, parent: exp.Expression, key: str, scope: Scope) -> Operand:
        """Translate the expression in an argument, in place."""
        ...

    def all(self, parent: exp.Expression, key: str, scope: Scope) -> list[Operand]:
        """Translate the expressions of a list argument, in place."""
        ...

    def condition(
        self, parent: exp.Expression, key: str, scope: Scope, clause: str
    ) -> None:
        """Translate a boolean expression in place."""
        ...

    def arguments(self, node: exp.Expression, scope: Scope) -> dict[str, Any]:
        """Translate every argument."""
        ...


class AggregateCalls:
    """Translates the calls of one statement."""

    def __init__(self, expressions: ExpressionVisitor, zone: str) -> None:
        self._expressions = expressions
        self._zone = zone

    def window(self, node: exp.Expression, scope: Scope) -> None:
        """Translate a window's PARTITION BY, ORDER BY and frame."""
        for part in self._expressions.all(node, "partition_by", scope):
            casts.group_operand(part, "PARTITION BY")
        order = node.args.get("order")
        for ordered in order.expressions if order is not None else ():
            operand = self._expressions.visit(ordered.this, scope)
            ordered.set("this", casts.order_operand(operand, self._zone))
            ordered.meta[_ORDER_TYPE] = operand.type.oid
        spec = node.args.get("spec")
        if spec is not None:
            self._frame(spec, order)

    def _frame(self, spec: exp.WindowSpec, order: exp.Order | None) -> None:
        """Check a window's frame: ROWS is the same in Spark; RANGE needs integers for offsets."""
        kind = str(spec.args.get("kind")).upper()
        ends = [spec.args.get("start"), spec.args.get("end")]
        offsets = [e for e in ends if isinstance(e, exp.Expression)]
        if kind == "GROUPS" or spec.args.get("exclude") is not None:
            raise t.refuse("GROUPS and EXCLUDE in a window's frame")
        if any(not (isinstance(e, exp.Literal) and e.name.isdigit()) for e in offsets):
            raise t.refuse("a window's frame with an offset that is not a whole number")
        if kind == "RANGE" and offsets:
            kinds = [
                o.meta.get(_ORDER_TYPE) for o in (order.expressions if order else ())
            ]
            if order is None or len(kinds) != 1 or kinds[0] not in t.INTEGERS:
                raise t.refuse("RANGE with an offset, but for integers")
            # The sum of a value and the offset may be out of the type's range.
            item = order.expressions[0]
            item.set("this", t.cast(item.this, "DECIMAL(20,0)"))

    def call(self, node: exp.Expression, scope: Scope) -> Operand:
        """Translate an aggregate; FILTER and OVER are added to each part of the result."""
        window = node if isinstance(node, exp.Window) else None
        inner = node.this if window is not None else node
        where = inner.expression if isinstance(inner, exp.Filter) else None
        if isinstance(inner, exp.Filter):
            inner = inner.this
        group = inner if isinstance(inner, exp.WithinGroup) else None
        inner = rules.named(inner if group is None else group.this)
        if window is not None:
            self.window(window, scope)
        if where is not None:
            self._expressions.condition(where, "this", scope, "FILTER")

        def around(call: exp.Expression) -> exp.Expression:
            if where is not None and window is not None:
                call = _of_matching_rows(call, where.this)
            elif where is not None:
                call = exp.Filter(this=call, expression=where.copy())
            if window is not None:
                whole = window.copy()
                whole.set("this", call)
                call = whole
            return call

        if group is not None:
            return self._within_group(group, inner, around, scope)
        argument = inner.this
        if isinstance(argument, exp.Order):
            return self._ordered(inner, argument, around, scope)
        distinct = isinstance(argument, exp.Distinct)
        if distinct:
            if len(argument.expressions) != 1:
                raise t.refuse("DISTINCT of several arguments in an aggregate")
            inner.set("this", argument.expressions[0])
        if isinstance(inner.this, exp.Star):
            arguments: dict[str, Any] = {"this": inner.this}
        else:
            arguments = self._expressions.arguments(inner, scope)
        return rules.call(inner, arguments, distinct, around, self._zone)

    def _ordered(
        self,
        inner: exp.Expression,
        argument: exp.Order,
        around: Callable[[exp.Expression], exp.Expression],
        scope: Scope,
    ) -> Operand:
        """Translate an aggregate with ORDER BY."""
        values = argument.this
        keys = []
        for ordered in argument.expressions:
            written = ordered.this.copy()
            key = casts.order_operand(
                self._expressions.visit(ordered.this, scope), self._zone
            )
            if isinstance(values, exp.Distinct) and written not in values.expressions:
                raise UsageError(
                    "in an aggregate with DISTINCT, ORDER BY expressions must appear in"
                    " argument list",
                    sqlstate="42P10",
                )
            first = bool(ordered.args.get("nulls_first"))
            keys.append((key, bool(ordered.args.get("desc")), first))
        if isinstance(values, exp.Distinct):
            if len(values.expressions) != 1:
                raise t.refuse("DISTINCT of several arguments in an aggregate")
            value = self._expressions.visit(values.expressions[0], scope)
        else:
            value = self._expressions.visit(values, scope)
        if inner.args.get("separator") is not None:
            self._expressions.at(inner, "separator", scope)
        if isinstance(values, exp.Distinct) and isinstance(inner, exp.ArrayAgg):
            raise t.refuse("array_agg(DISTINCT ... ORDER BY)")
        return rules.ordered(inner, value, keys, around, self._zone)

    def _within_group(
        self,
        group: exp.WithinGroup,
        inner: exp.Expression,
        around: Callable[[exp.Expression], exp.Expression],
        scope: Scope,
    ) -> Operand:
        order = group.expression
        if not isinstance(order, exp.Order) or len(order.expressions) != 1:
            raise t.refuse("WITHIN GROUP of several values")
        if not isinstance(inner, (exp.PercentileCont, exp.PercentileDisc, exp.Mode)):
            raise t.refuse(f"{inner.sql_name().lower()}() WITHIN GROUP")
        arguments = []
        if isinstance(inner.this, exp.Expression):
            arguments = [self._expressions.visit(inner.this, scope)]
        ordered = order.expressions[0]
        value = self._expressions.visit(ordered.this, scope)
        down = bool(ordered.args.get("desc"))
        return arrange.within_group(inner, arguments, value, down, around, self._zone)


def _of_matching_rows(
    call: exp.Expression, condition: exp.Expression
) -> exp.Expression:
    """Let an aggregate with OVER see null where the FILTER does not match: Spark has no FILTER
    there, and these aggregates leave out nulls."""
    if not isinstance(call, (exp.Count, exp.Sum, exp.Min, exp.Max)):
        raise t.refuse("FILTER with OVER of this aggregate")
    counted = exp.Literal.number(1) if isinstance(call.this, exp.Star) else call.this
    matching = exp.If(this=condition.copy(), true=counted.copy())
    call.set("this", exp.Case(ifs=[matching]))
    return call
