"""INSERT, UPDATE, DELETE and TRUNCATE on one lake table, through Spark SQL.

The statement is rewritten so that values are stored as PostgreSQL would store them:
columns by name, defaults filled in, each value cast to its column's type, NULL refused
where the catalog says NOT NULL. Spark and Delta do the rest in one commit, which is made
durable before the command answers.

A table of a subscription is written under that subscription's lock, and its new version
is published under it, so a SELECT sees the write and never a torn vector. A table that holds
what readers must not see yet (the half of a batch, a copy that has not joined) is published
by the apply worker, with the others. From then on the
table's inserts are checked against its rows (``trusted`` is off): somebody else writes it.

Source: PostgreSQL manual, INSERT, UPDATE, DELETE, TRUNCATE; 5.5 (constraints).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp

from wal2lake.apply.worker import cursor_name
from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.errors import (
    FeatureNotSupportedError,
    UndefinedObjectError,
    UsageError,
    Wal2LakeError,
)
from wal2lake.frontend.commands.node import Caller, Node, need_table
from wal2lake.frontend.grammar.statements import Truncate
from wal2lake.frontend.query.translate import (
    Parameter,
    Resolver,
    TableRef,
    generate,
    parse,
    place_tables,
    prepare,
)
from wal2lake.lake import TableState
from wal2lake.model import Oid, SyncState
from wal2lake.pgtypes.mapping import mapping_for

_NULL_MARK: Final = "wal2lake-23502:"
"""Starts the text that Spark raises for a NULL in a NOT NULL column."""


@dataclass(frozen=True, slots=True)
class _Write:
    """A statement ready for Spark."""

    table: TableDef
    sql: str
    verb: str


def run_dml(
    node: Node,
    caller: Caller,
    sql: str,
    parameters: tuple[Parameter, ...],
    resolve: Resolver,
    job_group: str,
) -> str:
    """Execute one statement; returns its command tag."""
    tree = parse(sql)
    if isinstance(tree, exp.Insert):
        write = _insert(node, caller, tree, parameters, resolve)
    elif isinstance(tree, exp.Update):
        write = _update(node, caller, tree, parameters, resolve)
    elif isinstance(tree, exp.Delete):
        write = _delete(node, caller, tree, parameters, resolve)
    else:
        raise FeatureNotSupportedError(
            f"{tree.key.upper()} is not supported on lake tables"
        )
    count = _execute(node, write, job_group)
    return f"INSERT 0 {count}" if write.verb == "INSERT" else f"{write.verb} {count}"


def truncate(node: Node, caller: Caller, statement: Truncate, job_group: str) -> str:
    """TRUNCATE: each table in a commit of its own."""
    tables = [
        need_table(node.catalog, caller, name.schema, name.name)
        for name in statement.tables
    ]
    for table in tables:
        _execute(
            node,
            _Write(table, f"DELETE FROM {_path(table)}", "TRUNCATE"),
            job_group,
        )
    return "TRUNCATE TABLE"


# ---- execution -------------------------------------------------------------------------


def _execute(node: Node, write: _Write, job_group: str) -> int:
    table = write.table
    with ExitStack() as stack:
        subids = sorted({r.subid for r in node.catalog.rels() if r.relid == table.oid})
        for subid in subids:
            stack.enter_context(node.locks.of(subid))
        before = node.tables.state(table.location).version
        try:
            result = node.queries.run(write.sql, job_group=job_group)
            rows = [b for b in result.batches if b.num_rows]
        except Wal2LakeError as error:
            raise _translated(error, table) from None
        state = node.tables.state(table.location)
        after = state.version
        if after != before:
            node.tables.sync(table.location, after)
            for subid in subids:
                _publish(node, subid, table, state)
        if rows and "num_affected_rows" in rows[0].schema.names:
            return int(rows[0].column("num_affected_rows")[0].as_py())
        return _rows_written(node, table) if after != before else 0


def _publish(node: Node, subid: Oid, table: TableDef, state: TableState) -> None:
    """Let readers see ``state``, unless the apply worker must.

    Decided by the table's cursor, not by its version: a version that nobody has published
    may be anybody's, and would keep each later write from being seen.
    """
    # First: once the version is published nothing else tells that others wrote it.
    node.catalog.update_rel(subid, table.oid, trusted=False)
    newest = node.catalog.newest_vector(subid)
    rel = next((r for r in node.catalog.rels(subid) if r.relid == table.oid), None)
    if newest is None or rel is None:
        return
    cursor = state.cursor(cursor_name(node.catalog.system_identifier, subid, rel.epoch))
    joined = rel.state in (SyncState.SYNCDONE, SyncState.READY)
    # The vector's LSN, not the floor: a running copy holds that one below it.
    if cursor is None or (joined and cursor <= newest.lsn):
        node.catalog.publish(subid, newest.lsn, {int(table.oid): state.version})


def _rows_written(node: Node, table: TableDef) -> int:
    """Rows that the newest commit wrote, from the table's own history."""
    result = node.queries.run(
        f"DESCRIBE HISTORY {_path(table)} LIMIT 1", job_group=f"history-{table.oid}"
    )
    for batch in result.batches:
        if batch.num_rows:
            metrics = dict(batch.column("operationMetrics")[0].as_py() or {})
            return int(metrics.get("numOutputRows", 0))
    return 0


