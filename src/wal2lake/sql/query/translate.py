"""Translates PostgreSQL queries on lake tables to Spark SQL. Pure.

Comes in: SQL text, parameters, table definitions. Goes out: Spark SQL and the columns of the
result. sqlglot parses and prints both dialects. The rest is done on sqlglot's tree: this module
replaces table names by Delta tables and their versions, folds identifiers as PostgreSQL does and
puts in the values of parameters; ``analysis`` finds the names and types of result columns and
translates operators and functions according to the types of their operands.

Called by: the backend of a client session, once per statement.
Source: PostgreSQL manual, 4.1.1 (folding), 7.3.2 and 10.5 (names and types of results).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.optimizer.normalize_identifiers import normalize_identifiers

from wal2lake.catalog import TableDef
from wal2lake.errors import FeatureNotSupportedError, SqlSyntaxError, UsageError
from wal2lake.model import DATABASE
from wal2lake.pgtypes.registry.pg_type import type_by_oid
from wal2lake.pgtypes.registry.type_names import parse_type_name
from wal2lake.sql.grammar.lexer import readable_by_sqlglot
from wal2lake.sql.grammar.quoting import NAME_BYTES, truncate_identifier
from wal2lake.sql.query.analysis.expressions import PARAMETER_MARK, PARAMETER_TEXT
from wal2lake.sql.query.analysis.functions.calls import OWN_NAMES
from wal2lake.sql.query.analysis.queries import analyse
from wal2lake.sql.query.analysis.scopes import Columns
from wal2lake.sql.query.analysis.sources import TABLE_MARK
from wal2lake.sql.query.dialect import LakeDialect
from wal2lake.sql.query.plain import PlainQuery, plain_query
from wal2lake.sql.query.qualified import cut_schemas
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.types import Type
from wal2lake.sql.query.values.undetermined import (
    Undetermined,
    determine,
    placeholder,
)

_NARROW_MARK: Final = "wal2lake_narrow"


@dataclass(frozen=True, slots=True)
class TableRef:
    """The table and version that a table name stands for in one statement."""

    table: TableDef
    version: int | None
    """The Delta version to read. None: the newest, for tables that no subscription writes."""
    narrows: bool = False
    """True if a foreign writer has given the files other columns, or another order of columns."""


Resolver = Callable[[str | None, str], TableRef]
"""Finds the table for a schema (or None) and a name; raises 42P01 if there is none."""


@dataclass(frozen=True, slots=True)
class BoundParameter:
    """A bound parameter: its text form and its type OID (0: unknown)."""

    text: str | None
    type_oid: int
    undetermined: Undetermined | None = None
    """Set while the parameter's type is being inferred; ``text`` is then None."""


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """One column of the result, as PostgreSQL describes it."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class SparkQuery:
    """A query for Spark."""

    sql: str
    columns: tuple[ResultColumn, ...] | None
    """The columns of the result. None if the types of a table's columns are not known."""
    tables: tuple[TableRef, ...]
    plain: PlainQuery | None = None
    """The plain query if the files of one table suffice, or None."""


_NTZ: Final = exp.DataType.Type.TIMESTAMPNTZ
_LTZ: Final = exp.DataType.Type.TIMESTAMPTZ

# Types of bound parameters that are cast in Spark SQL. Parameters of other types are text, which
# Spark converts by context, as PostgreSQL does with an unknown literal.
_PARAMETER_TYPES: Final = {
    16: "boolean",
    20: "bigint",
    21: "smallint",
    23: "int",
    700: "float",
    701: "double",
    1082: "date",
    1114: "timestamp_ntz",
    1184: "timestamp",
}


def parse(sql: str) -> exp.Expression:
    """Parse one statement and fold its identifiers; raises 42601 if sqlglot cannot parse it."""
    try:
        trees = [
            x
            for x in sqlglot.parse(readable_by_sqlglot(sql), read=LakeDialect)
            if x is not None
        ]
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        near = str(first.get("highlight") or "").strip()
        if near == "$":
            near += _leading_digits(str(first.get("end_context") or ""))
        text = f'syntax error at or near "{near}"' if near else "syntax error"
        raise SqlSyntaxError(text) from None
    except SqlglotError:
        raise SqlSyntaxError("syntax error") from None
    if len(trees) != 1:
        raise SqlSyntaxError(
            "cannot insert multiple commands into a prepared statement"
        )
    tree: exp.Expression = normalize_identifiers(trees[0], dialect="postgres")
    cut_identifiers(tree)
    return tree


def _leading_digits(text: str) -> str:
    return text[: len(text) - len(text.lstrip("0123456789"))]


def cut_identifiers(tree: exp.Expression) -> None:
    """Cut long identifiers as PostgreSQL does, in place."""
    for name in tree.find_all(exp.Identifier):
        if len(name.name) * 4 > NAME_BYTES:
            name.set("this", truncate_identifier(name.name))


