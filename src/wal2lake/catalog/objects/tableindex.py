"""``TableIndex``: the definition of an index that a statement has made.

An index has no storage: it is a name and a definition, which the system views show. The index of a
primary key is no row here.
"""

from __future__ import annotations

from dataclasses import dataclass

from wal2lake.model import Oid


@dataclass(frozen=True, slots=True)
class IndexedColumn:
    """A key column of an index."""

    name: str
    suffix: str = ""
    """The collation, the operator class and the order, as pg_get_indexdef() writes them."""
    options: int = 0
    """pg_index.indoption: 1 for DESC, 2 for NULLS FIRST."""


@dataclass(frozen=True, slots=True)
class TableIndex:
    """A secondary index of a lake table."""

    oid: Oid
    relid: Oid
    name: str
    """Unique in the schema of the table, among relations."""
    method: str
    """The access method: btree, hash, gin ..."""
    keys: tuple[IndexedColumn, ...]
    included: tuple[str, ...] = ()
    unique: bool = False
    """True only if the primary key enforces it."""
    parameters: tuple[str, ...] = ()
    """Storage parameters, as pg_class.reloptions has them."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns."""
        return (*(key.name for key in self.keys), *self.included)
