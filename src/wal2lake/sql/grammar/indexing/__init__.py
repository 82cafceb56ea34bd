"""Parses CREATE INDEX, DROP INDEX and ALTER INDEX ... RENAME.

    CREATE [UNIQUE] INDEX [CONCURRENTLY] [[IF NOT EXISTS] name] ON [ONLY] table [USING method]
        (column [COLLATE c] [operator class] [ASC | DESC] [NULLS FIRST | LAST], ...)
        [INCLUDE (column, ...)] [NULLS [NOT] DISTINCT] [WITH (...)] [TABLESPACE t] [WHERE ...]

Takes: a cursor behind CREATE, DROP or ALTER INDEX. Gives: a statement value. Expressions are not
parsed: that an index has some is all that a node needs to know.

Source: gram.y, IndexStmt, index_elem, DropStmt, RenameStmt.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wal2lake.pgtypes.keywords import quote_identifier
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.lexer import TokenKind
from wal2lake.sql.grammar.statements import (
    CommandKind,
    OtherStatement,
    QualifiedName,
)


@dataclass(frozen=True, slots=True)
class IndexKey:
    """A key column of CREATE INDEX."""

    column: str | None
    """None for an expression."""
    collation: str = ""
    """SQL text; empty for the column's."""
    operator_class: str = ""
    """SQL text; empty for the default."""
    descending: bool | None = None
    """None: no order is stated."""
    nulls_first: bool | None = None
    """None: no order of nulls is stated."""


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """CREATE INDEX."""

    table: QualifiedName
    name: str | None
    keys: tuple[IndexKey, ...]
    method: str = "btree"
    included: tuple[str | None, ...] = ()
    """None for an expression."""
    unique: bool = False
    concurrently: bool = False
    if_not_exists: bool = False
    parameters: tuple[str, ...] = ()
    """Storage parameters, each as ``name=value``."""
    is_partial: bool = False
    """Whether the index has a WHERE clause."""


@dataclass(frozen=True, slots=True)
class DropIndex:
    """DROP INDEX."""

    names: tuple[QualifiedName, ...]
    if_exists: bool = False
    cascade: bool = False
    concurrently: bool = False


@dataclass(frozen=True, slots=True)
class RenameIndex:
    """ALTER INDEX ... RENAME TO."""

    index: QualifiedName
    new_name: str
    if_exists: bool = field(default=False)


IndexStatement = CreateIndex | DropIndex | RenameIndex


def create_unique_index(cursor: TokenCursor) -> CreateIndex:
    """Parse the rest of CREATE UNIQUE."""
    cursor.expect("index")
    return create_index(cursor, unique=True)


def create_index(cursor: TokenCursor, *, unique: bool = False) -> CreateIndex:
    """Parse the rest of CREATE INDEX."""
    concurrently = cursor.take("concurrently")
    if_not_exists = cursor.take("if", "not", "exists")
    name = None
    if if_not_exists or not cursor.token.is_word("on"):
        name = cursor.name()
    cursor.expect("on")
    cursor.take("only")
    table = cursor.qualified_name()
    cursor.take_mark("*")
    method = cursor.name() if cursor.take("using") else "btree"
    cursor.expect_mark("(")
    keys = cursor.commas(lambda: _key(cursor))
    cursor.expect_mark(")")
    included: tuple[str | None, ...] = ()
    if cursor.take("include"):
        cursor.expect_mark("(")
        included = tuple(key.column for key in cursor.commas(lambda: _key(cursor)))
        cursor.expect_mark(")")
    if cursor.take("nulls"):
        cursor.take("not")
        cursor.expect("distinct")
    parameters: tuple[str, ...] = ()
    if cursor.take("with"):
        cursor.expect_mark("(")
        parameters = cursor.commas(lambda: _parameter(cursor))
        cursor.expect_mark(")")
    if cursor.take("tablespace"):
        cursor.name()
    is_partial = cursor.take("where")
    while is_partial and cursor.next().kind is not TokenKind.END:
        pass
    cursor.expect_end()
    return CreateIndex(
        table,
        name,
        keys,
        method,
        included,
        unique,
        concurrently,
        if_not_exists,
        parameters,
        is_partial,
    )


def drop_index(cursor: TokenCursor) -> DropIndex:
    """Parse the rest of DROP INDEX."""
    concurrently = cursor.take("concurrently")
    if_exists = cursor.if_exists()
    names = cursor.commas(cursor.qualified_name)
    cascade = cursor.cascade()
    cursor.expect_end()
    return DropIndex(names, if_exists, cascade, concurrently)


def alter_index(cursor: TokenCursor) -> RenameIndex | OtherStatement:
    """Parse the rest of ALTER INDEX; other actions than RENAME are not executed."""
    other = OtherStatement(CommandKind.UNSUPPORTED, cursor.text, "ALTER INDEX")
    if_exists = cursor.if_exists()
    if cursor.at_words("all", "in"):
        return other
    index = cursor.qualified_name()
    if not cursor.take("rename", "to"):
        return other
    new_name = cursor.name()
    cursor.expect_end()
    return RenameIndex(index, new_name, if_exists)


def _key(cursor: TokenCursor) -> IndexKey:
    after = cursor.ahead(1)
    if cursor.token.is_mark("(") or after.is_mark("(") or after.is_mark("."):
        _skip_expression(cursor)
        return IndexKey(None)
    column = cursor.name()
    collation = _any_name(cursor) if cursor.take("collate") else ""
    operator_class = ""
    if cursor.token.kind in (TokenKind.WORD, TokenKind.QUOTED) and not (
        cursor.token.is_word("asc", "desc", "nulls")
    ):
        operator_class = _any_name(cursor)
        if cursor.token.is_mark("("):
            cursor.skip_parentheses()
    descending = True if cursor.take("desc") else None
    if descending is None and cursor.take("asc"):
        descending = False
    nulls_first = None
    if cursor.take("nulls"):
        nulls_first = cursor.take("first")
        if not nulls_first:
            cursor.expect("last")
    return IndexKey(column, collation, operator_class, descending, nulls_first)


def _skip_expression(cursor: TokenCursor) -> None:
    """Take all tokens of a key that is an expression, with what follows it."""
    depth = 0
    while depth or not (cursor.token.is_mark(",") or cursor.token.is_mark(")")):
        token = cursor.next()
        if token.kind is TokenKind.END:
            raise cursor.unexpected(token)
        depth += token.is_mark("(") - token.is_mark(")")


def _any_name(cursor: TokenCursor) -> str:
    """any_name, as SQL text without the system's schema."""
    parts = [cursor.name()]
    while cursor.take_mark("."):
        parts.append(cursor.label())
    if parts[0] == "pg_catalog":
        del parts[0]
    return ".".join(map(quote_identifier, parts))


def _parameter(cursor: TokenCursor) -> str:
    name = cursor.label()
    value = "true"
    if cursor.take_mark("="):
        value = cursor.next().value
    return f"{name}={value}"
