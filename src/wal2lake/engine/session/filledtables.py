"""CREATE TABLE AS and SELECT INTO: the definition of the table, and the INSERT that fills it.

Takes the statement and the columns of its query; returns a CREATE TABLE and an INSERT. Both are
parts of the statement's transaction. Called by ``lakebackend``.

Source: create_ctas_internal() and ExecCreateTableAs() in createas.c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from wal2lake.catalog import TableDef
from wal2lake.commands.constraints.keyconstraints import is_taken
from wal2lake.errors import (
    DuplicateObjectError,
    FeatureNotSupportedError,
    SqlSyntaxError,
    UndefinedObjectError,
    UsageError,
)
from wal2lake.local.node import Caller, find_table, target_schema
from wal2lake.local.ports import HasCatalog
from wal2lake.model import Oid
from wal2lake.pgtypes.keywords import quote_identifier
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar.explaining import Explain
from wal2lake.sql.grammar.lexer import Token, TokenKind, tokens
from wal2lake.sql.grammar.options import clustering_columns, partition_columns
from wal2lake.sql.grammar.statements import ColumnClause, CreateTable
from wal2lake.sql.grammar.tableas import CreateTableAs
from wal2lake.wire.frontback import FieldDescription


class PreparedQuery(Protocol):
    """A query that has been analysed."""

    @property
    def system(self) -> bool:
        """Whether the embedded SQL engine answers it."""
        ...

    @property
    def fields(self) -> Sequence[FieldDescription] | None:
        """The columns of its result."""
        ...


def create_as(
    view: Callable[[], HasCatalog],
    caller: Caller,
    statement: CreateTableAs,
    prepare: Callable[[str], PreparedQuery],
    define: Callable[[CreateTable], object],
    write: Callable[[str], str],
) -> str:
    """Make and fill the table; returns the command tag.

    ``view``: returns the node as the transaction sees it. ``define``: carries CREATE TABLE out.
    ``write``: carries an INSERT out, returns its tag."""
    if is_there(view(), caller, statement):
        return "CREATE TABLE AS"
    with places_in_query(statement):
        query = prepare(statement.query)
        definition = _definition_of(statement, query.fields or ())
    before = _named_alike(view(), caller, statement)
    define(definition)
    if not statement.with_data:
        return "CREATE TABLE AS"
    try:
        tag = write(_filling(view(), caller, statement, before))
    except UndefinedObjectError as error:
        if query.system and error.sqlstate == "42P01":
            raise FeatureNotSupportedError(
                "CREATE TABLE AS with a query of system views is not supported"
            ) from error
        raise
    return f"SELECT {tag.rpartition(' ')[2]}"


def is_there(node: HasCatalog, caller: Caller, statement: CreateTableAs) -> bool:
    """Whether the table exists, which IF NOT EXISTS only notices; 42P07 without it."""
    name = statement.table.name
    schema = target_schema(node.catalog, caller, statement.table.schema)
    if not is_taken(node.catalog, schema, name):
        return False
    text = f'relation "{name}" already exists'
    if not statement.if_not_exists:
        raise DuplicateObjectError(text, sqlstate="42P07")
    caller.notice(Notice(f"{text}, skipping", sqlstate="42P07"))
    return True


@contextmanager
def places_in_query(statement: CreateTableAs | Explain) -> Iterator[None]:
    """Let the position of an error in the query count from the statement's start."""
    try:
        yield
    except UsageError as error:
        if error.position:
            error.position += statement.query_start
        raise


def _definition_of(
    statement: CreateTableAs, fields: Sequence[FieldDescription]
) -> CreateTable:
    """Return the definition of the table, whose columns are those of the query."""
    if len(statement.columns) > len(fields):
        raise SqlSyntaxError("too many column names were specified")
    names = [field.name for field in fields]
    names[: len(statement.columns)] = statement.columns
    for number, name in enumerate(names):
        if name in names[:number]:
            raise UsageError(
                f'column "{name}" specified more than once', sqlstate="42701"
            )
    return CreateTable(
        statement.table,
        tuple(
            ColumnClause(name, Oid(field.type_oid), field.typmod)
            for name, field in zip(names, fields, strict=True)
        ),
        parameters=statement.parameters,
        partition_columns=partition_columns(statement.parameters, names),
        clustering=clustering_columns(statement.parameters, names),
    )


def _named_alike(
    node: HasCatalog, caller: Caller, statement: CreateTableAs
) -> TableDef | None:
    """Return the table that the new table's bare name means."""
    return find_table(node.catalog, caller, None, statement.table.name)


def _filling(
    node: HasCatalog,
    caller: Caller,
    statement: CreateTableAs,
    before: TableDef | None,
) -> str:
    """Return the INSERT that fills the new table. ``before``: what its bare name meant before."""
    name = statement.table.name
    schema = target_schema(node.catalog, caller, statement.table.schema)
    hides = before is not None and _named_alike(node, caller, statement) != before
    if hides and _names(statement.query, name):
        raise FeatureNotSupportedError(
            f'the query of CREATE TABLE AS may read another table named "{name}"',
            hint="Write the schema of the table that the query reads.",
        )
    target = f"{quote_identifier(schema)}.{quote_identifier(name)}"
    return f"INSERT INTO {target} {statement.query}"


def _names(query: str, name: str) -> bool:
    """Whether a query has the bare name."""
    before: Token | None = None
    for token in tokens(query):
        is_name = token.kind in (TokenKind.WORD, TokenKind.QUOTED)
        is_bare = before is None or not before.is_mark(".")
        if is_name and is_bare and token.value == name:
            return True
        before = token
    return False
