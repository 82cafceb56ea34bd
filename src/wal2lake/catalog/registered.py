"""The files that say what is registered in catalogs of others, beside the node's own catalog.

    registered.json            {"target": ..., "tables": [{"schema": ..., "table": ..., ...}]}
    iceberg-registered.json    the same, of the mirrored tables

The engine writes each, the whole file by a rename; every process of the node reads it, for the view
and for problems. It outlives restarts because it has the names of entries whose tables are gone. If
it is lost, the entries that exist are found by their marks, and only those of tables that were
dropped meanwhile stay.

Called by ``local.catalogs`` and ``health``.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from wal2lake.errors import StorageError, reason_of

_FORMAT: Final = 1


class EntryState(StrEnum):
    """State of a table's entry in the catalog."""

    REGISTERED = "registered"
    """The catalog shows the table as it is."""
    PENDING = "pending"
    """The catalog has not been told yet what the table is now."""
    LEAVING = "leaving"
    """The table is gone, and its entry is to be removed."""
    CONFLICT = "conflict"
    """The name belongs to a table that this node has not registered."""
    REFUSED = "refused"
    """The catalog does not take the entry."""


@dataclass(frozen=True, slots=True)
class RegisteredTable:
    """A table, and its entry in the catalog."""

    schema: str
    table: str
    database: str
    """Database of the entry; Unity's schema."""
    entry: str
    """Name of the entry in its database."""
    state: EntryState
    since: float
    """Unix time at which the state began."""
    digest: str
    """Digest of the definition that the catalog shows, refuses or is to show; the state says
    which."""
    error: str | None = None
    sqlstate: str | None = None
    hint: str | None = None
    identities: tuple[str, ...] = ()
    """Names by which the catalog's entry is known as that of this table: of an Iceberg table its
    UUID and the folder of its metadata. Empty where entries have marks."""

    @property
    def qualified(self) -> str:
        """``schema.table`` in the node."""
        return f"{self.schema}.{self.table}"

    @property
    def registered_name(self) -> str:
        """``database.table`` in the catalog."""
        return f"{self.database}.{self.entry}"


@dataclass(frozen=True, slots=True)
class RegisteredTables:
    """The content of the file."""

    target: str = ""
    """The catalog that the entries are in, without secrets; empty: none."""
    shown: str = ""
    """Name of that catalog, for messages."""
    tables: Mapping[str, RegisteredTable] = field(default_factory=dict)
    """By ``schema.table``."""


NOTHING_REGISTERED: Final = RegisteredTables()


def read_registered(path: Path) -> RegisteredTables:
    """Read the file; what does not exist, or is of no use, has nothing registered."""
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != _FORMAT:
            return NOTHING_REGISTERED
        tables = [_table(entry) for entry in content["tables"]]
        return RegisteredTables(
            str(content["target"]),
            str(content["shown"]),
            {table.qualified: table for table in tables},
        )
    except (OSError, ValueError, LookupError, TypeError):
        return NOTHING_REGISTERED


def write_registered(path: Path, content: RegisteredTables) -> None:
    """Replace the file durably. Raises StorageError."""
    document = {
        "format": _FORMAT,
        "target": content.target,
        "shown": content.shown,
        "tables": [asdict(table) for table in content.tables.values()],
    }
    draft = path.with_name(f".{path.name}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise StorageError(
            f'could not write file "{path}": {reason_of(error)}'
        ) from None


def _table(entry: Mapping[str, Any]) -> RegisteredTable:
    return RegisteredTable(
        **{
            **entry,
            "state": EntryState(entry["state"]),
            "identities": tuple(entry.get("identities", ())),
        }
    )
