"""Describes how the node answers a query or carries out a write.

Comes in: a translated statement whose names are resolved. Goes out: a tree of ``PlanNode``. Called
by ``lakebackend`` for EXPLAIN; nothing is executed, and no file of a table is opened.

    File Scan       this node reads the table's files; with the files that statistics exclude
    Row Count       the number of rows is in the table's log
    Catalog Query   the embedded engine answers from the catalog
    Spark           Spark executes the steps below it
    ModifyTable     a write; the rows come from the step below it

A large result of a File Scan may still be Spark's when it runs: its size is known only then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote, urlsplit

from wal2lake.catalog import TableDef
from wal2lake.engine.rows.plainanswers import plain_way
from wal2lake.engine.session.explain.rendering import PlanNode, PlanProperty
from wal2lake.lake.plain import PlainChange, PlainRead
from wal2lake.lake.spark import EnginePlan
from wal2lake.local.ports import HasQueries
from wal2lake.sql.grammar import quote_identifier, quote_literal
from wal2lake.sql.grammar.explaining import ExplainOptions
from wal2lake.sql.query.changes.stored import SparkWrite
from wal2lake.sql.query.matching import bounds
from wal2lake.sql.query.plain import (
    Condition,
    Operator,
    PlainInsert,
    PlainQuery,
    PlainWrite,
)
from wal2lake.sql.query.translate import SparkQuery, TableRef


def catalog_plan(relations: Sequence[str]) -> PlanNode:
    """Return the plan of a query that the embedded engine answers."""
    scans = tuple(
        _node("Catalog Scan", PlanProperty("Relation Name", name, False), on=name)
        for name in relations
    )
    return _node("Catalog Query", children=scans)


def query_plan(
    node: HasQueries, query: SparkQuery, options: ExplainOptions
) -> PlanNode:
    """Return the plan of a query on lake tables."""
    plain = query.plain
    way = None if plain is None else plain_way(node.tables, query, plain)
    if plain is None or way is None:
        return _spark(node, query.sql, query.tables, options)
    ref = query.tables[0]
    if way.counts:
        return _node("Row Count", *_table(ref, options), on=_shown(ref, options))
    sizes = (way.read.files, way.listed, way.read.size, way.read.rows)
    scan = _file_scan(ref, options, plain.condition, sizes)
    return _above(plain, scan)


def write_plan(
    node: HasQueries, write: SparkWrite, ref: TableRef, options: ExplainOptions
) -> PlanNode:
    """Return the plan of a write. ``ref``: the table and version that it reads."""
    verb = write.verb.capitalize()
    name = _shown(ref, options)
    properties = [
        PlanProperty("Node Type", "ModifyTable", in_text=False),
        PlanProperty("Operation", verb, in_text=False),
        *_table(ref, options, versioned=False),
    ]
    by_rows = write.by_rows
    conflict = None if by_rows is None else by_rows.conflict
    if conflict is not None:
        resolution = "NOTHING" if conflict.values is None else "UPDATE"
        properties.append(PlanProperty("Conflict Resolution", resolution))
    child = _rows_of(node, write, ref, options)
    return PlanNode(f"{verb} on {name}", tuple(properties), (child,))


def _rows_of(
    node: HasQueries, write: SparkWrite, ref: TableRef, options: ExplainOptions
) -> PlanNode:
    """Return the step that gives the rows of a write."""
    plain = write.plain
    if isinstance(plain, PlainInsert):
        count = PlanProperty("Rows", len(plain.rows))
        return _node("Values Scan", count)
    if isinstance(plain, PlainWrite):
        scan = _changed(node, ref, plain, options)
        if scan is not None:
            return scan
    sql = write.sql if write.by_rows is None else write.by_rows.query
    return _spark(node, sql, (ref,), options)


def _changed(
    node: HasQueries, ref: TableRef, plain: PlainWrite, options: ExplainOptions
) -> PlanNode | None:
    """Return the scan for the rows of an UPDATE or DELETE; None if Spark finds them."""
    location, condition = ref.table.location, plain.condition
    limits = {} if condition is None else bounds(condition)
    change = PlainChange.of(node.tables, location, limits)
    first = ref.table.columns[0].name
    listed = PlainRead.of(node.tables, location, None, [first])
    if change is None or listed is None:
        return None
    sizes = (change.files, listed.files, change.size, None)
    return _file_scan(ref, options, condition, sizes)


# ---- the node's own steps --------------------------------------------------------------


def _file_scan(
    ref: TableRef,
    options: ExplainOptions,
    condition: Condition | None,
    sizes: tuple[int, int | None, int, int | None],
) -> PlanNode:
    """Return a scan. ``sizes``: files to read, files of the version, bytes, rows if known."""
    files, listed, size, rows = sizes
    properties = list(_table(ref, options))
    if condition is not None:
        properties.append(PlanProperty("Filter", condition_text(condition)))
    properties += _files(options, files, listed, size, rows)
    return _node("File Scan", *properties, on=_shown(ref, options))


def _files(
    options: ExplainOptions, files: int, listed: int | None, size: int, rows: int | None
) -> list[PlanProperty]:
    properties = [PlanProperty("Files", files)]
    if listed is not None:
        properties.append(PlanProperty("Skipped Files", listed - files))
    if options.costs:
        properties.append(PlanProperty("Bytes", size))
        if rows is not None:
            properties.append(PlanProperty("Stored Rows", rows))
    return properties


def _above(plain: PlainQuery, scan: PlanNode) -> PlanNode:
    """Return the scan with the steps that its query has above it."""
    plan = scan
    if plain.aggregates:
        calls = tuple(
            f"{a.function.value}({'*' if a.column is None else quote_identifier(a.column)})"
            for a in plain.aggregates
        )
        plan = _node("Aggregate", PlanProperty("Output", calls), children=(plan,))
    if plain.order:
        keys = tuple(
            quote_identifier(key.column)
            + (" DESC" if key.descending else "")
            + _nulls(key.descending, key.nulls_first)
            for key in plain.order
        )
        plan = _node("Sort", PlanProperty("Sort Key", keys), children=(plan,))
    if plain.limit is not None or plain.offset:
        plan = _node("Limit", children=(plan,))
    return plan


def _nulls(descending: bool, nulls_first: bool) -> str:
    if nulls_first == descending:
        return ""
    return " NULLS FIRST" if nulls_first else " NULLS LAST"


_JOINED: Final = {Operator.AND: " AND ", Operator.OR: " OR "}


def condition_text(condition: Condition) -> str:
    """Return a condition as PostgreSQL prints one."""
    operator = condition.operator
    if operator in _JOINED:
        return f"({_JOINED[operator].join(map(condition_text, condition.parts))})"
    if operator is Operator.NOT:
        return f"(NOT {condition_text(condition.parts[0])})"
    column = quote_identifier(condition.column)
    if operator is Operator.IS_NULL:
        return f"({column} IS NULL)"
    values = [
        quote_literal(value) if isinstance(value, str) else str(value)
        for value in condition.values
    ]
    if operator is Operator.IN:
        return f"({column} = ANY (ARRAY[{', '.join(values)}]))"
    return f"({column} {operator.value} {values[0]})"


# ---- Spark's steps ---------------------------------------------------------------------


def _spark(
    node: HasQueries, sql: str, refs: Sequence[TableRef], options: ExplainOptions
) -> PlanNode:
    plan = node.queries.plan(sql)
    return _node("Spark", children=(_step(plan, refs, options),))


def _step(
    plan: EnginePlan, refs: Sequence[TableRef], options: ExplainOptions
) -> PlanNode:
    children = tuple(_step(child, refs, options) for child in plan.children)
    if plan.scan is None:
        details: tuple[PlanProperty, ...] = ()
        if options.verbose and plan.arguments:
            details = (PlanProperty("Arguments", plan.arguments),)
        return _node(plan.name, *details, children=children)
    place = _path(plan.scan.location)
    ref = next((r for r in refs if _path(r.table.location) == place), None)
    properties = [] if ref is None else list(_table(ref, options))
    if plan.arguments:
        properties.append(PlanProperty("Filter", plan.arguments))
    scan = plan.scan
    properties += _files(options, scan.files, scan.listed, scan.size, None)
    name = "" if ref is None else _shown(ref, options)
    return _node("File Scan", *properties, on=name, children=children)


def _path(location: str) -> str:
    return unquote(urlsplit(location).path).rstrip("/")


# ---- nodes -----------------------------------------------------------------------------


def _node(
    kind: str,
    *properties: PlanProperty,
    on: str = "",
    children: tuple[PlanNode, ...] = (),
) -> PlanNode:
    title = f"{kind} on {on}" if on else kind
    first = PlanProperty("Node Type", kind, in_text=False)
    return PlanNode(title, (first, *properties), children)


def _table(
    ref: TableRef, options: ExplainOptions, *, versioned: bool = True
) -> list[PlanProperty]:
    table = ref.table
    properties = [PlanProperty("Relation Name", table.name, in_text=False)]
    if options.verbose:
        properties.append(PlanProperty("Schema", table.namespace, in_text=False))
    if versioned:
        version = "newest" if ref.version is None else ref.version
        properties.append(PlanProperty("Version", version))
    return properties


def _shown(ref: TableRef, options: ExplainOptions) -> str:
    """Return the table's name in the text format."""
    table: TableDef = ref.table
    name = quote_identifier(table.name)
    return f"{quote_identifier(table.namespace)}.{name}" if options.verbose else name
