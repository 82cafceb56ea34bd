"""A relation as pgoutput's Relation message describes it.

The receiver's cache is keyed by ``relid``; each Relation message replaces an entry. A change of
any field makes a new *relation version*, and the log keeps one file per version.

Source: PostgreSQL manual, "Logical Replication Message Formats"; pg_class.relreplident.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from wal2lake.model.lsn import Oid

SYSTEM_COLUMNS: Final = frozenset({"tableoid", "cmax", "xmax", "cmin", "xmin", "ctid"})
"""System columns of every PostgreSQL table; a user column cannot have one of these names."""


class Deferral(Enum):
    """When a primary key is checked (pg_constraint.condeferrable, condeferred)."""

    NO = "n"
    """NOT DEFERRABLE: after each statement, and after each replicated change."""
    IMMEDIATE = "i"
    """DEFERRABLE: after each statement, and at the end of each replicated transaction."""
    DEFERRED = "d"
    """DEFERRABLE INITIALLY DEFERRED: at the end of the transaction."""

    @property
    def deferrable(self) -> bool:
        """pg_constraint.condeferrable."""
        return self is not Deferral.NO

    @property
    def clause(self) -> str:
        """The clause that follows the constraint in SQL: empty, or with a leading space."""
        return {"n": "", "i": " DEFERRABLE", "d": " DEFERRABLE INITIALLY DEFERRED"}[
            self.value
        ]


class ReplicaIdentity(Enum):
    """Old-row information that an UPDATE or DELETE carries (pg_class.relreplident)."""

    DEFAULT = "d"
    """The primary key's columns, if there is one."""
    NOTHING = "n"
    """No old row: the publisher refuses UPDATE and DELETE."""
    FULL = "f"
    """The whole old row."""
    INDEX = "i"
    """The columns of the index chosen by REPLICA IDENTITY USING INDEX."""


@dataclass(frozen=True, slots=True)
class Column:
    """One published column, in the order of TupleData."""

    name: str
    """Empty if the column was dropped after the row had been written; its values are ignored."""
    type_oid: Oid
    typmod: int
    """pg_attribute.atttypmod; -1 means no modifier."""
    is_key: bool
    """Part of the replica identity; with FULL, true for every column."""


@dataclass(frozen=True, slots=True)
class Relation:
    """One version of a published table."""

    relid: Oid
    namespace: str
    """Never empty: the decoder replaces the wire's "" by pg_catalog."""
    name: str
    identity: ReplicaIdentity
    columns: tuple[Column, ...]

    @property
    def key_positions(self) -> tuple[int, ...]:
        """Positions of the replica identity's columns in ``columns``."""
        return tuple(i for i, c in enumerate(self.columns) if c.is_key)

    @property
    def qualified(self) -> str:
        """``schema.table`` as PostgreSQL's messages print it, unquoted."""
        return f"{self.namespace}.{self.name}"
