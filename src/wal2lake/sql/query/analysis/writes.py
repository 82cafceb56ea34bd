"""Analyses the expressions of INSERT, UPDATE and DELETE, and assigns values to columns.

Comes in: trees whose table nodes have their definitions, and the target columns. Goes out: trees in
Spark's terms whose values have the types of the columns. Called by ``query.writes``.

Sources: PostgreSQL manual, INSERT, UPDATE, DELETE; 10.4 (Value Storage); transformInsertStmt
and transformUpdateTargetList in analyze.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.errors import UsageError
from wal2lake.sql.query.analysis import shapes
from wal2lake.sql.query.analysis.expressions import PARAMETER_MARK
from wal2lake.sql.query.analysis.queries import QueryAnalysis
from wal2lake.sql.query.analysis.scopes import Columns, FromItem, Scope
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.assign import assign
from wal2lake.sql.query.values.types import Operand

SUBQUERIES: Final = "wal2lake subqueries"
"""The qualifier of values that ``merged_values`` leaves to another query."""

_CONSTANTS: Final = (
    exp.Literal,
    exp.Null,
    exp.Boolean,
    exp.HexString,
    exp.Cast,
    exp.Neg,
    exp.Paren,
    exp.Array,
    exp.DataType,
    exp.DataTypeParam,
    exp.Identifier,
)
"""Nodes that Spark always allows in a VALUES list. It does not allow all other expressions."""

_MARK: Final = "wal2lake_constant"
"""Key in the ``meta`` of a constant whose type is that of its column."""


def stored_rows(
    source: exp.Expression, columns: Sequence[ColumnDef], zone: str, listed: bool
) -> tuple[exp.Expression, int]:
    """Rewrite the source of an INSERT as a query whose columns have the table's types.

    ``listed`` is true if the statement names its columns, and so must have a value for each.
    Return the query and the number of ``columns`` that it fills. Raises 42601, 42804 and the errors
    of ``assign``.
    """
    queries = QueryAnalysis(zone, source)
    if isinstance(source, exp.Values):
        return _stored_values(queries, source, columns, zone, listed)
    if isinstance(source, exp.Select):
        _mark_constants(source)
    source_columns = queries.query(source, Scope())
    if source_columns is None:
        raise t.refuse("INSERT from a query whose columns are not known")
    width = _checked_width(len(source_columns), columns, listed)
    _settle_constants(source, source_columns, columns, zone)
    names = [f"c{place}" for place in range(width)]
    items = [
        assign(
            Operand(exp.column(names[place]), source_columns[place][1]),
            columns[place].name,
            t.of_column(columns[place]),
            zone,
        ).node
        for place in range(width)
    ]
    inner = exp.Subquery(
        this=source.copy(),
        alias=exp.TableAlias(
            this=exp.to_identifier("given"),
            columns=[exp.to_identifier(name) for name in names],
        ),
    )
    return exp.Select(expressions=items).from_(inner), width


def stored_value(value: exp.Expression, column: ColumnDef, zone: str) -> exp.Expression:
    """Translate an expression without columns, such as a default, and assign it to a column."""
    value = value.copy()
    operand = QueryAnalysis(zone, value).expressions.visit(value, Scope())
    return assign(operand, column.name, t.of_column(column), zone).node


def rewrite_write(
    node: exp.Update | exp.Delete, table: TableDef, zone: str
) -> list[tuple[ColumnDef, exp.Expression]]:
    """Translate the condition of an UPDATE or DELETE in place; return an UPDATE's new values."""
    queries = QueryAnalysis(zone, node)
    target = queries.sources.source(node.this, Scope(), rename=False)
    # The node's name has been replaced by the table's location.
    name = node.this.alias or table.name
    scope = Scope(sources=[FromItem(name, target.columns, name)])
    values = []
    for item in node.expressions if isinstance(node, exp.Update) else ():
        column = table.column(item.this.name)
        assert column is not None
        value = queries.expressions.visit(item.expression, scope)
        stored = assign(value, column.name, t.of_column(column), zone)
        values.append((column, stored.node))
    where = node.args.get("where")
    if where is not None:
        queries.expressions.condition(where, "this", scope, "WHERE")
    return values


def found_rows(
    select: exp.Select,
    sets: Sequence[tuple[ColumnDef, exp.Expression]],
    read: Sequence[exp.Column],
    zone: str,
) -> tuple[list[Operand], list[tuple[FromItem, Columns]], str]:
    """Translate FROM and WHERE of an UPDATE or DELETE that reads other tables, in place.

    ``select`` is the statement as a query whose first table is the one to be changed; ``read`` are
    the columns that RETURNING names, ``*`` included. Return the new values, not yet as their
    columns store them, and then the columns of other tables among ``read``; these columns by table;
    and the changed table's name in Spark.
    """
    shapes.check(select)
    queries = QueryAnalysis(zone, select)
    visible = queries.visible(select, Scope())
    scope = Scope(outer=visible)
    queries.sources.of_select(select, scope, visible)
    where = select.args.get("where")
    if where is not None:
        queries.expressions.condition(where, "this", scope, "WHERE")
    items = [queries.expressions.visit(value.copy(), scope) for _, value in sets]
    target, *others = scope.sources
    tables: list[tuple[FromItem, Columns]] = []
    for other in others:
        columns: Columns | None = other.columns
        if columns is not None:
            columns = [(n, k) for n, k in columns if _names(read, other.name, n)]
            items += [
                Operand(
                    exp.Column(
                        this=exp.to_identifier(name, quoted=True),
                        table=exp.to_identifier(other.spark_name, quoted=True),
                    ),
                    kind,
                )
                for name, kind in columns
            ]
        tables.append((other, columns or []))
    return items, tables, target.spark_name


