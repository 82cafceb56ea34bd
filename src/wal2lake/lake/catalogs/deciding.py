"""Decides which step makes a catalog's entry right.

Comes in: what is wanted under a name, what was found there. Goes out: a step. Pure; called by
``local.catalogs``.

    found                                   wanted      not wanted any more
    nothing                                 CREATE      FORGET
    an entry without this node's mark       CONFLICT    FORGET
    ours, of this table, as wanted          KEEP        REMOVE
    ours, of this table, otherwise          CHANGE      REMOVE
    ours, of a table that is wanted, too    CONFLICT    FORGET
    ours, of a table that is gone           CHANGE      FORGET
"""

from __future__ import annotations

from collections.abc import Container
from enum import Enum

from wal2lake.lake.catalogs.entries import NODE, TABLE
from wal2lake.lake.catalogs.port import CatalogEntry, ExternalCatalog, FoundEntry


class EntryStep(Enum):
    """Work to be done about a name."""

    CREATE = "create"
    """There is no entry."""
    CHANGE = "change"
    """Our entry shows an earlier definition, or somebody has changed it."""
    KEEP = "keep"
    """The entry is right."""
    CONFLICT = "conflict"
    """The name belongs to another table; it is not touched."""
    REMOVE = "remove"
    """Our entry of a table that is gone."""
    FORGET = "forget"
    """The table is gone, and so is its entry."""


def step_for(
    catalog: ExternalCatalog,
    wanted: CatalogEntry,
    existing: FoundEntry | None,
    others: Container[str],
) -> EntryStep:
    """Return the step for a table that exists. ``others``: all tables of the node."""
    if existing is None:
        return EntryStep.CREATE
    if existing.properties.get(NODE) != wanted.properties[NODE]:
        return EntryStep.CONFLICT
    table = existing.properties.get(TABLE)
    if table != wanted.properties[TABLE]:
        return EntryStep.CONFLICT if table in others else EntryStep.CHANGE
    return EntryStep.KEEP if catalog.shows(existing, wanted) else EntryStep.CHANGE


def step_after(node: int, table: str, existing: FoundEntry | None) -> EntryStep:
    """Return the step for the entry of a table that does not exist any more."""
    if existing is None:
        return EntryStep.FORGET
    marks = existing.properties.get(NODE), existing.properties.get(TABLE)
    return EntryStep.REMOVE if marks == (str(node), table) else EntryStep.FORGET
