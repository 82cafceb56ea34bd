"""Parses VERIFY and REPAIR, which PostgreSQL does not have.

Comes in: a cursor behind the word. Goes out: a ``VerifyTables`` or a ``RepairTables``.
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


@dataclass(frozen=True, slots=True)
class RepairTables:
    """REPAIR."""

    tables: tuple[QualifiedName, ...]
    """At least one table."""


def repair_statement(cursor: TokenCursor) -> RepairTables:
    """REPAIR TABLE name [, ...]."""
    cursor.expect("table")
    tables = cursor.commas(cursor.qualified_name)
    cursor.expect_end()
    return RepairTables(tables)
