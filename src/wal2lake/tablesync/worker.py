"""The tablesync workers of one subscription: waiting tables into copied ones.

    state   who sets it                          what is durable then
    i       CREATE SUBSCRIPTION, REFRESH         the table is known
    d       the receiver's snapshot keeper       the floor waits for this table's snapshot
            (and the apply worker, for a copy
            that a power cut tore)
    (d)     here, per range                      the range's files, fsynced; its row in copy_range
    f       here                                 ONE commit: all files, cursor S
    s, r    the apply worker                     see apply.worker

A copy needs a snapshot that the receiver holds and that covers the table. Ranges are read
by executors, a job each; each finished one is recorded with the snapshot's name, so after the
engine's death the others are copied and these are not. When the snapshot itself
is gone, its ranges are void (a row updated since would be in two of them or in none) and
the table starts again; files that were written for it are left to VACUUM.

Two crash points matter. After the commit and before f is recorded: the table's cursor says
so, the commit is not repeated. After f and before the ranges are forgotten: they are
forgotten at the next look.

Source: tablesync.c (the states); DESIGN 6 (Table synchronisation).
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final

from wal2lake.catalog import (
    Catalog,
    CopyRange,
    Subscription,
    SubscriptionRel,
    SyncSnapshot,
    TableDef,
)
from wal2lake.errors import ApplyError, Wal2LakeError
from wal2lake.lake import (
    AddedFile,
    Cursor,
    TablePort,
    TableState,
    files_from_json,
    files_to_json,
)
from wal2lake.lake.spark.executors import Executors
from wal2lake.lake.spark.session import Pool
from wal2lake.lake.staging.convert import Rules
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.observe import failpoint, get_logger
from wal2lake.pg import Publisher, RemoteTable, connect
from wal2lake.pgtypes import COPIED_ANEW, ValuePolicies, remote_types_from_json
from wal2lake.settings import Settings
from wal2lake.tablesync.copy import CopyResult, CopyTask, copy_range
from wal2lake.tablesync.plan import (
    PageRange,
    copies_in_binary,
    copy_statement,
    decode_plan,
    encode_plan,
    page_ranges,
)

_POLL_SECONDS: Final = 0.02
"""How soon a snapshot is noticed: it is one read of the catalog's change counter."""

_LOOK_SECONDS: Final = 1.0
"""A copy that failed waits for nothing that would show in the catalog."""

_ROW_GROUP_BYTES: Final = 32 << 20
"""Arrow bytes per row group: what one range holds in memory, twice over."""


class _SnapshotGone(Exception):
    """The copy cannot go on under this snapshot."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """One table's copy in hand."""

    subscription: Subscription
    rel: SubscriptionRel
    table: TableDef
    snapshot: SyncSnapshot
    cursor: Cursor


