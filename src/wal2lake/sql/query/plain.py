"""Recognizes plain statements: those that need only the files of one table, and no Spark. Pure.

Comes in: a statement's tree as it would go to Spark. Goes out: a ``PlainQuery``, ``PlainWrite`` or
``PlainInsert``, or None if the statement is not plain.

    SELECT * | columns | count, sum, min, max of all rows FROM t
    WHERE    columns compared with constants (= <> < <= > >= IN, IS NULL), NOT, AND, OR
    ORDER BY columns      LIMIT n      OFFSET n

    UPDATE t SET columns = expressions, or DELETE FROM t, with such a WHERE
    INSERT INTO t VALUES constants

Why: for one row, or for a small table, Spark's plan and its three jobs take most of the time.
A plain statement compares and sorts only columns that Arrow orders as Spark does, and so as
PostgreSQL does: integers, texts byte by byte, booleans and dates. Other statements go to Spark.

Called by ``translate`` and ``writes``; ``engine.rows.plainanswers`` answers,
``local.transaction.plainwrites`` writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sqlglot import exp

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.sql.query.constants import (
    Constant,
    MomentConstant,
    NotConstant,
    can_store,
    constant,
)
from wal2lake.sql.query.values import types as t


class Operator(Enum):
    """The operators of a condition."""

    EQ = "="
    NE = "<>"
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    IN = "in"
    IS_NULL = "is null"
    NOT = "not"
    AND = "and"
    OR = "or"


Value = int | str


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a row: true, false or unknown."""

    operator: Operator
    column: str = ""
    values: tuple[Value, ...] = ()
    """The constants with which the column is compared."""
    parts: tuple[Condition, ...] = ()
    """The operands of NOT, AND and OR."""

    def columns(self) -> set[str]:
        """The columns that the condition reads."""
        own_columns = {self.column} - {""}
        return own_columns.union(*(part.columns() for part in self.parts))


@dataclass(frozen=True, slots=True)
class Order:
    """One key of ORDER BY."""

    column: str
    descending: bool
    nulls_first: bool


class AggregateFunction(Enum):
    """The aggregate functions of plain queries."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate over all rows."""

    function: AggregateFunction
    column: str | None
    """The column whose values are aggregated. None: the rows are counted."""