def _translated(error: Wal2LakeError, table: TableDef) -> Wal2LakeError:
    _, mark, column = error.message.partition(_NULL_MARK)
    if mark:
        name = column.split("'")[0].strip()
        return UsageError(
            f'null value in column "{name}" of relation "{table.name}" violates'
            " not-null constraint",
            sqlstate="23502",
        )
    return error


# ---- rewriting ---------------------------------------------------------------------------


def _target(node: Node, caller: Caller, tree: exp.Expression) -> TableDef:
    table = tree.find(exp.Table)
    if table is None:
        raise FeatureNotSupportedError("the statement names no table")
    return need_table(node.catalog, caller, table.db or None, table.name)


_UNDERSTOOD: Final = {
    exp.Insert: {"this", "expression", "default", "with_", "with"},
    exp.Update: {"this", "expressions", "where"},
    exp.Delete: {"this", "where"},
    exp.Table: {"this", "db", "catalog", "alias"},
}
"""What a statement's tree may hold. The parser knows more dialects than PostgreSQL's: a clause
that nobody here reads must not be left out in silence (DELETE ... LIMIT 1)."""


def _refuse_others(tree: exp.Expression) -> None:
    target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    for part in (tree, target):
        known = _UNDERSTOOD.get(type(part), set())
        for name, value in part.args.items():
            if value and name not in known:
                word = name.strip("_").replace("_", " ").upper()
                raise FeatureNotSupportedError(
                    f"{word} is not supported in {tree.key.upper()} on lake tables",
                    hint="Leave the clause out; nothing has been changed.",
                )


def _insert(
    node: Node,
    caller: Caller,
    tree: exp.Insert,
    parameters: tuple[Parameter, ...],
    resolve: Resolver,
) -> _Write:
    if tree.args.get("conflict") is not None:
        raise FeatureNotSupportedError("ON CONFLICT is not supported on lake tables")
    if tree.args.get("returning") is not None:
        raise FeatureNotSupportedError("RETURNING is not supported on lake tables")
    _refuse_others(tree)
    target = tree.this
    table = _target(node, caller, target)
    named: list[str] | None = None
    if isinstance(target, exp.Schema):
        named = [column.name for column in target.expressions]
    source = tree.expression
    if source is None:
        named, source = [], exp.Select(expressions=[exp.Null()])
    given = _columns(table, named)
    if isinstance(source, exp.Values):
        _fill_defaults(source, given)
        width = len(source.expressions[0].expressions)
        if named is None:
            given = given[:width]
        if width != len(given) and named != []:
            raise UsageError(
                "INSERT has more expressions than target columns"
                if width > len(given)
                else "INSERT has more target columns than expressions",
                sqlstate="42601",
            )
    elif named is None and isinstance(source, exp.Select) and not source.is_star:
        given = given[: len(source.expressions)]
    with_ = tree.args.get("with_") or tree.args.get("with")
    if with_ is not None and named != []:
        source = source.copy()
        source.set("with_", with_.copy())
    place_tables(source, resolve)
    prepare(source, parameters)
    inner = [f"v{i}" for i in range(max(1, len(given)))]
    positions = {column.name: i for i, column in enumerate(given)}
    items = []
    for column in table.columns:
        at = positions.get(column.name)
        text = f"src.{inner[at]}" if at is not None else _default_sql(column)
        items.append(_stored(column, text))
    sql = (
        f"INSERT INTO {_path(table)} SELECT {', '.join(items)}"
        f" FROM ({generate(source)}) AS src({', '.join(inner)})"
    )
    return _Write(table, sql, "INSERT")


def _columns(table: TableDef, named: list[str] | None) -> list[ColumnDef]:
    if named is None:
        return list(table.columns)
    found = []
    for name in named:
        column = table.column(name)
        if column is None:
            raise UndefinedObjectError(
                f'column "{name}" of relation "{table.name}" does not exist',
                sqlstate="42703",
            )
        found.append(column)
    return found


