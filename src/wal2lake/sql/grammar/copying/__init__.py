"""Parses COPY.

    COPY name [(column, ...)] TO STDOUT [[WITH] options]
    COPY (query) TO STDOUT [[WITH] options]
    COPY name [(column, ...)] FROM STDIN [[WITH] options]

Takes: a cursor behind COPY. Gives: a ``CopyTo`` or ``CopyFrom`` value. Options are a list in
parentheses, or are written in the syntax of PostgreSQL before 9.0 or before 7.3; all get the names
of the list. ``options`` checks them. ``filtered`` recognizes the query of a subscriber with a row
filter.

Source: gram.y, CopyStmt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.pgtypes.keywords import RESERVED
from wal2lake.sql.grammar.copying.options import (
    AllColumns,
    CopyFormat,
    CopyOption,
    CopyOptions,
    Header,
    copy_options,
)
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.lexer import TokenKind, syntax_error
from wal2lake.sql.grammar.statements import QualifiedName

__all__ = [
    "AllColumns",
    "CopyFormat",
    "CopyFrom",
    "CopyOption",
    "CopyOptions",
    "CopyTo",
    "Header",
    "copy",
    "copy_options",
]


@dataclass(frozen=True, slots=True)
class CopyTo:
    """COPY ... TO STDOUT."""

    table: QualifiedName | None
    columns: tuple[str, ...] | None
    """The columns to copy. None: all."""
    query: str | None
    """The text of the query that takes the place of a table."""
    query_start: int = field(default=0, compare=False)
    """The first character of the query, 0-based, in characters of the statement."""
    options: tuple[CopyOption, ...] = ()
    """The options as written, unchecked: the table's existence is checked before them."""


@dataclass(frozen=True, slots=True)
class CopyFrom:
    """COPY ... FROM STDIN."""

    table: QualifiedName
    columns: tuple[str, ...] | None
    """The columns that have values. None: all."""
    options: tuple[CopyOption, ...] = ()
    """The options as written, unchecked: the table's existence is checked before them."""


def copy(cursor: TokenCursor) -> CopyTo | CopyFrom:
    """Parse the rest of a COPY."""
    options: list[CopyOption] = []
    table, columns, query, start = None, None, None, 0
    if cursor.token.is_mark("("):
        start = cursor.token.start
        cursor.skip_parentheses()
        query = cursor.text[start : cursor.previous_end()][1:-1]
    else:
        table_start = cursor.token.start
        if cursor.take("binary"):
            options.append(CopyOption("format", "binary", table_start))
        table = cursor.qualified_name()
        if cursor.take_mark("("):
            columns = cursor.commas(cursor.name)
            cursor.expect_mark(")")
        if cursor.take("from"):
            return _copy_from(cursor, table, columns, options)
    cursor.expect("to")
    _destination(cursor, "to")
    if table is not None:
        options += _delimiters(cursor)
    cursor.take("with")
    options += _generic(cursor) if cursor.take_mark("(") else _words(cursor)
    if table is not None and cursor.token.is_word("where"):
        raise syntax_error("WHERE clause not allowed with COPY TO", cursor.token.start)
    cursor.expect_end()
    return CopyTo(table, columns, query, start + 1, tuple(options))


def _copy_from(
    cursor: TokenCursor,
    table: QualifiedName,
    columns: tuple[str, ...] | None,
    options: list[CopyOption],
) -> CopyFrom:
    _destination(cursor, "from")
    options += _delimiters(cursor)
    cursor.take("with")
    options += _generic(cursor) if cursor.take_mark("(") else _words(cursor)
    if cursor.token.is_word("where"):
        raise FeatureNotSupportedError("COPY FROM with WHERE is not supported")
    cursor.expect_end()
    return CopyFrom(table, columns, tuple(options))


