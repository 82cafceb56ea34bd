"""The table port for Delta Lake.

Comes in: calls of ``port.TablePort``. Goes out: commits in the tables' own logs. Used by apply,
tablesync, local and commands through the port.

Why this way. A commit makes files visible that executors wrote with PyArrow. ``log.commit`` writes
it through the table's store: the ``add`` actions, the removes of a replacement and the cursor
(``txn``), or another definition. A commit is based on the version that was read, which must be the
newest; if another writer takes the next version's name first, then a commit that only adds files is
tried again on top, and one that was made from the table's contents is a CommitConflict. So
check-then-append has no gap between check and append.

Versions are read from their checksum files, or from the log (``delta.versions``). Delta's own code
reads and writes tables in storages that ``lake.store`` does not know.

In the table's history the operation is STREAMING UPDATE, its query id and epoch are the cursor's,
and the user metadata is the ``operation`` that the caller passed.

Durability: ``durability.py`` syncs the files before the commit, and the commit after it. Versions
are synced without gaps. The first time that a process touches a table it syncs the last
``LOOK_BACK`` versions, because its predecessor may have been killed between commit and sync.

Sources: Delta transaction log protocol; delta-spark 4.4 ConflictChecker.scala.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from pyspark.sql import SparkSession

from wal2lake.errors import (
    DuplicateObjectError,
    StorageError,
    UndefinedObjectError,
)
from wal2lake.lake.delta.dropping import drop_objects, not_a_table
from wal2lake.lake.delta.durability import (
    discard_torn_commits,
    settle_commit,
    settle_created,
    settle_files,
)
from wal2lake.lake.delta.log.background import BackgroundWork, LeavesTables
from wal2lake.lake.delta.log.checkpoints import is_due
from wal2lake.lake.delta.log.commit import Change, NextVersion, write_next
from wal2lake.lake.delta.log.place import Object, commit_key
from wal2lake.lake.delta.log.version import (
    Version,
    read_actions,
    read_version,
    state_of,
)
from wal2lake.lake.delta.protocol.features import refuse_unknown
from wal2lake.lake.delta.protocol.upgrade import with_features, with_mapping
from wal2lake.lake.delta.schemachange import (
    missing_features,
    needs_mapping,
    next_metadata,
    refuse_unless_plain,
)
from wal2lake.lake.delta.versions.checkpoints import write_checkpoint
from wal2lake.lake.delta.versions.cleanup import clean_up
from wal2lake.lake.delta.versions.earlier import earlier, is_plainly_read
from wal2lake.lake.delta.versions.known import (
    Files,
    KnownVersions,
    stamp,
)
from wal2lake.lake.delta.versions.replay import replay
from wal2lake.lake.executors import Pool
from wal2lake.lake.port import (
    CommitConflict,
    Committed,
    Cursor,
    FieldSpec,
    NextField,
    TableSize,
    TableState,
)
from wal2lake.lake.spark.delta.creation import Creation
from wal2lake.lake.spark.delta.elsewhere import Elsewhere
from wal2lake.lake.spark.delta.jvm import DeltaJvm
from wal2lake.lake.spark.delta.request import CommitRequest
from wal2lake.lake.spark.delta.uniqueness import any_key_taken, any_key_twice
from wal2lake.lake.spark.session import use_pool
from wal2lake.lake.store import (
    LocalStore,
    Store,
    UnknownOutcome,
    has_store,
    local_path,
    store_at,
)
from wal2lake.lake.tablefiles import AddedFile, DataFile, Replaced, add_action
from wal2lake.observe import KeyedLocks, LockRank, OrderedLock, failpoint
from wal2lake.pgtypes.spark_ddl import identifier

LOOK_BACK: Final = 16
"""More versions than a table can have in flight when a process dies (one, or a few if foreign
writers interleave). Syncing a version that is durable already costs microseconds."""

_MOST_TRIES: Final = 100
"""Most versions that other writers may take one after the other while files are appended; each
try takes some milliseconds. A guess."""

_PLAIN_FILES: Final = 10_000
"""Most files of a table that this process reads. Spark plans the reads of a table with more."""

_MANIFEST: Final = "delta.compatibility.symlinkFormatManifest.enabled"
"""Property of a table whose commits are followed by a list of its files."""

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
        self._elsewhere = Elsewhere(spark, self._delta, self._known)
        self._creation = Creation(self._delta)
        self._checkpoints = BackgroundWork("write a checkpoint", self._checkpoint)
        self._manifests = BackgroundWork("write a manifest", self._manifest)
        self._background: list[LeavesTables] = [self._checkpoints, self._manifests]
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
        store = store_at(location)
        if store is None or isinstance(store, LocalStore):
            self._drop_folder(location)
        else:
            drop_objects(store)
            with self._delta.calling(location):
                self._delta.forget(location)
        self.forget(location)

    def _drop_folder(self, location: str) -> None:
        with self._delta.calling(location):
            path = self._delta.jvm.org.apache.hadoop.fs.Path(location)
            files = path.getFileSystem(self._delta.hadoop_conf())
            if files.exists(path):
                log = self._delta.jvm.org.apache.hadoop.fs.Path(path, "_delta_log")
                children = list(files.listStatus(path))
                if children and not files.exists(log):
                    raise not_a_table(location)
                for child in children:
                    if child.getPath().getName() != "_delta_log":
                        files.delete(child.getPath(), True)
                files.delete(path, True)
            self._delta.forget(location)

    def exists(self, location: str) -> bool:
        """Tell whether a table exists, as in TablePort."""
        if store_at(location) is not None:
            try:
                return self._known.newest(location) is not None
            except UndefinedObjectError:
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
        """Return the newest version; None if only Delta can read the table's store."""
        return self._known.newest(location)

    def size(self, location: str, last_version: int | None) -> TableSize | None:
        """Return the size of the newest version that this process has met, without a look at the
        table; None if that is version ``last_version``, or there is none."""
        if self._known.known_version(location) in (None, last_version):
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
        return self._elsewhere.actions(location, first, last)

    def files(self, state: TableState) -> Sequence[DataFile] | None:
        """Return the live files, as in TablePort. No scan is needed for files that this object
        committed."""
        store = store_at(state.location)
        if store is not None:
            listed = self._list(state, store)
            return None if listed is None else list(listed.values())
        listed = self._elsewhere.files(state)
        return None if listed is None else list(listed.values())

    def _list(self, state: TableState, store: Store) -> Files | None:
        """Return the live files of the newest version; None if ``state`` is another one."""
        newest = self._known.newest(state.location)
        listed = self._known.files(state)
        if listed is not None or newest is None:
            return listed
        now = newest.state
        if (now.version, now.table_id) != (state.version, state.table_id):
            return None
        read_from = newest.stamp
        files = replay(state.location, store, state.version).files
        self._known.list_files(state, read_from, files)
        return files

    def listed(
        self, state: TableState, number: int
    ) -> tuple[Version, Sequence[DataFile]] | None:
        """Return a version of the table, whose newest one is ``state``, and all of its files, with
        everything that the log has about them; None if only Delta can read the table's store."""
        store, newest = store_at(state.location), self._known.newest(state.location)
        if store is None or newest is None:
            return None
        now = newest.state
        if now.table_id == state.table_id and now.version == number:
            files = self._list(now, store)
            if files is not None:
                return newest, list(files.values())
        summed = read_version(state.location, store, number)
        if summed is not None and summed.files is not None:
            return summed.version, list(summed.files.values())
        # Not ``earlier``: what later commits say of the files that they remove is less.
        replayed = replay(state.location, store, number)
        version = replayed.version(state.location, store, number)
        return version, list(replayed.files.values())

    def plainly_read(
        self, location: str, version: int | None
    ) -> tuple[TableState, Sequence[DataFile]] | None:
        """Return the version and the files of a plain read, as in TablePort."""
        store, newest = store_at(location), self._known.newest(location)
        if store is None or newest is None:
            return None
        if newest.size.files > _PLAIN_FILES:
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
            CommitRequest(
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
            CommitRequest(
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
        """Prepare columns, as in TablePort. Columns that are in files keep their names there."""
        store = store_at(location)
        with self.writing(location):
            if store is None:
                self._elsewhere.prepare_columns(self.state(location), fields)
            else:
                while not self._prepare(store, self._newest(location), fields):
                    continue
            state = self.state(location)
            self.sync(location, state.version)
            return state

    def _prepare(
        self, store: Store, newest: Version, fields: Sequence[NextField]
    ) -> bool:
        """Commit what the columns need beforehand, if anything; False if another writer was
        faster."""
        refuse_unless_plain(newest.state, fields)
        features = missing_features(newest.protocol, fields)
        metadata = None
        if needs_mapping(newest.state, fields):
            metadata = with_mapping(newest.metadata, is_new=False)
            features = [*features, "columnMapping"]
        if not features:
            return True
        commit = NextVersion(
            (),
            None,
            "prepare columns",
            metadata=metadata,
            protocol=with_features(newest.protocol, features),
        )
        return self._write(store, newest, commit)

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
        self._creation.create_like(location, metadata)

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
            CommitRequest(
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

    def _commit(self, request: CommitRequest) -> Committed:
        """Commit changes whose files are durable as the next version; the version is durable on
        return."""
        location = request.location
        store = store_at(location)
        with self.writing(location):
            if store is None:
                committed = self._elsewhere.commit(request)
            else:
                committed = self._commit_in(store, request)
        failpoint("lake.committed")
        self.sync(location, committed.version)
        failpoint("lake.commit_synced")
        return committed

    def writing(self, location: str) -> OrderedLock:
        """Return the table's lock, as in TablePort."""
        is_branch = BRANCHES_FOLDER in location
        return (self._writing_branches if is_branch else self._writing).of(location)

    def _commit_in(self, store: Store, request: CommitRequest) -> Committed:
        """Write the next version in the table's store."""
        interlopers: tuple[int, ...] = ()
        for _ in range(_MOST_TRIES):
            newest = self._newest(request.location)
            done = request.done_in(newest.state)
            if done is not None:
                return done
            if self._write(store, newest, request.commit):
                return Committed(newest.state.version + 1, interlopers=interlopers)
            taken = newest.state.version + 1
            if request.reads:
                if not _is_only_cursor(read_actions(store, taken), request.cursor):
                    break
                request = replace(request, read_version=taken)
                interlopers += (taken,)
        raise CommitConflict(
            "could not serialize access due to concurrent update",
            detail=f'Another writer has committed to the table at "{request.location}".',
        )

    def _newest(self, location: str) -> Version:
        """Return the newest version of a table in a known store, which this node can write."""
        newest = self._known.newest(location)
        assert newest is not None
        refuse_unknown(location, newest.protocol)
        return newest

    def _write(self, store: Store, newest: Version, commit: NextVersion) -> bool:
        """Write the version above ``newest``; False if another writer was faster."""
        state = newest.state
        files = self._known.files(state)
        if files is None and commit.replaces:
            files = replay(state.location, store, state.version).files
        # Our commit is durable once it has its name, so the versions below it, which other
        # writers may have made, must be durable first.
        self.sync(state.location, state.version)
        try:
            written = write_next(store, newest, files, commit)
        except UnknownOutcome:
            self._known.doubt(newest)
            raise
        if written is None:
            return False
        version = state.version + 1
        self._known.written(state, written)
        with self._lock:
            if self._synced.get(state.location) == state.version:
                self._synced[state.location] = version
        if is_due(version, newest.state.properties):
            self._checkpoints.ask(state.location)
        if state.properties.get(_MANIFEST, "").lower() == "true":
            self._manifests.ask(state.location)
        return True

    def _checkpoint(self, location: str) -> None:
        """Write a checkpoint of the newest version, and remove entries of the log that have
        expired. The checkpoint is durable on return."""
        store, newest = store_at(location), self._known.newest(location)
        if store is None or newest is None:
            return
        number = newest.state.version
        # Another writer's commit may still be lost; a checkpoint of it must not stay then.
        self.sync(location, number)
        written = write_checkpoint(location, store, number)
        clean_up(store, written.version)

    def _manifest(self, location: str) -> None:
        """Let Delta write the list of files that readers without Delta use. Spark asks no lease
        before: a node that has just lost the warehouse may still write the list of its version."""
        use_pool(self._spark, Pool.SYNC)
        with self._delta.calling(location):
            self._spark.sql(
                "GENERATE symlink_format_manifest FOR TABLE"
                f" delta.{identifier(location)}"
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


def _is_only_cursor(commit: Sequence[Change], cursor: Cursor) -> bool:
    """Whether another application's commit changes nothing of the table but that application's own
    cursor."""
    return bool(commit) and all(
        "commitInfo" in action
        or ("txn" in action and action["txn"]["appId"] != cursor.app_id)
        for action in commit
    )
