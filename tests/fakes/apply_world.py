"""An apply worker between a real change log, a real catalog and a lake made of dicts.

The lake does what ``lake/batch/batchport.py`` and ``lake/port.py`` promise: stage changes nothing,
commit is one step with its cursor and is refused on another version than the staged one. It
fails where a test wants it to. A row that is inserted where one is makes the worker fail,
so that nothing applied twice can stay unseen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.fakes.altering import never_alter
from tests.fakes.publisher import Transaction, gulps

from wal2lake.apply.worker import ApplyWorker
from wal2lake.catalog import (
    Catalog,
    ColumnDef,
    OwnedSequence,
    ProgressFile,
    Subscription,
    SubscriptionRel,
    TableDef,
)
from wal2lake.changelog import ChangeLog
from wal2lake.lake import (
    AddedFile,
    CommitConflict,
    Committed,
    Cursor,
    TablePort,
    TableState,
)
from wal2lake.lake.batch.batchport import BatchPort, Staged, StageRequest
from wal2lake.lake.staging.defaults import NO_DEFAULTS, ColumnDefaults
from wal2lake.lake.staging.layout import RowConflict, RowFailure, Seq
from wal2lake.lake.upsert.conflicts import uncounted
from wal2lake.model import (
    Coercion,
    ConflictType,
    Lsn,
    Oid,
    Relation,
    SyncState,
    merged,
)
from wal2lake.observe import LockRank, OrderedLock
from wal2lake.observe.telemetry import Telemetry
from wal2lake.settings import ApplySettings, LogSettings, Settings, SubscriptionSettings
from wal2lake.testing.waits import wait_until

Rows = dict[bytes | None, tuple[bytes | None, ...]]


def model(
    transactions: Iterable[Transaction], relid: int, below: int | None = None
) -> Rows:
    """What table ``t<relid>`` holds after the transactions that commit below an LSN."""
    rows: Rows = {}
    for one in transactions:
        if below is not None and one.commit_lsn >= below:
            break
        for change in one.changes:
            if change.relid != relid:
                continue
            if change.op == "T":
                rows.clear()
            elif change.op == "D":
                rows.pop(change.key, None)
            else:
                rows.pop(change.key if change.key is not None else change.new[0], None)
                rows[change.new[0]] = change.new
    return rows


@dataclass
class Table:
    """One table: every version that it has had."""

    location: str
    versions: list[Rows] = field(default_factory=lambda: [{}])
    cursors: dict[str, int] = field(default_factory=dict)
    writers: dict[int, str] = field(default_factory=dict)
    """Application by version; nobody of ours made the others."""
    id: str = "1"
    writing: OrderedLock = field(default_factory=lambda: OrderedLock(LockRank.TABLE))

    @property
    def version(self) -> int:
        return len(self.versions) - 1


@dataclass
class StagedRows:
    """A batch's part of one table, not visible."""

    failures: Sequence[RowFailure]
    table: Table
    base: int
    rows: Rows
    coercions: Sequence[Coercion] = ()
    conflicts: Sequence[RowConflict] = ()
    history: Sequence[AddedFile] = ()


