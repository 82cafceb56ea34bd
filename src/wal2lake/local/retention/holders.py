"""Holders of versions and files of a table.

Takes a table's place; returns the oldest version that is being read or may still be read, and the
files that are noted without being in a version. docs/decisions/0023-retention.md has the list with
the reasons.

    holder                                          holds
    ----------------------------------------------  -----------------------------------------
    states that wal2lake.snapshots lists            their versions (the caller's)
    statements, transactions, exported snapshots    the versions that they read
    local commits under way                         the version before
    Iceberg mirrors                                 the versions that their snapshots show; one
                                                     that does not follow is removed (``mirrors``)
    branches, batches, compactions                  the version on which they are based
    capture, while there is a slot                  the last version in the sealed log
    prepared transactions, commits to several       the version on which they are based, their
     tables, ALTER TABLE                             files
    histories whose table is being committed        their files
    running copies                                  the files of finished ranges, and all files
                                                     that no version of the table or of its
                                                     history has

Called by ``vacuuming``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from wal2lake.catalog import Catalog, HistoryFeed, TableChange, TableDef
from wal2lake.lake import files_from_json
from wal2lake.lake.retention import name_below, vector_below
from wal2lake.lake.store import Store, store_at
from wal2lake.local.ports import RetentionParts
from wal2lake.model import Oid, SyncState

_LOOK_UP_SECONDS: Final = 10.0
"""Time limit for look-ups of versions, which take milliseconds."""

_COPYING: Final = (SyncState.INIT, SyncState.DATASYNC)


@dataclass(frozen=True, slots=True)
class TablePlace:
    """A table's location, with all names of the table."""

    location: str
    tables: tuple[TableDef, ...]

    @property
    def relids(self) -> tuple[Oid, ...]:
        """OIDs of the table's names."""
        return tuple(table.oid for table in self.tables)

    @property
    def shown(self) -> str:
        """The table's first name, for messages."""
        return self.tables[0].qualified

    @property
    def store(self) -> Store | None:
        """The store of the table's files; None for a storage without one, as HDFS."""
        return store_at(self.location)


def places_of(
    catalog: Catalog, chosen: Iterable[TableDef] | None = None
) -> list[TablePlace]:
    """Return the places of tables, each once, in the order of ``chosen``; None for all tables."""
    by_location: dict[str, list[TableDef]] = {}
    tables = catalog.tables()
    for table in tables:
        by_location.setdefault(table.location, []).append(table)
    wanted = tables if chosen is None else list(chosen)
    return [
        TablePlace(location, tuple(by_location[location]))
        for location in dict.fromkeys(table.location for table in wanted)
        if location in by_location
    ]


@dataclass(slots=True)
class HeldFiles:
    """The versions and files that are held of one table."""

    versions: set[int] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    """Files, by name below the table."""
    keeps_orphans: bool = False
    """True if files that no version has must all stay."""
    unknown: str | None = None
    """Why it is not known what is held; nothing may be removed then."""


def held_of(node: RetentionParts, place: TablePlace) -> HeldFiles:
    """Return what is held of a table. What begins afterwards holds nothing older."""
    held = HeldFiles()
    # First what becomes a version or a state later: what has become one meanwhile is found there.
    _hold_changes(node, place, held)
    _hold_copies(node.catalog, place, held)
    for relid in place.relids:
        for files in node.catalog.files_of_history(relid):
            held.names |= {file.path for file in files_from_json(files)}
    mirrored = node.mirrors.oldest_version(place.location)
    if mirrored is not None:
        held.versions.add(mirrored)
    versions, names = node.compactor.held(place.location)
    held.versions.update(versions)
    held.names |= names
    bases = [*node.branches.bases(place.location), *node.batch_reads(place.location)]
    if None in bases:
        held.unknown = "a transaction is about to write it"
    held.versions.update(base for base in bases if base is not None)
    _hold_captured(node, place, held)
    read = node.snapshots.held(place.location, place.relids, _LOOK_UP_SECONDS)
    if read is None:
        held.unknown = "a statement is about to read it"
    held.versions.update(read or ())
    return held


def _hold_changes(node: RetentionParts, place: TablePlace, held: HeldFiles) -> None:
    catalog = node.catalog
    commits = [commit.tables for commit in catalog.local_commits()]
    commits += [prepared.tables for prepared in catalog.prepared_commits()]
    for tables in commits:
        for change in tables:
            if change.location == place.location:
                held.versions.add(change.read_version)
                held.names |= set(_named_in(place, change))


def _named_in(place: TablePlace, change: TableChange) -> Iterable[str]:
    for action in change.actions:
        content: Mapping[str, Any] = next(iter(action.values()), {})
        path = content.get("path")
        name = None if path is None else name_below(place.location, str(path))
        if name is not None:
            yield name
        vector = vector_below(place.location, content.get("deletionVector"))
        if vector is not None:
            yield vector


def _hold_copies(catalog: Catalog, place: TablePlace, held: HeldFiles) -> None:
    feeds = catalog.histories()
    fed_by = {feeds[relid] for relid in place.relids if relid in feeds}
    for rel in catalog.rels():
        is_fed = HistoryFeed(rel.subid, rel.relid) in fed_by
        if rel.relid not in place.relids and not is_fed:
            continue
        held.keeps_orphans = held.keeps_orphans or (
            rel.state in _COPYING and not rel.paused
        )
        if is_fed:
            continue
        for copied in catalog.ranges(rel.subid, rel.relid):
            held.names |= {file.path for file in files_from_json(copied.files)}


def _hold_captured(node: RetentionParts, place: TablePlace, held: HeldFiles) -> None:
    if node.publishing is None or not node.catalog.slots():
        return
    captured = node.publishing.capture.captured()
    if captured is None:
        held.unknown = "the publisher's log is about to begin"
        return
    # A table that the log does not know yet is captured from its first version.
    held.versions.add(
        min(
            (captured[int(relid)] for relid in place.relids if int(relid) in captured),
            default=0,
        )
    )
