"""The table port for Delta Lake.

Comes in: what ``port.TablePort`` says. Goes out: commits in the tables' own logs. Used by
apply, tablesync and frontend through the port.

Why this way. Files that executors wrote with PyArrow become visible through Delta's own
OptimisticTransaction, driven over py4j: Delta checks the protocol, the conflicts and the
file's statistics exactly as for its own writes, writes checksums and checkpoints, and one
commit carries the ``add`` actions, the removes of a replacement and the cursor (``txn``).
Two reads are registered with the transaction, and they are what makes it safe:

- the cursor (``readTxn``): a concurrent commit of the same application conflicts;
- with ``read_version``, the whole table (``readWholeTable``): any concurrent change of
  data conflicts, so check-then-append has no gap between check and append.

Cursors are read from the version's checksum file, where Delta keeps them; its own
``txnVersion`` reconstructs the table's state by Spark jobs, a second instead of a
millisecond. A table whose newest commit has no such file is asked that way.

In the table's history the operation is STREAMING UPDATE, whose query id and epoch are
the cursor's, and user metadata says what it was for.

Durability: ``durability.py`` syncs the files before and the commit after. Versions are
synced without gaps; the first time a process touches a table the last ``LOOK_BACK``
versions are, since its predecessor may have been killed between commit and sync.

Sources: Delta transaction log protocol; delta-spark 4.4 OptimisticTransaction.scala,
ConflictChecker.scala, DeltaOperations.scala.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from wal2lake.errors import (
    DuplicateObjectError,
    StorageError,
    UndefinedObjectError,
)
from wal2lake.lake.delta.durability import (
    discard_torn_commits,
    local_path,
    sync_commit,
    sync_created,
    sync_files,
)
from wal2lake.lake.delta.fields import from_struct_field, metadata_of
from wal2lake.lake.delta.firstversion import (
    CHECKSUM,
    COMMIT,
    checksum_line,
    commit_lines,
    is_plain,
    write_locally,
)
from wal2lake.lake.delta.fit import check_files
from wal2lake.lake.delta.uniqueness import any_key_taken
from wal2lake.lake.port import (
    Committed,
    Cursor,
    FieldSpec,
    PhysicalField,
    TableState,
    expect_version,
)
from wal2lake.lake.spark.errors import translated
from wal2lake.lake.tablefiles import AddedFile, DataFile, Replaced, add_action
from wal2lake.observe import failpoint
from wal2lake.pgtypes.columnnames import check_column_names

LOOK_BACK: Final = 16
"""More versions than a table can have in flight when a process dies (one, or a few if
foreign writers interleave); syncing what is durable already costs microseconds."""

DEFAULT_PROPERTIES: Final[Mapping[str, str]] = {
    "delta.enableDeletionVectors": "true",
    # A checkpoint costs ten commits' time; Delta's default of 10 would double the cost
    # of a stream of small commits. A reader parses this many small files at worst.
    "delta.checkpointInterval": "100",
}

LISTED_FILES: Final = 10_000
"""Files of a table that are kept in memory, at about a kilobyte each. A table of more is
Spark's to plan."""

KEPT_FILES: Final = 50_000
"""The same for all tables together."""

_Action = dict[str, dict[str, Any]]
"""Delta's action as JSON: its name, and the object below it."""

_UNSAFE_IN_NAMES: Final = frozenset(" ,;{}()\n\t=")
"""Delta refuses these in a column's name unless column mapping is on."""

_PHYSICAL_NAME: Final = "delta.columnMapping.physicalName"
_FIELD_ID: Final = "delta.columnMapping.id"