@dataclass
class Lake:
    """The two ports that the worker is given."""

    tables: dict[str, Table] = field(default_factory=dict)
    poison: set[bytes] = field(default_factory=set)
    """Values that do not convert."""
    odd: set[bytes] = field(default_factory=set)
    """Values that a policy replaces."""
    most: int | None = None
    """Events that a batch of a table with resolutions may have."""
    before_commit: Callable[[str], None] = lambda location: None
    after_commit: Callable[[str], None] = lambda location: None
    requests: list[StageRequest] = field(default_factory=list)
    looks: list[str] = field(default_factory=list)
    """Locations, each time a table's state was read."""
    torn: dict[str, int] = field(default_factory=dict)
    """The version from which on a power cut has torn the table."""
    recovered: list[tuple[str, int]] = field(default_factory=list)
    synced: dict[str, set[int]] = field(default_factory=dict)
    discarded: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def recover(self, location: str, synced_version: int) -> tuple[int, ...]:
        self.recovered.append((location, synced_version))
        first = self.torn.pop(location, None)
        if first is None:
            return ()
        assert first > synced_version
        table = self.tables[location]
        removed = tuple(range(first, table.version + 1))
        del table.versions[first:]
        # All that wrote it is what the test tears.
        table.cursors.clear()
        return removed

    def writing(self, location: str) -> OrderedLock:
        return self.tables[location].writing

    def sync(self, location: str, version: int) -> None:
        self.synced.setdefault(location, set()).add(version)

    def state(self, location: str) -> TableState:
        table = self.tables[location]
        self.looks.append(location)
        return TableState(
            location=location,
            table_id=table.id,
            version=table.version,
            cursors=dict(table.cursors),
            fields=(),
            physical_fields=(),
            column_mapping=False,
            properties={},
        )

    def goes_beyond(self, location: str, version: int) -> bool:
        return self.tables[location].version > version

    def writers(self, location: str, first: int, last: int) -> list[frozenset[str]]:
        known = self.tables[location].writers
        return [
            frozenset({known[v]} if v in known else ()) for v in range(first, last + 1)
        ]

    def stage(self, request: StageRequest) -> StagedRows:
        with self.lock:
            self.requests.append(request)
        table = self.tables[request.state.location]
        rows = dict(table.versions[request.state.version])
        failures: list[RowFailure] = []
        coercions: list[Coercion] = []
        missing: list[tuple[ConflictType, Seq, bytes]] = []
        events = self._events(request)
        if self.most is not None and len(events) > self.most:
            at = pa.table(
                {
                    "lsn": [row["commit_lsn"] for row, _ in events],
                    "ord": [row["ordinal"] for row, _ in events],
                }
            )
            failures.append(uncounted(request.name, at))
            events = []
        for row, names in events:
            where = Seq(row["commit_lsn"], row["ordinal"])
            op = chr(row["op"])
            if op == "T":
                rows.clear()
                continue
            old: bytes | None = row["o0"] if row["old"] else None
            if op == "D":
                assert old is not None
                if rows.pop(old, None) is None:
                    missing.append((ConflictType.DELETE_MISSING, where, old))
                continue
            new = tuple(row[f"c{i}"] for i in range(len(names)))
            coercions += [
                Coercion(name, "null", "odd", 1, Lsn(where.commit_lsn),
                         Lsn(where.commit_lsn), value.decode())
                for name, value in zip(names, new, strict=True)
                if value in self.odd
            ]  # fmt: skip
            bad = [i for i, value in enumerate(new) if value in self.poison]
            if bad:
                text = f'invalid input syntax: "{new[bad[0]].decode()}"'
                failures.append(
                    RowFailure(where, names[bad[0]], "22P02", text, op=ord(op))
                )
                continue
            if op == "I" and new[0] in rows:
                failures.append(
                    RowFailure(
                        where,
                        None,
                        "23505",
                        "duplicate key value",
                        ConflictType.INSERT_EXISTS,
                        key=f"(c0)=({new[0].decode()})",
                    )
                )
                continue
            name = new[0] if old is None else old
            if op == "U" and rows.pop(name, None) is None:
                missing.append((ConflictType.UPDATE_MISSING, where, name))
                continue
            rows[new[0]] = new
        version = request.state.version
        conflicts = [
            RowConflict(kind, at.commit_lsn, f"(c0)=({name.decode()})")
            for kind, at, name in missing
        ]
        return StagedRows(failures, table, version, rows, merged(coercions), conflicts)

    def _events(self, request: StageRequest) -> list[tuple[dict[str, Any], list[str]]]:
        found = []
        for source in request.sources:
            names = [c.name for c in source.relation.columns]
            for row in pq.read_table(source.path).to_pylist():
                lsn = row["commit_lsn"]
                cut = request.span.cut
                if lsn >= request.span.cursor and (cut is None or lsn < cut):
                    found.append((row, names))
        return sorted(found, key=lambda e: (e[0]["commit_lsn"], e[0]["ordinal"]))

    def commit(self, staged: Staged, cursor: Cursor) -> Committed:
        assert isinstance(staged, StagedRows)
        self.before_commit(staged.table.location)
        with self.lock:
            table = staged.table
            if table.version != staged.base:
                raise CommitConflict("another writer came first")
            assert not staged.failures
            assert cursor.version > table.cursors.get(cursor.app_id, -1)
            table.versions.append(staged.rows)
            table.cursors[cursor.app_id] = cursor.version
            version = table.version
            table.writers[version] = cursor.app_id
            self.sync(table.location, version)
        self.after_commit(staged.table.location)
        return Committed(version, method="upsert")

    def commit_changes(
        self,
        location: str,
        changes: Sequence[Mapping[str, Mapping[str, Any]]],
        cursor: Cursor,
        *,
        read_version: int,
        operation: str,
    ) -> Committed:
        """A local transaction's: an action that has all rows."""
        with self.lock:
            table = self.tables[location]
            if table.version != read_version:
                raise CommitConflict("another writer came first")
            table.versions.append(dict(changes[0]["add"]["rows"]))
            table.cursors[cursor.app_id] = cursor.version
            self.sync(location, table.version)
            return Committed(table.version)

    def record(self, staged: Staged, cursor: Cursor) -> Committed:
        raise AssertionError("no table has a history")

    def discard(self, staged: Staged) -> None:
        with self.lock:
            self.discarded += 1


