"""The parts of INSERT, UPDATE and DELETE that their translations share. Pure.

Comes in: columns and expressions. Goes out: a ``SparkWrite``, the defaults of columns, and Spark
SQL that refuses NULL. Called by ``inserts``, ``updates``, ``returning`` and ``writes``.

Source: PostgreSQL manual, INSERT, 5.2 (Default Values), 5.5 (Constraints).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.errors import (
    About,
    FeatureNotSupportedError,
    UndefinedObjectError,
    UsageError,
    Wal2LakeError,
)
from wal2lake.pgtypes.spark_ddl import identifier
from wal2lake.sql.query.analysis.writes import stored_value
from wal2lake.sql.query.changes.returning import Returning, ValuesOfRows
from wal2lake.sql.query.plain import PlainInsert, PlainWrite
from wal2lake.sql.query.translate import Resolver, TableRef, parse, settle
from wal2lake.sql.query.values import types as t


@dataclass(frozen=True, slots=True)
class OnConflict:
    """The effect of an INSERT on a row whose key is there already."""

    sets: tuple[str, ...] = ()
    """The columns to which DO UPDATE assigns values."""
    values: ValuesOfRows | None = None
    """The values of ``sets`` for pairs of rows, followed by the condition of DO UPDATE if there is
    one; None for DO NOTHING."""
    is_conditional: bool = False
    """Whether DO UPDATE has a condition."""


@dataclass(frozen=True, slots=True)
class RowWrite:
    """A statement whose rows pass through the node: it returns them, or has ON CONFLICT."""

    query: str
    """Spark SQL. INSERT: a query for the rows, in the table's columns. UPDATE and DELETE: a query
    for the name of the file and the number in the file of each row, and then for the new values of
    ``sets``, and for the columns ``x0``.. of ``Returning``."""
    returning: Returning | None
    sets: tuple[str, ...] = ()
    """The columns to which an UPDATE assigns values."""
    conflict: OnConflict | None = None
    """Set if an INSERT may meet rows with the same keys."""


@dataclass(frozen=True, slots=True)
class SparkWrite:
    """An INSERT, UPDATE, DELETE or TRUNCATE for Spark."""

    table: TableDef
    sql: str
    verb: str
    """The verb of the command tag."""
    needs: str = ""
    """The required privileges as letters of an ACL; with SELECT if rows of the table are read."""
    brings_keys: bool = False
    """True if the statement may create duplicate primary keys."""
    options: int = 0
    """The options of a TRUNCATE as bits: 1 CASCADE, 2 RESTART IDENTITY."""
    moves: str = ""
    """A query for the old and new ``identifying`` columns of the rows whose key an UPDATE changes.

    It is run before the UPDATE. Empty if the statement changes no keys.
    """
    by_key: bool = False
    """True if the statement finds its rows by their primary key."""
    plain: PlainWrite | PlainInsert | None = None
    """The plain change if the statement needs no Spark, or None."""
    by_rows: RowWrite | None = None
    """Set if the statement has RETURNING, or ON CONFLICT."""


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """A range of values of a sequence."""

    first: int
    step: int
    count: int
    """The number of values."""
    exhausted: str
    """The error message for the value after the last."""


NextValues = Callable[[ColumnDef, int | None], SequenceRange]
"""Gives a number of values of a column's sequence; None: all remaining values.

None is passed if the number of the statement's rows is known only after the statement.
"""


def no_sequences(column: ColumnDef, count: int | None) -> SequenceRange:
    raise FeatureNotSupportedError(f'column "{column.name}" has a sequence')


def identifying(table: TableDef) -> list[ColumnDef]:
    """The columns that identify a row: the primary key, or all columns without one."""
    return [c for c in table.columns if not table.key or c.name in table.key]


def reading_newest(resolve: Resolver, target: TableDef) -> Resolver:
    """Let subqueries on the table that is written read its newest version, as the write does."""

    def find(schema: str | None, name: str) -> TableRef:
        ref = resolve(schema, name)
        is_target = ref.table.storage == target.storage
        return TableRef(ref.table, None) if is_target else ref

    return find


def columns_named(table: TableDef, names: Sequence[str]) -> list[ColumnDef]:
    columns: list[ColumnDef] = []
    for name in names:
        column = table.column(name)
        if column is None:
            raise UndefinedObjectError(
                f'column "{name}" of relation "{table.name}" does not exist',
                sqlstate="42703",
            )
        if column in columns:
            raise UsageError(
                f'column "{name}" specified more than once', sqlstate="42701"
            )
        columns.append(column)
    return columns


def is_default(value: exp.Expression) -> bool:
    if isinstance(value, exp.Column) and (value.table or value.this.args.get("quoted")):
        return False
    return isinstance(value, (exp.Column, exp.Var)) and value.name.lower() == "default"


def default_tree(column: ColumnDef) -> exp.Expression:
    """Parse a column's default expression; NULL if the column has none."""
    if column.default is None:
        return exp.Null()
    tree: exp.Expression = parse(f"SELECT {column.default}").expressions[0]
    return tree.unalias().copy()


def default_value(column: ColumnDef, zone: str) -> exp.Expression:
    value = stored_value(default_tree(column), column, zone)
    settle(value)
    return value


def not_null_sql(table: TableDef, column: ColumnDef, value: str) -> str:
    # A generated column is computed from the written row, and checked at that time.
    if not column.not_null or column.generated is not None:
        return value
    error = t.failure(
        "23502",
        f'null value in column "{column.name}" of relation "{table.name}" violates'
        " not-null constraint",
    )
    ddl = t.spark_name(t.of_column(column))
    return f"coalesce({value}, CAST({error} AS {ddl}))"


_NULL: Final = re.compile('null value in column "(.*)" of relation ', re.DOTALL)


def about_null(error: Wal2LakeError, table: TableDef) -> About | None:
    """The column to which a failed statement assigned NULL; None for any other error."""
    match = _NULL.match(error.message) if error.sqlstate == "23502" else None
    return match and About(table.namespace, table.name, column=match[1])


def path_sql(table: TableDef) -> str:
    """The name of the table in Spark SQL."""
    return f"delta.{identifier(table.location)}"
