"""The table port for Delta Lake.

Comes in: calls of ``port.TablePort``. Goes out: commits in the tables' own logs. Used by apply,
tablesync, local and commands through the port.

Why this way. A commit makes files visible that executors wrote with PyArrow. If the table is
plain, then ``log`` writes the commit through the table's store; otherwise Delta's own
OptimisticTransaction does, driven over py4j. Delta checks the protocol, the conflicts and the
files' statistics exactly as for its own writes, and writes checksums and checkpoints. One commit
carries the ``add`` actions, the removes of a replacement and the cursor (``txn``). Two reads are
registered with the transaction and make it safe:

- the cursor (``readTxn``): a concurrent commit of the same application conflicts;
- with ``read_version``, the whole table (``readWholeTable``): any concurrent change of
  data conflicts, so check-then-append has no gap between check and append.

Cursors and the schema are read from the version's checksum file, where Delta keeps them. Delta's
own ``txnVersion`` reconstructs the table's state with Spark jobs, which takes a second instead of
a millisecond; it is called only if the newest commit has no checksum file.

In the table's history the operation is STREAMING UPDATE, its query id and epoch are the cursor's,
and the user metadata is the ``operation`` that the caller passed.

Durability: ``durability.py`` syncs the files before the commit, and the commit after it. Versions
are synced without gaps. The first time that a process touches a table it syncs the last
``LOOK_BACK`` versions, because its predecessor may have been killed between commit and sync.

Sources: Delta transaction log protocol; delta-spark 4.4 OptimisticTransaction.scala,
ConflictChecker.scala, DeltaOperations.scala.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from wal2lake.errors import DuplicateObjectError, StorageError
from wal2lake.lake.delta.durability import (
    discard_torn_commits,
    settle_checkpoint,
    settle_commit,
    settle_created,
    settle_files,
)
from wal2lake.lake.delta.fit import check_files
from wal2lake.lake.delta.log.background import BackgroundWork, LeavesTables
from wal2lake.lake.delta.log.checkpoints import is_due
from wal2lake.lake.delta.log.commit import (
    Change,
    after_metadata,
    is_ours_to_write,
    write_next,
)
from wal2lake.lake.delta.log.earlier import earlier, is_plainly_read
from wal2lake.lake.delta.log.known import LISTED_FILES, KnownVersions, stamp
from wal2lake.lake.delta.log.place import Object, commit_key
from wal2lake.lake.delta.log.version import (
    Version,
    read_actions,
    read_version,
    state_of,
)
from wal2lake.lake.delta.schemachange import (
    MODE,
    missing_features,
    needs_mapping,
    next_metadata,
    refuse_unless_plain,
)
from wal2lake.lake.executors import Pool
from wal2lake.lake.port import (
    Committed,
    Cursor,
    FieldSpec,
    NextField,
    TableSize,
    TableState,
    expect_version,
)
from wal2lake.lake.spark.delta.creation import Creation
from wal2lake.lake.spark.delta.jvm import DeltaJvm
from wal2lake.lake.spark.delta.uniqueness import any_key_taken, any_key_twice
from wal2lake.lake.spark.session import use_pool
from wal2lake.lake.store import LocalStore, has_store, local_path, store_at
from wal2lake.lake.tablefiles import AddedFile, DataFile, Replaced, add_action
from wal2lake.observe import KeyedLocks, LockRank, OrderedLock, failpoint
from wal2lake.pgtypes.spark_ddl import identifier

LOOK_BACK: Final = 16
"""More versions than a table can have in flight when a process dies (one, or a few if foreign
writers interleave). Syncing a version that is durable already costs microseconds."""

BRANCHES_FOLDER: Final = "/_transactions/"
"""Part of the location of each branch, and of no other table's: a leading underscore of a schema's
name is encoded."""


class DeltaTables:
    """Delta tables by location; one instance per session, safe for all threads."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._delta = DeltaJvm(spark)
        self._synced: dict[str, int] = {}
        self._known = KnownVersions()
        self._creation = Creation(self._delta)
        self._checkpoints = BackgroundWork("write a checkpoint", self._checkpoint)
        self._background: list[LeavesTables] = [self._checkpoints]
        self._writing: KeyedLocks[str] = KeyedLocks(LockRank.TABLE)
        self._writing_branches: KeyedLocks[str] = KeyedLocks(LockRank.BRANCH)
        self._lock = threading.Lock()

    def create(
        self,
        location: str,
        fields: Sequence[FieldSpec],
        properties: Mapping[str, str] | None = None,
        partition_columns: Sequence[str] = (),
        clustering: Sequence[str] = (),
    ) -> TableState:
        """Create a table, as in TablePort; ``properties`` win over ``DEFAULT_PROPERTIES``."""
        if self.exists(location):
            raise DuplicateObjectError(
                f'there is a Delta table at "{location}" already', sqlstate="42P07"
            )
        self._creation.create(
            location, fields, properties, partition_columns, clustering
        )
        settle_created(store_at(location))
        state = self.state(location)
        with self._lock:
            self._synced[location] = 0
        if state.version == 0:
            self._known.list_files(state, stamp(location, 0), {})
        return state

    def register_background(self, work: LeavesTables) -> None:
        """Register work that must leave a table before the table is dropped."""
        self._background.append(work)

    def drop(self, location: str) -> None:
        """Drop a table, as in TablePort. Refuses a directory that is not a table."""
        for work in tuple(self._background):
            work.leave(location)
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
        """Tell whether a table exists, as in TablePort."""
        if self._known.newest(location) is not None:
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
        """Return the newest version, as in TablePort."""
        newest = self._known.newest(location)
        if newest is not None:
            return newest.state
        with self._delta.calling(location):
            return self._delta.state_of(location, self._delta.existing(location))

    def state_at(self, location: str, version: int) -> TableState:
        """Return a version, as in TablePort."""
        newest = self.state(location)
        later = self.actions(location, version + 1, newest.version)
        if not any("metaData" in action for commit in later for action in commit):
            return replace(newest, version=version, cursors={})
        store = store_at(location)
        summed = None if store is None else read_version(location, store, version)
        if summed is not None:
            return replace(summed.version.state, cursors={})
        for number in range(version, -1, -1):
            (commit,) = self.actions(location, number, number)
            if not commit:
                break
            for action in commit:
                if "metaData" in action:
                    return state_of(location, action["metaData"], version, {})
        raise StorageError(
            f'the definition of version {version} of the table at "{location}" is not kept',
            sqlstate="58P01",
        )

    def goes_beyond(self, location: str, version: int) -> bool:
        """Tell whether the table goes beyond a version, as in TablePort."""
        store = store_at(location)
        if store is not None:
            return store.stamp(commit_key(version + 1)) is not None
        return self.state(location).version > version

    def newest(self, location: str) -> Version | None:
        """Return the newest version of a local table, read from its log; None if Delta must be
        asked."""
        return self._known.newest(location)

    def size(self, location: str, known: int | None) -> TableSize | None:
        """Return the size of the newest version that this process has met, without a look at the
        table; None if that is version ``known``, or there is none."""
        if self._known.known_version(location) in (None, known):
            return None
        return self._known.size(location)

    def version_at(self, location: str, time: datetime) -> int | None:
        """Return the version at a time, as in TablePort."""
        with self._delta.calling(location):
            return self._delta.version_at(location, time)

    def writers(self, location: str, first: int, last: int) -> list[frozenset[str]]:
        """Return the writers of commits, as in TablePort. A commit that the log no longer has has
        no writer."""
        return [
            frozenset(action["txn"]["appId"] for action in commit if "txn" in action)
            for commit in self.actions(location, first, last)
        ]

    def actions(
        self, location: str, first: int, last: int
    ) -> list[list[dict[str, Any]]]:
        """Return the actions of commits, as in TablePort."""
        store = store_at(location)
        if store is not None:
            return [read_actions(store, number) for number in range(first, last + 1)]
        commits: list[list[dict[str, Any]]] = []
        with self._delta.calling(location):
            path = self._delta.jvm.org.apache.hadoop.fs.Path(location, "_delta_log")
            store = self._delta.log(location).store()
            for version in range(first, last + 1):
                commit = self._delta.jvm.org.apache.hadoop.fs.Path(
                    path, f"{version:020}.json"
                )
                if not commit.getFileSystem(self._delta.hadoop_conf()).exists(commit):
                    commits.append([])
                    continue
                lines = store.read(commit, self._delta.hadoop_conf())
                converters = self._delta.jvm.scala.jdk.javaapi.CollectionConverters
                commits.append([json.loads(line) for line in converters.asJava(lines)])
        return commits

    def files(self, state: TableState) -> Sequence[DataFile] | None:
        """Return the live files, as in TablePort. No scan is needed for files that this object
        committed."""
        location = state.location
        self._known.newest(location)
        listed = self._known.files(state)
        if listed is not None:
            return list(listed.values())
        commit = stamp(location, state.version)
        with self._delta.calling(location):
            snapshot = self._delta.existing(location)
            if (snapshot.version(), snapshot.metadata().id()) != (
                state.version,
                state.table_id,
            ):
                return None
            if snapshot.numOfFiles() > LISTED_FILES:
                return None
            live_files = [
                DataFile(json.loads(action.json())["add"])
                for action in snapshot.allFiles().collectAsList()
            ]
        self._known.list_files(state, commit, {file.key: file for file in live_files})
        return live_files

    def plainly_read(
        self, location: str, version: int | None
    ) -> tuple[TableState, Sequence[DataFile]] | None:
        """Return the version and the files of a plain read, as in TablePort."""
        store, newest = store_at(location), self._known.newest(location)
        if store is None or newest is None:
            return None
        state, files = newest.state, self.files(newest.state)
        if files is None:
            return None
        described = newest
        if version is not None and version != state.version:
            before = earlier(store, state, files, version)
            if before is None:
                return None
            described, files = before
        if not is_plainly_read(described) or not all(
            has_store(file.place(store.location)) for file in files
        ):
            return None
        return described.state, files

    def any_key_taken(
        self, state: TableState, adds: Sequence[AddedFile], key: Sequence[str]
    ) -> bool:
        """Look for keys that the table has, as in TablePort. A table without files is not
        read."""
        listed = self.files(state)
        if not adds or (listed is not None and not listed):
            return False
        with self._delta.calling(state.location):
            return any_key_taken(self._spark, state, adds, key)

    def any_key_twice(
        self, state: TableState, adds: Sequence[AddedFile], key: Sequence[str]
    ) -> bool:
        """Look for repeated keys, as in TablePort."""
        if not adds:
            return False
        with self._delta.calling(state.location):
            return any_key_twice(self._spark, state, adds, key)

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
        """Commit files, as in TablePort; ``operation`` becomes the commit's user metadata."""
        now = int(time.time() * 1000)
        changes = [
            {"add": add_action(added, data_change=not rearranges)} for added in adds
        ]
        for file in replaced:
            changes.append({"remove": file.remove(now, data_change=not rearranges)})
            kept = file.add(data_change=not rearranges)
            if kept is not None:
                changes.append({"add": kept})
        settle_files(
            store_at(location),
            [added.path for added in adds],
            [*(file.vector for file in adds), *(file.vector for file in replaced)],
        )
        failpoint("lake.files_synced")
        return self._commit(
            _CommitRequest(
                location,
                local_path(location),
                adds,
                changes,
                cursor,
                read_version=read_version,
                replaces=replace,
                rearranges=rearranges,
                operation=operation,
            )
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
        """Commit changes, as in TablePort."""
        return self._commit(
            _CommitRequest(
                location,
                local_path(location),
                (),
                changes,
                cursor,
                read_version=read_version,
                replaces=False,
                rearranges=False,
                operation=operation,
            )
        )

    # ---- other columns ----------------------------------------------------------------

    def prepare_columns(self, location: str, fields: Sequence[NextField]) -> TableState:
        """Prepare columns, as in TablePort. Delta assigns the physical names and ids."""
        with self.writing(location):
            state = self.state(location)
            refuse_unless_plain(state, fields)
            properties = {MODE: "name"} if needs_mapping(state, fields) else {}
            protocol, _ = self._protocol_and_metadata(location)
            for feature in missing_features(protocol, fields):
                properties[f"delta.feature.{feature}"] = "supported"
            if properties:
                listed = ", ".join(f"'{k}' = '{v}'" for k, v in properties.items())
                with self._delta.calling(location):
                    self._spark.sql(
                        f"ALTER TABLE delta.{identifier(location)}"
                        f" SET TBLPROPERTIES ({listed})"
                    )
                state = self.state(location)
            self.sync(location, state.version)
            return state

    def metadata(self, location: str, fields: Sequence[NextField]) -> Object:
        """Return metadata with these columns, as in TablePort."""
        _, now = self._protocol_and_metadata(location)
        return next_metadata(now, fields)

    def _protocol_and_metadata(self, location: str) -> tuple[Object, Object]:
        """Return the protocol and the metadata of the newest version."""
        newest = self._known.newest(location)
        if newest is not None:
            return newest.protocol, newest.metadata
        with self._delta.calling(location):
            snapshot = self._delta.existing(location)
            protocol = json.loads(snapshot.protocol().json())["protocol"]
            return protocol, json.loads(snapshot.metadata().json())["metaData"]

    def create_like(self, location: str, metadata: Object) -> None:
        """Create an empty table with the metadata, as in TablePort."""
        own = {**metadata, "id": str(uuid.uuid4())}
        self._creation.create_with(location, own)

    def commit_metadata(
        self,
        location: str,
        metadata: Object,
        cursor: Cursor,
        *,
        read_version: int,
        rows: Sequence[Change] | None,
        operation: str,
    ) -> Committed:
        """Commit metadata, as in TablePort."""
        return self._commit(
            _CommitRequest(
                location,
                local_path(location),
                (),
                rows or (),
                cursor,
                read_version=read_version,
                replaces=rows is not None,
                rearranges=False,
                operation=operation,
                metadata=metadata,
            )
        )

    def _commit(self, request: _CommitRequest) -> Committed:
        """Commit changes whose files are durable as the next version; the version is durable on
        return."""
        location = request.location
        with self.writing(location):
            committed = self._commit_directly(request) or self._commit_by_delta(request)
        failpoint("lake.committed")
        self.sync(location, committed.version)
        failpoint("lake.commit_synced")
        return committed

    def writing(self, location: str) -> OrderedLock:
        """Return the table's lock, as in TablePort."""
        is_branch = BRANCHES_FOLDER in location
        return (self._writing_branches if is_branch else self._writing).of(location)

    def _commit_directly(self, request: _CommitRequest) -> Committed | None:
        """Write the next version with ``log.commit``; None if Delta must write it."""
        location, store = request.location, store_at(request.location)
        newest = self._known.newest(location)
        if store is None or newest is None or not is_ours_to_write(newest):
            return None
        if request.metadata is not None and not is_ours_to_write(
            after_metadata(newest, request.metadata)
        ):
            # Only Delta can decide whether the table may have these columns.
            return None
        state = newest.state
        files = self._known.files(state)
        if files is None:
            return None
        done = request.done_in(state)
        if done is not None:
            return done
        # Our commit is durable once it has its name, so the versions below it, which other
        # writers may have made, must be durable first.
        self.sync(location, state.version)
        written = write_next(
            store,
            newest,
            files,
            request.changes,
            request.cursor,
            reads=request.reads,
            replaces=request.replaces,
            operation=request.operation,
            metadata=request.metadata,
        )
        if written is None:
            # Another writer committed first: Delta decides whether that is a conflict.
            return None
        version = state.version + 1
        self._known.written(state, written)
        with self._lock:
            if self._synced.get(location) == state.version:
                self._synced[location] = version
        if written.version is not None and is_due(written.version):
            self._checkpoints.ask(location)
        return Committed(version)

    def _checkpoint(self, location: str) -> None:
        """Let Delta write a checkpoint of the newest version; Delta may then clean up the log.
        The checkpoint is durable on return."""
        use_pool(self._spark, Pool.SYNC)
        with self._delta.calling(location):
            snapshot = self._delta.existing(location)
            none = self._delta.jvm.scala.Option.empty()
            self._delta.log(location).checkpoint(snapshot, none)
            version: int = snapshot.version()
        settle_checkpoint(store_at(location), version)

    def _commit_by_delta(self, request: _CommitRequest) -> Committed:
        location, cursor = request.location, request.cursor
        with self._delta.calling(location):
            self._delta.existing(location)
            transaction = self._delta.log(location).startTransaction()
            transaction.readTxn().addOne(cursor.app_id)
            state = self._delta.state_of(location, transaction.snapshot())
            commit = stamp(location, state.version)
            done = request.done_in(state)
            if done is not None:
                return done
            if request.reads:
                transaction.readWholeTable()
            if request.metadata is not None:
                changed = self._delta.action({"metaData": request.metadata})
                transaction.updateMetadata(changed, False)
            removes = transaction.filterFiles() if request.replaces else None
            version: int = transaction.commit(
                self._delta.actions(request.changes, cursor, removes),
                self._delta.operation(cursor, request.replaces, request.operation),
            )
        self._known.committed(
            state, commit, version, request.changes, replaces=request.replaces
        )
        read = request.read_version
        return Committed(
            version,
            interlopers=() if read is None else tuple(range(read + 1, version)),
        )

    def sync(self, location: str, version: int) -> None:
        """Make a version durable, as in TablePort."""
        with self._lock:
            synced = self._synced.get(location)
        if synced is not None and synced >= version:
            return
        first = max(0, version - LOOK_BACK) if synced is None else synced + 1
        settle_commit(store_at(location), version, first=first)
        with self._lock:
            self._synced[location] = max(version, self._synced.get(location, 0))

    def recover(self, location: str, synced_version: int) -> tuple[int, ...]:
        """Recover a table, as in TablePort."""
        store = store_at(location)
        if not isinstance(store, LocalStore):
            # A commit is whole there, or does not exist.
            return ()
        removed = discard_torn_commits(store.root, synced_version)
        if removed:
            self.forget(location)
            with self._delta.calling(location):
                self._delta.forget(location)
        return removed

    def forget(self, location: str) -> None:
        """Forget everything cached about a table whose log has been cut."""
        with self._lock:
            self._synced.pop(location, None)
        self._known.forget(location)


@dataclass(frozen=True, slots=True)
class _CommitRequest:
    """A commit to be made, with the arguments of ``commit_files``."""

    location: str
    root: Path | None
    """The table's directory; None if it is not on this machine."""
    adds: Sequence[AddedFile]
    changes: Sequence[Change]
    cursor: Cursor
    read_version: int | None
    replaces: bool
    rearranges: bool
    operation: str
    metadata: Object | None = None
    """Metadata of the next version; None if it does not change."""

    @property
    def reads(self) -> bool:
        """Whether the changes were made from the table's contents."""
        return self.read_version is not None or self.replaces

    def done_in(self, state: TableState) -> Committed | None:
        """Return the earlier commit if the table has the cursor already; None: commit on
        ``state``.

        Raises CommitConflict if the table has changed since ``read_version``, and the errors of
        ``check_files``.
        """
        if self.root is not None:
            check_files(state, self.adds, self.root)
        committed = state.cursor(self.cursor.app_id)
        if committed is not None:
            # A rearrangement carries the table's present cursor and does not advance it.
            ahead = committed - self.cursor.version
            if ahead > 0 or (ahead == 0 and not self.rearranges):
                return Committed(state.version, already_done=True)
        if self.read_version is not None:
            expect_version(self.location, self.read_version, state.version)
        return None
