"""The catalog's values about history tables. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wal2lake.catalog.records import TableDef
from wal2lake.model import Lsn, Oid

HISTORY_OF: Final = "wal2lake.history_of"
"""Storage parameter of a history table: the OID of the table whose changes it has. Only the node
sets it."""


@dataclass(frozen=True, slots=True)
class HistoryFeed:
    """Source of the rows of a history table."""

    subid: Oid
    relid: Oid
    """The mirrored table."""


@dataclass(frozen=True, slots=True)
class PendingHistory:
    """History of a batch or a copy, whose files belong to no version yet."""

    relid: Oid
    """The mirrored table."""
    reached: Lsn
    """Cursor of its commit."""
    cursor_name: str
    """Application of the cursor."""
    history: Oid
    """The history table."""
    files: str
    """JSON of the files in the history table's directory."""


def is_history(table: TableDef) -> bool:
    """Whether the table has been made as a history table; even if no subscription feeds it any
    more."""
    return any(name == HISTORY_OF for name, _ in table.parameters)
