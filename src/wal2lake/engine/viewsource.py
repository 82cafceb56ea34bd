"""Provides the data of system views: the catalog, progress files, change logs and sessions.

Implements ``sysviews.source.CatalogSource``. Monitoring polls pg_stat_subscription, so each
subscription's progress file is mapped once and kept. What was read of a change log's messages is
kept for the same reason.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from wal2lake.catalog import (
    Catalog,
    CoercionTotal,
    Comment,
    Namespace,
    NotedConflict,
    NotedDifference,
    NotedSchemaChange,
    OwnedSequence,
    PreparedCommit,
    Progress,
    ProgressFile,
    Publication,
    RegisteredTable,
    ReplicationOrigin,
    Role,
    RoleMember,
    SnapshotVector,
    Subscription,
    SubscriptionError,
    SubscriptionRel,
    SubscriptionStats,
    SyncSnapshot,
    TableDef,
    TableIndex,
    Verification,
    read_registered,
)
from wal2lake.catalog.mapped.progress import progress_path
from wal2lake.changelog import (
    Inventory,
    MessageHistory,
    PreparedTransaction,
    prepared_transactions,
)
from wal2lake.health import FactReader, Problem, ProblemClock, load_seen, problems
from wal2lake.lake.batch import Method, Total
from wal2lake.launch.wakeup import RELOAD, notify
from wal2lake.model import Acl, Lsn, Oid
from wal2lake.publish.limits import Room
from wal2lake.publish.slots import SlotUse
from wal2lake.publish.statistics import Statistics
from wal2lake.publish.synchronous import Standbys
from wal2lake.publish.walsender.page import WalsenderPositions
from wal2lake.settings import LogSettings, Settings
from wal2lake.sql.sysviews import ActiveSession, LoggedMessage, LogReading
from wal2lake.tablesync.attempt import RunningCopy


class LiveState(Protocol):
    """State of the running engine, as system views show it."""

    @property
    def statistics(self) -> Statistics:
        """Statistics of slots."""
        ...

    def sessions(self) -> Sequence[ActiveSession]:
        """Return the connected sessions."""
        ...

    def copies(self, subid: Oid) -> Sequence[RunningCopy]:
        """Return the running copies of a subscription."""
        ...

    def methods(self, cursor: str, location: str) -> Mapping[Method, Total]:
        """Return how batches of a table were written, as ``BatchPort.methods``."""
        ...

    def slots(self) -> Sequence[tuple[SlotUse, Room]]:
        """Return the slots with their users and their distance from the limit."""
        ...

    def walsenders(self) -> Sequence[tuple[int, str, WalsenderPositions]]:
        """Return the streaming walsenders: session, slot, positions."""
        ...

    def standbys(self) -> Standbys | None:
        """Return the standbys that commits wait for; None: they wait for none."""
        ...

    def local_ends(self) -> Mapping[str, Lsn]:
        """Return the local end of each origin's last transaction."""
        ...

    def size_of(self, table: TableDef) -> int | None:
        """Return the bytes of a table's files; None if they are not known."""
        ...

    def signal(self, pid: int, terminate: bool) -> bool:
        """Cancel a session's statement, or end the session; False if there is no such one."""
        ...


