"""Parses SET CONSTRAINTS.

Comes in: the statement's text. Goes out: ``ConstraintModes``. Source: gram.y, ConstraintsSetStmt.
"""

from __future__ import annotations

from dataclasses import dataclass

from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.statements import QualifiedName


@dataclass(frozen=True, slots=True)
class ConstraintModes:
    """The check time that SET CONSTRAINTS sets until the transaction ends."""

    names: tuple[QualifiedName, ...]
    """The constraints. Empty: ALL."""
    deferred: bool


def is_set_constraints(text: str) -> bool:
    """Whether a statement is SET CONSTRAINTS."""
    cursor = TokenCursor(text)
    return cursor.take("set", "constraints")


def constraint_modes(text: str) -> ConstraintModes:
    """Parse SET CONSTRAINTS; raises SqlSyntaxError."""
    cursor = TokenCursor(text)
    cursor.expect("set", "constraints")
    names = () if cursor.take("all") else cursor.commas(cursor.qualified_name)
    deferred = cursor.take("deferred")
    if not deferred:
        cursor.expect("immediate")
    cursor.expect_end()
    return ConstraintModes(names, deferred)
