"""The source of a subscription as VERIFY and REPAIR see it: a snapshot, and its tables.

Comes in: a subscription. Goes out: a snapshot of its publisher, a session that sees it, and each
table that has a common state with its copy; the reason of each that has none. Called by
``verifying`` and ``repairing``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from wal2lake.catalog import SnapshotVector, Subscription, SubscriptionRel, TableDef
from wal2lake.commands.maintenance.sourcetables import (
    LOCK_TIMEOUT_MS,
    import_snapshot,
    locked_table,
)
from wal2lake.commands.subscription.publisher import (
    connect_ordinary,
    connect_publisher,
)
from wal2lake.local.node import Caller, EngineParts
from wal2lake.model import Oid, SyncState
from wal2lake.pg import Publisher, RemoteTable, Session, nudged
from wal2lake.pg.publisher import SlotCreated
from wal2lake.verify import NotComparable

_ANSWER_SECONDS: Final = 300.0
"""Longest wait for an answer from the source's catalogs, beside that for a lock. A guess. Digests
and hashes are awaited without a limit, because they take the longer the larger the table is."""


class HeldState:
    """Keeps the versions of a state from VACUUM for as long as it exists."""

    def __init__(self, vector: SnapshotVector) -> None:
        self._vector = vector

    def reads(self, location: str, relids: Collection[Oid]) -> Iterable[int]:
        """Return the versions of a table that are compared."""
        versions = self._vector.versions
        return [versions[int(relid)] for relid in relids if int(relid) in versions]


class ComparedSource:
    """Takes snapshots of one subscription's publisher."""

    def __init__(
        self, node: EngineParts, caller: Caller, subscription: Subscription
    ) -> None:
        self._node = node
        self._caller = caller
        self._subscription = subscription
        self._must_use_password = node.catalog.must_use_password(subscription)

    def check_comparable(self) -> None:
        """Raise NotComparable if no table of the subscription can be compared."""
        subscription = self._subscription
        if not subscription.runs:
            raise NotComparable(
                "the subscription is disabled, so its tables stand still"
            )
        if subscription.origin == "none":
            raise NotComparable("origin = none leaves out changes that the source has")

    # ---- one LSN -------------------------------------------------------------------------

    @contextmanager
    def exported(self, attempt: int) -> Iterator[SlotCreated]:
        """Take a snapshot. Its slot, which holds the source's WAL, ends with the block."""
        subscription = self._subscription
        # Slots are dropped some moments after their sessions, so no name is used twice.
        slot = (
            f"wal2lake_verify_{self._node.catalog.system_identifier}"
            f"_{subscription.oid}_{self._caller.pid}_{attempt}"
        )
        with connect_publisher(
            self._node,
            subscription.name,
            subscription.conninfo,
            check=self._caller.check,
            must_use_password=self._must_use_password,
        ) as exporter:
            with nudged(
                subscription.conninfo,
                subscription.name,
                must_use_password=self._must_use_password,
            ):
                created = Publisher(exporter).create_slot(
                    slot, temporary=True, snapshot="export"
                )
            yield created

    def imported(self, snapshot: str) -> Session:
        """Open a session that sees a snapshot."""
        subscription = self._subscription
        wait_ms = self._node.settings.subscription.max_lock_wait_ms or LOCK_TIMEOUT_MS
        session = connect_ordinary(
            self._node,
            subscription.name,
            subscription.conninfo,
            _ANSWER_SECONDS + wait_ms / 1000,
            check=self._caller.check,
            must_use_password=self._must_use_password,
        )
        try:
            import_snapshot(session, snapshot, wait_ms)
        except BaseException:
            session.close()
            raise
        return session

    def comparable(self, rel: SubscriptionRel, vector: SnapshotVector) -> TableDef:
        """Return the table, or raise NotComparable with the reason."""
        table = self._node.catalog.table_by_oid(rel.relid)
        if table is None:
            raise NotComparable("it was dropped here")
        if rel.paused:
            raise NotComparable("it is paused")
        if rel.state is not SyncState.READY or int(rel.relid) not in vector.versions:
            raise NotComparable("its copy is not complete")
        if vector.elsewhere(rel.relid) is not None:
            raise NotComparable("it is not at the position of the other tables")
        if rel.begins is not None:
            raise NotComparable("its rows were not copied (copy_data = false)")
        names = self._node.catalog.sharing(table)
        others = [r for r in self._node.catalog.rels() if r.relid in names]
        if len(others) > 1:
            raise NotComparable("another subscription or table fills it, too")
        if self._subscription.options.get("delete_mode") == "soft":
            raise NotComparable("it keeps deleted rows (delete_mode = soft)")
        return table

    def locked(
        self, session: Session, rel: SubscriptionRel
    ) -> AbstractContextManager[RemoteTable]:
        """Give the table at the source, locked, as the snapshot has it (``locked_table``)."""
        name = (rel.remote_namespace, rel.remote_name)

        def find() -> RemoteTable | None:
            # Alone, because a description may wait for the lock of its table.
            publications = self._subscription.publications
            return Publisher(session).tables((name,), publications).get(name)

        return locked_table(session, find)
