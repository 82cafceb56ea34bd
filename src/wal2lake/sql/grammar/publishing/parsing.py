"""Parses statements about publications.

Comes in: a cursor behind CREATE, ALTER, DROP or COMMENT ON PUBLICATION. Goes out: a statement
value. An object without a keyword is of the same kind as the object before it.

Source: gram.y, CreatePublicationStmt, PublicationObjSpec, AlterPublicationStmt and
preprocess_pubobj_list().
"""

from __future__ import annotations

from enum import Enum

from wal2lake.errors import SqlSyntaxError, UsageError
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.lexer import syntax_error
from wal2lake.sql.grammar.publishing.expressions import expression
from wal2lake.sql.grammar.publishing.publicationstatements import (
    AlterPublicationObjects,
    AlterPublicationOwner,
    AlterPublicationRename,
    AlterPublicationSet,
    CommentOnPublication,
    CreatePublication,
    DropPublication,
    ObjectsChange,
    PublicationObject,
    PublicationSchema,
    PublicationStatement,
    PublicationTable,
    WhereClause,
)
from wal2lake.sql.grammar.statements import QualifiedName
from wal2lake.sql.grammar.subscription import definition, with_options


def create_publication(cursor: TokenCursor) -> CreatePublication:
    """CREATE PUBLICATION name [FOR ALL TABLES | FOR objects] [WITH (...)]."""
    name = cursor.name()
    all_tables = False
    objects: tuple[PublicationObject, ...] = ()
    if cursor.take("for"):
        if cursor.token.is_word("all"):
            cursor.expect("all", "tables")
            all_tables = True
        else:
            objects = _objects(cursor)
    options = with_options(cursor)
    cursor.expect_end()
    return CreatePublication(name, all_tables, objects, options)


def alter_publication(cursor: TokenCursor) -> PublicationStatement:
    """ALTER PUBLICATION name ..., all forms."""
    name = cursor.name()
    statement: PublicationStatement
    if cursor.take("owner"):
        cursor.expect("to")
        statement = AlterPublicationOwner(name, cursor.role())
    elif cursor.take("rename"):
        cursor.expect("to")
        statement = AlterPublicationRename(name, cursor.name())
    elif cursor.token.is_word("set") and cursor.ahead(1).is_mark("("):
        cursor.next()
        statement = AlterPublicationSet(name, definition(cursor))
    else:
        for change in ObjectsChange:
            if cursor.take(change.value.lower()):
                statement = AlterPublicationObjects(name, change, _objects(cursor))
                break
        else:
            raise cursor.unexpected()
    cursor.expect_end()
    return statement


def drop_publication(cursor: TokenCursor) -> DropPublication:
    """DROP PUBLICATION [IF EXISTS] names [CASCADE | RESTRICT]."""
    if_exists = cursor.if_exists()
    names = cursor.commas(cursor.name)
    cursor.cascade()
    cursor.expect_end()
    return DropPublication(names, if_exists)


def comment_on_publication(cursor: TokenCursor) -> CommentOnPublication:
    """COMMENT ON PUBLICATION name IS '...' | NULL."""
    name = cursor.name()
    cursor.expect("is")
    text = None if cursor.take("null") else cursor.string()
    cursor.expect_end()
    return CommentOnPublication(name, text)


class _Keyword(Enum):
    TABLE = "table"
    SCHEMA = "schema"


class _ObjectList:
    """Reads a list of objects.

    The first error about the kind or the clauses of an object is kept until the whole list has
    been read, because PostgreSQL reports syntax errors first.
    """

    def __init__(self, cursor: TokenCursor) -> None:
        self.cursor = cursor
        self.objects: list[PublicationObject] = []
        self.last: _Keyword | None = None
        self.error: SqlSyntaxError | None = None

    def take(self) -> None:
        cursor = self.cursor
        start = cursor.token.start
        if cursor.take("table"):
            self.last = _Keyword.TABLE
            self._table(start)
        elif cursor.at_words("tables", "in"):
            cursor.expect("tables", "in", "schema")
            self.last = _Keyword.SCHEMA
            self._schema(start)
        elif self.last is None:
            self._object_without_keyword(start)
            self._fail(
                "invalid publication object list",
                start,
                detail="One of TABLE or TABLES IN SCHEMA must be specified before a"
                " standalone table or schema name.",
            )
        elif self.last is _Keyword.TABLE:
            if cursor.token.is_word("current_schema"):
                cursor.next()
                self._fail("invalid table name", start)
            else:
                self._table(start)
        else:
            table = self._object_without_keyword(start)
            if table is None:
                self.objects.append(PublicationSchema(None))
            elif table.name.schema is not None or table.only:
                self._fail("invalid schema name", start)
            elif table.columns is not None:
                self._fail("column specification not allowed for schema", start)
            elif table.where is not None:
                self._fail("WHERE clause not allowed for schema", start)
            else:
                self.objects.append(PublicationSchema(table.name.name))

    def _table(self, start: int) -> None:
        table = _table(self.cursor)
        self.objects.append(table)

    def _schema(self, start: int) -> None:
        if self.cursor.take("current_schema"):
            self.objects.append(PublicationSchema(None))
        else:
            self.objects.append(PublicationSchema(self.cursor.name()))

    def _object_without_keyword(self, start: int) -> PublicationTable | None:
        """An object without a keyword, read as a table; None for CURRENT_SCHEMA."""
        if self.cursor.take("current_schema"):
            return None
        return _table(self.cursor, many_dots=self.last is not _Keyword.TABLE)

    def _fail(self, message: str, start: int, **fields: str) -> None:
        if self.error is None:
            self.error = syntax_error(message, start, **fields)


def _objects(cursor: TokenCursor) -> tuple[PublicationObject, ...]:
    reading = _ObjectList(cursor)
    cursor.commas(reading.take)
    if reading.error is not None:
        raise reading.error
    return tuple(reading.objects)


def _table(cursor: TokenCursor, *, many_dots: bool = False) -> PublicationTable:
    only = cursor.take("only")
    in_parentheses = only and cursor.take_mark("(")
    name = _name(cursor, many_dots=many_dots)
    if in_parentheses:
        cursor.expect_mark(")")
    if not only:
        cursor.take_mark("*")
    columns = None
    if cursor.take_mark("("):
        columns = cursor.commas(cursor.name)
        cursor.expect_mark(")")
    where = None
    if cursor.take("where"):
        cursor.expect_mark("(")
        start = cursor.token.start
        try:
            tree = expression(cursor)
        except RecursionError:
            raise UsageError("stack depth limit exceeded", sqlstate="54001") from None
        text = cursor.text[start : cursor.previous_end()]
        cursor.expect_mark(")")
        where = WhereClause(text, tree)
    return PublicationTable(name, columns, where, only)


def _name(cursor: TokenCursor, *, many_dots: bool) -> QualifiedName:
    """A table's name.

    With ``many_dots`` the name may have any number of parts: the caller refuses the object anyway.
    """
    if not many_dots:
        return cursor.qualified_name()
    start = cursor.token.start
    parts = [cursor.name()]
    while cursor.take_mark("."):
        parts.append(cursor.label())
    schema = ".".join(parts[:-1]) if len(parts) > 1 else None
    return QualifiedName(schema, parts[-1], start + 1)