class TableSync:
    """All copies of all subscriptions, from ``start`` to ``stop``."""

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        tables: TablePort,
        executors: Executors,
        cores: int,
    ) -> None:
        """``cores``: how many ranges are read at once."""
        self._catalog = catalog
        self._settings = settings
        self._port = tables
        self._executors = executors
        self._cores = cores
        self._stop = threading.Event()
        self._busy: set[tuple[Oid, Oid]] = set()
        self._guard = threading.Lock()
        self._freed = threading.Event()
        """A worker has ended since the last look: there is room for another."""
        self._events = get_logger()
        self._workers = ThreadPoolExecutor(16, "tablesync")
        self._ranges = ThreadPoolExecutor(cores, "copy")
        self._thread = threading.Thread(target=self._run, name="sync", daemon=True)

    def start(self) -> None:
        """Begin to look for waiting tables."""
        self._thread.start()

    def stop(self) -> None:
        """Take on no more work; what runs is abandoned, its finished ranges are kept."""
        self._stop.set()
        self._thread.join(2.0)
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._ranges.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        seen, looked = -1, 0.0
        while not self._stop.wait(_POLL_SECONDS):
            try:
                change = self._catalog.change_counter
                if self._freed.is_set():
                    self._freed.clear()
                elif change == seen and time.monotonic() - looked < _LOOK_SECONDS:
                    continue
                self._assign()
                seen, looked = change, time.monotonic()
            except Exception as error:
                self._events.error("could not look for tables to copy", exc_info=error)
                self._stop.wait(1.0)

    def _assign(self) -> None:
        limit = self._settings.subscription.max_sync_workers_per_subscription
        for subscription in self._catalog.subscriptions():
            if not subscription.enabled:
                continue
            snapshot = self._catalog.snapshot_held(subscription.oid)
            if snapshot is None:
                continue
            for rel in self._catalog.rels(subscription.oid):
                if rel.state is not SyncState.DATASYNC:
                    continue
                if int(rel.relid) not in snapshot.relids:
                    continue
                key = (subscription.oid, rel.relid)
                with self._guard:
                    running = sum(1 for s, _ in self._busy if s == subscription.oid)
                    if key in self._busy or running >= limit:
                        continue
                    self._busy.add(key)
                self._workers.submit(self._work, subscription, rel, snapshot)

    def _work(
        self, subscription: Subscription, rel: SubscriptionRel, snapshot: SyncSnapshot
    ) -> None:
        retry = self._settings.subscription.wal_retrieve_retry_interval_ms / 1000
        name = f"{rel.remote_namespace}.{rel.remote_name}"
        try:
            table = self._catalog.table_by_oid(rel.relid)
            # The list that named it may be older than the end of its last copy.
            fresh = {r.relid: r for r in self._catalog.rels(subscription.oid)}
            if table is None or rel.relid not in fresh:
                return
            rel = fresh[rel.relid]
            if rel.state is not SyncState.DATASYNC:
                return
            cursor = Cursor(
                f"wal2lake:{self._catalog.system_identifier}:{subscription.oid}:{rel.epoch}",
                int(snapshot.lsn),
            )
            self._copy(_Copy(subscription, rel, table, snapshot, cursor))
        except _SnapshotGone:
            self._events.warning("copy starts again under a new snapshot", table=name)
        except Wal2LakeError as error:
            self._catalog.note_copy_error(subscription.oid, rel.relid, error.describe())
            self._events.error(f'could not copy table "{name}"', error=error)
            self._stop.wait(retry)
        except Exception as error:
            self._catalog.note_copy_error(
                subscription.oid, rel.relid, f"internal error: {error!r}"
            )
            self._events.error(f'could not copy table "{name}"', exc_info=error)
            self._stop.wait(retry)
        finally:
            with self._guard:
                self._busy.discard((subscription.oid, rel.relid))
            self._freed.set()

    # ---- one table ------------------------------------------------------------------

    def _copy(self, copy: _Copy) -> None:
        subid, relid = copy.subscription.oid, copy.rel.relid
        state = self._port.state(copy.table.location)
        done = state.cursor(copy.cursor.app_id)
        if done is not None:
            # Committed before a crash; only the catalog did not hear of it. The cursor
            # is that commit's S, whatever snapshot is held now.
            self._port.sync(copy.table.location, state.version)
            self._finish(copy, Lsn(done))
            return
        if state.version > 0 and copy.rel.trusted and self._has_rows(copy, state):
            self._catalog.update_rel(subid, relid, trusted=False)
        remote = self._describe(copy)
        self._check_columns(copy, remote)
        ranges = decode_plan(copy.rel.copy_plan, copy.snapshot.snapshot)
        if ranges is None:
            self._catalog.forget_ranges(subid, relid)
            ranges = page_ranges(
                remote,
                range_bytes=self._settings.subscription.copy_range_bytes,
                min_ranges=self._cores,
            )
        finished = self._finished(copy)
        self._catalog.update_rel(
            subid,
            relid,
            copy_plan=encode_plan(copy.snapshot.snapshot, ranges),
            rows_expected=remote.estimated_rows,
            rows_copied=sum(r.rows for r in finished.values()),
            error=None,
        )
        self._events.info(
            "logical replication table synchronization worker for subscription"
            f' "{copy.subscription.name}", table "{copy.table.name}" has started'
        )
        futures = [
            self._ranges.submit(self._copy_one, copy, remote, state, part)
            for part in ranges
            if part.number not in finished
        ]
        ended, waiting = wait(futures, return_when=FIRST_EXCEPTION)
        for future in waiting:
            future.cancel()
        for future in ended:
            future.result()
        if self._stop.is_set():
            return
        files: list[AddedFile] = []
        for one in self._catalog.ranges(subid, relid):
            files.extend(files_from_json(one.files))
        self._check_snapshot(copy)
        self._port.commit_files(
            copy.table.location,
            files,
            copy.cursor,
            read_version=self._check_keys(copy, files),
            operation="COPY",
        )
        failpoint("copy.committed")
        self._finish(copy, copy.snapshot.lsn)

    def _finish(self, copy: _Copy, consistent_point: Lsn) -> None:
        subid, relid = copy.subscription.oid, copy.rel.relid
        self._catalog.finish_copy(subid, relid)
        failpoint("copy.state_written")
        self._catalog.forget_ranges(subid, relid)
        self._events.info(
            "logical replication table synchronization worker for subscription"
            f' "{copy.subscription.name}", table "{copy.table.name}" has finished'
        )

    def _has_rows(self, copy: _Copy, state: TableState) -> bool:
        """A table that was filled before: its rows are not the publisher's."""
        return not any(name.startswith("wal2lake:") for name in state.cursors)

    def _describe(self, copy: _Copy) -> RemoteTable:
        subscription, rel = copy.subscription, copy.rel
        with connect(
            subscription.conninfo, application_name=self._worker_name(copy)
        ) as session:
            return Publisher(session).table(
                rel.remote_namespace, rel.remote_name, subscription.publications
            )

    def _worker_name(self, copy: _Copy) -> str:
        return (
            f"pg_{copy.subscription.oid}_sync_{copy.rel.relid}"
            f"_{self._catalog.system_identifier}"
        )

    def _check_columns(self, copy: _Copy, remote: RemoteTable) -> None:
        names = {c.name for c in copy.table.columns}
        missing = [c.name for c in remote.columns if c.name not in names]
        if missing:
            plural = "columns" if len(missing) > 1 else "column"
            shown = ", ".join(f'"{name}"' for name in missing)
            raise ApplyError(
                f'logical replication target relation "{copy.table.qualified}" is'
                f" missing replicated {plural}: {shown}",
                sqlstate="55000",
                hint=f"There is no ALTER TABLE here: {COPIED_ANEW}.",
            )

    def _check_keys(self, copy: _Copy, files: list[AddedFile]) -> int | None:
        """The version in which no row has the key of a copied one; None: there is no key.

        Rows may be there: of an earlier subscription, of another source, of a local write.
        """
        table = copy.table
        if not table.key:
            return None
        state = self._port.state(table.location)
        if self._port.any_key_taken(state, files, table.key):
            raise ApplyError(
                "duplicate key value violates unique constraint"
                f' "{table.key_name or f"{table.name}_pkey"}"',
                sqlstate="23505",
                hint="The table has rows that are copied now. Remove them (TRUNCATE, if"
                " they are of an earlier subscription), and the copy goes on; or create"
                " the subscription with copy_data = false.",
                context=f"COPY {table.name}",
            )
        return state.version

    def _finished(self, copy: _Copy) -> dict[int, CopyRange]:
        """Ranges of this very copy; others are void and forgotten."""
        recorded = self._catalog.ranges(copy.subscription.oid, copy.rel.relid)
        valid = {
            r.number: r
            for r in recorded
            if r.snapshot == copy.snapshot.snapshot and r.epoch == copy.rel.epoch
        }
        if len(valid) != len(recorded):
            self._catalog.forget_ranges(copy.subscription.oid, copy.rel.relid)
            self._catalog.update_rel(
                copy.subscription.oid, copy.rel.relid, rows_copied=0, bytes_copied=0
            )
            return {}
        return valid

    def _copy_one(
        self, copy: _Copy, remote: RemoteTable, state: TableState, part: PageRange
    ) -> None:
        if self._stop.is_set():
            return
        self._check_snapshot(copy)
        types = remote_types_from_json(copy.subscription.remote_types)
        binary = copy.subscription.binary and copies_in_binary(remote, types)
        task = CopyTask(
            conninfo=copy.subscription.conninfo,
            application_name=self._worker_name(copy),
            snapshot=copy.snapshot.snapshot,
            statement=copy_statement(remote, part, binary=binary),
            columns=tuple(c.name for c in remote.columns),
            location=state.location,
            fields=state.fields,
            physical_fields=state.physical_fields,
            row_group_bytes=_ROW_GROUP_BYTES,
            table=copy.table.name,
            key=copy.table.key,
            binary_types=tuple(c.type_oid for c in remote.columns) if binary else None,
            types=types,
            namespace=remote.namespace,
            column_types=tuple((c.type_oid, c.typmod) for c in remote.columns),
            lsn=copy.snapshot.lsn,
            rules=Rules(
                ValuePolicies.parse(copy.subscription.value_policies),
                frozenset(c.name for c in copy.table.columns if c.not_null),
                frozenset(copy.table.key),
                self._settings.apply.max_value_bytes,
            ),
        )
        result: CopyResult = self._executors.run(Pool.SYNC, copy_range, task)
        self._catalog.record_range(
            CopyRange(
                copy.subscription.oid,
                copy.rel.relid,
                copy.rel.epoch,
                copy.snapshot.snapshot,
                part.number,
                result.rows,
                files_to_json(result.files),
                result.coercions,
            )
        )
        failpoint("copy.range_recorded")

    def _check_snapshot(self, copy: _Copy) -> None:
        """Stop as soon as the catalog says that the snapshot is another one."""
        held = self._catalog.snapshot_held(copy.subscription.oid)
        if held != copy.snapshot:
            raise _SnapshotGone