class World:
    """One node's catalog and lake with subscriptions and their logs. A context manager."""

    def __init__(
        self,
        directory: Path,
        tables: Sequence[int] = (1, 2, 3),
        *,
        batch_rows: int = 1_000_000,
        root: str = "/lake",
    ) -> None:
        """Tables t1, t2 ... below ``root`` are ready and empty, subscribed as ``pg_1``."""
        self.root = root
        self.settings = Settings(
            directory=directory,
            log=LogSettings(),
            subscription=SubscriptionSettings(wal_retrieve_retry_interval_ms=20),
            apply=ApplySettings(batch_rows=batch_rows),
        )
        self.settings.run_directory.mkdir()
        self.catalog = Catalog.create(self.settings.catalog_file, "boss", None)
        self.lake = Lake()
        self.telemetry = Telemetry()
        self.defaults: ColumnDefaults = NO_DEFAULTS
        self.sides: list[Side] = []
        self.side = self.subscribe(1, tables)

    def subscribe(
        self, subid: int, tables: Sequence[int], state: SyncState = SyncState.READY
    ) -> Side:
        """Another subscription, with tables of its own."""
        side = Side(self, Oid(subid), tables, state)
        self.sides.append(side)
        return side

    def fail_once(self) -> None:
        """Workers that start from now on do not come back from an error within a test."""
        slow = replace(
            self.settings.subscription, wal_retrieve_retry_interval_ms=60_000
        )
        self.settings = replace(self.settings, subscription=slow)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        for side in self.sides:
            side.close()


