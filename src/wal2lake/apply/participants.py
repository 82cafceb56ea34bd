"""The tables that take part in a subscription's batches, as its apply worker knows them.

In: relation states from the catalog, versions and cursors from the tables. Out: for each table,
where its changes begin, whether readers have its newest version, and whether an insert may meet an
existing row. Facts of a table (``Participant``), and what changes them:

    fact         set                                       cleared, or moved on
    cursor       refresh: read from the table              committed: end of the batch
    decided      refresh: the vector's LSN, if readers     passed: end of a batch that it took
                 see the table; the stored LSN after a     part in, with changes or without
                 pause; the first LSN, if the table
                 joined without a copy
    version      refresh: the newest found                 committed: the one made; read_state
                                                           (before a batch is staged, and before
                                                           publishing): the newest, under the lock
    trusted      catalog, on joining; refresh, if all      distrust, before a vector contains
                 above the published version is ours       others' rows; DML; REFRESH; rows of
                                                           another table at the publisher
    unpublished  refresh: the found version is not the     published
                 vector's, or the cursor is above the
                 floor; committed
    ready        catalog: the second vector that has it    a new epoch (the table left and came)

Paused tables take no part.

A version of another writer (a Spark job, or a session that died before it published) is published
with the next batch. An idle worker looks for such versions (``written_by_others``) and publishes
them within about a second. A session publishes its own writes, unless the table's cursor is above
the vector or its copy has not joined. Then the worker publishes them; it looks at such tables again
under the commit lock.

Power loss. Versions above the published one that a power loss tore are removed once, when a worker
first sees the table. If the torn commit was the one that ended a copy, the table has no cursor
then, and is copied again.

Source: DESIGN 6 (Apply), invariants 1, 2, 6; worker.c.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wal2lake.apply.batch import RelationName
from wal2lake.apply.local.histories import (
    HistoryTable,
    finish_histories,
    fitted,
    histories_of,
)
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
"""Most commits of this node that a crash can leave unpublished: a commit and a compaction for each
attempt."""

_JOINING: Final = (SyncState.FINISHEDCOPY, SyncState.SYNCDONE, SyncState.READY)


@dataclass(slots=True)
class Participant:
    """One participating table; the module's header explains the facts."""

    rel: SubscriptionRel
    definition: TableDef
    cursor: Lsn
    """LSN in the table's last commit by this subscription. 0 if no commit carries a cursor
    (copy_data = false)."""
    version: int
    """Newest Delta version that the worker has made or read."""
    trusted: bool
    """Whether this subscription wrote every version since the copy."""
    decided: Lsn
    """Everything below this LSN has been applied to the table. A running copy holds the floor, but
    not this position of other tables."""
    unpublished: bool
    """Whether, as far as the worker knows, no vector has ``version`` or the floor is below
    ``cursor``."""
    history: HistoryTable | None = None
    """The table that records its changes; None if there is none."""

    @property
    def history_oid(self) -> Oid | None:
        """OID of the history table; None if there is none."""
        return None if self.history is None else self.history.definition.oid

    @property
    def visible(self) -> bool:
        """Whether a vector contains the table. Later vectors must not show an older state of this
        table than of the others."""
        return self.rel.state in (SyncState.SYNCDONE, SyncState.READY)

    @property
    def ready(self) -> bool:
        """Whether the table has been published. Other tables wait for a vector that reaches their
        cursor."""
        return self.rel.state is SyncState.READY

    def position(self, floor: Lsn) -> Lsn:
        """Return the position below which the table has every transaction."""
        return Lsn(max(self.cursor, self.decided, floor))

    def passed(self, reached: Lsn) -> None:
        """Note that a batch up to ``reached`` has been applied."""
        self.decided = Lsn(max(self.decided, reached))

    def committed(self, cursor: Lsn, version: int) -> None:
        """Note that the table has committed a batch up to ``cursor``."""
        self.cursor, self.version, self.unpublished = cursor, version, True


