"""Translates INSERT to Spark SQL. Pure.

Comes in: the tree of an INSERT, with its parameters bound. Goes out: a ``SparkWrite``. Called by
``writes``.

Source: PostgreSQL manual, INSERT; transformInsertStmt in analyze.c.
"""

from __future__ import annotations

from sqlglot import exp

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.pgtypes.spark_ddl import identifier
from wal2lake.sql.query.analysis.writes import stored_rows
from wal2lake.sql.query.changes.returning import ReturningClause
from wal2lake.sql.query.changes.stored import (
    NextValues,
    OnConflict,
    RowWrite,
    SequenceRange,
    SparkWrite,
    columns_named,
    default_tree,
    default_value,
    is_default,
    not_null_sql,
    path_sql,
    reading_newest,
)
from wal2lake.sql.query.generatedalways import refuse_values
from wal2lake.sql.query.plain import plain_insert
from wal2lake.sql.query.translate import Resolver, generate, place_tables, settle
from wal2lake.sql.query.values import types as t


def translate_insert(
    tree: exp.Insert,
    table: TableDef,
    resolve: Resolver,
    zone: str,
    next_values: NextValues,
    overriding: str,
    returning: ReturningClause | None,
    conflict: OnConflict | None,
) -> SparkWrite:
    """Translate an INSERT."""
    # An error in the clause must take no value of a sequence.
    returned = None
    if returning is not None:
        returned = returning.translate(reading_newest(resolve, table))
    has_list = isinstance(tree.expression, exp.Values)
    source, filled = _insert_source(tree, table, resolve, zone, next_values, overriding)
    names = [f"v{place}" for place in range(max(1, len(filled)))]
    values = dict(zip((c.name for c in filled), names, strict=False))
    if overriding == "user" and not has_list:
        for column in filled:
            if column.identity:
                del values[column.name]
    items = []
    defaults: dict[str, exp.Expression] = {}
    for column in table.columns:
        name = values.get(column.name)
        if name is not None:
            value = f"src.{name}"
        elif column.sequence is not None:
            value = _sequence_value(column, next_values(column, None))
        else:
            defaults[column.name] = default_value(column, zone)
            value = generate(defaults[column.name])
        items.append(not_null_sql(table, column, value))
    plain = None
    if isinstance(source, exp.Values):
        rows = [row.expressions for row in source.expressions]
        places = {c.name: place for place, c in enumerate(filled)}
        plain = plain_insert(table, rows, places, defaults)
    # The rows of VALUES go to one file, in their order, instead of one file for each core.
    hint = "/*+ COALESCE(1) */ " if has_list else ""
    # Columns are named because a foreign writer may have added columns to the files.
    stored = ", ".join(identifier(column.name) for column in table.columns)
    query = (
        f"SELECT {hint}{', '.join(items)}"
        f" FROM ({generate(source)}) AS src({', '.join(names)})"
    )
    by_rows = None
    if returning is not None or conflict is not None:
        by_rows = RowWrite(query, returned, conflict=conflict)
    sql = f"INSERT INTO {path_sql(table)} ({stored}) {query}"
    return SparkWrite(table, sql, "INSERT", plain=plain, by_rows=by_rows)


def _insert_source(
    tree: exp.Insert,
    table: TableDef,
    resolve: Resolver,
    zone: str,
    next_values: NextValues,
    overriding: str,
) -> tuple[exp.Expression, list[ColumnDef]]:
    """The rows of an INSERT as a query for Spark, and the columns that the rows fill."""
    source = tree.expression
    listed = isinstance(tree.this, exp.Schema)
    targets = list(table.columns)
    if listed:
        targets = columns_named(
            table, [column.name for column in tree.this.expressions]
        )
    if source is None:
        # DEFAULT VALUES.
        return exp.Select(expressions=[exp.Null()]), []
    if isinstance(source, exp.Values):
        targets = _fill_defaults(
            source, table, targets, listed, next_values, overriding
        )
    with_ = tree.args.get("with_") or tree.args.get("with")
    if with_ is not None:
        source.set("with_", with_.copy())
    source = source.copy()
    place_tables(source, reading_newest(resolve, table))
    source, width = stored_rows(source, targets, zone, listed)
    if not isinstance(tree.expression, exp.Values):
        refuse_values(targets[:width], overriding)
    settle(source)
    return source, targets[:width]


def _fill_defaults(
    values: exp.Values,
    table: TableDef,
    targets: list[ColumnDef],
    listed: bool,
    next_values: NextValues,
    overriding: str,
) -> list[ColumnDef]:
    """Replace DEFAULT inside VALUES by the column's default expression or a sequence's value.

    Columns with a sequence that the statement does not name are appended to the rows, because each
    row has its own value. Return all columns of the rows.
    """
    rows = values.expressions
    width = max((len(row.expressions) for row in rows), default=0)
    fits = width == len(targets) if listed else width <= len(targets)
    if fits and all(len(row.expressions) == width for row in rows):
        targets = targets[:width]
        sequence_columns = [
            c for c in table.columns if c.sequence is not None and c not in targets
        ]
        targets += sequence_columns
        for row in rows:
            for _ in sequence_columns:
                row.append("expressions", exp.Var(this="DEFAULT"))
    for place, column in enumerate(targets):
        cells = [r.expressions[place] for r in rows if place < len(r.expressions)]
        if column.identity and overriding == "user":
            for value in cells:
                value.replace(exp.Var(this="DEFAULT"))
            cells = [r.expressions[place] for r in rows if place < len(r.expressions)]
        defaults = [value for value in cells if is_default(value)]
        if len(defaults) < len(cells):
            refuse_values([column], overriding)
        if column.sequence is None:
            for value in defaults:
                value.replace(default_tree(column))
        elif defaults:
            sequence = next_values(column, len(defaults))
            for number, value in enumerate(defaults):
                value.replace(
                    exp.Literal.number(sequence.first + number * sequence.step)
                )
    return targets


def _sequence_value(column: ColumnDef, sequence: SequenceRange) -> str:
    """Spark SQL that gives each row a value of a sequence, and fails if there are too few."""
    ddl = t.spark_name(t.of_column(column))
    exhausted = f"CAST({t.failure('2200H', sequence.exhausted)} AS {ddl})"
    if not sequence.count:
        return exhausted
    row = "CAST(row_number() OVER (ORDER BY monotonically_increasing_id()) AS BIGINT)"
    value = f"CAST({sequence.first} + {sequence.step} * ({row} - 1) AS {ddl})"
    return f"IF({row} <= {sequence.count}, {value}, {exhausted})"
