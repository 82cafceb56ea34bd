"""SET CONSTRAINTS.

Source: gram.y, ConstraintsSetStmt.
"""

from __future__ import annotations

from dataclasses import dataclass

from wal2lake.frontend.grammar.cursor import Cursor
from wal2lake.frontend.grammar.statements import QualifiedName


@dataclass(frozen=True, slots=True)
class ConstraintModes:
    """When constraints are judged, until the transaction ends."""

    names: tuple[QualifiedName, ...]
    """Empty: ALL."""
    deferred: bool


def is_set_constraints(text: str) -> bool:
    """Whether a statement that begins with SET is one."""
    cursor = Cursor(text)
    return cursor.take("set", "constraints")


def constraint_modes(text: str) -> ConstraintModes:
    """The statement. Raises SqlSyntaxError."""
    cursor = Cursor(text)
    cursor.expect("set", "constraints")
    names = () if cursor.take("all") else cursor.commas(cursor.qualified_name)
    deferred = cursor.take("deferred")
    if not deferred:
        cursor.expect("immediate")
    cursor.expect_end()
    return ConstraintModes(names, deferred)
