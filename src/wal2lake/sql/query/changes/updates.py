"""Translates UPDATE and DELETE to Spark SQL. Pure.

Comes in: the tree of a statement, with its parameters bound. Goes out: a ``SparkWrite``. Called by
``writes``.

Delta's UPDATE and DELETE allow no subqueries. A statement with a subquery, FROM or USING is
executed as a MERGE: a SELECT finds the keys of the rows and their new values, and its result is
merged into the table. That requires a primary key.

Source: PostgreSQL manual, UPDATE, DELETE; transformUpdateTargetList in analyze.c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sqlglot import exp

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.pgtypes.spark_ddl import identifier
from wal2lake.sql.query.analysis.writes import (
    assigned,
    found_rows,
    rewrite_write,
    stored_rows,
)
from wal2lake.sql.query.changes.returning import OtherTable, ReturningClause
from wal2lake.sql.query.changes.stored import (
    RowWrite,
    SparkWrite,
    columns_named,
    default_tree,
    identifying,
    is_default,
    not_null_sql,
    path_sql,
)
from wal2lake.sql.query.generatedalways import refuse_update
from wal2lake.sql.query.plain import PlainWrite, plain_write
from wal2lake.sql.query.translate import Resolver, generate, place_tables, settle

Assignments = list[tuple[ColumnDef, exp.Expression]]


def joined_tables(tree: exp.Expression) -> list[exp.Expression]:
    """The tables of an UPDATE's FROM or a DELETE's USING."""
    clause = tree.args.get("from_") or tree.args.get("from")
    if clause is not None:
        return [clause.this]
    return list(tree.args.get("using") or ())


def assignments(tree: exp.Update, table: TableDef) -> Assignments:
    """The columns and expressions of SET, with DEFAULT replaced by the column's default."""
    sets: Assignments = []
    for item in tree.expressions:
        targets = [item.this]
        values = [item.expression]
        if isinstance(item.this, (exp.Tuple, exp.Paren)):
            targets = list(item.this.expressions) or [item.this.this]
            values = _row(item.expression, len(targets))
        for target, value in zip(targets, values, strict=True):
            if not isinstance(target, exp.Column):
                raise FeatureNotSupportedError(
                    "to assign to an element of a column is not supported on lake tables"
                )
            name = target.table or target.name
            column = columns_named(table, [name])[0]
            if target.table:
                raise FeatureNotSupportedError(
                    f'cannot assign to field "{target.name}" of column "{name}"'
                )
            if any(assigned is column for assigned, _ in sets):
                raise UsageError(
                    f'multiple assignments to same column "{name}"', sqlstate="42601"
                )
            default = is_default(value)
            if default and column.sequence is not None:
                raise FeatureNotSupportedError(
                    f'to set column "{name}" to values of its sequence is not supported'
                    " on lake tables"
                )
            if not default:
                refuse_update(column)
            if column.generated is not None:
                # A generated column is computed whatever is set, so it keeps its old value here.
                value = exp.column(name, tree.this.alias or table.name, quoted=True)
            elif default:
                value = default_tree(column)
            sets.append((column, value))
    return sets


def _row(value: exp.Expression, width: int) -> list[exp.Expression]:
    is_row = isinstance(value, exp.Tuple) or (
        isinstance(value, exp.Anonymous) and value.name.lower() == "row"
    )
    if isinstance(value, exp.Subquery):
        raise FeatureNotSupportedError(
            "UPDATE of several columns from a subquery is not supported on lake tables",
            hint="Give each column a subquery of its own.",
        )
    if not is_row:
        raise FeatureNotSupportedError(
            "source for a multiple-column UPDATE item must be a sub-SELECT or ROW()"
            " expression"
        )
    if len(value.expressions) != width:
        raise UsageError(
            "number of columns does not match number of values", sqlstate="42601"
        )
    return list(value.expressions)