class DeltaTables:
    """Delta tables by location; one instance per session, safe for all threads."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        # py4j's views are untyped; java, scala and Delta classes are all below it.
        self._jvm: Any = spark._jvm
        self._synced: dict[str, int] = {}
        self._listings: dict[str, _Listing] = {}
        self._lock = threading.Lock()
        self._bins: tuple[Sequence[int], int] | None = None

    def create(
        self,
        location: str,
        fields: Sequence[FieldSpec],
        properties: Mapping[str, str] | None = None,
    ) -> TableState:
        """See TablePort; ``properties`` win over ``DEFAULT_PROPERTIES``."""
        check_column_names(field.name for field in fields)
        wanted = dict(DEFAULT_PROPERTIES)
        if any(_UNSAFE_IN_NAMES & set(field.name) for field in fields):
            wanted["delta.columnMapping.mode"] = "name"
        wanted.update(properties or {})
        with self._calling(location):
            if self.exists(location):
                raise DuplicateObjectError(
                    f'there is a Delta table at "{location}" already', sqlstate="42P07"
                )
            self._need_empty(location)
            schema = StructType(
                [
                    StructField(
                        field.name,
                        DataType.fromDDL(field.spark_ddl),
                        True,
                        metadata_of(field),
                    )
                    for field in fields
                ]
            )
            # Delta decides what the table needs of a reader and of a writer.
            transaction = self._log(location).startTransaction()
            metadata = {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": schema.json(),
                "partitionColumns": [],
                "configuration": wanted,
                "createdTime": int(time.time() * 1000),
            }
            transaction.updateMetadataForNewTable(self._action({"metaData": metadata}))
            self._write_first(location, transaction)
        sync_created(location)
        state = self.state(location)
        with self._lock:
            self._synced[location] = 0
            if state.version == 0:
                self._keep(location, _Listing(state.table_id, 0, {}))
        return state

    def _write_first(self, location: str, transaction: Any) -> None:
        """Commit version 0; see ``firstversion``."""
        metadata = json.loads(transaction.metadata().json())["metaData"]
        protocol = json.loads(transaction.protocol().json())["protocol"]
        if not is_plain(protocol):
            # A setting of Spark's has asked for more: it is for Delta to do.
            transaction.commit(
                self._seq([]),
                getattr(
                    self._jvm.org.apache.spark.sql.delta, "DeltaOperations$CreateTable"
                )(transaction.metadata(), False, False, self._jvm.scala.Option.empty()),
            )
            return
        txn_id = transaction.txnId()
        bounds, bins = self._histograms()
        commit = commit_lines(metadata, protocol, txn_id)
        checksum = checksum_line(
            metadata, protocol, txn_id, size_bounds=bounds, deleted_bins=bins
        )
        root = local_path(location)
        if root is not None:
            write_locally(root, commit, checksum)
            return
        log = self._log(location)
        log.createLogDirectoriesIfNotExists()
        for name, lines in ((COMMIT, commit), (CHECKSUM, [checksum])):
            path = self._jvm.org.apache.hadoop.fs.Path(location, f"_delta_log/{name}")
            log.store().write(
                path,
                self._seq(lines).iterator(),
                name == CHECKSUM,
                self._hadoop_conf(),
            )

    def _histograms(self) -> tuple[Sequence[int], int]:
        """Delta's bounds of file sizes, and its number of bins for deleted rows."""
        with self._lock:
            if self._bins is None:
                stats = self._jvm.org.apache.spark.sql.delta.stats
                sizes = stats.FileSizeHistogramUtils.DEFAULT_BINS()
                deleted = stats.DeletedRecordCountsHistogramUtils.NUMBER_OF_BINS()
                self._bins = (self._from_java(sizes), deleted)
            return self._bins

    def _need_empty(self, location: str) -> None:
        """A table that is made among somebody else's files would take them along when it is
        dropped. A log without a version is what a crash leaves of a creation."""
        path = self._jvm.org.apache.hadoop.fs.Path(location)
        files = path.getFileSystem(self._hadoop_conf())
        names = (
            [one.getPath().getName() for one in files.listStatus(path)]
            if files.exists(path)
            else []
        )
        if names not in ([], ["_delta_log"]):
            raise DuplicateObjectError(
                f'directory "{location}" exists but is not empty',
                sqlstate="42P07",
                hint="Remove what is in it, or move it elsewhere.",
            )

    def drop(self, location: str) -> None:
        """See TablePort. Refuses a directory that is not a table."""
        with self._calling(location):
            path = self._jvm.org.apache.hadoop.fs.Path(location)
            files = path.getFileSystem(self._hadoop_conf())
            if files.exists(path):
                log = self._jvm.org.apache.hadoop.fs.Path(path, "_delta_log")
                children = list(files.listStatus(path))
                if children and not files.exists(log):
                    raise StorageError(
                        f'directory "{location}" is not a Delta table',
                        sqlstate="58000",
                        hint="It is left as it is; remove it by hand if it is not"
                        " needed.",
                    )
                for child in children:
                    if child.getPath().getName() != "_delta_log":
                        files.delete(child.getPath(), True)
                files.delete(path, True)
            self._forget(path)
        with self._lock:
            self._synced.pop(location, None)
            self._listings.pop(location, None)

    def exists(self, location: str) -> bool:
        """See TablePort."""
        with self._calling(location):
            pattern = self._jvm.org.apache.hadoop.fs.Path(location, "_delta_log")
            files = pattern.getFileSystem(self._hadoop_conf())
            if not files.exists(pattern):
                return False
            version: int = self._snapshot(self._log(location)).version()
            return version >= 0

    def state(self, location: str) -> TableState:
        """See TablePort."""
        with self._calling(location):
            return self._state_of(location, self._existing(location))

    def writers(self, location: str, first: int, last: int) -> list[frozenset[str]]:
        """See TablePort; a commit that the log does not have any more has no writer."""
        found: list[frozenset[str]] = []
        with self._calling(location):
            path = self._jvm.org.apache.hadoop.fs.Path(location, "_delta_log")
            store = self._log(location).store()
            for version in range(first, last + 1):
                commit = self._jvm.org.apache.hadoop.fs.Path(
                    path, f"{version:020}.json"
                )
                if not commit.getFileSystem(self._hadoop_conf()).exists(commit):
                    found.append(frozenset())
                    continue
                lines = store.read(commit, self._hadoop_conf())
                converters = self._jvm.scala.jdk.javaapi.CollectionConverters
                actions = [json.loads(line) for line in converters.asJava(lines)]
                found.append(
                    frozenset(a["txn"]["appId"] for a in actions if "txn" in a)
                )
        return found

    def files(self, state: TableState) -> Sequence[DataFile] | None:
        """See TablePort. What this object has committed itself needs no look."""
        with self._lock:
            known = self._listings.get(state.location)
            if known is not None and known.is_of(state):
                return list(known.files.values())
        with self._calling(state.location):
            snapshot = self._existing(state.location)
            if (snapshot.version(), snapshot.metadata().id()) != (
                state.version,
                state.table_id,
            ):
                return None
            if snapshot.numOfFiles() > LISTED_FILES:
                return None
            found = [
                DataFile(json.loads(action.json())["add"])
                for action in snapshot.allFiles().collectAsList()
            ]
        listing = _Listing(state.table_id, state.version, {f.key: f for f in found})
        with self._lock:
            self._keep(state.location, listing)
        return found

    def any_key_taken(
        self, state: TableState, adds: Sequence[AddedFile], key: Sequence[str]
    ) -> bool:
        """See TablePort. A table without files is not looked into."""
        listed = self.files(state)
        if not adds or (listed is not None and not listed):
            return False
        with self._calling(state.location):
            return any_key_taken(self._spark, state, adds, key)

    def commit_files(
        self,
        location: str,
        adds: Sequence[AddedFile],
        cursor: Cursor,
        *,
        read_version: int | None = None,
        replace: bool = False,
        replaced: Sequence[Replaced] = (),
        rearranges: bool = False,
        operation: str = "append",
    ) -> Committed:
        """See TablePort; ``operation`` becomes the commit's user metadata."""
        now = int(time.time() * 1000)
        changes = [
            {"add": add_action(added, data_change=not rearranges)} for added in adds
        ]
        for one in replaced:
            changes.append({"remove": one.remove(now, data_change=not rearranges)})
            kept = one.add(data_change=not rearranges)
            if kept is not None:
                changes.append({"add": kept})
        root = local_path(location)
        if root is not None:
            sync_files([root / added.path for added in adds])
        failpoint("lake.files_synced")
        with self._calling(location):
            self._existing(location)
            transaction = self._log(location).startTransaction()
            transaction.readTxn().addOne(cursor.app_id)
            state = self._state_of(location, transaction.snapshot())
            if root is not None:
                check_files(state, adds, root)
            committed, found = state.cursor(cursor.app_id), state.version
            if committed is not None and _is_done(committed, cursor, rearranges):
                done = Committed(found, already_done=True)
            else:
                if read_version is not None:
                    expect_version(location, read_version, found)
                if read_version is not None or replace:
                    transaction.readWholeTable()
                removes = transaction.filterFiles() if replace else None
                version: int = transaction.commit(
                    self._actions(changes, cursor, removes),
                    self._operation(cursor, replace, operation),
                )
                done = Committed(
                    version,
                    interlopers=()
                    if read_version is None
                    else tuple(range(read_version + 1, version)),
                )
        failpoint("lake.committed")
        if not done.already_done:
            self._note_commit(location, found, done.version, changes, replace)
        self.sync(location, done.version)
        failpoint("lake.commit_synced")
        return done

    def sync(self, location: str, version: int) -> None:
        """See TablePort."""
        with self._lock:
            synced = self._synced.get(location)
        if synced is not None and synced >= version:
            return
        first = max(0, version - LOOK_BACK) if synced is None else synced + 1
        sync_commit(location, version, first=first)
        with self._lock:
            self._synced[location] = max(version, self._synced.get(location, 0))

    def recover(self, location: str, synced_version: int) -> tuple[int, ...]:
        """See TablePort."""
        removed = discard_torn_commits(location, synced_version)
        if removed:
            with self._lock:
                self._synced.pop(location, None)
                self._listings.pop(location, None)
            with self._calling(location):
                self._forget(self._jvm.org.apache.hadoop.fs.Path(location))
        return removed

    def _forget(self, path: Any) -> None:
        """Drop Delta's cached snapshots of a table."""
        self._jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(
            self._spark._jsparkSession, path
        )

    @contextmanager
    def _calling(self, location: str) -> Iterator[None]:
        """Delta takes settings from the thread's active session: make it ours."""
        with translated(f'Delta table "{location}"'):
            self._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(
                self._spark._jsparkSession
            )
            yield

    def _log(self, location: str) -> Any:
        return self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
            self._spark._jsparkSession, location
        )

    def _snapshot(self, log: Any) -> Any:
        none = self._jvm.scala.Option.empty()
        return log.update(False, none, none)

    def _existing(self, location: str) -> Any:
        snapshot = self._snapshot(self._log(location))
        if snapshot.version() < 0:
            raise UndefinedObjectError(
                f'there is no Delta table at "{location}"', sqlstate="42P01"
            )
        return snapshot

    def _hadoop_conf(self) -> Any:
        state = self._spark._jsparkSession.sessionState()
        return state.newHadoopConf()

    def _state_of(self, location: str, snapshot: Any) -> TableState:
        metadata = json.loads(snapshot.metadata().json())["metaData"]
        struct = StructType.fromJson(json.loads(metadata["schemaString"]))
        properties = metadata["configuration"]
        fields = tuple(from_struct_field(field) for field in struct.fields)
        return TableState(
            location=location,
            table_id=metadata["id"],
            version=snapshot.version(),
            cursors=self._cursors(snapshot),
            fields=fields,
            physical_fields=tuple(
                PhysicalField(
                    field.name,
                    field.metadata.get(_PHYSICAL_NAME, field.name),
                    field.metadata.get(_FIELD_ID),
                    spec.spark_ddl,
                )
                for field, spec in zip(struct.fields, fields, strict=True)
            ),
            column_mapping=properties.get("delta.columnMapping.mode", "none") != "none",
            properties=properties,
            partition_columns=tuple(metadata["partitionColumns"]),
        )

    def _cursors(self, snapshot: Any) -> dict[str, int]:
        checksum = snapshot.checksumOpt()
        known = checksum.get().setTransactions() if checksum.isDefined() else checksum
        if known.isEmpty():
            found: dict[str, int] = self._from_java(snapshot.transactions())
            return found
        return {one["appId"]: one["version"] for one in self._from_java(known.get())}

    def _from_java(self, value: Any) -> Any:
        """A Scala collection as Delta writes it in JSON: one call over py4j. Its iterators end
        with an exception, whose translation takes longer than all the rest."""
        mapper = self._jvm.org.apache.spark.sql.delta.util.JsonUtils.mapper()
        return json.loads(mapper.writeValueAsString(value))

    def _actions(
        self, changes: Sequence[_Action], cursor: Cursor, removes: Any | None
    ) -> Any:
        now = int(time.time() * 1000)
        token = {"appId": cursor.app_id, "version": cursor.version, "lastUpdated": now}
        actions = [self._action({"txn": token})]
        if removes is not None:
            converters = self._jvm.scala.jdk.javaapi.CollectionConverters
            for file in converters.asJava(removes):
                actions.append(file.remove())
        return self._seq([*actions, *map(self._action, changes)])

    def _action(self, action: _Action) -> Any:
        from_json = self._jvm.org.apache.spark.sql.delta.actions.Action.fromJson
        return from_json(json.dumps(action))

    def _seq(self, items: Sequence[Any]) -> Any:
        """A Scala Seq."""
        listed = self._jvm.java.util.ArrayList()
        for item in items:
            listed.add(item)
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(listed).toSeq()

    def _note_commit(
        self,
        location: str,
        read: int,
        version: int,
        changes: Sequence[_Action],
        replace: bool,
    ) -> None:
        """Carry the listing of the version read over to the one just made."""
        with self._lock:
            known = self._listings.pop(location, None)
            if known is None or known.version != read or version != read + 1:
                return
            files = {} if replace else known.files
            for change in changes:
                if "remove" in change:
                    files.pop(str(change["remove"]["path"]), None)
            for change in changes:
                if "add" in change:
                    file = DataFile(change["add"])
                    files[file.key] = file
            if len(files) <= LISTED_FILES:
                self._keep(location, _Listing(known.table_id, version, files))

    def _keep(self, location: str, listing: _Listing) -> None:
        """Remember a listing; those that were used longest ago make room for it."""
        self._listings.pop(location, None)
        self._listings[location] = listing
        held = sum(len(known.files) for known in self._listings.values())
        while held > KEPT_FILES:
            oldest = next(iter(self._listings))
            held -= len(self._listings.pop(oldest).files)

    def _operation(self, cursor: Cursor, replace: bool, operation: str) -> Any:
        modes = self._jvm.org.apache.spark.sql.streaming.OutputMode
        return getattr(
            self._jvm.org.apache.spark.sql.delta, "DeltaOperations$StreamingUpdate"
        )(
            modes.Complete() if replace else modes.Append(),
            cursor.app_id,
            cursor.version,
            self._jvm.scala.Option.apply(operation),
        )


@dataclass(frozen=True, slots=True)
class _Listing:
    """Live files of one version."""

    table_id: str
    version: int
    files: dict[str, DataFile]

    def is_of(self, state: TableState) -> bool:
        return (self.table_id, self.version) == (state.table_id, state.version)


def _is_done(committed: int, cursor: Cursor, rearranges: bool) -> bool:
    """A rearrangement carries the cursor that the table has: it moves nothing."""
    return committed > cursor.version if rearranges else committed >= cursor.version