def _fill_defaults(values: exp.Values, given: list[ColumnDef]) -> None:
    """The word DEFAULT inside VALUES is the column's default expression."""
    for row in values.expressions:
        for i, value in enumerate(list(row.expressions)):
            is_default = (
                isinstance(value, (exp.Column, exp.Var))
                and value.name.lower() == "default"
                and not _quoted(value)
            )
            if is_default and i < len(given):
                default = given[i].default
                value.replace(exp.Null() if default is None else parse_expr(default))


def _quoted(node: Any) -> bool:
    inner = getattr(node, "this", None)
    return isinstance(inner, exp.Identifier) and bool(inner.args.get("quoted"))


def parse_expr(text: str) -> exp.Expression:
    """A default expression's tree."""
    tree = parse(f"SELECT {text}")
    first: exp.Expression = tree.expressions[0]
    return first.copy()


def _default_sql(column: ColumnDef) -> str:
    if column.default is None:
        return "NULL"
    tree = exp.Select(expressions=[parse_expr(column.default)])
    prepare(tree, ())
    return generate(tree).removeprefix("SELECT ")


def _stored(column: ColumnDef, text: str) -> str:
    """``text`` as the column stores it: cast, and not null where that is promised."""
    mapping = mapping_for(column.type_oid, column.typmod, type_name=column.type_name)
    value = f"CAST({text} AS {mapping.spark_ddl})"
    if mapping.spark_ddl.lower() == "binary":
        value = f"if(typeof({text}) = 'string', {_bytea(text)}, {value})"
    if column.not_null:
        mark = (_NULL_MARK + column.name).replace("\\", "\\\\").replace("'", "\\'")
        value = f"coalesce({value}, CAST(raise_error('{mark}') AS {mapping.spark_ddl}))"
    return value


def _bytea(text: str) -> str:
    """PostgreSQL's input of bytea (manual 8.4), which to Spark is the text's own bytes.
    Octal escapes are refused."""
    given = f"CAST({text} AS STRING)"
    return (
        f"CASE WHEN {given} IS NULL THEN CAST(NULL AS BINARY)"
        f" WHEN startswith({given}, '\\\\x')"
        f" THEN to_binary(substring({given}, 3), 'hex')"
        f" WHEN instr({given}, '\\\\') = 0 THEN CAST({given} AS BINARY)"
        " ELSE CAST(raise_error('invalid input syntax for type bytea') AS BINARY) END"
    )


def _update(
    node: Node,
    caller: Caller,
    tree: exp.Update,
    parameters: tuple[Parameter, ...],
    resolve: Resolver,
) -> _Write:
    _refuse(tree, "from_", "UPDATE ... FROM")
    _refuse(tree, "from", "UPDATE ... FROM")
    _refuse(tree, "returning", "RETURNING")
    _refuse_others(tree)
    table = _target(node, caller, tree.this)
    place_tables(tree, _writable(resolve, table))
    prepare(tree, parameters)
    sets = []
    for item in tree.expressions:
        name = item.this.name
        column = _columns(table, [name])[0]
        text = item.expression.sql(dialect="spark")
        if text.upper() == "DEFAULT":
            text = _default_sql(column)
        sets.append(f"`{_escaped(name)}` = {_stored(column, text)}")
    where = tree.args.get("where")
    condition = f" {where.sql(dialect='spark')}" if where is not None else ""
    alias = _escaped(tree.this.alias or table.name)
    sql = f"UPDATE {_path(table)} AS `{alias}` SET {', '.join(sets)}{condition}"
    return _Write(table, sql, "UPDATE")


def _delete(
    node: Node,
    caller: Caller,
    tree: exp.Delete,
    parameters: tuple[Parameter, ...],
    resolve: Resolver,
) -> _Write:
    _refuse(tree, "using", "DELETE ... USING")
    _refuse(tree, "returning", "RETURNING")
    _refuse_others(tree)
    table = _target(node, caller, tree.this)
    alias = _escaped(tree.this.alias or table.name)
    place_tables(tree, _writable(resolve, table))
    prepare(tree, parameters)
    where = tree.args.get("where")
    condition = f" {where.sql(dialect='spark')}" if where is not None else ""
    return _Write(
        table, f"DELETE FROM {_path(table)} AS `{alias}`{condition}", "DELETE"
    )


def _writable(resolve: Resolver, target: TableDef) -> Resolver:
    """Subqueries on the table being written see it as the write does: the newest."""

    def find(schema: str | None, name: str) -> TableRef:
        ref = resolve(schema, name)
        return TableRef(ref.table, None) if ref.table.oid == target.oid else ref

    return find


def _refuse(tree: exp.Expression, argument: str, what: str) -> None:
    if tree.args.get(argument):
        raise FeatureNotSupportedError(f"{what} is not supported on lake tables")


def _path(table: TableDef) -> str:
    return f"delta.`{_escaped(table.location)}`"


def _escaped(name: str) -> str:
    return name.replace("`", "``")
