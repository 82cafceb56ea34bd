"""Parses VERIFY, which PostgreSQL does not have.

Comes in: a cursor behind the word. Goes out: a ``VerifyTables``.
"""

from __future__ import annotations

from dataclasses import dataclass

from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.statements import QualifiedName


@dataclass(frozen=True, slots=True)
class VerifyTables:
    """VERIFY."""

    tables: tuple[QualifiedName, ...] = ()
    """Empty: all tables of the subscription, or of all subscriptions."""
    subscription: str | None = None


def verify_statement(cursor: TokenCursor) -> VerifyTables:
    """VERIFY [TABLE name [, ...]] [SUBSCRIPTION name]."""
    tables: tuple[QualifiedName, ...] = ()
    subscription = None
    if cursor.take("table"):
        tables = cursor.commas(cursor.qualified_name)
    if cursor.take("subscription"):
        subscription = cursor.name()
    cursor.expect_end()
    return VerifyTables(tables, subscription)
