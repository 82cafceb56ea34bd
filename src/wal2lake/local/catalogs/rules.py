"""Decides whose a catalog's entry is.

Comes in: an entry that is wanted, what was registered, what the catalog has. Goes out: a step, or
the words about a conflict. Pure; called by ``registry``.

Entries of Delta tables have marks (``lake.catalogs.entries``). An Iceberg catalog has a table's
metadata instead, which says whose it is:

    found                                      wanted      not wanted any more
    nothing                                    CREATE      FORGET
    a table that is not this one               CONFLICT    FORGET
    this table, with a commit of others        CONFLICT    REMOVE
    this table, with the node's metadata       KEEP        REMOVE
    this table, with metadata before           CHANGE      REMOVE

A table is this one if its UUID is the mirror's, or if its metadata file is in the mirror's folder;
one that the node has registered before, under the same name, counts, too.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from wal2lake.catalog import RegisteredTable
from wal2lake.lake.catalogs import (
    NODE,
    TABLE,
    CatalogEntry,
    EntryRefused,
    EntryStep,
    ExternalCatalog,
    FoundEntry,
    step_after,
    step_for,
)
from wal2lake.local.catalogs.registry import DUPLICATE

_TAKEN: Final = (
    "The entry is not touched. Rename the table, drop the entry in the catalog, or set"
    " {section}.prefix: then the next look registers the table."
)

_COMMITTED: Final = (
    "The entry is not touched. Drop it in the catalog, without its files: then the next look"
    " registers the table as the node has it."
)


class MarkRules:
    """Rules for entries that have the node's marks."""

    def __init__(self, node: int) -> None:
        """``node``: its system identifier."""
        self._node = node

    def step_for(
        self,
        catalog: ExternalCatalog,
        entry: CatalogEntry,
        table: RegisteredTable,
        existing: FoundEntry | None,
        others: Container[str],
    ) -> EntryStep:
        """Return the step for a table that exists. ``others``: all tables of the node."""
        return step_for(catalog, entry, existing, others)

    def step_after(
        self, table: RegisteredTable, existing: FoundEntry | None
    ) -> EntryStep:
        """Return the step for the entry of a table that is gone."""
        return step_after(self._node, table.qualified, existing)

    def conflict(
        self,
        entry: CatalogEntry,
        existing: FoundEntry | None,
        tables: Iterable[RegisteredTable],
    ) -> EntryRefused:
        """Return the error for a conflict."""
        marks = {} if existing is None else existing.properties
        ours = marks.get(NODE) == entry.properties[NODE]
        return _taken(entry, marks[TABLE] if ours else None, "catalog")


class MirrorRules:
    """Rules for entries of Iceberg tables."""

    def step_for(
        self,
        catalog: ExternalCatalog,
        entry: CatalogEntry,
        table: RegisteredTable,
        existing: FoundEntry | None,
        others: Container[str],
    ) -> EntryStep:
        """Return the step for a table that exists."""
        if existing is None:
            return EntryStep.CREATE
        if existing.identity not in (*entry.identities, *table.identities):
            return EntryStep.CONFLICT
        if existing.foreign is not None:
            return EntryStep.CONFLICT
        return EntryStep.KEEP if catalog.shows(existing, entry) else EntryStep.CHANGE

    def step_after(
        self, table: RegisteredTable, existing: FoundEntry | None
    ) -> EntryStep:
        """Return the step for the entry of a table that is gone, and its files with it."""
        ours = existing is not None and existing.identity in table.identities
        return EntryStep.REMOVE if ours else EntryStep.FORGET

    def conflict(
        self,
        entry: CatalogEntry,
        existing: FoundEntry | None,
        tables: Iterable[RegisteredTable],
    ) -> EntryRefused:
        """Return the error for a conflict."""
        identity = "" if existing is None else existing.identity
        owner = next((t.qualified for t in tables if identity in t.identities), None)
        committed = None if existing is None else existing.foreign
        if committed is not None and owner == f"{entry.schema}.{entry.table}":
            return EntryRefused(
                f'another program has changed "{entry.name}" in the catalog: {committed}',
                sqlstate=DUPLICATE,
                hint=_COMMITTED,
            )
        return _taken(entry, owner, "iceberg.catalog")


def _taken(entry: CatalogEntry, owner: str | None, section: str) -> EntryRefused:
    shown = "another program" if owner is None else f'table "{owner}" of this node'
    return EntryRefused(
        f'the name "{entry.name}" of the catalog is in use by {shown}',
        sqlstate=DUPLICATE,
        hint=_TAKEN.format(section=section),
    )