@dataclass(frozen=True, slots=True)
class PlainQuery:
    """A query for rows, or aggregates of rows, of one table."""

    columns: tuple[str, ...]
    """The names of the stored columns; none for aggregates."""
    aggregates: tuple[Aggregate, ...] = ()
    """The values of the single result row of an aggregate query."""
    condition: Condition | None = None
    order: tuple[Order, ...] = ()
    limit: int | None = None
    offset: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether the query gives all rows, in any order."""
        return self == PlainQuery(self.columns)


@dataclass(frozen=True, slots=True)
class PlainWrite:
    """An UPDATE or DELETE whose condition reads only columns of its table."""

    alias: str
    """The alias of the table in the new values."""
    condition: Condition | None
    reads: tuple[str, ...] = ()
    """The columns that the new values read."""
    values: tuple[tuple[str, str], ...] = ()
    """The columns of an UPDATE, with their new values as Spark SQL; none for a DELETE."""
    constants: tuple[Constant, ...] | None = None
    """The same values, if all of them are constants that need no Spark."""


@dataclass(frozen=True, slots=True)
class PlainInsert:
    """An INSERT of rows of constants."""

    columns: tuple[tuple[str, str], ...]
    """All columns of the table, each with its Spark type."""
    rows: tuple[tuple[Constant, ...], ...]


_PARTS: Final = {"expressions", "from_", "where", "order", "limit", "offset"}

_SIDES: Final = {"this", "expression"}
"""The arguments of a binary operator. Some have more, such as a negated IS NULL."""

_INTEGERS: Final = t.INTEGERS
_TEXTS: Final = frozenset({t.TEXT, t.VARCHAR})
_ORDERED: Final = _INTEGERS | _TEXTS | {t.BOOL, t.DATE}


def plain_query(tree: exp.Expression, table: TableDef) -> PlainQuery | None:
    """The plain query of a tree that reads only ``table``, or None."""
    try:
        return _Reader(table).read(tree)
    except _NotPlain:
        return None


def plain_write(
    tree: exp.Update | exp.Delete,
    table: TableDef,
    alias: str,
    values: Mapping[str, tuple[exp.Expression, str]],
) -> PlainWrite | None:
    """The plain change of a tree in Spark's terms, or None.

    ``values`` are the new values by column: the tree, and the Spark SQL of the stored value.
    """
    reader = _Reader(table)
    where = tree.args.get("where")
    try:
        condition = None if where is None else reader.condition(where.this)
        reads = {
            reader.column(column)
            for value, _ in values.values()
            for column in value.find_all(exp.Column)
        }
    except _NotPlain:
        return None
    texts = tuple((name, text) for name, (_, text) in values.items())
    constants = None
    if not reads:
        columns = {column.name: column for column in table.columns}
        with suppress(NotConstant):
            constants = tuple(
                _stored(value, columns[name]) for name, (value, _) in values.items()
            )
    return PlainWrite(alias, condition, tuple(sorted(reads)), texts, constants)


def plain_insert(
    table: TableDef,
    rows: Sequence[Sequence[exp.Expression]],
    places: Mapping[str, int],
    defaults: Mapping[str, exp.Expression],
) -> PlainInsert | None:
    """The plain insert of VALUES in Spark's terms, or None.

    ``places`` is the place in a row for each column that the statement names; ``defaults`` are the
    values of the other columns.
    """
    try:
        default_values = {
            column.name: _stored(defaults[column.name], column)
            for column in table.columns
            if column.name not in places
        }
        stored_rows = tuple(
            tuple(
                _stored(row[places[column.name]], column)
                if column.name in places
                else default_values[column.name]
                for column in table.columns
            )
            for row in rows
        )
    except NotConstant:
        return None
    kinds = ((c.name, t.spark_name(t.of_column(c))) for c in table.columns)
    return PlainInsert(tuple(kinds), stored_rows)


def _stored(value: exp.Expression, column: ColumnDef) -> Constant:
    """The value that the column stores; for dates and timestamps, their number.

    Raises NotConstant also if the column refuses the value.
    """
    stored = constant(value)
    if not can_store(stored, t.spark_name(t.of_column(column))):
        raise NotConstant
    if stored is None and column.not_null:
        raise NotConstant
    return stored.number if isinstance(stored, MomentConstant) else stored


class _NotPlain(Exception):
    """Raised for a statement that is not plain."""


def _present_arguments(node: exp.Expression) -> set[str]:
    return {name for name, value in node.args.items() if value}


_FUNCTIONS: Final[Mapping[type[exp.Expression], AggregateFunction]] = {
    exp.Count: AggregateFunction.COUNT,
    exp.Sum: AggregateFunction.SUM,
    exp.Min: AggregateFunction.MIN,
    exp.Max: AggregateFunction.MAX,
}

_OPERANDS: Final = {
    AggregateFunction.SUM: frozenset({t.INT2, t.INT4, t.NUMERIC}),
    AggregateFunction.MIN: _ORDERED - {t.BOOL},
    AggregateFunction.MAX: _ORDERED - {t.BOOL},
}
"""The types whose aggregates Arrow computes exactly, as PostgreSQL does."""


_SUM_DIGITS: Final = 28
"""The greatest precision of summed decimals: a sum of 10^10 values has at most 38 digits."""


class _Reader:
    def __init__(self, table: TableDef) -> None:
        self._kinds = {c.name: t.of_column(c) for c in table.columns}

    def read(self, tree: exp.Expression) -> PlainQuery:
        if not isinstance(tree, exp.Select) or not _present_arguments(tree) <= _PARTS:
            raise _NotPlain
        if "from_" not in _present_arguments(tree):
            raise _NotPlain
        self._check_source(tree.args["from_"].this)
        aggregates = self._aggregates(tree.expressions)
        outputs = {} if aggregates else self._outputs(tree)
        where, order = tree.args.get("where"), tree.args.get("order")
        keys = [] if order is None else order.expressions
        if aggregates and keys:
            raise _NotPlain
        return PlainQuery(
            tuple(outputs.values()),
            aggregates,
            None if where is None else self.condition(where.this),
            tuple(self._key(key, outputs) for key in keys),
            _number(tree.args.get("limit")),
            _number(tree.args.get("offset")) or 0,
        )

    def _check_source(self, source: exp.Expression) -> None:
        if not (
            isinstance(source, exp.Table)
            and _present_arguments(source) <= {"this", "db", "alias", "version"}
            and _present_arguments(source.args.get("alias") or source) <= {"this"}
        ):
            raise _NotPlain

    def _aggregates(self, items: Sequence[exp.Expression]) -> tuple[Aggregate, ...]:
        """The aggregates of the query; none if the query is for rows."""
        calls = [item.unalias() for item in items]
        if not isinstance(calls[0], tuple(_FUNCTIONS)):
            return ()
        return tuple(self._aggregate(call) for call in calls)

    def _aggregate(self, call: exp.Expression) -> Aggregate:
        function = _FUNCTIONS.get(type(call))
        if function is None or not _present_arguments(call) <= {"this", "big_int"}:
            raise _NotPlain
        argument = call.this
        if function is AggregateFunction.COUNT:
            return Aggregate(
                function,
                None if isinstance(argument, exp.Star) else self.column(argument),
            )
        if function is AggregateFunction.SUM and isinstance(argument, exp.Cast):
            # The sum of bigint is numeric: the analysis casts to a decimal that holds any bigint.
            column = self.column(argument.this)
            if self._kinds[column].oid != t.INT8:
                raise _NotPlain
            return Aggregate(function, column)
        column = self.column(argument)
        kind = self._kinds[column]
        if kind.oid not in _OPERANDS[function] or (kind.precision or 0) > _SUM_DIGITS:
            raise _NotPlain
        if kind.oid == t.NUMERIC and kind.precision is None:
            raise _NotPlain
        return Aggregate(function, column)

    def _outputs(self, tree: exp.Select) -> dict[str, str]:
        """The columns of the result, by their names in the result."""
        outputs: dict[str, str] = {}
        for item in tree.expressions:
            if isinstance(item, exp.Star) and not _present_arguments(item):
                outputs |= {name: name for name in self._kinds}
                if len(tree.expressions) > 1:
                    raise _NotPlain
                continue
            column = self.column(item.unalias())
            if item.alias_or_name in outputs or column in outputs.values():
                raise _NotPlain
            outputs[item.alias_or_name] = column
        return outputs

    def column(self, node: exp.Expression) -> str:
        """The name of a plain column of the table."""
        if (
            not isinstance(node, exp.Column)
            or not isinstance(node.this, exp.Identifier)
            or not _present_arguments(node) <= {"this", "table"}
            or node.name not in self._kinds
        ):
            raise _NotPlain
        return str(node.name)

    def _key(self, node: exp.Expression, outputs: Mapping[str, str]) -> Order:
        if not isinstance(node, exp.Ordered) or "with_fill" in _present_arguments(node):
            raise _NotPlain
        by = node.this
        if isinstance(by, exp.Literal) and not by.is_string:
            place = int(by.name) - 1
            if not 0 <= place < len(outputs):
                raise _NotPlain
            column = list(outputs.values())[place]
        elif isinstance(by, exp.Column) and not by.table and by.name in outputs:
            column = outputs[by.name]
        else:
            column = self.column(by)
        if self._kinds[column].oid not in _ORDERED:
            raise _NotPlain
        return Order(
            column, bool(node.args.get("desc")), bool(node.args.get("nulls_first"))
        )

    # ---- conditions ------------------------------------------------------------------

    def condition(self, node: exp.Expression) -> Condition:
        """Translate a condition on a row; raises _NotPlain if the condition is not plain."""
        node = node.unnest()
        if isinstance(node, exp.And | exp.Or) and _present_arguments(node) == _SIDES:
            operator = Operator.AND if isinstance(node, exp.And) else Operator.OR
            parts = self.condition(node.this), self.condition(node.expression)
            return Condition(operator, parts=parts)
        if isinstance(node, exp.Not) and _present_arguments(node) == {"this"}:
            return Condition(Operator.NOT, parts=(self.condition(node.this),))
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            if not _present_arguments(node) <= {"this", "expression", "negate"}:
                raise _NotPlain
            missing = Condition(Operator.IS_NULL, self.column(node.this))
            if not node.args.get("negate"):
                return missing
            return Condition(Operator.NOT, parts=(missing,))
        if isinstance(node, exp.In) and _present_arguments(node) == {
            "this",
            "expressions",
        }:
            column = self.column(node.this)
            values = tuple(self._value(column, item) for item in node.expressions)
            return Condition(Operator.IN, column, values)
        if type(node) not in _COMPARISONS or _present_arguments(node) != _SIDES:
            raise _NotPlain
        operator = _COMPARISONS[type(node)]
        left, right = node.this, node.expression
        if not isinstance(left, exp.Column):
            left, right, operator = right, left, _MIRRORED.get(operator, operator)
        column = self.column(left)
        return Condition(operator, column, (self._value(column, right),))

    def _value(self, column: str, node: exp.Expression) -> Value:
        """A constant that the column can be compared with."""
        kind = self._kinds[column].oid
        if kind in _TEXTS and isinstance(node, exp.Literal) and node.is_string:
            return str(node.name)
        if kind not in _INTEGERS:
            raise _NotPlain
        return _integer(node)


_COMPARISONS: Final[Mapping[type[exp.Expression], Operator]] = {
    exp.EQ: Operator.EQ,
    exp.NEQ: Operator.NE,
    exp.LT: Operator.LT,
    exp.LTE: Operator.LE,
    exp.GT: Operator.GT,
    exp.GTE: Operator.GE,
}

_MIRRORED: Final = {
    Operator.LT: Operator.GT,
    Operator.LE: Operator.GE,
    Operator.GT: Operator.LT,
    Operator.GE: Operator.LE,
}
"""The operator that means the same with its sides exchanged."""

_BITS: Final = {
    exp.DataType.Type.SMALLINT: 15,
    exp.DataType.Type.INT: 31,
    exp.DataType.Type.BIGINT: 63,
}

_DIGITS: Final = re.compile("-?[0-9]{1,18}")


def _integer(node: exp.Expression) -> int:
    """An integer constant; a constant that a cast refuses is left to Spark, which reports it."""
    if isinstance(node, exp.Literal) and _DIGITS.fullmatch(node.name):
        return int(node.name)
    if isinstance(node, exp.Neg):
        return -_integer(node.this)
    if isinstance(node, exp.Paren):
        return _integer(node.this)
    if isinstance(node, exp.Cast) and isinstance(node.to, exp.DataType):
        value, bits = _integer(node.this), _BITS.get(node.to.this)
        if bits is not None and -(1 << bits) <= value < 1 << bits:
            return value
    raise _NotPlain


def _number(node: exp.Expression | None) -> int | None:
    if node is None:
        return None
    value = node.args.get("expression")
    if (
        not isinstance(value, exp.Literal)
        or value.is_string
        or len(_present_arguments(node)) > 1
    ):
        raise _NotPlain
    try:
        return int(value.name)
    except ValueError:
        raise _NotPlain from None
