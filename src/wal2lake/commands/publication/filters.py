"""The WHERE of a published table: from words to a typed tree, or PostgreSQL's refusal.

Comes in: a ``RawExpression``, the table, the session's TimeZone (of timestamptz constants). Goes
out: a ``pgtypes.expressions`` tree and the columns that it reads. Columns, constants, operators and
functions are resolved as parse_oper.c and parse_coerce.c do, so that the tree shows as PostgreSQL's
would. What PostgreSQL refuses is refused with its words; what it accepts and no row filter here
computes is 0A000, with what is.

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
"""A filter is walked by functions that call themselves, in any thread; a guess."""


def analyse(
    raw: RawExpression, table: TableDef, zone: str, place: str = "PUBLICATION WHERE"
) -> tuple[Expression, tuple[str, ...]]:
    """The tree, and the names that its columns' numbers stand for. ``place``: what it is of, as
    messages have it."""
    analysis = _Analysis(table, zone)
    found = _not_too_deep(lambda: analysis.boolean(raw, place))
    return found, tuple(analysis.columns)


def analyse_generation(
    raw: RawExpression, table: TableDef, zone: str, kind: int
) -> tuple[Expression, tuple[str, ...]]:
    """The same of a generated column of type ``kind``, which a constant without a type has."""
    analysis = _Analysis(table, zone, generates=True)
    found = _not_too_deep(lambda: analysis.assigned(raw, kind))
    return found, tuple(analysis.columns)


def _not_too_deep(analysed: Callable[[], Expression]) -> Expression:
    try:
        found = analysed()
        if found.depth() <= _MOST_NESTED:
            return found
    except RecursionError:
        pass
    raise UsageError(
        "stack depth limit exceeded",
        sqlstate="54001",
        hint=f"An expression may be nested {_MOST_NESTED} times.",
    )


@contextmanager
def _at(position: int, raw: RawExpression | None = None) -> Iterator[None]:
    """Errors that do not know better are there; what is refused is the whole of ``raw``."""
    try:
        yield
    except UsageError as error:
        if not error.position:
            whole = raw if isinstance(error, ExpressionRefused) else None
            error.position = position if whole is None else whole.first
        raise


def _starts(raws: Sequence[RawExpression]) -> list[int]:
    return [raw.first for raw in raws]


class _Analysis:
    def __init__(self, table: TableDef, zone: str, *, generates: bool = False) -> None:
        self.columns: list[str] = []
        self._generates = generates
        """It is of a generated column."""
        self._table = table
        self._zone = zone
        self._constants: dict[int, tuple[Expression, int]] = {}
        """Constants whose type is still to be found, with their positions."""

    def typed(self, raw: RawExpression) -> Expression:
        """Errors are where PostgreSQL has them: at the innermost node that is wrong."""
        with _at(raw.position, raw):
            found = self._typed(raw)
        if found.type_oid == UNKNOWN:
            self._constants[id(found)] = found, raw.position
        return found

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
                kind = common_type(args, "COALESCE", _starts(raw.args))
                return Expression(ExpressionNode.COALESCE, kind, self._all(args, kind))
            case RawExpressionKind.EXTREME:
                args = tuple(self.typed(a) for a in raw.args)
                kind = common_type(args, raw.word, _starts(raw.args))
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
                raise _of_generation(raw.word) if self._generates else _other(raw.word)

    def boolean(self, raw: RawExpression, place: str) -> Expression:
        """coerce_to_boolean()."""
        one = self.typed(raw)
        with _at(raw.first):
            return self._as_boolean(one, place)

    def _as_boolean(self, one: Expression, place: str) -> Expression:
        if one.type_oid == UNKNOWN:
            return self._coerced(one, BOOL)
        if one.type_oid != BOOL:
            raise UsageError(
                f"argument of {place} must be type boolean, not type"
                f" {format_type(one.type_oid)}",
                sqlstate=_DATATYPE_MISMATCH,
            )
        return one

    def assigned(self, raw: RawExpression, kind: int) -> Expression:
        """A constant without a type has that of the column."""
        one = self.typed(raw)
        if one.type_oid != UNKNOWN:
            return one
        with _at(raw.first):
            return self._coerced(one, kind)

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
        found = operator(name, left.type_oid, right.type_oid)
        args = self._operands(found, left, right)
        if name in MATCHES:
            pattern = args[1]
            if pattern.node is not ExpressionNode.CONST or not (
                pattern.value is None or can_match(str(pattern.value), name)
            ):
                raise unsupported(f"operator {name} with this pattern")
        return Expression(ExpressionNode.OPERATOR, found.result, args, name)

    def _operands(
        self, found: Signature, left: Expression, right: Expression
    ) -> tuple[Expression, ...]:
        return self._coerced(left, found.left), self._coerced(right, found.right)

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
        for null, other in ((right, left), (left, right)):
            if null.node is ExpressionNode.CONST and null.value is None:
                same = raw.word == "IS NOT"
                return self._null_test("IS NULL" if same else "IS NOT NULL", other)
        found = operator("=", left.type_oid, right.type_oid)
        distinct = Expression(
            ExpressionNode.DISTINCT, BOOL, self._operands(found, left, right)
        )
        if raw.word == "IS":
            return distinct
        return Expression(ExpressionNode.NOT, BOOL, (distinct,))

    def _in(self, raw: RawExpression) -> Expression:
        """Constants are one array if there are several, the others are compared one by one."""
        left, *items = (self.typed(arg) for arg in raw.args)
        any_ = raw.word == "="
        plain = [one for one in items if not list(one.columns())]
        found: Expression | None = None
        if len(plain) > 1:
            kind = common_type([left, *plain], None)
            resolved = operator(raw.word, left.type_oid, kind)
            if resolved.right != kind:
                # PostgreSQL would convert the array.
                raise not_simple()
            args = (self._coerced(left, resolved.left), *self._all(plain, kind))
            node = ExpressionNode.ANY if any_ else ExpressionNode.ALL
            found = Expression(node, BOOL, args, raw.word)
            items = [one for one in items if list(one.columns())]
        for item in items:
            compared = self._applied(raw.word, left, item)
            if found is None:
                found = compared
            else:
                connective = ExpressionNode.OR if any_ else ExpressionNode.AND
                found = Expression(connective, BOOL, (found, compared))
        assert found is not None
        return found

    def _array(self, raw: RawExpression) -> Expression:
        left, *items = (self.typed(arg) for arg in raw.args)
        kind = common_type(items, "ARRAY", _starts(raw.args[1:]))
        if raw.word not in COMPARISONS:
            raise unsupported(f"operator {raw.word} {raw.names[0]}")
        found = operator(raw.word, left.type_oid, kind)
        if found.right != kind:
            # PostgreSQL would convert the array.
            raise not_simple()
        args = (self._coerced(left, found.left), *self._all(items, kind))
        return Expression(ExpressionNode[raw.names[0]], BOOL, args, raw.word)

    def _any_of(self, raw: RawExpression) -> Expression:
        """A constant array; it is of what the operator compares with, unless it says so."""
        left, array = (self.typed(arg) for arg in raw.args)
        if raw.word not in COMPARISONS:
            raise unsupported(f"operator {raw.word} {raw.names[0]}")
        item: int = UNKNOWN
        if array.type_oid != UNKNOWN:
            if not is_array(array.type_oid):
                raise UsageError(
                    "op ANY/ALL (array) requires array on right side", sqlstate="42809"
                )
            known = type_by_oid(array.type_oid)
            assert known is not None
            item = known.element_oid
        if array.node is not ExpressionNode.CONST:
            raise unsupported(f"{raw.names[0]} of what is no constant array")
        found = operator(raw.word, left.type_oid, item)
        if array.type_oid == UNKNOWN:
            of = type_by_oid(found.right)
            assert of is not None
            array = self._coerced(array, of.array_oid)
        elif found.right != item:
            # PostgreSQL would convert the array.
            raise not_simple()
        args = (self._coerced(left, found.left), array)
        return Expression(ExpressionNode[raw.names[0]], BOOL, args, raw.word)

    def _collated(self, one: Expression, names: Sequence[str]) -> Expression:
        if one.type_oid == UNKNOWN:
            one = self._coerced(one, TEXT)
        if one.type_oid not in TEXTS:
            raise UsageError(
                f"collations are not supported by type {format_type(one.type_oid)}",
                sqlstate=_DATATYPE_MISMATCH,
            )
        if tuple(names) not in (("C",), ("pg_catalog", "C")):
            raise unsupported(f"COLLATE {'.'.join(names)}")
        return Expression(ExpressionNode.COLLATE, one.type_oid, (one,), "C")

    def _nullif(self, raw: RawExpression) -> Expression:
        if len(raw.args) != 2:
            raise unsupported("NULLIF of other than two values")
        left, right = (self.typed(arg) for arg in raw.args)
        found = operator("=", left.type_oid, right.type_oid)
        args = self._operands(found, left, right)
        return Expression(ExpressionNode.NULLIF, args[0].type_oid, args)

    # ---- calls and CASE ------------------------------------------------------------

    def _call(self, raw: RawExpression) -> Expression:
        args = [self.typed(arg) for arg in raw.args]
        name = raw.names[-1]
        found = function(raw.names, raw.word, [arg.type_oid for arg in args])
        coerced = tuple(
            self._coerced(arg, kind)
            for arg, kind in zip(args, found.arguments, strict=True)
        )
        if name in ("lower", "upper") and not any(map(_is_collated, args)):
            # Queries change the case of all letters, and so do most publishers.
            raise unsupported(f'function {name}() without COLLATE "C"')
        return Expression(ExpressionNode.FUNCTION, found.result, coerced, name)

    def _case(self, raw: RawExpression) -> Expression:
        args = list(raw.args)
        of = self.typed(args.pop(0)) if raw.word == "OF" else None
        if of is not None and of.type_oid == UNKNOWN:
            of = self._coerced(of, TEXT)
        last = args.pop() if len(args) % 2 else None
        default = None if last is None else self.typed(last)
        if of is None:
            whens = [self.boolean(arg, "CASE/WHEN") for arg in args[::2]]
        else:
            whens = [self._applied("=", of, self.typed(arg)) for arg in args[::2]]
        thens = [self.typed(arg) for arg in args[1::2]]
        default = default or Expression(ExpressionNode.CONST, UNKNOWN)
        # ELSE comes first, as in PostgreSQL.
        at = [last.first if last is not None else raw.position, *_starts(args[1::2])]
        kind = common_type([default, *thens], "CASE", at)
        pairs = [
            part
            for when, then in zip(whens, thens, strict=True)
            for part in (when, self._coerced(then, kind))
        ]
        otherwise = self._coerced(default, kind)
        if of is None:
            return Expression(ExpressionNode.CASE, kind, (*pairs, otherwise))
        return Expression(ExpressionNode.CASE_OF, kind, (of, *pairs, otherwise))

    # ---- types ---------------------------------------------------------------------

    def _all(self, args: Sequence[Expression], kind: int) -> tuple[Expression, ...]:
        return tuple(self._coerced(arg, kind) for arg in args)

    def _coerced(self, one: Expression, kind: int) -> Expression:
        """To a type that it can be implicitly."""
        if one.type_oid == kind:
            return one
        if one.node is ExpressionNode.COLLATE:
            # As in PostgreSQL the collation is of what the value becomes.
            inner = self._coerced(one.args[0], kind)
            return Expression(ExpressionNode.COLLATE, kind, (inner,), one.value)
        if one.type_oid == UNKNOWN:
            assert one.node is ExpressionNode.CONST
            if one.value is None:
                return Expression(ExpressionNode.CONST, kind)
            _, at = self._constants.get(id(one), (one, 0))
            with _at(at):
                return constant(str(one.value), kind, self._zone)
        if not can_cast(one.type_oid, kind):
            raise unsupported(
                f"a cast from {format_type(one.type_oid)} to {format_type(kind)}"
            )
        return Expression(ExpressionNode.CAST, kind, (one,))

    def _cast(self, one: Expression, kind: int, typmod: int) -> Expression:
        """Explicit."""
        source = one.type_oid
        if one.node is ExpressionNode.COLLATE and kind in TEXTS:
            inner = self._cast(one.args[0], kind, typmod)
            return Expression(ExpressionNode.COLLATE, kind, (inner,), one.value)
        if source == UNKNOWN and is_array(kind):
            return self._coerced(one, kind)
        if kind not in SUPPORTED:
            raise unsupported(f"type {format_type(kind)}")
        if source in (UNKNOWN, kind):
            found = self._coerced(one, kind)
            if typmod < 0:
                return found
            return Expression(ExpressionNode.CAST, kind, (found,), typmod=typmod)
        if source not in SUPPORTED:
            raise unsupported(f"type {format_type(source)}")
        if can_cast(source, kind):
            return Expression(ExpressionNode.CAST, kind, (one,), typmod=typmod)
        if source in MOMENTS and kind in MOMENTS and TIMESTAMPTZ in (source, kind):
            raise mutable()
        if source in TEXTS or kind in TEXTS:
            raise not_simple()
        raise UsageError(
            f"cannot cast type {format_type(source)} to {format_type(kind)}",
            sqlstate="42846",
        )


def _is_collated(one: Expression) -> bool:
    return one.node is ExpressionNode.COLLATE or any(map(_is_collated, one.args))


_NOT_SIMPLE: Final = words(
    """
    SELECT EXISTS CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP LOCALTIME LOCALTIMESTAMP
    CURRENT_ROLE CURRENT_USER SESSION_USER SYSTEM_USER USER CURRENT_CATALOG
    CURRENT_SCHEMA
    """
)


def _of_generation(word: str) -> UsageError:
    """Return the error for syntax that no generated column has."""
    if word in ("SELECT", "EXISTS"):
        return FeatureNotSupportedError(
            "cannot use subquery in column generation expression"
        )
    return mutable() if word in _NOT_SIMPLE else _other(word)


def _other(word: str) -> UsageError:
    if word.startswith("$"):
        return UndefinedObjectError(f"there is no parameter {word}", sqlstate="42P02")
    return not_simple() if word in _NOT_SIMPLE else unsupported(word)
