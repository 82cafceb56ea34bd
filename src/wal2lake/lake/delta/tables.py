"""The table port for Delta Lake.

Comes in: what ``port.TablePort`` says. Goes out: commits in the tables' own logs. Used by
apply, tablesync and frontend through the port.

Why this way. Files that executors wrote with PyArrow become visible by a commit of ours, which
``log`` writes for the next version of a plain table on this machine, or through Delta's own
OptimisticTransaction, driven over py4j, for every other. Delta checks the protocol, the
conflicts and the file's statistics exactly as for its own writes, writes checksums and
checkpoints, and one commit carries the ``add`` actions, the removes of a replacement and the
cursor (``txn``).
Two reads are registered with the transaction, and they are what makes it safe:

- the cursor (``readTxn``): a concurrent commit of the same application conflicts;
- with ``read_version``, the whole table (``readWholeTable``): any concurrent change of
  data conflicts, so check-then-append has no gap between check and append.

Cursors and the schema are read from the version's checksum file, where Delta keeps them; its own
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
import re
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from wal2lake.errors import DuplicateObjectError, StorageError
from wal2lake.lake.delta.durability import (
    discard_torn_commits,
    local_path,
    sync_commit,
    sync_created,
    sync_files,
    vector_file,
)
from wal2lake.lake.delta.fields import metadata_of, spark_type
from wal2lake.lake.delta.fit import check_files
from wal2lake.lake.delta.jvm import DeltaJvm
from wal2lake.lake.delta.log.checksum import Bins, checksum_line
from wal2lake.lake.delta.log.commit import (
    Change,
    files_after,
    is_ours_to_write,
    write_next,
)
from wal2lake.lake.delta.log.firstversion import (
    CHECKSUM,
    COMMIT,
    Kind,
    Model,
    commit_lines,
    is_plain,
    write_locally,
)
from wal2lake.lake.delta.log.place import Object
from wal2lake.lake.delta.log.version import (
    Version,
    is_newest,
    read_actions,
    read_newest,
)
from wal2lake.lake.delta.uniqueness import any_key_taken
from wal2lake.lake.port import (
    Committed,
    Cursor,
    FieldSpec,
    TableState,
    expect_version,
)
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

_NUMBERS: Final = re.compile(r"\([0-9, ]+\)")
"""Precisions and lengths in a type's name."""

_UNSAFE_IN_NAMES: Final = frozenset(" ,;{}()\n\t=")
"""Delta refuses these in a column's name unless column mapping is on."""