def translate_query(
    sql: str,
    resolve: Resolver,
    parameters: Sequence[BoundParameter] = (),
    zone: str = "UTC",
) -> SparkQuery:
    """Translate a SELECT, VALUES, WITH or TABLE; ``zone`` is the session's TimeZone."""
    tree = parse(sql)
    refs = place_tables(tree, resolve)
    result_columns = prepare(tree, parameters, zone)
    columns = None
    if result_columns is not None:
        columns = tuple(ResultColumn(name, kind) for name, kind in result_columns)
    plain = plain_query(tree, refs[0].table) if len(refs) == 1 else None
    return SparkQuery(generate(tree), columns, tuple(refs), plain)


def computes(sql: str) -> bool:
    """Whether a query without relations calls a function that this package knows by name."""
    try:
        tree = parse(sql)
    except SqlSyntaxError:
        return False
    if any(isinstance(x.this, exp.Identifier) for x in tree.find_all(exp.Table)):
        return False
    return any(c.name.upper() in OWN_NAMES for c in tree.find_all(exp.Anonymous))


def place_tables(tree: exp.Expression, resolve: Resolver) -> list[TableRef]:
    """Replace every table name by its Delta path and version, keeping its alias."""
    refs: list[TableRef] = []
    entries: dict[str, set[str | None]] = {}
    for select_from in list(tree.find_all(exp.Table)):
        if not isinstance(select_from.this, exp.Identifier):
            continue
        name = select_from.name
        schema = schema_named(select_from)
        schemas = entries.setdefault(select_from.alias or name, set())
        if schema is None and name in _visible_ctes(select_from):
            continue
        ref = resolve(schema, name)
        schemas.add(ref.table.namespace)
        refuse_only(select_from, ref.table)
        select_from.set("only", None)
        refs.append(ref)
        if not select_from.alias and not isinstance(
            select_from.parent, (exp.Insert, exp.Delete, exp.Update)
        ):
            select_from.set(
                "alias", exp.TableAlias(this=exp.to_identifier(name, quoted=True))
            )
        _point_at(select_from, ref)
    # The alias that was set above stands for schema.table as well.
    cut_schemas(tree, entries)
    return refs


def schema_named(table: exp.Table) -> str | None:
    """The schema before a table's name; raises 0A000 for a table of another database."""
    if table.catalog and table.catalog != DATABASE:
        reference = f"{table.catalog}.{table.db}.{table.name}"
        raise FeatureNotSupportedError(
            f'cross-database references are not implemented: "{reference}"'
        )
    return table.db or None


def refuse_only(node: exp.Table, table: TableDef) -> None:
    """Raise 0A000 for ONLY with a partitioned table: all of its rows are in its partition."""
    if node.args.get("only") and table.partition_key is not None:
        raise FeatureNotSupportedError(
            f'ONLY is not supported for "{table.name}", which is partitioned',
            hint="Leave ONLY out: all rows are in the partition.",
        )


def _point_at(node: exp.Table, ref: TableRef) -> None:
    node.set("this", exp.to_identifier(ref.table.location, quoted=True))
    node.set("db", exp.to_identifier("delta"))
    node.set("catalog", None)
    node.meta[TABLE_MARK] = ref.table
    node.meta[_NARROW_MARK] = ref.narrows
    if ref.version is not None:
        node.set(
            "version",
            exp.Version(
                this="VERSION",
                kind="AS OF",
                expression=exp.Literal.number(ref.version),
            ),
        )


def _narrow(node: exp.Table) -> None:
    """Replace a table by a query for the columns of its definition, in their order."""
    table = node.meta[TABLE_MARK]
    inner = node.copy()
    inner.set("alias", None)
    columns = [exp.column(c.name, quoted=True) for c in table.columns]
    query = exp.select(*columns).from_(inner)
    node.replace(exp.Subquery(this=query, alias=node.args.get("alias")))


def _visible_ctes(node: exp.Expression) -> set[str]:
    names: set[str] = set()
    ancestor: exp.Expression | None = node
    while ancestor is not None:
        with_ = ancestor.args.get("with_") or ancestor.args.get("with")
        if with_ is not None:
            names.update(cte.alias for cte in with_.expressions)
        ancestor = ancestor.parent
    return names


def prepare(
    tree: exp.Expression, parameters: Sequence[BoundParameter], zone: str = "UTC"
) -> Columns | None:
    """Translate a query whose tables are replaced already; return the columns of its result."""
    bind(tree, parameters)
    columns = analyse(tree, zone)
    settle(tree)
    return columns


def bind(tree: exp.Expression, parameters: Sequence[BoundParameter]) -> None:
    """Replace the parameters by their values; raises 42P02 for a parameter without a value."""
    for node in list(tree.find_all(exp.Parameter, exp.Placeholder)):
        number = _parameter_number(node)
        if number is None or number > len(parameters):
            raise SqlSyntaxError(
                f"there is no parameter ${number or '?'}", sqlstate="42P02"
            )
        node.replace(_marked(parameters[number - 1]))