class ViewSource:
    """Answers the questions of system views, as ``CatalogSource`` specifies."""

    def __init__(self, catalog: Catalog, settings: Settings, state: LiveState) -> None:
        self._catalog = catalog
        self._run_directory = settings.run_directory
        self._settings = settings
        self._state = state
        self.slots = state.slots
        self.walsenders = state.walsenders
        self.standbys = state.standbys
        self.slot_statistics = state.statistics
        self._files: dict[Oid, ProgressFile] = {}
        self._histories: dict[Oid, MessageHistory] = {}
        self._inventories: dict[Oid, Inventory] = {}
        self._inodes: dict[Oid, int] = {}
        """Inodes of the directories that the readings belong to: a re-copy may begin a new log."""
        self._facts = FactReader(settings)
        self._clock = ProblemClock()
        self._guard = threading.Lock()
        self._started_at = datetime.now(UTC)

    def over(self, catalog: Catalog) -> ViewSource:
        """Return a copy of this object over a transaction block's catalog."""
        copied = copy.copy(self)
        copied._catalog = catalog
        return copied

    def reload(self, settings: Settings) -> None:
        """Use new settings from now on."""
        self._settings = settings
        self._facts.reload(settings)

    @property
    def change_counter(self) -> int:
        """Return the catalog's change counter."""
        return self._catalog.change_counter

    @property
    def system_identifier(self) -> int:
        """Return the node's system identifier."""
        return self._catalog.system_identifier

    @property
    def started_at(self) -> datetime:
        """Return the start time of this engine."""
        return self._started_at

    def roles(self) -> Sequence[Role]:
        """From the catalog."""
        return self._catalog.roles()

    def role_members(self) -> Sequence[RoleMember]:
        """From the catalog."""
        return self._catalog.role_members()

    def database_acl(self) -> Acl | None:
        """From the catalog."""
        return self._catalog.database_acl()

    def namespaces(self) -> Sequence[Namespace]:
        """From the catalog."""
        return self._catalog.namespaces()

    def tables(self) -> Sequence[TableDef]:
        """From the catalog."""
        return self._catalog.tables()

    def indexes(self) -> Sequence[TableIndex]:
        """From the catalog."""
        return self._catalog.indexes()

    def sequences(self) -> Sequence[OwnedSequence]:
        """From the catalog."""
        return self._catalog.sequences()

    def last_values(self) -> Mapping[Oid, int]:
        """From the catalog."""
        return self._catalog.last_values()

    def origins(self) -> Sequence[ReplicationOrigin]:
        """From the catalog."""
        return self._catalog.origins()

    def applied_ends(self) -> Mapping[Oid, Lsn]:
        """From the catalog."""
        return self._catalog.applied_ends()

    def local_ends(self) -> Mapping[str, Lsn]:
        """Positions of the origins whose transactions were captured since the node started."""
        return self._state.local_ends()

    def origin_numbers(self) -> Mapping[str, int]:
        """From the catalog."""
        return self._catalog.origin_numbers()

    def prepared_commits(self) -> Sequence[PreparedCommit]:
        """From the catalog."""
        return self._catalog.prepared_commits()

    def publications(self) -> Sequence[Publication]:
        """From the catalog."""
        return self._catalog.publications()

    def subscriptions(self) -> Sequence[Subscription]:
        """From the catalog."""
        return self._catalog.subscriptions()

    def rels(self) -> Sequence[SubscriptionRel]:
        """From the catalog."""
        return self._catalog.rels()

    def vectors(self) -> Sequence[SnapshotVector]:
        """From the catalog."""
        return self._catalog.vectors()

    def schema_history(self) -> Sequence[NotedSchemaChange]:
        """From the catalog."""
        return self._catalog.schema_history()

    def conflicts(self) -> Sequence[NotedConflict]:
        """From the catalog."""
        return self._catalog.conflicts()

    def coercions(self) -> Sequence[CoercionTotal]:
        """From the catalog."""
        return self._catalog.coercions()

    def verifications(self) -> Sequence[Verification]:
        """From the catalog."""
        return self._catalog.verifications()

    def differences(self) -> Sequence[NotedDifference]:
        """From the catalog."""
        return self._catalog.differences()

    def errors(self) -> Sequence[SubscriptionError]:
        """From the catalog."""
        return self._catalog.errors()

    def stats(self) -> Sequence[SubscriptionStats]:
        """From the catalog."""
        return self._catalog.stats()

    def reset_stats(self, subid: Oid | None) -> None:
        """Reset statistics in the catalog."""
        self._catalog.reset_stats(subid)

    def reload_settings(self) -> bool:
        """Ask the supervisor to reload the settings everywhere."""
        return notify(self._run_directory, RELOAD)

    def signal(self, pid: int, *, terminate: bool) -> bool:
        """Signal a session of the front door."""
        return self._state.signal(pid, terminate)

    def comments(self) -> Sequence[Comment]:
        """From the catalog."""
        return self._catalog.comments()

    def progress(self, subid: Oid) -> Progress | None:
        """Read the subscription's progress file; None if the subscription never ran."""
        with self._guard:
            file = self._files.get(subid)
            path = progress_path(self._run_directory, subid)
            if not path.exists():
                if file is not None:
                    file.close()
                    del self._files[subid]
                return None
            if file is None:
                file = self._files[subid] = ProgressFile(self._run_directory, subid)
            return file.read()

    def copies(self, subid: Oid) -> Sequence[RunningCopy]:
        """From the tablesync worker."""
        return self._state.copies(subid)

    def methods(self, rel: SubscriptionRel, location: str) -> Mapping[Method, Total]:
        """From the writer of the batches."""
        return self._state.methods(rel.cursor_name(self.system_identifier), location)

    def problems(self) -> Sequence[Problem]:
        """From the node's files, as every other surface has them."""
        now = datetime.now(UTC)
        present = problems(self._facts.read(now), now)
        with self._guard:
            self._clock.learn(load_seen(self._run_directory, now))
            return self._clock.follow(present, now)

    def registered(self) -> Sequence[tuple[str, RegisteredTable]]:
        """From the files of the workers that register them."""
        settings = self._settings
        return [
            (form, table)
            for form, file in (
                ("delta", settings.registered_file),
                ("iceberg", settings.iceberg_registered_file),
            )
            for _, table in sorted(read_registered(file).tables.items())
        ]

    @property
    def engine_pid(self) -> int:
        """Return the number of this process."""
        return os.getpid()

    def messages(self, subid: Oid) -> Iterable[LoggedMessage]:
        """From the sealed segments of the subscription's log."""
        with self._guard:
            directory = self._log_directory(subid)
            history = self._histories.get(subid)
            if history is None:
                history = self._histories[subid] = MessageHistory(directory)
            table = history.read(limit_bytes=self._settings.log.messages_view_bytes)
        columns = [
            table.column(name).to_pylist()
            for name in ("lsn", "commit_lsn", "prefix", "content")
        ]
        for lsn, commit_lsn, prefix, content in zip(*columns, strict=True):
            commit = None if commit_lsn is None else Lsn(commit_lsn)
            yield LoggedMessage(Lsn(lsn), commit, prefix, content)

    def log(self, subid: Oid) -> LogReading | None:
        """From the files of the subscription's log."""
        with self._guard:
            directory = self._log_directory(subid)
            inventory = self._inventories.get(subid)
            if inventory is None:
                inventory = Inventory(directory)
                self._inventories[subid] = inventory
            contents = inventory.read()
        return None if contents is None else LogReading(contents, inventory)

    def _log_directory(self, subid: Oid) -> Path:
        """Return the log's directory, after forgetting readings of an earlier one of that name."""
        directory = self._settings.log_directory / str(int(subid))
        try:
            inode = directory.stat().st_ino
        except FileNotFoundError:
            return directory
        if self._inodes.get(subid) != inode:
            self._histories.pop(subid, None)
            self._inventories.pop(subid, None)
            self._inodes[subid] = inode
        return directory

    def log_directory(self, subid: Oid | None) -> Path:
        """From the settings."""
        if subid is None:
            return self._settings.publish_log_directory
        return self._settings.log_directory / str(int(subid))

    @property
    def log_settings(self) -> LogSettings:
        """The present settings of the log."""
        return self._settings.log

    def snapshot_held(self, subid: Oid) -> SyncSnapshot | None:
        """From the catalog."""
        return self._catalog.snapshot_held(subid)

    def prepared(self, subid: Oid) -> Sequence[PreparedTransaction]:
        """From the checkpoints in the subscription's log."""
        return prepared_transactions(self._settings.log_directory / str(int(subid)))

    def sessions(self) -> Sequence[ActiveSession]:
        """From the listeners."""
        return self._state.sessions()

    def table_bytes(self, relid: Oid) -> int | None:
        """Bytes of the newest version's files; None if they cannot be listed."""
        table = self._catalog.table_by_oid(relid)
        return None if table is None else self._state.size_of(table)
