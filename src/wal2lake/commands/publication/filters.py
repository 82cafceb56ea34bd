"""The WHERE of a published table: turns its syntax into a typed tree, or raises PostgreSQL's error.

Takes a ``RawExpression``, the table, and the session's TimeZone for timestamptz constants. Returns
a ``pgtypes.expressions`` tree and the columns that it reads. Columns, constants, operators and
functions are resolved as in parse_oper.c and parse_coerce.c, so that the tree is displayed as
PostgreSQL's would be. An expression that PostgreSQL refuses gets PostgreSQL's error. An expression
that PostgreSQL accepts and row filters here don't compute is 0A000, with a list of what they do.

Source: TransformPubWhereClauses() and check_simple_rowfilter_expr_walker() in publicationcmds.c;
parse_expr.c, parse_oper.c, parse_coerce.c; the manual's chapter 10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from wal2lake.catalog import TableDef
from wal2lake.commands.publication.constants import UNKNOWN, constant, number
from wal2lake.commands.publication.operations import (
    ExpressionRefused,
    Signature,
    common_type,
    function,
    mutable,
    not_simple,
    operator,
    prefix_operator,
    refuse,
    unsupported,
)
from wal2lake.errors import FeatureNotSupportedError, UndefinedObjectError, UsageError
from wal2lake.model import SYSTEM_COLUMNS
from wal2lake.pgtypes import format_type
from wal2lake.pgtypes.expressions import Expression, ExpressionNode
from wal2lake.pgtypes.expressions.operators import (
    COMPARISONS,
    MATCHES,
    MOMENTS,
    TEXTS,
    can_cast,
    can_match,
)
from wal2lake.pgtypes.expressions.values import (
    BOOL,
    SUPPORTED,
    TEXT,
    TIMESTAMPTZ,
    is_array,
)
from wal2lake.pgtypes.keywords import words
from wal2lake.pgtypes.registry.pg_type import type_by_oid
from wal2lake.sql.grammar.publishing.expressions import (
    RawExpression,
    RawExpressionKind,
)

_DATATYPE_MISMATCH: Final = "42804"

_MOST_NESTED: Final = 200
"""Limit of nesting, since filters are walked recursively, in any thread. Chosen arbitrarily."""


def analyse(
    raw: RawExpression, table: TableDef, zone: str, place: str = "PUBLICATION WHERE"
) -> tuple[Expression, tuple[str, ...]]:
    """Return the tree, and the column names that its column numbers refer to.

    ``place``: the clause, as messages name it."""
    analysis = _Analysis(table, zone)
    tree = _not_too_deep(lambda: analysis.boolean(raw, place))
    return tree, tuple(analysis.columns)


def analyse_generation(
    raw: RawExpression, table: TableDef, zone: str, kind: int
) -> tuple[Expression, tuple[str, ...]]:
    """Analyse the expression of a generated column of type ``kind``.

    A constant without a type gets that type."""
    analysis = _Analysis(table, zone, generates=True)
    tree = _not_too_deep(lambda: analysis.assigned(raw, kind))
    return tree, tuple(analysis.columns)


def _not_too_deep(analysis: Callable[[], Expression]) -> Expression:
    try:
        tree = analysis()
        if tree.depth() <= _MOST_NESTED:
            return tree
    except RecursionError:
        pass
    raise UsageError(
        "stack depth limit exceeded",
        sqlstate="54001",
        hint=f"An expression may be nested {_MOST_NESTED} times.",
    )


@contextmanager
def _at(position: int, raw: RawExpression | None = None) -> Iterator[None]:
    """Give errors without a position this one; an ExpressionRefused gets the start of ``raw``."""
    try:
        yield
    except UsageError as error:
        if not error.position:
            whole = raw if isinstance(error, ExpressionRefused) else None
            error.position = position if whole is None else whole.first
        raise


def _start_positions(raws: Sequence[RawExpression]) -> list[int]:
    return [raw.first for raw in raws]


class _Analysis:
    def __init__(self, table: TableDef, zone: str, *, generates: bool = False) -> None:
        self.columns: list[str] = []
        self._generates = generates
        """True for the expression of a generated column."""
        self._table = table
        self._zone = zone
        self._constants: dict[int, tuple[Expression, int]] = {}
        """Constants without a type so far, with their positions."""

    def typed(self, raw: RawExpression) -> Expression:
        """Analyse a node; the position of an error is the innermost node's, as in PostgreSQL."""
        with _at(raw.position, raw):
            expression = self._typed(raw)
        if expression.type_oid == UNKNOWN:
            self._constants[id(expression)] = expression, raw.position
        return expression

    def _typed(self, raw: RawExpression) -> Expression:
        match raw.kind:
            case RawExpressionKind.NAME:
                return self._column(raw.names)
            case RawExpressionKind.STRING:
                return Expression(ExpressionNode.CONST, UNKNOWN, value=raw.word)
            case RawExpressionKind.NUMBER:
                return number(raw.word)
            case RawExpressionKind.WORD:
                if raw.word == "null":
                    return Expression(ExpressionNode.CONST, UNKNOWN)
                return Expression(ExpressionNode.CONST, BOOL, value=raw.word)
            case RawExpressionKind.OPERATOR:
                return self._operator(raw)
            case RawExpressionKind.BOOLEAN:
                args = tuple(self.boolean(a, raw.word) for a in raw.args)
                return Expression(ExpressionNode[raw.word], BOOL, args)
            case RawExpressionKind.TEST:
                return self._test(raw)
            case RawExpressionKind.DISTINCT:
                return self._distinct(raw)
            case RawExpressionKind.IN:
                return self._in(raw)
            case RawExpressionKind.ARRAY:
                return self._array(raw)
            case RawExpressionKind.CALL:
                return self._call(raw)
            case RawExpressionKind.COALESCE:
                args = tuple(self.typed(a) for a in raw.args)
                kind = common_type(args, "COALESCE", _start_positions(raw.args))
                return Expression(ExpressionNode.COALESCE, kind, self._all(args, kind))
            case RawExpressionKind.EXTREME:
                args = tuple(self.typed(a) for a in raw.args)
                kind = common_type(args, raw.word, _start_positions(raw.args))
                return Expression(ExpressionNode[raw.word], kind, self._all(args, kind))
            case RawExpressionKind.COLLATE:
                return self._collated(self.typed(raw.args[0]), raw.names)
            case RawExpressionKind.ANY_OF:
                return self._any_of(raw)
            case RawExpressionKind.NULLIF:
                return self._nullif(raw)
            case RawExpressionKind.CASE:
                return self._case(raw)
            case RawExpressionKind.CAST:
                return self._cast(self.typed(raw.args[0]), raw.type_oid, raw.typmod)
            case RawExpressionKind.OTHER:
                raise (
                    _refused_generation(raw.word)
                    if self._generates
                    else _refused_syntax(raw.word)
                )

    def boolean(self, raw: RawExpression, place: str) -> Expression:
        """Analyse a node as coerce_to_boolean() does."""
        expression = self.typed(raw)
        with _at(raw.first):
            return self._as_boolean(expression, place)

    def _as_boolean(self, expression: Expression, place: str) -> Expression:
        if expression.type_oid == UNKNOWN:
            return self._coerced(expression, BOOL)
        if expression.type_oid != BOOL:
            raise UsageError(
                f"argument of {place} must be type boolean, not type"
                f" {format_type(expression.type_oid)}",
                sqlstate=_DATATYPE_MISMATCH,
            )
        return expression

    def assigned(self, raw: RawExpression, kind: int) -> Expression:
        """Analyse a node; a constant without a type gets the column's type."""
        expression = self.typed(raw)
        if expression.type_oid != UNKNOWN:
            return expression
        with _at(raw.first):
            return self._coerced(expression, kind)

    # ---- columns -------------------------------------------------------------------

    def _column(self, names: Sequence[str]) -> Expression:
        table, name = self._table, names[-1]
        if len(names) > 1 and (
            names[-2] != table.name or (len(names) > 2 and names[-3] != table.namespace)
        ):
            raise UndefinedObjectError(
                f'missing FROM-clause entry for table "{names[-2]}"', sqlstate="42P01"
            )
        column = table.column(name)
        if column is None:
            if name in SYSTEM_COLUMNS and self._generates:
                raise UsageError(
                    f'cannot use system column "{name}" in column generation expression',
                    sqlstate="42P10",
                )
            if name in SYSTEM_COLUMNS:
                raise refuse("System columns are not allowed.")
            if len(names) == 1 and name == table.name:
                raise refuse("User-defined types are not allowed.")
            shown = f'"{name}"' if len(names) == 1 else ".".join(names)
            raise UndefinedObjectError(
                f"column {shown} does not exist", sqlstate="42703"
            )
        if self._generates and column.generated is not None:
            raise UsageError(
                f'cannot use generated column "{name}" in column generation expression',
                sqlstate="42P17",
                detail="A generated column cannot reference another generated column.",
            )
        if column.type_name is not None or column.domain is not None:
            raise refuse("User-defined types are not allowed.")
        if name not in self.columns:
            self.columns.append(name)
        number = self.columns.index(name)
        return Expression(ExpressionNode.COLUMN, column.type_oid, value=number)

    # ---- operators -----------------------------------------------------------------

    def _operator(self, raw: RawExpression) -> Expression:
        args = [self.typed(arg) for arg in raw.args]
        if len(args) == 1:
            kind = prefix_operator(raw.word, args[0].type_oid)
            return Expression(ExpressionNode.OPERATOR, kind, tuple(args), raw.word)
        return self._applied(raw.word, args[0], args[1])

    def _applied(self, name: str, left: Expression, right: Expression) -> Expression:
        signature = operator(name, left.type_oid, right.type_oid)
        args = self._operands(signature, left, right)
        if name in MATCHES:
            pattern = args[1]
            if pattern.node is not ExpressionNode.CONST or not (
                pattern.value is None or can_match(str(pattern.value), name)
            ):
                raise unsupported(f"operator {name} with this pattern")
        return Expression(ExpressionNode.OPERATOR, signature.result, args, name)

    def _operands(
        self, signature: Signature, left: Expression, right: Expression
    ) -> tuple[Expression, ...]:
        return self._coerced(left, signature.left), self._coerced(
            right, signature.right
        )

    def _test(self, raw: RawExpression) -> Expression:
        if raw.word.endswith("NULL"):
            return self._null_test(raw.word, self.typed(raw.args[0]))
        arg = self.boolean(raw.args[0], raw.word)
        return Expression(ExpressionNode.TEST, BOOL, (arg,), raw.word)

    def _null_test(self, word: str, arg: Expression) -> Expression:
        if arg.type_oid == UNKNOWN:
            arg = self._coerced(arg, TEXT)
        return Expression(ExpressionNode.TEST, BOOL, (arg,), word)

    def _distinct(self, raw: RawExpression) -> Expression:
        left, right = (self.typed(arg) for arg in raw.args)
        for null, operand in ((right, left), (left, right)):
            if null.node is ExpressionNode.CONST and null.value is None:
                same = raw.word == "IS NOT"
                return self._null_test("IS NULL" if same else "IS NOT NULL", operand)
        signature = operator("=", left.type_oid, right.type_oid)
        distinct = Expression(
            ExpressionNode.DISTINCT, BOOL, self._operands(signature, left, right)
        )
        if raw.word == "IS":
            return distinct
        return Expression(ExpressionNode.NOT, BOOL, (distinct,))

    def _in(self, raw: RawExpression) -> Expression:
        """Analyse IN: several constants become one array, other items are compared singly."""
        left, *items = (self.typed(arg) for arg in raw.args)
        any_ = raw.word == "="
        plain = [item for item in items if not list(item.columns())]
        expression: Expression | None = None
        if len(plain) > 1:
            kind = common_type([left, *plain], None)
            resolved = operator(raw.word, left.type_oid, kind)
            if resolved.right != kind:
                # PostgreSQL would convert the array here.
                raise not_simple()
            args = (self._coerced(left, resolved.left), *self._all(plain, kind))
            node = ExpressionNode.ANY if any_ else ExpressionNode.ALL
            expression = Expression(node, BOOL, args, raw.word)
            items = [item for item in items if list(item.columns())]
        for item in items:
            compared = self._applied(raw.word, left, item)
            if expression is None:
                expression = compared
            else:
                connective = ExpressionNode.OR if any_ else ExpressionNode.AND
                expression = Expression(connective, BOOL, (expression, compared))
        assert expression is not None
        return expression

    def _array(self, raw: RawExpression) -> Expression:
        left, *items = (self.typed(arg) for arg in raw.args)
        kind = common_type(items, "ARRAY", _start_positions(raw.args[1:]))
        if raw.word not in COMPARISONS:
            raise unsupported(f"operator {raw.word} {raw.names[0]}")
        signature = operator(raw.word, left.type_oid, kind)
        if signature.right != kind:
            # PostgreSQL would convert the array here.
            raise not_simple()
        args = (self._coerced(left, signature.left), *self._all(items, kind))
        return Expression(ExpressionNode[raw.names[0]], BOOL, args, raw.word)

    def _any_of(self, raw: RawExpression) -> Expression:
        """Analyse ANY and ALL of a constant array; the operator gives an untyped one its type."""
        left, array = (self.typed(arg) for arg in raw.args)
        if raw.word not in COMPARISONS:
            raise unsupported(f"operator {raw.word} {raw.names[0]}")
        item: int = UNKNOWN
        if array.type_oid != UNKNOWN:
            if not is_array(array.type_oid):
                raise UsageError(
                    "op ANY/ALL (array) requires array on right side", sqlstate="42809"
                )
            array_type = type_by_oid(array.type_oid)
            assert array_type is not None
            item = array_type.element_oid
        if array.node is not ExpressionNode.CONST:
            raise unsupported(f"{raw.names[0]} of what is no constant array")
        signature = operator(raw.word, left.type_oid, item)
        if array.type_oid == UNKNOWN:
            array_type = type_by_oid(signature.right)
            assert array_type is not None
            array = self._coerced(array, array_type.array_oid)
        elif signature.right != item:
            # PostgreSQL would convert the array here.
            raise not_simple()
        args = (self._coerced(left, signature.left), array)
        return Expression(ExpressionNode[raw.names[0]], BOOL, args, raw.word)

    def _collated(self, expression: Expression, names: Sequence[str]) -> Expression:
        if expression.type_oid == UNKNOWN:
            expression = self._coerced(expression, TEXT)
        if expression.type_oid not in TEXTS:
            raise UsageError(
                f"collations are not supported by type {format_type(expression.type_oid)}",
                sqlstate=_DATATYPE_MISMATCH,
            )
        if tuple(names) not in (("C",), ("pg_catalog", "C")):
            raise unsupported(f"COLLATE {'.'.join(names)}")
        return Expression(
            ExpressionNode.COLLATE, expression.type_oid, (expression,), "C"
        )

    def _nullif(self, raw: RawExpression) -> Expression:
        if len(raw.args) != 2:
            raise unsupported("NULLIF of other than two values")
        left, right = (self.typed(arg) for arg in raw.args)
        signature = operator("=", left.type_oid, right.type_oid)
        args = self._operands(signature, left, right)
        return Expression(ExpressionNode.NULLIF, args[0].type_oid, args)

    # ---- calls and CASE ------------------------------------------------------------

    def _call(self, raw: RawExpression) -> Expression:
        args = [self.typed(arg) for arg in raw.args]
        name = raw.names[-1]
        signature = function(raw.names, raw.word, [arg.type_oid for arg in args])
        coerced = tuple(
            self._coerced(arg, kind)
            for arg, kind in zip(args, signature.arguments, strict=True)
        )
        if name in ("lower", "upper") and not any(map(_is_collated, args)):
            # Queries and most publishers change the case of all letters, not of ASCII only.
            raise unsupported(f'function {name}() without COLLATE "C"')
        return Expression(ExpressionNode.FUNCTION, signature.result, coerced, name)

    def _case(self, raw: RawExpression) -> Expression:
        args = list(raw.args)
        operand = self.typed(args.pop(0)) if raw.word == "OF" else None
        if operand is not None and operand.type_oid == UNKNOWN:
            operand = self._coerced(operand, TEXT)
        last = args.pop() if len(args) % 2 else None
        default = None if last is None else self.typed(last)
        if operand is None:
            whens = [self.boolean(arg, "CASE/WHEN") for arg in args[::2]]
        else:
            whens = [self._applied("=", operand, self.typed(arg)) for arg in args[::2]]
        thens = [self.typed(arg) for arg in args[1::2]]
        default = default or Expression(ExpressionNode.CONST, UNKNOWN)
        # ELSE comes first, as in PostgreSQL.
        positions = [
            last.first if last is not None else raw.position,
            *_start_positions(args[1::2]),
        ]
        kind = common_type([default, *thens], "CASE", positions)
        pairs = [
            part
            for when, then in zip(whens, thens, strict=True)
            for part in (when, self._coerced(then, kind))
        ]
        otherwise = self._coerced(default, kind)
        if operand is None:
            return Expression(ExpressionNode.CASE, kind, (*pairs, otherwise))
        return Expression(ExpressionNode.CASE_OF, kind, (operand, *pairs, otherwise))

    # ---- types ---------------------------------------------------------------------

    def _all(self, args: Sequence[Expression], kind: int) -> tuple[Expression, ...]:
        return tuple(self._coerced(arg, kind) for arg in args)

    def _coerced(self, expression: Expression, kind: int) -> Expression:
        """Convert implicitly to a type."""
        if expression.type_oid == kind:
            return expression
        if expression.node is ExpressionNode.COLLATE:
            # As in PostgreSQL, COLLATE moves outside the conversion.
            inner = self._coerced(expression.args[0], kind)
            return Expression(ExpressionNode.COLLATE, kind, (inner,), expression.value)
        if expression.type_oid == UNKNOWN:
            assert expression.node is ExpressionNode.CONST
            if expression.value is None:
                return Expression(ExpressionNode.CONST, kind)
            _, position = self._constants.get(id(expression), (expression, 0))
            with _at(position):
                return constant(str(expression.value), kind, self._zone)
        if not can_cast(expression.type_oid, kind):
            raise unsupported(
                f"a cast from {format_type(expression.type_oid)} to {format_type(kind)}"
            )
        return Expression(ExpressionNode.CAST, kind, (expression,))

    def _cast(self, expression: Expression, kind: int, typmod: int) -> Expression:
        """Convert explicitly to a type."""
        source = expression.type_oid
        if expression.node is ExpressionNode.COLLATE and kind in TEXTS:
            inner = self._cast(expression.args[0], kind, typmod)
            return Expression(ExpressionNode.COLLATE, kind, (inner,), expression.value)
        if source == UNKNOWN and is_array(kind):
            return self._coerced(expression, kind)
        if kind not in SUPPORTED:
            raise unsupported(f"type {format_type(kind)}")
        if source in (UNKNOWN, kind):
            converted = self._coerced(expression, kind)
            if typmod < 0:
                return converted
            return Expression(ExpressionNode.CAST, kind, (converted,), typmod=typmod)
        if source not in SUPPORTED:
            raise unsupported(f"type {format_type(source)}")
        if can_cast(source, kind):
            return Expression(ExpressionNode.CAST, kind, (expression,), typmod=typmod)
        if source in MOMENTS and kind in MOMENTS and TIMESTAMPTZ in (source, kind):
            raise mutable()
        if source in TEXTS or kind in TEXTS:
            raise not_simple()
        raise UsageError(
            f"cannot cast type {format_type(source)} to {format_type(kind)}",
            sqlstate="42846",
        )


def _is_collated(expression: Expression) -> bool:
    return expression.node is ExpressionNode.COLLATE or any(
        map(_is_collated, expression.args)
    )


_NOT_SIMPLE: Final = words(
    """
    SELECT EXISTS CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP LOCALTIME LOCALTIMESTAMP
    CURRENT_ROLE CURRENT_USER SESSION_USER SYSTEM_USER USER CURRENT_CATALOG
    CURRENT_SCHEMA
    """
)


def _refused_generation(word: str) -> UsageError:
    """Return the error for syntax that generated columns cannot have."""
    if word in ("SELECT", "EXISTS"):
        return FeatureNotSupportedError(
            "cannot use subquery in column generation expression"
        )
    return mutable() if word in _NOT_SIMPLE else _refused_syntax(word)


def _refused_syntax(word: str) -> UsageError:
    if word.startswith("$"):
        return UndefinedObjectError(f"there is no parameter {word}", sqlstate="42P02")
    return not_simple() if word in _NOT_SIMPLE else unsupported(word)