def settle(tree: exp.Expression) -> None:
    """Adapt FETCH, LIMIT, timestamp types and locks to Spark's dialect, in place.

    Called once the expressions are Spark's.
    """
    for fetch in list(tree.find_all(exp.Fetch, exp.Limit)):
        options = fetch.args.get("limit_options")
        for word in ("with_ties", "percent"):
            if options is not None and options.args.get(word):
                # The analysis has already replaced WITH TIES of a SELECT by a rank.
                raise t.refuse(f"{word.replace('_', ' ').upper()} here")
        if isinstance(fetch, exp.Limit):
            continue
        count = fetch.args.get("count") or exp.Literal.number(1)
        fetch.replace(exp.Limit(expression=count.copy()))
    for bound in list(tree.find_all(exp.Limit, exp.Offset)):
        count = bound.expression
        if isinstance(count, exp.Var) and count.name.upper() == "ALL":
            bound.pop()
        elif isinstance(_uncast(count), exp.Null):
            # LIMIT NULL is no limit. A parameter is NULL while the query is being described.
            determine(_uncast(count), _cast_to(count) or t.INT8)
            bound.pop()
        elif isinstance(_uncast(count), exp.Literal) and _uncast(count).name.isdigit():
            bound.set("expression", exp.Literal.number(_uncast(count).name))
        elif not isinstance(count, exp.Literal):
            bound.set("expression", exp.cast(count, exp.DataType.Type.INT))
    for kind in list(tree.find_all(exp.DataType)):
        if kind.this == exp.DataType.Type.TIMESTAMP:
            kind.set("this", _NTZ)
        elif kind.this in (
            exp.DataType.Type.TIMESTAMPTZ,
            exp.DataType.Type.TIMESTAMPLTZ,
        ):
            kind.set("this", exp.DataType.Type.TIMESTAMPLTZ)
    for table in list(tree.find_all(exp.Table)):
        if table.meta.get(_NARROW_MARK):
            _narrow(table)
    for lock in list(tree.find_all(exp.Lock)):
        lock.pop()


def _cast_to(node: exp.Expression) -> int:
    """The innermost type to which a constant is cast; 0 without a cast."""
    inner = node.unnest()
    if not isinstance(inner, exp.Cast):
        return 0
    return _cast_to(inner.this) or int(parse_type_name(inner.to.sql("postgres"))[0])


def _uncast(node: exp.Expression) -> exp.Expression:
    while isinstance(node, (exp.Cast, exp.Paren)):
        node = node.this
    return node


def _parameter_number(node: exp.Expression) -> int | None:
    inner: Any = node.this
    text = inner.name if isinstance(inner, exp.Expression) else str(inner)
    return int(text) if text.isdigit() else None


_UNTYPED: Final = (0, t.UNKNOWN)
"""A parameter whose type is one of these gets its type from the context, as literals do."""


def _marked(parameter: BoundParameter) -> exp.Expression:
    """The parameter's value, marked with the type that the client gave."""
    if parameter.undetermined is not None:
        return placeholder(parameter.undetermined)
    node = _bound(parameter)
    oid = parameter.type_oid
    if oid not in _UNTYPED and type_by_oid(oid) is not None:
        node.meta[PARAMETER_MARK] = oid
        node.meta[PARAMETER_TEXT] = parameter.text
    return node


def _bound(parameter: BoundParameter) -> exp.Expression:
    if parameter.text is None:
        return exp.Null()
    literal = exp.Literal.string(parameter.text)
    if parameter.type_oid == 16:
        return exp.Boolean(this=parameter.text[:1] in "tTyY1")
    spark_type = _PARAMETER_TYPES.get(parameter.type_oid)
    if spark_type is not None:
        return exp.cast(literal, exp.DataType.build(spark_type, dialect="spark"))
    if parameter.type_oid == 1700:
        return exp.Literal.number(parameter.text)
    if parameter.type_oid == 2950:
        return exp.Literal.string(_uuid(parameter.text))
    if parameter.type_oid == 17:
        return exp.HexString(this=parameter.text.removeprefix("\\x"))
    return literal


def _uuid(text: str) -> str:
    """A uuid in the lake's form. A client may leave out the hyphens."""
    try:
        return str(UUID(text))
    except ValueError:
        raise UsageError(
            f'invalid input syntax for type uuid: "{text}"', sqlstate="22P02"
        ) from None


def generate(tree: exp.Expression) -> str:
    """Print a tree as Spark SQL; raises 0A000 if sqlglot cannot."""
    try:
        return str(tree.sql(dialect="spark"))
    except SqlglotError:
        raise FeatureNotSupportedError("the statement is not supported") from None