def in_place(
    tree: exp.Update | exp.Delete,
    table: TableDef,
    sets: Assignments,
    resolve: Resolver,
    zone: str,
    returning: ReturningClause | None,
) -> SparkWrite:
    """Translate to Delta's UPDATE or DELETE."""
    alias = identifier(tree.this.alias or table.name)
    if isinstance(tree, exp.Update):
        tree.set(
            "expressions",
            [
                exp.EQ(this=_column_node(column), expression=value)
                for column, value in sets
            ],
        )
    place_tables(tree, resolve)
    values = rewrite_write(tree, table, zone)
    settle(tree)
    condition = ""
    if tree.args.get("where") is not None:
        condition = f" {generate(tree.args['where'])}"
    target = f"{path_sql(table)} AS {alias}"
    if isinstance(tree, exp.Delete):
        plain = plain_write(tree, table, alias, {})
        sql = f"DELETE FROM {target}{condition}"
        by_rows = None
        if returning is not None:
            query = f"SELECT {_position(alias)} FROM {target}{condition}"
            by_rows = RowWrite(query, returning.translate(resolve))
        return SparkWrite(table, sql, "DELETE", plain=plain, by_rows=by_rows)
    stored, trees = {}, {}
    for column, value in values:
        settle(value)
        stored[column.name] = not_null_sql(table, column, generate(value))
        trees[column.name] = value
    texts = [f"{identifier(name)} = {value}" for name, value in stored.items()]
    sql = f"UPDATE {target} SET {', '.join(texts)}{condition}"
    old = {c.name: f"{alias}.{identifier(c.name)}" for c in identifying(table)}
    moves = _moves_query(old, stored, f"{target}{condition}")
    new = {name: (trees[name], text) for name, text in stored.items()}
    plain = plain_write(tree, table, alias, new)
    by_rows = None
    if returning is not None:
        items = [f"{text} AS v{n}" for n, text in enumerate(stored.values())]
        query = (
            f"SELECT {', '.join([_position(alias), *items])} FROM {target}{condition}"
        )
        by_rows = RowWrite(query, returning.translate(resolve), tuple(stored))
    return SparkWrite(table, sql, "UPDATE", moves=moves, plain=plain, by_rows=by_rows)


_PLACE: Final = ("file_name", "row_index")
"""The fields of Spark's column ``_metadata`` that tell where a row of a table is."""


def _position(alias: str) -> str:
    """The items of a SELECT that tell where the rows of a table are."""
    file, row = _PLACE
    return f"{alias}._metadata.{file} AS f, {alias}._metadata.{row} AS r"


def new_values_sql(
    plain: PlainWrite, kinds: Mapping[str, str], rows: Sequence[Sequence[str | None]]
) -> str:
    """A query for the new values of an UPDATE; the first column is the number of the row.

    ``kinds`` are the Spark types of the columns; ``rows`` are, for each row, the texts of the
    columns that the new values read.
    """
    # Spark does not distinguish names that differ only in case.
    used_names, number = {name.lower() for name in plain.reads}, "n"
    while number in used_names:
        number += "n"
    names = ", ".join(map(identifier, (number, *plain.reads)))

    def value(text: str | None, name: str) -> str:
        tree = exp.Null() if text is None else exp.Literal.string(text)
        return f"CAST({generate(tree)} AS {kinds[name]})"

    listed = [
        ", ".join([str(n), *map(value, row, plain.reads)])
        for n, row in enumerate(rows or [[None] * len(plain.reads)])
    ]
    values_list = ", ".join(f"({row})" for row in listed)
    items = ", ".join(
        f"CAST({text} AS {kinds[name]}) AS v{n}"
        for n, (name, text) in enumerate(plain.values)
    )
    # Without rows, Spark still checks the expressions, which may be invalid.
    none = "" if rows else " WHERE false"
    return (
        f"SELECT {plain.alias}.{identifier(number)} AS n, {items}"
        f" FROM VALUES {values_list} AS {plain.alias}({names}){none}"
    )


def _moves_query(old: Mapping[str, str], new: Mapping[str, str], rows: str) -> str:
    """The query of ``SparkWrite.moves``; ``old`` and ``new`` are expressions by column."""
    if not old.keys() & new.keys():
        return ""
    places = range(len(old))
    pairs = [f"{value} AS o{n}" for n, value in enumerate(old.values())]
    pairs += [f"{new.get(name, old[name])} AS n{n}" for n, name in enumerate(old)]
    unchanged = " AND ".join(f"o{n} <=> n{n}" for n in places)
    items = ", ".join([*(f"o{n}" for n in places), *(f"n{n}" for n in places)])
    return f"SELECT {items} FROM (SELECT {', '.join(pairs)} FROM {rows}) WHERE NOT ({unchanged})"


def merge(
    tree: exp.Update | exp.Delete,
    table: TableDef,
    sets: Assignments,
    resolve: Resolver,
    zone: str,
) -> SparkWrite:
    """Translate to a MERGE of a SELECT that gives keys and new values."""
    verb = tree.key.upper()
    if not table.key:
        raise FeatureNotSupportedError(
            f"{verb} with a subquery or other tables needs a primary key, and"
            f' relation "{table.name}" has none',
            hint="Write the condition without a subquery.",
        )
    keys = columns_named(table, table.key)
    columns = [*keys, *(column for column, _ in sets)]
    select = _merge_select(tree, table, keys, sets)
    place_tables(select, resolve)
    source, _ = stored_rows(select, columns, zone, listed=True)
    settle(source)
    names = [f"v{place}" for place in range(len(columns))]
    rows = f"({generate(source)}) AS src({', '.join(names)})"
    # The source of a MERGE may not rename columns itself.
    rows = f"(SELECT * FROM {rows}) AS src"
    if joined_tables(tree):
        # If several rows join, PostgreSQL takes any one of them, and Delta fails.
        rows = _one_per_key(rows, names, len(keys))
    matches = " AND ".join(
        f"target.{identifier(key.name)} = src.{name}"
        for key, name in zip(keys, names, strict=False)
    )
    action, moves = "DELETE", ""
    if isinstance(tree, exp.Update):
        stored = {
            column.name: not_null_sql(table, column, f"src.{name}")
            for column, name in list(zip(columns, names, strict=True))[len(keys) :]
        }
        texts = [f"{identifier(name)} = {value}" for name, value in stored.items()]
        action = f"UPDATE SET {', '.join(texts)}"
        key_names = dict(zip(table.key, names, strict=False))
        old = {c.name: f"src.{key_names[c.name]}" for c in identifying(table)}
        moves = _moves_query(old, stored, rows)
    sql = (
        f"MERGE INTO {path_sql(table)} AS target USING {rows} ON {matches}"
        f" WHEN MATCHED THEN {action}"
    )
    return SparkWrite(table, sql, verb, moves=moves, by_key=True)


