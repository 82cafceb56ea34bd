"""The query of a COPY that wants some rows of one table: what a subscriber of PostgreSQL 15 and
later sends for a table with a row filter.

    SELECT ... FROM [ONLY] name WHERE condition

Comes in: the query's text. Goes out: the condition as a row filter's is read, and the query without
it; or nothing: it is another one, or wrong.

Source: copy_table() in src/backend/replication/logical/tablesync.c.
"""

from __future__ import annotations

from dataclasses import dataclass

from wal2lake.errors import Wal2LakeError
from wal2lake.frontend.grammar.cursor import Cursor
from wal2lake.frontend.grammar.lexer import TokenKind
from wal2lake.frontend.grammar.publishing.expressions import Raw, expression
from wal2lake.frontend.grammar.statements import QualifiedName


@dataclass(frozen=True, slots=True)
class FilteredRows:
    """Of one table."""

    unfiltered: str
    """All of them."""
    table: QualifiedName
    condition: Raw


def filtered_rows(query: str) -> FilteredRows | None:
    """None: no such query."""
    try:
        return _filtered_rows(Cursor(query))
    except (Wal2LakeError, RecursionError):
        return None


def _filtered_rows(cursor: Cursor) -> FilteredRows | None:
    if not cursor.take("select"):
        return None
    depth = 0
    while depth or not cursor.token.is_word("from"):
        token = cursor.next()
        if token.kind is TokenKind.END:
            return None
        depth += token.is_mark("(") - token.is_mark(")")
    cursor.next()
    cursor.take("only")
    table = cursor.qualified_name()
    unfiltered = cursor.text[: cursor.token.start]
    if not cursor.take("where"):
        return None
    condition = expression(cursor)
    cursor.expect_end()
    return FilteredRows(unfiltered, table, condition)
