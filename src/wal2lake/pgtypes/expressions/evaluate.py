"""The value of an expression for rows of texts.

Comes in: the tree, and for each of its columns a BinaryArray of PostgreSQL texts (null is NULL).
Goes out: for each row whether the filter is true; callers treat false and NULL the same. An error
of an operator (division by zero, a number out of range) is PostgreSQL's.

The tree is compiled to one Python function of a row. If the filter reads a single column, each
distinct value is evaluated only once.

Source: pgoutput_row_filter_exec_expr() in pgoutput.c; execExpr.c.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from wal2lake.errors import Wal2LakeError
from wal2lake.pgtypes.expressions import operators
from wal2lake.pgtypes.expressions.tree import Expression, ExpressionNode
from wal2lake.pgtypes.expressions.values import Value, array_items, is_array, reader
from wal2lake.pgtypes.registry.pg_type import type_by_oid

Row = Sequence[Value]
_Evaluator = Callable[[Row], Value]
Read = Callable[[pa.Array, int], list[Value]]
"""Converts a column of a type to values."""


class Filter:
    """One compiled expression. ``columns`` has the columns that it reads, in the order in which
    ``matches`` takes them."""

    def __init__(
        self,
        expression: Expression,
        columns: Sequence[str] = (),
        read: Read | None = None,
    ) -> None:
        """``columns`` has the names for the tree's numbers. ``read`` converts arrays that are not
        texts."""
        self.columns = tuple(columns)
        types = dict(_types(expression))
        count = max([len(columns), *(number + 1 for number in types)])
        self._types = [types.get(i, 0) for i in range(count)]
        self._read = read or values_of_texts
        self._evaluate = _compiled(expression)

    def matches(self, arrays: Sequence[pa.Array], rows: int) -> list[bool]:
        """Return for each row whether the expression is true; ``rows`` is their number."""
        if not arrays:
            return [self._evaluate(()) is True] * rows
        if len(arrays) == 1 and not pa.types.is_nested(arrays[0].type):
            codes = arrays[0].dictionary_encode()
            answers = self._answers([codes.dictionary])
            # Evaluate NULL only if there is one, because it may raise an error.
            null = codes.indices.null_count > 0 and self._evaluate((None,)) is True
            return [
                null if i is None else answers[i] for i in codes.indices.to_pylist()
            ]
        return self._answers(arrays)

    def values(
        self, arrays: Sequence[pa.Array], rows: int
    ) -> list[Value | Wal2LakeError]:
        """Return a value or an error for each row."""
        if not arrays:
            return [self._value(())] * rows
        read = self._read
        columns = [read(*pair) for pair in zip(arrays, self._types, strict=True)]
        return [self._value(row) for row in zip(*columns, strict=True)]

    def _value(self, row: Row) -> Value | Wal2LakeError:
        try:
            return self._evaluate(row)
        except Wal2LakeError as error:
            return error

    def _answers(self, arrays: Sequence[pa.Array]) -> list[bool]:
        read = self._read
        values = [read(*pair) for pair in zip(arrays, self._types, strict=True)]
        return [self._evaluate(row) is True for row in zip(*values, strict=True)]


def _types(expression: Expression) -> list[tuple[int, int]]:
    if expression.node is ExpressionNode.COLUMN:
        assert isinstance(expression.value, int)
        return [(expression.value, expression.type_oid)]
    return [pair for arg in expression.args for pair in _types(arg)]


def value_of(constant: Expression) -> Value:
    """Return the value of an expression without columns."""
    return _compiled(constant)(())


def values_of_texts(array: pa.Array, type_oid: int) -> list[Value]:
    """Return the values of a BinaryArray of PostgreSQL's texts."""
    read = reader(type_oid)
    return [None if text is None else read(text) for text in array.to_pylist()]


def _compiled(expression: Expression) -> _Evaluator:
    args = [_compiled(arg) for arg in expression.args]
    kinds = tuple(arg.type_oid for arg in expression.args)
    match expression.node:
        case ExpressionNode.COLUMN:
            number = expression.value
            assert isinstance(number, int)
            return lambda row: row[number]
        case ExpressionNode.CONST:
            text = expression.value
            constant = None
            if text is not None:
                constant = reader(expression.type_oid)(str(text).encode())
            return lambda row: constant
        case ExpressionNode.AND:
            return _connected(args, stops_at=False)
        case ExpressionNode.OR:
            return _connected(args, stops_at=True)
        case ExpressionNode.NOT:
            return _strict(lambda a: not a, args)
        case ExpressionNode.TEST:
            return _test(str(expression.value), args[0])
        case ExpressionNode.ANY | ExpressionNode.ALL:
            if spread(expression) is not expression:
                return _compiled(spread(expression))
            compares = [
                _strict(
                    operators.comparison(str(expression.value), kinds[0], kind),
                    [args[0], arg],
                )
                for arg, kind in zip(args[1:], kinds[1:], strict=True)
            ]
            return _connected(compares, stops_at=expression.node is ExpressionNode.ANY)
        case ExpressionNode.COALESCE:
            return _coalesce(args)
        case ExpressionNode.COLLATE:
            return args[0]
        case ExpressionNode.CASE:
            return _case(args)
        case ExpressionNode.CASE_OF:
            return _case(args[1:])
    return _computed(expression, args, kinds)