class DeltaTables:
    """Delta tables by location; one instance per session, safe for all threads."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._delta = DeltaJvm(spark)
        self._synced: dict[str, int] = {}
        self._listings: dict[str, _Listing] = {}
        self._versions: dict[str, Version] = {}
        """The newest version of local tables, as far as it could be read."""
        self._writing: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        self._lock = threading.Lock()
        self._bins: Bins | None = None
        self._models: dict[Kind, Model] = {}

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
        if self.exists(location):
            raise DuplicateObjectError(
                f'there is a Delta table at "{location}" already', sqlstate="42P07"
            )
        self._need_empty(location)
        schema = StructType(
            [
                StructField(
                    field.name, spark_type(field.spark_ddl), True, metadata_of(field)
                )
                for field in fields
            ]
        )
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema.json(),
            "partitionColumns": [],
            "configuration": wanted,
            "createdTime": int(time.time() * 1000),
        }
        kind = Kind(
            self._delta.settings_hash(),
            frozenset(_NUMBERS.sub("", field.spark_ddl) for field in fields),
            frozenset(one for one in wanted.items() if one[0].startswith("delta.")),
        )
        with self._lock:
            known = self._models.get(kind)
        if known is not None:
            self._write_first(location, known.applied_to(metadata), known.protocol)
        else:
            self._create_first_of(kind, location, metadata)
        sync_created(location)
        state = self.state(location)
        with self._lock:
            self._synced[location] = 0
            if state.version == 0:
                self._keep(location, _Listing(state.table_id, 0, {}))
        return state

    def _create_first_of(self, kind: Kind, location: str, metadata: Object) -> None:
        """Delta decides what the table needs of a reader and of a writer, and what its settings
        add: the same for each table of the kind."""
        with self._delta.calling(location):
            transaction = self._delta.log(location).startTransaction()
            transaction.updateMetadataForNewTable(
                self._delta.action({"metaData": metadata})
            )
            prepared = json.loads(transaction.metadata().json())["metaData"]
            protocol = json.loads(transaction.protocol().json())["protocol"]
            if not is_plain(protocol):
                # A setting of Spark's has asked for more: it is for Delta to do.
                transaction.commit(
                    self._delta.seq([]),
                    getattr(
                        self._delta.jvm.org.apache.spark.sql.delta,
                        "DeltaOperations$CreateTable",
                    )(
                        transaction.metadata(),
                        False,
                        False,
                        self._delta.jvm.scala.Option.empty(),
                    ),
                )
                return
        self._write_first(location, prepared, protocol)
        model = Model.of(metadata, prepared, protocol)
        if model is not None:
            with self._lock:
                self._models[kind] = model

    def _write_first(self, location: str, metadata: Object, protocol: Object) -> None:
        """Commit version 0; see ``firstversion``."""
        txn_id = str(uuid.uuid4())
        commit = commit_lines(metadata, protocol, txn_id)
        checksum = checksum_line(metadata, protocol, txn_id, bins=self._histograms())
        root = local_path(location)
        if root is not None:
            write_locally(root, commit, checksum)
            return
        with self._delta.calling(location):
            log = self._delta.log(location)
            log.createLogDirectoriesIfNotExists()
            for name, lines in ((COMMIT, commit), (CHECKSUM, [checksum])):
                log.store().write(
                    self._delta.jvm.org.apache.hadoop.fs.Path(
                        location, f"_delta_log/{name}"
                    ),
                    self._delta.seq(lines).iterator(),
                    name == CHECKSUM,
                    self._delta.hadoop_conf(),
                )

    def _histograms(self) -> Bins:
        """Delta's bounds of file sizes, and its number of bins for deleted rows."""
        with self._lock:
            if self._bins is None:
                stats = self._delta.jvm.org.apache.spark.sql.delta.stats
                sizes = stats.FileSizeHistogramUtils.DEFAULT_BINS()
                deleted = stats.DeletedRecordCountsHistogramUtils.NUMBER_OF_BINS()
                self._bins = Bins(tuple(self._delta.from_java(sizes)), deleted)
            return self._bins

    def _need_empty(self, location: str) -> None:
        """A table that is made among somebody else's files would take them along when it is
        dropped. A log without a version is what a crash leaves of a creation."""
        root = local_path(location)
        if root is not None:
            names = [one.name for one in root.iterdir()] if root.exists() else []
        else:
            with self._delta.calling(location):
                path = self._delta.jvm.org.apache.hadoop.fs.Path(location)
                files = path.getFileSystem(self._delta.hadoop_conf())
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
        with self._delta.calling(location):
            path = self._delta.jvm.org.apache.hadoop.fs.Path(location)
            files = path.getFileSystem(self._delta.hadoop_conf())
            if files.exists(path):
                log = self._delta.jvm.org.apache.hadoop.fs.Path(path, "_delta_log")
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
            self._delta.forget(location)
        self.forget(location)

    def exists(self, location: str) -> bool:
        """See TablePort."""
        if self.newest(location) is not None:
            return True
        root = local_path(location)
        if root is not None and not (root / "_delta_log").exists():
            return False
        with self._delta.calling(location):
            pattern = self._delta.jvm.org.apache.hadoop.fs.Path(location, "_delta_log")
            files = pattern.getFileSystem(self._delta.hadoop_conf())
            if not files.exists(pattern):
                return False
            version: int = self._delta.snapshot(location).version()
            return version >= 0

    def state(self, location: str) -> TableState:
        """See TablePort."""
        newest = self.newest(location)
        if newest is not None:
            return newest.state
        with self._delta.calling(location):
            return self._delta.state_of(location, self._delta.existing(location))

    def newest(self, location: str) -> Version | None:
        """The newest version of a local table, from its log; None: Delta must be asked."""
        root = local_path(location)
        if root is None:
            return None
        with self._lock:
            known = self._versions.get(location)
        if known is not None and is_newest(root, known):
            return known
        found = read_newest(location, root)
        with self._lock:
            if found is None:
                self._versions.pop(location, None)
                return None
            version, files = found
            self._versions[location] = version
            listing = self._listings.get(location)
            if files is not None and (
                listing is None or not listing.is_of(version.state)
            ):
                self._keep(
                    location,
                    _Listing(version.state.table_id, version.state.version, files),
                )
        return version

    def writers(self, location: str, first: int, last: int) -> list[frozenset[str]]:
        """See TablePort; a commit that the log does not have any more has no writer."""
        return [
            frozenset(one["txn"]["appId"] for one in commit if "txn" in one)
            for commit in self.actions(location, first, last)
        ]

    def actions(
        self, location: str, first: int, last: int
    ) -> list[list[dict[str, Any]]]:
        """See TablePort."""
        root = local_path(location)
        if root is not None:
            return [read_actions(root, number) for number in range(first, last + 1)]
        found: list[list[dict[str, Any]]] = []
        with self._delta.calling(location):
            path = self._delta.jvm.org.apache.hadoop.fs.Path(location, "_delta_log")
            store = self._delta.log(location).store()
            for version in range(first, last + 1):
                commit = self._delta.jvm.org.apache.hadoop.fs.Path(
                    path, f"{version:020}.json"
                )
                if not commit.getFileSystem(self._delta.hadoop_conf()).exists(commit):
                    found.append([])
                    continue
                lines = store.read(commit, self._delta.hadoop_conf())
                converters = self._delta.jvm.scala.jdk.javaapi.CollectionConverters
                found.append([json.loads(line) for line in converters.asJava(lines)])
        return found

    def files(self, state: TableState) -> Sequence[DataFile] | None:
        """See TablePort. What this object has committed itself needs no look."""
        self.newest(state.location)
        with self._lock:
            known = self._listings.get(state.location)
            if known is not None and known.is_of(state):
                return list(known.files.values())
        with self._delta.calling(state.location):
            snapshot = self._delta.existing(state.location)
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
        with self._delta.calling(state.location):
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
            vectors = [vector_file(root, one.vector) for one in replaced]
            sync_files(
                [
                    *(root / added.path for added in adds),
                    *(path for path in vectors if path is not None),
                ],
                below=root,
            )
        failpoint("lake.files_synced")
        return self._commit(
            location,
            adds,
            changes,
            cursor,
            read_version=read_version,
            replace=replace,
            rearranges=rearranges,
            operation=operation,
        )

    def commit_changes(
        self,
        location: str,
        changes: Sequence[Change],
        cursor: Cursor,
        *,
        read_version: int,
        operation: str,
    ) -> Committed:
        """See TablePort."""
        return self._commit(
            location,
            (),
            changes,
            cursor,
            read_version=read_version,
            replace=False,
            rearranges=False,
            operation=operation,
        )

    def _commit(
        self,
        location: str,
        adds: Sequence[AddedFile],
        changes: Sequence[Change],
        cursor: Cursor,
        **how: Any,
    ) -> Committed:
        """The changes, whose files are durable, as the next version; durable as well."""
        root = local_path(location)
        with self.writing(location):
            done = None
            if root is not None:
                done = self._commit_here(location, root, adds, changes, cursor, **how)
            if done is None:
                done = self._commit_by_delta(location, adds, changes, cursor, **how)
        failpoint("lake.committed")
        self.sync(location, done.version)
        failpoint("lake.commit_synced")
        return done

    def writing(self, location: str) -> threading.RLock:
        """See TablePort."""
        with self._lock:
            return self._writing[location]

    def _commit_here(
        self,
        location: str,
        root: Path,
        adds: Sequence[AddedFile],
        changes: Sequence[Change],
        cursor: Cursor,
        *,
        read_version: int | None,
        replace: bool,
        rearranges: bool,
        operation: str,
    ) -> Committed | None:
        """The next version as ``log.commit`` writes it; None: it is for Delta to do."""
        newest = self.newest(location)
        if newest is None or not is_ours_to_write(newest):
            return None
        state = newest.state
        with self._lock:
            listing = self._listings.get(location)
        if listing is None or not listing.is_of(state):
            return None
        check_files(state, adds, root)
        committed = state.cursor(cursor.app_id)
        if committed is not None and _is_done(committed, cursor, rearranges):
            return Committed(state.version, already_done=True)
        if read_version is not None:
            expect_version(location, read_version, state.version)
        # Ours is durable when it has its name: what others wrote must not be lost below it.
        self.sync(location, state.version)
        written = write_next(
            root,
            newest,
            listing.files,
            changes,
            cursor,
            reads=read_version is not None or replace,
            replaces=replace,
            operation=operation,
        )
        if written is None:
            # Somebody was faster: Delta knows whether that is a conflict.
            return None
        version = state.version + 1
        with self._lock:
            if self._synced.get(location) == state.version:
                self._synced[location] = version
            self._versions.pop(location, None)
            if written.version is not None:
                self._versions[location] = written.version
            self._listings.pop(location, None)
            if len(written.files) <= LISTED_FILES:
                self._keep(location, _Listing(state.table_id, version, written.files))
        return Committed(version)

    def _commit_by_delta(
        self,
        location: str,
        adds: Sequence[AddedFile],
        changes: Sequence[Change],
        cursor: Cursor,
        *,
        read_version: int | None,
        replace: bool,
        rearranges: bool,
        operation: str,
    ) -> Committed:
        with self._delta.calling(location):
            self._delta.existing(location)
            transaction = self._delta.log(location).startTransaction()
            transaction.readTxn().addOne(cursor.app_id)
            state = self._delta.state_of(location, transaction.snapshot())
            root = local_path(location)
            if root is not None:
                check_files(state, adds, root)
            committed, found = state.cursor(cursor.app_id), state.version
            if committed is not None and _is_done(committed, cursor, rearranges):
                return Committed(found, already_done=True)
            if read_version is not None:
                expect_version(location, read_version, found)
            if read_version is not None or replace:
                transaction.readWholeTable()
            removes = transaction.filterFiles() if replace else None
            version: int = transaction.commit(
                self._delta.actions(changes, cursor, removes),
                self._delta.operation(cursor, replace, operation),
            )
        self._note_commit(location, found, version, changes, replace)
        return Committed(
            version,
            interlopers=()
            if read_version is None
            else tuple(range(read_version + 1, version)),
        )

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
            self.forget(location)
            with self._delta.calling(location):
                self._delta.forget(location)
        return removed

    def forget(self, location: str) -> None:
        """Whatever is known of a table: its log has been cut."""
        with self._lock:
            self._synced.pop(location, None)
            self._listings.pop(location, None)
            self._versions.pop(location, None)

    def _note_commit(
        self,
        location: str,
        read: int,
        version: int,
        changes: Sequence[Change],
        replace: bool,
    ) -> None:
        """Carry the listing of the version read over to the one just made."""
        with self._lock:
            known = self._listings.pop(location, None)
            if known is None or known.version != read or version != read + 1:
                return
            files = files_after({} if replace else known.files, changes)
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
