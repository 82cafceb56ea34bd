"""Translates one expression, operands first.

Comes in: a node of the tree and the scope in which columns are looked up. Goes out: an
``Operand``. A node without a rule is refused, because Spark might compute another value.

Called by ``queries``; functions and operators have their rules in ``functions``.

Source: PostgreSQL manual, chapter 4.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlglot import exp

from wal2lake.errors import UsageError
from wal2lake.pgtypes.registry.pg_type import type_by_oid
from wal2lake.pgtypes.registry.type_names import parse_type_name
from wal2lake.sql.query.analysis import rowcomparisons as rows
from wal2lake.sql.query.analysis.aggregates.calls import AggregateCalls
from wal2lake.sql.query.analysis.aggregates.rules import is_aggregate
from wal2lake.sql.query.analysis.functions import arrays, rules
from wal2lake.sql.query.analysis.scopes import Columns, Scope
from wal2lake.sql.query.values import casts, intervals, literals, output
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.types import Operand, Type
from wal2lake.sql.query.values.undetermined import determine

PARAMETER_MARK: Final = "wal2lake_parameter_type"
"""Key in the ``meta`` of a bound parameter: the type OID that the client gave."""
PARAMETER_TEXT: Final = "wal2lake_parameter_text"
"""Key in the ``meta`` of a bound parameter: its text. None: NULL."""

_BOOL: Final = t.plain(t.BOOL)
_COMPARISONS: Final[dict[type[exp.Expression], str]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
    exp.NullSafeNEQ: "IS DISTINCT FROM",
}

Subquery = Callable[[exp.Expression, Scope], Columns | None]


class ExpressionAnalysis:
    """Translates the expressions of one statement."""

    def __init__(self, zone: str, query: Subquery) -> None:
        self._zone = zone
        self._query = query
        self.aggregates = AggregateCalls(self, zone)

    # ---- places in the tree ---------------------------------------------------------

    def at(self, parent: exp.Expression, key: str, scope: Scope) -> Operand:
        """Translate the expression in an argument of ``parent``, in place."""
        operand = self.visit(parent.args[key], scope)
        parent.set(key, operand.node)
        return operand

    def in_list(
        self, parent: exp.Expression, item: exp.Expression, scope: Scope
    ) -> Operand:
        """Translate one of ``parent.expressions``, in place."""
        place = next(i for i, e in enumerate(parent.expressions) if e is item)
        operand = self.visit(item, scope)
        items = list(parent.expressions)
        items[place] = operand.node
        parent.set("expressions", items)
        return operand

    def all(self, parent: exp.Expression, key: str, scope: Scope) -> list[Operand]:
        """Translate the expressions of a list argument, in place."""
        operands = [self.visit(item, scope) for item in parent.args.get(key) or ()]
        parent.set(key, [o.node for o in operands])
        return operands

    def condition(
        self, parent: exp.Expression, key: str, scope: Scope, clause: str
    ) -> None:
        """Translate a boolean expression in place; raises 42804 for another type."""
        operand = self._truth(self.visit(parent.args[key], scope), clause)
        parent.set(key, operand.node)

    def _truth(self, operand: Operand, clause: str) -> Operand:
        operand = casts.settled(operand, _BOOL, self._zone)
        if operand.type.known and operand.type.oid != t.BOOL:
            raise UsageError(
                f"argument of {clause} must be type boolean, not type"
                f" {operand.type.name}",
                sqlstate="42804",
            )
        return operand

    # ---- one node -------------------------------------------------------------------

    def visit(self, node: exp.Expression, scope: Scope) -> Operand:
        """Translate a node; the caller puts the result into the parent."""
        mark = node.meta.get(PARAMETER_MARK)
        if mark is not None:
            return self._parameter(node, int(mark))
        if type(node) in _COMPARISONS:
            return self._comparison(node, scope)
        for kind, rule in _RULES:
            if isinstance(node, kind):
                return rule(self, node, scope)
        if rows.is_row(node):
            return self._row(node, scope)
        if is_aggregate(node):
            return self.aggregates.call(node, scope)
        return rules.call(node, self.arguments(node, scope), self._zone)

    def arguments(self, node: exp.Expression, scope: Scope) -> dict[str, Any]:
        """Translate every argument: an operand, or a list of operands."""
        operands: dict[str, Any] = {}
        for key, value in list(node.args.items()):
            if isinstance(value, list):
                operands[key] = self.all(node, key, scope)
            elif isinstance(value, exp.Var) or not isinstance(value, exp.Expression):
                operands[key] = value
            else:
                operands[key] = self.at(node, key, scope)
        return operands

    def _parameter(self, node: exp.Expression, oid: int) -> Operand:
        kind, text = t.plain(oid), node.meta[PARAMETER_TEXT]
        value = exp.Null() if text is None else exp.Literal.string(text)
        return casts.convert(Operand(value, t.LITERAL), kind, self._zone)

    def _column(self, node: exp.Column, scope: Scope) -> Operand:
        return scope.column(node)

    def _literal(self, node: exp.Literal, scope: Scope) -> Operand:
        if node.is_string:
            return Operand(node, t.LITERAL)
        text = node.name
        if not text.isdigit():
            return literals.number(text)
        for oid, limit in ((t.INT4, 1 << 31), (t.INT8, 1 << 63)):
            if int(text) < limit:
                return Operand(node, t.plain(oid))
        return literals.number(text)

    def _bit_string(self, node: exp.Expression, scope: Scope) -> Operand:
        digits = node.name
        if isinstance(node, exp.HexString):
            digits = "".join(f"{int(digit, 16):04b}" for digit in digits)
        return Operand(exp.Literal.string(digits), t.plain(t.BIT))

    def _escape_string(self, node: exp.Expression, scope: Scope) -> Operand:
        literal = exp.Literal.string(node.name)
        literal.meta.update(node.meta)
        return Operand(literal, t.LITERAL)

    def _boolean(self, node: exp.Expression, scope: Scope) -> Operand:
        return Operand(node, _BOOL)

    def _null(self, node: exp.Expression, scope: Scope) -> Operand:
        return Operand(node, t.LITERAL)

    def _paren(self, node: exp.Paren, scope: Scope) -> Operand:
        operand = self.at(node, "this", scope)
        if operand.type.oid == t.UNKNOWN:
            return operand
        return Operand(node, operand.type)

    def _alias(self, node: exp.Alias, scope: Scope) -> Operand:
        return Operand(node, self.at(node, "this", scope).type)

    def _connector(self, node: exp.Expression, scope: Scope) -> Operand:
        word = node.key.upper()
        for key in ("this", "expression"):
            if node.args.get(key) is not None:
                operand = self._truth(self.visit(node.args[key], scope), word)
                node.set(key, operand.node)
        return Operand(node, _BOOL)

    def _comparison(self, node: exp.Expression, scope: Scope) -> Operand:
        name = _COMPARISONS[type(node)]
        right = node.expression
        if rows.is_row(node.this) and rows.is_row(right):
            return Operand(self._rows(name, node.this, right, scope), _BOOL)
        if isinstance(right, (exp.Any, exp.All)) or (
            isinstance(right, exp.Anonymous) and right.name.lower() in ("any", "all")
        ):
            return self._quantified(node, right, scope)
        left, right_operand = self.visit(node.this, scope), self.visit(right, scope)
        a, b = casts.comparable(left, name, right_operand, self._zone)
        node.set("this", a)
        node.set("expression", b)
        return Operand(node, _BOOL)

    def _rows(
        self, name: str, left: exp.Expression, right: exp.Expression, scope: Scope
    ) -> exp.Expression:
        sides = [
            [self.visit(item, scope) for item in side.expressions]
            for side in (left, right)
        ]
        return rows.compared(name, sides[0], sides[1], self._zone)

    def _row(self, node: exp.Expression, scope: Scope) -> Operand:
        operands = self.all(node, "expressions", scope)
        return output.row([casts.as_known(o, self._zone) for o in operands])

    def _quantified(
        self, node: exp.Expression, right: exp.Expression, scope: Scope
    ) -> Operand:
        """Translate ANY and ALL.

        ``= ANY`` and ``<> ALL`` of a constant array or a query become IN and NOT IN.
        """
        every = isinstance(right, exp.All) or right.name.lower() == "all"
        array = right.expressions[0] if right.expressions else right.this
        while isinstance(array, exp.Paren):
            array = array.this
        left = self.visit(node.this, scope)
        is_in = isinstance(node, exp.NEQ if every else exp.EQ)
        if isinstance(array, (exp.Select, exp.Subquery, exp.SetOperation)):
            if not is_in:
                raise t.refuse("ANY and ALL of a query, but for = ANY and <> ALL")
            inner = (
                array if isinstance(array, exp.Subquery) else exp.Subquery(this=array)
            )
            test_in: exp.Expression = self._in_query(exp.In(query=inner), left, scope)
        elif is_in and _constant_array(array):
            test_in = self._in_list(left, self._elements(array, left.type, scope))
        else:
            name = _COMPARISONS[type(node)]
            operand = self.visit(array, scope)
            if operand.type.oid == t.UNKNOWN:
                pg_type = type_by_oid(left.type.oid)
                oid = int(pg_type.array_oid) if pg_type is not None else 0
                operand = casts.settled(operand, t.plain(oid), self._zone)
            if operand.type.element is None:
                raise UsageError(
                    "op ANY/ALL (array) requires array on right side", sqlstate="42809"
                )
            test = arrays.quantified(left, name, type(node), operand, every, self._zone)
            return Operand(test, _BOOL)
        if every:
            test_in = exp.Not(this=exp.Paren(this=test_in))
        return Operand(exp.Paren(this=test_in), _BOOL)

    def _elements(
        self, array: exp.Expression, kind: Type, scope: Scope
    ) -> list[Operand]:
        if isinstance(array, exp.Array):
            items = [self.visit(e, scope) for e in array.expressions]
            if kind.oid == t.BPCHAR and all(i.type.oid == t.UNKNOWN for i in items):
                # An array of untyped texts is one of text, whose operator does not ignore blanks.
                return [casts.as_known(item, self._zone) for item in items]
            return items
        pg_type = type_by_oid(kind.oid)
        if isinstance(array, exp.Cast):
            declared = self.visit(array, scope).type
            pg_type = type_by_oid(declared.element.oid) if declared.element else None
            array = array.this
        if isinstance(array, exp.Null):
            # NULL stands for a parameter while the query is being described.
            determine(array, int(pg_type.array_oid) if pg_type is not None else 0)
            return [Operand(exp.Null(), t.LITERAL)]
        is_text = isinstance(array, exp.Literal) and array.is_string
        if is_text and pg_type is not None and pg_type.array_oid:
            oid = int(array.meta.get(PARAMETER_MARK) or pg_type.array_oid)
            operand = literals.constant(array.name, t.plain(oid), self._zone)
            element = operand.type.element
            inner = operand.node.this
            if element is not None and isinstance(inner, exp.Array):
                return [
                    Operand(
                        e, t.LITERAL if isinstance(e, exp.Null) else _fitted(e, element)
                    )
                    for e in inner.expressions
                ]
        raise t.refuse("ANY and ALL of an array that is not constant")

    def _in_list(self, left: Operand, items: list[Operand]) -> exp.Expression:
        if not items:
            return exp.Boolean(this=False)
        tests: list[exp.Expression] = []
        for item in items:
            a, b = casts.comparable(left, "=", item, self._zone)
            tests.append(exp.EQ(this=a.copy(), expression=b.copy()))
        if len({test.this for test in tests}) == 1:
            return exp.In(this=tests[0].this, expressions=[e.expression for e in tests])
        return exp.Paren(this=exp.or_(*tests, copy=False))

    def _in(self, node: exp.In, scope: Scope) -> Operand:
        if rows.is_row(node.this):
            return self._row_in(node, scope)
        left = self.visit(node.this, scope)
        if node.args.get("query") is not None:
            return Operand(self._in_query(node, left, scope), _BOOL)
        if node.args.get("unnest") is not None or node.args.get("field") is not None:
            raise t.refuse("this form of IN")
        # PostgreSQL makes an array of the items without columns, if there are several.
        fixed = [e.find(exp.Column) is None for e in node.expressions]
        items = [self.visit(e, scope) for e in node.expressions]
        if left.type.string and fixed.count(True) > 1:
            items = self._of_one_type(left, items, fixed)
        return Operand(self._in_list(left, items), _BOOL)

    def _of_one_type(
        self, left: Operand, items: list[Operand], fixed: list[bool]
    ) -> list[Operand]:
        """Convert those items of a list that are ``fixed`` to their common type with ``left``."""
        kinds = [
            item.type for item, is_fixed in zip(items, fixed, strict=True) if is_fixed
        ]
        if not all(kind.string or kind.oid == t.UNKNOWN for kind in kinds):
            return items
        kind = casts.common_type([left.type, *kinds], "IN").computed()
        return [
            casts.as_common(item, kind, self._zone) if is_fixed else item
            for item, is_fixed in zip(items, fixed, strict=True)
        ]

    def _row_in(self, node: exp.In, scope: Scope) -> Operand:
        if node.args.get("query") is not None:
            raise t.refuse("IN of a row and a query", "Use EXISTS.")
        if not all(rows.is_row(item) for item in node.expressions):
            raise t.refuse("IN of a row and what is no row")
        tests = [
            self._rows("=", node.this.copy(), item, scope) for item in node.expressions
        ]
        return Operand(exp.Paren(this=exp.or_(*tests, copy=False)), _BOOL)

    def _in_query(self, node: exp.In, left: Operand, scope: Scope) -> exp.Expression:
        query = node.args["query"]
        columns = self._query(query, scope)
        if columns is not None:
            if len(columns) != 1:
                raise UsageError("subquery has too many columns", sqlstate="42601")
            probe = Operand(exp.column("x"), columns[0][1])
            a, b = casts.comparable(left, "=", probe, self._zone)
            if b is not probe.node:
                query.set("alias", None)
                converted = exp.Select(expressions=[b]).from_(
                    exp.Subquery(
                        this=query.this.copy(),
                        alias=exp.TableAlias(
                            this=exp.to_identifier("s"),
                            columns=[exp.to_identifier("x")],
                        ),
                    )
                )
                query = exp.Subquery(this=converted)
            left = Operand(a, left.type)
        return exp.In(this=left.node, query=query)

    def _between(self, node: exp.Between, scope: Scope) -> Operand:
        if node.args.get("symmetric"):
            raise t.refuse("BETWEEN SYMMETRIC")
        value, low, high = (
            self.visit(node.args[key], scope) for key in ("this", "low", "high")
        )
        a, b = casts.comparable(value, ">=", low, self._zone)
        c, d = casts.comparable(value, "<=", high, self._zone)
        test = exp.and_(
            exp.GTE(this=a.copy(), expression=b), exp.LTE(this=c.copy(), expression=d)
        )
        return Operand(exp.Paren(this=test), _BOOL)

    def _is(self, node: exp.Is, scope: Scope) -> Operand:
        operand = self.at(node, "this", scope)
        if operand.type.fields is not None:
            raise t.refuse("IS NULL of a row")
        if not isinstance(node.expression, exp.Null):
            node.set("this", self._truth(operand, "IS").node)
        return Operand(node, _BOOL)

    def _case(self, node: exp.Case, scope: Scope) -> Operand:
        tested = self.visit(node.this, scope) if node.this is not None else None
        results: list[Operand] = []
        for branch in node.args["ifs"]:
            if tested is None:
                self.condition(branch, "this", scope, "CASE/WHEN")
            else:
                when = self.visit(branch.this, scope)
                a, b = casts.comparable(tested, "=", when, self._zone)
                branch.set("this", exp.EQ(this=a.copy(), expression=b))
            results.append(self.visit(branch.args["true"], scope))
        default = node.args.get("default")
        if default is not None:
            results.append(self.visit(default, scope))
        node.set("this", None)
        # PostgreSQL looks at ELSE first.
        ordered = results if default is None else [results[-1], *results[:-1]]
        kind = casts.common_type([result.type for result in ordered], "CASE")
        converted = [casts.as_common(result, kind, self._zone) for result in results]
        for branch, result in zip(node.args["ifs"], converted, strict=False):
            branch.set("true", result.node)
        if default is not None:
            node.set("default", converted[-1].node)
        return Operand(node, converted[0].type.computed())

    def _cast(self, node: exp.Cast, scope: Scope) -> Operand:
        kind = node.to
        if not isinstance(kind, exp.DataType):
            raise t.refuse(f"a cast to {kind.sql(dialect='postgres').lower()}")
        oid, typmod = parse_type_name(kind.sql(dialect="postgres"))
        target = t.declared(int(oid), typmod)
        inner = node.this.unnest()
        if isinstance(inner, exp.Array) and not inner.expressions and target.element:
            # ARRAY[] has the type to which it is cast.
            inner.replace(exp.Literal.string("{}"))
        operand = self.visit(node.this, scope)
        return casts.convert(operand, target, self._zone)

    def _interval(self, node: exp.Interval, scope: Scope) -> Operand:
        unit = node.args.get("unit")
        text = node.this.name if node.this is not None else ""
        if unit is not None:
            if not isinstance(unit, exp.Var):
                raise t.refuse("an interval of several units")
            text = f"{text} {unit.name.lower()}"
        return intervals.constant(text)

    def _subquery(self, node: exp.Expression, scope: Scope) -> Operand:
        columns = self._query(node, scope)
        if columns is None:
            return Operand(node, t.NOTHING)
        if len(columns) != 1:
            raise UsageError("subquery must return only one column", sqlstate="42601")
        kind = columns[0][1]
        if kind.oid == t.UNKNOWN:
            kind = t.plain(t.TEXT)
        return Operand(node, kind)

    def _exists(self, node: exp.Exists, scope: Scope) -> Operand:
        if isinstance(node.this, exp.Select) and not node.this.expressions:
            node.this.set("expressions", [exp.Literal.number(1)])
        self._query(node.this, scope)
        return Operand(node, _BOOL)

    def _array(self, node: exp.Array, scope: Scope) -> Operand:
        if len(node.expressions) == 1 and isinstance(
            node.expressions[0], (exp.Select, exp.SetOperation)
        ):
            raise t.refuse("ARRAY of a query")
        operands = self.all(node, "expressions", scope)
        if not operands:
            raise UsageError("cannot determine type of empty array", sqlstate="42P18")
        converted = casts.common(operands, "ARRAY", self._zone)
        node.set("expressions", [o.node for o in converted])
        kind = converted[0].type
        if kind.element is not None:
            raise t.refuse(f"an array of {kind.name}")
        return Operand(node, arrays.array_type(kind))


def _constant_array(array: exp.Expression) -> bool:
    if isinstance(array, exp.Array):
        return True
    inner = array.this if isinstance(array, exp.Cast) else array
    return isinstance(inner, exp.Literal) and inner.is_string


def _fitted(node: exp.Expression, element: Type) -> Type:
    """The type of an element of a constant array; a numeric has its own precision and scale."""
    if element.oid == t.NUMERIC and isinstance(node, exp.Cast):
        precision, scale = (int(p.this.name) for p in node.to.expressions)
        return t.decimal(precision, scale)
    return element


_RULES: Final[
    tuple[tuple[Any, Callable[[ExpressionAnalysis, Any, Scope], Operand]], ...]
] = (
    (exp.Column, ExpressionAnalysis._column),
    (exp.Literal, ExpressionAnalysis._literal),
    (exp.BitString, ExpressionAnalysis._bit_string),
    (exp.HexString, ExpressionAnalysis._bit_string),
    (exp.ByteString, ExpressionAnalysis._escape_string),
    (exp.RawString, ExpressionAnalysis._escape_string),
    (exp.National, ExpressionAnalysis._escape_string),
    (exp.Boolean, ExpressionAnalysis._boolean),
    (exp.Null, ExpressionAnalysis._null),
    (exp.Paren, ExpressionAnalysis._paren),
    (exp.Alias, ExpressionAnalysis._alias),
    (exp.And, ExpressionAnalysis._connector),
    (exp.Or, ExpressionAnalysis._connector),
    (exp.Not, ExpressionAnalysis._connector),
    (exp.In, ExpressionAnalysis._in),
    (exp.Between, ExpressionAnalysis._between),
    (exp.Is, ExpressionAnalysis._is),
    (exp.Case, ExpressionAnalysis._case),
    (exp.TryCast, ExpressionAnalysis._cast),
    (exp.Cast, ExpressionAnalysis._cast),
    (exp.Interval, ExpressionAnalysis._interval),
    (exp.Subquery, ExpressionAnalysis._subquery),
    (exp.Select, ExpressionAnalysis._subquery),
    (exp.Exists, ExpressionAnalysis._exists),
    (exp.Array, ExpressionAnalysis._array),
)