def _computed(
    expression: Expression, args: Sequence[_Evaluator], kinds: tuple[int, ...]
) -> _Evaluator:
    """Compile a node that computes or compares values of these types."""
    match expression.node:
        case ExpressionNode.OPERATOR if len(args) == 1:
            return _strict(operators.sign(str(expression.value), kinds[0]), args)
        case ExpressionNode.OPERATOR:
            left, right = kinds
            compute = operators.operation(
                str(expression.value), left, right, expression.type_oid
            )
            return _strict(compute, args)
        case ExpressionNode.FUNCTION:
            compute = operators.function(
                str(expression.value), kinds, expression.type_oid
            )
            return _strict(compute, args)
        case ExpressionNode.CAST:
            return _strict(
                operators.cast(kinds[0], expression.type_oid, expression.typmod), args
            )
        case ExpressionNode.DISTINCT:
            left, right = kinds
            return _distinct(operators.comparison("<>", left, right), *args)
        case ExpressionNode.GREATEST | ExpressionNode.LEAST:
            word = ">" if expression.node is ExpressionNode.GREATEST else "<"
            return _extreme(operators.comparison(word, kinds[0], kinds[0]), args)
    assert expression.node is ExpressionNode.NULLIF
    left, right = kinds
    same = _strict(operators.comparison("=", left, right), args)
    return lambda row: None if same(row) is True else args[0](row)


def spread(expression: Expression) -> Expression:
    """Rewrite ANY or ALL of an array with one arg for each of its items."""
    if not is_array(expression.args[-1].type_oid):
        return expression
    left, array = expression.args
    if array.value is None:
        return Expression(ExpressionNode.CONST, expression.type_oid)
    items = array_items(str(array.value))
    pg_type = type_by_oid(array.type_oid)
    assert items is not None and pg_type is not None
    consts = (
        Expression(ExpressionNode.CONST, pg_type.element_oid, value=item)
        for item in items
    )
    return Expression(
        expression.node, expression.type_oid, (left, *consts), expression.value
    )


def _strict(compute: Callable[..., Value], args: Sequence[_Evaluator]) -> _Evaluator:
    """Return NULL if an argument is NULL."""
    if len(args) == 1:
        (only,) = args

        def unary(row: Row) -> Value:
            value = only(row)
            return None if value is None else compute(value)

        return unary
    left, right = args

    def binary(row: Row) -> Value:
        a = left(row)
        if a is None:
            return None
        b = right(row)
        return None if b is None else compute(a, b)

    return binary


def _connected(args: Sequence[_Evaluator], *, stops_at: bool) -> _Evaluator:
    """AND and OR: arguments after the deciding one are not evaluated."""

    def connected(row: Row) -> Value:
        unknown = False
        for arg in args:
            value = arg(row)
            if value is stops_at:
                return stops_at
            unknown = unknown or value is None
        return None if unknown else not stops_at

    return connected


_TESTS: dict[str, tuple[Value, ...]] = {
    "IS NULL": (None,),
    "IS NOT NULL": (),
    "IS TRUE": (True,),
    "IS NOT TRUE": (False, None),
    "IS FALSE": (False,),
    "IS NOT FALSE": (True, None),
    "IS UNKNOWN": (None,),
    "IS NOT UNKNOWN": (True, False),
}
"""Values for which each test is true."""


def _test(word: str, arg: _Evaluator) -> _Evaluator:
    if word == "IS NOT NULL":
        return lambda row: arg(row) is not None
    if word == "IS NULL":
        return lambda row: arg(row) is None
    accepted = _TESTS[word]

    def test(row: Row) -> Value:
        value = arg(row)
        return any(value is truth for truth in accepted)

    return test


def _distinct(
    differ: Callable[..., Value], left: _Evaluator, right: _Evaluator
) -> _Evaluator:
    def distinct(row: Row) -> Value:
        a, b = left(row), right(row)
        if a is None or b is None:
            return a is not b
        return differ(a, b)

    return distinct


def _coalesce(args: Sequence[_Evaluator]) -> _Evaluator:
    def first(row: Row) -> Value:
        for arg in args:
            value = arg(row)
            if value is not None:
                return value
        return None

    return first


def _extreme(beats: Callable[..., Value], args: Sequence[_Evaluator]) -> _Evaluator:
    """GREATEST and LEAST ignore NULLs."""

    def extreme(row: Row) -> Value:
        best = None
        for arg in args:
            value = arg(row)
            if value is not None and (best is None or beats(value, best)):
                best = value
        return best

    return extreme


def _case(args: Sequence[_Evaluator]) -> _Evaluator:
    pairs = list(zip(args[:-1:2], args[1:-1:2], strict=True))
    default = args[-1]

    def case(row: Row) -> Value:
        for when, then in pairs:
            if when(row) is True:
                return then(row)
        return default(row)

    return case
