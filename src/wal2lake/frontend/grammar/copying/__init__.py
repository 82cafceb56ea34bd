"""COPY ... TO STDOUT as a value.

    COPY name [(column, ...)] TO STDOUT [[WITH] (option [, ...])]
    COPY (query) TO STDOUT [[WITH] (option [, ...])]

Source: gram.y, CopyStmt; ProcessCopyOptions() in copy.c.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from wal2lake.errors import FeatureNotSupportedError, SqlSyntaxError, UsageError
from wal2lake.frontend.grammar.cursor import Cursor
from wal2lake.frontend.grammar.lexer import TokenKind
from wal2lake.frontend.grammar.statements import QualifiedName


class CopyFormat(Enum):
    """How rows look."""

    TEXT = "text"
    BINARY = "binary"


@dataclass(frozen=True, slots=True)
class CopyTo:
    """To the client."""

    table: QualifiedName | None
    columns: tuple[str, ...] | None
    """None: all."""
    query: str | None
    """In place of a table."""
    format: CopyFormat = CopyFormat.TEXT


def copy(cursor: Cursor) -> CopyTo:
    """Behind COPY."""
    binary = cursor.take("binary")
    table, columns, query = None, None, None
    if cursor.token.is_mark("("):
        start = cursor.token.start
        cursor.skip_parentheses()
        query = cursor.text[start : cursor.token.start].strip()[1:-1].strip()
    else:
        table = cursor.qualified_name()
        if cursor.take_mark("("):
            columns = cursor.commas(cursor.name)
            cursor.expect_mark(")")
    if cursor.take("from"):
        raise FeatureNotSupportedError("COPY FROM is not supported", hint="Use INSERT.")
    cursor.expect("to")
    program = cursor.take("program")
    if program or cursor.token.kind is TokenKind.STRING:
        raise UsageError(
            "permission denied to COPY to or from an external program"
            if program
            else "permission denied to COPY to a file",
            sqlstate="42501",
            hint="Anyone can COPY to stdout or from stdin. psql's \\copy command also works"
            " for anyone.",
        )
    if not (cursor.take("stdout") or cursor.take("stdin")):
        raise cursor.unexpected()
    wanted = _options(cursor)
    if binary:
        wanted = CopyFormat.BINARY
    cursor.expect_end()
    return CopyTo(table, columns, query, wanted)


def _options(cursor: Cursor) -> CopyFormat:
    cursor.take("with")
    if cursor.take("binary"):
        return CopyFormat.BINARY
    if not cursor.take_mark("("):
        return CopyFormat.TEXT
    found: dict[str, str] = {}
    while True:
        name = cursor.label()
        if name in found:
            raise SqlSyntaxError("conflicting or redundant options")
        value = ""
        if not (cursor.token.is_mark(",") or cursor.token.is_mark(")")):
            value = cursor.next().value
        found[name] = value
        if not cursor.take_mark(","):
            break
    cursor.expect_mark(")")
    wanted = found.pop("format", "text")
    for name in found:
        raise FeatureNotSupportedError(f'COPY option "{name}" is not supported')
    if wanted == "csv":
        raise FeatureNotSupportedError('COPY format "csv" is not supported')
    try:
        return CopyFormat(wanted)
    except ValueError:
        raise UsageError(
            f'COPY format "{wanted}" not recognized', sqlstate="22023"
        ) from None