def assigned(
    operand: Operand, computed_column: exp.Column, column: ColumnDef, zone: str
) -> tuple[exp.Expression, exp.Expression]:
    """Return a value as a query computes it, and as the column stores it.

    The stored value reads ``computed_column``, the column of that query.

    Spark does not allow a subquery in each place where an assignment would put it.
    """
    kind = t.of_column(column)
    if operand.node.find(exp.Query) is None:
        return assign(operand, column.name, kind, zone).node, computed_column
    raw = operand.node
    return raw, assign(
        Operand(computed_column, operand.type), column.name, kind, zone
    ).node


def merged_values(
    select: exp.Select,
    columns: Sequence[ColumnDef],
    sources: Sequence[FromItem],
    zone: str,
) -> list[exp.Expression]:
    """Translate the values of DO UPDATE in place.

    The list of ``select`` has a value for each of ``columns``, and then a condition if there is
    one. ``sources`` are the row that is there and the row that could not be inserted. Return the
    values that a query has to compute before; the list has them as columns g0.. of
    ``SUBQUERIES``.
    """
    queries = QueryAnalysis(zone, select)
    scope = Scope(sources=list(sources))
    items: list[exp.Expression] = []
    first: list[exp.Expression] = []
    for column, value in zip(columns, list(select.expressions), strict=False):
        operand = queries.expressions.visit(value, scope)
        name = exp.column(f"g{len(first)}", table=SUBQUERIES, quoted=True)
        raw, stored = assigned(operand, name, column, zone)
        if stored is name:
            stored = raw
        else:
            first.append(raw)
        items.append(stored)
    if len(select.expressions) > len(columns):
        condition = exp.Where(this=select.expressions[-1])
        queries.expressions.condition(condition, "this", scope, "WHERE")
        # A value is computed only if its row is updated.
        items = [
            exp.Case(ifs=[exp.If(this=condition.this.copy(), true=item)])
            for item in items
        ]
        items.append(condition.this)
    select.set("expressions", items)
    return first


def _names(read: Sequence[exp.Column], table: str, name: str) -> bool:
    return any(
        (not column.table or column.table == table)
        and (isinstance(column.this, exp.Star) or column.name == name)
        for column in read
    )


def _checked_width(width: int, columns: Sequence[ColumnDef], listed: bool) -> int:
    if width > len(columns):
        raise UsageError(
            "INSERT has more expressions than target columns", sqlstate="42601"
        )
    if listed and width < len(columns):
        raise UsageError(
            "INSERT has more target columns than expressions", sqlstate="42601"
        )
    return width


def _stored_values(
    queries: QueryAnalysis,
    source: exp.Values,
    columns: Sequence[ColumnDef],
    zone: str,
    listed: bool,
) -> tuple[exp.Expression, int]:
    widths = {len(row.expressions) for row in source.expressions}
    if len(widths) != 1:
        raise UsageError("VALUES lists must all be the same length", sqlstate="42601")
    width = _checked_width(widths.pop(), columns, listed)
    kinds = [t.of_column(column) for column in columns[:width]]
    for row in source.expressions:
        cells = [
            assign(
                queries.expressions.visit(cell, Scope()), column.name, kind, zone
            ).node
            for cell, column, kind in zip(
                row.expressions, columns[:width], kinds, strict=True
            )
        ]
        row.set("expressions", cells)
    if all(
        isinstance(node, (exp.Tuple, *_CONSTANTS))
        for row in source.expressions
        for node in row.walk()
    ):
        return source, width
    rows = [exp.Select(expressions=row.expressions) for row in source.expressions]
    whole: exp.Expression = rows[0]
    for select in rows[1:]:
        whole = exp.Union(this=whole, expression=select, distinct=False)
    return whole, width


def _settle_constants(
    source: exp.Expression,
    source_columns: Columns,
    columns: Sequence[ColumnDef],
    zone: str,
) -> None:
    """Give the literals of a select list the types of their target columns."""
    if not isinstance(source, exp.Select):
        return
    literals = [e for e in source.expressions if _MARK in e.unalias().meta]
    places = [i for i, (_, kind) in enumerate(source_columns) if kind.oid == t.UNKNOWN]
    if len(literals) != len(places):
        raise t.refuse("a constant without a type beside * in INSERT ... SELECT")
    for item, place in zip(literals, places, strict=True):
        if place >= len(columns):
            continue
        value = item.unalias()
        kind = t.of_column(columns[place])
        stored = assign(
            Operand(value.copy(), t.LITERAL), columns[place].name, kind, zone
        )
        value.replace(stored.node)
        source_columns[place] = (source_columns[place][0], kind)


def _mark_constants(source: exp.Select) -> None:
    """Mark the untyped constants of a select list, before the analysis casts other constants."""
    for item in source.expressions:
        value = item.unalias()
        while isinstance(value, exp.Paren):
            value = value.this
        is_text = isinstance(value, exp.Literal) and value.is_string
        if PARAMETER_MARK not in value.meta and (
            is_text or isinstance(value, (exp.Null, exp.ByteString))
        ):
            value.meta[_MARK] = True
