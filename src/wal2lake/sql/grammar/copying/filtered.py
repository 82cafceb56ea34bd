"""Recognizes the query of a COPY that selects rows of one table by a condition.

    SELECT ... FROM [ONLY] name WHERE condition

A subscriber of PostgreSQL 15 or later sends such a query for a table with a row filter. Comes in:
the text of the query. Goes out: the condition, parsed as a row filter, and the query without the
condition; or None if the query has another form or is malformed.

Source: copy_table() in src/backend/replication/logical/tablesync.c.
"""

from __future__ import annotations

from dataclasses import dataclass

from wal2lake.errors import Wal2LakeError
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.lexer import TokenKind
from wal2lake.sql.grammar.publishing.expressions import RawExpression, expression
from wal2lake.sql.grammar.statements import QualifiedName


@dataclass(frozen=True, slots=True)
class FilteredRows:
    """A query for the rows of one table that fulfil a condition."""

    unfiltered: str
    """The text of the query without the condition."""
    table: QualifiedName
    condition: RawExpression


def filtered_rows(query: str) -> FilteredRows | None:
    """Parse a query; None if it has another form."""
    try:
        return _filtered_rows(TokenCursor(query))
    except (Wal2LakeError, RecursionError):
        return None


def _filtered_rows(cursor: TokenCursor) -> FilteredRows | None:
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