def found(
    tree: exp.Update | exp.Delete,
    table: TableDef,
    sets: Assignments,
    resolve: Resolver,
    zone: str,
    returning: ReturningClause,
) -> SparkWrite:
    """Translate a statement with a subquery or other tables, and RETURNING, to a query for the
    places of its rows."""
    select = exp.Select(expressions=[exp.Null()]).from_(tree.this.copy())
    for joined in joined_tables(tree):
        select = select.join(joined.copy(), join_type="cross")
    for name in ("where", "with_", "with"):
        if tree.args.get(name) is not None:
            select.set(name, tree.args[name].copy())
    values = exp.Tuple(expressions=[value.copy() for _, value in sets])
    # The new values have subqueries and schemas before columns, as the condition does.
    select.set("expressions", [values])
    place_tables(select, resolve)
    placed = [(c, v) for (c, _), v in zip(sets, values.expressions, strict=True)]
    select.set("expressions", [exp.Null()])
    operands, others, target = found_rows(select, placed, returning.read(), zone)
    raw: list[exp.Expression] = []
    stored = {}
    for n, (column, _) in enumerate(sets):
        computed_value, value = assigned(operands[n], exp.column(f"c{n}"), column, zone)
        raw.append(computed_value)
        stored[column.name] = not_null_sql(table, column, generate(value))
    raw += [operand.node for operand in operands[len(sets) :]]
    columns = [
        *(
            exp.column(name, table="_metadata", db=target, quoted=True)
            for name in _PLACE
        ),
        *raw,
    ]
    names = ["f", "r", *(f"c{n}" for n in range(len(raw)))]
    select.set(
        "expressions", [exp.alias_(c, n) for c, n in zip(columns, names, strict=True)]
    )
    settle(select)
    listed = [f"{text} AS v{n}" for n, text in enumerate(stored.values())]
    listed += [f"c{n} AS x{n - len(sets)}" for n in range(len(sets), len(raw))]
    query = (
        f"SELECT {', '.join(['f', 'r', *listed])} FROM ({generate(select)}) AS found"
    )
    tables = [
        OtherTable(source.name, None if source.columns is None else columns)
        for source, columns in others
    ]
    by_rows = RowWrite(query, returning.translate(resolve, tables), tuple(stored))
    return SparkWrite(table, "", tree.key.upper(), by_rows=by_rows)


def _merge_select(
    tree: exp.Update | exp.Delete,
    table: TableDef,
    keys: Sequence[ColumnDef],
    sets: Assignments,
) -> exp.Select:
    """The SELECT for the keys and the new values of the rows that a statement changes."""
    alias = tree.this.alias or table.name
    items = [
        *(exp.column(key.name, table=alias, quoted=True) for key in keys),
        *(value.copy() for _, value in sets),
    ]
    select = exp.Select(
        expressions=[
            exp.Alias(this=item, alias=exp.to_identifier(f"c{place}"))
            for place, item in enumerate(items)
        ]
    )
    select = select.from_(tree.this.copy())
    for joined in joined_tables(tree):
        select = select.join(joined.copy(), join_type="cross")
    for name in ("where", "with_", "with"):
        if tree.args.get(name) is not None:
            select.set(name, tree.args[name].copy())
    return select


def _one_per_key(rows: str, names: Sequence[str], keys: int) -> str:
    key, values = ", ".join(names[:keys]), names[keys:]
    if not values:
        return f"(SELECT DISTINCT {key} FROM {rows}) AS src"
    first_values = f"first(struct({', '.join(values)})) AS one"
    items = ", ".join([*names[:keys], *(f"one.{name} AS {name}" for name in values)])
    grouped = f"(SELECT {key}, {first_values} FROM {rows} GROUP BY {key})"
    return f"(SELECT {items} FROM {grouped}) AS src"


def _column_node(column: ColumnDef) -> exp.Column:
    return exp.column(column.name, quoted=True)
