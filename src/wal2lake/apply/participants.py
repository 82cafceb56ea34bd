"""The tables that take part in a subscription's batches, as its apply worker knows them.

Comes in: relation states from the catalog, versions and cursors from the tables. Goes out: for
each table where its changes begin, whether readers have its newest version, and whether an insert
may meet a row. What is known of a table (``Participant``), and who changes it:

    fact         set                                       cleared, or moved on
    cursor       refresh: read from the table              committed: end of the batch
    decided      refresh: the vector's LSN, if readers     passed: end of a batch that it took
                 see the table; where it stands, if it     part in, with changes or without
                 comes back; where it begins, if it came
                 without a copy
    version      refresh: the newest found                 committed: the one made; look (before
                                                           a batch is staged, and before it is
                                                           published): the newest, under the lock
    trusted      catalog, on the way in; refresh, if all   distrust, before a vector has what
                 above the published version is ours       others wrote; DML; REFRESH; rows of
                                                           another table at the publisher
    unpublished  refresh: the found version is not the     published
                 vector's, or the cursor is above the
                 floor; committed
    ready        catalog: the second vector that has it    a new epoch (the table left and came)

A table that is paused is not among them.

A version of others (a Spark job's, a write at the front door whose session died) is published with
the next batch, and by a worker that has nothing to do within a second or so: it looks for them
(``written_by_others``). The front door publishes its own writes, unless
the table's cursor is above the vector or its copy has not joined: then the worker does it, which
looks at such tables again under the commit lock.

A power loss. What it tore above the published version is undone when a worker first sees the
table, once: no power loss comes in between. A copy that ended with a torn commit (tablesync
found the cursor in it) is without a cursor then, and is made again.

Source: DESIGN 6 (Apply), invariants 1, 2, 6; worker.c.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wal2lake.apply.batch import RelationName
from wal2lake.catalog import (
    Catalog,
    Subscription,
    SubscriptionRel,
    TableDef,
)
from wal2lake.lake import TablePort, TableState
from wal2lake.model import INVALID_LSN, Lsn, Oid, SyncState
from wal2lake.observe import get_logger

_UNPUBLISHED_COMMITS: Final = 8
"""More than a crash can leave of ours: a commit and a compaction for each attempt."""

_JOINING: Final = (SyncState.FINISHEDCOPY, SyncState.SYNCDONE, SyncState.READY)


@dataclass(slots=True)
class Participant:
    """One table; see the module's table of facts."""

    rel: SubscriptionRel
    definition: TableDef
    cursor: Lsn
    """0: no commit of ours carries one (copy_data = false)."""
    version: int
    """The newest Delta version that the worker has made or found."""
    trusted: bool
    """Every version since the copy is ours."""
    decided: Lsn
    """Nothing below it is still to be applied. A copy that goes on holds the floor, not what
    is known of the other tables."""
    unpublished: bool
    """No vector has ``version``, or the floor is not at ``cursor`` yet; as far as we know."""

    @property
    def visible(self) -> bool:
        """In a vector already: no later one may show less of it than of the others."""
        return self.rel.state in (SyncState.SYNCDONE, SyncState.READY)

    @property
    def ready(self) -> bool:
        """Published already; others wait for a vector that reaches their cursor."""
        return self.rel.state is SyncState.READY

    def position(self, floor: Lsn) -> Lsn:
        """Below it the table has every transaction."""
        return Lsn(max(self.cursor, self.decided, floor))

    def passed(self, reached: Lsn) -> None:
        """A batch up to ``reached`` is behind it."""
        self.decided = Lsn(max(self.decided, reached))

    def committed(self, cursor: Lsn, version: int) -> None:
        """A batch up to ``cursor`` is in the table."""
        self.cursor, self.version, self.unpublished = cursor, version, True