def _destination(cursor: TokenCursor, direction: str) -> None:
    """STDIN or STDOUT, whatever the direction; a file or a program is refused."""
    program = cursor.take("program")
    if not program and (cursor.take("stdout") or cursor.take("stdin")):
        return
    if cursor.token.kind is not TokenKind.STRING:
        raise cursor.unexpected()
    raise UsageError(
        "permission denied to COPY to or from an external program"
        if program
        else "permission denied to COPY to a file",
        sqlstate="42501",
        hint="Anyone can COPY to stdout or from stdin. psql's \\copy command also works"
        " for anyone.",
    )


def _delimiters(cursor: TokenCursor) -> list[CopyOption]:
    """The syntax before PostgreSQL 7.3: [USING] DELIMITERS 'x'."""
    start = cursor.token.start
    if cursor.take("using"):
        start = cursor.token.start
        cursor.expect("delimiters")
    elif not cursor.take("delimiters"):
        return []
    return [CopyOption("delimiter", cursor.string(), start)]


_STRINGS: Final = ("delimiter", "null", "quote", "escape")
_FLAGS: Final = {
    "binary": ("format", "binary"),
    "csv": ("format", "csv"),
    "freeze": ("freeze", "true"),
    "header": ("header", "true"),
}
_FORCED: Final = {
    ("quote",): "force_quote",
    ("not", "null"): "force_not_null",
    ("null",): "force_null",
}


def _words(cursor: TokenCursor) -> list[CopyOption]:
    """The syntax before PostgreSQL 9.0: CSV HEADER DELIMITER AS ';' ..."""
    options = []
    while cursor.token.kind is TokenKind.WORD:
        token = cursor.token
        if token.value in _FLAGS:
            cursor.next()
            name, value = _FLAGS[token.value]
            options.append(CopyOption(name, value, token.start))
        elif token.value in _STRINGS:
            cursor.next()
            cursor.take("as")
            options.append(CopyOption(token.value, cursor.string(), token.start))
        elif cursor.take("encoding"):
            options.append(CopyOption("encoding", cursor.string(), token.start))
        elif cursor.take("force"):
            options.append(_forced(cursor, token.start))
        else:
            break
    return options


def _forced(cursor: TokenCursor, start: int) -> CopyOption:
    for words, name in _FORCED.items():
        if cursor.take(*words):
            if cursor.take_mark("*"):
                return CopyOption(name, AllColumns.COLUMNS, start)
            return CopyOption(name, cursor.commas(cursor.name), start)
    raise cursor.unexpected()


def _generic(cursor: TokenCursor) -> list[CopyOption]:
    """The list of options behind its opening parenthesis, with the closing one."""
    options = cursor.commas(lambda: _option(cursor))
    cursor.expect_mark(")")
    return list(options)


def _option(cursor: TokenCursor) -> CopyOption:
    start = cursor.token.start
    return CopyOption(cursor.label(), _value(cursor), start)


def _value(cursor: TokenCursor) -> str | tuple[str, ...] | AllColumns | None:
    token = cursor.token
    if token.is_mark(",") or token.is_mark(")"):
        return None
    if cursor.take_mark("*"):
        return AllColumns.COLUMNS
    if cursor.take_mark("("):
        items = cursor.commas(lambda: _word(cursor))
        cursor.expect_mark(")")
        return items
    for sign in ("+", "-"):
        if cursor.take_mark(sign):
            if cursor.token.kind not in (TokenKind.INTEGER, TokenKind.FLOAT):
                raise cursor.unexpected()
            return sign.replace("+", "") + cursor.next().value
    if token.kind in (TokenKind.INTEGER, TokenKind.FLOAT):
        return cursor.next().value
    return cursor.next().value if token.is_word("default") else _word(cursor)


def _word(cursor: TokenCursor) -> str:
    """opt_boolean_or_string: a word, a name or a string."""
    token = cursor.token
    if token.kind in (TokenKind.QUOTED, TokenKind.STRING) or (
        token.kind is TokenKind.WORD
        and (token.value in ("true", "false", "on") or token.value not in RESERVED)
    ):
        return cursor.next().value
    raise cursor.unexpected()
