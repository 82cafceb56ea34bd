"""Translates INSERT, UPDATE and DELETE to Spark SQL. Pure.

Comes in: SQL text, parameters, table definitions. Goes out: a ``SparkWrite``. Values are stored
as PostgreSQL stores them: columns are matched by name, defaults are filled in, each value is
assigned to its column's type, and NULL is refused if the column is NOT NULL. ``changes`` translates
each of the three statements.

Called by: the command, once per statement.
Source: PostgreSQL manual, INSERT, UPDATE, DELETE, 10.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlglot import exp

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.errors import FeatureNotSupportedError
from wal2lake.sql.query.changes.inserts import translate_insert
from wal2lake.sql.query.changes.onconflict import (
    conflict_of,
    conflict_privileges,
    refuse_excluded,
    translate_conflict,
)
from wal2lake.sql.query.changes.returning import ReturningClause, clause_of
from wal2lake.sql.query.changes.stored import (
    NextValues,
    SparkWrite,
    default_value,
    identifying,
    no_sequences,
    path_sql,
    reading_newest,
)
from wal2lake.sql.query.changes.updates import (
    assignments,
    found,
    in_place,
    joined_tables,
    merge,
)
from wal2lake.sql.query.translate import (
    BoundParameter,
    Resolver,
    bind,
    generate,
    refuse_only,
    schema_named,
)
from wal2lake.sql.query.writeparsing import written_tree

WriteTarget = Callable[[TableDef, bool, bool], TableDef]
"""Gives the table in the place where the statement writes.

The arguments are the table that the statement names, whether the statement adds keys, and whether
it changes columns that identify rows. After the call the resolver gives the same place.
"""


def translate_write(
    sql: str,
    resolve: Resolver,
    parameters: Sequence[BoundParameter] = (),
    zone: str = "UTC",
    target: WriteTarget = lambda table, brings_keys, moves: table,
    next_values: NextValues = no_sequences,
) -> SparkWrite:
    """Translate an INSERT, UPDATE or DELETE; ``zone`` is the session's TimeZone."""
    written = written_tree(sql)
    tree, overriding = written.tree, written.overriding
    name = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    if not isinstance(name, exp.Table):
        raise FeatureNotSupportedError("the statement names no table")
    table = resolve(schema_named(name), name.name).table
    refuse_only(name, table)
    needs = _privileges(tree, name)
    bind(tree, parameters)
    conflict = conflict_of(tree)
    returning = None
    clause = clause_of(tree)
    if clause is not None:
        if conflict is not None:
            refuse_excluded(conflict, clause)
        returning = ReturningClause(
            clause,
            table,
            name.alias or table.name,
            tree.key.upper(),
            written.names,
            zone,
        )
    sets = assignments(tree, table) if isinstance(tree, exp.Update) else []
    identifying_names = {column.name for column in identifying(table)}
    identifying_names |= {
        column
        for name, generation in table.generated
        if name in identifying_names
        for column in generation.columns
    }
    moves = any(column.name in identifying_names for column, _ in sets)
    brings_keys = isinstance(tree, exp.Insert) or (moves and bool(table.key))
    table = target(table, brings_keys, moves)
    if isinstance(tree, exp.Insert):
        on_conflict = None
        if conflict is not None:
            newest = reading_newest(resolve, table)
            on_conflict = translate_conflict(conflict, table, name, newest, zone)
        write = translate_insert(
            tree,
            table,
            resolve,
            zone,
            next_values,
            overriding,
            returning,
            on_conflict,
        )
        return replace(write, needs=needs, brings_keys=brings_keys)
    resolve = reading_newest(resolve, table)
    is_joined = bool(joined_tables(tree) or tree.find(exp.Query))
    if is_joined and returning is not None:
        write = found(tree, table, sets, resolve, zone, returning)
    elif is_joined:
        write = merge(tree, table, sets, resolve, zone)
    else:
        write = in_place(tree, table, sets, resolve, zone, returning)
    if any(column.generated is not None for column in identifying(table)):
        # A generated column that identifies rows is computed after the statement.
        write = replace(write, moves="")
    return replace(write, needs=needs, brings_keys=brings_keys)


def _privileges(tree: exp.Expression, target: exp.Table) -> str:
    """The privileges that a statement requires.

    SELECT is among them if a condition, a new value or RETURNING mentions a column, or another
    table reference has the table's name.
    """
    letter = {exp.Insert: "a", exp.Update: "w"}.get(type(tree), "d")
    read_expressions: list[exp.Expression] = []
    if isinstance(tree, exp.Update):
        read_expressions += [item.expression for item in tree.expressions]
    if not isinstance(tree, exp.Insert) and tree.args.get("where") is not None:
        read_expressions.append(tree.args["where"])
    if tree.args.get("returning") is not None:
        read_expressions.append(tree.args["returning"])
    reads = any(
        expression.find(exp.Column, exp.Star) for expression in read_expressions
    )
    reads_again = any(
        t is not target and t.name == target.name for t in tree.find_all(exp.Table)
    )
    conflict = tree.args.get("conflict")
    letters = conflict_privileges(conflict) if conflict is not None else ""
    if (reads or reads_again) and "r" not in letters:
        letters += "r"
    return letter + letters


def truncate_sql(table: TableDef, options: int) -> SparkWrite:
    """The statement that deletes all rows of a table."""
    sql = f"DELETE FROM {path_sql(table)}"
    return SparkWrite(table, sql, "TRUNCATE", options=options)


def default_sql(column: ColumnDef, zone: str) -> str:
    """A column's default as Spark SQL, in the type that the column stores."""
    return generate(default_value(column, zone))


def check_default(column: ColumnDef, zone: str) -> None:
    """Raise 42804 or another error of the analysis if the column cannot have its default."""
    default_sql(column, zone)