class Participants:
    """Tables that take part in one subscription. Used by the worker's thread. Threads that the
    worker waits for may call ``read_state``, ``distrust`` and ``committed`` for different
    tables."""

    def __init__(self, catalog: Catalog, tables: TablePort, subid: Oid) -> None:
        self._catalog = catalog
        self._port = tables
        self._subid = subid
        self._node = catalog.system_identifier
        self._known: dict[Oid, Participant] = {}
        self._recovered: set[str] = set()
        """Locations already checked for versions torn by a power loss."""
        self._copying = False
        self._events = get_logger()

    def __getitem__(self, relid: Oid) -> Participant:
        return self._known[relid]

    def __iter__(self) -> Iterator[Participant]:
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    def forget(self) -> None:
        """Drop all cached facts, which may be wrong; the next ``refresh`` reads them again."""
        self._known.clear()

    def are_members(self) -> bool:
        """Whether all participants still belong to the subscription, with the same epoch,
        definition and history table. Called under the commit lock, under which tables leave and are
        altered, and histories begin and end."""
        epochs = {
            rel.relid: rel.epoch
            for rel in self._catalog.rels(self._subid)
            if not rel.paused
        }
        now = {table.oid: table for table in self._catalog.tables()}
        subscription = self._catalog.subscription(self._subid)
        histories = (
            {} if subscription is None else histories_of(self._catalog, subscription)
        )
        return all(
            epochs.get(p.rel.relid) == p.rel.epoch
            and now.get(p.rel.relid) == p.definition
            and histories.get(p.rel.relid) == p.history_oid
            for p in self
        )

    def positions(self, floor: Lsn) -> Mapping[RelationName, tuple[Oid, Lsn]]:
        """Map each table's name at the publisher to its OID and the position where its changes
        begin."""
        return {
            (p.rel.remote_namespace, p.rel.remote_name): (relid, p.position(floor))
            for relid, p in self._known.items()
        }

    def unseen(self, reached: Lsn) -> list[Participant]:
        """Return the tables with a cursor at or below ``reached`` whose version readers do not see
        yet."""
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

    def read_state(self, participant: Participant) -> TableState:
        """Read the table's newest state. A version that this worker does not know makes the table
        untrusted. Called under the commit lock."""
        state = self._port.state(participant.definition.location)
        if state.version != participant.version:
            participant.version = state.version
            self.distrust(participant)
        return state

    def written_by_others(self) -> list[Participant]:
        """Return the published tables that have versions unknown to this worker."""
        return [
            p
            for p in self
            if p.ready
            and not p.unpublished
            and self._port.goes_beyond(p.definition.location, p.version)
        ]

    def take_notice(self, participants: Sequence[Participant]) -> bool:
        """Take over versions that other writers have committed. Return True if no vector has one of
        them: sessions publish their own. Called under the commit lock."""
        vector = self._catalog.newest_vector(self._subid)
        published = vector.versions if vector is not None else {}
        for p in participants:
            version = self.read_state(p).version
            p.unpublished = version != published.get(int(p.rel.relid))
        return any(p.unpublished for p in participants)

    def is_ours_but_altered(self, participant: Participant) -> bool:
        """Whether only the subscription has written rows, apart from an ALTER TABLE of this
        node."""
        location = participant.definition.location
        newest = self._port.state(location).version
        commits = self._port.actions(location, participant.version + 1, newest)
        return participant.trusted and not any(map(_writes_rows, commits))

    def altered(self, relid: Oid) -> bool:
        """Take over the definition and version after a followed ALTER TABLE. Return False if the
        table waits for a copy now and so takes no part any more. Called under the commit lock."""
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
        """Note that another writer has written the table, so that inserts may meet its rows."""
        participant.trusted = False
        if participant.rel.trusted:
            self._catalog.update_rel(self._subid, participant.rel.relid, trusted=False)

    def look_at_sources(
        self, participant: Participant, sources: Collection[Oid]
    ) -> None:
        """Distrust a table whose rows come from another table of the publisher than its copy.

        The key of another table says nothing about the copied rows, even if the tables have the
        same name. ``sources``: the publisher's OIDs of the tables that a batch's rows come from."""
        copied = participant.rel.copied_from
        if copied is not None and any(relid != copied for relid in sources):
            self.distrust(participant)

    def refresh(self, subscription: Subscription) -> None:
        """Read relation states, and the cursors of new tables."""
        participants_before, self._known = self._known, {}
        vector = self._catalog.newest_vector(self._subid)
        published = vector.versions if vector is not None else {}
        seen = INVALID_LSN if vector is None else vector.lsn
        floor = subscription.floor
        rels = self._catalog.rels(self._subid)
        self._copying = self._is_copying(rels)
        definitions = {table.oid: table for table in self._catalog.tables()}
        histories = {
            relid: definitions[history]
            for relid, history in histories_of(self._catalog, subscription).items()
            if history in definitions
        }
        for rel in rels:
            definition = definitions.get(rel.relid)
            if definition is None:
                continue
            expected = published.get(int(rel.relid))
            # Also for tables that wait for their copy: the commit that ended it may be torn.
            self._recover(definition, expected)
            history = histories.get(rel.relid)
            if history is not None:
                self._recover(history, published.get(int(history.oid)))
            if rel.state not in _JOINING or rel.paused:
                continue
            before = participants_before.get(rel.relid)
            if before is not None and before.rel.epoch == rel.epoch:
                before.rel, before.definition = rel, definition
                before.trusted = before.trusted and rel.trusted
                before.history = self._history(before.history, history)
                self._known[rel.relid] = before
                continue
            state = self._port.state(definition.location)
            name = rel.cursor_name(self._node)
            cursor = state.cursor(name)
            waits = rel.state is SyncState.FINISHEDCOPY
            if waits and cursor is None and not rel.rejoins:
                self._copy_again(definition)
                continue
            finish_histories(self._catalog, self._port, self._subid, rel.relid, state)
            table = Participant(
                rel,
                definition,
                Lsn(cursor or 0),
                state.version,
                trusted=rel.trusted,
                decided=INVALID_LSN,
                unpublished=state.version != expected or (cursor or 0) > floor,
                history=self._history(None, history),
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

    def _history(
        self, present: HistoryTable | None, definition: TableDef | None
    ) -> HistoryTable | None:
        """Return a table's history table; its version is read when it is new here."""
        if definition is None:
            return None
        if present is not None and present.definition.oid == definition.oid:
            present.definition = definition
            return present
        return HistoryTable(definition, self._port.state(definition.location).version)

    def history_state(self, participant: Participant) -> TableState | None:
        """Return the state of a table's history table, with columns for all of the table's; None
        if it has none. Called under the commit lock."""
        history = participant.history
        if history is None:
            return None
        state = fitted(
            self._catalog, self._port, history.definition, participant.definition
        )
        history.definition = (
            self._catalog.table_by_oid(history.definition.oid) or history.definition
        )
        history.version = state.version
        return state

    def _is_copying(self, rels: Sequence[SubscriptionRel]) -> bool:
        """Whether copies under the held snapshot are running without an error. Finished copies wait
        for them, because all tables of one snapshot become visible together."""
        held = self._catalog.snapshot_held(self._subid)
        return held is not None and any(
            rel.state is SyncState.DATASYNC
            and rel.error is None
            and int(rel.relid) in held.relids
            for rel in rels
        )

    def _recover(self, definition: TableDef, published: int | None) -> None:
        """Remove, once, the versions above the published one that a power loss tore.

        If no version was published, nothing is removed: all versions are older than the
        subscription.
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
        """Copy a table again, because the commit that ended its copy was lost.

        The state goes back to d, not to i: the floor has waited for the table all the time, and a
        snapshot that is held for the copy can still be used.
        """
        self._events.warning(
            "copy starts again: its commit was lost", table=definition.qualified
        )
        self._catalog.update_rel(self._subid, definition.oid, state=SyncState.DATASYNC)

    def _is_ours(
        self, location: str, published: int | None, newest: int, name: str
    ) -> bool:
        """Whether all versions above the published one are the subscription's.

        A crash can leave a batch's commit and perhaps a compaction. ``published`` is None if the
        table was just copied and never published.
        """
        if published is None or newest == published:
            return True
        if not published < newest <= published + _UNPUBLISHED_COMMITS:
            return False
        writers = self._port.writers(location, published + 1, newest)
        return all(name in names for names in writers)


def _writes_rows(commit: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a commit may have written rows. An ALTER TABLE (a commit with metadata) and a
    rearrangement of rows have not. A commit that the log no longer has may."""
    if any("metaData" in action for action in commit):
        return False
    files = [
        file for a in commit for kind, file in a.items() if kind in ("add", "remove")
    ]
    return not commit or any(file.get("dataChange", True) for file in files)