class Participants:
    """Tables that take part in one subscription. For the worker's thread; ``look``, ``distrust``
    and ``committed`` of different tables also for threads that it waits for."""

    def __init__(self, catalog: Catalog, tables: TablePort, subid: Oid) -> None:
        self._catalog = catalog
        self._port = tables
        self._subid = subid
        self._node = catalog.system_identifier
        self._known: dict[Oid, Participant] = {}
        self._recovered: set[str] = set()
        """Locations that were looked at for what a power loss tore."""
        self._copying = False
        self._events = get_logger()

    def __getitem__(self, relid: Oid) -> Participant:
        return self._known[relid]

    def __iter__(self) -> Iterator[Participant]:
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    def forget(self) -> None:
        """Read everything anew at the next ``refresh``: what is known may be wrong."""
        self._known.clear()

    def are_members(self) -> bool:
        """Whether all of them are in the subscription still, as they came in and defined as they
        were. Under the commit lock, under which they leave and are altered."""
        epochs = {
            rel.relid: rel.epoch
            for rel in self._catalog.rels(self._subid)
            if not rel.paused
        }
        now = {table.oid: table for table in self._catalog.tables()}
        return all(
            epochs.get(p.rel.relid) == p.rel.epoch
            and now.get(p.rel.relid) == p.definition
            for p in self
        )

    def positions(self, floor: Lsn) -> Mapping[RelationName, tuple[Oid, Lsn]]:
        """By the name that the publisher gives them: the table, and where its changes
        begin."""
        return {
            (p.rel.remote_namespace, p.rel.remote_name): (relid, p.position(floor))
            for relid, p in self._known.items()
        }

    def unseen(self, reached: Lsn) -> list[Participant]:
        """Tables at or below ``reached`` whose version readers do not have yet."""
        return [
            p
            for p in self
            if p.cursor <= reached
            and (p.unpublished or not p.ready)
            and not (
                self._copying
                and p.rel.state is SyncState.FINISHEDCOPY
                and not p.rel.rejoins
            )
        ]

    def look(self, participant: Participant) -> TableState:
        """The table as it is; under the commit lock it is ours or somebody else's."""
        state = self._port.state(participant.definition.location)
        if state.version != participant.version:
            participant.version = state.version
            self.distrust(participant)
        return state

    def written_by_others(self) -> list[Participant]:
        """Tables that readers see, with versions that this worker has not made or found."""
        return [
            p
            for p in self
            if p.ready
            and not p.unpublished
            and self._port.goes_beyond(p.definition.location, p.version)
        ]

    def take_notice(self, participants: Sequence[Participant]) -> bool:
        """Note versions that others have committed, under the commit lock: sessions publish their
        own. Return True if one of them is in no vector."""
        vector = self._catalog.newest_vector(self._subid)
        published = vector.versions if vector is not None else {}
        for p in participants:
            version = self.look(p).version
            p.unpublished = version != published.get(int(p.rel.relid))
        return any(p.unpublished for p in participants)

    def is_ours_but_altered(self, participant: Participant) -> bool:
        """Has nobody but the subscription written rows, if ALTER TABLE of this node has not?"""
        location = participant.definition.location
        newest = self._port.state(location).version
        commits = self._port.actions(location, participant.version + 1, newest)
        return participant.trusted and not any(map(_writes_rows, commits))

    def altered(self, relid: Oid) -> bool:
        """Take over what a followed ALTER TABLE has made of a table, under the commit lock; False:
        it is no participant any more, for it waits for its copy."""
        participant = self._known[relid]
        definition = self._catalog.table_by_oid(relid)
        rel = next(
            (rel for rel in self._catalog.rels(self._subid) if rel.relid == relid), None
        )
        if (
            rel is None
            or definition is None
            or rel.epoch != participant.rel.epoch
            or rel.state not in _JOINING
            or rel.paused
        ):
            return False
        participant.rel, participant.definition = rel, definition
        participant.trusted = rel.trusted
        participant.version = self._port.state(definition.location).version
        participant.unpublished = True
        return True

    def distrust(self, participant: Participant) -> None:
        """Somebody else has written it: inserts may meet rows that are not ours."""
        participant.trusted = False
        if participant.rel.trusted:
            self._catalog.update_rel(self._subid, participant.rel.relid, trusted=False)

    def look_at_sources(
        self, participant: Participant, sources: Collection[Oid]
    ) -> None:
        """Distrust a table whose rows come from another table of the publisher than its copy.

        Another table of the same name has not the rows that were copied, so its key says nothing
        of them. ``sources``: the OIDs that a batch's rows name."""
        copied = participant.rel.copied_from
        if copied is not None and any(relid != copied for relid in sources):
            self.distrust(participant)

    def refresh(self, subscription: Subscription) -> None:
        """Take over relation states, and read the cursors of tables that are new."""
        known, self._known = self._known, {}
        vector = self._catalog.newest_vector(self._subid)
        published = vector.versions if vector is not None else {}
        seen = INVALID_LSN if vector is None else vector.lsn
        floor = subscription.floor
        rels = self._catalog.rels(self._subid)
        self._copying = self._is_copying(rels)
        definitions = {table.oid: table for table in self._catalog.tables()}
        for rel in rels:
            definition = definitions.get(rel.relid)
            if definition is None:
                continue
            expected = published.get(int(rel.relid))
            # Tables that wait for their copy, too: it may have been torn as it ended.
            self._recover(definition, expected)
            if rel.state not in _JOINING or rel.paused:
                continue
            before = known.get(rel.relid)
            if before is not None and before.rel.epoch == rel.epoch:
                before.rel, before.definition = rel, definition
                before.trusted = before.trusted and rel.trusted
                self._known[rel.relid] = before
                continue
            state = self._port.state(definition.location)
            name = rel.cursor_name(self._node)
            cursor = state.cursor(name)
            waits = rel.state is SyncState.FINISHEDCOPY
            if waits and cursor is None and not rel.rejoins:
                self._copy_again(definition)
                continue
            table = Participant(
                rel,
                definition,
                Lsn(cursor or 0),
                state.version,
                trusted=rel.trusted,
                decided=INVALID_LSN,
                unpublished=state.version != expected or (cursor or 0) > floor,
            )
            if table.visible:
                table.passed(seen)
            elif rel.rejoins and rel.lsn is not None:
                table.passed(rel.lsn)
            if rel.begins is not None:
                table.passed(rel.begins)
            if rel.trusted and not self._is_ours(
                definition.location, expected, state.version, name
            ):
                self.distrust(table)
            self._known[rel.relid] = table

    def _is_copying(self, rels: Sequence[SubscriptionRel]) -> bool:
        """Are there copies under the held snapshot that go well? Those that are done wait for
        them: what was copied at one moment is first seen at one moment."""
        held = self._catalog.snapshot_held(self._subid)
        return held is not None and any(
            rel.state is SyncState.DATASYNC
            and rel.error is None
            and int(rel.relid) in held.relids
            for rel in rels
        )

    def _recover(self, definition: TableDef, published: int | None) -> None:
        """Undo what a power loss tore above the published version, once.

        Nothing is undone where nothing was published: all that is there came before us.
        """
        if definition.location in self._recovered:
            return
        if published is not None:
            removed = self._port.recover(definition.location, published)
            if removed:
                self._events.warning(
                    "removed versions that a power loss left incomplete",
                    table=definition.qualified,
                    versions=list(removed),
                )
        self._recovered.add(definition.location)

    def _copy_again(self, definition: TableDef) -> None:
        """The commit that ended its copy has not survived.

        Back to d, where it came from, and not to i: the floor waits for it all the time,
        and a snapshot that is held for it still can be used.
        """
        self._events.warning(
            "copy starts again: its commit was lost", table=definition.qualified
        )
        self._catalog.update_rel(self._subid, definition.oid, state=SyncState.DATASYNC)

    def _is_ours(
        self, location: str, published: int | None, found: int, name: str
    ) -> bool:
        """Has nobody else written what a start finds above the published version?

        A crash leaves a batch's commit there, and perhaps a compaction. None: never
        published, just copied.
        """
        if published is None or found == published:
            return True
        if not published < found <= published + _UNPUBLISHED_COMMITS:
            return False
        writers = self._port.writers(location, published + 1, found)
        return all(name in one for one in writers)


def _writes_rows(commit: Sequence[Mapping[str, Any]]) -> bool:
    """Not if it is an ALTER TABLE, which has the columns, nor if it rearranges rows. A commit that
    the log does not have any more may."""
    if any("metaData" in action for action in commit):
        return False
    files = [
        one for a in commit for kind, one in a.items() if kind in ("add", "remove")
    ]
    return not commit or any(one.get("dataChange", True) for one in files)