class Side:
    """One subscription: its log, its worker, its tables."""

    def __init__(
        self, world: World, subid: Oid, tables: Sequence[int], state: SyncState
    ) -> None:
        self.world = world
        self.subid = subid
        self.sent: list[Transaction] = []
        catalog = world.catalog
        for relid in tables:
            self.add_table(relid)
        catalog.create_subscription(
            Subscription(subid, f"s{subid}", Oid(10), True, "host=x", "s", ("p",)),
            [self.rel(relid, state) for relid in tables],
        )
        # As CREATE SUBSCRIPTION does: readers see the tables as they are.
        catalog.publish(subid, Lsn(0), {100 + relid: 0 for relid in tables})
        self.progress = ProgressFile(world.settings.run_directory, subid)
        self.log = ChangeLog.open(
            world.settings.log_directory / str(int(subid)), world.settings.log
        )
        self.log.connected(Lsn(0))
        self.known: dict[int, Relation] = {}
        self.worker: ApplyWorker | None = None
        self.lock = OrderedLock(LockRank.SUBSCRIPTION)
        """Held by whoever writes the subscription's tables."""

    def location(self, relid: int) -> str:
        return f"{self.world.root}/t{relid}"

    def add_table(
        self,
        relid: int,
        *,
        columns: Sequence[str] = ("a0", "a1"),
        key: str = "a0",
        sequence: Oid | None = None,
    ) -> None:
        """A table in catalog and lake; not subscribed yet. ``sequence``: it has one more column,
        a ``serial`` one with this sequence."""
        own = [ColumnDef("n", Oid(23), sequence=sequence)] if sequence else []
        owned = [
            OwnedSequence(one, "public", f"t{relid}_n_seq", Oid(100 + relid), Oid(23))
            for one in (sequence and [sequence]) or []
        ]
        self.world.catalog.create_table(
            TableDef(
                Oid(100 + relid),
                "public",
                f"t{relid}",
                Oid(10),
                (*(ColumnDef(c, Oid(25)) for c in columns), *own),
                tuple(key.split()),
                self.location(relid),
            ),
            owning=owned,
        )
        self.world.lake.tables[self.location(relid)] = Table(self.location(relid))

    def rel(
        self, relid: int, state: SyncState, lsn: Lsn | None = None
    ) -> SubscriptionRel:
        return SubscriptionRel(
            self.subid, Oid(100 + relid), "public", f"t{relid}", state, lsn, 1
        )

    def table(self, relid: int) -> Table:
        return self.world.lake.tables[self.location(relid)]

    def copied(self, relid: int, rows: Rows, consistent_point: int) -> None:
        """The table's copy ends at S with these rows, as tablesync does it."""
        table = self.table(relid)
        node = self.world.catalog.system_identifier
        table.versions.append(dict(rows))
        table.cursors[f"wal2lake:{node}:{self.subid}:1"] = consistent_point
        self.world.catalog.update_rel(
            self.subid,
            Oid(100 + relid),
            state=SyncState.FINISHEDCOPY,
            lsn=Lsn(consistent_point),
        )

    def send(self, *transactions: Transaction) -> None:
        """The publisher sends, the receiver seals one segment of it."""
        self.sent.extend(transactions)
        for one in gulps(transactions):
            self.log.append(*one)
        self.log.sync()
        while self.log.absorb(0):
            pass
        self.log.seal()
        self.progress.set(sealed=self.log.sealed)

    # ---- the worker

    def start(
        self, tables: TablePort | None = None, batches: BatchPort | None = None
    ) -> None:
        """Begin to apply, to the lake of dicts unless there is another."""
        self.worker = ApplyWorker(
            self.world.catalog,
            self.world.settings,
            self.subid,
            tables or self.world.lake,  # type: ignore[arg-type]
            batches or self.world.lake,
            self.progress,
            self.lock,
            never_alter,
            self.world.defaults,
            telemetry=self.world.telemetry,
        )
        self.worker.start()

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.request_stop()
            assert self.worker.join(30)
            self.worker = None

    def close(self) -> None:
        self.stop()
        self.log.close()
        self.progress.close()

    @property
    def floor(self) -> int:
        found = self.world.catalog.subscription(self.subid)
        assert found is not None
        return int(found.floor)

    @property
    def is_idle(self) -> bool:
        """Whether the worker has nothing to do."""
        assert self.worker is not None
        return self.worker.is_idle

    @property
    def error(self) -> str:
        found = [e for e in self.world.catalog.errors() if e.subid == self.subid]
        return "\n".join(e.error for e in found)

    def reaches(self, lsn: int) -> None:
        """Wait until the floor is there."""
        wait_until(
            lambda: self.floor >= lsn,
            timeout_seconds=20,
            describe=lambda: f"floor {lsn}; it is {self.floor}; error: {self.error}",
        )

    def stops(self, text: str) -> str:
        """Wait for an error that has this text in it."""
        wait_until(
            lambda: text in self.error,
            timeout_seconds=20,
            describe=lambda: f"error {text!r}; it is {self.error!r}",
        )
        return self.error

    def visible(self, relid: int) -> Rows:
        """What a SELECT sees: the version that the newest vector names."""
        vector = self.world.catalog.newest_vector(self.subid)
        version = 0 if vector is None else vector.versions.get(100 + relid, 0)
        return self.table(relid).versions[version]
