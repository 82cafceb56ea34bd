"""Parses CHECK (expression), of a column or a table.

Comes in: a cursor behind CHECK. Goes out: the untyped expression and its text. Source: gram.y,
ColConstraintElem, ConstraintElem and ConstraintAttr.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.publishing.expressions import RawExpression, expression


@dataclass(frozen=True, slots=True)
class CheckClause:
    """A CHECK constraint."""

    text: str
    """The expression as written, without the parentheses around it."""
    expression: RawExpression = field(compare=False, repr=False)
    name: str | None = None
    """None: the constraint gets PostgreSQL's default name."""


def check_clause(
    cursor: TokenCursor, name: str | None, *, of_table: bool
) -> CheckClause:
    """Parse the rest of a CHECK; raises 0A000 for an attribute that is not supported."""
    cursor.expect_mark("(")
    start = cursor.token.start
    try:
        tree = expression(cursor)
    except RecursionError:
        raise UsageError("stack depth limit exceeded", sqlstate="54001") from None
    text = cursor.text[start : cursor.previous_end()]
    cursor.expect_mark(")")
    while True:
        if cursor.at_words("no", "inherit"):
            raise _unsupported_attribute("NO INHERIT")
        if of_table and cursor.at_words("not", "valid"):
            raise _unsupported_attribute("NOT VALID")
        if cursor.at_words("not", "enforced"):
            raise _unsupported_attribute("NOT ENFORCED")
        if of_table and cursor.token.is_word("deferrable", "initially"):
            raise FeatureNotSupportedError(
                "CHECK constraints cannot be marked DEFERRABLE"
            )
        if of_table and cursor.take("not", "deferrable"):
            continue
        if not cursor.take("enforced"):
            break
    return CheckClause(text, tree, name)


def _unsupported_attribute(attribute: str) -> FeatureNotSupportedError:
    return FeatureNotSupportedError(
        f"{attribute} CHECK constraints are not supported on lake tables"
    )
