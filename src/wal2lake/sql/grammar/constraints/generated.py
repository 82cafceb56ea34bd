"""Parses GENERATED ALWAYS AS (expression) STORED, and SET EXPRESSION AS (expression).

Comes in: a cursor before the expression's parenthesis. Goes out: the untyped expression and its
text. Source: gram.y, ColConstraintElem, opt_virtual_or_stored, alter_table_cmd.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.publishing.expressions import RawExpression, expression

_STORED: Final = "Write GENERATED ALWAYS AS (...) STORED."


@dataclass(frozen=True, slots=True)
class GeneratedClause:
    """The expression from which a generated column is computed."""

    text: str
    """The expression as written, without the parentheses around it."""
    expression: RawExpression = field(compare=False, repr=False)


def generation(cursor: TokenCursor) -> GeneratedClause:
    """Parse (expression)."""
    cursor.expect_mark("(")
    start = cursor.token.start
    try:
        tree = expression(cursor)
    except RecursionError:
        raise UsageError("stack depth limit exceeded", sqlstate="54001") from None
    text = cursor.text[start : cursor.previous_end()]
    cursor.expect_mark(")")
    return GeneratedClause(text, tree)


def stored_generation(cursor: TokenCursor) -> GeneratedClause:
    """Parse (expression) STORED. Without STORED the column is VIRTUAL, as in PostgreSQL: 0A000."""
    clause = generation(cursor)
    if cursor.take("stored"):
        return clause
    is_virtual = cursor.take("virtual")
    raise FeatureNotSupportedError(
        "VIRTUAL generated columns are not supported on lake tables",
        detail="Readers of a table's files would not have the column."
        if is_virtual
        else "Without STORED a generated column is VIRTUAL, and readers of a table's"
        " files would not have it.",
        hint=_STORED,
    )
